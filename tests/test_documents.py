"""`documents`: a dataclass becomes JSON, whatever it holds, and nothing is lost on the way but what JSON lacks."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subgraph.documents import absent, keyed, problem, read_document, to_json
from subgraph.errors import InputError


class Kind(StrEnum):
    FIRST = "first"


@dataclass(frozen=True)
class Inner:
    kind: Kind
    path: Path
    source: str = keyed("from", default="")


@dataclass(frozen=True)
class Outer:
    name: str
    inner: tuple[Inner, ...] = ()
    sizes: dict[str, float] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    why: str | None = absent()


def test_every_kind_of_value() -> None:
    outer = Outer("a", (Inner(Kind.FIRST, Path("b/c"), "d"),), {"e": math.nan, "f": -math.inf}, frozenset("hg"))
    assert to_json(outer) == {
        "name": "a",
        "inner": [{"kind": "first", "path": "b/c", "from": "d"}],
        "sizes": {"e": "nan", "f": "-inf"},
        "names": ["g", "h"],
    }
    assert to_json(Outer("a", why=""))["why"] == "", "absent means None, not empty"


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(PLAIN)
def test_the_result_is_strict_json_and_stays_as_it_is(value: object) -> None:
    plain = to_json(value)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain == to_json(plain)


SHAPE = {"files": [str], "size": float, "seed?": int, "why?": (str, type(None)), "by": {str: {"on": bool}}, "any?": Any}
RIGHT = {"files": ["a"], "size": 3, "seed": 1, "why": None, "by": {"x": {"on": True}}, "any": [1], "more": 2}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"files": "a"}, "files: expected a list, not 'a'"),
        ({"files": ["a", None]}, "files[1]: expected a text, not null"),
        ({"size": True}, "size: expected a number, not True"),
        ({"seed": 1.5}, "seed: expected a whole number, not 1.5"),
        ({"why": {}}, "why: expected a text or null, not an object"),
        ({"by": {"x": {}}}, "by.x.on: is missing"),
        ({"by": []}, "by: expected an object, not a list"),
        ({"seed": 1 << 70}, "seed: the number is out of bounds"),
        ({"any": [[float("inf")]]}, "any.0.0: expected a finite number, not inf"),
        ({"more": {"deep": float("nan")}}, "more.deep: expected a finite number, not nan"),
    ],
)
def test_a_document_departs_from_its_shape(change: dict[str, object], says: str) -> None:
    assert problem(RIGHT | change, SHAPE) == says


@pytest.mark.parametrize("text", ["", "{", "\udcff", "[" * 100_000, "1" * 10_000, "Infinity", "[]"])
def test_a_file_that_is_no_such_document_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text, errors="surrogateescape")
    with pytest.raises(InputError, match=r"run\.json is damaged") as refused:
        read_document(tmp_path / "run.json", SHAPE, "make it anew")
    assert refused.value.hint == "make it anew"
    with pytest.raises(InputError, match=r"cannot read .*none\.json"):
        read_document(tmp_path / "none.json", SHAPE, "")
