"""Tensors in a device's form and back: what is written, what is lost, what is left out."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.extra import numpy as arrays
from onnx import TensorProto

from subgraph.cases.case import ResultPlace
from subgraph.errors import InputError
from subgraph.recordings import recording
from subgraph.recordings.export import Forms, export
from subgraph.storage.convert import TensorFormat
from tests.helpers import text_models
from tests.helpers.examples import examples
from tests.helpers.facts import has_line
from tests.helpers.made_dumps import MADE
from tests.helpers.refusals import raises, refused
from tests.helpers.run_command import manifest, subcut, tree

Array = npt.NDArray[Any]


def folder_of(path: Path, **values: Array) -> Path:
    """A plain folder of .npy files."""
    path.mkdir(parents=True)
    for name, value in values.items():
        np.save(path / f"{name}.npy", value)
    return path


def exported(
    source: Path, *formats: str, dtype: str = "", layout: str = "", to: str = "out"
) -> dict[str, dict[str, Any]]:
    """Export beside the source; the manifest's entries by file, each with its bytes."""
    done = export(
        source,
        ResultPlace(source.parent, to),
        formats or ("bin",),
        Forms(TensorFormat(dtype, layout)),
    )
    exported = manifest(done.path)["exported"]
    return {f["file"]: f | {"bytes": (done.path / f["file"]).read_bytes()} for f in exported}


def ramp(*shape: int) -> npt.NDArray[np.float32]:
    """Small whole numbers: no type that holds them loses anything."""
    return (np.arange(np.prod(shape)) % 100).reshape(shape).astype(np.float32)


# ------------------------------------------------------------ from where


def test_case(here: Path) -> None:
    assert subcut("-s", "pool1", "-e", "res2a_relu", cwd=here).code == 0
    case = here / "subcut_out/pool1__res2a_relu"
    done = subcut(
        "export", case, "-o", "device", "--dtype", "float16", "--layout", "nhwc", cwd=here
    )
    assert done.code == 0
    for line, name in zip(
        done.out.splitlines(), ("inputs/conv1.bin ", "outputs/res2a.bin"), strict=False
    ):
        assert line.startswith(f"{name}  float16  1×")
        assert "NHWC  max error " in line
    assert has_line(done.out, "2 files", "device/")
    exact = np.load(case / "inputs/conv1.npy")
    raw = np.fromfile(here / "device/inputs/conv1.bin", np.float16).reshape(1, 32, 32, 8)
    assert np.array_equal(raw, exact.transpose(0, 2, 3, 1).astype(np.float16))
    entry = manifest(here / "device")["exported"][0]
    assert (entry["name"], entry["dtype"], entry["shape"], entry["layout"]) == (
        "conv1",
        "float16",
        [1, 32, 32, 8],
        "NHWC",
    )

    words = "export device -o back --dtype float32 --layout NCHW --format npy".split()
    assert subcut(*words, cwd=here).code == 0
    assert np.array_equal(
        np.load(here / "back/inputs/conv1.npy"), exact.astype(np.float16).astype(np.float32)
    )


def test_dump_of_several_samples(here: Path) -> None:
    folder_of(here / "samples", a=ramp(1, 3, 64, 64), b=ramp(1, 3, 64, 64) + 1)
    assert subcut("dump", "data", "conv1", "-i", "samples", "-o", "d", cwd=here).code == 0
    found = exported(here / "d")
    assert sorted(found) == ["a/conv1.bin", "a/data.bin", "b/conv1.bin", "b/data.bin"]
    assert found["a/data.bin"]["bytes"] == ramp(1, 3, 64, 64).tobytes()
    assert found["b/conv1.bin"]["bytes"] == np.load(here / "d/b/conv1.npy").tobytes()


