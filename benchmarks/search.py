"""`make bench`: how many runs it takes to find what is wrong, beside polygraphy; what that costs;
how it grows.

    python -m benchmarks.search [--quick] [--linear] [--only table,compiling,growth]

Table: chains of 256 nodes and a join of two branches, a candidate whose wrong nodes are known, both
tools run for real; runs and nodes compiled are counted in the candidate's own log
(`benchmarks.narrow`). Compiling: the full ResNet-50 and a candidate that takes long to compile
(`benchmarks.compiling`). Growth: chains of 1,000 to 50,000 nodes (`benchmarks.growth`). `--linear`
runs polygraphy's linear mode on one case of each kind, not only of two kinds (about 400 runs each);
`--quick` leaves it out, with the larger part of the cases. Exit 1 if a limit is not kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from benchmarks import compiling, growth, machine, narrow, suspects
from benchmarks.measure import floor
from benchmarks.narrow import Tried
from benchmarks.report import Limit, table, verdicts
from benchmarks.suspects import Case

ONE = "1 culprit"
TWO = "2 nodes together"
THREE = "3 nodes together"
TWELVE = "12 nodes together"
FOUR = "4 culprits"
JOIN = suspects.joined().kind
SHOWN = narrow.PLAIN
VANISHED = narrow.SHY
BISECT = "polygraphy bisect"
LINEAR = "polygraphy linear"
OF_PEER = 0.75  # of polygraphy's runs and nodes
RUNS_SHOWN, RUNS_VANISHED = (
    4,
    12,
)  # one culprit: baseline, profile, itself, the rest; log2 256 + 2, profile, the rest
COMPILED = 2.5  # times the nodes of the model
INTERACTION = {TWO: 9, THREE: 15}  # runs
PARTS = ("table", "compiling", "growth")


@dataclass(frozen=True)
class Row:
    """A tool's attempts at cases of one kind."""

    kind: str
    tool: str
    tried: tuple[Tried, ...]

    def mean(self, figure: Callable[[Tried], float]) -> float:
        return statistics.fmean(map(figure, self.tried))

    @property
    def right(self) -> bool:
        return all(t.right for t in self.tried)


def needed_runs(t: Tried) -> float:
    """Runs, those apart that only make sure, or try the wrapper."""
    return (t.said[0] if t.said else t.runs) - t.sure[0]


def times(t: Tried) -> float:
    """Nodes compiled, over the model's."""
    return t.compiled / narrow.nodes_of(t.case)


def needed_times(t: Tried) -> float:
    return (t.compiled - t.sure[1]) / narrow.nodes_of(t.case)


def cases(quick: bool) -> list[Case]:
    """In the order of the table."""
    many, some, few = (2, 1, 1) if quick else (5, 3, 2)
    return [
        *suspects.together(ONE, 1, many),
        *suspects.together(TWO, 2, some),
        *suspects.together(THREE, 3, some),
        *suspects.together(TWELVE, 12, few),
        *suspects.apart("2 culprits", 2, few),
        *suspects.apart(FOUR, 4, few),
        suspects.joined(),
        suspects.first(),
        suspects.healthy(),
        suspects.sampled(),
    ]


def attempts(chosen: Sequence[Case], linear: frozenset[str]) -> list[Tried]:
    """Each case by each tool; the linear mode on the first case of the kinds in `linear`. Told as
    they come."""
    narrow.prepare()
    found = []
    for case in chosen:
        tools: list[Callable[[], Tried]] = [lambda c=case: narrow.ours(c)]  # type: ignore[misc]
        if case.kind in INTERACTION or case.kind in (ONE, TWELVE, FOUR, JOIN):
            tools.append(lambda c=case: narrow.ours(c, shy=True))  # type: ignore[misc]
        tools.append(lambda c=case: narrow.theirs(c, "bisect"))  # type: ignore[misc]
        if case.kind in linear:
            linear -= {case.kind}
            tools.append(lambda c=case: narrow.theirs(c, "linear"))  # type: ignore[misc]
        for tool in tools:
            t = tool()
            found.append(t)
            told = (
                f"{t.runs} runs, {t.compiled} nodes, {t.seconds:.1f} s,"
                f" {'right' if t.right else 'wrong'}"
            )
            print(f"  {case.kind} {case.faults}  {t.tool}: {told}", file=sys.stderr, flush=True)
    return found


def rows(tried: Sequence[Tried]) -> list[Row]:
    """One per kind and tool, in the order in which they came."""
    keys = dict.fromkeys((t.case.kind, t.tool) for t in tried)
    return [
        Row(kind, tool, tuple(t for t in tried if (t.case.kind, t.tool) == (kind, tool)))
        for kind, tool in keys
    ]


# ------------------------------------------------------------------------------------------------
# limits


