"""Document -> where it departs from its schema; empty where it does not.

The few words of JSON Schema (draft 2020-12) that `bisect.schema.json` uses; others are ignored. A report that someone
sends is read before it is rendered, so that a missing field is named and not a crash.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}


@cache
def schema() -> dict[str, Any]:
    """The published schema."""
    text = resources.files("subgraph.reports").joinpath("bisect.schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def problem(document: Any) -> str:
    """The first departure as `findings[0].nodes: is missing`; empty for a right document."""
    return next(_problems(document, schema(), ""), "")


def _problems(value: Any, rule: dict[str, Any], where: str) -> Iterator[str]:
    for key, wanted in rule.items():
        if key in WORDS:
            yield from WORDS[key](value, wanted, where)
    if "if" in rule and not any(_problems(value, rule["if"], where)):
        yield from _problems(value, rule.get("then", {}), where)


def _is(value: Any, name: str) -> bool:
    return isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def _type(value: Any, wanted: str | list[str], where: str) -> Iterator[str]:
    names = [wanted] if isinstance(wanted, str) else wanted
    if not any(_is(value, name) for name in names):
        yield f"{where or 'it'}: must be {' or '.join(names)}, is {type(value).__name__}"


def _enum(value: Any, wanted: list[Any], where: str) -> Iterator[str]:
    if not any(value == one and type(value) is type(one) for one in wanted):
        yield f"{where or 'it'}: must be one of {', '.join(map(str, wanted))}"


def _required(value: Any, wanted: list[str], where: str) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{_below(where, name)}: is missing" for name in wanted if name not in value)


def _properties(value: Any, wanted: dict[str, Any], where: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name in wanted.keys() & value.keys():
            yield from _problems(value[name], wanted[name], _below(where, name))


def _values(value: Any, wanted: dict[str, Any], where: str) -> Iterator[str]:
    for name, one in value.items() if isinstance(value, dict) else ():
        yield from _problems(one, wanted, _below(where, name))


def _items(value: Any, wanted: dict[str, Any], where: str) -> Iterator[str]:
    for place, one in enumerate(value if isinstance(value, list) else ()):
        yield from _problems(one, wanted, f"{where}[{place}]")


def _any_of(value: Any, wanted: list[dict[str, Any]], where: str) -> Iterator[str]:
    found = [list(_problems(value, one, where)) for one in wanted]
    if all(found):
        yield found[0][0]


def _all_of(value: Any, wanted: list[dict[str, Any]], where: str) -> Iterator[str]:
    for one in wanted:
        yield from _problems(value, one, where)


def _reference(value: Any, wanted: str, where: str) -> Iterator[str]:
    yield from _problems(value, schema()["$defs"][wanted.rpartition("/")[2]], where)


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


WORDS: dict[str, Callable[[Any, Any, str], Iterator[str]]] = {
    "type": _type,
    "const": lambda value, wanted, where: _enum(value, [wanted], where),
    "enum": _enum,
    "required": _required,
    "properties": _properties,
    "additionalProperties": _values,  # `schema()` uses it for the values of maps only
    "items": _items,
    "anyOf": _any_of,
    "allOf": _all_of,
    "$ref": _reference,
}
