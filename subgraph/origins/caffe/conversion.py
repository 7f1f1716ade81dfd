"""The files of a Caffe model -> an ONNX file, kept for the next command; a region back to Caffe.

Layers of a region keep their names, parameters and weights; bottoms and tops are the names of
tensors, of which no two are equal, so that nothing is in place and each blob that enters is an
input.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from subgraph.errors import UsageError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.walks import iter_predecessors
from subgraph.iterables import flatten
from subgraph.log import log
from subgraph.origins.caffe import caffemodel, messages, onnx_model
from subgraph.origins.caffe.messages import Message
from subgraph.origins.caffe.onnx_model import PRODUCER
from subgraph.origins.converted import convert_once
from subgraph.project import RANDOM_WEIGHTS
from subgraph.storage.digest import digest_file
from subgraph.text import list_some
from subgraph.types import frozen


@frozen
class CaffeModel:
    """The files of one model; without `weights` they are drawn from `seed`."""

    prototxt: Path
    weights: Path | None
    seed: int = 0

    def convert(self, drawn: Path | None = None) -> onnx_model.CaffeNetwork:
        """Return the network with its ONNX model; the weights stay in the caffemodel. `drawn`: as
        of `network.convert`.

        Raises:
            ModelError: as `network.convert`, `caffemodel.read` and `text.read`.
        """
        blobs = caffemodel.read(self.weights) if self.weights else None
        return onnx_model.convert(
            messages.read(self.prototxt), self.prototxt.name, blobs, self.seed, drawn
        )


def find_model(path: Path, weights: str | None = None) -> CaffeModel:
    """Find the other half of a prototxt or caffemodel: `weights`, the same name, or the only file.

    Raises:
        UsageError: There is no such file, or several.
    """
    if path.suffix.lower() == ".caffemodel":
        if weights:
            raise UsageError(
                f"{path} holds weights, and so does --weights",
                "name the .prototxt first",
                code="caffe.weights-twice",
            )
        return CaffeModel(
            _find_beside(path, ".prototxt", "it holds the weights; the layers are in a .prototxt"),
            path,
        )
    if weights and (drawn := RANDOM_WEIGHTS.fullmatch(weights)):
        return CaffeModel(path, None, int(drawn[1] or 0))
    if weights:
        if not os.path.isfile(weights):  # noqa: PTH113
            raise UsageError(
                f"--weights {weights}: no such file",
                "name a .caffemodel, or random:SEED",
                code="file.not-found",
            )
        return CaffeModel(path, Path(weights))
    hint = "name it with --weights FILE, or try the network with random weights: --weights random:0"
    return CaffeModel(path, _find_beside(path, ".caffemodel", hint))


def _find_beside(path: Path, suffix: str, hint: str) -> Path:
    same = path.with_suffix(suffix)
    if same.is_file():
        return same
    found = sorted(p for p in path.parent.iterdir() if p.suffix.lower() == suffix and p.is_file())
    if len(found) == 1:
        log.info(
            "%s: %s (the only %s in the folder of %s)",
            "weights" if suffix == ".caffemodel" else "network",
            found[0].name,
            suffix,
            path.name,
        )
        return found[0]
    if not found:
        raise UsageError(f"no {suffix} beside {path}", hint, code="caffe.file-missing")
    some = list_some([p.name for p in found], 8)
    option = "--weights FILE" if suffix == ".caffemodel" else "it first"
    raise UsageError(
        f"which {suffix} belongs to {path.name}? there are {len(found)} beside it",
        f"name {option}: {some}",
        code="caffe.ambiguous-file",
    )


def to_onnx(path: Path, weights: str | None = None) -> Path:
    """Return the converted model as a file. 0.6 s for 240 MB of weights the first time, a third of
    it later.

    Raises:
        UsageError: as `find_model`. ModelError: as `CaffeModel.convert`.
        OutputError: it can be written nowhere.
    """
    files = find_model(path, weights)
    if not files.weights:
        log.warning(
            "the weights are random, seed %d: values mean nothing, shapes and names do", files.seed
        )

    def write(target: Path) -> None:
        drawn = target.with_name("drawn.caffemodel")
        protobuf.write(files.convert(drawn).model, files.weights or drawn, target, external=False)
        drawn.unlink(missing_ok=True)

    drawn_or_read = digest_file(files.weights) if files.weights else files.seed
    return convert_once(
        ["caffe/3", digest_file(files.prototxt), drawn_or_read], files.prototxt.name, write
    )


_WRITTEN_ANEW = "name type bottom top include exclude phase".split()


def write_region(
    files: CaffeModel, nodes: Collection[str], folder: Path, stem: str = "model"
) -> None:
    """Write `model.prototxt` and `model.caffemodel` with the layers of these nodes.

    Raises:
        UsageError: the nodes are only a part of a layer. ModelError: as `CaffeModel.convert`.
            OutputError: disk full.
    """
    network = files.convert()
    layers = [layer for layer in network.layers if not {*nodes}.isdisjoint(layer.nodes)]
    for layer in layers:
        if missing := [n for n in layer.nodes if n not in nodes]:
            raise UsageError(
                f"the cut goes through the layer '{layer.text.name}': {missing[0]} is outside",
                f"--start or --end {layer.text.name} takes the whole layer",
                code="caffe.cut-inside-layer",
            )
    tree = Message().add("name", network.name, quoted=True)
    tops = flatten(layer.tops for layer in layers)
    known = set(tops)
    for name in flatten(layer.bottoms for layer in layers):
        if name not in known:
            known.add(name)
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
    text = messages.write(tree)
    with protobuf.explain_write_error(folder):
        (folder / f"{stem}.prototxt").write_text(text, encoding="utf-8")
    blobs = [(layer.text.name, layer.text.type, layer.weights) for layer in layers]
    caffemodel.write(folder / f"{stem}.caffemodel", network.name, blobs)


def expand_layers(graph: Graph, words: Sequence[str]) -> list[str]:
    """Return names of layers that are several nodes -> the nodes where they begin; other words
    stay."""
    if graph.model.producer_name != PRODUCER:
        return [*words]
    names = []
    for word in words:
        nodes = [
            i
            for i, node in enumerate(graph.nodes)
            if protobuf.read_doc_text(node.doc_string) == word
        ]
        first = [
            graph.node_names[i] for i in nodes if not set(iter_predecessors(graph, i)) & set(nodes)
        ]
        names += first if len(nodes) > 1 else [word]
    return names
