"""The parts of a search, each by itself.

Covers `search.driver`, `search.state`, `search.oracle`,
`search.passes.halve`, `search.passes.shrink` and
`search.passes.profile`.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given, settings, strategies as st

from fixtures.scenarios import Candidate, Fault, Parents, Scenario, blocks, chain
from subgraph.search.driver import Driver, Search, SearchStopped, Settings
from subgraph.search.oracle import (
    Answer,
    ErrorShare,
    ItemStatuses,
    Purpose,
    Query,
    QueryKind,
    RegionOutcome,
    find_outcome,
)
from subgraph.search.passes import confirm, halve, profile, shrink
from subgraph.search.state import SearchState
from subgraph.verdict import NO_OUTPUT, Signature, Status
from tests.helpers.examples import examples

T = TypeVar("T")
LAW = settings(max_examples=examples(60), deadline=None, database=None, derandomize=True)


def result(state: SearchState, part: Search[T]) -> T:
    """Drive a part of a search to its end."""
    steps = state.driver.run(part)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def new_state(scenario: Scenario, max_trials: int | None = None) -> SearchState:
    """Return the state of a search after the full model has failed with a mismatch."""
    alike = [1.0] * scenario.n
    driver = Driver(Candidate(scenario), scenario.n, Settings(max_trials=max_trials))
    state = SearchState(driver, scenario.parents, lambda: alike, weights=list(alike))
    state.look_for((), Signature.MISMATCH)
    return state


def faulty(parents: Parents, *faults: set[int]) -> Scenario:
    return Scenario("by hand", 0, parents, tuple(Fault(frozenset(f)) for f in faults))


# ------------------------------------------------------------ order


def test_ends_and_components_of_a_region() -> None:
    parents = ((), (0,), (0,), (1,), (2, 3), ())
    assert shrink.ends(parents, [0, 1, 2, 3, 4]) == {0, 4}
    assert list(shrink.split_components(parents, [1, 2, 3])) == [{1, 3}, {2}]
    assert shrink.find_upstream(parents, [1, 2, 3, 4, 5], 3) == {1, 3}


# ------------------------------------------------------------ halve and gallop


@LAW
@given(st.lists(st.floats(0.01, 10), min_size=3, max_size=40))
def test_cut_parts_the_weight_evenly(weights: list[float]) -> None:
    mass = list(itertools.accumulate(weights, initial=0.0))
    cut = halve.find_median(mass, 0, len(weights))
    assert 0 < cut < len(weights)
    off = abs(mass[cut] - mass[-1] / 2)
    assert all(off <= abs(mass[m] - mass[-1] / 2) + 1e-9 for m in range(1, len(weights)))


@LAW
@given(st.integers(2, 300), st.data())
def test_halving_finds_where_a_fault_ends(n: int, data: st.DataObject) -> None:
    last = data.draw(st.integers(0, n - 1))
    first = max(0, last - data.draw(st.integers(0, halve.MAX_FUSION - 1)))
    state = new_state(faulty(chain(n), set(range(first, last + 1))))
    begin, end = result(state, halve.halve(state, tuple(range(n))))
    assert end == last + 1 and begin <= first
    assert state.driver.counts.runs[Purpose.HALVE] <= (n - 1).bit_length()


@LAW
@given(st.integers(1, 200), st.data())
def test_galloping_finds_the_shortest_end_that_fails(n: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, n - 1))
    state = new_state(faulty(chain(n), {first, n - 1}))
    assert result(state, halve.gallop_back(state, tuple(range(n)), n, 0)) == first
    length = n - first
    assert state.driver.counts.total() <= 2 * length.bit_length()
    state = new_state(faulty(chain(n), {first, n - 1}))
    unknown = result(state, halve.gallop_back(state, tuple(range(n)), n, None))
    assert unknown == (first if length <= halve.MAX_FIRST_LENGTH else None)


@LAW
@given(st.integers(0, 10_000), st.integers(2, 60), st.data())
def test_shrinking_gives_exactly_the_fault(seed: int, n: int, data: st.DataObject) -> None:
    parents = blocks(random.Random(seed), n)
    fault = data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=6))
    state = new_state(faulty(parents, fault))
    everything = tuple(range(n))
    result(state, state.probe(Purpose.HALVE, everything))
    found = result(state, shrink.shrink(state, everything))
    assert set(found.items) == fault and found.certified and not found.graded


def test_profile_is_read_through_what_it_does_not_see() -> None:
    state = new_state(faulty(chain(6)))
    seen = {0: Status.AGREE, 1: Status.FAIL, 3: Status.FAIL, 4: Status.FAIL}
    shown = profile.read(state, tuple(range(6)), Answer(Status.FAIL, detail=ItemStatuses(seen)))
    assert shown.hints == (1,) and not shown.everywhere
    refused = Answer(Status.UNRESOLVED)
    vanished = Answer(Status.AGREE, detail=ItemStatuses({0: Status.AGREE}))
    assert profile.read(state, (0,), refused).outcome is profile.ProfileOutcome.REFUSED
    assert profile.read(state, (0,), vanished).outcome is profile.ProfileOutcome.VANISHED


# ------------------------------------------------------------ the state


def test_no_query_is_asked_twice() -> None:
    state = new_state(faulty(chain(9), {3}))
    for _ in range(2):
        assert result(state, state.probe(Purpose.HALVE, (2, 3))) is RegionOutcome.FAIL
    assert state.driver.counts.total() == 1 and state.seen.suspect == (2, 3)


def test_budget_is_kept() -> None:
    state = new_state(faulty(chain(9), {3}), max_trials=1)
    result(state, state.probe(Purpose.HALVE, (2, 3)))
    with pytest.raises(SearchStopped):
        result(state, state.probe(Purpose.HALVE, (2,)))
    assert result(state, state.probe(Purpose.HALVE, (2, 3))) is RegionOutcome.FAIL  # is known


# ------------------------------------------------------------ predicate

FAIL = Status.FAIL
AGREE = Status.AGREE
UNRESOLVED = Status.UNRESOLVED
MISMATCH = Signature.MISMATCH
NAN = Signature.NAN
CRASH = Signature.CRASH
PRECISION = Signature.PRECISION
SHAPE = Signature.SHAPE
REFUSED = Signature.REFUSED


@pytest.mark.parametrize(
    ("status", "signature", "culprit", "target", "expected"),
    [
        (FAIL, MISMATCH, True, MISMATCH, RegionOutcome.FAIL),
        (FAIL, MISMATCH, False, MISMATCH, RegionOutcome.MINOR),
        (FAIL, MISMATCH, None, MISMATCH, RegionOutcome.MINOR),  # it fails: never unresolved
        # garbage: wrong numbers in the whole, NaN alone
        (FAIL, NAN, True, MISMATCH, RegionOutcome.FAIL),
        (FAIL, NAN, None, MISMATCH, RegionOutcome.MINOR),
        (FAIL, NAN, False, MISMATCH, RegionOutcome.MINOR),
        (FAIL, MISMATCH, True, NAN, RegionOutcome.FAIL),  # wrong numbers become NaN further down
        (FAIL, REFUSED, None, MISMATCH, RegionOutcome.UNRESOLVED),
        (FAIL, CRASH, None, CRASH, RegionOutcome.FAIL),
        (UNRESOLVED, CRASH, None, CRASH, RegionOutcome.FAIL),
        # the whole runs once that piece is right
        (FAIL, MISMATCH, True, CRASH, RegionOutcome.FAIL),
        # it gives values: what crashes lies elsewhere
        (FAIL, MISMATCH, False, CRASH, RegionOutcome.MINOR),
        (FAIL, MISMATCH, None, CRASH, RegionOutcome.MINOR),
        (UNRESOLVED, REFUSED, True, CRASH, RegionOutcome.FAIL),
        (FAIL, SHAPE, True, MISMATCH, RegionOutcome.FAIL),  # what reads it makes garbage of it
        (FAIL, SHAPE, False, MISMATCH, RegionOutcome.MINOR),
        (FAIL, SHAPE, None, SHAPE, RegionOutcome.FAIL),  # a wrong shape has no error to explain
        (FAIL, MISMATCH, None, SHAPE, RegionOutcome.MINOR),
        (FAIL, CRASH, True, MISMATCH, RegionOutcome.FAIL),
        (FAIL, CRASH, None, MISMATCH, RegionOutcome.UNRESOLVED),
        # rounding everywhere: no piece is to blame
        (FAIL, PRECISION, True, PRECISION, RegionOutcome.MINOR),
        (FAIL, MISMATCH, True, PRECISION, RegionOutcome.FAIL),
        (UNRESOLVED, MISMATCH, True, MISMATCH, RegionOutcome.UNRESOLVED),
        (UNRESOLVED, None, None, MISMATCH, RegionOutcome.UNRESOLVED),
        (AGREE, None, None, CRASH, RegionOutcome.AGREE),
    ],
)
def test_outcome_of_an_answer(
    status: Status,
    signature: Signature | None,
    culprit: bool | None,
    target: Signature,
    expected: RegionOutcome,
) -> None:
    found = find_outcome(Answer(status, signature, detail=ErrorShare(is_culprit=culprit)), target)
    assert found is expected


def test_region_without_output_is_unresolved_where_the_model_has_one() -> None:
    outcomes = {
        signature: find_outcome(Answer(FAIL, signature), MISMATCH) for signature in Signature
    }
    unresolved = {
        signature for signature, outcome in outcomes.items() if outcome is RegionOutcome.UNRESOLVED
    }
    assert unresolved == NO_OUTPUT


# ------------------------------------------------------------ chances


@LAW
@given(st.floats(0.3, 0.99), st.floats(0.001, 0.1))
def test_so_many_passes_are_enough_and_one_less_is_not(rate: float, error: float) -> None:
    n = confirm.count_needed_passes(rate, error)
    assert (1 - rate) ** n <= error * (1 + 1e-6)
    assert n == 1 or (1 - rate) ** (n - 1) > error * (1 - 1e-6)


def test_wilson_interval_of_8_in_10() -> None:
    assert list(confirm.compute_wilson_interval(8, 10)) == pytest.approx([0.4902, 0.9433], abs=1e-4)


def test_wilson_interval_without_runs_is_unbounded() -> None:
    assert confirm.compute_wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("failed", "runs", "expected"),
    [(1, 8, False), (2, 8, True), (8, 8, True), (30, 100, False), (80, 100, True)],
)
def test_region_reproduces_the_failure_of_a_model_that_always_fails(
    failed: int, runs: int, expected: bool
) -> None:
    assert confirm.reproduces(failed, runs, runs, runs) is expected


def test_region_that_hardly_ever_fails_reproduces_nothing() -> None:
    assert not confirm.reproduces(1, 8, 2, 8)
    assert confirm.reproduces(2, 8, 2, 8)


def test_careful_rate_is_one_deviation_below_the_posterior_mean() -> None:
    assert confirm.compute_careful_rate(8, 8) == pytest.approx(0.9 - (0.9 * 0.1 / 11) ** 0.5)
    assert confirm.compute_careful_rate(0, 8) == confirm.MIN_RATE


def test_failure_in_each_run_needs_one_pass() -> None:
    assert (
        confirm.count_needed_passes(0.5, 0.01),
        confirm.count_needed_passes(0.9, 0.01),
        confirm.count_needed_passes(1.0),
    ) == (7, 2, 1)


def test_query_in_a_fresh_process_has_the_same_answer() -> None:
    """The memo of a search returns the answer; another repetition is another query."""
    query = Query(QueryKind.ISOLATED, (1, 2), 1)
    memo = {query: Answer(FAIL)}
    assert replace(query, fresh=True) in memo
    assert (
        not {replace(query, repetition=2), replace(query, explain=True), replace(query, items=(1,))}
        & memo.keys()
    )
