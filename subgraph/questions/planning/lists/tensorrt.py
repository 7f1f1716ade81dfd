"""TensorRT: options of trtexec that hold the layers in fp32."""

from __future__ import annotations

from subgraph.questions.planning.lists import Kept

FILE = "trtexec.txt"


def render(kept: Kept) -> str:
    """One option per line; layers have the names of the nodes as long as the parser fuses
    nothing."""
    layers = ",".join(f"{name}:fp32" for name in kept.nodes)
    return f"--precisionConstraints=obey\n--layerPrecisions={layers}\n--layerOutputTypes={layers}\n"
