// The views that do not follow a selection, and the start.

function groupPoints(table, method, metric) {
  return rows(table, { method, metric }).map((row) => ({ ...row, x: row.group + 1, y: row.value }));
}

const AXES = {
  atypicality_groups: "input atypicality group, 1 = most typical",
  confidence_groups: `${WORDS.confidence} group, 1 = least confident`,
  class_groups: "class atypicality group, 1 = most common",
};

function groupChart(table, metric, yTitle, extra = {}) {
  const methods = DATA.methods.filter((method) => measured(table, { method, metric }));
  if (!methods.length) return null;
  const series = methods.map((method) => ({ method, points: groupPoints(table, method, metric) }));
  const xTicks = unique(series.flatMap((one) => one.points.map((point) => point.x))).sort((a, b) => a - b).map((value) => [value, String(value)]);
  const chart = lineChart({ label: `${yTitle} by ${AXES[table]}`, xTitle: AXES[table], yTitle, series, xTicks, ...extra });
  const title = `${yTitle} by ${AXES[table].split(",")[0]}`;
  const sizes = series.flatMap((one) => one.points.map((point) => point.count)).filter(known);
  const counts = xTicks.length > MOST_COUNTS ? h("p", { class: "quiet" }, `${whole(Math.min(...sizes))} to ${whole(Math.max(...sizes))} ${WORDS.samples} in a group.`) : null;
  return h("figure", {}, h("figcaption", {}, title[0].toUpperCase() + title.slice(1)), chart, counts, table === "class_groups" && ["accuracy", "coverage"].includes(metric) ? classGroups() : null);
}

// Which classes the groups of class atypicality hold
function classGroups() {
  const listed = DATA.classGroups.map(([group, names, more], at) => [`${at ? "; " : ""}${group + 1}: `, ...names.flatMap((text, place) => [place ? ", " : "", name(text)]), more ? ` and ${whole(more)} more` : ""]);
  return h("p", { class: "quiet groups" }, listed.flat(), ".");
}

const targetOf = () => {
  const asked = unique(Object.values(DATA.alpha));
  return asked.length === 1 ? 1 - asked[0] : null;
};

const STRATA = "the set sizes 0–1, 2–3, 4–10, 11–100 and more";
const METRICS = {
  accuracy: ["accuracy", percent], confidence: [`mean ${WORDS.confidence}`, percent], overconfidence: [`${WORDS.confidence} minus accuracy`, percent],
  ece: ["expected calibration error (ECE)", percent], rmsce: ["root mean square calibration error", percent], nll: ["log loss", (value) => decimal(value, 3)],
  brier: ["Brier score", (value) => decimal(value, 3)], adaptive_ece: ["adaptive ECE", percent], classwise_ece: ["classwise ECE", percent],
  debiased_calibration_error: ["debiased squared calibration error", (value) => decimal(value, 4)], smooth_ece: ["smooth ECE", percent],
  risk_coverage_area: ["area under the risk-coverage curve", percent], coverage: ["coverage of prediction sets", percent],
  set_size: ["mean size of prediction sets", decimal], coverage_gap_class: ["mean distance of the coverage of a class from the target, either way", percent], coverage_shortfall_class: [`largest shortfall of a class of at least 50 ${WORDS.samples} below the target`, percent],
  coverage_gap_size: [`largest distance of the coverage of ${STRATA} from the target`, percent], worst_sixth_coverage: [`coverage, worst sixth of atypicality (sixths of these ${WORDS.samples})`, percent],
  worst_cell_coverage: [`coverage, worst of 3 × 3 cells (thirds of atypicality and of ${WORDS.confidence} of these ${WORDS.samples})`, percent], worst_size_coverage: [`coverage, worst of ${STRATA}`, percent],
  atypicality_gain: [`gain in log likelihood by atypicality beside ${WORDS.confidence}`, (value) => decimal(value, 4)], atypicality_auroc: ["AUROC of atypicality for errors", percent], confidence_auroc: [`AUROC of ${WORDS.confidence} for errors`, percent],
  accepted_share: ["share that is accepted", percent], accepted_risk: ["share of the accepted that is wrong", percent],
};

