"""`subcut replay`: a case -> trials of any candidate on its model, fed with its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from subgraph.cases.find_case import FoundCase
from subgraph.cases.layout import CANDIDATE, MODEL
from subgraph.comparison.where import OutputChoice
from subgraph.errors import InputError
from subgraph.graph.graph import load
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.runtime.remote.remote_pool import open_workers
from subgraph.storage import folders
from subgraph.trials.candidate_model import load_own_model
from subgraph.trials.open_trials import Setup, open_trials
from subgraph.trials.trial import Trials


@contextmanager
def open_case(
    case: FoundCase, k: int, candidate: Candidate, criterion: str, reference: Reference
) -> Iterator[Trials]:
    """Trials on a case's model, fed with its sample `k`.

    Raises:
        InputError: an input is not a single tensor. Others as `open_trials`.
    """
    inputs = []
    for name, records in case.inputs.items():
        if not records or len(records[k].files) != 1:
            raise InputError(
                f"input '{name}' of the case is not a single tensor",
                "run its repro.py",
                code="tensor.not-tensor",
            )
        inputs.append(f"{name}={records[k].files[0]}")
    graph = load(case.place / MODEL)
    with folders.temporary() as temporary, open_workers(candidate) as workers:
        other = load_own_model(graph, case.place / CANDIDATE)
        outputs = {name for name in graph.outputs if name in graph.maker}
        choice = OutputChoice.of_document(case.found_with).among(outputs)
        setup = Setup(
            candidate,
            Feeding(tuple(inputs)),
            temporary,
            criterion,
            candidate_model=other,
            choice=choice,
        )
        with open_trials(graph, setup, reference, workers) as trials:
            yield trials
