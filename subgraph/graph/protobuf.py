"""Reading and writing `.onnx` files without loading large weights, which stay on disk as (file,
offset, length).

A protobuf message is a sequence of fields, each with a tag and a length. A file above
`MIN_WALKED_BYTES` bytes is *walked*: the headers of the fields of the model and of its graph are
read one by one, and the bytes of each large initializer are skipped by their length. All other
bytes are parsed by the generated classes. A skipped initializer appears in the model as a *stub*: a
TensorProto with `data_location = EXTERNAL` whose location is `HERE`, that is, the model file
itself. So all other code handles weights inside the model file and weights in external files alike.

`onnx_ml_pb2` is loaded without the package `onnx` around it (0.02 s rather than 0.18). A later
`import onnx` returns the same classes, because the module is registered under its usual name.

Models are read with copies of onnx's classes in which `value_info` is a list of bytes: it makes up
half of the messages of a large graph and is hardly ever needed (for 80,000 nodes: 19 MiB and 0.015
s less).
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
import stat
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar, cast

from subgraph import system
from subgraph.errors import DataError, ModelError, OutputError, explain_os_error
from subgraph.iterables import flatten
from subgraph.lazy import np
from subgraph.storage import dtypes, folders
from subgraph.storage.file_kinds import HEAD_BYTES, recognize
from subgraph.storage.tensors import find_dtype
from subgraph.types import Array

if TYPE_CHECKING:
    from onnx import onnx_ml_pb2 as onnx_stubs
    from onnx.onnx_ml_pb2 import (
        AttributeProto as AttributeProto,
        FunctionProto as FunctionProto,
        GraphProto as GraphProto,
        ModelProto as ModelProto,
        NodeProto as NodeProto,
        TensorProto as TensorProto,
        TypeProto as TypeProto,
        ValueInfoProto as ValueInfoProto,
    )


MIN_WALKED_BYTES = 32 << 20  # bytes; a smaller file is parsed faster than walked
MIN_STUB_BYTES = 64 << 10  # bytes; smaller weights are parsed
# Bytes of weights inside a file; more go to a .data file (a protobuf message ends at 2 GiB).
MAX_INLINE_BYTES = 1 << 30
ALIGNMENT_BYTES = 4096  # bytes; onnxruntime maps external data by page

WINDOW_BYTES = 32 << 10  # bytes read at a time while walking
MAX_HEADER = 20  # bytes of a tag and a length at most
CHUNK_BYTES = 1 << 20  # bytes of weights copied or hashed at a time

VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5
GRAPH = 7  # field of ModelProto
INITIALIZER = 5  # field of GraphProto
RAW_DATA = 9  # field of TensorProto
_COMPARE = "compare its size and checksum with the original"
EXTERNAL: Any = 1  # TensorProto.DataLocation
HERE = "\0"  # location of a stub: a name that no file can have
STRING = 8  # TensorProto.DataType


_IMPORTING = threading.RLock()
T = TypeVar("T")  # a class of messages


class MessageClasses(Protocol):
    """The generated protobuf classes of onnx that are created here."""

    DESCRIPTOR: Any
    AttributeProto: type[onnx_stubs.AttributeProto]
    FunctionProto: type[onnx_stubs.FunctionProto]
    GraphProto: type[onnx_stubs.GraphProto]
    ModelProto: type[onnx_stubs.ModelProto]
    NodeProto: type[onnx_stubs.NodeProto]
    TensorProto: type[onnx_stubs.TensorProto]
    TypeProto: type[onnx_stubs.TypeProto]
    ValueInfoProto: type[onnx_stubs.ValueInfoProto]


def load_protos() -> MessageClasses:
    """Return the generated protobuf classes of onnx, without importing the `onnx` package.

    Raises:
        ModelError: onnx is not installed.
    """
    with _IMPORTING:  # several threads may load their first model at once
        module = sys.modules.get("onnx.onnx_ml_pb2") or _import_protos()
    return cast("MessageClasses", module)


def _import_protos() -> ModuleType:
    package = importlib.util.find_spec("onnx")
    if package is None or not package.submodule_search_locations:
        raise ModelError(
            "the package 'onnx' is not installed", "pip install onnx", code="package.not-installed"
        )
    place = Path(package.submodule_search_locations[0]) / "onnx_ml_pb2.py"
    spec = importlib.util.spec_from_file_location("onnx.onnx_ml_pb2", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["onnx.onnx_ml_pb2"] = module
    spec.loader.exec_module(module)
    return module


@cache
def find_reading_class(name: str = "ModelProto") -> Any:
    """Return the message class with which models are read. It differs from onnx's class of that
    name in three ways.

    `graph.value_info` stays bytes, for speed. Doc strings stay bytes, because some are not UTF-8
    and subcut does not use them. Any other text that is not UTF-8 is an error while parsing, not
    later on access.
    """
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(
        _make_reading_pool().FindMessageTypeByName(f"subcut.{name}")
    )


@cache
def _make_reading_pool() -> Any:
    """Return the descriptors of onnx's messages with these differences."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    file = descriptor_pb2.FileDescriptorProto()
    load_protos().DESCRIPTOR.CopyToProto(file)
    file.name = "subcut/reading.proto"
    file.package = "subcut"
    # The features of proto2, expressed as an edition, because only editions can require UTF-8.
    file.syntax = "editions"
    file.edition = descriptor_pb2.EDITION_2023
    features = descriptor_pb2.FeatureSet
    reading = file.options.features
    reading.utf8_validation = features.VERIFY
    reading.enum_type = features.CLOSED
    reading.repeated_field_encoding = features.EXPANDED
    for message in file.message_type:
        inner = flatten(nested.field for nested in message.nested_type)
        for field in (*message.field, *inner):
            if field.type_name:
                field.type_name = field.type_name.replace(".onnx.", ".subcut.")
            if field.options.packed:
                field.options.ClearField("packed")
                field.options.features.repeated_field_encoding = features.PACKED
            qualified = f"{message.name}.{field.name}"
            if field.name == "doc_string" or qualified == "GraphProto.value_info":
                field.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
                field.ClearField("type_name")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


