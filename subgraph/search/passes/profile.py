"""The items that are wrong inside the candidate's own run: a hint, never a verdict, because reading
tensors there changes fusion.

Insight: all items downstream of a culprit are wrong, so only the *first* wrong items are a hint:
those without a wrong item upstream. In real bugs a first wrong item is the culprit, or the last
item of the smallest failing region.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

from subgraph.iterables import drop_repeats, pick, ungroup
from subgraph.search.driver import Search
from subgraph.search.oracle import Answer, Items, Purpose, QueryKind, exclude
from subgraph.search.passes.halve import gallop_back
from subgraph.search.state import SearchState
from subgraph.types import frozen
from subgraph.verdict import Status

# Of the compared items are wrong: 198 of 223 were in a real case of low precision.
MIN_WRONG_SHARE = 0.8
MAX_LOCAL = 16  # items that are wrong given what they read; more of them mean low precision
MAX_HINTS = 3  # that may mislead before the profile is dropped


class ProfileOutcome(StrEnum):
    """The end of the run with intermediate tensors as outputs."""

    SHOWN = "shown"
    VANISHED = "vanished"  # the candidate is right when its intermediate tensors are read
    REFUSED = "refused"  # or it failed in another way: nothing was compared


@frozen
class Profile:
    """The items that are wrong in one run with intermediate tensors as outputs.

    Attributes:
        outcome: The end of the run.
        hints: The first wrong items; if `local` is known, all that are wrong given the values that
            they read.
        everywhere: Whether the share of wrong items is so large that low precision may be the
            reason.
        local: The relative error of each hint given the values that it reads; None if unknown.
        wrong: All items that are wrong.
        misleading: Number of hints that led to no culprit; these are omitted from `hints`.
    """

    outcome: ProfileOutcome
    hints: Items = ()
    everywhere: bool = False
    local: Mapping[int, float] | None = None
    wrong: Items = ()
    misleading: int = 0

    def drop_hint(self, hint: int) -> Profile:
        """Return the profile without a hint that led to no culprit."""
        hints = exclude(self.hints, (hint,))
        return replace(self, hints=hints, misleading=self.misleading + 1)


NO_PROFILE = Profile(ProfileOutcome.REFUSED)  # none was taken


def profile(state: SearchState, scope: Items) -> Search[Profile]:
    """Run these items once, with every intermediate tensor as an output."""
    state.expect(4)
    (answer,) = yield from state.ask(
        Purpose.PROFILE, [state.aim.make_in_place_query(QueryKind.PROFILE, scope)]
    )
    return read(state, scope, answer)


def read(state: SearchState, scope: Items, answer: Answer) -> Profile:
    """Read an answer to PROFILE as hints. An item that could not be compared counts as wrong below
    a wrong one.

    Complexity: O(items + edges).
    """
    if not answer.items.statuses:
        return Profile(ProfileOutcome.VANISHED if answer.agrees else ProfileOutcome.REFUSED)
    inside = set(scope)
    tainted = set()
    hints = []
    wrong = []
    for k in scope:
        status = answer.items.statuses.get(k)
        below = any(p in tainted for p in state.parents[k] if p in inside)
        if status is Status.FAIL:
            wrong.append(k)
            tainted.add(k)
            if not below:
                hints.append(k)
        elif status is None and below:
            tainted.add(k)
    if not hints:
        return Profile(ProfileOutcome.VANISHED)
    everywhere = len(wrong) >= MIN_WRONG_SHARE * len(answer.items.statuses)
    errors = answer.items.local_errors or {}
    local = pick(errors, scope)
    if not local or len(local) > MAX_LOCAL:
        return Profile(ProfileOutcome.SHOWN, tuple(hints), everywhere, wrong=tuple(wrong))
    return Profile(ProfileOutcome.SHOWN, tuple(local), everywhere, local, tuple(wrong))


def follow(state: SearchState, scope: Items, last: int) -> Search[Items | None]:
    """Return a failing region that ends at a wrong item, as short as galloping through the items
    above it finds."""
    # The items are sorted by decreasing distance to the last one, then in their order.
    inside = set(scope)
    distance = {last: 0}
    level = [last]
    while level:
        pairs = ungroup((k, state.parents[k]) for k in level)
        level = drop_repeats(
            p
            for k, p in pairs
            if p in inside and distance.setdefault(p, distance[k] + 1) == distance[k] + 1
        )
    line = tuple(sorted(distance, key=lambda k: (-distance[k], k)))
    start = yield from gallop_back(state, line, len(line), None)
    if start is None:
        return None
    return tuple(sorted(line[start:]))
