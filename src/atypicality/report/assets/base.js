// Elements, formats, colours and rows: what every view uses. Text from elsewhere only ever becomes a text node.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

const WORDS = DATA.words; // what the rows, and what was said of them, are called
const ANSWERS = WORDS.sample === "answer";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const name = (text) => h("bdi", {}, text); // a name written right to left does not turn the sentence around it
const byId = (id) => document.getElementById(id);

function put(id, ...children) {
  const place = byId(id);
  if (place) place.replaceChildren(...children.flat().filter(Boolean));
}

const known = (value) => value !== null && value !== undefined;
const fixed = (value, digits) => value.toFixed(digits).replace(/^-(?=[0.]*$)/, "").replace("-", "−"); // no "-0.0"
const percent = (value, digits = 1) => (known(value) ? `${fixed(100 * value, digits)}%` : "–");
const decimal = (value, digits = 2) => (known(value) ? fixed(value, digits) : "–");
const between = (row, form = percent) => (known(row?.low) ? ` (${form(row.low)} to ${form(row.high)})` : "");
const whole = (value) => (known(value) ? Math.round(value).toLocaleString("en") : "–");
const short = (value) => (value < 9999.5 ? String(Math.round(value)) : value < 999500 ? `${Math.round(value / 1000)}k` : `${Math.round(value / 1e6)}M`);
const signed = (value) => (known(value) ? (value >= 0.0005 ? "+" : "") + fixed(100 * value, 1) : "–");

// A number of a row, and under it its interval
const withEnds = (row, form = percent) => (known(row?.value) ? [form(row.value), known(row.low) ? h("div", { class: "quiet" }, `${form(row.low)} to ${form(row.high)}`) : null] : "–");

const TABLES = Object.fromEntries(
  Object.entries(DATA.tables).map(([table, columns]) => {
    const keys = Object.keys(columns);
    return [table, columns[keys[0]].map((_, row) => Object.fromEntries(keys.map((key) => [key, columns[key][row]])))];
  }),
);

function rows(table, where = {}) {
  const wanted = Object.entries(where);
  return TABLES[table].filter((row) => wanted.every(([key, value]) => row[key] === value));
}

const measured = (table, where) => rows(table, where).length > 0;
const unique = (values) => [...new Set(values)];
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const methodClass = (method) => `m${DATA.methods.indexOf(method) % 8}`;
const className = (index) => DATA.classes[index] ?? String(index);

// What a table that would not fit leaves out, as a sentence
function leftOut(table, words, which) {
  if (!DATA.kept[table]) return null;
  const [kept, total] = DATA.kept[table].map(whole);
  return h("p", { class: "quiet", id: `kept-${table}` }, `This page keeps ${kept} of ${total} ${words}`, which, "; the evaluation has them all.");
}

function rangeText(axis, group, method, form) {
  const [range] = rows("group_ranges", { axis, group, method: method ?? null });
  if (!range) return "";
  if (!known(range.low) && !known(range.high)) return "all";
  if (!known(range.low)) return `≤ ${form(range.high)}`;
  return known(range.high) ? `${form(range.low)} to ${form(range.high)}` : `> ${form(range.low)}`;
}

// Colours that stay apart for the colour-blind: cividis for amounts, blue to orange through grey for differences.
const AMOUNT = [[0, 34, 78], [66, 78, 108], [124, 123, 120], [187, 175, 95], [254, 232, 56]];
const DIFFERENCE = [[5, 88, 161], [120, 172, 215], [242, 242, 242], [240, 170, 100], [176, 78, 4]];

function colour(stops, share) {
  const place = clamp(share, 0, 1) * (stops.length - 1);
  const left = Math.min(Math.floor(place), stops.length - 2);
  return stops[left].map((value, part) => Math.round(value + (stops[left + 1][part] - value) * (place - left)));
}

function paint(node, rgb) {
  const light = 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2];
  node.style.backgroundColor = `rgb(${rgb.join(",")})`;
  node.style.color = light > 140 ? "#111" : "#fff";
}
