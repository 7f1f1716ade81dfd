"""A whole bisection, step by step: the search among nodes, then its document and its folder.

If nothing fails while shape-computing tensors are constants, the search runs once more with them as inputs: freezing
changes what a candidate does, and some faults need one form, some the other.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from subgraph.bisection import result_folder
from subgraph.bisection.approximate import excused, look
from subgraph.bisection.costs import costs
from subgraph.bisection.describe import describe
from subgraph.bisection.inside import (
    ALONE,
    AS_LOOP,
    Entered,
    InnerRuns,
    can_enter,
    enter,
    loop_of_one_fails,
    miscounted,
    trials_inside,
)
from subgraph.bisection.oracle import NodeOracle, items_of
from subgraph.bisection.remaining import Remaining
from subgraph.bisection.stretches import capture, search_stretches
from subgraph.cases import case, evidence
from subgraph.cases.case import ResultPlace
from subgraph.comparison import ROUNDING_ALONE
from subgraph.comparison.judge import parse_criterion
from subgraph.documents import to_json
from subgraph.errors import OutOfTime, SubcutError, UsageError
from subgraph.graph.graph import Graph, require_graph
from subgraph.graph.region import between
from subgraph.results.bisect import BisectDocument, FindingDocument, InnerFinding, InsideDocument, OtherModel
from subgraph.runtime.candidate import Candidate, parse
from subgraph.runtime.inputs import Feeding
from subgraph.search import Counts, FindingKind, Findings, Outcome, QueryKind, Settings, Step
from subgraph.search.state import Steps, each
from subgraph.storage.folders import safe_name
from subgraph.text import clean
from subgraph.trials.pieces import allows_approximations, between_quantizers, is_approximate, jumps
from subgraph.trials.session import Setup, open_with_processes
from subgraph.trials.stored_answers import age, drop_if_changed
from subgraph.trials.trial import Trials
from subgraph.verdict import Verdict

log = logging.getLogger("subcut")

NAME_LENGTH = 60  # characters of the candidate's name, and of a body's, in the folder's
MAX_ENTERED = 3  # findings in whose bodies the search goes on
INNER_FIELDS = tuple(f.name for f in fields(InnerFinding))  # of a finding in there


@dataclass(frozen=True)
class BisectionOptions:
    """What a bisection depends on beside the model.

    Attributes:
        within: `A..B`, only the nodes between these two are suspects; "" for all.
        command: the user's command line, for reports. notes: for the reader of the report.
        force: may another result be replaced?
        hints: by index of a node, how many times as likely as others it is guilty; it is searched earlier;
            asked once the whole disagrees.
        body: the body that the model is, "" for a model of its own.
    """

    setup: Setup
    limits: Settings = field(default_factory=Settings)
    within: str = ""
    command: str = ""
    notes: tuple[str, ...] = ()
    force: bool = False
    hints: Callable[[], Mapping[int, float]] = dict
    body: str = ""

    @property
    def place(self) -> ResultPlace:
        """The result's folder: one per candidate and model of its own, and per body that was searched."""
        setup = self.setup
        name = f"bisect-{safe_name(setup.candidate.name)[:NAME_LENGTH]}"
        name += f"-{safe_name(setup.own_model)[:NAME_LENGTH]}" if setup.own_model else ""
        name += f"-inside-{safe_name(self.body)[:NAME_LENGTH]}" if self.body else ""
        return ResultPlace(setup.output, name, self.force or bool(self.body))

    @property
    def request(self) -> object:
        """What the result depends on beside the model, as JSON."""
        setup = self.setup
        return to_json(
            {
                "candidate": setup.candidate.name,
                "identity": setup.candidate.identity(""),
                "precision": setup.candidate.precision,
                **({"candidate_model": setup.own_model} if setup.own_model else {}),
                "feeding": setup.feeding.options,
                "criterion": setup.criterion,
                **({"score": setup.score} if setup.score else {}),
                **({"ignored": setup.choice.ignored} if setup.choice.ignored else {}),
                **({"where": [str(one) for one in setup.choice.where]} if setup.choice.where else {}),
                "freeze": setup.freeze,
                "within": self.within,
                "inside": self.limits.inside,
            }
        )


