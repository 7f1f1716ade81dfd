"""Rows of windows -> how often each criterion was wrong: tables, limits, and each of our own mistakes by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.injected import ERRORS, SHAPES
from benchmarks.report import Limit, table, verdicts
from benchmarks.windows import CRITERIA, LISTED, OURS, STRICT, Found, Row

SCHEMA = "subcut.criteria/1"
NAMED = 15  # mistakes of a kind that are shown one by one
CANDIDATES = ("ort basic", "ort extended", "ort all", "fp16", "bf16", "int8")
ABOUT = 1e-3
DECADES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 0.0)


@dataclass(frozen=True)
class Result:
    """One run of everything. `case`: the public case, which must fail; seconds: wall time."""

    command: str
    machine: dict[str, Any]
    found: Sequence[Found]
    case: Found
    seconds: float

    @property
    def healthy(self) -> list[Row]:
        return [row for f in self.found if not f.task.injects for row in f.rows]

    @property
    def injected(self) -> list[Row]:
        return [row for f in self.found if f.task.injects for row in f.rows]


def alarms(rows: Iterable[Row], words: str = OURS) -> list[Row]:
    """Healthy windows that a criterion fails."""
    return [row for row in rows if row.said[words] == "fail"]


def misses(rows: Iterable[Row], words: str = OURS) -> list[Row]:
    """Windows with an error that a criterion lets pass."""
    return [row for row in rows if row.said[words] in ("agree", LISTED)]


def limits(result: Result) -> Iterator[Limit]:
    """What must hold of `noise`."""
    light = [row for row in result.healthy if row.light]
    fp32 = [row for row in result.healthy if not row.light and row.claim == "fp32"]
    yield Limit("false alarms, light networks", 0, _count(alarms(light), light), f"{len(light)} windows")
    yield Limit("false alarms, own networks, fp32", 0, _count(alarms(fp32), fp32), f"{len(fp32)} windows")
    case = result.case.rows
    yield Limit("public case missed", 0, _count(misses(case), case), ", ".join(dict.fromkeys(r.window for r in case)))


def _count(wrong: Sequence[Row], rows: Sequence[Row]) -> float | None:
    """None where nothing was judged: no limit is kept then."""
    return float(len(wrong)) if rows else None


# ---------------------------------------------------------------------------------------------------- tables


def healthy_table(rows: Sequence[Row]) -> str:
    """False alarms by candidate and criterion."""
    lines = []
    for light in (False, True):
        for candidate in CANDIDATES:
            some = [row for row in rows if row.light == light and row.candidate == candidate]
            if not some:
                continue
            open_ = sum(row.said[OURS] == "unresolved" for row in some)
            counts = [_shown(alarms(some, words), some, words) for words in CRITERIA]
            lines.append([f"{candidate}, {'light' if light else 'own'}", str(len(some)), *counts, str(open_)])
    return table(["healthy candidate, networks", "windows", *CRITERIA, "unresolved"], lines)


def missed_table(rows: Sequence[Row], of: Callable[[Row], float], values: Sequence[float], name: str) -> str:
    """Misses by claim, shape and size of the error; `of` says a row's size."""
    lines = []
    for claim in dict.fromkeys(row.claim for row in rows):
        for shape in SHAPES:
            for value in values:
                some = [r for r in rows if (r.claim, r.error_shape, of(r)) == (claim, shape, value)]
                if some:
                    counts = [_shown(misses(some, words), some, words) for words in CRITERIA]
                    lines.append([f"{claim}, {shape}", f"{value:.0e}" if value else "less", str(len(some)), *counts])
    return table(["claim, error", name, "windows", *CRITERIA], lines)


def _shown(wrong: Sequence[Row], rows: Sequence[Row], words: str) -> str:
    """`12`, or `12 (5)`: five agree, but are listed as approximate kernels."""
    listed = sum(row.said[words] == LISTED for row in rows)
    return f"{len(wrong)} ({listed})" if listed else str(len(wrong))


def _put_in(row: Row) -> float:
    return row.error_size


def decade(row: Row) -> float:
    """The size of what arrives at the outputs, rounded down to a power of ten; of another choice, infinite."""
    if math.isinf(row.arrives):
        return math.inf
    # 1e-3 put in arrives as 1e-3 give or take its last bit: on neither side of a limit of 1e-3
    return next(d for d in DECADES if row.arrives > d * (1 + ABOUT))


def smallest(rows: Sequence[Row], words: str, of: Callable[[Row], float], share: float) -> dict[str, float | None]:
    """By claim and shape: the smallest size from which on, upwards, no more than this share is missed."""
    found: dict[str, float | None] = {}
    for claim in dict.fromkeys(row.claim for row in rows):
        for shape in SHAPES:
            least = None
            for size in sorted({of(row) for row in rows} - {0.0, math.inf}, reverse=True):
                some = [r for r in rows if (r.claim, r.error_shape, of(r)) == (claim, shape, size)]
                if len(misses(some, words)) > share * len(some):
                    break
                least = size if some else least
            found[f"{claim}, {shape}"] = least
    return found


def smallest_table(rows: Sequence[Row]) -> str:
    """How small an error `noise` catches."""
    asked = [
        (f"{name}: misses {text}", smallest(rows, OURS, of, share))
        for name, of in (("put in", _put_in), ("arriving at the outputs, at least", decade))
        for text, share in (("nothing", 0.0), ("half", 0.5))
    ]
    kinds = list(asked[0][1]) if asked else []
    lines = [[name, *(f"{v:.0e}" if (v := found[kind]) else "–" for kind in kinds)] for name, found in asked]
    return table([f"smallest error, `{OURS}`", *kinds], lines)


