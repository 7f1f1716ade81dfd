"""One contract for every backend in the folder, then what is special to each. Covers
`runtime.backends`."""

from __future__ import annotations

import gc
import importlib.util
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from subgraph import plugins
from subgraph.errors import BackendError, ModelError, Refused, SubcutError, UsageError, WorkerDied
from subgraph.runtime.backends import cmd, mnn, onnx_reference, ort
from subgraph.runtime.worker import Worker
from subgraph.storage import dtypes, tensors
from subgraph.storage.tensors import Value
from tests.helpers import text_models, web_runtime
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import PATIENCE
from tests.helpers.runs import save_records

Shell = Callable[..., str]  # of a command line
HEAVY = frozenset(
    "numpy onnx onnxruntime networkx PIL ml_dtypes google torch openvino cv2 tract MNN tensorflow".split()  # noqa: E501
)

NUMBERS = """g (float[2,3] x, int64[n] i, bool[2] b, bfloat16[2] f, float16[2] h, float c, float[0,2] e)
 => (float[2,2] y, float[2,3] relu, int64[n] io, bool[2] bo, bfloat16[2] fo, float16[2] ho, float co, float[0,2] eo) {
  relu = Relu(x)
  product = MatMul(relu, w)
  y = Add(product, c)
  io = Add(i, i)
  bo = Not(b)
  fo = Identity(f)
  ho = Add(h, h)
  co = Neg(c)
  eo = Relu(e)
}"""  # noqa: E501
WEIGHT = np.arange(6, dtype=np.float32).reshape(3, 2)
X = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
FEEDS: dict[str, Any] = {
    "x": X,
    "i": np.array([1, -2, 3]),
    "b": np.array([True, False]),
    "f": np.array([1.5, -2], ml_dtypes.bfloat16),
    "h": np.array([1, 2.5], np.float16),
    "c": np.array(0.5, np.float32),
    "e": np.zeros((0, 2), np.float32),
}
EXPECTED = {
    "y": np.maximum(X, 0) @ WEIGHT + np.float32(0.5),
    "relu": np.maximum(X, 0),
    "io": np.array([2, -4, 6]),
    "bo": np.array([False, True]),
    "fo": FEEDS["f"],
    "ho": np.array([2, 5], np.float16),
    "co": np.array(-0.5, np.float32),
    "eo": np.zeros((0, 2), np.float32),
}

# Inputs of the two models above that a runtime refuses for their element type, by name; the others
# must be right.
REFUSED = {
    "mnn": {"f", "s", "t"},
    "ncnn": {"i", "b", "f", "e", "s", "t"},
    "opencv": {"f", "s", "t"},
    "openvino": {"s", "t"},
    "tract": {"f", "s", "t"},
    "web": {"f", "s", "t"},
}

# A device of one's own: the folder protocol, played by onnxruntime.
DEVICE = """
import json, sys
from pathlib import Path
import numpy as np
from subgraph.storage import tensors
from subgraph.runtime.backends import ort

model, inputs, outputs = map(Path, sys.argv[1:])
manifest = json.loads((inputs / "manifest.json").read_text())
feeds = {i["name"]: tensors.from_bits(np.load(inputs / i["npy"]), i["dtype"]) for i in manifest["inputs"]}
found = ort.load(model, {})(feeds)
for o in manifest["outputs"]:
    np.save(outputs / o["npy"], tensors.to_bits(found[o["name"]], o["dtype"]))
"""  # noqa: E501


@pytest.fixture(scope="session")
def device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("my device") / "device.py"
    path.write_text(DEVICE)
    return path


# take no ONNX: tests/origins/torch/test_piece.py, tests/origins/tflite
OF_ONE_MODEL = {"torch", "litert"}


@pytest.fixture(
    params=[
        *(name for name in plugins.list_names("backends") if name not in OF_ONE_MODEL),
        "by path",
    ]
)
def named(
    request: pytest.FixtureRequest, tmp_path: Path, device: Path
) -> tuple[str, dict[str, str]]:
    """Each backend with options that it needs; one more is a copy of another, somewhere else."""
    if request.param == "web" and (why := web_runtime.lacking()):
        pytest.skip(why)
    if request.param == "ncnn" and not importlib.util.find_spec("pnnx"):
        pytest.skip("ncnn or pnnx is missing: pip install --no-deps ncnn pnnx")
    if request.param == "by path":
        copy = tmp_path / "my backend.py"
        copy.write_text(Path(onnx_reference.__file__).read_text())
        return str(copy), {}
    if request.param == "cmd":
        return "cmd", {
            "run": shlex.join([sys.executable, str(device), "{model}", "{inputs}", "{outputs}"])
        }
    return str(request.param), {}


@pytest.fixture
def refused(named: tuple[str, dict[str, str]]) -> set[str]:
    """Inputs that the backend need not take; each has an output of its own, its name with an `o`
    behind."""
    return REFUSED.get(named[0], set())


