// Only adds to the page: sorts and filters tables. Without it every drawing and row is there.
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
