"""A model in another version of ONNX's own operators, as a draft or a file."""

from __future__ import annotations

from pathlib import Path

from subgraph.editing.draft import Draft
from subgraph.errors import UsageError
from subgraph.graph.graph import Graph, load
from subgraph.graph.opset_conversion import convert_model
from subgraph.graph.opsets import MIN_OPSET, newest_opsets, opset_of
from subgraph.text import clean


def convert_opset(graph: Graph, version: int) -> Draft:
    """Convert a model to another version of ONNX's own operators.

    Args:
        graph: The model.
        version: The opset, older or newer than the model's.

    Returns:
        The converted model, which is not written; its remarks name the unchanged operators.

    Raises:
        UsageError: onnx does not know the version, or does not convert so far back.
        ModelError: onnx cannot convert a node, and it does not fit the version.
    """
    own = opset_of(graph.model)
    newest = newest_opsets()[""]
    if not MIN_OPSET <= version <= newest:
        raise UsageError(
            f"--opset {version}: onnx converts to opsets from {MIN_OPSET} to {newest}",
            f"{graph.path.name} has opset {own}",
            code="opset.out-of-range",
        )
    draft = Draft(graph)
    draft.model, unchanged = convert_model(draft.model, graph.path, version)
    draft.remarks.append(f"converted from opset {own} to {version}")
    if unchanged:
        names = ", ".join(map(clean, sorted(unchanged)))
        draft.remarks.append(f"unchanged, because they fit opset {version}: {names}")
    return draft


def load_at_opset(graph: Graph, version: int, folder: Path) -> Graph:
    """Convert a model and load it from a file in a folder. Raises: as `convert_opset`."""
    path = folder / graph.path.name
    convert_opset(graph, version).save(path)
    return load(path)