@dataclass(frozen=True, slots=True)
class Blob:
    """Position of the bytes of one weight."""

    file: Path
    offset: int
    length: int

    def iter_chunks(self, size: int = CHUNK_BYTES) -> Iterator[bytes]:
        """Yield the bytes, at most `size` at a time. OSError if the file ends before them."""
        with self.file.open("rb") as file:
            file.seek(self.offset)
            left = self.length
            while left:
                if not (chunk := file.read(min(left, size))):
                    raise OSError(5, f"{self.file.name} became shorter while it was read")
                yield chunk
                left -= len(chunk)


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A parsed model without the bytes of its large weights; `size`: bytes of the file.

    `structure` is the SHA-256 of the file; of a walked file, without the bytes of large weights,
    because reading gigabytes for a digest would take longer than the cut. `digest_weights` covers
    those weights that are used.
    """

    path: Path
    model: ModelProto
    size: int
    structure: str


def read(path: Path) -> Skeleton:
    """Parse a model file; large weights of a large file become stubs.

    Complexity: linear in the bytes that are parsed.

    Raises:
        ModelError: the file is missing, truncated or not an ONNX model; names the byte where
            reading stopped.
    """
    with explain_read_error(path):
        # Checked first, because opening a pipe would block.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ModelError(
                f"{path} is not a regular file",
                "name the .onnx file itself",
                code="file.not-regular",
            )
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MIN_WALKED_BYTES:
                return _read_large(path, file.fileno(), size)
            data = file.read()
    model = _parse(path, data, data[:HEAD_BYTES])
    _require_graph(path, model, data[:HEAD_BYTES])
    return Skeleton(path, model, len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True, slots=True)
class File:
    """A file that is read in pieces. Not mapped: skipped pages of a map would still count as
    memory."""

    path: Path
    handle: int
    size: int

    def cut(self, begin: int, end: int) -> bytes:
        """Return the bytes from `begin` up to `end`.

        Raises:
            ModelError: the file became shorter.
        """
        out = system.read_at(self.handle, end - begin, begin)
        while len(out) < end - begin:
            more = system.read_at(self.handle, end - begin - len(out), begin + len(out))
            if not more:
                raise make_damage_error(
                    self.path, begin + len(out), "the file became shorter while it was read"
                )
            out += more
        return out


def _read_large(path: Path, handle: int, size: int) -> Skeleton:
    system.read_nothing_ahead(handle)  # skipped weights are not read from the disk
    file = File(path, handle, size)
    digest = hashlib.sha256()
    rest: list[bytes] = []  # the model without its graph
    graph: list[bytes] = []  # the graph without its large weights
    stubs = []
    start = 0
    for number, tag, begin, end in iter_fields(file, 0, size, "model"):
        if number == GRAPH:
            rest.append(file.cut(start, tag))
            stubs += _walk_graph(file, begin, end, graph)
            start = end
    rest.append(file.cut(start, size))
    for part in (*rest, *graph, *stubs):
        digest.update(part)
    length = sum(map(len, graph))
    head = file.cut(0, min(size, HEAD_BYTES))
    header = make_tag(GRAPH, length) if length else b""
    model = _parse(path, b"".join((*rest, header, *graph)), head)
    for stub in stubs:
        model.graph.initializer.add().MergeFromString(stub)
    _require_graph(path, model, head)
    return Skeleton(path, model, size, digest.hexdigest())


def _walk_graph(file: File, begin: int, end: int, parts: list[bytes]) -> list[bytes]:
    """Append to `parts` the bytes of the graph without large initializers; return those as
    serialized stubs."""
    stubs = []
    start = begin
    for number, tag, at, stop in iter_fields(file, begin, end, "graph"):
        if number != INITIALIZER or stop - at < MIN_STUB_BYTES:
            continue
        stub = _read_stub(file, at, stop)
        if stub is not None:
            parts.append(file.cut(start, tag))
            stubs.append(stub)
            start = stop
    parts.append(file.cut(start, end))
    return stubs


def _read_stub(file: File, begin: int, end: int) -> bytes | None:
    """Return the tensor between these positions as a serialized stub; None if it has no raw
    data."""
    pieces = []
    raw = None
    start = begin
    for number, tag, at, stop in iter_fields(file, begin, end, "initializer"):
        if number == RAW_DATA:
            pieces.append(file.cut(start, tag))
            raw = (at, stop - at)
            start = stop
    if raw is None:
        return None
    pieces.append(file.cut(start, end))
    tensor = _decode(file.path, b"".join(pieces), find_reading_class("TensorProto"))
    point_to(tensor, HERE, *raw)
    return bytes(tensor.SerializeToString(deterministic=True))


def iter_fields(file: File, begin: int, end: int, what: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield (number, position of the tag, begin of the value, end of the value) of each field of
    one message, in file order.

    Raises:
        ModelError: a field extends beyond the message, or its wire type is unknown.
    """
    at = begin
    base = begin
    window = b""
    while at < end:
        if at - base + MAX_HEADER > len(window):
            base = at
            window = system.read_at(file.handle, min(WINDOW_BYTES, end - at), at)
        tag_at = at
        try:
            tag, i = read_varint(window, at - base)
            wire = tag & 7
            if tag < 8:  # a hole of zeros would yield millions of them
                raise make_damage_error(file.path, tag_at, f"field number 0 in the {what}")
            if wire == BYTES:
                size, i = read_varint(window, i)
                at = base + i
                stop = at + size
            elif wire == VARINT:
                at = base + i
                stop = base + read_varint(window, i)[1]
            elif wire in (FIXED32, FIXED64):
                at = base + i
                stop = at + (4 if wire == FIXED32 else 8)
            else:
                why = f"unknown wire type {wire} in the {what}"
                raise make_damage_error(file.path, tag_at, why)
        except IndexError:
            raise make_damage_error(file.path, tag_at, f"the {what} ends inside a field") from None
        if stop > end:
            raise make_damage_error(
                file.path,
                tag_at,
                f"field {tag >> 3} of the {what} wants {stop - at} bytes, {max(end - at, 0)} are"
                " left",
            )
        yield tag >> 3, tag_at, at, stop
        at = stop


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return (value, next position) of a variable-length integer.

    Raises:
        IndexError: The integer does not end within the data.
    """
    value = data[at]
    at += 1
    if value < 128:
        return value, at
    value &= 127
    shift = 7
    while shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise IndexError


def read_doc_text(text: str | bytes) -> str:
    """Return a doc string as text.

    Args:
        text: The doc string. It is bytes in a message of the class that reads models.
    """
    if isinstance(text, bytes):
        return text.decode(errors="replace")
    return text


def make_damage_error(path: Path, offset: int, why: str) -> ModelError:
    """Return the error that names the byte at which reading stopped."""
    return ModelError(
        f"{path} is truncated or damaged at byte {offset}: {why}", _COMPARE, code="model.damaged"
    )


def _parse(path: Path, data: bytes, head: bytes) -> ModelProto:
    """Parse a full model."""
    try:
        model: ModelProto = _decode(path, data, find_reading_class())
        return model
    except ModelError as e:
        if kind := recognize(path, head):
            raise ModelError(
                f"{path} is not an ONNX model: {kind.sentence}", kind.advice, code="model.not-onnx"
            ) from e
        raise


def _decode(path: Path, data: bytes, cls: Any) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return cls.FromString(data)
    except (DecodeError, ValueError) as e:
        reason = str(e).rpartition(": ")[2] or str(e)
        size = path.stat().st_size if path.exists() else 0
        raise ModelError(
            f"{path} ({size} bytes) is damaged or not an ONNX model: {reason}",
            _COMPARE,
            code="model.damaged",
        ) from e


def _require_graph(path: Path, model: ModelProto, head: bytes) -> None:
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        kind = recognize(path, head)
        what, advice = (kind.sentence, kind.advice) if kind else ("it holds no graph", "")
        raise ModelError(
            f"{path} is not an ONNX model: {what}",
            advice or "check that it is the right file",
            code="model.not-onnx",
        )


def iter_value_infos(
    skeleton: Skeleton, names: Iterable[str] | None = None
) -> Iterator[ValueInfoProto]:
    """Yield the graph's value_info in onnx's own class: all, or those of `names`, without parsing
    most of the others.

    Raises:
        ModelError: a value_info is damaged.
    """
    onnx_class = load_protos().ValueInfoProto
    cls = find_reading_class("ValueInfoProto")
    selected = None if names is None else {name.encode() for name in names}
    declarations: Any = skeleton.model.graph.value_info  # bytes in the class that reads models
    for data in declarations:
        # The name usually comes first: tag 0x0A, then its length, one byte below 128.
        if (
            selected is not None
            and b"\n\0" <= data[:2] < b"\n\x80"
            and data[2 : 2 + data[1]] not in selected
        ):
            continue
        info = _decode(skeleton.path, data, cls)
        if selected is None or info.name.encode() in selected:
            yield onnx_class.FromString(data)


def to_onnx(model: ModelProto, path: Path) -> ModelProto:
    """Return a model of the class `find_reading_class()`, read from `path`, converted to onnx's own
    class.

    Raises:
        ModelError: a value_info is damaged.
    """
    converted: ModelProto = _decode(path, model.SerializeToString(), load_protos().ModelProto)
    return converted


def clone(message: T) -> T:
    """Return a copy of a message."""
    copy: Any = type(message)()
    copy.CopyFrom(message)
    return cast("T", copy)


# ------------------------------------------------------------ weights


def point_to(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Make `tensor` external: its bytes are at `offset` of the file `location` (`HERE`: the model
    file itself)."""
    tensor.ClearField("raw_data")
    tensor.ClearField("external_data")
    tensor.data_location = EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        entry = tensor.external_data.add()
        entry.key = key
        entry.value = value


