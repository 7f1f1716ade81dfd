"""The decorator of most classes does what `dataclass` does, which is the oracle.

Covers `types`.
"""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace

import pytest
from hypothesis import given, strategies as st

from subgraph.types import frozen, frozen_keywords


@frozen
class Ours:
    a: int
    b: str = "x"
    hidden: int = field(default=0, repr=False)
    ignored: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Theirs:
    a: int
    b: str = "x"
    hidden: int = field(default=0, repr=False)
    ignored: int = field(default=0, compare=False)


@frozen
class Wider(Ours):
    c: float = 0.0


@frozen
class Named:
    a: int

    def __repr__(self) -> str:
        return "its own text"


SMALL = st.integers(0, 1)
VALUES = st.tuples(SMALL, st.sampled_from(["x", "y"]), SMALL, SMALL)


@given(VALUES, VALUES)
def test_equality_hash_and_text_are_those_of_a_dataclass(
    one: tuple[int, str, int, int], other: tuple[int, str, int, int]
) -> None:
    assert (Ours(*one) == Ours(*other)) == (Theirs(*one) == Theirs(*other))
    assert len({Ours(*one), Ours(*other)}) == len({Theirs(*one), Theirs(*other)})
    assert repr(Ours(*one)).replace("Ours", "Theirs") == repr(Theirs(*one))


def test_objects_of_other_classes_are_not_equal() -> None:
    assert Ours(1) != Wider(1)
    assert Wider(1, c=1.0) != Wider(1, c=2.0)


def test_a_method_of_the_class_itself_stays() -> None:
    assert repr(Named(1)) == "its own text"


def test_objects_do_not_change_and_are_copied_with_changes_or_by_pickle() -> None:
    made = Wider(1, c=2.0)
    with pytest.raises(FrozenInstanceError):
        made.a = 2  # type: ignore[misc]
    assert replace(made, a=3) == Wider(3, c=2.0)
    assert pickle.loads(pickle.dumps(made)) == made


def test_keywords_are_required() -> None:
    @frozen_keywords
    class Keywords:
        a: int

    assert Keywords(a=1) == Keywords(a=1)
    with pytest.raises(TypeError):
        Keywords(1)  # type: ignore[call-arg]
