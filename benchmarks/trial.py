"""`make bench`: what a trial costs beyond the candidate's own work, and what two at once gain.

    python -m benchmarks.trial [--runs 5] [--quick]

Overhead: trials on single nodes of chains whose tensors have 4 KB, 64 KB and 1 MB, on a warm
worker: wall time less the candidate's own build and run. Moving: one node with 100 MB in and 100 MB
out, one that only takes and one that only gives them, beside np.save + np.load of the same 100 MB
in this process on the same disk; judging is counted apart. They are pieces of a model, as nearly
all trials of a search; a whole model is run three times in its session, and each run's output is
compared with the first one's: a row of its own. Jobs: a candidate that computes on one thread, two
at once against one after another. Exit 1 if a limit is not kept.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks import machine
from benchmarks.measure import floor
from subgraph.graph import graph, region
from subgraph.runtime import candidate
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.runtime.worker_pool import Workers
from subgraph.trials.open_trials import Setup, open_trials
from subgraph.trials.trial import Trials

FOLDER = Path("build/bench")
SIZES = {"4 KB": 1 << 10, "64 KB": 1 << 14, "1 MB": 1 << 18}  # elements of float32
LARGE = 100 * 1000 * 1000 // 4
MAX_OVERHEAD = 0.030  # seconds
MAX_MOVING = 1.5  # times np.save + np.load
MAX_MOVING_WHOLE = 3 * MAX_MOVING  # the candidate's two further runs are in it
MIN_GAIN = 1.6
CHAIN = 20
SIDE, DEPTH, BRANCHES = 1024, 12, 8  # of the compute-bound model


@dataclass(frozen=True)
class Row:
    """One figure and its limit; `least`: the limit is one from below."""

    what: str
    value: float
    limit: float
    unit: str
    least: bool = False

    @property
    def kept(self) -> bool:
        return self.value >= self.limit if self.least else self.value <= self.limit


def chain(path: Path, elements: int, nodes: int) -> Path:
    """Neg after Neg on a tensor of so many elements."""
    names = [f"t{i}" for i in range(nodes + 1)]
    made = [helper.make_node("Neg", [a], [b], name=b) for a, b in itertools.pairwise(names)]
    return save(path, made, [1, elements], [1, elements], names[0], names[-1])


def save(
    path: Path, nodes: list[onnx.NodeProto], taken: list[int], given: list[int], x: str, y: str
) -> Path:
    """A float32 model of these nodes from `x` to `y`."""
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in ((x, taken), (y, given))
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "bench", ends[:1], ends[1:]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(model, path)
    return path


def wide(path: Path, taken: int, given: int) -> Path:
    """A mean over what comes in, spread over what goes out; Neg where both are equal. Behind it is
    one node more."""
    if taken == given:
        return chain(path, taken, 2)
    shape = helper.make_node(
        "Constant", [], ["s"], value=numpy_helper.from_array(np.array([1, given], np.int64))
    )
    mean = helper.make_node("ReduceMean", ["x"], ["m"], axes=[1], keepdims=1, name="m")
    spread = helper.make_node("Expand", ["m", "s"], ["e"], name="e")
    nodes = [shape, mean, spread] if given > 1 else [mean]
    last = helper.make_node("Neg", [nodes[-1].output[0]], ["y"], name="last")
    return save(path, [*nodes, last], [1, taken], [1, given], "x", "y")


@contextlib.contextmanager
def opened(path: Path, spec: str, folder: Path) -> Iterator[Trials]:
    doubted = candidate.parse(spec)
    setup = Setup(doubted, Feeding(), folder, "numpy:rtol=1e-3,atol=1e-5")
    with (
        Reference() as reference,
        Workers(doubted) as workers,
        open_trials(graph.load(path), setup, reference, workers) as asked,
    ):
        asked.model.values.need([*asked.model.graph.inputs, *asked.model.graph.maker])
        asked.verdict(
            region.build_region(asked.model.graph, [len(asked.model.graph.nodes) - 1]),
            repetition=-1,
        )  # warms up
        yield asked


def overhead(elements: int, folder: Path) -> float:
    """Median seconds of a trial on one node beyond the candidate's own."""
    with opened(chain(folder / "chain.onnx", elements, CHAIN), "ort:threads=1", folder) as asked:
        found = []
        for i in range(CHAIN):
            one = region.build_region(asked.model.graph, [i])
            begin = time.perf_counter()
            verdict = asked.verdict(one)
            found.append(time.perf_counter() - begin - verdict.build - verdict.run)
            assert verdict.status == "agree" and not verdict.stored, verdict
    return statistics.median(found)


