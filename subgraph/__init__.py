"""subcut: cut an ONNX model between two nodes, with the tensors that cross the boundary, and find
the piece that fails.

`resnet50.onnx` is any model:

>>> import subgraph
>>> graph = subgraph.load("resnet50.onnx")
>>> cut = subgraph.cut(graph, start="pool1", end="res2a_relu")
>>> tensors = subgraph.capture(graph, [*cut.inputs, *cut.outputs])[0]
>>> sorted(tensors)
['conv1', 'res2a']
>>> subgraph.compare(graph, "ort", at=["pool1"]).first_bad is None
True
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from subgraph.version import __version__

if TYPE_CHECKING:
    from subgraph.errors import (
        ArgumentTypeError,
        BackendError,
        DataError,
        Inconclusive,
        InputError,
        ModelError,
        NoRegion,
        NotInstalled,
        OutOfMemory,
        OutOfTime,
        OutputError,
        Refused,
        ResultExists,
        SubcutError,
        UnknownName,
        Unreachable,
        UsageError,
        WorkerDied,
    )
    from subgraph.graph.cut import Cut, cut
    from subgraph.graph.graph import Graph
    from subgraph.graph.region import Region
    from subgraph.notebook import watch
    from subgraph.origins.load import load
    from subgraph.questions.bisection.bisection import Bisection, bisect
    from subgraph.questions.planning.make_plan import plan
    from subgraph.runtime.candidate import Candidate
    from subgraph.runtime.capture import capture
    from subgraph.search.oracle import Findings, Step
    from subgraph.trials.compare_tensors import Comparison, compare
    from subgraph.verdict import Signature, Status, Verdict

# The module of each public name, imported at the first access. `import subgraph` then takes
# milliseconds, and a command imports only the modules that it needs.
_MODULES = {
    "questions.bisection.bisection": "Bisection bisect",
    "errors": (
        "ArgumentTypeError BackendError DataError Inconclusive InputError ModelError NoRegion"
        " NotInstalled OutOfMemory OutOfTime OutputError Refused ResultExists SubcutError"
        " UnknownName Unreachable UsageError WorkerDied"
    ),
    "graph.cut": "Cut cut",
    "graph.graph": "Graph",
    "graph.region": "Region",
    "notebook": "watch",
    "origins.load": "load",
    "questions.planning.make_plan": "plan",
    "runtime.candidate": "Candidate",
    "runtime.capture": "capture",
    "search.oracle": "Findings Step",
    "trials.compare_tensors": "Comparison compare",
    "verdict": "Signature Status Verdict",
}
# Results that a notebook shows as HTML, by module; graphs and cuts also as drawings.
_SHOWN = {
    "questions.bisection.bisection": "Bisection",
    "graph.cut": "Cut",
    "graph.graph": "Graph",
    "graph.region": "Region",
    "results.plan": "PlanDocument",
    "search.oracle": "Findings Step",
    "trials.compare_tensors": "Comparison",
    "verdict": "Judgement Verdict",
}
_HOME: dict[str, str] = {}
for _module, _names in _MODULES.items():
    _HOME |= dict.fromkeys(_names.split(), _module)

__all__ = [
    "ArgumentTypeError",
    "BackendError",
    "Bisection",
    "Candidate",
    "Comparison",
    "Cut",
    "DataError",
    "Findings",
    "Graph",
    "Inconclusive",
    "InputError",
    "ModelError",
    "NoRegion",
    "NotInstalled",
    "OutOfMemory",
    "OutOfTime",
    "OutputError",
    "Refused",
    "Region",
    "ResultExists",
    "Signature",
    "Status",
    "Step",
    "SubcutError",
    "UnknownName",
    "Unreachable",
    "UsageError",
    "Verdict",
    "WorkerDied",
    "__version__",
    "bisect",
    "capture",
    "compare",
    "cut",
    "load",
    "plan",
    "watch",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _show_in_notebook() -> None:
    """If IPython runs, register the types of results that `subgraph.notebook` shows.

    The first result that is shown loads `subgraph.notebook`.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None:
        return
    html, svg = (
        shell.display_formatter.formatters[kind] for kind in ("text/html", "image/svg+xml")
    )
    for module, names in _SHOWN.items():
        for name in names.split():
            html.for_type_by_name(
                f"subgraph.{module}",
                name,
                lambda it: import_module("subgraph.notebook").render_html(it),
            )
    for module, name in (("graph.cut", "Cut"), ("graph.graph", "Graph")):
        svg.for_type_by_name(
            f"subgraph.{module}", name, lambda it: import_module("subgraph.notebook").draw_graph(it)
        )


_show_in_notebook()

if not TYPE_CHECKING:  # a type checker would take every name for `Any`

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'subgraph' has no attribute {name!r}")
        found = getattr(import_module(f"subgraph.{_HOME[name]}"), name)
        globals()[name] = found
        return found
