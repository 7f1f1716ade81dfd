"""Items with predecessors and a question -> Steps -> Findings. Knows no ONNX, files or processes.

`search` narrows "the whole disagrees" to certified smallest regions. It asks through one seam (`Question`), yields a
`Step` per answer, and returns `Findings`.
"""

from subgraph.search.findings import Counts, Finding, FindingKind, Findings, Noted, Outcome, Purpose, Step
from subgraph.search.oracle import Answer, Ask, Kind, Question
from subgraph.search.strategy import Settings, search

__all__ = [
    "Answer",
    "Ask",
    "Counts",
    "Finding",
    "FindingKind",
    "Findings",
    "Kind",
    "Noted",
    "Outcome",
    "Purpose",
    "Question",
    "Settings",
    "Step",
    "search",
]
