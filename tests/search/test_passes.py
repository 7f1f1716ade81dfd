"""The parts of a search, each by itself.

Covers `search.order`, `search.state`, `search.predicate`, `search.cost`, `search.flaky`, `search.oracle`,
`search.passes.halve`, `search.passes.gallop`, `search.passes.shrink`, `search.passes.pools`, `search.passes.profile`
and `search.passes.context`.
"""

from __future__ import annotations

import doctest
import itertools
import random
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.scenarios import Candidate, Fault, Parents, Scenario, blocks, chain
from subgraph.search import flaky, order
from subgraph.search.cost import CostModel
from subgraph.search.findings import Purpose
from subgraph.search.oracle import Answer, Query, QueryKind
from subgraph.search.passes import context, gallop, halve, pools, profile, shrink
from subgraph.search.predicate import NO_OUTPUT, Meaning, meaning
from subgraph.search.state import Search, SearchState, SearchStopped, Settings
from subgraph.verdict import Signature, Status
from tests.helpers.examples import examples

T = TypeVar("T")
LAW = settings(max_examples=examples(60), deadline=None, database=None, derandomize=True)


def result(state: SearchState, part: Search[T]) -> T:
    """Drive a part of a search to its end."""
    steps = state.run(part)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def new_state(scenario: Scenario, **more: object) -> SearchState:
    """The state of a search whose items are in cut order, and whose whole is known to mismatch."""
    n = scenario.n
    rows = [list(row) for row in scenario.parents]
    state = SearchState(Candidate(scenario), tuple(range(n)), rows, [1.0] * n, **more)  # type: ignore[arg-type]
    state.weights = [1.0] * n
    state.signature = Signature.MISMATCH
    return state


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
@given(st.lists(st.floats(0.01, 10), min_size=3, max_size=40))
def test_a_cut_parts_the_weight_evenly(weights: list[float]) -> None:
    mass = list(itertools.accumulate(weights, initial=0.0))
    cut = halve.median(mass, 0, len(weights))
    assert 0 < cut < len(weights)
    off = abs(mass[cut] - mass[-1] / 2)
    assert all(off <= abs(mass[m] - mass[-1] / 2) + 1e-9 for m in range(1, len(weights)))


@LAW
@given(st.integers(2, 300), st.data())
def test_halving_finds_where_a_fault_ends(n: int, data: st.DataObject) -> None:
    last = data.draw(st.integers(0, n - 1))
    first = max(0, last - data.draw(st.integers(0, halve.SPAN - 1)))
    state = new_state(faulty(chain(n), set(range(first, last + 1))))
    begin, end = result(state, halve.halve(state, tuple(range(n))))
    assert end == last + 1 and begin <= first
    assert state.counts.runs[Purpose.HALVE] <= (n - 1).bit_length()


@LAW
@given(st.integers(1, 200), st.data())
def test_galloping_finds_the_shortest_end_that_fails(n: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, n - 1))
    state = new_state(faulty(chain(n), {first, n - 1}))
    assert result(state, gallop.back(state, tuple(range(n)), n, 0)) == first
    length = n - first
    assert state.counts.total() <= 2 * length.bit_length()
    state = new_state(faulty(chain(n), {first, n - 1}))
    unknown = result(state, gallop.back(state, tuple(range(n)), n, None))
    assert unknown == (first if length <= gallop.LONGEST else None)


@LAW
@given(st.integers(0, 10_000), st.integers(2, 60), st.data())
def test_shrinking_gives_exactly_the_fault(seed: int, n: int, data: st.DataObject) -> None:
    parents = blocks(random.Random(seed), n)
    fault = data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=6))
    state = new_state(faulty(parents, fault))
    everything = tuple(range(n))
    result(state, state.region(Purpose.HALVE, everything))
    found = result(state, shrink.shrink(state, everything))
    assert set(found.items) == fault and found.certified and not found.graded


def test_pools_propose_and_each_piece_is_run_alone() -> None:
    s = faulty(chain(40), {3}, {17}, {20, 21})
    state = new_state(s)
    assert result(state, pools.failing(state, [(k,) for k in range(40)])) == [(3,), (17,)]
    assert state.counts.runs[Purpose.POOL] == 3
    state = new_state(faulty(chain(100), {31, 32}))
    window = result(state, pools.windows(state, tuple(range(100))))
    assert window is not None and {31, 32} <= set(window)


def test_a_profile_is_read_through_what_it_does_not_see() -> None:
    state = new_state(faulty(chain(6)))
    seen = {0: Status.AGREE, 1: Status.FAIL, 3: Status.FAIL, 4: Status.FAIL}
    shown = profile.read(state, tuple(range(6)), Answer(Status.FAIL, items=seen))
    assert shown.hints == (1,) and not shown.everywhere
    assert profile.read(state, (0,), Answer(Status.UNRESOLVED)).seen is profile.Seen.REFUSED
    assert profile.read(state, (0,), Answer(Status.AGREE, items={0: Status.AGREE})).seen is profile.Seen.VANISHED


