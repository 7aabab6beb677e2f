// The linked views: a cell of the grid or a quadrant chooses samples; diagrams, classes and samples follow.

const SAMPLES = DATA.samples;
const LINKED = SAMPLES.row.length > 0;
const state = { before: DATA.before, after: DATA.after, measure: "overconfidence", selection: null };
const shownMethods = () => unique([state.before, state.after]);
const ofMethod = (method) => SAMPLES.methods[DATA.methods.indexOf(method)];

const MEASURES = {
  overconfidence: { title: "confidence minus accuracy, in percentage points", form: signed, ends: ["too cautious", "too sure"] },
  accuracy: { title: "accuracy", form: (value) => percent(value, 0) },
  coverage: { title: "share of prediction sets that hold the label", form: (value) => percent(value, 0) },
  set_size: { title: "mean number of classes in the prediction set", form: (value) => decimal(value, 1) },
};

function painter(measure) {
  const cells = shownMethods().flatMap((method) => rows("grid", { method, metric: measure })).filter((row) => known(row.value));
  const full = cells.filter((row) => row.count >= 30); // a cell of four samples shall not set the scale
  const values = (full.length ? full : cells).map((row) => row.value);
  if (measure === "overconfidence") {
    const most = Math.max(0.1, ...values.map(Math.abs));
    return { low: -most, high: most, stops: DIFFERENCE };
  }
  const low = Math.min(...values);
  return { low, high: Math.max(...values, low + 1e-6), stops: AMOUNT };
}

function ramp(measure, { low, high, stops }) {
  const { form, ends } = MEASURES[measure];
  const blocks = [0, 0.25, 0.5, 0.75, 1].map((share) => {
    const block = h("span");
    paint(block, colour(stops, share));
    return block;
  });
  return h("div", { class: "ramp" }, ends ? `${ends[0]} ` : null, form(low), blocks, form(high), ends ? ` ${ends[1]}` : null);
}

const isChosen = (selection) => state.selection !== null && JSON.stringify(state.selection) === JSON.stringify(selection);

function choice(selection, attributes, ...children) {
  if (!LINKED) return h("div", attributes, ...children);
  const pressed = isChosen(selection);
  const click = () => select(pressed ? null : selection);
  return h("button", { type: "button", "aria-pressed": String(pressed), "data-choice": JSON.stringify(selection), on: { click }, ...attributes }, ...children);
}

function edge(value) {
  if (value > 0.99999) return "almost 100%";
  return percent(value, value > 0.9999 ? 3 : value > 0.99 ? 2 : 1);
}

function drawGrid(method, scaleOf) {
  const { form, title } = MEASURES[state.measure];
  const cells = new Map(rows("grid", { method, metric: state.measure }).map((row) => [`${row.group},${row.confidence_group}`, row]));
  const groups = unique([...cells.values()].map((row) => row.group));
  const levels = unique([...cells.values()].map((row) => row.confidence_group)).sort((a, b) => b - a);
  const head = h("tr", {}, h("th", {}, "confidence"), groups.map((group) => h("th", { scope: "col" }, `${group + 1}`)));
  const body = levels.map((level) => h("tr", {}, h("th", { scope: "row" }, rangeText("confidence", level, method, edge)), groups.map((group) => h("td", {}, drawCell(method, cells.get(`${group},${level}`), form, title, scaleOf)))));
  const foot = h("tr", {}, h("td"), h("th", { colspan: groups.length }, "atypicality group, from the most typical (1) to the most atypical"));
  const table = h("table", { class: "grid", on: { keydown: moveInGrid } }, h("caption", {}, name(method)), h("thead", {}, head), h("tbody", {}, body), h("tfoot", {}, foot));
  const first = table.querySelector('[aria-pressed="true"]') ?? table.querySelector("button.cell");
  table.querySelectorAll("button.cell").forEach((button) => button.setAttribute("tabindex", button === first ? "0" : "-1"));
  return h("figure", {}, table);
}

function drawCell(method, row, form, title, { low, high, stops }) {
  if (!row || !row.count) return h("div", { class: "cell empty" }, "–", h("small", {}, "n 0"));
  const selection = { kind: "cell", method, group: row.group, level: row.confidence_group };
  const where = `atypicality group ${row.group + 1}, confidence group ${row.confidence_group + 1}`;
  const text = `${where}: ${title} ${form(row.value)} (${form(row.low)} to ${form(row.high)}), ${whole(row.count)} samples`;
  const node = choice(selection, { class: "cell", title: text, "aria-label": text, "data-count": row.count }, form(row.value), h("small", {}, `n ${whole(row.count)}`));
  paint(node, colour(stops, (row.value - low) / (high - low)));
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
  reliable: "typical and sure", extrapolation: "atypical, yet sure",
  ambiguous: "typical, but unsure", untrustworthy: "atypical and unsure",
};

