"""Documents: frozen dataclasses -> JSON, by `to_json`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

ABSENT, KEY = "absent", "key"


def absent() -> Any:
    """A dataclass field that is left out of the JSON while it is None."""
    return field(default=None, metadata={ABSENT: True})


def keyed(key: str, **options: Any) -> Any:
    """A dataclass field whose JSON key is no Python name, `from` for example; `options` as of `dataclasses.field`."""
    return field(metadata={KEY: key}, **options)


def to_json(value: Any) -> Any:
    """Plain data, ready for `json.dumps`: a dataclass becomes a dict in the order of its fields.

    Enumerations become their values, paths texts, tuples lists, sets sorted lists. NaN and infinities, which JSON
    lacks, become the texts "nan", "inf" and "-inf". Complexity: linear.

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
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, Set):
        return sorted(map(to_json, value))
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [to_json(item) for item in value]
    return value
