"""Iterables and mappings."""

from __future__ import annotations

from pathlib import Path

from subgraph.iterables import index_by_name, invert


def test_member_of_several_groups_has_the_last_one() -> None:
    assert invert([("a", "xy"), ("b", "y"), ("c", "")]) == {"x": "a", "y": "b"}


def test_later_one_of_two_items_of_a_name_counts() -> None:
    ours = Path("a/x")
    theirs = Path("b/x")
    assert index_by_name([ours, theirs, Path("y")]) == {"x": theirs, "y": Path("y")}
