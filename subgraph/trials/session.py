"""Everything that trials need, opened together and closed together: processes, values, store, scratch."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from subgraph.comparison.judge import criterion
from subgraph.graph.graph import Graph, load
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.runtime.reference_values import ReferenceValues, plan_all
from subgraph.runtime.worker_pool import NoWorkers, Workers
from subgraph.storage import folders
from subgraph.storage.store import Store
from subgraph.trials.candidate_model import pair
from subgraph.trials.match_tensors import read_map
from subgraph.trials.trial import Trials

log = logging.getLogger("subcut")

STORE = ".store"  # within the folder of results


@dataclass(frozen=True)
class Setup:
    """What trials depend on beside the model.

    Attributes:
        output: the folder of results; the store lives in it.
        criterion: words as `judge.criterion` takes them.
        stored: may answers of earlier runs be used?
        other: the model that the candidate runs instead of ours; map: a file that says which tensor is which.
    """

    candidate: Candidate
    feeding: Feeding
    output: Path
    criterion: str = "noise"
    freeze: bool = True
    stored: bool = True
    other: Path | None = None
    map: Path | None = None


@contextmanager
def trials(graph: Graph, setup: Setup, reference: Reference, workers: Workers) -> Iterator[Trials]:
    """Trials on one model, until the block ends; the processes are the caller's, started while it read the model.

    Raises:
        UsageError: criterion or inputs mean nothing. BackendError: the candidate cannot be used.
        OutputError: nothing can be written.
    """
    rule = criterion(setup.criterion)
    graph.prepare()
    samples, output = plan_all(graph, setup.feeding), setup.output.absolute()
    with ExitStack() as stack:
        scratch = stack.enter_context(folders.scratch(output))
        store = stack.enter_context(Store(output / STORE if setup.stored else scratch / STORE))
        values = ReferenceValues(graph, reference, samples, scratch / "values")
        found = Trials(graph, setup.candidate, workers, reference, values, store, rule, scratch, setup.freeze)
        if setup.other:
            said = read_map(setup.map) if setup.map else {}
            found.other = pair(graph, load(setup.other).prepare(), reference, values, scratch, said)
            log.info("%s", found.other.summary())
        yield found


@contextmanager
def opened(graph: Graph, setup: Setup, reference: Candidate) -> Iterator[Trials]:
    """The same with processes of its own; `reference` is what is right, `ort` being plain onnxruntime.

    Raises: as `trials`.
    """
    plain = reference.backend == "ort" and not reference.options
    given = (
        Reference()
        if plain
        else Reference(reference.backend, reference.options, timeout=reference.timeout, memory=reference.memory)
    )
    with given as running, Workers(setup.candidate) as workers, trials(graph, setup, running, workers) as asked:
        yield asked


@contextmanager
def passive(graph: Graph, setup: Setup, running: Reference) -> Iterator[Trials]:
    """The same without a process of the candidate: a person runs it, or it has run already.

    Raises: as `trials`.
    """
    with trials(graph, setup, running, NoWorkers(setup.candidate)) as asked:
        yield asked
