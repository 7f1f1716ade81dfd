"""Any ONNX value through .npy files and back, with the types that numpy lacks; packing of small
elements.

Covers `storage.tensors` and `storage.dtypes`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings, strategies as st
from onnx import helper, numpy_helper

from subgraph.documents import from_json, to_json
from subgraph.errors import InputError
from subgraph.storage import dtypes, tensors
from subgraph.storage.convert import encode_raw
from subgraph.storage.tensors import PROTO_NAMES, Record, is_stored, load, parse_type, save
from tests.helpers.refusals import raises

KNOWN = {
    name
    for name, number in dtypes.TYPE_NUMBERS.items()
    if number in onnx.TensorProto.DataType.values()
}

NAMES = [name for name in dtypes.TYPE_NUMBERS if name != "string"]


def some(dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Every bit pattern that the element type has, or many of them."""
    bits = max(dtypes.count_bits(dtype), 1)
    rng = np.random.default_rng(bits)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    size = int(np.prod(shape))
    if bits < 8:
        return tensors.from_bits(rng.integers(0, 1 << bits, shape).astype(np.uint8), dtype)
    raw = rng.integers(0, 256, size * bits // 8).astype(np.uint8)
    return raw.view(tensors.find_dtype(dtype)).reshape(shape)


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 0, 2), (2, 3, 7)])
def test_every_type_comes_back_bit_for_bit(
    tmp_path: Path, dtype: str, shape: tuple[int, ...]
) -> None:
    value = some(dtype, shape)
    text = f"tensor({PROTO_NAMES.get(dtype, dtype)})"
    record = save("t", value, text, tmp_path, "stem")
    assert (record.form, record.dtype, record.shapes, record.files) == (
        "tensor",
        dtype,
        (shape,),
        ("stem.npy",),
    )
    assert record.type_text == text
    back = load(record, tmp_path)
    assert isinstance(back, np.ndarray)
    assert (back.dtype, back.shape, back.tobytes()) == (value.dtype, value.shape, value.tobytes())
    assert from_json(Record, json.loads(json.dumps(to_json(record)))) == record
    assert is_stored(record, value, text, tmp_path)
    # whoever has numpy alone can read it
    plain = np.load(tmp_path / "stem.npy", allow_pickle=False)
    assert plain.shape == shape and plain.dtype.kind in "biufc"


@pytest.mark.parametrize("dtype", sorted(tensors.NOT_NUMPY))
def test_type_that_numpy_lacks_is_stored_as_its_bits(tmp_path: Path, dtype: str) -> None:
    """1.0 of bfloat16 is 0x3f80; -1 of int4 is 0xf."""
    one = np.ones(1, tensors.find_dtype(dtype))
    save("t", one, f"tensor({PROTO_NAMES.get(dtype, dtype)})", tmp_path, "stem")
    (stored,) = np.load(tmp_path / "stem.npy")
    want = {
        "bfloat16": 0x3F80,
        "float8_e4m3fn": 0x38,
        "float8_e4m3fnuz": 0x40,
        "float8_e5m2": 0x3C,
        "float8_e5m2fnuz": 0x40,
        "float8_e8m0fnu": 0x7F,
        "float4_e2m1fn": 0x2,
        "float6_e2m3fn": 0x8,
        "float6_e3m2fn": 0xC,
        "int4": 1,
        "uint4": 1,
        "int2": 1,
        "uint2": 1,
    }
    assert stored == want[dtype]
    if dtype == "int4":
        save("t", -one, "tensor(int4)", tmp_path, "minus")
        assert np.load(tmp_path / "minus.npy").tolist() == [0xF]


def test_texts_come_back(tmp_path: Path) -> None:
    value = np.array([["", "a b", "über", "日本"]], object)
    record = save("t", value, "tensor(string)", tmp_path, "stem")
    back = load(record, tmp_path)
    assert isinstance(back, np.ndarray)
    assert back.dtype == object and back.tolist() == value.tolist()
    found = load(save("t", np.zeros((0, 2), object), "tensor(string)", tmp_path, "none"), tmp_path)
    assert found is not None


