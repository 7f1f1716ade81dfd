// A layout (boxes, lines, stubs in pixels) -> SVG of what is in sight. Far away, where letters cannot be read, boxes are
// painted on a canvas; so either way a frame costs what is seen, not what there is.

const NS = "http://www.w3.org/2000/svg";
const CELL = 300; // pixels of the layout per cell of the index
const FAR = 0.2; // zoom below which boxes are painted
const SMALL = 0.6; // zoom below which only operators, names of groups and errors are written, larger
const HEAD = 18; // pixels of a node's box that have the operator, as `drawing.svg`
const MOST = 700; // boxes as SVG at once
const FRAMES = ["open", "body"]; // boxes with others inside
const LEVELS = [0, 1e-6, 1e-4, 1e-2, 1];

// As `drawing.svg.number`: two digits, 0.35 and 1.2e-07.
export function number(e) {
  if (typeof e !== "number" || !isFinite(e) || e === 0) return String(e);
  const [digits, power] = e.toExponential(1).split("e").map(Number);
  if (power >= -4 && power < 2) return String(Number(e.toPrecision(2)));
  return `${digits}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
}

export const degree = e => (typeof e === "number" && isFinite(e) ? LEVELS.filter(b => e > b).length : LEVELS.length);
export const size = e => (typeof e === "number" && isFinite(e) ? e : Infinity);

function element(name, attributes, text) {
  const e = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  if (text !== undefined) e.textContent = text;
  return e;
}

// As `drawing.svg.path`: odd steps are curves.
export function path(points) {
  let [x, y] = points[0];
  let d = `M${x} ${y}`;
  points.slice(1).forEach(([nx, ny], k) => {
    const half = (y + ny) / 2;
    d += x === nx ? `V${ny}` : k % 2 ? `C${x} ${half} ${nx} ${half} ${nx} ${ny}` : `L${nx} ${ny}`;
    [x, y] = [nx, ny];
  });
  return d;
}

export class Drawing {
  constructor(stage, svg, far, minimap) {
    Object.assign(this, { stage, svg, far, minimap, x: 0, y: 0, zoom: 1, shown: new Map(), asked: 0 });
    this.world = element("g", {});
    svg.append(this.world);
    this.layers = ["open", "lines", "boxes", "texts"].map(name => element("g", { "data-layer": name }));
    this.world.append(...this.layers);
    this.marks = { region: new Set(), boundary: new Set(), values: new Map(), failed: new Set(), known: new Map(), selected: -1, cursor: "", hits: new Set() };
    this.layout = { width: 1, height: 1, boxes: [], lines: [], stubs: [] };
    this.byKey = new Map();
    this.holder = new Map();
    new ResizeObserver(() => this.resized()).observe(stage);
  }

  show(layout, makes) {
    this.layout = layout;
    this.makes = makes;
    const most = Math.min(120 / layout.width, 180 / layout.height);
    this.minimap.width = Math.max(36, Math.round(most * layout.width));
    this.minimap.height = Math.max(24, Math.round(most * layout.height));
    this.cells = new Map();
    this.byKey = new Map(layout.boxes.map(b => [b.key, b]));
    this.holder = new Map();
    layout.boxes.forEach((b, k) => {
      for (const n of b.nodes) this.holder.set(n, b);
      this.index({ kind: FRAMES.includes(b.kind) ? "open" : "box", id: `b${k}`, item: b }, b.x, b.y, b.x + b.width, b.y + b.height);
    });
    layout.lines.forEach((l, k) => {
      if (!l.points.length) return;
      const xs = l.points.map(p => p[0]), ys = l.points.map(p => p[1]);
      this.index({ kind: "line", id: `l${k}`, item: l }, Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys));
      if (l.text) this.index({ kind: "type", id: `t${k}`, item: l }, l.x, l.y - 8, l.x + 8 * l.text.length, l.y + 8);
    });
    layout.stubs.forEach((s, k) => this.index({ kind: "stub", id: `s${k}`, item: s }, s.x, s.y - 10, s.x + 8 * s.text.length, s.y));
    this.redraw();
  }

  index(entry, x0, y0, x1, y1) {
    for (let cx = Math.floor(x0 / CELL); cx <= Math.floor(x1 / CELL); cx++)
      for (let cy = Math.floor(y0 / CELL); cy <= Math.floor(y1 / CELL); cy++) {
        const key = cx * 65536 + cy;
        if (!this.cells.has(key)) this.cells.set(key, []);
        this.cells.get(key).push(entry);
      }
  }

  // Everything anew: marks or layout changed.
  redraw() {
    for (const e of this.shown.values()) e.remove();
    this.shown.clear();
    this.overview = null;
    this.ask();
  }

  ask() {
    if (!this.asked) this.asked = requestAnimationFrame(() => { this.asked = 0; this.paint(); });
  }

  get size() { return [this.stage.clientWidth, this.stage.clientHeight]; }

  paint() {
    const [w, h] = this.seen = this.size;
    const [x0, y0, x1, y1] = [this.x, this.y, this.x + w / this.zoom, this.y + h / this.zoom];
    const seen = new Map();
    let far = this.zoom < FAR;
    if (!far && this.cells)
      for (let cx = Math.floor(x0 / CELL); cx <= Math.floor(x1 / CELL); cx++)
        for (let cy = Math.floor(y0 / CELL); cy <= Math.floor(y1 / CELL); cy++)
          for (const entry of this.cells.get(cx * 65536 + cy) || []) seen.set(entry.id, entry);
    far = far || seen.size > 4 * MOST;
    this.svg.toggleAttribute("hidden", far);
    this.far.hidden = !far;
    if (far) this.paintFar(this.far, w, h, this.x, this.y, this.zoom);
    else {
      for (const [id, e] of this.shown) if (!seen.has(id)) { e.remove(); this.shown.delete(id); }
      for (const [id, entry] of seen) if (!this.shown.has(id)) {
        const e = this[entry.kind](entry.item);
        this.layers[{ open: 0, line: 1, box: 2, type: 3, stub: 3 }[entry.kind]].append(e);
        this.shown.set(id, e);
      }
      this.svg.classList.toggle("small", this.zoom < SMALL);
      this.world.setAttribute("transform", `scale(${this.zoom}) translate(${-this.x} ${-this.y})`);
    }
    this.paintMinimap(w, h);
  }

  colors() {
    const style = getComputedStyle(this.svg.parentElement), of = name => style.getPropertyValue(`--${name}`).trim();
    return { group: of("group"), line: of("line"), region: of("region"), amber: of("amber"), bad: of("bad"), ink: of("ink"),
      levels: [of("panel"), of("l1"), of("l2"), of("l3"), of("l4"), of("l5")], agree: of("l2"), soft: of("soft") };
  }

  // `across`: zoom from left to right, where it is another one.
  paintFar(canvas, w, h, x, y, zoom, across = zoom) {
    const ratio = devicePixelRatio || 1;
    if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
      canvas.width = Math.round(w * ratio);
      canvas.height = Math.round(h * ratio);
    }
    const c = canvas.getContext("2d"), colors = this.colors(), style = getComputedStyle(this.svg);
    c.setTransform(1, 0, 0, 1, 0, 0);
    c.clearRect(0, 0, canvas.width, canvas.height);
    c.setTransform(across * ratio, 0, 0, zoom * ratio, -x * across * ratio, -y * zoom * ratio);
    c.strokeStyle = colors.line;
    const thin = 1 / Math.max(zoom, across);
    c.lineWidth = thin;
    const right = x + w / across, low = y + h / zoom;
    c.beginPath();
    for (const l of this.layout.lines) {
      const first = l.points[0], last = l.points.at(-1);
      if (!first || last[1] < y || first[1] > low || (Math.max(first[0], last[0]) < x && Math.min(first[0], last[0]) > right)) continue;
      c.moveTo(...first);
      for (const p of l.points) c.lineTo(...p);
    }
    c.stroke();
    for (const b of this.layout.boxes) {
      if (b.y > low || b.y + b.height < y || b.x > right || b.x + b.width < x) continue;
      const classes = this.classes(b), value = this.worst(b);
      const has = (...names) => names.some(name => classes.includes(name)), proven = has("found", "alone");
      c.fillStyle = proven ? colors.bad : value !== undefined ? colors.levels[degree(value)] : has("agreed") ? colors.agree : b.family && b.kind === "node" ? style.getPropertyValue(`--${b.family}`) : colors.group;
      c.strokeStyle = has("region", "partly") ? colors.region : proven || has("suspect") ? colors.bad : has("boundary") ? colors.amber : colors.line;
      c.lineWidth = (has("region", "partly", "found", "alone", "suspect", "boundary") ? 2.5 : 1) * thin;
      c.setLineDash(has("suspect") ? [4 * thin, 3 * thin] : []);
      if (!FRAMES.includes(b.kind)) c.fillRect(b.x, b.y, b.width, b.height);
      c.strokeRect(b.x, b.y, b.width, b.height);
      c.setLineDash([]);
    }
  }

  paintMinimap(w, h) {
    const m = this.minimap, [across, scale] = this.mini = [m.width / this.layout.width, m.height / this.layout.height]; // a long one is wider than it is
    if (!this.overview) {
      this.overview = document.createElement("canvas");
      const ratio = devicePixelRatio || 1;
      this.overview.width = m.width; this.overview.height = m.height;
      this.paintFar(this.overview, m.width / ratio, m.height / ratio, 0, 0, scale / ratio, across / ratio);
    }
    const c = m.getContext("2d");
    c.clearRect(0, 0, m.width, m.height);
    c.drawImage(this.overview, 0, 0);
    c.strokeStyle = this.colors().region;
    c.lineWidth = 2;
    // Of a long network at least a mark of where one is.
    const left = Math.max(1, this.x * across);
    c.strokeRect(left, this.y * scale, Math.min(m.width - 1, (this.x + w / this.zoom) * across) - left, Math.max(4, h / this.zoom * scale));
  }

  worst(box) {
    let worst;
    if (this.marks.values.size)
      for (const n of box.nodes) for (const t of this.makes[n]) {
        const value = this.marks.values.get(t);
        if (value !== undefined && (worst === undefined || size(value) > size(worst))) worst = value;
      }
    return worst;
  }

  classes(box) {
    const { region, boundary, failed, known, selected, cursor, hits } = this.marks, classes = [box.kind, box.family].filter(Boolean);
    if (region.size) {
      const inside = box.nodes.filter(n => region.has(n)).length;
      if (inside) classes.push(inside === box.nodes.length ? "region" : "partly");
    }
    if (["input", "output"].includes(box.kind) && boundary.has(box.title)) classes.push("boundary");
    if (failed.size && box.nodes.some(n => this.makes[n].some(t => failed.has(t)))) classes.push("failed");
    const states = new Set(box.nodes.map(n => known.get(n)));
    for (const state of ["found", "suspect", "alone", "agreed", "kept"]) if (states.has(state)) { classes.push(state); break; }
    if (box.nodes.includes(selected) && ["node", "open"].includes(box.kind)) classes.push("selected");
    if (box.key === cursor && box.kind !== "node") classes.push("selected");
    if (hits.size && box.nodes.some(n => hits.has(n))) classes.push("hit");
    return classes;
  }

  // As `drawing.svg`: the operator in its head, the name, the weights, the error, and signs.
  box(b) {
    const classes = this.classes(b), value = this.worst(b), middle = b.x + b.width / 2 + (value === undefined ? 0 : 2.5);
    const g = element("g", { class: `box ${classes.join(" ")}`, "data-key": b.key });
    const words = { found: "✗ found wrong", suspect: "? suspect: wrong here or at a neighbor", alone: "✗ fails alone", agreed: "✓ agreed", kept: "f: stays in float", failed: "✗ wrong in place", region: "in the region", boundary: "◆ boundary" };
    g.append(element("title", {}, [b.title, ...classes.map(c => words[c]).filter(Boolean)].join(" · ")));
    g.append(element("rect", { class: "frame", x: b.x, y: b.y, width: b.width, height: b.height, rx: ["input", "output"].includes(b.kind) ? b.height / 2 : 4 }));
    if (b.family) g.append(element("rect", { class: `head ${b.family}`, x: b.x, y: b.y, width: b.width, height: HEAD, rx: 4 }));
    const label = element("text", { class: b.family ? "op" : "name", x: middle, y: b.y + (b.detail ? 13 : b.height / 2 + 4), "text-anchor": "middle" }, `${b.kind === "group" ? "+ " : ""}${b.label}`);
    const fitted = Math.min(24, (b.width - 6) / 0.62 / label.textContent.length); // its size if no other text is written
    for (const [name, pixels] of Object.entries({ tall: b.height, fitted, down: b.height / 2 - 13 + 0.36 * fitted })) g.style.setProperty(`--${name}`, `${pixels}px`);
    g.append(label, ...[b.detail, b.note].filter(Boolean).map((text, k) => element("text", { class: "soft", x: middle, y: b.y + 30 + 13 * k, "text-anchor": "middle" }, text)));
    const sign = classes.includes("found") || classes.includes("alone") ? "✗" : classes.includes("suspect") ? "?" : classes.includes("agreed") ? "✓" : classes.includes("kept") ? "f" : "";
    if (sign) {
      const badge = element("g", { class: "badge" }), x = b.x + b.width - 8;
      badge.append(element("rect", { x, y: b.y - 8, width: 16, height: 14, rx: 3 }), element("text", { x: x + 8, y: b.y + 3, "text-anchor": "middle" }, sign));
      g.append(badge);
    }
    if (value !== undefined) {
      g.append(element("text", { class: "value", x: middle, y: b.y + b.height - 6, "text-anchor": "middle" }, (classes.includes("failed") ? "✗ " : "") + number(value)));
      const top = b.y + (b.family ? HEAD + 2 : 3), high = b.y + b.height - 3 - top, full = high * degree(value) / LEVELS.length;
      g.append(element("rect", { class: "empty", x: b.x + 3, y: top, width: 5, height: high }));
      g.append(element("rect", { class: `l${degree(value)}`, x: b.x + 3, y: top + high - full, width: 5, height: full }));
    }
    return g;
  }

  open(b) {
    const g = element("g", { class: `box ${this.classes(b).join(" ")}`, "data-key": b.key });
    g.append(element("title", {}, b.title),
      element("rect", { class: "frame", x: b.x, y: b.y, width: b.width, height: b.height, rx: 4 }),
      element("rect", { class: "header", x: b.x, y: b.y, width: b.width, height: 21, rx: 4 }),
      element("text", { x: b.x + 7, y: b.y + 15 }, `${b.kind === "open" ? "− " : ""}${b.label}`));
    return g;
  }

  // All that is open, in sight or not, as an SVG that stands alone.
  picture(title) {
    const { width, height, boxes, lines, stubs } = this.layout;
    const root = element("svg", { xmlns: NS, id: "near", class: "subcut", role: "img", "aria-label": title, width, height, viewBox: `0 0 ${width} ${height}` });
    const rules = [...document.styleSheets].flatMap(s => [...s.cssRules].map(r => r.cssText).filter(text => s.href.endsWith("/drawing.css") || /#near \.|:root/.test(text)));
    const [frames, others] = [true, false].map(is => boxes.filter(b => FRAMES.includes(b.kind) === is));
    const drawn = lines.filter(l => l.points.length);
    root.append(element("style", {}, rules.join("\n")), ...frames.map(b => this.open(b)), ...drawn.map(l => this.line(l)), ...others.map(b => this.box(b)),
      ...drawn.filter(l => l.text).map(l => this.type(l)), ...stubs.map(s => this.stub(s)));
    return new XMLSerializer().serializeToString(root);
  }

  bound(tensors) { return tensors.some(t => this.marks.boundary.has(t)); }

  line(l) {
    const g = element("g", { class: "edge" }), [x, y] = l.points.at(-1);
    g.append(element("title", {}, l.tensors.slice(0, 12).join(", ")),
      element("path", { class: `line${this.bound(l.tensors) ? " boundary" : ""}`, d: path(l.points) }),
      element("path", { class: "tip", d: `M${x} ${y}l-3.5 -6h7z` }));
    return g;
  }

  type(l) {
    const bound = this.bound(l.tensors);
    return element("text", { class: bound ? "type boundary" : "type", x: l.x, y: l.y + 4 }, (bound ? "◆ " : "") + l.text);
  }

  stub(s) {
    const g = element("g", { class: "stub" });
    g.append(element("title", {}, s.tensors.slice(0, 12).join(", ")),
      element("text", { class: this.bound(s.tensors) ? "boundary" : "", x: s.x, y: s.y }, s.text));
    return g;
  }

  // ---------------------------------------------------------------------------------------------- moving

  // The stage has another size: all is still shown, or what was in the middle still is there.
  resized() {
    const [w, h] = this.size, [before, high] = this.seen ?? [w, h];
    this.overview = null;
    if (this.fitted) return this.fit();
    this.x += (before - w) / 2 / this.zoom;
    this.y += (high - h) / 2 / this.zoom;
    this.ask();
  }

  move(dx, dy) { this.x += dx / this.zoom; this.y += dy / this.zoom; this.fitted = false; this.ask(); }

  zoomAt(factor, px, py) {
    const zoom = Math.min(4, Math.max(this.least(), this.zoom * factor));
    this.x += px / this.zoom - px / zoom;
    this.y += py / this.zoom - py / zoom;
    this.zoom = zoom;
    this.fitted = false;
    this.ask();
  }

  least() { const [w, h] = this.size; return Math.min(1, w / this.layout.width, h / this.layout.height) * 0.9; }

  fit() {
    const [w, h] = this.size, { width, height } = this.layout;
    this.zoom = Math.min(1.2, w / width, Math.max(h / height, Math.min(1, w / width)));
    this.x = (width - w / this.zoom) / 2;
    this.y = Math.min(0, (height - h / this.zoom) / 2);
    this.fitted = true;
    this.ask();
  }

  center(box, zoom = Math.max(this.zoom, 0.7)) {
    const [w, h] = this.size;
    this.zoom = zoom;
    this.x = box.x + box.width / 2 - w / zoom / 2;
    this.y = box.y + box.height / 2 - h / zoom / 2;
    this.fitted = false;
    this.ask();
  }

  // Boxes in sight, all of them if they can still be told apart; of more, the upper ones.
  frame(boxes) {
    const [w, h] = this.size, x = Math.min(...boxes.map(b => b.x)), y = Math.min(...boxes.map(b => b.y)), edge = 30;
    const width = Math.max(...boxes.map(b => b.x + b.width)) - x, height = Math.max(...boxes.map(b => b.y + b.height)) - y;
    const zoom = Math.min(Math.max(this.zoom, 0.7), Math.max(0.35, Math.min(w / (width + 2 * edge), h / (height + 2 * edge))));
    this.center({ x, y, width, height: Math.min(height, h / zoom - 2 * edge) }, zoom);
  }

  // The box nearest to the middle of the stage, which stays there when the layout changes.
  middle() {
    const [w, h] = this.size, far = b => Math.hypot(b.x + b.width / 2 - this.x - w / this.zoom / 2, b.y + b.height / 2 - this.y - h / this.zoom / 2);
    return this.layout.boxes.filter(b => !FRAMES.includes(b.kind)).reduce((a, b) => (a && far(a) <= far(b) ? a : b), undefined)?.key;
  }

  // The box at a place of the stage, the innermost.
  at(px, py) {
    const x = this.x + px / this.zoom, y = this.y + py / this.zoom;
    return this.layout.boxes.findLast(b => x >= b.x && x <= b.x + b.width && y >= b.y && y <= b.y + (FRAMES.includes(b.kind) ? 21 : b.height));
  }

  // Is a place of the stage at the sign + or − of a box?
  atSign(box, px) { return this.x + px / this.zoom < box.x + 20; }
}
