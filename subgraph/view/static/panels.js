// Plain data -> the panels beside the network. Names become text nodes, never HTML.

export const $ = id => document.getElementById(id);

export function el(name, attributes = {}, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
    else if (value !== false && value !== undefined) e.setAttribute(key, value === true ? "" : value);
  }
  e.append(...children.filter(c => c !== undefined && c !== null && c !== ""));
  return e;
}


export const count = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

// 78800 -> 78.8 k, as `text.big`.
export function big(n) {
  for (const [unit, word] of [[1e9, " G"], [1e6, " M"], [1e3, " k"]]) if (n >= unit) return `${(n / unit).toFixed(1)}${word}`;
  return String(n);
}

const shape = t => (t.shape === null || t.shape === undefined ? "any shape" : t.shape.map(d => (typeof d === "number" ? d : /^unk__/.test(d ?? "unk__") ? "?" : d)).join("×") || "scalar");
const short = v => (typeof v === "number" ? String(Number(v.toPrecision(5))) : "–");

// What a weight holds: a small one its value, any other its range.
function holds(t) {
  const r = t.range;
  if (t.value !== null && t.value !== undefined) return JSON.stringify(t.value);
  if (!r) return "";
  const parts = r.elements === 1 ? [short(r.min)] : [`${short(r.min)} … ${short(r.max)}`, `mean ${short(r.mean)}`, `${(100 * r.zeros / (r.elements || 1)).toFixed(1)} % zeros`];
  return [...parts, r.nan ? `${r.nan} NaN` : "", r.inf ? `${r.inf} Inf` : ""].filter(Boolean).join(", ");
}

const tensorRow = (word, t) => el("tr", {}, el("th", {}, t.made_by === "weight" ? "weight" : word), el("td", {}, `${t.name}  ${t.type || "?"} ${shape(t)}`, ...(holds(t) ? [el("br"), el("small", { class: t.range?.nan || t.range?.inf ? "odd" : "" }, holds(t))] : [])));

export function modelPanel(file) {
  const size = [file.bytes + file.external_bytes].map(big)[0];
  const rows = { file: file.path, size: `${size}B`, opset: Object.entries(file.opsets).map(([domain, version]) => `${domain} ${version}`).join(", "), "IR version": file.ir_version, producer: file.producer, graph: file.graph };
  $("about").replaceChildren(el("table", {}, ...pairs("", Object.fromEntries(Object.entries(rows).filter(([, text]) => text !== ""))), ...pairs("metadata", file.metadata)));
}
const pairs = (word, map) => Object.entries(map || {}).map(([key, value]) => el("tr", {}, el("th", {}, word ? `${word} ${key}` : key), el("td", {}, String(value))));

export function nodePanel(node, errors, actions) {
  const rows = [
    ...pairs("", node.attributes),
    ...node.inputs.map(t => tensorRow("reads", t)),
    ...node.outputs.map(t => tensorRow("makes", t)),
    ...node.known.map(text => el("tr", {}, el("th", {}, "perhaps"), el("td", {}, text))),
    ...errors.map(([name, text]) => el("tr", {}, el("th", {}, "error"), el("td", {}, `${name}: ${text}`))),
    ...pairs("", node.source ? { source: node.source } : {}),
    ...pairs("metadata", node.metadata),
    ...(node.doc ? [el("tr", {}, el("th", {}, "doc"), el("td", {}, node.doc))] : []),
  ];
  $("node-panel").hidden = false;
  $("node-panel").replaceChildren(
    el("h2", {}, node.label),
    el("p", {}, node.domain ? `${node.domain}.${node.op}` : node.op),
    el("div", { class: "row" }, el("button", { onclick: actions.start, id: "start-here" }, "Start here"), el("button", { onclick: actions.end, id: "end-here" }, "End here"),
      el("button", { onclick: actions.values, id: "show-values", title: "Run the reference and the chosen candidate, and show what the node makes (v)" }, "Values"),
      actions.inside && el("button", { onclick: actions.toggle, id: "look-inside", "aria-expanded": String(actions.isOpen) }, actions.isOpen ? "Close what is inside" : `Open ${actions.inside.join(", ")}`),
      el("button", { onclick: actions.close, "aria-label": "Close the node's panel" }, "×")),
    el("table", {}, ...rows),
  );
}

