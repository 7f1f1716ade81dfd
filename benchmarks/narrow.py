"""A case -> what `subcut bisect` and `polygraphy debug reduce` make of it, and what it cost them.

Both doubt the same candidate, `benchmarks.faulty`, judge with the same tolerance, and are counted
in the candidate's own log. Polygraphy is used as its documentation advises: a check command of its
own that feeds captured values, and the inputs given to it as well (`--load-inputs`), for the
branches that it folds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime

from benchmarks import captured, faulty, suspects
from benchmarks.suspects import Case

FOLDER = Path("build/bench/search").resolve()
BACKEND = Path(faulty.__file__).resolve()
BIN = Path(sys.executable).parent
CRITERION = f"numpy:rtol={captured.RTOL},atol={captured.ATOL}"
PLAIN = "subcut"
SHY = "subcut, probe-sensitive"
SURE = ("again", "confirm")  # purposes of runs that only make sure
LOOKS = ("profile", "tail")  # of runs that look for what a yes/no search cannot know
Words: TypeAlias = list[str | Path]
ENDED = (0, 1, 5)  # exit codes of a bisection that came to an end; 5: inconclusive


class PeerFailed(RuntimeError):
    """The other tool itself came to no end; says how."""


@dataclass(frozen=True)
class Tried:
    """What a tool made of a case.

    Attributes:
        runs, compiled: by the candidate's log: models that it loaded, to run each on all inputs,
            and their nodes.
        sure: (runs, nodes) of these that only made sure: the baseline's second run, fresh
            processes.
        looks: (runs, nodes) of the profile and of asking whether the rest agrees.
        answer: the regions named. certified: so the tool says; polygraphy never does.
        said: what the tool counted itself, as (runs, nodes); None where it does not.
    """

    tool: str
    case: Case
    runs: int
    compiled: int
    seconds: float
    answer: frozenset[frozenset[str]]
    sure: tuple[int, int] = (0, 0)
    looks: tuple[int, int] = (0, 0)
    said: tuple[int, int] | None = None
    certified: bool = False

    @property
    def size(self) -> int:
        """Nodes of the answer."""
        return sum(map(len, self.answer))

    @property
    def right(self) -> bool:
        """Exactly the guilty nodes: ours set by set and certified, polygraphy's, which names one
        region, all in it."""
        if self.said is not None:
            return self.certified and self.answer == self.case.truth
        return set().union(*self.answer) == set().union(*self.case.truth)


def prepare() -> None:
    """The models, written once."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    suspects.chain(FOLDER / "chain.onnx", suspects.NODES)
    suspects.join(FOLDER / "join.onnx")


def nodes_of(case: Case) -> int:
    return suspects.NODES if case.model == "chain.onnx" else 3 * suspects.PART + 1


