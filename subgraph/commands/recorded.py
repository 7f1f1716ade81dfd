"""What `--recorded` means to `compare`: the options that go with it, and what is printed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from subgraph.commands import Result, log, options, table
from subgraph.errors import UsageError
from subgraph.graph.graph import load
from subgraph.text import clean, count

if TYPE_CHECKING:
    from subgraph.cases.case import Case, ResultPlace
    from subgraph.cases.write_case import CaseRequest
    from subgraph.graph.graph import Graph
    from subgraph.project import Project
    from subgraph.recordings.runs import RecordedRun, RecordingOptions
    from subgraph.runtime.reference import Reference
    from subgraph.trials.trial import Trials

Recorded = Annotated[
    list[str] | None,
    typer.Option("--recorded", metavar="DIR", help="A device's layer dumps, in the place of a candidate. Repeatable."),
]
DumpFormat = Annotated[
    str | None,
    typer.Option(
        "--dump-format", metavar="NAME", help="What --recorded is: ascend, tnn, rknn … Found out if not given."
    ),
]
DumpLayout = Annotated[
    str | None, typer.Option("--dump-layout", metavar="NHWC", help="Layout of --recorded's files without a header.")
]

MSACCUCMP = "msaccucmp"
MOST = 4  # intervals that are shown, and get a folder
SHOWN = 5  # entries of no tensor, and suspects, that are named
LONG = 60  # characters of a recording's name in a folder's
FED = "the model's input"
GOLDEN = ":golden"  # how a toolkit calls its own float values


def asked(
    places: Sequence[str], form: str | None, layout: str | None, precision: str | None, seed: int | None
) -> RecordingOptions:
    """What the user says of recordings.

    Raises:
        UsageError: a layout or a precision that nobody knows.
    """
    from subgraph.recordings import runs
    from subgraph.runtime.candidate import precision as claim
    from subgraph.storage import layouts

    word = layouts.named(layout or "")
    if word and word not in layouts.KNOWN:
        raise UsageError(f"no layout '{clean(word)}'", f"known: {', '.join(layouts.KNOWN)}")
    return runs.RecordingOptions(
        tuple(map(Path, places)), form or "", word, claim("--precision", precision), seeded=seed is not None
    )


def alone(given: dict[str, Any]) -> None:
    """
    Raises:
        UsageError: an option that means a candidate goes beside --recorded.
    """
    for option, value in given.items():
        if value:
            raise UsageError(f"{option} goes with a candidate, not with --recorded", "leave one of them out")


def compare(
    settings: Project, model: str | None, about: RecordingOptions, feeding: Any, rule: str, reference: Any, *,
    at: Sequence[str] = (), outputs: bool = False, fail_fast: bool = False, csv_file: str | None = None,
    output: str | None = None,
) -> Result:  # fmt: skip
    """`subcut compare MODEL --recorded DIR`: every tensor that was recorded, beside the reference's."""
    from subgraph.recordings import document as contrast
    from subgraph.recordings import msaccucmp_table, runs
    from subgraph.recordings.compare import observe
    from subgraph.trials import compare as comparison
    from subgraph.trials.session import Setup, open_trials

    npu = rule == MSACCUCMP
    path = options.model_of(model, settings)
    graph = load(path)
    with reference as running, runs.open_runs(graph, about, feeding) as (found, fed):
        doubted = runs.candidate_of(found, about.precision)
        setup = Setup(doubted, fed, Path(settings.get("output", output, "subcut_out")), rule, stored=False)
        with open_trials(graph, setup, running) as trials:
            names = comparison.chosen(trials, at or (graph.outputs if outputs else ()))
            seen = [
                observe(trials, run, only=names, fail_fast=fail_fast, columns=npu)
                for run in runs.limit_samples(found, len(trials.values.samples))
            ]
            document = contrast.document(trials, seen, names, rule, stopped=fail_fast)
            told = [msaccucmp_table.lines(trials, one, names) if npu and one.matched else [] for one in seen]
            for one, lines_ in zip(document["recordings"], told, strict=True):
                one["advice"] = msaccucmp_table.advice(lines_) if lines_ else None
    if csv_file:
        lines = msaccucmp_table.as_csv(told[-1]) if npu else as_csv(document)
        if csv_file == "-":
            return Result(document, lines.rstrip("\n"), document["exit_code"])
        table.write(csv_file, lines)
    return Result(document, text(document), document["exit_code"])


