"""Operators embedded in a network: the model is valid, its values flow through them, their errors
reach its end.

Real bugs are found there.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from benchmarks.embedded import SPECS, Word, classified, run
from fixtures.embedded import (
    FORMS,
    SPREAD,
    STREAM,
    Embedded,
    Form,
    Subject,
    Unfit,
    embed,
    host,
    unfit,
)
from subgraph.questions.sweep import operator_tests
from subgraph.questions.sweep.operator_tests import NETWORK, NODE
from subgraph.storage.tensors import Record
from tests.helpers import text_models
from tests.helpers.run_command import SUBCUT, environment, run_program

MODULES = {"mnn": "MNN", "opencv": "cv2", "openvino": "openvino", "tract": "tract"}
NEAR, EXACT, FED, EXACT_FED = FORMS

rng = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return rng.standard_normal(shape, np.float32)


LSTM = """g (float[5,2,4] x, float[1,12,4] w, float[1,12,3] r) => (float[1,2,3] h, float[1,2,3] c) {
  "", h, c = LSTM <hidden_size = 3, direction = "reverse"> (x, w, r)
}"""
RESIZE = """g (float[1,1,4,4] x, float[4] s) => (float[1,1,2,2] y) {
  y = Resize <mode = "cubic", antialias = 1> (x, "", s)
}"""
FED_LSTM = {"x": normal(5, 2, 4), "w": normal(1, 12, 4), "r": normal(1, 12, 3)}
FED_RESIZE = {
    "x": np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4),
    "s": np.array([1, 1, 0.6, 0.6], np.float32),
}
WHERE = """g (bool[4,6] m, float[4,6] x, float[6] z) => (float[4,6] y, bool[4,6] b) {
    y = Where (m, x, z) b = Less (x, z)
}"""
FED_WHERE = {"m": normal(4, 6) > 0, "x": normal(4, 6), "z": normal(6)}
HALF = "g (float16[4,6] x) => (float16[4,6] y) { y = Neg (x) }"
DOUBLE = "g (double[4,6] x, double[] z) => (double[4,6] y) { y = Mul (x, z) }"
FED_DOUBLE = {"x": normal(4, 6).astype(np.float64), "z": np.array(1 / 3)}
LARGE = "g (float[2,30,40] x) => (float[2,30,40] y) { y = Neg (x) }"
INFINITE = "g (float[3] x) => (bool[3] y) { y = IsInf (x) }"
# A graph, its inputs, and the inputs that come from the stream where weights do not.
TESTS: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "data and weights": (LSTM, FED_LSTM, {"x"}),
    "settings": (RESIZE, FED_RESIZE, {"x"}),
    "a condition": (WHERE, FED_WHERE, {"x", "z"}),
    "half the width": (HALF, {"x": normal(4, 6).astype(np.float16)}, {"x"}),
    "double the width": (DOUBLE, FED_DOUBLE, {"x", "z"}),
    "larger than the stream": (LARGE, {"x": normal(2, 30, 40)}, {"x"}),
    "infinities": (INFINITE, {"x": np.array([1, np.inf, -np.inf], np.float32)}, {"x"}),
}
REAL = [("opencv", LSTM, FED_LSTM), ("tract", LSTM, FED_LSTM), ("mnn", LSTM, FED_LSTM)]
REAL += [("openvino", RESIZE, FED_RESIZE), ("opencv", RESIZE, FED_RESIZE)]


def subject_of(text: str, inputs: dict[str, Any], name: str = "test") -> Subject:
    """A test as onnx makes them; the expected outputs are plain onnxruntime's."""
    model = text_models.model(text, opset=20)
    outputs = run(model, inputs)
    return Subject(
        name, model, inputs, {o.name: v for o, v in zip(model.graph.output, outputs, strict=True)}
    )


