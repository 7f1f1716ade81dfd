"""Plain text: the verdict, its reason, what to do next, figures; as the commands print them at
the end."""

from __future__ import annotations

from subgraph.reports._swept import render_sweep as render_sweep
from subgraph.reports._text import COLUMNS as COLUMNS
from subgraph.reports._text import IN_PLACE as IN_PLACE
from subgraph.reports._text import MAX_LINES as MAX_LINES
from subgraph.reports._text import first_lines as first_lines
from subgraph.reports._text import format_cell as format_cell
from subgraph.reports._text import format_table as format_table
from subgraph.reports._text import render as render
from subgraph.reports._text import render_compared as render_compared

FILE = "report.txt"
