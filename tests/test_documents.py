"""`documents`: a dataclass becomes JSON, whatever it holds, and nothing is lost on the way but what JSON lacks."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from subgraph.documents import absent, keyed, to_json


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