def stream_values(embedded: Embedded, x: Any) -> dict[str, Any]:
    """The operator's inputs that come from the stream, and under "" the network's output, for
    another image."""
    copy = onnx.ModelProto.FromString(embedded.model.SerializeToString())
    names = list(embedded.received.values())
    copy.graph.output.extend(map(helper.make_empty_tensor_value_info, names))
    last, *values = run(copy, dict(embedded.feeds) | {"x": x})
    return dict(zip(embedded.received, values, strict=True)) | {"": last}


def test_the_host_is_the_same_each_time() -> None:
    model = host()
    onnx.checker.check_model(model, full_check=True)
    assert 20 <= len(model.graph.node) <= 40
    assert model.SerializeToString(deterministic=True) == host().SerializeToString(
        deterministic=True
    )
    before = [STREAM in node.output for node in model.graph.node].index(True)
    assert 10 <= before <= len(model.graph.node) - 10


@pytest.mark.turns(3)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("case", TESTS)
def test_operator_gets_its_values_from_the_network(case: str, form: Form) -> None:
    text, inputs, data = TESTS[case]
    subject = subject_of(text, inputs)
    embedded = embed(subject, form)
    onnx.checker.check_model(embedded.model, full_check=True)
    assert set(embedded.received) >= data and (form.fed or set(embedded.received) == data)
    values, others = (
        stream_values(embedded, x) for x in (embedded.feeds["x"], -2 * embedded.feeds["x"])
    )
    for name in embedded.received:
        right = inputs[name]
        assert (values[name].dtype, values[name].shape) == (right.dtype, right.shape)
        if form.exact:
            assert values[name].tobytes() == right.tobytes()
        else:
            np.testing.assert_allclose(values[name], right, rtol=30 * SPREAD)
            assert not np.array_equal(values[name], others[name]) or right.dtype == np.float16


@pytest.mark.parametrize("case", TESTS)
def test_right_operator_changes_little_and_a_wrong_one_much(case: str) -> None:
    text, inputs, _ = TESTS[case]
    subject = subject_of(text, inputs)
    embedded = embed(subject, EXACT)
    plain = run(host(), {"x": embedded.feeds["x"]})[0]
    found = np.abs(stream_values(embedded, embedded.feeds["x"])[""] - plain).max()
    assert found < 1e-3 * np.abs(plain).max()
    worse = embed(
        Subject(
            subject.name, subject.model, inputs, {k: v * 0 for k, v in subject.outputs.items()}
        ),
        EXACT,
    )
    found = np.abs(stream_values(worse, embedded.feeds["x"])[""] - plain).max()
    assert found > 5e-3 * np.abs(plain).max()


def test_settings_are_fed_in_the_fed_form() -> None:
    subject = subject_of(RESIZE, FED_RESIZE)
    assert [list(embed(subject, form).feeds) for form in (NEAR, FED)] == [["x"], ["x", "op/s"]]
    assert set(embed(subject_of(LSTM, FED_LSTM), EXACT_FED).received) == {"x", "w", "r"}


UNFIT: dict[str, tuple[str, dict[str, Any]]] = {
    "NaN": (
        "g (float[3] x) => (float[3] y) { y = Log (x) }",
        {"x": np.array([1, 0, -1], np.float32)},
    ),
    "no float input but settings and empty ones": (
        "g (float lo, float hi, float by) => (float[n] y) { y = Range (lo, hi, by) }",
        {k: np.array(v, np.float32) for k, v in {"lo": 0, "hi": 3, "by": 1}.items()},
    ),
    "nothing comes out": (
        "g (float[3] x) => (float[0] y) { a = Constant <value_ints = [0]> () y = Slice (x, a, a) }",
        {"x": normal(3)},
    ),
}


@pytest.mark.parametrize(("why", "text", "inputs"), [(why, *case) for why, case in UNFIT.items()])
def test_unfit_operator_is_refused_with_the_reason(
    why: str, text: str, inputs: dict[str, Any]
) -> None:
    subject = subject_of(text, inputs)
    with pytest.raises(Unfit, match=why):
        embed(subject)


