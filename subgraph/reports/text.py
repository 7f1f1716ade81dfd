"""Plain text: the verdict, its reason, what to do next, figures; as the commands print them at
the end."""

from __future__ import annotations

from subgraph.reports._swept import render_sweep as render_sweep
from subgraph.reports._text import (
    COLUMNS as COLUMNS,
    IN_PLACE as IN_PLACE,
    MAX_LINES as MAX_LINES,
    format_cell as format_cell,
    format_table as format_table,
    list_first_lines as list_first_lines,
    render as render,
    render_compared as render_compared,
)

FILE = "report.txt"
