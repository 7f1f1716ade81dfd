"""A float model and its samples -> the model as onnxruntime's own quantizer makes it, in a process of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from subgraph import children
from subgraph.errors import ModelError
from subgraph.graph.model_file import copy_model
from subgraph.text import clean
from subgraph.trials.reference_model import ReferenceModel

TYPES = ("int8", "uint8", "int16")
TIMEOUT = 3600.0  # seconds


def quantized(model: ReferenceModel, dtype: str, folder: Path) -> Path:
    """The quantized model, a file in `folder`; calibrated on all samples. `dtype`: of the activations.

    Raises:
        ModelError: onnxruntime cannot quantize it; with its own words. OutOfTime: the time is used up.
    """
    graph, samples, deadline = model.graph, model.values.records, model.reference.deadline
    source, made = folder / "float.onnx", folder / f"{graph.path.stem}-{dtype}.onnx"
    copy_model(graph, source)
    files = [{name: sample[name].files[0] for name in graph.inputs} for sample in samples]
    (folder / "samples.json").write_text(json.dumps(files), encoding="utf-8")
    command = children.python("-m", "subgraph.plan.quantize_main", source, made, dtype, folder / "samples.json")
    try:
        done = children.run(command, timeout=deadline.timeout(TIMEOUT), cwd=folder)
    except subprocess.TimeoutExpired as e:
        deadline.require()
        raise ModelError(f"onnxruntime did not quantize {clean(graph.path.name)} within {TIMEOUT:g} s") from e
    if done.code or not made.is_file():
        why = " ".join(done.last_lines(1)) or f"exit code {done.code}"
        raise ModelError(
            f"onnxruntime's quantizer fails on {clean(graph.path.name)}: {clean(why)}",
            "quantize it by your own tool, and name that model with --candidate-model",
        )
    return made
