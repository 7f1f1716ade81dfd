"""A model in another version of ONNX's own operators, older or newer, by onnx's converter.

The converter stops at the first operator for which it has no adapter, though most of them differ
in nothing that the node uses. Such nodes are hidden from it, and stay as they are if they fit the
other version; the others are named.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from subgraph.errors import ModelError
from subgraph.graph import protobuf
from subgraph.graph.nested import assign, model_nodes
from subgraph.graph.onnx_process import OnnxError, OnnxProcess
from subgraph.graph.operators import drop_defaults, misfit
from subgraph.graph.opsets import STANDARD, opset_of
from subgraph.text import clean, count

HIDDEN = "subcut.hidden"  # domain of nodes that the converter does not see
MAX_NAMED = 4  # nodes of an error
EVEN_PARTS = "num_outputs"  # of a Split, which has even parts without it if the size allows it
FUNCTIONS_SINCE = 8  # version of the file format that has local functions


def convert_model(model: Any, path: Path, version: int) -> tuple[Any, set[str]]:
    """Convert a model to another version of ONNX's own operators.

    Args:
        model: The model, which may be changed.
        path: Its file, next to which its large weights are.
        version: The opset.

    Returns:
        The converted model, and the operators that are unchanged because they fit the version.

    Raises:
        ModelError: onnx cannot convert a node, and it does not fit the version.
    """
    own = opset_of(model)
    functions = list(model.functions)
    hidden: set[str] = set()
    model.opset_import.add(domain=HIDDEN, version=1)
    with OnnxProcess(path) as process:
        while True:
            try:
                converted = process.convert(model, version)
                break
            except OnnxError as e:
                op = _find_named(str(e), _iter_operators(model))
                if not op:
                    what = f"onnx cannot convert {path.name} to opset {version}: {e}"
                    raise ModelError(what, code="opset.not-convertible") from e
            hidden.add(op)
            for node in model_nodes(model):
                if node.op_type == op and node.domain in STANDARD:
                    node.domain = HIDDEN
    imports = [entry for entry in converted.opset_import if entry.domain != HIDDEN]
    assign(converted.opset_import, imports)
    _require_fitting(converted, path, version)
    if functions and not converted.functions:  # onnx's converter leaves them out
        converted.functions.extend(functions)
    if version < own:
        converted.ir_version = _find_ir_version(converted, version)
    return converted, hidden


def _iter_operators(model: protobuf.ModelProto) -> Iterator[str]:
    """Yield ONNX's own operators in a model."""
    yield from dict.fromkeys(n.op_type for n in model_nodes(model) if n.domain in STANDARD)


def _find_named(why: str, operators: Iterator[str]) -> str:
    """Return the operator that an error of onnx names, or ""."""
    words: Collection[str] = re.findall(r"\w+", why)
    return next((op for op in operators if op in words), "")


def _require_fitting(model: protobuf.ModelProto, path: Path, version: int) -> None:
    """Show the hidden nodes again, without attributes that the version lacks and that say what it
    does anyway.

    Raises:
        ModelError: Nodes do not fit the version; it names them.
    """
    unfit = []
    for node in model_nodes(model):
        if node.domain != HIDDEN:
            continue
        node.domain = ""
        if misfit(node, version, {}):
            bare = drop_defaults(node)
            assign(bare.attribute, [a for a in bare.attribute if a.name != EVEN_PARTS])
            if reason := misfit(bare, version, {}):
                unfit.append(f"'{node.name or node.output[0]}' ({node.op_type}) {reason}")
            node.CopyFrom(bare)
    if unfit:
        more = f"; and {len(unfit) - MAX_NAMED} more" if len(unfit) > MAX_NAMED else ""
        raise ModelError(
            f"onnx cannot convert {count(len(unfit), 'node')} of {path.name} to opset {version}:"
            f" {'; '.join(map(clean, unfit[:MAX_NAMED]))}{more}",
            f"subcut lint {path.name} --target-opset {version} lists them",
            code="opset.not-convertible",
        )


def _find_ir_version(model: Any, version: int) -> int:
    """Return the version of the file format that runtimes of an opset read."""
    from onnx import helper

    least = int(helper.find_min_ir_version_for([helper.make_opsetid("", version)]))
    least = max(least, FUNCTIONS_SINCE) if model.functions else least
    return min(int(model.ir_version), least)
