"""A fault that no cut shows -> the nodes that it needs, found by rewriting the full model.

A pass over the graph, a memory plan or a builder's choice can be wrong in the full model only. The
search is the same as in cuts. "Only these nodes" means here: the full model runs, and all *other*
nodes are rewritten so that the values stay. A region fails if the full model still fails then. It
is minimal if the full model agrees once any one of its nodes is rewritten as well.

`Means` are the ways to rewrite, the mildest first. The first one with which the full model agrees
is used. The cure is a smallest set of changes: without any one of them the full model fails again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, TypeAlias

from subgraph.errors import ModelError
from subgraph.graph.graph import load
from subgraph.graph.kinds import VALUE as GIVEN, find_kinds
from subgraph.graph.region import Region, prepare_graph
from subgraph.graph.rewrites import (
    STRONGEST,
    VALUE,
    FullModel,
    NodeChange,
)
from subgraph.iterables import flatten, invert
from subgraph.log import log
from subgraph.questions.bisection.error_shares import answer_of
from subgraph.questions.bisection.items import NodeItems
from subgraph.questions.bisection.oracle import NodeOracle
from subgraph.results.bisect import Healing
from subgraph.runtime.run_result import RunResult
from subgraph.search import Answer, QueryKind
from subgraph.search.oracle import ErrorShare, Items, Query
from subgraph.trials.reference_model import ReferenceCache, ReferenceModel
from subgraph.trials.trial import Trials
from subgraph.verdict import NO_OUTPUT, Signature, Status, Verdict


class Means(StrEnum):
    """A way to rewrite the nodes of a full model."""

    BARRIERS = "barriers between nodes"
    COPIES = "a copy of each tensor for each node that reads it"
    CONSTANTS = "barriers between nodes, and before constants"
    BRANCHES = "an If around each node"
    VALUES = "values of the reference"


Changes: TypeAlias = frozenset[NodeChange]


@dataclass
class ModelRewriter(NodeItems):
    """Runs a full model, some of whose items are rewritten.

    Attributes:
        model: The model, and what its nodes can become.
        means: How nodes are rewritten.
        limit: The number of items that `Means.VALUES` can replace: the first ones.
        has_barriers: Whether the candidate takes barriers.
        kept_values: Values that replace those of culprits in every run.
    """

    model: FullModel
    means: Means = Means.BARRIERS
    limit: int = 0
    has_barriers: bool = False
    kept_values: Changes = frozenset()

    # ------------------------------------------------------------ changes

    def _iter_changes(self) -> Iterator[tuple[NodeChange, set[int | None]]]:
        """Yield each change that the means allow, with the items that it separates."""
        graph = self.graph
        item = invert(enumerate(self.groups))
        kinds = find_kinds(graph, graph.iter_inputs(item))
        for i, k in item.items():
            for name in graph.reads[i] if self.has_barriers else ():
                is_weight = self.means is Means.CONSTANTS and self.model.is_weight(name)
                if is_weight or kinds[name] == GIVEN:
                    yield NodeChange(name, i), {k, item.get(graph.maker.get(name, -1))}
            for name in graph.makes[i] if k < self.limit else ():
                yield NodeChange(name, VALUE), {k}
            if self.means is Means.BRANCHES and self.model.can_hide(i):
                yield NodeChange("", i), {k}

    def rewrite_all_but(self, kept: Collection[int]) -> Changes:
        """Return the changes of all items but some, and the values that are kept."""
        found = (change for change, items in self._iter_changes() if items - {None, *kept})
        takes = self.model.takes_barrier
        taken = frozenset(change for change in found if not change.tensor or takes(change.tensor))
        return taken | self.kept_values

    def keep_values(self, items: Iterable[int]) -> None:
        """Replace the values of items in every later run."""
        names = self.graph.iter_outputs(self.list_indices(items))
        self.kept_values |= {NodeChange(name, VALUE) for name in names}

    # ------------------------------------------------------------ runs

    def run(self, changes: Changes, repetition: int = 0, *, fresh: bool = False) -> RunResult:
        """Return the candidate's outputs of the full model with these changes.

        Raises:
            BackendError: The candidate cannot be used at all.
        """
        trials = self.trials
        if not changes:
            return trials.run(trials.full_model, repetition=repetition, fresh=fresh)
        return self.run_changed(changes, repetition, fresh=fresh)

    def run_changed(
        self, changes: Changes, repetition: int = 0, *, fresh: bool = False
    ) -> RunResult:
        """Return the candidate's outputs with one change or more."""
        return run_file(self.trials, self.write(changes), repetition, fresh=fresh)

    def write(self, changes: Changes) -> Path:
        """Write the full model with these changes; return its file."""
        path = self.trials.model.new_folder() / "rewritten.onnx"
        path.write_bytes(self.model.make(changes).SerializeToString())
        return path

    def verdict(self, changes: Changes) -> Verdict:
        """Return the verdict on the full model with these changes; the run is no trial."""
        whole = self.trials.full_model
        with self.trials.log.count_as_extra(whole):
            return self.trials.judge.verdict(whole, self.run(changes))

    def heals(self, changes: Changes) -> bool:
        """Return whether the full model agrees with these changes."""
        return self.verdict(changes).agrees

    # ------------------------------------------------------------ means

    def find_means(self) -> bool:
        """Return whether the full model agrees if all items are rewritten; sets the means."""
        self.limit = 0
        finds = {
            Means.BARRIERS: self._find_barrier,
            Means.VALUES: self._find_limit,
        }
        for means in Means:
            self.means = means
            self.model.copies = means is Means.COPIES
            self.has_barriers &= means is not Means.VALUES
            log.info("rewriting the full model: %s", means)
            if finds.get(means, self._heals_all)():
                return True
        return False

    def _heals_all(self) -> bool:
        changes = self.rewrite_all_but(())
        return bool(changes) and _is_taken(self, changes) and self.heals(changes)

    def _find_barrier(self) -> bool:
        """Take the strongest barrier that the candidate takes; return whether it heals."""
        self.has_barriers = True
        for self.model.barrier in range(len(STRONGEST)):
            changes = self.rewrite_all_but(())
            if changes and _is_taken(self, changes):
                return self.heals(changes)
        self.has_barriers = False
        return False

    def _find_limit(self) -> bool:
        """Find the fewest first items whose values heal the full model."""
        count = len(self.groups)
        is_single = len(self.trials.values.samples) == 1
        if not is_single or not self._heals_first(count):
            return False
        self.limit = 1 + bisect_left(range(1, count), True, key=self._heals_first)
        return True

    def _heals_first(self, limit: int) -> bool:
        """Return whether the values of the first items heal the full model."""
        self.limit = limit
        return self._heals_all()

    # ------------------------------------------------------------ cure

    def heal(self, regions: Sequence[Items]) -> tuple[Healing, bool]:
        """Find changes that heal the full model, and do not with any one of them left out.

        Args:
            regions: The items that the fault needs.

        Returns:
            The changes, and whether all of them are at these items. If not, more is wrong.
        """
        everything = self.rewrite_all_but(())
        inside = everything - self.rewrite_all_but(set(flatten(regions)))
        inside |= self.kept_values
        is_enough = self.heals(inside)
        cure = inside if is_enough else everything
        for one in sorted(cure):
            if self.heals(cure - {one}):
                cure -= {one}
        words = [self.model.describe(one, self.graph.label) for one in sorted(cure)]
        return Healing(self.means, words, str(self.write(cure))), is_enough


