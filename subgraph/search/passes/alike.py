"""Regions of the kind of a culprit: the same kinds of items, read in the same way.

Insight: a fault of an operator, or of a fusion, shows wherever the model has it. Two certified
culprits of a kind make the others likely ones. Whether these fail as well takes one run for all of
them, side by side in one model; if a failure ends the process, one run for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from subgraph.search.driver import Search
from subgraph.search.findings import Finding, FindingKind, Purpose
from subgraph.search.oracle import Items
from subgraph.search.state import SearchState
from subgraph.verdict import NO_OUTPUT, Signature

MIN_REFUSED = 2  # further regions of a kind that is refused, of which one is asked for all


def cause_of(state: SearchState, finding: Finding) -> Hashable:
    """Return the properties that findings with one cause share: how they fail, and the kinds of
    their items."""
    if state.labels is None or finding.kind is not FindingKind.CULPRIT or finding.everywhere:
        return finding
    kinds = Counter(state.labels[k] for k in finding.items)
    return finding.signature, finding.certified, frozenset(kinds.items())


def regions_alike(state: SearchState, scope: Items, region: Items) -> list[Items]:
    """Disjoint regions of a scope with the kinds of items of this one, each of which feeds the last
    one in the same way. O(scope · region)."""
    labels = state.labels
    if labels is None:
        return []
    found: list[Items] = []
    left = set(scope) - set(region)
    reader = {p: k for k in reversed(region) for p in state.parents[k]}
    for last in scope:
        match = {region[-1]: last}
        for item in region[-2::-1]:
            near = state.parents[match[reader[item]]] if item in reader else ()
            fits = (p for p in near if labels[p] == labels[item] and p not in match.values())
            match[item] = next(fits, -1)
            if match[item] < 0:
                break
        items = tuple(sorted(match.values()))
        if labels[last] == labels[region[-1]] and left.issuperset(items):
            found.append(items)
            left.difference_update(items)
    return found


def repeats(
    state: SearchState,
    scope: Items,
    finding: Finding,
    others: Sequence[Finding],
    local: Mapping[int, float] | None,
) -> Search[tuple[Items, ...]]:
    """The regions of a scope that fail as this culprit does, and have its kind, once one of the
    `others` has it, too.

    Of a kind that is refused only one further region is asked about. `local`: as in `Profile`; what
    is right inside the model, though perhaps not alone, is no culprit.
    """
    regions = regions_alike(state, scope, finding.items)
    signature = finding.signature
    if signature is Signature.REFUSED and len(regions) >= MIN_REFUSED:
        yield from state.probe(Purpose.CONFIRM, regions[-1])
        if state.answer_to(regions[-1]).signature is signature:
            return tuple(regions)
    cause = cause_of(state, finding)
    if state.aim.flaky or not any(cause_of(state, other) == cause for other in others):
        return ()
    if local and finding.items[-1] in local:
        regions = [region for region in regions if region[-1] in local]
    # a piece of two items that holds a culprit of one is not alike
    is_fusion = len(finding.items) > 1 and signature not in NO_OUTPUT
    for part in (slice(None), slice(1, None), slice(-1)) if is_fusion else (slice(None),):
        fail = yield from _fail(state, [region[part] for region in regions], signature)
        pairs = zip(regions, fail, strict=True)
        regions = [region for region, fails in pairs if fails is (part == slice(None))]
    return tuple(regions)


def _fail(
    state: SearchState, regions: Sequence[Items], signature: Signature | None
) -> Search[list[bool]]:
    """Whether each region fails in this way, whatever it explains."""
    pool = len(state.driver.memo)  # one that no earlier pool has
    if signature in NO_OUTPUT or not state.driver.settings.pools:
        pool = 0
    ask = state.ask if pool else state.one_by_one
    queries = [replace(state.aim.isolated(r, state.aim.first), pool=pool) for r in regions]
    with state.counting_any_failure():
        answers = yield from ask(Purpose.ALIKE, queries)
    return [answer.signature is signature for answer in answers]


def merge_alike(state: SearchState, findings: Sequence[Finding]) -> list[Finding]:
    """One finding for each cause: the first, with the regions of the others as its repeats."""
    found: dict[Hashable, Finding] = {}
    for finding in findings:
        cause = cause_of(state, finding)
        first = found.get(cause)
        again = (*first.repeats, *finding.regions) if first else finding.repeats
        found[cause] = replace(first or finding, repeats=again)
    return list(found.values())