def operator_test(name: str, kind: str, *types: tuple[str, str]) -> operator_tests.OperatorTest:
    """An operator test with these inputs."""
    records = tuple(
        Record(f"x{k}", form, dtype, ((1,),), ("f",)) for k, (form, dtype) in enumerate(types)
    )
    return operator_tests.OperatorTest(
        name,
        "Op",
        "",
        kind,
        0.0,
        0.0,
        records,
        (Record("y", "tensor", "float32", ((1,),), ("f",)),),
        "",
    )


@pytest.mark.parametrize(
    ("test", "why"),
    [
        (operator_test("test_a", NODE, ("tensor", "float32")), ""),
        (operator_test("test_a", NODE, ("tensor", "int64"), ("tensor", "bfloat16")), ""),
        (operator_test("test_a", NETWORK, ("tensor", "float32")), "a network, no operator"),
        (operator_test("test_a_expanded", NODE, ("tensor", "float32")), "expanded"),
        (operator_test("test_a_expanded_ver18", NODE, ("tensor", "float32")), "expanded"),
        (operator_test("test_a", NODE, ("sequence", "float32")), "a sequence"),
        (operator_test("test_a", NODE, ("tensor", "string"), ("tensor", "float32")), "texts"),
        (operator_test("test_a", NODE, ("tensor", "int64")), "no float input"),
    ],
)
def test_operator_test_is_unfit_by_its_table(test: operator_tests.OperatorTest, why: str) -> None:
    assert why in unfit(test) and bool(why) == bool(unfit(test))


@pytest.mark.parametrize(
    ("regions", "word"),
    [
        ([(["op/0/LSTM"], True)], Word.FOUND),
        ([(["op/0/LSTM", "in/0/Add"], True)], Word.NEIGHBORS),
        ([(["op/0/LSTM"], True), (["0/Conv"], True)], Word.WRONG),
        ([(["in/0/Add"], True)], Word.WRONG),
        ([(["op/0/LSTM"], False)], Word.UNRESOLVED),
        ([], Word.UNRESOLVED),
    ],
)
def test_bisection_is_classified_by_its_findings(
    regions: list[tuple[list[str], bool]], word: Word
) -> None:
    findings = [
        {"nodes": n, "certified": c, "ops": [], "explains": 1.0, "why": ""} for n, c in regions
    ]
    document = {
        "agree": False,
        "findings": findings,
        "whole": {"signature": "nan"},
        "trials": 1,
        "seconds": 1.0,
    }
    embedded = embed(subject_of(LSTM, FED_LSTM))
    assert classified(document, embedded, NEAR).word is word
    found = classified(document | {"agree": True, "whole": {"why": "w"}}, embedded, NEAR)
    assert found.word is Word.AGREE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "text", "inputs"),
    [*REAL[:2], *(pytest.param(*case, marks=pytest.mark.rare) for case in REAL[2:])],
)
def test_real_bug_of_an_embedded_operator_is_found(
    backend: str, text: str, inputs: dict[str, Any], tmp_path: Path
) -> None:
    if find_spec(MODULES[backend]) is None:
        pytest.skip(f"{MODULES[backend]} is not installed")
    embedded = embed(subject_of(text, inputs))
    onnx.save(embedded.model, tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", embedded.feeds["x"])
    done = run_program(
        [SUBCUT, "bisect", "model.onnx", "-i", "x.npy", "-c", SPECS[backend], "--json"],
        cwd=tmp_path,
        env=environment(),
    )
    found = classified(json.loads(done.stdout), embedded, NEAR)
    assert found.word is Word.FOUND
    assert list(map(frozenset, found.culprits)) == [embedded.nodes]


def test_every_type_of_float_has_a_form() -> None:
    value = normal(3).astype(ml_dtypes.bfloat16)
    subject = Subject(
        "test",
        text_models.model("g (bfloat16[3] x) => (bfloat16[3] y) { y = Neg (x) }"),
        {"x": value},
        {"y": -value},
    )
    onnx.checker.check_model(embed(subject).model, full_check=True)