@pytest.fixture
def numbers(tmp_path: Path, refused: set[str]) -> Path:
    path = tmp_path / "numbers.onnx"
    model = text_models.model(NUMBERS, w=WEIGHT)
    gone = refused | {f"{name}o" for name in refused}
    for values in (model.graph.input, model.graph.output):
        for value in [v for v in values if v.name in gone]:
            values.remove(value)
    for node in [n for n in model.graph.node if set(n.output) & gone]:
        model.graph.node.remove(node)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    text = (
        "g (string[n] s, string[] t) => (string[n] so, string[] to) {so = Identity(s) to ="
        " Identity(t)}"
    )
    return text_models.save(tmp_path / "texts.onnx", text)


def ask(
    worker: Worker, folder: Path, feeds: Mapping[str, Value], outputs: Mapping[str, str]
) -> dict[str, Value]:
    """Run on values in memory; what came, by name."""
    records = save_records(feeds, folder)
    done = worker.run("m", folder, outputs, records)
    assert set(done.others).isdisjoint(outputs)
    return {r.name: tensors.load(r, folder) for r in done.tensors}


def same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
        np.testing.assert_array_equal(found[name], value, err_msg=name)


# ------------------------------------------------------------ the contract


@pytest.mark.turns(2)
def test_it_gives_the_right_values_of_every_kind(
    named: tuple[str, dict[str, str]], numbers: Path, texts: Path, refused: set[str], tmp_path: Path
) -> None:
    backend, options = named
    taken = {k: v for k, v in FEEDS.items() if k not in refused}
    given = {k: v for k, v in EXPECTED.items() if k.removesuffix("o") not in refused}
    words: dict[str, Any] = {"s": np.array(["a", "", "β c"], object), "t": np.array("one", object)}
    with Worker(backend, timeout=PATIENCE) as worker:
        about = worker.about(options)
        assert isinstance(about.version, str) and isinstance(about.multi, bool)
        assert about.precision in ("fp32", "fp16", "bf16", "int8")
        if "s" in refused:
            with raises(Refused, "backend.unsupported-type", "string"):
                worker.load("m", texts, options)
        for model, feeds, expected in (
            (texts, words, {"so": words["s"], "to": words["t"]}),
            (numbers, taken, given),
        )["s" in refused :]:
            assert worker.load("m", model, options) >= 0
            same(
                ask(worker, tmp_path, feeds, {n: f"o{i}" for i, n in enumerate(expected)}), expected
            )
        # only what is asked for is written, and the next run has forgotten the last
        negative = {"c": np.array(-2, np.float32)}
        same(
            ask(worker, tmp_path, taken | negative, {"co": "last"}), {"co": np.array(2, np.float32)}
        )
        plain = text_models.save(
            tmp_path / "plain.onnx",
            "g (float[2,3] x) => (float[2,2] y) { y = MatMul(x, w) }",
            w=WEIGHT,
        )
        for name, changed in about.switches.items():  # each is a candidate of its own, and as right
            assert name and changed != options and worker.load("m", plain, changed) >= 0
            same(ask(worker, tmp_path, {"x": X}, {"y": "switched"}), {"y": X @ WEIGHT})
            assert name not in worker.about(changed).switches, "it is off now"


@pytest.mark.turns(2)
def test_wrong_device_entry_is_an_error(
    named: tuple[str, dict[str, str]], numbers: Path, refused: set[str], tmp_path: Path
) -> None:
    backend, options = named
    taken = {k: v for k, v in FEEDS.items() if k not in refused}
    (tmp_path / "rubbish.onnx").write_bytes(b"\xff\x00rubbish")
    with Worker(backend, timeout=PATIENCE) as worker:
        for model in ("rubbish.onnx", "none.onnx"):
            with pytest.raises(Refused):
                worker.load("m", tmp_path / model, options)
        with raises(UsageError, "backend.unknown-option", "no_such_option"):
            worker.load("m", numbers, options | {"no_such_option": "1"})
        worker.load("m", numbers, options)
        with pytest.raises((ModelError, WorkerDied)):
            ask(worker, tmp_path, {k: v for k, v in taken.items() if k != "x"}, {"y": "y"})
        assert worker.alive
        same(ask(worker, tmp_path, taken, {"co": "co"}), {"co": EXPECTED["co"]})


def test_their_files_say_what_they_are_and_import_nothing_heavy() -> None:
    names = plugins.list_names("backends")
    assert all(20 < len(plugins.read_help("backends", name)) < 120 for name in names)
    modules = [plugins.load("backends", name).__name__ for name in names]
    program = f"import sys\nHEAVY = {HEAVY!r}\n"
    for name in modules:
        program += f"import {name}\nprint({name!r}, *HEAVY & sys.modules.keys())\n"
    printed = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert printed.splitlines() == modules


# ------------------------------------------------------------ ort


ONE = "g (float[2] x) => (float[2] y) {t = Identity(x) y = Neg(t)}"


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return text_models.save(tmp_path / "one.onnx", ONE)


