"""onnxruntime: `nodes_to_exclude` of `quantize_static` and `quantize_dynamic`, as JSON."""

from __future__ import annotations

import json

from subgraph.questions.planning.lists import Kept
from subgraph.questions.planning.lower import TYPES, quantize_model as apply

FILE = "onnxruntime.json"
__all__ = ["FILE", "apply", "is_usable", "render"]


def render(kept: Kept) -> str:
    """Return an argument of both functions."""
    return json.dumps({"nodes_to_exclude": [*kept.nodes]}, indent=1) + "\n"


def is_usable(to: str) -> bool:
    """Return whether the quantizer makes this precision."""
    return to in TYPES
