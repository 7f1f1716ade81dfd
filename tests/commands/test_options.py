"""Groups of options in a command's signature, and what the options mean.

Covers `commands.options` and `commands.resolve`.
"""

from __future__ import annotations

import inspect
import sys
import time
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from subgraph.commands import Result, make_command_line, options
from subgraph.commands.bisect import bisect
from subgraph.commands.compare import compare
from subgraph.commands.cut import cut
from subgraph.commands.options import (
    CriterionOptions,
    GivenOptions,
    InputOptions,
    Text,
    add_option_groups,
    option,
)
from subgraph.commands.resolve import ResolvedOptions, find_criterion_words
from subgraph.errors import UsageError
from subgraph.project import KEYS, Project
from subgraph.runtime.reference import Reference
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import subcut


@add_option_groups("atol", "metric")
def command(
    *,
    model: options.ModelArgument = None,
    comparison: CriterionOptions,
    within: Text = option("--within", "A..B", "Only there."),
    inputs: InputOptions,
) -> Result:
    """A command with two groups."""
    return Result(
        {"model": model, "comparison": comparison, "within": within, "inputs": inputs}, ""
    )


def test_signature_has_the_options_of_each_group_in_its_place() -> None:
    found = list(inspect.signature(command).parameters)
    assert found == "model criterion rtol within inputs seed shape mean scale bgr".split()
    assert inspect.signature(command).parameters["bgr"].default is False
    assert command.__doc__ and has_line(command.__doc__, "two groups")


def test_command_gets_one_object_per_group() -> None:
    document = command("m.onnx", rtol="1", bgr=True).answer
    assert document == {
        "model": "m.onnx",
        "comparison": CriterionOptions(rtol="1"),
        "within": None,
        "inputs": InputOptions(bgr=True),
    }
    with pytest.raises(TypeError, match="atol"):
        command(atol="1")


def test_option_is_refused_beside_the_mode_that_its_declaration_names() -> None:
    @add_option_groups()
    def mode(
        *,
        within: Text = option("--within", "A..B", "Only there.", refused_beside="--loop"),
        given: GivenOptions,
    ) -> Result:
        given.refuse_beside("--recorded", "{} without {}")
        given.refuse_beside("--loop", "{} without {}")
        return Result({}, "")

    assert mode().answer == {}
    with raises(UsageError, "option.conflict", "--within"):
        mode(within="a..b")


@pytest.mark.parametrize(
    ("given", "code"),
    [(0, "option.out-of-range"), (4, "option.out-of-range"), ("b", "option.unknown-value")],
)
def test_option_refuses_what_its_declaration_excludes(given: int | str, code: str) -> None:
    number = options.declare("--number -n", "N", "A number.", limits=(1, 3))
    word = options.declare("--word", "WORD", "A word.", words=("a",))
    assert (number.check(3), word.check("a"), word.check(None)) == (3, "a", None)
    with raises(UsageError, code, str(given)):
        (word if isinstance(given, str) else number).check(given)


def test_options_are_refused_beside_modes_that_exist() -> None:
    flags = {**options.list_flags(bisect), **options.list_flags(compare)}
    declared = chain(
        options.list_declared(bisect).values(), options.list_declared(compare).values()
    )
    modes = set(chain.from_iterable(info.refused_beside for info in declared))
    assert modes == {"--recorded", "--loop"}
    assert modes <= flags.keys()


def test_document_tells_the_command_without_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "argv", ["/bin/subcut", "convert", "a b.pb", "--index-url=https://me:pw@host:8/simple"]
    )
    assert has_line(
        make_command_line(), "convert 'a b.pb'", "--index-url=https://****@host:8/simple"
    )


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
    assert find_criterion_words(ResolvedOptions(Project(), comparison=comparison)) == words


def test_inputs_come_from_the_options_else_from_the_project() -> None:
    project = Project(None, {"seed": 3, "mean": "1,2", "shape": ["x=1x2"]})
    feeding = ResolvedOptions(project, inputs=InputOptions(seed=0, scale="2")).feeding
    assert (feeding.seed, feeding.shapes) == (0, {"x": [1, 2]})
    assert (feeding.picture.mean, feeding.picture.scale) == ((1.0, 2.0), (2.0,))
    assert ResolvedOptions(project).feeding.seed == 3


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("mnn:prec", ["mnn:precision=normal", "mnn:precision=high", "mnn:precision=low"]),
        ("ort:opt=basic,th", ["ort:opt=basic,threads="]),
        ("cuda==1.30.0:use_", ["cuda==1.30.0:use_tf32="]),
        ("mine.py:", []),
    ],
)
def test_tab_behind_a_backend_offers_its_options(typed: str, offered: list[str]) -> None:
    assert options.complete_candidates(typed) == offered


