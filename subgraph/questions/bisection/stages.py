"""The stages of a bisection: each takes the present result and returns the next one.

A stage searches if that is needed.
A bisection is a fold over `STAGES`. No stage has side effects: the settings of a later search
(shapes as inputs, another criterion) are part of the immutable result that it passes on. The first
search examines all nodes, in cuts with frozen shapes; the stages after it are

1. the same search with shape-computing tensors as inputs, if the full model fails and no region
   of it does: freezing changes what a candidate does, and some faults need one form, some the
   other;
2. a search by rewriting the full model, if no small region fails or the user requests it;
3. a search in the first deviating region between two quantizers, if the model's own steps explain
   the error;
4. a run of each item alone, if the candidate is a quantized model and no region or several were
   found;
5. a search inside, if the outputs agree and a tensor that enters the last Softmax, Sigmoid or the
   like does not: saturated outputs hide errors;
6. a search by rounding alone, if the full model agrees within the error of approximate kernels,
   and they do not explain it;
7. no search: an agreement is withdrawn if no output of the model, or of the region that the user
   named, shows anything about the candidate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeAlias

from subgraph.comparison import CLIPPED, MAX_HEALTHY_ERROR, MAX_KERNEL_ERROR, ROUNDING_ALONE
from subgraph.comparison.evidence import is_saturated
from subgraph.errors import ModelError
from subgraph.graph.properties import APPROXIMATED, COARSE
from subgraph.graph.quantization import find_squashed
from subgraph.graph.region import Region
from subgraph.graph.rewrites import open_full_model
from subgraph.iterables import flatten
from subgraph.log import log
from subgraph.questions.bisection.options import BisectionOptions
from subgraph.questions.bisection.oracle import NodeOracle
from subgraph.questions.bisection.rewriting import (
    ModelRewriter,
    RewritingOracle,
    depends_on_names,
)
from subgraph.results.bisect import Healing
from subgraph.results.common import PreciseSetting
from subgraph.runtime.deadline import if_time
from subgraph.runtime.run_result import RunResult
from subgraph.search import Counts, Finding
from subgraph.search.driver import Steps
from subgraph.search.oracle import FindingKind, Findings, Items, Outcome
from subgraph.trials.diagnosis.approximations import iter_approximations
from subgraph.trials.diagnosis.conclusions import Fact
from subgraph.trials.diagnosis.diagnosis import diagnose_model
from subgraph.trials.doubt import (
    MIN_EXACT,
    ROUNDING_DOUBTS,
    UNDOUBTED,
    Decision,
    Deviation,
    Doubt,
    NodeEvidence,
    Settlement,
    agrees,
    can_hide_in_rounding,
    explain_steps,
    find_doubt,
    find_relative_error,
    is_beyond_steps,
    settle_quantization,
    settle_rounding,
)
from subgraph.trials.judge import Judge
from subgraph.trials.pooled_runs import run_pieces
from subgraph.trials.preflight import require_contract, require_usable
from subgraph.trials.questions import explain_full_model, find_precise_setting, is_flaky
from subgraph.trials.similar_outputs import WrongOutput
from subgraph.trials.trial import Trials
from subgraph.types import frozen
from subgraph.verdict import Signature, Verdict

MAX_SMALL_REGION = 8  # items; a larger region that fails is no answer if rewriting finds one
MAX_FUSED = 8  # nodes of a finding that count: what one kernel may compute
MIN_PART = 0.1  # of time and runs that is reserved for nodes whose kernels may be approximate


@frozen
class Interim:
    """The result of a bisection between two stages.

    Attributes:
        oracle: The oracle of the last search; its trials hold the view of the model and the
            criterion that applied to it.
        findings: The findings of the last search, with the counts of all searches.
        settlement: The evidence that decides if the full model does not.
        looks: Number of runs of nodes alone, which only settled a doubt.
        healing: The changes that heal the full model, if it was rewritten; else None.
        precise: The setting with which the candidate agrees, instead of a search; else None.
    """

    oracle: NodeOracle
    findings: Findings
    settlement: Settlement = UNDOUBTED
    looks: int = 0
    healing: Healing | None = None
    precise: PreciseSetting | None = None

    @property
    def trials(self) -> Trials:
        """The trials of the last search."""
        return self.oracle.trials

    @property
    def is_explained(self) -> bool:
        """Whether the full model is explained, so that no node was searched."""
        moves = self.settlement.decision is Decision.REFERENCE_MOVES
        return self.precise is not None or moves

    def with_findings(self, **changes: Any) -> Interim:
        """Return the result with other fields of its findings."""
        return replace(self, findings=replace(self.findings, **changes))

    def agreeing(self, settlement: Settlement) -> Interim:
        """Return the result if the settlement shows that the candidate is right."""
        found = self.with_findings(outcome=Outcome.AGREE, findings=())
        return replace(found, settlement=settlement)

    def disagreeing(self, precise: PreciseSetting) -> Interim:
        """Return the result if a setting explains the candidate's outputs."""
        return replace(self.with_findings(outcome=Outcome.DISAGREE), precise=precise)

    def doubting(self, items: Items, why: str) -> Interim:
        """Return the result if it is not known whether these items are right."""
        doubt = Finding(FindingKind.UNRESOLVED, items, None, why=why)
        return self.with_findings(outcome=Outcome.UNRESOLVED, findings=(doubt,))

    def noting(self, text: str) -> Interim:
        """Return the result with another note for the reader."""
        return self.with_findings(notes=(*self.findings.notes, (text, ())))

    def mark_stopped(self, why: str) -> Interim:
        """Return the result if a stage was ended: a doubt that it was to settle stays open."""
        found = self.with_findings(stopped=self.findings.stopped or why, budget_spent=True)
        if found.findings.outcome is not Outcome.AGREE:
            return found
        return found.doubting(self.oracle.all_items, f"{why} before a doubt was settled")


