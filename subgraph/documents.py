"""Documents: frozen dataclasses <-> JSON. A dataclass is the one description of what a document holds: `to_json` writes
it, `from_json` reads and checks what anybody may have edited, and `schema` publishes it.

A field may be a text, a truth value, a number, None, an enumeration, a `Literal`, a sequence, a tuple, a map by text,
another dataclass, or a union of these of which JSON tells the members apart. A field with a default may be missing,
but for a `Literal`, which is always written: it names the kind of document.
`float` takes whole numbers, too, and `Number` also the texts that stand for NaN and infinities. `object` takes
everything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import MISSING, field, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from subgraph.errors import InputError
from subgraph.text import clean

T = TypeVar("T")
NOT_FINITE = ("nan", "inf", "-inf")
Number: TypeAlias = Annotated[float, NOT_FINITE]

LARGEST = 1 << 63  # of whole numbers
ABSENT, KEY, KIND = "absent", "key", "kind"
# What JSON calls a type, and what an error does.
TYPES: Mapping[type, tuple[str, str]] = {
    str: ("string", "a text"),
    bool: ("boolean", "true or false"),
    int: ("integer", "a whole number"),
    float: ("number", "a number"),
    NoneType: ("null", "null"),
    list: ("array", "a list"),
    dict: ("object", "an object"),
}


def absent(*, of_kind: str = "") -> Any:
    """A dataclass field that is left out of the JSON while it is None; a document whose `kind` is that must have it."""
    return field(default=None, metadata={ABSENT: True, KIND: of_kind})


def keyed(key: str, **options: Any) -> Any:
    """A dataclass field whose JSON key is not a Python name, as `from`; `options` as of `dataclasses.field`."""
    return field(metadata={KEY: key}, **options)


def to_json(value: Any) -> Any:
    """Plain data, ready for `json.dumps`: a dataclass becomes a dict in the order of its fields.

    Enumerations become their values, paths texts, tuples lists, sets sorted lists. NaN and
    infinities, which JSON lacks, become the texts "nan", "inf" and "-inf". Complexity: linear.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Tensor:
    ...     name: str
    ...     shape: tuple[int, ...]
    ...     why: str | None = absent()
    >>> to_json(Tensor("conv1", (1, 64)))
    {'name': 'conv1', 'shape': [1, 64]}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {
            f.metadata.get(KEY, f.name): to_json(getattr(value, f.name))
            for f in fields(value)
            if not (f.metadata.get(ABSENT) and getattr(value, f.name) is None)
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Path):
        return value.as_posix()
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, Set):
        return sorted(map(to_json, value))
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [to_json(item) for item in value]
    return value


# ---------------------------------------------------------------------------------------------------- reading


class _DepartureError(Exception):
    """The first place at which a document is not what its type says."""


