"""A candidate that runs nothing at all is told at once, with its last words; no node is blamed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

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