@pytest.mark.parametrize(
    "options",
    [{"opt": level} for level in ("disable", "basic", "extended", "all")]
    + [
        {"threads": "2"},
        {"threads": 1, "fixed": True},
        {"fixed": "0"},
        {"providers": "CPUExecutionProvider"},
        {"session.set_denormal_as_zero": "1", "session.intra_op.allow_spinning": "0"},
    ],
    ids=str,
)
def test_options_of_onnxruntime(options: dict[str, Any], one: Path) -> None:
    found = ort.load(one, options)({"x": np.array([1, -2], np.float32)})
    same(found, {"y": np.array([-1, 2], np.float32)})


def test_options_reach_onnxruntime(one: Path, tmp_path: Path) -> None:
    """An optimized graph has fewer nodes; the others can be read back."""
    import onnxruntime

    left = {}
    for level in ("disable", "all"):
        aside = str(tmp_path / f"{level}.onnx")
        settings = ort.make_settings({"opt": level})
        settings.optimized_model_filepath = aside
        onnxruntime.InferenceSession(str(one), settings, providers=["CPUExecutionProvider"])
        left[level] = len(onnx.load(aside).graph.node)
    assert left["disable"] == 2 > left["all"]
    settings = ort.make_settings(
        {"threads": "3", "session.set_denormal_as_zero": "1", "fixed": "yes"}
    )
    assert settings.intra_op_num_threads == 3
    assert settings.get_session_config_entry("session.set_denormal_as_zero") == "1"
    assert settings.use_deterministic_compute and not settings.enable_cpu_mem_arena
    assert not ort.make_settings({"fixed": "false"}).use_deterministic_compute


@pytest.mark.parametrize(
    ("options", "code", "about"),
    [
        ({"opt": "max"}, "backend.wrong-option", "opt cannot be max"),
        ({"threads": "many"}, "backend.wrong-option", "threads=many"),
        ({"threads": "-1"}, "backend.wrong-option", "threads=-1"),
        ({"threads": "1000000"}, "backend.wrong-option", "threads=1000000"),
        ({"provider": "x"}, "backend.unknown-option", "provider"),
        ({"session": "x"}, "backend.unknown-option", "session"),
        ({"session.x": "y" * 10000}, "backend.wrong-option", "session.x"),
        ({"providers": "NpuExecutionProvider"}, "backend.unknown-provider", "NpuExecutionProvider"),
        ({"providers": "CPUExecutionProvider+Npu"}, "backend.unknown-provider", "Npu here"),
        ({"providers": ""}, "backend.unknown-provider", "no provider"),
        ({"custom_ops": "/nonexistent/ops.so"}, "backend.custom-ops", "/nonexistent/ops.so"),
    ],
)
def test_options_that_mean_nothing_to_onnxruntime(
    options: dict[str, str], code: str, about: str, one: Path
) -> None:
    wanted = BackendError if "providers" in options or "custom_ops" in options else UsageError
    with raises(wanted, code, about) as e:
        ort.load(one, options)
    assert type(e.value) is wanted


def test_library_that_is_none(one: Path, tmp_path: Path) -> None:
    (tmp_path / "ops.so").write_bytes(b"\x7fELF rubbish")
    with raises(BackendError, "backend.custom-ops", "ops.so"):
        ort.load(one, {"custom_ops": str(tmp_path / "ops.so")})


def test_only_the_reference_calls_itself_so(tmp_path: Path) -> None:
    unknown = text_models.save(
        tmp_path / "u.onnx", "g (float[2] x) => (float[2] y) {y = mine.Blur(x)}", domains=("mine",)
    )
    with raises(Refused, "backend.refused-model", "onnxruntime 1.") as e:
        ort.load(unknown, {})
    assert has_line(e.value.hint, "onnxruntime", "--custom-ops LIB")
    with raises(Refused, "backend.refused-model", "reference (onnxruntime") as e:
        ort.load(unknown, {"fixed": True})
    assert "--no-capture" in e.value.hint


@pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_extensions") is None,
    reason="onnxruntime-extensions is not installed",
)
def test_real_library_of_custom_operators(tmp_path: Path) -> None:
    """In a process of its own: what is loaded stays loaded."""
    place = importlib.util.find_spec("onnxruntime_extensions")
    assert place is not None and place.origin is not None
    library = next(Path(place.origin).parent.glob("_extensions_pydll*.so"))
    text = "g (string[n] s) => (string[n] up) {up = ai.onnx.contrib.StringUpper(s)}"
    model = text_models.save(tmp_path / "upper.onnx", text, domains=("ai.onnx.contrib",))
    with Worker("ort", timeout=PATIENCE) as worker:
        with raises(Refused, "backend.refused-model", "StringUpper"):
            worker.load("m", model, {})
        worker.load("m", model, {"custom_ops": str(library)})
        found = ask(worker, tmp_path, {"s": np.array(["abc", "d e"], object)}, {"up": "up"})
    same(found, {"up": np.array(["ABC", "D E"], object)})


