"""`--recorded` for `compare`, `bisect` and `cut`: layer dumps of a device -> what the command does
with them, and the commands that follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from subgraph.commands import Result, make_command_line, split_names, table
from subgraph.commands.options import InputOptions, RecordedOptions, RuntimeOptions
from subgraph.commands.resolve import ResolvedOptions
from subgraph.errors import UsageError
from subgraph.graph.graph import load
from subgraph.iterables import flatten
from subgraph.precision import Precision
from subgraph.results.answer import NextCommand
from subgraph.text import clean, count, omit_middle
from subgraph.types import frozen

if TYPE_CHECKING:
    from subgraph.cases.case import Case, ResultPlace
    from subgraph.cases.write_case import CaseRequest
    from subgraph.comparison.where import OutputChoice
    from subgraph.graph.graph import Graph
    from subgraph.recordings.device_runs import RecordedFolder, RecordedRun, RecordingOptions
    from subgraph.recordings.run_comparison import RunComparison
    from subgraph.results.compare import IntervalDocument
    from subgraph.runtime.inputs import Feeding
    from subgraph.runtime.reference import Reference
    from subgraph.trials.judge import Judge
    from subgraph.trials.reference_model import ReferenceModel


MSACCUCMP = "msaccucmp"
NEEDS_CANDIDATE = "{} goes with a candidate, not with {}"


@frozen
class TensorChoice:
    """The tensors that `compare` compares: `at`, those between `start` and `end`, the outputs, or
    all; and whether the first bad one ends it.

    Attributes:
        in_place: No node is run alone.
        save: A folder for the values.
        every_row: The table is shown whole.
        power: The number of planted faults that are counted.
    """

    at: Sequence[str] = ()
    start: Sequence[str] = ()
    end: Sequence[str] = ()
    in_place: bool = False
    outputs: bool = False
    fail_fast: bool = False
    save: str | None = None
    # Recordings agree only if each was compared, those that are constant as well.
    every_output: bool = False
    every_row: bool = False  # of the table
    power: int = 0

    @property
    def is_part(self) -> bool:
        """Whether only some nodes are named."""
        return bool(self.at or self.start or self.end)

    def enter_body(self, names: Sequence[str]) -> TensorChoice:
        """Return the choice with the names of a body's graph; "" for all of it."""
        at, start, end = split_names(tuple(names), len(self.at), len(self.start))
        return replace(self, at=at, start=start, end=end)

    def list_names(self, model: ReferenceModel) -> Sequence[str]:
        """Return names and globs for `trials.compare_tensors`; empty for all tensors.

        Raises:
            UsageError, UnknownName, NoRegion: No tensor between start and end can be compared.
        """
        from subgraph.graph.region import find_region

        graph = model.graph
        if not (self.start or self.end):
            return self.at or (list(graph.outputs) if self.outputs else ())
        nodes = set(find_region(graph, self.start, self.end).nodes)
        made = [f"tensor:{name}" for name in model.tensors() if graph.maker[name] in nodes]
        if not made:
            raise UsageError(
                "between start and end nothing can be compared",
                "name others, or leave them out",
                code="region.no-values",
            )
        return made


def read_recording_options(
    recorded: RecordedOptions,
    runtime: RuntimeOptions,
    inputs: InputOptions,
    tensor_map: str | None = None,
    choice: OutputChoice | None = None,
) -> RecordingOptions:
    """Return the folders with recordings, and their description on the command line.

    Raises:
        UsageError: a layout or a precision is unknown, or the map cannot be read.
    """
    from subgraph.recordings.device_runs import RecordingOptions
    from subgraph.runtime import candidate
    from subgraph.trials.matching.match_tensors import read_map

    precision = candidate.parse_precision("--precision", runtime.precision)
    layout = parse_layout(recorded.dump_layout)
    folders = tuple(map(_parse_folder, recorded.recorded or ()))
    mapped = read_map(Path(tensor_map)) if tensor_map else {}
    seeded = inputs.seed is not None
    found = RecordingOptions(folders, recorded.dump_format or "", layout, precision, seeded, mapped)
    return replace(found, choice=choice or found.choice)


def _parse_folder(word: str) -> RecordedFolder:
    """Parse `board:int8=dumps/board` into a folder with its label and precision."""
    from subgraph.recordings.device_runs import RecordedFolder
    from subgraph.runtime import candidate

    label, sign, path = word.partition("=")
    if not sign or not path or Path(word).exists():
        return RecordedFolder(Path(word))
    label, _, precision = label.partition(":")
    known = candidate.parse_precision(f"--recorded {clean(word)}", precision) if precision else None
    return RecordedFolder(Path(path), label, known or "")