class Bisection:
    """Iterate it: a Step per answer of the candidate. After the last one, the result is written.

    Attributes:
        steps: the steps so far.
        remaining: what the steps so far have shown.
        findings: the result of the search, once it ended; items are positions in `oracle.groups`.

    >>> import subgraph
    >>> bisection = subgraph.bisect(subgraph.load("resnet50.onnx"), output="results")
    >>> len(list(bisection)) == len(bisection.steps), bisection.result.agree
    (True, True)
    """

    def __init__(self, trials: Trials | None, options: BisectionOptions) -> None:
        self.trials, self.options = trials, options
        self.steps: list[Step] = []
        self.remaining = Remaining(0)
        self.findings: Findings | None = None
        self._result: BisectDocument | None = None
        self._oracle: NodeOracle | None = None
        self._started = 0.0  # of `time.monotonic`
        self._before = Counts({}, {})  # of an earlier search, whose shapes were constants
        self._looks = 0  # runs of nodes alone between the two
        self._inner = InnerRuns(None)
        self._criterion, self._pieces, self._pieces_note = options.setup.criterion, "", ""

    def __iter__(self) -> Iterator[Step]:
        """
        Raises:
            BackendError: the candidate cannot be used. ResultExists: another result stands in the way.
            UsageError, UnknownName: `within` names nothing. OutputError: nothing can be written.
            InputError: an input does not fit. ModelError: the reference cannot run the model.
            OutOfTime: the time was used up before the whole model had run once.
        """
        self._started, options, trials = time.monotonic(), self.options, self.trials
        assert trials
        self.steps.clear()
        self._oracle = self._new_oracle(trials)
        trials.workers.deadline = self._started + (options.limits.max_time or math.inf)
        place = result_folder.free_place(options.place, self.oracle)
        capture(self.oracle)  # what the reference cannot run is an error, not a search
        changed = self._changed(trials)
        findings = yield from self._followed()
        if trials.freeze and self._finds_no_piece(findings):
            log.info("no region fails while shapes are constants: searching once more with shapes as inputs")
            trials.freeze, self._before = False, findings.counts
            self._oracle = self._new_oracle(trials)
            findings = yield from self._followed()
        findings = yield from self._looked(findings)
        label, groups = trials.graph.label, self.oracle.groups
        self.findings = replace(findings, names=tuple(tuple(map(label, sorted(group))) for group in groups))
        if findings.stopped and not any(s.query.kind is QueryKind.WHOLE for s in self.steps):
            raise OutOfTime(
                f"{findings.stopped} before the whole model had run once", "the same command with more time"
            )
        document = describe(
            self.oracle,
            findings,
            self.steps,
            command=options.command,
            criterion=self._criterion,
            seconds=self._seconds,
            notes=[
                *self.options.notes,
                *filter(None, (changed, age(trials), self._pieces_note)),
                *self._stale(findings, place),
            ],
            within=options.within,
        )
        other, body = self._other_model(findings), options.body or None
        document = replace(document, other_model=other, body=body, pieces=self._pieces or None)
        if findings.outcome is Outcome.DISAGREE:
            document = self._with_insides(document)
            document = result_folder.save(self.oracle, document, place, options.request, options.setup.feeding)
            self._result = document
        else:  # beside an earlier finding, not in its place
            source = case.source_of(trials.graph)
            aside = replace(place, name=f"{options.place.name}-report")
            self._result = evidence.save_document(document, aside, source, [trials.graph.path])

    @property
    def result(self) -> BisectDocument:
        """The whole result.

        Raises:
            UsageError: the bisection has not ended.
        """
        if self._result is None:
            raise UsageError("the bisection has not ended", "iterate it to its end")
        return self._result

    @property
    def document(self) -> dict[str, Any]:
        """`result` as JSON, as `subcut bisect --json` prints it; empty until it is written."""
        return to_json(self._result) if self._result else {}

    @property
    def oracle(self) -> NodeOracle:
        """
        Raises:
            UsageError: the bisection has not begun.
        """
        if self._oracle is None:
            raise UsageError("the bisection has not begun", "iterate it first")
        return self._oracle

    @property
    def suspects(self) -> int:
        """Number of nodes in question."""
        return self.oracle.size

    def nodes(self, step: Step) -> list[str]:
        """Labels of the nodes that a step is about; none for the whole model."""
        oracle = self.oracle
        return [oracle.trials.graph.label(i) for i in oracle.indices(step.items)]

    def search(self) -> Steps[Findings]:
        """The search from its beginning; stored answers cost nothing."""
        return self._search_in(_scope(self.oracle, self.options.within))

    def _search_in(self, scope: Sequence[int] | None, inside: bool = False) -> Steps[Findings]:
        """The search among some items; None: among all. `inside`: also where the outputs agree."""
        self.oracle.hints = self.options.hints
        limits = self.options.limits.after(self._before.total() + self._looks, self._seconds)
        return search_stretches(self.oracle, replace(limits, within=scope, inside=inside or limits.inside))

    @property
    def _seconds(self) -> float:
        """Time since it began."""
        return time.monotonic() - self._started

    def _followed(self, scope: Sequence[int] | None = None, inside: bool = False) -> Steps[Findings]:
        """The search, whose steps are kept; among some items only, if they are given; `inside`: as `_search_in`."""
        self.remaining = Remaining(self.suspects)
        within = _scope(self.oracle, self.options.within) if scope is None else scope
        search = self.search() if scope is None and not inside else self._search_in(within, inside)
        return self._summed((yield from each(search, self._keep)))

    def _looked(self, findings: Findings) -> Steps[Findings]:
        """The findings, or where the whole does not decide, those of a search among its pieces: by rounding alone,
        where it agrees within what approximate kernels may do and others than these are off; between two quantizers,
        where one step moves the whole beyond use."""
        trials, limits = self.oracle.trials, self.options.limits
        if findings.outcome is Outcome.UNRESOLVED and not (findings.stopped or self.options.within):
            return (yield from self._looked_between_quantizers(findings))
        asked = [trials.whole(), *([trials.whole(trials.tensors())] if limits.inside else [])]
        scope = _scope(self.oracle, self.options.within)
        asked += [self.oracle.region(scope)] if scope else []
        if findings.outcome is not Outcome.AGREE or not allows_approximations(trials):
            return findings
        beyond = any(is_approximate(trials, region) for region in asked)
        if not beyond and not any(jumps(trials, region) for region in asked):
            return findings
        log.info("the error is beyond rounding: looking at each node alone")
        before, most = trials.extra_runs, limits.after(findings.counts.total()).max_trials
        self._pieces, is_off = look(self.oracle, math.inf if most is None else most)
        self._looks = trials.extra_runs - before
        if self._pieces or not (beyond or is_off):
            return findings
        log.info("no approximate kernel explains it: searching by rounding alone")
        usual = self._criterion, trials.rule
        self._criterion, trials.rule = ROUNDING_ALONE, parse_criterion(ROUNDING_ALONE)
        self._before, self._oracle = findings.counts, self._new_oracle(trials)
        findings = yield from self._followed(inside=not beyond)
        self._pieces = excused(self.oracle, findings)
        if not self._pieces:
            return findings
        self._criterion, trials.rule = usual
        return replace(findings, outcome=Outcome.AGREE, findings=())

    def _looked_between_quantizers(self, findings: Findings) -> Steps[Findings]:
        trials = self.oracle.trials
        found = between_quantizers(trials)
        if found is None:
            return findings
        self._pieces, self._pieces_note = found.says, found.note(trials.graph)
        if self._pieces:
            return replace(findings, outcome=Outcome.AGREE, findings=())
        if not found.off:
            return findings
        log.info("off by more than a step: searching in the first of such pieces")
        self._before, self._oracle = findings.counts, self._new_oracle(trials)
        inside = set(found.off[0].nodes)
        return (yield from self._followed([k for k, group in enumerate(self.oracle.groups) if inside & {*group}]))

    def _keep(self, step: Step) -> Step:
        self.steps.append(step)
        self.remaining.add(step, self.oracle.indices(step.items))
        return step

    def _with_insides(self, document: BisectDocument) -> BisectDocument:
        """The document with what was found inside of its findings, with what runs were left, and what that took."""
        limit = self.options.limits.max_trials
        self._inner = InnerRuns(None if limit is None else limit - document.trials)
        document = replace(document, findings=list(self._insides(document.findings)))
        made, seconds = self._inner.made, round(self._seconds, 3)
        runs = {**document.runs, **({"inside": made} if made else {})}
        return replace(document, trials=document.trials + made, runs=runs, seconds=seconds)

    def _insides(self, findings: Sequence[FindingDocument]) -> Iterator[FindingDocument]:
        """The findings; the first ones that are a node with something inside with what was found in there."""
        for k, finding in enumerate(findings):
            enters = finding.kind == FindingKind.CULPRIT and k < MAX_ENTERED
            enters = enters and can_enter(self.oracle.trials, finding.indices)
            found = self._inside(finding) if enters else None
            yield replace(finding, inside=found) if found else finding

    def _inside(self, finding: FindingDocument) -> InsideDocument | None:
        """What the search finds in a body of a finding's only node."""
        trials, node = self.oracle.trials, finding.indices[0]
        region = self.oracle.region([k for k, group in enumerate(self.oracle.groups) if node in group])
        verdict = trials.verdict_of(region, self.oracle.run_result(region))
        try:
            self._inner.require(1)
            entered = enter(trials, self.options.setup, node, verdict, self._inner)
            if entered is None:
                return None
        except SubcutError as e:
            return InsideDocument(trials.graph.label(node), None, None, ALONE, why=e.what)
        found = self._searched(entered, ALONE)
        return found if found.is_same_fault(verdict) else self._inside_otherwise(entered, verdict, found)

    def _inside_otherwise(self, entered: Entered, verdict: Verdict, found: InsideDocument) -> InsideDocument:
        """What the search finds where what is inside, alone, is not as wrong as the node."""
        trials, setup = self.oracle.trials, self.options.setup
        try:
            if why := miscounted(trials, setup, entered, self._inner):
                return InsideDocument(entered.all_iterations, None, None, ALONE, why=why)
            why = loop_of_one_fails(trials, setup, entered, self._inner)
            again = replace(found, why=why) if why else self._searched(entered, AS_LOOP)
        except SubcutError as e:
            return replace(found, why=found.why or e.what)
        if again.is_same_fault(verdict):
            return again
        if not found.findings:
            return found
        refused = "the candidate refuses what is inside as a model of its own"
        return replace(entered.document, why=refused, report=found.report)

    def _searched(self, entered: Entered, asked: str) -> InsideDocument:
        """The search in a body."""
        known = replace(entered.document, asked=asked)
        runs = self._inner
        limits = replace(self.options.limits.after(seconds=self._seconds), max_trials=runs.left, within=None)
        try:
            runs.require(1)
            with trials_inside(self.oracle.trials, self.options.setup, entered, asked) as (trials, setup):
                log.info("inside %s, %s: %d nodes", clean(known.body), asked, len(trials.graph.nodes))
                options = replace(self.options, setup=setup, limits=limits, within="", hints=dict, body=known.body)
                inner = Bisection(trials, options)
                try:
                    for _ in inner:
                        pass
                finally:
                    runs.made += inner.result.trials if inner.document else len(inner.steps)
        except SubcutError as e:
            return replace(known, why=e.what)
        found = inner.result
        stopped = f"ended early: {inner.findings.stopped}" if inner.findings and inner.findings.stopped else ""
        findings = [InnerFinding(**{name: getattr(f, name) for name in INNER_FIELDS}) for f in found.findings]
        return replace(known, outcome=found.outcome, report=found.report, why=stopped, findings=findings)

    def _changed(self, trials: Trials) -> str:
        """What is said where stored answers were dropped."""
        changed = ""
        with contextlib.suppress(OutOfTime):  # the search says so
            changed = "" if trials.run_by_hand else drop_if_changed(trials)
        if changed:
            log.warning("%s", changed)
        return changed

    def _new_oracle(self, trials: Trials) -> NodeOracle:
        return NodeOracle(trials, items_of(trials), self.options.limits.workers)

    def _summed(self, findings: Findings) -> Findings:
        """The findings of a search that just ended, as they are reported: with the runs of the one before."""
        return replace(findings, counts=self._before + findings.counts)

    def _finds_no_piece(self, findings: Findings) -> bool:
        """Does the whole fail, but no piece of it, and are shapes frozen somewhere?"""
        nothing = all(f.kind is FindingKind.UNRESOLVED for f in findings.findings) and not findings.stopped
        items = range(len(self.oracle.groups))
        fails = findings.outcome in (Outcome.DISAGREE, Outcome.ELSEWHERE)
        return fails and nothing and any(self.oracle.region([k]).shapes for k in items)

    def _other_model(self, findings: Findings) -> OtherModel | None:
        """How the candidate's own model matches the reference's, and what it costs; the latter within the budget."""
        other = self.oracle.trials.candidate_model
        if other is None:
            return None
        if findings.stopped or findings.outcome is Outcome.AGREE:
            return OtherModel(other.graph.path.name, other.summary())
        log.info("what each piece of %s costs: %d runs", other.graph.path.name, len(self.oracle.groups))
        with contextlib.suppress(OutOfTime):
            return costs(self.oracle, other)
        return OtherModel(other.graph.path.name, other.summary())

    def _stale(self, findings: Findings, place: ResultPlace) -> list[str]:
        """A note if an earlier result of the same request says otherwise."""
        source = case.source_of(self.oracle.trials.graph)
        if findings.outcome is Outcome.DISAGREE or not case.is_earlier(place, self.options.request, source):
            return []
        return [f"{place.path} holds an earlier run's finding, which this run does not confirm"]


