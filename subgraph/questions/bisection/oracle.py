"""The oracle of a bisection: a query of the search becomes a trial on nodes of one graph.

`SeenRuns` has the results, `error_shares` explains an error, and `read_items` reads intermediate
tensors of the model.

Several workers execute the runs that the search needs now and those that it is likely to need. A
run ahead fills no answer: the search requests it as if nothing had run, and finds it. So nothing
depends on the order in which runs end; the result of an unneeded run stays in the store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

from subgraph.errors import ModelError, NoRegion, OutOfTime
from subgraph.graph.region import Region
from subgraph.log import log
from subgraph.questions.bisection.error_shares import (
    ErrorShares,
    SeenRuns,
    answer_of,
    read_items,
    tap_region,
)
from subgraph.questions.bisection.items import NodeItems
from subgraph.runtime.run_result import RunResult
from subgraph.runtime.worker_pool import Cancel
from subgraph.search import Answer, Findings, QueryKind, Settings, search
from subgraph.search.driver import BudgetSpent, Steps
from subgraph.search.lookahead import plan
from subgraph.search.oracle import Ahead, ClaimedAgreement, ContradictoryRuns, Query
from subgraph.system.shared import Closable
from subgraph.text import count
from subgraph.trials.pooled_runs import run_pooled
from subgraph.verdict import ENDED, Status

# Of outputs that agree at the claimed precision only.
CLAIMED_LABELS = frozenset(("precision", "range"))
Ran = tuple[RunResult, Status]


@dataclass
class NodeOracle(NodeItems):
    """Answers a search by trials on nodes of one graph.

    Attributes:
        workers: Number of trials that can run at once.
        hints: Function that returns, by node, how many times as likely as others it is guilty.
        seen: The results on which later answers rest.
        stop: Function that an interruption calls, after which the search ends with its present
            result. None if an interruption leaves the search.
        cuts: Whether items are run as a cut of the model.
    """

    cuts: ClassVar[bool] = True

    workers: int = 1
    hints: Callable[[], Mapping[int, float]] = dict
    seen: SeenRuns = field(default_factory=SeenRuns)
    stop: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self.ahead = RunsAhead(self._run_ahead, self.workers)

    def run_result(self, region: Region) -> RunResult:
        """Return the candidate's first failing result of a region, or its first one."""
        return self.seen.result(self.trials, region)

    @cached_property
    def whole_agrees(self) -> bool:
        """Whether the full model agrees. It is read after the search has run it."""
        whole = self.trials.full_model
        verdict = self.trials.verdict(whole)
        return whole.nodes not in self.seen.failed and (verdict.agrees or verdict.is_mute)

    def search(self, settings: Settings | None = None) -> Steps[Findings]:
        """Search for culprits: yields a Step per answer, returns the Findings.

        Raises:
            BackendError: the candidate cannot be used at all.
        """
        pools = self.cuts and self.trials.runner.takes_merged_cuts
        settings = replace(settings or Settings(), expect=self.expect, pools=pools)
        with self.ahead:
            return (
                yield from search(
                    self.parents, self, settings, weights=self._compute_weights, labels=self.kinds
                )
            )

    def _compute_weights(self) -> Sequence[float]:
        hints = self.hints()
        return [max(hints.get(i, 1.0) for i in group) for group in self.groups]

    def expect(self, ahead: Ahead) -> None:
        """Begin a search: `ahead` names the runs that it is likely to need."""
        if self.workers > 1:
            self.ahead.expect(ahead)

    # ------------------------------------------------------------ answers

    def ask(self, queries: Sequence[Query]) -> Sequence[Answer]:
        """Return one answer per query; with several workers, likely next queries run meanwhile.

        Raises:
            BackendError: The candidate cannot be used at all.
            BudgetSpent: A run was ended because its time is used up.
        """
        nodes = self.list_indices(queries[0].items)
        ends = " … ".join(dict.fromkeys(self.graph.label(i) for i in (*nodes[:1], *nodes[-1:])))
        more = f" and {len(queries) - 1} more" if len(queries) > 1 else ""
        if nodes:
            text = f"running {ends} ({count(nodes, 'node')}){more}"
        else:
            text = f"running the whole model{more}"
        log.info("%s", text, extra={"live": {"asking": text}})
        try:
            if self.seen.first:  # the first answer determines the form of the full model
                self.ahead.wait_for(queries)
            is_pool = any(query.pool for query in queries)
            if is_pool:
                return _ask_pooled(self, queries)
            return list(map(self._answer, queries))
        except OutOfTime as e:
            raise BudgetSpent(e.what) from e
        except KeyboardInterrupt as e:
            if self.stop is None:
                raise
            self.stop()
            raise BudgetSpent("interrupted") from e

    def _run(self, query: Query, region: Region) -> RunResult:
        return self.trials.run(region, repetition=query.repetition, fresh=query.fresh)

    def _run_ahead(self, query: Query) -> tuple[RunResult, Status]:
        region = self._make_region(query)
        result = self._run(query, region)
        return result, self.trials.judge.verdict(region, result).status

    def _answer(self, query: Query) -> Answer:
        kind = query.kind
        try:
            region = self._make_region(query)
            result = self.ahead.take(query) or self._run(query, region)
            if kind not in (QueryKind.PROFILE, QueryKind.PREFIX):
                result = self._confirm(query, region, result)
            shares = ErrorShares(self, self.seen)
            if kind is QueryKind.REST:
                return shares.judge_rest(query, region, result)
            verdict = self.trials.judge.verdict(region, result)
            answer = answer_of(verdict)
            if verdict.is_mute:  # the last stage decides what that is worth
                answer = replace(answer, status=Status.AGREE)
            if kind is QueryKind.PROFILE:
                statuses = read_items(self, self.seen, query.items, result, verdict)
                return replace(answer, detail=statuses)
            if kind is QueryKind.PREFIX:
                return replace(answer, detail=shares.measure_prefix(verdict))
            if verdict.fails:
                self.seen.failed.setdefault(region.nodes, result)
            if kind is QueryKind.ISOLATED:
                return self._with_share(query, region, result, answer)
            if verdict.fails and self.trials.runner.contradicts_itself:
                names = {j.name for j in verdict.outputs if j.fails}
                self.seen.nondeterministic.setdefault(region.nodes, set()).update(names)
                return replace(answer, detail=ContradictoryRuns())
            claims = any(j.label in CLAIMED_LABELS for j in verdict.outputs)
            return replace(answer, detail=ClaimedAgreement() if verdict.agrees and claims else None)
        except (ModelError, NoRegion) as e:
            # The reference or the cut has the error: nothing is known about the candidate.
            return Answer(Status.UNRESOLVED, why=e.what)

    def _with_share(
        self, query: Query, region: Region, result: RunResult, answer: Answer
    ) -> Answer:
        """Return the answer with the region's share of the error, if the full model has one."""
        if self.whole_agrees or self.trials.runner.too_large(self.trials.full_model):
            return answer
        share = ErrorShares(self, self.seen).compute_share(query, region, result, answer)
        return replace(answer, detail=share)

    def _make_region(self, query: Query) -> Region:
        if query.is_whole:
            return self.trials.full_model
        if query.kind is QueryKind.PROFILE:
            return tap_region(self, query.items)
        return self.region(query.items)

    def _confirm(self, query: Query, region: Region, result: RunResult) -> RunResult:
        """Note the result of a query, and return it.

        A crash in a used process, whose memory earlier runs may have corrupted, is replaced by the
        result of a fresh process. A difference from the first result of the region is noted, too.
        """
        crashed_in_used_process = not query.fresh and _has_crashed(result)
        if crashed_in_used_process and not _has_crashed(self.run_result(self.trials.full_model)):
            result = self.trials.run_extra(region, repetition=query.repetition, fresh=True)
        self.seen.note(self.trials.judge, query, region, result)
        return result


