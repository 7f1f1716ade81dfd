"""Lines of the user's source code in models that are to be sent: found, and removed; or all
metadata of the models.

PyTorch's exporter writes into each node the stack of calls that it came from: absolute paths and
lines of code. The older one writes a path into the node's documentation. Names of modules remain,
which the weights' own names have, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subgraph.graph import protobuf
from subgraph.origins.source import NAMESPACE, PREFIX, STACK_TRACE, innermost_call

KEPT = f"{PREFIX}name_scopes"
EXPORTER = "pkg.torch."  # begins the keys of PyTorch's exporter
SIMPLE = ("TensorProto", "StringStringEntryProto")  # messages that are not searched for source code
CODE_PATH = re.compile(rb"\.pyc?\b")  # in a documentation


@dataclass(frozen=True)
class SourceInModel:
    """What a model says of its user's code: in how many places, and one of them as `FILE:LINE:
    CODE`."""

    file: str
    places: int
    example: str


def found(files: Mapping[str, Path]) -> list[SourceInModel]:
    """The models among files that hold source code, by name. Complexity: linear in the models
    without their weights."""
    models = (
        (name, protobuf.read(path).model) for name, path in files.items() if path.suffix == ".onnx"
    )
    per_model = ((name, [removed.text for removed in _removed(model)]) for name, model in models)
    return [
        SourceInModel(name, len(texts), max(map(_line, texts), key=len))
        for name, texts in per_model
        if texts
    ]


def stripped(path: Path, folder: Path, name: str, every: bool = False) -> Path:
    """A copy of a model without source code, in a folder; the model itself where it holds none.

    `every`: without any metadata and documentation.
    """
    model = protobuf.read(path).model
    if not list(_removed(model, every)):
        return path
    protobuf.rewrite(model, path, folder / name)
    return folder / name


@dataclass(frozen=True)
class ModelTexts:
    """What people and tools wrote into a model: its metadata as `KEY VALUE`, and its
    documentation."""

    metadata: Sequence[str]
    documentation: Sequence[str]


def read_texts(path: Path) -> ModelTexts:
    """Return the metadata and documentation of a model, of its nodes and tensors too, without
    subcut's own entries."""
    texts = [
        t
        for t in _removed(protobuf.read(path).model, every=True)
        if not t.text.startswith("subcut.")
    ]
    return ModelTexts(
        [t.text for t in texts if t.in_metadata], [t.text for t in texts if not t.in_metadata]
    )


@dataclass(frozen=True)
class _Text:
    """A text that was removed from a model."""

    text: str
    in_metadata: bool


def _removed(message: Any, every: bool = False) -> Iterator[_Text]:
    """Remove what tells of source code from a message and all inside it; yields the stack traces
    and paths.

    `every`: removes, and yields, all metadata and documentation.
    """
    if hasattr(message, "metadata_props"):
        kept = [
            e for e in message.metadata_props if not every and (e.key == KEPT or not _tells(e.key))
        ]
        for e in message.metadata_props:
            if every or e.key == STACK_TRACE:
                yield _Text(f"{e.key} {e.value}" if every else e.value, True)
        if len(kept) < len(message.metadata_props):
            kept = [type(e).FromString(e.SerializeToString()) for e in kept]
            del message.metadata_props[:]
            message.metadata_props.extend(kept)
    documented = every and "doc_string" in message.DESCRIPTOR.fields_by_name and message.doc_string
    if documented or (
        message.DESCRIPTOR.name == "NodeProto" and CODE_PATH.search(_bytes(message.doc_string))
    ):
        yield _Text(_bytes(message.doc_string).decode(errors="replace"), False)
        message.ClearField("doc_string")
    for field, value in message.ListFields():
        if field.name == "value_info" and field.type == field.TYPE_BYTES:
            yield from _removed_from_bytes(value, every)
        elif field.type == field.TYPE_MESSAGE and (every or field.message_type.name not in SIMPLE):
            for inner in value if field.is_repeated else [value]:
                yield from _removed(inner, every)


def _removed_from_bytes(declarations: Any, every: bool) -> Iterator[_Text]:
    """As `_removed`, of declarations of tensors, which are kept as bytes; those of the exporter are
    not yielded."""
    for k, data in enumerate(declarations):
        if every or EXPORTER.encode() in data or NAMESPACE.encode() in data:
            info = protobuf.protos().ValueInfoProto.FromString(data)
            texts = list(_removed(info, every))
            declarations[k] = info.SerializeToString()
            yield from texts if every else ()


def _tells(key: str) -> bool:
    return key.startswith(EXPORTER) or key == NAMESPACE


def _bytes(text: str | bytes) -> bytes:
    """A documentation: the classes that read models keep it as bytes."""
    return text.encode(errors="surrogateescape") if isinstance(text, str) else text


def _line(text: str) -> str:
    """`FILE:LINE: CODE` of the user's innermost call in a trace; of a documentation its first
    line."""
    file, line, code = innermost_call(text)
    return f"{file}:{line}: {code}" if file else text.strip().partition("\n")[0]
