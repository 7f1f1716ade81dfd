"""Documents: frozen dataclasses <-> JSON.

A dataclass is the only description of a document. `to_json` writes a document. `from_json` reads a
file that anybody may have edited, and checks it. `make_schema` returns the JSON Schema.

The type of a field is a text, a truth value, a number, None, an enumeration, a `Literal`, a
sequence, a tuple, a map by text, another dataclass, or a union of these. The members of a union
differ in JSON. `float` accepts whole numbers, too. `Number` also accepts the texts for NaN and
infinities. `object` accepts everything.

A field with a default may be missing from a file. A `Literal` may not: it is always written, and
names the kind of document.

To support a new type of field, add it to `_find_writer` for writing, to `_find_plain_type` and
`_make_reader` for reading, and to `_make_rule` for the schema.
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
from subgraph.lazy import tomllib
from subgraph.types import JsonObject

T = TypeVar("T")
NOT_FINITE = ("nan", "inf", "-inf")
Number: TypeAlias = Annotated[float, NOT_FINITE]

# The types of texts that a bundle contains. A bundle does not contain fields of type `str`.
Name: TypeAlias = str  # a node, tensor, sample, operator or test; or a condition on these
Word: TypeAlias = str  # a word that subcut defines, or the make of the machine
Version: TypeAlias = str
File: TypeAlias = str  # a path; a bundle contains only its last part
CommandLine: TypeAlias = str  # a bundle does not contain words that may be private

MAX_INTEGER = 1 << 63  # the limit of whole numbers
MAX_TEXT_BYTES = 1 << 20  # the limit of a file that a person writes
ABSENT = "absent"
KEY = "key"
KIND = "kind"
PART = "part"
# The name of each type in a JSON Schema, and in an error.
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
    """Declare a dataclass field that the JSON does not have if it is None.

    Args:
        of_kind: The `kind` of the documents that must have the field; "" for none.
    """
    return field(default=None, metadata={ABSENT: True, KIND: of_kind})


def json_key(key: str, **options: Any) -> Any:
    """Declare a dataclass field whose JSON key cannot be a name in Python, like `from`.

    Args:
        key: The JSON key.
        options: Options of `dataclasses.field`.
    """
    return field(metadata={KEY: key}, **options)


def part(**options: Any) -> Any:
    """Declare a field of a dataclass whose own fields are keys of the owner's object in the JSON.

    Args:
        options: Options of `dataclasses.field`.
    """
    return field(metadata={PART: True}, **options)


def to_json(value: Any) -> Any:
    """Return plain data for `json.dumps`: a dataclass becomes a dict in the order of its fields.

    Enumerations become their values, paths become texts, tuples become lists, and sets become
    sorted lists. JSON has no NaN and no infinities: these become the texts "nan", "inf" and "-inf".
    Complexity: linear.

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
    """Return the function with which `to_json` writes values of a type.

    It is cached, because to find it takes longer than to write most values.
    """
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
    entries = [
        (f.metadata.get(KEY, f.name), f.name, f.metadata.get(ABSENT, False))
        for f in fields(kind)
        if PART not in f.metadata
    ]
    # `schema` comes first, also before inherited fields; fields that may be absent come last.
    entries.sort(key=lambda entry: (entry[2], entry[0] != "schema"))

    def write(value: Any) -> JsonObject:
        written = {
            key: to_json(item)
            for key, name, may_be_absent in entries
            if (item := getattr(value, name)) is not None or not may_be_absent
        }
        for name in parts:
            written |= to_json(getattr(value, name))
        return written

    return write


# ------------------------------------------------------------ reading


class _MismatchError(Exception):
    """The first value in a document that does not have the type of its field.

    Each reader on the way out to the root appends the step to its value, like `.nodes` or `[3]`.
    """

    def __init__(self, words: str, *steps: str) -> None:
        self.words = words
        self.steps = list(steps)  # the innermost first

    def __str__(self) -> str:
        return f"{''.join(reversed(self.steps)).removeprefix('.') or 'it'}: {self.words}"