function overallTable() {
  const found = unique(TABLES.overall.map((row) => row.metric));
  const at = new Map(TABLES.overall.map((row) => [`${row.metric}|${row.method}`, row]));
  const shown = (metric, row) => withEnds(row, METRICS[metric]?.[1] ?? ((value) => decimal(value, 4)));
  const column = (method) => ({ title: method, value: (metric) => at.get(`${metric}|${method}`)?.value, show: (metric) => shown(metric, at.get(`${metric}|${method}`)) });
  const meaning = (metric) => (DATA.meanings[metric] ? h("div", { class: "quiet" }, DATA.meanings[metric]) : null);
  const named = (metric) => METRICS[metric]?.[0] ?? metric;
  const words = { title: "measure", text: "words meaning", value: named, show: (metric) => [named(metric), meaning(metric)] };
  return dataTable({ id: "overall-table", caption: `All ${WORDS.samples} together, with 95% intervals`, columns: [words, ...DATA.methods.map(column)], data: found });
}

function gapName(row) {
  if (row.axis === "class") return className(+row.worst);
  return ["quadrant", "subgroup", "set_size", "advice"].includes(row.axis) ? row.worst : row.worst.split(", ").map((part) => +part + 1).join(", ");
}

const groupCount = (table, key) => unique(TABLES[table].map((row) => row[key])).length;
const AXIS_TEXTS = {
  atypicality: () => `atypicality, ${groupCount("atypicality_groups", "group")} groups`,
  confidence: () => `${WORDS.confidence}, ${groupCount("confidence_groups", "group")} groups`,
  grid: () => `the grid, ${groupCount("grid", "group")} × ${groupCount("grid", "confidence_group")} cells`,
  class_atypicality: () => `class atypicality, ${groupCount("class_groups", "group")} groups`,
  class: () => "true class",
  set_size: () => "set size, each by itself",
};
const axisText = (row) => AXIS_TEXTS[row.axis]?.() ?? row.axis.replaceAll("_", " ");

function gapTable() {
  const columns = [
    { title: "method", text: true, value: (row) => row.method, show: (row) => name(row.method) },
    { title: "groups of", text: true, value: axisText },
    { title: "covered least", text: true, value: gapName, show: (row) => name(gapName(row)) },
    { title: WORDS.samples, value: (row) => row.count, show: (row) => whole(row.count) },
    { title: "coverage", value: (row) => row.value, show: (row) => percent(row.value) },
    { title: "95% interval", value: (row) => row.low, show: (row) => `${percent(row.low)} to ${percent(row.high)}` },
    { title: "target", value: (row) => row.target, show: (row) => percent(row.target) },
  ];
  return dataTable({ id: "gap-table", caption: "The group that is covered least, on every axis, however few it holds", columns, data: TABLES.coverage_gaps });
}

const COVERED = { coverage: [`all ${WORDS.samples}`, "all"], worst_sixth_coverage: ["worst sixth of atypicality", "worst sixth"], worst_cell_coverage: ["worst of 3 × 3 cells of atypicality and confidence", "worst cell"] };

// Coverage of all and of the worst groups, each by its name; beside the name of a method its mean set size
function worstCoverage(methods, target) {
  const at = (method, metric) => rows("overall", { method, metric })[0];
  const shown = Object.keys(COVERED).filter((metric) => methods.some((method) => at(method, metric)));
  const points = (method) => shown.map((metric, place) => [at(method, metric), COVERED[metric][0], place]).filter(([row]) => row).map(([row, name, place]) => ({ ...row, name, x: place, y: row.value }));
  const series = methods.map((method) => ({ method, points: points(method) }));
  const xTicks = shown.map((metric, place) => [place, COVERED[metric][1]]);
  const chart = lineChart({ label: "Coverage of all and of the worst groups", xTitle: shown.length > 1 ? "sixths of atypicality; cells: 3 × 3 with confidence" : WORDS.samples, yTitle: "sets that hold the label", series, xTicks, target, ceiling: 1, kind: "points" });
  const size = (method) => [name(method), ` ${decimal(at(method, "set_size").value)}`];
  const sizes = h("p", { class: "quiet" }, "Mean set size: ", methods.flatMap((method, place) => [place ? ", " : "", ...size(method)]), ".");
  return h("figure", {}, h("figcaption", {}, `Sets that hold the label: all ${WORDS.samples} and the worst groups`), chart, sizes);
}

