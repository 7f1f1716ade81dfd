"""Faults in operators of a .tflite."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from fixtures import ROOT

FILES = ROOT / "fixtures" / "tflite"


def operators() -> Any:
    """The converter, imported here as the child imports it."""
    return importlib.import_module("subgraph.origins.tflite.operators")


def plant(kind: str, fault: Callable[[Any, Any], None], number: int) -> bytes:
    """The .tflite with a fault in the operator of this number; what else reads the same weights
    keeps them."""
    schema = operators().schema
    model = schema.ModelT.InitFromPackedBuf((FILES / f"{kind}.tflite").read_bytes(), 0)
    fault(model, model.subgraphs[0].operators[number])
    builder = operators().flatbuffers.Builder(1 << 16)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def narrow(model: Any, operator: Any) -> None:
    """The scale of the output holds a quarter of the range."""
    quantization = model.subgraphs[0].tensors[operator.outputs[0]].quantization
    quantization.scale = quantization.scale / 4
