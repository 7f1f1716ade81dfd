"""onnxconverter-common: `node_block_list` of `float16.convert_float_to_float16`, as JSON."""

from __future__ import annotations

import json

from subgraph.plan.lists import Kept

FILE = "onnxconverter_common.json"


def render(kept: Kept) -> str:
    """An argument of the function."""
    return json.dumps({"node_block_list": [*kept.nodes]}, indent=1) + "\n"
