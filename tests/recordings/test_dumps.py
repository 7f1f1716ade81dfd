"""Dumps of other tools: each format is recognized and read; damage ends in an error.

Covers `recordings.recording` and all formats in `recordings.dumps`.
"""

from __future__ import annotations

import base64
import json
import math
import re
import shutil
import struct
import sys
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from onnx import TensorProto, helper

from fixtures import ROOT
from subgraph import plugins
from subgraph.errors import InputError, SubcutError, UnknownName
from subgraph.graph import graph
from subgraph.recordings import recording
from subgraph.recordings.dump_files import scan
from subgraph.recordings.dumps import (
    BARE,
    MARKED,
    NONE,
    TYPED,
    DumpEntry,
    DumpHints,
    TensorSpec,
    WrittenNames,
    _ascend,
    _text,
)
from subgraph.storage import dtypes, layouts, tensors
from tests.helpers import text_models
from tests.helpers.dump_writers import WRITERS, CannotHoldError
from tests.helpers.examples import ALL, examples
from tests.helpers.facts import has_line
from tests.helpers.made_dumps import DUMPFILE, FORMATS, MADE, ONE, OURS, copied, ieb
from tests.helpers.refusals import raises
from tests.helpers.run_command import run_program

Array = npt.NDArray[Any]