function drawSets() {
  const methods = DATA.methods.filter((method) => measured("overall", { method, metric: "coverage" }));
  if (!methods.length) return;
  const target = targetOf();
  const coverage = (table) => groupChart(table, "coverage", "sets that hold the label", { target, ceiling: 1 });
  const size = (table) => groupChart(table, "set_size", "mean set size", { form: decimal, floor: 0 });
  const tables = Object.keys(AXES).filter((table) => measured(table, { metric: "coverage" }));
  const sizes = unique(TABLES.set_sizes.map((row) => row.size)).sort((a, b) => a - b);
  const every = Math.ceil(sizes.length / 12);
  const series = methods.map((method) => ({ method, points: rows("set_sizes", { method, metric: "share" }).map((row) => ({ ...row, x: row.size, y: row.value })) }));
  const shares = lineChart({ label: `Share of ${WORDS.samples} by set size`, xTitle: "classes in the prediction set", yTitle: `share of ${WORDS.samples}`, series, xTicks: sizes.filter((_, place) => place % every === 0 || sizes.length - 1 === place).map((value) => [value, String(value)]), floor: 0, kind: "columns" });
  put("sets", legend(methods, known(target)), h("div", { class: "pair" }, worstCoverage(methods, target), tables.flatMap((table) => [coverage(table), size(table)]), h("figure", {}, h("figcaption", {}, `Share of ${WORDS.samples} by set size`), shares, leftOut("set_sizes", "set sizes", ", the commonest"))), TABLES.coverage_gaps.length ? gapTable() : null);
}

function drawSubgroups() {
  const attributes = unique(TABLES.subgroups.map((row) => row.attribute));
  put("subgroups", attributes.map((attribute) => {
    const subgroups = unique(rows("subgroups", { attribute }).map((row) => row.subgroup));
    const at = new Map(rows("subgroups", { attribute }).map((row) => [[row.subgroup, row.method, row.metric].join("\u0000"), row]));
    const find = (subgroup, method, metric) => at.get([subgroup, method, metric].join("\u0000"));
    const shown = (row, form) => (row ? [form(row.value), h("div", { class: "quiet" }, `${form(row.low)} to ${form(row.high)}`)] : "–");
    const column = (metric, title, form) => (method) => ({ title: `${title}, ${method}`, value: (subgroup) => find(subgroup, method, metric)?.value, show: (subgroup) => shown(find(subgroup, method, metric), form) });
    const ranges = new Map(rows("group_ranges", { axis: `attribute ${attribute}` }).map((row) => [`group ${row.group + 1}`, rangeText(row.axis, row.group, null, (value) => decimal(value, 3))]));
    const text = (subgroup) => (ranges.has(subgroup) ? `${subgroup}: ${ranges.get(subgroup)}` : subgroup);
    const codes = new Map((DATA.subgroups[attribute] ?? []).map((subgroup, code) => [subgroup, code]));
    const withSets = DATA.methods.filter((method) => measured("subgroups", { method, metric: "coverage" }));
    const columns = [
      { title: attribute, text: true, value: text, show: (subgroup) => (codes.has(subgroup) ? filterLink(`in ${attribute}`, codes.get(subgroup), text(subgroup)) : name(text(subgroup))) },
      { title: WORDS.samples, value: (subgroup) => find(subgroup, DATA.methods[0], "accuracy")?.count, show: (subgroup) => whole(find(subgroup, DATA.methods[0], "accuracy")?.count) },
      ...DATA.methods.map(column("accuracy", "accuracy", percent)), ...DATA.methods.map(column("ece", "ECE", percent)), ...withSets.map(column("coverage", "coverage", percent)),
    ];
    return dataTable({ caption: `By ${attribute}`, columns, data: subgroups, paged: subgroups.length > 30 });
  }), leftOut("subgroups", "subgroups", [", those with the lowest accuracy of ", name(DATA.after)]));
}