def test_plain_folder(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "mine", x=ramp(1, 2, 3, 4), y=np.arange(3), z=np.array(True))
    folder_of(source / "below", x=np.zeros((0, 3), np.uint8))
    folder_of(source / ".hidden", x=ramp(1))
    (source / "raw.bin").write_bytes(b"1234")
    (source / "notes.txt").write_text("mine")
    done = subcut("export", "mine", "-o", "out", cwd=tmp_path)
    assert done.code == 0
    assert len(done.out.splitlines()) == 6
    assert has_line(done.out, "below/x.bin", "uint8", "0×3")
    assert has_line(done.out, "x.bin", "float32", "1×2×3×4")
    assert has_line(done.out, "y.bin", "int64", "3")
    assert has_line(done.out, "z.bin", "bool", "scalar")
    assert has_line(done.out, ".bin", "1 file")
    assert has_line(done.out, "4 files", "out/")
    assert (tmp_path / "out/x.bin").read_bytes() == ramp(1, 2, 3, 4).tobytes()


def test_one_file(tmp_path: Path) -> None:
    folder_of(tmp_path / "mine", x=np.asfortranarray(ramp(2, 3)))
    assert exported(tmp_path / "mine/x.npy")["x.bin"]["bytes"] == ramp(2, 3).tobytes()


def test_into_the_source_again_and_again(tmp_path: Path) -> None:
    """What the first export left is not a source of the second."""
    source = folder_of(tmp_path / "mine", x=ramp(2, 3))
    for _ in range(2):
        done = subcut("export", "mine", "-o", "mine/out", "--format", "npy,bin", cwd=tmp_path)
        assert done.code == 0
        assert sorted(tree(source)) == ["out/manifest.json", "out/x.bin", "out/x.npy", "x.npy"]


# ------------------------------------------------------------ there and back


@pytest.mark.parametrize("shape", [(1, 2, 3, 4), (2, 3, 4, 5, 6), (1, 1, 1, 1), (0, 2, 3, 4)])
def test_nhwc_float16_and_back(shape: tuple[int, ...], tmp_path: Path) -> None:
    value = ramp(*shape)
    folder_of(tmp_path / "mine", x=value)
    there = exported(tmp_path / "mine", dtype="float16", layout="NHWC", to="there")["x.bin"]
    assert there["bytes"] == np.moveaxis(value, 1, -1).astype(np.float16).tobytes()
    assert there["shape"] == [*shape[:1], *shape[2:], shape[1]]
    back = exported(tmp_path / "there", "npy", dtype="float32", layout="NCHW", to="back")["x.npy"]
    assert (back["layout"], back["loss"]) == ("NCHW", "nothing lost")
    assert (tmp_path / "back/x.npy").read_bytes() == (tmp_path / "mine/x.npy").read_bytes()


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 3, 4), (1, 2, 3, 4, 5, 6)])
def test_other_ranks_have_no_layout(shape: tuple[int, ...], tmp_path: Path) -> None:
    folder_of(tmp_path / "mine", x=ramp(*shape))
    entry = exported(tmp_path / "mine", layout="NHWC")["x.bin"]
    assert (entry["bytes"], entry["shape"], entry["layout"]) == (
        ramp(*shape).tobytes(),
        list(shape),
        "",
    )


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.sampled_from(
        "float16 float32 float64 int8 uint8 int16 int32 int64 uint64 bool".split()
    ).flatmap(
        lambda kind: arrays.arrays(
            kind, arrays.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)
        )
    ),
    st.sampled_from(["", "NHWC", "NCHW"]),
)
def test_without_a_type_nothing_changes_but_the_order(
    tmp_path: Path, value: Array, layout: str
) -> None:
    here = tmp_path / str(len(list(tmp_path.iterdir())))
    folder_of(here / "mine", x=value)
    there = exported(here / "mine", "bin", layout=layout, to="there")["x.bin"]
    assert (there["dtype"], there["loss"]) == (str(value.dtype), "")
    other = {"": "", "NHWC": "NCHW", "NCHW": "NHWC"}[layout]
    back = exported(here / "there", "npy", layout=other, to="back")["x.npy"]
    found = np.load(here / "back/x.npy")
    assert (found.dtype, found.shape, found.tobytes()) == (
        value.dtype,
        value.shape,
        value.tobytes(),
    )
    assert back["shape"] == list(value.shape)