class Searcher(Protocol):
    """The part of the bisection that a stage needs: it makes oracles, and follows searches within
    the limits."""

    @property
    def options(self) -> BisectionOptions:
        """The options of the bisection."""

    @property
    def rewriting_oracle(self) -> type[RewritingOracle]:
        """The class of the oracles that rewrite the full model."""

    def new_oracle(self, trials: Trials) -> NodeOracle:
        """Return an oracle that knows no answers."""

    def search(
        self, interim: Interim, scope: Sequence[int] | None = None, *, inside: bool = False
    ) -> Steps[Interim]:
        """Search again with the oracle of `interim`, within the remaining limits.

        Args:
            interim: The present result.
            scope: The suspects; None for those of the options.
            inside: Whether the nodes are searched even if the outputs agree.
        """


Stage: TypeAlias = Callable[[Searcher, Interim], Steps[Interim]]


def search_unless_explained(searcher: Searcher, interim: Interim) -> Steps[Interim]:
    """Search, unless the questions about the full model explain its outputs.

    It searches in any case if the user requests a search of intermediate tensors or of a region.

    Raises:
        BackendError: The candidate runs nothing, or its outputs break the contract.
        Refused: The model does not load.
    """
    steps = searcher.search(interim)
    try:
        first = next(steps)
    except StopIteration as end:
        found: Interim = end.value
        return found
    trials = interim.trials
    whole = trials.full_model
    if_time(lambda: require_usable(trials, trials.run(whole)), None)
    yield first
    options = searcher.options
    explanation = None
    if not options.limits.inside and not options.within and not options.body:
        explanation = if_time(
            lambda: explain_full_model(trials) or settle_by_approximation(trials), None
        )
    if explanation is None:
        return (yield from steps)
    steps.close()
    counts = Counts({first.purpose: 1}, {first.purpose: interim.oracle.size})
    findings = Findings(Outcome.DISAGREE, counts, first.answer.signature)
    interim = replace(interim, findings=findings)
    if isinstance(explanation, PreciseSetting):
        return interim.disagreeing(explanation)
    return interim.agreeing(explanation)


def settle_by_approximation(trials: Trials) -> Settlement | None:
    """Return the settlement if a known approximation explains all that the full model deviates by;
    None if not, or if it changes an output by more than approximate kernels may."""
    if not can_hide_in_rounding(trials.judge):
        return None
    exact = trials.with_criterion(ROUNDING_ALONE)
    verdict = exact.verdict(trials.full_model)
    worst = verdict.worst
    is_small = (
        find_relative_error(worst) <= MAX_KERNEL_ERROR and verdict.signature is Signature.MISMATCH
    )
    found = iter_approximations(WrongOutput(exact, trials.full_model, worst)) if worst else ()
    for approximation in found if is_small else ():
        if not is_flaky(trials):
            why = f"within approximate kernels: {approximation.quoted}"
            return Settlement(Decision.APPROXIMATE_KERNELS, why)
    return None