def read_json(path: Path, hint: str) -> Any:
    """The JSON in a file; no number in it is infinite, not a number or out of bounds.

    Raises:
        InputError: it cannot be read, or is not JSON.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        _require_numbers(document, "")
    except OSError as e:
        raise InputError(f"cannot read {clean(str(path))}: {e.strerror or e}", hint) from e
    except (ValueError, RecursionError, _DepartureError) as e:  # not UTF-8 and not JSON are both ValueErrors
        raise InputError(f"{clean(str(path))} is damaged: {clean(str(e))}", hint) from e
    return document


def read_document(path: Path, kind: type[T], hint: str) -> T:
    """The document in a file.

    Raises:
        InputError: it cannot be read, is no JSON, or is another document; names the key and what was expected.
    """
    return from_json(kind, read_json(path, hint), str(path), hint)


def from_json(kind: type[T], document: Any, what: str = "the document", hint: str = "") -> T:
    """A dataclass from plain JSON; keys that it does not have are passed over. `what` and `hint`: of the error.

    Raises:
        InputError: it is another document; names the key and what was expected.
    """
    try:
        return cast("T", _read(document, kind, ""))
    except _DepartureError as e:
        raise InputError(f"{clean(what)} is damaged: {clean(str(e))}", hint) from None


def problem(document: Any, kind: type) -> str:
    """The first place at which a document is not of a type; "" where it is. Complexity: linear.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Saved:
    ...     files: Sequence[str]
    ...     seed: int = 0
    >>> globals()["Saved"] = Saved
    >>> problem({"files": ["a", 3]}, Saved)
    'files[1]: expected a text, not 3'
    """
    try:
        _read(document, kind, "")
    except _DepartureError as e:
        return str(e)
    return ""


def _read(value: Any, kind: Any, where: str) -> Any:
    """The value as its type has it.

    Raises:
        _DepartureError: it is of another type.
    """
    if kind in (object, Any):
        _require_numbers(value, where)
        return value
    options = [one for one in _options(kind) if isinstance(value, _plain(one)[1])]
    if not options or (isinstance(value, bool) and bool not in options):
        words = dict.fromkeys(TYPES[_plain(one)[0]][1] for one in _options(kind))
        raise _DepartureError(f"{where or 'it'}: expected {' or '.join(words)}, not {_shown(value)}")
    option = options[0] if len(options) == 1 else next((one for one in options if _fits(value, one)), options[-1])
    args = get_args(option)
    if isinstance(value, dict):
        if is_dataclass(option):
            return cast("Any", option)(**_read_fields(value, cast("type", option), where))
        if missing := next((word for word in _words(args[0]) if word not in value), None):
            raise _DepartureError(f"{_below(where, str(missing))}: is missing")
        return {key: _read(item, args[1], _below(where, key)) for key, item in value.items()}
    if isinstance(value, list):
        kinds = args if get_origin(option) is tuple and args[-1] is not ... else [args[0]] * len(value)
        if len(kinds) != len(value):
            raise _DepartureError(f"{where or 'it'}: expected {len(kinds)} values, not {len(value)}")
        items = [_read(v, k, f"{where}[{i}]") for i, (v, k) in enumerate(zip(value, kinds, strict=True))]
        return items if get_origin(option) is list else tuple(items)
    if not _fits(value, option):
        known = [str(word) for one in options for word in _words(one)]
        raise _DepartureError(f"{where or 'it'}: expected one of {', '.join(known)}, not {_shown(value)}")
    _require_numbers(value, where)
    if get_origin(option) is Annotated:
        return float(value)
    return option(value) if isinstance(option, type) and issubclass(option, (Enum, Path)) else value


def _fits(value: Any, option: Any) -> bool:
    """Is a value of the right plain type one of an enumeration, or has all that a dataclass needs?"""
    if isinstance(value, dict):
        needs = _fields(cast("type", option)) if is_dataclass(option) else ()
        return all(f.key in value for f in needs if f.required)
    return not isinstance(value, str) or not (words := _words(option)) or value in words


def _read_fields(value: Mapping[str, Any], kind: type, where: str) -> dict[str, Any]:
    found = {}
    for f in _fields(kind):
        if f.key in value:
            found[f.name] = _read(value[f.key], f.type, _below(where, f.key))
        elif f.required or (f.of_kind and f.of_kind == value.get("kind")):
            raise _DepartureError(f"{_below(where, f.key)}: is missing")
    return found


class _Field(NamedTuple):
    """A field of a dataclass, as JSON has it; `of_kind`: of documents of that kind it is required."""

    name: str
    key: str
    type: Any
    required: bool
    of_kind: str


@cache
def _fields(kind: type) -> list[_Field]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        _Field(
            f.name, f.metadata.get(KEY, f.name), hints[f.name],
            (f.default is MISSING and f.default_factory is MISSING) or get_origin(hints[f.name]) is Literal,
            f.metadata.get(KIND, ""),
        )
        for f in fields(kind)
    ]  # fmt: skip


@cache
def _options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


@cache
def _plain(kind: Any) -> tuple[type, tuple[type, ...]]:
    """What JSON has in the place of a type, and what of Python that may be."""
    origin = get_origin(kind) or kind
    if origin is Annotated:
        return float, (int, float, str)
    if origin is Literal or issubclass(origin, (str, Path)):  # also of an enumeration
        return str, (str,)
    if is_dataclass(origin) or issubclass(origin, Mapping):
        return dict, (dict,)
    if issubclass(origin, Sequence):
        return list, (list,)
    return origin, (int, float) if origin is float else (origin,)


@cache
def _words(kind: Any) -> Sequence[object]:
    """The only texts of a type; none for one that has any."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    if get_origin(kind) is Annotated:
        return NOT_FINITE
    return [member.value for member in kind] if isinstance(kind, type) and issubclass(kind, Enum) else ()


def _require_numbers(value: Any, where: str) -> None:
    """
    Raises:
        _DepartureError: there is a number that JSON lacks, or one that no field of ours can be.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise _DepartureError(f"{where or 'it'}: expected a finite number, not {_shown(value)}")
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise _DepartureError(f"{where or 'it'}: the number is out of bounds")
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        _require_numbers(item, _below(where, str(key)))


def _shown(value: Any) -> str:
    if isinstance(value, (str, int, float)):
        return repr(value)[:60]
    return TYPES[type(value)][1]


def _below(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


# ---------------------------------------------------------------------------------------------------- the schema


def schema(kind: type) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a document; more fields may stand beside those that it names."""
    defs: dict[str, Any] = {}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | _rule(kind, defs) | {"$defs": defs}


def _rule(kind: Any, defs: dict[str, Any]) -> dict[str, Any]:
    if kind in (object, Any):
        return {}
    options, origin, args = _options(kind), get_origin(kind), get_args(kind)
    if len(options) > 1:
        return {"anyOf": [_rule(option, defs) for option in options]}
    if origin is Annotated:
        return {"anyOf": [{"type": "number"}, {"enum": list(NOT_FINITE)}]}
    if words := _words(kind):
        return {"enum": list(words)}
    if is_dataclass(kind):
        name = cast("type", kind).__name__
        if name not in defs:
            defs[name] = {}  # it may hold itself
            defs[name] = _rule_of_fields(cast("type", kind), defs)
        return {"$ref": f"#/$defs/{name}"}
    rule: dict[str, Any] = {"type": TYPES[_plain(kind)[0]][0]}
    if rule["type"] == "object":
        needed = {"required": list(words)} if (words := _words(args[0])) else {}
        return rule | needed | {"additionalProperties": _rule(args[1], defs)}
    if rule["type"] == "array" and origin is tuple and args[-1] is not ...:
        return rule | {"prefixItems": [_rule(one, defs) for one in args], "items": False, "minItems": len(args)}
    return rule | {"items": _rule(args[0], defs)} if rule["type"] == "array" else rule


def _rule_of_fields(kind: type, defs: dict[str, Any]) -> dict[str, Any]:
    known = _fields(kind)
    rule: dict[str, Any] = {"type": "object", "description": kind.__doc__ or ""}
    rule["required"] = [f.key for f in known if f.required]
    rule["properties"] = {f.key: _rule(f.type, defs) for f in known}
    if kinds := dict.fromkeys(f.of_kind for f in known if f.of_kind):
        rule["allOf"] = [
            {
                "if": {"required": ["kind"], "properties": {"kind": {"const": word}}},
                "then": {"required": [f.key for f in known if f.of_kind == word]},
            }
            for word in kinds
        ]
    return rule
