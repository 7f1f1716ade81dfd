"""onnxruntime with seeded faults, as a Python file: `-c
tests/helpers/fake_candidate.py:fault=wrong,op=Neg`.

The fault is built into the model, behind the nodes that are meant, so that it is there in every cut
that holds them. Several words of one option are joined by `+`:

    fault   one of `FAULTS`, for the nodes that `op` or `nodes` name
    op      op types
    nodes   names, all of which must be in one model (the fault of a fusion): the last node is wrong
    add     NAME:AMOUNT, always wrong by this amount
    false   a name, wrong only if the node `without` is not in the model: fails only when it is cut
            out
    step    a name, wrong by 5 where its input is below 1.005, else by 0.5: an error that depends on
            the last bits
    drop    a tensor that is never given
    blots   names, `*` for all: every output of a model that contains one of them is off by 1
    scale   a factor on the output of every node: small errors that add up
    half    any word: each tensor, weights too, is rounded to float16
    fuses   op types whose outputs `half` does not round inside a model, only at its end: a kernel
            keeps them in float32
    dies    names, `*` for all: aborts when it runs a model that contains one of them
    above   a number: aborts only if an input has a larger element
    refuses names, `*` for all: refuses every model that contains one of them
    pause   seconds that each run takes
    log     a folder, whose file `log` gets a line per load and per session that runs (a file would
            be part of the candidate); while it has a file `stop` with a number, runs from this
            number on wait
    after   a number: from this load on, as `log` counts them, the faults of `then` hold: a word of
            `TURNS`, or names
    often   per cent of the processes that are faulty, drawn by `seed` and the process's position in
            `log`
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

MULTI = True
FAULTS = {"wrong": 0.5, "drift": 0.01, "nan": float("nan"), "inf": float("inf")}  # what is added
TURNS = {  # faults that replace those of the options
    "right": {},
    "hangs": {"pause": "600"},
    "dies": {"dies": "*"},
    "refuses": {"refuses": "*"},
    "nan": {"op": "Add+Mul", "fault": "nan"},
    "everywhere": {"op": "Add+Mul"},
}
LASTING = ("log", "drop", "pause")  # options that stay
HERE = str(Path(__file__).resolve())

Run = Callable[[Mapping[str, Any]], dict[str, Any]]


def version() -> str:
    """A version, as runtimes have."""
    return "1"


def load(model: Path, options: Mapping[str, str]) -> Run:
    """A session on the model with the faults in it."""
    made = onnx.load(model)
    held = _names(made.graph)
    options = _now(options, _note(options, f"load {len(made.graph.node)} {'+'.join(held)}"))
    if _means(options.get("refuses", ""), held):
        raise ValueError("it does not take this")
    spoil(made.graph, options)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]

    noted: list[str] = []

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        if not noted:
            noted[:] = _note(options, "run") or ["no log"]
            _wait(options, sum(line.endswith(" run") for line in noted))
        time.sleep(float(options.get("pause", 0)))
        large = max(
            (float(np.max(value)) for value in feeds.values() if value.dtype.kind in "fiu"),
            default=0.0,
        )
        if _means(options.get("dies", ""), held) and large > float(options.get("above", "-inf")):
            os.abort()
        found = dict(zip(names, session.run(names, dict(feeds)), strict=True))
        if _means(options.get("blots", ""), held):
            found = {name: value + np.ones_like(value) for name, value in found.items()}
        return {name: value for name, value in found.items() if name != options.get("drop")}

    return run


def _note(options: Mapping[str, str], line: str) -> list[str]:
    """Add a line to the log; all lines up to it."""
    if not options.get("log"):
        return []
    with Path(options["log"], "log").open("a+", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {line}\n")
        file.flush()
        end = file.tell()
        file.seek(0)
        return file.read(end).splitlines()


def _wait(options: Mapping[str, str], runs: int) -> None:
    """Wait in the middle of a run while the log's folder has a file `stop`, so that tests need no
    clock."""
    stop = Path(options.get("log", ""), "stop")
    while options.get("log"):
        try:
            if runs < int(stop.read_text(encoding="utf-8") or 0):
                break
        except FileNotFoundError:
            break
        time.sleep(0.005)


def _now(options: Mapping[str, str], lines: list[str]) -> Mapping[str, str]:
    """The options that hold by now, in this process."""
    lasting = {name: options[name] for name in LASTING if name in options}
    loads = [line.split()[0] for line in lines if line.split()[1] == "load"]
    if "often" in options:
        place = list(dict.fromkeys(loads)).index(str(os.getpid()))
        draw = random.Random(f"{options.get('seed', 0)} {place}").random()
        return options if draw * 100 < float(options["often"]) else lasting
    if "after" in options and len(loads) >= int(options["after"]):
        kind = "blots" if "blots" in options else "nodes"
        return lasting | TURNS.get(options["then"], {kind: options["then"]})
    return options


def _means(words: str, held: Mapping[str, Any]) -> bool:
    """Does the model contain one of these names?"""
    return words == "*" or not held.keys().isdisjoint(filter(None, words.split("+")))


def spoil(graph: Any, options: Mapping[str, str]) -> None:
    """Insert the faults into the graph."""
    for node, amount in list(_additions(graph, options)):
        _behind(
            graph,
            node,
            [("CastLike", ["@amount", "@right"], "@cast"), ("Add", ["@right", "@cast"], "@")],
            amount,
        )
    if options.get("step") and (node := _names(graph).get(options["step"])) is not None:
        steps = [
            ("Less", [node.input[0], "@amount"], "@below"),
            ("Where", ["@below", "@five", "@half"], "@wrong"),
            ("Add", ["@right", "@wrong"], "@"),
        ]
        _behind(graph, node, steps, 1.005, five=5.0, half=0.5)
    if options.get("scale"):
        for node in list(graph.node):
            _behind(graph, node, [("Mul", ["@right", "@amount"], "@")], float(options["scale"]))
    if options.get("half"):
        _halve(graph, options.get("fuses", "").split("+"))


def _halve(graph: Any, fused: list[str]) -> None:
    """Round the inputs, the weights and the outputs of all nodes to float16, except between fused
    nodes."""
    nodes = list(graph.node)
    outputs = {o.name for o in graph.output}
    del graph.node[:]
    for name in [*(i.name for i in graph.input), *(w.name for w in graph.initializer)]:
        graph.node.extend(_rounded(name, f"{name}/half"))
        for node in nodes:
            node.input[:] = [f"{name}/half" if read == name else read for read in node.input]
    for node in nodes:
        name = node.output[0]
        if node.op_type in fused and name not in outputs:
            graph.node.append(node)
            continue
        node.output[0] = f"{name}/right"
        graph.node.extend([node, *_rounded(f"{name}/right", name)])


def _rounded(source: str, name: str) -> list[Any]:
    narrow = helper.make_node("Cast", [source], [f"{name}/narrow"], to=onnx.TensorProto.FLOAT16)
    return [narrow, helper.make_node("Cast", [f"{name}/narrow"], [name], to=onnx.TensorProto.FLOAT)]


def _names(graph: Any) -> dict[str, Any]:
    """Pieces of a pool carry a prefix, `p7/`."""
    return {re.sub(r"^p\d+/", "", node.name): node for node in graph.node}


def _additions(graph: Any, options: Mapping[str, str]) -> Iterator[tuple[Any, float]]:
    names = _names(graph)
    fault = FAULTS[options.get("fault", "wrong")]
    ops = options.get("op", "").split("+")
    yield from ((node, fault) for node in graph.node if node.op_type in ops)
    fused = [name for name in options.get("nodes", "").split("+") if name]
    if fused and names.keys() >= set(fused):
        yield names[fused[-1]], fault
    for name, _, amount in (word.partition(":") for word in options.get("add", "").split("+")):
        if amount and name in names:
            yield names[name], float(amount)
    if options.get("false") in names and options["without"] not in names:
        yield names[options["false"]], fault


def _behind(
    graph: Any, node: Any, steps: list[tuple[str, list[str], str]], amount: float, **more: float
) -> None:
    """Insert nodes behind a node's first output; the last one takes its name (`@`), `@x` are new
    names."""
    name = node.output[0]
    place = list(graph.node).index(node) + 1
    node.output[0] = f"{name}/right"

    def own(word: str) -> str:
        return name if word == "@" else f"{name}/{word[1:]}" if word.startswith("@") else word

    for key, value in {"amount": amount, **more}.items():
        graph.initializer.append(
            numpy_helper.from_array(np.array(value, np.float32), own(f"@{key}"))
        )
    for offset, (op, reads, makes) in enumerate(steps):
        graph.node.insert(place + offset, helper.make_node(op, list(map(own, reads)), [own(makes)]))
