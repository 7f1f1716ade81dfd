"""The likely next queries of a search, so that idle workers can run them before they are needed.

Insight: a search is a pure function of its answers. If it runs again on the known answers, and on
guesses at later ones, it yields the queries that would follow; likelier guesses come first. A run
ahead changes no answer and no step: the search with many workers is the search with one worker,
some of whose answers are ready. So it ends in the same findings, whatever was guessed and however
long each trial takes.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from subgraph.search.driver import Search, SearchStopped
from subgraph.search.oracle import Answer, ErrorShare, PrefixError, Purpose, Query, QueryKind
from subgraph.search.state import SearchState
from subgraph.verdict import Signature, Status

# How sure the status of a run is whose outputs are judged and not yet attributed.
SEEN_CHANCE = 0.97
REPEAT_CHANCE = 0.95  # that a repetition ends as the run before
# That a region passes; else 1/2.
PASS_ODDS = {
    Purpose.SHRINK: 0.9,
    Purpose.TAIL: 0.8,
    Purpose.GROWTH: 0.9,
    Purpose.ALIKE: 0.1,
}
MAX_QUERIES_PER_WORKER = 4  # queries per worker, that a run which goes on must be among
MIN_CHANCE = 1 / 64  # of a query that is named
MAX_REPLAYS = 128  # searches over the known answers, for one look ahead

Batches = tuple[Sequence[Answer], ...]


class _Future:
    """A search that goes on with assumed answers.

    Attributes:
        queries: The next queries.
        earlier: The known and the assumed answers, by run.
    """

    def __init__(self, state: SearchState, search: Search[object]) -> None:
        self.state = state
        self._search = search
        self.queries = next(search)
        self.earlier = dict[Query, Answer]()

    def go_on(self, answers: Sequence[Answer]) -> None:
        """Send the answers to the search.

        Raises:
            StopIteration: The search ends with a result.
            SearchStopped: The search ends early.
        """
        self.earlier.update(zip(map(_make_first_run, self.queries), answers, strict=True))
        self.queries = self._search.send(answers)


@dataclass
class Lookahead:
    """The queries that a search may still send.

    Attributes:
        begin: Function that returns the same search from its beginning, with a separate state.
        answers_sent: The answers that the search has received, by batch.
    """

    begin: Callable[[], tuple[SearchState, Search[object]]]
    answers_sent: Sequence[Sequence[Answer]]

    def iter_wanted(
        self, seen: Mapping[Query, Status], known: Mapping[Query, Answer]
    ) -> Iterator[Query]:
        """Yield the runs of `Ahead`, each as `Query.run`.

        Complexity: lazy; each query takes about one search over the known answers, O(queries ·
        items).
        """
        named = set()
        for future in self._iter_futures(seen, known):
            for run in (query.run for query in future.queries):
                if run not in named and run.runs_alone:
                    named.add(run)
                    yield run

    def _iter_futures(
        self, seen: Mapping[Query, Status], known: Mapping[Query, Answer]
    ) -> Iterator[_Future]:
        """Yield the possible courses of the search, the likeliest first."""
        order = itertools.count()
        guesses: list[tuple[float, int, Batches, _Future | None]] = [(-1.0, next(order), (), None)]
        for _ in range(MAX_REPLAYS):
            if not guesses:
                return
            chance, _, assumed, future = heapq.heappop(guesses)
            try:
                if future is None:
                    future = _Future(*self.begin())
                    for answers in (*self.answers_sent, *assumed):
                        future.go_on(answers)
                else:
                    future.go_on(assumed[-1])
            except (StopIteration, SearchStopped):
                continue
            yield future
            options = [
                [(1.0, known[q.once])]
                if q.once in known
                else _list_guesses(future.state, q, future.earlier, seen)
                for q in future.queries
            ]
            goes_on: _Future | None = future  # with the likeliest answers; others take a new one
            for likely, answers in _iter_combinations(options):
                if -chance * likely >= MIN_CHANCE:
                    heapq.heappush(
                        guesses, (chance * likely, next(order), (*assumed, answers), goes_on)
                    )
                goes_on = None


def plan(
    wanted: Iterator[Query], going: Collection[Query], done: Collection[Query], workers: int
) -> tuple[list[Query], set[Query]]:
    """Return the runs to begin now, and those to end because no likely path of the search needs
    them.

    Args:
        wanted: The runs of `Lookahead.iter_wanted`; the first is needed now, and begins even if a
            less likely one has to end for it.
        going: The runs that are in progress.
        done: The runs that have ended.
        workers: Number of runs that can be in progress at once.
    """
    ranked = []
    obsolete = set(going)
    for run in itertools.islice(wanted, MAX_QUERIES_PER_WORKER * workers):
        ranked.append(run)
        obsolete.discard(run)
        if not obsolete and sum(r not in done for r in ranked) >= workers:
            break
    begin = [run for run in ranked if run not in going and run not in done]
    free = workers - len(going) + len(obsolete)
    if free <= 0 and begin[:1] == ranked[:1]:
        obsolete.add(max((run for run in going if run not in obsolete), key=ranked.index))
        free = 1
    return begin[: max(free, 0)], obsolete


def _make_first_run(query: Query) -> Query:
    """Return the query for its first run."""
    return replace(query.once, explain=False)


def _list_guesses(
    state: SearchState, query: Query, earlier: Mapping[Query, Answer], seen: Mapping[Query, Status]
) -> list[tuple[float, Answer]]:
    """List the possible answers to a query with their chances, the likeliest first."""
    if query.kind is QueryKind.PROFILE:
        return [(0.5, Answer(Status.AGREE))]
    signature = state.aim.signature or Signature.MISMATCH
    if query.kind in (QueryKind.PREFIX, QueryKind.CLAIMED):
        return [(1.0, Answer(Status.FAIL, signature, detail=PrefixError(1.0)))]
    all_of_error = ErrorShare(of_target=1.0, of_model=1.0, is_culprit=True, largest_error=1.0)
    fails = Answer(Status.FAIL, signature, detail=all_of_error)
    agrees = Answer(Status.AGREE, detail=ErrorShare(of_target=0.0, of_model=0.0, is_culprit=True))
    if (before := earlier.get(_make_first_run(query))) is not None:
        other = fails if before.agrees else agrees
        return [(REPEAT_CHANCE, before), (1 - REPEAT_CHANCE, other)]
    passes = PASS_ODDS.get(state.driver.purpose, 0.5)
    if (status := seen.get(query.run)) is not None:
        passes = SEEN_CHANCE if status is Status.AGREE else 1 - SEEN_CHANCE
    return sorted([(passes, agrees), (1 - passes, fails)], key=lambda guess: -guess[0])


def _iter_combinations(
    guesses: Sequence[Sequence[tuple[float, Answer]]],
) -> Iterator[tuple[float, Sequence[Answer]]]:
    """Yield the likeliest answers to a batch, then the batch with one answer changed."""
    likeliest = [some[0] for some in guesses]
    chance = math.prod(guess_chance for guess_chance, _ in likeliest)
    yield chance, [answer for _, answer in likeliest]
    for k, (first, *others) in enumerate(guesses):
        for guess_chance, answer in others:
            changed = [a for _, a in likeliest]
            changed[k] = answer
            yield chance / first[0] * guess_chance, changed
