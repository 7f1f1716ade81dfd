"""Names that annotations share, and the decorator of most classes; nothing heavy is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, dataclass_transform

if TYPE_CHECKING:
    import numpy as np

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Arrays: TypeAlias = "Mapping[str, Array]"  # by the name of the tensor
Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Mapping[str, Sequence[int]]  # by the name of the input
Strings: TypeAlias = tuple[str, ...]
StringMap: TypeAlias = Mapping[str, str]
Fields: TypeAlias = Mapping[str, Any]  # options, or an object of JSON or TOML, for reading only
JsonObject: TypeAlias = dict[str, Any]  # an object of JSON or TOML that is built
_T = TypeVar("_T")


def _make_frozen(kind: type[_T], kw_only: bool) -> type[_T]:
    """Make a class a frozen dataclass.

    The methods are closures: `dataclass` compiles the text of each for each class, which takes a
    tenth of a second of the start of a search.
    """
    made: Any = dataclass(frozen=True, eq=False, repr=False, kw_only=kw_only)(kind)
    shown = [f.name for f in fields(made) if f.repr]
    values = attrgetter("__class__", *(f.name for f in fields(made) if f.compare))

    def is_equal(one: object, other: object) -> Any:
        if other.__class__ is not one.__class__:
            return NotImplemented
        return values(one) == values(other)

    def compute_hash(one: object) -> int:
        return hash(values(one))

    @recursive_repr()
    def describe(one: object) -> str:
        text = ", ".join(f"{name}={getattr(one, name)!r}" for name in shown)
        return f"{one.__class__.__qualname__}({text})"

    for name, method in (("__eq__", is_equal), ("__hash__", compute_hash), ("__repr__", describe)):
        if name not in vars(kind):
            setattr(kind, name, method)
    return kind


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(kind: type[_T]) -> type[_T]:
    """Make a class a dataclass whose objects do not change."""
    return _make_frozen(kind, kw_only=False)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen_keywords(kind: type[_T]) -> type[_T]:
    """Make a class a dataclass whose objects do not change, and whose fields are given by name."""
    return _make_frozen(kind, kw_only=True)
