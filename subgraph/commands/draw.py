"""`subcut draw`: a model -> a picture of it, as SVG."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from subgraph.cases.layout import RUN_JSON
from subgraph.commands import Result, open_body, options, split_names, table
from subgraph.commands.options import Text, Texts, option
from subgraph.commands.resolve import ResolvedOptions
from subgraph.errors import UnknownName, UsageError
from subgraph.graph.graph import Graph, load
from subgraph.graph.region import Region, build_region, find_region
from subgraph.graph.selection import select
from subgraph.log import log
from subgraph.results.commands import DrawnModel
from subgraph.text import clean, count, find_nearest
from subgraph.types import StringMap, frozen

if TYPE_CHECKING:
    from subgraph.bodies.model import Part
    from subgraph.drawing.layout import Drawer


MIN_SLOW_BOXES = 2_000  # boxes of one drawing that a browser scrolls only slowly
LIMITS = (1, 100_000)  # pixels, levels, hops


@frozen
class ShownOptions:
    """The part of the model that is shown."""

    around: Text = option(
        "--around", "NODE", "Only this node and those near it.", options.complete_nodes
    )
    hops: options.Number = option(
        "--hops", "N", "How near, in tensors on the way; default 2.", limits=LIMITS
    )
    depth: options.Number = option(
        "--depth", "N", "Levels of groups that are shown; default: about 60 boxes.", limits=LIMITS
    )
    opened: Texts = option(
        "--open", "GROUP", "Open this group, or node with bodies, and those around it."
    )
    width: options.Number = option(
        "--width", "PIXELS", "Of the page that shows the drawing; default 1200.", limits=LIMITS
    )


@frozen
class MarkOptions:
    """The nodes that are marked."""

    start: options.Start = None
    end: options.End = None
    values: Text = option(
        "--values", "RUN", "Errors of tensors: from `compare --json`, or a bisection's folder."
    )


@options.add_option_groups()
def draw(
    *,
    model: options.ModelArgument = None,
    weights: options.Weights = None,
    trust: options.Trust = False,
    output: Text = option("--output -o", "FILE", "The .svg file; default: standard output."),
    shown: ShownOptions,
    marked: MarkOptions,
) -> Result:
    """Draw a model or a part of it.

    Groups are the scopes in the nodes' names, else pieces between tensors that are alone in
    crossing a cut. With --start and --end the region is blue with thick frames, its boundary amber
    and dashed. --around loop1/body draws that body.

    Examples:
      subcut draw model.onnx -o model.svg
      subcut draw model.onnx -o near.svg --around stem/pool --hops 3
      subcut draw model.onnx -o wrong.svg --values subcut_out/bisect-wrong.py
    """
    if output and Path(output).suffix.lower() != ".svg":
        raise UsageError(
            f"{output}: a drawing is a .svg",
            "subcut draw MODEL -o model.svg; a browser shows it, and prints it in other forms",
            code="option.unknown-value",
        )
    resolved = ResolvedOptions(
        model=model, weights=weights, result=options.ResultOptions(trust=trust)
    )
    drawn = _draw_inside(load(resolved.model_path), shown, marked)
    document = replace(drawn.document, file=output)
    if output is None:
        return Result(replace(document, svg=drawn.text), drawn.text.rstrip("\n"))
    path = Path(output)
    table.write(path, drawn.text, "choose another -o FILE")
    return Result(document, "\n".join([*drawn.lines, clean(str(path))]))


@frozen
class _Drawn:
    """The file's text, the command's lines and its document."""

    text: str
    lines: list[str]
    document: DrawnModel


# ------------------------------------------------------------ one model


def _draw_inside(graph: Graph, shown: ShownOptions, marked: MarkOptions) -> _Drawn:
    """Draw the graph of the nodes that the options name, which can be a body."""
    from subgraph.bodies.model import Part, build_part_tree
    from subgraph.runtime.inputs import Feeding

    around = [shown.around] if shown.around else []
    start = marked.start or []
    named = (*around, *start, *(marked.end or ()))
    with open_body(graph, named, Feeding(), None, Path(tempfile.gettempdir())) as (
        there,
        _,
        names,
    ):
        if there is not graph:
            middle, first, last = split_names(names, len(around), len(start))
            shown = replace(shown, around="".join(middle) or None)
            marked = replace(marked, start=list(first), end=list(last))
        return _draw(build_part_tree(there) if there is graph else Part(there), shown, marked)


def _draw(part: Part, shown: ShownOptions, marked: MarkOptions) -> _Drawn:
    from subgraph.drawing.layout import WIDTH, Drawer
    from subgraph.drawing.svg import FRAMES, Marks, draw_svg
    from subgraph.inspection.drawn_network import (
        format_weight_notes,
        make_inner_networks,
        make_labeled_network,
    )

    graph = part.graph
    if shown.hops and not shown.around:
        raise UsageError(
            "--hops without --around",
            "subcut draw MODEL --around NODE --hops 2",
            code="option.requires",
        )
    whole = make_labeled_network(graph)
    kept: Sequence[int] = range(len(graph.nodes))
    if shown.around:
        middle = select(graph, shown.around).nodes
        kept = sorted(set().union(*(whole.find_near(i, shown.hops or 2) for i in middle)))
    if shown.around:
        drawer = Drawer(whole.select_part(kept))
    else:
        drawer = Drawer(whole, make_inner_networks(part), format_weight_notes(graph))
    values, failed, found = (
        _read_values(Path(marked.values), graph) if marked.values else ({}, set(), {})
    )
    region = _find_region(graph, marked, sorted(found))
    inside = region.nodes if region else ()
    boundary = region.boundary if region else ()
    at = {i: k for k, i in enumerate(kept)}
    wholly = {at[i] for i in whole.add_constants(inside) if i in at} | (
        {*part.iter_inner(inside)} if drawer.bodies else set()
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
    names: dict[str, str] = {}
    for p in part.all():
        names |= {p.graph.label(i): f"#{p.first + i}" for i in p.inside}
    keys = _open(drawer, shown, [at[i] for i in inside if i in at], names)
    layout = drawer.layout(keys, width, tall=bool(values))
    boxes = sum(box.kind not in FRAMES for box in layout.boxes)
    if boxes > MIN_SLOW_BOXES:
        log.warning(
            "%d boxes are slow to look at: `subcut view` shows as many at ease, --depth fewer",
            boxes,
        )
    lines = [f"{count(kept, 'node')} in {boxes} box{'es' * (boxes != 1)}"]
    if region:
        parts = (region.nodes, "node"), (region.entering, "input"), (region.outputs, "output")
        lines.append(f"region  {' · '.join(count(*part) for part in parts)}")
        lines += [f"  in   {clean(name)}" for name in region.entering]
        lines += [f"  out  {clean(name)}" for name in region.outputs]
    if marked.values:
        lines.append(f"errors of {count(values, 'tensor')}, {len(failed)} wrong")
    text = draw_svg(layout, marks, graph.path.name)
    sides = {"inputs": region.inputs + region.shapes, "outputs": region.outputs} if region else None
    return _Drawn(text, lines, DrawnModel(nodes=len(kept), region=sides, layout=layout.to_json()))


def _open(
    drawer: Drawer, shown: ShownOptions, region: Sequence[int], names: StringMap
) -> frozenset[str]:
    """Return the keys of the groups and nodes that the options open.

    If the options open none, those that give a readable picture of a region.

    `names`: of nodes with bodies → their keys.
    """
    tree = drawer.tree
    if shown.opened:
        keys = set(tree.open_levels(shown.depth or 1))
        openable = drawer.openable
        for key in shown.opened:
            word = key.strip("/")
            found = word if word in openable else names.get(word, "")
            if not found:
                raise UnknownName(
                    f"no group '{key}'",
                    nearest=find_nearest(word, [*openable, *names]),
                    code="group.unknown",
                )
            while found:
                keys.add(found)
                found = openable[found]
        return frozenset(keys)
    if shown.depth:
        return tree.open_levels(shown.depth)
    if shown.around:
        return frozenset(tree.numbers)
    return drawer.choose_open() | tree.find_partial(region)


def _find_region(graph: Graph, marked: MarkOptions, wrong: Sequence[int]) -> Region | None:
    """Find the region between start and end; without these, the one that a bisection found."""
    if marked.start or marked.end:
        return find_region(graph, tuple(marked.start or ()), tuple(marked.end or ()))
    if wrong:
        return build_region(graph, wrong, keep_random=True)
    return None


def _read_values(path: Path, graph: Graph) -> tuple[dict[str, float], set[str], dict[int, bool]]:
    """Read a comparison or bisection: errors by tensor, the tensors that do not agree, and the
    nodes of findings with whether they are proven.

    Raises:
        InputError, UsageError: The file cannot be read, is of another schema, or has no tensor of
            this model.
    """
    from subgraph import results
    from subgraph.reports import is_proven, list_judged_tensors
    from subgraph.results.bisect import BisectDocument, FindingDocument
    from subgraph.results.compare import IntervalDocument, IntervalFinding
    from subgraph.results.plan import PlanDocument
    from subgraph.results.sweep import SweepDocument
    from subgraph.verdict import Status

    hint = "subcut compare MODEL -c CANDIDATE --json > run.json"
    path = path / RUN_JSON if path.is_dir() else path
    found = results.read(path, hint)
    rows = []
    if not isinstance(found, (PlanDocument, SweepDocument)):
        rows = [row for row in list_judged_tensors(found) if row.tensor in graph.maker]
    values = {row.tensor: row.error for row in rows if row.error is not None}
    failed = {row.tensor for row in rows if row.status is Status.FAIL}
    known: Sequence[FindingDocument | IntervalFinding] = ()
    if isinstance(found, (BisectDocument, IntervalDocument)):
        known = found.findings
    wrong: dict[int, bool] = {}
    for finding in sorted(known, key=is_proven):
        wrong |= dict.fromkeys(finding.indices, is_proven(finding))
    if not (values or failed or wrong):
        raise UsageError(
            f"{path} has no error of a tensor of {graph.path.name}", hint, code="draw.no-errors"
        )
    if any(not 0 <= i < len(graph.nodes) for i in wrong):
        raise UsageError(
            f"{path} has nodes that {graph.path.name} lacks",
            "draw the model that was bisected",
            code="result.other-model",
        )
    return values, failed, wrong
