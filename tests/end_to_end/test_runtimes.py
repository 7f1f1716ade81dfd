"""OpenVINO, OpenCV, tract and MNN as candidates: right values, refusals and crashes reported, known
faults found, and nothing sent to a server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fixtures import ROOT
from subgraph import plugins
from subgraph.errors import BackendError, ModelError, Refused, UsageError, WorkerDied
from subgraph.runtime.backends import _foreign, ort
from subgraph.runtime.worker import Worker
from tests.helpers import text_models
from tests.helpers.refusals import raises
from tests.helpers.run_command import PATIENCE, environment, run_program, subcut
from tests.helpers.runs import run_in_worker, save_records

CASES = ROOT / "fixtures" / "cases"
RUNTIMES = {"mnn": {}, "opencv": {}, "openvino": {"precision": "f32"}, "tract": {}}
MODULES = {"mnn": "MNN", "opencv": "cv2", "openvino": "openvino", "tract": "tract"}
PACKAGES = {"opencv": "opencv-python-headless"}
PIECES = 20

rng = np.random.default_rng(0)
X = rng.standard_normal((1, 3, 8, 8)).astype(np.float32)
ROWS = rng.standard_normal((4, 6)).astype(np.float32)
AT = np.array([3, 0, -1, 2])
CONV = """g (float[1,3,8,8] x) => (float[1,5] y) {
  c = Conv <pads = [1, 1, 1, 1]> (x, k)
  r = Relu (c)
  p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
  a = GlobalAveragePool (p)
  f = Flatten (a)
  y = Gemm (f, w, b)
}"""
KERNEL = {"k": rng.standard_normal((4, 3, 3, 3)).astype(np.float32) / 5}
LAST = {"w": rng.standard_normal((4, 5)).astype(np.float32), "b": np.arange(5, dtype=np.float32)}
MLP = """g (float[n,6] x) => (float[n,2] y) {
  a = MatMul (x, v)
  t = Tanh (a)
  y = MatMul (t, w)
}"""
LAYERS = {
    "v": rng.standard_normal((6, 7)).astype(np.float32),
    "w": rng.standard_normal((7, 2)).astype(np.float32),
}
# What onnx makes of Celu, and what OpenCV takes for a pattern of its own.
CELU = """g (float[2] x) => (float[2] y) {
  c = Constant <value_float: float = 2.0> ()
  d = CastLike (c, x)
  q = Div (x, d)
  e = Elu <alpha: float = 1.0> (q)
  y = Mul (d, e)
}"""
# The strides are left to the standard's default.
POOL = "g (float[1,1,4,4] x) => (float[1,1,3,3] y) { y = MaxPool <kernel_shape = [2, 2]> (x) }"
# What is run: the graph, its weights, and what it is fed, run after run.
INDICES = """g (float[4,6] x, int64[4] at) => (float[4,4] y, int64[4] z) {
  y = Gather <axis = 1> (x, at) z = Add (at, at)
}"""
TRUTHS = """g (float[4,6] x, bool[6] m) => (bool[4,6] b, float[4,6] y) {
  b = Less (x, z) y = Where (m, x, z)
}"""
RANK_0 = """g (float[4,6] x, float c) => (float s, float[4,6] y) {
  s = ReduceSum <keepdims = 0> (x) y = Mul (x, c)
}"""
UNREAD = """g (float[4,6] u, float[4,6] x) => (float[4,6] y, float[4,6] z) {
  y = Relu (x) z = Relu (x)
}"""
PASSES = """g (float[4,6] x, float[4,6] z) => (float[4,6] y, float[4,6] s) {
  y = Identity (x) s = Sub (x, z)
}"""
SHAPES = "g (float[4,6] x) => (int64[2] s, float[4,6] y) { s = Shape (x) y = Neg (x) }"
HALF = "g (float16[4,6] x) => (float16[4,6] y) { y = Add (x, x) }"
ZERO = np.array(0, np.float32)
MINUS_2 = np.array(-2, np.float32)
RIGHT: dict[str, tuple[str, dict[str, Any], list[dict[str, Any]]]] = {
    "convolutions": (CONV, KERNEL | LAST, [{"x": X}, {"x": -X}]),
    "any batch": (MLP, LAYERS, [{"x": ROWS}, {"x": ROWS[:1]}, {"x": np.tile(ROWS, (3, 1))}]),
    "int64 indices": (INDICES, {}, [{"x": ROWS, "at": AT}]),
    "truth values": (TRUTHS, {"z": ZERO}, [{"x": ROWS, "m": ROWS[0] > 0}]),
    "rank 0": (RANK_0, {}, [{"x": ROWS, "c": MINUS_2}]),
    "an input that nothing reads, an output twice": (UNREAD, {}, [{"u": ROWS, "x": -ROWS}]),
    "an input that passes through": (PASSES, {}, [{"x": ROWS, "z": 2 * ROWS}]),
    "what is derived from shapes": (SHAPES, {}, [{"x": ROWS}]),
    "float16": (HALF, {}, [{"x": ROWS.astype(np.float16)}]),
}


@pytest.fixture(scope="module")
def workers() -> Iterator[dict[str, Worker]]:
    """One process of each runtime; those that may crash get one of their own."""
    found = {name: Worker(name, timeout=PATIENCE) for name in RUNTIMES}
    yield found
    for worker in found.values():
        worker.close()


def load(worker: Worker, runtime: str, model: Path, **options: str) -> None:
    worker.load("m", model, RUNTIMES[runtime] | options)


def run(worker: Worker, folder: Path, feeds: dict[str, Any]) -> dict[str, Any]:
    """What comes out, all of it, by name."""
    return run_in_worker(
        worker, folder, feeds, worker.run("m", folder, {}, save_records(feeds, folder)).others
    )


def save(folder: Path, text: str, **more: Any) -> Path:
    return text_models.save(folder / "model.onnx", text, **more)


def close(found: dict[str, Any], right: dict[str, Any]) -> None:
    assert found.keys() == right.keys()
    for name, value in right.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


# ------------------------------------------------------------ right


@pytest.mark.turns(3)
@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("what", RIGHT)
def test_runtime_agrees_with_onnxruntime_twice_bit_for_bit(
    runtime: str, what: str, workers: dict[str, Worker], tmp_path: Path
) -> None:
    """And the same again, bit for bit, also of a model that is loaded anew."""
    text, weights, feeds = RIGHT[what]
    model = save(tmp_path, text, **weights)
    reference: Any = ort.load(model, {"opt": "disable"})
    load(workers[runtime], runtime, model)
    first = [run(workers[runtime], tmp_path, f) for f in feeds]
    for found, fed in zip(first, feeds, strict=True):
        close(found, reference(fed))
    load(workers[runtime], runtime, model)
    for found, fed in zip(first, feeds, strict=True):
        again = run(workers[runtime], tmp_path, fed)
        assert all(again[n].tobytes() == v.tobytes() for n, v in found.items())


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_names_with_any_characters_are_kept(
    runtime: str, workers: dict[str, Worker], tmp_path: Path
) -> None:
    """The text form of ONNX cannot say these."""
    plain = (
        "g (float[4,6] A, float[4,6] B) => (float[4,6] C, float[4,6] D) { D = Sub (A, B) C = Sub"
        " (B, A) }"
    )
    model = text_models.model(plain)
    names = {"A": "in/x:0", "B": "9 \"q' ,", "C": "out;y β 1", "D": "0"}
    for value in (*model.graph.input, *model.graph.output):
        value.name = names[value.name]
    for node in model.graph.node:
        node.input[:], node.output[:] = (
            [names[n] for n in node.input],
            [names[n] for n in node.output],
        )
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    load(workers[runtime], runtime, path)
    feeds = {names["B"]: 3 * ROWS, names["A"]: ROWS}
    close(run(workers[runtime], tmp_path, feeds), {names["C"]: 2 * ROWS, names["D"]: -2 * ROWS})


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_disconnected_pieces_in_one_model(
    runtime: str, workers: dict[str, Worker], tmp_path: Path
) -> None:
    assert plugins.load("backends", runtime).MULTI
    ins = ", ".join(f"float[4,6] x{i}, float[1,3,8,8] i{i}" for i in range(PIECES))
    outs = ", ".join(f"float[4,7] y{i}, float[1,4,6,6] o{i}" for i in range(PIECES))
    nodes = " ".join(
        f"a{i} = MatMul (x{i}, v{i}) y{i} = Tanh (a{i}) o{i} = Conv (i{i}, k{i})"
        for i in range(PIECES)
    )
    weights: dict[str, Any] = {f"v{i}": LAYERS["v"] * (i + 1) for i in range(PIECES)}
    weights |= {f"k{i}": KERNEL["k"] - i / 10 for i in range(PIECES)}
    feeds: dict[str, Any] = {f"x{i}": ROWS / (i + 1) for i in range(PIECES)} | {
        f"i{i}": X * (i + 1) for i in range(PIECES)
    }
    model = save(tmp_path, f"g ({ins}) => ({outs}) {{ {nodes} }}", **weights)
    right: Any = ort.load(model, {"opt": "disable"})
    load(workers[runtime], runtime, model)
    found = run(workers[runtime], tmp_path, feeds)
    expected = right(feeds)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4, err_msg=name)


def test_bfloat16_passes_through_openvino(workers: dict[str, Worker], tmp_path: Path) -> None:
    model = save(
        tmp_path,
        "g (bfloat16[2] x, bfloat16 c) => (bfloat16[2] y, bfloat16 z) { y = Add (x, x) z = Neg"
        " (c) }",
    )
    load(workers["openvino"], "openvino", model)
    feeds = {"x": np.array([1.5, -3], ml_dtypes.bfloat16), "c": np.array(2, ml_dtypes.bfloat16)}
    found = run(workers["openvino"], tmp_path, feeds)
    assert found["y"].dtype == ml_dtypes.bfloat16 and found["y"].tolist() == [3, -6]
    assert found["z"].shape == () and float(found["z"]) == -2


@pytest.mark.parametrize(
    ("runtime", "options"),
    [
        ("openvino", {"threads": "2"}),
        ("openvino", {"threads": "0", "EXECUTION_MODE_HINT": "ACCURACY", "NUM_STREAMS": "1"}),
        ("opencv", {"engine": "new", "threads": "2"}),
        ("opencv", {"engine": "classic", "winograd": "0", "threads": "0"}),
        ("mnn", {"precision": "high", "threads": "2"}),
        ("mnn", {"shape_mutable": "0"}),
    ],
)
def test_options_keep_the_values(
    runtime: str, options: dict[str, str], workers: dict[str, Worker], tmp_path: Path
) -> None:
    model = save(tmp_path, CONV, **KERNEL, **LAST)
    right: Any = ort.load(model, {"opt": "disable"})({"x": X})
    load(workers[runtime], runtime, model, **options)
    close(run(workers[runtime], tmp_path, {"x": X}), right)


# ------------------------------------------------------------ wrong, and told


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_unknown_operator_is_refused_by_name(
    runtime: str, workers: dict[str, Worker], tmp_path: Path
) -> None:
    model = save(tmp_path, "g (float[2] x) => (float[2] y) {y = mine.Blur(x)}", domains=("mine",))
    with raises(Refused, "backend.refused-model", runtime, "Blur"):
        load(workers[runtime], runtime, model)
    assert workers[runtime].alive


@pytest.mark.parametrize(
    ("runtime", "text", "code"),
    [
        ("mnn", "g (int64[1] x) => (int64[1] y) {y = Neg(x)}", "backend.unsupported-type"),
        (
            "mnn",
            "g (float[2] x) => (float[2] s, float[2] y) {s = Add(x, x) y = Relu(s)}",
            "backend.refused-model",
        ),
        ("opencv", "g (bfloat16[2] x) => (bfloat16[2] y) {y = Neg(x)}", "backend.unsupported-type"),
        ("tract", "g (string[2] x) => (string[2] y) {y = Identity(x)}", "backend.unsupported-type"),
        (
            "openvino",
            "g (seq(float[2]) x) => (float[2] y) {y = ConcatFromSequence<axis = 0>(x)}",
            "backend.unsupported-type",
        ),
    ],
)
def test_types_that_a_runtime_lacks_are_refused(
    runtime: str, text: str, code: str, workers: dict[str, Worker], tmp_path: Path
) -> None:
    model = save(tmp_path, text)
    with raises(Refused, code):
        load(workers[runtime], runtime, model)
        run(workers[runtime], tmp_path, {"x": np.array([1 << 40])})


@pytest.mark.parametrize(
    ("runtime", "text", "shape", "signal", "step"),
    [("mnn", POOL, (1, 1, 4, 4), "SIGFPE", "run"), ("opencv", CELU, (2,), "SIGSEGV", "load")],
)
def test_real_crash_has_its_signal_and_step(
    runtime: str, text: str, shape: tuple[int, ...], signal: str, step: str, tmp_path: Path
) -> None:
    """Real ones of these versions."""
    model = save(tmp_path, text, opset=19)
    with Worker(runtime, timeout=PATIENCE) as worker, raises(WorkerDied, "worker.died", step) as e:
        load(worker, runtime, model)
        run(worker, tmp_path, {"x": np.ones(shape, np.float32)})
    assert e.value.signature == "crash" and e.value.process["signal"] == signal


@pytest.mark.parametrize(
    ("runtime", "options", "code"),
    [
        ("openvino", {"precision": "f8"}, "backend.wrong-option"),
        ("openvino", {"device": "NPU9"}, "backend.device-unusable"),
        ("openvino", {"NO_SUCH_KEY": "1"}, "backend.device-unusable"),
        ("openvino", {"threads": "-1"}, "backend.wrong-option"),
        ("opencv", {"engine": "old"}, "backend.wrong-option"),
        ("opencv", {"threads": "1000000"}, "backend.wrong-option"),
        ("mnn", {"precision": "bf16"}, "backend.wrong-option"),
        ("tract", {"threads": "1"}, "backend.unknown-option"),
    ],
)
def test_wrong_options_are_errors_and_not_refusals(
    runtime: str, options: dict[str, str], code: str, workers: dict[str, Worker], tmp_path: Path
) -> None:
    """No refusal of the model: the search would take that for an answer."""
    model = save(tmp_path, MLP, **LAYERS)
    with raises((BackendError, UsageError), code):
        workers[runtime].load("m", model, options)


@pytest.mark.slow
@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("case", "spec", "at", "signature", "alone"),
    [
        ("cv_tanh_nan", "opencv", "/Tanh_output_0", "nan", "fail"),
        ("mnn_conv_add_lastdim", "mnn", "/Add_output_0", "mismatch", "agree"),
        ("ov_topk_ties", "openvino:precision=f32", "/TopK_output_1", "mismatch", "fail"),
        ("rnn_reverse_cv_tract", "tract", "/r/LSTM_output_0", "mismatch", "fail"),
        pytest.param(
            "rnn_reverse_cv_tract",
            "opencv",
            "/r/LSTM_output_1",
            "mismatch",
            "fail",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_known_fault_of_a_runtime_is_found(
    case: str, spec: str, at: str, signature: str, alone: str, tmp_path: Path
) -> None:
    """Real bugs: `alone` says whether the node is to blame or what stands around it."""
    words = [
        str(CASES / case / "model.onnx"),
        "-i",
        str(CASES / case / "input_x.npy"),
        "-c",
        spec,
        "--at",
        at,
    ]
    done = subcut("--json", "compare", *words, cwd=tmp_path)
    whole, (row,) = done.document["whole"], done.document["rows"]
    assert (done.code, whole["status"], whole["signature"]) == (1, "fail", signature)
    assert (row["in_place"]["status"], row["alone"]["status"]) == ("fail", alone)


# ------------------------------------------------------------ what it computes in


def test_precision_of_openvino_is_the_one_that_it_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what was asked for: a processor without float16 takes another type without a word."""
    backend = plugins.load("backends", "openvino")
    for says, options, claim, note in (
        ("bf16", {}, "bf16", "computes in bf16"),
        ("bf16", {"precision": "f16"}, "bf16", "computes in bf16"),
        ("bf16", {"precision": "bf16"}, "bf16", ""),
        ("f16", {"device": "GPU"}, "fp16", "computes in fp16"),
        ("f32", {}, "fp32", ""),
        ("f32", {"precision": "f16"}, "fp32", "computes in fp32"),
        ("dynamic", {"EXECUTION_MODE_HINT": "ACCURACY"}, "fp32", ""),
    ):
        monkeypatch.setattr(backend, "_computes_in", lambda *_, says=says: says)
        assert backend.precision(options) == claim
        said = backend.caveat(options)
        assert note in said and bool(note) == bool(said), options
        finer = backend.exact(options)
        assert (finer is None) == (claim == "fp32") and (
            finer is None or finer["precision"] == "f32"
        )


