"""Equal parts have equal digests; parts of other values, types or borders have others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from subgraph.storage.digest import digest, digest_file

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
PARTS = st.recursive(
    JSON
    | st.floats()
    | st.binary()
    | st.text(st.characters())
    | st.sampled_from([0, 0.0, -0.0, False, "", b"", None]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=4,
)


def exact(part: Any) -> Any:
    """Equal only for equal values of equal types."""
    if isinstance(part, (list, tuple)):
        return ["list", *map(exact, part)]
    if isinstance(part, dict):
        return {key: exact(value) for key, value in part.items()}
    return f"{type(part).__name__} {part!r}"


@settings(max_examples=30)
@given(st.lists(PARTS, max_size=3), st.lists(PARTS, max_size=3))
def test_distinct_parts_have_distinct_digests(one: list[Any], two: list[Any]) -> None:
    assert (digest(*one) == digest(*two)) == (exact(one) == exact(two))


@given(st.text(), st.text(min_size=1), st.text())
def test_border_counts(a: str, b: str, c: str) -> None:
    found = {
        digest(a, b, c),
        digest(a + b, c),
        digest(a, b + c),
        digest(a + b + c),
        digest([a, b], c),
        digest(a, [b, c]),
    }
    assert len(found) == 6


def test_digests_stay() -> None:
    """They name what is on users' disks."""
    assert digest() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert digest("a", b"b", 1, 1.5, True, None, ["x", {"k": 2, "a": 1}])[:16] == "2e078f011b61aa1d"
    assert digest({"k": 2, "a": 1}) == digest({"a": 1, "k": 2})
    assert digest((1, 2)) == digest([1, 2])


@pytest.mark.parametrize("part", [{1}, Path(), object(), np.int64(1), 1j])
def test_value_without_a_digest_is_an_error(part: Any) -> None:
    with pytest.raises(TypeError, match=f"a {type(part).__name__} cannot be hashed"):
        digest("x", [part])


def test_digest_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    found = digest_file(tmp_path / "a")
    assert found == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    with pytest.raises(FileNotFoundError):
        digest_file(tmp_path / "b")