def test_types_that_numpy_lacks(tmp_path: Path) -> None:
    """bfloat16 and int4 as a model makes them; on disk as bits, the true type in the manifest."""
    casts = {"brain": "bfloat16", "nibble": "int4", "tiny": "float8e4m3fn"}
    numbers = (TensorProto.BFLOAT16, TensorProto.INT4, TensorProto.FLOAT8E4M3FN)
    outputs = ", ".join(f"{kind}[7] {name}" for name, kind in casts.items())
    nodes = " ".join(
        f"[to_{name}] {name} = Cast<to = {number}>(r)"
        for name, number in zip(casts, numbers, strict=True)
    )
    text = f"g (float[7] x) => ({outputs}) {{ [first] r = Relu(x) {nodes} }}"
    text_models.save(tmp_path / "m.onnx", text, opset=21, ir=10)
    np.save(tmp_path / "x.npy", np.arange(7, dtype=np.float32))
    done = subcut("dump", "m.onnx", *casts, "-i", "x.npy", "-o", "d", cwd=tmp_path)
    assert done.code == 0, done.err
    plain = exported(tmp_path / "d", "npy", dtype="float32", to="plain")
    for name in casts:
        assert np.array_equal(
            np.load(tmp_path / f"plain/{name}.npy"), np.arange(7, dtype=np.float32)
        )
        assert plain[f"{name}.npy"]["loss"] == "nothing lost"
    raw = exported(tmp_path / "d", "bin", to="raw")
    assert raw["brain.bin"]["bytes"] == np.arange(7).astype(ml_dtypes.bfloat16).tobytes()
    assert raw["nibble.bin"]["bytes"] == bytes([0x10, 0x32, 0x54, 0x06])
    exported(tmp_path / "raw", "npy", dtype="float32", to="back")
    for name in casts:
        assert np.array_equal(
            np.load(tmp_path / f"back/{name}.npy"), np.arange(7, dtype=np.float32)
        )


# ------------------------------------------------------------ codes and blocks


def test_codes_of_a_given_scale_and_back(tmp_path: Path) -> None:
    """real = (code - zero) * scale; a value beyond the range is clipped and counted; --tensor is
    for its tensors."""
    folder_of(
        tmp_path / "mine",
        data=np.array([-1.0, 0, 0.035, 2.0, 9.0], np.float32),
        mask=np.array([0, 1]),
    )
    words = ("export", "mine", "-o", "there", "--tensor", "d*=int8:scale=0.02:zero=-3")
    done = subcut(*words, cwd=tmp_path)
    assert done.code == 0, done.err
    row = ("data.bin", "int8:scale=0.02:zero=-3", "5", "5.0e-03 of 9", "1 of 5", "overflow")
    assert has_line(done.out.splitlines()[0], *row)
    assert np.fromfile(tmp_path / "there/data.bin", np.int8).tolist() == [-53, -3, -1, 97, 127]
    data, mask = manifest(tmp_path / "there")["exported"]
    assert (data["scale"], data["zero_point"], mask["dtype"], "scale" in mask) == (
        0.02,
        -3,
        "int64",
        False,
    )
    back = exported(tmp_path / "there", "npy", dtype="float32", to="back")["data.npy"]
    assert np.load(tmp_path / "back/data.npy").tolist() == pytest.approx([-1.0, 0, 0.04, 2.0, 2.6])
    assert "scale" not in back
    same = exported(tmp_path / "there", "bin", dtype="int8", to="same")["data.bin"]
    assert (same["bytes"], same["scale"]) == ((tmp_path / "there/data.bin").read_bytes(), 0.02)


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 130), ("int8", 2)])
def test_codes_of_the_models_own_quantizer(dtype: str, zero: int, tmp_path: Path) -> None:
    """The model stores uint8; int8 has its zero point 128 lower. What the model does not quantize
    is rounded."""
    text = """g (float[4] x) => (float[4] y) <float s = {0.5}, uint8 z = {130}> {
        q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)
    }"""
    text_models.save(tmp_path / "q.onnx", text, opset=13)
    folder_of(
        tmp_path / "mine",
        x=np.array([-64.5, 0, 1, 70], np.float32),
        other=ramp(2),
        at=np.array([300]),
    )
    done = subcut(
        "export", "mine", "-o", "out", "--dtype", dtype, "--model", "q.onnx", cwd=tmp_path
    )
    assert done.code == 0, done.err
    codes = np.fromfile(tmp_path / "out/x.bin", dtype).astype(int) - np.iinfo(dtype).min
    assert codes.tolist() == [1, 130, 132, 255]
    listed = {f["name"]: f for f in manifest(tmp_path / "out")["exported"]}
    assert (listed["x"]["scale"], listed["x"]["zero_point"]) == (0.5, zero)
    assert "scale" not in listed["other"] and "scale" not in listed["at"]
    given = subcut(
        *"export mine -o given --model q.onnx --tensor x=int8:scale=1".split(), cwd=tmp_path
    )
    assert has_line(given.out, "x.bin", "int8:scale=1:zero=0")


