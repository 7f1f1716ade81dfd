"""`subcut draw`: a model -> a picture of it, as SVG, PNG or an HTML page."""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from subgraph.cases.layout import RUN_JSON
from subgraph.commands import Result, inside, options, table
from subgraph.commands.options import Text, Texts, option
from subgraph.commands.resolve import Asked
from subgraph.documents import to_json
from subgraph.errors import OutputError, UnknownName, UsageError
from subgraph.graph.graph import Graph, load
from subgraph.graph.region import Region, between, of_nodes
from subgraph.results.commands import DrawnModel, DrawnPair
from subgraph.text import clean, count, nearest
from subgraph.version import install

if TYPE_CHECKING:
    from subgraph.bodies.parts import Part
    from subgraph.drawing.layout import Drawer

log = logging.getLogger("subcut")

FORMS = (".svg", ".png", ".html")
SLOW = 2_000  # boxes of one drawing that a browser scrolls only slowly
LISTED = 40  # changed pieces in the text; the document has them all
MAX = 100_000  # pixels, levels, hops
PNG_ZOOM = 2.0
PNG_MOST = 30_000.0  # pixels of a PNG's side


@dataclass(frozen=True)
class ShownOptions:
    """What is shown."""

    around: Annotated[
        Text,
        option("--around", "NODE", "Only this node and those near it.", options.complete_nodes),
    ] = None
    hops: Annotated[
        options.Number, option("--hops", "N", "How near, in tensors on the way; default 2.")
    ] = None
    depth: Annotated[
        options.Number,
        option("--depth", "N", "Levels of groups that are shown; default: about 60 boxes."),
    ] = None
    opened: Annotated[
        Texts,
        option("--open", "GROUP", "Open this group, or node with bodies, and those around it."),
    ] = None
    width: Annotated[
        options.Number,
        option("--width", "PIXELS", "Of the page that shows the drawing; default 1200."),
    ] = None


@dataclass(frozen=True)
class MarkOptions:
    """What is marked."""

    start: options.Start = None
    end: options.End = None
    values: Annotated[
        Text,
        option(
            "--values", "RUN", "Errors of tensors: from `compare --json`, or a bisection's folder."
        ),
    ] = None


@options.with_option_groups()
def draw(
    *,
    model: options.ModelArgument = None,
    weights: options.Weights = None,
    trust: options.Trust = False,
    output: Annotated[
        Text,
        option(
            "--output -o", "FILE", "A .svg, .png or .html file; default: SVG to standard output."
        ),
    ] = None,
    shown: ShownOptions,
    marked: MarkOptions,
    beside: Annotated[
        Text, option("--beside", "MODEL2", "Draw this model as well, and number what differs.")
    ] = None,
) -> Result:
    """Draw a model, a part of it, or two models beside each other.

    Groups are the scopes in the nodes' names, else pieces between tensors that are alone in
    crossing a cut. With --start and --end the region is blue with thick frames, its boundary amber
    and dashed. With --beside, what corresponds stands at the same height; a piece that the two
    models compute by other operators has the same number in both, and one that only quantizers tell
    apart a q. --around loop1/body draws that body.

    Examples:
      subcut draw model.onnx -o model.svg
      subcut draw model.onnx -o near.svg --around stem/pool --hops 3
      subcut draw model.onnx -o wrong.html --values subcut_out/bisect-wrong.py
      subcut draw model.onnx -o fused.svg --beside optimized.onnx
    """
    form = Path(output).suffix.lower() if output else ".svg"
    if form not in FORMS:
        raise UsageError(
            f"{output}: a drawing is {', '.join(FORMS)}",
            "subcut draw MODEL -o model.svg",
            code="option.unknown-value",
        )
    for name, value in (("--width", shown.width), ("--depth", shown.depth), ("--hops", shown.hops)):
        if value is not None and not 0 < value <= MAX:
            raise UsageError(
                f"{name} {value}: expected a number from 1 to {MAX}", code="option.out-of-range"
            )
    asked = Asked(model=model, weights=weights, result=options.ResultOptions(trust=trust))
    graph = load(asked.model_path)
    if not beside:
        drawn = _inside(graph, shown, marked, form)
    elif form == ".html" or marked != MarkOptions() or shown.around:
        raise UsageError(
            "--beside makes .svg or .png, and goes only with --depth, --open and --width",
            "leave the others out",
            code="option.conflict",
        )
    else:
        drawn = _two(graph, load(Asked(asked.settings, beside).model_path), shown)
    document = replace(drawn.document, file=output)
    if output is None:
        inline = replace(document, svg=drawn.text)
        return Result(to_json(inline), drawn.text.rstrip("\n"))
    path = Path(output)
    if form == ".png":
        _write_bytes(path, _png(drawn.text))
    else:
        table.write(path, drawn.text, "choose another -o FILE")
    return Result(to_json(document), "\n".join([*drawn.lines, clean(str(path))]))


