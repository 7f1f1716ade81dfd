"""`text`: names from a model made safe to show, and the nearest to a typo."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, strategies as st

from subgraph.text import (
    clean,
    clean_lines,
    count,
    find_nearest,
    format_large,
    is_text,
    omit_middle,
    shorten,
    shorten_names,
)

ANY = st.text(st.characters())  # surrogates and control characters, too


@given(ANY)
def test_nothing_that_moves_the_cursor_is_left(name: str) -> None:
    shown = clean(name)
    assert not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in shown)
    assert clean(shown) == shown and "\x1b" not in shown and "\u202e" not in shown
    assert clean_lines(name).replace("\n", "") == shown


@given(ANY)
def test_only_text_that_can_be_encoded_is_text(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        assert not is_text(name)
    else:
        assert is_text(name)


@given(st.text(), st.integers(3, 50))
def test_short_text_is_left_alone_and_a_long_one_fits(text: str, length: int) -> None:
    short = shorten(text, length)
    assert len(short) <= length and (short == text) == (len(text) <= length)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.0 k"),
        (76_300, "76.3 k"),
        (25.6e6, "25.6 M"),
        (2e9, "2.0 G"),
    ],
)
def test_numbers_of_parameters(number: float, text: str) -> None:
    assert format_large(number) == text


def test_counted_nouns() -> None:
    assert [count(n, "node") for n in (0, 1, 17)] == ["0 nodes", "1 node", "17 nodes"]


@pytest.mark.parametrize(
    ("word", "best"),
    [("pool2", "pool1"), ("RES2A_RELU", "res2a_relu"), ("cov1", "conv1"), ("res2a", "res2a_relu")],
)
def test_the_nearest_comes_first(word: str, best: str) -> None:
    assert find_nearest(word, ["conv1", "pool1", "res2a_relu", "fc1000", "prob"])[0] == best


@given(st.text(min_size=1), st.lists(st.text(), max_size=30))
def test_name_that_exists_is_its_own_nearest(word: str, others: list[str]) -> None:
    assert find_nearest(word, [*others, word])[0].lower() == word.lower()


def test_names_are_shortened_in_the_middle() -> None:
    assert omit_middle("/layer1/0/conv/Conv", 40) == "/layer1/0/conv/Conv"
    found = omit_middle("/encoder/layer.11/attention/output/dense/MatMul", 24)
    assert found == "/encode…put/dense/MatMul"
    assert len(omit_middle("卷" * 90, 24)) <= 13, "such characters are twice as wide"


def test_long_names_in_a_sentence_lose_their_middle() -> None:
    name = ";".join(f"model/activation_{k}/Relu" for k in range(9))
    assert shorten_names(f"at {name} (CONV_2D)") == f"at {omit_middle(name)} (CONV_2D)"
    assert shorten_names("at /down/pool/MaxPool") == "at /down/pool/MaxPool"
