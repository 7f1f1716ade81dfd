"""Which items are wrong inside the candidate's own run? A guide, never a verdict: reading tensors changes fusion.

Insight: everything behind a culprit is wrong, so only *first* wrong items say something: those with no wrong item above
them. On real bugs that is the culprit, or the last item of the smallest failing region.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from subgraph.search.findings import Purpose
from subgraph.search.oracle import Answer, Items, Query, QueryKind
from subgraph.search.order import nearest_last
from subgraph.search.passes import gallop
from subgraph.search.state import Search, SearchState
from subgraph.verdict import Status

EVERYWHERE = 0.8  # of the items that could be seen are wrong: 198 of 223 were, where it was precision
HINTS = 3  # first wrong items that may mislead before the profile is dropped


class Seen(StrEnum):
    """What became of the run."""

    SHOWN = "shown"
    VANISHED = "vanished"  # with its inner tensors read, the candidate is right
    REFUSED = "refused"  # or failed otherwise: nothing was seen


@dataclass(frozen=True)
class Profile:
    """Attributes:
    hints: places of first wrong items, in cut order.
    everywhere: so much of the model is wrong that it may be its precision.
    """

    seen: Seen
    hints: tuple[int, ...] = ()
    everywhere: bool = False


def profile(book: SearchState, scope: Items) -> Search[Profile]:
    """One run of these places with every inner tensor an output."""
    book.more = 4
    (answer,) = yield from book.ask(Purpose.PROFILE, [Query(QueryKind.PROFILE, scope, book.first, book.fresh)])
    return read(book, scope, answer)


def read(book: SearchState, scope: Items, answer: Answer) -> Profile:
    """O(items + edges). Through items that could not be seen, what is above them shows."""
    if not answer.items:
        return Profile(Seen.VANISHED if answer.status is Status.AGREE else Seen.REFUSED)
    inside, dark, hints, wrong = set(scope), set(), [], 0
    for k in scope:
        status = answer.items.get(book.order[k])
        below = any(p in dark for p in book.parents[k] if p in inside)
        if status is Status.FAIL:
            wrong += 1
            dark.add(k)
            if not below:
                hints.append(k)
        elif status is None and below:
            dark.add(k)
    if not hints:
        return Profile(Seen.VANISHED)
    return Profile(Seen.SHOWN, tuple(hints), wrong >= EVERYWHERE * len(answer.items))


def follow(book: SearchState, scope: Items, hints: tuple[int, ...]) -> Search[Items | None]:
    """A failing region that ends at a first wrong item, as short as galloping among what is above it makes it."""
    inside = set(scope)
    for last in [h for h in hints if h in inside][:HINTS]:
        line = nearest_last(book.parents, inside, last)
        start = yield from gallop.back(book, line, len(line), None)
        if start is not None:
            return tuple(sorted(line[start:]))
    return None
