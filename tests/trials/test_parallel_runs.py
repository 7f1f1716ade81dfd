"""Several runs at once: as many as asked for, each region once, judged in order.

The candidate writes a log and waits in the middle of its runs while a file tells it to, so no test
needs a clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from subgraph.graph.graph import load
from subgraph.runtime.reference import Reference
from subgraph.runtime.worker_pool import Workers
from subgraph.trials.compare_tensors import Comparison, compare_tensors
from subgraph.trials.pooled_runs import ParallelRuns
from subgraph.trials.questions import PreparedTrials
from subgraph.trials.trial import Trials
from subgraph.verdict import Status
from tests.helpers.chain_models import chain
from tests.helpers.open_trials import faulty_candidate, faulty_trials, region_of
from tests.helpers.process_backends import until

NODES = ["a", "b", "c", "d"]


@pytest.fixture
def trials(tmp_path: Path) -> Iterator[Callable[..., Trials]]:
    """Opens trials of a chain of four nodes; the log is `tmp_path / "log"`."""
    chain(tmp_path / "m.onnx", NODES)
    with ExitStack() as stack:
        workers = stack.enter_context(Workers(faulty_candidate()))
        reference = stack.enter_context(Reference())

        def opened(**faults: Any) -> Trials:
            graph = load(tmp_path / "m.onnx")
            return stack.enter_context(
                faulty_trials(graph, reference, workers, log=str(tmp_path), **faults)
            )

        yield opened


def count(folder: Path, word: str) -> int:
    """How many lines of the log hold a word."""
    path = folder / "log"
    return (
        sum(word in line.split() for line in path.read_text().splitlines()) if path.exists() else 0
    )


@pytest.mark.parametrize("jobs", [1, 3])
def test_as_many_as_asked_for_run_at_once(
    jobs: int, trials: Callable[..., Trials], tmp_path: Path
) -> None:
    """The whole model, all tensors of it and single nodes: whichever comes first."""
    found: list[Comparison] = []
    asked = trials()
    (tmp_path / "stop").write_text("1")  # every run waits
    comparing = threading.Thread(
        target=lambda: found.append(compare_tensors(PreparedTrials(asked), jobs=jobs))
    )
    comparing.start()
    try:
        until(lambda: count(tmp_path, "run") == jobs)
        assert count(tmp_path, "load") == jobs
    finally:
        (tmp_path / "stop").unlink()
        comparing.join()
    assert [row.node for row in found[0].rows] == NODES
    assert found[0].exit_code == 0
    # the full model, again, with all tensors, four nodes; the full model with another input
    assert count(tmp_path, "run") == 8


@pytest.mark.parametrize("jobs", [1, 4])
def test_the_order_is_that_of_the_nodes(jobs: int, trials: Callable[..., Trials]) -> None:
    comparison = compare_tensors(PreparedTrials(trials(fault="wrong", nodes="c")), jobs=jobs)
    assert [(row.node, row.alone and row.alone.status) for row in comparison.rows] == [
        ("a", Status.AGREE),
        ("b", Status.AGREE),
        ("c", Status.FAIL),
        ("d", Status.AGREE),
    ]
    assert comparison.first_bad is not None
    assert comparison.first_bad.node == "c"


def test_region_runs_once(trials: Callable[..., Trials], tmp_path: Path) -> None:
    asked = trials()
    one = region_of(asked.model.graph, "a")
    other = region_of(asked.model.graph, "b")
    with ParallelRuns(asked, jobs=2) as runs:
        runs.begin(one, other, one)
        verdicts = list(runs.verdicts([other, None, one]))
        assert runs.verdict(one).status is Status.AGREE
        assert runs.seconds([one, other]) > 0
    assert [v and v.status for v in verdicts] == [Status.AGREE, None, Status.AGREE]
    assert count(tmp_path, "run") == 2


def test_error_ends_what_runs(trials: Callable[..., Trials], tmp_path: Path) -> None:
    """Ctrl-C does not wait for a candidate that takes hours."""
    asked = trials()
    (tmp_path / "stop").write_text("1")
    with pytest.raises(KeyboardInterrupt), ParallelRuns(asked, jobs=2) as runs:
        runs.begin(*(region_of(asked.model.graph, name) for name in NODES))
        until(lambda: count(tmp_path, "run") == 2)
        raise KeyboardInterrupt
    assert count(tmp_path, "load") == 2
    (tmp_path / "stop").unlink()
