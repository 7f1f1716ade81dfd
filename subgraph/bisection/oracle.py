"""The oracle of a bisection: an item of the search is a node that carries values, a query is a
trial.

Nodes that only compute shapes are not items: their outputs are frozen in every cut.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from subgraph.bisection.runs_ahead import RunsAhead
from subgraph.errors import ModelError, NoRegion, OutOfTime
from subgraph.graph import region as regions
from subgraph.graph.graph import SHAPE, VALUE, Graph
from subgraph.graph.region import Region
from subgraph.runtime.run_result import RunResult
from subgraph.search import Answer, Findings, Query, QueryKind, Settings, search
from subgraph.search.driver import BudgetSpent, Steps
from subgraph.search.oracle import (
    Ahead,
    ClaimedAgreement,
    ErrorShare,
    Items,
    ItemStatuses,
    PrefixError,
)
from subgraph.text import count
from subgraph.trials.attribution import (
    Target,
    attribute,
    error_alone,
    error_of,
    outputs_with_only,
    restores_outputs,
    share_of,
    superposes,
    whole_target,
)
from subgraph.trials.compare import measure_disturbance
from subgraph.trials.local_errors import locally_wrong
from subgraph.trials.preflight import require_usable
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.trial import Trials
from subgraph.verdict import ENDED, Judgement, Signature, Status, Verdict, gravity

log = logging.getLogger("subcut")

UNFAITHFUL = (
    0.1  # of the largest final error: from here on a profile shows another run than the plain one
)
CLAIMED_LABELS = frozenset(
    ("precision", "range")
)  # of outputs that agree at the claimed precision only


@dataclass
class NodeOracle:
    """Answers a search by trials on nodes of one graph.

    Attributes:
        groups: per item, the indices of its nodes: several where no edge between them can be cut.
        workers: trials that may run at once.
        failed: by a region's nodes, the first failing result: a flaky candidate's other results may
            be right.
        nondeterministic: by a region's nodes, tensors that two runs of it on the same values gave
            differently.
        hints: by node, how many times as likely as others it is guilty.
    """

    trials: Trials
    groups: tuple[tuple[int, ...], ...]
    workers: int = 1
    failed: dict[tuple[int, ...], RunResult] = field(default_factory=dict)
    nondeterministic: dict[tuple[int, ...], set[str]] = field(default_factory=dict)
    hints: Callable[[], Mapping[int, float]] = dict
    _first: dict[tuple[QueryKind, tuple[int, ...]], RunResult] = field(default_factory=dict)
    _targets: dict[Items, Target] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        """The model."""
        return self.trials.graph

    @property
    def parents(self) -> list[list[int]]:
        """Per item, the items whose outputs it reads."""
        item = {node: k for k, group in enumerate(self.groups) for node in group}
        before = self.graph.predecessors
        return [
            sorted({item[b] for node in group for b in before(node) if b in item} - {k})
            for k, group in enumerate(self.groups)
        ]

    @property
    def size(self) -> int:
        """Number of nodes in question."""
        return sum(map(len, self.groups))

    def label(self, item: int) -> str:
        """The label of an item's last node."""
        return self.graph.label(self.groups[item][-1])

    def indices(self, items: Iterable[int]) -> list[int]:
        """The nodes of some items, in topological order."""
        return self.graph.in_order(node for k in items for node in self.groups[k])

    def region(self, items: Iterable[int]) -> Region:
        """The region of some items.

        Raises:
            NoRegion: they only draw random numbers.
        """
        return regions.of_nodes(self.graph, self.indices(items))

    def run_result(self, region: Region) -> RunResult:
        """The candidate's first failing result of a region; if there is none, its first result."""
        first = self.failed.get(region.nodes) or self._first.get((QueryKind.WHOLE, region.nodes))
        return first or self.trials.run(region)

    @cached_property
    def whole_agrees(self) -> bool:
        """Does the whole agree? Read after the search has asked about it."""
        whole = self.trials.model.whole()
        verdict = self.trials.verdict(whole)
        return whole.nodes not in self.failed and (
            verdict.status is Status.AGREE or verdict.is_mute
        )

    def search(self, settings: Settings | None = None) -> Steps[Findings]:
        """Search for culprits: yields a Step per answer, returns the Findings.

        Raises:
            BackendError: the candidate cannot be used at all.
        """
        ops = self.graph.ops
        labels = [tuple(ops[i] for i in group) for group in self.groups]
        settings = replace(settings or Settings(), expect=self.expect)
        with self.ahead:
            return (
                yield from search(
                    self.parents, self, settings, weights=self._weights, labels=labels
                )
            )

    def _weights(self) -> Sequence[float]:
        hints = self.hints()
        return [max(hints.get(i, 1.0) for i in group) for group in self.groups]

    def expect(self, ahead: Ahead) -> None:
        """Begin a search: `ahead` tells which runs it is likely to need."""
        if self.workers > 1:
            self.ahead.expect(ahead)

    # ------------------------------------------------------------ answers

    def ask(self, queries: Sequence[Query]) -> Sequence[Answer]:
        """One answer per query; with several workers, what is likely to be asked next runs
        meanwhile.

        Raises:
            BackendError: the candidate cannot be used at all. BudgetSpent: a run was ended, its
                time is used up.
        """
        self._log_asking(queries)
        try:
            if self._first:  # the first answer tells how the whole is run
                self.ahead.wait_for(queries)
            answers = list(map(self._answer, queries))
            if any(q.kind is QueryKind.WHOLE and not q.repetition for q in queries):
                whole = self.trials.model.whole().nodes
                if first := self._first.get((QueryKind.WHOLE, whole)):
                    with suppress(OutOfTime):  # the answer is known
                        require_usable(self.trials, first)
            return answers
        except OutOfTime as e:
            raise BudgetSpent(e.what) from e

    def _log_asking(self, queries: Sequence[Query]) -> None:
        """What is run now, for the live line."""
        nodes = self.indices(queries[0].items)
        ends = " … ".join(dict.fromkeys(self.graph.label(i) for i in (*nodes[:1], *nodes[-1:])))
        more = f" and {len(queries) - 1} more" if len(queries) > 1 else ""
        text = (
            f"running {ends} ({count(len(nodes), 'node')}){more}"
            if nodes
            else f"running the whole model{more}"
        )
        log.info("%s", text, extra={"live": {"asking": text}})

    @cached_property
    def ahead(self) -> RunsAhead:
        """The runs of a search with several workers."""
        return RunsAhead(self._run_ahead, self.workers)

    def _result(self, query: Query, region: Region) -> RunResult:
        ahead = self.ahead.take(query)
        return (
            self.trials.run(region, repetition=query.repetition, fresh=query.fresh)
            if ahead is None
            else ahead
        )

    def _run_ahead(self, query: Query) -> tuple[RunResult, Status]:
        region = self._region(query)
        result = self.trials.run(region, repetition=query.repetition, fresh=query.fresh)
        return result, self.trials.judge.verdict(region, result).status

    def _answer(self, query: Query) -> Answer:
        kind = query.kind
        try:
            region = self._region(query)
            result = self._result(query, region)
            if kind not in (QueryKind.PROFILE, QueryKind.PREFIX):
                result = self._confirmed(query, region, result)
            if kind is QueryKind.REST:
                return self._rest(query, region, result)
            verdict = self.trials.judge.verdict(region, result)
            answer = _answer_of(verdict)
            if verdict.is_mute:  # the last stage decides what that is worth
                answer = replace(answer, status=Status.AGREE)
            if kind is QueryKind.PROFILE:
                statuses = statuses_of(verdict, self._inner_tensors(query))
                return replace(
                    answer,
                    detail=ItemStatuses(statuses, self._locally_wrong(query, result, statuses)),
                )
            if kind is QueryKind.PREFIX:
                error = self._relative_error(verdict)
                return answer if error is None else replace(answer, detail=PrefixError(error))
            if verdict.status is Status.FAIL:
                self.failed.setdefault(region.nodes, result)
            if kind is QueryKind.ISOLATED:
                return self._with_share(query, region, result, answer)
            claimed = verdict.status is Status.AGREE and any(
                j.label in CLAIMED_LABELS for j in verdict.outputs
            )
            return replace(answer, detail=ClaimedAgreement()) if claimed else answer
        except (
            ModelError,
            NoRegion,
        ) as e:  # of the reference or of cutting: nothing is known about the candidate
            return Answer(Status.UNRESOLVED, why=e.what)

    def _inner_tensors(self, query: Query) -> dict[str, int]:
        """Tensors that a profile reads, with the item that makes each."""
        makes = self.graph.makes
        readable = set(self.trials.model.tensors())
        return {
            n: k for k in query.items for i in self.groups[k] for n in makes[i] if n in readable
        }

    def _locally_wrong(
        self, query: Query, result: RunResult, seen: Mapping[int, Status]
    ) -> dict[int, float] | None:
        """Of the items that are wrong in place those that are so given what they read, with the
        relative error; None if unknown, or if reading intermediate tensors changed what the whole
        gives."""
        suspects = [k for k in query.items if seen.get(k) is Status.FAIL]
        whole = self.run_result(self.trials.model.whole())
        if result.failure or (
            len(query.items) == len(self.groups) and not self._as_plain(whole, result)
        ):
            return None
        wrong = locally_wrong(self.trials, [self.region([k]) for k in suspects], result)
        return None if wrong is None else {suspects[k]: error for k, error in wrong.items()}

    def measure_disturbance(self, queries: Iterable[Query]) -> float:
        """Return how far reading all intermediate tensors moved the outputs, relative to their
        largest value.

        0 if no query read them, or if the outputs vary from run to run anyway.
        """
        whole = self.trials.model.whole()
        for query in queries:
            reads_all = query.kind is QueryKind.PROFILE and len(query.items) == len(self.groups)
            if reads_all and whole.nodes not in self.nondeterministic:
                return measure_disturbance(
                    self.run_result(whole), self.trials.run(self._region(query))
                )
        return 0.0

    def _as_plain(self, whole: RunResult, profile: RunResult) -> bool:
        """Are the model's outputs as far off in a profile as in the plain run?"""
        plain, probed = (error_of(self.trials.judge, r.tensors) for r in (whole, profile))
        if plain is None or probed is None:
            return whole.failure is None and plain is probed
        return bool(
            abs(plain - probed).max(initial=0.0) <= UNFAITHFUL * abs(plain).max(initial=0.0)
        )

    def _region(self, query: Query) -> Region:
        if query.kind in (QueryKind.WHOLE, QueryKind.CLAIMED):
            return self.trials.model.whole()
        if query.kind is not QueryKind.PROFILE:
            return self.region(query.items)
        inner = list(self._inner_tensors(query))
        if len(query.items) == len(self.groups):
            return self.trials.model.whole(inner)
        # without the culprits known so far: everything behind them would be wrong
        return regions.of_nodes(self.graph, self.indices(query.items), [(n,) for n in inner])

    def _confirmed(self, query: Query, region: Region, result: RunResult) -> RunResult:
        """The result; of a crash in a used process, whose memory earlier runs may have spoilt, that
        of a fresh one.

        Notes where the region gives other values than the first time.
        """
        if (
            not query.fresh
            and _crashed(result)
            and not _crashed(self.run_result(self.trials.model.whole()))
        ):
            result = self.trials.run_extra(region, repetition=query.repetition, fresh=True)
        first = self._first.setdefault((query.kind, region.nodes), result)
        if first.failure or result.failure:
            return result
        with self.trials.judge.files_unchanged(region, first, result):
            names = first.differing(result)
        if names:
            self.nondeterministic.setdefault(region.nodes, set()).update(names)
        return result

    def _with_share(
        self, query: Query, region: Region, result: RunResult, answer: Answer
    ) -> Answer:
        """The answer with the region's share of the target's error, and of the whole model's, if
        there is one."""
        if self.whole_agrees or self.trials.ask.too_large(self.trials.model.whole()):
            return answer
        whole = self.run_result(self.trials.model.whole())
        if (
            not query.target
            and whole.failure
            and answer.signature not in (None, whole.failure.signature)
        ):
            return replace(
                answer, detail=ErrorShare(is_culprit=restores_outputs(self.trials, region))
            )
        fails = answer.status is Status.FAIL and answer.signature is not Signature.TIMEOUT
        target = self._target(query.target) if fails or query.explain else None
        attribution = attribute(self.trials, region, result, target) if target else None
        largest_error = _largest_error(answer.verdict)
        if attribution is None:
            return replace(answer, detail=ErrorShare(largest_error=largest_error))
        of_model = self._share_of_model(region, result) if query.target else attribution.share
        share = ErrorShare(
            attribution.share, attribution.made, of_model, attribution.culprit, largest_error
        )
        return replace(answer, detail=share)

    def _share_of_model(self, region: Region, result: RunResult) -> float | None:
        """The share of the whole model's error, where both have one."""
        whole = error_of(self.trials.judge, self._target(()).values)
        alone = (
            None
            if result.failure or whole is None or not whole.any()
            else error_alone(self.trials.judge, region, result)
        )
        return None if whole is None or alone is None else share_of(alone, whole)

    def _target(self, items: Items) -> Target:
        """The error of these items when all others are right; of the whole model for ()."""
        if items not in self._targets:
            trials = self.trials
            if items:
                region = self.region(items)
                values = outputs_with_only(trials.model, region, self.run_result(region))
                right = frozenset(trials.model.whole().nodes) - frozenset(region.nodes)
                self._targets[items] = Target(values or (), right)
            else:
                self._targets[items] = whole_target(trials, self.run_result(trials.model.whole()))
        return self._targets[items]

    def _rest(self, query: Query, region: Region, result: RunResult) -> Answer:
        """Does the model agree when only these items are the candidate's? If the reference cannot
        go on with what they give, the verdict is that on their own outputs. And is what disappeared
        what the items left out give alone?"""
        trials = self.trials
        values = outputs_with_only(trials.model, region, result)
        if values is None:
            return _answer_of(trials.judge.verdict(region, result))
        outputs = RunResult(
            tuple(values), result.others, None, result.build, result.run, result.stored
        )
        answer = _answer_of(trials.judge.verdict_of_mixed_run(outputs))
        if answer.status is Status.FAIL:
            self.failed.setdefault(region.nodes, result)
        removed = sorted(set(query.target or range(len(self.groups))) - set(query.items))
        piece = self.region(removed)
        before = error_of(trials.judge, self._target(query.target).values)
        left = error_of(trials.judge, values)
        if before is None or left is None or piece.nodes not in self.failed:
            return answer
        alone = error_alone(trials.judge, piece, self.failed[piece.nodes])
        return (
            answer
            if alone is None
            else replace(answer, detail=ErrorShare(is_culprit=superposes(before, left, alone)))
        )

    def _relative_error(self, verdict: Verdict) -> float | None:
        """The largest error of a prefix, relative to that of the whole."""
        error, whole = (
            max((j.errors.get("max_rel", 0.0) for j in v.outputs), default=0.0)
            for v in (verdict, self.trials.verdict(self.trials.model.whole()))
        )
        return error / whole if whole and verdict.outputs else None


