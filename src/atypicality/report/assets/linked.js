// The linked views: a cell, quadrant, word, bin, class or subgroup chooses samples; everything under them follows.

const FEW = 20;
const askedOf = (method) => (known(DATA.alpha[method]) ? 1 - DATA.alpha[method] : null);

const MEASURES = {
  overconfidence: { title: `${WORDS.confidence} minus accuracy, in percentage points`, form: signed, ends: ["too cautious", "too confident"] },
  accuracy: { title: "accuracy", form: (value) => percent(value, 0) },
  coverage: { title: "share of prediction sets that hold the label", form: (value) => percent(value, 0), ends: ["below target", "above"] },
  set_size: { title: "mean number of classes in the prediction set", form: (value) => decimal(value, 1) },
};

function painter(measure) {
  const cells = shownMethods().flatMap((method) => rows("grid", { method, metric: measure })).filter((row) => known(row.value));
  const full = cells.filter((row) => row.count >= FEW); // a cell of four samples shall not set the scale
  const values = (full.length ? full : cells).map((row) => row.value);
  const clipped = (low, high) => ({ below: cells.some((row) => row.value < low), above: cells.some((row) => row.value > high) });
  const target = shownMethods().map(askedOf).filter(known);
  const centre = measure === "overconfidence" ? 0 : measure === "coverage" && target.length ? target[target.length - 1] : null;
  if (known(centre)) {
    const most = Math.max(measure === "coverage" ? 0.02 : 0.1, ...values.map((value) => Math.abs(value - centre)));
    const stops = measure === "coverage" ? [...DIFFERENCE].reverse() : DIFFERENCE;
    return { low: centre - most, centre, high: centre + most, stops, ...(measure === "coverage" ? { above: false, below: cells.some((row) => row.value < centre - most) } : clipped(centre - most, centre + most)) };
  }
  const low = Math.min(...values);
  const high = Math.max(...values, low + 1e-6);
  return { low, high, stops: AMOUNT, ...clipped(low, high) };
}

function ramp(measure, { low, centre, high, stops, below, above }) {
  const { form, ends } = MEASURES[measure];
  const blocks = [0, 0.25, 0.5, 0.75, 1].map((share) => {
    const block = h("span");
    paint(block, colour(stops, share));
    return block;
  });
  const top = measure === "coverage" ? Math.min(high, 1) : high;
  const middle = known(centre) && centre !== 0 ? h("b", {}, `target ${form(centre)}`) : null;
  const few = h("span", { class: "hatch few", "aria-hidden": "true" });
  return h("div", { class: "ramp" }, ends ? `${ends[0]} ` : null, (below ? "≤ " : "") + form(low), blocks, (above ? "≥ " : "") + form(top), ends ? ` ${ends[1]}` : null, middle, few, `fewer than ${FEW} ${WORDS.samples}`);
}

const isChosen = (selection) => state.selection !== null && JSON.stringify(state.selection) === JSON.stringify(selection);

function choice(selection, attributes, ...children) {
  if (!LINKED) return h("div", attributes, ...children);
  const pressed = isChosen(selection);
  const click = () => select(pressed ? null : selection);
  return h("button", { type: "button", "aria-pressed": String(pressed), "data-choice": JSON.stringify(selection), on: { click }, ...attributes }, ...children);
}

// Very confident models: their groups differ in the chance of an error, 1 in so many, and no more in percent
const oneIn = (value) => (value >= 1 ? "never" : `1 in ${1 / (1 - value) < 10 ? decimal(1 / (1 - value), 1) : whole(Number((1 / (1 - value)).toPrecision(2)))}`);
const confident = (method) => rows("group_ranges", { axis: "confidence", method }).some((range) => range.high > 0.9995 && range.high < 1 + 1e-9);
const inOdds = () => [state.before, state.after].some(confident); // one unit for the grids side by side
const edge = (value) => percent(value, value > 0.99 ? 2 : 1);

