"""Inputs that the user did not give are replaced where they tell nothing; those that he gave never
are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from subgraph.graph.graph import Graph
from subgraph.runtime.candidate import parse
from subgraph.runtime.inputs import DRAWS, Feeding
from subgraph.trials.open_trials import Setup, open_with_processes
from subgraph.trials.questions import prepare
from subgraph.verdict import Status
from tests.helpers import text_models

# Relu passes values beyond 3 only: normal noise of 64 numbers has hardly any, pixels have.
DULL = "g (float[1, 64] x) => (float[1, 64] y) { a = Sub(x, nine) y = Relu(a) }"


@pytest.fixture
def dull(tmp_path: Path) -> Graph:
    return text_models.load(tmp_path, DULL, nine=np.array([9], np.float32))


def test_drawn_inputs_that_tell_nothing_are_drawn_in_another_way(
    dull: Graph, tmp_path: Path
) -> None:
    setup = Setup(parse("ort"), Feeding(), tmp_path / "out")
    with open_with_processes(dull, setup, parse("ort")) as trials:
        assert trials.verdict(trials.model.whole()).is_mute
        prepared = prepare(trials)
        assert prepared.trials.verdict(prepared.trials.model.whole()).status is Status.AGREE
        assert [DRAWS["pixels"] in note for note in prepared.notes] == [True]


def test_inputs_of_the_user_are_kept(dull: Graph, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 64), np.float32))
    setup = Setup(parse("ort"), Feeding((str(tmp_path / "x.npy"),)), tmp_path / "out")
    with open_with_processes(dull, setup, parse("ort")) as trials:
        prepared = prepare(trials)
        assert (prepared.trials, prepared.notes) == (trials, ())
        assert trials.verdict(trials.model.whole()).is_mute