def test_the_list_of_backends_has_the_options_that_each_states(tmp_path: Path) -> None:
    rows = {
        row["name"]: row for row in subcut("backends", "--json", cwd=tmp_path).document["backends"]
    }
    assert rows["mnn"]["options"]["precision"] == ["normal", "high", "low"]
    assert rows["cuda"]["options"]["use_tf32"] == []
    assert "precision=normal|high|low" in subcut("backends", cwd=tmp_path).out


ADD = "g (float[a, 4] x) => (float[a, 4] y) <float[1, 4] w = {1, 2, 3, 4}> { y = Add (x, w) }"
ANY_SHAPE = "g (float[a, b] x) => (float[a, b] y) <float[1, 4] w = {1, 2, 3, 4}> { y = Add (x, w) }"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with two models and an input that fits neither."""
    text_models.save(tmp_path / "m.onnx", ADD)
    text_models.save(tmp_path / "any_shape.onnx", ANY_SHAPE)
    np.save(tmp_path / "in.npy", np.zeros((1, 3), np.float32))
    return tmp_path


@pytest.mark.parametrize(
    ("key", "value", "typed"),
    [
        ("input", "in.npy", "-i"),
        ("input", "x=missing.npy", "-i"),
        ("shape", "1x4", "--shape"),
        ("shape", "x=1x3", "--shape"),
        ("mean", "a", "--mean"),
        ("timeout", "-1", "--timeout"),
        ("memory_limit", "much", "--memory-limit"),
        ("criterion", "nois", "--criterion"),
        ("reference", "nobody", "--reference"),
    ],
)
def test_error_names_the_project_file_whose_value_it_is_about(
    key: str, value: str, typed: str, project: Path
) -> None:
    words = "compare", "m.onnx", "-c", "ort"
    done = subcut(*words, typed, value, cwd=project)
    assert done.code == 2 and "subcut.toml" not in done.err
    (project / "subcut.toml").write_text(
        f"{key} = {value if value == '-1' else repr(value)}\n", encoding="utf-8"
    )
    done = subcut(*words, cwd=project)
    assert (
        done.code == 2 and has_line(done.err, key, "subcut.toml") and has_line(done.err, "remove")
    )


@pytest.mark.parametrize(
    "words", [("bisect", "-c", "ort"), ("cut", "--start", "y"), ("dump", "--all")]
)
def test_error_while_the_reference_runs_names_the_project_file_that_feeds_it(
    words: tuple[str, ...], project: Path
) -> None:
    (project / "subcut.toml").write_text('input = "in.npy"\n', encoding="utf-8")
    command, *more = words
    done = subcut(command, "any_shape.onnx", *more, cwd=project)
    assert (
        done.code == 3
        and has_line(done.err, "input", "subcut.toml")
        and has_line(done.err, "remove")
    )


@pytest.mark.parametrize("command", ["bisect", "blame"])
def test_preparation_counts_as_time_of_the_command(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_slowly(self: ResolvedOptions) -> Reference:
        time.sleep(1)
        return start(self)

    start = ResolvedOptions.start_reference
    monkeypatch.setattr(ResolvedOptions, "start_reference", start_slowly)
    text_models.save(tmp_path / "m.onnx", "g (float[1,3] x) => (float[1,3] y) { y = Neg(x) }")
    done = subcut(command, "m.onnx", "-c", "ort", "--max-time", "1s", "--json", cwd=tmp_path)
    assert (done.code, done.document["error"]["code"]) == (5, "time.used-up"), done


def test_the_options_of_a_group_are_words_of_a_command_line() -> None:
    group = InputOptions(inputs=["a.npy"], seed=0, shape=["x=1", "y=2"], bgr=True)
    words = ["--seed=0", "--shape=x=1", "--shape=y=2", "--bgr"]
    assert options.list_words(group, "inputs") == words


def test_each_setting_of_the_project_file_is_an_option() -> None:
    tables = {"candidates", "known", "model", "tests"}
    flags = {*options.list_flags(bisect), *options.list_flags(cut)}
    assert {f"--{key.replace('_', '-')}" for key in KEYS.keys() - tables} <= flags