def parse_layout(word: str | None) -> str:
    """Return the layout's own name; empty for None.

    Raises:
        UsageError: no layout has that name.
    """
    from subgraph.storage import layouts

    name = layouts.normalize_name(word or "")
    if name and name not in layouts.KNOWN:
        raise UsageError(
            f"no layout '{name}'",
            f"known: {', '.join(layouts.KNOWN)}",
            code="layout.unknown",
        )
    return name


def compare_recorded(
    resolved: ResolvedOptions,
    recordings: RecordingOptions,
    choice: TensorChoice,
    csv_file: str | None,
    feeding: Feeding | None = None,
    following: Sequence[NextCommand] = (),
) -> Result:
    """Run `subcut compare MODEL --recorded DIR`: compare recorded tensors with the reference's.

    Args:
        resolved: The options.
        recordings: The folders.
        choice: The tensors to compare.
        csv_file: The file for the table, if any.
        feeding: The inputs; None for those of the options.
        following: The commands that follow if a recording is wrong.
    """
    from subgraph.cases import evidence
    from subgraph.cases.case import ResultPlace, describe_source
    from subgraph.recordings import device_runs, msaccucmp
    from subgraph.recordings.compare_recording import Choice
    from subgraph.recordings.interval import compare_runs
    from subgraph.recordings.result_folder import make_document
    from subgraph.recordings.run_comparison import iter_value_pairs
    from subgraph.reports.csv import render_compared as render_table
    from subgraph.reports.text import render_compared
    from subgraph.storage.value_pairs import require_free_folder, save_values
    from subgraph.trials.compare_tensors import select_tensors

    resolved = _mark_module(resolved, recordings)
    criterion = resolved.criterion
    path = resolved.model_path
    feeding = feeding or resolved.feeding
    npu = criterion == MSACCUCMP
    with (
        resolved.start_reference() as reference,
        device_runs.open_runs(graph := load(path), recordings, feeding) as recorded,
        recorded.open_judge(
            graph, reference, resolved.output, criterion, choice=recordings.choice
        ) as (judge, limited),
    ):
        names = select_tensors(judge.model, choice.list_names(judge.model))
        compared = compare_runs(judge, limited, Choice(names, choice.fail_fast, accuracy=npu))
        compared = [c.needing(graph.outputs) for c in compared] if choice.every_output else compared
        comparison = make_document(
            judge, compared, names, criterion, make_command_line(), stopped=choice.fail_fast
        )
        if comparison.exit_code == 1:
            comparison = replace(comparison, next=following)
        if choice.save:
            save_values(
                flatten(iter_value_pairs(c, names) for c in compared),
                require_free_folder(choice.save),
            )
        last = compared[-1]
        measured = npu and last.matched
        accuracy = msaccucmp.make_accuracy_rows(judge.model, last, names) if measured else []
    suffix = "-at" if choice.is_part else ""
    place = ResultPlace(resolved.output, f"compare-{recordings.name}{suffix}")
    reads = [graph.path, *recordings.paths]
    saved = evidence.save_document(comparison, place, describe_source(graph), reads)
    rows = msaccucmp.format_csv(accuracy) if npu else render_table(saved)
    told = render_compared(saved, every=choice.every_row or choice.is_part).rstrip("\n")
    return table.make_result(saved, told, rows, csv_file)


def bisect_recorded(
    resolved: ResolvedOptions, recordings: RecordingOptions, *, freeze: bool = True
) -> Result:
    """Run `subcut bisect MODEL --recorded DIR`: find the failing interval, and write it as a
    case."""
    from subgraph.cases import case, evidence
    from subgraph.recordings import device_runs, interval, result_folder
    from subgraph.recordings.interval import choose_run_to_narrow, compare_runs

    resolved = _mark_module(resolved, recordings)
    criterion = resolved.criterion
    parent = resolved.output
    force = resolved.result.force
    graph = load(resolved.model_path)
    feeding = resolved.feeding
    with (
        resolved.start_reference() as reference,
        device_runs.open_runs(graph, recordings, feeding) as recorded,
    ):
        candidate = recorded.candidate
        fed = recorded.feeding
        reads = [graph.path, *recordings.paths]
        place = case.ResultPlace(parent, f"recorded-{recordings.name}", force)
        request = case.to_plain(
            {
                "candidate": candidate.name,
                "identity": candidate.identity(""),
                "criterion": criterion,
                "recorded": [str(p) for p in recordings.paths],
                "inputs": feeding.inputs,
            }
        )
        place = case.find_free_place(place, case.describe_source(graph), reads)
        with recorded.open_judge(
            graph, reference, parent, criterion, freeze, recordings.choice
        ) as (outer, limited):
            compared = compare_runs(outer, limited)
            narrowed = choose_run_to_narrow(compared)
            judge = narrowed.judge
            reasons = interval.find_known_troubles(graph)
            intervals = interval.find_intervals(narrowed, interval.weigh_nodes(graph))
            document = result_folder.make_interval_document(
                judge, compared, narrowed, intervals, criterion, make_command_line(), reasons
            )
            named = resolved.settings.get("model", resolved.model) or str(graph.path)
            document = replace(document, model=replace(document.model, path=named))
            if intervals:
                document = result_folder.save(
                    judge.model,
                    narrowed,
                    intervals,
                    document,
                    place,
                    request,
                    fed,
                    lambda saved: list_next_commands(saved, narrowed, fed),
                )
        if not intervals:  # an earlier finding stays
            aside = case.ResultPlace(parent, f"{place.name}-report", force)
            document = evidence.save_document(document, aside, case.describe_source(graph), reads)
    return table.render_comparison(document, None)


