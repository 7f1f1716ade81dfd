"""A caffemodel's blobs are found without reading them; a damaged one is refused by byte or
layer."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from subgraph.errors import ModelError
from subgraph.graph.protobuf import make_tag
from subgraph.origins.caffe import caffemodel
from subgraph.origins.caffe.caffemodel import WeightBlob
from subgraph.types import Array
from tests.helpers.refusals import raises


def field(number: int, data: bytes) -> bytes:
    return make_tag(number, len(data)) + data


def varint(number: int, value: int) -> bytes:
    out = bytearray(make_tag(number, value))  # a tag and a length are written as two varints
    out[0] &= 0xF8
    return bytes(out)


def model(blob: bytes, layer: int = 100, name: int = 1, blobs: int = 7) -> bytes:
    return field(layer, field(name, b"ip") + field(blobs, blob))


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


SHAPE_2_2 = field(7, field(1, b"\x02\x02"))
DATA = floats(1, 2, 3, 4)
RIGHT = np.array([[1, 2], [3, 4]], np.float32)


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        (model(SHAPE_2_2 + field(5, DATA)), (2, 2)),
        (model(field(7, b"\x08\x02\x08\x02") + field(5, DATA)), (2, 2)),  # dims that are not packed
        (model(SHAPE_2_2 + field(5, DATA[:4]) + field(5, DATA[4:])), (2, 2)),  # in two pieces
        # floats not packed
        (model(SHAPE_2_2 + b"".join(b"\x2d" + DATA[k : k + 4] for k in range(0, 16, 4))), (2, 2)),
        # in double precision
        (model(SHAPE_2_2 + field(8, struct.pack("<4d", 1, 2, 3, 4))), (2, 2)),
        (
            model(varint(1, 1) + varint(2, 1) + varint(3, 2) + varint(4, 2) + field(5, DATA)),
            (1, 1, 2, 2),
        ),
        (model(SHAPE_2_2 + field(5, DATA), layer=2, name=4, blobs=6), (2, 2)),  # V1
        # diff, unknown field
        (model(SHAPE_2_2 + field(5, DATA) + field(6, DATA) + field(999, b"new")), (2, 2)),
    ],
)
def test_all_forms_of_a_blob(tmp_path: Path, data: bytes, shape: tuple[int, ...]) -> None:
    (tmp_path / "m.caffemodel").write_bytes(data)
    (blob,) = caffemodel.read(tmp_path / "m.caffemodel")["ip"]
    assert blob.shape == shape
    np.testing.assert_array_equal(blob.array().reshape(2, 2), RIGHT)


def test_written_fields_are_read_and_copied(tmp_path: Path) -> None:
    arrays = {"a": [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(1, np.float32)], "b": []}
    blobs = {
        name: [WeightBlob(v.shape, values=v) for v in values] for name, values in arrays.items()
    }
    caffemodel.write(
        tmp_path / "1", "net", [(name, "InnerProduct", given) for name, given in blobs.items()]
    )
    once = caffemodel.read(tmp_path / "1")
    caffemodel.write(
        tmp_path / "2", "net", [(name, "InnerProduct", given) for name, given in once.items()]
    )
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    for name, values in arrays.items():
        for blob, value in zip(once[name], values, strict=True):
            assert_same(blob.array(), value)


def assert_same(one: Array, other: Array) -> None:
    assert one.shape == other.shape
    np.testing.assert_array_equal(one, other)


def shaped(dims: bytes) -> bytes:
    return model(field(7, field(1, dims)) + field(5, DATA))


DAMAGED = [
    (b"\x0a\x03net", "caffe.no-weights", "m.caffemodel"),
    (model(SHAPE_2_2 + field(5, DATA[:12])), "caffe.damaged-weights", "[2, 2] and 3 values"),
    (model(SHAPE_2_2), "caffe.damaged-weights", "0 values"),
    (shaped(b"\xff\xff\xff\xff\xff\xff\xff\x7f" * 4), "caffe.damaged-weights", "4 values"),
    (shaped(b"\xff" * 9 + b"\x01"), "caffe.damaged-weights", "[-1]"),
    (model(field(7, field(1, b"\x82")) + field(5, DATA)), "model.damaged", "not end"),
    (model(varint(10, 1) + field(12, b"\0\0")), "caffe.half-precision", "ip"),
    (field(100, field(1, b"\xff\xfe")), "model.damaged", "not UTF-8"),
    (model(SHAPE_2_2 + field(5, DATA))[:-3], "model.damaged", "byte 0"),
    (make_tag(100, 1 << 40), "model.damaged", "are left"),
    (b"\x89HDF\r\n\x1a\n\0", "caffe.hdf5", "m.caffemodel"),
]


@pytest.mark.parametrize(("data", "code", "about"), DAMAGED)
def test_damage_is_named(tmp_path: Path, data: bytes, code: str, about: str) -> None:
    (tmp_path / "m.caffemodel").write_bytes(data)
    with raises(ModelError, code, about):
        caffemodel.read(tmp_path / "m.caffemodel")


def test_every_truncation_and_flipped_byte_is_read_or_refused(tmp_path: Path) -> None:
    whole = model(SHAPE_2_2 + field(5, DATA)) + model(varint(1, 4) + field(5, DATA))
    path = tmp_path / "m.caffemodel"
    for k in range(len(whole)):
        for data in (whole[:k], whole[:k] + bytes([whole[k] ^ 0x55]) + whole[k + 1 :]):
            path.write_bytes(data)
            try:
                for blobs in caffemodel.read(path).values():
                    assert all(b.array().shape == b.shape for b in blobs)
            except ModelError:
                pass


def test_folder_and_a_missing_file(tmp_path: Path) -> None:
    for path, code in ((tmp_path, "file.not-regular"), (tmp_path / "none", "model.unreadable")):
        with raises(ModelError, code):
            caffemodel.read(path)
