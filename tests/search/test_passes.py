"""The parts of a search, each by itself: order, cuts, galloping, shrinking, cost, flakiness, the predicate."""

from __future__ import annotations

import doctest
import itertools
import random
from collections.abc import Callable, Generator
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.scenarios import Candidate, Fault, Parents, Scenario, blocks, chain
from subgraph.search import flaky, order
from subgraph.search.cost import CostModel
from subgraph.search.findings import Purpose, Step
from subgraph.search.oracle import Answer, Query, QueryKind
from subgraph.search.passes import context, gallop, halve, pools, profile, shrink
from subgraph.search.predicate import SILENT, outcome
from subgraph.search.state import SearchState, SearchStopped
from subgraph.verdict import Signature, Status

T = TypeVar("T")
LAW = settings(max_examples=60, deadline=None, database=None, derandomize=True)


def result(going: Generator[Step, None, T]) -> T:
    """What a part returns."""
    while True:
        try:
            next(going)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def book(scenario: Scenario, **more: object) -> SearchState:
    n = scenario.n
    rows = [list(row) for row in scenario.parents]
    made = SearchState(Candidate(scenario), tuple(range(n)), rows, [1.0] * n, **more)  # type: ignore[arg-type]
    made.weights = [1.0] * n
    made.signature = Signature.MISMATCH
    return made


def faulty(parents: Parents, *faults: set[int]) -> Scenario:
    return Scenario("by hand", 0, parents, tuple(Fault(frozenset(f)) for f in faults))


# ---------------------------------------------------------------------------------------------------------- order


@LAW
@given(st.integers(0, 10_000), st.integers(1, 80))
def test_an_order_is_topological_and_crosses_no_more_than_the_given_one(seed: int, n: int) -> None:
    parents = blocks(random.Random(seed), n)
    places = order.cut_order(parents)
    at = {item: k for k, item in enumerate(places)}
    assert sorted(places) == list(range(n))
    assert all(at[p] < at[i] for i, row in enumerate(parents) for p in row)
    assert order.crossings(parents, places) <= order.crossings(parents, range(n))


def test_branches_numbered_in_turns_are_put_side_by_side() -> None:
    r"""0 ─┬─ 1 ─ 3 ─ 5 ─┬─ 7      the branches are 1 3 5 and 2 4 6
    └─ 2 ─ 4 ─ 6 ─┘
    """
    parents = ((), (0,), (0,), (1,), (2,), (3,), (4,), (5, 6))
    places = order.cut_order(parents)
    assert [p for p in places if p % 2] == [1, 3, 5, 7]
    assert abs(places.index(1) - places.index(5)) == 2 and abs(places.index(2) - places.index(6)) == 2


def test_crossings_count_live_results() -> None:
    assert order.crossings(chain(5), range(5)) == 4
    assert order.crossings(((), (0,), (0, 1)), range(3)) == 3


def test_ends_and_parts_of_a_region() -> None:
    parents = ((), (0,), (0,), (1,), (2, 3), ())
    assert order.ends(parents, [0, 1, 2, 3, 4]) == {0, 4}
    assert list(order.connected(parents, [1, 2, 3])) == [{1, 3}, {2}]
    assert order.above(parents, [1, 2, 3, 4, 5], 3) == {1, 3}


# ------------------------------------------------------------------------------------------------ halve and gallop


@LAW
@given(st.lists(st.floats(0.01, 10), min_size=3, max_size=40), st.integers(1, 6))
def test_cuts_part_the_weight_evenly(weights: list[float], count: int) -> None:
    mass = list(itertools.accumulate(weights, initial=0.0))
    cuts = halve.medians(mass, 0, len(weights), count)
    assert cuts == sorted(set(cuts)) and cuts[0] > 0 and cuts[-1] < len(weights)
    if count == 1:
        off = abs(mass[cuts[0]] - mass[-1] / 2)
        assert all(off <= abs(mass[m] - mass[-1] / 2) + 1e-9 for m in range(1, len(weights)))


