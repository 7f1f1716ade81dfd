"""One culprit after the other: find a failing region by the cheapest means, shrink it, confirm it; then peel it off.

Insights: the means differ in cost and in what they need (a profile that shows something, pools), but each gives a
region that fails, so everything after is the same. The error that is looked for is not the whole's for ever: once a
culprit is known, it is the error of what is left without it (the *tail*), until that agrees. So a refusal does not hide
wrong numbers, nor a large error a small one, and errors that cancel are both found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from subgraph.search.findings import Finding, FindingKind, Purpose
from subgraph.search.oracle import Items, Query, QueryKind
from subgraph.search.passes import accumulated, gallop, halve, minor, pools, profile
from subgraph.search.passes.confirm import confirmed, resolve_contradiction
from subgraph.search.passes.profile import MOST_HINTS, Profile, Seen
from subgraph.search.passes.shrink import shrink
from subgraph.search.predicate import NO_OUTPUT, Meaning
from subgraph.search.state import Search, SearchState, SearchStopped
from subgraph.verdict import Signature, Status

MOST_SMALL = 8  # culprits of small shares, before the error counts as made in many places
MOST_JUDGED = 3  # pieces that fail and explain little, each of which takes a run of all else
OTHER_ITEMS = 4  # that must fail alone as well, before the search ends because nothing runs
MOST_EXCUSED = 64  # items that are refused alone but run in context; each is left out of the scope
MOST_SHARED = 3  # items of a culprit, each of which may belong to another one too
LEAST_ALIKE = 2  # further items of a kind, of which one is asked for all
SAME_KIND = 8.0  # how many times likelier an item is guilty if one of its kind is
RUNS_NOTHING_WITHOUT = "not known whether the others agree: the candidate runs nothing without "
NOTHING_LEFT: Items = ()
NOT_ASKED = "not known whether these agree, which the candidate runs only behind a culprit: "


# A failing region; the finding that explains everything; `NOTHING_LEFT` that fails; None: other means may find one.
Found: TypeAlias = Items | Finding | None


@dataclass
class Progress:
    """How far the search for culprits has come.

    Attributes:
        scope: places still in question, ascending. base: places that are the candidate's in the target. clean: so many
            of the scope's first ones were searched. peeled: the last culprit, if no tail was asked since.
        profile: of the scope; None where there is none. led: it led to the last culprit. misled: its hints that led to
            none.
        pooled: single items that failed alone after a pool, and are not reported yet. pool_tried: a pool was run.
        skipped: places that no tail held, because the candidate does not run them without a culprit that they read.
        complete: the rest agrees. fails: the rest was seen to fail. elsewhere: the region asked about agrees alone.
        claimed: the whole agrees at the claimed precision.
        probe_sensitive: reading inner tensors made the fault vanish.
    """

    state: SearchState
    scope: Items
    base: Items = ()
    clean: int = 0
    led: bool = False
    peeled: Items = ()
    profile: Profile | None = None
    misled: set[int] = field(default_factory=set)
    pooled: list[Items] = field(default_factory=list)
    pool_tried: bool = False
    skipped: Items = ()
    complete: bool = False
    fails: bool = False
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
        self.misled.clear()
        if self.profile.seen is Seen.VANISHED and not self.findings:
            self.probe_sensitive = True

    @property
    def hints(self) -> list[int]:
        """Wrong items of the profile that may still lead to a culprit."""
        if self.profile is None:
            return []
        inside = set(self.scope) - self.misled
        hints = [k for k in self.profile.hints if k in inside]
        return hints if self.profile.local else hints[: MOST_HINTS - len(self.misled)]

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
            return
        if not region:
            return
        if (yield from state.region(Purpose.SHRINK, region)) is not Meaning.FAIL:
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
        alike = yield from _refused_alike(progress, smallest)
        _suspect_same_kind(progress, smallest)
        progress.findings.append(replace(finding, alike=alike))
        left_over = finding.kind is FindingKind.ACCUMULATED and len(smallest) == len(progress.scope)
        if left_over or not (yield from _peel(progress, smallest, alike)):
            return


def _nothing_runs(state: SearchState, region: Items) -> Search[bool]:
    """Does no item run, because a package is missing say? Asked only where nothing was seen to run."""
    if not state.no_output or state.agreed or len(region) > 1 or state.n <= OTHER_ITEMS:
        return False
    others = [(k,) for k in range(state.n) if (k,) != region]
    for k in range(OTHER_ITEMS):
        if (yield from state.region(Purpose.TAIL, others[len(others) * k // OTHER_ITEMS])) is not Meaning.FAIL:
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
        if smallest.even:
            return smallest.items, accumulated.partial(state, smallest.items, share)
    for rest in smallest.neighbours(Meaning.MINOR)[:MOST_JUDGED]:
        piece = yield from minor.smallest_failing(state, rest)
        others = tuple(k for k in smallest.items if k not in piece.items)
        if (yield from minor.is_culprit(state, progress.base, piece.items, others)):
            smallest = piece
            break
    finding = yield from confirmed(state, smallest)
    return (finding or smallest).items, finding


# ---------------------------------------------------------------------------------------------------- a failing region


def _failing_region(progress: Progress) -> Search[Found]:
    """What the cheapest of the means finds that finds something; first what a pool found that was not reported yet."""
    if progress.pooled:
        return progress.pooled.pop(0)
    for means in (_from_profile, _everywhere, _from_pool):
        found = yield from means(progress)
        if found is not None:
            return found
    return (yield from _by_halving(progress))


def _from_profile(progress: Progress) -> Search[Found]:
    """A region to which the profile leads; once it leads to none, the one of what is left without the last culprit."""
    region = yield from _follow_profile(progress)
    while region is None and progress.peeled:
        if not (yield from _tail_fails(progress)):
            return NOTHING_LEFT
        region = yield from _follow_profile(progress)
    progress.led = region is not None
    return region


def _everywhere(progress: Progress) -> Search[Found]:
    """Is so much wrong that the reason is the precision that the candidate claims, or an error that accumulates?"""
    state, seen = progress.state, progress.profile
    everywhere = seen is not None and seen.everywhere and state.signature is not None and not progress.findings
    if state.signature is not Signature.PRECISION and not everywhere:
        return None
    (answer,) = yield from state.ask(Purpose.BASELINE, [Query(QueryKind.CLAIMED)])
    progress.claimed = answer.status is Status.AGREE
    return NOTHING_LEFT if progress.claimed else (yield from accumulated.accumulated(state, progress.scope))


def _from_pool(progress: Progress) -> Search[Found]:
    """Run all single items in one pool, once: if the profile was refused, a start is slow or there are several
    culprits."""
    state = progress.state
    refused = progress.profile is not None and progress.profile.seen is Seen.REFUSED
    if not progress.can_pool or progress.pool_tried:
        return None
    if state.cost.fit() is None and len(progress.scope) > 1:
        # runs of two sizes tell the cost of a start; halving would ask this region first
        yield from state.region(Purpose.HALVE, progress.scope[: len(progress.scope) // 2])
    if not (refused or progress.findings or state.cost.slow_start(state.n)):
        return None
    progress.pool_tried = True
    progress.pooled = yield from pools.failing(state, [(k,) for k in progress.scope])
    return progress.pooled.pop(0) if progress.pooled else None


def _by_halving(progress: Progress) -> Search[Items]:
    """The shortest end of the scope that halving finds, and its beginning."""
    state, scope, clean = progress.state, progress.scope, min(progress.clean, len(progress.scope) - 1)
    if progress.can_pool and state.cost.slow_start(state.n) and len(scope) > pools.WORTH_WINDOWS:
        window = yield from pools.windows(state, scope)
        scope, clean = (scope, clean) if window is None else (window, 0)
    begin, end = yield from halve.halve(state, scope, clean)
    start = yield from gallop.back(state, scope, end, begin)
    return scope[begin if start is None else start : end]


def _follow_profile(progress: Progress) -> Search[Items | None]:
    """A failing region that ends at an item that is wrong in place; or such an item that fails alone and accounts for
    what it gives there."""
    state, failing = progress.state, []
    while progress.hints:
        last = progress.hints[0]
        status = yield from state.region(Purpose.GALLOP, (last,))
        local = (progress.profile is not None and progress.profile.local) or {}
        if status is Meaning.MINOR:
            failing.append((last,))
            if minor.alike_inside(state, last, local.get(last)) or (
                local and (yield from minor.accounts(state, progress.base, (last,)))
            ):
                state.proven.setdefault((last,), minor.ALIKE_INSIDE)
                return (last,)
        region = yield from profile.follow(state, progress.scope, last)
        if region is not None:
            return region
        progress.misled.add(last)
    for piece in failing:
        if (yield from minor.is_culprit(state, progress.base, piece)):
            return piece
    return None


# ---------------------------------------------------------------------------------------------------- the rest


def _peel(progress: Progress, region: Items, alike: Items) -> Search[bool]:
    """Take a culprit, and what is refused like it, out of the scope. Is there another one?"""
    progress.leave_out((*region, *alike))
    progress.peeled = region
    progress.clean = sum(1 for k in progress.scope if k < region[-1])
    if progress.pooled or (progress.profile and progress.profile.local and progress.hints):
        return True  # one tail after the last of them
    return (yield from _tail_fails(progress))


def _tail_fails(progress: Progress) -> Search[bool]:
    """Does what is left without the culprits fail? Then it is the target from now on."""
    state, region, scope = progress.state, progress.peeled, progress.scope
    progress.peeled = ()
    for rest in _rests(state, scope, region):
        answer = yield from state.tail(Purpose.TAIL, rest)
        if answer.status is Status.AGREE:
            progress.complete = set(rest) >= {*scope, *progress.skipped}
            if progress.complete and (yield from _overlap_fails(progress, region)):
                return True
            break
        cut_off = answer.signature in NO_OUTPUT and not state.no_output  # it is refused because of what was cut out
        if not cut_off and answer.signature is not None:
            if _scattered(progress):
                progress.fails = True
                return False
            yield from _go_on_with(progress, rest, answer.signature)
            return True
    if not progress.complete:
        skipped = progress.skipped
        state.notes.append((NOT_ASKED if skipped else RUNS_NOTHING_WITHOUT, skipped or region))
    state.left, state.more = 0, 0
    progress.fails = False
    return False


def _scattered(progress: Progress) -> bool:
    """Were many culprits found, none of which accounts for much, and what is left fails still?"""
    shares = [f.explains for f in progress.findings if f.explains is not None]
    small = all(abs(share) < accumulated.CULPRIT_SHARE for share in shares)
    return small and len(shares) == len(progress.findings) >= MOST_SMALL


def _overlap_fails(progress: Progress, region: Items) -> Search[bool]:
    """Does what is left fail with all items of a small culprit but one? Another culprit may share items with it."""
    state = progress.state
    if not 1 < len(region) <= MOST_SHARED or state.settings.steady:
        return False
    for item in region:
        rest = tuple(sorted({*progress.scope, *region} - {item}))
        answer = yield from state.tail(Purpose.CONFIRM, rest)
        if answer.status is Status.FAIL and answer.signature is not None and answer.signature not in NO_OUTPUT:
            progress.complete = False
            yield from _go_on_with(progress, rest, answer.signature)
            return True
    return False


def _go_on_with(progress: Progress, rest: Items, signature: Signature) -> Search[None]:
    """What is left is the scope and the target from now on."""
    state = progress.state
    progress.skipped = tuple(sorted({*progress.skipped, *progress.scope} - set(rest)))
    progress.scope = progress.base = state.suspect = rest
    progress.fails = True
    if state.signature is not None:
        state.target, state.signature = rest, signature
    state.left, state.more = len(rest), len(rest).bit_length() + 2
    if progress.led or progress.profile is None:
        yield from progress.take_profile()


def _rests(state: SearchState, scope: Items, region: Items) -> list[Items]:
    """What is left without a culprit, so that it can be run: without all of it; without one of its items; without its
    readers too, which then are not examined."""
    inside = set(region)
    readers = {k for k, row in enumerate(state.parents) if not inside.isdisjoint(row)}
    added = [(), region[1:], region[:-1]] if len(region) > 1 else [()]
    rests = [tuple(sorted({*scope, *some})) for some in added]
    return list(dict.fromkeys([*rests, tuple(k for k in scope if k not in readers)]))


def _of_kind(progress: Progress, region: Items) -> list[int]:
    """Other places of the scope of the same kind as a single one."""
    labels = progress.state.labels
    if labels is None or len(region) > 1:
        return []
    return [k for k in progress.scope if labels[k] == labels[region[0]] and k != region[0]]


def _suspect_same_kind(progress: Progress, region: Items) -> None:
    for k in _of_kind(progress, region):
        progress.state.weights[k] *= SAME_KIND


def _refused_alike(progress: Progress, region: Items) -> Search[Items]:
    """The other items of the kind of one that is refused, if there are several and one more is refused: they are not
    asked one by one."""
    state, alike = progress.state, _of_kind(progress, region)
    if state.signature is not Signature.REFUSED or len(alike) < LEAST_ALIKE:
        return ()
    refused = yield from state.region(Purpose.CONFIRM, (alike[-1],))
    return tuple(alike) if refused is Meaning.FAIL else ()
