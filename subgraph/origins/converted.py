"""Models converted to ONNX, kept in the user's cache folder for the next command.

An ONNX file has the name of its original, in a folder named after its content, so messages
name what the user typed. The conversions of ONNX's own forms are here: a model as text or JSON, and
a model whose weights the user feeds.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from subgraph.errors import ModelError
from subgraph.graph import protobuf
from subgraph.graph.nested import assign, iter_tensors
from subgraph.lazy import onnx
from subgraph.storage import folders
from subgraph.storage.digest import Part, digest, digest_file
from subgraph.storage.folders import find_cache_folder
from subgraph.version import __version__

MAX_CONVERTED_BYTES = 4 << 30  # bytes of converted models


def convert_once(depends: Sequence[Part], name: str, write: Callable[[Path], None]) -> Path:
    """Return the ONNX file of that name that is kept for what it `depends` on; else `write` makes
    it.

    Raises:
        OutputError: It can be written nowhere.
        SubcutError: Any error of `write`.
    """
    place = find_cache_folder("converted") / digest(__version__, *depends)[:20]
    target = place / name
    if target.is_file():
        os.utime(place)
        return target
    with folders.write_aside(place) as work:
        write(work / name)
    _evict(place)
    return target


def _evict(newest: Path) -> None:
    """Remove the models that were not used for longest, beyond `MAX_CONVERTED_BYTES` bytes."""
    kept = [p for p in newest.parent.iterdir() if p != newest and not p.name.startswith(".")]
    left = MAX_CONVERTED_BYTES - _measure_size(newest)
    for folder in sorted(kept, key=lambda p: -p.stat().st_mtime):
        left -= _measure_size(folder)
        if left < 0:
            shutil.rmtree(folder, ignore_errors=True)


def _measure_size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.iterdir())


def move_weights_to_inputs(path: Path, names: Collection[str]) -> Path:
    """Return the model without the values of those weights among `names` that it lists as inputs.

    Returns the model itself if it lists no such weight.

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

    large = [t for t in graph.initializer if protobuf.is_on_disk(t)]
    weights = protobuf.digest_weights(large, path)
    return convert_once(["fed/1", skeleton.structure, weights, *sorted(fed)], path.name, write)


def convert_text(path: Path, form: str) -> Path:
    """Return the ONNX file of a model that is written as `form`: json, onnxtxt or textproto, as
    `onnx.load` calls them.

    Raises:
        ModelError: onnx cannot read it, or its weights are in another file, which could change
            unnoticed.
    """

    def write(target: Path) -> None:
        try:
            # Its reader of `onnxtxt` is called experimental.
            with warnings.catch_warnings(action="ignore"):
                model = onnx.load(path, format=form, load_external_data=False)
        except Exception as e:  # of protobuf's two readers and of onnx's own
            why = " ".join(str(e).split())[:200]
            raise ModelError(
                f"{path} is an ONNX model as {form} that onnx cannot read: {why}",
                code="model.text-unreadable",
            ) from e
        if any(map(protobuf.is_in_other_file, iter_tensors(model.graph))):
            raise ModelError(
                f"{path} has weights in another file",
                f"onnx.save(onnx.load({str(path)!r}, format={form!r}), 'model.onnx') puts them into"
                " one file",
                code="model.text-external",
            )
        onnx.save(model, target, format="protobuf")

    return convert_once(["text/1", form, digest_file(path)], path.name, write)
