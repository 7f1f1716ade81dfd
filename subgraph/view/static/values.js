// Values of a tensor: the server draws them, the page chooses sample and plane.

import { $, el } from "/panels.js";

const short = v => (typeof v === "number" ? String(Number(v.toPrecision(5))) : v ?? "–");

// float32, little-endian, in base64 -> numbers.
const numbers = text => new Float32Array(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);

const RAMP = { less: [[255, 255, 255], [243, 200, 120], [178, 94, 10], [94, 42, 0]], more: [[255, 255, 255], [150, 190, 232], [31, 95, 191], [8, 30, 84]],
  far: [[255, 255, 255], [240, 170, 160], [190, 40, 30], [84, 6, 6]] };
const EQUAL = [205, 232, 216], ODD = [255, 0, 200];

// -1 … 1 -> a color: white at 0, darker with magnitude; two hues for the signs.
export function color(part, ramp = part < 0 ? RAMP.less : RAMP.more) {
  const at = Math.min(1, Math.abs(part)) * (ramp.length - 1), k = Math.min(ramp.length - 2, Math.floor(at));
  return ramp[k].map((v, c) => Math.round(v + (at - k) * (ramp[k + 1][c] - v)));
}

const magnify = [1, 2, 4];
let zoom = 0; // of the maps, kept from tensor to tensor

// A map: cells painted one by one; hovering tells the place and the values of all maps; a click magnifies all.
function map({ kind, title, values }, cells, layers, scale) {
  const { rows, columns, shape } = cells;
  const canvas = el("canvas", { width: columns, height: rows, class: "map", "data-kind": kind, role: "img", "aria-label": `${title}, ${shape.join("×")}, darkest ${short(scale)}` });
  const paint = canvas.getContext("2d"), image = paint.createImageData(columns, rows);
  values.forEach((v, k) => {
    const rgb = isNaN(v) ? ODD : kind === "difference" ? (v === 0 ? EQUAL : color(0.12 + 0.88 * v / (scale || 1), RAMP.far)) : color(scale ? v / scale : 0);
    image.data.set([...rgb, 255], 4 * k);
  });
  paint.putImageData(image, 0, 0);
  const room = Math.max(104, ($("side").clientWidth - 40) / Math.max(3, layers.length)); // the difference is next to the values
  const wide = Math.max(1, Math.floor(room / Math.max(rows, columns))) * magnify[zoom];
  canvas.style.width = `${Math.max(24, columns * wide)}px`; // a row or a column alone is seen, too
  canvas.style.height = `${Math.max(24, rows * wide)}px`;
  const place = e => { const r = canvas.getBoundingClientRect(); return [Math.floor((e.clientY - r.top) / r.height * rows), Math.floor((e.clientX - r.left) / r.width * columns)]; };
  canvas.onmousemove = e => {
    const [i, j] = place(e), k = i * columns + j, at = [i / rows * shape[0], j / columns * shape[1]].map(Math.floor);
    if (values[k] === undefined) return;
    const said = layers.map(({ word, values: all }) => `${word} ${isNaN(all[k]) ? "NaN or Inf" : short(all[k])}`);
    $("hover").textContent = `[${at.join(", ")}]${shape[0] > rows || shape[1] > columns ? " and beside it" : ""}  ${said.join("  ")}`;
  };
  canvas.onclick = () => { zoom = (zoom + 1) % magnify.length; $("maps").dispatchEvent(new Event("magnify")); };
  const most3 = Number((scale ?? 0).toPrecision(3)), ends = kind === "difference" ? ["equal", most3] : [-most3, "0", most3];
  return el("figure", {}, el("figcaption", {}, title), el("div", { class: "scroll" }, canvas), el("div", { class: `ramp ${kind === "difference" ? "far" : ""}`, "aria-hidden": "true" }), el("div", { class: "ends" }, ...ends.map(text => el("span", {}, text))));
}

// `all`: the chosen candidate's tensor, and those of the others; one scale for values, one for differences.
function maps(all) {
  const t = all[0], cells = t.cells, several = all.length > 1, most = key => Math.max(...all.map(o => o.cells[key] ?? 0));
  const given = all.filter(o => o.cells.given);
  const layers = [{ kind: "reference", word: "reference", title: "reference", values: numbers(cells.reference) },
    ...given.map(o => ({ kind: "candidate", word: several ? o.source : "candidate", title: o.source, values: numbers(o.cells.given) })),
    ...given.map(o => ({ kind: "difference", word: "difference", title: several ? `difference of ${o.source}` : "difference, on a scale of its own", values: numbers(o.cells.difference) }))];
  const total = cells.shape.reduce((a, b) => a * b, 1);
  const drawn = el("div", { id: "maps" }), fill = () => drawn.replaceChildren(...layers.map(layer => map(layer, cells, layers, most(layer.kind === "difference" ? "far" : "scale"))));
  fill();
  drawn.addEventListener("magnify", fill);
  return [
    el("p", {}, [`${cells.shape.join("×")}${t.planes > 1 ? ` of channel ${t.plane}` : ""}`, ...all.map(o => o.cells.given ? `${o.cells.equal.toLocaleString("en")} of ${total.toLocaleString("en")} values equal${several ? ` in ${o.source}` : ""} (green)` : ""), cells.rows < cells.shape[0] || cells.columns < cells.shape[1] ? "each cell is the largest of several" : ""].filter(Boolean).join(" · ")),
    drawn, el("p", { id: "hover", class: "note" }, "Hover for index and values; click to magnify."),
  ];
}

