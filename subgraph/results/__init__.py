"""What a search, a comparison, a recording or a sweep found, as documents: data alone, one file per
kind.

Their dataclasses are the only description: `documents.to_json` writes them, `documents.from_json`
reads and checks them, `documents.schema` publishes them. A field with a default is one that
documents of an earlier version lack.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from subgraph import documents
from subgraph.errors import InputError
from subgraph.text import clean

MODULES = ("bisect", "blame", "common", "compare", "loop", "plan", "recorded", "sweep")
# By schema: module here, and dataclass in it.
KNOWN: Mapping[str, tuple[str, str]] = {
    "subcut.bisect/1": ("bisect", "BisectDocument"),
    "subcut.compare/1": ("compare", "ComparisonDocument"),
    "subcut.recorded/1": ("recorded", "RecordedDocument"),
    "subcut.interval/1": ("recorded", "IntervalDocument"),
    "subcut.sweep/1": ("sweep", "SweepDocument"),
    "subcut.plan/1": ("plan", "PlanDocument"),
}


def type_of(schema: str) -> type:
    """The dataclass of the documents of a schema, which is one of `KNOWN`."""
    module, name = KNOWN[schema]
    found: type = getattr(import_module(f"subgraph.results.{module}"), name)
    return found


def problem(document: Any) -> str:
    """The first place at which a document is not whole, as those of a schema of `KNOWN` are; ""
    where it is."""
    kind = document.get("schema") if isinstance(document, dict) else None
    return documents.problem(
        document, type_of(kind if isinstance(kind, str) and kind in KNOWN else "subcut.bisect/1")
    )


def read(path: Path, hint: str) -> dict[str, Any]:
    """The document in a file, checked, as JSON.

    Raises:
        InputError: it cannot be read, or is not whole; names the key and what was expected.
    """
    document: dict[str, Any] = documents.read_json(path, hint)
    if why := problem(document):
        raise InputError(
            f"{clean(str(path))} is damaged: {clean(why)}", hint, code="document.damaged"
        )
    return document
