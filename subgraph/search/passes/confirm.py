"""Nothing is called a culprit until it failed alone in a fresh process, and what speaks against it was asked again.

Insight: a candidate that is flaky (or a worker that has gone wrong) betrays itself where answers contradict each other:
the region does not fail again, one of its neighbours does, or a region around it agreed. Only these are worth asking
again. A single item that fails needs one more run; of several items each pass they rest on might be luck.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from subgraph.search import flaky
from subgraph.search.findings import Finding, FindingKind, Purpose
from subgraph.search.oracle import Items, QueryKind
from subgraph.search.passes import baseline
from subgraph.search.passes.context import acquitted
from subgraph.search.passes.shrink import Smallest
from subgraph.search.state import Search, SearchRestart, SearchState
from subgraph.verdict import Status

# A fault of rate p that failed k times in a row and then passed r times, which is how a region comes out one item too
# large: p^k (1−p)^r, at most 0.4 % for k = 6, r = 3 and 0.7 % for k = 8, r = 2, whatever p. Further runs: (items up
# to, of the region, of each neighbour); two of the whole, one of the region and of each neighbour were made before.
AGAIN = ((1, 1, 0), (4, 3, 2), (1 << 62, 5, 1))
STEADY = (1, 0)  # where the candidate is known to give the same each time
NEIGHBOURS = 16  # whose passes are asked again, at most
DOUBTS = 2  # regions around it that agreed and are asked again
TRIED = 7  # fresh runs without one failure: the first one was the worker's fault
MEASURED, MORE = 8, 30  # runs of a region of a flaky candidate; where it seems to fail more rarely than the whole


@dataclass
class Belief:
    """Attributes:
    failed, asked: how often the whole failed, of so many runs. flaky: it does not always fail, or a region did not.
    steady: the user says that the candidate gives the same each time.
    """

    failed: int = 1
    asked: int = 1
    flaky: bool = False
    steady: bool = False

    @property
    def rate(self) -> float:
        """How often the whole fails."""
        return self.failed / self.asked


def proof(book: SearchState, belief: Belief, found: Smallest) -> Search[Finding | None]:
    """The finding for a smallest region; None where it fails only because it is alone.

    Raises: Changed: the candidate is flaky, or what a worker said does not hold in a fresh one.
    """
    book.more = 2
    if (yield from acquitted(book, found.items)):
        return None
    if belief.flaky:
        return (yield from _measured(book, belief, found))
    own, others = next((own, others) for most, own, others in AGAIN if len(found.items) <= most)
    own, others = STEADY if belief.steady else (own, others)
    again = yield from book.again(Purpose.CONFIRM, [found.items], range(1, 1 + own))
    if Status.AGREE in again:
        yield from contradicted(book, belief, found.items)
    for regions, times in ((_neighbours(book, found), others), (book.larger_that_agreed(found.items)[:DOUBTS], 1)):
        if Status.FAIL in (yield from book.again(Purpose.CONFIRM, regions, range(1, 1 + times))):
            yield from turn_flaky(book, belief)
    finding = _finding(book, found, FindingKind.CULPRIT, (1, 1))
    if Status.FAIL not in again:
        return replace(finding, certified=False, why="not certified: could not be asked in a fresh process")
    return finding


def _neighbours(book: SearchState, found: Smallest) -> list[Items]:
    near = [tuple(k for k in found.items if k != x) for x in found.items] if len(found.items) > 1 else []
    return [r for r in near if (QueryKind.ISOLATED, r, book.first) in book.memo][-NEIGHBOURS:]


def contradicted(book: SearchState, belief: Belief, region: Items) -> Search[None]:
    """It failed, then agreed: flaky, or the worker it failed in was. The whole fails, and not as a region of all items:
    flaky, or else nothing more can be said.

    Raises: Changed: but for the last.
    """
    again = yield from book.again(Purpose.CONFIRM, [region], range(1, TRIED + 1))
    if Status.FAIL in again:
        yield from turn_flaky(book, belief)
    if (yield from book.region(Purpose.CONFIRM, region)) is not Status.FAIL:
        return
    book.first += 1000  # all answers of workers that had run others before are void
    book.fresh = True
    book.agreed.clear()
    raise SearchRestart("failed in a used worker, never in a fresh one: every trial gets a fresh one")


def turn_flaky(book: SearchState, belief: Belief) -> Search[None]:
    """From now on a pass counts after several.

    Raises: Changed: always.
    """
    yield from measure(book, belief)
    raise SearchRestart("answers differ from run to run: passes are repeated")


def measure(book: SearchState, belief: Belief) -> Search[None]:
    """How often does the whole fail, and so how often must a region pass?"""
    runs = baseline.summed((yield from baseline.whole(book, baseline.MEASURED)))
    belief.flaky, belief.failed, belief.asked = True, runs.failed, runs.asked
    book.repeats = max(2, flaky.passes_needed(flaky.careful_rate(runs.failed, runs.asked)))
    book.agreed.clear()


def _measured(book: SearchState, belief: Belief, found: Smallest) -> Search[Finding]:
    for asked in (MEASURED, MORE):
        again = yield from book.again(Purpose.CONFIRM, [found.items], range(1, asked + 1))
        failed = again.count(Status.FAIL)
        if flaky.reproduces(failed, asked, belief.failed, belief.asked):
            break
    finding = _finding(book, found, FindingKind.FLAKY, (failed, asked))
    if flaky.reproduces(failed, asked, belief.failed, belief.asked):
        return finding
    why = f"fails alone in {failed} of {asked} runs, the whole in {belief.rate:.0%} of its runs"
    return replace(finding, kind=FindingKind.UNRESOLVED, certified=False, why=why)


def _finding(book: SearchState, found: Smallest, kind: FindingKind, runs: tuple[int, int]) -> Finding:
    share = None if book.silent else book.known(found.items).share
    why = "fails only as a whole: no part of it was seen to fail" if found.whole else ""
    neighbour = found.neighbour and book.items(found.neighbour)
    doubtful = book.items(k for k in found.items if any(k not in rest for rest in found.doubtful))
    items = book.items(found.items)
    signature = book.known(found.items).signature or book.signature  # alone it may fail in another way
    return Finding(kind, items, signature, found.certified, share, runs, neighbour, doubtful, why)
