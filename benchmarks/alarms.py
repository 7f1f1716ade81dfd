"""Rows of windows -> how often each criterion was wrong: tables, limits, and the mistakes of
`noise` by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.injected import ERRORS, SHAPES
from benchmarks.planted import COMPARED
from benchmarks.report import Limit, table, verdicts
from benchmarks.windows import CRITERIA, LISTED, OURS, STRICT, Row, TaskResult
from subgraph.comparison import STEPS
from subgraph.documents import to_json

SCHEMA = "subcut.criteria/1"
LISTED_ROWS, ALL = 15, 1000  # of each kind of mistake
CANDIDATES = ("ort basic", "ort extended", "ort all", "openvino", "fp16", "bf16", "int8")
ROUNDING = 1e-3
DECADES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 0.0)
GROUPS = ("own", "light", "trained")
# Of a slice's scale: beyond `USABLE` a conversion has destroyed an output, and to fail it is right.
USABLE = {"fp32": 1e-2, "fp16": 0.1, "bf16": 0.2, "int8": 0.2, STEPS: 0.2}
SLICE_ERRORS = (0.5, 0.2, 0.1, 2e-2, 1e-2, 5e-3, 0.0)
DESTROYED = 0.5
PER_LOW = 200  # verdicts below fp32, of which one may be a false alarm


@dataclass(frozen=True)
class Result:
    """One run of the benchmark. `case`: the public case, which must fail; seconds: wall time."""

    command: str
    machine: dict[str, Any]
    found: Sequence[TaskResult]
    case: TaskResult
    seconds: float

    @property
    def healthy(self) -> list[Row]:
        return [row for f in self.found if not f.task.injects for row in f.rows]

    @property
    def injected(self) -> list[Row]:
        return [row for f in self.found if f.task.injects for row in f.rows]


def alarms(rows: Iterable[Row], criterion: str = OURS) -> list[Row]:
    """Healthy windows that a criterion fails."""
    return [row for row in rows if row.statuses[criterion] == "fail"]


def misses(rows: Iterable[Row], criterion: str = OURS) -> list[Row]:
    """Windows with an error that a criterion does not fail."""
    return [row for row in rows if row.statuses.get(criterion) in ("agree", LISTED)]


def limits(result: Result) -> Iterator[Limit]:
    """Limits that `noise` must keep, on the groups of networks that were measured."""
    groups = {f.task.group for f in result.found}
    for group, of_group in (
        ("light", _light_limits),
        ("own", _own_limits),
        ("trained", _trained_limits),
    ):
        if group in groups:
            healthy = [row for row in result.healthy if row.group == group]
            yield from of_group(healthy, [row for row in result.injected if row.group == group])
    case = result.case.rows
    yield Limit(
        "public case missed",
        0,
        _count(misses(case), case),
        ", ".join(dict.fromkeys(r.window for r in case)),
    )


def _light_limits(healthy: Sequence[Row], _: Sequence[Row]) -> Iterator[Limit]:
    usable = [row for row in healthy if not ruined(row)]
    yield Limit(
        "false alarms, light networks", 0, _count(alarms(usable), usable), f"{len(usable)} windows"
    )


def _own_limits(healthy: Sequence[Row], injected: Sequence[Row]) -> Iterator[Limit]:
    fp32 = [row for row in healthy if row.claim == "fp32"]
    yield Limit(
        "false alarms, own networks, fp32", 0, _count(alarms(fp32), fp32), f"{len(fp32)} windows"
    )
    seen = [row for row in injected if row.claim == "fp32" and decade(row) >= DECADES[2]]
    missed = _count(misses(seen, STRICT), seen)  # as the look inside judges before the whole agrees
    yield Limit(
        f"missed, own networks, fp32, ≥ 1e-3 of an output, {STRICT}",
        0,
        missed,
        f"{len(seen)} errors",
    )


def _trained_limits(healthy: Sequence[Row], faulty: Sequence[Row]) -> Iterator[Limit]:
    destroyed = {
        (row.network, row.candidate) for row in healthy if ruined(row)
    }  # then its windows are not healthy
    usable = [row for row in healthy if (row.network, row.candidate) not in destroyed]
    fp32 = [row for row in usable if row.claim == "fp32"]
    low = [row for row in usable if row.claim != "fp32"]
    yield Limit(
        "false alarms, trained models, fp32", 0, _count(alarms(fp32), fp32), f"{len(fp32)} verdicts"
    )
    share = len(alarms(low)) * PER_LOW / len(low) if low else None
    yield Limit(
        f"false alarms, trained models, below fp32, per {PER_LOW}", 1, share, f"{len(low)} verdicts"
    )
    seen = [
        row
        for row in faulty
        if row.claim == "fp32" and row.arrives > USABLE["fp32"] * (1 + ROUNDING)
    ]
    yield Limit(
        "missed, trained models, fp32, > 1e-2 of a slice",
        0,
        _count(misses(seen), seen),
        f"{len(seen)} faults",
    )
    outputs = [row for row in faulty if row.place] + [row for row in healthy if row.size == 0]
    gone = [row for row in outputs if row.arrives > DESTROYED]
    yield Limit(
        "destroyed outputs called agree", 0, _count(misses(gone), gone), f"{len(gone)} outputs"
    )


def ruined(row: Row) -> bool:
    """Did the conversion itself destroy an output of the model, or make it NaN in a window? Then to
    fail is right."""
    return (row.size == 0 or math.isinf(row.arrives)) and row.arrives > USABLE[row.claim]


def _count(wrong: Sequence[Row], rows: Sequence[Row]) -> float | None:
    """None if nothing was judged: then no limit is kept."""
    return float(len(wrong)) if rows else None


# ------------------------------------------------------------ tables


def healthy_table(rows: Sequence[Row]) -> str:
    """False alarms by candidate and criterion."""
    lines = []
    for kind in GROUPS:
        for candidate in CANDIDATES:
            group = [
                row
                for row in rows
                if row.group == kind and row.candidate == candidate and not ruined(row)
            ]
            if not group:
                continue
            unresolved = sum(row.statuses[OURS] == "unresolved" for row in group)
            counts = [
                _count_text(alarms(group, criterion), group, criterion) for criterion in CRITERIA
            ]
            lines.append([f"{candidate}, {kind}", str(len(group)), *counts, str(unresolved)])
    return table(["healthy candidate, networks", "windows", *CRITERIA, "unresolved"], lines)


def missed_table(
    rows: Sequence[Row], size_of: Callable[[Row], float], values: Sequence[float], name: str
) -> str:
    """Misses by claim, shape and size of the error; `size_of`: the size of a row's error."""
    lines = []
    for claim in dict.fromkeys(row.claim for row in rows):
        for shape in SHAPES:
            for value in values:
                group = [
                    r for r in rows if (r.claim, r.error_shape, size_of(r)) == (claim, shape, value)
                ]
                if group:
                    counts = [
                        _count_text(misses(group, criterion), group, criterion)
                        for criterion in CRITERIA
                    ]
                    lines.append(
                        [
                            f"{claim}, {shape}",
                            f"{value:.0e}" if value else "less",
                            str(len(group)),
                            *counts,
                        ]
                    )
    return table(["claim, error", name, "windows", *CRITERIA], lines)


