"""Horizon: `run_on_cpu` of the calibration parameters of hb_mapper's YAML."""

from __future__ import annotations

import json

from subgraph.questions.planning.lists import Kept

FILE = "horizon.yaml"


def render(kept: Kept) -> str:
    """Return the nodes, separated by semicolons."""
    return f"calibration_parameters:\n  run_on_cpu: {json.dumps(';'.join(kept.nodes))}\n"
