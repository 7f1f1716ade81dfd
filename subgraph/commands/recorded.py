"""`--recorded` for `compare`, `bisect` and `cut`: layer dumps of a device -> what the command does with them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph.commands import Result, log, table
from subgraph.commands.options import InputOptions, RecordedOptions, RuntimeOptions
from subgraph.documents import to_json
from subgraph.errors import UsageError
from subgraph.graph.graph import load
from subgraph.text import clean, count

if TYPE_CHECKING:
    from subgraph.cases.case import Case, ResultPlace
    from subgraph.cases.write_case import CaseRequest
    from subgraph.graph.graph import Graph
    from subgraph.recordings.runs import RecordedRun, RecordingOptions
    from subgraph.runtime.inputs import Feeding
    from subgraph.runtime.reference import Reference
    from subgraph.trials.trial import Trials

MSACCUCMP = "msaccucmp"
MOST = 4  # intervals that are shown, and get a folder
SHOWN = 5  # entries of no tensor, and suspects, that are named
FOLDER_NAME_CHARS = 60  # characters of a recording's name in a folder's
FED = "the model's input"
GOLDEN = ":golden"  # how a toolkit calls its own float values


@dataclass(frozen=True)
class TensorChoice:
    """Which tensors `compare` looks at: those that `at` names, the model's outputs, or all; up to the first bad one?"""

    at: Sequence[str] = ()
    outputs: bool = False
    fail_fast: bool = False

    def words(self, graph: Graph) -> Sequence[str]:
        """Names and globs for `trials.compare`; empty for all tensors."""
        return self.at or (list(graph.outputs) if self.outputs else ())


def recording_options(recorded: RecordedOptions, runtime: RuntimeOptions, inputs: InputOptions) -> RecordingOptions:
    """The folders with recordings, and what the command line says about them.

    Raises:
        UsageError: a layout or a precision is unknown.
    """
    from subgraph.recordings.runs import RecordingOptions
    from subgraph.runtime import candidate

    precision = candidate.precision("--precision", runtime.precision)
    layout = known_layout(recorded.dump_layout)
    folders = tuple(map(Path, recorded.recorded or ()))
    return RecordingOptions(folders, recorded.dump_format or "", layout, precision, seeded=inputs.seed is not None)


def known_layout(word: str | None) -> str:
    """The layout's own name; empty for None.

    Raises:
        UsageError: no layout has that name.
    """
    from subgraph.storage import layouts

    name = layouts.named(word or "")
    if name and name not in layouts.KNOWN:
        raise UsageError(f"no layout '{clean(name)}'", f"known: {', '.join(layouts.KNOWN)}")
    return name


def refuse_beside_recorded(values: Mapping[str, object]) -> None:
    """
    Raises:
        UsageError: one of these options, which belong to a candidate, is given.
    """
    for option, value in values.items():
        if value:
            raise UsageError(f"{option} goes with a candidate, not with --recorded", "leave one of them out")


def compare_recorded(
    model_path: Path, recordings: RecordingOptions, feeding: Feeding, criterion: str, reference: Reference,
    parent: Path, choice: TensorChoice, csv_file: str | None,
) -> Result:  # fmt: skip
    """`subcut compare MODEL --recorded DIR`: every tensor that was recorded, beside the reference's."""
    from subgraph.recordings import document as contrast
    from subgraph.recordings import msaccucmp_table, runs
    from subgraph.recordings.compare import compare_run
    from subgraph.trials.compare import chosen
    from subgraph.trials.session import Setup, open_trials

    npu = criterion == MSACCUCMP
    graph = load(model_path)
    with reference, runs.open_runs(graph, recordings, feeding) as (recorded, fed):
        candidate = runs.candidate_of(recorded, recordings.precision)
        setup = Setup(candidate, fed, parent, criterion, stored=False)
        with open_trials(graph, setup, reference) as trials:
            names = chosen(trials, choice.words(graph))
            compared = [
                compare_run(trials, run, only=names, fail_fast=choice.fail_fast, accuracy=npu)
                for run in runs.limit_samples(recorded, len(trials.values.samples))
            ]
            document = to_json(contrast.document(trials, compared, names, criterion, stopped=choice.fail_fast))
            tables = [msaccucmp_table.accuracy_rows(trials, c, names) if npu and c.matched else [] for c in compared]
            for recording, lines in zip(document["recordings"], tables, strict=True):
                recording["advice"] = to_json(msaccucmp_table.advice(lines)) if lines else None
            npu_csv = msaccucmp_table.as_csv(tables[-1]) if npu else ""
    return table.result(document, text, lambda d: npu_csv if npu else as_csv(d), csv_file)