class _BisectionWithProcesses(Bisection):
    """Starts its processes when it is iterated, and ends them with the last step."""

    def __init__(self, graph: Graph, reference: Candidate, options: BisectionOptions) -> None:
        super().__init__(None, options)
        self._graph, self._reference = graph, reference

    def __iter__(self) -> Iterator[Step]:
        with open_with_processes(self._graph, self.options.setup, self._reference) as self.trials:
            yield from super().__iter__()


def bisect(
    graph: Graph,
    candidate: str | Candidate = "ort",
    inputs: Sequence[str] = (),
    *,
    seed: int = 0,
    shapes: Mapping[str, Sequence[int]] | None = None,
    criterion: str = "noise",
    reference: str | Candidate = "ort",
    within: str = "",
    limits: Settings | None = None,
    freeze: bool = True,
    output: str | Path = "subcut_out",
    force: bool = False,
) -> Bisection:
    """Find the smallest piece of a model that a candidate gets wrong: iterate the returned object.

    `candidate`, `reference`: a SPEC as after `-c`, or a `Candidate` with limits of its own. `inputs`: as after `-i`.
    `within`: `A..B`. The result goes to a folder in `output`, where answers are stored as well: a bisection that was
    stopped goes on when it is run again.

    >>> from subgraph import load
    >>> bisection = bisect(load("demo/model.onnx"), "demo/wrong.py", ["demo/input.npy"])
    >>> outcomes = [(step.number, bisection.nodes(step), step.outcome) for step in bisection]
    >>> bisection.document["findings"][0]["nodes"]
    ['stem/pad', 'stem/pool']

    Raises:
        UnknownName, UsageError: a SPEC is wrong. For errors while it is iterated see `Bisection`.
    """
    require_graph(graph, "bisect")
    candidate, reference = (parse(spec) if isinstance(spec, str) else spec for spec in (candidate, reference))
    feeding = Feeding(tuple(map(str, inputs)), shapes or {}, seed)
    setup = Setup(candidate, feeding, Path(output), criterion, freeze)
    command = f"subgraph.bisect({graph.path.name!r}, {candidate.name!r})"
    options = BisectionOptions(setup, limits or Settings(), within, command, force=force)
    return _BisectionWithProcesses(graph, reference, options)


def _scope(oracle: NodeOracle, within: str) -> Sequence[int] | None:
    """The items between the two nodes of `A..B`."""
    if not within:
        return None
    start, sep, end = within.partition("..")
    if not sep:
        raise UsageError(f"--within {within}: expected two nodes", "--within conv1..pool5; either may be left out")
    nodes = set(between(oracle.trials.graph, [start] if start else [], [end] if end else []).nodes)
    items = [k for k, group in enumerate(oracle.groups) if nodes.intersection(group)]
    if not items:
        raise UsageError(f"--within {within}: nothing there carries values")
    return items
