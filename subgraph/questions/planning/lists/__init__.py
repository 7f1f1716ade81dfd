"""One file per tool that takes a list of the nodes or tensors that stay in float.

The first line of its docstring is the purpose of the list.

FILE                      the name of the file that is written
render(kept)              its text, from a `Kept`
is_usable(to)             optional: whether the tool is installed and lowers to this precision
apply(…)                  with it: the model that the tool writes, as `lower.quantize_model`
"""

from __future__ import annotations

from collections.abc import Sequence

from subgraph.types import frozen


@frozen
class Kept:
    """The nodes and tensors that stay in float.

    Attributes:
        nodes: their names in the float model, in its order.
        tensors: what these nodes make; outputs: of the model, that stay in float without their
            node.
    """

    nodes: Sequence[str]
    tensors: Sequence[str]
    outputs: Sequence[str]
