// The page: what the user does -> requests; events of runs -> marks in the network. All state that matters is the
// server's: a reload asks for it again.

import { Drawing, number, size } from "/drawing.js";
import { $, count, el, errorWords, legend, modelPanel, nodePanel, regionPanel, resultPanel } from "/panels.js";
import { showValues } from "/values.js";

const [token, place] = location.hash.slice(1).split("&node="); // the address of a page leads to the node that it shows
const drawing = new Drawing($("stage"), $("near"), $("far"), $("minimap"));
let model, dropped = [], failing = [], running = 0, lastRun = null, results = [], hitAt = -1, order = 0, lastEnds = "\n";
const byLabel = new Map();

const GONE = { error: { what: "subcut does not answer", hint: "is it still running in its terminal?" } };

// Each request names the reading of the model that this page shows: the server answers to no other.
async function post(path, body) {
  const headers = { "X-Subcut-Token": token, "Content-Type": "application/json" };
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify({ model: model.key, ...body }) }).catch(() => { throw GONE; });
  const document = await answer.json();
  if (document.error?.kind === "ModelChanged") changed();
  if (!answer.ok) throw document;
  return document;
}

// With XMLHttpRequest: fetch does not tell how much was sent.
function send(file) {
  return new Promise((done, failed) => {
    const request = new XMLHttpRequest(), bar = $("sent");
    request.open("POST", "/api/drop");
    for (const [name, value] of [["X-Subcut-Token", token], ["X-Name", encodeURIComponent(file.name)], ["Content-Type", "application/octet-stream"]]) request.setRequestHeader(name, value);
    request.responseType = "json";
    request.upload.onprogress = e => { bar.hidden = false; bar.max = e.total; bar.value = e.loaded; };
    request.onloadend = () => { bar.hidden = true; };
    request.onload = () => (request.status === 200 ? done(request.response) : failed(request.response || GONE));
    request.onerror = () => failed(GONE);
    request.send(file);
  });
}

// The file is another one than the network that is shown: nothing is asked of it until the page is loaded anew.
function changed() {
  $("changed").hidden = false;
  $("changed-text").textContent = `${model.model} has changed on disk. This page shows the file as it was, and runs nothing.`;
  busy(running);
}

const told = (id, e) => {
  $(id).hidden = !e;
  $(id).replaceChildren(...(e ? e.error ? errorWords(e.error) : [String(e)] : []));
  if (e && id === "failed") $("outcome").scrollIntoView();
};

// ------------------------------------------------------------------------------------------------ groups

let open = null, tall = false; // boxes have room for errors once there are some

// `keep`: key of the box that stays where it is; without one, that in the middle does.
async function layout(opened, keep = drawing.middle()) {
  const mine = ++order, before = drawing.byKey.get(keep);
  tall ||= drawing.marks.values.size > 0;
  const slow = setTimeout(() => waiting(opened), 500);
  const answer = await post("/api/layout", { open: opened, tall, width: Math.max(380, Math.min(1600, $("stage").clientWidth)) }).finally(() => { clearTimeout(slow); $("waiting").hidden = true; });
  if (mine !== order) return; // a later one is under way
  const place = before && [(before.x - drawing.x) * drawing.zoom, (before.y - drawing.y) * drawing.zoom];
  open = new Set(answer.open);
  drawing.show(answer, model.makes);
  const now = drawing.byKey.get(keep);
  if (now && place) { drawing.x = now.x - place[0] / drawing.zoom; drawing.y = now.y - place[1] / drawing.zoom; }
}

function waiting(opened) {
  const keys = new Set(opened), seen = model.holders.filter(g => { while (g && keys.has(model.groups[g])) g = model.parents[g]; return !g; }).length;
  $("waiting").textContent = `Laying out ${count(seen, "node")}; thousands take seconds.`;
  $("waiting").hidden = false;
}