function drawRisk() {
  const series = DATA.methods.map((method) => ({ method, points: rows("risk_coverage", { method, metric: "risk" }).map((row) => ({ ...row, x: row.percent, y: row.value })) }));
  const xTicks = [1, 20, 40, 60, 80, 100].map((value) => [value, `${value}%`]);
  put("risk", legend(DATA.methods), h("figure", {}, h("figcaption", {}, `Errors among the ${WORDS.predictions} that are kept`), lineChart({ label: `Share of errors among the most confident ${WORDS.predictions}`, xTitle: `share of ${WORDS.predictions} kept, the most confident first`, yTitle: "share of them that are wrong", series, xTicks, floor: 0, kind: "curve" })));
}

function rowLink(row) {
  const filter = () => { clear(); setFilter("row", row); byId("chosen").scrollIntoView(); };
  return h("button", { type: "button", class: "link", on: { click: filter } }, String(row));
}

function drawSuspects() {
  const listed = (columns) => columns.row.map((_, place) => place);
  const wrong = DATA.suspects;
  const pairs = DATA.duplicates;
  put("suspects",
    wrong?.row.length ? dataTable({ id: "suspect-table", caption: "Labels that are less credible than another class", order: "the least credible first", columns: [
      { title: "row", value: (k) => wrong.row[k], show: (k) => rowLink(wrong.row[k]) },
      { title: "label", text: true, value: (k) => className(wrong.label[k]), show: (k) => name(className(wrong.label[k])) },
      { title: "may be", text: true, value: (k) => className(wrong.suggested[k]), show: (k) => name(className(wrong.suggested[k])) },
      { title: "credibility of the label", value: (k) => wrong.score[k], show: (k) => percent(wrong.score[k], wrong.score[k] < 0.01 ? 3 : 1) },
    ], data: listed(wrong), paged: true }) : null,
    pairs?.row.length ? dataTable({ id: "duplicate-table", caption: "Samples that are also among the training rows, or nearly", order: "the nearest first", columns: [
      { title: "row", value: (k) => pairs.row[k], show: (k) => rowLink(pairs.row[k]) },
      { title: "training row", value: (k) => pairs.train_row[k] },
      { title: "same label", text: true, value: (k) => (pairs.same_label[k] ? "yes" : "no") },
      { title: "distance / usual distance", value: (k) => pairs.distance[k], show: (k) => decimal(pairs.distance[k], 3) },
    ], data: listed(pairs), paged: true }) : null);
}

function chooser(label, id, values, texts, now, change) {
  if (values.length < 2) return null;
  const options = values.map((value, place) => h("option", { value: String(place), selected: value === now }, texts[place]));
  return h("label", {}, `${label} `, h("select", { id, on: { change: (event) => change(values[+event.target.value]) } }, options));
}

function start() {
  const redraw = (key) => (value) => { state[key] = value; drawLinked(); };
  const measures = Object.keys(MEASURES).filter((metric) => measured("grid", { metric }));
  put("choices",
    chooser("Show", "measure", measures, measures.map((metric) => MEASURES[metric].title), state.measure, redraw("measure")),
    DATA.methods.length > 2 ? chooser("Left", "before", DATA.methods, DATA.methods, state.before, (method) => changeSide("before", method)) : null,
    DATA.methods.length > 2 ? chooser("Right", "after", DATA.methods, DATA.methods, state.after, (method) => changeSide("after", method)) : null);
  drawLinked();
  const errors = { floor: 0 };
  put("groups", legend(DATA.methods), h("div", { class: "pair" }, ["atypicality_groups", "class_groups"].flatMap((table) => [groupChart(table, "ece", "expected calibration error", errors), groupChart(table, "accuracy", "accuracy", { ceiling: 1 })])));
  drawSets();
  drawRisk();
  drawSuspects();
  drawAccepted();
  drawSubgroupGaps();
  put("overall", overallTable());
}

start();
