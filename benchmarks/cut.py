"""`make bench`: what a cut costs, beside the peers, in one run of everything on one machine.

    python -m benchmarks.cut [--models A,B,C,D] [--runs 5] [--skip-peers] [--quick]

Three questions, each with limits: the cut alone on four large models; its growth with the number of
nodes; the cut with its capture beside the least that such a run must do. Models and results lie in
build/bench/. Exit 1 if any limit is not kept.

This process measures others, so it imports only the standard library: models are made, prepared and
verified in processes of their own. See benchmarks.measure for what is measured, and how.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine, report
from benchmarks.measure import Result, Task, floor, interleave, warm
from fixtures import large
from fixtures.large import Edge, Large

ROOT = Path(__file__).parent.parent
FOLDER = Path("build/bench")
PYTHON = sys.executable
SUBCUT = str(Path(sys.executable).with_name("subcut"))
PEERS = ("onnx.utils", "onnx.utils-bare", "onnx_ir", "onnx-graphsurgeon", "polygraphy")
GROWTH = ("B-10000", "B-20000", "B-40000", "B", "B-160000")


@dataclass(frozen=True)
class Subject:
    """A model, one edge of it, and the prefix of the files that benchmarks.prepare made for the
    two."""

    name: str
    model: Large
    edge: Edge
    prefix: Path

    @property
    def words(self) -> list[str]:
        """The edge as the peers, and our own scripts, are told it."""
        return [",".join(self.edge.start_tensors), ",".join(self.edge.end_tensors)]

    def prepared(self, suffix: str) -> str:
        return f"{self.prefix}.{suffix}"


def call(module: str, *arguments: str) -> str:
    """Run one of our own modules, not measured; its output. Raises CalledProcessError if it
    fails."""
    command = [PYTHON, "-m", module, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def subject(name: str, middle: bool = False) -> Subject:
    """Make the model and what is prepared for its edge, where they are not there yet."""
    model = large.record(FOLDER, name)
    edge = model.middle if middle else model.edge
    where = "middle" if middle else "near"
    print(f"preparing {name}, {where}", file=sys.stderr)
    call("fixtures.large", str(FOLDER), name)
    made = Subject(f"{name} {where}", model, edge, FOLDER / f"{name}.{where}")
    call("benchmarks.prepare", str(model.path), *made.words, str(made.prefix))
    return made


# Commands


def subcut(what: Subject, *options: str) -> Task:
    edge = ["--start", what.edge.start, "--end", what.edge.end]
    command = [SUBCUT, "cut", str(what.model.path), *edge, *options, "--force", "-o"]
    return Task("subcut", what.name, lambda folder: [*command, str(folder)])


def peer(tool: str, what: Subject) -> Task:
    command = [PYTHON, "-m", "benchmarks.peers", tool, str(what.model.path), *what.words]
    return Task(tool, what.name, lambda folder: [*command, str(folder / "model.onnx")])


def minimal(what: Subject) -> Task:
    command = [
        PYTHON,
        "-m",
        "benchmarks.minimal",
        what.prepared("ancestors.onnx"),
        what.prepared("cut.onnx"),
    ]
    return Task("minimal", what.name, lambda folder: [*command, str(folder)])


# Rounds


def verified(what: Subject) -> Callable[[Task, Path], tuple[int | None, str]]:
    """A check of what a tool left behind: nodes, and what is wrong."""

    def check(task: Task, folder: Path) -> tuple[int | None, str]:
        if (
            task.tool == "minimal"
        ):  # it makes no model; what it runs was judged when it was prepared
            return None, ""
        cuts = sorted(folder.rglob("model.onnx"))
        if len(cuts) != 1:
            return None, f"left {len(cuts)} models behind"
        try:
            verdict = json.loads(
                call("benchmarks.verify", str(cuts[0]), *what.words, what.prepared("npz"))
            )
        except subprocess.CalledProcessError:
            return None, "its output does not load or run"
        return verdict["nodes"], verdict["problem"]

    return check


def measured(what: Subject, tasks: list[Task], runs: int, *more: Path) -> list[Result]:
    """All tasks of one subject, its files in the page cache."""
    warm([*large.files(what.model), *more])
    with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
        return interleave(tasks, runs, Path(scratch), verified(what))


def bench_cut(models: list[str], runs: int, peers: tuple[str, ...]) -> list[Result]:
    """Ours and every peer on each model, without capture."""
    results = []
    for name in models:
        what = subject(name)
        tasks = [subcut(what, "--no-capture"), *(peer(tool, what) for tool in peers)]
        results += measured(what, tasks, runs)
    return results


def bench_growth(names: tuple[str, ...], runs: int) -> list[Result]:
    """Ours on B with twice the nodes each time, the same 200 kept."""
    results = []
    for name in names:
        what = subject(name)
        results += measured(what, [subcut(what, "--no-capture")], runs)
    return results


def bench_capture(models: list[str], runs: int) -> list[Result]:
    """Ours with capture and the minimal script, on both edges of each model."""
    results = []
    for name in models:
        for middle in (False, True):
            what = subject(name, middle)
            ready = [Path(what.prepared(suffix)) for suffix in ("ancestors.onnx", "cut.onnx")]
            results += measured(what, [subcut(what), minimal(what)], runs, *ready)
    return results


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cut", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--models", default=",".join(large.NAMES), help="which of A,B,C,D (default all)"
    )
    parser.add_argument(
        "--runs", type=int, default=5, help="runs that count, after one that warms up"
    )
    parser.add_argument("--skip-peers", action="store_true", help="measure only subcut")
    parser.add_argument(
        "--quick", action="store_true", help="one run, no peers, growth to 40,000 nodes"
    )
    parsed = parser.parse_args(arguments)
    if unknown := set(parsed.models.split(",")) - set(large.NAMES):
        parser.error(
            f"--models: no model {', '.join(sorted(unknown))}; there are {', '.join(large.NAMES)}"
        )
    if parsed.runs < 1:
        parser.error("--runs: at least 1")
    return parsed


def main(arguments: list[str]) -> int:
    asked = options(arguments)
    models = asked.models.split(",")
    runs = 1 if asked.quick else asked.runs
    peers = () if asked.quick or asked.skip_peers else PEERS
    FOLDER.mkdir(parents=True, exist_ok=True)
    bench = report.Bench(
        command=shlex.join(["python", "-m", "benchmarks.cut", *arguments]),
        machine=machine.describe(floor()),
        runs=runs,
        cut=bench_cut(models, runs, peers),
        growth=bench_growth(GROWTH[:3] if asked.quick else GROWTH, runs) if "B" in models else [],
        capture=bench_capture(models, runs),
    )
    text = report.markdown(bench)
    (FOLDER / "cut.md").write_text(text)
    (FOLDER / "cut.json").write_text(json.dumps(report.document(bench), indent=1) + "\n")
    print(text)
    return 0 if all(limit.kept for limit in report.limits(bench)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