function drawQuadrants(method) {
  const boxes = Object.entries(QUADRANTS).map(([quadrant, meaning]) => {
    const found = Object.fromEntries(rows("quadrants", { method, quadrant }).map((row) => [row.metric, row]));
    const text = [h("b", {}, quadrant), h("span", { class: "quiet" }, meaning), h("br"), `${whole(found.share?.count)} samples, ${percent(found.share?.value)}`, h("br"), `right ${percent(found.accuracy?.value)}, sure ${percent(found.confidence?.value)}`];
    return choice({ kind: "quadrant", method, quadrant }, { class: "quadrant", "data-count": found.share?.count }, ...text);
  });
  return h("figure", {}, h("figcaption", {}, name(method)), h("div", { class: "quadrants" }, boxes));
}

function members() {
  const all = [...SAMPLES.row.keys()];
  const wanted = state.selection;
  if (!wanted) return all;
  const told = ofMethod(wanted.method);
  if (wanted.kind === "quadrant") return all.filter((i) => told.quadrant[i] === wanted.quadrant[0]);
  return all.filter((i) => SAMPLES.group[i] === wanted.group && told.group[i] === wanted.level);
}

const isRight = (method, i) => ofMethod(method).prediction[i] === SAMPLES.label[i];
const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);

// Wilson's interval of a share, as in the evaluation's tables
function wilson(share, n, z = 1.959963984540054) {
  const middle = (share + (z * z) / (2 * n)) / (1 + (z * z) / n);
  const half = (z / (1 + (z * z) / n)) * Math.sqrt((share * (1 - share)) / n + (z * z) / (4 * n * n));
  return { low: Math.max(0, middle - half), high: Math.min(1, middle + half) };
}

function binsOf(method, chosen) {
  if (!state.selection) {
    const accuracy = rows("calibration_curve", { method, metric: "accuracy" });
    const confidence = rows("calibration_curve", { method, metric: "confidence" });
    return accuracy.map((row, bin) => ({ ...row, accuracy: row.value, confidence: confidence[bin].value }));
  }
  const told = ofMethod(method).confidence;
  const bins = Array.from({ length: DATA.nBins }, () => []);
  for (const i of chosen) bins[Math.min(Math.max(Math.ceil(told[i] * DATA.nBins) - 1, 0), DATA.nBins - 1)].push(i);
  return bins.map((inside) => {
    const accuracy = mean(inside.map((i) => +isRight(method, i)));
    return { count: inside.length, accuracy, confidence: mean(inside.map((i) => told[i])), ...wilson(accuracy, inside.length) };
  });
}

function classRows(chosen) {
  if (!state.selection) {
    const at = (metric, method) => new Map(rows("classes", { method, metric }).map((row) => [row.class_index, row]));
    const tables = Object.fromEntries(shownMethods().map((method) => [method, at("accuracy", method)]));
    const [sure, sets] = [at("confidence", state.after), at("coverage", state.after)];
    return [...tables[state.after].keys()].map((index) => ({
      index, count: tables[state.after].get(index)?.count, confidence: sure.get(index)?.value, coverage: sets.get(index)?.value,
      accuracy: shownMethods().map((method) => tables[method].get(index)?.value),
    }));
  }
  const byClass = new Map();
  for (const i of chosen) byClass.set(SAMPLES.label[i], [...(byClass.get(SAMPLES.label[i]) ?? []), i]);
  const told = ofMethod(state.after);
  return [...byClass].sort(([a], [b]) => a - b).map(([index, inside]) => ({
    index, count: inside.length, confidence: mean(inside.map((i) => told.confidence[i])),
    coverage: told.covered ? mean(inside.map((i) => told.covered[i])) : null,
    accuracy: shownMethods().map((method) => mean(inside.map((i) => +isRight(method, i)))),
  }));
}

function bar(value, method) {
  const filled = h("span", { class: `bar ${methodClass(method)}` });
  filled.style.width = `${known(value) ? 4 * value : 0}rem`;
  return [h("span", { class: "track", "aria-hidden": "true" }, filled), percent(value)];
}

