"""Documents: dataclasses -> JSON, by `to_json`; a JSON file that anybody may have edited -> checked plain data, or
dataclasses again, by `read_as`.

What a document must hold is a shape: a type (`float` takes whole numbers, too), a tuple of types, `[shape]` for a list,
`{str: shape}` for a map, or `{"key": shape}` for an object, in which `"key?"` may be missing and others may be there.
`Any` takes everything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import Field, field, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

from subgraph.errors import InputError
from subgraph.text import clean

T = TypeVar("T")
LARGEST = 1 << 63  # of whole numbers
WORDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number", type(None): "null"}
ABSENT, KEY, LATER = "absent", "key", "later"
BESIDE = {"beside": True}  # metadata of a dataclass field that is no part of the JSON


def absent() -> Any:
    """A dataclass field that is left out of the JSON while it is None."""
    return field(default=None, metadata={ABSENT: True})


def keyed(key: str, **options: Any) -> Any:
    """A dataclass field whose JSON key is no Python name, `from` for example; `options` as of `dataclasses.field`."""
    return field(metadata={KEY: key}, **options)


def later(default: Any) -> Any:
    """A dataclass field that files of older versions lack."""
    return field(default=default, metadata={LATER: True})


def _keys(kind: Any) -> dict[str, Field[Any]]:
    """The fields of a dataclass by their keys in JSON."""
    return {f.metadata.get(KEY, f.name): f for f in fields(kind) if f.metadata != BESIDE}


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
            key: to_json(getattr(value, f.name))
            for key, f in _keys(type(value)).items()
            if not (f.metadata.get(ABSENT) and getattr(value, f.name) is None)
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, Set):
        return sorted(map(to_json, value))
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [to_json(item) for item in value]
    return value


def read_as(kind: type[T], path: Path, hint: str, **others: Any) -> T:
    """The dataclass that `to_json` wrote into a file; `others`: its fields that are no part of the JSON.

    Raises:
        InputError: as `read_document`. ValueError: the dataclass does not take these values.
    """
    read: T = from_json(kind, read_document(path, shape_of(kind), hint), **others)
    return read


def shape_of(kind: Any) -> Any:
    """The shape of the JSON of a dataclass, or of what is annotated so in one.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Tensor:
    ...     shape: tuple[int, ...]
    ...     why: str | None = absent()
    >>> shape_of(Tensor)
    {'shape': [<class 'int'>], 'why?': <class 'str'>}
    """
    args = get_args(kind)
    if is_typeddict(kind):
        return {key: shape_of(hint) for key, hint in get_type_hints(kind).items()}
    if is_dataclass(kind):
        shape, hints = dict[str, Any](), get_type_hints(kind)
        for key, f in _keys(kind).items():
            if f.metadata.get(ABSENT):
                shape[f"{key}?"] = shape_of(_present(hints[f.name]))
            else:
                shape[f"{key}?" if f.metadata.get(LATER) else key] = shape_of(hints[f.name])
        return shape
    if NoneType in args or not args:
        return args or kind
    return {str: shape_of(args[1])} if args[0] is str and args[1:] not in ((), (...,)) else [shape_of(args[0])]


def from_json(kind: type[T], data: Any, **others: Any) -> T:
    """What `to_json` made `data` of: a value of this dataclass; `others`: as of `read_as`. Nothing is checked.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Tensor:
    ...     shape: tuple[int, ...]
    >>> from_json(Tensor, {"shape": [1, 64]}).shape
    (1, 64)

    Raises:
        KeyError, TypeError, ValueError, AttributeError: it was made of something else.
    """
    plain: Any = kind
    value: T = _reader(plain)(data, **others)
    return value


@cache
def _reader(kind: Any) -> Callable[..., Any]:
    origin, parts = get_origin(kind), get_args(kind)
    inner = [_reader(part) for part in parts if part not in (NoneType, Ellipsis)]
    if is_typeddict(kind):
        typed = {key: _reader(hint) for key, hint in get_type_hints(kind).items()}
        return lambda data: {key: of(data[key]) for key, of in typed.items()}
    if is_dataclass(kind):
        hints, make = get_type_hints(kind), cast("Callable[..., Any]", kind)
        known = [(f, key, _reader(hints[f.name])) for key, f in _keys(kind).items()]
        optional = {f.name for f, _, _ in known if f.metadata.get(ABSENT) or f.metadata.get(LATER)}
        return lambda data, **others: make(
            **{f.name: of(data[key]) for f, key, of in known if key in data or f.name not in optional}, **others
        )
    if origin in (Union, UnionType):  # of two kinds, both are plain data
        return lambda value: value if value is None or len(inner) > 1 else inner[0](value)
    if origin is tuple and Ellipsis not in parts:
        return lambda values: tuple(of(value) for of, value in zip(inner, values, strict=True))
    if origin in (dict, Mapping):
        return lambda values: {inner[0](key): inner[1](value) for key, value in values.items()}
    if origin in (tuple, list, Sequence):
        return lambda values: (tuple if origin is tuple else list)(map(inner[0], values))
    return (lambda value: value) if kind is Any else cast("Callable[[Any], Any]", kind)


def _present(hint: Any) -> Any:
    """`X` of an annotation `X | None`."""
    return next(a for a in get_args(hint) if a is not NoneType) if NoneType in get_args(hint) else hint


def read_document(path: Path, shape: Any, hint: str) -> Any:
    """The JSON in a file, which has that shape; no number in it is infinite, not a number or out of bounds.

    Raises:
        InputError: it cannot be read, is no JSON, or has another shape; names the key and what was expected.
    """
    try:
        return checked(json.loads(path.read_text(encoding="utf-8")), shape, str(path), hint)
    except OSError as e:
        raise InputError(f"cannot read {clean(str(path))}: {e.strerror or e}", hint) from e
    except (ValueError, RecursionError) as e:  # not UTF-8 and not JSON are both ValueErrors
        raise InputError(f"{clean(str(path))} is damaged: {clean(str(e))}", hint) from e


def checked(document: Any, shape: Any, what: str, hint: str) -> Any:
    """The document itself; `what` and `hint`: of the error.

    Raises:
        InputError: it has another shape.
    """
    if why := problem(document, shape):
        raise InputError(f"{clean(what)} is damaged: {clean(why)}", hint)
    return document


def problem(value: Any, shape: Any, where: str = "") -> str:
    """The first place at which a value departs from a shape; "" where it does not. Complexity: linear.

    >>> problem({"files": ["a", 3], "seed": 1}, {"files": [str], "seed?": int})
    'files[1]: expected a text, not 3'
    """
    if shape is Any:
        return _odd_number(value, where)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return _expected(value, where, "a list")
        places = ((item, shape[0], f"{where}[{k}]") for k, item in enumerate(value))
    elif isinstance(shape, dict):
        if not isinstance(value, dict):
            return _expected(value, where, "an object")
        required = [key for key in shape if key is not str and not key.endswith("?")]
        if missing := next((key for key in required if key not in value), None):
            return f"{_below(where, missing)}: is missing"
        inner = {key.removesuffix("?"): rule for key, rule in shape.items() if key is not str}
        any_key = shape.get(str, Any)
        places = ((item, inner.get(key, any_key), _below(where, key)) for key, item in value.items())
    else:
        types = shape if isinstance(shape, tuple) else (shape,)
        fits = any(_is_of(value, kind) for kind in types)
        return _odd_number(value, where) if fits else _expected(value, where, " or ".join(WORDS[t] for t in types))
    return next(filter(None, (problem(*place) for place in places)), "")


def _is_of(value: Any, kind: type) -> bool:
    kinds = (int, float) if kind is float else (kind,)
    return isinstance(value, kinds) and (kind is bool or not isinstance(value, bool))


def _odd_number(value: Any, where: str) -> str:
    """Where a value holds a number that JSON lacks, or one that no field of ours can be; "" where it does not."""
    if isinstance(value, float) and not math.isfinite(value):
        return _expected(value, where, "a finite number")
    if isinstance(value, int) and abs(value) >= LARGEST:
        return f"{where or 'it'}: the number is out of bounds"
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return next(filter(None, (_odd_number(item, _below(where, str(key))) for key, item in items)), "")


def _expected(value: Any, where: str, what: str) -> str:
    plain = isinstance(value, (str, int, float))
    shown = (
        repr(value) if plain else "an object" if isinstance(value, dict) else "a list" if value is not None else "null"
    )
    return f"{where or 'it'}: expected {what}, not {shown[:60]}"


def _below(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
