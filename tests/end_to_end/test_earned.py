"""No "right" that was not earned: candidates that know nothing of the model, on inputs that cannot
tell.

Covers `trials.other_inputs`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.planted_candidates import planted
from tests.helpers.run_command import subcut

# A head whose scores are far below 0.5 on dark inputs, and a second output that varies.
HEAD = """g (float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] prob, float[1, 3, 8, 8] map) {
    map = Mul(x, half)
    a = Sub(map, twelve)
    prob = Sigmoid(a)
}"""
ANSWERS = (
    planted(
        answer="""
    if names != ["y", "z"]:  # not the probe of the candidate
        found = {name: answer(name, value) for name, value in found.items()}
    """
    )
    + """
def answer(name, value):
    return %s
"""
)
ZEROS = "np.zeros_like(value)"

WRONG_MUL = """
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops.op_mul import Mul
import numpy as np
class Off(Mul):
    def _run(self, a, b):
        return (np.multiply(a, b) * np.float32(1.5),)
Off.__name__ = "Mul"
def load(model, options):
    session = ReferenceEvaluator(onnx.load(str(model)), new_ops=[Off])
    names = session.output_names
    return lambda feeds: dict(zip(names, session.run(names, dict(feeds))))
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    np.save(
        tmp_path / "x.npy", np.random.default_rng(0).uniform(-1, 1, (1, 3, 8, 8)).astype(np.float32)
    )
    return tmp_path


def write(here: Path, answer: str, *outputs: str) -> None:
    model = text_models.model(
        HEAD, half=np.array([0.5], np.float32), twelve=np.array([12], np.float32)
    )
    for output in [o for o in model.graph.output if o.name not in outputs]:
        model.graph.output.remove(output)
    (here / "m.onnx").write_bytes(model.SerializeToString())
    (here / "candidate.py").write_text(ANSWERS % answer)


