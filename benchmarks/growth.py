"""Chains of 1,000 to 50,000 nodes, one of them wrong: what a whole bisection costs us, and what it
costs onnxruntime.

Ours is all CPU time of the command and of the processes that it starts, less what the candidate and
the reference log of their own loading and running: both are `benchmarks.faulty`, the reference
without a fault. Beside it: plain onnxruntime builds and runs the same model with all tensors as
outputs.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from benchmarks import narrow, suspects
from benchmarks.report import Limit, table

SIZES = (1_000, 5_000, 10_000, 50_000)
QUICK = (1_000, 5_000)
NOISE = (
    1.15  # between runs; a model that no longer fits the processor's caches is slower per node, too
)


@dataclass(frozen=True)
class Size:
    """One bisection. CPU seconds, but for `wall`.

    Attributes:
        main: of the command's own process, in which no runtime runs. helpers: of the processes that
            it starts, without the candidate's and the reference's own. candidate, reference: these.
            plain: onnxruntime alone, all tensors
            read, wall. right: the answer is the culprit.
    """

    nodes: int
    wall: float
    main: float
    helpers: float
    candidate: float
    reference: float
    plain: float
    right: bool

    @property
    def own(self) -> float:
        return self.main + self.helpers


def measure(quick: bool) -> list[Size]:
    """One bisection per size."""
    return [_size(nodes) for nodes in (QUICK if quick else SIZES)]


def _size(nodes: int) -> Size:
    folder = narrow.empty("growth")
    model = folder / "chain.onnx"
    suspects.chain(model, nodes)
    np.save(folder / "x.npy", suspects.sample(0))
    logs = [folder / "candidate", folder / "reference"]
    for log in logs:
        log.mkdir()
    culprit = f"n{nodes // 2}"
    words: narrow.Words = [
        "bisect",
        model,
        "-i",
        "x.npy",
        "-c",
        narrow.spec(log=logs[0], faults=culprit),
    ]
    words += ["--reference", narrow.spec(log=logs[1]), "--criterion", narrow.CRITERION, "--json"]
    begin = time.perf_counter()
    with (folder / "said").open("wb") as said, (folder / "told").open("wb") as told:
        run = subprocess.Popen(
            [narrow.BIN / "subcut", *words],
            cwd=folder,
            env=narrow.environment(),
            stdout=said,
            stderr=told,
        )
        main, all_ = _times(run)
    wall = time.perf_counter() - begin
    candidate, reference = (_logged(log) for log in logs)
    document = json.loads((folder / "said").read_text() or "{}")
    right = [f["nodes"] for f in document.get("findings", [])] == [[culprit]]
    return Size(
        nodes,
        wall,
        main,
        all_ - main - candidate - reference,
        candidate,
        reference,
        _plain(model),
        right,
    )


def _times(run: subprocess.Popen[bytes]) -> tuple[float, float]:
    """CPU seconds of a process alone, and with all it waited for; read when it has ended and is not
    reaped yet."""
    os.waitid(os.P_PID, run.pid, os.WEXITED | os.WNOWAIT)
    fields = Path(f"/proc/{run.pid}/stat").read_text().rpartition(")")[2].split()
    user, system, waited_user, waited_system = (
        int(f) / os.sysconf("SC_CLK_TCK") for f in fields[11:15]
    )
    run.wait()
    return user + system, user + system + waited_user + waited_system


def _logged(folder: Path) -> float:
    lines = (folder / "log").read_text().splitlines() if (folder / "log").exists() else []
    return sum(float(line.split()[3]) for line in lines)


def _plain(model: Path) -> float:
    """Seconds in which onnxruntime builds and runs a model with all its tensors as outputs."""
    made = onnx.load(model)
    known = {o.name for o in made.graph.output}
    for name in [n for node in made.graph.node for n in node.output if n not in known]:
        made.graph.output.add().name = name
    begin = time.perf_counter()
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )
    session.run(None, {"x": suspects.sample(0)})
    return time.perf_counter() - begin


def limits(sizes: Sequence[Size]) -> Iterator[Limit]:
    """From each size to the next: our CPU time grows no more than the nodes do."""
    for less, more in pairwise(sizes):
        what = f"growth {less.nodes:,} → {more.nodes:,}: our CPU time ÷ nodes"
        yield Limit(what, NOISE, more.own / less.own / (more.nodes / less.nodes))
    yield Limit("growth: answers that are not the culprit", 0, sum(not s.right for s in sizes))


def markdown(sizes: Sequence[Size]) -> str:
    first = sizes[0]
    lines = []
    for s in sizes:
        cells = [s.wall, s.own, s.main, s.helpers, s.candidate, s.reference, s.plain]
        per_node = 1e3 * s.own / s.nodes
        ratio = s.own / s.nodes / (first.own / first.nodes)
        name = f"{s.nodes:,}" if s.right else f"{s.nodes:,} **wrong**"
        lines.append([name, *(f"{c:.2f}" for c in cells), f"{per_node:.2f}", f"{ratio:.2f}"])
    head = [
        "nodes",
        "wall",
        "ours",
        "command",
        "helpers",
        "candidate",
        "reference",
        "onnxruntime alone",
    ]
    note = (
        "CPU seconds, but for wall. ours: command (its own process) and helpers (the processes it"
        " starts, without the candidate's and the reference's loading and running). onnxruntime"
        " alone: the model once, all tensors read."
    )
    return table([*head, "ours, ms per node", "of that at first"], lines) + "\n\n" + note