def needs_bfloat16(worker: Worker) -> None:
    if (precision := worker.about({}).precision) != "bf16":
        pytest.skip(
            f"OpenVINO computes in {precision} here: the processor has no bfloat16 (avx512_bf16,"
            " amx_bf16)"
        )


def test_openvinos_default_is_said_and_true(workers: dict[str, Worker], tmp_path: Path) -> None:
    """In bfloat16 on processors that have it, else in float32."""
    worker = workers["openvino"]
    about = worker.about({"precision": "f32"})
    assert about.precision == "fp32" and not about.caveat
    a, w = (rng.standard_normal((64, 64)).astype(np.float32) for _ in "aw")
    model = save(tmp_path, "g (float[64,64] x) => (float[64,64] y) { y = MatMul (x, w) }", w=w)
    errors = []
    for options in ({}, {"precision": "f32"}):
        worker.load("m", model, options)
        errors.append(np.abs(run(worker, tmp_path, {"x": a})["y"] - a @ w).max())
    assert errors[1] < 1e-4
    assert errors[0] > 1e-2 if worker.about({}).precision == "bf16" else errors[0] < 1e-4


def test_openvino_in_float32_quantizes_no_activations(
    workers: dict[str, Worker], tmp_path: Path
) -> None:
    """With weights of 8 bits it does by default: 5.7e-3 of the scale, with precision=f32 too."""
    rng = np.random.default_rng(0)
    text = (
        "g (float[32,256] x) => (float[32,256] y) { w = DequantizeLinear <axis=1> (q, s) y ="
        " MatMul(x, w) }"
    )
    q = rng.integers(-127, 128, (256, 256)).astype(np.int8)
    x = rng.standard_normal((32, 256)).astype(np.float32)
    load(
        workers["openvino"], "openvino", save(tmp_path, text, q=q, s=np.full(256, 0.01, np.float32))
    )
    (y,) = run(workers["openvino"], tmp_path, {"x": x}).values()
    expected = x.astype(np.float64) @ (q * 0.01)
    assert np.abs(y - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.slow
def test_default_below_float32_is_said_before_anything_runs(
    workers: dict[str, Worker], tmp_path: Path
) -> None:
    """Also with -q, and by the doctor."""
    needs_bfloat16(workers["openvino"])
    model = save(tmp_path, MLP, **LAYERS)
    words = ["-q", "compare", str(model), "-c"]
    told = (
        "openvino computes in bf16 by its own default on this machine; openvino:precision=f32 for"
        " float32"
    )
    assert subcut(*words, "openvino", cwd=tmp_path).err == f"warning: {told}\n"
    assert told in subcut("doctor", cwd=tmp_path).out


# ------------------------------------------------------------ not installed


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_missing_runtime_names_its_extra(
    runtime: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    backend = plugins.load("backends", runtime)
    for name in [n for n in sys.modules if n.split(".")[0] in (MODULES[runtime], "_tools")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, MODULES[runtime], None)
    model = save(tmp_path, MLP, **LAYERS)
    for act in (backend.version, lambda: backend.load(model, {})):
        with raises(BackendError, "package.not-installed", runtime) as e:
            act()
        assert e.value.hint.startswith(f"pip install '{PACKAGES.get(runtime, runtime)}>")


# ------------------------------------------------------------ nothing is sent

# Each runtime converts, builds and runs. Python tells of all that would reach out: names looked up,
# connections, processes. Last, proof that it would have told.
QUIET = """
import json, socket, sys
from pathlib import Path
import numpy as np
seen = []
told = ("socket.", "subprocess.", "os.system", "os.posix_spawn", "os.fork", "os.exec", "urllib.")
sys.addaudithook(lambda event, args: event.startswith(told) and seen.append(event))
from subgraph import plugins
name, model, x = sys.argv[1], Path(sys.argv[2]), np.load(sys.argv[3])
backend = plugins.load("backends", name)
backend.warm(), backend.version()
getattr(backend, "caveat", lambda options: "")({})
backend.load(model, {})({"x": x})
reporters = ("openvino_telemetry", "openvino.tools.ovc", "MNN.tools")
bad = [name for name, module in sys.modules.items() if module and name.startswith(reporters)]
quiet = list(seen)
socket.getaddrinfo("localhost", 1)
sys.stderr.write(json.dumps([quiet, bad, "socket.getaddrinfo" in seen]))
"""


@pytest.mark.turns(2)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_nothing_is_sent_anywhere(runtime: str, tmp_path: Path) -> None:
    """OpenVINO's package reports each import to a server, MNN's converter each conversion, by way
    of Python."""
    np.save(tmp_path / "x.npy", X)
    words = [runtime, str(save(tmp_path, CONV, **KERNEL, **LAST)), str(tmp_path / "x.npy")]
    home = tmp_path / "home"
    home.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", QUIET, *words],
        capture_output=True,
        text=True,
        check=True,
        env=environment({"HOME": str(home)}),
    )
    assert json.loads(done.stderr.splitlines()[-1]) == [[], [], True]
    assert list(home.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_no_library_opens_a_connection_either(runtime: str, tmp_path: Path) -> None:
    """As the kernel sees it, of the command and of all that it starts."""
    model = save(tmp_path, CONV, **KERNEL, **LAST)
    log = tmp_path / "calls"
    words = [
        *"-f -e trace=connect,sendto,sendmmsg -o".split(),
        str(log),
        str(Path(sys.executable).with_name("subcut")),
    ]
    done = run_program(
        ["strace", *words, "compare", str(model), "-c", runtime],
        cwd=tmp_path,
        env=environment({"HOME": str(tmp_path)}),
    )
    if "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    calls = [
        line
        for line in log.read_text().splitlines()
        if "(" in line and "+++" not in line and "---" not in line
    ]
    assert [line for line in calls if "AF_INET" in line or "send" in line] == []


# ------------------------------------------------------------ types


@pytest.mark.parametrize(
    ("came", "declared", "dims", "becomes"),
    [
        (np.array([1, -2], np.int32), "int64", (2,), np.array([1, -2])),
        (np.array([0, 1], np.int32), "bool", (2,), np.array([False, True])),
        (np.array([0, 2], np.int32), "bool", (2,), np.array([0, 2], np.int32)),
        (np.array([3, 300], np.int32), "uint8", (2,), np.array([3, 300], np.int32)),
        (np.array([3, 250], np.int32), "uint8", (2,), np.array([3, 250], np.uint8)),
        (np.array([1.5, 1e6], np.float32), "float16", (2,), np.array([1.5, np.inf], np.float16)),
        (np.array([1.5], np.float32), "float64", (1,), np.array([1.5])),
        (np.array([1, 2], np.float32), "int64", (2,), np.array([1, 2], np.float32)),
        (np.array([1, 2]), "float32", (2,), np.array([1, 2])),
        (np.array([2], np.float32), "float32", (), np.array(2, np.float32)),
        (np.array([2], np.float32), "float32", (1,), np.array([2], np.float32)),
        (np.array([2], np.float32), "float32", None, np.array([2], np.float32)),
        (np.zeros((0, 2), np.int32), "int64", (0, 2), np.zeros((0, 2), np.int64)),
    ],
)
def test_types_come_back_where_that_changes_no_value(
    came: Any, declared: str, dims: tuple[int, ...] | None, becomes: Any
) -> None:
    found = _foreign.as_declared(came, _foreign.Port("y", declared, dims))
    assert (found.dtype, found.shape, found.tolist()) == (
        becomes.dtype,
        becomes.shape,
        becomes.tolist(),
    )
    assert not np.shares_memory(found, came)


@pytest.mark.parametrize(
    ("dims", "shape"), [((0, 3), (0, 3)), ((2, 3), (0,)), ((None, 0), (0,)), (None, (0,))]
)
def test_empty_output_has_its_declared_shape(
    dims: tuple[int | None, ...] | None, shape: tuple[int, ...]
) -> None:
    found = _foreign.empty_array(_foreign.Port("y", "int64", dims))
    assert (found.dtype.name, found.shape) == ("int64", shape)


@pytest.mark.parametrize(
    ("feeds", "code"),
    [
        ({}, "backend.input-missing"),
        ({"x": np.zeros((2, 3))}, "input.wrong-type"),
        ({"x": np.zeros((2, 4), np.float32)}, "input.wrong-shape"),
        ({"x": np.zeros(3, np.float32)}, "input.wrong-shape"),
    ],
)
def test_wrong_feed_is_an_error(feeds: dict[str, Any], code: str) -> None:
    with raises(ModelError, code):
        _foreign.input_arrays(feeds, [_foreign.Port("x", "float32", (None, 3))])