function confidenceText(level, method) {
  if (!inOdds()) return rangeText("confidence", level, method, edge);
  const [range] = rows("group_ranges", { axis: "confidence", group: level, method });
  if (!known(range.low)) return `more than ${oneIn(range.high)}`;
  return known(range.high) && range.high < 1 ? `${oneIn(range.low)} to ${oneIn(range.high)}` : `less than ${oneIn(range.low)}`;
}

function drawGrid(method, scaleOf) {
  const { form, title } = MEASURES[state.measure];
  const cells = new Map(rows("grid", { method, metric: state.measure }).map((row) => [`${row.group},${row.confidence_group}`, row]));
  const groups = unique([...cells.values()].map((row) => row.group));
  const levels = unique([...cells.values()].map((row) => row.confidence_group)).sort((a, b) => b - a);
  const head = h("tr", {}, h("th", {}, `${WORDS.confidence} group${inOdds() ? ": errors expected" : ""}`), groups.map((group) => h("th", { scope: "col" }, `${group + 1}`)));
  const body = levels.map((level) => h("tr", {}, h("th", { scope: "row" }, h("b", {}, `${level + 1}`), h("br"), confidenceText(level, method)), groups.map((group) => h("td", {}, drawCell(method, cells.get(`${group},${level}`), form, title, scaleOf)))));
  const foot = h("tr", {}, h("td"), h("th", { colspan: groups.length }, "atypicality group, from the most typical (1) to the most atypical"));
  const table = h("table", { class: "grid", on: { keydown: moveInGrid } }, h("caption", {}, name(method), h("span", { class: "quiet" }, `: ${title}`)), h("thead", {}, head), h("tbody", {}, body), h("tfoot", {}, foot));
  const first = table.querySelector('[aria-pressed="true"]') ?? table.querySelector("button.cell");
  table.querySelectorAll("button.cell").forEach((button) => button.setAttribute("tabindex", button === first ? "0" : "-1"));
  return h("figure", {}, table);
}

function drawCell(method, row, form, title, { low, high, stops }) {
  if (!row || !row.count) return h("div", { class: "cell empty" }, "–", h("small", {}, "n 0"));
  const selection = { kind: "cell", method, group: row.group, level: row.confidence_group };
  const where = `atypicality group ${row.group + 1}, ${WORDS.confidence} group ${row.confidence_group + 1}`;
  const text = `${where}: ${title} ${form(row.value)} (${form(row.low)} to ${form(row.high)}), ${whole(row.count)} ${WORDS.samples}`;
  const node = choice(selection, { class: row.count < FEW ? "cell few" : "cell", title: text, "aria-label": text, "data-count": row.count }, form(row.value), h("small", {}, `n ${whole(row.count)}`));
  if (row.count >= FEW) paint(node, colour(stops, (row.value - low) / (high - low)));
  return node;
}

// One stop of the Tab key for the whole grid; the arrow keys go from cell to cell.
function moveInGrid(event) {
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  const cell = event.target.closest("td");
  if (!step || !cell) return;
  event.preventDefault();
  const lines = [...event.currentTarget.tBodies[0].rows];
  let [x, y] = [cell.cellIndex + step[0], lines.indexOf(cell.parentElement) + step[1]];
  for (; lines[y]?.cells[x]; x += step[0], y += step[1]) {
    const button = lines[y].cells[x].querySelector("button");
    if (!button) continue;
    event.target.setAttribute("tabindex", "-1");
    button.setAttribute("tabindex", "0");
    button.focus();
    return;
  }
}

const QUADRANTS = {
  reliable: "typical and confident", extrapolation: "atypical, yet confident",
  ambiguous: `typical, low ${WORDS.confidence}`, untrustworthy: `atypical, low ${WORDS.confidence}`,
};

function drawQuadrants(method) {
  const boxes = Object.entries(QUADRANTS).map(([quadrant, meaning]) => {
    const found = Object.fromEntries(rows("quadrants", { method, quadrant }).map((row) => [row.metric, row]));
    const text = [h("b", {}, quadrant), h("span", { class: "quiet" }, meaning), h("br"), `${whole(found.share?.count)} ${WORDS.samples}, ${percent(found.share?.value)}`, h("br"), `${WORDS.right} ${percent(found.accuracy?.value)}${between(found.accuracy)}, ${WORDS.confidence} ${percent(found.confidence?.value)}`];
    return choice({ kind: "quadrant", method, quadrant }, { class: "quadrant", "data-count": found.share?.count }, ...text);
  });
  return h("figure", {}, h("figcaption", {}, name(method)), h("div", { class: "quadrants" }, boxes));
}

