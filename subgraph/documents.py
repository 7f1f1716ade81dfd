"""Documents: frozen dataclasses <-> JSON. A dataclass is the only description of a document:
`to_json` writes it, `from_json` reads and checks a file that anybody may have edited, and
`make_schema` publishes it.

A field may be a text, a truth value, a number, None, an enumeration, a `Literal`, a sequence, a
tuple, a map by text, another dataclass, or a union of these whose members differ in JSON. A field
with a default may be missing, except for a `Literal`, which is always written and names the kind of
document. `float` takes whole numbers, too, and `Number` also the texts for NaN and infinities.
`object` takes everything.
"""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Callable, Mapping, Sequence, Set
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
from subgraph.iterables import flatten
from subgraph.types import JsonObject

T = TypeVar("T")
NOT_FINITE = ("nan", "inf", "-inf")
Number: TypeAlias = Annotated[float, NOT_FINITE]

# Types of texts that may leave this machine in a bundle; a field of type `str` is left out.
Name: TypeAlias = str  # of a node, a tensor, a sample, an operator or a test; a condition on them
Word: TypeAlias = str  # of subcut, or of the machine's make
Version: TypeAlias = str
File: TypeAlias = str  # a path, of which the last part leaves
CommandLine: TypeAlias = str  # without the words that may be private

MAX_INTEGER = 1 << 63  # of whole numbers
MAX_TEXT_BYTES = 1 << 20  # of a file that a person writes
ABSENT = "absent"
KEY = "key"
KIND = "kind"
PART = "part"
# The names of a type: in JSON, and in an error.
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
    """Declare a dataclass field that is left out of the JSON while it is None; a document whose
    `kind` is that must have it."""
    return field(default=None, metadata={ABSENT: True, KIND: of_kind})


def json_key(key: str, **options: Any) -> Any:
    """Declare a dataclass field whose JSON key is not a Python name, as `from`; `options` as of
    `dataclasses.field`."""
    return field(metadata={KEY: key}, **options)


def part(**options: Any) -> Any:
    """Declare a dataclass field that holds a dataclass whose keys are on the level of its owner in
    the JSON; `options` as of `dataclasses.field`."""
    return field(metadata={PART: True}, **options)


def to_json(value: Any) -> Any:
    """Return plain data for `json.dumps`: a dataclass becomes a dict in the order of its fields.

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
    kind: Any = type(value)
    return _find_writer(kind)(value)


@cache
def _find_writer(kind: Any) -> Callable[[Any], Any]:
    """Return the function by which `to_json` writes values of a type; it is found once, which takes
    longer than to write most values."""
    if is_dataclass(kind):
        return _make_writer_of_fields(kind)
    if issubclass(kind, Enum):
        return lambda value: value.value
    if issubclass(kind, float):
        return lambda value: value if math.isfinite(value) else str(value)
    if issubclass(kind, Path):
        return lambda value: value.as_posix()
    if issubclass(kind, Mapping):
        return lambda value: {str(key): to_json(item) for key, item in value.items()}
    if issubclass(kind, Set):
        return lambda value: sorted(map(to_json, value))
    if issubclass(kind, Sequence) and not issubclass(kind, (str, bytes)):
        return lambda value: [to_json(item) for item in value]
    return lambda value: value


def _make_writer_of_fields(kind: Any) -> Callable[[Any], Any]:
    parts = [f.name for f in fields(kind) if PART in f.metadata]
    known = [
        (f.metadata.get(KEY, f.name), f.name, f.metadata.get(ABSENT, False))
        for f in fields(kind)
        if PART not in f.metadata
    ]
    known.sort(key=lambda entry: (entry[2], entry[0] != "schema"))  # inherited ones follow it

    def write(value: Any) -> JsonObject:
        written = {
            key: to_json(item)
            for key, name, may_lack in known
            if (item := getattr(value, name)) is not None or not may_lack
        }
        for name in parts:
            written |= to_json(getattr(value, name))
        return written

    return write


# ------------------------------------------------------------ reading


class _DepartureError(Exception):
    """The first place at which a document does not have its type; each level on the way there adds
    its step."""

    def __init__(self, words: str, *steps: str) -> None:
        self.words = words
        self.steps = list(steps)  # the innermost first

    def __str__(self) -> str:
        return f"{''.join(reversed(self.steps)).removeprefix('.') or 'it'}: {self.words}"


def read_json(path: Path, hint: str) -> Any:
    """Read the JSON in a file; no number in it is infinite, not a number or out of bounds.

    Raises:
        InputError: it cannot be read, or is not JSON.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        _require_numbers(document)
    except OSError as e:
        raise InputError(
            f"cannot read {path}: {e.strerror or e}", hint, code="file.unreadable"
        ) from e
    except (
        ValueError,
        RecursionError,
        _DepartureError,
    ) as e:
        # Not UTF-8 and not JSON are both ValueErrors.
        raise InputError(f"{path} is not JSON: {e}", hint, code="document.damaged") from e
    return document


