// Single samples: which are chosen, by a view or by filters, their harm, and the table that shows them.

const SAMPLES = DATA.samples;
const LINKED = SAMPLES.row.length > 0;
const state = { before: DATA.before, after: DATA.after, measure: "overconfidence", selection: null, filters: {} };
const shownMethods = () => unique([state.before, state.after]);
const ofMethod = (method) => SAMPLES.methods[DATA.methods.indexOf(method)];
const told = (method, i) => known(ofMethod(method).prediction[i]); // a method may speak of one of two files
const speaker = (i) => (told(state.after, i) ? state.after : state.before); // who speaks of a sample
const isRight = (method, i) => ofMethod(method).prediction[i] === SAMPLES.label[i];
const weightOf = (i) => (SAMPLES.weight ? SAMPLES.weight[i] : 1);
const ACCEPTED = ANSWERS && measured("overall", { metric: "accepted_share" }); // of answers at a risk this, and no advice, says what to do
const ADVICE = ["trust", "trust, but rare", "choose among k", "ask a person"];
const adviceOf = (method, i) => (ofMethod(method).advice ? Number(ofMethod(method).advice[i]) : null);
const adviceText = (method, i) => (adviceOf(method, i) === 2 ? `choose among ${Math.max(2, ofMethod(method).size[i])}` : (ADVICE[adviceOf(method, i)] ?? "–"));
const memberList = (method, i) => (ofMethod(method).members?.[i] ? String(ofMethod(method).members[i]).split(" ").map(Number) : []);

// Whether following the advice goes wrong: the choice where a person is to choose, the prediction where it is trusted
function letThrough(method, i) {
  if (ACCEPTED) return ofMethod(method).accepted?.[i] === 1;
  const advice = adviceOf(method, i);
  if (advice === 3) return false;
  return advice === 2 ? !ofMethod(method).covered[i] && !memberList(method, i).includes(SAMPLES.label[i]) : !isRight(method, i);
}

// The order of review: errors that the advice lets through come first, the most confident ones before others, then errors that it catches,
// then the least confident of the right ones.
function harm(i) {
  const method = speaker(i);
  const confidence = ofMethod(method).confidence[i];
  if (isRight(method, i)) return 1 - confidence;
  return (letThrough(method, i) ? 2 : 1) + confidence;
}

function searchText(i) {
  const parts = [SAMPLES.id?.[i], SAMPLES.row[i], className(SAMPLES.label[i]), className(ofMethod(speaker(i)).prediction[i])];
  return parts.concat(exampleText(i)).join(" ").toLowerCase();
}

const FILTERS = {
  right: (i, value) => String(isRight(speaker(i), i)) === value,
  row: (i, value) => SAMPLES.row[i] === +value,
  label: (i, value) => SAMPLES.label[i] === +value,
  predicted: (i, value) => ofMethod(speaker(i)).prediction[i] === +value,
  advice: (i, value) => adviceOf(speaker(i), i) === +value,
  size: (i, value) => ofMethod(speaker(i)).size?.[i] === +value,
  accepted: (i, value) => ofMethod(speaker(i)).accepted?.[i] === +value,
  suspect: (i) => SUSPECTS.has(SAMPLES.row[i]),
  text: (i, value) => searchText(i).includes(value.toLowerCase()),
};
const SUSPECTS = new Map((DATA.suspects?.row ?? []).map((row, place) => [row, place]));

function passes(i, key, value) {
  if (key in FILTERS) return FILTERS[key](i, value);
  const [attribute, code] = [key.slice("in ".length), +value];
  return SAMPLES.subgroups[attribute][i] === code;
}

function inView(i, wanted) {
  const spoken = ofMethod(wanted.method);
  if (!told(wanted.method, i)) return false;
  if (wanted.kind === "quadrant") return spoken.quadrant[i] === wanted.quadrant[0];
  if (wanted.kind === "advice") return adviceOf(wanted.method, i) === wanted.advice;
  if (wanted.kind === "accepted") return spoken.accepted[i] === wanted.accepted;
  if (wanted.kind === "bin") return binOf(spoken.confidence[i]) === wanted.bin;
  return SAMPLES.group[i] === wanted.group && spoken.group[i] === wanted.level;
}

