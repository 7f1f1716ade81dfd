"""Qualcomm QNN and SNPE: `--quantization_overrides`, the tensors that stay float."""

from __future__ import annotations

import json

from subgraph.questions.planning.lists import Kept

FILE = "qnn.json"
FLOAT = [{"bitwidth": 32, "dtype": "float"}]


def render(kept: Kept) -> str:
    """Return encodings of activations by tensor."""
    encodings = dict.fromkeys((*kept.tensors, *kept.outputs), FLOAT)
    return json.dumps({"activation_encodings": encodings, "param_encodings": {}}, indent=1) + "\n"
