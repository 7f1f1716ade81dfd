"""Dumps by another hand: names, shapes and orders of axes that this project's own writers do not
make.

Covers `recordings.matching.names`, `recordings.matching.matched`, `recordings.matching.match`,
the formats trtexec, torch, msprobe and safetensors.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import re
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from fixtures import ROOT, producers
from fixtures.oracle import tapped
from subgraph.errors import InputError
from subgraph.graph.graph import load
from subgraph.recordings import recording
from subgraph.recordings.matching.align import iter_alignments, iter_foldings
from subgraph.recordings.matching.matched import Reason
from subgraph.recordings.matching.names import ModelNames
from subgraph.runtime.reference import Reference
from subgraph.storage.folders import make_safe_name
from subgraph.types import Array
from tests.helpers.compared_dumps import ComparedDump, compare_dump
from tests.helpers.facts import has_line
from tests.helpers.made_dumps import ONE, ieb
from tests.helpers.refusals import raises
from tests.helpers.runs import evaluate

FAULTY = "/layer1/layer1.1/conv2/Conv"


@pytest.fixture(scope="session")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of `fixtures/dumps/others.tar.xz`; their sources are in the README beside it."""
    folder = tmp_path_factory.mktemp("others")
    with tarfile.open(ROOT / "fixtures/dumps/others.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def values(others: Path) -> dict[str, Array]:
    """All tensors of the small ResNet, of the right one."""
    return _values(onnx.load(others / "resnet.onnx"), others)


@pytest.fixture(scope="module")
def wrong(others: Path) -> dict[str, Array]:
    """All tensors of the small ResNet with the weights of one Conv rolled."""
    model = onnx.load(others / "resnet.onnx")
    node = next(n for n in model.graph.node if n.name == FAULTY)
    weight = next(t for t in model.graph.initializer if t.name == node.input[1])
    weight.CopyFrom(
        numpy_helper.from_array(np.roll(numpy_helper.to_array(weight), 1, 0).copy(), weight.name)
    )
    return _values(model, others)


def _values(model: onnx.ModelProto, others: Path) -> dict[str, Array]:
    return _all_tensors(model, np.load(others / "x.npy"))


def _all_tensors(model: onnx.ModelProto, data: Array) -> dict[str, Array]:
    names = [n for node in model.graph.node for n in node.output]
    return {"data": data} | evaluate(tapped(model, names), {"data": data}, names)


@pytest.fixture
def compared(others: Path, tmp_path: Path, reference: Reference) -> Callable[..., ComparedDump]:
    def compare(folder: Path, model: str = "resnet.onnx", fed: bool = True) -> ComparedDump:
        data = others / "x.npy" if fed else None
        return compare_dump(reference, others / model, folder, data, out=tmp_path)

    return compare


def written(
    folder: Path, tensors: Mapping[str, Array], name: Callable[[str], str] = make_safe_name
) -> Path:
    for tensor, value in tensors.items():
        path = folder / f"{name(tensor)}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, value)
    return folder


# ------------------------------------------------------------ names


def test_names_that_others_give(others: Path) -> None:
    graph = load(others / "resnet.onnx")
    names = ModelNames(
        graph,
        [n for i in range(len(graph.nodes)) for n in graph.makes[i]],
        lambda n: make_safe_name(n),
    )
    assert names.likely("/Concat_output_0-rs")[0] == "/Concat_output_0"
    assert names.likely("layer1.1.conv2")[0] == f"{FAULTY}_output_0"
    # a container is its last child
    assert names.likely("layer1.0")[0] == "/layer1/layer1.0/act_1/Relu_output_0"
    assert names.likely("fc")[0] == "logits"


def test_axes_that_a_toolkit_adds_or_folds() -> None:
    value = np.arange(60.0).reshape(1, 3, 20)
    turned = value.transpose(2, 1, 0)[None]
    assert any(
        np.array_equal(way.apply(turned), value)
        for way in iter_alignments(turned.shape, (1, 3, 20))
    )
    head = np.arange(120.0).reshape(3, 4, 10)
    joined = head.transpose(1, 0, 2).reshape(1, 12, 1, 10)
    assert any(
        np.array_equal(way.apply(joined), head) for way in iter_foldings(joined.size, head.shape)
    )
    blocks = np.zeros((1, 2, 5, 6, 16))
    assert [way.apply(blocks).shape for way in iter_alignments(blocks.shape, (1, 24, 5, 6))] == [
        (1, 24, 5, 6)
    ]


# ------------------------------------------------------------ folders


@pytest.mark.slow
def test_rknn_matches_nearly_all_and_the_interval_is_small(
    others: Path, compared: Callable[..., ComparedDump]
) -> None:
    found = compared(others / "vit", "vit.onnx", fed=False)
    healthy = found.run
    assert len(healthy.matched[0].matches) >= 35 and not healthy.failing and found.exit_code == 0
    faulty = compared(others / "vit_faulty", "vit.onnx", fed=False)
    assert len(faulty.run.matched[0].matches) >= 35
    assert faulty.places == [["/blocks/blocks.0/Transpose_2", "/blocks/blocks.0/Reshape_1"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "matched", "nodes"),
    [
        ("mnn", 15, [FAULTY]),
        ("ieb_old", 14, [FAULTY, "/layer1/layer1.1/Add"]),
        ("c_plain", 11, [FAULTY, "/layer1/layer1.1/Add"]),
    ],
)
def test_fused_names_of_others(
    folder: str, matched: int, nodes: list[str], others: Path, compared: Callable[..., ComparedDump]
) -> None:
    found = compared(others / folder)
    assert len(found.run.matched[0].matches) >= matched
    assert [place[:2] for place in found.places] == [nodes], "one place, and no false one behind it"


@pytest.mark.slow
def test_torch_modules(
    wrong: dict[str, Array], tmp_path: Path, compared: Callable[..., ComparedDump]
) -> None:
    """A container holds its last child's value, a BatchNorm its folded Conv's, as values tell;
    behind the fault they tell nothing."""
    scopes = {
        "stem": "/stem/Conv_output_0",
        "layer1.0": "/layer1/layer1.0/act_1/Relu_output_0",
        "fc": "logits",
        "layer1.0.bn1": "/layer1/layer1.0/conv1/Conv_output_0",
        "head": "/head/Conv_output_0",
        "layer1.0.bn2": "/layer1/layer1.0/conv2/Conv_output_0",
        "layer1.1.bn1": "/layer1/layer1.1/conv1/Conv_output_0",
        "pool": "/pool/MaxPool_output_0",
    }
    recorded = {name: wrong[tensor] for name, tensor in scopes.items()} | {
        "layer1.1.bn2": wrong[f"{FAULTY}_output_0"]
    }
    rng = np.random.default_rng(0)
    # what the BatchNorm read
    noise: Array = np.asarray(rng.random(wrong[f"{FAULTY}_output_0"].shape), np.float32)
    recorded |= {"layer1.1.conv2": noise}
    found = compared(written(tmp_path / "dump", recorded, str))
    assert {n: m.entry.name for n, m in found.run.matched[0].matches.items()} == {
        t: n for n, t in scopes.items()
    }
    (place,) = found.places
    assert place[:2] == ["/layer1/layer1.1/act/Relu", FAULTY]


@pytest.mark.slow
def test_additional_files_of_a_tool_are_ignored(
    values: dict[str, Array], others: Path, tmp_path: Path, compared: Callable[..., ComparedDump]
) -> None:
    """Weights in the tool's order of axes, and more helpers than tensors: a healthy run agrees all
    the same."""
    weights = {
        w.name: numpy_helper.to_array(w)
        for w in onnx.load(others / "resnet.onnx").graph.initializer
    }
    saved = {f"kernel_{k}": w.T for k, w in enumerate(weights.values()) if w.ndim == 4}
    helpers = {f"ShapeOf_{k}": np.arange(k + 2) for k in range(2 * len(values))}
    found = compared(written(tmp_path / "dump", values | saved | helpers))
    run = found.run
    assert {left.detail for left in run.list_left_out(Reason.NOTHING)} >= {
        f"the weight {n}" for n in weights if weights[n].ndim == 4
    }
    assert not run.notes and found.exit_code == 0


@pytest.mark.slow
def test_name_with_an_ending_does_not_take_the_place_of_a_fused_one(
    wrong: dict[str, Array], tmp_path: Path, compared: Callable[..., ComparedDump]
) -> None:
    """Behind the fault MNN's X_raster_0 is not a X where X itself is there and holds the Relu
    behind it."""
    convs = [n for n in wrong if n.endswith("conv1/Conv_output_0")]
    fused = {n: wrong[n.replace("conv1/Conv", "act/Relu")] for n in convs}
    kept = {n: v for n, v in wrong.items() if n not in convs and "act/Relu" not in n}
    late = "/layer2/conv1/Conv_output_0" if "/layer2/conv1/Conv_output_0" in convs else convs[-1]
    raster = {f"{late}_raster_0": wrong[late][:, ::-1].copy()}
    found = compared(written(tmp_path / "dump", kept | fused | raster))
    match = found.run.matched[0].matches[late]
    assert "raster" not in match.entry.name and match.others.possible, "it may hold the Relu"
    assert [place[-1] for place in found.places] == [FAULTY]


@pytest.mark.slow
def test_folders_in_the_place_of_slashes_are_no_runs(
    wrong: dict[str, Array], tmp_path: Path, compared: Callable[..., ComparedDump]
) -> None:
    found = compared(written(tmp_path / "dump", wrong, lambda name: name.strip("/")))
    assert len(found.run.rows) == 29 and found.places == [[FAULTY]]


@pytest.mark.slow
def test_relu_that_quantization_dropped_holds_what_it_read(
    values: dict[str, Array], tmp_path: Path, compared: Callable[..., ComparedDump]
) -> None:
    recorded = dict(values) | {"/act/Relu_output_0": values["/stem/Conv_output_0"]}
    recorded["/act/Relu_output_0_DequantizeLinear_Output"] = values["/act/Relu_output_0"]
    del recorded["/stem/Conv_output_0"]
    np.savez(tmp_path / "activations.npz", **{k: v.reshape(-1) for k, v in recorded.items()})  # type: ignore[arg-type]
    found = compared(tmp_path / "activations.npz")
    assert not found.run.failing and len(found.run.rows) == 29
    assert found.run.rows["/stem/Conv_output_0"].match.others.named == "/act/Relu_output_0"


@pytest.mark.slow
def test_operator_behind_a_name_is_no_other_name(
    wrong: dict[str, Array], others: Path, tmp_path: Path, compared: Callable[..., ComparedDump]
) -> None:
    """As tpu-mlir writes them; behind the fault no value confirms the name."""
    graph = load(others / "resnet.onnx")
    operators = {n: graph.ops[i] for n, i in graph.maker.items()}
    recorded = {f"{n}_{operators[n]}_f32" if n in operators else n: v for n, v in wrong.items()}
    found = compared(written(tmp_path / "dump", recorded))
    assert len(found.run.rows) == 29 and found.places == [[FAULTY]]
    assert {row.match.how for row in found.run.rows.values()} == {"name"}


@pytest.mark.slow
def test_value_that_readers_read_is_the_tensor(
    wrong: dict[str, Array], others: Path, tmp_path: Path, compared: Callable[..., ComparedDump]
) -> None:
    """As AMD's Quark: a Relu is folded into the quantizer, its name holds what it read."""
    graph = load(others / "resnet.onnx")
    recorded = dict(wrong)
    for name, i in graph.maker.items():
        if graph.ops[i] == "Relu":
            recorded[name] = wrong[graph.reads[i][0]]
            recorded[f"{name}_DequantizeLinear_Output"] = wrong[name]
    found = compared(written(tmp_path / "dump", recorded))
    assert len(found.places) == 1 and FAULTY in found.places[0]


@pytest.mark.slow
def test_one_value_under_two_names(
    values: dict[str, Array], tmp_path: Path, compared: Callable[..., ComparedDump]
) -> None:
    """It is matched once, the other one is said to be its copy; a model of which so little is known
    does not agree."""
    value = values["/stem/Conv_output_0"]
    found = compared(written(tmp_path / "dump", {"q1": value, "q2": value}))
    assert list(found.run.rows) == ["/stem/Conv_output_0"]
    (left,) = found.run.list_left_out(Reason.NOTHING)
    assert has_line(left.why, "copy", "/stem/Conv_output_0")
    assert found.exit_code == 5 and "1 of 29 tensors" in found.run.notes[0]


@pytest.mark.slow
def test_each_iteration_is_judged_against_its_own_input(
    values: dict[str, Array], others: Path, tmp_path: Path, compared: Callable[..., ComparedDump]
) -> None:
    model = onnx.load(others / "resnet.onnx")
    other = values["data"][..., ::-1].copy()
    second = _all_tensors(model, other)
    runs_of = [{n: v for n, v in recorded.items() if n != "data"} for recorded in (values, second)]
    iterations = [{"outputs": {n: _lazy(v) for n, v in outputs.items()}} for outputs in runs_of]
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump/outputs.json").write_text(
        json.dumps({"lst": [["onnxrt-runner-N0", iterations]]})
    )
    (tmp_path / "dump/inputs.json").write_text(
        json.dumps([{"data": _lazy(x)["values"]} for x in (values["data"], other)])
    )
    found = compared(tmp_path / "dump", fed=False)
    assert len(found.run.matched) == 2 and not found.run.failing