def _largest_error(verdict: Verdict | None) -> float | None:
    errors = [j.errors.get("max_rel", math.nan) for j in verdict.outputs] if verdict else []
    return max((e for e in errors if not math.isnan(e)), default=None)


def _crashed(result: RunResult) -> bool:
    return result.failure is not None and result.failure.signature in ENDED


def statuses_of(verdict: Verdict, items: Mapping[str, int]) -> dict[int, Status]:
    """The status of each item, by its gravest output; `items`: the item that makes each tensor."""
    gravest: dict[int, Judgement] = {}
    for judgement in verdict.outputs:
        item = items.get(judgement.name)
        if item is not None:
            gravest[item] = max(gravest.get(item, judgement), judgement, key=gravity)
    return {item: judgement.status for item, judgement in gravest.items()}


def _answer_of(verdict: Verdict) -> Answer:
    """A stored verdict takes as long as its run did, so that the search takes the same path
    again."""
    seconds = verdict.build + verdict.run
    return Answer(verdict.status, verdict.signature, verdict.why, seconds=seconds, verdict=verdict)


# ------------------------------------------------------------ items


def items_of(model: ReferenceModel) -> tuple[tuple[int, ...], ...]:
    """The items of a search, each as its nodes: nodes that an output needs and whose outputs depend
    on more than shapes; if shapes are not frozen, on more than constants."""
    graph = model.graph
    nodes = model.whole().nodes
    kinds = graph.kinds([n for i in nodes for n in graph.makes[i]])
    least = VALUE if model.freeze else SHAPE
    suspects = [
        i
        for i in nodes
        if any(kinds[n] >= least for n in graph.makes[i]) and i not in graph.random_nodes
    ]
    if model.comparable is None:
        return tuple((i,) for i in suspects)
    return _joined(graph, suspects, model.comparable)


