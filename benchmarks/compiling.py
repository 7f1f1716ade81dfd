"""The full-width ResNet-50, one node wrong, a candidate whose cost is in compiling: what a
certified answer costs.

The candidate waits 30 ms per node while it loads a model, as converters for accelerators do. The
unit is one full run of it (load and run) and one capture of all tensors (onnxruntime builds, runs,
and writes them as .npy), each a process of its own: `python -m benchmarks.compiling full|capture
MODEL PICTURE FOLDER CULPRIT`. The whole command counts, from its start to its end, less the
baseline's second run. The criterion is the default one, which shakes the reference, and for one
node also a fixed tolerance.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from benchmarks import faulty, narrow
from benchmarks.report import Limit, table
from fixtures.resnet50 import build

COMPILE = 0.03  # seconds per node
CULPRITS = ("res2b_branch2b", "res3d", "res5c_branch2c")  # Conv, Add, Conv; early, middle, late
MIDDLE = CULPRITS[1:2]
UNITS = 3.5
PARTS = ("baseline", "again", "profile", "gallop", "halve", "shrink", "confirm", "tail")


@dataclass(frozen=True)
class Cost:
    """One bisection. Seconds; `parts`: the candidate's own, by purpose; `full`, `capture`: the
    unit."""

    culprit: str
    criterion: str
    seconds: float
    parts: dict[str, float]
    answer: list[list[str]]
    certified: bool
    full: float
    capture: float

    @property
    def right(self) -> bool:
        return self.answer == [[self.culprit]] and self.certified

    @property
    def rest(self) -> float:
        """Seconds outside the candidate: reference, processes, files, judging."""
        return self.seconds - sum(self.parts.values())

    @property
    def units(self) -> float:
        return (self.seconds - self.parts.get("again", 0.0)) / (self.full + self.capture)


def measure(quick: bool) -> list[Cost]:
    """One bisection per culprit, and one more with a fixed tolerance; the unit is measured before
    each."""
    narrow.empty("compiling")
    model = narrow.FOLDER / "resnet50.onnx"
    if not model.exists():
        onnx.save(build(), model)
    asked = [("noise", name) for name in (MIDDLE if quick else CULPRITS)]
    asked += [(narrow.CRITERION, name) for name in MIDDLE]
    return [_cost(model, name, rule) for rule, name in asked]


def _cost(model: Path, culprit: str, criterion: str) -> Cost:
    folder = narrow.empty("compiling")
    picture = folder / "picture.npy"
    np.save(picture, np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32))
    full, capture = (
        _process(what, model, picture, folder, culprit) for what in ("full", "capture")
    )
    candidate = narrow.spec(faults=culprit, compile=COMPILE)
    words: narrow.Words = [
        "bisect",
        model,
        "-i",
        picture,
        "-c",
        candidate,
        "--criterion",
        criterion,
        "--json",
    ]
    document, seconds = narrow.bisected(words, folder)
    parts: dict[str, float] = {}
    for step in document["steps"]:
        parts[step["purpose"]] = parts.get(step["purpose"], 0.0) + step["seconds"]
    found = document["findings"]
    answer = sorted(narrow.regions(found))
    certified = all(f["certified"] for f in found)
    return Cost(culprit, criterion, seconds, parts, answer, certified, full, capture)


def _process(*words: object) -> float:
    """Wall seconds of this module with these words."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "benchmarks.compiling", *map(str, words)], check=True)
    return time.perf_counter() - begin


def full(model: Path, picture: Path, folder: Path, culprit: str) -> None:
    """The candidate on the whole model."""
    given = faulty.load(model, {"faults": culprit, "compile": str(COMPILE)})(
        {"data": np.load(picture)}
    )
    for name, value in given.items():
        np.save(folder / f"full-{name}.npy", value)


def capture(model: Path, picture: Path, folder: Path, _: str) -> None:
    """onnxruntime on the whole model with all tensors as outputs, written as .npy."""
    made = onnx.load(model)
    types = {info.name: info for info in made.graph.value_info}
    made.graph.output.extend(
        types[n] for node in made.graph.node for n in node.output if n in types
    )
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = len(os.sched_getaffinity(0))
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]
    for k, value in enumerate(session.run(names, {"data": np.load(picture)})):
        np.save(folder / f"capture{k}.npy", value)


def limits(costs: Sequence[Cost]) -> Iterator[Limit]:
    """The median over the culprits, for each criterion."""
    for criterion, some in _by_criterion(costs).items():
        what = f"ResNet-50, {criterion}: units of one full run and one capture"
        yield Limit(what, UNITS, statistics.median(c.units for c in some))
    wrong = [c.culprit for c in costs if not c.right]
    yield Limit(
        "ResNet-50, answers that are not the culprit, certified", 0, len(wrong), ", ".join(wrong)
    )


def _by_criterion(costs: Sequence[Cost]) -> dict[str, list[Cost]]:
    names = dict.fromkeys(c.criterion for c in costs)
    return {name: [c for c in costs if c.criterion == name] for name in names}


def markdown(costs: Sequence[Cost]) -> str:
    """A line per bisection."""
    shown = [p for p in PARTS if any(p in c.parts for c in costs)]
    lines = []
    for c in costs:
        name = f"{c.culprit}, {c.criterion}" if c.right else f"{c.culprit}, {c.criterion} **wrong**"
        figures = [
            c.seconds,
            c.units,
            c.full,
            c.capture,
            *(c.parts.get(p, 0.0) for p in shown),
            c.rest,
        ]
        lines.append([name, *(f"{figure:.2f}" for figure in figures)])
    medians = [
        f"{name} {statistics.median(c.units for c in some):.2f}"
        for name, some in _by_criterion(costs).items()
    ]
    note = (
        f"Seconds; a candidate that takes {1000 * COMPILE:.0f} ms per node to compile. units: the"
        " whole command less the baseline's second run, over one full run and one capture, each a"
        f" process; medians: {', '.join(medians)}. By purpose: inside the candidate. rest: the"
        " reference, processes, files, judging."
    )
    head = [
        "ResNet-50, wrong node, criterion",
        "whole",
        "units",
        "full run",
        "capture",
        *shown,
        "rest",
    ]
    return table(head, lines) + "\n\n" + note


if __name__ == "__main__":
    _model, _picture, _folder = map(Path, sys.argv[2:5])
    {"full": full, "capture": capture}[sys.argv[1]](_model, _picture, _folder, sys.argv[5])
