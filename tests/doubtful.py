"""A doubted runtime: onnxruntime with seeded faults. Used as a Python file, `-c tests/doubtful.py:fault=wrong,op=Neg`.

The fault is built into the model, behind the nodes that are meant, so that it is there in every cut that holds them.
Several words of one option are joined by `+`:

    fault   one of `FAULTS`, for the nodes that `op` or `nodes` mean
    op      op types
    nodes   names, all of which must be in one model (a fusion's fault): the last of them is wrong
    add     NAME:AMOUNT, always wrong by that much
    false   a name, wrong only where the node `without` is not in the model: what fails when it is cut out
    step    a name, wrong by 5 where what it reads is below 1.005, else by 0.5: garbage that hangs on the last bits
    drop    a tensor that it never gives
    log     a folder, whose file `log` gets a line per load and per run (a file would be part of the candidate)
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

MULTI = True
FAULTS = {"wrong": 0.5, "drift": 0.01, "nan": float("nan"), "inf": float("inf")}  # what is added
HERE = str(Path(__file__).resolve())

Run = Callable[[Mapping[str, Any]], dict[str, Any]]


def version() -> str:
    """It has one, as runtimes have."""
    return "1"


def load(model: Path, options: Mapping[str, str]) -> Run:
    """A session on the model with the faults in it."""
    made = onnx.load(model)
    spoil(made.graph, options)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = 1, 4
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(made.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    _note(options, f"load {len(made.graph.node)}")

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        _note(options, "run")
        found = dict(zip(names, session.run(names, dict(feeds)), strict=True))
        return {name: value for name, value in found.items() if name != options.get("drop")}

    return run


def _note(options: Mapping[str, str], line: str) -> None:
    if options.get("log"):
        with Path(options["log"], "log").open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {line}\n")


def spoil(graph: Any, options: Mapping[str, str]) -> None:
    """Build the faults in."""
    for node, amount in list(_additions(graph, options)):
        _behind(graph, node, [("CastLike", ["@amount", "@right"], "@cast"), ("Add", ["@right", "@cast"], "@")], amount)
    if options.get("step") and (node := _names(graph).get(options["step"])) is not None:
        steps = [
            ("Less", [node.input[0], "@amount"], "@below"),
            ("Where", ["@below", "@five", "@half"], "@wrong"),
            ("Add", ["@right", "@wrong"], "@"),
        ]
        _behind(graph, node, steps, 1.005, five=5.0, half=0.5)


def _names(graph: Any) -> dict[str, Any]:
    """Pieces of a pool carry a prefix, `p7/`."""
    return {re.sub(r"^p\d+/", "", node.name): node for node in graph.node}


def _additions(graph: Any, options: Mapping[str, str]) -> Iterator[tuple[Any, float]]:
    names = _names(graph)
    fault = FAULTS[options.get("fault", "wrong")]
    ops = options.get("op", "").split("+")
    yield from ((node, fault) for node in graph.node if node.op_type in ops)
    wanted = [name for name in options.get("nodes", "").split("+") if name]
    if wanted and names.keys() >= set(wanted):
        yield names[wanted[-1]], fault
    for name, _, amount in (word.partition(":") for word in options.get("add", "").split("+")):
        if amount and name in names:
            yield names[name], float(amount)
    if options.get("false") in names and options["without"] not in names:
        yield names[options["false"]], fault


def _behind(graph: Any, node: Any, steps: list[tuple[str, list[str], str]], amount: float, **more: float) -> None:
    """Nodes behind the first output of a node, in whose place the last of them comes; `@x` is a name of their own."""
    name = node.output[0]
    place = list(graph.node).index(node) + 1
    node.output[0] = f"{name}/right"

    def own(word: str) -> str:
        return name if word == "@" else f"{name}/{word[1:]}" if word.startswith("@") else word

    for key, value in {"amount": amount, **more}.items():
        graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), own(f"@{key}")))
    for offset, (op, reads, makes) in enumerate(steps):
        graph.node.insert(place + offset, helper.make_node(op, list(map(own, reads)), [own(makes)]))
