"""One culprit after the other: find a failing region by the cheapest means, shrink it, confirm it;
then peel it off.

Insights: the means differ in cost and in their requirements (a profile that shows something), but
each returns a region that fails, so all later steps are the same. The target is the error of the
full model only at first. Once a culprit is known, the target is the error of the remaining items
without it (the *tail*), until they agree. So a refusal does not hide wrong numbers, a large error
does not hide a small one, and errors that cancel each other are both found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from subgraph.iterables import drop_repeats, flatten
from subgraph.search.driver import Search
from subgraph.search.oracle import (
    Finding,
    FindingKind,
    Items,
    Outcome,
    Purpose,
    Query,
    QueryKind,
    RegionOutcome,
    exclude,
)
from subgraph.search.passes import accumulated, alike, halve, profile
from subgraph.search.passes.alike import find_everywhere
from subgraph.search.passes.confirm import confirm_region, resolve_contradiction
from subgraph.search.passes.halve import gallop_back
from subgraph.search.passes.profile import MAX_HINTS, NO_PROFILE, Profile, ProfileOutcome
from subgraph.search.passes.shrink import (
    ALIKE_INSIDE,
    is_alike_inside,
    is_culprit,
    shrink,
)
from subgraph.search.state import SearchState
from subgraph.verdict import NO_OUTPUT, NUMBERS, Signature, Status

MAX_SMALL_CULPRITS = 8  # culprits of small shares, before the error counts as made in many places
MAX_MINOR_PIECES = 3  # pieces that fail and explain little, each of which takes a run of all else
MAX_SHARED_ITEMS = 3  # items of a culprit, each of which may belong to another one too
MAX_REGIONS_ALIKE = 2  # regions of the kind of a culprit, before others are looked for
SAME_KIND_FACTOR = 8.0  # how many times likelier an item is guilty if one of its kind is
RUNS_NOTHING_WITHOUT = "not known whether the others agree: the candidate runs nothing without "
NOTHING_LEFT: Items = ()
BY_ROUNDING = "without what was found, only rounding is left: "
RUN_ONLY_AFTER_CULPRIT = (
    "not known whether these agree, which the candidate runs only after a culprit: "
)


# A failing region; the finding that explains everything; `NOTHING_LEFT` if nothing else fails; None
# if other means may find one.
MeansResult: TypeAlias = Items | Finding | None


class Rest(Enum):
    """The outcome of the remaining items: those of no finding, run without the other ones."""

    UNKNOWN = "unknown"
    AGREES = "agrees"  # all of them
    FAILS = "fails"


@dataclass
class Progress:
    """The progress of the search for culprits.

    Attributes:
        scope: Items still in question, ascending.
        base: Items that are the candidate's in the target.
        searched: Number of the scope's first items that hold no further culprit.
        unconfirmed: The last culprit, until the remaining items were run without it.
        profile: The profile of the scope.
        profile_led: Whether the profile led to the last culprit.
        skipped: Items that the remaining items lack, because the candidate does not run them
            without a culprit that they read.
        rest: The outcome of the remaining items; a search that does not end with `AGREES` is not
            complete.
        instead: The outcome if nothing is found: the region that the user named agrees alone, or
            the full model agrees at the claimed precision.
        probe_sensitive: Whether the error vanished when intermediate tensors were read.
    """

    state: SearchState
    scope: Items
    base: Items = ()
    searched: int = 0
    unconfirmed: Items = ()
    profile: Profile = NO_PROFILE
    profile_led: bool = False
    skipped: Items = ()
    rest: Rest = Rest.UNKNOWN
    instead: Outcome | None = None
    probe_sensitive: bool = False
    findings: list[Finding] = field(default_factory=list)

    def leave_out(self, items: Iterable[int]) -> None:
        """Remove these items from the scope."""
        self.scope = exclude(self.scope, set(items))

    def take_profile(self) -> Search[None]:
        """Profile the scope, unless the full model returns no output."""
        if self.state.aim.no_output:
            return
        self.profile = yield from profile.profile(self.state, self.scope)
        if self.profile.outcome is ProfileOutcome.VANISHED and not self.findings:
            self.probe_sensitive = True

    @property
    def hints(self) -> list[int]:
        """Wrong items of the profile that may still lead to a culprit."""
        inside = set(self.scope)
        hints = [k for k in self.profile.hints if k in inside]
        return hints if self.profile.local else hints[: MAX_HINTS - self.profile.misleading]


def find_culprits(progress: Progress) -> Search[None]:
    """Fill `progress.findings`. The scope is known to fail.

    Raises:
        SearchRestart: An assumption does not hold.
        SearchStopped: A budget is used up.
    """
    state = progress.state
    yield from progress.take_profile()
    while True:
        state.seen.suspect = progress.scope
        region = yield from _find_failing_region(progress)
        if isinstance(region, Finding):
            progress.findings.append(region)
            if region.is_culprit:
                progress.rest = Rest.AGREES
            return
        if not region:
            return
        if not (yield from state.fails(Purpose.SHRINK, region)):
            if region == progress.scope:
                yield from resolve_contradiction(state, region)
            return  # the full model fails, but not when its items run on captured values
        smallest, finding = yield from _conclude(progress, region)
        again = yield from alike.repeats(
            state, progress.scope, finding, progress.findings, progress.profile.local
        )
        others = (
            alike.find_regions_alike(state, progress.scope, smallest) if len(smallest) == 1 else []
        )
        for k in flatten(others):
            state.weights[k] *= SAME_KIND_FACTOR
        finding = replace(finding, repeats=again)
        progress.findings.append(finding)
        left_over = finding.kind is FindingKind.ACCUMULATED and len(smallest) == len(progress.scope)
        if left_over or not (yield from _peel(progress, smallest, finding)):
            return
        if not progress.unconfirmed and (yield from _deviates_everywhere(progress)):
            return


def acquit(progress: Progress) -> Search[None]:
    """Drop findings of single items that cannot run alone but are right, if there are several.

    Such an item returns no output alone, and the remaining items agree with it. Each takes a run.
    """
    state = progress.state
    if len(progress.findings) < 2 or progress.rest is not Rest.AGREES:
        return
    for finding in [f for f in progress.findings if f.signature in NO_OUTPUT and len(f.items) == 1]:
        named = flatten(finding.regions)
        whole = tuple(sorted({*progress.scope, *progress.skipped, *named}))
        if len(progress.findings) > 1 and (yield from state.tail(Purpose.TAIL, whole)).agrees:
            progress.findings.remove(finding)
            progress.scope = whole


def _deviates_everywhere(progress: Progress) -> Search[bool]:
    """Return whether nearly every item deviates. Then the last culprit represents all, and no other
    one is searched."""
    state = progress.state
    last = progress.findings[-1]
    wrong = [f for f in progress.findings if f.is_culprit and f.signature in NUMBERS]
    if last not in wrong:
        return False
    culprits = list(flatten(reversed(f.regions) for f in wrong))
    off = yield from find_everywhere(state, progress.scope, culprits)
    if off:
        progress.findings = [replace(last, share_of_model=None, alike=exclude(off, last.items))]
        progress.rest = Rest.FAILS
    return bool(off)


def _conclude(progress: Progress, region: Items) -> Search[tuple[Items, Finding]]:
    """Reduce a failing region to the smallest one, and return the finding: a culprit or an
    accumulated error."""
    state = progress.state
    grows = state.aim.signature in NUMBERS
    smallest = yield from shrink(state, region, gradual=grows)
    if smallest.graded and grows:
        finding = yield from accumulated.find_accumulated(state, progress.scope, graded=True)
        if finding is not None:
            return progress.scope, finding
        items = smallest.items
        share = state.answer_to(items).share.of_target or 0.0
        finding = yield from accumulated.find_accumulated(state, items, share, graded=True)
        if finding is not None:
            return items, finding
        if share < accumulated.MIN_CULPRIT_SHARE:
            return items, accumulated.make_partial_finding(state, items, share)
        smallest = yield from shrink(state, region, gradual=False)
        if smallest.even:
            return smallest.items, accumulated.make_partial_finding(state, smallest.items, share)
    for rest in smallest.list_neighbors(RegionOutcome.MINOR)[:MAX_MINOR_PIECES]:
        with state.count_any_failure():
            piece = yield from shrink(state, rest, gradual=False)
        if (yield from is_culprit(state, progress.base, piece.items)):
            smallest = piece
            break
    finding = yield from confirm_region(state, smallest)
    return finding.items, finding


# ------------------------------------------------------------ a failing region


def _find_failing_region(progress: Progress) -> Search[MeansResult]:
    """Return the result of the cheapest of the `MEANS` that finds something."""
    for means in MEANS:
        found = yield from means(progress)
        if found is not None:
            return found
    return NOTHING_LEFT


def _find_by_profile(progress: Progress) -> Search[MeansResult]:
    """Return a region to which the profile leads.

    If it leads to no region, the profile of the remaining items without the last culprit is
    followed.
    """
    region = yield from _follow_profile(progress)
    while region is None and progress.unconfirmed:
        if not (yield from _remainder_fails(progress)):
            return NOTHING_LEFT
        region = yield from _follow_profile(progress)
    progress.profile_led = region is not None
    return region


def _find_known_kind(progress: Progress) -> Search[MeansResult]:
    """Return a region of the kind of the last culprit, if that is the first of its kind."""
    state = progress.state
    last = progress.findings[-1] if progress.findings else None
    causes = [alike.find_cause(state, finding) for finding in progress.findings]
    if not last or last.repeats or causes.count(causes[-1]) > 1:
        return None
    for region in alike.find_regions_alike(state, progress.scope, last.items)[:MAX_REGIONS_ALIKE]:
        if (yield from state.fails(Purpose.ALIKE, region)):
            return region
    return None


def _find_everywhere(progress: Progress) -> Search[MeansResult]:
    """Return the finding if so much is wrong that the reason is the precision that the candidate
    claims, or an error that accumulates."""
    state = progress.state
    everywhere = (
        progress.profile.everywhere and state.aim.signature is not None and not progress.findings
    )
    if state.aim.signature is not Signature.PRECISION and not everywhere:
        return None
    (answer,) = yield from state.ask(Purpose.BASELINE, [Query(QueryKind.CLAIMED)])
    if answer.agrees:
        progress.instead = Outcome.CLAIMED
        return NOTHING_LEFT
    return (yield from accumulated.find_accumulated(state, progress.scope))


def _find_by_halving(progress: Progress) -> Search[MeansResult]:
    """Return the shortest end of the scope that halving finds, and its beginning."""
    state = progress.state
    scope = progress.scope
    begin, end = yield from halve.halve(state, scope, min(progress.searched, len(scope) - 1))
    start = yield from gallop_back(state, scope, end, begin)
    return scope[begin if start is None else start : end]


# The cheapest first; the last one always finds a region.
MEANS: tuple[Callable[[Progress], Search[MeansResult]], ...] = (
    _find_by_profile,
    _find_known_kind,
    _find_everywhere,
    _find_by_halving,
)


def _follow_profile(progress: Progress) -> Search[Items | None]:
    """Return a failing region whose last item is wrong in place.

    It is that item alone if it fails alone and accounts for its error in place.
    """
    state = progress.state
    failing = []
    while progress.hints:
        last = progress.hints[0]
        status = yield from state.probe(Purpose.GALLOP, (last,))
        local = progress.profile.local or {}
        if status is RegionOutcome.MINOR:
            failing.append((last,))
            if is_alike_inside(state, last, local.get(last)):
                state.prove((last,), ALIKE_INSIDE)
                return (last,)
            if local and (yield from is_culprit(state, progress.base, (last,))):
                return (last,)
        region = yield from profile.follow(state, progress.scope, last)
        if region is not None:
            return region
        progress.profile = progress.profile.drop_hint(last)
    for piece in failing:
        if (yield from is_culprit(state, progress.base, piece)):
            return piece
    return None


# ------------------------------------------------------------ the rest


def _peel(progress: Progress, region: Items, finding: Finding) -> Search[bool]:
    """Remove a culprit and its repeats from the scope; return whether there is another culprit."""
    progress.leave_out((*region, *flatten(finding.repeats)))
    progress.unconfirmed = region
    progress.searched = sum(1 for k in progress.scope if k < region[-1])
    if progress.profile.local and progress.hints:
        return True  # the remaining items are run once, after the last hint
    return (yield from _remainder_fails(progress))


def _remainder_fails(progress: Progress) -> Search[bool]:
    """Return whether the remaining items fail without the culprits. Then they are the target from
    now on."""
    state = progress.state
    region = progress.unconfirmed
    scope = progress.scope
    progress.unconfirmed = ()
    progress.rest = Rest.UNKNOWN
    # The candidate may run the remaining items in one of three forms only: without the culprit;
    # with its first or last item; without its consumers, which then are not examined.
    readers = {k for k, row in enumerate(state.parents) if not set(region).isdisjoint(row)}
    added = [(), region[1:], region[:-1]] if len(region) > 1 else [()]
    rests = [tuple(sorted({*scope, *some})) for some in added]
    for rest in drop_repeats([*rests, exclude(scope, readers)]):
        answer = yield from state.tail(Purpose.TAIL, rest)
        rounds = answer.signature is Signature.PRECISION
        if rounds and state.aim.signature is Signature.MISMATCH:
            state.notes.append((BY_ROUNDING + answer.why, NOTHING_LEFT))
            answer = replace(answer, status=Status.AGREE, signature=None)
        if answer.agrees:
            if set(rest) >= {*scope, *progress.skipped}:
                progress.rest = Rest.AGREES
                if (yield from _overlap_fails(progress, region)):
                    return True
            break
        # The remaining items are refused because of the items that were removed.
        cut_off = answer.signature in NO_OUTPUT and not state.aim.no_output
        if not cut_off and answer.signature is not None:
            findings = progress.findings
            shares = [f.share_of_model for f in findings if f.share_of_model is not None]
            is_small = all(abs(share) < accumulated.MIN_CULPRIT_SHARE for share in shares)
            # Many culprits were found, none of which accounts for much.
            if is_small and len(shares) == len(findings) >= MAX_SMALL_CULPRITS:
                progress.rest = Rest.FAILS
                return False
            yield from _go_on_with(progress, rest, answer.signature)
            return True
    if progress.rest is not Rest.AGREES:
        skipped = progress.skipped
        state.notes.append(
            (RUN_ONLY_AFTER_CULPRIT if skipped else RUNS_NOTHING_WITHOUT, skipped or region)
        )
    state.expect(0)
    return False


def _overlap_fails(progress: Progress, region: Items) -> Search[bool]:
    """Return whether the remaining items fail together with all but one item of a small culprit.

    Then another culprit shares items with it.
    """
    state = progress.state
    if not 1 < len(region) <= MAX_SHARED_ITEMS or state.driver.settings.steady:
        return False
    for item in region:
        rest = tuple(sorted({*progress.scope, *region} - {item}))
        answer = yield from state.tail(Purpose.CONFIRM, rest)
        if answer.fails and answer.signature is not None and answer.signature not in NO_OUTPUT:
            yield from _go_on_with(progress, rest, answer.signature)
            return True
    return False


def _go_on_with(progress: Progress, rest: Items, signature: Signature) -> Search[None]:
    """Make the remaining items the scope and the target."""
    state = progress.state
    progress.skipped = tuple(sorted({*progress.skipped, *progress.scope} - set(rest)))
    progress.scope = progress.base = state.seen.suspect = rest
    progress.rest = Rest.FAILS
    if state.aim.signature is not None:
        state.look_for(rest, signature)
    state.expect(len(rest).bit_length() + 2)
    if progress.profile_led or progress.profile is NO_PROFILE:
        yield from progress.take_profile()
