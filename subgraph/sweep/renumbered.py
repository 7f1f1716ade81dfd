"""A test whose opset is newer than onnxruntime knows -> the same test at an older one, where only
the number is new.

onnx stamps a test with the operator's newest version, though often nothing changed in it but the
types that it takes. Every runtime then refuses it for its number. An older number is taken where
onnx's checker takes the model, and onnx's own evaluator gives the values expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from subgraph.errors import Refused
from subgraph.graph.graph import load
from subgraph.graph.opsets import STANDARD, newest_opsets, opset_of
from subgraph.runtime.reference import Reference
from subgraph.storage.tensors import Tensors, Value


def newest_taken(folder: Path) -> int:
    """The newest opset of which onnxruntime takes a model; one file per opset is written to
    `folder`."""
    import onnx
    from onnx import helper

    newest = newest_opsets()[""]
    info = helper.make_tensor_value_info
    fed, made = ([info(name, onnx.TensorProto.FLOAT, [1])] for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", fed, made)
    with Reference() as reference:
        for version in range(newest, 13, -1):
            path = folder / f"opset{version}.onnx"
            opsets = [helper.make_opsetid("", version)]
            least = helper.find_min_ir_version_for(opsets)
            onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=least), path)
            try:
                reference.load_model(path.stem, load(path).model, path, folder)
            except Refused:
                continue
            return version
    return newest


def renumbered(
    model: Any,
    fed: Tensors,
    expected: Sequence[Value],
    tolerance: tuple[float, float],
    newest: int,
) -> Any:
    """The model at opset `newest`, if its own is newer and only the number is; else the model
    itself.

    `tolerance`: of the test, relative and absolute.
    """
    import onnx
    from onnx import helper

    own = opset_of(model)
    if own <= newest:
        return model
    older = onnx.ModelProto()
    older.CopyFrom(model)
    for entry in older.opset_import:
        if entry.domain in STANDARD:
            entry.version = newest
    older.ir_version = min(
        model.ir_version, helper.find_min_ir_version_for(older.opset_import, ignore_unknown=True)
    )
    return older if _gives(older, fed, expected, tolerance) else model


def _gives(
    model: Any, fed: Tensors, expected: Sequence[Value], tolerance: tuple[float, float]
) -> bool:
    """Does onnx take the model, and does its own evaluator give these values?"""
    import onnx
    from onnx.reference import ReferenceEvaluator

    try:
        onnx.checker.check_model(model, full_check=True)
        given = ReferenceEvaluator(model).run(None, dict(fed))
    except Exception:  # noqa: BLE001
        return False
    return all(_equal(a, b, tolerance) for a, b in zip(given, expected, strict=True))


def _equal(given: Any, expected: Value, tolerance: tuple[float, float]) -> bool:
    if isinstance(expected, list):
        same = isinstance(given, list) and len(given) == len(expected)
        return same and all(_equal(a, b, tolerance) for a, b in zip(given, expected, strict=True))
    if expected is None or given is None:
        return expected is None and given is None
    array = np.asarray(given)
    if array.shape != expected.shape or array.dtype != expected.dtype:
        return False
    if array.dtype.kind not in "fiub":
        return (
            array.tobytes() == expected.tobytes()
            if array.dtype.kind != "O"
            else bool((array == expected).all())
        )
    return bool(np.allclose(array, expected, *tolerance, equal_nan=True))