def search_with_shape_inputs(searcher: Searcher, interim: Interim) -> Steps[Interim]:
    """Search again with shapes as inputs, if no region fails while they are constants."""
    findings = interim.findings
    oracle = interim.oracle
    is_failing = findings.outcome in (Outcome.DISAGREE, Outcome.ELSEWHERE) and not findings.stopped
    is_unknown = all(finding.is_unresolved for finding in findings.findings)
    if not (interim.trials.model.freeze and is_failing and is_unknown):
        return interim
    if not any(oracle.region([k]).shapes for k in oracle.all_items):
        return interim
    log.info("no region fails while shapes are constants: searching again with shapes as inputs")
    trials = interim.trials.with_model(replace(interim.trials.model, freeze=False))
    return (yield from searcher.search(replace(interim, oracle=searcher.new_oracle(trials))))


def search_by_rewriting(searcher: Searcher, interim: Interim) -> Steps[Interim]:
    """Search by rewriting the full model, if it fails and no small region of it does, or the user
    requests it.

    The nodes that compute constants are items, too, since no cut shows a constant that is folded
    wrong. They precede all others.
    """
    findings = interim.findings
    if findings.stopped or findings.outcome is not Outcome.DISAGREE or findings.signature is None:
        return interim
    if interim.trials.runtime.own_model or searcher.options.body:
        return interim
    most = min(MAX_SMALL_REGION, max(len(interim.oracle.groups) - 1, 2))
    if not all(
        f.is_unresolved or (f.is_culprit and len(f.items) > most) for f in findings.findings
    ):
        return interim
    try:
        oracle = interim.oracle
        with open_full_model(oracle.graph, oracle.trials.values.compute_first) as model:
            kind = searcher.rewriting_oracle.rewriter_class
            pulled = oracle.region(oracle.all_items).pulled
            makers = tuple((i,) for i in pulled if oracle.graph.ops[i] != "Constant")
            rewriter = kind(oracle.trials, makers + oracle.groups, model)
            return (yield from _search_with(rewriter, searcher, interim))
    except ModelError as e:
        return interim.noting(f"the full model was not rewritten: {e.what}")


def _search_with(rewriter: ModelRewriter, searcher: Searcher, interim: Interim) -> Steps[Interim]:
    """Search by rewriting with the mildest means that heal the full model.

    Values of the reference hide the errors of the nodes before them. So the search goes on with the
    values of the culprits alone, until these heal the full model.
    """
    large = interim.findings.findings
    largest = max(len(finding.items) for finding in large)
    found = interim
    culprits: tuple[Finding, ...] = ()
    reason = "no rewriting of all nodes heals the full model"
    while rewriter.find_means():
        if all(
            finding.certified and _needs_many(rewriter, interim.oracle.list_indices(finding.items))
            for finding in large
        ):
            reason = ""
            break
        found = yield from _search_rewritten(rewriter, searcher, found, largest)
        new = found.findings.findings
        if new and depends_on_names(rewriter, _list_regions(new)):
            reason = "whether a rewritten model fails depends on its names: no node is blamed"
            break
        culprits += new
        reason = ""
        if rewriter.limit:
            rewriter.keep_values(flatten(_list_regions(new)))
        if not new or not rewriter.limit or rewriter.heals(rewriter.kept_values):
            break
    if not culprits:
        counted = interim.with_findings(counts=found.findings.counts)
        return counted.noting(reason) if reason else counted
    regions = _list_regions(culprits)
    healing, is_enough = rewriter.heal(regions)
    is_complete = found.findings.complete and is_enough and not rewriter.kept_values
    found = found.with_findings(findings=culprits, complete=is_complete)
    found = replace(found, healing=healing)
    if not is_enough:
        found = found.noting("the cure changes more than these nodes, so that more is wrong")
    if rewriter.kept_values:
        found = found.noting("values of the reference hide errors upstream: more may be wrong")
    return found


def _needs_many(rewriter: ModelRewriter, nodes: Collection[int]) -> bool:
    """Return whether a region that fails in the full model needs more than `MAX_SMALL_REGION`
    items.

    The remaining nodes of the full model are rewritten. It needs more if `MAX_SMALL_REGION` + 1 are
    needed.
    """
    items = rewriter.find_items(nodes)
    if rewriter.heals(rewriter.rewrite_all_but(items)):
        return False
    return all(
        rewriter.heals(rewriter.rewrite_all_but({*items} - {one}))
        for one in items[: MAX_SMALL_REGION + 1]
    )


