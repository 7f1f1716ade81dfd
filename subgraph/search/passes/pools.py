"""Many disjoint pieces in one run: a partition into single items, or into windows at two offsets.

Insight: a pool tells many bits for one start of a converter, but what agrees in it is not proven and what fails in it
is not believed; so it only proposes, and each failing piece is asked alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from subgraph.search.findings import Purpose
from subgraph.search.oracle import Items, Query, QueryKind
from subgraph.search.predicate import outcome
from subgraph.search.state import Search, SearchState
from subgraph.verdict import Status

PIECES = 1000  # in one pool: beyond, converters slow down more than they gain
WORTH = 512  # items from which on two pools of windows and a run are fewer than halving down to one window
WINDOW = 32  # of a partition into windows; the second one starts half a window later


def failing(book: SearchState, pieces: Sequence[Items]) -> Search[list[Items]]:
    """The pieces that fail alone, among those that do not agree in their pool. Pieces are disjoint."""
    pools = [tuple(pieces[k : k + PIECES]) for k in range(0, len(pieces), PIECES)]
    asks = [
        Query(QueryKind.POOL, tuple(sorted(x for p in pool for x in p)), book.first, False, False, pool)
        for pool in pools
    ]
    suspects: list[Items] = []
    for at in range(0, len(asks), book.workers):
        some = asks[at : at + book.workers]
        for ask, answer in zip(some, (yield from book.ask(Purpose.POOL, some)), strict=True):
            told = answer.pieces or ()
            if not told:
                return []  # not taken as a pool: nothing is known
            means = [outcome(a, book.signature) for a in told]
            suspects += [p for p, status in zip(ask.pieces, means, strict=True) if status is not Status.AGREE]
    book.left, book.more = len(suspects), len(suspects)
    found: list[Items] = []
    for at in range(0, len(suspects), book.workers):
        batch = suspects[at : at + book.workers]
        got = yield from book.regions(Purpose.POOL, batch)
        found += [p for p, s in zip(batch, got, strict=True) if s is Status.FAIL]
    return found


def singles(book: SearchState, scope: Items) -> Search[list[Items]]:
    """Single items that fail alone."""
    return (yield from failing(book, [(k,) for k in scope]))


def windows(book: SearchState, scope: Items) -> Search[Items | None]:
    """A window of `WINDOW` items that fails: every fault up to half of that lies within one of a half-stride pair."""
    for offset in (0, WINDOW // 2):
        cuts = [0, *range(offset or WINDOW, len(scope), WINDOW), len(scope)]
        pieces = [scope[a:b] for a, b in pairwise(cuts) if a < b]
        found = yield from failing(book, pieces)
        if found:
            return found[0]
    return None
