"""Symbolic sizes in few characters: what they stand for stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subgraph.inspection.drawn_network import UNKNOWN, short_size

LAYERS = ("floor(({})/2 - 1/2) + 1", "floor(({} - 1)/2) + 1", "ceiling(({})/2)", "{} + 2 - 2")


@given(st.lists(st.sampled_from(LAYERS), min_size=4, max_size=8))
def test_each_halving_of_a_size_is_counted(layers: list[str]) -> None:
    size = "height"
    for layer in layers:
        size = layer.format(size)
    halvings = sum("/2" in layer for layer in layers)
    assert short_size(size) == (f"height/{2**halvings}" if halvings else "height")


@pytest.mark.parametrize(
    ("size", "short"),
    [
        ("N", "N"),
        ("floor(width/3) + floor(width/3)", "2·width/3"),
        ("4*sequence_length + 12", "4·sequence_length"),
        ("Max(sequence_length, 1) + 0", "sequence_length"),
        ("height*width + height", UNKNOWN),
        ("height*height + height", UNKNOWN),
        ("floor(height/2", "floor(height/2"),
        ("floor(height/2 - 1/2", UNKNOWN),
        ("__import__('os').system('true')", UNKNOWN),
        ("2**2**2**2**2**2**2*height", UNKNOWN),
        ("height/0 + floor(height)", UNKNOWN),
        ("(" * 400 + "height" + ")" * 400, UNKNOWN),
        ("height + " * 300 + "1", UNKNOWN),
    ],
)
def test_long_text_ends_in_an_ellipsis(size: str, short: str) -> None:
    assert short_size(size) == short
