"""Kinds of operators: each operator has one, and its colors can be read."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest

from subgraph.drawing.families import COLORS, KINDS, WORDS
from subgraph.drawing.layout import Drawer
from subgraph.drawing.network import Network
from subgraph.drawing.svg import svg


def light(color: str) -> float:
    """Relative luminance, as WCAG defines it."""
    parts = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_read_on_each_hue_and_the_strip_is_seen(kind: str) -> None:
    strip, fill, dark_strip, dark_fill = COLORS[kind]
    for soft, panel in (("#59616b", fill), ("#a3acb6", dark_fill)):
        assert contrast(soft, panel) >= 4.5, "text"
    assert contrast(strip, fill) >= 3
    assert contrast(dark_strip, dark_fill) >= 3


def test_each_operator_is_of_one_kind_and_each_kind_has_words() -> None:
    assert max(Counter(chain.from_iterable(KINDS.values())).values()) == 1
    assert list(KINDS) == list(WORDS) == list(COLORS)


def test_box_has_the_strip_of_its_kind_and_arithmetic_none() -> None:
    network = Network(["a", "b"], ["Conv", "Add"], [["x"], ["a"]], [["a"], ["b"]], ["x"], ["b"])
    text = svg(Drawer(network).layout(), style=False)
    assert (
        text.count('class="strip') == 1
        and 'class="strip multiply"' in text
        and 'class="box node"' in text
    )
