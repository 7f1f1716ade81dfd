"""Kinds of operators: each operator has one, and the text on its color can be read."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest

from subgraph.drawing.layout import Drawer
from subgraph.drawing.network import COLORS, KINDS, OTHER, Network
from subgraph.drawing.svg import draw_svg


def light(color: str) -> float:
    """Relative luminance, as WCAG defines it."""
    parts = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("kind", COLORS)
def test_operator_is_read_in_its_head(kind: str) -> None:
    assert contrast("#ffffff", COLORS[kind]) >= 4.5


def test_each_operator_is_of_one_kind_and_each_kind_has_a_color() -> None:
    assert max(Counter(chain.from_iterable(KINDS.values())).values()) == 1
    assert [*KINDS, OTHER] == list(COLORS)


def test_each_node_has_a_head_of_its_kind() -> None:
    network = Network(["a", "b"], ["Conv", "Add"], [["x"], ["a"]], [["a"], ["b"]], ["x"], ["b"])
    text = draw_svg(Drawer(network).layout(), style=False)
    assert text.count('class="head multiply"') == text.count('class="head other"') == 1
    assert text.count('class="head') == 2, "an input and an output have none"