def cut_recorded(
    graph: Graph,
    request: CaseRequest,
    place: ResultPlace,
    reference: Reference,
    recordings: RecordingOptions,
) -> list[Case]:
    """Run `subcut cut --recorded DIR`: the inputs of the cut and `dump_data` are the recorded
    tensors."""
    from subgraph.cases.case import RecordingEntry
    from subgraph.cases.write_case import find_place
    from subgraph.recordings import device_runs, result_folder
    from subgraph.recordings.compare_recording import match_run

    find_place(graph, request, place)  # a mistake there is reported before anything runs
    with device_runs.open_runs(graph, recordings, request.feeding) as recorded:
        fed = recorded.feeding
        one = device_runs.RecordedRuns([device_runs.choose_device_run(recorded.runs)], fed)
        with one.open_judge(graph, reference, place.parent, freeze=request.freeze) as (
            judge,
            (run,),
        ):
            assert run.recording
            recording = RecordingEntry(
                run.name, str(run.recording.folder), run.recording.format, fed=bool(fed.records)
            )
            cuts = result_folder.write_recorded_case(
                graph, request, place, judge, match_run(judge, run), recording
            )
    return cuts


def _mark_module(resolved: ResolvedOptions, recordings: RecordingOptions) -> ResolvedOptions:
    """Return the options for a translated model if `subgraph.torch.record` wrote a recording."""
    from subgraph.recordings.device_runs import is_of_module

    of_module = any(is_of_module(folder.path) for folder in recordings.folders)
    if of_module:
        return replace(resolved, translated=True)
    return resolved


def compare_recordings(judge: Judge, runs: Sequence[RecordedRun]) -> list[RunComparison]:
    """Compare the recordings that choose the first nodes of a search."""
    from subgraph.recordings.compare_recording import compare_run
    from subgraph.recordings.device_runs import limit_samples

    samples = len(judge.model.values.samples)
    return [compare_run(judge, r) for r in limit_samples(runs, samples) if not r.missing]


def iter_recording_notes(compared: Iterable[RunComparison]) -> Iterator[str]:
    """Yield a note on each recording that differs, whatever the candidate does."""
    for one in compared:
        if failing := one.failing:
            many = f"{len(failing)} of {count(one.rows, 'recorded tensor')}"
            yield f"the recording {one.run.name} differs in {many}, first {clean(failing[0])}"


def list_next_commands(
    document: IntervalDocument,
    compared: RunComparison,
    feeding: Feeding,
) -> list[NextCommand]:
    """Return the commands that take the search to this very device: its element type and layout,
    the user's files."""
    dtype, layout = _find_form(compared)
    first = document.findings[0]
    case = first.case or "CASE"
    ends = [
        name if omit_middle(name) == name else f"#{index}"
        for name, index in zip(first.nodes, first.indices, strict=True)
    ]
    words = [clean(str(document.model.path)), "--within", f"{ends[0]}..{ends[-1]}"]
    if not feeding.records:
        words += flatten(("-i", file) for file in feeding.inputs)
    words += ["--export", ":".join(filter(None, ("bin", dtype, layout)))] if dtype or layout else []
    precision = compared.run.precision or document.setup.precision
    words += ["--precision", precision] if precision != Precision.FP32 else []
    if document.setup.criterion != "noise":
        words += ["--criterion", document.setup.criterion]
    form = [*(("--dtype", dtype) if dtype else ()), *(("--layout", layout) if layout else ())]
    return [
        NextCommand(
            "write the interval's inputs in the device's form",
            ["subcut", "export", case, "-o", "to_device", *form],
        ),
        NextCommand("continue the search by hand", ["subcut", "manual", "start", *words]),
    ]


def _find_form(compared: RunComparison) -> tuple[str, str]:
    """Return the element type and the layout in which a device records; both "" if they are the
    model's."""
    matches = list(flatten(sample.matches.values() for sample in compared.matched))
    floats = Counter(match.entry.dtype for match in matches if "float" in match.entry.dtype)
    last = any(
        m.entry.layout == "NHWC" or (m.alignment and m.alignment.is_channels_last) for m in matches
    )
    dtype = floats.most_common(1)[0][0] if floats else ""
    if last:
        return dtype or "float32", "NHWC"
    return "" if dtype in ("float32", "float64") else dtype, ""