def read_json(path: Path, hint: str) -> Any:
    """Return the JSON in a file, whose numbers are all finite and within bounds.

    Raises:
        InputError: The file cannot be read, is not JSON or has another number.
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
        _MismatchError,
    ) as e:
        # A text that is not UTF-8 or not JSON causes a ValueError.
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
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_document(path: Path, kind: type[T], hint: str) -> T:
    """Read the document in a file.

    Raises:
        InputError: The file cannot be read, is not JSON or is another document. The error names the
            key and the expected value.
    """
    return from_json(kind, read_json(path, hint), str(path), hint)


def from_json(kind: type[T], document: Any, what: str = "the document", hint: str = "") -> T:
    """Return an object of a dataclass from plain JSON; unknown keys are ignored.

    Args:
        kind: The dataclass, or any other type of a field.
        document: The plain JSON.
        what: The name of the document in an error.
        hint: The hint of an error.

    Raises:
        InputError: The JSON is not such a document. The error names the key and the expected value.
    """
    try:
        return cast("T", _find_reader(cast("Any", kind))(document))
    except _MismatchError as e:
        raise InputError(f"{what} is damaged: {e}", hint, code="document.damaged") from None


Reader: TypeAlias = Callable[[Any], Any]  # from plain JSON; raises _MismatchError


@cache
def _find_reader(kind: Any) -> Reader:
    """Return the function that reads values of a type.

    It is cached, because to analyze an annotation takes longer than to read a value.
    """
    if kind in (object, Any):
        return _require_numbers
    members = _list_members(kind)
    options = [(one, _find_plain_type(one)[1], _make_reader(one)) for one in members]
    expected = " or ".join(dict.fromkeys(TYPES[_find_plain_type(one)[0]][1] for one in members))

    def read(value: Any) -> Any:
        possible = [(one, reader) for one, types, reader in options if isinstance(value, types)]
        if not possible or (isinstance(value, bool) and bool not in members):
            raise _MismatchError(f"expected {expected}, not {_show(value)}")
        if len(possible) > 1:
            possible = [pair for pair in possible if _fits(value, pair[0])] or possible[-1:]
        return possible[0][1](value)

    return read


def _make_reader(option: Any) -> Reader:
    """Return a reader for one member of a union; values have its plain type already."""
    plain = _find_plain_type(option)[0]
    if plain is list:
        return _make_reader_of_list(option)
    if plain is dict:
        if is_dataclass(option):
            return _make_reader_of_fields(option)
        return _make_reader_of_map(*get_args(option))
    words = _list_words(option)
    is_number = get_origin(option) is Annotated
    wrapper = option if isinstance(option, type) and issubclass(option, (Enum, Path)) else None

    def read(value: Any) -> Any:
        if words and isinstance(value, str) and value not in words:
            raise _MismatchError(
                f"expected one of {', '.join(map(str, words))}, not {_show(value)}"
            )
        if plain in (int, float):
            _require_numbers(value)
        if is_number:
            return float(value)
        if wrapper:
            return wrapper(value)
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
            raise _MismatchError(f"expected {len(readers)} values, not {len(value)}")
        items = []
        k = 0
        try:
            for k, item in enumerate(value):
                items.append(readers[k](item))
        except _MismatchError as e:
            e.steps.append(f"[{k}]")
            raise
        return items if origin is list else tuple(items)

    return read


def _make_reader_of_map(keys: Any, values: Any) -> Reader:
    needed = _list_words(keys)
    reader = _find_reader(values)

    def read(value: JsonObject) -> Any:
        if missing := next((word for word in needed if word not in value), None):
            raise _MismatchError("is missing", f".{missing}")
        found = {}
        key = ""
        try:
            for key, item in value.items():
                found[key] = reader(item)
        except _MismatchError as e:
            e.steps.append(f".{key}")
            raise
        return found

    return read


def _make_reader_of_fields(kind: Any) -> Reader:
    @cache
    def readers() -> list[tuple[_Field, Reader]]:  # at the first use: a type may have itself
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
                    raise _MismatchError("is missing")
        except _MismatchError as e:
            e.steps.append(key)
            raise
        return kind(**found)

    return read


def _fits(value: Any, option: Any) -> bool:
    """Return whether a value of the right plain type fits one member of a union.

    An object needs the required fields of the dataclass. A text must be one of the possible texts.
    """
    if isinstance(value, dict):
        known = _list_flat_fields(cast("type", option)) if is_dataclass(option) else ()
        return all(
            f.key in value
            and (get_origin(f.type) is not Literal or value[f.key] in get_args(f.type))
            for f in known
            if f.required
        )
    return not isinstance(value, str) or not (words := _list_words(option)) or value in words


class _Field(NamedTuple):
    """A field of a dataclass.

    Attributes:
        name: The name in Python.
        key: The key in JSON; "" for a part.
        type: The annotation.
        required: Whether each document has it.
        of_kind: The kind of the documents that must have it; "" for none.
    """

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
    """Return the fields of a dataclass, with the fields of its parts instead of the parts."""
    return list(flatten([f] if f.key else _list_flat_fields(f.type) for f in _list_fields(kind)))


@cache
def _list_members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


@cache
def _find_plain_type(kind: Any) -> tuple[type, tuple[type, ...]]:
    """Return the plain type of a type in JSON, and the Python types of values that are accepted."""
    origin = get_origin(kind) or kind
    if origin is Annotated:
        return float, (int, float, str)
    if origin is Literal or issubclass(origin, (str, Path)):  # a StrEnum is a str
        return str, (str,)
    if is_dataclass(origin) or issubclass(origin, Mapping):
        return dict, (dict,)
    if issubclass(origin, Sequence):
        return list, (list,)
    return origin, (int, float) if origin is float else (origin,)


@cache
def _list_words(kind: Any) -> Sequence[object]:
    """Return the texts that a type is limited to; empty for a type without such a limit."""
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
        _MismatchError: A number is infinite or NaN, or is larger than any field allows.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise _MismatchError(f"expected a finite number, not {_show(value)}")
    if isinstance(value, int) and abs(value) >= MAX_INTEGER:
        raise _MismatchError("the number is out of bounds")
    if isinstance(value, (dict, list)):
        step = ""
        try:
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                step = f".{key}" if isinstance(key, str) else f"[{key}]"
                _require_numbers(item)
        except _MismatchError as e:
            e.steps.append(step)
            raise
    return value


def _show(value: Any) -> str:
    if isinstance(value, (str, int, float)):
        return repr(value)[:60]
    return TYPES[type(value)][1]


# ------------------------------------------------------------ the schema


def make_schema(kind: type) -> JsonObject:
    """Return the JSON Schema (draft 2020-12) of a document; it allows unknown keys."""
    defs: JsonObject = {}
    return (
        {"$schema": "https://json-schema.org/draft/2020-12/schema"}
        | _make_rule(kind, defs)
        | {"$defs": defs}
    )


def _make_rule(kind: Any, defs: JsonObject) -> JsonObject:
    if kind in (object, Any):
        return {}
    options = _list_members(kind)
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
            defs[name] = {}  # first of all, because a dataclass may have itself
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
    if rule["type"] == "array":
        return rule | {"items": _make_rule(args[0], defs)}
    return rule


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