def _lazy(value: Array) -> dict[str, Any]:
    """An array as Polygraphy writes it."""
    buffer = io.BytesIO()
    np.save(buffer, value)
    return {
        "values": {
            "array": base64.b64encode(buffer.getvalue()).decode(),
            "polygraphy_class": "ndarray",
        }
    }


@pytest.mark.slow
def test_three_printed_digits_are_no_alarm(
    values: dict[str, Array], tmp_path: Path, compared: Callable[..., ComparedDump]
) -> None:
    for name, value in values.items():
        np.savetxt(tmp_path / f"{make_safe_name(name)}.txt", value.reshape(-1), "%.3f")
    found = compared(tmp_path)
    assert not found.run.failing and len(found.run.rows) == 29


@pytest.mark.slow
def test_one_digit_is_too_few_to_agree(
    values: dict[str, Array], tmp_path: Path, compared: Callable[..., ComparedDump]
) -> None:
    """It hides an error of 5 % of a tensor of size one."""
    for name, value in values.items():
        np.savetxt(tmp_path / f"{make_safe_name(name)}.txt", value.reshape(-1), "%.1f")
    rows = compared(tmp_path).run.rows.values()
    assert not any(row.failing for row in rows)
    assert any(has_line(row.why, "0.1", "digits") for row in rows)