def _search_rewritten(
    rewriter: ModelRewriter, searcher: Searcher, interim: Interim, largest: int
) -> Steps[Interim]:
    """Search by rewriting with the present means; the findings are only the culprits, if each of
    their regions has fewer items than `largest`."""
    own = interim.oracle
    oracle = searcher.rewriting_oracle(own.trials, rewriter.groups, own.workers, rewriter=rewriter)
    oracle.stop = own.stop
    scope = range(rewriter.limit) or None
    found = yield from searcher.search(replace(interim, oracle=oracle), scope)
    culprits = [f for f in found.findings.findings if f.is_culprit]
    if rewriter.limit:
        culprits = [f for f in culprits if rewriter.limit - 1 in f.items]
    is_complete = found.findings.complete and len(culprits) == len(found.findings.findings)
    if max(map(len, _list_regions(culprits)), default=0) >= largest:
        culprits = []
    return found.with_findings(findings=tuple(culprits), complete=is_complete)


def _list_regions(findings: Sequence[Finding]) -> list[Items]:
    return list(flatten(finding.regions for finding in findings))


def search_between_quantizers(searcher: Searcher, interim: Interim) -> Steps[Interim]:
    """Settle a doubt about quantization steps; search in the first region between quantizers that
    deviates."""
    findings = interim.findings
    is_open = findings.outcome in (Outcome.UNRESOLVED, Outcome.AGREE)
    if not is_open or findings.stopped or searcher.options.within:
        return interim
    settlement = settle_quantization(interim.trials)
    if settlement.decision is Decision.PIECES_AGREE:
        return interim.agreeing(settlement)
    if not settlement.wrong_pieces:
        return replace(interim, settlement=settlement)
    log.info("not the nearest codes: searching in the first of such pieces")
    oracle = searcher.new_oracle(interim.trials)
    scope = oracle.find_items(settlement.wrong_pieces[0].nodes)
    return (
        yield from searcher.search(replace(interim, oracle=oracle, settlement=settlement), scope)
    )


def search_quantized_pieces(searcher: Searcher, interim: Interim) -> Steps[Interim]:
    """Run each item alone, if the other model quantizes and no region was found, or several.

    The limits of int8 excuse a small fault in the outputs, many steps add up to a large error that
    no item has, and a coarse step makes many regions downstream fail. Alone, an item is excused
    only by the step of its quantizer.
    """
    yield from ()
    findings = interim.findings
    kinds = {f.kind for f in findings.findings}
    is_open = findings.agrees and not kinds
    is_wrong = findings.outcome is Outcome.DISAGREE
    adds_up = is_wrong and FindingKind.ACCUMULATED in kinds
    is_needed = is_open or adds_up or (is_wrong and len(findings.findings) > 1)
    other = interim.trials.runtime.own_model
    if not other or not is_needed or findings.stopped or searcher.options.within:
        return interim
    oracle = searcher.new_oracle(interim.trials)
    pieces = oracle.judge_steps()
    excused = CLIPPED if is_open else ""
    wrong = [k for k, verdict in pieces.items() if is_beyond_steps(verdict, excused)]
    if wrong:
        log.info("more than the steps of the quantizers: searching in %d items", len(wrong))
        found = yield from searcher.search(replace(interim, oracle=oracle), wrong, inside=True)
        number = len(found.findings.findings)
        is_fewer = found.findings.complete and number < len(findings.findings)
        if number and (is_open or adds_up or is_fewer):
            return found
        return interim
    every = oracle.all_items
    if not adds_up or len(pieces) < MIN_EXACT * len(every) or None in pieces.values():
        return interim
    return interim.doubting(every, explain_steps(len(pieces), len(every)))


