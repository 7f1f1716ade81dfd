"""Items with predecessors and a question -> Steps -> Findings. Knows no ONNX, files or processes.

`search` narrows "the whole disagrees" to certified smallest regions. It queries through one seam
(`Oracle`), yields a `Step` per answer, and returns `Findings`.
"""

from subgraph.search.driver import Settings
from subgraph.search.oracle import (
    Answer,
    Counts,
    Finding,
    FindingKind,
    Findings,
    Observation,
    Oracle,
    Outcome,
    Purpose,
    Query,
    QueryKind,
    Step,
)
from subgraph.search.strategy import search

__all__ = [
    "Answer",
    "Counts",
    "Finding",
    "FindingKind",
    "Findings",
    "Observation",
    "Oracle",
    "Outcome",
    "Purpose",
    "Query",
    "QueryKind",
    "Settings",
    "Step",
    "search",
]
