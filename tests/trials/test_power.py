"""Planted faults, and how many of them the outputs would show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subgraph.errors import OutputError, UsageError
from subgraph.questions.bisection.bisection import bisect
from subgraph.results.common import PowerDocument
from subgraph.runtime.reference import Reference
from subgraph.runtime.worker_pool import Workers
from subgraph.search import Settings
from subgraph.trials.compare_tensors import compare
from subgraph.trials.power import Planting, measure_power, measure_power_in_time
from subgraph.trials.trial import Trials
from tests.helpers import text_models
from tests.helpers.open_trials import faulty_trials

CHAIN = """g (float[1,4,6,6] x) => (float[1,4,3,3] y) {
    [conv] a = Conv <pads=[1,1,1,1]> (x, w) [act] b = LeakyRelu <alpha=0.2> (a)
    [pool] y = AveragePool <kernel_shape=[2,2], strides=[2,2]> (b)
}"""
MASKED = """g (float[1,4,6,6] x) => (float[1,4,6,6] y) {
    [hidden] a = Neg(x) [zero] b = Mul(a, z) [sum] y = Add(b, x)
}"""


SPLIT = """g (float[1,4,6,6] x) => (float[1,2,6,6] y) {
    [halves] a, b = Split <axis=1> (x) [sum] c = Add(a, b) [twice] y = Add(c, b)
}"""

ATTRIBUTES = """g (float[1,4,6,6] x) => (float[1,4,6,6] y) {
    [act] a = LeakyRelu <alpha=0.2> (x) [share] b = Softmax(a)
    [turned] c = Transpose <perm=[0,1,3,2]> (b) [sum] y = Add(c, x)
}"""


@pytest.fixture(scope="module")
def weights() -> dict[str, dict[str, Any]]:
    kernel = np.random.default_rng(0).standard_normal((4, 4, 3, 3)).astype(np.float32)
    return {CHAIN: {"w": kernel}, MASKED: {"z": np.zeros(1, np.float32)}, SPLIT: {}, ATTRIBUTES: {}}


@pytest.fixture
def trials(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    reference: Reference,
    workers: Workers,
    weights: dict[str, dict[str, Any]],
) -> Iterator[Trials]:
    """Trials on the model of the parameter, judged by its criterion."""
    text, criterion = request.param
    graph = text_models.load(tmp_path, text, **weights[text])
    with faulty_trials(graph, reference, workers, criterion=criterion) as opened:
        yield opened


EXACT = "numpy:rtol=1e-3,atol=1e-5"


@pytest.mark.parametrize(
    "trials", [(CHAIN, EXACT), (SPLIT, EXACT)], indirect=True, ids=["chain", "several outputs"]
)
def test_every_kind_is_planted_and_shown(trials: Trials) -> None:
    found = measure_power(trials.judge, 12)
    assert (found.planted, found.shown, list(found.missed)) == (12, 12, [])


@pytest.mark.parametrize("trials", [(ATTRIBUTES, EXACT)], indirect=True)
def test_attributes_are_changed_to_valid_values(trials: Trials) -> None:
    planting = Planting(trials.judge, 40)
    faults = filter(None, map(planting.plant, range(40)))
    changes = {fault.text.split("=")[0] for fault in faults if "instead of" in fault.text}
    assert changes == {"alpha", "axis", "perm"}


@pytest.mark.parametrize("trials", [(ATTRIBUTES, "cosine>0.5")], indirect=True)
def test_missed_attribute_is_named_with_its_node(trials: Trials) -> None:
    missed = measure_power(trials.judge, 40).missed
    assert ("act", "alpha=0.4 instead of 0.2") in {(one.node, one.fault) for one in missed}


@pytest.mark.parametrize("trials", [(CHAIN, "cosine>0.5")], indirect=True)
@pytest.mark.parametrize(("seconds", "planted"), [(0.0, None), (100.0, 20)])
def test_time_decides_whether_faults_are_planted(
    trials: Trials, seconds: float, planted: int | None
) -> None:
    found = measure_power_in_time(trials.judge, seconds)
    assert (found and found.planted) == planted


@pytest.mark.parametrize("trials", [(CHAIN, "cosine>0.5")], indirect=True)
def test_wide_limit_misses_faults(trials: Trials) -> None:
    found = measure_power(trials.judge, 12)
    assert found.shown < 12 and any(one.fault == "scaled by 1.1" for one in found.missed)


@pytest.mark.parametrize("trials", [(MASKED, EXACT)], indirect=True)
def test_fault_that_the_model_masks_is_missed_by_name(trials: Trials) -> None:
    found = measure_power(trials.judge, 9)
    assert {one.node for one in found.missed} == {"hidden", "zero"}
    assert (found.planted, found.shown) == (9, 3)
    unchanged = {one.node for one in found.missed if one.fault.endswith("no value changes")}
    assert unchanged == {"zero"}  # its zeros stay as they are


@pytest.mark.parametrize("trials", [(CHAIN, "cosine>0.5")], indirect=True)
def test_same_seed_plants_the_same_faults(trials: Trials) -> None:
    assert measure_power(trials.judge, 8) == measure_power(trials.judge, 8)


def test_python_has_the_measurement(tmp_path: Path, weights: dict[str, dict[str, Any]]) -> None:
    path = text_models.save(tmp_path / "m.onnx", CHAIN, **weights[CHAIN])
    found = compare(path, "ort", output=tmp_path / "out", power=4)
    assert found.result.whole.power == PowerDocument(4, 4, 0, [])
    assert found.document["power"]["planted"] == 4


def test_python_refuses_a_negative_number(tmp_path: Path) -> None:
    path = text_models.save(tmp_path / "m.onnx", MASKED, z=np.zeros(1, np.float32))
    with pytest.raises(UsageError) as error:
        compare(path, "ort", output=tmp_path / "out", power=-1)
    assert error.value.code == "option.out-of-range"


@pytest.mark.small_inputs
@pytest.mark.parametrize(("inside", "planted"), [(False, 20), (True, None)])
def test_right_bisection_has_the_measurement(
    tmp_path: Path, weights: dict[str, dict[str, Any]], inside: bool, planted: int | None
) -> None:
    path = text_models.save(tmp_path / "m.onnx", CHAIN, **weights[CHAIN])
    found = bisect(path, "ort", output=tmp_path / "out", limits=Settings(inside=inside)).result
    power = found.whole.power
    assert found.agree and (power and power.planted) == planted
    assert any(note.startswith("power: ") for note in found.notes) == bool(planted)


def test_full_disk_costs_the_measurement_and_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: Any) -> None:
        raise OutputError("no space left", code="output.unwritable")

    monkeypatch.setattr("subgraph.questions.bisection.bisection.measure_power_in_time", fill)
    path = text_models.save(tmp_path / "m.onnx", MASKED, z=np.zeros(1, np.float32))
    found = bisect(path, "ort", output=tmp_path / "out").result
    assert found.agree and found.whole.power is None
