"""CSV: the steps and findings of a search, or the tensors of a comparison; no cell is a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from subgraph.documents import to_json
from subgraph.reports import ComparedDocument, cleaned, format_list, make_view
from subgraph.reports._compared import METRICS
from subgraph.reports._words import HasNodes
from subgraph.results.bisect import BisectDocument
from subgraph.text import format_cell
from subgraph.types import Fields

FILE = "report.csv"
SEARCHED = (
    "row",
    "number",
    "kind",
    "status",
    "signature",
    "first",
    "last",
    "count",
    "nodes",
    "error",
    "explains",
    "reproduces",
    "certified",
    "seconds",
    "case",
)
MAX_NAMES = 100  # in a cell; a spreadsheet's cell ends at 32,767 characters
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


def render(document: BisectDocument) -> str:
    """Return a search as a table: its steps, its findings, and the pieces that fail alone."""
    shown = cleaned(document)
    rows = [{**to_json(step), "row": "step"} for step in shown.search.steps]
    alone = shown.search.alone
    searched: Mapping[str, Sequence[HasNodes]] = {"finding": shown.findings, "alone": alone}
    for kind, findings in searched.items():
        for number, finding in enumerate(findings, 1):
            nodes = format_list(finding.nodes, most=MAX_NAMES)
            about = {"row": kind, "number": number, "count": len(finding.nodes), "nodes": nodes}
            rows.append({**to_json(finding), **about})
    return _format_table(SEARCHED, rows)


def render_compared(document: ComparedDocument, candidate: str = "") -> str:
    """Return a comparison as a table: a line per tensor and column, then the omitted entries.

    Args:
        document: The comparison.
        candidate: The name for a first column; "" for no such column.
    """
    shown = make_view(cleaned(document))
    first = {"candidate": candidate} if candidate else {}
    rows = []
    for line in shown.lines:
        for name, cell in zip(shown.columns, line.cells, strict=True):
            status = cell.status or "not seen"
            about = {"row": "tensor", "column": name, "status": status}
            errors = {key: cell.errors.get(key) for key in METRICS}
            rows.append({**vars(line), **vars(cell), **errors, **about})
    rows += [
        {"row": "left out", "why": why, "count": n, "tensor": format_list(names)}
        for why, n, names in shown.left_out
    ]
    return _format_table((*first, *COMPARED), [{**first, **row} for row in rows])


def _format_table(columns: Sequence[str], rows: Iterable[Fields]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {
                key: format_cell(value) if isinstance(value, str) else value
                for key, value in row.items()
            }
        )
    return out.getvalue()
