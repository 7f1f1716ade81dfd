"""NNCF, and OpenVINO by it: `ignored_scope` of `nncf.quantize`, its names as JSON."""

from __future__ import annotations

import json

from subgraph.questions.planning.lists import Kept

FILE = "nncf.json"


def render(kept: Kept) -> str:
    """`nncf.IgnoredScope(**json.load(file))`."""
    return json.dumps({"names": [*kept.nodes], "validate": False}, indent=1) + "\n"
