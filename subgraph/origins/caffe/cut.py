"""A region of a converted model -> prototxt and caffemodel of its layers, as Caffe has them.

Layers keep their names, parameters and weights; bottoms and tops are the names of tensors, of which
no two are equal, so that nothing is in place and each blob that enters is an input.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from subgraph.errors import OutputError, UsageError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.origins.caffe import caffemodel, text
from subgraph.origins.caffe.files import CaffeModel
from subgraph.origins.caffe.network import PRODUCER, CaffeNetwork, ConvertedLayer
from subgraph.origins.caffe.text import Message
from subgraph.text import clean

_WRITTEN_ANEW = "name type bottom top include exclude phase".split()


def write(files: CaffeModel, nodes: Collection[str], folder: Path, stem: str = "model") -> None:
    """Write `model.prototxt` and `model.caffemodel` with the layers of these nodes.

    Raises:
        UsageError: the nodes are only a part of a layer. ModelError: as `CaffeModel.convert`.
            OutputError: disk full.
    """
    network = files.convert()
    layers = [layer for layer in network.layers if not set(nodes).isdisjoint(layer.nodes)]
    for layer in layers:
        if missing := [n for n in layer.nodes if n not in nodes]:
            what = (
                f"the cut goes through the layer '{clean(layer.text.name)}': {clean(missing[0])} is"
                " outside"
            )
            raise UsageError(
                what,
                f"--start or --end {clean(layer.text.name)} takes the whole layer",
                code="caffe.cut-inside-layer",
            )
    try:
        (folder / f"{stem}.prototxt").write_text(
            text.write(_tree(network, layers)), encoding="utf-8"
        )
    except OSError as e:
        raise OutputError(
            f"cannot write {folder}: {e.strerror or e}",
            "free some space or choose another -o",
            code="output.unwritable",
        ) from e
    blobs = [(layer.text.name, layer.text.type, layer.weights) for layer in layers]
    caffemodel.write(folder / f"{stem}.caffemodel", network.name, blobs)


def _tree(network: CaffeNetwork, layers: Sequence[ConvertedLayer]) -> Message:
    tree = Message().add("name", network.name, quoted=True)
    made = {top for layer in layers for top in layer.tops}
    for name in dict.fromkeys(b for layer in layers for b in layer.bottoms if b not in made):
        tree.add("input", name, quoted=True)
        tree.add("input_shape", Message().add("dim", *map(str, network.shapes[name])))
    for layer in layers:
        message = Message().add("name", layer.text.name, quoted=True)
        kept = [
            (name, value) for name, value in layer.text.message.fields if name not in _WRITTEN_ANEW
        ]
        message.fields += [("type", value) for value in layer.text.message.all("type")]
        message.add("bottom", *layer.bottoms, quoted=True).add("top", *layer.tops, quoted=True)
        message.fields += kept
        tree.add(network.field, message)
    return tree


def whole_layers(graph: Graph, words: Sequence[str]) -> list[str]:
    """Names of layers that are several nodes -> the nodes where they begin; other words stay."""
    if graph.model.producer_name != PRODUCER:
        return [*words]
    out = []
    for word in words:
        nodes = [
            i for i, node in enumerate(graph.nodes) if protobuf.doc_text(node.doc_string) == word
        ]
        first = [graph.node_names[i] for i in nodes if not set(graph.predecessors(i)) & set(nodes)]
        out += first if len(nodes) > 1 else [word]
    return out