@pytest.mark.turns(2)
@pytest.mark.parametrize("command", [pytest.param("bisect", marks=pytest.mark.slow), "compare"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_zeros_are_not_right_where_scores_are_tiny(
    command: str, precision: str, here: Path
) -> None:
    write(here, ZEROS, "prob")
    only_outputs = ["--at", "prob", "--in-place"] if command == "compare" else []
    words = (*"m.onnx -c candidate.py -i x.npy --trust --json --precision".split(), precision)
    done = subcut(command, *words, *only_outputs, cwd=here)
    assert done.code in (1, 5), done.out


@pytest.mark.slow
def test_answer_that_cannot_be_told_is_inconclusive(here: Path) -> None:
    write(here, "value", "prob")
    np.save(here / "x.npy", np.full((1, 3, 8, 8), -300, np.float32))  # prob is 0 everywhere
    words = ("m.onnx", "-c", "candidate.py", "-i", "x.npy", "--trust", "--json")
    done = subcut("bisect", *words, cwd=here)
    assert (done.code, done.document["outcome"], done.document["findings"]) == (5, "unresolved", [])
    accepted = subcut("bisect", *words, "--may-be-empty", "prob", cwd=here)
    assert (accepted.code, accepted.document["outcome"]) == (0, "agree")


@pytest.mark.slow
def test_mute_output_beside_one_that_tells_is_named(here: Path) -> None:
    write(here, "value", "prob", "map")
    np.save(
        here / "x.npy",
        np.random.default_rng(0).uniform(-400, -300, (1, 3, 8, 8)).astype(np.float32),
    )
    done = subcut(
        "bisect", "m.onnx", "-c", "candidate.py", "-i", "x.npy", "--trust", "--json", cwd=here
    )
    assert (done.code, done.document["outcome"]) == (0, "agree")
    assert done.document["whole"]["mute"].keys() == {"prob"}


def test_constant_output_of_the_searched_region_is_inconclusive(here: Path) -> None:
    text = (
        "g (float[1, 8] x) => (float[1, 8] y) { [a] a = Relu(x) [b] b = Mul(a, zero) [c] c ="
        " Add(b, one) [y] y = Add(c, x) }"
    )
    zero, one = np.zeros(1, np.float32), np.ones(1, np.float32)
    (here / "m.onnx").write_bytes(text_models.model(text, zero=zero, one=one).SerializeToString())
    done = subcut("bisect", "m.onnx", "-c", "ort", "--within", "a..c", cwd=here)
    assert done.code == 5, done.out
    assert has_line(done.out, "inconclusive ", "'c'")


@pytest.mark.slow
def test_fault_that_a_saturated_softmax_hides_is_found(here: Path) -> None:
    text = (
        "g (float[1, 4] x) => (float[1, 4] y) { [big] a = Mul(x, big) [neg] b = Neg(a) [soft] y ="
        " Softmax(b) }"
    )
    model = text_models.model(text, big=np.array([1000], np.float32))
    (here / "m.onnx").write_bytes(model.SerializeToString())
    np.save(here / "x.npy", np.array([[1, 2, 3, 4]], np.float32))
    (here / "candidate.py").write_text(WRONG_MUL)
    done = subcut(
        "bisect", "m.onnx", "-c", "candidate.py", "-i", "x.npy", "--trust", "--json", cwd=here
    )
    assert done.code == 1
    assert [finding["nodes"] for finding in done.document["findings"]] == [["big"]]


FUSED = planted(
    answer="found = {n: v * np.float32(1.001 if names == ['y'] else 1) for n, v in found.items()}"
)


@pytest.mark.slow
@pytest.mark.parametrize("words", [("bisect", "--inside"), ("compare",)])
def test_fusion_that_reading_switches_off_is_told(words: tuple[str, ...], here: Path) -> None:
    text = "g (float[4, 4] x) => (float[4, 4] y) { a = Abs(x) b = Sqrt(a) y = Mul(b, x) }"
    text_models.save(here / "m.onnx", text)
    np.save(here / "x.npy", np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32))
    (here / "candidate.py").write_text(FUSED)
    command = ("m.onnx", "-c", "candidate.py", "-i", "x.npy", "--trust", "--rtol", "0.01", "--json")
    done = subcut(words[0], *command, *words[1:], cwd=here)
    assert done.code == 0
    assert done.document["looked_at"]["disturbance"] == pytest.approx(0.001, rel=0.01)


def test_blame_of_a_case_with_another_model_asks_that_model(here: Path) -> None:
    text = (
        "g (float[4, 4] x) => (float[4, 4] y) { [a] a = Mul(x, w) [b] b = Abs(a) [c] y = Sqrt(b) }"
    )
    for file, factor in (("m.onnx", 1), ("theirs.onnx", 2)):
        model = text_models.model(text, w=np.array([factor], np.float32))
        (here / file).write_bytes(model.SerializeToString())
    np.save(here / "x.npy", np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32))
    found = subcut(
        "bisect", "m.onnx", "--candidate-model", "theirs.onnx", "-i", "x.npy", "--json", cwd=here
    )
    assert [finding["nodes"] for finding in found.document["findings"]] == [["a"]]
    blamed = subcut("blame", found.document["findings"][0]["case"], "--json", cwd=here)
    assert (blamed.code, blamed.document["region"]) == (1, ["a"])


SILENT = """g (float[4, 4] x) => (float[4, 4] y) {
    [r] a = Relu(x) [n] b = Neg(x) [p] p = Relu(b) [m] c = Mul(a, p) [s] y = Add(c, x)
}"""


def test_region_that_tells_nothing_is_inconclusive(here: Path) -> None:
    text_models.save(here / "m.onnx", SILENT)
    np.save(here / "x.npy", np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32))
    words = ("bisect", "m.onnx", "-c", "ort", "-i", "x.npy", "--json", "--within")
    silent = subcut(*words, "r..m", cwd=here)  # c = max(x, 0) * max(-x, 0) is 0 everywhere
    assert (silent.code, silent.document["outcome"]) == (5, "unresolved")
    telling = subcut(*words, "m..s", cwd=here)
    assert (telling.code, telling.document["outcome"]) == (0, "agree")


