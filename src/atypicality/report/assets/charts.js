// Charts of points, lines or columns, and reliability diagrams, as SVG: counts under the axis, intervals, axis titles in words.

const SIZE = { width: 380, height: 282, left: 64, right: 22, top: 12, bottom: 60 };
const MOST_COUNTS = 7; // ticks under which a count has room

function tickStep(low, high, wanted = 5) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
}

function ticks(low, high, step = tickStep(low, high)) {
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return found;
}

function frame({ label, xTitle, yTitle, x, y, xTicks, yTicks }) {
  const bottom = SIZE.height - SIZE.bottom;
  const right = SIZE.width - SIZE.right;
  const svg = s("svg", { viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: "img", "aria-label": label, class: "chart" });
  for (const [value, text] of yTicks) {
    svg.append(s("line", { class: "rule", x1: SIZE.left, x2: right, y1: y(value), y2: y(value) }));
    svg.append(s("text", { x: SIZE.left - 7, y: y(value) + 4, "text-anchor": "end" }, text));
  }
  svg.append(s("line", { class: "axis", x1: SIZE.left, x2: right, y1: bottom, y2: bottom }));
  for (const [value, text, under] of xTicks) {
    svg.append(s("text", { x: x(value), y: bottom + 16, "text-anchor": "middle" }, text));
    if (under) svg.append(s("text", { class: "under", x: x(value), y: bottom + 29, "text-anchor": "middle" }, under));
  }
  const middle = (SIZE.top + bottom) / 2;
  svg.append(s("text", { class: "title", x: (SIZE.left + right) / 2, y: SIZE.height - 8, "text-anchor": "middle" }, xTitle));
  svg.append(s("text", { class: "title", x: 13, y: middle, "text-anchor": "middle", transform: `rotate(-90 13 ${middle})` }, yTitle));
  return svg;
}

const scale = (low, high, from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);

function mark(px, py, shape, attributes, text) {
  const r = 4;
  const paths = [
    `M${px - r},${py}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0`,
    `M${px - r},${py - r}h${2 * r}v${2 * r}h${-2 * r}z`,
    `M${px},${py - r - 1}l${r + 1},${2 * r + 1}h${-2 * r - 2}z`,
    `M${px},${py - r - 1}l${r + 1},${r + 1}l${-r - 1},${r + 1}l${-r - 1},${-r - 1}z`,
  ];
  return s("path", { d: paths[shape % 4], ...attributes }, s("title", {}, text));
}

// How many samples the points at a tick have: one number, or the smallest and the largest of the methods
function countsAt(series, value) {
  const found = unique(series.flatMap((one) => one.points).filter((point) => point.x === value && known(point.count)).map((point) => Math.round(point.count))).sort((a, b) => a - b);
  return found.length ? `n ${unique([found[0], found[found.length - 1]]).map(whole).join("–")}` : "";
}

function column(at, y, point, bottom, width, text) {
  return s("rect", { class: "column", x: at - width / 2, width, y: y(point.y), height: Math.max(0, bottom - y(point.y)) }, s("title", {}, text));
}

