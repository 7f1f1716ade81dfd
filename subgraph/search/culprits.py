"""All culprits, one after the other: a failing region by the cheapest way there is, shrunk, proven; then the rest.

Insight: the ways differ in what they cost and in what they need (a profile that shows something, pools); each gives a
region that fails, so what follows is the same. A profile of the rest shows what the first culprit hid.
"""

from __future__ import annotations

from subgraph.search.findings import Finding, FindingKind, Purpose
from subgraph.search.hunt import Progress
from subgraph.search.oracle import Items, Query, QueryKind
from subgraph.search.passes import accumulated, gallop, halve, pools, profile
from subgraph.search.passes.confirm import contradicted, proof
from subgraph.search.passes.shrink import shrink
from subgraph.search.rest import cross_examined, rest
from subgraph.search.state import Search, SearchState, SearchStopped
from subgraph.verdict import Status

OTHERS = 4  # single items that must fail as well, before nothing at all is said to run
ACQUITTED = 64  # items that were refused alone and not in company: as many are left out before it is given up


def hunt(state: Progress) -> Search[None]:
    """Fill `state.findings`. The scope is known to fail.

    Raises: Changed, Spent.
    """
    book, acquitted = state.book, 0
    yield from state.look()
    while True:
        book.suspect = state.scope
        region = yield from _failing(state)
        if isinstance(region, Finding):
            state.findings.append(region)
        if state.claimed or isinstance(region, Finding):
            return
        if (yield from book.region(Purpose.SHRINK, region)) is not Status.FAIL:
            if region == state.scope:
                yield from contradicted(book, state.belief, region)
            return  # the whole fails, and its items run on captured values do not
        found, finding = yield from _concluded(state, region)
        if not state.findings and (yield from _dead(book, found)):
            raise SearchStopped(f"nothing runs on the candidate, not even a single node: {book.known(found).why}")
        if finding is None:
            acquitted += 1
            if acquitted > ACQUITTED:
                return
            state.without(found)
            continue
        state.findings.append(finding)
        sum_ = finding.kind is FindingKind.ACCUMULATED
        if (sum_ and len(found) == len(state.scope)) or not (yield from rest(state, found, wholly=sum_)):
            yield from cross_examined(state)
            return


def _dead(book: SearchState, found: Items) -> Search[bool]:
    """Does nothing run at all, as where a package is missing? Asked only where nothing was seen to run."""
    if not book.silent or book.agreed or len(found) > 1 or book.n <= OTHERS:
        return False
    others = [(k,) for k in range(book.n) if (k,) != found]
    some = [others[len(others) * k // OTHERS] for k in range(OTHERS)]
    for at in range(0, OTHERS, book.workers):
        if {*(yield from book.regions(Purpose.TAIL, some[at : at + book.workers]))} != {Status.FAIL}:
            return False
    return True


def _concluded(state: Progress, region: Items) -> Search[tuple[Items, Finding | None]]:
    """What a failing region comes down to, and what that is: a culprit, a sum, or (None) only refused alone."""
    book = state.book
    found = yield from shrink(book, region)
    if found.graded:
        everything = yield from accumulated.accumulated(book, state.scope, graded=True)
        if everything is not None:
            return state.scope, everything
        share = book.known(found.items).share or 0.0
        some = yield from accumulated.accumulated(book, found.items, share, graded=True)
        if some is not None:
            return found.items, some
        if share < accumulated.LARGE:
            return found.items, accumulated.partial(book, found.items, share)
        found = yield from shrink(book, region, gradual=False)
    return found.items, (yield from proof(book, state.belief, found))


def _failing(state: Progress) -> Search[Items | Finding]:
    """A failing region, short if something is known of where it ends; or why there is none to be found."""
    book, scope = state.book, state.scope
    if state.pooled:
        return state.pooled.pop(0)
    if state.shown is not None and state.shown.hints:
        region = yield from profile.follow(book, scope, state.shown.hints)
        state.led = region is not None
        if region is not None:
            return region
        if state.shown.everywhere and not state.findings:
            finding = yield from _everywhere(state)
            if state.claimed or finding is not None:
                return finding or scope
    if (yield from _pool(state)):
        return state.pooled.pop(0)
    clean = min(state.clean, len(scope) - 1)
    if _pooling(state) and book.cost.slow_start(book.n) and len(scope) > pools.WORTH:
        window = yield from pools.windows(book, scope)
        scope, clean = (scope, clean) if window is None else (window, 0)
    begin, end = yield from halve.halve(book, scope, clean)
    start = yield from gallop.back(book, scope, end, begin)
    return scope[begin if start is None else start : end]


def _everywhere(state: Progress) -> Search[Finding | None]:
    """Wrong everywhere at once: is it the precision that the candidate claims, or does it accumulate?"""
    (answer,) = yield from state.book.ask(Purpose.BASELINE, [Query(QueryKind.CLAIMED)])
    state.claimed = answer.status is Status.AGREE
    return None if state.claimed else (yield from accumulated.accumulated(state.book, state.scope))


def _pool(state: Progress) -> Search[bool]:
    """Single items in one pool: where a profile was refused, a start is slow, or there is more than one culprit."""
    book, shown = state.book, state.shown
    blind = shown is not None and shown.seen is profile.Seen.REFUSED
    if not _pooling(state) or state.tried_pool:
        return False
    if book.cost.fit() is None and len(state.scope) > 1:
        # two sizes tell what a start costs; this is what halving would ask first
        yield from book.region(Purpose.HALVE, state.scope[: len(state.scope) // 2])
    if not (blind or state.findings or book.cost.slow_start(book.n)):
        return False
    state.tried_pool = True
    state.pooled = yield from pools.singles(book, state.scope)
    return bool(state.pooled)


def _pooling(state: Progress) -> bool:
    """Can pieces be run together? What brings the candidate down brings all pieces down."""
    return state.book.question.pools and not state.book.silent