const binOf = (confidence) => clamp(Math.ceil(confidence * DATA.nBins) - 1, 0, DATA.nBins - 1);

function members() {
  const filters = Object.entries(state.filters);
  const wanted = state.selection;
  const speakers = shownMethods();
  return [...SAMPLES.row.keys()].filter((i) => speakers.some((method) => told(method, i)) && (!wanted || inView(i, wanted)) && filters.every(([key, value]) => passes(i, key, value)));
}

const filtered = () => state.selection !== null || Object.keys(state.filters).length > 0;

function setFilter(key, value) {
  if (value === "" || value === null || state.filters[key] === String(value)) delete state.filters[key];
  else state.filters[key] = String(value);
  drawLinked();
}

function menu(label, key, options, least = 2) {
  if (options.length < least) return null;
  const change = (event) => setFilter(key, event.target.value);
  const choices = [["", "any"], ...options].map(([value, text]) => h("option", { value, selected: (state.filters[key] ?? "") === String(value) }, text));
  return h("label", {}, `${label} `, h("select", { "data-filter": key, on: { change } }, choices));
}

function filterBar() {
  const spoken = ofMethod(state.after);
  const said = new Set(shownMethods().flatMap((method) => [...(ofMethod(method).advice ?? "")].map(Number)));
  const named = (values) => unique(values.filter(known)).map((index) => [index, className(index)]).sort((a, b) => a[1].localeCompare(b[1]));
  const attributes = Object.entries(DATA.subgroups).map(([attribute, names]) => menu(attribute, `in ${attribute}`, names.map((text, code) => [code, text])));
  const search = h("input", { type: "search", id: "search", value: state.filters.text ?? "", on: { change: (event) => setFilter("text", event.target.value) } });
  return [
    menu(WORDS.right, "right", [["true", WORDS.right], ["false", "wrong"]]),
    ANSWERS ? null : menu("true class", "label", named(SAMPLES.label)),
    ANSWERS ? null : menu("predicted", "predicted", named(shownMethods().flatMap((method) => ofMethod(method).prediction))),
    spoken.advice && !ACCEPTED ? menu("advice", "advice", ADVICE.map((text, code) => [code, text]).filter(([code]) => said.has(code))) : null,
    spoken.accepted ? menu("accepted", "accepted", [[1, "yes"], [0, "no"]]) : null,
    spoken.size ? menu("set size", "size", unique(shownMethods().flatMap((method) => ofMethod(method).size ?? []).filter(known)).sort((a, b) => a - b).map((size) => [size, String(size)])) : null,
    SUSPECTS.size ? menu("label", "suspect", [["true", "may be wrong"]], 1) : null,
    ...attributes,
    h("label", {}, "search ", search),
  ];
}

function exampleText(i) {
  const one = DATA.examples?.at[SAMPLES.row[i]];
  if (!known(one)) return "";
  if (DATA.examples.kind === "table") return DATA.examples.columns.map((column, place) => `${column} ${one[place]}`).join(" ");
  return DATA.examples.kind === "text" ? one : "";
}

function showExample(i) {
  const one = DATA.examples.at[SAMPLES.row[i]];
  if (!known(one)) return h("span", { class: "quiet" }, "–");
  if (DATA.examples.kind === "text") return h("div", { class: "text" }, name(one));
  if (DATA.examples.kind === "table") return h("dl", {}, DATA.examples.columns.flatMap((column, place) => [h("dt", {}, name(column)), h("dd", {}, name(String(one[place])))]));
  const image = h("img", { src: one, alt: `${WORDS.sample} ${SAMPLES.row[i]}, labelled ${className(SAMPLES.label[i])}` });
  const click = () => image.classList.toggle("large");
  return h("button", { type: "button", class: "thumb", title: "larger or smaller", on: { click } }, image);
}