// The node that a box stands for, or -1; what it holds inside.
function nodeOf(box) {
  const n = Number(/^#(\d+)$/.exec(box?.key)?.[1] ?? -1);
  return ["node", "open"].includes(box?.kind) && box.nodes.includes(n) ? n : -1;
}
const inside = box => model.bodies[nodeOf(box)];

const around = node => { const keys = []; for (let g = model.holders[node]; g; g = model.parents[g]) keys.push(model.groups[g]); return keys; };

function toggle(box) {
  const keys = new Set(open);
  if (box.kind === "open") keys.delete(box.key); else keys.add(box.key);
  return layout([...keys], box.key);
}

async function reveal(nodes) {
  const keys = new Set([...open, ...nodes.slice(0, 50).flatMap(around)]);
  if (keys.size > open.size || !tall && drawing.marks.values.size) await layout([...keys]);
  const box = drawing.holder.get(nodes[0]);
  if (box) drawing.center(box);
  drawing.redraw();
}

// ------------------------------------------------------------------------------------------------ node, start, end

// `way`: how the browser's history takes it; Back goes to the node before.
async function select(node, way = node === drawing.marks.selected ? "replaceState" : "pushState") {
  const isOther = drawing.marks.selected !== node;
  drawing.marks.selected = node;
  $("node-panel").hidden = true; // until it shows this node: its buttons are those of the one before
  drawing.redraw();
  const details = await post("/api/node", { index: node });
  if (drawing.marks.selected !== node) return;
  const errors = results.flatMap(({ values, failed, name }) => model.makes[node].filter(t => values.has(t)).map(t => [results.length > 1 ? `${name}: ${t}` : t, number(values.get(t)) + (failed.has(t) ? " ✗ disagrees" : "")]));
  const name = model.labels[node];
  if (way) history[way](null, "", `#${token}&node=${encodeURIComponent(name)}`);
  const box = drawing.byKey.get(`#${node}`);
  nodePanel(details, errors, { inside: model.bodies[node], isOpen: box?.kind === "open", toggle: () => toggle(drawing.byKey.get(`#${node}`)).then(() => select(node)).then(() => $("look-inside")?.focus()), start: () => choose("start", name), end: () => choose("end", name), close: () => unselect(), values: () => look(node) });
  if (isOther) $("node-panel").scrollIntoView({ block: "nearest" });
}

function unselect(way = "replaceState") {
  if (way) history[way](null, "", `#${token}`);
  if ($("node-panel").contains(document.activeElement)) $("stage").focus();
  drawing.marks.selected = -1; $("node-panel").hidden = true;
  drawing.redraw();
}

// Back and Forward.
async function visit() {
  const node = byLabel.get(decodeURIComponent(location.hash.split("&node=")[1] ?? ""));
  if (node === undefined) return unselect("");
  await reveal([node]);
  return select(node, "");
}

async function choose(which, name) {
  $(which).value = name;
  await region(which);
}

const ends = ["\n"]; // all that start and end were

function undo() {
  if (ends.length < 2) return;
  ends.pop();
  [$("start").value, $("end").value] = ends.at(-1).split("\n");
  region();
}

let found = null; // the region that is marked

// The network is moved to the region.
async function goTo({ nodes }) {
  await reveal([nodes[0], nodes.at(-1)]);
  drawing.frame([...new Set(nodes.map(n => drawing.holder.get(n)).filter(Boolean))]);
}

// `changed`: the field that the user set last. A new start below the old end clears the end. `moves`: the network is
// moved to the region, which was not chosen there.
async function region(changed, moves = false) {
  const start = $("start").value.trim(), end = $("end").value.trim(), marks = drawing.marks;
  const mine = lastEnds = `${start}\n${end}`; // the answer to an earlier question may come later
  if (ends.at(-1) !== mine) ends.push(mine);
  $("undo").disabled = ends.length < 2;
  if (start || end) $("ends-row").open = true;
  told("refused", null);
  try {
    if (!start && !end) throw null;
    const r = await post("/api/region", { start, end });
    if (mine !== lastEnds) return;
    found = r;
    marks.region = new Set([...r.nodes, ...r.inside]);
    marks.boundary = new Set([...r.inputs, ...r.outputs]);
    regionPanel(r);
    sessionStorage.setItem("ends", JSON.stringify([start, end]));
    if (moves) await goTo(r);
  } catch (e) {
    if (e instanceof Error) throw e;
    if (mine !== lastEnds) return;
    if (e?.swap && changed === "start" && byLabel.has(start)) {
      $("end").value = "";
      await region("", moves);
      $("region").textContent += " The old end lies above this start and was cleared.";
      return;
    }
    found = null;
    marks.region = marks.boundary = new Set();
    $("boundary").replaceChildren();
    $("command-row").hidden = true;
    $("region").textContent = "To run a part of the model, click a node, then “Start here” and “End here”; or press s and e.";
    told("refused", e);
    if (e?.swap) $("refused").append(el("button", { id: "swap", type: "button", onclick: () => { [$("start").value, $("end").value] = [end, start]; region("", true); $("start").focus(); } }, "Swap"));
    if (!start && !end) sessionStorage.removeItem("ends");
  }
  drawing.redraw();
}

// ------------------------------------------------------------------------------------------------ search

// Rank: exact > prefix > substring > operator > tensor > weight or input; case does not matter. With the tensor's name.
function search(text) {
  const word = text.trim().toLowerCase();
  if (!word) return [];
  const rank = n => {
    const label = model.labels[n].toLowerCase();
    if (label === word) return [0];
    if (label.startsWith(word)) return [1];
    if (label.includes(word)) return [2];
    if (model.ops[n].toLowerCase().includes(word)) return [3];
    const holds = t => t.toLowerCase().includes(word), made = model.makes[n].find(holds), read = model.reads[n].find(holds);
    return made ? [4, made] : read ? [5, read] : [9];
  };
  return model.labels.map((_, n) => [...rank(n), n]).filter(([r]) => r < 9).sort((a, b) => a[0] - b[0] || a.at(-1) - b.at(-1)).map(row => ({ node: row.at(-1), tensor: row.length > 2 ? row[1] : "" }));
}

function showHits() {
  const hits = search($("search").value);
  hitAt = -1;
  drawing.marks.hits = new Set(hits.map(hit => hit.node));
  drawing.redraw();
  const items = hits.slice(0, 60).map(({ node: n, tensor }, k) => el("li", { role: "option", id: `hit${k}`, "data-node": n, onpointerdown: e => { e.preventDefault(); go(k); } }, model.labels[n], " ", el("small", {}, [model.ops[n], tensor].filter(Boolean).join(" · "))));
  if ($("search").value.trim()) items.push(el("li", { role: "presentation" }, el("small", {}, hits.length ? count(hits.length, "hit") : "nothing found")));
  $("hits").replaceChildren(...items);
  $("hits").hidden = !items.length;
  $("search").setAttribute("aria-expanded", String(!!items.length));
}

function go(k) {
  const items = [...$("hits").querySelectorAll("[data-node]")];
  if (!items.length) return;
  hitAt = (k + items.length) % items.length;
  items.forEach((e, at) => e.setAttribute("aria-selected", String(at === hitAt)));
  items[hitAt].scrollIntoView({ block: "nearest" });
  $("search").setAttribute("aria-activedescendant", items[hitAt].id);
  const node = Number(items[hitAt].dataset.node);
  reveal([node]).then(() => select(node));
}

// ------------------------------------------------------------------------------------------------ runs

// Stored values are shown at once, those of the chosen recording first; where there are none, or when asked again, the
// models run. A recording is stored as a whole: its other nodes need no run.
async function look(node) {
  told("failed", null);
  try {
    if (!await showValues((pair, plane) => post("/api/tensor", { node, pair, plane, ...tested() }), () => run("values", node))) await run("values", node);
  } catch (e) { if (e instanceof Error) throw e; told("failed", e); }
}

// Of a comparison, the tensors to look at, the first wrong one and the worst: what a button says, and what it does.
function tensorsToSee() {
  const { values, failed } = drawing.marks, makers = new Map(model.makes.flatMap((names, n) => names.map(name => [name, n])));
  const known = [...values.keys()].filter(t => makers.has(t) && values.get(t) !== 0), wrong = known.filter(t => failed.has(t));
  const worst = (wrong.length ? wrong : known).reduce((a, b) => (a !== null && size(values.get(a)) >= size(values.get(b)) ? a : b), null);
  const rows = wrong.length ? [["First wrong", wrong[0]], ["Worst", worst]] : [["Largest error", worst]];
  return rows.filter(([, t]) => t).map(([word, t]) => [`${word}: ${t} ${number(values.get(t))}`, () => see(makers.get(t))]);
}

// Both sides, which a cut does not hold.
async function see(node) {
  await reveal([node]);
  await select(node);
  await ($("candidate").value.startsWith("recording:") ? look(node) : run("values", node));
}

// What the model is fed, and the chosen candidate or recording; `fed`: only the first.
function tested(fed = false) {
  const [way, name] = ($("candidate").value || ":").split(/:(.*)/s);
  const inputs = dropped.map(d => ({ file: d.file, input: d.input }));
  return { seed: $("seed").value.trim(), mean: $("mean").value.trim(), scale: $("scale").value.trim(), inputs, [way || "candidate"]: fed ? "" : name };
}

const chosen = () => $("candidate").value.replace(/^.*?:/, "");

let asker = null; // what had the focus when a run was asked for: its button may be disabled while it runs

// `kind`: as the server has them, and dump, which is a cut with all tensors.
async function run(kind, node = -1) {
  asker = document.activeElement;
  if (taking && !await taking) return; // files are under way: none is left out because a button was quicker
  told("failed", null);
  try {
    const dump = kind === "dump", cut = dump || kind === "cut";
    await post("/api/run", { kind: cut ? "cut" : kind, node, start: $("start").value.trim(), end: $("end").value.trim(), dump, ...tested(cut) });
  } catch (e) { if (e instanceof Error) throw e; told("failed", e); }
}

function busy(number) {
  running = number;
  for (const id of ["cut", "dump", "compare", "bisect"]) $(id).disabled = !!number || !$("changed").hidden;
  $("stop").hidden = $("progress").hidden = !number;
  $("stop").disabled = false;
}

function begin(event) {
  lastRun = event;
  $("outcome").scrollIntoView();
  if (event.kind === "values") { told("failed", null); busy(event.run); return; }
  failing = results = [];
  Object.assign(drawing.marks, { values: new Map(), failed: new Set(), known: new Map() });
  $("steps").replaceChildren(el("li", {}, el("code", {}, event.command)));
  $("result").replaceChildren();
  told("failed", null);
  $("left").textContent = "starting";
  $("bar").removeAttribute("value");
  busy(event.run);
}

function progress(event) {
  if (lastRun?.kind === "values") { $("left").textContent = event.text.trim(); return; }
  const live = event.live || {};
  if (live.of) { $("bar").max = live.of; $("bar").value = live.done; }
  else if (event.of) { $("bar").max = event.of; $("bar").value = event.step; }
  $("left").textContent = [live.left || (live.asking ? "" : event.text.trim()), live.estimate, live.asking].filter(Boolean).join(" · ") || $("left").textContent;
  if (live.nodes) learn(live);
  if (live.asking || !event.text) return;
  const outcome = { fail: "fail", minor: "fail", agree: "agree" }[live.outcome];
  $("steps").append(el("li", { class: outcome }, event.text.trim().replace(/\s{2,}/g, "  ")));
  while ($("steps").childElementCount > 200) $("steps").children[1].remove();
}

// What a step shows of its nodes: the smallest regions that failed, and what agreed alone. A piece that agrees in a
// pool, or at the outputs, may still fail alone: it is not known.
function learn({ nodes, outcome, query }) {
  const { known } = drawing.marks, region = new Set(nodes);
  if (!nodes.length) return;
  if (outcome === "fail" && ["isolated", "rest"].includes(query)) {
    if (!failing.some(f => [...f].every(n => region.has(n))))
      failing = [...failing.filter(f => !nodes.every(n => f.has(n))), region];
    for (const [n, state] of known) if (state === "alone") known.delete(n);
    for (const f of failing) for (const n of f) known.set(n, "alone");
  } else if (outcome === "agree" && query === "isolated") {
    for (const n of nodes) if (known.get(n) !== "alone") known.set(n, "agreed");
  } else return;
  drawing.redraw();
}

// The focus that a disabled or hidden button lost goes to the result, or back to the button where there is none.
function refocus() {
  if (asker && [document.body, $("stop")].includes(document.activeElement)) ($("result").childElementCount ? $("result") : asker).focus({ preventScroll: true });
  asker = null;
}

function end(event) {
  const d = event.document;
  busy(0);
  if (event.stale) {
    changed();
    told("failed", `${model.model} changed while this ran: the result may be of either file, and is not shown.`);
    return;
  }
  if (lastRun?.kind === "values") {
    if (d.error) resultPanel(event, token, reveal);
    else showRun(event.run).catch(e => told("failed", e));
    return;
  }
  results = (event.comparisons ?? [event]).map((one, k) => errorsOf({ ...event, document: d.comparisons?.[k] ?? d, ...one }));
  show();
  if (d.error && lastRun?.kind === "bisect" && d.exit_code === 130) $("bisect").textContent = "Go on";
  else $("bisect").textContent = "Bisect";
  $("outcome").scrollIntoView();
  refocus();
}

async function showRun(run) {
  const ask = (pair, plane) => post("/api/tensor", { run, pair, plane }), pairs = model.beside.length > 1 ? (await ask(0, null)).pairs : [];
  return showValues(ask, null, Math.max(0, pairs.findIndex(p => p.source === chosen())));
}

// With the error of each tensor, and those that disagree.
function errorsOf(event) {
  const d = event.document, values = new Map(), failed = new Set(), before = event.prefix ?? "";
  for (const row of [...(d.profile || []), ...(d.rows || [])]) {
    for (const place of [row.status ? row : null, row.in_place, ...(row.runs || []).map(r => r?.in_place)]) {
      if (!place) continue;
      const error = place.signature === "nan" ? "nan" : place.error ?? place.errors?.max_rel;
      if (error !== undefined && error !== null) values.set(before + row.tensor, isNaN(error) ? String(error) : Number(error));
      if (place.status === "fail") failed.add(before + row.tensor);
    }
  }
  return { ...event, values, failed, name: d.candidate?.name };
}

// The last result; of several candidates that of the chosen one.
function show() {
  const event = results[Math.max(0, results.length > 1 ? model.beside.indexOf(chosen()) : 0)], d = event.document, { marks } = drawing;
  Object.assign(marks, { values: event.values, failed: event.failed });
  const found = (d.findings || []).flatMap((f, k) => [...(event.inside?.[k] || []).flat().reverse(), ...(f.indices || [])].map(n => [n, f.kind === "interval" ? "suspect" : "found"]));
  found.push(...(event.kept || []).map(n => [n, "kept"]));
  if (found.length) { marks.known = new Map(found); reveal(found.map(([n]) => n)); }
  else if (!tall && marks.values.size) layout([...open]);
  legend(marks);
  resultPanel(event, token, nodes => reveal(nodes), lastRun?.kind === "compare" ? tensorsToSee() : [], results.length > 1 ? event.name : "");
  drawing.redraw();
  if (marks.selected >= 0) select(marks.selected, "").catch(e => told("failed", e)); // its errors
}

function listen() {
  const source = new EventSource(`/api/events?token=${token}&model=${model.key}`);
  source.onopen = () => { $("lost").hidden = true; busy(running); };
  source.onerror = () => lost(source);
  let seen = 0;
  source.onmessage = message => {
    const event = JSON.parse(message.data);
    if (event.type === "changed") { source.close(); changed(); return; }
    if (event.id <= seen) return;
    seen = event.id;
    ({ begin, progress, end })[event.type](event);
    legend(drawing.marks);
  };
}

// The bar stands still, and Stop cannot be pressed. The browser asks again by itself; another subcut at the same port
// has another token, and refuses.
async function lost(source) {
  $("lost").hidden = false;
  $("lost").textContent = "subcut does not answer; trying again. A run goes on only while subcut runs.";
  if (running) {
    $("bar").value = $("bar").hasAttribute("value") ? $("bar").value : 0;
    $("left").textContent = "unknown: subcut does not answer";
    $("stop").disabled = true;
  }
  if (source.readyState !== EventSource.CLOSED) return;
  const answer = await fetch(`/api/model?token=${token}`).catch(() => null);
  if (!answer) setTimeout(() => lost(source), 2000);
  else if (answer.ok) location.reload();
  else $("lost").textContent = "subcut was started again: open the address that it printed. Finished runs are stored: start the same run there, and it goes on.";
}

// ------------------------------------------------------------------------------------------------ inputs

let taking = null; // while files are stored: whether all could be

function take(files) {
  const mine = taking = Promise.all([taking, storeAll(files)]).then(stored => !stored.includes(false)).finally(() => { if (taking === mine) taking = null; });
}

async function storeAll(files) {
  let all = true;
  told("failed", null);
  for (const file of files) {
    try {
      const { file: stored } = await send(file);
      dropped.push({ name: file.name, file: stored, input: model.inputs.length === 1 ? model.inputs[0] : "" });
    } catch (e) { all = false; told("failed", e); }
  }
  showDropped();
  return all;
}

function showDropped() {
  $("feed").open ||= dropped.length > 0;
  $("dropped").replaceChildren(...dropped.map((d, k) => el("li", {}, d.name, " → ",
    el("select", { "aria-label": `Input that ${d.name} is for`, onchange: e => { d.input = e.target.value; } }, ...["", ...model.inputs].map(n => el("option", { value: n, selected: n === d.input }, n || "(by its name)"))),
    el("button", { type: "button", "aria-label": `Leave ${d.name} out`, onclick: () => { dropped.splice(k, 1); showDropped(); $("files").focus(); } }, "×"))));
}

// ------------------------------------------------------------------------------------------------ mouse and keys

function mouse() {
  const stage = $("stage"), held = new Map();
  let moved = 0, spread = 0;
  const place = e => { const r = stage.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top]; };
  stage.addEventListener("pointerdown", e => { if (e.target === $("minimap")) return; held.set(e.pointerId, [e.clientX, e.clientY]); moved = 0; stage.setPointerCapture(e.pointerId); });
  stage.addEventListener("pointermove", e => {
    const before = held.get(e.pointerId);
    if (!before) return;
    const dx = e.clientX - before[0], dy = e.clientY - before[1];
    held.set(e.pointerId, [e.clientX, e.clientY]);
    moved += Math.abs(dx) + Math.abs(dy);
    if (held.size === 2) {
      const [a, b] = [...held.values()], now = Math.hypot(a[0] - b[0], a[1] - b[1]);
      if (spread) drawing.zoomAt(now / spread, ...place({ clientX: (a[0] + b[0]) / 2, clientY: (a[1] + b[1]) / 2 }));
      spread = now;
    } else if (moved > 4) drawing.move(-dx, -dy);
  });
  const release = e => {
    const click = held.delete(e.pointerId) && moved <= 4 && e.type === "pointerup" && held.size === 0;
    spread = 0;
    const box = click && drawing.at(...place(e));
    if (!box) return;
    const node = nodeOf(box);
    if (node < 0 && ["group", "open"].includes(box.kind) || inside(box) && drawing.atSign(box, place(e)[0])) toggle(box);
    else if (node >= 0) select(node);
  };
  stage.addEventListener("pointerup", release);
  stage.addEventListener("pointercancel", release);
  stage.addEventListener("wheel", e => {
    e.preventDefault();
    if (e.ctrlKey || e.metaKey || !e.shiftKey && Math.abs(e.deltaY) >= Math.abs(e.deltaX)) drawing.zoomAt(Math.exp(-e.deltaY / 400), ...place(e));
    else drawing.move(e.deltaX || e.deltaY, 0);
  }, { passive: false });
  const jump = e => {
    const r = $("minimap").getBoundingClientRect(), [w, h] = drawing.size, shown = r.width / $("minimap").width, [across, scale] = drawing.mini;
    drawing.x = (e.clientX - r.left) / shown / across - w / drawing.zoom / 2;
    drawing.y = (e.clientY - r.top) / shown / scale - h / drawing.zoom / 2;
    drawing.ask();
  };
  $("minimap").addEventListener("pointerdown", e => { e.stopPropagation(); $("minimap").setPointerCapture(e.pointerId); jump(e); });
  $("minimap").addEventListener("pointermove", e => { if (e.buttons) jump(e); });
}

