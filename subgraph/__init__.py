"""subcut: cut an ONNX model between two nodes, with the real tensors that cross the edges; find the piece that fails.

>>> import subgraph
>>> g = subgraph.load("resnet50.onnx")                                                           # doctest: +SKIP
>>> c = subgraph.cut(g, start="pool1", end="res2a_relu")                                         # doctest: +SKIP
>>> t = subgraph.capture(g, [*c.inputs, *c.outputs])[0]                                          # doctest: +SKIP
>>> c.save("piece.onnx")                                                                         # doctest: +SKIP
>>> for step in (running := subgraph.bisect(g, "ort", ["x.npy"])): print(step.outcome)           # doctest: +SKIP
>>> running.document["findings"]                                                                 # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from subgraph.graph.cut import cut
from subgraph.graph.graph import load
from subgraph.runtime.capture import capture
from subgraph.version import __version__

if TYPE_CHECKING:
    from subgraph.bisection.bisection import bisect
    from subgraph.trials.compare import compare

__all__ = ["__version__", "bisect", "capture", "compare", "cut", "load"]

LATER = {
    "bisect": "bisection.bisection",
    "compare": "trials.compare",
}  # half of the package: imported when they are asked for


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in LATER:
            raise AttributeError(f"module 'subgraph' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"subgraph.{LATER[name]}"), name)