@dataclass(frozen=True)
class _Drawn:
    """The file's text, the command's lines and its document."""

    text: str
    lines: list[str]
    document: DrawnModel | DrawnPair


# ------------------------------------------------------------ one model


def _inside(graph: Graph, shown: ShownOptions, marked: MarkOptions, form: str) -> _Drawn:
    """Drawn is the graph that the nodes are in that the options name, which may be a body."""
    from subgraph.bodies.parts import Part, parts
    from subgraph.runtime.inputs import Feeding

    around = [shown.around] if shown.around else []
    start = marked.start or []
    named = (*around, *start, *(marked.end or ()))
    with inside.opened(graph, named, Feeding(), None, Path(tempfile.gettempdir())) as (
        there,
        _,
        names,
    ):
        if there is not graph:
            begin = len(around)
            last = len(around) + len(start)
            shown = replace(shown, around="".join(names[:begin]) or None)
            marked = replace(
                marked, start=[*filter(None, names[begin:last])], end=[*filter(None, names[last:])]
            )
        return _one(parts(there) if there is graph else Part(there), shown, marked, form)


def _one(part: Part, shown: ShownOptions, marked: MarkOptions, form: str) -> _Drawn:
    from subgraph.drawing.layout import WIDTH, Drawer
    from subgraph.drawing.page import page
    from subgraph.drawing.svg import FRAMES, Marks, svg
    from subgraph.inspection.network import inner_networks, labeled
    from subgraph.inspection.weights import small_constants

    graph = part.graph
    if shown.hops and not shown.around:
        raise UsageError(
            "--hops without --around",
            "subcut draw MODEL --around NODE --hops 2",
            code="option.requires",
        )
    whole = labeled(graph)
    kept: Sequence[int] = range(len(graph.nodes))
    if shown.around:
        middle = graph.select(shown.around).nodes
        kept = sorted(set().union(*(whole.around(i, shown.hops or 2) for i in middle)))
    drawer = (
        Drawer(whole.part(kept))
        if shown.around
        else Drawer(whole, inner_networks(part), small_constants(graph))
    )
    values, failed, found = (
        _values(Path(marked.values), graph) if marked.values else ({}, set(), {})
    )
    region = _region(graph, marked, sorted(found))
    inside = region.nodes if region else ()
    boundary = (*region.inputs, *region.shapes, *region.outputs) if region else ()
    at = {i: k for k, i in enumerate(kept)}
    wholly = {at[i] for i in whole.boxed(inside) if i in at} | (
        {*part.below(inside)} if drawer.bodies else set()
    )
    marks = Marks(
        region=frozenset(wholly if marked.start or marked.end else ()),
        found=frozenset(at[i] for i, proven in found.items() if i in at and proven),
        suspects=frozenset(at[i] for i, proven in found.items() if i in at and not proven),
        boundary=frozenset(boundary),
        values=values,
        failed=failed,
        makes={k: graph.makes[i] for i, k in at.items()},
    )
    width = float(shown.width or WIDTH)
    names = {p.graph.label(i): f"#{p.first + i}" for p in part.all() for i in p.inside}
    keys = _open(drawer, shown, [at[i] for i in inside if i in at], names)
    layout = drawer.layout(keys, width, tall=bool(values))
    boxes = sum(box.kind not in FRAMES for box in layout.boxes)
    if boxes > SLOW:
        log.warning(
            "%d boxes are slow to look at: `subcut view` shows as many at ease, --depth fewer",
            boxes,
        )
    lines = [
        f"{count(len(kept), 'node')} in {boxes} box{'es' * (boxes != 1)}",
        *(_told(region) if region else ()),
    ]
    if marked.values:
        lines.append(f"errors of {count(len(values), 'tensor')}, {len(failed)} wrong")
    name = graph.path.name
    text = (
        page(drawer, marks, name, keys, width, lines)
        if form == ".html"
        else svg(layout, marks, name)
    )
    sides = {"inputs": region.inputs + region.shapes, "outputs": region.outputs} if region else None
    return _Drawn(text, lines, DrawnModel(nodes=len(kept), region=sides, layout=layout.to_json()))


