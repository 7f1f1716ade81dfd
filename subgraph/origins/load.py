"""A model file of any origin that we read -> `Graph`, or the ONNX file that it was converted to."""

from __future__ import annotations

from pathlib import Path

from subgraph.errors import UsageError
from subgraph.graph import graph
from subgraph.graph.graph import Graph
from subgraph.storage.file_kinds import is_caffe
from subgraph.text import clean


def load(path: str | Path, weights: str | None = None) -> Graph:
    """Index a model file: ONNX, or Caffe's prototxt. Large weights stay on disk.

    `weights`: the caffemodel of a prototxt, or `random:SEED`; by default the one beside it.

    >>> graph = load("resnet50.onnx")
    >>> len(graph.nodes), graph.outputs
    (229, ['prob'])

    Raises:
        ModelError: the file cannot be read, is of another kind, or its local functions cannot be inlined.
        UsageError: a prototxt without a caffemodel.
    """
    return graph.load(model_file(Path(path), weights))


def model_file(path: Path, weights: str | None = None) -> Path:
    """The ONNX file to work on: the file itself, or what it was converted to.

    Raises:
        UsageError, ModelError, OutputError: as of `origins.caffe.files.to_onnx`.
    """
    if not is_caffe(path):
        if weights:
            raise UsageError(f"--weights belongs to a .prototxt; {clean(path.name)} is none", "leave it out")
        return path
    from subgraph.origins.caffe.files import to_onnx

    return to_onnx(path, weights)
