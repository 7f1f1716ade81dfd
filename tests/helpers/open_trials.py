"""A model, inputs and a candidate with seeded faults -> trials."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from subgraph.graph import region as regions
from subgraph.graph.graph import Graph
from subgraph.graph.region import Region
from subgraph.runtime import candidate
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.runtime.worker_pool import Workers
from subgraph.trials import open_trials
from subgraph.trials.trial import Trials
from tests.helpers import fake_candidate

QUICK = "numpy:rtol=1e-3,atol=1e-5"  # costs no reference run


def spec_of(backend: str, **options: str) -> str:
    """Return a backend with options, as `--candidate` takes it."""
    return backend + "".join(
        f"{',' if k else ':'}{name}={value}" for k, (name, value) in enumerate(options.items())
    )


def faulty_candidate(**faults: str) -> Candidate:
    """The fake candidate with these faults."""
    return replace(candidate.parse(fake_candidate.HERE), options=faults)


@contextmanager
def faulty_trials(
    graph: Graph,
    reference: Reference,
    workers: Workers,
    inputs: tuple[str, ...] = (),
    criterion: str = QUICK,
    freeze: bool = True,
    **faults: str,
) -> Iterator[Trials]:
    """Trials of the fake candidate with these faults; the store lies beside the model."""
    setup = open_trials.Setup(
        faulty_candidate(**faults),
        Feeding(inputs=inputs),
        graph.path.parent / "out",
        criterion,
        freeze,
    )
    with open_trials.open_trials(graph, setup, reference, workers) as trials:
        yield trials


def region_of(graph: Graph, *names: str) -> Region:
    """The region of these nodes."""
    return regions.build_region(graph, [graph.names[name] for name in names])