def _told(region: Region) -> list[str]:
    """What a region has, and what enters and leaves it."""
    inputs = (*region.inputs, *region.shapes)
    parts = (
        count(len(region.nodes), "node"),
        count(len(inputs), "input"),
        count(len(region.outputs), "output"),
    )
    return [
        f"region  {' · '.join(parts)}",
        *(f"  in   {clean(name)}" for name in inputs),
        *(f"  out  {clean(name)}" for name in region.outputs),
    ]


def _open(
    drawer: Drawer, shown: ShownOptions, region: Sequence[int], names: Mapping[str, str]
) -> frozenset[str]:
    """Keys of the groups and nodes that the options open; if none does, those that give a readable
    picture of a region.

    `names`: of nodes with bodies → their keys.
    """
    tree = drawer.tree
    if shown.opened:
        keys = set(tree.opened(shown.depth or 1))
        openable = drawer.openable
        for key in shown.opened:
            word = key.strip("/")
            found = word if word in openable else names.get(word, "")
            if not found:
                raise UnknownName(
                    f"no group '{key}'",
                    nearest=nearest(word, [*openable, *names]),
                    code="group.unknown",
                )
            while found:
                keys.add(found)
                found = openable[found]
        return frozenset(keys)
    if shown.depth:
        return tree.opened(shown.depth)
    return frozenset(tree.numbers) if shown.around else drawer.shown() | tree.partly(region)


def _region(graph: Graph, marked: MarkOptions, wrong: Sequence[int]) -> Region | None:
    """Between start and end; else what a bisection found."""
    if marked.start or marked.end:
        return between(graph, tuple(marked.start or ()), tuple(marked.end or ()))
    return of_nodes(graph, wrong, keep_random=True) if wrong else None


def _values(path: Path, graph: Graph) -> tuple[dict[str, float], set[str], dict[int, bool]]:
    """Out of a comparison or bisection: errors by tensor, the tensors that do not agree, and the
    nodes of findings with whether they are proven.

    Raises:
        InputError, UsageError: the file cannot be read, is of another schema, or tells of no tensor
            of this model.
    """
    from subgraph import results
    from subgraph.reports import is_proven, judged_tensors
    from subgraph.results.bisect import BisectDocument, FindingDocument
    from subgraph.results.plan import PlanDocument
    from subgraph.results.recorded import IntervalDocument, IntervalFinding
    from subgraph.results.sweep import SweepDocument
    from subgraph.verdict import Status

    hint = "subcut compare MODEL -c CANDIDATE --json > run.json"
    path = path / RUN_JSON if path.is_dir() else path
    found = results.read(path, hint)
    if isinstance(found, (PlanDocument, SweepDocument)):
        raise UsageError(
            f"{path} has no error of a tensor of {graph.path.name}", hint, code="draw.no-errors"
        )
    rows = [row for row in judged_tensors(found) if row.tensor in graph.maker]
    values = {row.tensor: row.error for row in rows if row.error is not None}
    failed = {row.tensor for row in rows if row.status is Status.FAIL}
    known: Sequence[FindingDocument | IntervalFinding] = ()
    if isinstance(found, (BisectDocument, IntervalDocument)):
        known = found.findings
    findings = sorted(known, key=is_proven)
    wrong = {i: is_proven(finding) for finding in findings for i in finding.indices}
    if not (values or failed or wrong):
        raise UsageError(
            f"{path} has no error of a tensor of {graph.path.name}", hint, code="draw.no-errors"
        )
    if any(not 0 <= i < len(graph.nodes) for i in wrong):
        raise UsageError(
            f"{path} tells of nodes that {graph.path.name} does not have",
            "draw the model that was bisected",
            code="result.other-model",
        )
    return values, failed, wrong


# ------------------------------------------------------------ two models