def read_text(path: Path) -> str:
    """Return the text of a file that a person wrote.

    Raises:
        OSError: The file cannot be read, is not a regular file or is too large.
        UnicodeError: The text is not UTF-8.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would block
        raise OSError("it is not a regular file")
    with path.open("rb") as file:
        data = file.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise OSError(f"it is larger than {MAX_TEXT_BYTES >> 20} MiB")
    return data.decode("utf-8")


def parse_toml(text: str) -> JsonObject:
    """Return the table in a TOML text.

    Raises:
        ValueError: The text is not TOML, or is nested too deeply.
    """
    import tomllib

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_document(path: Path, kind: type[T], hint: str) -> T:
    """Read the document in a file.

    Raises:
        InputError: The file cannot be read, holds no JSON or another document; the error names the
            key and the expected value.
    """
    return from_json(kind, read_json(path, hint), str(path), hint)


def from_json(kind: type[T], document: Any, what: str = "the document", hint: str = "") -> T:
    """Return a dataclass from plain JSON; keys that it does not have are passed over. `what` and
    `hint`: of the error.

    Raises:
        InputError: it is another document; names the key and what was expected.
    """
    try:
        return cast("T", _find_reader(cast("Any", kind))(document))
    except _DepartureError as e:
        raise InputError(f"{what} is damaged: {e}", hint, code="document.damaged") from None


Reader: TypeAlias = Callable[[Any], Any]  # of plain JSON; raises _DepartureError


@cache
def _find_reader(kind: Any) -> Reader:
    """Return the function that reads values of a type, once for each type: to take annotations
    apart takes longer than to read."""
    if kind in (object, Any):
        return _require_numbers
    known = _list_options(kind)
    options = [(one, _find_plain_type(one)[1], _make_reader(one)) for one in known]
    expected = " or ".join(dict.fromkeys(TYPES[_find_plain_type(one)[0]][1] for one in known))

    def read(value: Any) -> Any:
        possible = [(one, reader) for one, types, reader in options if isinstance(value, types)]
        if not possible or (isinstance(value, bool) and bool not in known):
            raise _DepartureError(f"expected {expected}, not {_show(value)}")
        if len(possible) > 1:
            possible = [pair for pair in possible if _fits(value, pair[0])] or possible[-1:]
        return possible[0][1](value)

    return read


def _make_reader(option: Any) -> Reader:
    """Return a reader of values that have the plain type of one option."""
    plain = _find_plain_type(option)[0]
    if plain is list:
        return _make_reader_of_list(option)
    if plain is dict:
        return (
            _make_reader_of_fields(option)
            if is_dataclass(option)
            else _make_reader_of_map(*get_args(option))
        )
    words = _list_words(option)
    is_number = get_origin(option) is Annotated
    made = option if isinstance(option, type) and issubclass(option, (Enum, Path)) else None

    def read(value: Any) -> Any:
        if words and isinstance(value, str) and value not in words:
            raise _DepartureError(
                f"expected one of {', '.join(map(str, words))}, not {_show(value)}"
            )
        if plain in (int, float):
            _require_numbers(value)
        if is_number:
            return float(value)
        if made:
            return made(value)
        return value

    return read


def _make_reader_of_list(option: Any) -> Reader:
    args = get_args(option)
    origin = get_origin(option)
    fixed = [_find_reader(one) for one in args] if origin is tuple and args[-1] is not ... else None
    reader = _find_reader(args[0])

    def read(value: list[Any]) -> Any:
        readers = [reader] * len(value) if fixed is None else fixed
        if len(readers) != len(value):
            raise _DepartureError(f"expected {len(readers)} values, not {len(value)}")
        items = []
        k = 0
        try:
            for k, item in enumerate(value):
                items.append(readers[k](item))
        except _DepartureError as e:
            e.steps.append(f"[{k}]")
            raise
        return items if origin is list else tuple(items)

    return read


def _make_reader_of_map(keys: Any, values: Any) -> Reader:
    needed = _list_words(keys)
    reader = _find_reader(values)

    def read(value: JsonObject) -> Any:
        if missing := next((word for word in needed if word not in value), None):
            raise _DepartureError("is missing", f".{missing}")
        found = {}
        key = ""
        try:
            for key, item in value.items():
                found[key] = reader(item)
        except _DepartureError as e:
            e.steps.append(f".{key}")
            raise
        return found

    return read


def _make_reader_of_fields(kind: Any) -> Reader:
    @cache
    def readers() -> list[tuple[_Field, Reader]]:  # when it is first used: a type may hold itself
        return [(f, _find_reader(f.type)) for f in _list_fields(kind)]

    def read(value: JsonObject) -> Any:
        found = {}
        key = ""
        try:
            for f, reader in readers():
                key = f".{f.key}" if f.key else ""
                if not f.key:
                    found[f.name] = reader(value)
                elif f.key in value:
                    found[f.name] = reader(value[f.key])
                elif f.required or (f.of_kind and f.of_kind == value.get("kind")):
                    raise _DepartureError("is missing")
        except _DepartureError as e:
            e.steps.append(key)
            raise
        return kind(**found)

    return read


def _fits(value: Any, option: Any) -> bool:
    """Return whether a value of the right plain type is a member of an enumeration, or has all
    fields that a dataclass needs."""
    if isinstance(value, dict):
        needs = _list_flat_fields(cast("type", option)) if is_dataclass(option) else ()
        return all(
            f.key in value
            and (get_origin(f.type) is not Literal or value[f.key] in get_args(f.type))
            for f in needs
            if f.required
        )
    return not isinstance(value, str) or not (words := _list_words(option)) or value in words


class _Field(NamedTuple):
    """A field of a dataclass, as JSON has it; `key`: "" for a part. `of_kind`: of documents of that
    kind it is required."""

    name: str
    key: str
    type: Any
    required: bool
    of_kind: str


@cache
def _list_fields(kind: type) -> list[_Field]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        _Field(
            f.name,
            "" if PART in f.metadata else f.metadata.get(KEY, f.name),
            hints[f.name],
            (f.default is MISSING and f.default_factory is MISSING)
            or get_origin(hints[f.name]) is Literal,
            f.metadata.get(KIND, ""),
        )
        for f in fields(kind)
    ]


@cache
def _list_flat_fields(kind: type) -> list[_Field]:
    """Return the fields of a dataclass and, in place of its parts, theirs."""
    return list(flatten([f] if f.key else _list_flat_fields(f.type) for f in _list_fields(kind)))


@cache
def _list_options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


@cache
def _find_plain_type(kind: Any) -> tuple[type, tuple[type, ...]]:
    """Return the type that JSON has for a type, and the Python types that are accepted."""
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
def _list_words(kind: Any) -> Sequence[object]:
    """Return the only texts of a type; none for one that has any."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    if get_origin(kind) is Annotated:
        return NOT_FINITE
    return (
        [member.value for member in kind]
        if isinstance(kind, type) and issubclass(kind, Enum)
        else ()
    )