# ------------------------------------------------------------ formats


@pytest.mark.parametrize(
    ("folder", "format", "names"),
    [
        ("trtexec", "trtexec", {"logits", "/Flatten_output_0", "/gap/GlobalAveragePool_output_0"}),
        (
            "msprobe",
            "msprobe",
            {
                "fc:output:0",
                "gap:output:0",
                "head:output:0",
                "act_2:output:0",
                "Functional.linear.0:output:0",
            },
        ),
    ],
)
def test_files_of_the_tools_are_read(
    folder: str, format: str, names: set[str], others: Path
) -> None:
    found = recording.open(others / folder)
    assert found.format == format and {e.name for e in found} == names
    assert all(np.isfinite(e.read()).all() and e.read().shape == e.shape for e in found)


def test_result_folder_of_qnn_itself(tmp_path: Path) -> None:
    (tmp_path / "Result_0").mkdir()
    np.zeros(4, np.float32).tofile(tmp_path / "Result_0/x.raw")
    assert recording.open(tmp_path / "Result_0").format == "qnn"


def test_files_of_other_kinds_are_counted(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    for name in ("a.jpg", "b.jpg", "notes.txt"):
        (tmp_path / name).write_text("?")
    assert recording.open(tmp_path).left_out == {".jpg": 2}


def _saved(path: Path, pickled: bytes, storages: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        for key, data in storages.items():
            archive.writestr(f"archive/data/{key}", data)
    return path


def _tensor(
    key: str, shape: tuple[int, ...], strides: tuple[int, ...], kind: str = "FloatStorage"
) -> bytes:
    """The opcodes of a tensor as torch writes them."""
    storage = (
        b"("
        + pickle.dumps("storage", 2)[2:-1]
        + f"ctorch\n{kind}\n".encode()
        + pickle.dumps(key, 2)[2:-1]
    )
    start = (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + storage
        + pickle.dumps("cpu", 2)[2:-1]
        + b"K\x06tQ"
    )
    words = b"".join(pickle.dumps(part, 2)[2:-1] for part in (0, shape, strides, False))
    return start + words + b"ccollections\nOrderedDict\n)RtR"


def test_tensor_of_torch_is_read_without_unpickling(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32)
    _saved(
        tmp_path / "act.pt",
        b"\x80\x02" + _tensor("0", (3, 2), (1, 3)) + b".",
        {"0": values.tobytes()},
    )
    (entry,) = recording.open(tmp_path / "act.pt")
    assert (entry.name, entry.dtype) == ("act", "float32")
    assert np.array_equal(entry.read(), values.reshape(2, 3).T)
    keyed = b"\x80\x02}" + pickle.dumps("a.b", 2)[2:-1] + _tensor("0", (6,), (1,)) + b"s."
    _saved(tmp_path / "all.pt", keyed, {"0": values.tobytes()})
    assert [e.name for e in recording.open(tmp_path / "all.pt")] == ["a.b"]


@pytest.mark.parametrize(
    "pickled",
    [
        b"\x80\x02cos\nsystem\n(U\x04exittR.",
        b"\x80\x02cos\nsystem\n" + pickle.dumps(("exit",), 2)[2:-1] + b"R.",
        b"\x80\x02.",
        b"\x80\x02K\x01",
        b"",
        b"\x80\x02" + _tensor("0", (1 << 40,), (0,)) + b".",
        b"\x80\x02" + _tensor("0", (7,), (1,)) + b".",
        b"\x80\x02" + _tensor("1", (6,), (1,)) + b".",
    ],
)
def test_anything_else_in_a_pt_is_refused(pickled: bytes, tmp_path: Path) -> None:
    _saved(tmp_path / "x.pt", pickled, {"0": bytes(24)})
    with raises(InputError, "recording.damaged", "x.pt"):
        for entry in recording.open(tmp_path / "x.pt"):
            entry.read()


def test_safetensors(tmp_path: Path) -> None:
    header = json.dumps(
        {
            "__metadata__": {"a": "b"},
            "x": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
            "h": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]},
        }
    ).encode()
    data = np.arange(4, dtype=np.float32).tobytes() + bytes(6)
    path = tmp_path / "layers.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    found = {e.name: e for e in recording.open(path)}
    assert (
        np.array_equal(found["x"].read(), [[0, 1], [2, 3]])
        and found["h"].read().dtype.name == "bfloat16"
    )
    path.write_bytes((1 << 60).to_bytes(8, "little") + header)
    with raises(InputError, "recording.damaged", "header"):
        recording.open(path)