@LAW
@given(st.integers(2, 300), st.data())
def test_halving_finds_where_a_fault_ends(n: int, data: st.DataObject) -> None:
    last = data.draw(st.integers(0, n - 1))
    first = max(0, last - data.draw(st.integers(0, halve.SPAN - 1)))
    asks = book(faulty(chain(n), set(range(first, last + 1))))
    begin, end = result(halve.halve(asks, tuple(range(n))))
    assert end == last + 1 and begin <= first
    assert asks.runs[Purpose.HALVE] <= (n - 1).bit_length()


@LAW
@given(st.integers(1, 200), st.integers(1, 5), st.data())
def test_galloping_finds_the_shortest_end_that_fails(n: int, workers: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, n - 1))
    asks = book(faulty(chain(n), {first, n - 1}), workers=workers)
    assert result(gallop.back(asks, tuple(range(n)), n, 0)) == first
    length = n - first
    assert asks.rounds <= 2 * length.bit_length()
    unknown = result(gallop.back(book(faulty(chain(n), {first, n - 1})), tuple(range(n)), n, None))
    assert unknown == (first if length <= gallop.MOST else None)


@LAW
@given(st.integers(0, 10_000), st.integers(2, 60), st.data())
def test_shrinking_gives_exactly_the_fault(seed: int, n: int, data: st.DataObject) -> None:
    parents = blocks(random.Random(seed), n)
    fault = data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=6))
    asks = book(faulty(parents, fault))
    everything = tuple(range(n))
    result(asks.region(Purpose.HALVE, everything))
    found = result(shrink.shrink(asks, everything))
    assert set(found.items) == fault and found.certified and not found.graded


def test_pools_propose_and_each_is_asked_alone() -> None:
    s = faulty(chain(40), {3}, {17}, {20, 21})
    asks = book(s)
    assert result(pools.singles(asks, tuple(range(40)))) == [(3,), (17,)]
    assert asks.runs[Purpose.POOL] == 3
    window = result(pools.windows(book(faulty(chain(100), {31, 32})), tuple(range(100))))
    assert window is not None and {31, 32} <= set(window)


def test_a_profile_is_read_through_what_it_does_not_see() -> None:
    asks = book(faulty(chain(6)))
    seen = {0: Status.AGREE, 1: Status.FAIL, 3: Status.FAIL, 4: Status.FAIL}
    shown = profile.read(asks, tuple(range(6)), Answer(Status.FAIL, items=seen))
    assert shown.hints == (1,) and not shown.everywhere
    assert profile.read(asks, (0,), Answer(Status.UNRESOLVED)).seen is profile.Seen.REFUSED
    assert profile.read(asks, (0,), Answer(Status.AGREE, items={0: Status.AGREE})).seen is profile.Seen.VANISHED


def test_company_is_what_feeds_an_item_then_what_is_near() -> None:
    asks = book(faulty(((), (), (), (0,), (), ())))
    assert context.around(asks, (3,))[:3] == [0, 2, 4]


# ------------------------------------------------------------------------------------------------------- the door


def test_nothing_is_asked_twice() -> None:
    asks = book(faulty(chain(9), {3}))
    for _ in range(2):
        assert result(asks.region(Purpose.HALVE, (2, 3))) is Status.FAIL
    assert asks.runs.total() == 1 and asks.suspect == (2, 3)


def test_a_region_in_another_numbering() -> None:
    """The search works on places; the question and the steps on items."""
    s = faulty(((1,), ()), {0})
    asks = SearchState(Candidate(s), (1, 0), [[], [0]], [1.0, 1.0])
    assert asks.items((0,)) == (1,) and asks.items((1, 0)) == (0, 1)


def test_a_budget_is_kept() -> None:
    asks = book(faulty(chain(9), {3}), max_trials=1)
    result(asks.region(Purpose.HALVE, (2, 3)))
    with pytest.raises(SearchStopped):
        result(asks.region(Purpose.HALVE, (2,)))
    assert result(asks.region(Purpose.HALVE, (2, 3))) is Status.FAIL  # is known


# ------------------------------------------------------------------------------------------------------ predicate

