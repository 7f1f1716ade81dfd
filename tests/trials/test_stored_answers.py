"""A candidate that has changed invisibly is noticed by repeating one run; its stored answers are
dropped, or dated."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from subgraph.graph import region as regions
from subgraph.graph.graph import load
from subgraph.runtime import candidate
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.runtime.run_result import Job, RunResult
from subgraph.runtime.worker_pool import NO_TURNS, Turns, Workers
from subgraph.storage import tensors
from subgraph.trials import open_trials, questions
from subgraph.trials.questions import describe_age, drop_if_changed
from subgraph.trials.trial import Trials
from subgraph.verdict import Signature, Status, Verdict
from tests.helpers.chain_models import line
from tests.helpers.facts import has_line

DAY = r"\d{4}-\d\d-\d\d"


class Board(Workers):
    """A candidate that depends on what no identity knows: `firmware` gives the value of every
    output.

    It runs no process. Each `command` is one of subcut's.
    """

    def __init__(self, folder: Path, reference: Reference) -> None:
        super().__init__(Candidate("board", candidate.BY_HAND))
        self._folder = folder
        self._reference = reference
        self.runs = 0
        self.firmware: Callable[[], float] = lambda: 1.0
        line(folder / "m.onnx", ["a", "b"])
        np.save(folder / "x.npy", np.array([[1.5, 0.25, 3.0]], np.float32))

    def run(self, job: Job, turns: Turns = NO_TURNS) -> RunResult:
        self.runs += 1
        try:
            value = np.array([self.firmware()], np.float32)
        except ZeroDivisionError:
            return RunResult(failure=Verdict(Status.FAIL, Signature.CRASH), made=time.time())
        given = {
            n: tensors.save(n, value, "tensor(float)", job.into, f"o{k}")
            for k, n in enumerate(job.outputs)
        }
        return RunResult((given,), ((),), made=time.time())

    def command(self, act: Callable[[Trials], object]) -> list[str]:
        """What a command says that repeats one run, then does this."""
        feeding = Feeding((str(self._folder / "x.npy"),))
        setup = open_trials.Setup(
            self.candidate, feeding, self._folder / "out", "numpy:rtol=1e-3,atol=1e-5"
        )
        graph = load(self._folder / "m.onnx")
        with open_trials.open_trials(graph, setup, self._reference, self) as trials:
            said = drop_if_changed(trials)
            act(trials)
            return [said, describe_age(trials)]


@pytest.fixture
def board(tmp_path: Path, reference: Reference) -> Board:
    return Board(tmp_path, reference)


def ask(trials: Trials) -> None:
    """Two runs of the whole and one of a piece, as a bisection asks."""
    for repetition in range(2):
        trials.run(trials.model.whole(), repetition=repetition, fresh=True)
    trials.run(regions.build_region(trials.model.graph, [0]))


ASKED = 3


def test_one_run_is_repeated_and_nothing_else(board: Board) -> None:
    assert board.command(ask) == ["", ""]
    assert board.runs == ASKED
    assert board.command(ask) == ["", ""]
    assert board.runs == ASKED + 1


def test_answers_of_a_candidate_that_has_changed_are_dropped(board: Board) -> None:
    board.command(ask)
    board.firmware = lambda: 2.0
    first, second = board.command(ask)
    said = rf"board returns other results than on {DAY}: its stored results are no longer used"
    assert re.fullmatch(said, first) and second == ""
    assert board.runs == ASKED + 2 + ASKED, "the repeated run, a second one, and all anew"
    assert board.command(ask) == ["", ""], "the new ones are stored"
    assert board.runs == ASKED + 2 + ASKED + 1
    board.firmware = lambda: 1.0
    assert board.command(ask) == [first, ""], "the first ones do not come back"


@pytest.mark.parametrize("known", [True, False])
def test_answers_of_a_candidate_that_is_not_deterministic_are_kept(
    known: bool, board: Board
) -> None:
    """Known from what is stored, or from two new runs that differ."""
    values = count(2)
    if known:
        board.firmware = lambda: float(next(values))
    board.command(ask)
    board.firmware = lambda: float(next(values))
    assert board.command(ask) == ["", ""]
    assert board.runs == ASKED + (1 if known else 2)


def test_failure_is_repeated_as_well(board: Board) -> None:
    board.firmware = lambda: 1 / 0
    board.command(ask)
    assert board.command(ask) == ["", ""]
    board.firmware = lambda: 1.0
    assert has_line(board.command(ask)[0], "no longer")
    board.firmware = lambda: 1 / 0
    assert has_line(board.command(ask)[0], "no longer")


def test_old_answers_are_dated(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    board.command(lambda trials: trials.run(trials.model.whole(), fresh=True))
    monkeypatch.setattr(questions, "MIN_OLD_SECONDS", 0.0)
    said = board.command(ask)[1]
    assert re.fullmatch(rf"1 of 3 .* {DAY}; --fresh .*", said), said