def test_npz_of_any_writer(tmp_path: Path) -> None:
    """numpy itself writes members with ZIP64, whose version another writer does not have."""
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    with (
        zipfile.ZipFile(tmp_path / "a.npz", "w") as archive,
        archive.open("x.npy", "w", force_zip64=True) as member,
    ):
        member.write(buffer.getvalue())
    assert [e.name for e in recording.open(tmp_path / "a.npz")] == ["x"]


def test_node_dumps_of_onnxruntime_say_the_tensors_names(tmp_path: Path) -> None:
    """Their files' names say less: everything but letters and digits is `_`."""
    for name in ("/blk/Add_output_0", "x"):
        file = tmp_path / f"{re.sub('[^A-Za-z0-9]', '_', name)}.tensorproto"
        file.write_bytes(numpy_helper.from_array(np.zeros(3, np.float32), name).SerializeToString())
    found = recording.open(tmp_path)
    assert found.format == "onnx-pb" and {e.name for e in found} == {"/blk/Add_output_0", "x"}
    (tmp_path / "x.tensorproto").write_bytes(b"\x08\xff")
    with raises(InputError, "recording.damaged", "x.tensorproto"):
        recording.open(tmp_path)


def test_horizon_layers_are_exported(others: Path) -> None:
    found = recording.open(
        others / "horizon", hints=recording.find_hints(load(others / "resnet.onnx"))
    )
    assert sorted(e.role for e in found) == ["input", "output", "output"]
    assert all(e.read().size for e in found)


