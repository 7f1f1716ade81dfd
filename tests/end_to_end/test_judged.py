"""What is called right was judged: outputs without measured noise, scalars, sizes that runtimes
read as open."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.planted_candidates import planted
from tests.helpers.run_command import subcut

# Two branches, as merged decoders have them: the branch that is not taken does not fit the sizes of
# the one that is, so onnxruntime refuses the model with pinned shapes, and its noise cannot be
# measured.
BRANCHES = """g (float[S, 4] x, float[P, 4] past, bool[1] use_past) => (float[1, 4] y, float[N, 4] state)
{
    y, state = If (use_past) <
        then_branch = with_past () => (float[1, 4] y1, float[T, 4] state1) {
            state1 = Concat <axis = 0> (past, x)
            y1 = ReduceSum <keepdims = 1> (state1, axes)
        },
        else_branch = without () => (float[1, 4] y2, float[S, 4] state2) {
            state2 = Identity (x)
            mixed = MatMul (past, x)
            y2 = ReduceSum <keepdims = 1> (mixed, axes)
        }
    >
}"""  # noqa: E501
FAULT = planted(
    answer="""
    if "y" in found and (WHEN):
        found["y"] = VALUE
    """
)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    made = text_models.model(BRANCHES, opset=18, axes=np.array([0]))
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    draw = np.random.default_rng(0).standard_normal
    x = draw((1, 4), np.float32)
    past = draw((5, 4), np.float32)
    np.savez(tmp_path / "in.npz", x=x, past=past, use_past=np.array([True]))
    for name, value in np.load(tmp_path / "in.npz").items():
        np.save(tmp_path / f"{name}.npy", value)
    return tmp_path


def faulty(folder: Path, value: str, when: str = "True") -> Path:
    path = folder / "cand.py"
    path.write_text(FAULT.replace("WHEN", when).replace("VALUE", value), encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "code", "says"),
    [
        ("found['y'] * 100 + 7", 1, ("wrong",)),
        ("found['y']", 0, ("right",)),
        ("found['y'] * numpy.float32(1.005)", 5, ("noise", "measured")),
    ],
)
@pytest.mark.parametrize("command", [["bisect"], ["compare"]], ids=["bisect", "compare"])
def test_output_without_noise_is_judged_too(
    here: Path, command: Sequence[str], value: str, code: int, says: tuple[str, ...]
) -> None:
    faulty(here, value.replace("numpy.", "__import__('numpy')."))
    done = subcut(*command, "m.onnx", "-i", "in.npz", "-c", "cand.py", "--trust", cwd=here)
    assert done.code == code, done.out + done.err
    assert has_line(done.out + done.err, *says)
    if code == 5 and command == ["compare"]:
        assert has_line(done.out, "inconclusive: y", "--criterion")


@pytest.mark.slow
def test_step_of_a_loop_is_judged_too(here: Path) -> None:
    """A merged decoder was right in 40 steps of which one was not judged."""
    (here / "loop.toml").write_text('steps = 6\n[states]\npast = "state"\n', encoding="utf-8")
    fed = ("-i", "x=x.npy", "-i", "past=past.npy", "-i", "use_past=use_past.npy")
    faulty(here, "found['y'] * 100 + 7", when="feeds['past'].shape[0] == 8")
    done = subcut(
        "bisect", "m.onnx", "--loop", "loop.toml", *fed, "-c", "cand.py", "--trust", cwd=here
    )
    assert done.code == 1 and "step 3 of 6" in done.out, done.out + done.err


def test_scalar_of_another_model_is_matched(tmp_path: Path) -> None:
    """It was an internal error: a scalar's order of axes was looked up."""
    w = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    for name, prefix in (("a", ""), ("b", "q_")):
        text = f"""g (float[4, 8] x) => (float[4, 8] y) {{
            {prefix}h = MatMul (x, w)
            {prefix}s = ReduceMax <keepdims = 0> ({prefix}h)
            {prefix}t = Abs ({prefix}s)
            y = Mul ({prefix}h, {prefix}t)
        }}"""
        text_models.save(tmp_path / f"{name}.onnx", text, w=w)
    np.save(tmp_path / "x.npy", np.ones((4, 8), np.float32))
    done = subcut(
        "bisect", "a.onnx", "--candidate-model", "b.onnx", "-i", "x.npy", "--inside", cwd=tmp_path
    )
    assert done.code == 0 and "right" in done.out, done.out + done.err


def test_input_of_another_shape_than_the_recording_is_refused(tmp_path: Path) -> None:
    """It was an internal error: the reference had no values, of which a misread input was then
    asked."""
    text = "g (float[1, 2, 4, 4] data) => (float[1, 2, 4, 4] y) { h = Relu (data) y = Neg (h) }"
    text_models.save(tmp_path / "m.onnx", text)
    (tmp_path / "dump").mkdir()
    data = np.random.default_rng(0).standard_normal((1, 2, 4, 4), np.float32)
    for name, value in (("data", data), ("h", data.clip(0)), ("y", -data.clip(0))):
        np.save(tmp_path / f"dump/{name}.npy", value)
    np.save(tmp_path / "wrong.npy", np.zeros((1, 3, 5, 5), np.float32))
    done = subcut("bisect", "m.onnx", "--recorded", "dump", "-i", "wrong.npy", cwd=tmp_path)
    assert (done.code, done.problem) == (2, "input.wrong-shape"), done.err


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["openvino", "opencv"])
def test_size_of_minus_one_is_open(tmp_path: Path, backend: str) -> None:
    """Paddle writes open sizes so; runtimes run such files, and we refused them in their name."""
    pytest.importorskip({"opencv": "cv2"}.get(backend, backend))
    text = "g (float[N, 3, 8, 8] x) => (float[N, 3, 8, 8] y) { y = Relu (x) }"
    made = text_models.model(text)
    for info in (made.graph.input[0], made.graph.output[0]):
        info.type.tensor_type.shape.dim[0].dim_value = -1
    onnx.save(made, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((1, 3, 8, 8), np.float32))
    done = subcut("bisect", "m.onnx", "-i", "x.npy", "-c", backend, cwd=tmp_path)
    assert done.code == 0, done.out + done.err