def test_the_context_of_an_item_is_its_parents_then_its_neighbours() -> None:
    state = new_state(faulty(((), (), (), (0,), (), ())))
    assert context.around(state, (3,))[:3] == [0, 2, 4]


# ------------------------------------------------------------------------------------------------------ the state


def test_no_query_is_asked_twice() -> None:
    state = new_state(faulty(chain(9), {3}))
    for _ in range(2):
        assert result(state, state.region(Purpose.HALVE, (2, 3))) is Meaning.FAIL
    assert state.counts.total() == 1 and state.suspect == (2, 3)


def test_a_region_in_another_numbering() -> None:
    """The search works on places; the oracle and the steps on items."""
    s = faulty(((1,), ()), {0})
    state = SearchState(Candidate(s), (1, 0), [[], [0]], [1.0, 1.0])
    assert state.items((0,)) == (1,) and state.items((1, 0)) == (0, 1)


def test_a_budget_is_kept() -> None:
    state = new_state(faulty(chain(9), {3}), settings=Settings(max_trials=1))
    result(state, state.region(Purpose.HALVE, (2, 3)))
    with pytest.raises(SearchStopped):
        result(state, state.region(Purpose.HALVE, (2,)))
    assert result(state, state.region(Purpose.HALVE, (2, 3))) is Meaning.FAIL  # is known


# ------------------------------------------------------------------------------------------------------ predicate

FAIL, AGREE, UNRESOLVED = Status.FAIL, Status.AGREE, Status.UNRESOLVED
MISMATCH, NAN, CRASH, PRECISION = Signature.MISMATCH, Signature.NAN, Signature.CRASH, Signature.PRECISION
SHAPE, REFUSED = Signature.SHAPE, Signature.REFUSED


@pytest.mark.parametrize(
    ("status", "signature", "culprit", "target", "expected"),
    [
        (FAIL, MISMATCH, True, MISMATCH, Meaning.FAIL),
        (FAIL, MISMATCH, False, MISMATCH, Meaning.MINOR),
        (FAIL, MISMATCH, None, MISMATCH, Meaning.MINOR),  # it fails: never unresolved
        (FAIL, NAN, True, MISMATCH, Meaning.FAIL),  # garbage: wrong numbers in the whole, NaN alone
        (FAIL, NAN, None, MISMATCH, Meaning.MINOR),
        (FAIL, NAN, False, MISMATCH, Meaning.MINOR),
        (FAIL, MISMATCH, True, NAN, Meaning.FAIL),  # wrong numbers become NaN further down
        (FAIL, REFUSED, None, MISMATCH, Meaning.UNRESOLVED),
        (FAIL, CRASH, None, CRASH, Meaning.FAIL),
        (UNRESOLVED, CRASH, None, CRASH, Meaning.FAIL),
        (FAIL, MISMATCH, True, CRASH, Meaning.FAIL),  # the whole runs once that piece is right
        (FAIL, MISMATCH, False, CRASH, Meaning.MINOR),  # it gives values: what crashes lies elsewhere
        (FAIL, MISMATCH, None, CRASH, Meaning.MINOR),
        (UNRESOLVED, REFUSED, True, CRASH, Meaning.FAIL),
        (FAIL, SHAPE, True, MISMATCH, Meaning.FAIL),  # what reads it makes garbage of it
        (FAIL, SHAPE, False, MISMATCH, Meaning.MINOR),
        (FAIL, SHAPE, None, SHAPE, Meaning.FAIL),  # a wrong shape has no error to explain
        (FAIL, MISMATCH, None, SHAPE, Meaning.MINOR),
        (FAIL, CRASH, True, MISMATCH, Meaning.FAIL),
        (FAIL, CRASH, None, MISMATCH, Meaning.UNRESOLVED),
        (FAIL, PRECISION, True, PRECISION, Meaning.MINOR),  # rounding everywhere: no piece is to blame
        (FAIL, MISMATCH, True, PRECISION, Meaning.FAIL),
        (UNRESOLVED, MISMATCH, True, MISMATCH, Meaning.UNRESOLVED),
        (UNRESOLVED, None, None, MISMATCH, Meaning.UNRESOLVED),
        (AGREE, None, None, CRASH, Meaning.AGREE),
    ],
)
def test_meaning_of_an_answer(
    status: Status, signature: Signature | None, culprit: bool | None, target: Signature, expected: Meaning
) -> None:
    assert meaning(Answer(status, signature, culprit=culprit), target) is expected
    assert len(NO_OUTPUT) == 3


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
    assert flaky.LEAST_RATE <= flaky.careful_rate(0, 8) < flaky.careful_rate(8, 8) < 1


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(flaky).failed == 0


def test_queries_are_values() -> None:
    first, second = (Query(QueryKind.ISOLATED, (1, 2), 1, True) for _ in range(2))
    assert first == second and hash(first) == hash(second)
