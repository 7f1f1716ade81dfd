"""onnx's own evaluator in Python and numpy: slow, independent of every runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from subgraph.graph.opsets import get_opset
from subgraph.runtime.backends import Run, _foreign
from subgraph.storage.tensors import Tensors, Values
from subgraph.types import Fields

MULTI = True
QUANTIZERS_OPSET = 19  # the first in which the evaluator has QuantizeLinear and DequantizeLinear


def version() -> str:
    """Return onnx's version."""
    import onnx

    return str(onnx.__version__)


def warm() -> None:
    """Import the evaluator ahead of the first model."""
    import onnx.reference  # noqa: F401


def load(model: Path, options: Fields) -> Run:
    """Read the model; ops are looked up now, so an unknown one is refused here. It has no options.

    Raises:
        UsageError: an option is given.
    """
    _foreign.check_options("onnx-reference", options, {})
    evaluator = open_evaluator(model)
    names = list(evaluator.output_names)

    def run(feeds: Tensors) -> Values:
        return dict(zip(names, evaluator.run(names, dict(feeds)), strict=True))

    return run


def open_evaluator(path: Path) -> Any:
    """Return the evaluator of a model; of one in an older opset, some of whose operators it has in
    opset 19 only (DequantizeLinear), the evaluator of the same model in that opset."""
    import onnx.version_converter
    from onnx.reference import ReferenceEvaluator

    try:
        return ReferenceEvaluator(str(path))
    except RuntimeError as missing:
        model = onnx.load(path)
        if get_opset(model) >= QUANTIZERS_OPSET or model.functions:
            raise
        try:
            converted = onnx.version_converter.convert_version(model, QUANTIZERS_OPSET)
            return ReferenceEvaluator(converted)
        except (onnx.version_converter.ConvertError, RuntimeError, ValueError):
            raise missing from None
