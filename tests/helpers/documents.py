"""Checks of the JSON of documents."""

from __future__ import annotations

from typing import Any

from subgraph import documents, results
from subgraph.errors import InputError


def problem(document: Any) -> str:
    """Return the first place at which a result is not of its schema; "" if it is."""
    return find_departure(document, results.find_type(document.get("schema", "subcut.bisect/1")))


def find_departure(document: object, kind: type) -> str:
    """The first place at which a document is not of a type; "" where it is."""
    try:
        documents.from_json(kind, document, "it")
    except InputError as e:
        return e.what.removeprefix("it is damaged: ")
    return ""
