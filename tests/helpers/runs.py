"""Runs of a model: with plain onnxruntime in this process, and in a worker of a backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

from subgraph.runtime.worker import Worker
from subgraph.storage import tensors


def evaluate(
    model: onnx.ModelProto | Path, feeds: Mapping[str, Any], names: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the outputs of a model by name, as onnxruntime computes them on the CPU.

    Args:
        model: The model, or its file.
        feeds: Values by name. Those that are not inputs of the model are ignored.
        names: The outputs. None for all outputs of the model.
    """
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    inputs = {value.name for value in session.get_inputs()}
    outputs = list(names or [value.name for value in session.get_outputs()])
    values = session.run(outputs, {name: value for name, value in feeds.items() if name in inputs})
    return dict(zip(outputs, values, strict=True))


def save_records(feeds: Mapping[str, Any], folder: Path) -> list[tensors.Record]:
    """Save values, which a worker is fed with, in a folder."""
    return [
        tensors.save(n, v, tensors.find_type(v), folder, f"in{i}")
        for i, (n, v) in enumerate(feeds.items())
    ]


def run_in_worker(
    worker: Worker, folder: Path, feeds: Mapping[str, Any], outputs: Sequence[str] = ("y",)
) -> dict[str, Any]:
    """Return outputs of the model `m` of a worker by name; the values go through files in
    `folder`."""
    files = {name: f"out{i}" for i, name in enumerate(outputs)}
    done = worker.run("m", folder, files, save_records(feeds, folder))
    return {record.name: tensors.load(record, folder) for record in done.tensors}