// Of answers at a risk: who is accepted, which is what to act on
function drawAcceptance(method) {
  const [risk] = rows("overall", { method, metric: "accepted_risk" });
  const [share] = rows("overall", { method, metric: "accepted_share" });
  const kept = Math.round(share.value * share.count);
  const errors = known(risk?.value) ? `wrong in ${percent(risk.value)}${between(risk)}` : "none";
  const box = (word, accepted, count, part, more) => choice({ kind: "accepted", method, accepted }, { class: `quadrant advice a${accepted ? 0 : 3}`, "data-count": count }, h("b", {}, word), `${whole(count)} ${WORDS.samples}, ${percent(part)}`, h("br"), more);
  return h("figure", {}, h("figcaption", {}, name(method)), h("div", { class: "quadrants" }, box("accepted", 1, kept, share.value, errors), box("not accepted", 0, share.count - kept, 1 - share.value, "for a person")));
}

function drawAdvice(method) {
  if (ACCEPTED) return drawAcceptance(method);
  const boxes = ADVICE.map((word, advice) => {
    const found = Object.fromEntries(rows("advice", { method, advice: word }).map((row) => [row.metric, row]));
    if (ANSWERS && !(found.share?.count > 0)) return null; // nothing to choose among, and without atypicality nothing rare
    const right = found.followed;
    const words = advice === 3 ? `the model alone is ${WORDS.right} in` : advice === 2 ? "the choice holds the label in" : `${WORDS.right} in`;
    const text = [h("b", {}, word), `${whole(found.share?.count)} ${WORDS.samples}, ${percent(found.share?.value)}`, h("br"), known(right?.value) ? `${words} ${percent(right.value)}${between(right)}` : "none"];
    return choice({ kind: "advice", method, advice }, { class: `quadrant advice a${advice}`, "data-count": found.share?.count }, ...text);
  });
  return h("figure", {}, h("figcaption", {}, name(method)), h("div", { class: "quadrants" }, boxes));
}

// Means over samples, each with its weight
function mean(inside, value) {
  const total = inside.reduce((sum, i) => sum + weightOf(i), 0);
  return total ? inside.reduce((sum, i) => sum + weightOf(i) * value(i), 0) / total : null;
}

const countOf = (inside) => inside.reduce((sum, i) => sum + weightOf(i), 0);

// Wilson's interval of a share, as in the evaluation's tables; n is Kish's effective size where samples have weights
function wilson(share, inside, z = 1.959963984540054) {
  const n = countOf(inside) ** 2 / inside.reduce((sum, i) => sum + weightOf(i) ** 2, 0);
  const middle = (share + (z * z) / (2 * n)) / (1 + (z * z) / n);
  const half = (z / (1 + (z * z) / n)) * Math.sqrt((share * (1 - share)) / n + (z * z) / (4 * n * n));
  return { low: Math.max(0, middle - half), high: Math.min(1, middle + half) };
}

function shareOf(inside, value) {
  const share = mean(inside, value);
  return known(share) ? { value: share, ...wilson(share, inside) } : null;
}

function binsOf(method, chosen) {
  if (!filtered()) {
    const accuracy = rows("calibration_curve", { method, metric: "accuracy" });
    const confidence = rows("calibration_curve", { method, metric: "confidence" });
    return accuracy.map((row, bin) => ({ ...row, accuracy: row.value, confidence: confidence[bin].value }));
  }
  const said = ofMethod(method).confidence;
  const bins = Array.from({ length: DATA.nBins }, () => []);
  for (const i of chosen) if (told(method, i)) bins[binOf(said[i])].push(i);
  return bins.map((inside, bin) => {
    const accuracy = mean(inside, (i) => +isRight(method, i));
    return { bin, count: countOf(inside), accuracy, confidence: mean(inside, (i) => said[i]), ...wilson(accuracy, inside) };
  });
}

