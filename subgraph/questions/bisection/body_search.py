"""A finding that is one If, Loop, Scan or call of a function -> a search in trials on its body.

The first iteration of a Loop or Scan that fails is found by halving: the candidate runs it up to an
iteration, with the inputs of the full model. If the body alone agrees, or cannot be run alone, the
Loop may run too often or too rarely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Protocol

from subgraph.bodies.descend import run_body, write_body
from subgraph.bodies.iterations import (
    NotRun,
    count_iterations,
    make_counter,
    run_iterations,
    truncate,
)
from subgraph.bodies.model import (
    FIRST,
    Body,
    has_bodies,
    is_loop_or_scan,
    iter_body_names,
    open_body,
    split_selector,
)
from subgraph.bodies.truncated import COUNTER_START
from subgraph.comparison.where import OutputChoice
from subgraph.errors import Inconclusive, SubcutError
from subgraph.graph import protobuf
from subgraph.log import log
from subgraph.questions.bisection.options import BisectionOptions
from subgraph.questions.bisection.oracle import NodeOracle
from subgraph.results.bisect import BisectDocument, FindingDocument, InnerFinding, InsideDocument
from subgraph.search import FindingKind, Findings, Step
from subgraph.storage.tensors import Records
from subgraph.text import clean, count
from subgraph.trials.judge import Judge
from subgraph.trials.open_trials import Setup, open_trials
from subgraph.trials.trial import Trials
from subgraph.types import frozen
from subgraph.verdict import Signature, Verdict

MAX_ENTERED = 3  # findings in whose bodies the search continues
INNER_FIELDS = tuple(f.name for f in fields(InnerFinding))  # of a finding in there


@dataclass
class InnerRuns:
    """The candidate's runs inside of findings: those `made`, and how many may be, None for any
    number."""

    most: int | None
    made: int = 0

    @property
    def left(self) -> int | None:
        """The number of runs that may follow."""
        if self.most is None:
            return None
        return max(self.most - self.made, 0)

    def require(self, runs: int) -> None:
        """Require that this number of runs is left.

        Raises:
            Inconclusive: fewer are left.
        """
        if self.left is not None and self.left < runs:
            raise Inconclusive(
                "not searched: --max-trials is used up",
                "the same command with a larger limit continues",
                code="bisection.trials-used-up",
            )


@frozen
class Entered:
    """A body that runs, with the first iteration that fails.

    Attributes:
        body: The body.
        sample: Index of the sample.
        iteration: Number of the first iteration that fails, from 0.
        total: Number of iterations.
    """

    body: Body
    sample: int
    iteration: int
    total: int

    @property
    def document(self) -> InsideDocument:
        """The document before the search in the body."""
        if is_loop_or_scan(self.body.graph, self.body.name.node):
            return InsideDocument(self.body.name.text, self.iteration, self.total)
        return InsideDocument(self.body.name.text, None, None)

    @property
    def all_iterations(self) -> str:
        """The body's name without the iteration."""
        return self.body.name.text.removesuffix(f"@{self.body.name.iteration}")


def can_enter(judge: Judge, nodes: Sequence[int]) -> bool:
    """Return whether this finding is a single node with a body that the candidate can run."""
    if (
        len(nodes) != 1
        or judge.runtime.own_model
        or judge.runtime.is_manual
        or judge.model.shared_tensors is not None
    ):
        return False
    return (
        has_bodies(judge.model.graph, nodes[0]) and nodes[0] not in judge.model.graph.random_nodes
    )


def enter(
    trials: Trials, setup: Setup, node: int, verdict: Verdict, runs: InnerRuns
) -> Entered | None:
    """Find the body in `node` that runs, and its first iteration that the candidate gets wrong.

    Args:
        trials: The trials on the graph of the node.
        setup: Their setup.
        node: Index of the node.
        verdict: The verdict on the node alone; it names the sample that fails.
        runs: The runs that are left.

    Returns:
        None if no body runs.

    Raises:
        SubcutError: The reference cannot run the body, or the candidate cannot be used, or no
            `runs` are left.
    """
    graph = trials.graph
    values = trials.values
    wrong = verdict.worst.sample if verdict.worst else None
    first = values.labels.index(wrong) if wrong in values.labels else 0
    samples = sorted(range(len(values.samples)), key=lambda k: k != first)
    for name in iter_body_names(graph, node):
        found = split_selector(graph, name)
        if found is None:
            continue
        body = open_body(graph, found[0])
        for sample in samples:
            try:
                run_iterations(body, values, FIRST, trials.model.new_folder(), [sample])
            except NotRun:
                continue
            if not is_loop_or_scan(graph, node):
                return Entered(body, sample, 0, 1)
            total = count_iterations(body, values, sample, trials.model.new_folder())
            log.info(
                "%s: looking for the first wrong of %d iterations", clean(found[0].text), total
            )
            runs.require(count_most_halvings(total))
            k = find_first_wrong(
                total, partial(_fails_up_to, trials, setup, body, sample, verdict, runs)
            )
            at = replace(found[0], iteration=str(k), text=f"{name}@{k}")
            return Entered(open_body(graph, at), sample, k, total)
    return None


