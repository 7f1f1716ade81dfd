"""The share of the final error that a region accounts for: seeded culprits, false ones, several on
a path.

Covers `trials.attribution`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.dags import random_dag
from subgraph.graph import region as regions
from subgraph.graph.graph import Graph
from subgraph.graph.kinds import VALUE, find_kinds
from subgraph.graph.walks import find_ancestors
from subgraph.runtime.reference import Reference
from subgraph.runtime.run_result import RunResult
from subgraph.runtime.worker_pool import Workers
from subgraph.storage import tensors
from subgraph.trials.attribution import (
    MIN_CULPRIT_SHARE,
    Attribution,
    attribute,
    compute_error,
    compute_error_alone,
    make_full_target,
)
from subgraph.trials.trial import Trials
from subgraph.verdict import Signature, Status, Verdict
from tests.helpers import text_models
from tests.helpers.open_trials import faulty_trials, region_of

ONES = (
    "g (float[4] x) => (float[4] y) { [a] p = Identity(x) [b] q = Neg(p) [c] r = Identity(q) [d] y"
    " = Neg(r) }"
)
ALIKE = ONES.replace("Neg", "Identity")
LINE = (
    "g (float[2,4] x) => (float[2,4] y) { [a] p = Relu(x) [b] q = MatMul(p, w) [c] r = Tanh(q) [d]"
    " s = MatMul(r, w) [e] y = Sigmoid(s) }"
)
# Two branches that never meet: an error on one reaches one output.
TWO = (
    "g (float[4] x) => (float[4] y, float[4] z) { [a] p = Neg(x) [b] y = Abs(p) [c] q = Exp(x) [d]"
    " z = Tanh(q) }"
)
Ask = Callable[..., Trials]


@pytest.fixture
def ask(tmp_path: Path, reference: Reference, workers: Workers) -> Iterator[Ask]:
    """`ask(text or graph, **faults)` -> trials; a text's input is all ones."""
    np.save(tmp_path / "x.npy", np.ones(4, np.float32))
    with ExitStack() as stack:

        def opened(model: str | Graph, **faults: Any) -> Trials:
            graph = (
                model if isinstance(model, Graph) else text_models.load(tmp_path, model, w=weight())
            )
            inputs = (str(tmp_path / "x.npy"),) if model in (ONES, ALIKE, TWO) else ()
            return stack.enter_context(faulty_trials(graph, reference, workers, inputs, **faults))

        yield opened


def weight() -> Any:
    return np.random.default_rng(3).standard_normal((4, 4), np.float32)


def attributed(trials: Trials, *names: str) -> Attribution:
    attribution = attribute(trials, region_of(trials.model.graph, *names))
    assert attribution
    return attribution


# ------------------------------------------------------------ culprits


@pytest.mark.turns(2)
@pytest.mark.parametrize("guilty", "abcde")
def test_a_single_culprit_explains_all(guilty: str, ask: Ask) -> None:
    trials = ask(LINE, add=f"{guilty}:0.5")
    attribution = attributed(trials, guilty)
    assert [attribution.share, attribution.ratio] == pytest.approx([1, 1])
    assert attribution.gain is None
    assert attribution.culprit
    others = [n for n in "abcde" if n != guilty]
    assert [attributed(trials, n) for n in others] == [Attribution(0.0, 0.0)] * 4
    assert not any(attributed(trials, n).culprit for n in others)


@pytest.mark.parametrize("fault", ["nan", "inf"])
def test_a_culprit_that_makes_what_is_no_number(fault: str, ask: Ask) -> None:
    trials = ask(LINE, fault=fault, nodes="d")
    assert attributed(trials, "d").share == pytest.approx(1)
    assert attributed(trials, "c").share == 0


def test_a_fusion_explains_what_its_nodes_alone_do_not(ask: Ask) -> None:
    trials = ask(LINE, nodes="b+c")
    assert attributed(trials, "b", "c").share == pytest.approx(1)
    assert attributed(trials, "a", "b", "c", "d").share == pytest.approx(1)
    assert (attributed(trials, "b").share, attributed(trials, "c").share) == (0, 0)


def test_serial_culprits_share_the_error(ask: Ask) -> None:
    trials = ask(ONES, add="a:0.25+c:-0.5")
    shares = [attributed(trials, n).share for n in "abcd"]
    assert shares == pytest.approx([1 / 3, 0, 2 / 3, 0])
    assert attributed(trials, "a", "b", "c").share == pytest.approx(1)
    assert all(attributed(trials, n).culprit for n in "ac")