def moving(taken: int, given: int, runs: int, folder: Path, whole: bool = False) -> float:
    """Seconds of a trial on one node, or on the whole model, beyond the candidate's own and the
    judging, over np.save + np.load of 100 MB.
    """
    found = []
    plain = []
    values = np.random.default_rng(0).standard_normal(LARGE).astype(np.float32)
    with opened(wide(folder / "wide.onnx", taken, given), "ort:threads=1", folder) as asked:
        piece = (
            asked.model.whole()
            if whole
            else region.build_region(asked.model.graph, range(len(asked.model.graph.nodes) - 1))
        )
        for k in range(runs):
            begin = time.perf_counter()
            result = asked.run(piece, repetition=k)
            found.append(time.perf_counter() - begin - result.build - result.run)
            assert asked.judge.verdict(piece, result).status == "agree" and not result.stored, (
                result
            )
            begin = time.perf_counter()
            np.save(folder / "plain.npy", values)
            np.load(folder / "plain.npy")
            plain.append(time.perf_counter() - begin)
            (folder / "plain.npy").unlink()
    return statistics.median(found) / statistics.median(plain)


def heavy(path: Path) -> Path:
    """Branches of matrix products in a row, from one input; their sizes stay as they are."""
    weight = np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32) / np.float32(
        SIDE**0.5
    )
    nodes = []
    ends = []
    for b in range(BRANCHES):
        names = ["x", *(f"b{b}n{i}" for i in range(DEPTH))]
        nodes += [
            helper.make_node("MatMul", [a, "w"], [c], name=c) for a, c in itertools.pairwise(names)
        ]
        ends.append(helper.make_tensor_value_info(names[-1], TensorProto.FLOAT, [SIDE, SIDE]))
    taken = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [SIDE, SIDE])]
    made = helper.make_graph(nodes, "heavy", taken, ends, [numpy_helper.from_array(weight, "w")])
    onnx.save(
        helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
    return path


def gain(folder: Path) -> float:
    """Wall seconds of single-threaded trials one after another, over those of two at once, both on
    warm workers."""
    seconds = []
    folder.mkdir()
    for jobs in (1, 2):
        with (
            opened(heavy(folder / "heavy.onnx"), "ort:threads=1", folder / str(jobs)) as asked,
            ThreadPoolExecutor(jobs) as executor,
        ):
            branches = [range(b * DEPTH, (b + 1) * DEPTH) for b in range(BRANCHES)]
            regions = [region.build_region(asked.model.graph, nodes) for nodes in branches]
            warm = [
                executor.submit(asked.verdict, regions[0], repetition=-2 - k, fresh=False)
                for k in range(jobs)
            ]
            assert all(w.result().status == "agree" for w in warm)
            begin = time.perf_counter()
            assert all(
                v.status == "agree" and not v.stored for v in executor.map(asked.verdict, regions)
            )
            seconds.append(time.perf_counter() - begin)
    return seconds[0] / seconds[1]


def measure(runs: int) -> list[Row]:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as temporary:
        folder = Path(temporary)
        rows = [
            Row(f"overhead of a trial, {name}", overhead(n, folder) * 1e3, MAX_OVERHEAD * 1e3, "ms")
            for name, n in SIZES.items()
        ]
        shapes = {"in and out": (LARGE, LARGE), "in": (LARGE, 1), "out": (1, LARGE)}
        for name, (taken, given) in shapes.items():
            rows.append(
                Row(
                    f"moving 100 MB {name}, of np.save + np.load",
                    moving(taken, given, runs, folder),
                    MAX_MOVING,
                    "×",
                )
            )
        ratio = moving(LARGE, LARGE, runs, folder, whole=True)
        rows.append(
            Row("the same in and out of a whole model, three runs", ratio, MAX_MOVING_WHOLE, "×")
        )
        found = [gain(folder / f"gain{k}") for k in range(runs)]
        rows.append(
            Row("two at once (--jobs 2)", statistics.median(found), MIN_GAIN, "×", least=True)
        )
    return rows


def markdown(rows: list[Row], command: str) -> str:
    lines = [
        f"`{command}` on {machine.describe(floor())}",
        "",
        "| | measured | limit |",
        "|---|--:|--:|",
    ]
    for row in rows:
        sign = "≥" if row.least else "≤"
        note = "" if row.kept else " **missed**"
        lines.append(
            f"| {row.what} | {row.value:.2f} {row.unit}{note} | {sign} {row.limit:g} {row.unit} |"
        )
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.trial", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one run")
    asked = parser.parse_args(arguments)
    rows = measure(1 if asked.quick else asked.runs)
    text = markdown(rows, " ".join(["python", "-m", "benchmarks.trial", *arguments]))
    (FOLDER / "trial.md").write_text(text + "\n")
    (FOLDER / "trial.json").write_text(
        json.dumps([vars(r) | {"kept": r.kept} for r in rows], indent=1) + "\n"
    )
    print(text)
    return 0 if all(r.kept for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