def test_sequence_is_a_file_for_each_element(tmp_path: Path) -> None:
    value = [
        np.arange(3, dtype=np.float32),
        np.array(2.5, np.float32),
        np.zeros((0, 2), np.float32),
    ]
    record = save("t", value, "seq(tensor(float))", tmp_path, "stem")
    assert record.files == ("stem#0.npy", "stem#1.npy", "stem#2.npy")
    assert (record.form, record.shapes) == ("sequence", ((3,), (), (0, 2)))
    back = load(record, tmp_path)
    assert isinstance(back, list)
    assert all(
        (a.tobytes(), a.shape) == (b.tobytes(), b.shape) for a, b in zip(value, back, strict=True)
    )
    assert load(save("t", [], "seq(tensor(float))", tmp_path, "none"), tmp_path) == []
    assert record.rebase("k/0").files[0] == "k/0/stem#0.npy"


NAN = np.array([np.nan, 0.0, 1.0], np.float32)
OTHER_NAN = (NAN.view(np.uint32) + np.array([1, 0, 0], np.uint32)).view(np.float32)
LONG = np.arange(300_000, dtype=np.uint8)


@pytest.mark.parametrize(
    ("value", "other", "text"),
    [
        (NAN, OTHER_NAN, "tensor(float)"),
        (NAN, NAN * np.float32(-1.0), "tensor(float)"),  # 0.0 and -0.0
        (NAN, NAN.astype(np.float64), "tensor(float)"),
        (NAN, NAN[None], "tensor(float)"),
        (LONG, np.append(LONG[:-1], LONG[-1] ^ 1), "tensor(uint8)"),
        (np.array(["a", "bc"], object), np.array(["a", "b"], object), "tensor(string)"),
        ([NAN, LONG[:3]], [NAN], "seq(tensor(float))"),
        (NAN, None, "optional(tensor(float))"),
    ],
)
def test_record_holds_its_value_and_no_other(
    value: Any, other: Any, text: str, tmp_path: Path
) -> None:
    record = save("t", value, text, tmp_path, "stem")
    assert is_stored(record, value, text, tmp_path)
    assert not is_stored(
        record, other, tensors.find_type(other) if isinstance(other, np.ndarray) else text, tmp_path
    )


def test_damaged_file_holds_nothing(tmp_path: Path) -> None:
    record = save("t", NAN, "tensor(float)", tmp_path, "stem")
    (tmp_path / "stem.npy").write_bytes(b"no array")
    assert not is_stored(record, NAN, "tensor(float)", tmp_path)


def test_files_are_in_c_order(tmp_path: Path) -> None:
    """Whoever reads the bytes after the header gets the elements in the model's order."""
    value = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    for text, fed in (("tensor(float)", value), ("seq(tensor(float))", [value, value.T])):
        record = save("t", fed, text, tmp_path, "stem")
        for file, shape in zip(record.files, record.shapes, strict=True):
            back = np.load(tmp_path / file)
            assert back.flags.c_contiguous and np.array_equal(
                back, value if shape == (2, 3) else value.T
            )


@pytest.mark.parametrize("dtype", [">u2", "<u2", "V2"])
def test_raw_bits_in_any_byte_order(dtype: str) -> None:
    want = np.array([1.0, -2.5], ml_dtypes.bfloat16)
    bits = want.view(np.uint16)
    stored = bits.view("V2") if dtype == "V2" else bits.astype(dtype)
    assert tensors.from_bits(stored, "bfloat16").tolist() == want.tolist()
    with raises(InputError, "tensor.other-type", "float8_e4m3fn"):
        tensors.from_bits(stored, "float8_e4m3fn")


def test_optional_is_a_tensor_a_sequence_or_nothing(tmp_path: Path) -> None:
    one = np.ones(2, np.int64)
    full = save("t", one, "optional(tensor(int64))", tmp_path, "full")
    assert (full.form, full.shapes) == ("optional", ((2,),))
    back = load(full, tmp_path)
    assert isinstance(back, np.ndarray) and back.tolist() == [1, 1]
    empty = save("t", None, "optional(tensor(int64))", tmp_path, "empty")
    assert (empty.form, empty.files, empty.shape_text) == ("optional", (), "nothing")
    assert load(empty, tmp_path) is None
    many = save("t", [one, one], "optional(seq(tensor(int64)))", tmp_path, "many")
    assert many.form == "optional sequence" and many.type_text == "optional(seq(tensor(int64)))"
    assert len(load(many, tmp_path) or ()) == 2


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("tensor(float)", ("tensor", "float32")),
        ("tensor(double)", ("tensor", "float64")),
        ("tensor(float8e4m3fn)", ("tensor", "float8_e4m3fn")),
        ("seq(tensor(int64))", ("sequence", "int64")),
        ("optional(tensor(bfloat16))", ("optional", "bfloat16")),
        ("optional(seq(tensor(string)))", ("optional sequence", "string")),
    ],
)
def test_type_as_onnxruntime_writes_it(text: str, want: tuple[str, str]) -> None:
    assert parse_type(text) == want


