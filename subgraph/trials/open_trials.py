"""Model + `Setup` -> `Trials`: processes, reference values, store and scratch folder, opened and
closed together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import field, replace
from pathlib import Path

from subgraph.cases.find_case import FoundCase
from subgraph.cases.layout import CANDIDATE, MODEL
from subgraph.comparison.judge import parse_criterion
from subgraph.comparison.noise.analysis import find_unrounded
from subgraph.comparison.pair import pair_if_comparable
from subgraph.comparison.where import OutputChoice
from subgraph.errors import InputError, ModelError, UnknownName
from subgraph.graph.graph import Graph, load
from subgraph.graph.quantization import find_tensor_scales
from subgraph.graph.region import prepare_graph
from subgraph.log import log
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import PLAIN, WHOLE, Reference, make_default
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.runtime.remote.remote_pool import open_workers
from subgraph.runtime.worker_pool import Workers, install
from subgraph.storage import folders
from subgraph.storage.file_kinds import is_of_tflite
from subgraph.storage.store import Store
from subgraph.text import clean, find_nearest
from subgraph.trials.candidate_model import CandidateModel, describe_matches, load_own_model
from subgraph.trials.candidate_runtime import CandidateRuntime
from subgraph.trials.judge import Judge
from subgraph.trials.matching.as_quantized import quantize_reference
from subgraph.trials.matching.match_tensors import read_map
from subgraph.trials.matching.pair_models import pair_models
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.score import ScoreGoal, open_score
from subgraph.trials.trial import Processes, Trials
from subgraph.types import StringMap, frozen

STORE = ".store"  # within the folder of results


@frozen
class Setup:
    """The settings of trials in addition to the model.

    Attributes:
        output: the folder of results; the store lives in it.
        criterion: words as `judge.criterion` takes them.
        stored: whether results of earlier sessions can be used.
        candidate_model: the model that the candidate runs, if it is another one: its file, or the
            two paired.
        tensor_map: a file that pairs tensors of the two models; None without one.
        score: the score that judges the full model instead of the criterion.
        choice: which outputs of the model are compared, and where.
        needs_evidence: as in `Judge`.
    """

    candidate: Candidate
    feeding: Feeding
    output: Path
    criterion: str = "noise"
    freeze: bool = True
    stored: bool = True
    candidate_model: Path | CandidateModel | None = None
    tensor_map: Path | None = None
    score: ScoreGoal | None = None
    choice: OutputChoice = field(default_factory=OutputChoice)
    needs_evidence: bool = True

    @property
    def own_model(self) -> str:
        """The file name of the candidate's own model; "" if it runs the reference's."""
        other = self.candidate_model
        path = other.graph.path if isinstance(other, CandidateModel) else other
        return path.name if path else ""


@contextmanager
def open_trials(
    graph: Graph, setup: Setup, reference: Reference, workers: Workers | None = None
) -> Iterator[Trials]:
    """Open trials on one model, until the block ends.

    The processes belong to the caller, who starts them before the model is read. Without `workers`
    no candidate can be run: a person runs it, or it has run already.

    Raises:
        UsageError: criterion or inputs mean nothing. BackendError: the candidate cannot be used.
        ModelError: no node computes an output. OutputError: nothing can be written.
    """
    rule = parse_criterion(setup.criterion)
    prepare_graph(graph)
    _require_outputs(graph, setup.choice)
    samples = setup.feeding.plan(graph, graph.inputs)
    output = setup.output.absolute()
    workers = workers or open_workers(setup.candidate)
    reference.share(workers.deadline)
    with ExitStack() as stack:
        scratch = stack.enter_context(folders.make_scratch(output))
        store = stack.enter_context(Store(output / STORE if setup.stored else scratch / STORE))
        candidate = setup.candidate
        other = setup.candidate_model
        own_values = ReferenceValues(graph, reference, samples, scratch / "values")
        theirs = prepare_graph(load(other)) if isinstance(other, Path) else None
        share = 0.0
        if theirs:
            folder = folders.make_numbered_folder(scratch, "quantized")
            graph, share = quantize_reference(graph, theirs, folder)
        values = own_values
        if graph is not own_values.graph:
            values = ReferenceValues(graph, reference, samples, scratch / "quantized-values")
        shared = None
        roundings = None
        unrounded: StringMap = {}
        pair = other if isinstance(other, CandidateModel) else None
        if theirs:
            pair = _pair_with(graph, theirs, setup, values, stack)
            if values is not own_values:
                cost = _measure_quantization(own_values, values, setup.choice)
                pair = replace(pair, weight_cost=cost, nearest=share)
            log.info("%s", describe_matches(pair))
        else:  # a side may have some tensors only, as the module from which the model was exported
            sides = [reference.tensors(graph.path), workers.tensors(graph.path)]
            shared = _find_shared_tensors(graph, sides)
            if sides[0] is not None:
                roundings = stack.enter_context(Reference())
                known = sides[0] & graph.maker.keys()
                unrounded = find_unrounded(graph, known, values.compute_first)
                roundings.share(workers.deadline)
            if sides[1] is not None:
                candidate = replace(
                    candidate, options={**candidate.options, WHOLE: str(graph.path.resolve())}
                )
        model = ReferenceModel(
            graph=graph,
            reference=reference,
            values=values,
            store=store,
            scratch=scratch,
            freeze=setup.freeze,
            comparable=pair.matches if pair else shared,
            shared_tensors=shared,
            roundings=roundings,
            unrounded=unrounded,
            choice=setup.choice,
        )
        score = None
        if setup.score:
            score = stack.enter_context(
                open_score(setup.score, model, model.whole().outputs, workers.memory)
            )
        runtime = CandidateRuntime(candidate=candidate, workers=workers, own_model=pair)
        judge = Judge(
            model=model,
            runtime=runtime,
            rule=rule,
            criterion=setup.criterion,
            score=score,
            needs_evidence=setup.needs_evidence,
        )
        yield Trials(Processes(judge), judge)


def _require_outputs(graph: Graph, choice: OutputChoice) -> None:
    """Require that the choice leaves an output that a node computes.

    Raises:
        UnknownName: an output that is named does not exist. UsageError: all are ignored.
        ModelError: no node computes an output.
    """
    outputs = [name for name in graph.outputs if name in graph.maker]
    if not outputs:
        if graph.maker:
            what = "no node of the model computes an output"
        else:
            what = "the model has no nodes"
        raise ModelError(
            f"{graph.path.name}: {what}",
            f"subcut inspect {graph.path}",
            code="model.no-outputs",
        )
    for option, name in choice.options:
        if name not in outputs:
            close = find_nearest(name, outputs) or outputs
            raise UnknownName(
                f"{option}: the model has no such output",
                nearest=map(clean, close),
                code="tensor.not-an-output",
            )
    choice.select(outputs)


def _pair_with(
    graph: Graph, other: Graph, setup: Setup, values: ReferenceValues, stack: ExitStack
) -> CandidateModel:
    """Return the candidate's own model, paired with the reference's model."""
    if is_of_tflite(other.path):
        runs_other = stack.enter_context(make_default(other))
    else:
        runs_other = values.reference
    runs_other.share(values.reference.deadline)
    tensor_map = read_map(setup.tensor_map, graph) if setup.tensor_map else {}
    pair = pair_models(
        graph, other, runs_other, values, values.folder.parent, tensor_map, setup.choice
    )
    if find_tensor_scales(graph) and not find_tensor_scales(other):
        log.warning(
            "%s is quantized and %s is not: name the float model first, as the reference",
            clean(graph.path.name),
            clean(other.path.name),
        )
    return pair


def _measure_quantization(
    own: ReferenceValues, quantized: ReferenceValues, choice: OutputChoice
) -> float:
    """Measure how far quantized weights move the outputs, as a share of the largest value."""
    names = choice.select(name for name in own.graph.outputs if name in own.graph.maker)
    cost = 0.0
    for values in (own, quantized):
        values.need(names)
    for ours, theirs in zip(own.records, quantized.records, strict=True):
        for name in names:
            pair = pair_if_comparable(ours[name].value(), theirs[name].value())
            if pair and pair.floating and pair.scale:
                cost = max(cost, pair.error / pair.scale)
    return cost


def _find_shared_tensors(
    graph: Graph, sides: Iterable[frozenset[str] | None]
) -> frozenset[str] | None:
    """Return the tensors that are compared; None for all."""
    limited = [side for side in sides if side is not None]
    if not limited:
        return None
    shared = frozenset.intersection(*limited)
    number = len(shared & graph.maker.keys())
    made = len(graph.maker)
    log.info(
        "%d of %d tensors are values of the module: it is run in pieces between these", number, made
    )
    return shared


def with_own_model(trials: Trials, own_model: CandidateModel | None) -> Trials:
    """Return trials whose candidate runs another model file, or that of the reference."""
    comparable = own_model.matches if own_model else trials.model.shared_tensors
    model = replace(trials.model, comparable=comparable)
    return trials.with_runtime(replace(trials.runtime, own_model=own_model), model)


@contextmanager
def with_candidate(trials: Trials, candidate: Candidate, name: str) -> Iterator[Trials]:
    """Open trials of another candidate, in separate processes, until the block ends.

    Results are stored alike.

    Args:
        trials: The trials.
        candidate: The other candidate.
        name: The name of a folder for its files.

    Raises:
        SubcutError: The candidate cannot be used.
    """
    scratch = trials.model.scratch / name
    scratch.mkdir(exist_ok=True)
    deadline = trials.runtime.workers.deadline
    deadline.require()
    with open_workers(candidate, deadline) as workers:
        runtime = replace(trials.runtime, candidate=candidate, workers=workers, is_manual=False)
        yield trials.with_runtime(runtime, replace(trials.model, scratch=scratch))


def open_reference(candidate: Candidate) -> Reference:
    """Return a reference's process, to be entered; `ort` without options is plain onnxruntime, and
    has no limits."""
    python = install(candidate)
    is_plain = candidate.backend == PLAIN and not candidate.options and python is None
    return Reference(
        candidate.backend,
        candidate.options,
        timeout=None if is_plain else candidate.timeout,
        memory=None if is_plain else candidate.memory,
        python=python,
    )


@contextmanager
def open_with_processes(graph: Graph, setup: Setup, reference: Candidate) -> Iterator[Trials]:
    """Open trials like `open_trials`, with separate processes.

    The reference `ort` without options is plain onnxruntime.

    Raises: as `open_trials`.
    """
    with (
        open_reference(reference) as running,
        open_workers(setup.candidate) as workers,
        open_trials(graph, setup, running, workers) as trials,
    ):
        yield trials


# ------------------------------------------------------------ cases
# `subcut replay`: a case -> trials of any candidate on its model, fed with its inputs.


@contextmanager
def open_case(
    case: FoundCase, k: int, candidate: Candidate, criterion: str, reference: Reference
) -> Iterator[Trials]:
    """Open trials on a case's model, fed with its sample `k`.

    Raises:
        InputError: an input is not a single tensor. Others as `open_trials`.
    """
    inputs = []
    for name, records in case.inputs.items():
        if not records or len(records[k].files) != 1:
            raise InputError(
                f"input '{name}' of the case is not a single tensor",
                "run its repro.py",
                code="tensor.not-tensor",
            )
        inputs.append(f"{name}={records[k].files[0]}")
    graph = load(case.place / MODEL)
    with folders.make_temporary() as temporary, open_workers(candidate) as workers:
        other = load_own_model(graph, case.place / CANDIDATE)
        outputs = {name for name in graph.outputs if name in graph.maker}
        found_with = case.found_with
        choice = OutputChoice()
        if found_with:
            choice = OutputChoice.parse(found_with.ignored, where=found_with.where)
        setup = Setup(
            candidate,
            Feeding(tuple(inputs)),
            temporary,
            criterion,
            candidate_model=other,
            choice=choice.among(outputs),
        )
        with open_trials(graph, setup, reference, workers) as trials:
            yield trials
