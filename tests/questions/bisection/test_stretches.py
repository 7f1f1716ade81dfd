"""A candidate that cannot hold the whole model is asked about captured values, stretch by
stretch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subgraph.graph.graph import Graph
from subgraph.questions.bisection.bisection import Bisection
from subgraph.questions.bisection.options import BisectionOptions
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.runtime.worker_pool import Workers
from subgraph.search import QueryKind, Settings
from subgraph.trials.open_trials import Setup, open_trials
from subgraph.trials.region_runs import RegionRuns
from subgraph.trials.trial import Trials
from tests.helpers import text_models
from tests.helpers.documents import problem
from tests.helpers.facts import has_line
from tests.helpers.open_trials import QUICK, faulty_candidate
from tests.helpers.run_command import subcut

NODES = 8


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """n0 … n7 in a row; each multiplies with a weight of its own."""
    lines = [f"[n{k}] h{k + 1} = Mul(h{k}, w{k})" for k in range(NODES)]
    weights: Any = {f"w{k}": np.full(3, 1 + k / 10, np.float32) for k in range(NODES)}
    return text_models.load(
        tmp_path, f"g (float[3] h0) => (float[3] h{NODES}) {{ {' '.join(lines)} }}", **weights
    )


RUNS: list[Any] = []  # of the candidate, in the search that ended last


@contextmanager
def searched(
    graph: Graph,
    reference: Reference,
    held: float,
    monkeypatch: pytest.MonkeyPatch,
    limits: Settings,
    **faults: str,
) -> Iterator[tuple[Trials, Bisection]]:
    """A search that ended. Each weight takes this share of the candidate's memory."""
    setup = Setup(faulty_candidate(**faults), Feeding(), graph.path.parent / "out", QUICK)
    with Workers(setup.candidate) as workers:
        for place in (
            "trials.region_runs.compute_raw",
            "questions.bisection.stretches.compute_held",
        ):
            monkeypatch.setattr(
                f"subgraph.{place}_bytes", lambda weight: int(held * (workers.memory or 0))
            )
        with open_trials(graph, setup, reference, workers) as trials:
            run_in_worker = RegionRuns._run_in_worker

            def counted(self: RegionRuns, *args: Any) -> Any:
                RUNS.extend([args] if self.runtime is trials.runtime else [])
                return run_in_worker(self, *args)

            RUNS.clear()
            monkeypatch.setattr(RegionRuns, "_run_in_worker", counted)
            bisection = Bisection(trials, BisectionOptions(setup, limits))
            list(bisection)
            yield trials, bisection


def test_fault_is_found_where_it_is_fed_with_captured_values(
    graph: Graph, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes fit at once. Nobody claims that the outputs are right, or that the fault explains
    them."""
    with searched(graph, reference, 0.2, monkeypatch, Settings(), nodes="n5") as (
        trials,
        bisection,
    ):
        document: Any = bisection.document
        assert not problem(document)
        assert [f["nodes"] for f in document["findings"]] == [["n5"]] and document["exit_code"] == 1
        assert document["whole"]["status"] == "unresolved" and has_line(
            document["whole"]["why"], "not run"
        )
        assert has_line(document["notes"], "unknown", "explains")
        assert not has_line(document["notes"], "outputs agree")
        asked = [step.items for step in bisection.steps if step.query.kind is not QueryKind.WHOLE]
        assert max(map(len, asked)) == 2 and {k for items in asked for k in items} == set(
            range(NODES)
        )
        assert [step.number for step in bisection.steps] == [*range(1, len(bisection.steps) + 1)]
        assert len(RUNS) == document["trials"]
        assert sorted(
            p.name for p in (graph.path.parent / "out").iterdir() if trials.model.scratch != p
        ) == [
            ".store",
            next(
                p.name
                for p in (graph.path.parent / "out").iterdir()
                if p.name.startswith("bisect-")
            ),
        ]


def test_where_nothing_goes_wrong_it_is_not_said_to_agree(
    graph: Graph, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference has run once for all stretches."""
    loads = list[str]()
    load = reference.load_model

    def counted(key: str, *args: Any, **more: Any) -> None:
        loads.append(key)
        load(key, *args, **more)

    monkeypatch.setattr(reference, "load_model", counted)
    with searched(graph, reference, 0.2, monkeypatch, Settings(), add="n5:0") as (_, bisection):
        assert loads == ["above"]
        document: Any = bisection.document
        assert document["exit_code"] == 5 and document["outcome"] == "unresolved"
        assert has_line(document["findings"][0]["why"], "4 stretches")


@pytest.mark.slow
def test_budgets_are_for_all_stretches(
    graph: Graph, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    with searched(graph, reference, 0.2, monkeypatch, Settings(max_trials=3), nodes="n7") as (
        _,
        bisection,
    ):
        assert len(RUNS) <= 3 and bisection.document["exit_code"] == 5
        assert has_line(bisection.document["findings"][0]["why"], "trials")


GROWS = """
import sys, time
import onnx
import onnxruntime as ort
def load(model, options):
    made = onnx.load(model)
    for node in made.graph.node:
        if node.name == "n5":
            node.op_type = "Add"
    names = [o.name for o in made.graph.output]
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    def run(feeds):
        held = bytearray(b"x" * ((400 << 20) if len(made.graph.node) > 4 else 1))
        time.sleep(1.0 if len(held) > 1 else 0.0)
        return dict(zip(names, session.run(names, dict(feeds))))
    return run
"""


@pytest.mark.slow
def test_one_that_outgrows_the_memory_of_all_is_not_wrong(graph: Graph) -> None:
    """Stopped at `--memory`, the whole says nothing: no region is blamed for it, and the pieces are
    asked."""
    folder = graph.path.parent
    (folder / "grows.py").write_text(GROWS)
    words = "bisect model.onnx -c grows.py --rtol 1e-3 --memory 400M --json".split()
    document = subcut(*words, cwd=folder).document
    assert not problem(document)
    assert (
        has_line(document["whole"]["why"], "--memory")
        and document["whole"]["status"] == "unresolved"
    )
    assert [f["nodes"] for f in document["findings"]] == [["n5"]]
    assert [s["number"] for s in document["steps"]] == [*range(1, len(document["steps"]) + 1)]
