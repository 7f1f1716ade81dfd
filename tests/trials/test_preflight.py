"""A candidate that runs nothing at all is told at once, with its last words; no node is blamed. So
is a command whose outputs have another form. Covers `trials.preflight`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers import text_models
from tests.helpers.chain_models import line
from tests.helpers.facts import has_line
from tests.helpers.run_command import Done, subcut

RAISES = """
def load(model, options):
    return run

def run(feeds):
    return feeds["it"]
"""
ONLY_SMALL = """
import onnx, onnxruntime

def load(model, options):
    if len(onnx.load(model).graph.node) > 1:
        raise ValueError("too large")
    session = onnxruntime.InferenceSession(str(model))
    return lambda feeds: {"y": session.run(None, feeds)[0], session.get_outputs()[0].name: session.run(None, feeds)[0]}
"""  # noqa: E501


@pytest.fixture
def here(tmp_path: Path) -> Path:
    line(tmp_path / "m.onnx", ["a", "b"])
    np.save(tmp_path / "x.npy", np.array([[1.5, 0.25, 3.0]], np.float32))
    (tmp_path / "raises.py").write_text(RAISES)
    (tmp_path / "only_small.py").write_text(ONLY_SMALL)
    return tmp_path


def told(spec: str, here: Path) -> Done:
    done = subcut("bisect", "m.onnx", "-i", "x.npy", "-c", spec, "--rtol", "1e-3", cwd=here)
    assert (done.code, done.out) == (4, ""), done
    assert done.err.count("error:") == 1
    return done


def test_python_file_that_raises_is_told_with_file_and_line(here: Path) -> None:
    err = told("raises.py", here).err
    assert has_line(err, "raises.py", "Relu", "float32")
    assert err.count("KeyError: 'it'") == 1, "once"
    assert has_line(err, "KeyError: 'it'", "raises.py, line 6")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("cmd:true {model} {inputs} {outputs}", ("'y'", "no output")),
        ("cmd:sh -c 'echo out of license >&2; exit 3' {model}", ("last words", "out of license")),
        ("cmd:sh -c 'exit 125' {model}", ("cannot be tested",)),
    ],
)
def test_command_that_runs_nothing(spec: str, says: tuple[str, ...], here: Path) -> None:
    assert has_line(told(spec, here).err, *says)


NO_FLOAT64 = """
import onnx, onnxruntime

def load(model, options):
    if any(x.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE for x in onnx.load(model).graph.input):
        raise ValueError("no float64")
    session = onnxruntime.InferenceSession(str(model))
    names = [y.name for y in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, dict(feeds))))
"""  # noqa: E501


@pytest.mark.slow
def test_candidate_without_the_type_of_the_model_refuses_its_nodes(tmp_path: Path) -> None:
    """It "runs nothing, not even one Relu of float64", as if it were not installed."""
    text_models.save(tmp_path / "m.onnx", "g (double[4] x) => (double[4] y) { y = Neg(x) }")
    (tmp_path / "narrow.py").write_text(NO_FLOAT64)
    done = subcut("bisect", "m.onnx", "-c", "narrow.py", "--json", cwd=tmp_path)
    assert done.code in (1, 3), done
    assert has_line(done.out, "no float64")


@pytest.mark.slow
def test_candidate_that_runs_one_node_is_searched(here: Path) -> None:
    done = subcut(
        "bisect", "m.onnx", "-i", "x.npy", "-c", "only_small.py", "--rtol", "1e-3", cwd=here
    )
    assert done.code in (1, 5) and has_line(
        done.out + done.err, "ValueError: too large", "only_small.py, line 6"
    ), done


WRAPPER = """
import numpy as np
import onnxruntime
def load(model, options):
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    kept = {}
    def plain(feeds):
        return dict(zip(names, session.run(names, dict(feeds))))
    def run(feeds):
        values = plain(feeds)
        return %s
    return run