def find_first_wrong(total: int, fails: Callable[[int], bool]) -> int:
    """Find the first of `total` iterations with which a Loop that ends after it fails.

    Complexity: log₂ of the iterations in runs.

    Args:
        total: Number of iterations, with which it fails.
        fails: Function that returns whether it fails when it runs t times.

    Returns:
        The iteration, from 0.
    """
    if total <= 1 or fails(1):
        return 0
    right = 1
    wrong = total
    while wrong - right > 1:
        middle = (right + wrong) // 2
        right, wrong = (right, middle) if fails(middle) else (middle, wrong)
    return wrong - 1


def count_most_halvings(total: int) -> int:
    """Return the number of runs that `find_first_wrong` takes at most.

    >>> count_most_halvings(1), count_most_halvings(2), count_most_halvings(1000)
    (0, 1, 11)
    """
    return (total > 1) + max(total - 2, 0).bit_length()


def _fails_up_to(
    trials: Trials,
    setup: Setup,
    body: Body,
    sample: int,
    outer: Verdict,
    runs: InnerRuns,
    trips: int,
) -> bool:
    """Return whether the candidate fails on the Loop or Scan of `trips` iterations as on all.

    Raises:
        Inconclusive: It is not known, because the candidate refuses that model.
    """
    model, feeds = truncate(body, trials.values, sample, trips, trials.model.new_folder())
    verdict = _ask(
        trials.judge,
        setup,
        body,
        model,
        feeds,
        runs,
        f"what {body.name.text} is fed, for {trips} iterations",
    )
    refused, as_whole = (v.signature is Signature.REFUSED for v in (verdict, outer))
    if (refused and not as_whole) or verdict.is_unresolved:
        raise Inconclusive(
            f"which iteration fails first is not known: with {trips} of them, {verdict.why}",
            code="body.iteration-unresolved",
        )
    return verdict.fails and refused == as_whole


def find_miscount(judge: Judge, setup: Setup, entered: Entered, runs: InnerRuns) -> str:
    """Return how many times the candidate runs a Loop, if the reference runs it another number of
    times; "" if that is not known.

    Raises:
        SubcutError: as `enter`.
    """
    body = entered.body
    if body.graph.nodes[body.name.node].op_type != "Loop" or not body.name.attribute:
        return ""
    runs.require(1)
    model, feeds = make_counter(body, judge.model.values, entered.sample)
    verdict = _ask(judge, setup, body, model, feeds, runs, f"what {entered.all_iterations} is fed")
    if not verdict.fails or verdict.worst is None or verdict.worst.worst is None:
        return ""
    ran, right = (
        int(n) - COUNTER_START
        for n in (verdict.worst.worst.candidate, verdict.worst.worst.reference)
    )
    if not 0 <= ran < COUNTER_START:  # all that its Loops give is wrong
        return ""
    when = "early" if ran < right else "late"
    return f"it stops too {when}: it runs {count(ran, 'iteration')}, the reference {right}"


def _ask(
    judge: Judge,
    setup: Setup,
    body: Body,
    model: protobuf.ModelProto,
    feeds: Records,
    runs: InnerRuns,
    origin: str,
) -> Verdict:
    """Return the verdict on a model that is built for one query."""
    runs.made += 1
    feeding = replace(setup.feeding, records=(feeds,), origins=(origin,))
    graph = write_body(model, body.graph)
    with open_trials(
        graph,
        replace(setup, feeding=feeding, choice=OutputChoice(), needs_evidence=False),
        judge.model.reference,
        judge.runtime.workers,
    ) as inner:
        return inner.verdict(inner.model.whole())


