"""onnxruntime: `nodes_to_exclude` of `quantize_static` and `quantize_dynamic`, as JSON.

`op_types_to_exclude` names the operators of which every node stays; the nodes of these are in the first list, too.
"""

from __future__ import annotations

import json

from subgraph.plan.lists import Kept

FILE = "onnxruntime.json"


def render(kept: Kept) -> str:
    """Arguments of both functions."""
    return json.dumps({"nodes_to_exclude": [*kept.nodes], "op_types_to_exclude": [*kept.operators]}, indent=1) + "\n"
