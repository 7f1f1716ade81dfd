"""NVIDIA ModelOpt: `nodes_to_exclude` of its `quantize` and `convert_to_mixed_precision`, a pattern
for each name."""

from __future__ import annotations

import json
import re

from subgraph.questions.planning.lists import Kept

FILE = "modelopt.json"


def render(kept: Kept) -> str:
    """Return the nodes as an argument of both functions, and of `--nodes_to_exclude`."""
    return (
        json.dumps({"nodes_to_exclude": [f"^{re.escape(name)}$" for name in kept.nodes]}, indent=1)
        + "\n"
    )
