"""A model raised to a newer opset by onnx's converter, so that newer operators can be put into
it."""

from __future__ import annotations

from pathlib import Path

from subgraph.editing.draft import Draft
from subgraph.errors import ModelError, UsageError
from subgraph.graph.graph import Graph, load
from subgraph.graph.onnx_process import OnnxError, OnnxProcess
from subgraph.graph.opsets import newest_opsets, opset_of
from subgraph.text import clean


def raised(graph: Graph, version: int, folder: Path) -> Graph:
    """The model in a newer version of ONNX's own operators, as a file in `folder`.

    Raises:
        UsageError: the version is older than the model's, or newer than onnx knows.
        ModelError: onnx cannot convert the model.
    """
    own = opset_of(graph.model)
    newest = newest_opsets()[""]
    if not own <= version <= newest:
        what = (
            f"--opset {version}: {clean(graph.path.name)} has opset {own}, and onnx knows opsets up"
            f" to {newest}"
        )
        raise UsageError(what, f"a number from {own} to {newest}", code="opset.out-of-range")
    draft = Draft(graph)
    functions = list(draft.model.functions)
    try:
        with OnnxProcess(graph.path) as process:
            draft.model = process.convert(draft.model, version)
    except OnnxError as e:
        why = clean(" ".join(str(e).split()))
        raise ModelError(
            f"onnx cannot convert {clean(graph.path.name)} to opset {version}: {why}",
            code="opset.not-convertible",
        ) from e
    if functions and not draft.model.functions:  # onnx's converter leaves them out
        draft.model.functions.extend(functions)
    path = folder / graph.path.name
    draft.save(path)
    return load(path)
