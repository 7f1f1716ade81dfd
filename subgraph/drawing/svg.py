"""A layout -> SVG: boxes, lines, stubs; a region and its boundary marked; an error on every tensor.

No meaning has only a color: a group has a + or −, the region a thick frame, the boundary dashes
and a diamond, an error a bar whose height grows with it, and its number, a finding a badge at the
corner: ✗ if it is proven, ? and a dashed frame if it is a suspect. Each has a place of its
own, so that all can be seen at once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from html import escape

from subgraph.drawing.layout import Box, Layout, Line, Stub
from subgraph.drawing.network import RULES, VARIABLES
from subgraph.iterables import drop_repeats, flatten
from subgraph.text import clean, list_some
from subgraph.types import StringMap, Strings, frozen

CORNER_RADIUS = 4
LETTER_WIDTH = 6.1  # pixels of a letter of a badge
BAR_WIDTH = 5.0  # width of the bar that shows an error
HEAD_HEIGHT = 18.0  # height of the part of a node's box that has the operator
LEVELS = (0.0, 1e-6, 1e-4, 1e-2, 1.0)  # the largest error of each level; the sixth has no limit
MAX_TITLES = 12  # tensors in a title
FRAMES = ("open", "body")  # kinds of boxes with others inside, which are drawn below the lines
FONTS = (
    'ui-monospace, "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono",'
    " monospace"
)

STYLE = f"""
.subcut {{ --paper: #fff; --ink: #1d2126; --soft: #59616b; --line: #78818c; --panel: #f3f5f7;
  --group: #e9edf1;
  --region: #1f5fbf; --region-panel: #e1ecfb; --amber: #a15c00; --amber-panel: #fff0d4;
  --bad: #b3261e;
  --bad-panel: #fdeceb;
  --l1: #c7d4e8; --l2: #93b5d9; --l3: #e0a93f; --l4: #c8641b; --l5: #7d1d12;
  {VARIABLES}
  max-width: 100%; height: auto; background: var(--paper);
  font: 11px {FONTS}; }}
