"""Groups of options in a command's signature, and what the options mean.

Covers `commands.options` and `commands.resolve`.
"""

from __future__ import annotations

import inspect
import sys
from typing import Annotated

import pytest

from subgraph.commands import Result, command_line, options
from subgraph.commands.options import CriterionOptions, InputOptions, Text, option, with_option_groups
from subgraph.commands.resolve import Asked
from subgraph.errors import UsageError
from subgraph.project import Project


@with_option_groups("atol", "metric")
def command(
    *,
    model: options.ModelArgument = None,
    comparison: CriterionOptions,
    within: Annotated[Text, option("--within", "A..B", "Only there.")] = None,
    inputs: InputOptions,
) -> Result:
    """A command with two groups."""
    return Result({"model": model, "comparison": comparison, "within": within, "inputs": inputs}, "")


def test_a_signature_has_the_options_of_each_group_in_its_place() -> None:
    assert list(inspect.signature(command).parameters) == [
        "model", "criterion", "rtol", "within", "inputs", "seed", "shape", "mean", "scale", "bgr",
    ]  # fmt: skip
    assert inspect.signature(command).parameters["bgr"].default is False
    assert command.__doc__ == "A command with two groups."


def test_a_command_gets_one_object_per_group() -> None:
    document = command("m.onnx", rtol="1", bgr=True).document
    assert document == {
        "model": "m.onnx",
        "comparison": CriterionOptions(rtol="1"),
        "within": None,
        "inputs": InputOptions(bgr=True),
    }
    with pytest.raises(TypeError, match="atol"):
        command(atol="1")


def test_a_document_tells_the_command_without_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/subcut", "convert", "a b.pb", "--index-url=https://me:pw@host:8/simple"])
    assert command_line() == "subcut convert 'a b.pb' --index-url=https://****@host:8/simple"


@pytest.mark.parametrize(
    ("comparison", "words"),
    [
        (CriterionOptions(), "noise"),
        (CriterionOptions(criterion="tnn"), "tnn"),
        (CriterionOptions(rtol="1e-3"), "numpy:rtol=0.001"),
        (CriterionOptions(rtol="1e-3", atol="2"), "numpy:rtol=0.001,atol=2"),
        (CriterionOptions(metric="cosine>0.9"), "threshold:cosine>0.9"),
    ],
)
def test_the_criterion_that_options_mean(comparison: CriterionOptions, words: str) -> None:
    assert Asked(Project(), comparison=comparison).criterion_words == words


def test_two_criteria_are_one_too_many() -> None:
    with pytest.raises(UsageError, match="--criterion and --metric: which"):
        _ = Asked(Project(), comparison=CriterionOptions(criterion="tnn", metric="cosine>0.9")).criterion_words


def test_what_a_model_is_fed_comes_from_the_options_else_from_the_project() -> None:
    project = Project(None, {"seed": 3, "mean": "1,2", "shape": ["x=1x2"]})
    feeding = Asked(project, inputs=InputOptions(seed=0, scale="2")).feeding
    assert (feeding.seed, feeding.shapes) == (0, {"x": [1, 2]})
    assert (feeding.picture.mean, feeding.picture.scale) == ((1.0, 2.0), (2.0,))
    assert Asked(project).feeding.seed == 3