def is_on_disk(tensor: TensorProto) -> bool:
    """Return whether the bytes of this weight are in a file rather than in the message."""
    return bool(tensor.data_location == EXTERNAL)


def is_in_other_file(tensor: TensorProto) -> bool:
    """Return whether the bytes of this weight are in another file than the model."""
    return is_on_disk(tensor) and not any(
        e.key == "location" and e.value == HERE for e in tensor.external_data
    )


def count_elements(tensor: TensorProto) -> int:
    """Return the number of elements by the tensor's dims.

    Raises:
        ModelError: a negative dimension.
    """
    dims = tuple(tensor.dims)
    if any(d < 0 for d in dims):
        raise ModelError(
            f"initializer '{tensor.name}' has a negative dimension: {list(dims)}",
            code="weight.negative-dimension",
        )
    return math.prod(dims)


def count_bytes(tensor: TensorProto) -> int:
    """Return the bytes of the tensor's raw data; elements of less than a byte are packed.

    Raises:
        ModelError: strings, or an unknown element type, which have no raw data; a negative
            dimension.
    """
    bits = dtypes.count_number_bits(tensor.data_type)
    if not bits:
        raise ModelError(
            f"initializer '{tensor.name}' has element type {tensor.data_type}, which has no raw"
            " form",
            code="weight.unknown-type",
        )
    return (count_elements(tensor) * bits + 7) // 8