"""
NET = (
    "g (float[1,3,8,8] x) => (float[1,3,8,8] y, float[1,3,8,8] z) { [a] y = Mul(x, w) [b] z ="
    " Abs(y) }"
)


@pytest.fixture
def net(tmp_path: Path) -> Path:
    weight = np.array([[[0.5]], [[2.0]], [[-1.0]]], np.float32)
    onnx.save(text_models.model(NET, w=weight), tmp_path / "m.onnx")
    return tmp_path


@pytest.mark.turns(8)
@pytest.mark.parametrize("command", ["bisect", "compare"])
@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ("{n: v.tolist() for n, v in values.items()}", ("'y'", "list")),
        ("{n: 'abc' for n in values}", ("'y'", "text")),
        ("{n: v * np.float32(np.nan) for n, v in values.items()}", ("every value", "NaN")),
        ("{n: np.zeros_like(v) for n, v in values.items()}", ("every value is 0",)),
        ("{n: v.reshape(-1) for n, v in values.items()}", ("'y'", "shape 192")),
        ("{n: v[0] for n, v in values.items()}", ("'y'", "3×8×8")),
        ("{n: v.astype('f2') for n, v in values.items()}", ("'y'", "float16")),
        ("{n: v.tolist() if n == 'z' else v for n, v in values.items()}", ("'z'", "list")),
        ("{n: v.reshape(-1) if n == 'z' else v for n, v in values.items()}", ("'z'", "shape 192")),
        ("{n: v for n, v in values.items() if n == 'y'}", ("'z' is missing",)),
        ("values | {'z': values['z'] * np.float32(np.nan)}", ("every value", "'z'", "NaN")),
        ("dict(zip(values, reversed(values.values())))", ("names", "exchanged")),
        ("{n: v.byteswap() for n, v in values.items()}", ("big-endian",)),
        (
            "{n: np.moveaxis(v, 1, -1).reshape(v.shape) for n, v in values.items()}",
            ("outputs", "NHWC"),
        ),
        ("{n: v * np.float32(3) for n, v in values.items()}", ("candidate = 3 · reference",)),
        ("{n: 1 / (1 + np.exp(-v)) for n, v in values.items()}", ("sigmoid was applied",)),
        ("plain({n: v * np.float32(255) for n, v in feeds.items()})", ("not divided by 255",)),
        ("plain({n: np.zeros_like(v) for n, v in feeds.items()})", ("not passed on", "zeros")),
        ("plain({n: v[:, ::-1] for n, v in feeds.items()})", ("RGB for BGR",)),
        ("plain({n: np.rint(v).clip(0, 255) for n, v in feeds.items()})", ("uint8",)),
        ("plain({n: np.add(v, 1, out=v) for n, v in feeds.items()})", ("'x' in place",)),
        ("[np.add(v, 1, out=v) for v in feeds.values()] and values", ("'x' in place",)),
        ("{n: v + np.float32(np.random.rand()) for n, v in values.items()}", ("is flaky",)),
        ("kept.setdefault('first', values)", ("first outputs",)),
    ],
)
def test_mistake_of_the_wrapper_is_told_in_one_sentence(
    command: str, returned: str, told: tuple[str, ...], net: Path
) -> None:
    (net / "wrapper.py").write_text(WRAPPER % returned)
    done = subcut(command, "m.onnx", "-c", "wrapper.py", "--trust", cwd=net)
    assert (done.code, done.out, has_line(done.err, *told)) == (4, "", True), done


@pytest.mark.slow
def test_right_values_in_float64_are_converted_and_right(net: Path) -> None:
    (net / "wrapper.py").write_text(WRAPPER % "{n: v.astype('f8') for n, v in values.items()}")
    done = subcut("bisect", "m.onnx", "-c", "wrapper.py", "--trust", "--json", cwd=net)
    assert (done.code, done.document["outcome"]) == (0, "agree")
    assert any("float64" in note for note in done.document["notes"])


WITH_INTEGERS = (
    "g (float[1,3,8,8] x) => (float[1,3,8,8] y, int64[1,1,8,8] z)"
    " { [a] y = Abs(x) [b] z = ArgMax<axis = 1>(y) }"
)


@pytest.mark.turns(2)
@pytest.mark.parametrize("command", ["bisect", "compare"])
def test_integers_that_the_wrapper_returns_as_float64(command: str, tmp_path: Path) -> None:
    text_models.save(tmp_path / "m.onnx", WITH_INTEGERS)
    (tmp_path / "wrapper.py").write_text(WRAPPER % "{n: v.astype('f8') for n, v in values.items()}")
    done = subcut(command, "m.onnx", "-c", "wrapper.py", "--trust", cwd=tmp_path)
    assert (done.code, has_line(done.err, "'z'", "float64", "int64")) == (4, True), done


ROUNDS = "plain({n: v.astype('f2').astype('f4') for n, v in feeds.items()})"


@pytest.mark.turns(2)
@pytest.mark.parametrize("command", ["bisect", "compare"])
def test_wrapper_that_rounds_its_inputs_to_float16(command: str, net: Path) -> None:
    weight = np.array([[[0.3]], [[1.7]], [[-1.1]]], np.float32)
    onnx.save(text_models.model(NET, w=weight), net / "m.onnx")
    (net / "wrapper.py").write_text(WRAPPER % ROUNDS)
    done = subcut(command, "m.onnx", "-c", "wrapper.py", "--trust", cwd=net)
    assert (done.code, has_line(done.err, "your input", "float16")) == (4, True), done


@pytest.mark.slow
def test_wrapper_whose_outputs_are_of_float16(net: Path) -> None:
    """The weights are powers of two: it can round its inputs as well as compute in float16."""
    (net / "wrapper.py").write_text(WRAPPER % ROUNDS)
    done = subcut("bisect", "m.onnx", "-c", "wrapper.py", "--trust", "--json", cwd=net)
    document = done.document
    assert (done.code, document["outcome"], document["findings"]) == (1, "disagree", [])
    assert document["precise"]["computes_in"] == "fp16"
    declared = subcut(
        "bisect", "m.onnx", "-c", "wrapper.py", "--trust", "--precision", "fp16", cwd=net
    )
    assert declared.code == 0


def test_wrong_operator_of_the_probe_is_no_mistake_of_the_wrapper(net: Path) -> None:
    onnx.save(
        text_models.model("g (float[1,3,8,8] x) => (float[1,3,8,8] y) { [a] y = Relu(x) }"),
        net / "m.onnx",
    )
    wrong = (
        "{n: v * np.float32(n != 'y') + np.float32(7 * (n == 'y')) * v for n, v in values.items()}"
    )
    (net / "wrapper.py").write_text(WRAPPER % wrong)
    done = subcut("bisect", "m.onnx", "-c", "wrapper.py", "--trust", "--json", cwd=net)
    assert (done.code, [finding["nodes"] for finding in done.document["findings"]]) == (1, [["a"]])


WITHOUT_ADD = """
import numpy as np, onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops.op_add import Add
class Off(Add):
    def _run(self, a, b):
        return (np.full_like(a, np.nan),)
