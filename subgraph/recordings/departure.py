"""Several recordings of one model -> between which two of them the fault lies, and at which tensor.

The recordings stand in the order in which the model was changed: as floats, quantized, on the
board. Each is judged against the reference, and against the nearest recording before it that tells
the tensor. One that is wrong as the one before it was has inherited the fault; one that is wrong
where the one before it is right has departed from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from subgraph.errors import InputError
from subgraph.recordings.compare_recording import ALL, Choice, compare_run
from subgraph.recordings.device_runs import RecordedRun
from subgraph.recordings.run_comparison import RunComparison
from subgraph.results.recorded import Departure
from subgraph.trials.judge import Judge
from subgraph.types import StringMap
from subgraph.verdict import Judgement, Status

REFERENCE = "reference"
MUCH_FARTHER = (
    5.0  # times: a recording from the one before, compared with that one from the reference
)
SHOWN = 1e-4  # of the scale: the error of one whose precision is reduced


def compare_runs(
    judge: Judge, runs: Sequence[RecordedRun], choice: Choice = ALL
) -> list[RunComparison]:
    """`compare_run` of each run beside those before it; of several, one that holds nothing of the
    model is missing.

    Raises:
        InputError: no run holds a tensor of this model. ModelError: the reference cannot give the
            values.
    """
    compared: list[RunComparison] = []
    errors: list[InputError] = []
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
    """The first tensor of each recording at which it goes wrong by itself; none of those that only
    inherit a fault."""
    found = (_find_departure(comparisons[:k], c) for k, c in enumerate(comparisons))
    return [departure for departure in found if departure]


def choose_run_to_narrow(comparisons: Sequence[RunComparison]) -> RunComparison:
    """The recording in whose intervals the fault lies: the first that departs; else the last that
    is not missing."""
    names = [departure.run for departure in find_departures(comparisons)]
    there = [c for c in comparisons if not c.run.missing]
    return next((c for c in there if c.run.name in names[:1]), there[-1])


def _find_departure(earlier: Sequence[RunComparison], last: RunComparison) -> Departure | None:
    """Where a recording departs from those before it."""
    graph = last.judge.model.graph
    names = [c.run.name for c in earlier]
    for name in last.failing:
        row = last.rows[name]
        if row.beside is not None and row.beside.status is not Status.FAIL:
            known = next(c for c in earlier if c.run.name == row.before)
            if not known.rows[name].agreeing:
                continue  # inherited; or, where rounding hides it, perhaps inherited
        skipped = names[names.index(row.before) + 1 :] if row.before else names
        i = graph.maker[name]
        return Departure(
            last.run.name, row.before or REFERENCE, name, graph.label(i), graph.ops[i], skipped
        )
    return None


def summarize_runs(
    comparisons: Sequence[RunComparison], found: Sequence[Departure], unresolved: StringMap
) -> str:
    """What several recordings say together, in one line; `unresolved`: run → why nothing is certain
    of it.

    `golden and simulator agree with the reference; board departs first at conv3 (Conv)`.
    """
    by_run = {departure.run: departure for departure in found}
    wrong = [c for c in comparisons if c.failing]
    right = [
        c.run.name
        for c in comparisons
        if not c.failing and not _has_other_input(c) and c.run.name not in unresolved
    ]
    parts = []
    if right:
        verb = "agrees" if len(right) == 1 else "agree"
        parts.append(f"{join_names(right)} {verb} with the reference")
    if (
        len(comparisons) == len(wrong) > 1
        and len(found) == 1
        and all(map(_is_inherited, wrong[1:]))
    ):
        shared = (
            "the model they were converted to"
            if any(row.agreeing for row in wrong[0].rows.values())
            else "another input, preprocessing or model"
        )
        every = "both" if len(wrong) == 2 else f"all {len(wrong)}"
        place = _describe_place(found[0])
        return (
            f"{every} recordings give the same, other than the reference from {place} on: {shared}?"
        )
    for c in comparisons:
        name = c.run.name
        if name in right:
            parts += [drift] if (drift := _describe_drift(c, comparisons)) else []
        elif name in by_run:
            parts.append(_describe_departure(by_run[name], bool(right)))
        elif c.failing:
            before = c.rows[c.failing[0]].before
            parts.append(
                f"{name} gives what {before} gives"
                if _is_inherited(c)
                else f"{name} is wrong where {before} is; rounding hides whether by itself"
            )
        elif _has_other_input(c):
            parts.append(f"{name} was fed another input")
        elif name in unresolved:
            parts.append(f"{name} is unresolved: {unresolved[name]}")
    return "; ".join(parts)


def _describe_drift(comparison: RunComparison, others: Sequence[RunComparison]) -> str:
    """Where a recording that agrees is much farther from the one before than that one from the
    reference."""
    rows = {c.run.name: c.rows for c in others}
    for tensor, row in comparison.rows.items():
        if row.beside is None or tensor not in rows[row.before]:
            continue
        step, own = (
            _get_error(judged) for judged in (row.beside, rows[row.before][tensor].in_place)
        )
        if own > SHOWN and step > MUCH_FARTHER * own:
            name = comparison.run.name
            claim = comparison.run.precision
            moves = (
                f"but {name} moves away from {row.before} at {tensor}, by {step:.1e} of its scale"
            )
            return f"{moves}, which {claim} explains as well as a fault"
    return ""


def _get_error(judged: Judgement | None) -> float:
    return judged.errors.get("max_rel", 0.0) if judged else 0.0


def _describe_departure(departure: Departure, is_told: bool) -> str:
    """`is_told`: is it said already what agrees with the reference?"""
    before = "the reference" if departure.before == REFERENCE else departure.before
    whom = "" if is_told and departure.before == REFERENCE else f" from {before}"
    silent = (
        f", of which {join_names(departure.skipped)} tells nothing" if departure.skipped else ""
    )
    return f"{departure.run} departs{whom} first at {_describe_place(departure)}{silent}"


def _describe_place(departure: Departure) -> str:
    return f"{departure.tensor} ({departure.op})"


def _has_other_input(comparison: RunComparison) -> bool:
    return bool(comparison.other_input or comparison.wrong_input)


def _is_inherited(comparison: RunComparison) -> bool:
    """Is every wrong tensor as wrong in an earlier recording?"""
    rows = [comparison.rows[name] for name in comparison.failing]
    return all(row.beside is not None and row.beside.status is Status.AGREE for row in rows)


def join_names(names: Sequence[str]) -> str:
    """`a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