@media (prefers-color-scheme: dark) {{ .subcut {{ --paper: #15181c; --ink: #e5e8eb;
  --soft: #a3acb6; --line: #8a939d;
  --panel: #20262c; --group: #2a3138; --region: #7fb3ea; --region-panel: #1b304b; --amber: #f0b354;
  --amber-panel: #40300f; --bad: #ff8a80; --bad-panel: #4a1f1c;
  --l1: #39475c; --l2: #4d7cab; --l3: #c99a3a; --l4: #e07b35; --l5: #ff9c8f; }} }}
@media print {{ .subcut {{ --paper: #fff; --ink: #000; --soft: #333; --line: #555; --panel: #fff;
  --group: #f0f0f0;
  --region: #123f85; --region-panel: #e8effa; --amber: #7a4500; --amber-panel: #fff6e5;
  --bad: #8c1a13;
  --bad-panel: #fdeceb;
  --l1: #c7d4e8; --l2: #93b5d9; --l3: #e0a93f; --l4: #c8641b; --l5: #7d1d12;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }} }}
@media (forced-colors: active) {{ .subcut {{ --paper: Canvas; --ink: CanvasText; --soft: CanvasText;
  --line: CanvasText; --panel: Canvas; --group: Canvas; --region: Highlight; --region-panel: Canvas;
  --amber: CanvasText; --amber-panel: Canvas; --bad: CanvasText; --bad-panel: Canvas; }}
  .subcut .head {{ fill: Canvas !important; stroke: CanvasText; }}
  .subcut .op {{ fill: CanvasText !important; }} }}
.subcut text {{ fill: var(--ink); }} .subcut .soft, .subcut .type,
.subcut .stub text {{ fill: var(--soft); }}
.subcut .type {{ paint-order: stroke; stroke: var(--paper); stroke-width: 3px; font-size: 10px; }}
.subcut .frame {{ fill: var(--panel); stroke: var(--line); }} .subcut text.op {{ fill: #fff;
  font-weight: 600; }}
{RULES}
.subcut .group > .frame {{ fill: var(--group); stroke-width: 1.6; }}
.subcut .open > .frame, .subcut .body > .frame {{ fill: none; }}
.subcut .body > .frame {{ stroke-dasharray: 1 3; }}
.subcut .open > .header {{ fill: var(--group); stroke: none; }}
.subcut .body > .header {{ fill: none; }}
.subcut .input > .frame, .subcut .output > .frame {{ stroke-dasharray: 4 3; }}
.subcut .line {{ fill: none; stroke: var(--line); stroke-width: 1.2; }}
.subcut .tip {{ fill: var(--line); }}
.subcut .suspect > .frame {{ stroke: var(--bad); stroke-width: 2.6; stroke-dasharray: 5 3; }}
.subcut .found > .frame {{ stroke: var(--bad); stroke-width: 3; }}
.subcut .region > .frame {{ stroke: var(--region); stroke-width: 2.6; }}
.subcut .node.region > .frame, .subcut .group.region > .frame {{ fill: var(--region-panel); }}
.subcut .node.found > .frame, .subcut .group.found > .frame {{ fill: var(--bad-panel); }}
.subcut .partly > .frame {{ stroke: var(--region); stroke-width: 2; stroke-dasharray: 7 3; }}
.subcut .boundary .line, .subcut .line.boundary {{ stroke: var(--amber); stroke-width: 2.6;
  stroke-dasharray: 6 3; }}
.subcut .boundary.box > .frame {{ stroke: var(--amber); stroke-width: 2.6;
  fill: var(--amber-panel); }}
.subcut text.boundary {{ fill: var(--amber); font-weight: 700; }}
.subcut .failed .value {{ fill: var(--bad); font-weight: 700; }}
.subcut .badge text {{ fill: var(--paper); font-weight: 700; font-size: 10px; }}
.subcut .badge rect {{ fill: var(--region); }}
.subcut .found .badge rect, .subcut .suspect .badge rect {{ fill: var(--bad); }}
.subcut .value {{ font-size: 10px; }} .subcut .empty {{ fill: none; stroke: var(--line);
  stroke-width: .6; }}
.subcut .l0 {{ fill: none; }} .subcut .l1 {{ fill: var(--l1); }} .subcut .l2 {{ fill: var(--l2); }}
.subcut .l3 {{ fill: var(--l3); }}
.subcut .l4 {{ fill: var(--l4); }} .subcut .l5 {{ fill: var(--l5); }}
"""


@frozen
class Marks:
    """The marks of a drawing.

    Attributes:
        region: The indices of the nodes of the marked region.
        boundary: The tensors that enter or leave the region.
        values: Per tensor, its error: a number, "nan", "inf" or another text.
        failed: The tensors that do not agree.
        makes: Per node, the tensors that it produces; required with `values`.
        badges: Per node, a short text at the corner of its box; a closed group has those of its
            nodes.
        shares: Per node, its share of an error; a closed group has the sum.
        links: The address to which a click on a group leads, by the key of the group.
        found: The indices of the nodes of proven findings.
        suspects: The indices of the nodes of findings that are not proven.
    """

    region: Collection[int] = ()
    boundary: Collection[str] = ()
    values: Mapping[str, float | str] = field(default_factory=dict)
    failed: Collection[str] = ()
    makes: Mapping[int, Strings] = field(default_factory=dict)
    badges: Mapping[int, str] = field(default_factory=dict)
    shares: Mapping[int, float] = field(default_factory=dict)
    links: StringMap = field(default_factory=dict)
    found: Collection[int] = ()
    suspects: Collection[int] = ()


def draw_svg(
    layout: Layout, marks: Marks | None = None, title: str = "", *, style: bool = True
) -> str:
    """Return a standalone SVG element; without `style` for a page that has `STYLE` once. Names are
    escaped.

    It shrinks to a narrower page; lay out for the page's width to keep letters readable.
    """
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="subcut" width="{layout.width:g}"'
        f' height="{layout.height:g}" viewBox="0 0 {layout.width:g} {layout.height:g}" role="img"'
        f' aria-label="{_draw_text(title or "graph")}">',
        f"<style>{STYLE}</style>" if style else "",
    ]
    return "\n".join([*filter(None, parts), *_draw(layout, marks or Marks()), "</svg>"]) + "\n"


def _draw(layout: Layout, marks: Marks) -> list[str]:
    """Return the drawing's elements, in the order in which they cover each other."""
    opened = [box for box in layout.boxes if box.kind in FRAMES]
    others = [box for box in layout.boxes if box.kind not in FRAMES]
    parts = [_draw_box(box, marks) for box in opened]
    for line in layout.lines:
        bound = " boundary" if _is_boundary(line, marks) else ""
        x, y = line.points[-1]
        path = f'<path class="line{bound}" d="{format_path(line)}"/>'
        tip = f'<path class="tip" d="M{x:g} {y:g}l-3.5 -6h7z"/>'
        parts.append(f'<g class="edge">{_draw_title(line.tensors)}{path}{tip}</g>')
    parts += [_draw_box(box, marks) for box in others]
    for line in layout.lines:
        if not line.text:
            continue
        classes, sign = ("type boundary", "◆ ") if _is_boundary(line, marks) else ("type", "")
        text = f"{_draw_title(line.tensors)}{sign}{_draw_text(line.text)}"
        parts.append(f'<text class="{classes}" x="{line.x:g}" y="{line.y + 4:g}">{text}</text>')
    for stub in layout.stubs:
        bound = ' class="boundary"' if _is_boundary(stub, marks) else ""
        text = f'<text{bound} x="{stub.x:g}" y="{stub.y:g}">{_draw_text(stub.text)}</text>'
        parts.append(f'<g class="stub">{_draw_title(stub.tensors)}{text}</g>')
    return parts


def _draw_text(text: str) -> str:
    # XML cannot hold these two.
    return escape(clean(text).replace("\ufffe", "").replace("\uffff", ""))


def _draw_title(names: Iterable[str]) -> str:
    return f"<title>{_draw_text(list_some(list(names), MAX_TITLES))}</title>"


def _draw_box(box: Box, marks: Marks) -> str:
    """Return a box with its texts; a click on it leads to its link."""
    inside = sum(n in marks.region for n in box.nodes) if marks.region else 0
    classes = [box.kind, *filter(None, [box.family])]
    if inside:
        classes.append("region" if inside == len(box.nodes) else "partly")
    if box.kind in ("input", "output") and box.title in marks.boundary:
        classes.append("boundary")
    if any(tensor in marks.failed for tensor in _iter_outputs(box, marks)):
        classes.append("failed")
    if any(n in marks.found for n in box.nodes):
        classes.append("found")
    elif any(n in marks.suspects for n in box.nodes):
        classes.append("suspect")
    radius = box.height / 2 if box.kind in ("input", "output") else CORNER_RADIUS
    key = _draw_text(box.key)
    parts = [
        f'<g class="box {" ".join(classes)}" data-key="{key}">{_draw_title([box.title])}',
        _draw_rect("frame", box.x, box.y, box.width, box.height, radius),
    ]
    if box.kind in FRAMES:
        parts.append(_draw_rect("header", box.x, box.y, box.width, 21, CORNER_RADIUS))
        name = ("− " if box.kind == "open" else "") + _draw_text(box.label)
        parts.append(f'<text x="{box.x + 7:g}" y="{box.y + 15:g}">{name}</text>')
    else:
        parts += _draw_box_texts(box, marks, classes)
    text = "".join(parts) + "</g>"
    address = marks.links.get(box.key)
    if address:
        return f'<a href="{_draw_text(address)}">{text}</a>'
    return text


def _draw_box_texts(box: Box, marks: Marks, classes: Sequence[str]) -> list[str]:
    """Return the operator in its head, the name, a line on the weights, the error, and signs."""
    value = _find_worst(box, marks)
    shift = 0.0 if value is None else BAR_WIDTH / 2
    middle = f'x="{box.x + box.width / 2 + shift:g}" text-anchor="middle"'
    label = f"+ {box.label}" if box.kind == "group" else box.label
    parts = []
    kind = ""
    if box.family:
        parts.append(
            _draw_rect(f"head {box.family}", box.x, box.y, box.width, HEAD_HEIGHT, CORNER_RADIUS)
        )
        kind = ' class="op"'
    down = 13.0 if box.detail else box.height / 2 + 4
    parts.append(f'<text{kind} {middle} y="{box.y + down:g}">{_draw_text(label)}</text>')
    for k, line in enumerate(filter(None, (box.detail, box.note))):
        parts.append(
            f'<text class="soft" {middle} y="{box.y + 30 + 13 * k:g}">{_draw_text(line)}</text>'
        )
    if value is not None:
        wrong = "✗ " if "failed" in classes else ""
        place = f'{middle} y="{box.y + box.height - 6:g}"'
        parts.append(f'<text class="value" {place}>{wrong}{format_number(value)}</text>')
        top = box.y + 3 + (HEAD_HEIGHT - 1 if box.family else 0)
        height = box.y + box.height - 3 - top
        level = compute_degree(value)
        full = height * level / len(LEVELS)
        x = box.x + 3
        parts += [
            _draw_rect("empty", x, top, BAR_WIDTH, height),
            _draw_rect(f"l{level}", x, top + height - full, BAR_WIDTH, full),
        ]
    return [*parts, *_draw_badge(box, marks, classes)]


def _draw_rect(
    kind: str, x: float, y: float, width: float, height: float, radius: float = 0.0
) -> str:
    """Return a rectangle."""
    rounded = f' rx="{radius:g}"' if radius else ""
    size = f'width="{width:g}" height="{height:g}"'
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" {size}{rounded}/>'


def _draw_badge(box: Box, marks: Marks, classes: Sequence[str]) -> list[str]:
    """Return a tag at the box's upper right corner: its badges, else ✗ or ?."""
    badges = drop_repeats(marks.badges[n] for n in box.nodes if n in marks.badges)
    if shares := [marks.shares[n] for n in box.nodes if n in marks.shares]:
        badges.append(f"{100 * sum(shares):.0f} %")
    if "found" in classes:
        sign = "✗"
    elif "suspect" in classes:
        sign = "?"
    else:
        sign = ""
    badge_text = " … ".join((*badges[:1], *badges[1:][-1:]))
    if not (text := " ".join(filter(None, (sign, badge_text)))):
        return []
    wide = len(text) * LETTER_WIDTH + 6
    x = box.x + box.width - wide + 8
    y = box.y - 8
    rect = f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="14" rx="3"/>'
    return [
        f'<g class="badge">{rect}<text x="{x + 3:g}" y="{y + 11:g}">{_draw_text(text)}</text></g>'
    ]


def _find_worst(box: Box, marks: Marks) -> float | str | None:
    """Return the largest error of the tensors that the box makes; one that is not finite is larger
    than any."""
    if not marks.values:
        return None
    errors = [marks.values[t] for t in _iter_outputs(box, marks) if t in marks.values]
    return max(errors, key=_rank, default=None)


def _rank(error: float | str) -> float:
    """Return an error as a number to sort by; one that is not finite is larger than any."""
    value = float(error)
    return value if math.isfinite(value) else math.inf


def _iter_outputs(box: Box, marks: Marks) -> Iterable[str]:
    return flatten(marks.makes.get(n, ()) for n in box.nodes)


def compute_degree(error: float | str) -> int:
    """Return the level of an error, 0 (exactly 0) to 5 (above 1, or not finite).

    >>> [compute_degree(e) for e in (0.0, 1e-7, 3e-3, 7.0, "nan")]
    [0, 1, 3, 5, 5]
    """
    return sum(_rank(error) > bound for bound in LEVELS)


def format_number(error: float | str) -> str:
    """Return an error as text: `0`, `1.2e-07`, `nan`."""
    return f"{float(error):.2g}"


def _is_boundary(drawn: Line | Stub, marks: Marks) -> bool:
    return any(tensor in marks.boundary for tensor in drawn.tensors)


def format_path(line: Line) -> str:
    """Return the line as an SVG path: its odd steps are curves."""
    (x, y), *points = line.points
    steps = [f"M{x:g} {y:g}"]
    for k, (nx, ny) in enumerate(points):
        half = round((y + ny) / 2, 1)
        if x == nx:
            steps.append(f"V{ny:g}" if ny != y else "")
        else:
            steps.append(
                f"C{x:g} {half:g} {nx:g} {half:g} {nx:g} {ny:g}" if k % 2 else f"L{nx:g} {ny:g}"
            )
        x = nx
        y = ny
    return "".join(steps)