HERE = ROOT
# with files of others, which are never copied into the project
SAMPLES = HERE / "../shared/samples"
NAMES = st.sampled_from(
    ["x", "conv1", "/blk/Add_output_0", "Identity:0", "a.b", "relu-1-in-0-x", "Σ/x"]
)
FEW = settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def some(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Any bit patterns of this type, NaN and infinity among them; texts are short words."""
    rng = np.random.default_rng(seed)
    if dtype == "string":
        return np.array([f"w{n}" for n in range(math.prod(shape))], object).reshape(shape)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    bits = dtypes.count_bits(dtype)
    if bits < 8:
        return tensors.from_bits(rng.integers(0, 1 << bits, shape).astype(np.uint8), dtype)
    raw = rng.integers(0, 256, math.prod(shape) * bits // 8).astype(np.uint8)
    return raw.view(tensors.find_dtype(dtype)).reshape(shape)


def small(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Values that text of six digits holds."""
    rng = np.random.default_rng(seed)
    return (rng.integers(-100, 100, shape) / (64 if "float" in dtype else 1)).astype(
        tensors.find_dtype(dtype)
    )


def sample(path: str) -> Path:
    """A file of others, read where it lies."""
    found = SAMPLES / path
    if not found.exists():
        pytest.skip(f"no {found}")
    return found


def values(found: recording.Recording, side: str = "") -> dict[str, Array]:
    return {e.name: e.read() for e in found if not e.missing and e.side == side}


# ------------------------------------------------------------ each format, made


def dump(head: dict[str, Any], data: bytes, length: int | None = None) -> bytes:
    """An Ascend file: header and blobs."""
    message = _ascend.make_message_class()(version="2.0", op_name=head.get("op_name", "conv1"))
    for k, (role, fields) in enumerate(head["blobs"]):
        one = getattr(message, role).add(
            data_type=fields.get("type", 1), format=fields.get("format", 2), size=fields["size"]
        )
        one.shape.dim.extend(fields.get("shape", ()))
        one.original_shape.dim.extend(fields.get("original", ()))
        assert k < 9
    text: bytes = message.SerializeToString()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def b64(array: Array) -> str:
    file = BytesIO()
    np.save(file, array)
    return base64.b64encode(file.getvalue()).decode()


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each format."""
    out = {}
    for word in FORMATS:
        out[word] = tmp_path_factory.mktemp(word)
        MADE[word](out[word])
    return out


# ------------------------------------------------------------ the contract


@pytest.mark.parametrize("word", FORMATS)
def test_format_keeps_the_contract(word: str, made: dict[str, Path]) -> None:
    module = plugins.load("dumps", word)
    files = scan(made[word])
    assert module.detect(files) in (BARE, TYPED, MARKED)
    found = list(module.entries(files, DumpHints()))
    assert found and len({e.target for e in found}) == len(found)
    for e in found:
        assert isinstance(e, DumpEntry) and e.name and e.file in files.names
        assert not e.dtype or e.dtype in dtypes.TYPE_NUMBERS
        assert not Path(e.target).is_absolute() and ".." not in Path(e.target).parts
        if e.missing:
            with pytest.raises(InputError, match=re.escape(e.file)):
                e.read()
            continue
        raw = e.load()
        value = e.read()
        assert e.shape is None or raw.shape == e.shape
        assert raw.dtype == tensors.find_dtype(e.dtype)
        assert value.size <= raw.size and e.original_shape in (None, value.shape)
    plain = getattr(module, "plain", str)
    for name in ("/blk/conv:0", "a.b c", "_x_", "Σ", "a\\b-c"):
        assert plain(plain(name)) == plain(name)


@pytest.mark.parametrize("word", FORMATS)
def test_each_is_detected_as_itself(word: str, made: dict[str, Path]) -> None:
    assert recording.detect(made[word]) == [word]
    assert recording.open(made[word]).format == word
    for other in FORMATS:  # no format falls over the files of another
        plugins.load("dumps", other).detect(scan(made[word]))


def test_every_format_stands_in_the_table() -> None:
    table = (HERE / "docs/dumps.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([a-z0-9-]+)` \|", table, re.M) == FORMATS


def test_empty_folder_and_junk(tmp_path: Path) -> None:
    with raises(InputError, "folder.not-found", "nowhere"):
        recording.open(tmp_path / "nowhere")
    with raises(InputError, "recording.no-tensors", "is empty") as e:
        recording.open(tmp_path)
    assert "--dump-format" in e.value.hint and "ascend" in e.value.hint
    for name, content in {
        "a.txt": b"hello",
        "b.json": b"{}",
        "c": b"\x00",
        "d.npz": b"PK",
        "e.csv": b"a,1",
    }.items():
        (tmp_path / name).write_bytes(content)
    with raises(InputError, "recording.no-tensors", "5 files"):
        recording.open(tmp_path)
    with raises(UnknownName, "recording.unknown-format", "ascnd") as e2:
        recording.open(tmp_path, "ascnd")
    assert "ascend" in e2.value.nearest
    with raises(InputError, "recording.no-tensors", "tnn"):
        recording.open(tmp_path, "tnn")


def test_ambiguous_format_is_refused(tmp_path: Path) -> None:
    copied("tnn")(tmp_path)
    copied("mnn")(tmp_path)
    with raises(InputError, "recording.ambiguous-format", "mnn or tnn") as e:
        recording.open(tmp_path)
    assert has_line(e.value.hint, "--dump-format: mnn")
    assert recording.open(tmp_path, "tnn").format == "tnn"


# ------------------------------------------------------------ there and back


@FEW
@given(st.sampled_from(sorted(WRITERS)), NAMES, st.lists(st.integers(0, 4), max_size=4), st.data())
def test_written_values_come_back(
    tmp_path_factory: pytest.TempPathFactory,
    word: str,
    name: str,
    dims: list[int],
    data: st.DataObject,
) -> None:
    write, types = WRITERS[word]
    dtype = data.draw(st.sampled_from(types))
    shape = tuple(dims)
    exact = word not in ("tnn",) and not (word == "text" and dtype == "float16")
    value = (some if exact and word not in ("text", "mnn") else small)(
        dtype, shape, data.draw(st.integers(0, 9))
    )
    folder = tmp_path_factory.mktemp("d")
    given = {name: value, "other": value}
    known = DumpHints({n: TensorSpec(dtype, shape) for n in given})
    try:
        write(given, folder)
    except CannotHoldError:
        return
    if not value.size and word in ("text", "mnn"):
        return  # a file without numbers is not a tensor
    found = recording.open(folder, word, known)
    stands = {n: e for e in found for n in WrittenNames(given, found.plain).find_meant(e)}
    assert set(stands) == {"other", name}
    back = stands[name].read()
    if word == "ascend" and not shape:
        back = back.reshape(())  # a shape of no dimensions is how it says "flat"
    assert (back.dtype, back.shape) == (value.dtype, value.shape)
    assert (
        back.tolist() == value.tolist() if dtype == "string" else back.tobytes() == value.tobytes()
    )


# ------------------------------------------------------------ samples


def test_rknn() -> None:
    found = recording.open(OURS / "rknn")
    assert (found.format, len(found.entries)) == ("rknn", 26)
    golden = values(found, "golden")
    simulator = values(found, "simulator")
    assert list(golden) == list(simulator) and golden["/blk/Add_output_0"].shape == (1, 8, 8, 8)
    assert golden["relu1"].min() == 0 and golden["conv1"].min() < 0
    printed = np.loadtxt(OURS / "rknn/golden/_blk_Add_output_0.txt").reshape(1, 8, 8, 8)
    assert np.abs(printed - golden["/blk/Add_output_0"]).max() < 1e-6
    by_name = {(e.side, e.name): e for e in found}
    assert has_line(by_name["golden", "logits_mm"].note, "logits")


def test_rknn_without_npy(tmp_path: Path) -> None:
    copied("rknn")(tmp_path)
    shutil.rmtree(tmp_path / "golden/npy")
    known = DumpHints({"/blk/Add_output_0": TensorSpec("float32", (1, 8, 8, 8))})
    found = {(e.side, e.name): e for e in recording.open(tmp_path, hints=known)}
    printed = found["golden", "/blk/Add_output_0"]
    assert printed.step == 1e-6 and printed.read().shape == (1, 8, 8, 8)
    assert found["golden", "conv1"].read().shape == (2048,)


def test_mnn() -> None:
    """The logits are what onnxruntime makes of the data."""
    import onnxruntime

    found = values(recording.open(OURS / "mnn"))
    assert found["data"].shape == (1, 3, 16, 16) and found["logits"].shape == (5,)
    known = recording.find_hints(graph.load(OURS / "mnn/test.onnx"))
    shaped = {e.name: e.read() for e in recording.open(OURS / "mnn", hints=known)}
    session = onnxruntime.InferenceSession(
        OURS / "mnn/test.onnx", providers=["CPUExecutionProvider"]
    )
    (logits,) = session.run(["logits"], {"data": shaped["data"]})
    assert shaped["logits"].shape == (1, 5) and np.abs(shaped["logits"] - logits).max() < 1e-5


def test_mnn_of_a_run(tmp_path: Path) -> None:
    """MNNV2Basic.out: no ends, tabs between the values of a row."""
    (tmp_path / "Input_conv1_0").write_text("0.5\t1\t\n-2e-05\tnan\t\n")
    (tmp_path / "_blk_Add_output_0_0").write_text("3\t4\n")
    found = recording.open(tmp_path, hints=DumpHints({"conv1": TensorSpec("float32", (2, 2))}))
    fed, made = sorted(found, key=lambda e: e.role)
    assert (found.format, fed.node, fed.role, made.node) == (
        "mnn",
        "conv1",
        "input",
        "_blk_Add_output_0",
    )
    assert np.array_equal(
        fed.read(), np.array([[0.5, 1], [-2e-05, np.nan]], np.float32), equal_nan=True
    )
    assert {
        e.node: tuple(WrittenNames(["/blk/Add_output_0"], found.plain).find_meant(e)) for e in found
    } == {"conv1": (), "_blk_Add_output_0": ("/blk/Add_output_0",)}


def test_polygraphy() -> None:
    found = recording.open(OURS / "polygraphy")
    fed, *made = found
    assert (fed.name, fed.role, fed.read().shape) == ("input:0", "input", (1, 8, 8, 3))
    assert [e.name for e in made][:2] == ["conv1__6:0", "conv1:0"] and len(made) == 8
    assert made[0].side.startswith("onnxrt-runner-N0") and made[0].stem == "poly_out/conv1__6_0"
    assert np.array_equal(made[0].read(), fed.read().transpose(0, 3, 1, 2))
    assert float(made[-1].read().sum()) == pytest.approx(1.0)
    data = json.loads((OURS / "polygraphy/poly_out.json").read_text())
    for e in made:  # as Polygraphy reads it: base64, then numpy
        text = data["lst"][0][1][0]["outputs"][e.name]["values"]["array"]
        assert np.array_equal(np.load(BytesIO(base64.b64decode(text))), e.read())
    assert [e.name for e in recording.open(OURS / "polygraphy/poly_in.json")] == ["input:0"]


@pytest.mark.parametrize("folder", [OURS / "tnn", SAMPLES / "tnn/blob_dump_synthetic"])
def test_tnn(folder: Path) -> None:
    found = recording.open(folder if folder.exists() else sample("tnn/blob_dump_synthetic"))
    assert found.format == "tnn" and all(e.step == 1e-9 for e in found)
    first = found.entries[0]
    last = found.entries[-1]
    assert (first.node, first.role, first.tensor, first.read().shape) == (
        "conv1",
        "input",
        "data",
        (1, 3, 16, 16),
    )
    assert (last.node, last.role, last.tensor, last.read().shape) == (
        "logits",
        "output",
        "logits",
        (1, 5),
    )
    written = WrittenNames(["/blk/Add_output_0", "relu4", "gap"], found.plain)
    names = {e.name: tuple(written.find_meant(e)) for e in found}
    assert names["_blk_Add_output_0"] == ("/blk/Add_output_0",) and names["relu4"] == ("relu4",)
    assert np.abs(last.read() - np.load(OURS / "rknn/golden/npy/logits.npy")).max() < 1e-5


def test_tnn_names_with_hyphens_are_split_at_the_first(tmp_path: Path) -> None:
    (tmp_path / "00001-a-out-0-b-out-0-c-dims-2.txt").write_text("1.000000000\n2.000000000\n")
    (tmp_path / "00002-q-out-0-q-dims-2.txt").write_text("1\n-2\n")
    assert [(e.node, e.tensor, e.dtype) for e in recording.open(tmp_path)] == [
        ("a", "b-out-0-c", "float32"),
        ("q", "q", "int32"),
    ]


def test_tnn_checked(tmp_path: Path) -> None:
    (tmp_path / "cpu_conv1.txt").write_text("0.5\n1.5\n")
    (tmp_path / "device_conv1.txt").write_text("0.5\nnan\n")
    found = recording.open(tmp_path)
    assert [(e.side, e.tensor) for e in found] == [("cpu", "conv1"), ("device", "conv1")]
    assert np.array_equal(
        found.entries[1].read(), np.array([0.5, np.nan], np.float32), equal_nan=True
    )


def test_ascend() -> None:
    found = recording.open(OURS / "ascend")
    fed, made = found
    assert (found.format, fed.role, made.role, made.node) == (
        "ascend",
        "input",
        "output",
        "res2a_branch2cres2ares2a_relu",
    )
    assert (made.dtype, made.layout, made.shape) == ("float16", "NC1HWC0", (1, 4, 4, 4, 16))
    assert made.originals == ("res2a_relu",) and made.read().shape == (1, 64, 4, 4)
    raw = made.load()
    for c, h, w in ((0, 0, 0), (17, 3, 1), (63, 2, 2)):
        assert made.read()[0, c, h, w].tobytes() == raw[0, c // 16, h, w, c % 16].tobytes()
    data = (OURS / "ascend" / made.file).read_bytes()
    assert fed.load().tobytes() + raw.tobytes() == data[8 + int.from_bytes(data[:8], "little") :]


def test_ascend_fused_ops() -> None:
    folder = sample("ascend/om_model.json").parent
    origins = _ascend.read_origins(scan(folder))
    assert origins["trans_Cast_0", 0] == _ascend.Origin("boxes_all", 0, (), (1000, 80, 4), "NCHW")
    gather = origins["PartitionedCall_Gather_1221_gatherv2_3", 0]
    assert (gather.name, gather.fused, gather.shape) == ("Gather_1221", ("Gather_1221",), (100,))
    assert origins["BatchMultiClassNMS_1203", 3].shape == (1, 8)
    assert origins["PartitionedCall_Gather_1221_const_data_2", 0].name == ""
    assert recording.open(folder).format == "ascend"


def test_ascend_with_its_json(tmp_path: Path) -> None:
    fused = {"key": "_datadump_original_op_names", "value": {"list": {"s": ["a", "b"]}}}
    op: dict[str, Any] = {"name": "a/b", "type": "Conv2D", "attr": [fused]}
    said = {
        "_datadump_origin_name": {"s": "/net/b"},
        "_datadump_origin_output_index": {"i": 1},
        "origin_shape": {"list": {"i": [1, 3, 2, 2]}},
        "origin_shape_initialized": {"b": True},
    }
    desc = [{"key": key, "value": value} for key, value in said.items()]
    op["output_desc"] = [{"attr": desc}]
    (tmp_path / "om.json").write_text(json.dumps({"name": "m", "graph": [{"op": [op]}]}))
    values = np.arange(64, dtype=np.float32)
    blob = ("output", {"size": 256, "format": 3, "shape": (1, 1, 2, 2, 16)})
    old, new, nano = (f"Conv2D.a_b.3.0.{t}" for t in (10**15, 10**15 + 1, 10**15))
    (tmp_path / old).write_bytes(dump({"blobs": [blob], "op_name": "a/b"}, bytes(256)))
    (tmp_path / new).write_bytes(dump({"blobs": [blob], "op_name": "a/b"}, values.tobytes()))
    (made,) = recording.open(tmp_path)
    assert (made.file, made.originals, made.original_index, made.fused) == (
        new,
        ("/net/b",),
        1,
        ("a", "b"),
    )
    assert np.array_equal(made.read(), values.reshape(1, 2, 2, 16).transpose(0, 3, 1, 2)[:, :3])
    assert nano == old


def test_ascend_mapping_and_odd_files(tmp_path: Path) -> None:
    blob = ("output", {"size": 8, "shape": (2,)})
    (tmp_path / "12345").write_bytes(
        dump({"blobs": [blob]}, np.array([1, 2], np.float32).tobytes())
    )
    (tmp_path / "mapping.csv").write_text(f"12345,Conv2D.{'n' * 240}.3.0.1585884515795667\n")
    (tmp_path / "Opdebug.Node_OpDebug.3.0.1585884515795667").write_bytes(b"junk")
    strange = [
        ("output", {"size": 2, "type": 33, "shape": (2,)}),
        ("output", {"size": 4, "type": 27, "shape": (2,)}),
    ]
    content = dump({"blobs": strange}, b"ab\x80\x3f\x00\x40")
    (tmp_path / "Relu.strange.4.0.1585884515795667").write_bytes(content)
    found = {e.target: e for e in recording.open(tmp_path)}
    assert found["12345.output.0"].read().tolist() == [1, 2]
    assert "HIFLOAT8" in found["Relu.strange.4.0.1585884515795667.output.0"].missing
    brain = found["Relu.strange.4.0.1585884515795667.output.1"]
    assert brain.dtype == "bfloat16" and brain.read().astype(float).tolist() == [1, 2]
    (tmp_path / "Relu.nano.4.0.1585884515795667").write_bytes(b"\x5a" * 20)
    with raises(InputError, "recording.damaged", "nano"):
        recording.open(tmp_path)


def test_ascend_converted(tmp_path: Path) -> None:
    shape = (1, 1, 2, 2, 16)
    np.save(tmp_path / f"{DUMPFILE}.output.0.npy", ONE)
    some("float16", shape).tofile(tmp_path / f"{DUMPFILE}.input.0.1_1_2_2_16.float16.NC1HWC0.bin")
    np.save(
        tmp_path / "Conv2D.Conv2D-op12.0.0.1623124369613540.output.0.DefaultFormat.bfloat16.npy",
        np.array([0x3F80], np.uint16),
    )
    np.save(tmp_path / f"{DUMPFILE}.output.1.NHWC.npy", ONE)
    found = {e.file: e for e in recording.open(tmp_path)}
    first, second, third, fourth = (found[k] for k in sorted(found))
    assert (second.role, second.layout, second.shape, second.node) == (
        "input",
        "NC1HWC0",
        shape,
        "conv1",
    )
    assert second.read().shape == (1, 16, 2, 2)
    assert (first.node, first.dtype, first.read().astype(float).tolist()) == (
        "Conv2D-op12",
        "bfloat16",
        [1.0],
    )
    assert np.array_equal(third.read(), ONE)
    assert np.array_equal(fourth.read(), ONE.transpose(0, 3, 1, 2))


def test_qnn(tmp_path: Path) -> None:
    for k in (0, 1):
        (tmp_path / f"Result_{k}").mkdir()
        (ONE + k).transpose(0, 2, 3, 1).tofile(tmp_path / f"Result_{k}/_blk_Add_output_0.raw")
    ONE.astype(np.uint8).tofile(tmp_path / "Result_0/conv1_native.raw")
    known = DumpHints(
        {
            "/blk/Add_output_0": TensorSpec("int64", (1, 2, 3, 4)),
            "conv1": TensorSpec("float32", (1, 2, 3, 4)),
        },
        "NHWC",
    )
    found = recording.open(tmp_path, hints=known)
    assert [e.side for e in found] == ["Result_0", "Result_0", "Result_1"]
    first, native, second = found
    assert np.array_equal(first.read(), ONE) and np.array_equal(second.read(), ONE + 1)
    assert has_line(native.missing, "24 bytes", "float32, 1×2×3×4")
    assert [n for e in found for n in WrittenNames(known.specs, found.plain).find_meant(e)] == [
        "/blk/Add_output_0",
        "conv1",
        "/blk/Add_output_0",
    ]
    flat = recording.open(tmp_path).entries[0]
    assert flat.read().shape == (24,) and has_line(flat.note, "shape")


def test_horizon(tmp_path: Path) -> None:
    ONE.tofile(tmp_path / "model_infer_output_0__prob.bin")
    np.zeros((1, 4, 4, 8), np.int8).tofile(
        tmp_path / "layer-0-bpu-ResNet-18_subgraph_0-input-0-data.bin"
    )
    (tmp_path / "layer-10-Dequantize-replaced_fc1000_1_HzDequantize-output-0-fc.txt").write_text(
        "0.5\n"
    )
    (tmp_path / "layer-9-Dequantize-x-output-0-x.txt").write_text("3\n")
    listed = {
        "name": "data",
        "file": "layer-0-bpu-ResNet-18_subgraph_0-input-0-data.bin",
        "dtype": "int8",
        "shape": [1, 3, 4, 3],
        "aligned": [1, 4, 4, 8],
        "layout": "NHWC",
    }
    (tmp_path / "manifest.json").write_text(json.dumps({"tensors": [listed]}))
    found = recording.open(
        tmp_path, hints=DumpHints({"prob": TensorSpec("float32", (None, 2, 3, 4))})
    )
    data, nine, ten, prob = found
    assert (data.node, data.role, data.tensor) == ("ResNet-18_subgraph_0", "input", "data")
    assert data.load().shape == (1, 3, 4, 3) and data.read().shape == (1, 3, 3, 4)
    assert (nine.tensor, nine.dtype, ten.dtype) == ("x", "int32", "float32")
    assert np.array_equal(prob.read(), ONE)


def test_horizon_without_a_manifest(tmp_path: Path) -> None:
    """The edge of a subgraph on the BPU, in a file of unknown shape."""
    ONE.tofile(tmp_path / "layer-0-bpu-ResNet-18_subgraph_0-input-0-data.bin")
    (entry,) = recording.open(tmp_path)
    assert entry.shape == (24,)
    assert has_line(entry.note, "edge", "BPU")


def test_openvino(tmp_path: Path) -> None:
    (tmp_path / "#10_Convolution_conv1_out0.ieb").write_bytes(ieb(ONE, 5))
    (tmp_path / "#2_Reorder__blk_x_in1.ieb").write_bytes(ieb(ONE.astype(ml_dtypes.bfloat16), 3))
    (tmp_path / "#11_Result_y_out0.ieb").write_text(
        "f32 2D shape: 1 2 (2) by address7f00\n1\n-0.5\n"
    )
    second, tenth, text = recording.open(tmp_path)
    assert (second.node, second.role, second.index, second.dtype) == (
        "_blk_x",
        "input",
        1,
        "bfloat16",
    )
    assert (
        np.array_equal(tenth.read(), ONE)
        and second.read().astype(int).tolist() == ONE.astype(int).tolist()
    )
    assert text.read().tolist() == [[1, -0.5]]
    (tmp_path / "#10_Convolution_conv1_out0.ieb").write_bytes(ieb(ONE, 4))  # today's numbers
    assert [e.dtype for e in recording.open(tmp_path)][:2] == ["float16", "float32"]


def test_raw_of_a_model(tmp_path: Path) -> None:
    text_models.save(
        tmp_path / "m.onnx", "g (float[1,2,3,4] x) => (float[n,2,3,4] y) { y = Relu(x) }"
    )
    (tmp_path / "d").mkdir()
    ONE.transpose(0, 2, 3, 1).tofile(tmp_path / "d/x.bin")
    ONE.astype(np.float16).tofile(tmp_path / "d/y.raw")
    known = recording.find_hints(graph.load(tmp_path / "m.onnx"), "NHWC")
    x, y = recording.open(tmp_path / "d", hints=known)
    assert np.array_equal(x.read(), ONE)
    assert has_line(y.missing, "48 bytes", "float32, 1×2×3×4")
    _, y = recording.open(tmp_path / "d", hints=replace(known, layout="", narrow="float16"))
    assert (y.dtype, y.shape) == ("float16", ONE.shape) and np.array_equal(y.read(), ONE)
    blocked = layouts.from_model(ONE, "NC1HWC0")
    blocked.tofile(tmp_path / "d/x.bin")
    entry = next(
        iter(
            recording.open(
                tmp_path / "d",
                hints=recording.find_hints(graph.load(tmp_path / "m.onnx"), "NC1HWC0"),
            )
        )
    )
    assert entry.shape == blocked.shape and np.array_equal(entry.read(), ONE)


def test_padded_rows(tmp_path: Path) -> None:
    rows = np.zeros((2, 3, 8), np.int16)
    rows[..., :5] = np.arange(30).reshape(2, 3, 5)
    rows.tofile(tmp_path / "a.bin")
    listed = {"name": "a", "file": "a.bin", "dtype": "int16", "shape": [2, 3, 5]}
    (tmp_path / "manifest.json").write_text(
        json.dumps({"tensors": [listed | {"aligned": [2, 3, 8]}]})
    )
    (entry,) = recording.open(tmp_path)
    assert np.array_equal(entry.read(), np.arange(30).reshape(2, 3, 5))
    for lie in ([2, 3, 9], [2, 3], [2, 3, 4]):
        (tmp_path / "manifest.json").write_text(
            json.dumps({"tensors": [listed | {"aligned": lie}]})
        )
        with raises(InputError, "recording.damaged", "a.bin"):
            recording.open(tmp_path).entries[0].read()


def test_golden_names(tmp_path: Path) -> None:
    np.save(tmp_path / "res2a.1.1585884515795667.npy", ONE)
    np.save(tmp_path / "brain.npy", np.array([0x3F80], np.uint16))
    np.savez(tmp_path / "more.npz", **{"a/b": ONE, "c": ONE[0]})
    np.savez_compressed(tmp_path / "packed.npz", z=np.zeros(100_000))
    found = {
        e.name: e
        for e in recording.open(tmp_path, hints=DumpHints({"brain": TensorSpec("bfloat16", (1,))}))
    }
    assert (found["res2a:output:1"].node, found["res2a:output:1"].index) == ("res2a", 1)
    assert found["brain"].read().dtype == ml_dtypes.bfloat16
    assert np.array_equal(found["a/b"].read(), ONE) and found["z"].read().shape == (100_000,)


def test_large_files_are_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ONE)
    with (tmp_path / "big.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 38,)}
        )
        file.truncate(file.tell() + (4 << 38))  # 1 TiB that takes no disk, and no memory either
    big = recording.open(tmp_path).entries[0].read()
    assert big.shape == (1 << 38,) and float(big[-1]) == 0
    del big
    one = recording.open(tmp_path).entries[1].read()
    one[:] = 0
    assert np.array_equal(np.load(tmp_path / "x.npy"), ONE), "the file is what it was"


# ------------------------------------------------------------ text


def test_numbers_alone_have_the_shape_of_a_comment_or_of_the_model(tmp_path: Path) -> None:
    np.savetxt(
        tmp_path / "said.csv",
        ONE.reshape(6, 4),
        delimiter=",",
        header="Array shape: (1, 2, 3, 4)",
        fmt="%.4f",
    )
    np.savetxt(tmp_path / "known.tsv", ONE.reshape(6, 4), delimiter="\t")
    # one line, longer than what is read at once
    np.savetxt(tmp_path / "row.csv", np.zeros((1, 90_000)), delimiter=",")
    (tmp_path / "profile.csv").write_text("layer,time,flops\nconv1,2,3\n")
    hints = DumpHints({"known": TensorSpec("float32", ONE.shape)})
    found = {e.name: e for e in recording.open(tmp_path, hints=hints)}
    assert found["said"].step == pytest.approx(1e-4) and "profile" not in found
    for name in ("said", "known"):
        assert np.array_equal(found[name].read(), ONE)
    assert found["row"].read().shape == (90_000,) and found["row"].note


def test_table_of_pandas_says_how_to_save_it(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(",0,1\n0,1.5,2.5\n")
    (entry,) = recording.open(tmp_path)
    assert "header=False" in entry.missing


def test_model_of_keras_beside_a_dump_is_counted_as_left_out(tmp_path: Path) -> None:
    (tmp_path / "model.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    np.save(tmp_path / "x.npy", ONE)
    assert recording.open(tmp_path).left_out == {".h5": 1}


def test_csv_of_numbers_with_and_without_a_title(tmp_path: Path) -> None:
    np.savetxt(tmp_path / "x.csv", ONE.reshape(6, 4), delimiter=",")
    (tmp_path / "y.csv").write_text("value\n" + "".join(f"{v:.3f}\n" for v in ONE.reshape(-1)))
    (tmp_path / "z.csv").write_text("before,after\n0,1.5\n1,2.5\n")
    (tmp_path / "log.csv").write_text("name,loss\nconv1,0.5\n")
    hints = DumpHints({"x": TensorSpec("float32", ONE.shape)})
    found = {e.tensor: e for e in plugins.load("dumps", "text").entries(scan(tmp_path), hints)}
    assert set(found) == {"x", "y", "z"} and has_line(found["z"].missing, "columns")
    assert np.array_equal(found["x"].read(), ONE) and found["x"].step == 0
    assert np.array_equal(found["y"].read(), ONE.reshape(-1)) and found["y"].step == 1e-3


# ------------------------------------------------------------ damage


def npy_header(text: bytes) -> bytes:
    """A .npy that says this, and no values."""
    return b"\x93NUMPY\x01\x00v\x00" + text.ljust(117) + b"\n"


def promised(size: int, *shape: int, length: int | None = None) -> bytes:
    """An Ascend file that says so, with four bytes of values."""
    return dump({"blobs": [("output", {"size": size, "shape": shape})]}, b"1234", length)


def listed(said: dict[str, Any]) -> bytes:
    """A manifest that says this of a file, itself."""
    return json.dumps(
        {"tensors": [{"name": "x", "file": "manifest.json", "dtype": "float32", **said}]}
    ).encode()


# dimensions of an array of no elements, which numpy refuses all the same
NEVER = (1 << 40, 1 << 40)
TENSOR = helper.make_tensor("x", 1, [1], [1.0]).SerializeToString()
BLOB = "#1_X_y_out0.ieb"
LIES: list[tuple[str, str, bytes]] = [
    (
        "npy",
        "x.npy",
        npy_header(b"{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999999,), }"),
    ),
    ("npy", "x.npy", npy_header(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }")),
    (
        "npy",
        "x.npy",
        npy_header(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }") + b"\x80\x04N.",
    ),
    ("ascend", DUMPFILE, promised(1 << 50, 1 << 48)),
    ("ascend", DUMPFILE, promised(4, 1, length=1 << 60)),
    ("ascend", DUMPFILE, promised(4, 1 << 40)),
    ("openvino", BLOB, ieb(ONE, 5, size=1 << 60)),
    ("openvino", BLOB, ieb(ONE, 5)[:80]),
    ("onnx-pb", "input_0.pb", TENSOR.replace(b"\x08\x01", b"\x08\xff\xff\xff\xff\xff\x7f", 1)),
    ("onnx-pb", "input_0.pb", b"\x08\x01\x10\x01\x22\xff\xff\xff\x7f"),
    (
        "polygraphy",
        "o.json",
        b'{"lst": [["r", [{"outputs": {"x": {"values": {"array": "k05VTVBZAQB2AHsn"}}}}]]]}',
    ),
    ("polygraphy", "o.json", b'{"lst": [["r", [{"outputs": {"x": '),
    ("tnn", "00000-a-out-0-b-dims-99999999-99999999.txt", b"1.0\n"),
    ("tnn", "t.txt", b"1\nx 2 100000 100000 0\n1.0\n"),
    ("mnn", "input.json", b'{"inputs": [{"name": "x", "shape": ["a"]}], "outputs": []}'),
    (
        "raw",
        "manifest.json",
        b'{"tensors": [{"name": "x", "file": "manifest.json", "dtype": "int9"}]}',
    ),
    ("raw", "manifest.json", b'{"tensors": [{"file": "manifest.json"}]}'),
    (
        "npy",
        "x.npy",
        npy_header(b"{'descr': '<f8', 'fortran_order': False, 'shape': (0, %d, %d), }" % NEVER),
    ),
    ("ascend", DUMPFILE, promised(0, 0, *NEVER)),
    ("openvino", BLOB, ieb(ONE[:0], 4).replace(struct.pack("<3I", 2, 3, 4), b"\xff" * 12)),
    (
        "onnx-pb",
        "input_0.pb",
        TensorProto(name="x", data_type=1, dims=(0, *NEVER)).SerializeToString(),
    ),
    ("raw", "manifest.json", listed({"shape": (0, *NEVER)})),
    ("raw", "manifest.json", listed({"shape": (0, 1), "aligned": (0, 1 << 70)})),
    ("text", "x.txt", b"1.0\n" * 2000 + b"one\n"),
    ("text", "x.txt", b"1.0\n" * 2000 + b"1" * 100),
]


@pytest.mark.parametrize(("word", "name", "content"), LIES)
def test_header_that_lies(word: str, name: str, content: bytes, tmp_path: Path) -> None:
    """An error that names the file, before any memory is taken."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SubcutError, match=re.escape(name)):
        for e in recording.open(tmp_path, word):
            e.read()


def test_zip_bomb(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\x93NUMPY" + bytes(1000))
    data = (tmp_path / "x.npz").read_bytes()
    size = struct.pack("<L", 1006)
    (tmp_path / "x.npz").write_bytes(data.replace(size, struct.pack("<L", 1 << 31)))
    with raises(InputError, "recording.damaged", "x.npz"):
        recording.open(tmp_path, "npy")


@pytest.mark.turns(4)
@pytest.mark.parametrize("word", FORMATS)
def test_fuzzed_bytes(word: str, made: dict[str, Path], tmp_path: Path) -> None:
    """Every file of each sample, damaged in many ways: values, or an error of ours; never
    another."""
    rng = np.random.default_rng(len(word))
    source = scan(made[word])
    chosen = [n for n in source.names if source.sizes[n] < 20_000][:4]
    folder = tmp_path / "d"
    shutil.copytree(made[word], folder)
    for name in chosen:
        good = (made[word] / name).read_bytes()
        for k in range(25 if ALL else 10):  # of each kind of damage two
            (folder / name).write_bytes(damaged(good, k, rng))
            survive(folder, word)
        (folder / name).write_bytes(good)


def damaged(good: bytes, k: int, rng: np.random.Generator) -> bytes:
    data = bytearray(good)
    at = int(rng.integers(0, min(len(data), 400)) if data else 0)
    if k % 5 == 0:
        return bytes(data[: int(rng.integers(0, len(data) + 1))])
    if k % 5 == 1:
        return bytes(data[:at] + bytes(rng.integers(0, 256, 8).astype(np.uint8)) + data[at:])
    if k % 5 == 2:
        data[at : at + 8] = b"\xff" * 8
    elif k % 5 == 3:
        data[at : at + 1] = bytes([int(rng.integers(0, 256))])
    else:
        return bytes(rng.integers(0, 256, int(rng.integers(0, 300))).astype(np.uint8))
    return bytes(data)


def survive(folder: Path, word: str) -> None:
    try:
        recording.detect(folder)
        for e in list(recording.open(folder, word))[:8]:
            try:
                value = e.read()
                assert e.load().nbytes <= 1 << 20 and value.nbytes <= 1 << 20
            except SubcutError as error:
                assert error.what
    except SubcutError as error:
        assert error.what and "Traceback" not in error.what


@pytest.mark.slow
@pytest.mark.parametrize("word", FORMATS)
@settings(
    max_examples=examples(48),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.binary(max_size=400), st.integers(0, 10))
def test_random_bytes(
    word: str, made: dict[str, Path], tmp_path: Path, content: bytes, which: int
) -> None:
    names = scan(made[word]).names
    folder = tmp_path / "d"
    folder.mkdir(exist_ok=True)
    target = folder / names[which % len(names)]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    survive(folder, word)


@pytest.mark.slow
def test_damage_of_every_kind_takes_neither_long_nor_memory() -> None:
    """A short run of `damage`, in a process with a limit: contents and names, 10 folders of each
    format."""
    done = run_program([sys.executable, "-m", "tests.helpers.damaged_dumps", "10"], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert has_line(done.stdout, f"{10 * len(FORMATS)}", "0 wrong")


def test_text_that_is_numbers(tmp_path: Path) -> None:
    texts = {
        "a.txt": "1.5\n-nan\n-1.#IND\ninf\n1e999\n",
        "b.txt": "1_0\n",
        "c.txt": "0x10\n",
        "d.txt": "",
        "e.txt": "12\n-3\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    files = scan(tmp_path)
    assert [_text.is_numeric(files, n) for n in texts] == [True, False, False, False, True]
    assert np.array_equal(
        _text.read_values(files, "a.txt", "float32"),
        np.array([1.5, np.nan, np.nan, np.inf, np.inf], np.float32),
        equal_nan=True,
    )
    assert [e.dtype for e in recording.open(tmp_path)] == ["float32", "int64"]
    with pytest.raises(InputError):
        _text.read_values(files, "e.txt", "uint8")
    (tmp_path / "long.txt").write_text("0.125\n" * 400_000)
    assert _text.read_values(scan(tmp_path), "long.txt", "float32").tolist() == [0.125] * 400_000


def test_none_is_the_least() -> None:
    assert NONE < BARE < TYPED < MARKED