// series: [{ method, points: [{ x, y, low, high, count }] }]; target: a horizontal line to compare with; kind: what is drawn, "line" for
// points along an order, "points" for places without one, "columns" for shares, "curve" without marks
function lineChart({ label, xTitle, yTitle, series, xTicks, form = percent, floor = null, ceiling = null, target = null, kind = "line" }) {
  const marks = kind !== "curve";
  const points = series.flatMap((one) => one.points).filter((point) => known(point.y));
  if (!points.length) return h("p", { class: "quiet" }, "Nothing was measured here.");
  const values = points.flatMap((point) => [point.y, marks ? point.low : null, marks ? point.high : null]).concat(target ?? []).filter(known);
  const low = floor ?? Math.min(...values);
  const high = Math.min(ceiling ?? Infinity, Math.max(...values));
  const step = tickStep(low, high > low ? high : low + 0.1);
  const bounds = [floor ?? step * Math.floor(low / step + 1e-9), Math.min(ceiling ?? Infinity, step * Math.ceil(high / step - 1e-9))];
  if (bounds[0] === bounds[1]) bounds[0] -= step;
  const xs = xTicks.map(([value]) => value);
  const inset = marks ? (SIZE.width - SIZE.left - SIZE.right) / (2 * Math.max(xs.length, 4)) : 0;
  const x = scale(Math.min(...xs), Math.max(...xs), SIZE.left + inset, SIZE.width - SIZE.right - inset);
  const y = scale(...bounds, SIZE.height - SIZE.bottom, SIZE.top);
  const found = ticks(...bounds, step);
  const digits = found.every((value) => Math.abs(100 * value - Math.round(100 * value)) < 1e-6) ? 0 : 1;
  const yTicks = found.map((value) => [value, form === percent ? percent(value, digits) : form(value)]);
  const counted = marks && xTicks.length <= MOST_COUNTS ? xTicks.map(([value, text]) => [value, text, countsAt(series, value)]) : xTicks;
  const svg = frame({ label, xTitle, yTitle, x, y, xTicks: counted, yTicks });
  if (known(target)) {
    svg.append(s("line", { class: "target", x1: SIZE.left, x2: SIZE.width - SIZE.right, y1: y(target), y2: y(target) }, s("title", {}, `target: ${form(target)}`)));
  }
  const places = unique(points.map((point) => point.x)).sort((a, b) => a - b);
  const room = Math.min(0.8 * 2 * inset, 34, ...places.slice(1).map((value, place) => 0.8 * (x(value) - x(places[place])))) / series.length;
  series.forEach((one) => {
    const place = DATA.methods.indexOf(one.method);
    const shift = !marks ? 0 : kind === "columns" ? (series.indexOf(one) - (series.length - 1) / 2) * room : (place - (DATA.methods.length - 1) / 2) * 4;
    const shown = one.points.filter((point) => known(point.y));
    const group = s("g", { class: `series ${methodClass(one.method)}` });
    if (kind === "line" || kind === "curve") group.append(s("polyline", { points: shown.map((point) => `${x(point.x) + shift},${y(point.y)}`).join(" ") }));
    for (const point of marks ? shown : []) {
      const at = x(point.x) + shift;
      const text = `${one.method}, ${point.name ?? point.x}: ${form(point.y)} (${form(point.low)} to ${form(point.high)}), ${whole(point.count)} ${WORDS.samples}`;
      if (kind === "columns") group.append(column(at, y, point, SIZE.height - SIZE.bottom, room * 0.9, text));
      if (known(point.low)) group.append(s("line", { class: "interval", x1: at, x2: at, y1: y(Math.max(point.low, bounds[0])), y2: y(Math.min(point.high, bounds[1])) }));
      if (kind !== "columns") group.append(mark(at, y(point.y), place, { class: "mark" }, text));
    }
    svg.append(group);
  });
  return svg;
}

function legend(methods, target = false) {
  const entry = (method) => {
    const swatch = s("svg", { viewBox: "0 0 26 12", class: `swatch series ${methodClass(method)}`, "aria-hidden": "true" });
    swatch.append(s("polyline", { points: "0,6 26,6" }), mark(13, 6, DATA.methods.indexOf(method), { class: "mark" }, method));
    return h("li", {}, swatch, name(method));
  };
  const line = s("svg", { viewBox: "0 0 26 12", class: "swatch", "aria-hidden": "true" }, s("line", { class: "target", x1: 0, x2: 26, y1: 6, y2: 6 }));
  return h("ul", { class: "legend" }, methods.map(entry), target ? h("li", {}, line, "target") : null);
}

// bins: [{ bin, confidence, accuracy, low, high, count }]; choose(bin) gives what a mark does, or null
function reliability(method, bins, choose) {
  const x = scale(0, 1, SIZE.left, SIZE.width - SIZE.right);
  const y = scale(0, 1, SIZE.height - SIZE.bottom, SIZE.top);
  const five = [0, 0.2, 0.4, 0.6, 0.8, 1].map((value) => [value, percent(value, 0)]);
  const bottom = SIZE.height - SIZE.bottom;
  const svg = frame({ label: `Reliability diagram of ${method}`, xTitle: `mean ${WORDS.confidence}`, yTitle: `share that is ${WORDS.right}`, x, y, xTicks: five, yTicks: five });
  svg.append(s("line", { class: "target", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }));
  const shown = bins.filter((bin) => bin.count > 0 && known(bin.confidence));
  if (bins.length <= 12) {
    svg.append(s("text", { class: "under", x: SIZE.left - 7, y: bottom + 29, "text-anchor": "end" }, "n"));
    for (const bin of shown) svg.append(s("text", { class: "under", x: x(bin.confidence), y: bottom + 29, "text-anchor": "middle" }, short(bin.count)));
  }
  const group = s("g", { class: `series ${methodClass(method)}` });
  group.append(s("polyline", { points: shown.map((bin) => `${x(bin.confidence)},${y(bin.accuracy)}`).join(" ") }));
  for (const bin of shown) {
    const at = x(bin.confidence);
    const text = `${WORDS.confidence} ${percent(bin.confidence)}, ${WORDS.right} ${percent(bin.accuracy)} (${percent(bin.low)} to ${percent(bin.high)}), ${whole(bin.count)} ${WORDS.samples}`;
    group.append(s("line", { class: "interval", x1: at, x2: at, y1: y(bin.low), y2: y(bin.high) }));
    group.append(mark(at, y(bin.accuracy), DATA.methods.indexOf(method), { class: "mark", ...choose(bin, text) }, text));
  }
  svg.append(group);
  return h("figure", {}, h("figcaption", {}, "Reliability of ", name(method)), svg);
}