def _two(one: Graph, other: Graph, shown: ShownOptions) -> _Drawn:
    from subgraph.drawing.layout import WIDTH, Drawer
    from subgraph.drawing.pair import matched, pieces
    from subgraph.drawing.same_height import same_height
    from subgraph.drawing.svg import Marks, beside
    from subgraph.inspection.network import network

    networks = network(one), network(other)
    pairs = matched(*networks)
    found = pieces(*networks, pairs)
    changed = [piece for piece in found if piece.changed and not piece.quantized]
    quantized = [piece for piece in found if piece.quantized]
    drawers = Drawer(networks[0]), Drawer(networks[1])
    first, second = (
        drawer.layout(keys, (shown.width or WIDTH) / 2)
        for drawer, keys in zip(drawers, _together(*drawers, shown), strict=True)
    )
    layouts = same_height((first, second), networks, pairs)
    drawings = []
    for graph, layout, side in zip((one, other), layouts, (0, 1), strict=True):
        badges = {i: "q" for piece in quantized for i in (piece.nodes, piece.others)[side]}
        badges |= {
            i: f"≠{k}"
            for k, piece in enumerate(changed, 1)
            for i in (piece.nodes, piece.others)[side]
        }
        drawings.append(
            (f"{graph.path.name}: {count(len(graph.nodes), 'node')}", layout, Marks(badges=badges))
        )
    rows = [
        {
            "tensor": piece.tensor,
            "other": piece.other,
            "nodes": [one.label(i) for i in piece.nodes],
            "others": [other.label(i) for i in piece.others],
            "ops": [one.ops[i] for i in piece.nodes],
            "other_ops": [other.ops[i] for i in piece.others],
        }
        for piece in changed
    ]
    lines = [
        f"{count(len(pairs), 'tensor')} matched, {count(len(changed), 'piece')} computed by other"
        " operators"
    ]
    if quantized:
        lines.append(f"  q   {count(len(quantized), 'piece')} the same, quantized")
    for number, row in enumerate(rows[:LISTED], 1):
        lines.append(
            f"  ≠{number}  {clean(str(row['tensor']))}: {_ops(row['ops'])} →"
            f" {_ops(row['other_ops'])}"
        )
    if len(rows) > LISTED:
        lines.append(f"  and {len(rows) - LISTED} more (--json has all)")
    document = DrawnPair(
        nodes=[len(one.nodes), len(other.nodes)],
        matched=len(pairs),
        changed=rows,
        quantized=[[piece.tensor, piece.other] for piece in quantized],
    )
    return _Drawn(beside(drawings), lines, document)


def _together(
    one: Drawer, other: Drawer, shown: ShownOptions
) -> tuple[frozenset[str], frozenset[str]]:
    """Keys of the groups to open in both: a group that both have is open in both or in none."""
    if shown.opened:
        trees = one.tree, other.tree
        for key in shown.opened:
            if not any(key.strip("/") in tree.numbers for tree in trees):
                raise UnknownName(
                    f"no group '{key}'",
                    nearest=nearest(key.strip("/"), filter(None, trees[0].numbers)),
                    code="group.unknown",
                )
        mine, theirs = (
            tree.opened(shown.depth or 1).union(
                *(
                    tree.around(key.strip("/"))
                    for key in shown.opened
                    if key.strip("/") in tree.numbers
                )
            )
            for tree in trees
        )
        return mine, theirs
    if shown.depth:
        return one.tree.opened(shown.depth), other.tree.opened(shown.depth)
    open_here = one.shown()
    open_there = other.shown()
    return open_here, (open_here & other.tree.numbers.keys()) | (
        open_there - one.tree.numbers.keys()
    )


def _ops(names: Sequence[str]) -> str:
    """`2 Conv, Relu`; nothing at all where the tensor comes from elsewhere."""
    counted = Counter(names)
    return (
        ", ".join(f"{n} {clean(op)}" if n > 1 else clean(op) for op, n in counted.items())
        or "nothing"
    )


# ------------------------------------------------------------ PNG


def _png(text: str) -> bytes:
    """Two pixels per pixel of the drawing, fewer where it is very large; on white.

    Raises:
        BackendError: the library is not installed.
    """
    from subgraph.drawing.svg import flattened

    try:
        import resvg_py
    except ImportError as e:
        raise UsageError(
            "a .png needs the library resvg-py",
            f"{install('png')}, or write a .svg",
            code="package.not-installed",
        ) from e
    text, longest = flattened(text)
    return bytes(
        resvg_py.svg_to_bytes(
            svg_string=text, zoom=min(PNG_ZOOM, PNG_MOST / longest), background="white"
        )
    )


def _write_bytes(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as e:
        raise OutputError(
            f"cannot write {path}: {e.strerror or e}",
            "choose another -o FILE",
            code="output.unwritable",
        ) from e
