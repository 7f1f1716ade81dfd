"""Search of intermediate tensors if the outputs agree: each in place, then each deviating item
alone.

Insight: what lies between a fault and the outputs may hide it from the inputs at hand: a ReLU, a
maximum, a sum of much larger terms. Reading intermediate tensors disturbs the candidate, so only
what fails alone as well counts.
"""

from __future__ import annotations

from dataclasses import replace

from subgraph.search.culprits import Progress, Rest
from subgraph.search.driver import Search
from subgraph.search.findings import Finding, FindingKind, Purpose
from subgraph.search.oracle import Items, Query, QueryKind, RegionOutcome
from subgraph.search.passes.alike import cause_of
from subgraph.search.passes.confirm import confirm_region
from subgraph.search.passes.everywhere import off_alone
from subgraph.search.passes.profile import MAX_HINTS, follow, read
from subgraph.search.passes.shrink import shrink

MAX_CONFIRMED = 2  # culprits of a kind, before further ones that fail alike are not confirmed


def look_inside(progress: Progress) -> Search[None]:
    """Fill `progress.findings`; `progress.rest`: AGREES if intermediate tensors could be read, and
    all that is wrong there was run alone.

    Raises:
        SearchStopped: a budget is used up. SearchRestart: answers differ from run to run.
    """
    state = progress.state
    scope = progress.scope
    (answer,) = yield from state.ask(
        Purpose.PROFILE, [Query(QueryKind.PROFILE, scope, state.aim.first, True)]
    )
    if not answer.items.statuses:
        why = answer.why or answer.signature or "none came back"
        state.notes.append((f"intermediate tensors could not be read: {why}", ()))
        return
    seen = read(state, scope, answer)
    wrong: list[Items] = [(k,) for k in seen.wrong]
    off = (yield from off_alone(state, scope)) if wrong else ()
    if off:
        finding = yield from confirm_region(state, (yield from shrink(state, off[:1])))
        progress.findings.append(replace(finding, alike=off[1:]))
        progress.rest = Rest.FAILS
        return
    statuses: list[RegionOutcome] = []
    for at, region in enumerate(wrong):
        state.expect(len(wrong) - at)
        statuses.append((yield from state.probe(Purpose.TAIL, region)))
    failing = [
        region
        for region, status in zip(wrong, statuses, strict=True)
        if status is RegionOutcome.FAIL
    ]
    if wrong and not failing:  # several items may be wrong together only
        for last in seen.hints[:MAX_HINTS]:
            above = yield from follow(state, scope, last)
            failing += [above] if above else []
    for region in failing:
        signature = state.answer_to(region).signature
        finding = Finding(FindingKind.CULPRIT, region, signature, certified=True)
        causes = [cause_of(state, known) for known in progress.findings]
        if causes.count(cause_of(state, finding)) < MAX_CONFIRMED:
            finding = yield from confirm_region(state, (yield from shrink(state, region)))
        progress.findings.append(finding)
    progress.rest = Rest.UNKNOWN if RegionOutcome.UNRESOLVED in statuses else Rest.AGREES
    if wrong and not failing:
        state.notes.append(("wrong in place, but not alone: ", seen.wrong))
