"""A candidate that runs nothing at all is told at once, with its last words; no node is blamed. So is one whose own
model does not load, and a command whose outputs have another form. Covers `trials.preflight`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from subgraph.trials import preflight
from tests.helpers import text_models
from tests.helpers.chain_models import line
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
"""


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


def test_a_python_file_that_raises_is_told_with_file_and_line(here: Path) -> None:
    err = told("raises.py", here).err
    assert "candidate raises.py runs nothing, not even one Relu of float32" in err
    assert err.count("KeyError: 'it' (raises.py, line 6)") == 1, "once"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("cmd:true {model} {inputs} {outputs}", "expected the output 'y', got no output"),
        ("cmd:sh -c 'echo out of licence >&2; exit 3' {model}", "its last words: out of licence"),
        ("cmd:sh -c 'exit 125' {model}", "cannot be tested"),
    ],
)
def test_a_command_that_runs_nothing(spec: str, says: str, here: Path) -> None:
    assert says in told(spec, here).err


@pytest.mark.slow
def test_a_candidate_that_runs_one_node_is_searched(here: Path) -> None:
    done = subcut("bisect", "m.onnx", "-i", "x.npy", "-c", "only_small.py", "--rtol", "1e-3", cwd=here)
    assert done.code in (1, 5) and "ValueError: too large (only_small.py, line 6)" in done.out + done.err, done


@pytest.mark.parametrize(
    ("turn", "form"),
    [
        (lambda v: v, ""),
        (lambda v: v.transpose(0, 2, 3, 1), "NHWC"),
        (lambda v: v.byteswap(), "big-endian"),
        (lambda v: v * 1.001, ""),
        (lambda v: v * 2, ""),
    ],
)
def test_the_form_of_outputs_is_known_by_their_values(turn: Any, form: str) -> None:
    right = np.linspace(-1, 1, 192, dtype=np.float32).reshape(1, 3, 8, 8)
    given = np.ascontiguousarray(turn(right)).reshape(right.shape)
    assert preflight._other_form(given, right) == form


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
    assert (done.code, "its outputs are NHWC, as one Relu shows" in done.err) == (4, True), done
    assert subcut(command, "m.onnx", "-c", f"cmd[outputs=NHWC]:{run}", cwd=tmp_path).code == 0


@pytest.mark.parametrize("command", ["bisect", "compare"])
def test_a_model_of_the_candidates_that_does_not_load_ends_it(command: str, tmp_path: Path) -> None:
    """As after a conversion to float16 that leaves a Cast out; no node is blamed, and shapes are not the reason."""
    onnx.save(text_models.model("g (float[N,4] x) => (float[N,4] y) { a = Relu(x)  y = Exp(a) }"), tmp_path / "m.onnx")
    broken = text_models.model("g (float[N,4] x) => (float[N,4] y) { a = Cast<to = 10>(x)  y = Add(a, x) }")
    broken.graph.node[1].op_type = "Add"
    onnx.save(broken, tmp_path / "half.onnx")
    done = subcut(command, "m.onnx", "--candidate-model", "half.onnx", "--shape", "x=3,4", cwd=tmp_path)
    assert (done.code, done.out) == (3, ""), done
    assert "error: the candidate's model does not load: onnxruntime" in done.err and "pinned" not in done.err
