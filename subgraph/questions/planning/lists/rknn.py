"""RKNN: `custom_quantize_layers` of the .quantization.cfg between hybrid_quantization_step1 and
_step2."""

from __future__ import annotations

import json

from subgraph.questions.planning.lists import Kept

FILE = "rknn.quantization.cfg"


def render(kept: Kept) -> str:
    """Return a line for each tensor; JSON strings are YAML, too."""
    tensors = dict.fromkeys((*kept.tensors, *kept.outputs))
    lines = [f"  {json.dumps(name)}: float16" for name in tensors]
    return (
        "\n".join(["custom_quantize_layers:" if lines else "custom_quantize_layers: {}", *lines])
        + "\n"
    )