let cursor = ""; // key of the box that the keyboard is on

function step(dx, dy) {
  const boxes = drawing.layout.boxes, here = drawing.byKey.get(cursor) || boxes[0];
  const middle = b => [b.x + b.width / 2, b.kind === "open" ? b.y + 10 : b.y + b.height / 2];
  const [x, y] = middle(here);
  let best = null, least = Infinity;
  for (const b of boxes) {
    const [bx, by] = middle(b), along = (bx - x) * dx + (by - y) * dy, aside = Math.abs((bx - x) * dy) + Math.abs((by - y) * dx);
    if (b !== here && along > 1 && along + 2 * aside < least) { best = b; least = along + 2 * aside; }
  }
  if (!best) return;
  cursor = drawing.marks.cursor = best.key;
  drawing.center(best);
  announce(best);
  if (nodeOf(best) >= 0) select(nodeOf(best), "replaceState");
  else unselect();
}

// What a screen reader says of the box that the keyboard is on.
function announce(box) {
  const error = drawing.worst(box), kinds = { group: `group, ${count(box.nodes.length, "node")}, Enter opens`, open: `open${nodeOf(box) < 0 ? " group" : ""}, Enter closes`, node: [box.label.replace(/^\+ /, ""), inside(box) ? `with ${inside(box).join(", ")} inside, Enter opens` : ""].filter(Boolean).join(", ") };
  $("said").textContent = [box.title, kinds[box.kind] ?? box.kind, error === undefined ? "" : `error ${number(error)}`].filter(Boolean).join(", ");
}

