"""A recorded run -> the place of its fault: last good and first bad tensors, the nodes between.

A recording cannot be queried again, so no region is certified. But the fault is between tensors
that agree and the first that does not, whatever the device does inside. Downstream of the first bad
tensor every tensor may be wrong; there the isolated judgement shows whether a region adds an error.

Several recordings are in the order in which the model was changed: as floats, quantized, on the
board. Each is judged against the reference, and against the nearest recording before it that holds
the tensor. One that is wrong as the one before it has inherited the fault; one that is wrong if
the one before it is right has departed from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat, starmap

from subgraph.errors import InputError
from subgraph.graph import region as regions
from subgraph.graph.graph import Graph
from subgraph.graph.kinds import VALUE, find_kinds
from subgraph.graph.region import Region
from subgraph.graph.walks import find_ancestors, find_descendants, iter_successors
from subgraph.inspection import lint
from subgraph.iterables import flatten
from subgraph.recordings.compare_recording import ALL, Choice, compare_run
from subgraph.recordings.device_runs import RecordedRun
from subgraph.recordings.run_comparison import RunComparison, TensorRow
from subgraph.reports import join_with_and
from subgraph.results.compare import Departure
from subgraph.trials.judge import Judge
from subgraph.types import StringMap, Strings, frozen

# How many times likelier than others a node is to blame:
LINT_WEIGHT = 3.0  # with a known trouble
INTERVAL_WEIGHT = 8.0  # in an interval of a recording
WITNESS_WEIGHT = 2.0  # in a region that adds an error; in one that does not, its inverse
MAX_LINTED = 10_000  # nodes of a model that is searched for known troubles
# Lint rules that read weights, or try another size.
SLOW = ("baked-shape", "denormals", "overflow", "underflow")


@frozen
class Interval:
    """One place of a fault in a recording.

    Attributes:
        region: the nodes between; its inputs are the last good tensors, or the model's.
        first_bad: the first tensors that are wrong; their regions share nodes.
        last_good: the recorded tensors that enter it and agree.
        wrong_before: the recorded tensors that enter it and do not agree.
        unseen: tensors inside that were not recorded, or whose match is uncertain.
        first: whether everything before it is right. Else it adds an error to an inherited one.
        suspects: its nodes with their weights, the likeliest first.
        adds_error: whether the isolated judgement of a first bad tensor fails. None if unknown.
    """

    region: Region
    first_bad: Strings
    last_good: Strings
    wrong_before: Strings
    unseen: Strings
    first: bool
    suspects: tuple[tuple[int, float], ...]
    adds_error: bool | None = None


def find_intervals(
    comparison: RunComparison, weights: Mapping[int, float] | None = None
) -> list[Interval]:
    """Find the faults of one run, in the order of the model; shared nodes belong to one interval.

    A tensor that adds an error downstream of a first bad one gets a separate interval only if its
    region shares no nodes with those before. Else it is a witness: if two regions that share nodes
    both fail, the shared nodes are suspect. Complexity: linear in the model for each tensor that is
    wrong.

    Args:
        comparison: The run.
        weights: Weights of nodes from other sources. None without any.
    """
    graph = comparison.judge.model.graph
    rows = comparison.rows
    failing = [n for n, row in rows.items() if row.is_error]
    bad = set(graph.producers(failing))
    below = find_descendants(graph, flatten(iter_successors(graph, i) for i in bad))
    behind = {n for n in rows if graph.maker.get(n) in below}
    wrong = [n for n in failing if n not in behind or (rows[n].alone and rows[n].is_certain)]
    certain = {n for n, row in rows.items() if row.is_certain}
    above = {n: regions.find_upstream_until(graph, [n], certain.__contains__) for n in wrong}
    inside = {n: set(region.nodes) if region else set() for n, region in above.items()}
    groups = _group_by_region([n for n in wrong if n not in behind], inside)
    taken = set(flatten(inside[n] for n in flatten(groups)))
    later = [n for n in wrong if n in behind and _adds_error(rows[n]) and not inside[n] & taken]
    witnesses = [(inside[n], _adds_error(rows[n])) for n in wrong if n in behind and n not in later]
    further = _group_by_region(later, inside)
    ends = chain(zip(groups, repeat(True)), zip(further, repeat(False)))
    make = partial(_make_interval, graph, rows, certain, witnesses, weights or {})
    return [*filter(None, starmap(make, ends))]


def _make_interval(
    graph: Graph,
    rows: Mapping[str, TensorRow],
    certain: Collection[str],
    witnesses: Sequence[tuple[set[int], bool]],
    weights: Mapping[int, float],
    names: Sequence[str],
    first: bool,
) -> Interval | None:
    ends = list(flatten((n, *rows[n].match.others.possible) for n in names))
    region = regions.find_upstream_until(graph, ends, certain.__contains__)
    if region is None:
        return None
    adds_error = [_adds_error(rows[n]) for n in names if rows[n].alone]
    inner = [n for n in graph.iter_outputs(region.nodes) if n not in names]
    kinds = find_kinds(graph, inner)
    # A node weighs more the more bad tensors depend on it, and in regions that add an error.
    above = [find_ancestors(graph, [graph.maker[n]]) for n in names]
    # Of equal nodes, the nearest to the end of the region is first.
    nearest_first = reversed(region.nodes)
    total = {i: weights.get(i, 1.0) * sum(i in a for a in above) for i in nearest_first}
    for nodes, is_failing in witnesses:
        for i in nodes & total.keys():
            total[i] *= WITNESS_WEIGHT if is_failing else 1 / WITNESS_WEIGHT
    suspects = sorted(total.items(), key=lambda item: -item[1])
    return Interval(
        region,
        tuple(names),
        tuple(n for n in region.inputs if n in rows and rows[n].agreeing),
        tuple(n for n in region.inputs if n in rows and rows[n].failing),
        tuple(n for n in inner if kinds[n] == VALUE and n not in ends),
        first,
        tuple(suspects),
        any(adds_error) if adds_error else None,
    )


def _adds_error(row: TensorRow) -> bool:
    return row.alone is not None and row.alone.fails


def _group_by_region(names: Sequence[str], regions: Mapping[str, set[int]]) -> list[list[str]]:
    """Group bad tensors whose regions share nodes: one fault may show in several branches."""
    groups: list[tuple[set[int], list[str]]] = []
    for name in names:
        touching = [g for g in groups if g[0] & regions[name]]
        groups = [g for g in groups if not g[0] & regions[name]]
        merged = set().union(regions[name], *(g[0] for g in touching))
        groups.append((merged, [*flatten(g[1] for g in touching), name]))
    return [names for _, names in groups]


def weigh_intervals(comparisons: Sequence[RunComparison]) -> dict[int, float]:
    """Return the weights of nodes in the intervals of some runs, for a search."""
    weights: dict[int, float] = {}
    for comparison in comparisons:
        for interval in find_intervals(comparison):
            weight = INTERVAL_WEIGHT if interval.first else INTERVAL_WEIGHT / 2
            weights |= {i: max(weights.get(i, 1.0), weight) for i in interval.region.nodes}
    return weights


def find_known_troubles(graph: Graph) -> dict[int, str]:
    """Find the first warning of lint for each node, without rules that read weights."""
    troubles: dict[int, str] = {}
    if len(graph.nodes) > MAX_LINTED:
        return troubles
    for finding in lint.make_document(
        lint.LintContext(graph), lint.choose_rules((), SLOW)
    ).findings:
        node = finding.node
        if finding.severity == lint.WARNING and node and node.index is not None:
            troubles.setdefault(node.index, f"{finding.rule}: {finding.reason}")
    return troubles


def weigh_nodes(
    graph: Graph, recorded: Mapping[int, float] | None = None, known: Iterable[int] = ()
) -> dict[int, float]:
    """Return how many times likelier than others a node is to blame, by lint and `weigh_intervals`.

    `known`: nodes like those that the runtime is known to compute wrongly.
    """
    weights = dict(recorded or {})
    for i in {*find_known_troubles(graph), *known}:
        weights[i] = weights.get(i, 1.0) * LINT_WEIGHT
    return weights


# ------------------------------------------------------------ several recordings

REFERENCE = "reference"
MIN_DISTANCE_RATIO = 5.0  # times: a recording from the one before, than that one from the reference
MIN_SHOWN_ERROR = 1e-4  # of the scale: the error of one whose precision is reduced


def compare_runs(
    judge: Judge, runs: Sequence[RecordedRun], choice: Choice = ALL
) -> list[RunComparison]:
    """Compare each run, also with those before it; one of several without a match is missing.

    Raises:
        InputError: no run holds a tensor of this model. ModelError: the reference cannot give the
            values.
    """
    compared: list[RunComparison] = []
    errors = []
    for run in runs:
        try:
            found = compare_run(judge, run, replace(choice, earlier=compared))
        except InputError as e:
            errors.append(e)
            found = RunComparison(judge, RecordedRun(run.name, missing=e.what), (), {})
        compared = [*compared, found]
    if errors and all(c.run.missing for c in compared):
        raise errors[0]
    return compared


def find_departures(comparisons: Sequence[RunComparison]) -> list[Departure]:
    """Find the first tensor of each recording that adds an error to the earlier recordings."""
    found = []
    for k, last in enumerate(comparisons):
        graph = last.judge.model.graph
        names = [c.run.name for c in comparisons[:k]]
        for name in last.failing:
            row = last.rows[name]
            if row.rounded:
                continue
            if row.beside is not None and not row.beside.fails:
                known = next(c for c in comparisons[:k] if c.run.name == row.before)
                if not known.rows[name].agreeing:
                    continue  # inherited; or, if rounding hides it, perhaps inherited
            skipped = names[names.index(row.before) + 1 :] if row.before else names
            i = graph.maker[name]
            before = row.before or REFERENCE
            op = graph.ops[i]
            found.append(Departure(last.run.name, before, name, graph.label(i), op, skipped))
            break
    return found


def choose_run_to_narrow(comparisons: Sequence[RunComparison]) -> RunComparison:
    """Choose the recording that holds the fault: the first that departs, else the last."""
    names = [departure.run for departure in find_departures(comparisons)]
    there = [c for c in comparisons if not c.run.missing]
    return next((c for c in there if c.run.name in names[:1]), there[-1])


def summarize_runs(
    comparisons: Sequence[RunComparison], found: Sequence[Departure], unresolved: StringMap
) -> str:
    """Say in one line what several recordings show; `unresolved`: run → why it is not certain.

    `golden and simulator agree with the reference; board departs first at conv3 (Conv)`.
    """
    by_run = {departure.run: departure for departure in found}
    wrong = [c for c in comparisons if c.failing]
    clear = (c for c in comparisons if not c.failing and not _has_other_input(c))
    right = [c.run.name for c in clear if c.run.name not in unresolved]
    parts = []
    if right:
        verb = "agrees" if len(right) == 1 else "agree"
        parts.append(f"{join_with_and(right)} {verb} with the reference")
    is_shared = len(found) == 1 and all(map(_is_inherited, wrong[1:]))
    if len(comparisons) == len(wrong) > 1 and is_shared:
        shared = "another input, preprocessing or model"
        if any(row.agreeing for row in wrong[0].rows.values()):
            shared = "the model they were converted to"
        every = "both" if len(wrong) == 2 else f"all {len(wrong)}"
        same = f"{every} recordings give the same, other than the reference from"
        return f"{same} {found[0].tensor} ({found[0].op}) on: {shared}?"
    for c in comparisons:
        name = c.run.name
        if name in right:
            parts += [drift] if (drift := _describe_drift(c, comparisons)) else []
        elif name in by_run:
            parts.append(_describe_departure(by_run[name], bool(right)))
        elif c.failing and name not in unresolved:
            before = c.rows[c.failing[0]].before
            hidden = f"{name} is wrong where {before} is; rounding hides whether by itself"
            parts.append(f"{name} has the values of {before}" if _is_inherited(c) else hidden)
        elif _has_other_input(c):
            parts.append(f"{name} was fed another input")
        elif name in unresolved:
            parts.append(f"{name} is unresolved: {unresolved[name]}")
    return "; ".join(parts)


def _describe_drift(comparison: RunComparison, others: Sequence[RunComparison]) -> str:
    """Describe a recording that agrees, but deviates far more from the recording before than that
    one from the reference; return "" for other recordings."""
    rows = {c.run.name: c.rows for c in others}
    for tensor, row in comparison.rows.items():
        if row.beside is None or tensor not in rows[row.before]:
            continue
        before = rows[row.before][tensor].in_place
        step = row.beside.errors.get("max_rel", 0.0)
        own = before.errors.get("max_rel", 0.0) if before else 0.0
        if own > MIN_SHOWN_ERROR and step > MIN_DISTANCE_RATIO * own:
            name = comparison.run.name
            claim = comparison.run.precision
            moves = f"but {name} moves away from {row.before} at {tensor}"
            return f"{moves}, by {step:.1e} of its scale, which {claim} explains as well as a fault"
    return ""


def _describe_departure(departure: Departure, names_reference: bool) -> str:
    """Describe a departure.

    `names_reference`: whether the sentence has named the recordings that agree with the reference.
    """
    before = "the reference" if departure.before == REFERENCE else departure.before
    whom = "" if names_reference and departure.before == REFERENCE else f" from {before}"
    skipped = join_with_and(departure.skipped)
    silent = f", which {skipped} did not record" if departure.skipped else ""
    return f"{departure.run} departs{whom} first at {departure.tensor} ({departure.op}){silent}"


def _has_other_input(comparison: RunComparison) -> bool:
    return bool(comparison.other_input or comparison.wrong_input)


def _is_inherited(comparison: RunComparison) -> bool:
    """Return whether every wrong tensor is as wrong in an earlier recording."""
    rows = [comparison.rows[name] for name in comparison.failing]
    return all(row.beside is not None and row.beside.agrees for row in rows)
