"""A model and a lower precision -> the plan: what must stay in float, and its folder."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from statistics import median
from tempfile import gettempdir

from subgraph.cases.case import ResultPlace, describe_source, find_free_place
from subgraph.errors import ArgumentTypeError, ModelError, OutOfTime, UsageError
from subgraph.graph.graph import Graph, as_graph
from subgraph.graph.opsets import get_opset
from subgraph.graph.region import prepare_graph
from subgraph.log import log
from subgraph.precision import Precision
from subgraph.project import parse_seconds
from subgraph.questions.bisection.items import NodeItems, list_items
from subgraph.questions.planning import lower, places, scales
from subgraph.questions.planning.find_plan import (
    LoweredModels,
    Planner,
    compare_outputs,
    measure_distance,
)
from subgraph.questions.planning.lower import count_bytes
from subgraph.questions.planning.places import GEARS, Twin, Unit, make_gear
from subgraph.questions.planning.result_folder import describe_kept_places, save
from subgraph.questions.planning.scales import fold_batch_norms
from subgraph.questions.planning.smallest_set import SmallestSet
from subgraph.results.plan import (
    PlaceError,
    PlanDocument,
    PlanFiles,
    PlanResult,
    PlanScales,
    PlanScore,
    PlanSetup,
    PlanTrials,
    TriedPlan,
)
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.deadline import Deadline, if_time
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.python_objects import find_run
from subgraph.runtime.python_values import (
    CandidateValue,
    Inputs,
    make_candidate,
    make_input_arguments,
)
from subgraph.runtime.reference import Reference
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.runtime.remote.remote_pool import open_workers
from subgraph.storage.folders import make_safe_name, make_scratch
from subgraph.text import clean, count, list_some
from subgraph.trials.doubt import is_beyond_steps
from subgraph.trials.matching.pair_models import pair_models
from subgraph.trials.open_trials import Setup, open_reference, open_trials, with_own_model
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.score import describe_uncertainty, make_score_goal
from subgraph.trials.trial import Trials
from subgraph.types import Shapes, frozen_keywords

SCALED = ("fp16", "bf16")
ENDS = ("int8", "float32")  # of the gears, which need not be named
MAX_SEARCH_SHARE = 0.8  # of the time; what follows the search has the remaining one
MAX_NAMED = 5  # places in the first line
MAX_RATIO = 4.0  # of the errors of two models that are lowered in the same places
MAX_CONVERTED = 1e-5  # |a − b| / |a| of an output that a conversion to a newer opset may cause


@frozen_keywords
class PlanRequest:
    """The request of a plan.

    Attributes:
        to: The lower precision to which the model is lowered; None if the user names the
            candidate's model.
        unit: The unit that is kept as one.
        gears: Precisions between the lower one and float32 that a place may take.
        rescale: Whether tensors beyond the precision's range, or channels that are small for its
            steps, are scaled first.
        max_time: Seconds for all of it.
        jobs: Models that run at the same time.
        replaces: Whether another result that is in the way is replaced.
    """

    to: str | None = None
    unit: str | None = None
    gears: Sequence[str] = ()
    rescale: bool = False
    max_time: float = math.inf
    jobs: int = 1
    replaces: bool = False

    def __post_init__(self) -> None:
        """Raise UsageError if a word is unknown, or the request contradicts itself."""
        words = [("--to", self.to, [*SCALED, *lower.TYPES]), ("--unit", self.unit, [*Unit])]
        words += [("--gears", word, [*GEARS, *ENDS]) for word in self.gears]
        for option, word, known in words:
            if word is not None and word not in known:
                raise UsageError(
                    f"{option} {word}: unknown value",
                    f"expected: {', '.join(known)}",
                    code="option.unknown-value",
                )
        if self.rescale and not self.to:
            raise UsageError("--rescale goes with --to", "add --to fp16", code="option.conflict")


def plan(
    graph: Graph | str | Path,
    candidate: CandidateValue = "ort",
    inputs: Inputs = None,
    *,
    to: str | None = None,
    candidate_model: str | Path | None = None,
    unit: str = "node",
    gears: Sequence[str] = (),
    rescale: bool = False,
    max_time: str | float | None = None,
    criterion: str = "noise",
    score: str | None = None,
    drop: str | None = None,
    at_least: float | None = None,
    labels: str | Path | None = None,
    seed: int = 0,
    shapes: Shapes | None = None,
    reference: str | Candidate = "ort",
    jobs: int = 1,
    output: str | Path = "subcut_out",
) -> PlanDocument:
    """Find the places that must stay in float so that a lowered model is right.

    Args:
        graph: The float model.
        candidate: As of `compare`.
        inputs: As of `compare`; they calibrate quantizers as well.
        to: `fp16`, `bf16`, `int8`, `uint8` or `int16`: the model is lowered to it.
        candidate_model: The lowered model, instead of `to`.
        unit: The unit that is kept as one: `node`, `block`, `operator` or `scale`.
        gears: `int16`, `float16`: precisions that a kept place may take instead of float32.
        rescale: Whether tensors beyond the range of `to`, or channels that are small for its steps,
            are scaled by powers of two first.
        max_time: Seconds, or `"30m"`.
        criterion: The rule that accepts a model without a `score`, as after `--criterion`.
        score: A score of the task, as after `--score`, with `drop` or `at_least`, and `labels`.
        seed: Of inputs that are not given.
        shapes: Sizes of inputs that the model leaves open.
        reference: The runtime of the float model.
        jobs: Models that run at the same time.
        output: The folder in which the plan's own folder is created.

    Raises:
        UsageError: Neither `to` nor `candidate_model`, or both; a word is unknown.
        ModelError: The model cannot be read, run or lowered.

    >>> plan("demo/model.onnx", to="fp16", inputs=["demo/input.npy"]).says
    'right as it is: none of 28 places must stay in float'
    """
    graph = as_graph(graph, "plan")
    if find_run(candidate, graph.outputs):  # it would run the model itself for each lowered one
        raise ArgumentTypeError.from_value(
            candidate, "plan takes a SPEC or a function", "def load(path)"
        )
    setup = Setup(
        make_candidate(candidate, graph),
        Feeding(make_input_arguments(inputs, graph.inputs), shapes or {}, seed),
        Path(output),
        criterion,
        candidate_model=Path(candidate_model) if candidate_model else None,
        score=make_score_goal(score, drop, at_least, labels),
    )
    request = PlanRequest(
        to=to,
        unit=unit,
        gears=gears,
        rescale=rescale,
        max_time=parse_seconds(max_time) or math.inf,
        jobs=jobs,
    )
    with open_reference(make_candidate(reference, graph)) as running:
        return make_plan(graph, setup, running, request)


def make_plan(
    graph: Graph, setup: Setup, reference: Reference, request: PlanRequest, command: str = ""
) -> PlanDocument:
    """Find the plan and write its folder.

    Raises:
        UsageError: The request contradicts itself.
        ModelError: The model cannot be run or lowered.
        BackendError: The candidate cannot be used.
        OutputError: The folder cannot be written.
    """
    began = time.monotonic()
    end = began + MAX_SEARCH_SHARE * request.max_time
    with _open(graph, setup, reference, request, end) as (trials, twin, scaled):
        if {*request.gears} - {*ENDS} and not twin.forms:
            raise UsageError(
                "--gears is for quantized models",
                "omit it: no gear is between 16 bits and float32",
                code="option.conflict",
            )
        names = [name for name in GEARS if name in request.gears]
        gears = {name: make_gear(trials.graph, twin, name) for name in names}
        unit = Unit(request.unit or Unit.NODE)
        models = LoweredModels(trials.graph, twin, unit, gears)
        planner = Planner(trials, models, request.jobs)
        trials.model.values.need(planner.runner.outputs)
        if setup.score:
            _ = planner.as_it_is  # before the time is used up
        smallest_set = planner.find()
        is_of_user = smallest_set is not None and setup.candidate_model
        if is_of_user and (why := _describe_other_error(planner)):
            planner.problem = f"the candidate's model is more than lowered: {why}"
            planner.is_wrong = True
            smallest_set = None
        trials.runtime.workers.deadline.limit(began, request.max_time)
        document = _make_document(planner, smallest_set, began, scaled, command)
        if smallest_set is None:
            return document
        if smallest_set.kept and request.to in lower.TYPES and not request.rescale:
            with suppress(OutOfTime):
                document = _suggest_scales(document, trials, request.to)
        name = request.to or Path(setup.own_model).stem or trials.runtime.candidate.name
        source = describe_source(graph)
        place = ResultPlace(setup.output, f"plan-{make_safe_name(name)}", request.replaces)
        place = find_free_place(place, source, [graph.path])
        return save(planner, smallest_set, document, place, source, request.to)


def _suggest_scales(document: PlanDocument, trials: Trials, to: str) -> PlanDocument:
    """Return the document with a note if the quantized model is better with scales of channels.

    Raises:
        OutOfTime: The time is used up.
    """
    model = trials.model
    deadline = trials.runtime.workers.deadline
    _, scaling = scales.scale_channels(model.values, to, model.new_folder(), deadline)
    if not scaling.tensors or not scaling.noise:
        return document
    error_text = "off by {1:.2g} instead of {0:.2g}".format(*scaling.noise)
    note = f"channels of very different sizes: with --rescale, {to} in all places is {error_text}"
    return replace(document, notes=[*document.notes, note])


def _describe_other_error(planner: Planner) -> str:
    """Describe an error of the user's lowered model that lowering does not explain; "" without one.

    It is wrong by far more than the float model lowered in the same places, or a node of it is by
    more than its own step. A plan, which takes those places and their scales, would not show this.
    """
    trials = planner.trials
    whole = trials.model.whole()
    result = trials.run(whole)
    if result.failure:
        return ""
    verdict = trials.judge.verdict(whole, result)
    lowered = planner.runner.run({}).tensors if verdict.fails else ()
    for k, other in enumerate(lowered):
        for name in planner.runner.outputs:
            exact = trials.model.values.records[k][name].array()
            error = measure_distance(exact, result.tensors[k][name].array())
            if error > MAX_RATIO * measure_distance(exact, other[name].array()):
                return verdict.why
    items = NodeItems(trials, list_items(trials))
    wrong = ((k, one) for k, one in items.judge_steps().items() if one and is_beyond_steps(one))
    return next((f"{items.label(k)}: {one.why}" for k, one in wrong), "")


@contextmanager
def _open(
    graph: Graph, setup: Setup, reference: Reference, request: PlanRequest, end: float
) -> Iterator[tuple[Trials, Twin, PlanScales | None]]:
    """Provide the trials of the float model, how it is lowered, and what was scaled. `end`: of the
    time for all that runs, by `monotonic`."""
    to = request.to
    original = graph

    by_command = setup.candidate.keeps_nodes
    if bool(to) + bool(setup.candidate_model) + by_command != 1:
        how = (
            "--candidate-model MODEL2, or --to fp16, bf16, int8, uint8, int16; or a command with"
            " {keep}"
        )
        raise UsageError("which lower precision?", how, code="argument.missing")
    if to and to not in lower.TYPES:
        setup = replace(setup, candidate=replace(setup.candidate, precision=Precision(to)))
    with (
        open_workers(setup.candidate, Deadline(end)) as workers,
        make_scratch(Path(gettempdir()), "subcut-lowered") as folder,
    ):
        if to not in SCALED and not by_command:
            graph = lower.raise_model(graph, folder)
            graph = fold_batch_norms(graph, folder / "folded") if to else graph
        scaled: PlanScales | None = None
        if request.rescale and to in SCALED:
            graph, scaled = scales.scale_model(graph, setup.feeding, Precision(to), folder)
        elif request.rescale and to:
            samples = setup.feeding.plan(graph, graph.inputs)
            values = ReferenceValues(graph, reference, samples, folder / "values")
            graph, scaled = scales.scale_channels(values, to, folder, workers.deadline)
        with open_trials(graph, setup, reference, workers) as trials:
            trials.model.values.need(list(graph.inputs))
            if graph.path != original.path:
                difference = _require_unchanged(original, setup.feeding, trials.model)
                scaled = replace(scaled, difference=difference) if scaled else None
            if to in lower.TYPES:
                log.info(
                    "quantized by onnxruntime, calibrated on %s",
                    count(trials.model.values.records, "sample"),
                )
                values = trials.model.values
                made = scales.quantize(
                    graph, values, to, trials.model.scratch / "quantized", workers.deadline
                )
                other = pair_models(graph, made, reference, values, made.path.parent)
                trials = with_own_model(trials, other)
            pair = trials.runtime.own_model
            if by_command:
                twin = places.lower_by_command(graph, Precision(trials.judge.precision))
            elif pair:
                twin = places.read_pair(pair)
            else:
                twin = places.round_nodes(graph, Precision(str(to)))
            yield trials, twin, scaled


def _require_unchanged(graph: Graph, feeding: Feeding, model: ReferenceModel) -> float:
    """Check that the model that is lowered has the outputs of the user's model; return the largest
    distance.

    Raises:
        ModelError: The model that is lowered has other outputs than the user's model.
    """
    folder = model.scratch / "original"
    original = ReferenceValues(
        prepare_graph(graph), model.reference, feeding.plan(graph, graph.inputs), folder
    )
    is_converted = get_opset(graph.model) != get_opset(model.graph.model)
    change = "converted to a newer opset" if is_converted else "folded and scaled"
    distances = compare_outputs(original, model.values)
    name, distance = max(distances.items(), key=itemgetter(1))
    if distance > MAX_CONVERTED:
        raise ModelError(
            f"{graph.path.name}, {change}, returns other values of '{name}': off by {distance:.2g}",
            "export it with opset 13 or newer" if is_converted else "omit --rescale",
            code="plan.changes-outputs",
        )
    log.info("%s was %s; its outputs are the same", clean(graph.path.name), change)
    return distance


def _make_document(
    planner: Planner,
    smallest_set: SmallestSet | None,
    began: float,
    scales: PlanScales | None,
    command: str,
) -> PlanDocument:
    """Return the document of a plan, or of the reason why no plan was found."""
    score = _make_score(planner, smallest_set)
    unsure = bool(score and score.plan is not None and not score.sure)
    tried = sorted(planner.tried.values(), key=lambda t: t.kept)
    own_model = not planner.models.twin.by_command
    code = 5 if smallest_set is None or unsure else 0
    if planner.is_wrong:
        code = 1
    document = PlanDocument(
        exit_code=code,
        says="",
        notes=_find_notes(planner, smallest_set, scales),
        command=command,
        setup=PlanSetup(
            precision=planner.models.twin.precision,
            unit=planner.models.unit,
            criterion=score.words if score else planner.trials.judge.criterion,
            places=len(planner.models.places),
        ),
        result=PlanResult(
            kept=None if smallest_set is None else describe_kept_places(planner, smallest_set),
            minimal=bool(smallest_set and smallest_set.minimal),
            proven=smallest_set.proven if smallest_set else 0,
            score=score,
            weights=count_bytes(
                planner.trials.graph,
                planner.models.twin,
                planner.models.list_lowerings(smallest_set.levels),
            )
            if smallest_set and own_model
            else None,
            scales=scales,
        ),
        trials=PlanTrials(
            runs=planner.runs,
            seconds=round(time.monotonic() - began, 3),
            tried=[TriedPlan(t.kept, t.judged.agrees, t.judged.score, t.judged.why) for t in tried],
            sensitivity=[
                PlaceError(planner.models.places[k].name, error)
                for k, error in sorted(planner.errors.items())
            ],
        ),
        files=PlanFiles(model=None),
    )
    if not planner.problem:
        return replace(document, says=_summarize(document))
    word = "wrong" if planner.is_wrong else "inconclusive"
    return replace(document, says=f"{word}: {planner.problem}")


def _find_notes(
    planner: Planner, smallest_set: SmallestSet | None, scales: PlanScales | None
) -> list[str]:
    """Return the facts about a plan that a user needs, a sentence each."""
    notes = []
    graph = planner.trials.graph
    if scales and not scales.tensors:
        notes.append(f"no scale helps in {planner.models.twin.precision} on these inputs")
    if scales and (beyond_range := [clean(t.name) for t in scales.tensors if t.exponent is None]):
        names = ", ".join(beyond_range[:MAX_NAMED])
        fact = f"beyond the range of {planner.models.twin.precision}: {names}"
        notes.append(f"{fact}; no power of two that could be folded in cures it")
    is_lowered_here = not planner.trials.runtime.own_model and planner.models.twin.rounded
    if scales is None and is_lowered_here and math.inf in planner.errors.values():
        notes.append("values overflow or vanish: --rescale scales them by powers of two instead")
    if lost := sum(t.judged.is_unresolved for t in planner.tried.values()):
        notes.append(
            f"{count(lost, 'model')} of {len(planner.tried)} could not be run or judged: -v"
            " shows why"
        )
    if other_weights := len(planner.models.twin.own):
        weights = count(other_weights, "weight")
        fact = f"{weights} with other values in the lowered model (folded, perhaps)"
        notes.append(f"{fact}: quantized again")
    kept = smallest_set.kept if smallest_set else ()
    if len(kept) > len(planner.models.places) / 2:
        alone = median(map(planner.measure_sensitivity, kept))
        if alone:
            remark = f"each alone deviates by {alone:.1g} in the median"
        else:
            remark = "more time keeps fewer"
        notes.append(f"more than half of the places stay: {remark}")
    nodes = set[int]().union(*(planner.models.places[k].nodes for k in kept))
    if unnamed := sum(not graph.nodes[i].name for i in nodes):
        notes.append(
            f"{count(unnamed, 'kept node')} without a name: the lists of other tools cannot name"
            " them"
        )
    return notes


def _make_score(planner: Planner, smallest_set: SmallestSet | None) -> PlanScore | None:
    """Return the score of the plan, and of the models without it; None if the criterion judges."""
    score = planner.trials.judge.score
    if score is None:
        return None
    kept = None if smallest_set is None else planner.judge(smallest_set.levels)
    interval = None
    if smallest_set:
        levels = smallest_set.levels
        interval = if_time(lambda: score.compute_interval(planner.runner.run(levels).tensors), None)
    return PlanScore(
        words=score.goal.words,
        limit=score.limit,
        as_it_is=planner.as_it_is.score,
        plan=kept.score if kept else None,
        in_float=score.float_score,
        samples=len(planner.trials.model.values.records),
        interval=interval,
        of="drop" if score.goal.at_least is None else "score",
        sure=score.is_sure(interval),
    )


def _summarize(document: PlanDocument) -> str:
    result = document.result
    if result.kept is None:
        return "inconclusive: the time is used up before a plan was found"
    cured = [t for t in (result.scales.tensors if result.scales else ()) if t.exponent]
    if not result.kept and not document.exit_code:
        summary = f"right with {count(cured, 'tensor')} scaled" if cured else "right as it is"
        return f"{summary}: none of {count(document.setup.places, 'place')} must stay in float"
    gears = sorted(
        {"float" if p.gear == "float32" else p.gear for p in result.kept},
        key=lambda g: (g == "float", g),
    )
    names = list_names(document)
    every = count(document.setup.places, "place")
    places = f"{len(names)} of {every} in {' or '.join(gears) or 'float'}"
    if names:
        places += f": {list_some(names, MAX_NAMED)}"
    if not document.exit_code:
        return f"right with {places}"
    assert result.score  # only a score makes a plan unsure
    return f"inconclusive: {places}; but {describe_uncertainty(result.score)}"


def list_names(document: PlanDocument) -> list[str]:
    """Return the names of the kept places, with their gears if one is below float."""
    kept = document.result.kept or ()
    has_gears = any(place.gear != "float32" for place in kept)
    return [
        f"{clean(place.name)} ({place.gear})" if has_gears else clean(place.name) for place in kept
    ]