# ------------------------------------------------------------ from their sources


@pytest.mark.parametrize("depth", [0, 2])
def test_ncnns_text_has_a_shape(depth: int, tmp_path: Path) -> None:
    shape = (3, *[depth] * bool(depth), 4, 5)
    value = np.random.default_rng(0).standard_normal(shape, np.float32)
    (tmp_path / "conv1.txt").write_text(producers.ncnn_text(value))
    (entry,) = recording.open(tmp_path)
    assert (entry.tensor, entry.shape, entry.step) == ("conv1", shape, 1e-6)
    assert np.abs(entry.read() - value).max() <= 5e-7 * 1.1
    (tmp_path / "conv1.txt").write_text(
        producers.ncnn_text(value)[: -len(" 0.123456\n" + "-" * 24)]
    )
    with raises(InputError, "recording.no-tensors"):
        recording.open(tmp_path)


def _ncnn(folder: Path, tensors: Mapping[str, Array]) -> None:
    for name, value in tensors.items():
        if value.ndim == 4:
            (folder / f"{make_safe_name(name)}.txt").write_text(producers.ncnn_text(value[0]))


def _aimet(folder: Path, tensors: Mapping[str, Array], *, nhwc: bool) -> None:
    made = {name: value for name, value in tensors.items() if name != "data"}
    producers.aimet_folder(folder, [[tensors["data"]]], [made], nhwc=nhwc)