def limits(found: Sequence[Row]) -> Iterator[Limit]:
    """What must hold of the table. Runs that only make sure are counted apart."""
    at = {(row.kind, row.tool): row for row in found}
    shown = at[ONE, SHOWN]
    vanished = at[ONE, VANISHED]
    peer = at[ONE, BISECT]
    yield Limit("1 culprit, runs", RUNS_SHOWN, shown.mean(needed_runs))
    yield Limit("1 culprit, probe-sensitive, runs", RUNS_VANISHED, vanished.mean(needed_runs))
    for row, words in ((shown, ""), (vanished, ", probe-sensitive")):
        apart = row.mean(lambda t: needed_times(t) - t.looks[1] / narrow.nodes_of(t.case))
        yield Limit(f"1 culprit{words}, compiled / N, profile and tail apart", COMPILED, apart)
    runs = shown.mean(needed_runs) / peer.mean(needed_runs)
    nodes = shown.mean(needed_times) / peer.mean(times)
    yield Limit("1 culprit, runs ÷ polygraphy's", OF_PEER, runs)
    yield Limit("1 culprit, compiled ÷ polygraphy's", OF_PEER, nodes)
    for kind, most in INTERACTION.items():
        yield Limit(f"{kind}, runs", most, at[kind, SHOWN].mean(needed_runs))
    yield Limit(
        "join: nodes of the answer beyond the truth",
        0,
        abs(at[JOIN, SHOWN].mean(lambda t: t.size) - 3),
    )
    wrong = sorted({row.kind for row in found if row.tool in (SHOWN, VANISHED) and not row.right})
    yield Limit("answers that are not exactly the truth", 0, len(wrong), ", ".join(wrong))
    off = [
        f"{t.case.kind}: {t.said} ≠ {(t.runs, t.compiled)}"
        for row in found
        for t in row.tried
        if miscounted(t)
    ]
    yield Limit("counts that differ from the candidate's log", 0, len(off), "; ".join(off[:2]))


def miscounted(t: Tried) -> bool:
    """Does it say another number of runs than the log?

    What agrees is run once more, to try the wrapper.
    """
    return bool(t.case.truth) and t.said is not None and t.said[0] != t.runs


# ------------------------------------------------------------------------------------------------
# rendering


def markdown(found: Sequence[Row]) -> str:
    """The table: means over the cases of a kind."""
    lines = []
    for row in found:
        mine = row.tool in (SHOWN, VANISHED)
        number = "" if len(row.tried) == 1 else f" ({len(row.tried)} cases)"
        size = row.mean(lambda t: t.size)
        truth = row.mean(lambda t: sum(map(len, t.case.truth)))
        lines.append(
            [
                row.kind + number,
                row.tool,
                f"{row.mean(needed_runs):.1f}"
                + (f" (+ {row.mean(lambda t: t.sure[0]):.1f})" if mine else ""),
                f"{row.mean(needed_times):.1f}"
                + (
                    f" (+ {row.mean(lambda t: t.sure[1] / narrow.nodes_of(t.case)):.1f})"
                    if mine
                    else ""
                ),
                f"{row.mean(lambda t: t.seconds):.1f}",
                f"{size:.3g} → {truth:.3g}",
                "yes" if row.right else "**no**",
            ]
        )
    return table(
        ["fault", "tool", "runs", "compiled / N", "seconds", "nodes: answer → truth", "right"],
        lines,
    )


NOTE = """Means. In brackets: runs, and nodes, that only make sure (the whole model once more in another process, the
answer in fresh processes); polygraphy has none of these. N = 256, for the join and the two inputs 37. Probe-sensitive:
reading intermediate tensors makes the fault vanish, so that a profile shows nothing. Polygraphy's linear mode was run
on the first case of a kind only. Its seconds hold a Python and an onnxruntime that start for each check,
ours those that start for fresh processes."""  # noqa: E501


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer cases, smaller models, no linear mode"
    )
    parser.add_argument(
        "--linear", action="store_true", help="polygraphy's linear mode on each kind"
    )
    parser.add_argument("--only", default=",".join(PARTS), help="parts to measure, by comma")
    asked = parser.parse_args(arguments)
    parts = asked.only.split(",")
    command = " ".join(["python", "-m", "benchmarks.search", *arguments])
    texts = [f"`{command}` on {machine.line(floor(), 'polygraphy')}"]
    kept: list[Limit] = []
    data: dict[str, object] = {}
    if "table" in parts:
        chosen = cases(asked.quick)
        kinds = (
            frozenset(c.kind for c in chosen)
            if asked.linear
            else frozenset(() if asked.quick else (ONE, JOIN))
        )
        found = rows(attempts(chosen, kinds))
        kept += limits(found)
        data["table"] = [_plain(t) for row in found for t in row.tried]
        texts += [markdown(found), NOTE]
    if "compiling" in parts:
        costs = compiling.measure(asked.quick)
        kept += compiling.limits(costs)
        data["compiling"] = list(map(asdict, costs))
        texts.append(compiling.markdown(costs))
    if "growth" in parts:
        sizes = growth.measure(asked.quick)
        kept += growth.limits(sizes)
        data["growth"] = list(map(asdict, sizes))
        texts.append(growth.markdown(sizes))
    texts.append(verdicts(kept))
    data["limits"] = [asdict(limit) | {"kept": limit.kept} for limit in kept]
    text = "\n\n".join(texts)
    (narrow.FOLDER / "search.md").write_text(text + "\n")
    (narrow.FOLDER / "search.json").write_text(
        json.dumps({"command": command, **data}, indent=1) + "\n"
    )
    print(text)
    return 0 if all(limit.kept for limit in kept) else 1


def _plain(t: Tried) -> dict[str, object]:
    whole = {
        "kind": t.case.kind,
        "tool": t.tool,
        "truth": t.case.sets,
        "answer": sorted(map(sorted, t.answer)),
    }
    return whole | {
        "runs": t.runs,
        "compiled": t.compiled,
        "sure": t.sure,
        "looks": t.looks,
        "seconds": t.seconds,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