def test_culprits_on_two_ways(ask: Ask) -> None:
    """Each output counts in units of its scale; errors on different outputs are orthogonal."""
    trials = ask(TWO, add="a:1+d:1")
    want = 1 / np.array([1.0, np.tanh(math.e)])
    shares = want**2 / (want @ want)
    assert [attributed(trials, n).share for n in "ad"] == pytest.approx(list(shares), rel=1e-5)


@pytest.mark.turns(3)
@pytest.mark.parametrize("seed", range(8))
def test_on_random_graphs_the_guilty_node_explains_all(seed: int, ask: Ask, tmp_path: Path) -> None:
    """A region accounts for the whole final error if it contains the guilty node, else for none."""
    rng = np.random.default_rng(100 + seed)
    floats: list[int] = []
    while not floats:
        graph = text_models.read(tmp_path, random_dag(rng, 14, with_if=False))
        needed = graph.in_order(find_ancestors(graph, graph.producers(graph.outputs)))
        ops = ("MatMul", "Relu", "Tanh", "Sigmoid", "Neg", "Sub", "Mul")
        floats = [
            i
            for i in needed
            if graph.ops[i] in ops and find_kinds(graph, graph.makes[i])[graph.makes[i][0]] == VALUE
        ]
    guilty = int(rng.choice(floats))
    trials = ask(graph, add=f"{graph.label(guilty)}:0.5")
    attributions = 0
    for lo, hi in [(0, len(needed)), *rng.integers(0, len(needed), (5, 2))]:
        region = regions.build_region(graph, needed[min(lo, hi) : max(lo, hi) + 1])
        attribution = attribute(trials, region)
        if attribution is None:  # the error does not reach an output
            continue
        attributions += 1
        assert attribution.share == pytest.approx(float(guilty in region.nodes), abs=1e-4)
        assert attribution.culprit == (guilty in region.nodes)
    assert attributions in (0, 6)


# ------------------------------------------------------------ false culprits


def test_what_fails_only_when_it_is_cut_out_explains_nothing(ask: Ask) -> None:
    trials = ask(TWO, add="b:0.5", false="d", without="c")
    assert trials.verdict(region_of(trials.model.graph, "d")).status == "fail"
    attribution = attributed(trials, "d")
    assert attribution.share == 0
    assert 0 < attribution.ratio <= 3
    assert attribution.culprit is False
    assert attributed(trials, "b").culprit


def test_a_false_culprit_with_a_large_error_is_acquitted(ask: Ask) -> None:
    """It behaves otherwise inside the model: putting it right there gains nothing."""
    trials = ask(TWO, add="b:0.01", false="d", without="c")
    attribution = attributed(trials, "d")
    assert attribution.ratio > 3
    assert (attribution.share, attribution.gain, attribution.culprit) == (0, 0, False)


def test_being_without_it_finds_the_culprit_that_behaves_otherwise_inside(ask: Ask) -> None:
    """`c` is wrong by 5 on the reference's values, by 0.5 on the candidate's, which drift a
    little."""
    trials = ask(ALIKE, add="a:0.01", step="c")
    attribution = attributed(trials, "c")
    assert attribution.ratio == pytest.approx(5 / 0.51)
    assert attribution.share == attribution.gain == pytest.approx(0.5 / 0.51, rel=1e-3)
    assert attribution.culprit is True


def test_the_smaller_of_several_count_if_the_whole_is_better_without(ask: Ask) -> None:
    """Four culprits on one path have a share of a quarter each."""
    trials = ask(ALIKE, add="a:0.2+b:0.2+c:0.2+d:0.2")
    attribution = attributed(trials, "b")
    assert 0.05 < attribution.share < MIN_CULPRIT_SHARE and attribution.gain == pytest.approx(
        attribution.share, rel=0.2
    )
    assert attribution.culprit is True


def test_errors_that_cancel_are_no_ones_whole(ask: Ask) -> None:
    """Each region's error is larger than the final one, and putting it right makes that worse."""
    trials = ask(ONES, add="a:0.5+c:0.45")
    for name, left in (("a", 9), ("c", 10)):
        attribution = attributed(trials, name)
        assert attribution.ratio == pytest.approx(left + 1 if name == "a" else 9, rel=1e-4)
        assert attribution.gain == pytest.approx(1 - left, rel=1e-4)
        assert attribution.culprit is False
    assert attributed(trials, "a", "b", "c").share == pytest.approx(1)


def test_a_piece_with_a_hole_is_left_out_in_turns(ask: Ask) -> None:
    """Of a → b → c → d, a and c run on the reference, b and d on the candidate, each on the values
    before it."""
    trials = ask(ONES, add="c:0.5+d:0.45")
    attribution = attributed(trials, "a", "c")
    assert attribution.ratio == pytest.approx(10, rel=1e-4)
    assert attribution.culprit is False