class InnerBisection(Protocol):
    """A bisection of a body."""

    def __iter__(self) -> Iterator[Step]: ...
    @property
    def steps(self) -> list[Step]: ...
    @property
    def findings(self) -> Findings | None: ...
    @property
    def finished(self) -> BisectDocument | None: ...


@frozen
class InnerSearch:
    """Searches in the bodies of a bisection's findings.

    Attributes:
        oracle: the oracle of the outer search.
        options: the options of the outer bisection.
        runs: the runs that may be made in bodies.
        seconds: time since the outer bisection began.
        bisect: makes a bisection of a body.
    """

    oracle: NodeOracle
    options: BisectionOptions
    runs: InnerRuns
    seconds: Callable[[], float]
    bisect: Callable[[Trials, BisectionOptions], InnerBisection]

    def extend(self, document: BisectDocument) -> BisectDocument:
        """Return the document with the findings in bodies, and with their runs and time."""
        findings = []
        for k, finding in enumerate(document.findings):
            is_candidate = finding.kind == FindingKind.CULPRIT and k < MAX_ENTERED
            if is_candidate and can_enter(self.oracle.trials.judge, finding.indices):
                finding = replace(finding, inside=self._search_node(finding))
            findings.append(finding)
        cost = document.cost
        made = self.runs.made
        runs = {**cost.runs, "inside": made} if made else cost.runs
        seconds = round(self.seconds(), 3)
        cost = replace(cost, trials=cost.trials + made, runs=runs, seconds=seconds)
        return replace(document, findings=findings, cost=cost)

    def _search_node(self, finding: FindingDocument) -> InsideDocument | None:
        """Search in a body of a finding's only node; None if it has no body that runs."""
        trials = self.oracle.trials
        node = finding.indices[0]
        region = self.oracle.region(self.oracle.find_items([node]))
        try:
            verdict = trials.judge.verdict(region, self.oracle.run_result(region))
            self.runs.require(1)
            entered = enter(trials, self.options.setup, node, verdict, self.runs)
            if entered is None:
                return None
        except SubcutError as e:
            return InsideDocument(trials.graph.label(node), None, None, why=e.what)
        found = self._search_body(entered)
        if found.is_same_fault(verdict):
            return found
        # The body, as a standalone model, is not as wrong as its node.
        try:
            if why := find_miscount(trials.judge, self.options.setup, entered, self.runs):
                return InsideDocument(entered.all_iterations, None, None, why=why)
        except SubcutError as e:
            return replace(found, why=found.why or e.what)
        if not found.findings:
            return found
        refused = "the candidate refuses the body as a standalone model"
        return replace(entered.document, why=refused, report=found.report)

    def _search_body(self, entered: Entered) -> InsideDocument:
        """Search in a body, which the candidate is given as a standalone model."""
        known = entered.document
        left = self.options.limits.subtract(seconds=self.seconds())
        limits = replace(left, max_trials=self.runs.left, within=None)
        try:
            self.runs.require(1)
            # These trials feed the body with the inputs of the failing iteration.
            judge = self.oracle.trials.judge
            scratch = judge.model.new_folder()
            setup = self.options.setup
            inside = run_body(
                entered.body, judge.model.values, scratch, setup.feeding, [entered.sample]
            )
            assert inside.feeding
            setup = replace(
                setup, feeding=inside.feeding, choice=OutputChoice(), needs_evidence=False
            )
            reference = judge.model.reference
            with open_trials(inside.graph, setup, reference, judge.runtime.workers) as trials:
                log.info("inside %s: %d nodes", clean(known.body), len(trials.graph.nodes))
                options = replace(
                    self.options, setup=setup, limits=limits, within="", hints=dict, body=known.body
                )
                inner = self.bisect(trials, options)
                try:
                    for _ in inner:
                        pass
                finally:
                    self.runs.made += (
                        inner.finished.cost.trials if inner.finished else len(inner.steps)
                    )
        except SubcutError as e:
            return replace(known, why=e.what)
        found = inner.finished
        assert found
        if inner.findings and inner.findings.stopped:
            stopped = f"ended early: {inner.findings.stopped}"
        else:
            stopped = ""
        findings = [
            InnerFinding(**{name: getattr(f, name) for name in INNER_FIELDS})
            for f in found.findings
        ]
        return replace(
            known, outcome=found.search.outcome, report=found.report, why=stopped, findings=findings
        )
