"""The documents with the results of commands: plain data, one file for each kind.

The dataclasses are the only description of the documents. `documents.to_json` writes a document,
`documents.from_json` reads and checks it, and `documents.make_schema` returns its JSON Schema. A
field that documents of an earlier version lack has a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from subgraph import documents

if TYPE_CHECKING:
    from subgraph.results.bisect import BisectDocument
    from subgraph.results.compare import ComparisonDocument, RecordedDocument
    from subgraph.results.plan import PlanDocument
    from subgraph.results.sweep import SweepDocument

Document: TypeAlias = (
    "BisectDocument | ComparisonDocument | RecordedDocument | SweepDocument | PlanDocument"
)

MODULES = ("bisect", "blame", "common", "compare", "loop", "plan", "sweep")
# The module in this package and the dataclass in it, by the schema of the document.
KNOWN: Mapping[str, tuple[str, str]] = {
    "subcut.bisect/1": ("bisect", "BisectDocument"),
    "subcut.compare/1": ("compare", "ComparisonDocument"),
    "subcut.recorded/1": ("compare", "RecordedDocument"),
    "subcut.interval/1": ("compare", "IntervalDocument"),
    "subcut.sweep/1": ("sweep", "SweepDocument"),
    "subcut.plan/1": ("plan", "PlanDocument"),
}


def find_type(schema: str) -> type:
    """Return the dataclass of the documents of a schema, which is one of `KNOWN`."""
    module, name = KNOWN[schema]
    found: type = getattr(import_module(f"subgraph.results.{module}"), name)
    return found


def parse(document: Any, what: str = "the document", hint: str = "") -> Document:
    """Return a document from plain JSON.

    Args:
        document: The plain JSON. A document without a known schema is read as a bisection.
        what: The name of the document in an error.
        hint: The hint of an error.

    Raises:
        InputError: The document is damaged. The error names the key and the expected value.
    """
    schema = document.get("schema") if isinstance(document, dict) else None
    kind = find_type(schema if isinstance(schema, str) and schema in KNOWN else "subcut.bisect/1")
    return cast("Document", documents.from_json(kind, _add_inner_findings(document), what, hint))


def _add_inner_findings(found: Any) -> Any:
    """Return a bisection, or the result in a body, with its list of findings in bodies.

    Documents of earlier versions have one finding in place of such a list.
    """
    if not isinstance(found, dict):
        return found
    if isinstance(found.get("findings"), list):
        return {**found, "findings": [_add_inner_findings(one) for one in found["findings"]]}
    inside = found.get("inside")
    if not isinstance(inside, dict):
        return found
    if "findings" not in inside and inside.get("nodes"):
        inside = {**inside, "findings": [inside]}
    return {**found, "inside": _add_inner_findings(inside)}


def read(path: Path, hint: str) -> Document:
    """Return the document in a file.

    Args:
        path: The file.
        hint: The hint of an error.

    Raises:
        InputError: The file cannot be read, or the document is damaged. The error names the key and
            the expected value.
    """
    return parse(documents.read_json(path, hint), str(path), hint)