# ------------------------------------------------------------ onnx-reference


def test_onnx_reference_runs_quantizers_of_older_opsets(tmp_path: Path) -> None:
    """It has them in opset 19 only; what quantize_static writes has an older one."""
    quantizers = "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)"
    text = f"g (float[4] x) => (float[4] y) {{ {quantizers} }}"
    path = text_models.save(tmp_path / "m.onnx", text, opset=13, s=np.float32(0.5), z=np.uint8(2))
    found: Any = onnx_reference.load(path, {})({"x": np.array([-9, 0.3, 1, 9], np.float32)})
    assert found["y"].tolist() == [-1, 0.5, 1, 9]


def test_values_of_onnx_reference(tmp_path: Path) -> None:
    text = """g (float[1,1,4,4] x, int64[2] at) =>
     (float[1,1,2,2] pool, float[1,1,3,3] conv, float[1,1,2,4] rows, float[1,1,4,4] soft) {
      pool = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
      conv = Conv (x, w)
      rows = Gather <axis = 2> (x, at)
      soft = Softmax <axis = -1> (x)
    }"""
    model = text_models.save(
        tmp_path / "m.onnx", text, w=np.array([[[[1, 0], [0, -1]]]], np.float32)
    )
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    found: Any = onnx_reference.load(model, {})({"x": x, "at": np.array([3, -4])})
    assert found["pool"].ravel().tolist() == [5, 7, 13, 15]
    assert found["conv"].ravel().tolist() == [-5.0] * 9
    np.testing.assert_array_equal(found["rows"], x[:, :, [3, 0]])
    np.testing.assert_allclose(found["soft"].sum(-1), 1, rtol=1e-6)
    right: Any = ort.load(model, {"opt": "disable"})({"x": x, "at": np.array([3, -4])})
    for name in right:
        np.testing.assert_allclose(found[name], right[name], rtol=1e-6)


def test_op_that_onnx_does_not_know_is_refused_while_loading(tmp_path: Path) -> None:
    unknown = text_models.save(
        tmp_path / "u.onnx", "g (float[2] x) => (float[2] y) {y = mine.Blur(x)}", domains=("mine",)
    )
    with (
        Worker("onnx-reference", timeout=PATIENCE) as worker,
        raises(Refused, "backend.refused-model", "Blur"),
    ):
        worker.load("m", unknown, {})


# ------------------------------------------------------------ cmd: the folders


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders go; none may be left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    gc.collect()  # an error's frames hold the model that failed
    assert list(folder.iterdir()) == []


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """The path of a shell script with this text; each has a name with a space in it."""
    count = iter(range(100))

    def make(text: str, first: str = "#!/bin/sh\n", mode: int = 0o755) -> str:
        path = tmp_path / f"script {next(count)}.sh"
        path.write_text(f"{first}{text}\n")
        path.chmod(mode)
        return str(path)

    return make


def quoted(*words: str) -> str:
    return " ".join(shlex.quote(word) for word in words)


def every_type() -> list[str]:
    """Element types that this onnx can put into a model."""
    known = {v.number for v in TensorProto.DataType.DESCRIPTOR.values}
    return [name for number, (name, _) in dtypes.TYPES.items() if number in known]


def passing(path: Path, dtype: str, dims: list[Any] | None) -> Path:
    """A model whose output is its input."""
    number = dtypes.TYPE_NUMBERS[dtype]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["in/x"], ["out:y"])],
        "g",
        [helper.make_tensor_value_info("in/x", number, dims)],
        [helper.make_tensor_value_info("out:y", number, dims)],
    )
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


def some(dtype: str, shape: tuple[int, ...]) -> Any:
    """Values that differ, of any type."""
    count = math.prod(shape)
    if dtype == "string":
        return np.array([f"t{i}" for i in range(count)], object).reshape(shape)
    values = (
        np.arange(count) % 2
        if dtype in ("bool", "int2", "float8_e8m0fnu")
        else np.arange(count) % 4
    )
    return (values + (dtype == "float8_e8m0fnu")).reshape(shape).astype(tensors.find_dtype(dtype))


@pytest.mark.turns(3)
@pytest.mark.parametrize("dtype", every_type())
def test_every_type_goes_through_the_folders(dtype: str, tmp_path: Path, shell: Shell) -> None:
    """As .npy and as .bin, copied as they are: what a command is fed and what it gives have one
    form."""
    value = some(dtype, (2, 3))
    model = passing(tmp_path / "m.onnx", dtype, [2, 3])
    for kind in ("npy", "bin")[: 1 if dtype == "string" else 2]:
        copy = shell(
            f'cp "$2"/in_x*.{kind} "$3"/out_y.{kind}; cp "$2"/* {shlex.quote(str(tmp_path))}'
        )
        found = cmd.load(model, {"run": quoted(copy)})({"in/x": value})
        same(found, {"out:y": value})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    stem = next(tmp_path.glob("in_x*.npy")).stem
    fed: dict[str, Any] = {"name": "in/x", "dtype": dtype, "shape": [2, 3], "npy": f"{stem}.npy"}
    if dtype != "string":
        fed["bin"] = f"{stem}.bin"
        bits = dtypes.count_bits(dtype)
        assert (tmp_path / f"{stem}.bin").stat().st_size == (6 * bits + 7) // 8
    given = {
        "name": "out:y",
        "dtype": dtype,
        "shape": [2, 3],
        "npy": "out_y.npy",
        "bin": "out_y.bin",
    }
    assert manifest == {"schema": "subcut.run/1", "inputs": [fed], "outputs": [given]}
    array = np.load(tmp_path / f"{stem}.npy")
    assert array.dtype.kind in "fiubcU", "no pickles, nothing that numpy does not know"


