"""A float model -> the model as another tool lowers it, in a process of its own: onnxruntime's
quantizer, say."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from subgraph import children
from subgraph.errors import ModelError
from subgraph.graph.graph import Graph
from subgraph.graph.model_file import copy_model
from subgraph.runtime.deadline import Deadline
from subgraph.runtime.run_result import Feeds

TYPES = ("int8", "uint8", "int16")
TIMEOUT = 3600.0  # seconds


def quantize_model(
    graph: Graph, samples: Feeds, dtype: str, listed: Path | None, folder: Path, deadline: Deadline
) -> Path:
    """The model quantized by onnxruntime, a file in `folder`; calibrated on all samples.

    Args:
        dtype: That of the activations.
        listed: A list of the nodes that stay in float; None for none.

    Raises:
        ModelError: onnxruntime cannot quantize it; with its own words. OutOfTime: the time is used
            up.
    """
    files = [{name: sample[name].files[0] for name in graph.inputs} for sample in samples]
    (folder / "samples.json").write_text(json.dumps(files), encoding="utf-8")
    made = folder / f"{graph.path.stem}-{dtype}.onnx"
    words: list[str | Path] = [dtype, folder / "samples.json", *filter(None, [listed])]
    return run_lowering(
        "onnxruntime's quantizer", "subgraph.planning.quantize_main", graph, made, words, deadline
    )


def run_lowering(
    tool: str,
    script: str,
    graph: Graph,
    made: Path,
    words: Sequence[str | Path],
    deadline: Deadline,
) -> Path:
    """Run a script `MODEL OUT WORDS…` that lowers a model by a tool; returns `made`.

    Raises:
        ModelError: the tool cannot lower it; with its own words. OutputError: a disk is full.
        OutOfTime: the time is used up.
    """
    folder = made.parent
    name = graph.path.name
    source = folder / "float.onnx"
    copy_model(graph, source)
    command = children.python("-m", script, source, made, *words)
    try:
        done = children.run(command, timeout=deadline.timeout(TIMEOUT), cwd=folder)
    except subprocess.TimeoutExpired as e:
        deadline.require()
        raise ModelError(
            f"{tool} did not lower {name} within {TIMEOUT:g} s", code="plan.timeout"
        ) from e
    done.require_space()
    if done.code or not made.is_file():
        why = " ".join(done.last_lines(1)) or f"exit code {done.code}"
        raise ModelError(
            f"{tool} fails on {name}: {why}",
            "lower it by your own tool, and name that model with --candidate-model",
            code="plan.tool-failed",
        )
    return made