def search_by_rounding_alone(searcher: Searcher, interim: Interim) -> Steps[Interim]:
    """Settle a doubt about rounding; search by rounding alone if approximate kernels do not explain
    the error."""
    if interim.findings.outcome is not Outcome.AGREE or not interim.settlement.is_open:
        return interim
    options = searcher.options
    model = interim.trials.model
    judged = [model.whole()]
    if options.limits.inside:
        judged.append(model.whole(model.tensors()))
    if scope := options.find_scope(interim.oracle):
        judged.append(interim.oracle.region(scope))
    reason = find_doubt(interim.trials, ROUNDING_DOUBTS, judged)
    if not reason:
        return interim
    is_beyond = reason is Doubt.KERNELS
    exact_trials = interim.trials.with_criterion(ROUNDING_ALONE)
    if is_beyond and not options.limits.inside:
        result = exact_trials.run(exact_trials.full_model)
        precise = if_time(lambda: find_precise_setting(exact_trials, result), None)
        if precise:
            return interim.disagreeing(precise)
    log.info("the error is beyond rounding: looking at each node alone")
    limits = options.limits.subtract(interim.findings.counts.total())
    before = interim.trials.log.extra_runs
    nodes_evidence = gather_node_evidence(
        interim.oracle, math.inf if limits.max_trials is None else limits.max_trials
    )
    settlement = settle_rounding(nodes_evidence, is_beyond_rounding=is_beyond)
    interim = replace(interim, looks=interim.trials.log.extra_runs - before)
    if settlement.decision is not Decision.ROUNDING_ALONE:
        return replace(interim, settlement=settlement)
    log.info("no approximate kernel explains it: searching by rounding alone")
    by_rounding = searcher.new_oracle(exact_trials)
    exact = yield from searcher.search(
        replace(interim, oracle=by_rounding, settlement=settlement), inside=not is_beyond
    )
    evidence = gather_finding_evidence(exact.oracle, exact.findings, interim.trials.judge)
    found = exact.findings
    if found.stopped and all(f.is_unresolved for f in found.findings):
        return interim.mark_stopped(found.stopped)
    if not evidence.explanation:
        return (yield from search_by_rewriting(searcher, exact))
    excused = replace(exact, oracle=replace(exact.oracle, trials=interim.trials))
    return excused.agreeing(Settlement(Decision.APPROXIMATE_KERNELS, evidence.explanation))


def search_upstream_of_squashing(searcher: Searcher, interim: Interim) -> Steps[Interim]:
    """Search the inside if the outputs agree, and a tensor that enters the last Softmax or the like
    does not."""
    trials = interim.trials
    model = trials.model
    if (
        interim.findings.outcome is not Outcome.AGREE
        or trials.runtime.is_manual
        or searcher.options.limits.inside
    ):
        return interim
    comparable = set(model.tensors())
    samples = model.values.records
    saturated = [
        name
        for name in model.outputs
        if any(is_saturated(sample[name].value()) for sample in samples)
    ]
    squashed = [name for name in find_squashed(model.graph, saturated) if name in comparable]
    if not squashed:
        return interim
    region = model.whole(squashed)
    result = trials.run_extra(region)
    if not trials.judge.verdict(region, result).fails:
        return interim
    if trials.runtime.runs_user_code:
        require_contract(trials, region, result)
    log.info("the outputs agree, but what enters the last nodes does not: searching inside")
    oracle = searcher.new_oracle(trials)
    inside = yield from searcher.search(replace(interim, oracle=oracle), inside=True)
    if inside.findings.outcome is Outcome.DISAGREE:
        return inside
    return interim.with_findings(counts=inside.findings.counts)


def require_evidence(searcher: Searcher, interim: Interim) -> Steps[Interim]:
    """Withdraw the agreement if no output, or no output of the scope, shows anything about the
    candidate."""
    yield from ()
    trials = interim.trials
    if not interim.findings.agrees:
        return interim
    if trials.verdict(trials.full_model).is_mute:
        return interim.with_findings(outcome=Outcome.UNRESOLVED)
    if not (scope := searcher.options.find_scope(interim.oracle)):
        return interim
    region = interim.oracle.region(scope)
    verdict = replace(trials.judge, scope=region).verdict(region, trials.run(region))
    if not verdict.is_mute:
        return interim
    return interim.doubting(tuple(scope), verdict.why)


STAGES: tuple[Stage, ...] = (
    search_with_shape_inputs,
    search_by_rewriting,
    search_between_quantizers,
    search_quantized_pieces,
    search_upstream_of_squashing,
    search_by_rounding_alone,
    require_evidence,
)


class _NodeAlone(NamedTuple):
    """One node, judged by rounding alone; `deviation` if it does not agree."""

    verdict: Verdict
    deviation: Deviation | None


