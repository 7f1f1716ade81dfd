"""Recordings that a user names -> the runs in them, and what the reference is to be fed: what the device was."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from subgraph.errors import UsageError
from subgraph.graph.graph import Graph
from subgraph.recordings import runs
from subgraph.recordings.compare import claim_of
from subgraph.recordings.runs import RecordedRun
from subgraph.runtime.candidate import RECORDED, Candidate
from subgraph.runtime.inputs import Feeding
from subgraph.storage.folders import scratch
from subgraph.text import clean

log = logging.getLogger("subcut")


@dataclass(frozen=True)
class RecordingOptions:
    """What the user says of recordings.

    Attributes:
        places: folders. format, layout: of them; "" where that is to be found out.
        precision: that the device computes in; None: as the recorded types tell.
        seeded: are random inputs what the device was fed?
    """

    places: tuple[Path, ...]
    format: str = ""
    layout: str = ""
    precision: str | None = None
    seeded: bool = False


@contextmanager
def opened(graph: Graph, asked: RecordingOptions, feeding: Feeding) -> Iterator[tuple[list[RecordedRun], Feeding]]:
    """The runs, and what the reference is to be fed: what the user says, else what was recorded.

    Recorded inputs lie in files until the block ends.

    Raises:
        InputError: nothing can be read. UsageError: nobody says what the device was fed.
    """
    found = runs.open_all(asked.places, graph, asked.layout, asked.format or None)
    with scratch(Path(tempfile.gettempdir()), "subcut-fed") as temporary:  # what a killed run left goes with it
        own = _feeding(found, graph, feeding, asked.seeded, temporary)
        yield found, own


def _feeding(found: Sequence[RecordedRun], graph: Graph, feeding: Feeding, seeded: bool, into: Path) -> Feeding:
    if feeding.inputs or seeded:
        return feeding
    recorded = runs.fed(found, graph)
    lacking = [n for n in graph.inputs if not recorded or any(n not in sample for sample in recorded)]
    if lacking:
        what = f"nobody says what the device was fed: the recording holds no input '{clean(lacking[0])}'"
        raise UsageError(what, "-i FILE, or --seed N where it was subcut's own random input")
    loose = frozenset().union(*(run.loose for run in found))
    words = runs.save_fed(recorded, graph, loose, into)
    log.info("inputs: %s, from the recording", ", ".join(map(clean, graph.inputs)))
    return replace(feeding, inputs=tuple(words))


def candidate_of(found: Sequence[RecordedRun], precision: str | None) -> Candidate:
    """What is doubted: what the runs come from; it cannot be run."""
    name = "+".join(run.name for run in found)
    return Candidate(name, RECORDED, precision=precision or claim_of(found))