@pytest.mark.turns(3)
@pytest.mark.parametrize("shape", [(1, 2, 3, 4), (1, 3, 3, 3), (2, 3)])
@pytest.mark.parametrize("form", ["NHWC", "float16", "big", "big:float64:NHWC"])
def test_device_has_tensors_in_another_form(
    form: str, shape: tuple[int, ...], tmp_path: Path, shell: Shell
) -> None:
    """What is declared of the inputs' files is undone where the same is declared of the outputs."""
    value = some("float32", shape)
    model = passing(tmp_path / "m.onnx", "float32", list(shape))
    copy = shell(f'cp "$2"/in_x*.bin "$3"/out_y.bin; cp "$2"/* {shlex.quote(str(tmp_path))}')
    same(
        cmd.load(model, {"run": quoted(copy), "inputs": form, "outputs": form})({"in/x": value}),
        {"out:y": value},
    )
    (fed,) = json.loads((tmp_path / "manifest.json").read_text())["inputs"]
    dtype = np.dtype(fed["dtype"]).newbyteorder(">" if "big" in form else "<")
    turned = value.transpose(0, 2, 3, 1) if "NHWC" in form and value.ndim == 4 else value
    assert np.array_equal(np.fromfile(tmp_path / fed["bin"], dtype).reshape(fed["shape"]), turned)


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("dtype", "dims", "shape"),
    [
        ("float32", [], ()),
        ("float32", [0, 3], (0, 3)),
        ("float32", ["n", 3], (5, 3)),
        ("float32", ["n", 3], (0, 3)),
        ("float32", [None, 0], (0, 0)),
        ("float32", None, (7,)),
        ("bfloat16", ["n"], (3,)),
        ("int4", ["n", 3], (1, 3)),
        ("int4", [3, 1], (3, 1)),
        ("uint2", ["n", 5], (3, 5)),
        ("bool", ["n"], (3,)),
    ],
)
def test_headerless_files_of_open_shapes(
    dtype: str, dims: list[Any] | None, shape: tuple[int, ...], tmp_path: Path, shell: Shell
) -> None:
    value = some(dtype, shape)
    copy = shell('cp "$2"/*.bin "$3"/out_y.bin')
    found = cmd.load(passing(tmp_path / "m.onnx", dtype, dims), {"run": quoted(copy)})(
        {"in/x": value}
    )
    same(found, {"out:y": value})


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("dtype", "dims", "size", "code"),
    [
        ("float32", [2, 3], 23, "tensor.wrong-size"),
        ("float32", [2, 3], 25, "tensor.wrong-size"),
        ("float32", [2, 3], 0, "tensor.wrong-size"),
        ("float32", [], 8, "tensor.wrong-size"),
        ("float32", ["n", 3], 16, "tensor.wrong-size"),
        ("float32", ["n", 0], 4, "tensor.wrong-size"),
        ("float32", None, 5, "tensor.wrong-size"),
        ("int4", [3], 1, "tensor.wrong-size"),
        ("int4", ["n", 5], 2, "tensor.wrong-size"),
        ("float32", ["n", "m"], 4, "tensor.no-raw-form"),
        ("string", [2], 4, "tensor.no-raw-form"),
    ],
)
def test_headerless_files_of_a_wrong_size_are_named(
    dtype: str, dims: list[Any] | None, size: int, code: str, tmp_path: Path, shell: Shell
) -> None:
    write = shell(f'head -c {size} /dev/zero > "$3"/out_y.bin')
    run = cmd.load(passing(tmp_path / "m.onnx", dtype, dims), {"run": quoted(write)})
    with pytest.raises(ModelError) as error:
        run({"in/x": some(dtype, (2,))})
    assert error.value.code == code
    assert error.value.what.startswith("out_y.bin") and dtype in error.value.what