@pytest.mark.parametrize(("dtype", "block"), [("float16", 16), ("int8", 32)])
def test_blocks_of_channels_and_back(dtype: str, block: int, tmp_path: Path) -> None:
    """(N, C, H, W): channel c stands in block c // C0 at c % C0, the last block is filled with
    zeros."""
    value = ramp(1, 35, 2, 3)
    folder_of(tmp_path / "own", x=value, y=ramp(2, 3), z=ramp(1, 2, 3, 4, 5))
    there = exported(tmp_path / "own", "npy", dtype=dtype, layout="NC1HWC0", to="there")
    stored = np.load(tmp_path / "there/x.npy")
    assert there["x.npy"]["original_shape"] == [1, 35, 2, 3]
    assert (
        stored.shape == (1, -(-35 // block), 2, 3, block)
        and stored[0, 34 // block, 1, 2, 34 % block] == value[0, 34, 1, 2]
    )
    assert not stored[0, -1, :, :, 35 % block :].any()
    assert [there[f]["layout"] for f in ("x.npy", "y.npy", "z.npy")] == ["NC1HWC0", "", "NCHW"]
    back = exported(tmp_path / "there", "npy", dtype="float32", layout="NHWC", to="back")["x.npy"]
    assert back["layout"] == "NHWC" and "original_shape" not in back
    assert np.array_equal(np.load(tmp_path / "back/x.npy"), np.moveaxis(value, 1, -1))


def test_layout_per_tensor(tmp_path: Path) -> None:
    folder_of(tmp_path / "mine", a=ramp(1, 2, 3, 4), b=ramp(1, 2, 3, 4))
    words = ("--dtype", "float16", "--layout", "NHWC", "--tensor", "b=nchw")
    assert subcut("export", "mine", "-o", "first", "--layout", "NCHW", cwd=tmp_path).code == 0
    assert subcut("export", "first", "-o", "out", *words, cwd=tmp_path).code == 0
    listed = {f["name"]: (f["dtype"], f["layout"]) for f in manifest(tmp_path / "out")["exported"]}
    assert listed == {"a": ("float16", "NHWC"), "b": ("float16", "NCHW")}


def test_the_command_of_the_manifest_runs(tmp_path: Path) -> None:
    folder_of(tmp_path / "mine", x=ramp(2))
    found = subcut("export", "mine", "-o", "out", "--tensor", "x=int8:scale=0.5", cwd=tmp_path)
    assert found.code == 0
    before = (tmp_path / "out/manifest.json").read_bytes()
    program, *words = shlex.split(manifest(tmp_path / "out")["command"])
    assert program == "subcut" and subcut(*words, cwd=tmp_path).code == 0
    assert (tmp_path / "out/manifest.json").read_bytes() == before


# ------------------------------------------------------------ losses


@pytest.mark.parametrize(
    ("values", "dtype", "becomes", "loss"),
    [
        ([1, 2, 3], "float16", [1, 2, 3], ("nothing lost",)),
        ([0.1, 1], "float16", [np.float16(0.1), 1], ("2.4e-05 of 1",)),
        ([1e6, -1e6, 1], "float16", [np.inf, -np.inf, 1], ("2 of 3", "overflow")),
        ([np.inf, np.nan, 1], "float16", [np.inf, np.nan, 1], ("nothing lost",)),
        ([1e-9, 1], "float16", [0, 1], ("1.0e-09 of 1", "1 of 2", "vanish")),
        ([0, 255, 7], "uint8", [0, 255, 7], ("nothing lost",)),
        (
            [-3, 300, 0.4, 1.6],
            "uint8",
            [0, 255, 0, 2],
            ("4.0e-01 of 300", "2 of 4", "overflow", "1 of 4", "vanish"),
        ),
        ([np.nan, np.inf, 5], "uint8", [0, 255, 5], ("2 of 3", "invalid")),
        ([-200, 127], "int8", [-128, 127], ("1 of 2", "overflow")),
    ],
)
def test_losses_are_counted(
    values: list[float], dtype: str, becomes: list[float], loss: tuple[str, ...], tmp_path: Path
) -> None:
    folder_of(tmp_path / "mine", x=np.array(values, np.float32))
    entry = exported(tmp_path / "mine", dtype=dtype)["x.bin"]
    assert np.array_equal(
        np.frombuffer(entry["bytes"], dtype), np.array(becomes, dtype), equal_nan="float" in dtype
    )
    assert has_line(entry["loss"], *loss)


def test_texts_are_left_out(tmp_path: Path) -> None:
    folder_of(tmp_path / "mine", x=ramp(2), words=np.array(["a", "bc"]))
    done = subcut("export", "mine", "-o", "out", cwd=tmp_path)
    assert done.code == 0
    assert (
        has_line(done.out, "x.bin", "float32", "2")
        and has_line(done.out, "words: texts")
        and has_line(done.out, "1 file", "out/")
    )
    (left_out,) = manifest(tmp_path / "out")["left_out"]
    assert left_out.startswith("words: ")


# ------------------------------------------------------------ refusals


@pytest.mark.parametrize("source", ["x" * 300, "empty"])
def test_unexportable_result_is_refused(source: str, tmp_path: Path) -> None:
    """More of them are in tests/said/export.md."""
    (tmp_path / "empty").mkdir()
    refused(subcut("export", source, "-o", "out", cwd=tmp_path))
    assert not (tmp_path / "out").exists()


def test_damaged_file(tmp_path: Path) -> None:
    """Its kinds are in test_dumps."""
    source = folder_of(tmp_path / "mine", good=ramp(2))
    (source / "x.npy").write_bytes(b"\x80\x04N.")
    with raises(InputError, "recording.damaged", "x.npy"):
        exported(source)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "value", [np.array([{}]), np.array(["2020-01-01"], "datetime64[D]"), np.zeros(2, "f4,i4")]
)
def test_arrays_of_other_things(value: Array, tmp_path: Path) -> None:
    folder_of(tmp_path / "mine", x=value)
    with pytest.raises(InputError, match=r"x.npy"):
        exported(tmp_path / "mine")


def test_truncated_export_is_noticed(tmp_path: Path) -> None:
    folder_of(tmp_path / "mine", x=ramp(2, 3))
    exported(tmp_path / "mine", to="there")
    (tmp_path / "there/x.bin").write_bytes(b"1234")
    with raises(InputError, "recording.damaged", "x.bin", "float32"):
        exported(tmp_path / "there", "npy")
    (tmp_path / "there/x.bin").unlink()
    with raises(InputError, "recording.file-missing", "x.bin"):
        exported(tmp_path / "there", "npy")


def test_source_is_never_replaced(here: Path) -> None:
    assert subcut("dump", "conv1", "-o", "d", cwd=here).code == 0
    before = tree(here / "d")
    said = refused(subcut("export", "d", "-o", "d", "--force", cwd=here))
    assert has_line(said, "d cannot")
    assert tree(here / "d") == before


def test_another_export_of_the_same_folder_replaces_the_first(tmp_path: Path) -> None:
    folder_of(tmp_path / "mine", x=ramp(2))
    assert subcut("export", "mine", "-o", "out", cwd=tmp_path).code == 0
    assert subcut("export", "mine", "-o", "out", "--dtype", "int8", cwd=tmp_path).code == 0
    assert (tmp_path / "out/x.bin").read_bytes() == bytes([0, 1])


def test_json(tmp_path: Path) -> None:
    folder_of(tmp_path / "mine", x=ramp(2))
    found = subcut("export", "mine", "-o", "out", "--json", cwd=tmp_path).document
    assert (found["schema"], found["exit_code"], found["path"]) == ("subcut.export/1", 0, "out")
    assert found["exported"] == manifest(tmp_path / "out")["exported"]


# ------------------------------------------------------------ of other tools


@pytest.mark.parametrize(
    ("word", "count"),
    [
        ("ascend", 2),
        ("rknn", 26),
        ("mnn", 2),
        ("polygraphy", 9),
        ("tnn", 10),
        ("qnn", 1),
        ("horizon", 2),
    ],
)
def test_export_is_the_vendors_converter(word: str, count: int, tmp_path: Path) -> None:
    source = tmp_path / "made"
    source.mkdir()
    MADE[word](source)
    done = export(source, ResultPlace(tmp_path, "out"), ("npy",), Forms())
    assert len(manifest(tmp_path / "out")["exported"]) == count
    for e in recording.open(source):
        assert np.load(tmp_path / f"out/{e.target}.npy").tobytes() == e.read().tobytes()
    assert done.manifest.left_out == []


def test_export_from_the_command_line(tmp_path: Path) -> None:
    MADE["ascend"](tmp_path / "dump")
    done = subcut("export", "dump", "-o", "dump/out", "--format", "npy", cwd=tmp_path)
    name = "Conv2D.res2a_branch2cres2ares2a_relu.151.1585884515795667"
    assert done.code == 0, done.err
    assert (
        f"{name}.input.0.npy" in done.out
        and "1×64×4×4" in done.out
        and done.out.endswith(f"2 files in {Path('dump/out')}/\n")
    )
    again = subcut(
        *"export dump -o dump/out --format npy --dump-format ascend --force".split(), cwd=tmp_path
    )
    assert again.code == 0, again.err


def test_export_of_headerless_files(here: Path) -> None:
    (here / "d/Result_0").mkdir(parents=True)
    value = np.arange(8 * 32 * 32, dtype=np.float32).reshape(1, 8, 32, 32)
    value.transpose(0, 2, 3, 1).tofile(here / "d/Result_0/conv1.raw")
    np.zeros(3, np.uint8).tofile(here / "d/Result_0/strange_native.raw")
    done = subcut(
        *"export d -o out --format npy --model resnet50.onnx --dump-layout nhwc".split(), cwd=here
    )
    assert done.code == 0, done.err
    assert has_line(done.out, "Result_0/conv1.npy", "float32", "1×8×32×32") and has_line(
        done.out, "Result_0/strange_native", "3 bytes"
    )
    assert np.array_equal(np.load(here / "out/Result_0/conv1.npy"), value)


@pytest.mark.parametrize("layout", ["NHWC", "NC1HWC0"])
@pytest.mark.parametrize("form", ["float32", "float16", "int8:scale=1"])
def test_exported_folder_is_read_as_a_recording(layout: str, form: str, tmp_path: Path) -> None:
    """Of three sizes and 40 channels: neither the order of axes nor the size of a block follows
    from the file's."""
    value = ramp(1, 40, 3, 5)
    folder_of(tmp_path / "mine", x=value)
    for kind in ("bin", "npy"):
        words = ("export", "mine", "-o", kind, "--format", kind, "--tensor", f"x={form}:{layout}")
        assert subcut(*words, cwd=tmp_path).code == 0
    (entry,) = recording.open(tmp_path / "bin").entries
    read = entry.read()
    np.testing.assert_array_equal(
        read if entry.scale is None else entry.scale.dequantize(read), value
    )
    (entry,) = recording.open(tmp_path / "npy").entries
    assert (entry.scale is None) == ("scale" not in form)


def test_dump_of_subcut_is_read_as_a_recording(here: Path) -> None:
    """Its manifest lists shapes per sample, and its files elsewhere."""
    assert subcut("dump", "resnet50.onnx", "conv1", "-o", "d", cwd=here).code == 0
    assert {entry.tensor for entry in recording.open(here / "d").entries} >= {"conv1"}
