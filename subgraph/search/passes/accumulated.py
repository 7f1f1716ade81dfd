"""An error that accumulates over all items: the shares of disjoint pieces sum towards 1, and none
is large.

Insight: a piece that contains a culprit has a large share; if a culprit is split between pieces,
none of them has a share. Only an error to which every item adds leaves a small share everywhere.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise

from subgraph.iterables import flatten
from subgraph.search.driver import Search
from subgraph.search.oracle import (
    Accumulation,
    Answer,
    Finding,
    FindingKind,
    Items,
    Purpose,
    QueryKind,
    RegionOutcome,
    exclude,
)
from subgraph.search.state import SearchState
from subgraph.verdict import NUMBERS, Signature

MAX_PIECES = 16
MIN_SUM = 0.5  # of the shares of all pieces: from here on they account for the whole
MIN_CULPRIT_SHARE = 0.27  # from here on a piece holds a culprit
GROWTH_POINTS = 8
MAX_SPOILING = 8  # pieces that have an error together
MAX_SPLITS = 6  # of the largest contributors, to name smaller ones


def find_accumulated(
    state: SearchState, scope: Items, share: float = 1.0, *, graded: bool = False
) -> Search[Finding | None]:
    """Return the finding; None if a piece holds a culprit, or the pieces do not account for the
    `share` of the scope.

    With a share below 1 only the scope is examined, and no growth is measured.

    `graded`: the error is known to grow item by item. A piece that fails with a small share is then
    a place where it grows; otherwise such a piece is one of several culprits. If rounding
    explains the target's error, the pieces are ranked, whatever they account for, unless one fails
    in a harder way.
    """
    if state.aim.signature not in NUMBERS:  # NaN, infinities, shapes and crashes do not add up
        return None
    count = min(MAX_PIECES, len(scope))
    cuts = [len(scope) * k // count for k in range(count + 1)]
    pieces = [scope[a:b] for a, b in pairwise(cuts)]
    state.expect(count + GROWTH_POINTS)
    shares = yield from _measure_shares(state, pieces, graded)
    if shares is None:
        return None
    if state.aim.signature is not Signature.PRECISION and (
        max(shares) >= MIN_CULPRIT_SHARE or sum(shares) < MIN_SUM * share
    ):
        return None
    growth = []
    if share == 1.0:
        # The growth has the errors of prefixes on the model's inputs, without the unknown ones.
        sizes = sorted({max(1, state.n * k // GROWTH_POINTS) for k in range(1, GROWTH_POINTS + 1)})
        queries = [state.aim.make_in_place_query(QueryKind.PREFIX, tuple(range(j))) for j in sizes]
        answers = yield from state.ask_singly(Purpose.GROWTH, queries)
        for size, answer in zip(sizes, answers, strict=True):
            if answer.prefix_error is not None:
                growth.append((size, answer.prefix_error))
    contributors = yield from _find_largest(state, pieces, shares)
    spoiling = yield from _find_spoiling(state, scope, contributors)
    if spoiling:
        return spoiling
    return _make_finding(
        state,
        scope,
        sum(shares),
        f"{count} pieces explain {sum(shares):.0%} together, none more than {max(shares):.0%}",
        tuple(growth),
        contributors,
    )


def make_partial_finding(state: SearchState, region: Items, share: float) -> Finding:
    """Return the finding for a region whose error grows item by item, but does not split into
    shares that add up."""
    return _make_finding(
        state,
        region,
        share,
        "the error grows item by item: most of it is left without the first or the last one",
    )


def find_scattered(state: SearchState, scope: Items, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings of a search whose remaining items do not agree.

    If none of them accounts for much, the error arises in many places, of which these were seen to
    fail. Then the result is a single finding.
    """
    culprits = [f for f in findings if f.is_culprit]
    shares = [f.share_of_model for f in culprits if f.share_of_model is not None]
    if (
        state.aim.signature not in NUMBERS
        or not shares
        or len(shares) < len(culprits)
        or max(map(abs, shares)) >= MIN_CULPRIT_SHARE
    ):
        return list(findings)
    contributors = [(f.items, f.share_of_model or 0.0) for f in culprits]
    minor = (
        (items, answer.share.of_model or 0.0) for items, answer in state.seen.irrelevant.items()
    )
    contributors += [(items, share) for items, share in minor if share > 0]
    contributors.sort(key=lambda contributor: -contributor[1])
    why = (
        f"the culprits ({len(shares)}) explain {sum(shares):.0%}, none more than {max(shares):.0%};"
        " the remaining error arises in many places"
    )
    return [_make_finding(state, scope, 1.0, why, contributors=tuple(contributors[:MAX_PIECES]))]