Off.__name__ = "Add"
def load(model, options):
    session = ReferenceEvaluator(onnx.load(str(model)), new_ops=[Off])
    return lambda feeds: dict(zip(session.output_names, session.run(None, dict(feeds))))
"""


@pytest.mark.slow
def test_operator_that_returns_nan_is_no_mistake_of_the_wrapper(tmp_path: Path) -> None:
    text = "g (float[1,3,8,8] x) => (float[1,3,8,8] y) { [a] b = Abs(x) [s] y = Add(b, x) }"
    text_models.save(tmp_path / "m.onnx", text)
    (tmp_path / "runtime.py").write_text(WITHOUT_ADD)
    done = subcut("bisect", "m.onnx", "-c", "runtime.py", "--trust", "--json", cwd=tmp_path)
    assert (done.code, [finding["nodes"] for finding in done.document["findings"]]) == (1, [["s"]])


WRITES_NHWC = """
import sys, json
import numpy as np, onnxruntime
from pathlib import Path
model, fed, out = map(Path, sys.argv[1:])
manifest = json.loads((fed / "manifest.json").read_text())
session = onnxruntime.InferenceSession(str(model))
values = session.run(None, {i["name"]: np.load(fed / i["npy"]) for i in manifest["inputs"]})
for o, value in zip(manifest["outputs"], values):
    np.ascontiguousarray(value.transpose(0, 2, 3, 1)).tofile(out / o["bin"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", [pytest.param("bisect", marks=pytest.mark.rare), "compare"])
def test_outputs_in_another_layout_are_told_in_one_line(command: str, tmp_path: Path) -> None:
    text = "g (float[1,2,3,4] x) => (float[1,2,3,4] y) { a = Relu(x)  y = Exp(a) }"
    onnx.save(text_models.model(text), tmp_path / "m.onnx")
    (tmp_path / "nhwc.py").write_text(WRITES_NHWC)
    run = f"{shlex.quote(sys.executable)} nhwc.py {{model}} {{inputs}} {{outputs}}"
    done = subcut(command, "m.onnx", "-c", f"cmd:{run}", cwd=tmp_path)
    assert (done.code, "NHWC" in done.err) == (4, True), done
    assert subcut(command, "m.onnx", "-c", f"cmd[outputs=NHWC]:{run}", cwd=tmp_path).code == 0