# ---------------------------------------------------------------------------------------------------- by name


def mistakes(result: Result) -> str:
    """Our own false alarms; our misses of what arrives largest; and what was put in large and arrives small."""
    parts = ["### False alarms of `noise`", _rows(alarms(result.healthy))]
    large = sorted(misses(result.injected), key=lambda row: -row.arrives)
    for claim in dict.fromkeys(row.claim for row in large):
        parts.append(f"### Largest errors at the outputs that `noise` missed, {claim}")
        parts.append(_rows([row for row in large if row.claim == claim and decade(row) >= DECADES[2]]))
    hidden = [row for row in large if row.error_size == ERRORS[0] and decade(row) < DECADES[2]]
    parts += [f"### Errors of {ERRORS[0]:g} put in of which less than {DECADES[2]:g} arrives", _rows(hidden)]
    return "\n\n".join(parts)


def _rows(rows: Sequence[Row]) -> str:
    lines = [
        [
            f"{row.network} {row.candidate}",
            row.window,
            f"{row.at} {row.error_size:.0e} {row.error_shape}" if row.at else "",
            _arrival(row) if row.at else "",
            row.why,
        ]
        for row in rows[:NAMED]
    ]
    more = f"\n\n… and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    return table(["network, candidate", "window", "put in", "arrives", "why"], lines) + more if rows else "none"


def _arrival(row: Row) -> str:
    return "another choice" if math.isinf(row.arrives) else f"{row.arrives:.1e}"


def left_out(found: Sequence[Found]) -> str:
    """What was not measured, and why."""
    lines = [f"- {f.task.network}, {f.task.candidate}: {f.broken}" for f in found if f.broken]
    lines += [
        f"- {f.task.network}, {f.task.candidate}: {count} windows refused: {why}"
        for f in found
        for why, count in f.absent.most_common(2)
    ]
    masked = {claim: sum(f.masked for f in found if f.task.claim == claim) for claim in ("fp32", "fp16")}
    lines += [f"- {n} errors put in at {claim} changed no bit of any output" for claim, n in masked.items()]
    lines.append("- bf16 is simulated: operands of products are rounded; onnxruntime's CPU has no kernels for it")
    lines.append("- light networks at bf16 and int8: opset 9 has no bfloat16, and quantization needs initializers")
    return "\n".join(lines)


def markdown(result: Result) -> str:
    """The whole report."""
    machine = dict(result.machine)
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("onnxruntime", "onnx", "numpy"))
    system = f"{machine['cores']} cores, {machine['memory_gib']} GiB, {machine['os']}, Python {machine['python']}"
    injected = result.injected
    sections = [
        f"# How often the criteria are wrong\n\n`{result.command}`\n\n{machine['cpu']}, {system}; {versions}; "
        f"{result.seconds:.0f} s.",
        f"## Limits\n\n{verdicts(list(limits(result)))}",
        f"## False alarms: healthy windows that fail\n\n`{STRICT}`, here and below: in brackets those that "
        f"agree, but are listed as {LISTED}.\n\n{healthy_table(result.healthy)}",
        f"## How small an error is caught\n\n{smallest_table(injected)}",
        f"## Misses by the size of the error put in\n\n{missed_table(injected, _put_in, ERRORS, 'size')}",
        f"## Misses by what arrives at the outputs\n\n{missed_table(injected, decade, DECADES, 'arrives')}",
        f"## By name\n\n{mistakes(result)}",
        f"## Left out\n\n{left_out(result.found)}",
    ]
    return "\n\n".join(sections) + "\n"


def document(result: Result) -> dict[str, Any]:
    """Plain values for JSON: the limits, and every row on which `noise` was wrong or unresolved."""
    wrong = [row for row in result.healthy if row.said[OURS] != "agree"]
    wrong += [row for row in misses(result.injected) if decade(row) >= DECADES[2] or row.error_size >= ERRORS[1]]
    return {
        "schema": SCHEMA,
        "command": result.command,
        "machine": result.machine,
        "seconds": round(result.seconds, 1),
        "criteria": list(CRITERIA),
        "limits": [asdict(limit) | {"kept": limit.kept} for limit in limits(result)],
        "healthy": _counted(result.healthy, lambda r: (r.network, r.candidate, str(r.size)), alarms),
        "injected": _counted(
            result.injected, lambda r: (r.network, r.claim, r.error_shape, r.place, f"{r.error_size:g}"), misses
        ),
        "case": [_plain(row) for row in result.case.rows],
        "noise_wrong": [_plain(row) for row in wrong],
        "tasks": [
            {"network": f.task.network, "candidate": f.task.candidate, "injects": f.task.injects, "rows": len(f.rows)}
            | {"masked": f.masked, "refused": dict(f.absent), "broken": f.broken, "seconds": round(f.seconds, 1)}
            for f in result.found
        ],
    }


def _counted(
    rows: Sequence[Row], key: Callable[[Row], tuple[str, ...]], wrong: Callable[[Iterable[Row], str], list[Row]]
) -> list[dict[str, Any]]:
    """Windows and mistakes per criterion, of all rows with one key."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [
        {"of": list(name), "windows": len(some), "wrong": {words: len(wrong(some, words)) for words in CRITERIA}}
        for name, some in groups.items()
    ]


def _plain(row: Row) -> dict[str, Any]:
    """JSON has neither NaN nor infinities."""
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(row).items()}
