"""Regions of the kind of a culprit: the same kinds of items, read in the same way; or items of all
kinds.

Insight: a fault of an operator, or of a fusion, shows wherever the model has it. Two certified
culprits of a kind make the others likely ones. Whether these fail as well takes one run for all of
them, side by side in one model; if a failure ends the process, or if reading their outputs hides
it, one run for each, a few first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from subgraph.iterables import flatten, invert
from subgraph.search.driver import Search
from subgraph.search.oracle import Finding, Items, Purpose
from subgraph.search.state import SearchState
from subgraph.verdict import NO_OUTPUT, NUMBERS, Signature

T = TypeVar("T")
FIRST_REGIONS = 4  # regions of a kind that are run one by one; if all agree, the others are not run


def find_cause(state: SearchState, finding: Finding) -> Hashable:
    """Return the properties that findings with one cause share: how they fail, and the kinds of
    their items."""
    if state.labels is None or not finding.is_culprit or finding.everywhere:
        return finding
    kinds = Counter(state.labels[k] for k in finding.items)
    return finding.signature, finding.certified, frozenset(kinds.items())


def find_regions_alike(state: SearchState, scope: Items, region: Items) -> list[Items]:
    """Return disjoint regions of a scope that have the kinds of items of this one.

    Each item feeds the last one in the same way. O(scope · region).
    """
    labels = state.labels
    if labels is None:
        return []
    found = []
    left = set(scope) - set(region)
    reader = invert((k, state.parents[k]) for k in reversed(region))
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
    """Return the regions of a scope that fail as this culprit does, and have its kind.

    Another finding must have that kind, too. Only one further node of an operator that is refused
    is run.

    Args:
        state: The state of the search.
        scope: The items.
        finding: The culprit.
        others: The other findings.
        local: `Profile.local`; a region that is right inside the model, though perhaps not alone,
            is not a culprit.
    """
    regions = find_regions_alike(state, scope, finding.items)
    signature = finding.signature
    is_operator = signature is Signature.REFUSED and len(finding.items) == 1
    if is_operator and len(regions) > 1:
        yield from state.probe(Purpose.CONFIRM, regions[-1])
        if state.answer_to(regions[-1]).signature is signature:
            return tuple(regions)
    cause = find_cause(state, finding)
    if state.aim.flaky or not any(find_cause(state, other) == cause for other in others):
        return ()
    if local and finding.items[-1] in local:
        regions = [region for region in regions if region[-1] in local]
    if not _are_pooled(state, signature):
        few = yield from _fail(state, _select_evenly(regions, FIRST_REGIONS), signature)
        if not any(few):
            return ()  # halving finds the few that are left in fewer runs
    # A piece of two items that holds a culprit of one is not alike.
    is_fusion = len(finding.items) > 1 and signature not in NO_OUTPUT
    for part in (slice(None), slice(1, None), slice(-1)) if is_fusion else (slice(None),):
        fail = yield from _fail(state, [region[part] for region in regions], signature)
        pairs = zip(regions, fail, strict=True)
        regions = [region for region, fails in pairs if fails is (part == slice(None))]
    return tuple(regions)


def _fail(
    state: SearchState, regions: Sequence[Items], signature: Signature | None
) -> Search[list[bool]]:
    """Return whether each region fails in this way, whatever it explains."""
    is_pooled = _are_pooled(state, signature)
    pool = len(state.driver.memo) if is_pooled else 0  # one that no earlier pool has
    ask = state.ask if is_pooled else state.ask_singly
    queries = [
        replace(state.aim.make_isolated_query(r, state.aim.first), pool=pool) for r in regions
    ]
    with state.count_any_failure():
        answers = yield from ask(Purpose.ALIKE, queries)
    return [answer.signature is signature for answer in answers]


def _are_pooled(state: SearchState, signature: Signature | None) -> bool:
    """Return whether regions that fail in this way are run together, in one run."""
    return state.driver.settings.pools and signature not in NO_OUTPUT


def merge_alike(state: SearchState, findings: Sequence[Finding]) -> list[Finding]:
    """Return one finding per cause: the first, with the regions of the others as its repeats."""
    found: dict[Hashable, Finding] = {}
    for finding in findings:
        cause = find_cause(state, finding)
        first = found.get(cause)
        again = (*first.repeats, *finding.regions) if first else finding.repeats
        found[cause] = replace(first or finding, repeats=again)
    return list(found.values())


# ------------------------------------------------------------ everywhere
# A deviation of nearly every item alone, whatever it computes. Then none is to blame more than
# others, and to peel off one after the other would name them all: the candidate computes in
# another precision, or scales its outputs.
#
# Insight: a culprit leaves items of other kinds right. So this is tested only if several disjoint
# regions failed and none has agreed; a few items of different kinds, all over the scope, then
# decide.

MIN_FAILED = 3  # disjoint regions that failed alone, before this is tested
MAX_COMPARED_ITEMS = 8  # items
MIN_KINDS = 3  # kinds of the deviating items
MAX_RIGHT = 1  # of those looked at: some operators copy what they read


def find_everywhere(state: SearchState, scope: Items, culprits: Sequence[Items]) -> Search[Items]:
    """Return single items that deviate alone, the last culprit's first; () unless nearly all do.

    Complexity: at most `MAX_COMPARED_ITEMS` runs; `MAX_RIGHT` + 1 runs of agreeing items end it.
    """
    failed = 0  # disjoint regions
    seen: set[int] = set()
    for region in sorted([*culprits, *state.seen.irrelevant], key=len):
        if seen.isdisjoint(region):
            failed += 1
            seen.update(region)
    if state.seen.agreed or state.aim.flaky or failed < MIN_FAILED or len(culprits[-1]) > 1:
        return ()
    off = yield from find_off_alone(
        state, scope, list(flatten(region for region in culprits if len(region) == 1))
    )
    return tuple(reversed(off))


def find_off_alone(state: SearchState, scope: Items, known: Sequence[int] = ()) -> Search[Items]:
    """Return the items that deviate alone, among a few of all kinds; () unless nearly all do.

    Items that are `known` to deviate come first. It takes the runs of `find_everywhere`.
    """
    off = list(known)
    right = 0
    state.expect(MAX_COMPARED_ITEMS)
    for k in _spread(state.labels, [k for k in scope if k not in off]):
        yield from state.probe(Purpose.EVERYWHERE, (k,))
        answer = state.answer_to((k,))
        right += answer.agrees
        if right > MAX_RIGHT:
            return ()
        if answer.fails and answer.signature in NUMBERS:
            off.append(k)
    kinds = len(off) if state.labels is None else len({state.labels[k] for k in off})
    return tuple(off) if len(off) > MAX_COMPARED_ITEMS // 2 and kinds >= MIN_KINDS else ()


def _spread(labels: Sequence[Hashable] | None, items: Sequence[int]) -> list[int]:
    """Return a few of the items: one of each kind, then others, evenly over their order."""
    kinds = {labels[k] if labels else k: k for k in items}
    some = list(kinds.values())
    rest = [k for k in items if k not in set(some)]
    return [
        *_select_evenly(some, MAX_COMPARED_ITEMS),
        *_select_evenly(rest, MAX_COMPARED_ITEMS - len(some)),
    ]


def _select_evenly(items: Sequence[T], most: int) -> Sequence[T]:
    step = max(len(items) / most, 1) if most > 0 else 0
    return [items[int(i * step)] for i in range(min(most, len(items)))] if step else ()
