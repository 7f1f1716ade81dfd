"""Names that annotations share, and the decorator of most classes; nothing heavy is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(kind: type[_T]) -> type[_T]:
    """Make a class a dataclass whose objects do not change."""
    return dataclass(frozen=True)(kind)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen_keywords(kind: type[_T]) -> type[_T]:
    """Make a class a dataclass whose objects do not change, and whose fields are given by name."""
    return dataclass(frozen=True, kw_only=True)(kind)