def test_leftovers_of_a_command_are_not_outputs(tmp_path: Path, shell: Shell) -> None:
    """Nothing, something else, a damaged file, a folder; and a truth value of another byte than
    1."""
    model = passing(tmp_path / "m.onnx", "bool", [2])
    value = np.array([True, False])
    assert cmd.load(model, {"run": quoted(shell("true"))})({"in/x": value}) == {}
    other = shell(
        'touch "$3"/other.npy "$3"/y.bin "$3"/log.txt; mkdir "$3"/out_y.npy "$3"/folder.bin.d'
    )
    assert cmd.load(model, {"run": quoted(other)})({"in/x": value}) == {
        "other.npy": None,
        "y.bin": None,
    }
    broken = shell('echo rubbish > "$3"/out_y.npy')
    with raises(ModelError, "tensor.unreadable", "out_y.npy"):
        cmd.load(model, {"run": quoted(broken)})({"in/x": value})
    odd = shell(r'printf "\377\000" > "$3"/out_y.bin')
    found: Any = cmd.load(model, {"run": quoted(odd)})({"in/x": value})
    assert found["out:y"].view(np.uint8).tolist() == [1, 0]
    both = shell(r'cp "$2"/*.npy "$3"/out_y.npy; printf "\000\000" > "$3"/out_y.bin')
    same(cmd.load(model, {"run": quoted(both)})({"in/x": value}), {"out:y": value})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "string"])
def test_another_type_than_declared_is_given_as_it_is(
    dtype: str, tmp_path: Path, shell: Shell
) -> None:
    """A device that computes in half: the judge says so, through the whole chain."""
    np.save(tmp_path / "half.npy", np.array([1, 2], np.float16))
    copy = shell(f'cp {shlex.quote(str(tmp_path / "half.npy"))} "$3"/out_y.npy')
    model = passing(tmp_path / "m.onnx", dtype, [2])
    (tmp_path / "run").mkdir()
    with Worker("cmd", timeout=PATIENCE) as worker:
        worker.load("m", model, {"run": quoted(copy)})
        found = ask(worker, tmp_path / "run", {"in/x": some(dtype, (2,))}, {"out:y": "y"})
    same(found, {"out:y": np.array([1, 2], np.float16)})


def test_names_that_no_file_can_have(tmp_path: Path, shell: Shell) -> None:
    names = ["../../x", "a/b", "a:b", "A/B", "é", "con", "x" * 300, ".."]
    graph = helper.make_graph(
        [helper.make_node("Identity", [n], [f"{n}!"]) for n in names],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in names],
        [helper.make_tensor_value_info(f"{n}!", TensorProto.FLOAT, [1]) for n in names],
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    copy = tmp_path / "copy.py"
    copy.write_text(
        "import json, shutil, sys\n_, _, i, o = sys.argv\nm ="
        " json.load(open(f'{i}/manifest.json'))\nfor a, b in zip(m['inputs'], m['outputs']):"
        " shutil.copy(f\"{i}/{a['npy']}\", f\"{o}/{b['npy']}\")\n"
    )
    feeds: dict[str, Any] = {n: np.array([k], np.float32) for k, n in enumerate(names)}
    found = cmd.load(path, {"run": quoted(sys.executable, str(copy))})(feeds)
    same(found, {f"{n}!": v for n, v in feeds.items()})


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("g (float[2] x) => (seq(float[2]) s) {s = SequenceConstruct(x)}", "s"),
        (
            (
                "g (seq(float[2]) s) => (float[2] y) {i = Constant <value_int = 0> () y ="
                " SequenceAt(s, i)}"
            ),
            "s",
        ),
        ("g (optional(float[2]) o) => (float[2] y) {y = OptionalGetElement(o)}", "o"),
    ],
)
def test_sequences_are_refused_with_a_sentence(text: str, name: str, tmp_path: Path) -> None:
    with raises(Refused, "backend.unsupported-type", f"'{name}'") as e:
        cmd.load(text_models.save(tmp_path / "m.onnx", text, opset=18), {"run": "true"})
    assert has_line(e.value.hint, "plain tensors")


@pytest.mark.parametrize(
    "text",
    [
        "g (float[4] x) => (int8[4] q) { q = QuantizeLinear(x, s, z) }",
        "g (int8[4] q) => (float[4] y) { y = DequantizeLinear(q, s, z) }",
        "g (uint8[4] q) => (float[4] y) { y = DequantizeLinear(q, s, z) }",
    ],
)
def test_mnn_refuses_codes_that_it_would_misread(text: str, tmp_path: Path) -> None:
    zero = np.uint8(2) if "uint8" in text else np.int8(2)
    path = text_models.save(tmp_path / "m.onnx", text, opset=13, s=np.float32(0.5), z=zero)
    with raises(Refused, "backend.unsupported-type", "'q'"):
        mnn.load(path, {})


# ------------------------------------------------------------ cmd: two steps


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "a {inputs} folder"  # a path that looks like a place
    folder.mkdir()
    return passing(folder / "my model.onnx", "float32", [2])


