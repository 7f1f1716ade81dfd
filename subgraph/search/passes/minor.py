"""A piece fails, and explains little: is it a culprit nevertheless?

Insight: errors of several culprits may cancel each other, so that none explains the whole; then
what disappears of the error without a piece is what the piece gives alone.
"""

from __future__ import annotations

from subgraph.search.driver import Search
from subgraph.search.findings import Purpose
from subgraph.search.oracle import Items
from subgraph.search.passes.shrink import Smallest, shrink
from subgraph.search.state import SearchState
from subgraph.verdict import Signature

CANCELS = (
    "accounts for little of the whole error because errors of other pieces cancel it or exceed it"
)
ALIKE_INSIDE = (
    "accounts for little of the whole error, and is as wrong inside the model as it is alone"
)
ALIKE = 3.0  # ratio of an item's errors inside the model and alone


def smallest_failing(state: SearchState, region: Items) -> Search[Smallest]:
    """A region that fails and explains little -> the smallest one inside that fails at all."""
    with state.counting_any_failure():
        return (yield from shrink(state, region, gradual=False))


def is_culprit(state: SearchState, base: Items, piece: Items) -> Search[bool]:
    """Is a piece that explains little a culprit nevertheless, of the items `base` that are the
    candidate's? Yes if what disappears of the error without it is what it gives alone: errors of
    several culprits may cancel each other."""
    if state.aim.no_output or state.aim.signature is Signature.PRECISION:
        return False
    answer = yield from state.tail(Purpose.TAIL, tuple(k for k in base if k not in piece))
    if answer.share.is_culprit:
        state.prove(piece, CANCELS)
    return answer.share.is_culprit is True


def alike_inside(state: SearchState, item: int, local: float | None) -> bool:
    """Is an item about as wrong alone as it is inside the model? Then it is a culprit, whatever it
    explains."""
    alone = state.answer_to((item,)).share.largest_error
    return bool(alone and local and 1 / ALIKE <= local / alone <= ALIKE)
