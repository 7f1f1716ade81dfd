'''Rewrites: other forms of a region, and full models with barriers, that compute the same values.

One file per rewriting. To add one, put a file like this into this folder:

    """Relu as Max with zero."""

    from subgraph.graph.rewrites import of

    @of("Relu")
    def as_max(source, node, new):
        zero = new.weight(0, source.element(node.input[0]))
        new.node("Max", [node.input[0], zero], node.output[0])
        return "a Max with zero instead of"

    FORMS = [as_max]

A form is given a `RegionModel` and a node. It appends the nodes that take the node's place to a
`Substitution`, and returns words that the node's name ends, or "" if it does not fit. A file may
also define `rewrite(source)`, which yields other models of the same inputs and outputs, each with a
description. These models may be invalid, or wrong for some values: models that onnx refuses are
omitted here, and none counts before the reference has proven it.'''

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import field
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from subgraph import plugins
from subgraph.errors import ModelError, UsageError
from subgraph.graph import protobuf
from subgraph.graph.onnx_process import OnnxError, OnnxProcess
from subgraph.graph.opsets import get_opset
from subgraph.graph.rewrites._full_model import (
    STRONGEST,
    VALUE,
    FullModel,
    NodeChange,
    open_full_model,
)
from subgraph.graph.rewrites._region_model import (
    FLOATS,
    Form,
    RegionModel,
    Substitution,
    each,
    get_argument,
    restrict_to as of,
)
from subgraph.types import frozen

__all__ = [
    "FLOATS",
    "STRONGEST",
    "VALUE",
    "Form",
    "FullModel",
    "NodeChange",
    "RegionModel",
    "Rewriting",
    "Substitution",
    "each",
    "get_argument",
    "of",
    "open_full_model",
    "rewritings",
]

MAX_BYTES = 1 << 29  # of a region: every form is a copy


@frozen
class Rewriting:
    """Another form of a region.

    Attributes:
        name: The name of the plugin.
        words: The description of the change.
        model: The form, with all its weights.
        opset: The opset of the form, to which the full model must be converted; 0 for that of the
            region.
    """

    name: str
    words: str
    model: protobuf.ModelProto = field(repr=False)
    opset: int = 0


def rewritings(
    piece: protobuf.ModelProto | Path,
    only: Sequence[str] = (),
    folder: Path | None = None,
    frozen: Collection[str] | None = None,
) -> Iterator[Rewriting]:
    """Yield the other forms of a region, each once; valid for onnx if the region is.

    A form is built when it is requested. Valid is a model by onnx's checker and strict inference.

    Args:
        piece: A cut, as `Cut.to_model()` or as a file.
        only: Names of rewritings, or paths of Python files.
        folder: The folder for a file at a time; a temporary one by default.
        frozen: The constants that the full model computes from shapes, if it takes inputs of other
            shapes. The description of a form that fits only these shapes includes that.

    Raises:
        UnknownName, UsageError: `only` names no rewriting.
        ModelError: The model cannot be read, is too much for onnx, or has more than `MAX_BYTES`.
    """
    names = list(only) or plugins.list_names("rewrites")
    for name in names:
        module = plugins.load("rewrites", name)
        if not (hasattr(module, "FORMS") or hasattr(module, "rewrite")):
            raise UsageError(
                f"{name} is not a rewriting",
                "it needs a list FORMS, or a function rewrite(source)",
                code="plugin.no-function",
            )
    model = _read(piece) if isinstance(piece, Path) else piece
    if (size := model.ByteSize()) > MAX_BYTES:
        raise ModelError(
            f"the region takes {size / 1e9:.1f} GB: too much to be written in other forms",
            f"they are for regions up to {MAX_BYTES / 1e9:.1f} GB",
            code="blame.region-too-large",
        )
    label = piece if isinstance(piece, Path) else Path("the region")
    with (
        tempfile.TemporaryDirectory(prefix="subcut-", dir=folder) as temporary,
        OnnxProcess(label) as onnx,
    ):
        source = RegionModel(model, onnx, frozen)
        path = Path(temporary) / "model.onnx"
        own = model.SerializeToString(deterministic=True)
        # The checker refuses some regions that runtimes accept.
        checked = _is_valid(model, own, path, onnx)
        digests = {sha256(own).digest()}
        for name in names:
            for description, variant in _iter_forms(plugins.load("rewrites", name), source):
                data = variant.SerializeToString(deterministic=True)
                key = sha256(data).digest()
                if key not in digests and (not checked or _is_valid(variant, data, path, onnx)):
                    digests.add(key)
                    opset = get_opset(variant)
                    yield Rewriting(
                        name, description, variant, opset if opset != source.opset else 0
                    )


def _iter_forms(
    module: ModuleType, source: RegionModel
) -> Iterator[tuple[str, protobuf.ModelProto]]:
    """Yield the models of a plugin for a region: its forms on nodes, then its other models."""
    yield from each(source, getattr(module, "FORMS", ()))
    if hasattr(module, "rewrite"):
        yield from module.rewrite(source)


def _read(path: Path) -> protobuf.ModelProto:
    """Read a model with all its weights."""
    model = protobuf.to_onnx(protobuf.read(path).model, path)
    protobuf.load_all(model.graph.initializer, path)
    return model


def _is_valid(model: protobuf.ModelProto, data: bytes, path: Path, onnx: OnnxProcess) -> bool:
    path.write_bytes(data)
    try:
        onnx.check(path)
        onnx.infer_shapes(model, strict=True)
    except (OnnxError, ModelError):
        return False
    return True