def _joined(
    graph: Graph, nodes: Sequence[int], shared: Collection[str]
) -> tuple[tuple[int, ...], ...]:
    """Groups of nodes, in topological order, such that each value between two groups is one that
    both sides have.

    The maker of any other value joins its readers, and groups that would read each other are
    joined. Complexity: linear in nodes and edges.
    """
    import networkx  # slow to import, and needed for few bisections

    inside = set(nodes)
    kinds = graph.kinds(graph.maker)
    joins = networkx.Graph()
    joins.add_nodes_from(nodes)
    for i in nodes:
        for name in graph.makes[i]:
            if kinds[name] == VALUE and name not in shared:
                joins.add_edges_from(
                    (i, reader) for reader in graph.readers.get(name, ()) if reader in inside
                )
    group = {i: k for k, some in enumerate(networkx.connected_components(joins)) for i in some}
    flow = networkx.DiGraph()
    flow.add_nodes_from(group.values())
    flow.add_edges_from(
        (group[b], group[i])
        for i in nodes
        for b in graph.predecessors(i)
        if b in inside and group[b] != group[i]
    )
    acyclic = networkx.condensation(flow)
    component = acyclic.graph["mapping"]
    members: dict[int, list[int]] = {}
    for i in graph.in_order(nodes):
        members.setdefault(component[group[i]], []).append(i)
    return tuple(tuple(members[c]) for c in networkx.topological_sort(acyclic))
