"""One failing region after the other: find it by the cheapest means, shrink it, confirm it; then examine the rest.

Insights: the means differ in cost and in what they need (a profile that shows something, pools), but each gives a
region that fails, so everything after is the same. And all items but one of a 1-minimal region still contain every
other fault, wherever it lies and whatever it shares with the first: while they fail there is another culprit, and once
they agree there is none.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from subgraph.search.findings import Finding, FindingKind, Purpose
from subgraph.search.oracle import Items, Query, QueryKind
from subgraph.search.passes import accumulated, gallop, halve, pools, profile
from subgraph.search.passes.confirm import confirmed, resolve_contradiction
from subgraph.search.passes.profile import Profile, Seen
from subgraph.search.passes.shrink import shrink
from subgraph.search.predicate import NO_OUTPUT
from subgraph.search.state import Search, SearchState, SearchStopped
from subgraph.verdict import Signature, Status

OTHER_ITEMS = 4  # that must fail alone as well, before the search ends because nothing runs
MOST_EXCUSED = 64  # items that are refused alone but run in context; each is left out of the scope
SAME_KIND = 8.0  # how many times likelier an item is guilty if one of its kind is


@dataclass
class Progress:
    """How far the search for culprits has come.

    Attributes:
        scope: places still in question, ascending. clean: so many of its first ones were searched.
        labels: kind of each place; None if unknown.
        profile: of the scope; None where there is none. led: it led to the last culprit.
        pooled: single items that failed alone after a pool, and are not reported yet. pool_tried: a pool was run.
        complete: the rest agrees. elsewhere: the region asked about agrees alone.
        claimed: the whole agrees at the claimed precision.
        probe_sensitive: reading inner tensors made the fault vanish.
    """

    state: SearchState
    scope: Items
    labels: tuple[Hashable, ...] | None = None
    clean: int = 0
    led: bool = False
    profile: Profile | None = None
    pooled: list[Items] = field(default_factory=list)
    pool_tried: bool = False
    complete: bool = False
    elsewhere: bool = False
    claimed: bool = False
    probe_sensitive: bool = False
    findings: list[Finding] = field(default_factory=list)

    def leave_out(self, places: Iterable[int]) -> None:
        """Remove these places from the scope."""
        removed = set(places)
        self.scope = tuple(k for k in self.scope if k not in removed)
        self.pooled = [p for p in self.pooled if not removed.intersection(p)]

    def take_profile(self) -> Search[None]:
        """Profile the scope, unless the whole gives no output."""
        if self.state.no_output:
            return
        self.profile = yield from profile.profile(self.state, self.scope)
        if self.profile.seen is Seen.VANISHED and not self.findings:
            self.probe_sensitive = True

    @property
    def can_pool(self) -> bool:
        """Can pieces be run together? A piece that leaves no output leaves none of the whole pool."""
        return self.state.oracle.pools and not self.state.no_output


def find_culprits(progress: Progress) -> Search[None]:
    """Fill `progress.findings`. The scope is known to fail.

    Raises:
        SearchRestart: an assumption does not hold. SearchStopped: a budget is used up, or nothing runs at all.
    """
    state, excused = progress.state, 0
    yield from progress.take_profile()
    while True:
        state.suspect = progress.scope
        region = yield from _failing_region(progress)
        if isinstance(region, Finding):
            progress.findings.append(region)
        if progress.claimed or isinstance(region, Finding):
            return
        if (yield from state.region(Purpose.SHRINK, region)) is not Status.FAIL:
            if region == progress.scope:
                yield from resolve_contradiction(state, region)
            return  # the whole fails, but not when its items run on captured values
        smallest, finding = yield from _concluded(progress, region)
        if not progress.findings and (yield from _nothing_runs(state, smallest)):
            why = state.answer_to(smallest).why
            raise SearchStopped(f"nothing runs on the candidate, not even a single node: {why}")
        if finding is None:
            excused += 1
            if excused > MOST_EXCUSED:
                return
            progress.leave_out(smallest)
            continue
        progress.findings.append(finding)
        accumulates = finding.kind is FindingKind.ACCUMULATED
        everything = accumulates and len(smallest) == len(progress.scope)
        if everything or not (yield from _rest_fails(progress, smallest, all_of_it=accumulates)):
            yield from _cross_examine(progress)
            return


def _nothing_runs(state: SearchState, region: Items) -> Search[bool]:
    """Does no item run, because a package is missing say? Asked only where nothing was seen to run."""
    if not state.no_output or state.agreed or len(region) > 1 or state.n <= OTHER_ITEMS:
        return False
    others = [(k,) for k in range(state.n) if (k,) != region]
    sample = [others[len(others) * k // OTHER_ITEMS] for k in range(OTHER_ITEMS)]
    for at in range(0, OTHER_ITEMS, state.workers):
        if {*(yield from state.regions(Purpose.TAIL, sample[at : at + state.workers]))} != {Status.FAIL}:
            return False
    return True


def _concluded(progress: Progress, region: Items) -> Search[tuple[Items, Finding | None]]:
    """A failing region -> the smallest one, and the finding: a culprit or an accumulated error; None if the region is
    refused only without its neighbours."""
    state = progress.state
    smallest = yield from shrink(state, region)
    if smallest.graded:
        finding = yield from accumulated.accumulated(state, progress.scope, graded=True)
        if finding is not None:
            return progress.scope, finding
        share = state.answer_to(smallest.items).share or 0.0
        finding = yield from accumulated.accumulated(state, smallest.items, share, graded=True)
        if finding is not None:
            return smallest.items, finding
        if share < accumulated.CULPRIT_SHARE:
            return smallest.items, accumulated.partial(state, smallest.items, share)
        smallest = yield from shrink(state, region, gradual=False)
    return smallest.items, (yield from confirmed(state, smallest))


# ---------------------------------------------------------------------------------------------------- a failing region


def _failing_region(progress: Progress) -> Search[Items | Finding]:
    """A failing region, short if a profile or a pool tells where it ends; or the finding that explains everything."""
    state, scope = progress.state, progress.scope
    if progress.pooled:
        return progress.pooled.pop(0)
    if progress.profile is not None and progress.profile.hints:
        region = yield from profile.follow(state, scope, progress.profile.hints)
        progress.led = region is not None
        if region is not None:
            return region
        if progress.profile.everywhere and not progress.findings and state.signature is not None:
            finding = yield from _wrong_everywhere(progress)
            if progress.claimed or finding is not None:
                return finding or scope
    if (yield from _pool_finds(progress)):
        return progress.pooled.pop(0)
    clean = min(progress.clean, len(scope) - 1)
    if progress.can_pool and state.cost.slow_start(state.n) and len(scope) > pools.WORTH_WINDOWS:
        window = yield from pools.windows(state, scope)
        scope, clean = (scope, clean) if window is None else (window, 0)
    begin, end = yield from halve.halve(state, scope, clean)
    start = yield from gallop.back(state, scope, end, begin)
    return scope[begin if start is None else start : end]


def _wrong_everywhere(progress: Progress) -> Search[Finding | None]:
    """Is the reason the precision that the candidate claims, or an error that accumulates?"""
    (answer,) = yield from progress.state.ask(Purpose.BASELINE, [Query(QueryKind.CLAIMED)])
    progress.claimed = answer.status is Status.AGREE
    return None if progress.claimed else (yield from accumulated.accumulated(progress.state, progress.scope))


def _pool_finds(progress: Progress) -> Search[bool]:
    """Run all single items in one pool, once: if the profile was refused, a start is slow or there are several
    culprits."""
    state = progress.state
    refused = progress.profile is not None and progress.profile.seen is Seen.REFUSED
    if not progress.can_pool or progress.pool_tried:
        return False
    if state.cost.fit() is None and len(progress.scope) > 1:
        # runs of two sizes tell the cost of a start; halving would ask this region first
        yield from state.region(Purpose.HALVE, progress.scope[: len(progress.scope) // 2])
    if not (refused or progress.findings or state.cost.slow_start(state.n)):
        return False
    progress.pool_tried = True
    progress.pooled = yield from pools.singles(state, progress.scope)
    return bool(progress.pooled)


# ---------------------------------------------------------------------------------------------------- the rest


def _rest_fails(progress: Progress, region: Items, *, all_of_it: bool) -> Search[bool]:
    """Is there another culprit? Takes one item of the region out of the scope, or all of them."""
    state, status = progress.state, Status.UNRESOLVED
    scope = progress.scope
    for removal in _removals(state, region)[all_of_it:]:
        progress.scope = scope
        progress.leave_out(removal)
        if progress.pooled:
            return True
        state.suspect = progress.scope
        status = (yield from _ask_rest(state, progress.scope)) if progress.scope else Status.AGREE
        if status is not Status.UNRESOLVED:
            progress.complete = status is Status.AGREE and set(removal) <= set(region)
            break
    if status is not Status.FAIL and not progress.complete:
        state.notes.append(("whether all else agrees could not be asked without ", state.items(region)))
    state.left, state.more = 0, 0
    if status is not Status.FAIL:
        return False
    progress.clean = sum(1 for k in progress.scope if k < region[-1])
    state.left, state.more = len(progress.scope), len(progress.scope).bit_length() + 2
    _suspect_same_kind(progress, region)
    if progress.led:
        yield from progress.take_profile()
    return True


def _ask_rest(state: SearchState, scope: Items) -> Search[Status]:
    """Does the rest fail? If it fails with another signature and explains the whole, the search goes on with that
    signature: one at a time."""
    status = yield from state.region(Purpose.TAIL, scope)
    answer = state.answer_to(scope)
    other = answer.status is Status.FAIL and answer.signature not in NO_OUTPUT and answer.culprit is True
    if status is Status.UNRESOLVED and other:
        state.signature = answer.signature
        state.agreed.clear()
        return Status.FAIL
    return status


def _removals(state: SearchState, region: Items) -> list[Items]:
    """Sets to remove, so that the rest can be run: one item; all items; all with their readers, which then are not
    examined."""
    inside = set(region)
    readers = {k for k, row in enumerate(state.parents) if not inside.isdisjoint(row)}
    return list(dict.fromkeys([region[:1], region, region[-1:], tuple(sorted(inside | readers))]))


def _suspect_same_kind(progress: Progress, region: Items) -> None:
    if progress.labels is None or len(region) > 1:
        return
    label = progress.labels[region[0]]
    for k in progress.scope:
        if progress.labels[k] == label:
            progress.state.weights[k] *= SAME_KIND


def _cross_examine(progress: Progress) -> Search[None]:
    """Of several refused regions keep those with which the rest is refused, when only that region is put back."""
    state = progress.state
    if state.signature is not Signature.REFUSED or not progress.complete or len(progress.findings) < 2:
        return
    place = {item: k for k, item in enumerate(state.order)}
    kept = []
    for finding in progress.findings:
        region = tuple(sorted({*progress.scope, *(place[item] for item in finding.items)}))
        if (yield from state.region(Purpose.CONFIRM, region)) is not Status.AGREE:
            kept.append(finding)
    progress.findings = kept
