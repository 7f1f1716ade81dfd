"""`documents`: a dataclass becomes JSON, whatever it holds, and nothing is lost on the way but what
JSON lacks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from subgraph.documents import (
    Number,
    absent,
    from_json,
    json_key,
    make_schema,
    part,
    read_document,
    to_json,
)
from subgraph.errors import InputError
from tests.helpers.documents import find_departure
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises


class Kind(StrEnum):
    FIRST = "first"


@dataclass(frozen=True)
class Inner:
    kind: Kind
    path: Path
    source: str = json_key("from", default="")


@dataclass(frozen=True)
class Outer:
    name: str
    inner: tuple[Inner, ...] = ()
    sizes: dict[str, float] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    why: str | None = absent()


def test_every_kind_of_value() -> None:
    outer = Outer(
        "a",
        (Inner(Kind.FIRST, Path("b/c"), "d"),),
        {"e": math.nan, "f": -math.inf},
        frozenset("hg"),
    )
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


@dataclass(frozen=True)
class On:
    on: bool


@dataclass(frozen=True, kw_only=True)
class Edited:
    files: Sequence[str]
    size: float
    seed: int = 0
    why: str | None = None
    by: Mapping[str, On]
    any: object = None
    kind: Kind | None = None
    found: On | Inner | None = None
    error: Number = 0.0
    pair: tuple[int, str] | None = None
    totals: Mapping[Kind, int] = field(default_factory=dict)
    rate: float | None = absent(of_kind="first")


RIGHT = {
    "files": ["a"],
    "size": 3,
    "seed": 1,
    "why": None,
    "by": {"x": {"on": True}},
    "any": [1],
    "more": 2,
}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({}, ""),
        ({"files": "a"}, "files"),
        ({"files": ["a", None]}, "files[1]"),
        ({"size": True}, "size"),
        ({"seed": 1.5}, "seed"),
        ({"why": {}}, "why"),
        ({"by": {"x": {}}}, "by.x.on"),
        ({"by": []}, "by"),
        ({"more": {"deep": float("nan")}}, ""),
        ({"kind": "second"}, "kind"),
        ({"kind": "first"}, "rate"),
        ({"found": {"kind": "first", "path": "a"}}, ""),
        ({"found": {"of": True}}, "found.kind"),
        ({"error": "nan"}, ""),
        ({"error": "many"}, "error"),
        ({"pair": [1, "a"]}, ""),
        ({"pair": [1]}, "pair"),
        ({"totals": {}}, "totals.first"),
    ],
)
def test_departure_from_the_shape_is_found_at_its_place(
    change: dict[str, object], place: str
) -> None:
    assert find_departure(RIGHT | change, Edited).partition(": ")[0] == place
    jsonschema = pytest.importorskip("jsonschema")
    assert jsonschema.Draft202012Validator(make_schema(Edited)).is_valid(RIGHT | change) == (
        not place
    )


@pytest.mark.parametrize(
    ("change", "place"), [({"seed": 1 << 70}, "seed"), ({"any": [[float("inf")]]}, "any[0][0]")]
)
def test_number_that_json_has_not_is_found_at_its_place(
    change: dict[str, object], place: str
) -> None:
    assert find_departure(RIGHT | change, Edited).partition(": ")[0] == place


def test_written_result_is_read_unchanged() -> None:
    edited = Edited(
        files=("a",),
        size=1.5,
        by={"x": On(True)},
        kind=Kind.FIRST,
        found=Inner(Kind.FIRST, Path("b"), "c"),
        error=math.inf,
        pair=(1, "b"),
        totals={Kind.FIRST: 3},
        rate=0.5,
    )
    assert from_json(Edited, json.loads(json.dumps(to_json(edited))), "", "") == edited


@pytest.mark.parametrize("text", ["", "{", "\udcff", "[" * 100_000, "1" * 10_000, "Infinity", "[]"])
def test_file_that_is_no_such_document_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text, errors="surrogateescape")
    with raises(InputError, "document.damaged", "run.json") as refused:
        read_document(tmp_path / "run.json", Edited, "make it anew")
    assert has_line(refused.value.hint, "anew")
    with raises(InputError, "file.unreadable", "none.json"):
        read_document(tmp_path / "none.json", Edited, "")


@dataclass(frozen=True)
class Size:
    width: int
    depth: int | None = absent(of_kind="box")


@dataclass(frozen=True)
class Shape:
    size: Size = part()
    kind: str = json_key("kind", default="plane")


@dataclass(frozen=True)
class Drawing:
    title: str
    shape: Shape = part()


DRAWING = Drawing("a", Shape(Size(3, 2), "box"))


def test_keys_of_a_part_are_on_the_level_of_its_owner() -> None:
    assert to_json(DRAWING) == {"title": "a", "kind": "box", "width": 3, "depth": 2}
    assert from_json(Drawing, to_json(DRAWING)) == DRAWING


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ({"title": "a", "kind": "plane"}, "width: is missing"),
        ({"title": "a", "width": 1, "kind": "box"}, "depth: is missing"),
        ({"title": "a", "width": "1"}, "width: expected a whole number, not '1'"),
    ],
)
def test_departure_in_a_part_is_found_at_its_key(document: object, place: str) -> None:
    assert find_departure(document, Drawing) == place


def test_schema_of_a_document_has_the_keys_of_its_parts() -> None:
    rule = make_schema(Drawing)["$defs"]["Drawing"]
    assert set(rule["properties"]) == {"title", "kind", "width", "depth"}
    assert rule["required"] == ["title", "width"]


def test_union_is_told_apart_by_the_keys_of_parts() -> None:
    @dataclass(frozen=True)
    class Page:
        content: Inner | Drawing

    globals()["Page"] = Page
    assert from_json(Page, {"content": to_json(DRAWING)}).content == DRAWING