def bisect_recorded(
    model_path: Path, recordings: RecordingOptions, feeding: Feeding, criterion: str, reference: Reference,
    parent: Path, *, freeze: bool = True, force: bool = False,
) -> Result:  # fmt: skip
    """`subcut bisect MODEL --recorded DIR`: between which tensors it goes wrong; that piece as a case."""
    from subgraph.cases import case
    from subgraph.recordings import interval, result_folder, runs
    from subgraph.recordings.compare import compare_run
    from subgraph.storage.folders import safe_name
    from subgraph.trials.session import Setup, open_trials

    if len(recordings.folders) > 1:
        raise UsageError(
            "--recorded twice: bisect looks at one recording", "subcut compare names the odd one of several"
        )
    graph = load(model_path)
    with reference, runs.open_runs(graph, recordings, feeding) as (recorded, fed):
        run = _run_of_device(recorded)
        candidate = runs.candidate_of([run], recordings.precision)
        place = case.ResultPlace(parent, f"recorded-{safe_name(run.name)[:FOLDER_NAME_CHARS]}", force)
        request = case.plain({"candidate": candidate.name, "identity": candidate.identity(""), "criterion": criterion,
                              "recorded": [str(p) for p in recordings.folders], "inputs": feeding.inputs})  # fmt: skip
        case.require_free(place, request, case.source_of(graph), [graph.path, *recordings.folders])
        setup = Setup(candidate, fed, parent, criterion, freeze=freeze, stored=False)
        with open_trials(graph, setup, reference) as trials:
            (run,) = runs.limit_samples([run], len(trials.values.samples))
            compared = compare_run(trials, run)
            reasons = interval.known_troubles(graph)
            intervals = interval.find_intervals(trials, compared, interval.node_weights(graph))
            command = shlex.join(["subcut", *sys.argv[1:]])
            document = result_folder.document(trials, compared, intervals, criterion, command, reasons)
            if intervals:
                document = result_folder.save(trials, compared, intervals, document, place, request, fed)
    shown = to_json(document)
    return Result(shown, interval_text(shown), document.exit_code)


def cut_recorded(
    graph: Graph, request: CaseRequest, place: ResultPlace, reference: Reference, recordings: RecordingOptions
) -> list[Case]:
    """`subcut cut --recorded DIR`: what enters the cut, and `dump_data`, are what the device recorded."""
    from subgraph.cases.case import RecordingEntry
    from subgraph.cases.write_case import chosen
    from subgraph.recordings import cut, runs
    from subgraph.recordings.compare import match_run
    from subgraph.trials.session import Setup, open_trials

    chosen(graph, request, place)  # a mistake there is reported before anything runs
    with runs.open_runs(graph, recordings, request.feeding) as (recorded, fed):
        run = _run_of_device(recorded)
        candidate = runs.candidate_of([run], None)
        setup = Setup(candidate, fed, place.parent, stored=False, freeze=request.freeze)
        with open_trials(graph, setup, reference) as trials:
            (run,) = runs.limit_samples([run], len(trials.values.samples))
            assert run.recording
            recording = RecordingEntry(run.name, str(run.recording.folder), run.recording.format, fed=bool(fed.records))
            cuts = cut.write_recorded_case(graph, request, place, trials, match_run(trials, run), recording)
    for case in cuts:
        case.manifest["hint"] = cut.compiler_hint(case.manifest)
    return cuts


def _run_of_device(runs: Sequence[RecordedRun]) -> RecordedRun:
    """The run to narrow down: the device's, where a toolkit's own golden values lie beside it; of several the last."""
    candidates = [run for run in runs if not run.missing and not run.name.endswith(GOLDEN)] or list(runs)
    if len(candidates) > 1:
        log.warning("%s: the last of %s is looked at", clean(candidates[-1].name), count(len(candidates), "run"))
    return candidates[-1]


