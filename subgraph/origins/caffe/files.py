"""Words of a command line -> the files of a Caffe model -> an ONNX file, kept for the next
command."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from subgraph.errors import UsageError
from subgraph.graph import protobuf
from subgraph.origins.caffe import caffemodel, network, text
from subgraph.origins.converted import converted
from subgraph.project import RANDOM_WEIGHTS
from subgraph.storage.digest import file_digest
from subgraph.text import clean

log = logging.getLogger("subcut")


@dataclass(frozen=True)
class CaffeModel:
    """The files of one model; without `weights` they are drawn from `seed`."""

    prototxt: Path
    weights: Path | None
    seed: int = 0

    def convert(self, drawn: Path | None = None) -> network.CaffeNetwork:
        """The network with its ONNX model; the weights stay in the caffemodel. `drawn`: as of
        `network.convert`.

        Raises:
            ModelError: as `network.convert`, `caffemodel.read` and `text.read`.
        """
        blobs = caffemodel.read(self.weights) if self.weights else None
        return network.convert(
            text.read(self.prototxt), self.prototxt.name, blobs, self.seed, drawn
        )


def find(path: Path, weights: str | None = None) -> CaffeModel:
    """The other half of a prototxt or caffemodel: `weights`, else the file of its name, else the
    only one beside it.

    Raises:
        UsageError: there is none, or several.
    """
    if path.suffix.lower() == ".caffemodel":
        if weights:
            raise UsageError(
                f"{clean(str(path))} holds weights, and so does --weights",
                "name the .prototxt first",
                code="caffe.weights-twice",
            )
        return CaffeModel(
            _beside(path, ".prototxt", "it holds the weights; the layers are in a .prototxt"), path
        )
    if weights and (drawn := RANDOM_WEIGHTS.fullmatch(weights)):
        return CaffeModel(path, None, int(drawn[1] or 0))
    if weights:
        if not os.path.isfile(weights):  # noqa: PTH113
            raise UsageError(
                f"--weights {clean(weights)}: no such file",
                "name a .caffemodel, or random:SEED",
                code="file.not-found",
            )
        return CaffeModel(path, Path(weights))
    hint = "name it with --weights FILE, or try the network with random weights: --weights random:0"
    return CaffeModel(path, _beside(path, ".caffemodel", hint))


def _beside(path: Path, suffix: str, hint: str) -> Path:
    same = path.with_suffix(suffix)
    if same.is_file():
        return same
    found = sorted(p for p in path.parent.iterdir() if p.suffix.lower() == suffix and p.is_file())
    if len(found) == 1:
        log.info(
            "%s: %s (the only %s beside %s)",
            "weights" if suffix == ".caffemodel" else "network",
            found[0].name,
            suffix,
            path.name,
        )
        return found[0]
    if not found:
        raise UsageError(f"no {suffix} beside {clean(str(path))}", hint, code="caffe.file-missing")
    some = ", ".join(clean(p.name) for p in found[:8]) + (", …" if len(found) > 8 else "")
    option = "--weights FILE" if suffix == ".caffemodel" else "it first"
    raise UsageError(
        f"which {suffix} belongs to {clean(path.name)}? there are {len(found)} beside it",
        f"name {option}: {some}",
        code="caffe.ambiguous-file",
    )


def to_onnx(path: Path, weights: str | None = None) -> Path:
    """The converted model as a file. 0.6 s for 240 MB of weights the first time, a third of it
    later.

    Raises:
        UsageError: as `find`. ModelError: as `CaffeModel.convert`. OutputError: it can be written
            nowhere.
    """
    files = find(path, weights)
    if not files.weights:
        log.warning(
            "the weights are random, seed %d: values mean nothing, shapes and names do", files.seed
        )

    def write(target: Path) -> None:
        drawn = target.with_name("drawn.caffemodel")
        protobuf.write(files.convert(drawn).model, files.weights or drawn, target, external=False)
        drawn.unlink(missing_ok=True)

    drawn_or_read = file_digest(files.weights) if files.weights else files.seed
    return converted(
        ["caffe/3", file_digest(files.prototxt), drawn_or_read], files.prototxt.name, write
    )
