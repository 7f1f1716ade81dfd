"""CSV: a line per tensor of a comparison and way in which it was compared; no cell starts a formula."""  # noqa: E501

from __future__ import annotations

import csv
import io

from subgraph.reports import ComparedDocument, cleaned, listed, view
from subgraph.reports._compared import METRICS
from subgraph.text import cell

FILE = "report.csv"
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


def render_compared(document: ComparedDocument, candidate: str = "") -> str:
    """A comparison as a table: a line per tensor and column; what was left out follows.

    `candidate`: its name, in a column of its own in front; "" for none.
    """
    shown = view(cleaned(document))
    out = io.StringIO()
    first = {"candidate": candidate} if candidate else {}
    writer = csv.DictWriter(out, (*first, *COMPARED), restval="", lineterminator="\n")
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
        cells = (first | row).items()
        writer.writerow(
            {key: cell(value) if isinstance(value, str) else value for key, value in cells}
        )
    return out.getvalue()