function keys() {
  const arrows = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };
  addEventListener("keydown", e => {
    if (e.key === "z" && (e.ctrlKey || e.metaKey) && !/INPUT|TEXTAREA/.test(e.target.tagName)) { e.preventDefault(); undo(); return; }
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const typing = /INPUT|SELECT|TEXTAREA/.test(e.target.tagName), node = drawing.marks.selected;
    if (e.key === "/" && !typing) { e.preventDefault(); $("search").select(); return; }
    if (typing || (e.key === "Enter" && e.target.tagName === "BUTTON")) return;
    if (arrows[e.key] && document.activeElement === $("stage")) { e.preventDefault(); step(...arrows[e.key]); }
    else if (e.key === "s" && node >= 0) choose("start", model.labels[node]);
    else if (e.key === "e" && node >= 0) choose("end", model.labels[node]);
    else if (e.key === "v" && node >= 0) look(node);
    else if (e.key === "Enter" && (["group", "open"].includes(drawing.byKey.get(cursor)?.kind) || inside(drawing.byKey.get(cursor)))) toggle(drawing.byKey.get(cursor));
    else if (e.key === "+" || e.key === "=") drawing.zoomAt(1.25, ...drawing.size.map(v => v / 2));
    else if (e.key === "-") drawing.zoomAt(0.8, ...drawing.size.map(v => v / 2));
    else if (e.key === "0") drawing.fit();
    else if (e.key === "Escape") unselect();
  });
  $("search").addEventListener("input", showHits);
  $("search").addEventListener("focus", showHits);
  $("search").addEventListener("blur", () => { $("hits").hidden = true; });
  $("search").addEventListener("keydown", e => {
    if (e.key === "ArrowDown" || e.key === "Enter") { e.preventDefault(); go(hitAt + 1); }
    else if (e.key === "ArrowUp") { e.preventDefault(); go(hitAt - 1); }
    else if (e.key === "Escape") { $("search").value = ""; showHits(); $("stage").focus(); }
  });
}

