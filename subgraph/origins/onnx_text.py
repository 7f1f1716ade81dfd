"""An ONNX model as text or JSON -> the same as protobuf, kept for the next command."""

from __future__ import annotations

from pathlib import Path

from subgraph.errors import ModelError
from subgraph.graph import protobuf
from subgraph.graph.walk import all_tensors
from subgraph.origins.converted import converted
from subgraph.storage.digest import file_digest
from subgraph.text import clean


def to_onnx(path: Path, form: str) -> Path:
    """The ONNX file of a model that is written as `form`: json, onnxtxt or textproto, as
    `onnx.load` calls them.

    Raises:
        ModelError: onnx cannot read it, or its weights are in another file, which could change
            unnoticed.
    """

    def write(target: Path) -> None:
        import warnings

        import onnx

        try:
            with warnings.catch_warnings(
                action="ignore"
            ):  # its reader of `onnxtxt` is called experimental
                model = onnx.load(path, format=form, load_external_data=False)
        except Exception as e:  # of protobuf's two readers and of onnx's own
            why = " ".join(str(e).split())[:200]
            raise ModelError(
                f"{clean(str(path))} is an ONNX model as {form} that onnx cannot read: {why}",
                code="model.text-unreadable",
            ) from e
        if any(map(protobuf.in_other_file, all_tensors(model.graph))):
            hint = (
                f"onnx.save(onnx.load({str(path)!r}, format={form!r}), 'model.onnx') puts them into"
                " one file"
            )
            raise ModelError(
                f"{clean(str(path))} has weights in another file", hint, code="model.text-external"
            )
        onnx.save(model, target, format="protobuf")

    return converted(["text/1", form, file_digest(path)], path.name, write)