def slice_table(rows: Sequence[Row]) -> str:
    """Misses by claim, place and error of the worst slice."""
    lines = []
    for claim in dict.fromkeys(row.claim for row in rows):
        for place in ("output", ""):
            for least in SLICE_ERRORS:
                group = [
                    r for r in rows if (r.claim, r.place, _slice_error(r)) == (claim, place, least)
                ]
                if group:
                    counts = [
                        _count_text(misses(group, criterion), group, criterion)
                        for criterion in COMPARED
                    ]
                    where = "model's outputs" if place else "windows"
                    lines.append(
                        [
                            f"{claim}, {where}",
                            f"{least:g}" if least else "less",
                            str(len(group)),
                            *counts,
                        ]
                    )
    return table(["claim, place", "worst slice, above", "faults", *COMPARED], lines)


def _slice_error(row: Row) -> float:
    return next(e for e in SLICE_ERRORS if row.arrives > e or not e)


def _count_text(wrong: Sequence[Row], rows: Sequence[Row], criterion: str) -> str:
    """`12`, or `12 (5)` if five rows agree but are listed as approximate kernels."""
    listed = sum(row.statuses[criterion] == LISTED for row in rows)
    return f"{len(wrong)} ({listed})" if listed else str(len(wrong))


def _injected_size(row: Row) -> float:
    return row.error_size