function buttons() {
  $("fit").onclick = () => drawing.fit();
  $("more").onclick = () => drawing.zoomAt(1.25, ...drawing.size.map(v => v / 2));
  $("less").onclick = () => drawing.zoomAt(0.8, ...drawing.size.map(v => v / 2));
  $("unfold").onclick = () => layout(model.groups.filter(Boolean)).then(() => drawing.fit());
  $("save").onclick = () => {
    const url = URL.createObjectURL(new Blob([drawing.picture(model.model)], { type: "image/svg+xml" }));
    el("a", { href: url, download: `${model.model.replace(/\.onnx$/, "")}.svg` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  };
  addEventListener("popstate", visit);
  $("fold").onclick = () => layout([]).then(() => drawing.fit());
  for (const kind of ["cut", "dump", "compare", "bisect"]) $(kind).onclick = () => run(kind);
  $("stop").onclick = () => post("/api/stop", {}).catch(e => told("failed", e));
  $("reload").onclick = () => location.reload();
  $("ends").onsubmit = e => { // Enter in a changed field: its change was asked already
    e.preventDefault();
    if (lastEnds !== `${$("start").value.trim()}\n${$("end").value.trim()}`) region("end", true);
    else if (found) goTo(found);
  };
  $("start").onchange = () => region("start", true);
  $("end").onchange = () => region("end", true);
  $("clear").onclick = () => { $("start").value = $("end").value = ""; region(); };
  $("undo").onclick = undo;
  $("copy").onclick = async () => { await navigator.clipboard.writeText($("command").textContent); $("copy").textContent = "Copied"; setTimeout(() => { $("copy").textContent = "Copy"; }, 1500); };
  $("candidate").onchange = () => { if (results.length > 1) show(); };
  $("files").onchange = e => { take([...e.target.files]); e.target.value = ""; };
  addEventListener("dragover", e => { e.preventDefault(); $("feed").open = true; $("drop").classList.add("over"); });
  addEventListener("dragleave", () => $("drop").classList.remove("over"));
  addEventListener("drop", e => { e.preventDefault(); $("drop").classList.remove("over"); take([...e.dataTransfer.files]); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawing.redraw());
}

async function open_page() {
  const answer = await fetch(`/api/model?token=${token}`);
  model = await answer.json();
  if (!answer.ok) { $("lost").hidden = false; $("lost").textContent = `${model.error.what} ${model.error.hint}`; return; }
  document.title = `${model.model} · subcut`;
  $("model").textContent = model.model;
  modelPanel(model.file);
  model.labels.forEach((label, n) => byLabel.set(label, n));
  $("names").replaceChildren(...model.labels.slice(0, 3000).map(value => el("option", { value })));
  $("candidate").replaceChildren(...model.candidates.map(name => el("option", { value: `candidate:${name}` }, name)), ...model.recordings.map(name => el("option", { value: `recording:${name}` }, `recording ${name}`)));
  const names = [...$("candidate").options].map(option => option.textContent);
  $("candidate-row").hidden = names.length < 2;
  $("only").textContent = names.length === 1 ? `Candidate: ${names[0]}` : "";
  await layout(null);
  drawing.fit();
  buttons();
  mouse();
  keys();
  const [start, end] = JSON.parse(sessionStorage.getItem("ends") || '["",""]');
  if (start || end) { $("start").value = start; $("end").value = end; await region("", true); }
  const node = place === undefined ? undefined : byLabel.get(decodeURIComponent(place));
  if (node !== undefined && drawing.marks.selected < 0) { await reveal([node]); await select(node); } // none was clicked meanwhile
  listen();
  document.body.dataset.ready = "yes";
}

open_page();