FED: dict[str, Any] = {"in/x": np.array([1, 2], np.float32)}


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_converted_file_lives_as_long_as_the_model(
    kind: str, model: Path, tmp_path: Path, shell: Shell, temporary: Path
) -> None:
    make = (
        f'cp "$1" "$2"; echo x >> {tmp_path}/converted'
        if kind == "file"
        else f'mkdir "$2" && cp "$1" "$2"/m; echo x >> {tmp_path}/converted'
    )
    place = '"$1"' if kind == "file" else '"$1"/m'
    run = shell(f'cmp {place} {shlex.quote(str(model))} && cp "$2"/*.npy "$3"/out_y.npy')
    loaded = cmd.load(
        model,
        {
            "convert": quoted(shell(make)),
            "run": f"{quoted(run)} {{converted}} {{inputs}} {{outputs}}",
        },
    )
    for _ in range(2):
        same(loaded(FED), {"out:y": FED["in/x"]})
    assert (tmp_path / "converted").read_text() == "x\n", "once per load"
    assert len(list(temporary.iterdir())) == 1
    del loaded
    assert list(temporary.iterdir()) == []


def test_converted_file_is_removed_when_the_worker_is_killed(
    model: Path, shell: Shell, tmp_path: Path, temporary: Path
) -> None:
    """SIGKILL leaves a process no time to clean up; its parent does."""
    hang = shell(f'touch {tmp_path}/"$(basename "$2")"; sleep 600')
    options = {"convert": quoted(shell('cp "$1" "$2"')), "run": quoted(hang)}
    (tmp_path / "run").mkdir()
    with Worker("cmd") as worker:
        worker.load("m", model, options)
        assert len(list(temporary.iterdir())) == 1
        worker.timeout = 2
        with raises(WorkerDied, "worker.died", "2 s"):
            ask(worker, tmp_path / "run", FED, {})
    assert (tmp_path / "inputs").exists()
    assert list(temporary.iterdir()) == []


def test_places_that_were_not_named_are_the_last_words(
    model: Path, shell: Shell, tmp_path: Path
) -> None:
    note = shell(f'for w in "$@"; do echo "${{w##*/}}"; done >> {tmp_path}/words; touch "$3"')
    loaded = cmd.load(model, {"convert": f"{quoted(note)} -a", "run": f"{quoted(note)} -b"})
    assert loaded(FED) == {}
    assert (tmp_path / "words").read_text().splitlines() == [
        "-a",
        "my model.onnx",
        *"converted -b converted inputs outputs".split(),
    ]
    assert cmd.words_of("run", "a b") == ["a", "b", "{model}", "{inputs}", "{outputs}"]
    assert cmd.words_of("run", "a b", converted=True) == [
        "a",
        "b",
        "{converted}",
        "{inputs}",
        "{outputs}",
    ]
    assert cmd.words_of("convert", "a") == ["a", "{model}", "{converted}"]
    assert cmd.words_of("run", "a --in={inputs}") == ["a", "--in={inputs}"]


def test_command_line_is_words_and_no_shell(model: Path, shell: Shell, tmp_path: Path) -> None:
    """Spaces in paths, places inside of words, doubled braces, and all that a shell would
    understand."""
    note = shell(f'for w in "$@"; do echo "<$w>"; done > {tmp_path}/words')
    odd = (
        f"; touch {tmp_path}/hacked $(touch {tmp_path}/hacked) `id` $HOME | > * ~ && ${{other}}"
        " {}"
    )
    rest = "{{x}} 'two words' --m={model} x{inputs}{outputs}y '{model} {model}'"
    loaded = cmd.load(model, {"run": f"{quoted(note)} {odd} {rest}"})
    loaded(FED)
    words = [line[1:-1] for line in (tmp_path / "words").read_text().splitlines()]
    assert words[: len(odd.split())] == odd.split()
    assert not (tmp_path / "hacked").exists()
    braces, two, named_, joined, twice = words[len(odd.split()) :]
    assert braces == "{x}"
    assert two == "two words"
    assert named_ == f"--m={model}"
    assert joined[0] == "x" and joined.endswith("/outputsy") and joined.count("/inputs/") == 1
    assert twice == f"{model} {model}"


@pytest.mark.parametrize(
    ("options", "code", "about"),
    [
        ({}, "command.missing", "has no command"),
        ({"run": ""}, "command.missing", "has no command"),
        ({"run": "  "}, "command.missing", "has no command"),
        ({"run": "./run.sh 'x"}, "command.malformed", "closing quotation"),
        ({"run": "true", "convert": 'x "'}, "command.malformed", "closing quotation"),
        ({"run": "true", "convrt": "x"}, "backend.unknown-option", "convrt"),
        ({"run": "true {converted}"}, "command.no-convert", "{converted}"),
        (
            {"run": "true", "convert": "/nonexistent/tool"},
            "command.not-runnable",
            "/nonexistent/tool",
        ),
    ],
)
def test_commands_that_cannot_be(
    options: dict[str, str], code: str, about: str, model: Path
) -> None:
    with raises(
        BackendError if "/nonexistent/tool" in options.values() else UsageError, code, about
    ):
        cmd.load(model, options)


