"""Inputs that a Python program gives: files, arrays, maps, and lists of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subgraph.errors import UsageError
from subgraph.runtime.python_values import input_arguments
from tests.helpers.refusals import raises

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
    assert input_arguments(None) == ()
    assert input_arguments("a.npy") == ("a.npy",)
    assert input_arguments(Path("a.npy")) == ("a.npy",)
    assert input_arguments(["a.npy", Path("b.npy")]) == ("a.npy", "b.npy")


@pytest.mark.parametrize("given", [X, {"x": X}, {"x": X.tolist()}])
def test_one_sample_is_a_file_per_input(given: Any) -> None:
    found = values(input_arguments(given, ["x"]))
    assert list(found) == ["x"] and np.array_equal(found["x"], [X])


@pytest.mark.parametrize("given", [[X, X + 1], [{"x": X}, {"x": X + 1}], [X, {"x": X + 1}]])
def test_samples_are_a_folder_per_input(given: Any) -> None:
    found = values(input_arguments(given, ["x"]))
    assert list(found) == ["x"] and np.array_equal(found["x"], [X, X + 1])


def test_type_of_the_array_stays() -> None:
    (array,) = values(input_arguments({"ids": np.array([3], np.int64)}))["ids"]
    assert array.dtype == np.int64


@pytest.mark.parametrize("given", [3, {1, 2}, [3], {"x": object()}, [None]])
def test_other_types_are_refused(given: Any) -> None:
    with raises(UsageError, "api.wrong-type"):
        input_arguments(given, ["x"])


def test_array_without_a_name_is_refused_for_several_inputs() -> None:
    with raises(UsageError, "api.unnamed-array"):
        input_arguments(X, ["a", "b"])


def test_samples_with_different_names_are_refused() -> None:
    with raises(UsageError, "api.uneven-samples"):
        input_arguments([{"a": X}, {"b": X}])
