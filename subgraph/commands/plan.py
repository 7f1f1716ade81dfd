"""`subcut plan`: a float model and a lower precision -> what must stay in float, and not one place
more."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import gettempdir
from typing import TYPE_CHECKING

from subgraph import project
from subgraph.commands import Result, command_line, options
from subgraph.commands.options import Text, option
from subgraph.commands.resolve import Asked, log_random_inputs, wanted_score
from subgraph.documents import to_json
from subgraph.errors import UsageError
from subgraph.log import log
from subgraph.project import parse_seconds
from subgraph.text import aligned, clean, count

if TYPE_CHECKING:
    from subgraph.plan.find_plan import Planner
    from subgraph.plan.places import Twin
    from subgraph.plan.smallest_set import Found
    from subgraph.results.plan import PlanDocument, PlanScales, PlanScore, TriedList
    from subgraph.trials.reference_model import ReferenceModel
    from subgraph.trials.score import Wanted
    from subgraph.trials.trial import Trials

TO = ("fp16", "bf16", "int8", "uint8", "int16")
SCALED = ("fp16", "bf16")
UNITS = ("node", "block", "operator", "scale")
ENDS = ("int8", "float32")  # of the gears, which need not be named
SEARCH_SHARE = 0.8  # of the time; what follows the search has the remaining one
MAX_NAMED = 5  # places in the first line
MAX_LISTED = 20  # below it
MAX_CONVERTED = 1e-5  # |a − b| / |a| of an output that a conversion to a newer opset may cause


@options.with_option_groups("spec")
def plan(
    *,
    model: options.ModelArgument = None,
    candidate: options.CandidateSpec = None,
    candidate_options: options.CandidateOptions,
    to: Text = option(
        "--to",
        "PRECISION",
        "Make the lowered model: fp16, bf16, int8, uint8, int16; calibrated on the inputs.",
        words=TO,
    ),
    unit: Text = option(
        "--unit",
        "UNIT",
        "What is kept as one: node (default), block, operator, scale.",
        words=UNITS,
    ),
    gears: Text = option(
        "--gears",
        "A,B",
        "In place of float32, the lowest that holds: int16, float16.",
    ),
    rescale: bool = option(
        "--rescale",
        None,
        "First scale what leaves the precision by powers of two, in the weights around it.",
    ),
    max_time: options.MaxTime = None,
    score: options.ScoreOptions,
    inputs: options.InputOptions,
    comparison: options.CriterionOptions,
    runtime: options.RuntimeOptions,
    jobs: options.Jobs = None,
    result: options.ResultOptions,
) -> Result:
    """Find what must stay in float so that a quantized model is right.

    The lowered model is --candidate-model, or is made by --to. The plan is the smallest set of
    places that is kept: with any one of them lowered again, the model is refused.

    Examples:
      subcut plan model.onnx --to int8
      subcut plan model.onnx --to fp16 --unit operator
      subcut plan model.onnx --to fp16 --rescale -i input.npy
      subcut plan model.onnx --to int8 --score sqnr --at-least 20

    Exit code 0: there is a plan; 1: not even in float; 5: it is not known whether the plan is
    enough.
    """
    from subgraph.cases.case import ResultPlace, free_place, source_of
    from subgraph.graph.graph import load
    from subgraph.plan.find_plan import Planner
    from subgraph.plan.places import Unit
    from subgraph.plan.result_folder import save
    from subgraph.storage.folders import safe_name

    began = time.monotonic()
    asked = Asked(project.load(), model, None, inputs, comparison, runtime, result)
    _ = asked.model_path, asked.criterion  # mistakes there are told first
    wanted = wanted_score(score)
    between = _parse_gears(gears)
    if rescale and to not in SCALED:
        raise UsageError(
            "--rescale goes with --to fp16 or --to bf16",
            "leave it out: --to int8 calibrates quantizers on the inputs",
            code="option.conflict",
        )
    limit = parse_seconds(max_time) or math.inf
    options_of = replace(candidate_options, spec=candidate)
    end = began + SEARCH_SHARE * limit
    with _open(asked, options_of, to, wanted, end, rescale) as (trials, twin, scaled):
        parallel = asked.jobs(jobs, trials.runtime.candidate)
        planner = Planner(
            trials,
            twin,
            Unit(unit or Unit.NODE),
            _make_gears(trials.model, twin, between),
            parallel,
        )
        trials.model.values.need(planner.outputs)
        if wanted:
            _ = planner.as_it_is  # before the time is used up
        found = planner.find()
        trials.runtime.workers.deadline.limit(began, limit)
        document = _make_document(planner, found, began, scaled)
        if found is not None:
            other = options_of.other_model
            name = to or (Path(str(other)).stem if other else trials.runtime.candidate.name)
            source = source_of(load(asked.model_path))
            place = ResultPlace(asked.output, f"plan-{safe_name(name)}", asked.result.force)
            place = free_place(place, source, [asked.model_path])
            document = save(planner, found, document, place, source, to)
    return Result(to_json(document), text(document), document.exit_code)


def _parse_gears(words: str | None) -> list[str]:
    """The gears between the lowered model and float32."""
    from subgraph.plan.places import GEARS

    asked = [word.strip() for word in (words or "").split(",") if word.strip()]
    if unknown := [word for word in asked if word not in (*GEARS, *ENDS)]:
        raise UsageError(
            f"--gears {unknown[0]}: unknown",
            f"some of {', '.join(GEARS)}",
            code="option.unknown-value",
        )
    return [word for word in GEARS if word in asked]


def _make_gears(model: ReferenceModel, twin: Twin, between: Sequence[str]) -> dict[str, Twin]:
    from subgraph.plan.places import gear

    if between and not twin.forms:
        raise UsageError(
            "--gears is for quantized models",
            "leave it out: nothing lies between 16 bits and float32",
            code="option.conflict",
        )
    return {name: gear(model.graph, twin, name) for name in between}


@contextmanager
def _open(
    asked: Asked,
    candidate_options: options.CandidateOptions,
    to: str | None,
    wanted: Wanted | None,
    end: float,
    rescale: bool,
) -> Iterator[tuple[Trials, Twin, PlanScales | None]]:
    """The trials of the float model, how it is lowered, and what was scaled. `end`: of the time for
    all that runs, by `monotonic`."""
    from subgraph.graph.graph import load
    from subgraph.plan import lower, places, quantize, scales
    from subgraph.plan.fold import fold_batch_norms
    from subgraph.precision import Precision
    from subgraph.runtime.deadline import Deadline
    from subgraph.runtime.remote.remote_pool import open_workers
    from subgraph.storage.folders import scratch
    from subgraph.trials.matching.pair_models import pair_models
    from subgraph.trials.open_trials import open_trials, with_own_model

    setup = replace(asked.setup(candidate_options), score=wanted)
    by_command = setup.candidate.keeps_nodes
    if bool(to) + bool(candidate_options.other_model) + by_command != 1:
        how = (
            "--candidate-model MODEL2, or --to fp16, bf16, int8, uint8, int16; or a command with"
            " {keep}"
        )
        raise UsageError("which lower precision?", how, code="argument.missing")
    if to and to not in quantize.TYPES:
        setup = replace(setup, candidate=replace(setup.candidate, precision=Precision(to)))
    log_random_inputs(asked.feeding)
    with (
        asked.reference() as reference,
        open_workers(setup.candidate, Deadline(end)) as workers,
        ExitStack() as stack,
    ):
        graph = load(asked.model_path)
        if (to or "int8") not in ("fp16", "bf16") and not by_command:
            folder = stack.enter_context(scratch(Path(gettempdir()), "subcut-raised"))
            graph = lower.raise_model(graph, folder)
            graph = fold_batch_norms(graph, folder / "folded") if to else graph
        scaled: PlanScales | None = None
        if rescale and to:
            folder = stack.enter_context(scratch(Path(gettempdir()), "subcut-scaled"))
            graph, scaled = scales.scale_model(graph, asked.feeding, Precision(to), folder)
        with open_trials(graph, setup, reference, workers) as trials:
            trials.model.values.need(list(graph.inputs))
            if graph.path != asked.model_path:
                difference = _require_unchanged(asked, trials.model)
                scaled = replace(scaled, difference=difference) if scaled else None
            if to in quantize.TYPES:
                log.info(
                    "quantized by onnxruntime, calibrated on %s",
                    count(len(trials.model.values.records), "sample"),
                )
                folder = trials.model.scratch / "quantized"
                folder.mkdir()
                made = load(
                    quantize.quantize_model(
                        graph, trials.model.values.records, to, None, folder, workers.deadline
                    )
                ).prepare()
                other = pair_models(graph, made, reference, trials.model.values, folder)
                trials = with_own_model(trials, other)
            pair = trials.runtime.own_model
            if by_command:
                twin = places.lower_by_command(graph, Precision(trials.judge.precision))
            elif pair:
                twin = places.read_pair(pair)
            else:
                twin = places.round_nodes(graph, Precision(str(to)))
            yield trials, twin, scaled


def _require_unchanged(asked: Asked, model: ReferenceModel) -> float:
    """Check that the model that is lowered has the outputs of the user's model; return the largest
    distance.

    Raises:
        ModelError: the model that is lowered gives other outputs than the user's.
    """
    from subgraph.errors import ModelError
    from subgraph.graph.graph import load
    from subgraph.graph.opsets import opset_of
    from subgraph.plan.find_plan import distance
    from subgraph.runtime.reference_values import ReferenceValues

    graph = load(asked.model_path)
    folder = model.scratch / "original"
    own = ReferenceValues(
        graph.prepare(), model.reference, asked.feeding.plan(graph, graph.inputs), folder
    )
    before = Counter(graph.ops)
    after = Counter(model.graph.ops)
    folded = before["BatchNormalization"] - after["BatchNormalization"]
    is_converted = opset_of(graph.model) != opset_of(model.graph.model)
    how = "converted to a newer opset" if is_converted else "scaled by powers of two"
    how = f"freed of {folded} BatchNormalization" if folded else how
    largest = 0.0
    names = [n for n in graph.outputs if n in graph.maker]
    own.need(names)
    model.values.need(names)
    for name in names:
        pairs = zip(own.records, model.values.records, strict=True)
        off = max(distance(one[name].array(), other[name].array()) for one, other in pairs)
        largest = max(largest, off)
        if off > MAX_CONVERTED:
            what = f"{graph.path.name}, {how}, gives other values of '{name}'"
            raise ModelError(
                f"{what}: off by {off:.2g}",
                "export it with opset 13 or newer" if is_converted else "omit --rescale",
                code="plan.changes-outputs",
            )
    log.info("%s was %s; its outputs are the same", clean(graph.path.name), how)
    return largest


def _make_document(
    planner: Planner, found: Found | None, began: float, scales: PlanScales | None
) -> PlanDocument:
    from subgraph.plan.lower import count_bytes
    from subgraph.plan.result_folder import describe_kept_places
    from subgraph.results.plan import PlaceError, PlanDocument, PlanTried

    score = _make_score(planner, found)
    unsure = bool(score and score.plan is not None and not score.sure)
    tried = sorted(planner.tried.values(), key=lambda t: t.kept)
    own_model = not planner.twin.by_command
    code = 5 if found is None or unsure else 0
    if planner.is_wrong:
        code = 1
    document = PlanDocument(
        exit_code=code,
        says="",
        precision=planner.twin.precision,
        unit=planner.unit,
        criterion=score.words if score else planner.trials.judge.criterion,
        kept=None if found is None else describe_kept_places(planner, found),
        places=len(planner.places),
        minimal=bool(found and found.minimal),
        proven=found.proven if found else 0,
        runs=planner.runs,
        seconds=round(time.monotonic() - began, 3),
        score=score,
        tried=[PlanTried(t.kept, t.judged.accepted, t.judged.score, t.judged.why) for t in tried],
        weights=(
            count_bytes(planner.trials.graph, planner.twin, planner.how(found.levels))
            if found and own_model
            else None
        ),
        model=None,
        sensitivity=[
            PlaceError(planner.places[k].name, error) for k, error in sorted(planner.errors.items())
        ],
        notes=_find_notes(planner, found, scales),
        scales=scales,
        command=command_line(),
    )
    if not planner.problem:
        return replace(document, says=_summarize(document))
    word = "wrong" if planner.is_wrong else "inconclusive"
    return replace(document, says=f"{word}: {planner.problem}")


def _find_notes(planner: Planner, found: Found | None, scales: PlanScales | None) -> list[str]:
    """Return the facts about a plan that a user needs, a sentence each."""
    from subgraph.verdict import Status

    notes = list[str]()
    graph = planner.trials.graph
    if scales and not scales.tensors:
        notes.append(f"no tensor leaves the range of {planner.twin.precision} on these inputs")
    if scales and (left := [clean(t.name) for t in scales.tensors if t.exponent is None]):
        what = f"beyond the range of {planner.twin.precision}: {', '.join(left[:MAX_NAMED])}"
        notes.append(f"{what}; no power of two that could be folded in cures it")
    is_lowered_here = not planner.trials.runtime.own_model and planner.twin.rounded
    if scales is None and is_lowered_here and math.inf in planner.errors.values():
        notes.append("values overflow or vanish: --rescale scales them by powers of two instead")
    if lost := sum(t.judged.status is Status.UNRESOLVED for t in planner.tried.values()):
        notes.append(
            f"{count(lost, 'model')} of {len(planner.tried)} could not be run or judged: -v"
            " shows why"
        )
    if own := len(planner.twin.own):
        is_other = "is another" if own == 1 else "are others"
        notes.append(
            f"{count(own, 'weight')} {is_other} in the lowered model (folded, say): quantized anew"
        )
    kept = found.kept if found else ()
    if len(kept) > len(planner.places) / 2:
        alone = median(map(planner.sensitivity, kept))
        each = (
            f"each alone is off by {alone:.1g} in the median" if alone else "more time keeps fewer"
        )
        notes.append(f"more than half of the places stay: {each}")
    nodes = set[int]().union(*(planner.places[k].nodes for k in kept))
    if unnamed := sum(not graph.nodes[i].name for i in nodes):
        notes.append(
            f"{count(unnamed, 'kept node')} without a name: the lists of other tools cannot name"
            " them"
        )
    return notes


def _make_score(planner: Planner, found: Found | None) -> PlanScore | None:
    from subgraph.results.plan import PlanScore
    from subgraph.runtime.deadline import if_time

    score = planner.trials.judge.score
    if score is None:
        return None
    kept = None if found is None else planner.judge(found.levels)
    interval = (
        if_time(lambda: score.interval(planner.run(found.levels).tensors), None) if found else None
    )
    return PlanScore(
        words=score.wanted.words,
        limit=score.limit,
        as_it_is=planner.as_it_is.score,
        plan=kept.score if kept else None,
        in_float=score.float_score,
        samples=len(planner.trials.model.values.records),
        interval=interval,
        of="drop" if score.wanted.at_least is None else "score",
        sure=score.is_sure(interval),
    )


def _summarize(document: PlanDocument) -> str:
    if document.kept is None:
        return "inconclusive: the time is used up before a plan was found"
    cured = [t for t in (document.scales.tensors if document.scales else ()) if t.exponent]
    if not document.kept and not document.exit_code:
        how = f"right with {count(len(cured), 'tensor')} scaled" if cured else "right as it is"
        return f"{how}: none of {count(document.places, 'place')} must stay in float"
    gears = sorted(
        {"float" if p.gear == "float32" else p.gear for p in document.kept},
        key=lambda g: (g == "float", g),
    )
    names = _list_names(document)
    places = f"{len(names)} of {count(document.places, 'place')} in {' or '.join(gears) or 'float'}"
    shown = ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")
    places += f": {shown}" if names else ""
    return (
        f"inconclusive: {places}; but {_describe_few(document)}"
        if document.exit_code
        else f"right with {places}"
    )


def _list_names(document: PlanDocument) -> list[str]:
    """Of the places that are kept, with their gears where one is below float."""
    kept = document.kept or ()
    has_gears = any(place.gear != "float32" for place in kept)
    return [
        f"{clean(place.name)} ({place.gear})" if has_gears else clean(place.name) for place in kept
    ]


def _describe_few(document: PlanDocument) -> str:
    score = document.score
    if score is None or score.interval is None:
        return "one sample says nothing of others"
    low, high = score.interval
    of = "drop by" if score.of == "drop" else "score"
    return (
        f"{count(score.samples, 'sample')} are few: other draws of them {of} {low:.3g} to"
        f" {high:.3g}"
    )


# ------------------------------------------------------------ text


def text(document: PlanDocument) -> str:
    """The document for people."""
    lines = [document.says]
    rows: list[tuple[str, str]] = []
    if score := document.score:
        scores = (
            ("as it is", score.as_it_is),
            ("with the plan", score.plan),
            ("float", score.in_float),
        )
        values = "   ".join(f"{name} {value:.6g}" for name, value in scores if value is not None)
        rows.append(
            (
                score.words,
                f"{values}   (at least {score.limit:.6g}; {count(score.samples, 'sample')})",
            )
        )
        if score.interval:
            low, high = score.interval
            rows.append((score.of, f"{low:.3g} to {high:.3g} over draws of the samples (95 %)"))
    if document.kept:
        rows.append(("minimal", _describe_minimal(document)))
        others = _list_names(document)[MAX_NAMED:]
        rows += [("", name) for name in others[:MAX_LISTED]]
        rows += (
            [("", f"and {len(others) - MAX_LISTED} more, as in the lists")]
            if len(others) > MAX_LISTED
            else []
        )
    if document.scales:
        rows += _list_scales(document.scales)
    if document.weights:
        low = document.weights["low"]
        every = sum(document.weights.values())
        share = (
            f"{100 * low / every:.1f} % of the weights in {document.precision}"
            if every
            else "no weights"
        )
        rows.append(("model", f"{clean(str(document.model))}   ({share})"))
    if document.path:
        rows.append(("lists", f"{clean(document.path)}/lists/"))
        rows += [("", _list_tried(document, tried)) for tried in document.tried_lists]
        untried = document.lists.keys() - {tried.tool for tried in document.tried_lists}
        rows.append(("", f"not tried in {', '.join(sorted(untried))}"))
        rows.append(("report", f"{clean(document.path)}/report.html"))
    rows += [("note", note) for note in document.notes]
    rows.append(("asked", f"{count(document.runs, 'model')} in {document.seconds:.0f} s"))
    return "\n".join([*lines, *(f"  {line}" for line in aligned(rows))])


def _list_scales(scales: PlanScales) -> Iterator[tuple[str, str]]:
    """The tensors that were scaled, and where the factors are."""
    cured = [tensor for tensor in scales.tensors if tensor.exponent is not None]
    for tensor in cured[:MAX_LISTED]:
        size = f"{clean(tensor.name)} ({tensor.kind}, up to {tensor.largest:.3g})"
        yield "scaled", f"{size} by 2^{-(tensor.exponent or 0)}"
    if scales.weights or scales.factors:
        where = f"{count(len(scales.weights), 'weight')} changed, {len(scales.factors)} Mul added"
        off = f"{where}; in float32 the outputs differ by {scales.difference:.2g}"
        yield "", f"{clean(scales.model)}   ({off})" if scales.model else off


def _list_tried(document: PlanDocument, tried: TriedList) -> str:
    """`onnxruntime with this list of 3 nodes more than the plan's: accepted, sqnr 46.8`."""
    judged = tried.why
    if document.score and tried.score is not None:
        judged = f"{document.score.words} {tried.score:.6g}"
    accepted = "accepted" if tried.accepted else "refused"
    more = f" of {count(tried.added, 'node')} more than the plan's" if tried.added else ""
    return f"{tried.tool} with this list{more}: {accepted}, {judged}"


def _describe_minimal(document: PlanDocument) -> str:
    kept = len(document.kept or ())
    if document.minimal:
        gears = any(place.gear != "float32" for place in document.kept or ())
        again = "one gear lower" if gears else "lowered again"
        return f"yes: with any one of them {again}, it is refused"
    return (
        f"not proven: {document.proven} of {kept} were lowered again and refused, the others not"
        " run, or not judged"
    )