function showSet(i) {
  const found = memberList(speaker(i), i);
  const size = ofMethod(speaker(i)).size[i];
  const more = size - found.length;
  const runnerUp = (place) => (place < size ? null : "or "); // beside a set of one class, where a person is to choose
  const names = found.map((index, place) => h("li", { class: index === SAMPLES.label[i] ? "true" : null }, runnerUp(place), name(className(index))));
  return h("ul", { class: "set" }, names, more > 0 ? h("li", { class: "quiet" }, `and ${whole(more)} more`) : null);
}

function sampleTable(chosen) {
  const spoken = ofMethod(state.after);
  const harms = new Map(chosen.map((i) => [i, harm(i)]));
  const columns = [];
  if (DATA.examples) columns.push({ title: "example", text: DATA.examples.kind === "image" || "words example", value: exampleText, show: showExample });
  columns.push({ title: "row", value: (i) => SAMPLES.row[i] });
  const words = (title, text, where = true) => columns.push({ title, text: where, value: text, show: (i) => name(text(i)) });
  if (SAMPLES.id) words("id", (i) => SAMPLES.id[i] ?? "");
  if (!ANSWERS) words("true class", (i) => className(SAMPLES.label[i]));
  columns.push({ title: WORDS.right, text: true, value: (i) => (isRight(speaker(i), i) ? "yes" : "no") });
  for (const method of shownMethods().reverse()) {
    const [where, word] = method === state.after ? ["", true] : ["screen", "words screen"]; // paper has room for one method
    if (!ANSWERS) words(`prediction, ${method}`, (i) => (told(method, i) ? className(ofMethod(method).prediction[i]) : "–"), word);
    columns.push({ title: `${WORDS.confidence}, ${method}`, text: where, value: (i) => ofMethod(method).confidence[i], show: (i) => percent(ofMethod(method).confidence[i]) });
    if (ofMethod(method).accepted) columns.push({ title: `accepted, ${method}`, text: word, value: (i) => ["no", "yes"][ofMethod(method).accepted[i]] ?? "–" });
    if (ofMethod(method).advice && !ACCEPTED) words(`advice, ${method}`, (i) => (told(method, i) ? adviceText(method, i) : "–"), word);
    if (method === state.after && spoken.members) columns.push({ title: "prediction set", text: true, value: (i) => memberList(speaker(i), i).map(className).join(" | "), show: showSet });
  }
  if (spoken.size) columns.push({ title: "set size", text: "screen", value: (i) => ofMethod(speaker(i)).size?.[i] }, { title: "set holds label", text: "words screen", value: (i) => (ofMethod(speaker(i)).covered?.[i] ? "yes" : "no") });
  if (SAMPLES.atypicality.some(known)) columns.push({ title: "atypicality", text: "screen", value: (i) => SAMPLES.atypicality[i], show: (i) => decimal(SAMPLES.atypicality[i], 1) });
  if (SUSPECTS.size) words("label may be", (i) => (SUSPECTS.has(SAMPLES.row[i]) ? className(DATA.suspects.suggested[SUSPECTS.get(SAMPLES.row[i])]) : ""));
  const sorted = [...chosen].sort((a, b) => harms.get(b) - harms.get(a));
  const ranks = new Map(sorted.map((i, place) => [i, place + 1]));
  columns.push({ title: "order of review", text: "screen", value: (i) => ranks.get(i), show: (i) => whole(ranks.get(i)) });
  return dataTable({ id: "sample-table", caption: WORDS.Samples, order: `in the order of review: errors that ${ACCEPTED ? "are accepted, errors that are not" : "the advice lets through, errors that it catches"}, low ${WORDS.confidence}`, columns, data: sorted, paged: true });
}

function keptText() {
  const listed = SAMPLES.row.length;
  if (listed >= DATA.nSamples) return null;
  return h("p", { class: "quiet", id: "kept-samples" }, `This page lists ${whole(listed)} of ${whole(DATA.nSamples)} ${WORDS.samples}: ${DATA.samples.rule}. Shares of a choice are weighted to stand for all.`);
}

function exampleNote() {
  if (!DATA.examples || DATA.examples.shown >= SAMPLES.row.length) return null;
  return h("p", { class: "quiet", id: "kept-examples" }, `Examples are shown of the ${whole(DATA.examples.shown)} first ${WORDS.samples} in the order of review that have one and fit into this page.`);
}
