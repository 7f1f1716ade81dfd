"""`documents`: a dataclass becomes JSON, whatever it holds, and nothing is lost on the way but what JSON lacks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subgraph.documents import BESIDE, absent, keyed, later, problem, read_as, read_document, to_json
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


@dataclass(frozen=True)
class Kept:
    """A document that is read back; `folder` is where it lies."""

    folder: Path = field(metadata=BESIDE)
    sizes: tuple[tuple[int, ...], ...]
    shares: Mapping[str, float]
    log: list[Note]
    words: str | None
    since: int = later(3)
    why: Note | None = absent()


@dataclass(frozen=True)
class Note:
    text: str
    number: int = keyed("step")


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    kept = Kept(tmp_path, ((1, 2), ()), {"a": 0.5}, [Note("n", 1)], None, 4, Note("w", 2))
    file = tmp_path / "kept.json"
    file.write_text(json.dumps(to_json(kept)))
    assert read_as(Kept, file, "", folder=tmp_path) == kept
    older: dict[str, Any] = {"sizes": [], "shares": {}, "log": [], "words": None}
    file.write_text(json.dumps(older))
    assert read_as(Kept, file, "", folder=tmp_path) == Kept(tmp_path, (), {}, [], None, 3, None)
    for key, odd in (("log", [{"text": "n"}]), ("words", 1), ("why", None)):
        file.write_text(json.dumps(older | {key: odd}))
        with pytest.raises(InputError, match=rf"kept.json is damaged: {key}"):
            read_as(Kept, file, "", folder=tmp_path)