let sorting = "error"; // of the channels
let asked = 0; // number of the last question: an answer to an earlier one can come later

function channels(t, choose) {
  const errors = t.errors, names = Array.from({ length: Math.min(t.planes, 4096) }, (_, k) => k), size = k => (typeof errors[k] === "number" ? errors[k] : Infinity);
  if (errors && sorting === "error") names.sort((a, b) => size(b) - size(a) || a - b);
  const list = el("select", { id: "plane", onchange: e => choose(Number(e.target.value)) }, ...names.map(k => el("option", { value: k, selected: k === t.plane }, errors ? `${k} · ${errors[k] === 0 ? "equal" : short(errors[k])}` : k)));
  if (!errors) return el("label", {}, `Channel, of ${t.planes} `, list);
  const wrong = errors.filter(e => e !== 0).length;
  return el("div", {}, el("label", {}, `Channel, ${wrong} of ${t.planes} differ `, list),
    el("label", {}, "sorted by ", el("select", { id: "sorting", onchange: e => { sorting = e.target.value; choose(t.plane); } }, ...["error", "number"].map(word => el("option", { selected: word === sorting }, word)))));
}

// `ask(pair, plane)` → the server's answer; null planes: the server chooses the one that differs most. `anew`: runs the
// models, where the values are stored ones. Returns false where there are no values.
// Of a run, what each candidate gave of the same tensor stands beside it.
export async function showValues(ask, anew = null, pair = 0, plane = null) {
  const mine = ++asked, t = await ask(pair, plane);
  if (!t.pairs.length) return false;
  const is = t.pairs[pair], others = t.stored ? [] : t.pairs.flatMap((p, k) => (k !== pair && p.tensor === is.tensor && p.sample === is.sample ? [k] : []));
  const all = [t, ...await Promise.all(others.map(k => ask(k, t.plane)))], several = all.length > 1;
  if (mine !== asked) return true; // another tensor was asked for since then
  const sides = [["reference", t.statistics.reference], ...all.map(o => [o.source, o.statistics.given])].filter(([, s]) => s);
  const rows = [["least", "least"], ["most", "most"], ["mean", "mean"], ["NaN", "nans"], ["Inf", "infs"]].map(([word, key]) =>
    el("tr", {}, el("th", {}, word), ...sides.map(([, s]) => el("td", {}, short(s[key])))));
  rows.push(el("tr", {}, el("th", {}, "zeros"), ...sides.map(([, s]) => el("td", {}, `${(100 * s.zeros).toFixed(1)} %`))));
  const again = () => showValues(ask, anew, Number($("pair").value), null);
  const choices = t.pairs.map((p, k) => el("option", { value: k, selected: k === pair }, [p.tensor, p.sample, p.source].filter(Boolean).join(" · ")));
  $("values").hidden = false;
  const parts = [
    el("h2", {}, "Values"),
    el("label", {}, "Tensor ", el("select", { id: "pair", onchange: again }, ...choices)),
    el("p", {}, `${t.dtype} ${t.shape.join("×") || "scalar"}`),
    ...all.flatMap(o => o.notes).map(note => el("p", { class: "note" }, note)),
    t.stored ? el("button", { id: "anew", type: "button", onclick: anew, title: "Run the reference and the chosen candidate on the chosen inputs" }, "Run the models instead") : null,
    el("table", {}, el("tr", {}, el("td"), ...sides.map(([word]) => el("th", {}, word))), ...rows),
    t.planes > 1 ? channels(t, k => showValues(ask, anew, pair, k)) : null,
    ...(t.cells.rows ? maps(all) : []),
    ...(t.worst.length ? [el("h2", {}, `Worst elements${several ? ` of ${t.source}` : ""}`), el("table", { id: "worst" },
      el("tr", {}, ...["at", "reference", t.source, "difference"].map(word => el("th", {}, word))),
      ...t.worst.map(w => el("tr", {}, ...[w.index.join(","), w.reference, w.given, w.error].map(v => el("td", {}, short(v))))))] : []),
    t.statistics.given && !t.worst.length ? el("p", {}, `✓ ${several ? `${t.source}: equal` : "Equal"}, element by element.`) : null,
  ];
  $("values").replaceChildren(...parts.filter(Boolean));
  $("values").scrollIntoView({ block: "nearest" });
  return true;
}