// What makes the mark of a bin a button
function binChoice(method) {
  return (bin, text) => {
    if (!LINKED) return {};
    const selection = { kind: "bin", method, bin: bin.bin };
    const pressed = isChosen(selection);
    const click = () => select(pressed ? null : selection);
    const keydown = (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); click(); } };
    return { role: "button", tabindex: "0", "aria-label": text, "aria-pressed": String(pressed), "data-choice": JSON.stringify(selection), on: { click, keydown } };
  };
}

function classRows(chosen) {
  if (!filtered()) {
    const at = (metric, method) => new Map(rows("classes", { method, metric }).map((row) => [row.class_index, row]));
    const tables = Object.fromEntries(shownMethods().map((method) => [method, at("accuracy", method)]));
    const [said, sets] = [at("confidence", state.after), at("coverage", state.after)];
    return [...tables[state.after].keys()].map((index) => ({
      index, count: tables[state.after].get(index)?.count, confidence: said.get(index)?.value, coverage: sets.get(index),
      accuracy: shownMethods().map((method) => tables[method].get(index)),
    }));
  }
  const byClass = new Map();
  for (const i of chosen) byClass.set(SAMPLES.label[i], [...(byClass.get(SAMPLES.label[i]) ?? []), i]);
  const spoken = ofMethod(state.after);
  return [...byClass].sort(([a], [b]) => a - b).map(([index, all]) => {
    const inside = all.filter((i) => told(state.after, i));
    return {
      index, count: countOf(all), confidence: mean(inside, (i) => spoken.confidence[i]),
      coverage: spoken.covered ? shareOf(inside, (i) => spoken.covered[i]) : null,
      accuracy: shownMethods().map((method) => shareOf(all.filter((i) => told(method, i)), (i) => +isRight(method, i))),
    };
  });
}

function bar(row, method) {
  const filled = h("span", { class: `bar ${methodClass(method)}` });
  filled.style.width = `${known(row?.value) ? 4 * row.value : 0}rem`;
  return [h("span", { class: "track", "aria-hidden": "true" }, filled), ...[withEnds(row)].flat()];
}

// A name that filters the samples by what it names
function filterLink(key, value, text) {
  if (!LINKED) return name(text);
  const pressed = state.filters[key] === String(value);
  return h("button", { type: "button", class: "link", "aria-pressed": String(pressed), "data-choice": `${key} ${value}`, on: { click: () => setFilter(key, value) } }, name(text));
}

function classTable(chosen) {
  const shares = shownMethods().map((method, place) => ({ title: `accuracy, ${method}`, value: (row) => row.accuracy[place]?.value, show: (row) => bar(row.accuracy[place], method) }));
  const columns = [
    { title: "true class", text: true, value: (row) => className(row.index), show: (row) => filterLink("label", row.index, className(row.index)) },
    { title: WORDS.samples, value: (row) => row.count, show: (row) => whole(row.count) },
    ...shares,
    { title: `${WORDS.confidence}, ${state.after}`, value: (row) => row.confidence, show: (row) => percent(row.confidence) },
  ];
  if (measured("classes", { method: state.after, metric: "coverage" })) columns.push({ title: "sets that hold it", value: (row) => row.coverage?.value, show: (row) => withEnds(row.coverage) });
  const table = dataTable({ id: "class-table", caption: "By true class, with 95% intervals", columns, data: classRows(chosen), paged: true });
  return [table, filtered() ? null : leftOut("classes", "classes", [", those that ", name(DATA.after), " recognises least"])];
}

function selectionWords() {
  const wanted = state.selection;
  if (!wanted) return [];
  const place = {
    cell: () => `atypicality group ${wanted.group + 1}, ${WORDS.confidence} group ${wanted.level + 1} of `,
    quadrant: () => `quadrant “${wanted.quadrant}” of `,
    advice: () => `advice “${ADVICE[wanted.advice]}” of `,
    accepted: () => `${wanted.accepted ? "accepted" : "not accepted"} by `,
    bin: () => `${WORDS.confidence} ${percent(wanted.bin / DATA.nBins, 0)} to ${percent((wanted.bin + 1) / DATA.nBins, 0)} of `,
  }[wanted.kind]();
  return [[place, name(wanted.method)]];
}

