"""A function of a Python program as a candidate, in a process of its own or in that program; its
arrays as inputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import subgraph
from subgraph.errors import ArgumentTypeError, InputError, Refused, UsageError
from subgraph.runtime import python_values
from subgraph.runtime.python_values import make_candidate, make_input_arguments
from tests.helpers import text_models
from tests.helpers.refusals import raises

Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def has_tanh(model: Path) -> bool:
    import onnx

    return any(node.op_type == "Tanh" for node in onnx.load(model).graph.node)


def run_on_reference(model: Path, factor: float = 1.0) -> Run:
    """A runtime whose results are multiplied by a factor where a node is a Tanh."""
    import onnxruntime as ort

    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    wrong = has_tanh(model)

    def run(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        values = session.run(names, dict(feeds))
        return {
            n: v * np.float32(factor if wrong else 1) for n, v in zip(names, values, strict=True)
        }

    return run


def load_wrong(model: Path) -> Run:
    """A function that another process can import."""
    return run_on_reference(model, 1.5)


def load_with_options(model: Path, options: Mapping[str, Any]) -> Run:
    return run_on_reference(model, 1.0 + 0.5 * len(options))


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> subgraph.Graph:
    monkeypatch.chdir(tmp_path)
    nodes = "a = Neg(x) b = Tanh(a) y = Abs(b)"
    return text_models.load(tmp_path, f"g (float[4] x) => (float[4] y) {{ {nodes} }}")


def culprits(model: subgraph.Graph, load: Any) -> list[str]:
    """The operators of the first finding."""
    search = subgraph.bisect(model, load, np.linspace(-2, 2, 4, dtype=np.float32))
    for _ in search:
        pass
    return [model.ops[i] for i in search.result.findings[0].indices or ()]


@pytest.mark.slow
def test_function_that_can_be_imported_is_searched(model: subgraph.Graph) -> None:
    assert culprits(model, load_wrong) == ["Tanh"]


@pytest.mark.slow
def test_function_that_cannot_be_imported_runs_in_this_process(model: subgraph.Graph) -> None:
    processes = set()

    def load(path: Path) -> Run:
        processes.add(os.getpid())
        return run_on_reference(path, 1.5)

    assert culprits(model, load) == ["Tanh"]
    assert processes == {os.getpid()}


@pytest.mark.slow
def test_function_may_take_the_options(model: subgraph.Graph) -> None:
    found = subgraph.compare(model, load_with_options)
    assert found.exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "at_load"),
    [
        (Refused("no Tanh", code="x.y"), True),
        pytest.param(OSError("no Tanh"), False, marks=pytest.mark.slow),
    ],
)
def test_error_of_the_function_is_a_result(
    model: subgraph.Graph, error: Exception, at_load: bool
) -> None:
    def load(path: Path) -> Run:
        run = run_on_reference(path)
        fails = has_tanh(path)

        def run_or_raise(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
            if fails:
                raise error
            return run(feeds)

        if fails and at_load:
            raise error
        return run_or_raise

    assert culprits(model, load) == ["Tanh"]


@pytest.mark.parametrize("given", [3, dict, {"x": 1}])
def test_other_objects_are_refused(model: subgraph.Graph, given: object) -> None:
    with raises(ArgumentTypeError, "api.wrong-type", type(given).__name__):
        make_candidate(given, model)


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def values(arguments: tuple[str, ...]) -> dict[str, list[Any]]:
    """The arrays in the files or folders that the arguments name."""
    found = {}
    for argument in arguments:
        name, _, place = argument.partition("=")
        path = Path(place)
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        found[name] = [np.load(file) for file in files]
    return found


def test_files_stay_as_they_are() -> None:
    assert make_input_arguments(None) == ()
    assert make_input_arguments("a.npy") == ("a.npy",)
    assert make_input_arguments(Path("a.npy")) == ("a.npy",)
    assert make_input_arguments(["a.npy", Path("b.npy")]) == ("a.npy", "b.npy")


@pytest.mark.parametrize("given", [X, {"x": X}, {"x": X.tolist()}])
def test_one_sample_is_a_file_per_input(given: Any) -> None:
    found = values(make_input_arguments(given, ["x"]))
    assert list(found) == ["x"] and np.array_equal(found["x"], [X])


@pytest.mark.parametrize("given", [[X, X + 1], [{"x": X}, {"x": X + 1}], [X, {"x": X + 1}]])
def test_samples_are_a_folder_per_input(given: Any) -> None:
    found = values(make_input_arguments(given, ["x"]))
    assert list(found) == ["x"] and np.array_equal(found["x"], [X, X + 1])


def test_type_of_the_array_stays() -> None:
    (array,) = values(make_input_arguments({"ids": np.array([3], np.int64)}))["ids"]
    assert array.dtype == np.int64


@pytest.mark.parametrize("given", [3, {1, 2}, [3], {"x": object()}, [None]])
def test_other_types_are_refused(given: Any) -> None:
    with raises(UsageError, "api.wrong-type"):
        make_input_arguments(given, ["x"])


def test_array_without_a_name_is_refused_for_several_inputs() -> None:
    with raises(UsageError, "api.unnamed-array"):
        make_input_arguments(X, ["a", "b"])


def test_array_of_another_shape_is_named_as_the_array(model: subgraph.Graph) -> None:
    with raises(InputError, "input.wrong-shape", "the array has shape 7"):
        subgraph.compare(model, run_on_reference, np.zeros(7, np.float32))


def test_samples_with_different_names_are_refused() -> None:
    with raises(UsageError, "api.uneven-samples"):
        make_input_arguments([{"a": X}, {"b": X}])


def test_cost_of_running_in_this_process_is_logged_once(
    model: subgraph.Graph, caplog: pytest.LogCaptureFixture
) -> None:
    python_values._warn_of_limits.cache_clear()
    for factor in (1.0, 1.5):
        make_candidate(lambda path, factor=factor: run_on_reference(path, factor), model)
    assert len(caplog.records) == 1
