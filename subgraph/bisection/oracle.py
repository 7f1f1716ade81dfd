"""Joins graph, trials and search: which nodes are to blame for what the candidate does wrong?

The search knows items and questions; here an item is a node that carries values, and a question is a trial. Nodes that
only compute shapes are no suspects: what they give is frozen in every cut, as in `region`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from subgraph.errors import ModelError, NoRegion
from subgraph.graph import region as regions
from subgraph.graph.graph import SHAPE, VALUE, Graph
from subgraph.graph.region import Region
from subgraph.runtime.run_result import RunResult
from subgraph.search import Answer, Findings, Query, QueryKind, Settings, search
from subgraph.search.state import Steps
from subgraph.trials.attribution import attribute, restores_outputs
from subgraph.trials.pooled_runs import pooled_verdicts
from subgraph.trials.trial import Trials
from subgraph.verdict import Judgement, Signature, Status, Verdict, gravity

# The candidate gives nothing whose share could be told.
SILENT = frozenset((Signature.CRASH, Signature.TIMEOUT, Signature.REFUSED))
NARROWED = frozenset(("precision", "range"))  # labels of what agrees at the claimed precision only


@dataclass
class NodeOracle:
    """The questions of a search, asked of a candidate about nodes of one graph.

    Attributes:
        groups: per item, the indices of its nodes: one; several where no edge between them can be cut.
        failed: by a region's nodes, the candidate's first answer that was wrong: a flaky one's others may be right.
        hints: how many times as likely as others a node is to blame, by what is known before anything runs.
    """

    trials: Trials
    groups: tuple[tuple[int, ...], ...]
    jobs: int = 1
    failed: dict[tuple[int, ...], RunResult] = field(default_factory=dict)
    hints: Mapping[int, float] = field(default_factory=dict)

    def given(self, region: Region) -> RunResult:
        """What the candidate gave for a region when it first went wrong; of one that never did, the first answer."""
        return self.failed.get(region.nodes) or self.trials.run(region)

    @property
    def pools(self) -> bool:
        """Does the candidate take several disconnected pieces in one model?"""
        return self.trials.multi

    @property
    def parents(self) -> list[list[int]]:
        """Per item, the items that make what it reads."""
        place = {node: k for k, group in enumerate(self.groups) for node in group}
        before = self.trials.graph.predecessors
        return [
            sorted({place[b] for node in group for b in before(node) if b in place} - {k})
            for k, group in enumerate(self.groups)
        ]

    def ask(self, queries: Sequence[Query]) -> Sequence[Answer]:
        """One answer per query, side by side where several workers are allowed.

        Raises:
            BackendError: the candidate cannot be used at all.
        """
        if len(queries) == 1 or self.jobs == 1:
            return [self._answer(a) for a in queries]
        executor = ThreadPoolExecutor(self.jobs)
        try:
            return list(executor.map(self._answer, queries))
        except BaseException:  # Ctrl-C, say: nobody waits for what still runs
            self.trials.workers.close()
            raise
        finally:
            executor.shutdown(cancel_futures=True)

    def label(self, item: int) -> str:
        """An item as a user would name it: by its last node."""
        return self.trials.graph.label(self.groups[item][-1])

    def indices(self, items: Iterable[int]) -> list[int]:
        """The nodes of some items, in topological order."""
        return self.trials.graph.in_order(node for k in items for node in self.groups[k])

    @property
    def size(self) -> int:
        """How many nodes are in question."""
        return sum(map(len, self.groups))

    def region(self, items: Sequence[int]) -> Region:
        """The region of some items.

        Raises:
            NoRegion: they only draw random numbers.
        """
        return regions.of_nodes(self.trials.graph, self.indices(items))

    def _answer(self, query: Query) -> Answer:
        asked = {
            QueryKind.WHOLE: self._whole,
            QueryKind.CLAIMED: self._whole,
            QueryKind.PROFILE: self._profile,
            QueryKind.ISOLATED: self._isolated,
            QueryKind.POOL: self._pool,
            QueryKind.PREFIX: self._prefix,
        }
        try:
            return asked[query.kind](query)
        except (ModelError, NoRegion) as e:  # the reference, or what we cut: nothing is known about the candidate
            return Answer(Status.UNRESOLVED, why=e.what)

    def _whole(self, query: Query) -> Answer:
        verdict, _ = self._judged(self.trials.whole(), query)
        narrowed = verdict.status is Status.AGREE and any(j.label in NARROWED for j in verdict.outputs)
        return _told(verdict, claimed=narrowed)

    def _profile(self, query: Query) -> Answer:
        graph = self.trials.graph
        wanted = set(self.trials.tensors())
        made = {k: [n for i in self.groups[k] for n in graph.makes[i] if n in wanted] for k in query.items}
        named = [n for names in made.values() for n in names]
        if len(query.items) == len(self.groups):
            region = self.trials.whole(named)
        else:  # without what is found already: behind it everything would be wrong
            region = regions.of_nodes(graph, self.indices(query.items), [(n,) for n in named])
        verdict = self.trials.verdict(region, repetition=query.repetition, fresh=query.fresh)
        item = {n: k for k, names in made.items() for n in names}
        seen: dict[int, list[Judgement]] = {}
        for j in verdict.outputs:
            if j.name in item:
                seen.setdefault(item[j.name], []).append(j)
        statuses = {k: max(some, key=gravity).status for k, some in seen.items()}
        answer = _told(verdict)
        return Answer(
            answer.status, answer.signature, answer.why, items=statuses, seconds=answer.seconds, verdict=verdict
        )

    def _isolated(self, query: Query) -> Answer:
        region = self.region(query.items)
        verdict, given = self._judged(region, query)
        fails = verdict.status is Status.FAIL and verdict.signature is not Signature.TIMEOUT
        whole = self.given(self.trials.whole())
        if whole.failure and verdict.signature not in (None, whole.failure.signature):
            return _told(verdict, culprit=restores_outputs(self.trials, region))  # it fails alone, but in another way
        found = attribute(self.trials, region, given, whole) if fails or query.explain else None
        if found is None:
            return _told(verdict)
        return _told(verdict, share=found.share, culprit=found.culprit)

    def _judged(self, region: Region, query: Query) -> tuple[Verdict, RunResult]:
        given = self.trials.run(region, repetition=query.repetition, fresh=query.fresh)
        if not query.fresh and _crashed(given) and not _crashed(self.given(self.trials.whole())):
            # what ran before in that process may have spoilt its memory
            given = self.trials.run_extra(region, repetition=query.repetition, fresh=True)
        verdict = self.trials.verdict_of(region, given)
        if verdict.status is Status.FAIL:
            self.failed.setdefault(region.nodes, given)
        return verdict, given

    def _pool(self, query: Query) -> Answer:
        found = pooled_verdicts(self.trials, [self.region(piece) for piece in query.pieces])
        pieces = tuple(_told(v) if v else Answer(Status.UNRESOLVED, why="it needs several cuts") for v in found)
        worst = next((s for s in (Status.FAIL, Status.UNRESOLVED) if any(p.status is s for p in pieces)), Status.AGREE)
        return Answer(worst, pieces=pieces, seconds=sum(p.seconds for p in pieces))

    def _prefix(self, query: Query) -> Answer:
        verdict = self.trials.verdict(self.region(query.items), repetition=query.repetition, fresh=query.fresh)
        whole = self.trials.verdict(self.trials.whole())
        ours, theirs = (max((j.errors.get("max_rel", 0.0) for j in v.outputs), default=0.0) for v in (verdict, whole))
        return _told(verdict, error=ours / theirs if theirs and verdict.outputs else None)


def _crashed(given: RunResult) -> bool:
    return given.failure is not None and given.failure.signature is Signature.CRASH


def _told(verdict: Verdict, **more: object) -> Answer:
    """A verdict as the search takes it. One that was stored took as long as it did then: the same path again."""
    seconds = verdict.build + verdict.run
    return Answer(verdict.status, verdict.signature, verdict.why, seconds=seconds, verdict=verdict, **more)  # type: ignore[arg-type]


def world(trials: Trials, jobs: int = 1) -> NodeOracle:
    """The suspects of a model: nodes that an output needs and whose outputs depend on more than shapes.

    Where shapes are not frozen: on more than constants.
    """
    graph = trials.graph
    whole = trials.whole()
    kinds = graph.kinds([n for i in whole.nodes for n in graph.makes[i]])
    least = VALUE if trials.freeze else SHAPE
    suspects = [i for i in whole.nodes if any(kinds[n] >= least for n in graph.makes[i])]
    single = [i for i in suspects if i not in graph.random_nodes]
    if trials.candidate_model is None:
        return NodeOracle(trials, tuple((i,) for i in single), jobs)
    return NodeOracle(trials, _joined(graph, single, trials.candidate_model.matches), jobs)


def _joined(graph: Graph, nodes: Sequence[int], shared: Collection[str]) -> tuple[tuple[int, ...], ...]:
    """Groups of nodes such that every value that passes from one group to another is shared; in topological order.

    What makes a value that the other model has not goes with all its readers; groups that would read each other are
    one. Linear in nodes and edges.
    """
    import networkx

    inside, kinds = set(nodes), graph.kinds(graph.maker)
    glued = networkx.Graph()
    glued.add_nodes_from(nodes)
    for i in nodes:
        for name in graph.makes[i]:
            if kinds[name] == VALUE and name not in shared:
                glued.add_edges_from((i, reader) for reader in graph.readers.get(name, ()) if reader in inside)
    group = {i: k for k, some in enumerate(networkx.connected_components(glued)) for i in some}
    flow = networkx.DiGraph()
    flow.add_nodes_from(group.values())
    flow.add_edges_from(
        (group[b], group[i]) for i in nodes for b in graph.predecessors(i) if b in inside and group[b] != group[i]
    )
    circles = networkx.condensation(flow)
    of = circles.graph["mapping"]
    members: dict[int, list[int]] = {}
    for i in graph.in_order(nodes):
        members.setdefault(of[group[i]], []).append(i)
    return tuple(tuple(members[c]) for c in networkx.topological_sort(circles))


def narrow(asked: NodeOracle, settings: Settings | None = None) -> Steps[Findings]:
    """Yields a Step per answer; returns the Findings, whose items are places in `asked.groups`.

    Raises:
        BackendError: the candidate cannot be used at all.
    """
    graph = asked.trials.graph
    labels = [tuple(graph.ops[i] for i in group) for group in asked.groups]
    weights = [max(asked.hints.get(i, 1.0) for i in group) for group in asked.groups]
    return search(asked.parents, asked, settings, weights=weights, labels=labels)