def _ask_pooled(oracle: NodeOracle, queries: Sequence[Query]) -> list[Answer]:
    """Return one answer per region, of which all run side by side in one model; without shares."""
    try:
        regions = [oracle.region(query.items) for query in queries]
        results = run_pooled(oracle.trials, regions, is_extra=False)
    except (ModelError, NoRegion) as e:
        return [Answer(Status.UNRESOLVED, why=e.what)] * len(queries)
    not_run = Answer(Status.UNRESOLVED, why="it does not run next to other regions")
    judge = oracle.trials.judge
    return [
        answer_of(replace(judge.verdict(region, result), pooled=True)) if result else not_run
        for region, result in zip(regions, results, strict=True)
    ]


def _has_crashed(result: RunResult) -> bool:
    return result.failure is not None and result.failure.signature in ENDED


@dataclass
class RunsAhead(Closable):
    """Up to `workers` runs at once. Use it as a context manager: its end ends them.

    Attributes:
        run: Function that returns the result of a query's run, and its status; a separate thread
            calls it.
        workers: Number of runs at once.
    """

    run: Callable[[Query], Ran]
    workers: int
    _ahead: Ahead | None = None
    _going: dict[Query, tuple[Future[Ran], Cancel]] = field(default_factory=dict)
    _done: dict[Query, Future[Ran]] = field(default_factory=dict)
    _executor: ThreadPoolExecutor | None = None

    def expect(self, ahead: Ahead) -> None:
        """Begin a search: `ahead` names the runs that it is likely to need."""
        self.close()
        self._ahead = ahead
        # Those that end, and their successors.
        self._executor = ThreadPoolExecutor(2 * self.workers)

    def wait_for(self, queries: Sequence[Query]) -> None:
        """Return when all of these have run; others go on."""
        needed = {q.run for q in queries if q.runs_alone}
        while self._executor:
            for run in [run for run, (future, _) in self._going.items() if future.done()]:
                self._done[run] = self._going.pop(run)[0]
            self._plan()
            waiting = [self._going[run][0] for run in needed if run in self._going]
            if not waiting:  # what is needed has run
                return
            wait([future for future, _ in self._going.values()], return_when=FIRST_COMPLETED)

    def take(self, query: Query) -> RunResult | None:
        """Return the result of a query's run, if it ran ahead.

        Raises: what the run raised.
        """
        future = self._done.get(query.run)
        if future is None:
            return None
        return future.result()[0]

    def _plan(self) -> None:
        statuses = {
            run: future.result()[1]
            for run, future in self._done.items()
            if not future.cancelled() and future.exception() is None
        }
        assert self._ahead and self._executor
        begin, obsolete = plan(self._ahead(statuses, {}), self._going, self._done, self.workers)
        for run in obsolete:
            self._going.pop(run)[1].set()
        for run in begin:
            cancel = Cancel()
            self._going[run] = self._executor.submit(self._run, run, cancel), cancel

    def _run(self, query: Query, cancel: Cancel) -> Ran:
        with cancel:
            return self.run(query)

    def close(self) -> None:
        """End the runs that nobody waits for."""
        going = self._going
        self._going = {}
        self._done = {}
        for _, cancel in going.values():
            cancel.set()
        if self._executor:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None
        for future, _ in going.values():
            with contextlib.suppress(CancelledError):
                future.exception()  # its result is not needed