def locate(tensor: TensorProto, model: Path) -> Blob:
    """Locate the bytes of an on-disk weight, in a regular, long enough file of the model's folder.

    Raises:
        DataError: a check fails; names the weight, the file and the rule.
        ModelError: as `count_bytes`.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    needed = count_bytes(tensor)
    try:
        offset = int(entries.get("offset", "0"))
        length = int(entries.get("length", needed))
    except ValueError:
        raise DataError(
            f"weight '{tensor.name}': offset or length in {location!r} is not a number",
            code="weight.malformed-location",
        ) from None
    file = model if location == HERE else _resolve_inside(tensor.name, location, model)
    shown = model.name if location == HERE else location
    if length != needed:
        raise DataError(
            f"weight '{tensor.name}': {length} bytes in {shown!r}, its type and shape need"
            f" {needed}",
            "the model and its data do not belong together",
            code="weight.wrong-size",
        )
    size = file.stat().st_size
    if offset < 0 or offset + length > size:
        raise DataError(
            f"weight '{tensor.name}': bytes {offset}…{offset + length} of {shown!r}, which is too"
            f" short: it has {size}",
            "copy the data file again; it may be truncated",
            code="weight.too-short",
        )
    return Blob(file, offset, length)


def _resolve_inside(name: str, location: str, model: Path) -> Path:
    """Return the real path of an external location, which must be in the folder of the model."""
    folder = model.parent.resolve()
    refuse = f"weight '{name}': external data {location!r}"
    if not location:
        raise DataError(
            f"weight '{name}': its external data names no file",
            "the model is damaged: export it again",
            code="weight.no-file",
        )
    parts = location.replace("\\", "/").split("/")
    if "\0" in location or location.startswith(("/", "\\")) or ":" in parts[0]:
        raise DataError(
            f"{refuse} is an absolute path",
            "only files inside the model's folder are read",
            code="weight.absolute-path",
        )
    if ".." in parts or folders.is_outside(location):  # a device, a stream
        raise DataError(
            f"{refuse} leads out of the model's folder",
            "only files inside the model's folder are read",
            code="weight.outside-folder",
        )
    try:
        file = (folder / location).resolve(strict=True)
        regular = stat.S_ISREG(file.stat().st_mode)
    except (OSError, RuntimeError) as e:  # RuntimeError: a loop of symbolic links
        why = getattr(e, "strerror", None) or "it cannot be reached"
        raise DataError(
            f"{refuse} is missing: {why}",
            f"put it next to the model, in {model.parent}",
            code="weight.missing",
        ) from e
    if not file.is_relative_to(folder):
        raise DataError(
            f"{refuse} is a symbolic link out of the model's folder",
            f"copy {file} into the folder",
            code="weight.outside-folder",
        )
    if not regular:
        raise DataError(f"{refuse} is not a regular file", code="file.not-regular")
    return file


def digest_weights(tensors: list[TensorProto], model: Path) -> str:
    """Return the SHA-256 over name, type, dims and bytes of these on-disk weights, by name.

    Returns:
        "" without on-disk weights.

    Raises:
        DataError: The bytes of a weight cannot be read.
    """
    digest = hashlib.sha256()
    for tensor in sorted(tensors, key=lambda t: str(t.name)):
        blob = locate(tensor, model)
        digest.update(f"{tensor.name}\0{tensor.data_type}\0{list(tensor.dims)}\0".encode())
        for chunk in blob.iter_chunks():
            digest.update(chunk)
    return digest.hexdigest() if tensors else ""


def load_raw(tensor: TensorProto, model: Path) -> TensorProto:
    """Return a copy of an on-disk weight with its bytes inside.

    Raises:
        DataError: the bytes cannot be read.
    """
    blob = locate(tensor, model)
    full = _copy_bare(tensor, type(tensor))
    with blob.file.open("rb") as file:
        file.seek(blob.offset)
        full.raw_data = file.read(blob.length)
    return full


def load_all(tensors: Iterable[TensorProto], model: Path) -> None:
    """Put the bytes of those tensors that are on disk into them.

    Raises:
        DataError: the bytes cannot be read.
    """
    for tensor in tensors:
        if is_on_disk(tensor):
            tensor.CopyFrom(load_raw(tensor, model))


def _copy_bare(tensor: TensorProto, cls: type[TensorProto]) -> TensorProto:
    """Return a copy of an on-disk weight without the place of its bytes."""
    copy: TensorProto = cls.FromString(tensor.SerializeToString())
    copy.ClearField("external_data")
    copy.ClearField("data_location")
    return copy


def to_array(tensor: TensorProto, model: Path) -> Array:
    """Return the elements as an array of the tensor's shape, also of an on-disk weight or a tensor
    of `find_reading_class()`.

    Raises:
        DataError: the bytes of an on-disk weight cannot be read.
        ValueError, TypeError: the tensor is damaged.
    """
    from onnx import numpy_helper

    full = load_raw(tensor, model) if is_on_disk(tensor) else tensor
    array: Array = numpy_helper.to_array(
        load_protos().TensorProto.FromString(full.SerializeToString())
    )
    return array


def iter_pieces(tensor: TensorProto, model: Path, size: int) -> Iterator[Array]:
    """Yield the elements in their order, at most `size` at a time; of an on-disk weight of whole
    bytes only these are read.

    Not mapped: the pages of a map count as memory.

    Raises:
        DataError, ValueError, TypeError: as `to_array`. ModelError: its elements are not numbers.
    """
    count_bytes(tensor)  # has it a raw form?
    name, bits = dtypes.TYPES[tensor.data_type]
    if is_on_disk(tensor) and bits >= 8:
        dtype = find_dtype(name)
        chunks = locate(tensor, model).iter_chunks(size * dtype.itemsize)
        yield from (np.frombuffer(chunk, dtype) for chunk in chunks)
    else:
        flat = to_array(tensor, model).ravel("K")
        yield from (flat[k : k + size] for k in range(0, flat.size, size))


# ------------------------------------------------------------ writing


def write(
    model: ModelProto,
    source: Path | Mapping[str, Path],
    path: Path,
    *,
    external: bool | None = None,
) -> list[Path]:
    """Write `model` to `path`; its on-disk weights are copied from file to file. Returns the files
    written.

    `source`: the model file to which the locations of on-disk weights refer, if need be for each by
    name. With `external`, or beyond `MAX_INLINE_BYTES` bytes, they go to `<path>.data`, each at a
    multiple of `ALIGNMENT_BYTES`; otherwise into the file itself. By default they do if any was in
    another file than its model.

    Raises:
        DataError: the bytes of a weight cannot be read.
        OutputError: the disk is full or not writable.
    """
    copy = clone(model)
    tensors = list(filter(is_on_disk, copy.graph.initializer))
    weights = [
        (t, locate(t, source if isinstance(source, Path) else source[t.name])) for t in tensors
    ]
    if external is None:
        external = any(map(is_in_other_file, tensors))
    with explain_write_error(path):
        if weights and (external or sum(blob.length for _, blob in weights) > MAX_INLINE_BYTES):
            data = path.with_name(path.name + ".data")
            with data.open("wb") as out:
                for tensor, blob in weights:
                    at = -(-out.tell() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
                    out.seek(at)
                    copy_blob(blob, out)
                    point_to(tensor, data.name, at, blob.length)
                out.truncate()
            path.write_bytes(copy.SerializeToString(deterministic=True))
            return [path, data]
        _write_inline(copy, weights, path)
    return [path]


def rewrite(model: ModelProto, source: Path, path: Path) -> None:
    """Write the changed model of `source` to `path`; its weights remain in the files of `source`.

    `model` is empty afterwards.

    Raises:
        DataError: As `write`.
        OutputError: As `write`.
    """
    weights = [t for t in model.graph.initializer if is_on_disk(t) and not is_in_other_file(t)]
    with explain_write_error(path):
        _write_inline(model, [(tensor, locate(tensor, source)) for tensor in weights], path)


def explain_read_error(path: Path) -> AbstractContextManager[None]:
    """Report an error of the operating system in a block as one of the model that is read."""
    fact = f"cannot read {path}"
    return explain_os_error(ModelError, fact, "check the path", code="model.unreadable")


def explain_write_error(path: Path) -> AbstractContextManager[None]:
    """Report an error of the operating system in a block as one of the file that is written."""
    fact = f"cannot write {path}"
    hint = "free some space or choose another -o"
    return explain_os_error(OutputError, fact, hint, code="output.unwritable")


def _write_inline(model: ModelProto, weights: list[tuple[TensorProto, Blob]], path: Path) -> None:
    """Write the model with these weights of its in it; its graph is taken apart."""
    if not weights:
        path.write_bytes(model.SerializeToString(deterministic=True))
        return
    graph = model.graph
    names = {tensor.name for tensor, _ in weights}
    small = [tensor for tensor in graph.initializer if tensor.name not in names]
    large = []
    for tensor, blob in weights:
        bare = _copy_bare(tensor, load_protos().TensorProto).SerializeToString(deterministic=True)
        inner = bare + make_tag(RAW_DATA, blob.length)
        large.append((make_tag(INITIALIZER, len(inner) + blob.length) + inner, blob))
    graph.ClearField("initializer")
    graph.initializer.extend(small)
    body = graph.SerializeToString(deterministic=True)
    model.ClearField("graph")
    total = len(body) + sum(len(header) + blob.length for header, blob in large)
    with path.open("wb") as out:
        out.write(model.SerializeToString(deterministic=True))
        out.write(make_tag(GRAPH, total))
        out.write(body)
        for header, blob in large:
            out.write(header)
            copy_blob(blob, out)


def make_tag(number: int, length: int) -> bytes:
    """Return the header of a length-prefixed field."""
    return encode_varints(number << 3 | BYTES, length)


def encode_varints(*values: int) -> bytes:
    """Return the bytes of variable-length integers."""
    out = bytearray()
    for value in values:
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)
    return bytes(out)


def copy_blob(blob: Blob, out: BinaryIO) -> None:
    """Append the bytes of a weight to `out`."""
    for chunk in blob.iter_chunks():
        out.write(chunk)