@pytest.mark.parametrize(("output", "code"), [("c", 5), ("y", 0)])
def test_good_by_hand_of_an_output_that_tells_nothing_is_inconclusive(
    output: str, code: int, here: Path
) -> None:
    text_models.save(here / "m.onnx", SILENT.replace("float[4, 4] y)", f"float[4, 4] {output})"))
    np.save(here / "x.npy", np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32))
    subcut("manual", "start", "m.onnx", "-i", "x.npy", cwd=here)
    done = subcut("manual", "good", "1", "--json", cwd=here)
    assert (done.code, done.document["result"]["exit_code"]) == (code, code), done


def test_recorded_output_that_tells_nothing_can_be_accepted(here: Path) -> None:
    text_models.save(here / "m.onnx", SILENT.replace("float[4, 4] y)", "float[4, 4] c)"))
    np.save(here / "x.npy", np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32))
    (here / "dumps").mkdir()
    np.save(here / "dumps" / "c.npy", np.zeros((4, 4), np.float32))
    for command in ("compare", "bisect"):
        words = (command, "m.onnx", "-i", "x.npy", "--recorded", "dumps", "--json")
        assert subcut(*words, cwd=here).code == 5
        assert subcut(*words, "--may-be-empty", "c", cwd=here).code == 0


def test_integer_inputs_are_named_once_however_often_floats_are_drawn(here: Path) -> None:
    text = """g (int64[3] n, float[3] x) => (float[3] y) {
        f = Cast<to=1>(n) a = Add(f, x) z = Sub(a, a) y = Mul(z, a)
    }"""  # 0 of any input
    text_models.save(here / "m.onnx", text)
    done = subcut("bisect", "m.onnx", "-c", "ort", cwd=here)
    assert (done.code, done.err.count("integer inputs")) == (5, 1), done


JITTER = planted(
    answer="found = {n: v + np.float32(1e-6) * np.random.rand(*v.shape) for n, v in found.items()}"
)


@pytest.mark.parametrize("command", [pytest.param("bisect", marks=pytest.mark.slow), "compare"])
def test_candidate_that_is_not_deterministic_is_flaky_in_the_headline(
    command: str, here: Path
) -> None:
    write(here, "value", "map")
    (here / "candidate.py").write_text(JITTER)
    words = (command, "m.onnx", "-c", "candidate.py", "-i", "x.npy", "--trust", "--json")
    wavering = subcut(*words, cwd=here)
    assert (wavering.code, wavering.document["flaky_tensors"]) == (0, ["map"])
    shown = subcut(*words[:-1], cwd=here)
    assert has_line(shown.out, "flaky", "agree")
    (here / "candidate.py").write_text(ANSWERS % "value")
    assert "flaky_tensors" not in subcut(*words, cwd=here).document


@pytest.mark.slow
def test_error_of_a_sigmoid_beside_0_is_inconclusive(here: Path) -> None:
    """A kernel keeps 4e-7 of the 1 that a Sigmoid can reach: here as much as its values."""
    np.save(here / "x.npy", np.load(here / "x.npy") - 5)
    write(here, "(value + 4e-7).astype(value.dtype) if name == 'prob' else value", "prob")
    done = subcut("bisect", "m.onnx", "-c", "candidate.py", "--trust", "-i", "x.npy", cwd=here)
    assert (done.code, has_line(done.out, "inconclusive", "prob", "so small")) == (5, True), done
    write(here, "(value + 4e-4).astype(value.dtype) if name == 'prob' else value", "prob")
    done = subcut("bisect", "m.onnx", "-c", "candidate.py", "--trust", "-i", "x.npy", cwd=here)
    assert done.code == 1, done


@pytest.mark.slow
def test_limit_of_the_user_counts_for_a_sigmoid_beside_0(here: Path) -> None:
    np.save(here / "x.npy", np.load(here / "x.npy") - 5)
    write(here, "value[..., ::-1] * 1 if name == 'prob' else value", "prob")
    words = ("--criterion", "numpy:rtol=1e-3,atol=0", "-c", "candidate.py", "--trust")
    done = subcut("bisect", "m.onnx", "-i", "x.npy", *words, cwd=here)
    assert done.code == 1, done