def test_commands_that_cannot_be_run(model: Path, shell: Shell, tmp_path: Path) -> None:
    for command, says, hint in (
        ("no-such-command-anywhere", "No such file", "chmod +x"),
        (shell("true", mode=0o644), "Permission denied", "chmod +x"),
        (str(tmp_path), "Permission denied", "chmod +x"),
        (shell("true", first=""), "Exec format error", "#!/bin/sh"),
    ):
        with raises(BackendError, "command.not-runnable", command, says) as e:
            cmd.load(model, {"run": quoted(command)})(FED)
        assert hint in e.value.hint


def test_commands_of_a_project_run_in_its_folder(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    below = tmp_path / "home/below"
    below.mkdir(parents=True)
    (home / "run.sh").write_text('#!/bin/sh\npwd > where; cp "$2"/*.npy "$3"/out_y.npy\n')
    (home / "run.sh").chmod(0o755)
    monkeypatch.chdir(model.parent)
    found = cmd.load(Path("my model.onnx"), {"run": "./run.sh", "folder": str(home)})(FED)
    same(found, {"out:y": FED["in/x"]})
    assert (home / "where").read_text() == f"{home}\n"


# ------------------------------------------------------------ cmd: exit codes


def ended(model: Path, step: str, command: str) -> SubcutError | None:
    """How a step that ends like this is told; None where it ran."""
    options = {"convert": command, "run": "true {model}"} if step == "convert" else {"run": command}
    try:
        cmd.load(model, options)(FED)
    except SubcutError as e:
        return e
    return None


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("end", "in_convert", "in_run", "process"),
    [
        ("exit 0", None, None, {}),
        ("exit 1", Refused, WorkerDied, {"exit_code": 1}),
        ("exit 3", Refused, WorkerDied, {"exit_code": 3}),
        ("exit 124", Refused, WorkerDied, {"exit_code": 124}),
        ("exit 125", Refused, Refused, {}),
        ("exit 126", BackendError, BackendError, {}),
        ("exit 127", BackendError, BackendError, {}),
        ("exit 128", Refused, WorkerDied, {"exit_code": 128}),
        ("exit 134", WorkerDied, WorkerDied, {"signal": "SIGABRT"}),
        ("exit 139", WorkerDied, WorkerDied, {"signal": "SIGSEGV"}),
        ("exit 168", WorkerDied, WorkerDied, {"signal": "signal 40"}),
        ("exit 200", Refused, WorkerDied, {"exit_code": 200}),
        ("kill -SEGV $$", WorkerDied, WorkerDied, {"signal": "SIGSEGV"}),
        ("kill -KILL $$", WorkerDied, WorkerDied, {"signal": "SIGKILL"}),
    ],
)
def test_exit_codes(
    end: str,
    in_convert: type[SubcutError] | None,
    in_run: type[SubcutError] | None,
    process: dict[str, Any],
    model: Path,
    shell: Shell,
) -> None:
    command = quoted(shell(end))
    for step, kind in (("convert", in_convert), ("run", in_run)):
        e = ended(model, step, command)
        assert type(e) is (kind or type(None)), (step, e)
        if e is not None:
            assert step in e.what
        if isinstance(e, WorkerDied):
            signature = "throws" if "exit_code" in process else "crash"
            assert (e.signature, e.process) == (signature, process)


@pytest.mark.parametrize(("lost", "tries"), [(0, 1), (1, 2), (2, 3), (9, 3)])
@pytest.mark.parametrize("step", ["convert", "run"])
def test_lost_connection_is_tried_again(
    step: str,
    lost: int,
    tries: int,
    model: Path,
    shell: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    count = tmp_path / "tries"
    command = quoted(shell(f"echo x >> {count}; [ $(wc -l < {count}) -gt {lost} ] || exit 255"))
    e = ended(model, step, command)
    assert count.read_text() == "x\n" * tries
    assert waited == list(cmd.RETRY_SECONDS[: tries - 1])
    if lost < 3:
        assert e is None
    else:
        assert type(e) is BackendError
        assert has_line(e.what, "lost, 3")


def test_conversion_that_made_nothing_is_refused(model: Path) -> None:
    with raises(Refused, "command.no-output", "{converted}"):
        cmd.load(model, {"convert": "true", "run": "true {converted}"})


def test_the_last_words_of_a_command_are_kept(model: Path, shell: Shell, tmp_path: Path) -> None:
    crash = shell("echo to the screen; echo and to the other >&2; kill -ABRT $$")
    (tmp_path / "run").mkdir()
    with Worker("cmd", timeout=PATIENCE) as worker:
        worker.load("m", model, {"run": quoted(crash)})
        with pytest.raises(WorkerDied) as e:
            ask(worker, tmp_path / "run", FED, {})
        said = ["to the screen", "and to the other"]
        assert e.value.process == {"signal": "SIGABRT", "exit_code": None, "stderr": said}
        assert worker.alive, "what died was not the worker"
    assert os.listdir(tmp_path / "temporary") == []  # noqa: PTH208