def decade(row: Row) -> float:
    """The error at the outputs, rounded down to a power of ten; infinite if another choice was
    made."""
    if math.isinf(row.arrives):
        return math.inf
    # an injected error of 1e-3 arrives as 1e-3 up to its last bit: it must not fall to either side
    # of that limit
    return next(d for d in DECADES if row.arrives > d * (1 + ROUNDING))


def smallest(
    rows: Sequence[Row], criterion: str, size_of: Callable[[Row], float], share: float
) -> dict[str, float | None]:
    """By claim and shape: the smallest size at and above which no more than this share is
    missed."""
    found: dict[str, float | None] = {}
    for claim in dict.fromkeys(row.claim for row in rows):
        for shape in SHAPES:
            least = None
            for size in sorted({size_of(row) for row in rows} - {0.0, math.inf}, reverse=True):
                group = [
                    r for r in rows if (r.claim, r.error_shape, size_of(r)) == (claim, shape, size)
                ]
                if len(misses(group, criterion)) > share * len(group):
                    break
                least = size if group else least
            found[f"{claim}, {shape}"] = least
    return found


def smallest_table(rows: Sequence[Row]) -> str:
    """The smallest errors that `noise` catches."""
    columns = [
        (f"{name}: misses {text}", smallest(rows, OURS, size_of, share))
        for name, size_of in (
            ("put in", _injected_size),
            ("arriving at the outputs, at least", decade),
        )
        for text, share in (("nothing", 0.0), ("half", 0.5))
    ]
    kinds = list(columns[0][1]) if columns else []
    lines = [
        [name, *(f"{v:.0e}" if (v := found[kind]) else "–" for kind in kinds)]
        for name, found in columns
    ]
    return table([f"smallest error, `{OURS}`", *kinds], lines)


# ------------------------------------------------------------ by name


def mistakes(result: Result) -> str:
    """Rows on which `noise` is wrong: false alarms, the largest misses, and large errors of little
    effect."""
    healthy = [row for row in result.healthy if row.group != "trained"]
    parts = ["### False alarms of `noise`", _rows(alarms(healthy))]
    trained = [row for row in result.healthy if row.group == "trained"]
    parts += [
        "### Trained models: healthy, and failed",
        _rows(alarms([r for r in trained if not ruined(r)]), ALL),
    ]
    parts += [
        "### Trained models: outputs that a conversion destroys",
        _rows([r for r in trained if ruined(r)], ALL),
    ]
    planted = [
        row
        for row in misses(result.injected)
        if row.group == "trained" and row.arrives > USABLE[row.claim]
    ]
    planted.sort(key=lambda row: (row.claim != "fp32", not row.place, -row.arrives))
    parts += [
        "### Trained models: faults in a slice beyond what is usable, missed",
        _rows(planted, 40),
    ]
    large = [row for row in misses(result.injected) if row.group != "trained"]
    large.sort(key=lambda row: -row.arrives)
    for claim in dict.fromkeys(row.claim for row in large):
        parts.append(f"### Largest errors at the outputs that `noise` missed, {claim}")
        parts.append(
            _rows([row for row in large if row.claim == claim and decade(row) >= DECADES[2]])
        )
    hidden = [row for row in large if row.error_size == ERRORS[0] and decade(row) < DECADES[2]]
    parts += [
        f"### Errors of {ERRORS[0]:g} put in of which less than {DECADES[2]:g} arrives",
        _rows(hidden),
    ]
    return "\n\n".join(parts)


def _rows(rows: Sequence[Row], most: int = LISTED_ROWS) -> str:
    lines = [
        [
            f"{row.network} {row.candidate}",
            row.window,
            f"{row.at} {row.error_size:.0e} {row.error_shape}" if row.at else "",
            _arrival_text(row) if row.at or row.group == "trained" else "",
            f"{row.statuses[OURS]}: {row.why}",
        ]
        for row in rows[:most]
    ]
    more = f"\n\n… and {len(rows) - most} more" if len(rows) > most else ""
    return (
        table(["network, candidate", "window", "put in", "arrives", "why"], lines) + more
        if rows
        else "none"
    )


def _arrival_text(row: Row) -> str:
    return "another choice" if math.isinf(row.arrives) else f"{row.arrives:.1e}"


