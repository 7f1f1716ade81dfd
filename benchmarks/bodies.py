"""A fault planted in one node of a body -> does a bisection name that node, the body, and the first
wrong iteration?

    python -m benchmarks.bodies [--seeds 200] [--first 0]

The networks are those of `fixtures.bodies`: If, Loop, Scan, a function, and these within each
other. In every second one with a Loop innermost the fault begins at a later iteration. A fault that
moves no output by a hundredth of its scale is not a fault, and such a seed is left out.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.report import table
from fixtures import bodies, bodies_wrong
from subgraph.graph.graph import load
from subgraph.questions.bisection.bisection import bisect
from subgraph.runtime.candidate import parse

MIN = 1e-2  # of an output's scale, what a fault must change
LATE = 2  # the iteration at which a fault begins in every second Loop


@dataclass(frozen=True)
class Outcome:
    """Attributes:
    named: the nodes of the innermost finding; path: of the bodies around them; iteration: the first
    wrong one there.
    """

    named: Sequence[str]
    path: Sequence[str]
    iteration: int | None
    why: str = ""

    def is_right(self, planted: bodies.Planted, first: int) -> bool:
        """Is the fault's node named alone, in its bodies, from the iteration on at which it begins?

        A fault from the beginning may show later: a factor changes no zero.
        """
        labels = [name.rsplit("/", 1)[-1] for name in self.named]
        return labels == [planted.node] and (not first or self.iteration == first)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    logging.getLogger("subcut").setLevel(logging.ERROR)
    right = Counter[str]()
    wrong = Counter[str]()
    left = 0
    seconds: dict[str, list[float]] = {}
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        found = run(seed)
        if found is None:
            left += 1
            continue
        planted, first, outcome, took = found
        kind = " in ".join(reversed(planted.kinds))
        (right if outcome.is_right(planted, first) else wrong)[kind] += 1
        seconds.setdefault(kind, []).append(took)
        if not outcome.is_right(planted, first):
            print(
                f"seed {seed}: {planted.kinds} {planted.node} from {first} on, but: {outcome}",
                flush=True,
            )
    rows = [
        [k, str(right[k]), str(wrong[k]), f"{np.median(seconds[k]):.1f} s"]
        for k in sorted({*right, *wrong})
    ]
    total = ["all", str(sum(right.values())), str(sum(wrong.values())), ""]
    print(table(["fault in", "right", "wrong", "median"], [*rows, total]))
    print(f"{left} seeds left out: their fault changes no output by a hundredth of its scale")


def run(seed: int) -> tuple[bodies.Planted, int, Outcome, float] | None:
    """(network, first wrong iteration, what was found, seconds) of a seed; None if its fault does
    nothing."""
    planted = bodies.planted(seed)
    first = LATE if planted.kinds[-1] == "Loop" and seed % 2 else 0
    options = {"node": planted.node} | ({"after": str(first)} if first else {})
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        onnx.save(planted.model, folder / "model.onnx")
        np.save(folder / "x.npy", bodies.values(seed))
        if not _matters(folder, options):
            return None
        begin = time.perf_counter()
        words = ",".join(f"{key}={value}" for key, value in options.items())
        bisection = bisect(
            load(folder / "model.onnx"),
            parse(f"{bodies_wrong.__file__}:{words}"),
            [str(folder / "x.npy")],
            output=folder,
        )
        for _ in bisection:
            pass
        return planted, first, outcome_of(bisection.document), time.perf_counter() - begin


def _matters(folder: Path, options: Mapping[str, str]) -> bool:
    fed = {"x": np.load(folder / "x.npy")}
    right = bodies_wrong.load(str(folder / "model.onnx"), {"node": ""})(fed)
    wrong = bodies_wrong.load(str(folder / "model.onnx"), options)(fed)
    return any(np.abs(right[n] - wrong[n]).max() > MIN * np.abs(right[n]).max() for n in right)


def outcome_of(document: Mapping[str, Any]) -> Outcome:
    """What the innermost finding is; with several findings, nothing that is one node."""
    findings = document["findings"]
    if len(findings) != 1:
        return Outcome(
            [name for f in findings for name in f["nodes"]], (), None, document["outcome"]
        )
    found = findings[0]
    path = list[str]()
    iteration = None
    while inner := found.get("inside"):
        if len(inner["findings"]) != 1:
            several = [name for f in inner["findings"] for name in f["nodes"]]
            return Outcome(
                several,
                (*path, inner["body"]),
                inner["iteration"],
                inner["why"] or inner["outcome"],
            )
        (found,), iteration = inner["findings"], inner["iteration"]
        path.append(inner["body"])
    return Outcome(found["nodes"], path, iteration)


if __name__ == "__main__":
    main()
