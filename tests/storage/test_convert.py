"""Tensors converted to a device's element type and layout: every loss is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from subgraph.errors import UsageError
from subgraph.storage import tensors
from subgraph.storage.convert import (
    Loss,
    StoredFile,
    TensorFormat,
    convert,
    encode_raw,
    parse_formats,
    write_bin,
)
from subgraph.storage.tensors import save
from tests.helpers.examples import examples
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises

INF = np.inf
NAN = np.nan


def loss(values: Any, dtype: str, source: Any = np.float32) -> tuple[list[Any], Loss]:
    out, lost, _ = convert(np.asarray(values, source), TensorFormat(dtype))
    assert lost is not None
    assert out.dtype == tensors.find_dtype(dtype)
    return [
        x.item() for x in out.astype(np.float64 if "float" in dtype else out.dtype).reshape(-1)
    ], lost


# ------------------------------------------------------------ element types


def test_values_that_overflow_float16_are_counted() -> None:
    out, lost = loss([1.0, 65504, 65519, 65520, 1e30, -1e30, 1e-9, 0], "float16")
    assert out == [1.0, 65504, 65504, INF, INF, -INF, 0, 0]
    assert (lost.count, lost.overflowed, lost.vanished, lost.invalid) == (8, 3, 1, 0)
    assert lost.max_abs == 15.0 and lost.scale == np.float32(1e30)
    assert has_line(lost.text, "1.5e+01 of 1e+30", "3 of 8", "overflow", "1 of 8")


def test_nan_and_infinity_that_were_there_are_no_loss() -> None:
    out, lost = loss([NAN, INF, -INF, 0.5], "float16")
    assert np.array_equal(out, [NAN, INF, -INF, 0.5], equal_nan=True)
    assert lost.text == "nothing lost"


def test_integers_are_rounded_and_clipped() -> None:
    out, lost = loss([0.4, 0.5, 1.5, 2.5, -0.6, 127.4, 127.6, -129, 1e30], "int8")
    assert out == [0, 0, 2, 2, -1, 127, 127, -128, 127]
    assert (lost.overflowed, lost.vanished, lost.max_abs) == (3, 2, 0.5)
    out, lost = loss([-3, 0, 255, 256, NAN, INF, -INF], "uint8")
    assert out == [0, 0, 255, 255, 0, 255, 0]
    assert (lost.overflowed, lost.vanished, lost.invalid) == (2, 0, 3)


@pytest.mark.parametrize(
    ("values", "source", "dtype", "want", "overflowed"),
    [
        ([2**63 - 1, -(2**63)], np.int64, "uint64", [2**63 - 1, 0], 1),
        ([2**64 - 1, 2**63, 7], np.uint64, "int64", [2**63 - 1, 2**63 - 1, 7], 2),
        ([2**63 - 1, 2**53 + 1], np.int64, "int32", [2**31 - 1, 2**31 - 1], 2),
        ([2**62 + 1], np.int64, "uint64", [2**62 + 1], 0),  # more digits than float64 has
        (
            [2.0**63, -(2.0**63), 2.0**63 - 1024],
            np.float64,
            "int64",
            [2**63 - 1, -(2**63), 2**63 - 1024],
            1,
        ),
        ([2.0**64, 2.0**64 - 2048, -1], np.float64, "uint64", [2**64 - 1, 2**64 - 2048, 0], 2),
        ([True, False], np.bool_, "int8", [1, 0], 0),
        ([7, -8], ml_dtypes.int4, "uint2", [3, 0], 2),
        ([300, -1], np.int32, "uint4", [15, 0], 2),
        ([300, -300], np.int16, "int2", [1, -2], 2),
    ],
)
def test_wide_integers_keep_every_digit(
    values: list[Any], source: Any, dtype: str, want: list[int], overflowed: int
) -> None:
    out, lost = loss(values, dtype, source)
    assert [int(x) for x in out] == want
    assert lost.overflowed == overflowed


@pytest.mark.parametrize(
    ("dtype", "values", "want", "overflowed"),
    [
        ("float8_e4m3fn", [448, 460, 500, -500], [448, 448, NAN, NAN], 2),
        ("float8_e5m2", [57344, 70000], [57344, INF], 1),
        # has no infinity: it stays at 6, silently
        ("float4_e2m1fn", [6, 6.9, 7.5, -100], [6, 6, 6, -6], 2),
        ("float6_e2m3fn", [7.5, 8, -9], [7.5, 7.5, -7.5], 2),
        (
            "bfloat16",
            [3.3895314e38, -3.4e38],
            [3.3895313892515355e38, -3.4028236692093846e38],
            None,
        ),
        ("float32", [1e39, 3.4e38], [INF, 3.3999999521443642e38], 1),
    ],
)
def test_small_floats_that_saturate_are_counted(
    dtype: str, values: list[float], want: list[float], overflowed: int | None
) -> None:
    out, lost = loss(values, dtype, np.float64)
    if overflowed is not None:
        assert np.array_equal(out, want, equal_nan=True)
        assert lost.overflowed == overflowed


def test_not_a_number_where_a_type_has_none() -> None:
    _, lost = loss([NAN, INF, 1], "float4_e2m1fn")
    assert lost.invalid == 2


def test_booleans() -> None:
    assert loss([0, 1, -2.5, 0.0], "bool")[0] == [False, True, True, False]
    assert loss([True, False], "float16", np.bool_) == ([1.0, 0.0], Loss(2, 0, 0, 0, 0.0, 1.0))


def test_unconvertible_values_are_refused() -> None:
    with raises(UsageError, "export.not-numbers", "complex", "float16"):
        convert(np.ones(2, np.complex64), TensorFormat("float16"))
    with raises(UsageError, "export.not-numbers", "texts"):
        convert(np.array(["a"], object), TensorFormat("float16"))
    out, lost, _ = convert(np.array([1 + 2j]), TensorFormat("complex64"))
    assert out.tolist() == [1 + 2j] and lost is not None and lost.text == "nothing lost"


def test_the_same_type_loses_nothing() -> None:
    array = np.array([1e30, NAN], np.float32)
    out, lost, layout = convert(array, TensorFormat("float32"))
    assert out is array and lost is None and layout == "NCHW"


@settings(deadline=None, derandomize=True, database=None, max_examples=examples(200))
@given(
    hnp.arrays(np.float32, st.integers(0, 20), elements=st.floats(width=32)),
    st.sampled_from(
        "float16 bfloat16 float8_e4m3fn float4_e2m1fn int8 uint8 int64 uint64 int4".split()
    ),
)
def test_no_loss_is_silent(values: np.ndarray[Any, Any], dtype: str) -> None:
    """A value is kept within `max_abs`, or counted as overflowed or invalid."""
    out, lost, _ = convert(values, TensorFormat(dtype))
    assert lost is not None
    wide = values.astype(np.float64)
    back = out.astype(np.float64)
    with np.errstate(invalid="ignore"):
        kept = (
            (wide == back)
            | (np.abs(wide - back) <= lost.max_abs)
            | (np.isnan(wide) & np.isnan(back))
        )
        kept |= ~np.isfinite(wide) & ~np.isfinite(back)
    assert (~kept).sum() <= lost.overflowed + lost.invalid
    nearest = {"int8": 0.5, "uint8": 0.5, "int4": 0.5}.get(dtype)
    assert nearest is None or lost.max_abs <= nearest


# ------------------------------------------------------------ layout


def test_channels_go_last_and_come_back() -> None:
    """(N, C, H, W): the value at n, c, h, w stands at n, h, w, c."""
    array = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    there, lost, layout = convert(array, TensorFormat(layout="NHWC"))
    assert (there.shape, layout, lost) == ((2, 4, 5, 3), "NHWC", None)
    assert there.flags.c_contiguous and there[1, 3, 4, 2] == array[1, 2, 3, 4]
    back, _, layout = convert(there, TensorFormat(layout="NCHW"), layout)
    assert layout == "NCHW" and np.array_equal(back, array)


def test_five_dimensions_have_a_layout_others_have_none() -> None:
    array = np.arange(2 * 3 * 4 * 5 * 6).reshape(2, 3, 4, 5, 6)
    there, _, layout = convert(array, TensorFormat(layout="NHWC"))
    assert there.shape == (2, 4, 5, 6, 3) and np.array_equal(
        convert(there, TensorFormat(layout="NCHW"), layout)[0], array
    )
    for shape in ((), (3,), (2, 3), (2, 3, 4)):
        same, _, layout = convert(np.zeros(shape), TensorFormat(layout="NHWC"))
        assert same.shape == shape


def test_layout_and_type_at_once() -> None:
    array = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    out, lost, layout = convert(array, TensorFormat("uint8", "NHWC"))
    assert (out.dtype.name, out.shape, layout) == ("uint8", (1, 3, 4, 2), "NHWC")
    assert (
        np.array_equal(out.transpose(0, 3, 1, 2), array)
        and lost is not None
        and lost.text == "nothing lost"
    )


# ------------------------------------------------------------ files


def test_bin_without_a_conversion_is_the_bytes_behind_the_header(tmp_path: Path) -> None:
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    record = save("t", value, "tensor(float)", tmp_path, "t")
    ((entry,), losses) = write_bin(record, tmp_path, TensorFormat())
    assert entry == StoredFile("t.bin", "bin", "float32", (2, 3), "")
    assert (tmp_path / "t.bin").read_bytes() == value.tobytes() and losses == []


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_each_version_of_the_header(tmp_path: Path, version: tuple[int, int]) -> None:
    value = np.arange(1000, dtype=np.int16)
    with (tmp_path / "t.npy").open("wb") as file:
        np.lib.format.write_array(file, value, version)
    record = tensors.Record("t", "tensor", "int16", ((1000,),), ("t.npy",))
    write_bin(record, tmp_path, TensorFormat())
    assert (tmp_path / "t.bin").read_bytes() == value.tobytes()


def test_bin_in_another_form_says_so(tmp_path: Path) -> None:
    value = np.full((1, 2, 2, 2), 1e6, np.float32)
    record = save("a/b", value, "tensor(float)", tmp_path, "t")
    ((entry,), losses) = write_bin(record, tmp_path, TensorFormat("float16", "NHWC"))
    assert (entry.dtype, entry.shape, entry.layout) == ("float16", (1, 2, 2, 2), "NHWC")
    (loss,) = losses
    assert has_line(loss, "a/b", "float16", "8 of 8", "overflow")
    assert (tmp_path / "t.bin").read_bytes() == np.full(8, INF, np.float16).tobytes()


def test_bin_of_each_kind_of_value(tmp_path: Path) -> None:
    packed = save("p", np.array([1, -2, 7], ml_dtypes.int4), "tensor(int4)", tmp_path, "p")
    assert write_bin(packed, tmp_path, TensorFormat())[0][0].shape == (3,)
    assert (tmp_path / "p.bin").read_bytes() == b"\xe1\x07"
    many = save(
        "s", [np.ones(2, np.float32), np.zeros(1, np.float32)], "seq(tensor(float))", tmp_path, "s"
    )
    assert [e.file for e in write_bin(many, tmp_path, TensorFormat())[0]] == ["s#0.bin", "s#1.bin"]
    texts = save("t", np.array(["a"], object), "tensor(string)", tmp_path, "t")
    written, (loss,) = write_bin(texts, tmp_path, TensorFormat())
    assert written == []
    assert has_line(loss, "t: ", "string")
    scalar = save("c", np.array(1.5, np.float32), "tensor(float)", tmp_path, "c")
    write_bin(scalar, tmp_path, TensorFormat("float16"))
    assert (tmp_path / "c.bin").read_bytes() == np.float16(1.5).tobytes()


def test_raw_bytes_of_any_memory_order() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert (
        encode_raw(np.asfortranarray(array), "int32")
        == encode_raw(array, "int32")
        == array.tobytes()
    )


# ------------------------------------------------------------ words


def test_formats_are_listed_once_and_in_order() -> None:
    assert parse_formats(" bin, npy,bin") == ("bin", "npy")
