"""The public names of `subgraph`: which there are, and that each has a docstring and an example.

Covers `version` as well.
"""

from __future__ import annotations

import doctest
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import subgraph

FUNCTIONS = "bisect capture compare cut load plan watch"
TYPES = "Bisection Candidate Comparison Cut Findings Graph Region Signature Status Step Verdict"
ERRORS = (
    "ArgumentTypeError BackendError DataError Inconclusive InputError ModelError NoRegion"
    " NotInstalled OutOfMemory OutOfTime OutputError Refused ResultExists SubcutError"
    " UnknownName Unreachable UsageError WorkerDied"
)
NAMES = [*FUNCTIONS.split(), *TYPES.split(), *ERRORS.split()]


def test_names() -> None:
    assert sorted(subgraph.__all__) == sorted([*NAMES, "__version__"])
    assert set(subgraph.__all__) <= set(dir(subgraph))


@pytest.mark.parametrize("name", NAMES)
def test_each_is_explained(name: str) -> None:
    """In a docstring of its own, not one that it inherits or that `dataclass` or `Enum` wrote."""
    thing = getattr(subgraph, name)
    text = (vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__) or ""
    assert len(text) > 20 and not text.startswith(f"{name}("), name


@pytest.mark.parametrize("name", [*FUNCTIONS.split(), *TYPES.split(), "SubcutError"])
def test_each_has_an_example_that_is_run(name: str) -> None:
    """By `test_architecture.test_examples_are_true`, in a folder with a model."""
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(getattr(subgraph, name)) or "")
    assert examples and not any(doctest.SKIP in example.options for example in examples)


def test_importing_the_package_is_light() -> None:
    """What it loads beyond Python's own start is imported when asked for."""
    words = (
        "import sys, subgraph; print(*sorted(m for m in sys.modules if m.startswith('subgraph')))"
    )
    root = str(Path(subgraph.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert done.stdout.split() == ["subgraph", "subgraph.lazy", "subgraph.version"]


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'cuts'"):
        _ = subgraph.cuts  # type: ignore[attr-defined]
