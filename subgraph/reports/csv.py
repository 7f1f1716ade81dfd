"""CSV: steps, findings and pieces that fail alone, in one table; no cell starts a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from subgraph.reports import ComparedDocument, HasNodes, cleaned, listed, origins, title, view
from subgraph.reports._compared import METRICS
from subgraph.results.bisect import BisectDocument
from subgraph.text import cell
from subgraph.verdict import Status

FILE = "report.csv"
COLUMNS = (
    "row",
    "number",
    "kind",
    "status",
    "signature",
    "first",
    "last",
    "count",
    "nodes",
    "ops",
    "error",
    "explains",
    "reproduces",
    "certified",
    "seconds",
    "words",
    "case",
    "source",
)
COMPARED = (
    "row",
    "index",
    "node",
    "op",
    "tensor",
    "column",
    "status",
    "signature",
    "label",
    "sample",
    *METRICS,
    "recorded_as",
    "matched_by",
    "beside",
    "count",
    "why",
    "source",
    "computed_by",
)
MAX_NAMES = 100  # in a cell; a spreadsheet's cell ends at 32,767 characters


def render(document: BisectDocument) -> str:
    """The document as a table with a heading; cells that a row does not have are empty."""
    shown = cleaned(document)
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for row in (*_steps(shown), *_findings(shown), *_alone(shown)):
        writer.writerow(
            {key: cell(value) if isinstance(value, str) else value for key, value in row.items()}
        )
    return out.getvalue()


def _steps(document: BisectDocument) -> Iterator[dict[str, object]]:
    kept = ("number", "kind", "status", "signature", "first", "last", "count", "error", "seconds")
    for step in document.steps:
        yield {"row": "step", "words": step.changed, **{key: getattr(step, key) for key in kept}}


def _findings(document: BisectDocument) -> Iterator[dict[str, object]]:
    for number, finding in enumerate(document.findings, 1):
        kept = {
            key: getattr(finding, key)
            for key in ("kind", "signature", "explains", "reproduces", "certified", "case")
        }
        verdict = finding.verdict
        worst = finding.worst
        outcome = {
            "status": verdict.status if verdict else "",
            "error": worst.error if worst else "",
        }
        yield (
            _names(finding)
            | kept
            | outcome
            | {
                "row": "finding",
                "number": number,
                "words": title(finding),
                "source": "; ".join(origins(finding)),
            }
        )


def _alone(document: BisectDocument) -> Iterator[dict[str, object]]:
    for number, piece in enumerate(document.alone, 1):
        kept = {key: getattr(piece, key) for key in ("signature", "error", "explains")}
        yield _names(piece) | kept | {"row": "alone", "number": number, "status": Status.FAIL}


def _names(region: HasNodes) -> dict[str, object]:
    nodes = region.nodes
    return {
        "first": nodes[0] if nodes else "",
        "last": nodes[-1] if nodes else "",
        "count": len(nodes),
        "nodes": listed(nodes, most=MAX_NAMES),
        "ops": listed(region.ops, most=MAX_NAMES),
    }


def render_compared(document: ComparedDocument) -> str:
    """A comparison as a table: a line per tensor and column; what was left out follows."""
    shown = view(cleaned(document))
    out = io.StringIO()
    writer = csv.DictWriter(out, COMPARED, restval="", lineterminator="\n")
    writer.writeheader()
    rows: list[dict[str, object]] = [
        {
            "row": "tensor",
            "index": line.index,
            "node": line.node,
            "op": line.op,
            "tensor": line.tensor,
            "column": name,
            "status": one.status or "not seen",
            "signature": one.signature,
            "label": one.label,
            "sample": one.sample,
            "recorded_as": one.recorded_as,
            "matched_by": one.matched_by,
            "beside": one.beside,
            "why": one.why,
            "source": line.source,
            "computed_by": line.computed_by,
            **{key: one.errors.get(key) for key in METRICS},
        }
        for line in shown.lines
        for name, one in zip(shown.columns, line.cells, strict=True)
    ]
    rows += [
        {"row": "left out", "why": why, "count": n, "tensor": listed(names)}
        for why, n, names in shown.left_out
    ]
    for row in rows:
        writer.writerow(
            {key: cell(value) if isinstance(value, str) else value for key, value in row.items()}
        )
    return out.getvalue()
