"""CSV: steps, findings and pieces that fail alone, as one table; no cell starts a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from subgraph.reports import Document, cell, cleaned, listed, title

FILE = "report.csv"
COLUMNS = (
    "row", "number", "kind", "status", "signature", "first", "last", "count", "nodes", "ops", "error", "explains",
    "reproduces", "certified", "seconds", "words", "case",
)  # fmt: skip
SOME = 100  # names in a cell; a spreadsheet's cell ends at 32,767 characters


def render(document: Document) -> str:
    """The document as a table with a heading; what a row does not have is empty."""
    shown = cleaned(document)
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for row in (*_steps(shown), *_findings(shown), *_alone(shown)):
        writer.writerow({key: cell(one) if isinstance(one, str) else one for key, one in row.items()})
    return out.getvalue()


def _steps(document: Document) -> Iterator[dict[str, Any]]:
    kept = ("number", "kind", "status", "signature", "first", "last", "count", "error", "seconds")
    for step in document["steps"]:
        yield {"row": "step", "words": step["changed"], **{key: step[key] for key in kept}}


def _findings(document: Document) -> Iterator[dict[str, Any]]:
    for number, finding in enumerate(document["findings"], 1):
        kept = {key: finding[key] for key in ("kind", "signature", "explains", "reproduces", "certified", "case")}
        verdict, worst = finding["verdict"], finding["worst"]
        yield (
            _names(finding)
            | kept
            | {
                "row": "finding",
                "number": number,
                "status": verdict["status"] if verdict else "",
                "error": worst["error"] if worst else "",
                "words": title(finding),
            }
        )


def _alone(document: Document) -> Iterator[dict[str, Any]]:
    for number, piece in enumerate(document["alone"], 1):
        kept = {key: piece[key] for key in ("signature", "error", "explains")}
        yield _names(piece) | kept | {"row": "alone", "number": number, "status": "fail"}


def _names(found: Document) -> dict[str, Any]:
    nodes = found["nodes"]
    return {
        "first": nodes[0] if nodes else "",
        "last": nodes[-1] if nodes else "",
        "count": len(nodes),
        "nodes": listed(nodes, most=SOME),
        "ops": listed(found["ops"], most=SOME),
    }