function classTable(chosen) {
  const shares = shownMethods().map((method, place) => ({ title: `accuracy, ${method}`, value: (row) => row.accuracy[place], show: (row) => bar(row.accuracy[place], method) }));
  const columns = [
    { title: "true class", text: true, value: (row) => className(row.index), show: (row) => name(className(row.index)) },
    { title: "samples", value: (row) => row.count, show: (row) => whole(row.count) },
    ...shares,
    { title: `confidence, ${state.after}`, value: (row) => row.confidence, show: (row) => percent(row.confidence) },
  ];
  if (measured("classes", { method: state.after, metric: "coverage" })) columns.push({ title: "sets that hold it", value: (row) => row.coverage, show: (row) => percent(row.coverage) });
  const table = dataTable({ id: "class-table", caption: "By true class", columns, data: classRows(chosen), paged: true });
  return [table, state.selection ? null : leftOut("classes", "classes", [", those that ", name(DATA.after), " recognises least"])];
}

function sampleTable(chosen) {
  const told = ofMethod(state.after);
  const columns = [{ title: "row", value: (i) => SAMPLES.row[i] }];
  const words = (title, text) => columns.push({ title, text: true, value: text, show: (i) => name(text(i)) });
  if (SAMPLES.id) words("id", (i) => SAMPLES.id[i] ?? "");
  words("true class", (i) => className(SAMPLES.label[i]));
  for (const method of shownMethods()) {
    words(`prediction, ${method}`, (i) => className(ofMethod(method).prediction[i]));
    columns.push({ title: `confidence, ${method}`, value: (i) => ofMethod(method).confidence[i], show: (i) => percent(ofMethod(method).confidence[i]) });
  }
  columns.push({ title: "right", text: true, value: (i) => (isRight(state.after, i) ? "yes" : "no") });
  if (known(SAMPLES.atypicality[0])) columns.push({ title: "atypicality", value: (i) => SAMPLES.atypicality[i], show: (i) => decimal(SAMPLES.atypicality[i], 1) });
  if (told.size) columns.push({ title: "set size", value: (i) => told.size[i] }, { title: "set holds label", text: true, value: (i) => (told.covered[i] ? "yes" : "no") });
  return dataTable({ id: "sample-table", caption: "Samples", columns, data: chosen, paged: true });
}

function selectionText(count) {
  const wanted = state.selection;
  const thin = SAMPLES.row.length < DATA.nSamples ? `; this page keeps ${whole(SAMPLES.row.length)} of ${whole(DATA.nSamples)} samples` : "";
  const text = (words) => h("span", { id: "selection-text", "data-count": count }, words, `: ${whole(count)} samples${thin}`);
  if (!wanted) return text("All samples");
  const place = wanted.kind === "cell" ? `Atypicality group ${wanted.group + 1}, confidence group ${wanted.level + 1} of ` : `Quadrant “${wanted.quadrant}” of `;
  return text([place, name(wanted.method)]);
}

function select(selection) {
  state.selection = selection;
  drawLinked();
}

function drawLinked() {
  const focused = document.activeElement?.getAttribute("data-choice");
  const methods = shownMethods();
  if (measured("grid")) {
    const scaleOf = painter(state.measure);
    put("grids", methods.map((method) => (measured("grid", { method, metric: state.measure }) ? drawGrid(method, scaleOf) : h("figure", {}, h("figcaption", {}, name(method)), h("p", { class: "quiet" }, "makes no prediction sets")))));
    put("ramp", ramp(state.measure, scaleOf));
  }
  put("quadrants", methods.filter((method) => measured("quadrants", { method })).map(drawQuadrants));
  const chosen = LINKED ? members() : [];
  put("selection", LINKED ? selectionText(chosen.length) : h("span", {}, "Means over random halves: no single samples to choose from."), state.selection ? h("button", { type: "button", class: "action", id: "clear", on: { click: () => select(null) } }, "Show all samples") : null);
  put("hint", state.selection ? [h("span", {}, `${whole(chosen.length)} samples chosen. `), h("a", { href: "#chosen" }, "See them")] : null);
  put("reliability", methods.map((method) => reliability(method, binsOf(method, chosen))));
  put("classes", classTable(chosen));
  if (LINKED) put("samples", sampleTable(chosen));
  if (focused) [...document.querySelectorAll("[data-choice]")].find((node) => node.getAttribute("data-choice") === focused)?.focus();
}
