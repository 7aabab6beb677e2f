// What is accepted at a risk, and how much of that is wrong, by advice, class and subgroup; and gaps between subgroups.

function acceptedTable(table, title, keyOf, textOf, where = {}) {
  const all = rows(table, where).filter((row) => row.metric.startsWith("accepted_"));
  const at = new Map(all.map((row) => [[row.method, row.metric, keyOf(row)].join("\u0000"), row]));
  const find = (key, method, metric) => at.get([method, metric, key].join("\u0000"));
  const methods = unique(all.map((row) => row.method));
  const keys = unique(all.filter((row) => row.count > 0).map(keyOf));
  if (!keys.length) return null;
  const named = (text, method) => (methods.length > 1 ? `${text}, ${method}` : text);
  const above = (row) => known(DATA.maxRisk) && known(row.value) && row.low > DATA.maxRisk;
  const shown = (row) => (row?.count ? [`${percent(row.value)} of ${whole(row.count)}`, h("div", { class: "quiet" }, `${percent(row.low)} to ${percent(row.high)}`)] : "–");
  const wrong = (row) => (row && above(row) ? h("strong", {}, shown(row)) : shown(row));
  const columns = [
    { title, text: true, value: textOf, show: (key) => name(textOf(key)) },
    ...methods.flatMap((method) => [
      { title: named("accepted", method), value: (key) => find(key, method, "accepted_share")?.value, show: (key) => shown(find(key, method, "accepted_share")) },
      { title: named("wrong", method), value: (key) => find(key, method, "accepted_risk")?.value, show: (key) => wrong(find(key, method, "accepted_risk")) },
    ]),
  ];
  return dataTable({ id: `accepted-${table}`, caption: `Accepted, by ${title}`, columns, data: keys, paged: keys.length > 30 });
}

function drawAccepted() {
  if (!measured("overall", { metric: "accepted_share" })) return;
  const attributes = unique(TABLES.subgroups.map((row) => row.attribute));
  const several = rows("overall", { metric: "accepted_share" }).length > 1; // heads, whose columns need the whole width
  const byClass = (table, title) => acceptedTable(table, title, (row) => row.class_index, className);
  put("accepted-tables",
    h("p", { class: "quiet" }, `Accepted: share of each group. Wrong: share of its accepted ${WORDS.predictions}. With 95% intervals; bold where more than the allowed ${percent(DATA.maxRisk)} are wrong, beyond the interval.`),
    h("div", { class: several ? null : "pair" },
      ANSWERS ? null : acceptedTable("advice", "advice", (row) => row.advice, (key) => key),
      byClass("classes", "true class"), byClass("predicted_classes", "predicted class"),
      ...attributes.map((attribute) => acceptedTable("subgroups", attribute, (row) => row.subgroup, (key) => key, { attribute }))),
    leftOut("predicted_classes", "predicted classes", ", those whose accepted samples are wrong most often"));
}

const GAPS = { accuracy: "accuracy", coverage: "coverage of prediction sets", accepted_share: "share that is accepted", accepted_risk: "share of the accepted that is wrong" };

function drawSubgroupGaps() {
  if (!TABLES.subgroup_gaps.length) return;
  const columns = [
    { title: "attribute", text: true, value: (row) => row.attribute, show: (row) => name(row.attribute) },
    { title: "method", text: true, value: (row) => row.method, show: (row) => name(row.method) },
    { title: "measure", text: true, value: (row) => GAPS[row.metric] ?? row.metric },
    { title: "highest", text: true, value: (row) => row.highest, show: (row) => name(row.highest) },
    { title: "lowest", text: true, value: (row) => row.lowest, show: (row) => name(row.lowest) },
    { title: "gap in points", value: (row) => row.value, show: (row) => withEnds(row, (value) => fixed(100 * value, 1)) },
  ];
  put("subgroup-gaps", dataTable({ id: "gap-of-subgroups", caption: "Gaps between subgroups of at least 30, with 95% intervals that allow for the choice of the two", columns, data: TABLES.subgroup_gaps, paged: TABLES.subgroup_gaps.length > 30 }));
}
