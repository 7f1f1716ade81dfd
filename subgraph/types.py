"""Names that annotations share; they load nothing at run time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Arrays: TypeAlias = "Mapping[str, Array]"  # by tensor
Shape: TypeAlias = tuple[int, ...]
Strings: TypeAlias = tuple[str, ...]
StringMap: TypeAlias = Mapping[str, str]
Fields: TypeAlias = Mapping[str, Any]  # options, or an object of JSON or TOML, to be read
JsonObject: TypeAlias = dict[str, Any]  # the same, to be written
