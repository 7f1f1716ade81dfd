"""A folder of dumps, compared with a model as `subcut compare --recorded` compares it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from subgraph.graph.graph import load
from subgraph.recordings.compare_recording import compare_run
from subgraph.recordings.device_runs import RecordedFolder, RecordingOptions, open_runs
from subgraph.recordings.interval import find_intervals
from subgraph.recordings.result_folder import choose_exit_code
from subgraph.recordings.run_comparison import RunComparison
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from tests.helpers.text_models import labels


@dataclass(frozen=True)
class ComparedDump:
    """The last run of a folder, compared.

    Attributes:
        places: The labels of the nodes of each of its intervals.
        precision: The precision that the recording claims.
    """

    run: RunComparison
    places: list[list[str]]
    exit_code: int
    precision: str | None


def compare_dump(
    reference: Reference,
    model: Path,
    dump: Path,
    fed: Path | None = None,
    *,
    out: Path | None = None,
    layout: str = "",
    tensor_map: Mapping[str, str] | None = None,
    before: Callable[[], object] = lambda: None,
    then: Callable[[RunComparison], object] = lambda _: None,
) -> ComparedDump:
    """Compare the last run of a folder with a model.

    Args:
        fed: The input. None for the recorded one.
        out: The folder for scratch files; by default, `out` beside the dump.
        before: Is called before the values are read.
        then: Is called with the comparison while its values can be read.
    """
    graph = load(model)
    options = RecordingOptions((RecordedFolder(dump),), layout=layout, tensor_map=tensor_map or {})
    with (
        open_runs(graph, options, Feeding((str(fed),) if fed else ())) as recorded,
        recorded.open_judge(graph, reference, out or dump.parent / "out") as (judge, runs),
    ):
        before()
        found = compare_run(judge, runs[-1])
        then(found)
        places = [labels(graph, place.region.nodes) for place in find_intervals(found)]
        return ComparedDump(found, places, choose_exit_code([found]), recorded.candidate.precision)
