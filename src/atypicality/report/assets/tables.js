// Tables that sort by several columns, by mouse or by keys, and copy as tab-separated text.

const PAGE_ROWS = 15;

// columns: [{ title, value: row => sortable, show: row => node or text, text: true for words, or their classes }]; order: the data as given
function dataTable({ id, caption, columns, data, paged = false, order = "" }) {
  const state = { keys: [], page: 0 }; // keys: [{ place, down }], the first decides first
  const body = h("tbody");
  const heads = columns.map((column, place) => {
    const press = (event) => sortBy(place, event.shiftKey);
    const button = h("button", { type: "button", title: "Shift adds a column to those sorted by", on: { click: press } }, column.title, h("span", { class: "arrow", "aria-hidden": "true" }));
    return h("th", { scope: "col", class: wordClass(column) }, button);
  });
  const status = h("span", { class: "quiet", role: "status" });
  const copy = h("button", { type: "button", class: "action", on: { click: () => copyText(asText(columns, ordered()), status) } }, "Copy table");
  const turn = (step) => () => { state.page += step; draw(); };
  const back = h("button", { type: "button", class: "action", on: { click: turn(-1) } }, "Previous");
  const next = h("button", { type: "button", class: "action", on: { click: turn(1) } }, "Next");
  const where = h("span", { class: "quiet" });

  function ordered() {
    if (!state.keys.length) return data;
    const values = state.keys.map(({ place }) => new Map(data.map((row) => [row, columns[place].value(row)])));
    return [...data].sort((a, b) => {
      for (let k = 0; k < state.keys.length; k++) {
        const found = compare(values[k].get(a), values[k].get(b));
        if (found) return state.keys[k].down ? -found : found;
      }
      return 0;
    });
  }

  function sortBy(place, more) {
    const old = state.keys.find((key) => key.place === place);
    const key = { place, down: old ? !old.down : false };
    if (more) state.keys = old ? state.keys.map((one) => (one === old ? key : one)) : [...state.keys, key];
    else state.keys = [key];
    state.page = 0;
    heads.forEach((head, other) => {
      const rank = state.keys.findIndex((one) => one.place === other);
      head.setAttribute("aria-sort", rank < 0 ? "none" : state.keys[rank].down ? "descending" : "ascending");
      head.querySelector(".arrow").textContent = rank >= 0 && state.keys.length > 1 ? String(rank + 1) : "";
    });
    draw();
  }

  function draw() {
    const all = ordered();
    const first = paged ? state.page * PAGE_ROWS : 0;
    const last = paged ? Math.min(first + PAGE_ROWS, all.length) : all.length;
    body.replaceChildren(...all.slice(first, last).map((row) => h("tr", {}, columns.map((column) => cell(column, row)))));
    where.textContent = all.length ? `${whole(first + 1)} to ${whole(last)} of ${whole(all.length)}` : `no ${WORDS.samples}`;
    back.disabled = first === 0;
    next.disabled = last >= all.length;
  }

  draw();
  const table = h("table", { id }, h("caption", {}, caption, order ? h("span", { class: "quiet" }, ` ${order}`) : null), h("thead", {}, h("tr", {}, heads)), body);
  const scroll = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table);
  return h("div", { class: "table" }, scroll, h("div", { class: "controls" }, paged ? [back, where, next] : null, copy, status));
}

const wordClass = (column) => (column.text === true ? "words" : column.text);

function cell(column, row) {
  return h("td", { class: wordClass(column) }, column.show ? column.show(row) : String(column.value(row) ?? "–"));
}

function compare(a, b) {
  if (!known(a) || !known(b)) return known(a) - known(b);
  return typeof a === "string" ? a.localeCompare(b) : a - b;
}

function asText(columns, data) {
  const line = (values) => values.map(plain).join("\t");
  return [line(columns.map((column) => column.title)), ...data.map((row) => line(columns.map((column) => column.value(row))))].join("\n");
}

function plain(value) {
  if (typeof value !== "string") return known(value) ? String(value) : "";
  const text = value.replace(/[\t\r\n]+/g, " ");
  return /^[=+\-@]/.test(text) ? `'${text}` : text; // a spreadsheet would run it as a formula
}

async function copyText(text, status) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", {}, text);
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  status.textContent = "copied";
}
