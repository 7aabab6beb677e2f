// Line charts and reliability diagrams as SVG: counts on hover, intervals as bars, axis titles in words.

const SIZE = { width: 380, height: 270, left: 64, right: 22, top: 12, bottom: 48 };

function ticks(low, high, wanted = 5) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
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
  for (const [value, text] of xTicks) svg.append(s("text", { x: x(value), y: bottom + 17, "text-anchor": "middle" }, text));
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

// series: [{ method, points: [{ x, y, low, high, count }] }]; target: a horizontal line to compare with
function lineChart({ label, xTitle, yTitle, series, xTicks, form = percent, floor = null, ceiling = null, target = null, marks = true }) {
  const points = series.flatMap((one) => one.points).filter((point) => known(point.y));
  if (!points.length) return h("p", { class: "quiet" }, "Nothing was measured here.");
  const values = points.flatMap((point) => [point.y, marks ? point.low : null, marks ? point.high : null]).concat(target ?? []).filter(known);
  const low = floor ?? Math.min(...values);
  const high = Math.min(ceiling ?? Infinity, Math.max(...values));
  const pad = (high - low) * 0.05 || 0.05;
  const bounds = [floor ?? low - pad, Math.min(ceiling ?? Infinity, high + pad)];
  const xs = xTicks.map(([value]) => value);
  const inset = marks ? 22 : 0;
  const x = scale(Math.min(...xs), Math.max(...xs), SIZE.left + inset, SIZE.width - SIZE.right - inset);
  const y = scale(...bounds, SIZE.height - SIZE.bottom, SIZE.top);
  const found = ticks(...bounds);
  const digits = found.every((value) => Math.abs(100 * value - Math.round(100 * value)) < 1e-6) ? 0 : 1;
  const yTicks = found.map((value) => [value, form === percent ? percent(value, digits) : form(value)]);
  const svg = frame({ label, xTitle, yTitle, x, y, xTicks, yTicks });
  if (known(target)) {
    svg.append(s("line", { class: "target", x1: SIZE.left, x2: SIZE.width - SIZE.right, y1: y(target), y2: y(target) }, s("title", {}, `target: ${form(target)}`)));
  }
  series.forEach((one) => {
    const place = DATA.methods.indexOf(one.method);
    const shift = marks ? (place - (DATA.methods.length - 1) / 2) * 4 : 0;
    const shown = one.points.filter((point) => known(point.y));
    const group = s("g", { class: `series ${methodClass(one.method)}` });
    group.append(s("polyline", { points: shown.map((point) => `${x(point.x) + shift},${y(point.y)}`).join(" ") }));
    for (const point of marks ? shown : []) {
      const at = x(point.x) + shift;
      if (known(point.low)) group.append(s("line", { class: "interval", x1: at, x2: at, y1: y(Math.max(point.low, bounds[0])), y2: y(Math.min(point.high, bounds[1])) }));
      group.append(mark(at, y(point.y), place, { class: "mark" }, `${one.method}, ${point.name ?? point.x}: ${form(point.y)} (${form(point.low)} to ${form(point.high)}), ${whole(point.count)} ${WORDS.samples}`));
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
  const svg = frame({ label: `Reliability diagram of ${method}`, xTitle: `mean ${WORDS.confidence}`, yTitle: `share that is ${WORDS.right}`, x, y, xTicks: five, yTicks: five });
  svg.append(s("line", { class: "target", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }));
  const shown = bins.filter((bin) => bin.count > 0 && known(bin.confidence));
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
