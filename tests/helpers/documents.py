"""Checks of the JSON of documents."""

from __future__ import annotations

from typing import Any

from subgraph import documents, results


def problem(document: Any) -> str:
    """Return the first place at which a result is not of its schema; "" if it is."""
    return documents.problem(document, results.type_of(document.get("schema", "subcut.bisect/1")))