def view_file(trials: Trials, path: Path) -> ReferenceModel:
    """Return a rewritten model on the reference."""
    return replace(trials.model, graph=prepare_graph(load(path)), cache=ReferenceCache())


def run_file(trials: Trials, path: Path, repetition: int = 0, *, fresh: bool = False) -> RunResult:
    """Return the candidate's outputs of a rewritten model.

    Raises:
        BackendError: The candidate cannot be used at all.
    """
    model = view_file(trials, path)
    processes = trials.processes.with_model(model)
    asker = replace(processes, mode=replace(processes.mode, pattern=None))
    return asker.run(model.whole(), repetition=repetition, fresh=fresh)


def _is_taken(rewriter: ModelRewriter, changes: Changes) -> bool:
    """Return whether the reference computes the same with these changes, and the candidate
    returns outputs, or fails as without them."""
    trials = rewriter.trials
    whole = trials.full_model
    feeds = [[s[name] for name in rewriter.graph.inputs] for s in trials.values.records]
    try:
        outputs = trials.model.run_model(rewriter.model.make(changes), feeds, whole.outputs)
    except ModelError as e:
        log.debug("the reference does not run a rewritten model: %s", e.what)
        return False
    if trials.judge.verdict(whole, RunResult(tuple(outputs))).fails:
        return False
    own = trials.verdict(whole).signature
    return not {rewriter.verdict(changes).signature} & (NO_OUTPUT - {own})


def depends_on_names(rewriter: ModelRewriter, regions: Sequence[Items]) -> bool:
    """Return whether a region no longer fails alone, or all of them fail when rewritten, with
    other names of the inserted tensors: then the candidate's outcome depends on the file."""
    rewriter.model.word = "beside"
    kept = [rewriter.rewrite_all_but(region) for region in regions]
    is_stable = not any(map(rewriter.heals, kept)) and rewriter.heals(rewriter.rewrite_all_but(()))
    rewriter.model.word = "apart"
    return not is_stable


@dataclass(kw_only=True)
class RewritingOracle(NodeOracle):
    """Answers a search by runs of the full model, in which all other items are rewritten.

    Attributes:
        rewriter: The rewriter of the model.
    """

    cuts: ClassVar[bool] = False
    rewriter_class: ClassVar[type[ModelRewriter]] = ModelRewriter
    rewriter: ModelRewriter

    def _make_region(self, query: Query) -> Region:
        return self.trials.full_model

    def _run(self, query: Query, region: Region) -> RunResult:
        if query.is_whole:
            return super()._run(query, region)
        changes = self.rewriter.rewrite_all_but(query.items)
        return self.rewriter.run(changes, query.repetition, fresh=query.fresh)

    def _answer(self, query: Query) -> Answer:
        """Return the answer to a query; an error that rounding explains is a failure like any
        other."""
        if query.kind in (QueryKind.PROFILE, QueryKind.PREFIX):
            return Answer(Status.UNRESOLVED)
        region = self._make_region(query)
        result = self.ahead.take(query) or self._run(query, region)
        answer = answer_of(self.trials.judge.verdict(region, result))
        if answer.signature is Signature.PRECISION:
            answer = replace(answer, signature=Signature.MISMATCH)
        return replace(answer, detail=ErrorShare(is_culprit=True))
