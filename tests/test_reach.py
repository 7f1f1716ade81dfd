"""The walk of a graph."""

from __future__ import annotations

from subgraph.reach import reach


def test_cycle_ends() -> None:
    assert reach([0], lambda n: [(n + 1) % 4]) == {0, 1, 2, 3}


def test_each_item_is_followed_once() -> None:
    followed: list[int] = []

    def follow(n: int) -> list[int]:
        followed.append(n)
        return [n // 2, n // 3]

    assert reach([12], follow) == {12, 6, 4, 3, 2, 1, 0}
    assert len(followed) == 7
