"""A caffemodel <-> its layers' blobs, which stay on disk: a blob's floats are contiguous, so only
their place is read.

The numbers of the fields are from BVLC's caffe.proto: NetParameter, LayerParameter,
V1LayerParameter, BlobProto.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TypeAlias

import numpy as np

from subgraph.errors import ModelError
from subgraph.graph import protobuf
from subgraph.graph.protobuf import Blob, File
from subgraph.iterables import flatten
from subgraph.types import Array, Shape

# Numbers of fields of NetParameter.
_NAME = 1
_V1_LAYER = 2
_LAYER = 100
_FIELDS = {_LAYER: (1, 7), _V1_LAYER: (4, 6)}  # of a layer: its name, its blobs
# Numbers of fields of LayerParameter.
_TYPE = 2
_BLOBS = 7
# Numbers of fields of BlobProto; the last one is NVIDIA's.
_LEGACY_DIMS = (1, 2, 3, 4)
_DATA = 5
_SHAPE = 7
_DOUBLE_DATA = 8
_RAW_DATA = 12
# Bytes of a value.
_FLOAT = 4
_DOUBLE = 8
_HDF5 = b"\x89HDF\r\n\x1a\n"
_COMPARE = "compare its size and checksum with the original"


@dataclass(frozen=True, slots=True)
class WeightBlob:
    """One blob of a layer.

    Attributes:
        shape: The declared shape.
        places: The places of its values, in order.
        width: Bytes of a value: 4 or 8.
        values: The values of a blob that is in no file.
    """

    shape: Shape
    places: tuple[Blob, ...] = ()
    width: int = _FLOAT
    values: Array | None = None

    @property
    def place(self) -> Blob | None:
        """The place of its float32 values, if there is only one."""
        if len(self.places) == 1 and self.width == _FLOAT:
            return self.places[0]
        return None

    def array(self) -> Array:
        """Return the values as float32, in the declared shape."""
        if self.values is not None:
            return self.values
        data = b"".join(flatten(place.iter_chunks() for place in self.places))
        return np.frombuffer(data, f"<f{self.width}").astype(np.float32).reshape(self.shape)


WeightBlobs: TypeAlias = "tuple[WeightBlob, ...]"  # of a layer


def read(path: Path) -> dict[str, WeightBlobs]:
    """Read the blobs of each layer. Linear in the number of fields, not in the bytes of the
    weights.

    Raises:
        ModelError: The file cannot be read, is truncated or no caffemodel, or the values of a blob
            do not fill its shape; names the byte or the layer.
    """
    with protobuf.explain_read_error(path):
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would block
            raise ModelError(
                f"{path} is not a regular file",
                "name the .caffemodel itself",
                code="file.not-regular",
            )
        with path.open("rb") as handle:
            file = File(path, handle.fileno(), os.fstat(handle.fileno()).st_size)
            if file.size >= len(_HDF5) and file.cut(0, len(_HDF5)) == _HDF5:
                raise ModelError(
                    f"{path} is in HDF5",
                    "save it as a binary .caffemodel: Net.save of pycaffe",
                    code="caffe.hdf5",
                )
            layers = {}
            for number, _, begin, end in protobuf.iter_fields(file, 0, file.size, "network"):
                if number in _FIELDS:
                    name, blobs = _parse_layer(file, begin, end, *_FIELDS[number])
                    if blobs or name not in layers:
                        layers[name] = blobs
    if not layers:
        raise ModelError(
            f"{path} holds no layers: it is not a caffemodel",
            "name the .caffemodel with --weights",
            code="caffe.no-weights",
        )
    return layers


def _parse_layer(
    file: File, begin: int, end: int, name_field: int, blobs_field: int
) -> tuple[str, WeightBlobs]:
    name = ""
    places = []
    for number, tag, at, stop in protobuf.iter_fields(file, begin, end, "layer"):
        if number == name_field:
            try:
                name = file.cut(at, stop).decode()
            except UnicodeDecodeError:
                raise protobuf.make_damage_error(
                    file.path, tag, "the name of a layer is not UTF-8"
                ) from None
        elif number == blobs_field:
            places.append((at, stop))
    return name, tuple(_parse_blob(file, at, stop, name, k) for k, (at, stop) in enumerate(places))


def _parse_blob(file: File, begin: int, end: int, layer: str, k: int) -> WeightBlob:
    shape: list[int] | None = None
    legacy = dict.fromkeys(_LEGACY_DIMS, 0)
    data: dict[int, list[Blob]] = {_DATA: [], _DOUBLE_DATA: []}
    for number, tag, at, stop in protobuf.iter_fields(file, begin, end, "blob"):
        if number in data:
            data[number].append(Blob(file.path, at, stop - at))
        elif number == _SHAPE:  # its field 1 has the sizes, packed or not
            shape = []
            for inner, inner_tag, begin_of, end_of in protobuf.iter_fields(file, at, stop, "shape"):
                if inner == 1:
                    shape += _parse_integers(file, inner_tag, begin_of, end_of)
        elif number in legacy:
            legacy[number] = _parse_integers(file, tag, at, stop)[0]
        elif number == _RAW_DATA:
            raise ModelError(
                f"{file.path}: blob {k} of layer '{layer}' is in NVIDIA's half precision format",
                "save the network in float32 with NVCaffe",
                code="caffe.half-precision",
            )
    if shape is None:
        shape = list(legacy.values()) if any(legacy.values()) else []
    width = _FLOAT if data[_DATA] else _DOUBLE
    places = [place for place in data[_DATA] or data[_DOUBLE_DATA] if place.length]
    have = sum(place.length for place in places)
    wanted = prod(shape) * width
    if have != wanted or min(shape, default=1) < 0:
        raise ModelError(
            f"{file.path}: blob {k} of layer '{layer}' has the shape {shape} and"
            f" {have // width} values",
            _COMPARE,
            code="caffe.damaged-weights",
        )
    return WeightBlob(tuple(shape), tuple(places), width)


def _parse_integers(file: File, tag: int, begin: int, end: int) -> list[int]:
    data = file.cut(begin, end)
    at = 0
    out = []
    try:
        while at < len(data):
            value, at = protobuf.read_varint(data, at)
            out.append(value - (1 << 64) if value >> 63 else value)
        return out or [0]
    except IndexError:
        raise protobuf.make_damage_error(file.path, tag, "an integer does not end") from None


def write(path: Path, net: str, layers: Iterable[tuple[str, str, Sequence[WeightBlob]]]) -> None:
    """Write (name, type, blobs) of layers as a caffemodel; blobs are copied from file to file.

    Raises:
        OutputError: the disk is full or not writable.
    """
    with protobuf.explain_write_error(path), path.open("wb") as out:
        out.write(_encode_text(_NAME, net))
        for name, kind, blobs in layers:
            heads = []  # the bytes of each BlobProto in front of its values
            sizes = []
            for blob in blobs:
                length = prod(blob.shape) * blob.width
                dims = protobuf.encode_varints(*blob.shape)
                shape = protobuf.make_tag(1, len(dims)) + dims
                field = _DATA if blob.width == _FLOAT else _DOUBLE_DATA
                head = protobuf.make_tag(_SHAPE, len(shape)) + shape
                heads.append(head + protobuf.make_tag(field, length))
                sizes.append(len(heads[-1]) + length)
            tags = [protobuf.make_tag(_BLOBS, size) for size in sizes]
            front = _encode_text(1, name) + _encode_text(_TYPE, kind)
            out.write(protobuf.make_tag(_LAYER, len(front) + sum(sizes) + sum(map(len, tags))))
            out.write(front)
            for tag, head, blob in zip(tags, heads, blobs, strict=True):
                out.write(tag + head)
                if blob.values is not None:
                    out.write(np.ascontiguousarray(blob.values, "<f4").tobytes())
                for place in blob.places:
                    protobuf.copy_blob(place, out)


def _encode_text(number: int, text: str) -> bytes:
    data = text.encode()
    return protobuf.make_tag(number, len(data)) + data