def test_what_fails_only_alone_behind_a_culprit_is_no_culprit(ask: Ask) -> None:
    """Its inputs are wrong in the whole model and right when it runs alone: only its own part
    counts."""
    trials = ask(ALIKE, add="a:0.1", false="c", without="b")
    attribution = attributed(trials, "c")
    assert attribution.ratio > 3 and attribution.culprit is False
    assert attribution.gain == pytest.approx(0, abs=1e-5)


# ------------------------------------------------------------ nothing to explain


def test_a_candidate_that_is_right_has_nothing_to_explain(ask: Ask) -> None:
    assert attribute(ask(LINE), region_of(ask(LINE).model.graph, "b")) is None


@pytest.mark.parametrize(("drop", "of"), [("y", "b"), ("q", "b")])
def test_where_an_output_does_not_come_there_is_no_share(drop: str, of: str, ask: Ask) -> None:
    """An output of the whole model or of the region: the reference's value must not replace it."""
    trials = ask(LINE, add="b:0.5", drop=drop)
    assert attribute(trials, region_of(trials.model.graph, of)) is None


def test_a_whole_that_does_not_run_cannot_be_explained(ask: Ask) -> None:
    trials = ask(LINE, fault="nonsense", nodes="a+e")
    assert attribute(trials, region_of(trials.model.graph, "b")) is None
    trials = ask(LINE, fault="nonsense", nodes="b")
    assert attribute(trials, region_of(trials.model.graph, "b")) is None


def test_several_samples_count_together(
    ask: Ask, tmp_path: Path, reference: Reference, workers: Workers
) -> None:
    (tmp_path / "samples").mkdir()
    for k, n in enumerate((1, 3, 1)):
        np.save(tmp_path / f"samples/{k}.npy", np.full((n, 4), k + 1, np.float32))
    text = "g (float[N,4] x) => (float[N,4] y) { [a] p = Neg(x) [b] q = Abs(p) [c] y = Sqrt(q) }"
    graph = text_models.load(tmp_path, text)
    with faulty_trials(
        graph, reference, workers, (str(tmp_path / "samples"),), add="b:0.5"
    ) as trials:
        assert attributed(trials, "b").share == pytest.approx(1)
        assert attributed(trials, "a").share == 0
        assert attributed(trials, "a", "b", "c").share == pytest.approx(1)


def test_discrete_outputs_count_by_what_changed(ask: Ask) -> None:
    text = (
        "g (float[8] x) => (bool[8] y, float[8] z) { [a] p = Neg(x) [b] z = Abs(p) [c] y ="
        " Greater(p, z) }"
    )
    trials = ask(text, add="a:100")
    attribution = attributed(trials, "a")
    assert attribution.share == pytest.approx(1)
    assert attribution.culprit


def test_the_limits() -> None:
    assert Attribution(MIN_CULPRIT_SHARE, 1.0).culprit
    assert Attribution(MIN_CULPRIT_SHARE - 0.01, 1.0).culprit is None
    assert Attribution(0.04, 1.0).culprit is False
    assert Attribution(1.0, 3.0).culprit
    assert Attribution(1.0, 3.1).culprit is None
    assert Attribution(1.0, 3.1, MIN_CULPRIT_SHARE).culprit
    assert Attribution(1.0, 3.1, MIN_CULPRIT_SHARE - 0.01).culprit is False
    assert Attribution(0.06, 1.0, 0.03).culprit
    assert Attribution(0.06, 1.0, 0.02).culprit is False


def test_of_a_piece_that_died_nothing_is_sent_on(ask: Ask) -> None:
    """A candidate may compute the whole and crash on a piece of it."""
    trials = ask(ONES)
    region = region_of(trials.model.graph, "b")
    trials.model.capture(region)
    died = RunResult(failure=Verdict(Status.FAIL, Signature.CRASH, "it died"))
    assert compute_error_alone(trials.judge, region, died) is None


def test_a_sequence_in_the_place_of_an_array_has_no_error(ask: Ask, tmp_path: Path) -> None:
    trials = ask(TWO)
    right = make_full_target(trials).values
    assert compute_error(trials.judge, right) is not None
    listed = tensors.save(
        "z", [np.ones(1, np.float32)] * 4, "seq(tensor(float))", tmp_path, "listed"
    ).rebase(str(tmp_path))
    assert compute_error(trials.judge, [{**sample, "z": listed} for sample in right]) is None
