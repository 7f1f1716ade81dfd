"""A whole bisection, step by step: the stages of the search, then the document and the folder of
the result."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from subgraph.cases import case, evidence
from subgraph.cases.case import ResultPlace
from subgraph.documents import to_json
from subgraph.errors import ModelError, OutOfTime, OutputError, UsageError, WorkerDied
from subgraph.graph.graph import Graph, as_graph
from subgraph.log import log
from subgraph.project import parse_seconds
from subgraph.questions.bisection import result_folder
from subgraph.questions.bisection.body_search import InnerRuns, InnerSearch
from subgraph.questions.bisection.describe import describe
from subgraph.questions.bisection.error_shares import measure_costs
from subgraph.questions.bisection.items import Remaining, list_items
from subgraph.questions.bisection.options import BisectionOptions
from subgraph.questions.bisection.oracle import NodeOracle
from subgraph.questions.bisection.rewriting import RewritingOracle
from subgraph.questions.bisection.stages import STAGES, Interim, search_unless_explained
from subgraph.questions.bisection.stretches import capture, search_stretches
from subgraph.reports import add_answer
from subgraph.results.bisect import BisectDocument, OtherModel
from subgraph.results.common import PowerDocument
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.deadline import if_time
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.python_values import (
    CandidateValue,
    Inputs,
    make_candidate,
    make_input_arguments,
)
from subgraph.search import Counts, Findings, Outcome, QueryKind, Settings, Step
from subgraph.search.driver import Steps, each
from subgraph.trials.candidate_model import describe_matches
from subgraph.trials.open_trials import Setup, open_with_processes
from subgraph.trials.power import measure_power_in_time
from subgraph.trials.questions import describe_age, prepare
from subgraph.trials.small_input import MAX_RUNS
from subgraph.trials.trial import Processes, Trials
from subgraph.types import JsonObject, Shapes

# Share of the time for the search; the explanations of the findings have at least the rest.
MAX_SEARCH_SHARE = 0.9
END_SECONDS = 1.5  # of the time, for ending a run that is under way and writing the result
POWER_SECONDS = 1.0  # that planted faults may take after a right answer
MAX_WRITING_SHARE = 0.1  # of the time, beyond it, in which the result must be written
NOTHING_FOUND = Findings(Outcome.UNRESOLVED, Counts())


@dataclass
class BisectionProgress:
    """The present results of one pass over a bisection; the search itself reads only the time.

    Attributes:
        began: Start of the pass, by `time.monotonic`.
        steps: The steps that have ended.
        remaining: The suspects and runs that are left.
        oracle: The oracle of the present search; None before the first.
        findings: The result of the search; None before it has ended.
        result: The document; None before it is written.
    """

    began: float = field(default_factory=time.monotonic)
    steps: list[Step] = field(default_factory=list)
    remaining: Remaining = field(default_factory=lambda: Remaining(0))
    oracle: NodeOracle | None = None
    findings: Findings | None = None
    result: BisectDocument | None = None

    @property
    def seconds(self) -> float:
        """Time since the pass began."""
        return time.monotonic() - self.began

    def keep(self, step: Step) -> Step:
        """Take note of a step of the present search."""
        assert self.oracle
        if not self.oracle.cuts and step.items:
            step = replace(step, query=replace(step.query, kind=QueryKind.REWRITTEN))
        self.steps.append(step)
        self.remaining.add(step, self.oracle.list_indices(step.items))
        return step


class Bisection:
    """Iterate it: a Step per answer of the candidate. After the last one, the result is written.

    Each iteration is a separate bisection over the stored results: it takes the same steps.

    Attributes:
        trials: The candidate and its judge.
        options: The options of the bisection.

    >>> import subgraph
    >>> bisection = subgraph.bisect(subgraph.load("resnet50.onnx"), output="results")
    >>> len(list(bisection)) == len(bisection.steps), bisection.result.agree
    (True, True)
    """

    rewriting_oracle = RewritingOracle

    def __init__(self, trials: Trials | None, options: BisectionOptions) -> None:
        self.trials = trials
        self.options = options
        self._progress = BisectionProgress()

    def __iter__(self) -> Iterator[Step]:
        """Yield a step per answer of the candidate, then write the result.

        Raises:
            BackendError: The candidate cannot be used.
            ResultExists: Another result exists in the folder.
            UsageError, UnknownName: `within` names nothing.
            OutputError: The result cannot be written.
            InputError: An input does not fit.
            ModelError: The reference cannot run the model.
            OutOfTime: The time was used up before the full model was judged.
        """
        assert self.trials
        self._progress = progress = BisectionProgress()
        trials = self.trials.with_new_session()
        limit = self.options.limits.max_time
        deadline = trials.runtime.workers.deadline
        deadline.limit(progress.began, limit and limit - min(END_SECONDS, limit / 5))
        progress.oracle = oracle = self.new_oracle(trials)
        source = case.describe_source(oracle.graph)
        place = case.find_free_place(self.options.place, source, [oracle.graph.path])
        capture(oracle)  # what the reference cannot run is an error, not a search
        trials.model.reference.identity()  # the document needs it, also once the time is used up
        prepared = prepare(trials)
        if prepared.trials is not trials:
            progress.oracle = oracle = self.new_oracle(prepared.trials)
            capture(oracle)
        interim = yield from search_unless_explained(self, Interim(oracle, NOTHING_FOUND))
        stages = STAGES if interim.settlement.is_open and not interim.precise else ()
        for stage in stages:
            try:
                interim = yield from stage(self, interim)
            except OutOfTime as e:
                interim = interim.mark_stopped(e.what)
        progress.oracle = interim.oracle
        findings = interim.findings
        label = interim.trials.graph.label
        groups = interim.oracle.groups
        progress.findings = replace(
            findings, names=tuple(tuple(map(label, sorted(group))) for group in groups)
        )
        if findings.stopped and not any(
            step.query.kind is QueryKind.WHOLE for step in progress.steps
        ):
            distance = _describe_distance_of_whole(trials)
            raise OutOfTime(
                f"{findings.stopped} before the whole model was judged{distance}",
                "the same command with more time",
                code="time.used-up",
            )
        power = if_time(partial(_measure_power, self, interim), None)
        deadline.limit(progress.began, limit)
        document = _describe(
            self,
            interim,
            power,
            [*prepared.notes, describe_age(interim.trials)],
            place,
        )
        progress.result = _save(self, interim, document, place)

    # ------------------------------------------------------------ progress

    def __repr__(self) -> str:
        state = self.finished.says if self.finished else f"{len(self.steps)} steps"
        return f"Bisection({state!r})"

    @property
    def steps(self) -> list[Step]:
        """The steps that have ended."""
        return self._progress.steps

    @property
    def remaining(self) -> Remaining:
        """The suspects and runs that are left."""
        return self._progress.remaining

    @property
    def findings(self) -> Findings | None:
        """The result of the search, once it has ended; items are positions in `oracle.groups`."""
        return self._progress.findings

    @property
    def finished(self) -> BisectDocument | None:
        """The complete result; None before the bisection has ended."""
        return self._progress.result

    @property
    def result(self) -> BisectDocument:
        """The whole result. A bisection that has not begun runs to its end first.

        Raises:
            UsageError: the bisection has begun and not ended.
        """
        if self.finished is None and not self.steps:
            list(self)
        if self.finished is None:
            raise UsageError(
                "the bisection has not ended", "iterate it to its end", code="bisection.not-ended"
            )
        return self.finished

    @property
    def document(self) -> JsonObject:
        """`result` as JSON, as `subcut bisect --json` prints it; empty until it is written."""
        return to_json(self.finished) if self.finished else {}

    @property
    def oracle(self) -> NodeOracle:
        """The oracle of the present search.

        Raises:
            UsageError: the bisection has not begun.
        """
        if self._progress.oracle is None:
            raise UsageError(
                "the bisection has not begun", "iterate it first", code="bisection.not-begun"
            )
        return self._progress.oracle

    @property
    def suspects(self) -> int:
        """Number of nodes in question."""
        return self.oracle.size

    def nodes(self, step: Step) -> list[str]:
        """Return the labels of the nodes that a step is about; none for the full model."""
        oracle = self.oracle
        return [oracle.graph.label(i) for i in oracle.list_indices(step.items)]

    # ------------------------------------------------------------ searching

    def new_oracle(self, trials: Trials) -> NodeOracle:
        """Return an oracle that knows no answers."""
        return NodeOracle(trials, list_items(trials), self.options.limits.workers)

    def sum_up(self, findings: Findings, before: Counts) -> Findings:
        """Return the findings of a search that has just ended, with the counts of those
        before it."""
        return replace(findings, counts=before + findings.counts)

    def search(
        self, interim: Interim, scope: Sequence[int] | None = None, *, inside: bool = False
    ) -> Steps[Interim]:
        """Search again with the oracle of `interim`, within the remaining limits.

        Args:
            interim: The present result.
            scope: The suspects; None for those of the options.
            inside: Whether the nodes are searched even if the outputs agree.
        """
        oracle = interim.oracle
        before = interim.findings.counts
        oracle.hints = self.options.hints
        progress = self._progress
        progress.oracle = oracle
        progress.remaining = Remaining(oracle.size)
        within = self.options.find_scope(oracle) if scope is None else scope
        limits = self.options.limits
        if limits.max_time is not None:
            limits = replace(limits, max_time=MAX_SEARCH_SHARE * limits.max_time)
        limits = limits.subtract(before.total() + interim.looks, progress.seconds)
        only_whole = self.options.by_rewriting and oracle.cuts
        limits = replace(
            limits, within=within, inside=inside or limits.inside, only_whole=only_whole
        )
        findings = yield from each(search_stretches(oracle, limits), progress.keep)
        return replace(interim, findings=self.sum_up(findings, before))

    # ------------------------------------------------------------ result


def _save(
    bisection: Bisection, interim: Interim, document: BisectDocument, place: ResultPlace
) -> BisectDocument:
    """Write the result: a finding with its cases, or a report next to an earlier finding."""
    options = bisection.options
    graph = interim.trials.graph
    if interim.findings.outcome is not Outcome.DISAGREE or interim.precise:
        aside = replace(place, name=f"{options.place.name}-report")
        answered = add_answer(document)
        return evidence.save_document(answered, aside, case.describe_source(graph), [graph.path])
    limit = options.limits.max_trials
    runs = InnerRuns(None if limit is None else limit - document.cost.trials)
    bodies = InnerSearch(
        interim.oracle, options, runs, lambda: bisection._progress.seconds, Bisection
    )
    if interim.oracle.cuts:
        document = bodies.extend(document)
    small_runs = 0 if options.keep_input else MAX_RUNS
    if limit is not None:
        small_runs = min(small_runs, limit - document.cost.trials)
    if options.limits.max_time is not None:  # a case is checked on the reference
        seconds = (1 + MAX_WRITING_SHARE) * options.limits.max_time
        interim.trials.runtime.workers.deadline.limit(bisection._progress.began, seconds)
    return result_folder.save(
        interim.oracle, document, place, options.request, options.setup.feeding, small_runs
    )


def _describe(
    bisection: Bisection,
    interim: Interim,
    power: PowerDocument | None,
    session_notes: Sequence[str],
    place: ResultPlace,
) -> BisectDocument:
    """Return the document, without what is found in bodies. Notes that are "" are left out."""
    settlement = interim.settlement
    options = bisection.options
    graph = interim.trials.graph
    power_note = power.says if power else ""
    notes = [power_note, *session_notes, settlement.note(graph)]
    if interim.is_explained:
        notes.append("no node was searched: --inside searches them")
    if interim.findings.outcome is not Outcome.DISAGREE and case.is_earlier(
        place, options.request, case.describe_source(graph)
    ):
        notes.append(
            f"{place.path} holds an earlier run's finding, which this run does not confirm"
        )
    document = describe(
        interim.oracle,
        interim.findings,
        bisection.steps,
        command=options.command,
        criterion=interim.trials.judge.criterion,
        seconds=bisection._progress.seconds,
        notes=[*options.notes, *filter(None, notes)],
        within=options.within,
    )
    other_model = _measure_own_model(interim)
    pieces = settlement.explanation or None
    whole = replace(document.whole, pieces=pieces, precise=interim.precise, power=power)
    return replace(
        document,
        setup=replace(document.setup, other_model=other_model, body=options.body or None),
        whole=whole,
        search=replace(document.search, healing=interim.healing),
    )


def _measure_power(bisection: Bisection, interim: Interim) -> PowerDocument | None:
    """Return the planted faults that a right answer would have shown, if they cost little."""
    options = bisection.options
    is_narrow = options.within or options.body or options.limits.inside
    if interim.findings.outcome is not Outcome.AGREE or is_narrow:
        return None
    try:
        power = measure_power_in_time(interim.trials.judge, POWER_SECONDS)
    except (ModelError, WorkerDied, OutputError, OSError) as e:  # a full disk, perhaps
        log.debug("no faults were planted: %s", e)
        return None
    return power if power and power.planted else None


def _describe_distance_of_whole(trials: Trials) -> str:
    """Return a clause with the error of the full model, which takes no noise, if the candidate
    has run it; else ""."""
    judge = trials.judge.ignore_evidence().with_criterion("numpy")
    whole = trials.full_model
    result = if_time(partial(Processes(judge).run, whole, fresh=True), None)
    verdict = judge.verdict(whole, result) if result else None
    return f": {verdict.why}" if verdict and verdict.fails else ""


def _measure_own_model(interim: Interim) -> OtherModel | None:
    """Return the matches of the candidate's own model with the reference's, and the error of each
    piece, as far as the time allows."""
    other = interim.trials.runtime.own_model
    if other is None:
        return None
    if not (interim.findings.stopped or interim.findings.outcome is Outcome.AGREE):
        log.info(
            "what each piece of %s costs: %d runs",
            other.graph.path.name,
            len(interim.oracle.groups),
        )
        with contextlib.suppress(OutOfTime):
            return measure_costs(interim.oracle, other)
    return OtherModel(other.graph.path.name, describe_matches(other), other.weight_cost)


class _BisectionWithProcesses(Bisection):
    """Starts its processes when it is iterated, and ends them with the last step.

    If Ctrl-C interrupts a run, the present result is written before the interruption goes on.
    """

    def __init__(self, graph: Graph, reference: Candidate, options: BisectionOptions) -> None:
        super().__init__(None, options)
        self._graph = graph
        self._reference = reference

        self._is_interrupted = False

    def __iter__(self) -> Iterator[Step]:
        try:
            opened = open_with_processes(self._graph, self.options.setup, self._reference)
            with opened as self.trials:
                yield from super().__iter__()
        finally:
            if self._is_interrupted:
                raise KeyboardInterrupt

    def new_oracle(self, trials: Trials) -> NodeOracle:
        """Return the oracle of a `Bisection`, with an interruption that ends the search.

        The result is written after an interruption.
        """

        def stop() -> None:
            self._is_interrupted = True
            trials.runtime.workers.deadline.limit(time.monotonic(), END_SECONDS)

        return replace(super().new_oracle(trials), stop=stop)


def bisect(
    graph: Graph | str | Path,
    candidate: CandidateValue = "ort",
    inputs: Inputs = None,
    *,
    seed: int = 0,
    shapes: Shapes | None = None,
    criterion: str = "noise",
    reference: str | Candidate = "ort",
    within: str = "",
    by_rewriting: bool = False,
    limits: Settings | None = None,
    max_time: str | float | None = None,
    jobs: int = 1,
    freeze: bool = True,
    output: str | Path = "subcut_out",
    force: bool = False,
    keep_input: bool = False,
) -> Bisection:
    """Find the smallest piece of a model that a candidate gets wrong: iterate the returned object.

    The result goes to a folder in `output`, where answers are stored as well: a bisection that was
    stopped goes on when it is run again.

    - `candidate`: A SPEC as after `-c`, a `Candidate` with its limits, a function `load(path)` that
      returns `run(feeds)`, or an object that runs the full model: a session, a module,
      `run(feeds)`.
    - `reference`: A SPEC or a `Candidate`.
    - `inputs`: Files, arrays, name → array, or a list of these.
    - `within`: `A..B`; "" for all nodes.
    - `by_rewriting`: Whether the full model is rewritten at once, and no cut is run.
    - `keep_input`: Whether no smaller input of a finding is searched.
    - `max_time`: Seconds, or `"30m"`; None for no limit.
    - `jobs`: Number of runs at once.
    - `limits`: All limits, instead of `max_time` and `jobs`.

    >>> from subgraph import load
    >>> bisection = bisect(load("demo/model.onnx"), "demo/wrong.py", ["demo/input.npy"])
    >>> outcomes = [(step.number, bisection.nodes(step), step.outcome) for step in bisection]
    >>> bisection.document["findings"][0]["nodes"]
    ['stem/pad', 'stem/pool']

    Raises:
        UnknownName, UsageError: a SPEC is wrong. For errors while it is iterated see `Bisection`.
    """
    graph = as_graph(graph, "bisect")
    given = make_candidate(candidate, graph)
    feeding = Feeding(make_input_arguments(inputs, graph.inputs), shapes or {}, seed)
    setup = Setup(given, feeding, Path(output), criterion, freeze)
    command = f"subgraph.bisect({graph.path.name!r}, {given.name!r})"
    limits = limits or Settings(max_time=parse_seconds(max_time), workers=jobs)
    options = BisectionOptions(
        setup,
        limits,
        within,
        command,
        force=force,
        by_rewriting=by_rewriting,
        keep_input=keep_input,
    )
    return _BisectionWithProcesses(graph, make_candidate(reference, graph), options)