def weights_of(trials: Trials, runs: Sequence[RecordedRun]) -> dict[int, float]:
    """How likely each node is to blame, by its index, as recordings tell."""
    from subgraph.recordings import interval
    from subgraph.recordings.compare import compare_run
    from subgraph.recordings.runs import limit_samples

    samples = len(trials.values.samples)
    compared = [compare_run(trials, run) for run in limit_samples(runs, samples) if not run.missing]
    return interval.interval_weights(trials, compared)


def interval_text(document: dict[str, Any]) -> str:
    """The document for people: the run, then each interval with its suspects."""
    one = document["recordings"][0]
    lines = [f"recorded  {clean(one['name'])}  {one['format']}: {clean(one['matched'])}   {document['precision']}"]
    lines += [f"  ! {clean(note)}" for note in one["notes"]]
    lines.append(f"          {one['wrong']} of {count(one['compared'], 'tensor')} wrong")
    for finding in document["findings"][:MOST]:
        lines += _interval(finding)
    if len(document["findings"]) > MOST:
        lines.append(f"and {len(document['findings']) - MOST} further places that add an error of their own (--json)")
    if document["findings"]:
        lines += ["no trial was possible: nothing is certified. Next, on the device:", *_next(document)]
    elif not document["exit_code"]:
        lines.append("all that was recorded agrees")
    return "\n".join(lines)


def _interval(finding: dict[str, Any]) -> list[str]:
    good = [f"{', '.join(map(clean, finding['last_good']))} (good)"] if finding["last_good"] else []
    good += [f"{', '.join(map(clean, finding['wrong_before']))} (wrong already)"] if finding["wrong_before"] else []
    bad = ", ".join(map(clean, finding["first_bad"]))
    head = "interval" if finding["first"] else "behind it"
    nodes = finding["nodes"]
    lines = [
        f"{head:<9} {', '.join(good) or FED} … {bad} ({_judged(finding['in_place'])})   {count(len(nodes), 'node')}"
    ]
    if finding["adds_an_error"] is False:
        lines.append(
            "          fed with what was recorded before it, the reference gives the same: the error grew above"
        )
    for k, suspect in enumerate(finding["suspects"][:SHOWN]):
        why = f"   {clean(suspect['why'])}" if suspect["why"] else ""
        lines.append(
            f"  {'suspects' if not k else '':<8}  #{suspect['index']} {clean(suspect['node'])} ({suspect['op']}){why}"
        )
    if len(nodes) > SHOWN:
        lines.append(f"            and {len(nodes) - SHOWN} more")
    if unseen := finding["not_seen"]:
        lines.append(f"  not seen  {', '.join(map(clean, unseen[:SHOWN]))}{' …' if len(unseen) > SHOWN else ''}")
    if finding["case"]:
        lines.append(f"  case      {clean(finding['case'])}/")
    return lines


def _next(document: dict[str, Any]) -> list[str]:
    finding, model = document["findings"][0], document["model"]["path"]
    place = shlex.quote(finding["case"] or "CASE")
    span = shlex.quote(f"{finding['nodes'][0]}..{finding['nodes'][-1]}")
    told = [f"--precision {document['precision']}"] if document["precision"] != "fp32" else []
    told += [f"--criterion {shlex.quote(document['criterion'])}"] if document["criterion"] != "noise" else []
    words = " ".join([shlex.quote(clean(model)), "-i FILE", f"--within {span}", *told])
    return [
        f"  subcut export {place} -o to_device --dtype float16 --layout NHWC     its inputs in the device's form",
        f"  subcut manual start {words}     the same search, run by you",
    ]


# ---------------------------------------------------------------------------------------------------- text