function filterWords([key, value]) {
  if (key === "right") return value === "true" ? WORDS.right : "wrong";
  if (key === "row") return `row ${value}`;
  if (key === "label") return ["true class ", name(className(+value))];
  if (key === "predicted") return ["predicted ", name(className(+value))];
  if (key === "advice") return `advice “${ADVICE[+value]}”`;
  if (key === "size") return `set size ${value}`;
  if (key === "accepted") return value === "1" ? "accepted" : "not accepted";
  if (key === "text") return ["with “", name(value), "”"];
  if (key === "suspect") return "label suspected to be wrong";
  const attribute = key.slice("in ".length);
  return [name(attribute), " ", name(DATA.subgroups[attribute][+value])];
}

function selectionText(count) {
  const parts = [...selectionWords(), ...Object.entries(state.filters).map(filterWords)];
  const words = parts.length ? parts.flatMap((part, place) => [place ? "; " : "", part].flat()) : [`All ${WORDS.samples}`];
  return h("span", { id: "selection-text", "data-count": count }, words, `: ${whole(count)} ${WORDS.samples}`);
}

function select(selection) {
  state.selection = selection;
  drawLinked();
}

function clear() {
  state.selection = null;
  state.filters = {};
  drawLinked();
}

// Another side is shown: a choice made in a view that is gone, or a filter that has no such value, goes with it
function changeSide(key, method) {
  state[key] = method;
  if (state.selection && !shownMethods().includes(state.selection.method)) state.selection = null;
  if (!ofMethod(state.after)?.advice) delete state.filters.advice;
  if (!ofMethod(state.after)?.size) delete state.filters.size;
  if (!ofMethod(state.after)?.accepted) delete state.filters.accepted;
  drawLinked();
}

function drawLinked() {
  const at = document.activeElement;
  const [focused, filter, search] = [at?.getAttribute("data-choice"), at?.getAttribute("data-filter"), at?.id === "search"];
  const methods = shownMethods();
  if (measured("grid")) {
    const scaleOf = painter(state.measure);
    put("grids", methods.map((method) => (measured("grid", { method, metric: state.measure }) ? drawGrid(method, scaleOf) : h("figure", {}, h("figcaption", {}, name(method)), h("p", { class: "quiet" }, "makes no prediction sets")))));
    put("ramp", ramp(state.measure, scaleOf));
  }
  put("advice", methods.filter((method) => (ACCEPTED ? ofMethod(method)?.accepted : measured("advice", { method }))).map(drawAdvice));
  put("quadrants", methods.filter((method) => measured("quadrants", { method })).map(drawQuadrants));
  const chosen = LINKED ? members() : [];
  put("selection", LINKED ? selectionText(chosen.length) : h("span", {}, `Means over random halves: no single ${WORDS.samples} to choose from.`), filtered() ? h("button", { type: "button", class: "action", id: "clear", on: { click: clear } }, `Show all ${WORDS.samples}`) : null);
  put("hint", filtered() ? [h("span", {}, `${whole(chosen.length)} ${WORDS.samples} chosen. `), h("a", { href: "#chosen" }, "See them")] : null);
  put("reliability", methods.map((method) => reliability(method, binsOf(method, chosen), binChoice(method))));
  put("classes", ANSWERS ? null : classTable(chosen));
  if (LINKED) {
    put("filters", filterBar());
    put("samples", keptText(), exampleNote(), sampleTable(chosen));
  }
  drawSubgroups();
  const again = focused ? [...document.querySelectorAll("[data-choice]")].find((node) => node.getAttribute("data-choice") === focused) : filter ? document.querySelector(`[data-filter="${CSS.escape(filter)}"]`) : search ? byId("search") : null;
  again?.focus();
}
