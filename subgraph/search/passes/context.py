"""Items that cannot be run alone, a lone Shape say, run together with neighbouring items.

Insight: where a set agrees, each part of it would have agreed, unless masked. So a larger region that agrees clears a
part that could not be run, and shows that an item refused alone is not to blame.
"""

from __future__ import annotations

from collections.abc import Iterable

from subgraph.search.findings import Purpose
from subgraph.search.oracle import Items
from subgraph.search.predicate import PASSES, Meaning
from subgraph.search.state import Search, SearchState
from subgraph.verdict import Signature

NEAR = 6  # places on both sides


def in_context(state: SearchState, region: Items, rest: Items) -> Search[Meaning]:
    """A neighbour `rest` of a failing region cannot be run: AGREE if it agrees together with items outside of the
    region, else UNRESOLVED."""
    others = [k for k in around(state, rest) if k not in region]
    contexts = [(k,) for k in others[:4]] + [tuple(others[:3]), tuple(others)]
    agrees = yield from _agrees_with(state, Purpose.SHRINK, rest, contexts)
    return Meaning.AGREE if agrees else Meaning.UNRESOLVED


def runs_in_context(state: SearchState, region: Items) -> Search[bool]:
    """Is a region refused alone, but not together with its neighbours?"""
    if state.signature is not Signature.REFUSED:
        return False
    near = around(state, region)
    contexts = [tuple(near[:2]), *((k,) for k in near[:3])]
    return (yield from _agrees_with(state, Purpose.CONFIRM, region, contexts))


def _agrees_with(state: SearchState, purpose: Purpose, region: Items, contexts: Iterable[Items]) -> Search[bool]:
    passes = PASSES if state.no_output else (Meaning.AGREE,)
    for context in dict.fromkeys(c for c in contexts if c):
        if (yield from state.region(purpose, tuple(sorted({*region, *context})))) in passes:
            return True
    return False


def around(state: SearchState, places: Iterable[int]) -> list[int]:
    """Places that feed these, then those beside them in the order, nearest first."""
    inside = set(places)
    low, high = min(inside), max(inside)
    near = [p for k in sorted(inside) for p in state.parents[k]]
    near += [k for d in range(1, NEAR) for k in (low - d, high + d) if 0 <= k < state.n]
    return [k for k in dict.fromkeys(near) if k not in inside]
