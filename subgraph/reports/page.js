// Only adds to the page: sorts and filters tables, replays the search, copies its Markdown. Without it every drawing and row is there.
"use strict";
const make = (tag, more) => Object.assign(document.createElement(tag), more);
const word = cell => (cell ? cell.dataset.value ?? cell.textContent.trim() : "");
const number = text => /^(nan|inf|NaN)$/.test(text) ? Infinity : /^(–|-inf|)$/.test(text) ? -Infinity : Number(text.replace(/[#%×]| .*/g, "") || NaN);

function sort(table, column, header) {
  const down = header.getAttribute("aria-sort") === "descending";
  const rows = [...table.tBodies[0].rows], words = rows.map(row => word(row.cells[column])), numbers = words.map(number);
  const numeric = numbers.every(value => !Number.isNaN(value));
  const order = rows.map((_, k) => k).sort((a, b) => numeric
    ? (numbers[a] === numbers[b] ? 0 : numbers[a] < numbers[b] ? -1 : 1)
    : words[a].localeCompare(words[b], "en", { numeric: true }));
  for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
  const up = header.dataset.first === "largest" ? down : header.dataset.sorted ? down : true;
  header.dataset.sorted = "yes";
  header.setAttribute("aria-sort", up ? "ascending" : "descending");
  table.tBodies[0].append(...(up ? order : order.reverse()).map(k => rows[k]));
}

for (const table of document.querySelectorAll("table.sorted")) {
  const rows = [...table.tBodies[0].rows];
  for (const [column, header] of [...table.tHead.rows[0].cells].entries()) {
    if (rows.length < 2 || !header.textContent) continue;
    const button = make("button", { type: "button", title: "sort" });
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => sort(table, column, header));
  }
  if (rows.length < 9) continue;
  const shown = make("output"), words = rows.map(row => row.textContent.toLowerCase());
  const filter = make("input", { type: "search", placeholder: "filter: conv, FAIL …", ariaLabel: "filter rows" });
  filter.addEventListener("input", () => {
    const parts = filter.value.toLowerCase().split(/\s+/);
    rows.forEach((row, k) => { row.hidden = !parts.every(part => words[k].includes(part)); });
    shown.value = filter.value ? ` ${rows.filter(row => !row.hidden).length} of ${rows.length}` : "";
  });
  const line = make("p", { className: "filter" });
  line.append(filter, shown);
  table.parentElement.before(line);
}

const SIGNS = { a: ["agreed", "✓ agreed"], f: ["alone", "✗ fails"], p: ["wrong", "~ wrong"], ".": ["", ""], o: ["", ""] };
function paint(drawing, step) {
  const states = step < 0 ? "" : drawing.dataset.steps.split(" ")[step];
  drawing.classList.toggle("replaying", step >= 0);
  [...drawing.querySelectorAll(".box")].forEach((box, k) => {
    const state = states[k] || ".", [name, sign] = SIGNS[state.toLowerCase()], frame = box.querySelector(".frame");
    for (const one of ["agreed", "alone", "wrong"]) box.classList.toggle(`is-${one}`, one === name);
    box.classList.toggle("asked", "oAFP".includes(state));
    box.querySelector(".sign")?.remove();
    if (!sign) return;
    const mark = document.createElementNS("http://www.w3.org/2000/svg", "text");
    mark.setAttribute("class", "sign");
    mark.setAttribute("x", Number(frame.getAttribute("x")) + Number(frame.getAttribute("width")) / 2);
    mark.setAttribute("text-anchor", "middle");
    mark.setAttribute("y", Number(frame.getAttribute("y")) + 29);
    mark.textContent = sign;
    box.append(mark);
  });
}

const rows = [...document.querySelectorAll("#steps tbody tr")], drawings = document.querySelectorAll("[data-steps]");
if (rows.length && drawings.length) {
  const slider = make("input", { type: "range", min: 1, max: rows.length + 1, value: rows.length + 1, ariaLabel: "step of the search" });
  const said = make("output", { value: `the result, after ${rows.length} steps` });
  slider.addEventListener("input", () => {
    const step = slider.value - 1, row = rows[step];
    for (const drawing of drawings) paint(drawing, row ? step : -1);
    said.value = row ? [...row.cells].map(cell => cell.textContent.trim()).filter(Boolean).join(" · ") : `the result, after ${rows.length} steps`;
  });
  const line = make("p", { className: "replay" });
  line.append("The search: ", slider, said);
  drawings[0].parentElement.before(line);
}
