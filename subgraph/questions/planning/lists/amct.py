"""Ascend AMCT: `skip_layers` of `create_quant_config`, as JSON."""

from __future__ import annotations

import json

from subgraph.questions.planning.lists import Kept

FILE = "amct.json"


def render(kept: Kept) -> str:
    """Return the places as an argument of the function."""
    return json.dumps({"skip_layers": [*kept.nodes]}, indent=1) + "\n"