export function regionPanel(region) {
  const parts = [count(region.inputs.length, "input"), count(region.nodes.length, "node"), `${big(region.parameters)} parameter${region.parameters === 1 ? "" : "s"}`];
  $("region").textContent = `This cut needs ${parts.join(", ")}.`;
  const names = [...region.inputs.map(n => `◆ in ${n}`), ...region.outputs.map(n => `◆ out ${n}`)];
  const shown = names.slice(0, 30).map(n => el("li", {}, n));
  if (names.length > 30) shown.push(el("li", {}, `and ${names.length - 30} more`));
  $("boundary").replaceChildren(...shown);
  $("command").textContent = region.command;
  $("command-row").hidden = false;
}

const link = (token, path, text) => el("a", { href: `/output/${path.split("/").map(encodeURIComponent).join("/")}?token=${token}`, target: "_blank", rel: "noopener" }, text);

// An error: what happened, what to do, and its code, which docs/errors.md explains.
export const errorWords = ({ what, hint, code }) => [`${what}${hint ? ` (${hint})` : ""} `, ...(code ? [el("code", {}, code)] : [])];

// `looks`: texts of buttons, and what they do. `name`: of the candidate, where there are several.
export function resultPanel(event, token, show, looks = [], name = "") {
  const { document: d, said, report, inner_reports: inner } = event, out = [];
  if (d.error) {
    $("failed").hidden = false;
    $("failed").replaceChildren(...(d.exit_code === 130 ? ["Stopped. Finished runs are stored: the same run continues where it stopped."] : errorWords(d.error)));
    $("result").replaceChildren();
    return;
  }
  if (name) out.push(el("p", {}, `${name} (choose another candidate above to see its errors)`));
  for (const r of d.results || []) out.push(el("div", { class: `finding ${["identical", "close"].includes(r.check?.status) ? "fine" : ""}` }, el("strong", {}, "Cut written"), el("br"), r.check?.what ?? "", el("br"), el("code", {}, `${r.path}/`)));
  if (said) out.push(el("div", { class: `finding ${d.agree === true ? "fine" : ""}` }, el("strong", {}, `${said.sign || (d.agree === true ? "✓" : d.agree === false ? "✗" : "?")} ${said.headline}`), ...said.after.map(line => el("p", {}, line))));
  if (looks.length) out.push(el("div", { class: "row" }, ...looks.map(([text, onclick]) => el("button", { onclick, type: "button", class: "look" }, text))));
  for (const [k, f] of (d.findings || []).entries())
    out.push(el("div", { class: f.kind === "interval" ? "finding suspects" : "finding" }, ...(said?.findings[k] || []).map(line => el("p", {}, line)),
      ...(inner?.[k] || []).map(path => el("p", {}, link(token, path, "Open the report of what is inside"))),
      el("button", { onclick: () => show(f.indices || []) }, "Show in the network")));
  if (event.curve) out.push(document.importNode(new DOMParser().parseFromString(event.curve, "text/html").querySelector("svg"), true));
  for (const note of d.notes || []) out.push(el("p", {}, note));
  if (report) out.push(el("p", {}, link(token, report, "Open the report")));
  $("result").replaceChildren(...out);
}

const swatch = color => { const e = el("span", { class: "swatch" }); e.style.background = `var(${color})`; return e; };

export function legend(marks) {
  const rows = [];
  if ([...marks.known.values()].includes("kept")) rows.push(["f: stays in float", "--region"]);
  else if (marks.known.size) rows.push(["✓ agreed", "--good-panel"], ["✗ failed alone, or found; ? suspect, dashed", "--bad-panel"]);
  if (marks.values.size) rows.push(["✗ wrong in place", "--bad"], ["≤ 1e-6", "--l1"], ["≤ 1e-4", "--l2"], ["≤ 0.01", "--l3"], ["≤ 1", "--l4"], ["more, NaN or Inf", "--l5"]);
  $("legend").hidden = !rows.length;
  const items = rows.map(([text, color]) => el("li", {}, swatch(color), text));
  $("legend").replaceChildren(el("h2", {}, marks.values.size ? "Relative error of tensors, and steps" : "Steps"), el("ul", {}, ...items));
}