def _mindspore(folder: Path, tensors: Mapping[str, Array]) -> None:
    calls = {}
    for name, value in tensors.items():
        parts = name.strip("/").split("/")
        if len(parts) > 1:
            path = ".".join(re.sub(r"^.*\.", "", part) for part in parts[:-1])
            op = parts[-1].partition("_")[0]
            calls[f"Cell.{path}.{op}.forward.0"] = value
    producers.msprobe_of_mindspore(folder, calls)


WRITERS: dict[str, Callable[[Path, Mapping[str, Array]], None]] = {
    "ncnn": _ncnn,
    "aimet": lambda folder, tensors: _aimet(folder, tensors, nhwc=False),
    "aimet, NHWC": lambda folder, tensors: _aimet(folder, tensors, nhwc=True),
    "msprobe": _mindspore,
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if "," in n or n == "ncnn" else ()) for n in WRITERS],
)
def test_tools_own_form_leads_to_the_wrong_node(
    name: str, wrong: dict[str, Array], compared: Callable[..., ComparedDump], tmp_path: Path
) -> None:
    WRITERS[name](tmp_path, wrong)
    assert recording.open(tmp_path).format == name.partition(",")[0]
    found = compared(tmp_path, fed=not name.startswith("aimet"))
    assert len(found.places) == 1 and FAULTY in found.places[0], found.places


def test_inferences_that_openvino_counts_are_samples(tmp_path: Path) -> None:
    """After createDumpFilePath and dumpOutputBlobs of its node_dumper.cpp."""
    for k in range(2):
        (tmp_path / f"#3_Convolution__blk_conv-1_iter{k}_out0.ieb").write_bytes(ieb(ONE + k, 4))
    first, second = recording.open(tmp_path)
    assert (first.node, first.side, second.side) == ("_blk_conv-1", "iter0", "iter1")
    assert np.array_equal(second.read(), ONE + 1)
