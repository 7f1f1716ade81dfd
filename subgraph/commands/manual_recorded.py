"""`subcut manual start --recorded`: what a recording tells a manual bisection: where to look
first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from subgraph.errors import InputError
from subgraph.precision import Precision
from subgraph.reports.text import recorded_lines
from subgraph.text import clean

if TYPE_CHECKING:
    from subgraph.bisection.manual.session import RecordedEvidence
    from subgraph.recordings.run_comparison import RunComparison
    from subgraph.recordings.runs import RecordedRun, RecordedRuns
    from subgraph.storage.tensors import Record
    from subgraph.trials.judge import Judge

MAX_PLACES = 4  # at which the search looks before it halves


def evidence_of(
    judge: Judge, runs: Sequence[RecordedRun], criterion: str, command: str
) -> RecordedEvidence:
    """What the recording of a device tells; files of the outputs lie in the scratch folder.

    Raises:
        InputError: it was made with another input, or holds nothing of the model.
    """
    from subgraph.bisection.manual.session import RecordedEvidence
    from subgraph.recordings import interval, result_folder
    from subgraph.recordings.compare import compare_run
    from subgraph.recordings.runs import limit_samples, run_of_device

    (run,) = limit_samples([run_of_device(runs)], len(judge.model.values.samples))
    compared = compare_run(judge, run)
    other = compared.other_input
    if compared.wrong_input or other:
        what = (
            compared.wrong_input
            or f"{clean(run.name)} was made with another input: {clean(other[0])} differs"
        )
        raise InputError(
            what,
            "-i what the device was fed; or start without --recorded",
            code="recording.other-input",
        )
    graph = judge.model.graph
    weights = interval.node_weights(graph)
    intervals = interval.find_intervals(compared, weights)
    document = result_folder.document(
        judge, [compared], compared, intervals, criterion, command, interval.known_troubles(graph)
    )
    own_errors: dict[str, float] = {}
    places = [i for i in intervals if i.adds_error is not False][:MAX_PLACES]
    for place in places:
        for name in place.first_bad:
            alone = compared.rows[name].alone
            single = alone is not None and len(place.region.nodes) == 1
            own_errors[name] = float(alone.errors.get("max_rel", 0.0)) if alone and single else 0.0
    wrong = {
        name: row.failing
        for name, row in compared.rows.items()
        if row.compared and not row.match.alternatives
    }
    nodes = [list(place.region.nodes) for place in places]
    outputs = _outputs(compared)
    lines = recorded_lines(document)
    return RecordedEvidence(run.name, lines, wrong, own_errors, nodes, outputs)


def precision_of(recorded: RecordedRuns) -> str | None:
    """What the device that recorded these runs computes in, where the types of the files tell."""
    precision = replace(recorded, precision=None).candidate.precision
    return None if precision == Precision.FP32 else precision


def _outputs(compared: RunComparison) -> list[list[Record]]:
    """Per sample, the model's recorded outputs; none where one was not recorded or is not
    certain."""
    model = compared.judge.model
    rows = compared.rows
    names = model.whole().outputs
    if not all(
        name in rows and rows[name].compared and name in m.matches
        for name in names
        for m in compared.matched
    ):
        return []
    if len(compared.matched) != len(model.values.samples):
        return []
    folders = [model.new_folder() for _ in compared.matched]
    return [
        [matched.save(name, folder, f"o{i}") for i, name in enumerate(names)]
        for matched, folder in zip(compared.matched, folders, strict=True)
    ]
