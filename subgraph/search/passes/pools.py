"""Many disjoint pieces in one run: all single items, or windows at two offsets.

Insight: a pool answers many questions for one start of a converter. But a piece that agrees in a pool may fail alone,
and the reverse; so a pool only proposes, and each failing piece is run alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from subgraph.search.findings import Purpose
from subgraph.search.oracle import Items, Query, QueryKind
from subgraph.search.predicate import Meaning, meaning
from subgraph.search.state import Search, SearchState

POOL_PIECES = 1000  # with more, converters slow down more than the pool gains
WORTH_WINDOWS = 512  # items; from here on two pools of windows take fewer runs than halving down to one window
WINDOW = 32  # items; the second set of windows is shifted by half of that


def failing(state: SearchState, pieces: Sequence[Items]) -> Search[list[Items]]:
    """The pieces that fail alone, among those that do not agree in their pool. Pieces are disjoint."""
    pools = [tuple(pieces[k : k + POOL_PIECES]) for k in range(0, len(pieces), POOL_PIECES)]
    queries = [
        Query(QueryKind.POOL, tuple(sorted(k for p in pool for k in p)), state.first, pieces=pool) for pool in pools
    ]
    suspects: list[Items] = []
    for query in queries:
        (answer,) = yield from state.ask(Purpose.POOL, [query])
        if not answer.pieces:
            return []  # the candidate did not take the pool: nothing is known
        statuses = [meaning(a, state.signature) for a in answer.pieces]
        suspects += [p for p, status in zip(query.pieces, statuses, strict=True) if status is not Meaning.AGREE]
    state.left, state.more = len(suspects), len(suspects)
    guilty: list[Items] = []
    for region in suspects:
        fails = (yield from state.region(Purpose.POOL, region)) is Meaning.FAIL
        guilty += [region] * fails
    return guilty


def windows(state: SearchState, scope: Items) -> Search[Items | None]:
    """A failing window of `WINDOW` items. Any fault of up to half as many lies inside a window of one of the sets."""
    for offset in (0, WINDOW // 2):
        cuts = [0, *range(offset or WINDOW, len(scope), WINDOW), len(scope)]
        guilty = yield from failing(state, [scope[a:b] for a, b in pairwise(cuts) if a < b])
        if guilty:
            return guilty[0]
    return None