FAIL, AGREE, UNRESOLVED = Status.FAIL, Status.AGREE, Status.UNRESOLVED
MISMATCH, NAN, CRASH = Signature.MISMATCH, Signature.NAN, Signature.CRASH
SHAPE, REFUSED = Signature.SHAPE, Signature.REFUSED


@pytest.mark.parametrize(
    ("status", "signature", "culprit", "whole", "means"),
    [
        (FAIL, MISMATCH, True, MISMATCH, FAIL),
        (FAIL, MISMATCH, False, MISMATCH, AGREE),
        (FAIL, MISMATCH, None, MISMATCH, UNRESOLVED),
        (FAIL, NAN, True, MISMATCH, FAIL),  # garbage: wrong numbers in the whole, NaN alone
        (FAIL, NAN, None, MISMATCH, UNRESOLVED),
        (FAIL, NAN, False, MISMATCH, UNRESOLVED),
        (FAIL, MISMATCH, True, NAN, UNRESOLVED),
        (FAIL, Signature.REFUSED, None, MISMATCH, UNRESOLVED),
        (FAIL, CRASH, None, CRASH, FAIL),
        (UNRESOLVED, CRASH, None, CRASH, FAIL),
        (FAIL, MISMATCH, True, CRASH, FAIL),  # the whole runs once that piece is right
        (FAIL, MISMATCH, False, CRASH, UNRESOLVED),
        (FAIL, MISMATCH, None, CRASH, UNRESOLVED),
        (UNRESOLVED, REFUSED, True, CRASH, FAIL),
        (FAIL, SHAPE, True, MISMATCH, FAIL),  # what reads it makes garbage of it
        (FAIL, SHAPE, False, MISMATCH, UNRESOLVED),
        (FAIL, SHAPE, None, NAN, UNRESOLVED),
        (FAIL, CRASH, True, MISMATCH, FAIL),
        (FAIL, CRASH, None, MISMATCH, UNRESOLVED),
        (UNRESOLVED, MISMATCH, True, MISMATCH, UNRESOLVED),
        (UNRESOLVED, None, None, MISMATCH, UNRESOLVED),
        (AGREE, None, None, CRASH, AGREE),
    ],
)
def test_what_an_answer_means(
    status: Status, signature: Signature | None, culprit: bool | None, whole: Signature, means: Status
) -> None:
    assert outcome(Answer(status, signature, culprit=culprit), whole) is means
    assert len(SILENT) == 3


# ------------------------------------------------------------------------------------------------ cost and chances


def test_cost_is_fitted() -> None:
    cost = CostModel()
    cost.add(100, 12.0)
    assert cost.fit() is None and not cost.slow_start(100)
    for items in (10, 50, 0):
        cost.add(items, 2 + items / 10)
    cost.add(50, 0.0)  # from a store
    assert list(cost.fit() or ()) == [pytest.approx(2.0), pytest.approx(0.1)]
    assert cost.slow_start(50) and not cost.slow_start(500)


@LAW
@given(st.floats(0.3, 0.99), st.floats(0.001, 0.1))
def test_so_many_passes_are_enough_and_one_less_is_not(rate: float, error: float) -> None:
    n = flaky.passes_needed(rate, error)
    assert (1 - rate) ** n <= error * (1 + 1e-6)
    assert n == 1 or (1 - rate) ** (n - 1) > error * (1 - 1e-6)


def test_wilson() -> None:
    low, high = flaky.wilson(8, 10)
    assert low == pytest.approx(0.4902, abs=1e-4) and high == pytest.approx(0.9433, abs=1e-4)
    assert flaky.wilson(0, 0) == (0.0, 1.0)
    assert flaky.reproduces(8, 8, 8, 8) and not flaky.reproduces(0, 8, 8, 8)
    assert flaky.LEAST <= flaky.careful_rate(0, 8) < flaky.careful_rate(8, 8) < 1


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(flaky).failed == 0


def test_asks_are_values() -> None:
    asks: Callable[[], Query] = lambda: Query(QueryKind.ISOLATED, (1, 2), 1, True)  # noqa: E731
    assert asks() == asks() and hash(asks()) == hash(asks())
