"""Cost of a search: runs beside the lower bound, compiled items, rounds with several workers, our
own time.

The bound: log2 of the number of hypotheses, one run that shows that the whole fails, one that the
finding does, and a pass for each item that cannot be dropped. With a profile: its run and the
tail's instead of the log2.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from math import ceil, log

import pytest

from fixtures.scenarios import Candidate, Fault, Scenario, blocks, chain, connected, mark, run
from subgraph.search import Purpose, search
from tests.helpers.examples import ALL

CERTAINTY = (Purpose.AGAIN, Purpose.CONFIRM)  # runs that only confirm earlier ones

N = 256
LOOKS = (Purpose.PROFILE, Purpose.TAIL)


def at(place: int, length: int, profile: str, n: int = N) -> Scenario:
    """A chain with one fault of so many consecutive items."""
    return Scenario(
        "at", place, chain(n), (Fault(frozenset(range(place, place + length))),), profile
    )


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("length", "profile", "most", "without"),
    [
        (1, "shows", 4, 2),
        (2, "shows", 6, 4),
        (3, "shows", 9, 7),
        (1, "vanishes", 12, 10),
        (2, "vanishes", 14, 12),
        (3, "vanishes", 17, 15),
        (12, "shows", 28, 26),
        (12, "vanishes", 31, 29),
    ],
)
def test_runs_at_every_position(length: int, profile: str, most: int, without: int) -> None:
    """Without the whole's second run and confirmations; `without`: also without those of profile
    and tail."""
    last = N - length
    for place in range(last + 1) if ALL else {*range(0, last, 7), 1, last - 1, last}:
        s = at(place, length, profile)
        counts = run(s).findings.counts
        assert counts.total(*CERTAINTY) <= most, place
        assert counts.total(*CERTAINTY, *LOOKS) <= without, place
        assert counts.items(*CERTAINTY, *LOOKS) <= 2.5 * N or length > 3, place


def test_no_run_more_than_the_bound_for_one_item() -> None:
    """For 256 items: 8 halvings, the whole, the item."""
    for n in (2, 3, 16, 100, 1000):
        for place in {0, 1, n // 3, n - 1}:
            counts = run(at(place, 1, "vanishes", n)).findings.counts
            assert counts.total(*CERTAINTY, *LOOKS) <= ceil(log(n, 2)) + 2


@pytest.mark.parametrize(
    ("seed", "runs"), [(0, 3 + 4), (1, 1 + 4 * 3 + 2)], ids=["local errors", "without"]
)
def test_culprits_hidden_behind_each_other(seed: int, runs: int) -> None:
    """Whole, profile, each item, one tail; where no local errors are known, tail, profile and item
    per culprit, and once two items of other kinds, since the first three might stand for all."""
    s = Scenario(
        "four",
        seed,
        chain(N),
        tuple(Fault(frozenset({i}), 0.5) for i in (10, 90, 91, 200)),
        "shows",
    )
    assert run(s).findings.counts.total(*CERTAINTY) == runs


def test_join_of_two_long_branches_costs_no_more_than_what_lies_near() -> None:
    """The last item of each branch and the join are far apart in any order, but near by
    distance."""
    branch = 100
    parents = (
        (),
        *((k,) for k in range(branch)),
        (0,),
        *((k,) for k in range(branch + 1, 2 * branch)),
        (branch, 2 * branch),
    )
    fault = Fault(frozenset({branch, 2 * branch, 2 * branch + 1}))
    s = Scenario("join", 0, parents, (fault,), "shows")
    done = run(s)
    assert mark(s, done.findings) == "right"
    assert done.findings.counts.total(*CERTAINTY) <= 12


def own_seconds(s: Scenario) -> float:
    """CPU seconds of a search, without its oracle."""
    candidate = Candidate(s)
    outside = 0.0
    answer = candidate.ask

    def ask(queries: list[object]) -> object:
        nonlocal outside
        begin = time.thread_time()
        found = answer(queries)  # type: ignore[arg-type]
        outside += time.thread_time() - begin
        return found

    candidate.ask = ask  # type: ignore[method-assign, assignment]
    begin = time.thread_time()
    for _ in search(s.parents, candidate):
        pass
    return time.thread_time() - begin - outside


@pytest.mark.rare
@pytest.mark.parametrize(
    "make", [lambda n: chain(n), lambda n: blocks(random.Random(3), n)], ids=["chain", "blocks"]
)
@pytest.mark.parametrize("profile", ["shows", "vanishes"])
def test_our_own_time_grows_no_faster_than_the_items(
    make: Callable[[int], tuple[tuple[int, ...], ...]], profile: str
) -> None:
    seconds = {}
    for n in (1_000, 20_000):
        parents = make(n)
        rng = random.Random(n)
        faults = tuple(Fault(connected(rng, parents, k), 0.4) for k in (1, 2, 3))
        seconds[n] = own_seconds(Scenario("large", 0, parents, faults, profile))
    assert seconds[20_000] <= 20 * 4 * max(seconds[1_000], 0.02)
