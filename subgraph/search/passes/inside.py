"""The outputs agree; does the inside? Every inner tensor in place, then each item that is wrong there, alone.

Insight: what lies between a fault and the outputs may hide it from the inputs at hand: a ReLU, a maximum, a sum of much
larger terms. Reading inner tensors disturbs the candidate, so only what fails alone as well counts.
"""

from __future__ import annotations

from subgraph.search.culprits import Progress
from subgraph.search.findings import Purpose
from subgraph.search.oracle import Items, Query, QueryKind
from subgraph.search.passes.confirm import confirmed
from subgraph.search.passes.profile import MOST_HINTS, follow, read
from subgraph.search.passes.shrink import shrink
from subgraph.search.predicate import Meaning
from subgraph.search.state import Search


def look_inside(progress: Progress) -> Search[None]:
    """Fill `progress.findings`; `progress.complete`: inner tensors could be read, and what is wrong there was asked.

    Raises:
        SearchStopped: a budget is used up. SearchRestart: answers differ from run to run.
    """
    state, scope = progress.state, progress.scope
    (answer,) = yield from state.ask(Purpose.PROFILE, [Query(QueryKind.PROFILE, scope, state.first, True)])
    if not answer.items:
        why = answer.why or answer.signature or "none came back"
        state.notes.append((f"inner tensors could not be read: {why}", ()))
        return
    seen = read(state, scope, answer)
    wrong: list[Items] = [(k,) for k in seen.wrong]
    statuses: list[Meaning] = []
    for at, region in enumerate(wrong):
        state.left, state.more = len(wrong) - at, len(wrong) - at
        statuses.append((yield from state.region(Purpose.TAIL, region)))
    failing = [region for region, status in zip(wrong, statuses, strict=True) if status is Meaning.FAIL]
    if wrong and not failing:  # several items may be wrong together only
        for last in seen.hints[:MOST_HINTS]:
            above = yield from follow(state, scope, last)
            failing += [above] if above else []
    for region in failing:
        smallest = yield from shrink(state, region)
        finding = yield from confirmed(state, smallest)
        progress.findings += [finding] if finding else []
    progress.complete = Meaning.UNRESOLVED not in statuses
    if wrong and not failing:
        state.notes.append(("wrong in place, but not alone: ", seen.wrong))
