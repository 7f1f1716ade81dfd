"""The walk of a graph."""

from __future__ import annotations

from pathlib import Path

from subgraph.reach import index_by_name, invert, reach


def test_cycle_ends() -> None:
    assert reach([0], lambda n: [(n + 1) % 4]) == {0, 1, 2, 3}


def test_each_item_is_followed_once() -> None:
    followed: list[int] = []

    def follow(n: int) -> list[int]:
        followed.append(n)
        return [n // 2, n // 3]

    assert reach([12], follow) == {12, 6, 4, 3, 2, 1, 0}
    assert len(followed) == 7


def test_member_of_several_groups_has_the_last_one() -> None:
    assert invert([("a", "xy"), ("b", "y"), ("c", "")]) == {"x": "a", "y": "b"}


def test_later_one_of_two_items_of_a_name_counts() -> None:
    ours = Path("a/x")
    theirs = Path("b/x")
    assert index_by_name([ours, theirs, Path("y")]) == {"x": theirs, "y": Path("y")}
