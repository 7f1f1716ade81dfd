"""The whole network of a document as a drawing: the findings' groups open, and each error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from subgraph.drawing.layout import Drawer
from subgraph.drawing.network import Network
from subgraph.drawing.svg import Marks, draw_svg
from subgraph.iterables import drop_repeats, flatten, invert, restrict
from subgraph.reports._compared import ComparedDocument, JudgedTensor
from subgraph.reports._words import is_proven, list_indices
from subgraph.results.bisect import BisectDocument, FindingDocument
from subgraph.results.compare import IntervalDocument, IntervalFinding
from subgraph.types import frozen
from subgraph.verdict import Status

WIDTHS = (940.0, 340.0)  # of the page on a screen, and on a phone
# with the findings' groups open; without findings
MAX_BOXES = 160
MAX_FEW_BOXES = 20


@frozen
class Drawing:
    """The SVG for a page of this width, in pixels."""

    width: float
    svg: str


def draw_network(
    document: BisectDocument | ComparedDocument, rows: Sequence[JudgedTensor]
) -> list[Drawing]:
    """Return the network in each of `WIDTHS`; empty if the document does not have it.

    Nodes link to `#tensor-INDEX` if they have a row, else to `#finding-NUMBER` if they are in one.
    Complexity: as `place_in_layers`.
    """
    network = document.model.network
    if network is None:
        return []
    lengths = {len(network.names), len(network.ops), len(network.reads), len(network.makes)}
    if len(lengths) > 1 or len(network.scopes) not in {0, *lengths}:
        return []
    drawer = Drawer(network)
    findings: Sequence[FindingDocument | IntervalFinding] = ()
    if isinstance(document, (BisectDocument, IntervalDocument)):
        findings = document.findings
    nodes = range(len(network.ops))
    numbers = invert((k, list_indices(f)) for k, f in enumerate(findings, 1))
    inside = restrict(numbers, nodes)
    in_table = {row.index for row in rows}
    marks = Marks(
        found={i for i, k in inside.items() if is_proven(findings[k - 1])},
        suspects={i for i, k in inside.items() if not is_proven(findings[k - 1])},
        badges={i: str(k) for i, k in inside.items() if len(findings) > 1},
        shares=dict(flatten(map(_iter_shares, findings))),
        values={row.tensor: row.error for row in rows if row.error is not None},
        failed={row.tensor for row in rows if row.status is Status.FAIL},
        makes=dict(enumerate(map(tuple, network.makes))),
    )
    to = {i: f"#finding-{k}" for i, k in inside.items()} | {
        i: f"#tensor-{i}" for i in nodes if i in in_table
    }
    bad = {row.index for row in rows if row.status is Status.FAIL}
    keys = _choose_groups(drawer, sorted(inside) or sorted(bad & set(nodes))[:1])
    drawings = []
    for width in WIDTHS:
        layout = drawer.layout(keys, width, tall=bool(marks.values))
        links = {}
        for box in layout.boxes:
            mapped = [i for i in box.nodes if i in to]
            if mapped and box.kind != "open":
                links[box.key] = to[next((i for i in mapped if i in bad), mapped[0])]
        marks = replace(marks, links=links)
        text = draw_svg(layout, marks, document.model.file, style=False)
        drawings.append(Drawing(layout.width, text))
    return drawings


def _iter_shares(finding: FindingDocument | IntervalFinding) -> Iterator[tuple[int, float]]:
    """Yield the first node and the share of each piece in which an error accumulates."""
    if isinstance(finding, FindingDocument):
        for piece in finding.effect.contributors or ():
            yield piece.index, piece.explains or 0.0


def name_mark(finding: FindingDocument | IntervalFinding) -> str:
    """Return what a finding's nodes are: `found`, or `suspect` if nothing is proven."""
    return "found" if is_proven(finding) else "suspect"


def _choose_groups(drawer: Drawer, nodes: Sequence[int]) -> frozenset[str]:
    """Return the groups around nodes that keep the drawing small; without nodes, a few levels."""
    tree = drawer.tree
    opened: set[str] = set()
    size = len(tree.groups[tree.root].members)
    for node in nodes:
        holder = tree.find_holder(node)
        more = set(tree.list_around(holder)) - opened if holder else set()
        size += sum(len(tree.groups[tree.numbers[key]].members) - 1 for key in more)
        if size > MAX_BOXES:
            break
        opened |= more
    if nodes:
        return frozenset(opened)
    return tree.choose_open(MAX_FEW_BOXES)


def _place(places: Mapping[int, int], node: int | None) -> int | None:
    return None if node is None else places.get(node)


# ------------------------------------------------------------ the region


def draw_region(finding: FindingDocument | IntervalFinding) -> list[Drawing]:
    """Return a finding's region with its mark and the nodes around it; empty without a region."""
    neighbours = finding.place.neighbours
    if not neighbours or not neighbours.nodes:
        return []
    nodes = sorted(neighbours.nodes, key=lambda node: node.index)
    at = {node.index: k for k, node in enumerate(nodes)}
    edges = [(e.tensor, _place(at, e.source), _place(at, e.target)) for e in neighbours.edges]
    reads: list[list[str]] = [[] for _ in nodes]
    makes: list[list[str]] = [[] for _ in nodes]
    for tensor, source, target in edges:
        if source is not None and tensor not in makes[source]:
            makes[source].append(tensor)
        if target is not None:
            reads[target].append(tensor)
    network = Network(
        names=[node.label or "–" for node in nodes],
        ops=[node.op for node in nodes],
        reads=reads,
        makes=makes,
        inputs=drop_repeats(tensor for tensor, source, _ in edges if source is None),
        outputs=drop_repeats(tensor for tensor, _, target in edges if target is None),
    )
    wrong = {k for k, node in enumerate(nodes) if node.inside}
    marks = Marks(found=wrong) if is_proven(finding) else Marks(suspects=wrong)
    drawer = Drawer(network, notes={k: f"#{node.index}" for k, node in enumerate(nodes)})
    layouts = [drawer.layout(width=width) for width in WIDTHS]
    layouts = layouts[-1:] if layouts[0].width <= layouts[-1].width else layouts
    return [
        Drawing(layout.width, draw_svg(layout, marks, "The region and its neighbors", style=False))
        for layout in layouts
    ]
