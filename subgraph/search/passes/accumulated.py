"""Is no item to blame, but all of them? Then the shares of disjoint pieces sum towards 1, and none is large.

Insight: a real culprit inside one piece gives that piece a share; one that is cut in two by pieces gives none. Only an
error that every item adds to leaves a bit of it everywhere.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise

from subgraph.search.findings import Finding, FindingKind, Purpose
from subgraph.search.oracle import Items, Query, QueryKind
from subgraph.search.predicate import outcome
from subgraph.search.state import Search, SearchState
from subgraph.verdict import Status

PIECES = 16
SUM = 0.5  # of the shares of all pieces: they account for the whole
LARGE = 0.27  # a share from which on a piece is a culprit's
POINTS = 8  # of the growth curve
SPLITS = 6  # of the largest contributors, to name smaller ones


def accumulated(book: SearchState, scope: Items, share: float = 1.0, *, graded: bool = False) -> Search[Finding | None]:
    """The finding, or None where some piece is guilty or the pieces do not account for the `share` that the scope has.
    Where that is not 1, only these items are in question, and nothing is asked about the growth.

    `graded`: the error is known to grow item by item; then a piece that fails with a small share is one that it grows
    in, else a culprit among several.
    """
    count = min(PIECES, len(scope))
    cuts = [len(scope) * k // count for k in range(count + 1)]
    pieces = [scope[a:b] for a, b in pairwise(cuts)]
    book.more = count + POINTS
    shares = yield from _shares(book, pieces, graded)
    if shares is None or max(shares) >= LARGE or sum(shares) < SUM * share:
        return None
    growth = (yield from _growth(book)) if share == 1.0 else ()
    contributors = yield from _largest(book, pieces, shares)
    why = f"{count} pieces explain {sum(shares):.0%} together, none more than {max(shares):.0%}"
    return Finding(
        FindingKind.ACCUMULATED,
        book.items(scope),
        book.signature,
        explains=sum(shares),
        why=why,
        growth=growth,
        contributors=contributors,
    )


def partial(book: SearchState, items: Items, share: float) -> Finding:
    """What is said of a region whose error grows item by item, and does not split into shares that add up."""
    why = "the error grows item by item: most of it is left without the first or the last one"
    return Finding(FindingKind.ACCUMULATED, book.items(items), book.signature, explains=share, why=why)


def scattered(book: SearchState, scope: Items, findings: Sequence[Finding]) -> list[Finding]:
    """The findings; or, where all of them together account for less than half of the error and none for much, one: the
    error is made in many places, of which these were seen to fail."""
    shares = [f.explains for f in findings if f.kind is FindingKind.CULPRIT and f.explains is not None]
    if not shares or len(shares) < len(findings) or max(shares) >= LARGE or sum(shares) >= SUM:
        return list(findings)
    largest = [(f.items, f.explains or 0.0) for f in findings]
    largest += [(n.items, n.share) for n in book.aside.values() if n.share and n.share > 0]
    contributors = tuple(sorted(largest, key=lambda found: -found[1])[:PIECES])
    failing = "1 piece that fails explains" if len(shares) == 1 else f"{len(shares)} pieces that fail explain"
    why = f"{failing} {sum(shares):.0%}, none more than {max(shares):.0%}; the rest of the error is made in many places"
    whole = book.items(scope)
    return [
        Finding(FindingKind.ACCUMULATED, whole, book.signature, explains=1.0, why=why, contributors=contributors),
    ]


def _shares(book: SearchState, pieces: Sequence[Items], graded: bool) -> Search[list[float] | None]:
    """None where a piece fails as the whole does; `graded`: and is a culprit's."""
    found: list[float] = []
    for at in range(0, len(pieces), book.workers):
        some = [Query(QueryKind.ISOLATED, p, book.first, book.fresh, True) for p in pieces[at : at + book.workers]]
        answers = yield from book.ask(Purpose.GROWTH, some)
        failing = [a for a in answers if outcome(a, book.signature) is Status.FAIL]
        if any(not graded or a.share is None or a.share >= LARGE for a in failing):
            return None
        found += [a.share or 0.0 for a in answers]
    return found


def _growth(book: SearchState) -> Search[tuple[tuple[int, float], ...]]:
    """Error of prefixes on the model's inputs. What does not come is left out."""
    sizes = sorted({max(1, book.n * k // POINTS) for k in range(1, POINTS + 1)})
    asks = [Query(QueryKind.PREFIX, tuple(range(j)), book.first, book.fresh) for j in sizes]
    answers = []
    for at in range(0, len(asks), book.workers):
        answers += yield from book.ask(Purpose.GROWTH, asks[at : at + book.workers])
    return tuple((j, a.error) for j, a in zip(sizes, answers, strict=True) if a.error is not None)


def _largest(
    book: SearchState, pieces: Sequence[Items], shares: Sequence[float]
) -> Search[tuple[tuple[Items, float], ...]]:
    """Pieces by share; the largest are split a few times, so that what stands out does so by name."""
    heap = [(-share, piece) for piece, share in zip(pieces, shares, strict=True)]
    heapq.heapify(heap)
    for _ in range(SPLITS):
        piece = heap[0][1]
        if len(piece) == 1:
            break
        halves = [piece[: len(piece) // 2], piece[len(piece) // 2 :]]
        parts = yield from _shares(book, halves, True)
        if parts is None:
            break
        heapq.heapreplace(heap, (-parts[0], halves[0]))
        heapq.heappush(heap, (-parts[1], halves[1]))
    return tuple((book.items(piece), -share) for share, piece in sorted(heap))
