"""Document -> where it departs from its schema; empty where it does not.

Only the keywords of JSON Schema (draft 2020-12) that the schemas use, which share their definitions; others are
ignored. `subcut report` checks a file before it is rendered, so that a missing field is named and crashes no report.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from typing import Any, TypedDict

Rule = TypedDict(
    "Rule",
    {
        "type": str | list[str],
        "enum": list[Any],
        "required": list[str],
        "properties": dict[str, "Rule"],
        "if": "Rule",
        "then": "Rule",
        "$ref": str,
        "$defs": dict[str, "Rule"],
    },
    total=False,
)
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}


FILES = {
    "subcut.compare/1": "compare", "subcut.recorded/1": "recorded", "subcut.interval/1": "recorded",
    "subcut.sweep/1": "sweep",
}  # fmt: skip


@cache
def schema(name: str = "bisect") -> Rule:
    """The published schema of bisections, of `compare`, of recordings (`recorded`), or of `sweep`."""
    text = resources.files("subgraph.reports").joinpath(f"{name}.schema.json").read_text(encoding="utf-8")
    rule: Rule = json.loads(text)
    return rule


@cache
def definitions() -> dict[str, Rule]:
    """By name; the schemas share them."""
    return schema()["$defs"] | schema("sweep")["$defs"]


def problem(document: Any) -> str:
    """The first departure as `findings[0].nodes: is missing`; empty for a right document."""
    kind = document.get("schema") if isinstance(document, dict) else None
    return next(_problems(document, schema(FILES.get(str(kind), "bisect")), ""), "")


def _problems(value: Any, rule: Rule, where: str) -> Iterator[str]:
    for key, expected in rule.items():
        if key in KEYWORDS:
            yield from KEYWORDS[key](value, expected, where)
    if "if" in rule and not any(_problems(value, rule["if"], where)):
        yield from _problems(value, rule.get("then", {}), where)


def _is_of_type(value: Any, name: str) -> bool:
    return isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def _type(value: Any, expected: str | list[str], where: str) -> Iterator[str]:
    names = [expected] if isinstance(expected, str) else expected
    if not any(_is_of_type(value, name) for name in names):
        yield f"{where or 'it'}: must be {' or '.join(names)}, is {type(value).__name__}"


def _enum(value: Any, expected: list[Any], where: str) -> Iterator[str]:
    if not any(value == allowed and type(value) is type(allowed) for allowed in expected):
        yield f"{where or 'it'}: must be one of {', '.join(map(str, expected))}"


def _required(value: Any, expected: list[str], where: str) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{_below(where, name)}: is missing" for name in expected if name not in value)


def _properties(value: Any, expected: dict[str, Rule], where: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name in expected.keys() & value.keys():
            yield from _problems(value[name], expected[name], _below(where, name))


def _values(value: Any, expected: Rule, where: str) -> Iterator[str]:
    for name, item in value.items() if isinstance(value, dict) else ():
        yield from _problems(item, expected, _below(where, name))


def _items(value: Any, expected: Rule, where: str) -> Iterator[str]:
    for index, item in enumerate(value if isinstance(value, list) else ()):
        yield from _problems(item, expected, f"{where}[{index}]")


def _any_of(value: Any, expected: list[Rule], where: str) -> Iterator[str]:
    problems = [list(_problems(value, rule, where)) for rule in expected]
    if all(problems):
        yield problems[0][0]


def _all_of(value: Any, expected: list[Rule], where: str) -> Iterator[str]:
    for rule in expected:
        yield from _problems(value, rule, where)


def _reference(value: Any, expected: str, where: str) -> Iterator[str]:
    yield from _problems(value, definitions()[expected.rpartition("/")[2]], where)


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


KEYWORDS: dict[str, Callable[[Any, Any, str], Iterator[str]]] = {
    "type": _type,
    "const": lambda value, expected, where: _enum(value, [expected], where),
    "enum": _enum,
    "required": _required,
    "properties": _properties,
    "additionalProperties": _values,  # `schema()` uses it for the values of maps only
    "items": _items,
    "anyOf": _any_of,
    "allOf": _all_of,
    "$ref": _reference,
}