def text(document: dict[str, Any]) -> str:
    """The document for people."""
    lines: list[str] = []
    for one in document["recordings"]:
        if one["missing"]:
            lines.append(f"{clean(one['name'])}  MISSING  {clean(one['missing'])}")
        else:
            lines.append(f"{clean(one['name'])}  {one['format']}: {clean(one['matched'])}   {document['precision']}")
        lines += [f"  ! {clean(note)}" for note in one["notes"]]
    lines += _table(document)
    for one in document["recordings"]:
        lines += _summary(one, several=len(document["recordings"]) > 1)
    if document["odd_one_out"]:
        row = next(r for r in document["rows"] if r["odd_one_out"])
        lines.append(f"odd one out       {clean(row['odd_one_out'])}, first in {clean(row['tensor'])}")
    return "\n".join(lines)


def _table(document: dict[str, Any]) -> list[str]:
    runs = document["recordings"]
    single = len(runs) == 1
    heads = ("in place", "alone", "note") if single else (*(clean(r["name"]) for r in runs), "odd one out", "note")
    cells: list[tuple[str, ...]] = [("", "node", "op", "tensor", *heads)]
    for row in document["rows"]:
        names = (f"#{row['index']}", clean(row["node"]), row["op"], clean(row["tensor"]))
        shown = [_cell(cell) for cell in row["runs"]]
        notes = "; ".join(dict.fromkeys(c["note"] for c in row["runs"] if c and c["note"]))
        if single:
            own = row["runs"][0]
            more = (_judged(own["alone"]) if own and own["alone"] else "-", clean(notes))
        else:
            more = (clean(row["odd_one_out"] or ""), clean(notes))
        cells.append((*names, *shown, *more))
    return table.aligned(cells)


def _cell(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "not seen"
    return _judged(cell["in_place"]) if cell["in_place"] else f"unresolved: {clean(cell['why'])}"


def _judged(judged: dict[str, Any]) -> str:
    error = judged["errors"].get("max_rel")
    word = {"fail": "FAIL", "unresolved": "unresolved"}.get(judged["status"], "agree")
    more = judged["signature"] if judged["signature"] not in (None, "mismatch") else ""
    return " ".join(filter(None, (f"{error:.1e}" if isinstance(error, float) else "", word, more)))


def _summary(one: dict[str, Any], *, several: bool) -> list[str]:
    if one["missing"]:
        return []
    lost = one["lost"]
    whose = f"{clean(one['name'])}: " if several else ""
    lines = [f"{whose}{one['wrong']} of {count(one['compared'], 'tensor')} wrong"]
    if lost:
        names = ", ".join(f"{clean(e['name'])} ({clean(e['why'])})" for e in lost[:SHOWN])
        lines.append(f"left out          {names}{f' and {len(lost) - SHOWN} more' if len(lost) > SHOWN else ''}")
    if advice := one["advice"]:
        lines.append(f"{whose}advisor           {advice['kind']}: {advice['verdict']}   {clean(advice['says'])}")
    if one["first_bad"]:
        good = one["last_good"]
        last = f"   last good: {', '.join(map(clean, good)) or FED}" if good is not None else ""
        lines.append(f"{whose}first bad tensor  {clean(one['first_bad'])}{last}")
    return lines


# ---------------------------------------------------------------------------------------------------- CSV

COLUMNS = ("index", "node", "op", "tensor")
PER_RUN = ("status", "signature", "max_abs", "max_rel", "cosine", "mismatch", "alone", "recorded_as", "file", "note")


def as_csv(document: dict[str, Any]) -> str:
    """A line per tensor, with columns for each run."""
    runs = document["recordings"]
    names = [f"{clean(r['name'])}_" if len(runs) > 1 else "" for r in runs]
    head = [*COLUMNS, *(f"{name}{column}" for name in names for column in PER_RUN), "odd_one_out"]
    rows = []
    for row in document["rows"]:
        cells = [row[c] for c in COLUMNS]
        for cell in row["runs"]:
            judged = (cell or {}).get("in_place") or {}
            errors = judged.get("errors", {})
            cells += [judged.get("status") if judged else "unresolved" if cell else "not seen", judged.get("signature")]
            cells += [errors.get(name) for name in PER_RUN[2:6]]
            own = cell or {}
            cells += [(own.get("alone") or {}).get("status"), own.get("recorded_as"), own.get("file")]
            cells += [own.get("why") or own.get("note")]
        rows.append([*cells, row["odd_one_out"]])
    return table.render(head, rows)