def bisect(
    settings: Project, model: str | None, about: RecordingOptions, feeding: Any, rule: str, reference: Any, *,
    freeze: bool = True, output: str | None = None, force: bool = False,
) -> Result:  # fmt: skip
    """`subcut bisect MODEL --recorded DIR`: between which tensors it goes wrong; that piece as a case."""
    from subgraph.cases import case
    from subgraph.recordings import interval, result_folder, runs
    from subgraph.recordings.compare import observe
    from subgraph.storage.folders import safe_name
    from subgraph.trials.session import Setup, open_trials

    if len(about.folders) > 1:
        raise UsageError(
            "--recorded twice: bisect looks at one recording", "subcut compare names the odd one of several"
        )
    path = options.model_of(model, settings)
    graph = load(path)
    with reference as running, runs.open_runs(graph, about, feeding) as (found, fed):
        run = _one(found)
        parent = Path(settings.get("output", output, "subcut_out"))
        doubted = runs.candidate_of([run], about.precision)
        place = case.ResultPlace(parent, f"recorded-{safe_name(run.name)[:LONG]}", force)
        request = case.plain({"candidate": doubted.name, "identity": doubted.identity(""), "criterion": rule,
                              "recorded": [str(p) for p in about.folders], "inputs": feeding.inputs})  # fmt: skip
        case.require_free(place, request, case.source_of(graph), [graph.path, *about.folders])
        setup = Setup(doubted, fed, parent, rule, freeze=freeze, stored=False)
        with open_trials(graph, setup, running) as trials:
            (run,) = runs.limit_samples([run], len(trials.values.samples))
            seen = observe(trials, run)
            reasons = interval.troubles(graph)
            places = interval.intervals(trials, seen, interval.hints(graph))
            command = shlex.join(["subcut", *sys.argv[1:]])
            document = result_folder.document(trials, seen, places, rule, command, reasons)
            if places:
                result_folder.save(trials, seen, places, document, place, request, fed)
    return Result(document, interval_text(document), document["exit_code"])


def cut(
    graph: Graph, request: CaseRequest, place: ResultPlace, running: Reference, about: RecordingOptions
) -> list[Case]:
    """`subcut cut --recorded DIR`: what enters the cut, and `dump_data`, are what the device recorded."""
    from subgraph.cases.write_case import chosen
    from subgraph.recordings import cut as recut
    from subgraph.recordings import runs
    from subgraph.recordings.compare import matched
    from subgraph.runtime.inputs import Feeding
    from subgraph.trials.session import Setup, open_trials

    chosen(graph, request, place)  # a slip there is told before anything runs
    feeding = Feeding(request.inputs, request.shapes, request.seed, request.picture)
    with runs.open_runs(graph, about, feeding) as (found, fed):
        run = _one(found)
        setup = Setup(runs.candidate_of([run], None), fed, place.parent, stored=False, freeze=request.freeze)
        with open_trials(graph, setup, running) as trials:
            (run,) = runs.limit_samples([run], len(trials.values.samples))
            assert run.recording
            told = {"name": run.name, "folder": str(run.recording.folder), "format": run.recording.format,
                    "fed": fed.inputs != feeding.inputs}  # fmt: skip
            cuts = recut.extract_recorded(graph, request, place, trials, matched(trials, run), told)
    for one in cuts:
        one.manifest["hint"] = recut.hint(one.manifest)
    return cuts


def _one(found: Sequence[RecordedRun]) -> RecordedRun:
    """The run to narrow down: the device's, where the toolkit's own golden values lie beside it."""
    wanted = [run for run in found if not run.missing and not run.name.endswith(GOLDEN)] or list(found)
    if len(wanted) > 1:
        log.warning("%s: the last of %s is looked at", clean(wanted[-1].name), count(len(wanted), "run"))
    return wanted[-1]


def weights(trials: Trials, found: Sequence[RecordedRun]) -> dict[int, float]:
    """What recordings say of where to look first."""
    from subgraph.recordings import interval, runs
    from subgraph.recordings.compare import observe

    many = len(trials.values.samples)
    seen = [observe(trials, run) for run in runs.limit_samples(found, many) if not run.missing]
    return interval.weights_of(trials, seen)


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
