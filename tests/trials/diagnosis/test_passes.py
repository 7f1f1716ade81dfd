"""Which passes of an optimizer a failure takes: `trials.diagnosis.passes`, and onnxruntime's names
of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fixtures import passes_wrong
from subgraph.errors import UsageError
from subgraph.runtime import candidate
from subgraph.runtime.backends import ort
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.protocol import BackendInfo
from subgraph.runtime.reference import Reference
from subgraph.runtime.worker_pool import Workers
from subgraph.trials.diagnosis.passes import Ablation, describe_sets, find_minimal_sets, switch_off
from subgraph.trials.open_trials import Setup, open_trials
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises

NET = (
    "g (float[2,3] x) => (float[2,3] y) { [first] p = Tanh(x) [second] q = Identity(p) [third] y ="
    " Exp(q) }"
)
Ask = Callable[..., Ablation]
HERE = str(Path(passes_wrong.__file__))


@pytest.fixture(scope="module")
def ablation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Ablation]]:
    """Of the whole of a small network, for options of the candidate; the tests share its
    processes."""
    folder = tmp_path_factory.mktemp("passes")
    np.save(folder / "x.npy", np.random.default_rng(1).standard_normal((2, 3), np.float32))
    graph = text_models.load(folder, NET)
    chosen = candidate.parse(HERE)
    setup = Setup(chosen, Feeding((str(folder / "x.npy"),)), folder / "out", freeze=True)
    with (
        Reference() as reference,
        Workers(chosen) as workers,
        open_trials(graph, setup, reference, workers) as trials,
    ):

        def ask(most_runs: int = 80, **options: str) -> Ablation:
            other = trials.with_candidate(replace(chosen, options=options))
            other.runtime.__dict__["about"] = BackendInfo(passes=passes_wrong.PASSES)
            return Ablation(other, trials.model.whole(), most_runs)

        yield ask


@pytest.mark.slow
@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("names", "cures", "found"),
    [
        pytest.param("A+B+C", "B", {("B",)}, marks=pytest.mark.rare),
        ("A+B+C+D", "A|C", {("A",), ("C",)}),
        pytest.param("A+B+C+D", "B+D", {("B", "D")}, marks=pytest.mark.rare),
        ("A+B+C+D", "A|B+C", {("A",), ("B", "C")}),
        pytest.param("A+B+C+D", "A+B|B+D", {("A", "B"), ("B", "D")}, marks=pytest.mark.rare),
        ("A+B+C+D+E", "B+C+E", {("B", "C", "E")}),
        ("A+B", "C", set()),
    ],
)
def test_the_minimal_sets_are_found(
    ablation: Ask, names: str, cures: str, found: set[tuple[str, ...]]
) -> None:
    asked = ablation(names=names, cures=cures)
    assert set(find_minimal_sets(asked)) == found
    for some in found:
        assert asked.is_right(some)
        assert not any(asked.is_right(set(some) - {name}) for name in some)


@pytest.mark.slow
def test_pass_that_does_something_only_without_another_is_found(ablation: Ask) -> None:
    asked = ablation(names="A+B+C", cures="A+C", hidden="A>C")
    assert list(asked.names()) == ["A", "B"]
    assert find_minimal_sets(asked) == [("A", "C")]


def test_switch_that_is_off_already_is_not_named(ablation: Ask) -> None:
    asked = ablation(names="A+B+C", cures="A+B", off="A")
    assert find_minimal_sets(asked) == [("B",)]
    assert switch_off(asked.trials, ["B"]).runtime.candidate.options["off"] == "A+B"


@pytest.mark.rare
def test_the_runs_are_bounded(ablation: Ask) -> None:
    asked = ablation(9, names="+".join("ABCDEF"), cures="E+F")
    # not as a pair: one name after the other was left in
    assert find_minimal_sets(asked) == [("E", "F")]
    assert asked.runs <= 9 + 6


def test_optimizer_without_named_passes_has_none(ablation: Ask) -> None:
    asked = ablation(names="A", cures="A")
    asked.trials.runtime.__dict__["about"] = BackendInfo()
    assert find_minimal_sets(asked) == []
    assert asked.runs == 0


def test_sets_in_words() -> None:
    assert has_line(describe_sets([("A",), ("B", "C")]), "A or B and C")


# ------------------------------------------------------------ onnxruntime


@pytest.mark.slow
def test_onnxruntimes_passes_are_those_without_which_it_makes_another_graph(tmp_path: Path) -> None:
    model = text_models.load(tmp_path, NET).path
    assert "EliminateIdentity" in ort.passes(model, {})
    assert "EliminateIdentity" not in ort.passes(
        model, {"disabled_optimizers": "EliminateIdentity"}
    )
    assert ort.passes(model, {"opt": "disable"}) == []
    assert ort.passes(model, {}) == ort.passes(model, {})


def test_without_a_pass_onnxruntime_computes_the_same_of_another_graph(tmp_path: Path) -> None:
    model = text_models.load(tmp_path, NET).path
    x = np.random.default_rng(1).standard_normal((2, 3), np.float32)
    whole, without = (
        ort.load(model, o)({"x": x})["y"]
        for o in ({}, {"disabled_optimizers": "EliminateIdentity+ConstantFolding"})
    )
    np.testing.assert_allclose(np.asarray(whole), np.asarray(without), rtol=1e-6)


def test_name_that_is_no_pass_is_refused(tmp_path: Path) -> None:
    with raises(UsageError, "backend.unknown-pass", "EliminateIdentitty") as error:
        ort.load(
            text_models.load(tmp_path, NET).path, {"disabled_optimizers": "EliminateIdentitty"}
        )
    assert "EliminateIdentity" in error.value.hint


def test_the_library_is_searched_only_where_a_pass_is_turned_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes half a second, which each process would pay."""
    monkeypatch.setattr(ort, "words", lambda: pytest.fail("it is searched"))
    ort.load(text_models.load(tmp_path, NET).path, {})