@pytest.mark.parametrize(
    "text",
    ["map(int64,tensor(float))", "seq(map(string,float))", "tensor(quaternion)", "opaque(x)"],
)
def test_types_that_hold_no_tensors(text: str) -> None:
    with raises(InputError, "tensor.unsupported-type"):
        parse_type(text)


def test_file_of_another_type_is_refused(tmp_path: Path) -> None:
    def stored(array: np.ndarray[Any, Any], dtype: str) -> Record:
        np.save(tmp_path / "t.npy", array)
        return Record("t", "tensor", dtype, (array.shape,), ("t.npy",))

    with raises(InputError, "tensor.other-type", "t.npy", "float64"):
        load(stored(np.zeros(2), "float32"), tmp_path)
    with raises(InputError, "tensor.other-type", "float32", "bfloat16"):
        load(stored(np.zeros(2, np.float32), "bfloat16"), tmp_path)
    for damage in (b"", b"\x93NUMPY", b"no array", b"\x93NUMPY\x01\x00\x06\x00{'a':"):
        (tmp_path / "t.npy").write_bytes(damage)
        with raises(InputError, "tensor.unreadable", "t.npy"):
            load(Record("t", "tensor", "float32", ((2,),), ("t.npy",)), tmp_path)
    with raises(InputError, "tensor.unreadable", "absent.npy"):
        load(Record("t", "tensor", "float32", ((2,),), ("absent.npy",)), tmp_path)


def test_objects_in_a_file_are_never_run(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with raises(InputError, "tensor.unreadable"):
        load(Record("t", "tensor", "string", ((1,),), ("t.npy",)), tmp_path)


# ------------------------------------------------------------ packing


@settings(deadline=None, derandomize=True, database=None)
@given(st.sampled_from(sorted(tensors.PACKED & KNOWN)), st.data())
def test_packed_elements_lie_as_onnx_puts_them(dtype: str, data: st.DataObject) -> None:
    width = dtypes.count_bits(dtype)
    bits = np.array(data.draw(st.lists(st.integers(0, (1 << width) - 1), max_size=40)), np.uint8)
    packed = tensors.pack(bits, dtype)
    assert packed.size == -(-bits.size * width // 8)
    elements = tensors.unpack(packed, dtype, bits.size)
    assert tensors.to_bits(elements, dtype).tolist() == bits.tolist()
    onnxs = numpy_helper.from_array(
        elements.astype(helper.tensor_dtype_to_np_dtype(dtypes.TYPE_NUMBERS[dtype]))
    )
    assert onnxs.raw_data == packed.tobytes() == encode_raw(elements, dtype)


def test_packing_by_hand() -> None:
    four = np.array([1, -2, 7], ml_dtypes.int4)
    assert tensors.pack(tensors.to_bits(four, "int4"), "int4").tolist() == [0xE1, 0x07]
    two = np.array([3, 0, 1, 2, 1], ml_dtypes.uint2)
    assert tensors.pack(tensors.to_bits(two, "uint2"), "uint2").tolist() == [0b10010011, 0b01]
    assert tensors.unpack(np.array([0xE1, 0x07], np.uint8), "int4", 3).tolist() == [1, -2, 7]


def test_every_type_of_onnx_has_numpys_name() -> None:
    for name in KNOWN:
        number = dtypes.TYPE_NUMBERS[name]
        assert tensors.find_dtype(name) == helper.tensor_dtype_to_np_dtype(number)
        if name != "string":
            assert onnx.TensorProto.DataType.Name(number) == PROTO_NAMES.get(name, name).upper()


def test_distance_of_two_arrays() -> None:
    inf = np.inf
    nan = np.nan
    found = tensors.measure_distance(np.array([1.0, -4, inf, nan]), np.array([1.5, -4, inf, nan]))
    assert found == (0.5, 4.0)
    assert tensors.measure_distance(np.array([3 + 4j]), np.array([0j])) == (5.0, 5.0)
    assert tensors.measure_distance(np.array(7), np.array(5)) == (2.0, 7.0)
    for other in ([nan], [-inf], [1.0]):
        assert tensors.measure_distance(np.array([inf]), np.array(other)) is None
