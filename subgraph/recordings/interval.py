"""What a device recorded -> between which tensors it goes wrong: the last good ones, the first bad one, the suspects.

Insight: a recording is a profile that cannot be asked again. So no piece is certified; but between tensors that agree
and the first that does not lies the fault, whatever the device does inside. Behind the first one all may be wrong;
there the reference is fed with what the device recorded, and says whether a piece adds an error of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from subgraph.graph.graph import VALUE, Graph
from subgraph.graph.region import Region
from subgraph.recordings.compare import RunComparison, TensorRow, piece
from subgraph.trials.trial import Trials
from subgraph.verdict import Status

LINT = 3.0  # times more likely where a known trouble is
INSIDE = 8.0  # times more likely in an interval than elsewhere
WITNESS = 2.0  # times more likely in a piece that adds an error, or less in one that does not
LINTED = 10_000  # nodes up to which a model is looked through
SLOW = ("baked-shape", "denormals", "fp16-overflow", "fp16-underflow")  # rules that read weights, or try another size


@dataclass(frozen=True)
class Interval:
    """One place where a recording goes wrong.

    Attributes:
        region: all nodes between; its inputs are the last good tensors, or the model's.
        bad: the first tensors that are wrong, of one piece.
        good, wrong: recorded tensors that it starts from, by what they are.
        unseen: tensors inside that were not recorded, or cannot be told.
        first: is all before it right? Else it adds an error to one that came in.
        suspects: its nodes with their weights, the likeliest first.
        adds: does the reference, fed with what the device recorded before, give something else? None: not known.
    """

    region: Region
    bad: tuple[str, ...]
    good: tuple[str, ...]
    wrong: tuple[str, ...]
    unseen: tuple[str, ...]
    first: bool
    suspects: tuple[tuple[int, float], ...]
    adds: bool | None = None


def intervals(trials: Trials, found: RunComparison, weights: Mapping[int, float] | None = None) -> list[Interval]:
    """Where one run goes wrong, in the order of the model; pieces that share nodes are one.

    What adds an error behind a first bad tensor starts an interval of its own only where its piece is another; else it
    is a witness: of two pieces that share nodes, what both fail for lies in what they share. `weights`: of nodes, from
    elsewhere. Complexity: linear in the model for each tensor that is wrong.
    """
    cells = found.cells
    behind = _behind(trials, cells)
    wrong = [n for n, c in cells.items() if c.failing and (n not in behind or c.alone)]
    pieces = {n: _nodes(trials, cells, n) for n in wrong}
    groups = _grouped([n for n in wrong if n not in behind], pieces)
    taken = {i for names in groups for n in names for i in pieces[n]}
    later = [n for n in wrong if n in behind and _own(cells[n]) and not pieces[n] & taken]
    witnesses = {n: pieces[n] for n in wrong if n in behind and n not in later}
    made = [(names, True) for names in groups] + [(names, False) for names in _grouped(later, pieces)]
    out = [_interval(trials, cells, names, first, witnesses, weights or {}) for names, first in made]
    return [interval for interval in out if interval]


def _interval(
    trials: Trials,
    cells: Mapping[str, TensorRow],
    names: Sequence[str],
    first: bool,
    witnesses: Mapping[str, set[int]],
    weights: Mapping[int, float],
) -> Interval | None:
    graph = trials.graph
    ends = [end for n in names for end in (n, *cells[n].held.may)]
    region = piece(trials, ends, lambda n: _told(cells.get(n)))
    if region is None:
        return None
    adds = [_own(cells[n]) for n in names if cells[n].alone]
    inner = [n for i in region.nodes for n in graph.makes[i] if n not in names]
    kinds = graph.kinds(inner)
    seen = [(nodes, _own(cells[n])) for n, nodes in witnesses.items()]
    return Interval(
        region,
        tuple(names),
        tuple(n for n in region.inputs if n in cells and cells[n].good),
        tuple(n for n in region.inputs if n in cells and cells[n].failing),
        tuple(n for n in inner if kinds[n] == VALUE and n not in ends),
        first,
        _ranked(trials, region, names, seen, weights),
        any(adds) if adds else None,
    )


def _nodes(trials: Trials, cells: Mapping[str, TensorRow], name: str) -> set[int]:
    """The nodes between a tensor and those above it of which it is known what the device had."""
    region = piece(trials, [name], lambda n: _told(cells.get(n)))
    return set(region.nodes) if region else set()


def _told(cell: TensorRow | None) -> bool:
    """Is it known what the device had there?"""
    return cell is not None and (cell.good or (cell.failing and not cell.held.may))


def _own(cell: TensorRow) -> bool:
    """Does the piece before it add an error of its own?"""
    return cell.alone is not None and cell.alone.status is Status.FAIL


def _behind(trials: Trials, cells: Mapping[str, TensorRow]) -> set[str]:
    """Tensors with one that is wrong somewhere above them."""
    graph = trials.graph
    bad = {graph.maker[n] for n, c in cells.items() if c.failing and n in graph.maker}
    below = graph.descendants(j for i in bad for j in graph.successors(i))
    return {n for n in cells if n in graph.maker and graph.maker[n] in below}


def _grouped(names: Sequence[str], pieces: Mapping[str, set[int]]) -> list[list[str]]:
    """Bad tensors whose pieces share nodes: one fault may show in several branches."""
    groups: list[tuple[set[int], list[str]]] = []
    for name in names:
        same = [g for g in groups if g[0] & pieces[name]]
        groups = [g for g in groups if not g[0] & pieces[name]]
        merged = set().union(pieces[name], *(g[0] for g in same))
        groups.append((merged, [*(n for g in same for n in g[1]), name]))
    return [names for _, names in groups]


def _ranked(
    trials: Trials, region: Region, bad: Sequence[str], witnesses: Sequence[tuple[set[int], bool]],
    weights: Mapping[int, float],
) -> tuple[tuple[int, float], ...]:  # fmt: skip
    """The nodes of an interval: those above most of its bad tensors and in most pieces that add an error, and in none
    that adds none; then by what is known of them; then the nearest to the first bad tensor."""
    graph = trials.graph
    above = [graph.ancestors([graph.maker[n]]) for n in bad]
    rank = {i: k for k, i in enumerate(region.nodes)}
    weigh = {i: weights.get(i, 1.0) * sum(i in a for a in above) for i in region.nodes}
    for nodes, adds in witnesses:
        for i in nodes & weigh.keys():
            weigh[i] *= WITNESS if adds else 1 / WITNESS
    return tuple(sorted(weigh.items(), key=lambda item: (-item[1], -rank[item[0]])))


def weights_of(trials: Trials, found: Sequence[RunComparison]) -> dict[int, float]:
    """What recordings say to a search: nodes in their intervals are likelier."""
    weights: dict[int, float] = {}
    for one in found:
        for interval in intervals(trials, one):
            for i in interval.region.nodes:
                weights[i] = max(weights.get(i, 1.0), INSIDE if interval.first else INSIDE / 2)
    return weights


def troubles(graph: Graph) -> dict[int, str]:
    """What lint has against nodes of a model, of what costs no look at its weights."""
    from subgraph.inspection import lint

    found: dict[int, str] = {}
    if len(graph.nodes) > LINTED:
        return found
    for row in lint.document(lint.LintContext(graph), lint.choose_rules((), SLOW))["findings"]:
        node = row["node"]
        if row["severity"] == lint.WARNING and node and node["index"] is not None:
            found.setdefault(int(node["index"]), f"{row['rule']}: {row['reason']}")
    return found


def hints(graph: Graph, recorded: Mapping[int, float] | None = None) -> dict[int, float]:
    """How many times as likely as others a node is to blame, by lint and by a recording."""
    weights = dict(recorded or {})
    for i in troubles(graph):
        weights[i] = weights.get(i, 1.0) * LINT
    return weights
