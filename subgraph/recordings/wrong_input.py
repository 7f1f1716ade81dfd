"""Was the device fed other values than the reference? The first recorded tensors behind an input
tell.

Where they are wrong, the reference is run on the input as it is usually misread. One of these
misreadings is meant if it brings each of them far nearer. All else is then compared with what the
reference gives for it, so that a fault besides is still found, and no healthy node is blamed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from subgraph.errors import InputError, ModelError, WorkerDied
from subgraph.graph.graph import Graph
from subgraph.reach import reach
from subgraph.recordings.device_runs import RecordedRun
from subgraph.recordings.dumps import DumpEntry
from subgraph.recordings.matching.align import BlockSums
from subgraph.recordings.matching.match import match_sample
from subgraph.recordings.matching.matched import EXACT
from subgraph.recordings.reference_tensors import capture_tensors, read_reference_value
from subgraph.recordings.run_comparison import RunComparison
from subgraph.trials.judge import Judge
from subgraph.trials.matching.match_tensors import CLEARER, NEAR
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.similar_outputs import MisreadInput, feed_misread, misread_inputs

MAX_SECONDS = 60.0  # that misreadings may take
FIRST = 8  # tensors behind an input, among which entries of unknown names are looked for


def find_first_recorded(graph: Graph, name: str, recorded: Collection[str]) -> list[str]:
    """The recorded tensors behind an input that are computed from it through none that is
    recorded."""

    def follow(i: int) -> Iterator[int]:
        for made in graph.makes[i]:
            if made not in recorded:
                yield from graph.readers.get(made, ())

    nodes = graph.in_order(reach(graph.readers.get(name, ()), follow))
    tensors = graph.iter_outputs(nodes)
    return [name for name in tensors if name in recorded]


def find_misread_input(
    judge: Judge, run: RecordedRun, compared: RunComparison | None
) -> MisreadInput | None:
    """How the device was fed, if that explains the first tensors that are wrong; None where nothing
    does.

    `compared`: with the user's input; None where no tensor could be.

    Complexity: some 20 runs of the nodes up to the first tensors; it ends after MAX_SECONDS.
    """
    graph = judge.model.graph
    end = time.monotonic() + MAX_SECONDS
    best: tuple[float, MisreadInput | None] = math.inf, None
    rows = compared.rows if compared else {}
    matches = (
        {n: match for n, match in compared.matched[0].matches.items() if n in rows}
        if compared
        else {}
    )
    for name in graph.inputs:
        wrong = [n for n in find_first_recorded(graph, name, matches) if rows[n].failing]
        if matches and not wrong:
            continue
        distances = {matches[n].entry: matches[n].distance for n in wrong} or dict.fromkeys(
            run.samples[0], math.inf
        )
        for misread in takewhile(
            lambda _: time.monotonic() < end, misread_inputs(judge.model, [name])
        ):
            far = _measure_distance(feed_misread(judge, misread), run, distances)
            best = min(best, (far, misread), key=lambda pair: pair[0])
            if far <= EXACT:
                return misread
    return best[1]


def _measure_distance(judge: Judge, run: RecordedRun, before: Mapping[DumpEntry, float]) -> float:
    """The mean distance of some entries from the reference, infinite unless each is far nearer than
    `before`.

    Where nothing is known of any of them: of those that have a match at all.
    """
    known = any(map(math.isfinite, before.values()))
    try:
        if not known and not _can_hold(judge.model, list(before)):
            return math.inf
        matches = match_sample(judge, replace(run, samples=(tuple(before),))).matches.values()
    except (InputError, ModelError, WorkerDied):
        return math.inf
    distances = {m.entry: m.distance for m in matches if m.tensor in judge.model.graph.maker}
    if not distances or (known and distances.keys() != before.keys()):
        return math.inf
    nearer = all(
        away <= NEAR and not away * CLEARER >= before[entry] for entry, away in distances.items()
    )
    return sum(distances.values()) / len(distances) if nearer else math.inf


def _can_hold(model: ReferenceModel, entries: Sequence[DumpEntry]) -> bool:
    """May one of the entries hold one of the first tensors, in any order of its numbers?"""
    first = model.tensors()[:FIRST]
    capture_tensors(model, first)
    values = ((n, read_reference_value(model, n, 0)) for n in first)
    sums = BlockSums(
        (n, value) for n, value in values if value is not None and value.dtype.kind == "f"
    )
    return any(sums.near(entry.read(), NEAR) for entry in entries if not entry.missing)
