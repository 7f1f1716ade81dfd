"""The smallest set that must be kept: accepted, minimal, and within the number of questions that is
promised."""

from __future__ import annotations

import math
from collections.abc import Collection

import pytest
from hypothesis import given, settings, strategies as st

from subgraph.errors import OutOfTime
from subgraph.questions.planning.smallest_set import find_smallest_set
from tests.helpers.examples import examples

PLACES = st.integers(1, 60)


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_law_what_is_kept_is_accepted_and_nothing_can_be_given_back(data: st.DataObject) -> None:
    n = data.draw(PLACES)
    order = data.draw(st.permutations(range(n)))
    needed = data.draw(st.sets(st.sampled_from(range(n)), max_size=5))
    asked = []

    def accepts(kept: Collection[int]) -> bool:
        asked.append(frozenset(kept))
        return needed <= set(kept)

    found = find_smallest_set(order, accepts)
    assert set(found.kept) == needed and found.minimal
    assert len(asked) == len(set(asked))


def count_questions(n: int, needed: set[int]) -> int:
    asked = []

    def accepts(kept: Collection[int]) -> bool:
        asked.append(kept)
        return needed <= set(kept)

    assert set(find_smallest_set(range(n), accepts).kept) == needed
    return len(asked)


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(2, 200), st.integers(1, 6))
def test_law_questions_are_few_where_the_order_is_right(n: int, guilty: int) -> None:
    needed = set(range(min(guilty, n)))
    assert count_questions(n, needed) <= 4 * math.log2(n) + 3 * len(needed) + 1


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(2, 300), st.data())
def test_law_two_misjudged_places_cost_a_few_halvings(n: int, data: st.DataObject) -> None:
    needed = data.draw(st.sets(st.integers(0, n - 1), max_size=2)) | {0}
    assert count_questions(n, needed) <= 5 * math.log2(n) + 15


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_law_it_is_minimal_though_acceptance_is_not_monotone(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 9))
    good = data.draw(st.sets(st.frozensets(st.integers(0, n - 1)), max_size=40)) | {
        frozenset(range(n))
    }
    found = find_smallest_set(range(n), lambda kept: frozenset(kept) in good)
    assert frozenset(found.kept) in good and found.minimal
    assert not any(frozenset(found.kept) - {k} in good for k in found.kept)


@pytest.mark.parametrize("questions", [0, 1, 3, 6])
def test_out_of_time_gives_the_best_so_far_and_says_what_is_proven(questions: int) -> None:
    left = [questions]

    def accepts(kept: Collection[int]) -> bool:
        if not left[0]:
            raise OutOfTime("the time is used up")
        left[0] -= 1
        return {1, 3} <= set(kept)

    found = find_smallest_set(range(8), accepts)
    assert {1, 3} <= set(found.kept) and found.proven < len(found.kept) and not found.minimal
