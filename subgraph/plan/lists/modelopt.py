"""NVIDIA ModelOpt: `nodes_to_exclude` of `modelopt.onnx.quantization.quantize`, patterns that fit one name each."""

from __future__ import annotations

import json
import re

from subgraph.plan.lists import Kept

FILE = "modelopt.json"


def render(kept: Kept) -> str:
    """An argument of the function, and of `--nodes_to_exclude`."""
    return json.dumps({"nodes_to_exclude": [f"^{re.escape(name)}$" for name in kept.nodes]}, indent=1) + "\n"
