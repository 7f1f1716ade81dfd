"""Which items are wrong inside the candidate's own run? A hint, never a verdict: reading inner tensors changes fusion.

Insight: everything behind a culprit is wrong, so only *first* wrong items tell something: those without a wrong item
above them. In real bugs a first wrong item is the culprit, or the last item of the smallest failing region.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from subgraph.search.findings import Purpose
from subgraph.search.oracle import Answer, Items, QueryKind
from subgraph.search.order import nearest_last
from subgraph.search.passes import gallop
from subgraph.search.state import Search, SearchState
from subgraph.verdict import Status

EVERYWHERE = 0.8  # of the compared items are wrong: 198 of 223 were in a real case of low precision
MOST_LOCAL = 16  # items that are wrong by what they read; more of them mean low precision
MOST_HINTS = 3  # that may mislead before the profile is dropped


class Seen(StrEnum):
    """How the run with inner outputs ended."""

    SHOWN = "shown"
    VANISHED = "vanished"  # the candidate is right when its inner tensors are read
    REFUSED = "refused"  # or it failed in another way: nothing was compared


@dataclass(frozen=True)
class Profile:
    """Attributes:
    hints: places of first wrong items, in cut order; where `local` is known, of all that are wrong by what they read.
    local: the relative error of each hint by what it reads, where that is known.
    everywhere: so many items are wrong that low precision may be the reason.
    wrong: places of all items that are wrong.
    """

    seen: Seen
    hints: tuple[int, ...] = ()
    everywhere: bool = False
    local: Mapping[int, float] | None = None
    wrong: Items = ()


def profile(state: SearchState, scope: Items) -> Search[Profile]:
    """One run of these places with every inner tensor as an output."""
    state.more = 4
    (answer,) = yield from state.ask(Purpose.PROFILE, [state.in_place(QueryKind.PROFILE, scope)])
    return read(state, scope, answer)


def read(state: SearchState, scope: Items, answer: Answer) -> Profile:
    """An answer to PROFILE as hints. An item that could not be compared counts as wrong below a wrong one.

    Complexity: O(items + edges).
    """
    if not answer.items:
        return Profile(Seen.VANISHED if answer.status is Status.AGREE else Seen.REFUSED)
    inside, dark, hints, wrong = set(scope), set[int](), list[int](), list[int]()
    for k in scope:
        status = answer.items.get(state.order[k])
        below = any(p in dark for p in state.parents[k] if p in inside)
        if status is Status.FAIL:
            wrong.append(k)
            dark.add(k)
            if not below:
                hints.append(k)
        elif status is None and below:
            dark.add(k)
    if not hints:
        return Profile(Seen.VANISHED)
    everywhere = len(wrong) >= EVERYWHERE * len(answer.items)
    local = {k: answer.local[state.order[k]] for k in scope if answer.local and state.order[k] in answer.local}
    if not local or len(local) > MOST_LOCAL:
        return Profile(Seen.SHOWN, tuple(hints), everywhere, wrong=tuple(wrong))
    return Profile(Seen.SHOWN, tuple(local), everywhere, local, tuple(wrong))


def follow(state: SearchState, scope: Items, last: int) -> Search[Items | None]:
    """A failing region that ends at a wrong item, as short as galloping through the items above it finds."""
    line = nearest_last(state.parents, set(scope), last)
    start = yield from gallop.back(state, line, len(line), None)
    return None if start is None else tuple(sorted(line[start:]))
