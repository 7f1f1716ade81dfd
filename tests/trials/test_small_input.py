"""The smallest and simplest input with which a region fails in the same way."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subgraph.runtime.reference import Reference
from subgraph.runtime.worker_pool import Workers
from subgraph.trials import small_input
from subgraph.trials.small_input import SmallInputProgress, open_small_input
from subgraph.verdict import Signature, Status, Verdict
from tests.helpers import text_models
from tests.helpers.open_trials import faulty_trials, region_of

ACTIVATION = """g (float[1,3,8,8] x) => (float[1,3,8,8] y) {
    [before] a = Neg(x) [act] b = LeakyRelu(a) [after] y = Neg(b)
}"""
PRODUCT = """g (float[5,4] x) => (float[5,3] y) {
    [before] a = Neg(x) [act] b = MatMul(a, w) [after] y = Neg(b)
}"""
SQUARE = """g (float[4,4] x) => (float[3,4] y) {
    [before] a = Neg(x) [act] b = MatMul(w, a) [after] y = Neg(b)
}"""
SUM = """g (float[6,4] x) => (float[6,4] y) {
    [left] a = Neg(x) [right] c = Abs(x) [act] b = Concat <axis=1> (a, c) [after] y = Slice(b, s, e)
}"""
WEIGHTS: dict[str, dict[str, Any]] = {
    ACTIVATION: {},
    PRODUCT: {"w": np.arange(12, dtype=np.float32).reshape(4, 3)},
    SQUARE: {"w": np.arange(12, dtype=np.float32).reshape(3, 4)},
    SUM: {"s": np.array([0, 0]), "e": np.array([6, 4])},
}
MAX_RUNS = 40


Small = tuple[list[tuple[int, ...]], list[float], int, Signature | None]
Shrink = Callable[..., Small | None]


@pytest.fixture
def shrink(tmp_path: Path, reference: Reference, workers: Workers) -> Shrink:
    """Return shapes, values, runs and signature of the small input of the node `act`."""

    def shrink(
        text: str, runs: int = MAX_RUNS, *, nodes: str = "act", fault: str = "wrong"
    ) -> Small | None:
        graph = text_models.load(tmp_path, text, **WEIGHTS[text])
        with faulty_trials(graph, reference, workers, nodes=nodes, fault=fault) as trials:
            region = region_of(graph, "act")
            verdict = trials.verdict(region)
            with open_small_input(trials, region, verdict, runs) as small:
                if small is None:
                    return None
                model = small.trials.model
                inputs = [model.values.records[0][name] for name in model.whole().inputs]
                values = np.concatenate([record.array().reshape(-1) for record in inputs])
                shapes = [record.shapes[0] for record in inputs]
                return shapes, values.tolist(), small.runs, small.verdict.signature

    return shrink


def test_one_element_is_left_of_an_elementwise_operator(shrink: Shrink) -> None:
    found = shrink(ACTIVATION)
    assert found and found[:2] == ([(1, 1, 1, 1)], [1.0])


@pytest.mark.parametrize(("text", "shape"), [(PRODUCT, (1, 4)), (SQUARE, (4, 1))])
def test_axis_that_a_weight_fixes_keeps_its_size(
    text: str, shape: tuple[int, ...], shrink: Shrink
) -> None:
    """Also beside an axis of the same size, which becomes shorter alone. Inputs that the reference
    refuses are no runs."""
    found = shrink(text)
    assert found and found[0] == [shape] and found[2] > 0


def test_axes_of_the_same_size_become_shorter_together(shrink: Shrink) -> None:
    found = shrink(SUM)
    assert found
    sizes = {shape[0] for shape in found[0]}
    assert len(sizes) == 1 and sum(map(math.prod, found[0])) <= 4


def test_failure_stays_of_the_same_kind(shrink: Shrink) -> None:
    found = shrink(ACTIVATION, fault="nan")
    assert found and found[3] is Signature.NAN


def test_number_of_runs_is_limited(shrink: Shrink) -> None:
    found = shrink(ACTIVATION, 18)
    assert found and found[2] <= 18


def test_axis_of_one_element_is_not_emptied(
    shrink: Shrink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty batch aborts the LSTM of onnxruntime, and with it the reference."""
    tried = list[int]()

    def is_tried(small: SmallInputProgress, changed: dict[str, Any]) -> bool:
        tried.extend(array.size for array in changed.values())
        return False

    monkeypatch.setattr(SmallInputProgress, "_try", is_tried)
    assert shrink(ACTIVATION) is None
    assert min(tried) > 0


def test_search_ends_when_its_time_is_used_up(
    shrink: Shrink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_input, "MAX_SECONDS", 0.0)
    assert shrink(ACTIVATION) is None


def test_region_that_agrees_has_no_small_input(shrink: Shrink) -> None:
    assert shrink(ACTIVATION, nodes="") is None


def test_refusal_has_no_small_input(tmp_path: Path, reference: Reference, workers: Workers) -> None:
    graph = text_models.load(tmp_path, ACTIVATION)
    with faulty_trials(graph, reference, workers) as trials:
        verdict = Verdict(Status.FAIL, Signature.REFUSED)
        with open_small_input(trials, region_of(graph, "act"), verdict, MAX_RUNS) as small:
            assert small is None


def test_values_become_simpler_step_by_step() -> None:
    given = np.array([-3.14, 2.25, 0.06], np.float32)
    made = list(small_input._iter_simple(given))
    assert all(one.dtype == given.dtype for one in made)
    assert [one.tolist() for one in made] == [
        [0, 0, 0],
        [1, 1, 1],
        [1, 0, 0],
        [1, 2, 3],
        [-1, 1, 1],
        [-3, 2, 0],
    ]