def gather_node_evidence(oracle: NodeOracle, most: float) -> NodeEvidence:
    """Run each node alone: at most one run per item, and at most `most` runs.

    Nodes that no runtime approximates come first; the first of them that deviates ends it.
    """
    are_approximated = [not APPROXIMATED.isdisjoint(kinds) for kinds in oracle.kinds]
    items = sorted(oracle.all_items, key=are_approximated.__getitem__)
    approximated = sum(are_approximated)
    deviations = []
    alone = {}
    unseen = 0
    regions = [oracle.region([k]) for k in items]
    runs = _run_nodes(oracle.trials, regions, approximated, most)
    for region, node in zip(regions, runs, strict=False):
        if node is None or node.verdict.is_unresolved:
            unseen += 1
        elif node.deviation:
            deviations.append(node.deviation)
            alone[region] = node
            if not node.deviation.approximated:
                break
    worst = max(
        alone, key=lambda region: find_relative_error(alone[region].verdict.worst), default=None
    )
    if worst and not _find_excused_operators(oracle.trials, worst, alone[worst].verdict):
        deviations.append(Deviation(frozenset(), find_relative_error(alone[worst].verdict.worst)))
    return NodeEvidence(deviations, unseen)


def _find_excused_operators(trials: Trials, region: Region, verdict: Verdict) -> frozenset[str]:
    """Return the operators of a region that runtimes approximate.

    None if it computes sums, and the reference computes the same of another model's region: then no
    kernel, but that model is the reason.
    """
    operators = APPROXIMATED.intersection(trials.graph.ops[i] for i in region.nodes)
    if not trials.runtime.own_model or operators & COARSE:
        return operators
    exact = trials.with_criterion(ROUNDING_ALONE)
    is_model = any(one.fact is Fact.MODEL for one in diagnose_model(exact, region, verdict))
    return frozenset() if is_model else operators


def _run_nodes(
    trials: Trials, regions: Sequence[Region], approximated: int, most: float
) -> Iterator[_NodeAlone | None]:
    """Run the nodes; the last ones, which are `approximated`, get their share of time and runs in
    any case."""
    by_rounding = trials.judge.with_criterion(ROUNDING_ALONE)

    def judge(region: Region, result: RunResult) -> _NodeAlone:
        verdict = by_rounding.verdict(region, result)
        if not verdict.fails:
            return _NodeAlone(verdict, None)
        operators = APPROXIMATED.intersection(trials.graph.ops[i] for i in region.nodes)
        agrees_usually = bool(operators) and agrees(trials.judge, region, result)
        deviation = Deviation.make(
            operators, find_relative_error(verdict.worst), agrees_usually=agrees_usually
        )
        return _NodeAlone(verdict, deviation)

    def is_conclusive(node: _NodeAlone) -> bool:
        return node.verdict.agrees or bool(node.deviation and node.deviation.approximated)

    part = max(approximated / len(regions), MIN_PART) if approximated else 0.0
    split = len(regions) - approximated
    before = trials.log.extra_runs
    limit = most if math.isinf(most) else math.ceil(most * (1 - part))
    yield from run_pieces(trials, regions[:split], judge, is_conclusive, limit, 1 - part)
    left = most - (trials.log.extra_runs - before)
    yield from run_pieces(trials, regions[split:], judge, is_conclusive, left, part)


def gather_finding_evidence(oracle: NodeOracle, findings: Findings, usual: Judge) -> NodeEvidence:
    """Return the findings of a search by rounding alone as evidence; empty if it did not find all
    that is wrong.

    `usual`: judges by the usual criterion. A single node that agrees by it can be excused. Of
    several nodes, each can change what `MAX_HEALTHY_ERROR` allows to a healthy kernel.
    """
    if findings.outcome is not Outcome.DISAGREE or not findings.complete:
        return NodeEvidence()
    deviations = []
    for finding in findings.findings:
        is_culprit = finding.is_culprit and not finding.alike
        for items in finding.regions:
            region = oracle.region(items)
            with oracle.trials.log.count_as_extra(region):
                result = oracle.run_result(region)
            verdict = oracle.trials.judge.verdict(region, result)
            error = find_relative_error(verdict.worst)
            is_small = len(items) == 1 or error <= min(len(items), MAX_FUSED) * MAX_HEALTHY_ERROR
            agrees_usually = is_culprit and is_small and agrees(usual, region, result)
            operators = _find_excused_operators(oracle.trials, region, verdict)
            deviations.append(Deviation.make(operators, error, agrees_usually=agrees_usually))
    return NodeEvidence(deviations)
