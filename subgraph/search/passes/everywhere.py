"""A deviation of nearly every item alone, whatever it computes. Then none is to blame more than
others, and to peel off one after the other would name them all: the candidate computes in another
precision, or scales its outputs.

Insight: a culprit leaves items of other kinds right. So it is asked only where several disjoint
regions failed and none has agreed; a few items of different kinds, all over the scope, then decide.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from subgraph.search.driver import Search
from subgraph.search.findings import Purpose
from subgraph.search.oracle import Items
from subgraph.search.state import SearchState
from subgraph.verdict import NUMBERS, Status

MIN_FAILED = 3  # disjoint regions that failed alone, before it is asked
LOOKED_AT = 8  # items
MIN_KINDS = 3  # of those that are off
MAX_RIGHT = 1  # of those looked at: some operators copy what they read


def everywhere(state: SearchState, scope: Items, culprits: Sequence[Items]) -> Search[Items]:
    """Single items that are off alone, the last culprit's first; () where that is not so of nearly
    all.

    At most `LOOKED_AT` runs, and `MAX_RIGHT` + 1 where it is not so.
    """
    failed = _disjoint([*culprits, *state.seen.irrelevant])
    if state.seen.agreed or state.aim.flaky or len(failed) < MIN_FAILED or len(culprits[-1]) > 1:
        return ()
    off = yield from off_alone(
        state, scope, [k for region in culprits if len(region) == 1 for k in region]
    )
    return tuple(reversed(off))


def off_alone(state: SearchState, scope: Items, known: Sequence[int] = ()) -> Search[Items]:
    """Of a few items of all kinds those that are off alone, after those that are `known` to be; ()
    where that is not so of nearly all. Runs as `everywhere`.
    """
    off = list(known)
    right = 0
    state.expect(LOOKED_AT)
    for k in _spread(state.labels, [k for k in scope if k not in off]):
        yield from state.probe(Purpose.EVERYWHERE, (k,))
        answer = state.answer_to((k,))
        right += answer.status is Status.AGREE
        if right > MAX_RIGHT:
            return ()
        if answer.status is Status.FAIL and answer.signature in NUMBERS:
            off.append(k)
    kinds = len(off) if state.labels is None else len({state.labels[k] for k in off})
    return tuple(off) if len(off) > LOOKED_AT // 2 and kinds >= MIN_KINDS else ()


def _disjoint(regions: Iterable[Items]) -> list[Items]:
    """Of these regions, smallest first, those that share no item with one before."""
    kept: list[Items] = []
    seen: set[int] = set()
    for region in sorted(regions, key=len):
        if seen.isdisjoint(region):
            kept.append(region)
            seen.update(region)
    return kept


def _spread(labels: Sequence[Hashable] | None, items: Sequence[int]) -> list[int]:
    """A few of the items: one of each kind, then others, evenly over their order."""
    kinds = {labels[k] if labels else k: k for k in items}
    some = list(kinds.values())
    rest = [k for k in items if k not in set(some)]
    return [*_evenly(some, LOOKED_AT), *_evenly(rest, LOOKED_AT - len(some))]


def _evenly(items: Sequence[int], most: int) -> Sequence[int]:
    step = max(len(items) / most, 1) if most > 0 else 0
    return [items[int(i * step)] for i in range(min(most, len(items)))] if step else ()
