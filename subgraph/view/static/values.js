// Values of a tensor: the server draws them, the page chooses sample and plane.

import { $, el } from "/panels.js";

const picture = text => document.importNode(new DOMParser().parseFromString(text, "image/svg+xml").documentElement, true);
const short = v => (typeof v === "number" ? String(Number(v.toPrecision(5))) : v ?? "–");

// `ask(pair, plane)` → the server's answer; null planes: the server chooses the one that differs most. `anew`: runs the
// models, where the values are stored ones. Returns false where there are no values.
export async function showValues(ask, anew = null, pair = 0, plane = null) {
  const t = await ask(pair, plane);
  if (!t.pairs.length) return false;
  const sides = [["reference", t.statistics.reference], [t.source, t.statistics.given]].filter(([, s]) => s);
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
    ...t.notes.map(note => el("p", { class: "note" }, note)),
    t.stored ? el("button", { id: "anew", type: "button", onclick: anew, title: "Run the reference and the chosen candidate on the chosen inputs" }, "Run the models instead") : null,
    el("table", {}, el("tr", {}, el("th"), ...sides.map(([word]) => el("th", {}, word))), ...rows),
    t.planes > 1 ? el("label", {}, `Channel 0 … ${t.planes - 1} `, el("input", { id: "plane", type: "number", min: 0, max: t.planes - 1, value: t.plane, onchange: e => showValues(ask, anew, pair, Math.max(0, Math.min(t.planes - 1, Number(e.target.value) || 0))) })) : null,
    ...[...t.maps, t.histogram, t.scatter].filter(Boolean).map(text => el("div", { class: "picture" }, picture(text))),
    ...(t.worst.length ? [el("h2", {}, "Worst elements"), el("table", { id: "worst" },
      el("tr", {}, ...["at", "reference", t.source, "difference"].map(word => el("th", {}, word))),
      ...t.worst.map(w => el("tr", {}, ...[w.index.join(","), w.reference, w.given, w.error].map(v => el("td", {}, short(v))))))] : []),
    sides.length > 1 && !t.worst.length ? el("p", {}, "✓ Equal, element by element.") : null,
  ];
  $("values").replaceChildren(...parts.filter(Boolean));
  $("values").scrollIntoView({ block: "nearest" });
  return true;
}
