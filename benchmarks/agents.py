"""Tasks -> how far a program comes that reads only `--brief` and runs only what `next` names.

Each task is a model and a candidate that is wrong: a planted fault at one or two nodes of a seeded
network, or a typical mistake of a wrapper. The agent begins with `subcut compare`; it reads the
answer and runs the first command of `next`, until an answer has a certified finding, until no
command follows, or after `MAX_COMMANDS`. A fault is solved if the first finding names exactly its
nodes; a mistake is solved if the headline has the words that name it, with exit code 4.

    python -m benchmarks.agents [--folder DIR] [--only NAME]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from fixtures import networks
from subgraph.demo.files import make_files

MAX_COMMANDS = 6
SINGLE = 6  # faults at one node, per network
FAULTY = Path(__file__).with_name("faulty.py")
NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "vision": networks.vision,
    "transformer": networks.transformer,
    "speech": networks.speech,
}
# Operators whose outputs are codes, sizes or saturate: an added amount cannot be seen behind them.
UNSEEN = frozenset(("Shape", "Constant", "ArgMax", "Softmax", "Cast", "Gather", "Tile", "Range"))

# By name: what a wrapper does to its inputs or its outputs, and a word of the headline.
WRAPPER = '''"""onnxruntime behind a wrapper with a mistake."""

import numpy as np
import onnxruntime


def load(model, options):
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    kept = []

    def run(feeds):
{code}

    return run
'''
RIGHT = "dict(zip(names, session.run(names, feeds), strict=True))"
MISTAKES: dict[str, tuple[str, str]] = {
    "lists": (f"return {{n: v.tolist() for n, v in {RIGHT}.items()}}", "list"),
    "zeros": (f"return {{n: np.zeros_like(v) for n, v in {RIGHT}.items()}}", "zero"),
    "first": (f"kept.append({RIGHT}); return kept[0]", "again"),
    "bgr": (
        f"feeds = {{n: v[:, ::-1].copy() for n, v in feeds.items()}}; return {RIGHT}",
        "channel",
    ),
    "scaled": (
        f"feeds = {{n: v * np.float32(255) for n, v in feeds.items()}}; return {RIGHT}",
        "255",
    ),
    "ignored": (
        f"feeds = {{n: np.zeros_like(v) for n, v in feeds.items()}}; return {RIGHT}",
        "not passed on",
    ),
}


@dataclass(frozen=True)
class Task:
    """A model with a wrong candidate.

    Attributes:
        name: The name.
        model: The file.
        spec: The candidate, as `-c` takes it.
        nodes: The nodes that are wrong; none if the wrapper is.
        word: The word that the headline must have if the wrapper is wrong.
    """

    name: str
    model: Path
    spec: str
    nodes: frozenset[str] = frozenset()
    word: str = ""


@dataclass(frozen=True)
class Walk:
    """What the agent did in a task.

    Attributes:
        solved: Whether the last answer was exact.
        commands: The number of commands.
        size: The bytes that the agent read.
        says: The last headline.
    """

    solved: bool
    commands: int
    size: int
    says: str


def iter_tasks(folder: Path) -> Iterator[Task]:
    """Yield all tasks; their files are written into a folder."""
    for name, build in NETWORKS.items():
        model = folder / f"{name}.onnx"
        made = build()
        for k, node in enumerate(made.graph.node):
            node.name = f"{node.op_type.lower()}{k}"  # `faulty.py` splits names at + and /
        onnx.save(made, model)
        yield from _iter_faults(name, model, made.graph)
    demo = folder / "demo"
    demo.mkdir(exist_ok=True)
    for file, content in make_files().items():
        (demo / file).write_bytes(content)
    for name, (code, word) in MISTAKES.items():
        wrapper = folder / f"{name}.py"
        wrapper.write_text(WRAPPER.format(code=f"        {code}"), encoding="utf-8")
        yield Task(name, demo / "model.onnx", str(wrapper), word=word)


def _iter_faults(name: str, model: Path, graph: onnx.GraphProto) -> Iterator[Task]:
    rng = random.Random(name)
    seen = [node for node in graph.node if node.op_type not in UNSEEN]
    for node in rng.sample(seen, SINGLE):
        yield Task(
            f"{name}-{node.name}", model, f"{FAULTY}:faults={node.name}", frozenset([node.name])
        )
    writers = {output: node for node in seen for output in node.output}
    pairs = [
        (writers[read].name, node.name) for node in seen for read in node.input if read in writers
    ]
    for pair in rng.sample(pairs, 2):
        faults = "+".join(pair)
        yield Task(f"{name}-{faults}", model, f"{FAULTY}:faults={faults}", frozenset(pair))


def walk(task: Task, folder: Path) -> Walk:
    """Return what the agent does in a task, in a folder of its own."""
    words = ["subcut", "compare", str(task.model), "-c", task.spec]
    size = 0
    commands = 0
    while True:
        answer, read = _ask(words, folder)
        size += read
        commands += 1
        following = [one["argv"] for one in answer["next"]]
        if task.word or answer["findings"] or not following or commands == MAX_COMMANDS:
            break
        words = following[0]
    return Walk(_is_exact(task, answer), commands, size, answer["says"])


def _is_exact(task: Task, answer: dict[str, Any]) -> bool:
    if task.word:
        return answer["exit_code"] == 4 and task.word in answer["says"]
    found = answer["findings"][:1]
    return [frozenset(finding["nodes"]) for finding in found] == [task.nodes]


def _ask(words: Sequence[str], folder: Path) -> tuple[dict[str, Any], int]:
    """Return the brief answer of a command, and its bytes."""
    done = subprocess.run(
        [sys.executable, "-m", "subgraph", *words[1:], "--brief", "-q"],
        cwd=folder,
        capture_output=True,
        check=False,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    return json.loads(done.stdout), len(done.stdout)


def main() -> None:
    """Run all tasks and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="agents-"))
    folder.mkdir(parents=True, exist_ok=True)
    walks = []
    for task in iter_tasks(folder):
        if options.only not in task.name:
            continue
        place = folder / "walks" / task.name.replace("/", "_")
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        found = walk(task, place)
        walks.append(found)
        mark = "ok " if found.solved else "NOT"
        print(
            f"{mark} {task.name:<44} {found.commands} {found.size:>6} B  {found.says}", flush=True
        )
    commands = statistics.median(found.commands for found in walks)
    size = statistics.median(found.size for found in walks)
    solved = sum(found.solved for found in walks)
    print(f"{solved} of {len(walks)}; in the median {commands} commands, {size:.0f} B")


if __name__ == "__main__":
    main()