def _make_finding(
    state: SearchState,
    region: Items,
    share: float,
    why: str,
    growth: tuple[tuple[int, float], ...] = (),
    contributors: tuple[tuple[Items, float], ...] = (),
) -> Finding:
    return Finding(
        FindingKind.ACCUMULATED,
        region,
        state.aim.signature,
        False,
        share,
        why=why,
        accumulation=Accumulation(growth, contributors),
    )


def _measure_shares(
    state: SearchState, pieces: Sequence[Items], graded: bool
) -> Search[list[float] | None]:
    """Return the share of each piece.

    Returns:
        None if a piece fails as the target does and, with `graded`, has a culprit's share.
    """
    shares = []
    for piece in pieces:
        answer = yield from _ask_alone(state, piece)
        fails = state.aim.outcome(piece, answer) is RegionOutcome.FAIL
        share = answer.share.of_target
        if fails and (not graded or share is None or share >= MIN_CULPRIT_SHARE):
            return None
        shares.append(share or 0.0)
    return shares


def _ask_alone(state: SearchState, items: Items) -> Search[Answer]:
    """Return the answer on these items alone, with their share of the error."""
    query = state.aim.make_isolated_query(items, state.aim.first, explain=True)
    (answer,) = yield from state.ask(Purpose.GROWTH, [query])
    return answer


def _find_spoiling(
    state: SearchState, scope: Items, contributors: Sequence[tuple[Items, float]]
) -> Search[Finding | None]:
    """Find the few items without which the scope agrees, and which alone make the outputs fail.

    Their own values are within rounding, for example with one scale for values of very different
    sizes.

    Returns:
        None without such items.
    """
    pieces = [piece for piece, _ in contributors[:MAX_SPOILING]]
    if contributors[0][1] < MIN_CULPRIT_SHARE or not (
        yield from _agrees_without(state, scope, pieces)
    ):
        return None
    for index in reversed(range(len(pieces))):
        piece = pieces.pop(index)
        if (yield from _agrees_without(state, scope, pieces)):
            continue
        # Find the part of the piece without which, and without the others, the scope agrees.
        while len(piece) > 1:
            halves = _split(piece)
            shares = yield from _measure_shares(state, halves, True)
            if shares is None:
                break
            larger = halves[shares.index(max(shares))]
            if not (yield from _agrees_without(state, scope, [*pieces, larger])):
                break
            piece = larger
        pieces.insert(index, piece)
    items = tuple(sorted(flatten(pieces)))
    if not (yield from state.tail(Purpose.TAIL, items)).fails:
        return None
    alone = yield from _ask_alone(state, items)
    return Finding(
        FindingKind.CULPRIT,
        items,
        state.aim.signature,
        share_of_model=alone.share.of_model,
        why="the outputs agree without it, and fail with its error alone",
    )


def _agrees_without(state: SearchState, scope: Items, pieces: Sequence[Items]) -> Search[bool]:
    rest = exclude(scope, set(flatten(pieces)))
    return (yield from state.tail(Purpose.TAIL, rest)).agrees


def _find_largest(
    state: SearchState, pieces: Sequence[Items], shares: Sequence[float]
) -> Search[tuple[tuple[Items, float], ...]]:
    """Find the pieces of largest share, largest first.

    The largest ones are split a few times, to name fewer nodes.
    """
    heap = [(-share, piece) for piece, share in zip(pieces, shares, strict=True)]
    heapq.heapify(heap)
    for _ in range(MAX_SPLITS):
        piece = heap[0][1]
        if len(piece) == 1:
            break
        halves = _split(piece)
        parts = yield from _measure_shares(state, halves, True)
        if parts is None:
            break
        heapq.heapreplace(heap, (-parts[0], halves[0]))
        heapq.heappush(heap, (-parts[1], halves[1]))
    return tuple((piece, -share) for share, piece in sorted(heap))


def _split(piece: Items) -> list[Items]:
    middle = len(piece) // 2
    return [piece[:middle], piece[middle:]]