def _require_numbers(value: Any) -> Any:
    """Require that no number in a value is infinite or NaN, and return the value.

    Raises:
        _DepartureError: The document has a number that JSON lacks, or one beyond the range of any
            field.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise _DepartureError(f"expected a finite number, not {_show(value)}")
    if isinstance(value, int) and abs(value) >= MAX_INTEGER:
        raise _DepartureError("the number is out of bounds")
    if isinstance(value, (dict, list)):
        step = ""
        try:
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                step = f".{key}" if isinstance(key, str) else f"[{key}]"
                _require_numbers(item)
        except _DepartureError as e:
            e.steps.append(step)
            raise
    return value


def _show(value: Any) -> str:
    if isinstance(value, (str, int, float)):
        return repr(value)[:60]
    return TYPES[type(value)][1]


# ------------------------------------------------------------ the schema


def make_schema(kind: type) -> JsonObject:
    """Return the JSON Schema (draft 2020-12) of a document, which allows further fields."""
    defs: JsonObject = {}
    return (
        {"$schema": "https://json-schema.org/draft/2020-12/schema"}
        | _make_rule(kind, defs)
        | {"$defs": defs}
    )


def _make_rule(kind: Any, defs: JsonObject) -> JsonObject:
    if kind in (object, Any):
        return {}
    options = _list_options(kind)
    origin = get_origin(kind)
    args = get_args(kind)
    if len(options) > 1:
        return {"anyOf": [_make_rule(option, defs) for option in options]}
    if origin is Annotated:
        return {"anyOf": [{"type": "number"}, {"enum": list(NOT_FINITE)}]}
    if words := _list_words(kind):
        return {"enum": list(words)}
    if is_dataclass(kind):
        name = cast("type", kind).__name__
        if name not in defs:
            defs[name] = {}  # it may hold itself
            defs[name] = _make_rule_of_fields(cast("type", kind), defs)
        return {"$ref": f"#/$defs/{name}"}
    rule: JsonObject = {"type": TYPES[_find_plain_type(kind)[0]][0]}
    if rule["type"] == "object":
        needed = {"required": list(words)} if (words := _list_words(args[0])) else {}
        return rule | needed | {"additionalProperties": _make_rule(args[1], defs)}
    if rule["type"] == "array" and origin is tuple and args[-1] is not ...:
        return rule | {
            "prefixItems": [_make_rule(one, defs) for one in args],
            "items": False,
            "minItems": len(args),
        }
    return rule | {"items": _make_rule(args[0], defs)} if rule["type"] == "array" else rule


def _make_rule_of_fields(kind: type, defs: JsonObject) -> JsonObject:
    known = _list_flat_fields(kind)
    rule: JsonObject = {"type": "object", "description": kind.__doc__ or ""}
    rule["required"] = [f.key for f in known if f.required]
    rule["properties"] = {f.key: _make_rule(f.type, defs) for f in known}
    if kinds := dict.fromkeys(f.of_kind for f in known if f.of_kind):
        rule["allOf"] = [
            {
                "if": {"required": ["kind"], "properties": {"kind": {"const": word}}},
                "then": {"required": [f.key for f in known if f.of_kind == word]},
            }
            for word in kinds
        ]
    return rule
