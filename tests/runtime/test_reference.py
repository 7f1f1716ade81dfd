"""The reference process; with `restart`, a new process replaces one that a model has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from subgraph.errors import BackendError, ModelError, OutOfMemory, WorkerDied
from subgraph.runtime.reference import Reference
from tests.helpers import text_models
from tests.helpers.refusals import raises

pytestmark = pytest.mark.usefixtures("own_workers")

CRASHES_ON_BAD = """
import os
def load(model, options):
    if model.name == "bad.onnx":
        os._exit(3)
    return lambda feeds: {}
"""


@pytest.fixture
def backend(tmp_path: Path) -> str:
    """A backend whose process ends when it loads `bad.onnx`."""
    file = tmp_path / "crashes_on_bad.py"
    file.write_text(CRASHES_ON_BAD)
    return str(file)


def test_crash_ends_a_reference(backend: str, tmp_path: Path) -> None:
    with Reference(backend) as reference:
        reference.load("good", Path("good.onnx"))
        with raises(WorkerDied, "worker.died", "exit code 3"):
            reference.load("bad", Path("bad.onnx"))
        with pytest.raises(WorkerDied):
            reference.load("good", Path("good.onnx"))


def test_reference_restarts_after_a_crash(backend: str, tmp_path: Path) -> None:
    """A model that was loaded before the crash is lost; that is not a crash of its own."""
    with Reference(backend, restart=True) as reference:
        reference.load("before", Path("good.onnx"))
        with raises(WorkerDied, "worker.died", "exit code 3"):
            reference.load("bad", Path("bad.onnx"))
        reference.load("after", Path("good.onnx"))
        assert reference.run("after", tmp_path, {}, []).tensors == ()
        with raises(ModelError, "worker.no-model") as lost:
            reference.run("before", tmp_path, {}, [])
        assert not isinstance(lost.value, BackendError)


def test_model_that_needs_more_memory_than_is_free_is_told_with_the_limit(tmp_path: Path) -> None:
    text = (
        "g () => (float[n] y) { s = Constant<value = int64[1] {17592186044416}>() y ="
        " ConstantOfShape(s) }"
    )
    text_models.load(tmp_path, text)
    with Reference() as reference:
        reference.load("large", tmp_path / "model.onnx")
        with raises(OutOfMemory, "memory.exceeded", "GiB"):
            reference.run("large", tmp_path, {"y": "y"}, [])


def test_reference_without_fixed_options_is_bounded_as_well(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subgraph.runtime.reference.measure_free_memory", lambda: 5 << 30)
    with Reference(backend) as reference:
        assert reference.process.worker.memory == 5 << 30