def left_out(found: Sequence[TaskResult]) -> str:
    """Networks and windows that were not measured, and why."""
    lines = [f"- {f.task.network}, {f.task.candidate}: {f.broken}" for f in found if f.broken]
    lines += [
        f"- {f.task.network}, {f.task.candidate}: {count} windows refused: {why}"
        for f in found
        for why, count in f.absent.most_common(2)
    ]
    masked = {
        claim: sum(f.masked for f in found if f.task.claim == claim) for claim in ("fp32", "fp16")
    }
    lines += [
        f"- {n} errors put in at {claim} changed no bit of any output"
        for claim, n in masked.items()
    ]
    lines.append(
        "- bf16 is simulated: operands of products are rounded; onnxruntime's CPU has no kernels"
        " for it"
    )
    lines.append(
        "- light networks at bf16 and int8: opset 9 has no bfloat16, and quantization needs"
        " initializers"
    )
    return "\n".join(lines)


def markdown(result: Result) -> str:
    """The whole report."""
    machine = dict(result.machine)
    versions = ", ".join(
        f"{name} {machine['versions'][name]}" for name in ("onnxruntime", "onnx", "numpy")
    )
    system = (
        f"{machine['cores']} cores, {machine['memory_gib']} GiB, {machine['os']}, Python"
        f" {machine['python']}"
    )
    injected = [row for row in result.injected if row.group != "trained"]
    planted = [row for row in result.injected if row.group == "trained"]
    sections = [
        (
            f"# How often the criteria are wrong\n\n`{result.command}`\n\n{machine['cpu']},"
            f" {system}; {versions}; {result.seconds:.0f} s."
        ),
        f"## Limits\n\n{verdicts(list(limits(result)))}",
        (
            f"## False alarms: healthy windows that fail\n\n`{STRICT}`, here and below: in brackets"
            f" those that agree, but are listed as {LISTED}.\n\n{healthy_table(result.healthy)}"
        ),
        f"## How small an error is caught\n\n{smallest_table(injected)}",
        (
            "## Misses by the size of the error put"
            f" in\n\n{missed_table(injected, _injected_size, ERRORS, 'size')}"
        ),
        (
            "## Misses by what arrives at the"
            f" outputs\n\n{missed_table(injected, decade, DECADES, 'arrives')}"
        ),
        f"## Trained models: misses by the error of the worst slice\n\n{slice_table(planted)}",
        f"## By name\n\n{mistakes(result)}",
        f"## Left out\n\n{left_out(result.found)}",
    ]
    return "\n\n".join(sections) + "\n"


def document(result: Result) -> dict[str, Any]:
    """Plain values for JSON: the limits, and every row on which `noise` was wrong or unresolved."""
    wrong = [row for row in result.healthy if row.statuses[OURS] != "agree"]
    wrong += [
        row
        for row in misses(result.injected)
        if decade(row) >= DECADES[2] or row.error_size >= ERRORS[1]
    ]
    return {
        "schema": SCHEMA,
        "command": result.command,
        "machine": result.machine,
        "seconds": round(result.seconds, 1),
        "criteria": list(CRITERIA),
        "limits": [asdict(limit) | {"kept": limit.kept} for limit in limits(result)],
        "healthy": _counted(
            result.healthy, lambda r: (r.network, r.candidate, str(r.size)), alarms
        ),
        "injected": _counted(
            result.injected,
            lambda r: (r.network, r.claim, r.error_shape, r.place, f"{r.error_size:g}"),
            misses,
        ),
        "case": [to_json(row) for row in result.case.rows],
        "noise_wrong": [to_json(row) for row in wrong],
        "tasks": [
            {
                "network": f.task.network,
                "candidate": f.task.candidate,
                "injects": f.task.injects,
                "rows": len(f.rows),
            }
            | {
                "masked": f.masked,
                "refused": dict(f.absent),
                "broken": f.broken,
                "seconds": round(f.seconds, 1),
            }
            for f in result.found
        ],
    }


def _counted(
    rows: Sequence[Row],
    key: Callable[[Row], tuple[str, ...]],
    wrong: Callable[[Iterable[Row], str], list[Row]],
) -> list[dict[str, Any]]:
    """Windows and mistakes per criterion, for each key."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [
        {
            "of": list(name),
            "windows": len(group),
            "wrong": {criterion: len(wrong(group, criterion)) for criterion in CRITERIA},
        }
        for name, group in groups.items()
    ]
