"""A runtime with known faults and a known price: onnxruntime, for `-c
benchmarks/faulty.py:faults=n5+n6/n80`.

    faults   sets of node names, by `/`, the names in one by `+`: where all of a set are in one
    model, the last is wrong
    shy      1: a set is right where a tensor between its nodes, or before them, is also read as an
        output
    compile  seconds of waiting per node while a model is loaded: a converter's price
    log      a folder, whose file `log` gets a line per load and per run: `load NODES WALL CPU`,
    `run 0 WALL CPU`

Without options it is plain onnxruntime on one thread, optimizations off. What it logs is what the
benchmarks count, the same for every tool that asks it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

AMOUNT = 0.5  # what is added to the output of a node that is wrong

Run = Callable[[Mapping[str, Any]], dict[str, Any]]


def version() -> str:
    """It has one, as runtimes have."""
    return "1"


def load(model: Path, options: Mapping[str, str]) -> Run:
    """A session on the model with the faults in it."""
    made = onnx.load(model)
    nodes = len(made.graph.node)
    # the small model that tries a wrapper is no run of the user's model
    options = {} if made.graph.name == "preflight" else options
    with _noted(options, f"load {nodes}"):
        spoil(made.graph, options)
        time.sleep(float(options.get("compile", 0)) * nodes)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        settings.log_severity_level = 4
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(
            made.SerializeToString(), settings, providers=["CPUExecutionProvider"]
        )
    names = [o.name for o in session.get_outputs()]

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        with _noted(options, "run 0"):
            return dict(zip(names, session.run(names, dict(feeds)), strict=True))

    return run


@contextmanager
def _noted(options: Mapping[str, str], line: str) -> Iterator[None]:
    """Log what the block takes, also where it fails."""
    wall = time.perf_counter()
    cpu = time.process_time()
    try:
        yield
    finally:
        if options.get("log"):
            taken = f"{time.perf_counter() - wall:.6f} {time.process_time() - cpu:.6f}"
            with Path(options["log"], "log").open("a", encoding="utf-8") as file:
                file.write(f"{line} {taken}\n")


def spoil(graph: Any, options: Mapping[str, str]) -> None:
    """Build the faults in. Complexity: linear in the nodes."""
    place = {node.name: k for k, node in enumerate(graph.node)}
    made = {name for node in graph.node for name in node.output}
    read = {o.name for o in graph.output} & made if options.get("shy") else set()
    sets = [[n for n in words.split("+") if n] for words in options.get("faults", "").split("/")]
    wrong = []
    for names in sets:
        if names and all(n in place for n in names):
            nodes = [graph.node[place[n]] for n in names]
            if not any(name in read for node in nodes for name in node.input):
                wrong.append(place[names[-1]])
    for at in sorted(set(wrong), reverse=True):  # from behind: places before stay
        _off(graph, at)


def _off(graph: Any, at: int) -> None:
    """Let the first output of the node at this place be `AMOUNT` too large."""
    node = graph.node[at]
    name = node.output[0]
    node.output[0] = f"{name}/right"
    graph.initializer.append(
        numpy_helper.from_array(np.array(AMOUNT, np.float32), f"{name}/amount")
    )
    graph.node.insert(at + 1, helper.make_node("Add", [f"{name}/right", f"{name}/amount"], [name]))
