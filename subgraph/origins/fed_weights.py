"""Weights that a model lists among its inputs, and that the user feeds: they become inputs without
a default."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from subgraph.graph import protobuf
from subgraph.graph.walk import assign
from subgraph.origins.converted import converted


def as_inputs(path: Path, names: Collection[str]) -> Path:
    """The model without the values of those weights among `names` that it lists as inputs; itself
    if there are none.

    Raises:
        ModelError: it cannot be read. OutputError: it cannot be written.
    """
    skeleton = protobuf.read(path)
    graph = skeleton.model.graph
    fed = {t.name for t in graph.initializer if t.name in names} & {v.name for v in graph.input}
    if not fed:
        return path

    def write(target: Path) -> None:
        model = protobuf.to_onnx(skeleton.model, path)
        assign(model.graph.initializer, [t for t in model.graph.initializer if t.name not in fed])
        protobuf.write(model, path, target, external=False)

    large = [t for t in graph.initializer if protobuf.on_disk(t)]
    weights = protobuf.weights_digest(large, path)
    return converted(["fed/1", skeleton.structure, weights, *sorted(fed)], path.name, write)
