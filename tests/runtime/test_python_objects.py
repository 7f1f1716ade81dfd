"""An object of a Python program that runs one model, as a candidate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import subgraph
from subgraph.errors import ArgumentTypeError, BackendError
from subgraph.results.common import RuntimeDocument
from tests.helpers import text_models
from tests.helpers.refusals import raises

X = np.linspace(-2, 2, 4, dtype=np.float32)
GRAPH = "g (float[4] x) => (float[4] y) {{ a = Neg(x) b = Tanh(a) y = {last}(b) }}"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> subgraph.Graph:
    monkeypatch.chdir(tmp_path)
    return text_models.load(tmp_path, GRAPH.format(last="Abs"))


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A model of other values."""
    (tmp_path / "other").mkdir()
    return text_models.load(tmp_path / "other", GRAPH.format(last="Neg")).path


def make_session(path: Path) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def make_function(path: Path) -> Any:
    session = make_session(path)

    def post(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"y": session.run(["y"], dict(feeds))[0]}

    return post


def make_compiled(path: Path) -> Any:
    openvino = pytest.importorskip("openvino")
    return openvino.compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def make_module(path: Path) -> Any:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def forward(self, x: Any) -> Any:
            y = torch.tanh(-x)
            return -y if path.parent.name == "other" else y.abs()

    return Net()


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_session, make_function, make_compiled, make_module])
def test_full_model_is_judged_and_no_cut_is(
    model: subgraph.Graph, other: Path, make: Callable[[Path], Any]
) -> None:
    found = subgraph.compare(model, make(model.path), X)
    assert found.agree and not found.looked_at.inner
    assert not subgraph.compare(model, make(other), X).agree


@pytest.mark.slow
def test_search_claims_no_smaller_region(model: subgraph.Graph, other: Path) -> None:
    wrong = subgraph.bisect(model, make_session(other), X).result
    (finding,) = wrong.findings
    assert not wrong.agree and len(finding.nodes) == 3
    assert "run it again" not in {command.why for command in wrong.next}  # type: ignore[union-attr]


def test_missing_output_is_an_error_about_the_function(model: subgraph.Graph) -> None:
    def run(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"z": feeds["x"]}

    with raises(BackendError, "candidate.runs-nothing", "run()", "y", "z"):
        subgraph.compare(model, run, X)


def test_function_of_a_program_is_known_by_its_name() -> None:
    about = RuntimeDocument("post()", "/tmp/post.py", {}, "", "fp32")
    assert about.is_function


def test_plan_takes_no_object(model: subgraph.Graph) -> None:
    """It would run the model itself in place of each lowered one, and all would be right."""
    with raises(ArgumentTypeError, "api.wrong-type", "InferenceSession"):
        subgraph.plan(model, make_session(model.path), to="fp16", inputs=X)
