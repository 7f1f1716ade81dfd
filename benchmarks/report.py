"""Samples -> limits kept or not, a JSON document, Markdown tables. Runs and measures nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise

from benchmarks.measure import Result

SCHEMA = "subcut.bench-cut/1"

CPU_SECONDS = {"A": 0.15, "B": 0.40, "C": 0.20, "D": 0.20}
PEAK_MIB = {"A": 60.0, "B": 130.0, "C": 60.0, "D": 60.0}
CAPTURE_RATIO = 1.25
DOUBLING_RATIO = (
    2.0 * 1.05
)  # twice the nodes, at most twice the time; 5 % is the noise between runs

OURS = "subcut"
MINIMAL = "minimal"
UNITS = {"cpu": "CPU s", "peak": "peak MiB", "wall": "wall s"}


@dataclass(frozen=True)
class Bench:
    """One run of the whole benchmark."""

    command: str
    machine: dict[str, object]
    runs: int
    cut: list[Result]
    growth: list[Result]
    capture: list[Result]


@dataclass(frozen=True)
class Limit:
    """One thing that must hold. `found` is None where there was nothing to measure."""

    what: str
    limit: float
    found: float | None
    note: str = ""

    @property
    def kept(self) -> bool:
        return self.found is not None and self.found <= self.limit


def model_of(result: Result) -> str:
    return result.subject.split()[0]


def value(result: Result, what: str) -> float | None:
    """The median, or None if the tool failed or its output is wrong."""
    return None if result.problem or not result.samples else result.median(what)


def subjects(results: list[Result]) -> list[str]:
    return list(dict.fromkeys(result.subject for result in results))


def tools(results: list[Result]) -> list[str]:
    return list(dict.fromkeys(result.tool for result in results))


def of(results: list[Result], tool: str) -> list[Result]:
    return [result for result in results if result.tool == tool]


def at(results: list[Result], tool: str, subject: str) -> Result:
    return next(result for result in of(results, tool) if result.subject == subject)


def cut_limits(results: list[Result]) -> Iterator[Limit]:
    """The project's own limits, and to be ahead of the best right peer in each figure."""
    for ours in of(results, OURS):
        name = model_of(ours)
        yield Limit(f"{name}: CPU s", CPU_SECONDS[name], value(ours, "cpu"), ours.problem)
        yield Limit(f"{name}: peak MiB", PEAK_MIB[name], value(ours, "peak"), ours.problem)
        peers = [each for each in results if each.subject == ours.subject and each.tool != OURS]
        for what in ("cpu", "peak"):
            right = [
                (found, each.tool) for each in peers if (found := value(each, what)) is not None
            ]
            if right:
                best, tool = min(right)
                yield Limit(f"{name}: {UNITS[what]}, best peer", best, value(ours, what), tool)


def growth_limits(results: list[Result]) -> Iterator[Limit]:
    for less, more in pairwise(results):
        few = value(less, "cpu")
        many = value(more, "cpu")
        ratio = many / few if few and many else None
        what = f"growth {model_of(less)} → {model_of(more)}: CPU ratio"
        yield Limit(what, DOUBLING_RATIO, ratio, less.problem or more.problem)


def capture_limits(results: list[Result]) -> Iterator[Limit]:
    for subject in subjects(results):
        ours = at(results, OURS, subject)
        least = at(results, MINIMAL, subject)
        for what in ("cpu", "wall"):
            found = value(ours, what)
            yardstick = value(least, what)
            ratio = found / yardstick if found and yardstick else None
            what = f"{subject}, capture: {UNITS[what]} ÷ minimal"
            yield Limit(what, CAPTURE_RATIO, ratio, ours.problem or least.problem)


def limits(bench: Bench) -> list[Limit]:
    return [*cut_limits(bench.cut), *growth_limits(bench.growth), *capture_limits(bench.capture)]


def document(bench: Bench) -> dict[str, object]:
    """All samples, the machine, the limits: plain values for JSON."""
    verdicts = [asdict(limit) | {"kept": limit.kept} for limit in limits(bench)]
    return {"schema": SCHEMA} | asdict(bench) | {"limits": verdicts}


# Rendering


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """A Markdown table, first column left, others right."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '∣') for cell in line)} |" for line in lines)


def figures(result: Result) -> str:
    """`0.05 / 17`: CPU seconds and peak MiB; `failed` or `wrong` where the output cannot be
    used."""
    if result.problem:
        return "wrong" if result.nodes is not None else "failed"
    return f"{result.median('cpu'):.2f} / {result.median('peak'):.0f}"


def overview(results: list[Result]) -> str:
    """Tools down, models across."""
    names = subjects(results)
    rows = [
        [tool, *(figures(at(results, tool, name)) for name in names)] for tool in tools(results)
    ]
    return table(["CPU s / peak MiB", *(name.split()[0] for name in names)], rows)


def details(results: list[Result]) -> str:
    rows = []
    for each in results:
        medians = [value(each, what) for what in ("cpu", "wall", "maxrss", "tree")]
        formats = ("{:.3f}", "{:.3f}", "{:.0f}", "{:.0f}")
        cells = [
            "" if found is None else shape.format(found)
            for shape, found in zip(formats, medians, strict=True)
        ]
        nodes = "" if each.nodes is None else str(each.nodes)
        rows.append([each.subject, each.tool, *cells, nodes, each.problem or "right"])
    head = [
        "model, edge",
        "tool",
        "CPU s",
        "wall s",
        "ru_maxrss MiB",
        "tree MiB",
        "nodes",
        "output",
    ]
    return table(head, rows)


def verdicts(found: list[Limit]) -> str:
    rows = [
        [
            limit.what,
            f"{limit.limit:.2f}",
            "" if limit.found is None else f"{limit.found:.2f}",
            "PASS" if limit.kept else "FAIL",
            limit.note,
        ]
        for limit in found
    ]
    return table(["limit", "at most", "found", "", "note"], rows)


def machine_text(bench: Bench) -> str:
    machine = dict(bench.machine)
    versions = machine.pop("versions")
    assert isinstance(versions, dict)
    named = ", ".join(f"{name} {number}" for name, number in versions.items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['os']},"
        f" Python {machine['python']}; {named}. Medians of {bench.runs} runs each, tools in turn,"
        " after one to warm up; files in the page cache. Peak is the larger of ru_maxrss and the"
        f" polled sum of the process tree; an empty process shows {machine['floor_mib']} MiB."
    )


def markdown(bench: Bench) -> str:
    sections = [
        f"# What a cut costs\n\n`{bench.command}`\n\n{machine_text(bench)}",
        f"## The cut alone\n\n{overview(bench.cut)}",
        f"## Limits\n\n{verdicts(limits(bench))}",
        f"## Every figure\n\n### The cut alone\n\n{details(bench.cut)}",
    ]
    if bench.growth:
        sections.append(f"### Growth with nodes\n\n{details(bench.growth)}")
    sections.append(f"### With capture\n\n{details(bench.capture)}")
    return "\n\n".join(sections) + "\n"
