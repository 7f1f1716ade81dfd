"""subcut: cut an ONNX model between two nodes, with the real tensors that cross the edges.

>>> import subgraph
>>> g = subgraph.load("resnet50.onnx")                                                           # doctest: +SKIP
>>> c = subgraph.cut(g, start="pool1", end="res2a_relu")                                         # doctest: +SKIP
>>> t = subgraph.capture(g, [*c.inputs, *c.outputs])[0]                                          # doctest: +SKIP
>>> c.save("piece.onnx")                                                                         # doctest: +SKIP
"""

from subgraph.capture import capture
from subgraph.cut import cut
from subgraph.graph import load

__version__ = "0.1.0"
__all__ = ["__version__", "capture", "cut", "load"]