def empty(name: str) -> Path:
    """A new folder under ours."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SUBCUT_")}


def logged(folder: Path) -> tuple[int, int]:
    """Models loaded, and their nodes."""
    file = folder / "log"
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    nodes = [int(words[1]) for words in lines if words[0] == "load"]
    return len(nodes), sum(nodes)


def spec(**options: object) -> str:
    """The candidate with its options."""
    return f"{BACKEND}:" + ",".join(
        f"{name}={value}" for name, value in options.items() if value != ""
    )


# ------------------------------------------------------------------------------------------------
# ours


def ours(case: Case, *, shy: bool = False) -> Tried:
    """`shy`: reading intermediate tensors makes the fault vanish."""
    folder = empty("ours")
    (folder / "samples").mkdir()
    for k in range(case.samples):
        np.save(folder / "samples" / f"{k}.npy", suspects.sample(k))
    options = {"log": folder, "faults": case.faults, "shy": 1 if shy else ""}
    words: Words = ["bisect", FOLDER / case.model, "-i", "samples", "-c", spec(**options)]
    words += ["--criterion", CRITERION, "--keep-input", "--json"]
    document, seconds = bisected(words, folder)
    answer = frozenset(map(frozenset, regions(document["findings"])))
    said = document["trials"], document["compiled_nodes"]
    tool = SHY if shy else PLAIN
    sure = spent(document, SURE)
    looks = spent(document, LOOKS)
    certified = all(f["certified"] for f in document["findings"])
    return Tried(tool, case, *logged(folder), seconds, answer, sure, looks, said, certified)


def regions(findings: Iterable[dict[str, Any]]) -> list[list[str]]:
    """The nodes of each region that findings stand for."""
    return [r["nodes"] for r in chain.from_iterable((f, *f.get("repeats", ())) for f in findings)]


def bisected(words: Words, folder: Path) -> tuple[dict[str, Any], float]:
    """The document and the wall seconds of `subcut` with these words, run in a folder."""
    begin = time.perf_counter()
    done = subprocess.run(
        [BIN / "subcut", *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - begin
    if done.returncode not in ENDED:
        raise RuntimeError(
            f"subcut {words}: exit code {done.returncode}\n{done.stderr}{done.stdout}"
        )
    document: dict[str, Any] = json.loads(done.stdout)
    return document, seconds


def spent(document: dict[str, Any], purposes: tuple[str, ...]) -> tuple[int, int]:
    """Runs, and nodes compiled, for these purposes."""
    runs = sum(document["runs"].get(purpose, 0) for purpose in purposes)
    return runs, sum(step["count"] for step in document["steps"] if step["purpose"] in purposes)


# ------------------------------------------------------------------------------------------------
# polygraphy


def theirs(case: Case, mode: str) -> Tried:
    """`mode`: bisect or linear."""
    folder = empty("theirs")
    runtime = [faulty.__name__, f"log={folder}", f"faults={case.faults}"]
    names, seconds, _ = reduced(
        FOLDER / case.model, _captured(case.model, case.samples), runtime, folder, mode
    )
    return Tried(
        f"polygraphy {mode}", case, *logged(folder), seconds, frozenset([names] if names else [])
    )


def reduced(
    model: Path,
    captured: tuple[Path, Path],
    runtime: Sequence[str],
    folder: Path,
    mode: str = "bisect",
    python: str = sys.executable,
) -> tuple[frozenset[str], float, int]:
    """The nodes that `polygraphy debug reduce` ends with, its wall seconds, and how often it asked
    its check.

    `captured`: as `capture` gives it. `runtime`: as `benchmarks.captured` takes it, which
    `python` runs. Raises: PeerFailed.
    """
    values, inputs = captured
    piece = folder / "piece.onnx"
    result = folder / "reduced.onnx"
    replay = folder / "replay.json"
    check: Words = [python, "-m", "benchmarks.captured", piece, values, *runtime]
    words: Words = [
        "debug",
        "reduce",
        model,
        "-o",
        result,
        "--mode",
        mode,
        "--load-inputs",
        inputs,
        "--fail-code",
        "1",
    ]
    words += [
        "--iter-artifact",
        piece,
        "--save-debug-replay",
        replay,
        "--art-dir",
        folder / "artifacts",
    ]
    begin = time.perf_counter()
    done = subprocess.run(
        [BIN / "polygraphy", *words, "--check", *check], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise PeerFailed(
            f"polygraphy {model}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr}"
        )
    names = (
        frozenset(node.name for node in onnx.load(result).graph.node)
        if result.exists()
        else frozenset()
    )
    return names, seconds, len(json.loads(replay.read_text())) if replay.exists() else 0


@cache
def _captured(model: str, samples: int) -> tuple[Path, Path]:
    feeds = [{"x": suspects.sample(k)} for k in range(samples)]
    return capture(FOLDER / model, feeds, FOLDER / f"{Path(model).stem}-{samples}")


def capture(model: Path, feeds: Sequence[dict[str, Any]], stem: Path) -> tuple[Path, Path]:
    """All reference tensors of a model, as `tensor@sample` in one file, and its inputs as
    polygraphy takes them."""
    from polygraphy.json import save_json

    made = onnx.load(model)
    known = {o.name for o in made.graph.output}
    for name in (n for node in made.graph.node for n in node.output if n not in known):
        made.graph.output.add().name = name
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]
    values: dict[str, Any] = {}
    for k, fed in enumerate(feeds):
        values |= {f"{name}@{k}": value for name, value in fed.items()}
        values |= {f"{name}@{k}": v for name, v in zip(names, session.run(names, fed), strict=True)}
    np.savez(stem.with_suffix(".npz"), **values)
    save_json(list(feeds), str(stem.with_suffix(".json")))
    return stem.with_suffix(".npz"), stem.with_suffix(".json")
