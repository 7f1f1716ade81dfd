"""Judges are immutable: another criterion is another judge, of the same runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from subgraph.runtime.reference import Reference
from subgraph.runtime.worker_pool import Workers
from subgraph.verdict import Status
from tests.helpers import text_models
from tests.helpers.open_trials import QUICK, faulty_trials

TEXT = """g (float[4] x) => (float[4] y) { [a] y = Relu(x) }"""
STRICT = "numpy:rtol=0,atol=1e-9"


def test_two_judges_of_one_run_disagree_whatever_thread_asks(
    tmp_path: Path, reference: Reference, workers: Workers
) -> None:
    with faulty_trials(
        text_models.load(tmp_path, TEXT), reference, workers, add="a:1e-5"
    ) as trials:
        whole = trials.model.whole()
        result = trials.run(whole)
        strict = trials.with_criterion(STRICT).judge
        with ThreadPoolExecutor(4) as threads:
            judges = [trials.judge, strict] * 20
            statuses = list(threads.map(lambda judge: judge.verdict(whole, result).status, judges))
        assert statuses == [Status.AGREE, Status.FAIL] * 20
        assert trials.judge.criterion == QUICK and trials.verdict(whole).status is Status.AGREE
        assert len(trials.log.made) == 1, "both judged the same run"
        with pytest.raises(FrozenInstanceError):
            trials.judge.rule = strict.rule  # type: ignore[misc]


def test_other_inputs_are_another_model(
    tmp_path: Path, reference: Reference, workers: Workers
) -> None:
    with faulty_trials(text_models.load(tmp_path, TEXT), reference, workers) as trials:
        whole = trials.model.whole()
        model = trials.model
        noise = model.noise(whole, 0)
        assert replace(model, freeze=False).noise(whole, 0) is noise
        assert model.with_values(model.values).noise(whole, 0) is not noise
