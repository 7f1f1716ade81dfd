"""Several runs beside the reference -> one document: a row per tensor, the odd one out, the first bad one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from subgraph.comparison.judge import judge
from subgraph.errors import InputError
from subgraph.recordings.align import cast, fitted
from subgraph.recordings.compare import RunComparison, TensorRow
from subgraph.recordings.interval import Interval, intervals
from subgraph.recordings.match import UNLIKE, reference_of
from subgraph.trials.trial import Trials
from subgraph.verdict import Status

SCHEMA = "subcut.recorded/1"
REFERENCE = "reference"


def document(
    trials: Trials, found: Sequence[RunComparison], names: Sequence[str], criterion: str, *, stopped: bool = False
) -> dict[str, Any]:
    """All of it as plain data. `names`: the tensors that were looked for; with `stopped`, to the first that is wrong.

    Between which tensors it goes wrong is only said where all were looked for.
    """
    if stopped:
        names = names[: max((k for k, n in enumerate(names, 1) if any(n in o.cells for o in found)), default=0)]
    rows = [_row(trials, found, name) for name in names]
    every = stopped or len(names) == len(trials.tensors())
    first = [_first(trials, one) if every else None for one in found]
    code = exit_code(found)
    return {
        "schema": SCHEMA,
        "exit_code": code,
        "agree": code == 0,
        "precision": trials.precision,
        "criterion": criterion,
        "samples": trials.values.labels,
        "recordings": [_recording(one, bad) for one, bad in zip(found, first, strict=True)],
        "odd_one_out": next((row["odd_one_out"] for row in rows if row["odd_one_out"]), None),
        "rows": rows,
    }


def exit_code(found: Sequence[RunComparison]) -> int:
    """1 where anything disagrees; 5 where a run is missing, nothing could be compared, or what has no name of the model
    has no value of it either; else 0."""
    cells = [c for one in found for c in one.cells.values()]
    if any(c.failing for c in cells) or any(c.failing for one in found for c in one.inputs.values()):
        return 1
    complete = all(any(c.good for c in one.cells.values()) for one in found)
    unlike = any(why == UNLIKE for one in found for m in one.matched for _, why in m.lost)
    broken = unlike or any(c.in_place is None for c in cells)
    return 0 if complete and not broken else 5


def _recording(one: RunComparison, first: Interval | None) -> dict[str, Any]:
    run = one.run
    lost = [{"name": e.name, "file": e.file, "why": why} for m in one.matched for e, why in (*m.lost, *m.idle)]
    return {
        "name": run.name,
        "folder": str(run.recording.folder) if run.recording else None,
        "format": run.recording.format if run.recording else None,
        "missing": run.missing or None,
        "matched": one.matched[0].summary() if one.matched else "",
        "notes": one.notes,
        "inputs": {name: c.in_place.to_json() for name, c in one.inputs.items() if c.in_place},
        "lost": lost,
        "wrong": sum(c.failing for c in one.cells.values()),
        "compared": sum(
            c.in_place is not None and c.in_place.status is not Status.UNRESOLVED for c in one.cells.values()
        ),
        "first_bad": first.bad[0] if first else next((n for n, c in one.cells.items() if c.failing), None),
        "last_good": list(first.good) if first else None,
    }


def _first(trials: Trials, one: RunComparison) -> Interval | None:
    return next(iter(intervals(trials, one)), None) if any(c.failing for c in one.cells.values()) else None


def _row(trials: Trials, found: Sequence[RunComparison], name: str) -> dict[str, Any]:
    i = trials.graph.maker[name]
    return {
        "index": i,
        "node": trials.graph.label(i),
        "op": trials.graph.ops[i],
        "tensor": name,
        "runs": [_cell(one.cells.get(name)) for one in found],
        "odd_one_out": odd_one_out(trials, found, name) or None,
    }


def _cell(cell: TensorRow | None) -> dict[str, Any] | None:
    """What a run has there; null: not seen."""
    if cell is None:
        return None
    entry = cell.held.entry
    return {
        "file": entry.file,
        "recorded_as": entry.name,
        "matched_by": cell.held.how,
        "note": cell.held.note,
        "in_place": cell.in_place.to_json() if cell.in_place else None,
        "alone": cell.alone.to_json() if cell.alone else None,
        "why": cell.why,
    }


def odd_one_out(trials: Trials, found: Sequence[RunComparison], name: str) -> str:
    """Of the reference and at least two runs, the one that stands alone in a tensor; "" where none does."""
    there = [one for one in found if name in one.cells and one.cells[name].in_place]
    bad = [one for one in there if one.cells[name].failing]
    good = [one for one in there if one.cells[name].good]
    if len(bad) == 1 and good:
        return bad[0].run.name
    return REFERENCE if len(bad) > 1 and not good and _alike(trials, bad, name) else ""


def _alike(trials: Trials, bad: Sequence[RunComparison], name: str) -> bool:
    """Do they all give the same?"""
    right = reference_of(trials, name, 0)
    if right is None:
        return False
    try:
        values = [cast(fitted(h.entry.read(), right, h.fit), right) for h in (one.cells[name].held for one in bad)]
    except InputError:
        return False
    judged = (judge(name, values[0], v, trials.rule, trials.precision) for v in values[1:])
    return all(j.status is Status.AGREE for j in judged)
