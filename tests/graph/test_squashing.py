"""The tensors that enter the last Softmax, Sigmoid or the like."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subgraph.graph.quantization import find_squashed
from tests.helpers import text_models


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ("h = Relu(x) y = Softmax(h)", ["h"]),
        ("h = Relu(x) p = Sigmoid(h) q = Transpose(p) y = Identity(q)", ["h"]),
        (
            "h = Relu(x) a = ReduceMax(h) b = Sub(h, a) c = Exp(b) d = ReduceSum(c) y = Div(c, d)",
            ["h"],
        ),
        ("h = Relu(x) a = Neg(h) b = Exp(a) c = Add(b, one) y = Div(one, c)", ["h"]),
        ("h = Softmax(x) y = MatMul(h, w)", []),
        ("y = Relu(x)", []),
        ("h = Relu(x) a = Exp(h) y = Add(a, h)", []),
        ("y = Softmax(x)", []),  # the model's input needs no look
        ("h = Neg(x) a = Tanh(h) b = Abs(x) c = Sigmoid(b) y = Concat<axis=0>(a, c)", ["h", "b"]),
    ],
)
def test_inputs_of_squashing_operators_are_found(
    nodes: str, found: list[str], tmp_path: Path
) -> None:
    weights = {"one": np.ones((1,), np.float32), "w": np.ones((4, 4), np.float32)}
    used: dict[str, Any] = {
        name: weights[name] for name in weights.keys() & re.findall(r"\w+", nodes)
    }
    graph = text_models.load(
        tmp_path, f"g (float[4, 4] x) => (float[A, B] y) {{ {nodes} }}", **used
    )
    assert find_squashed(graph, graph.outputs) == found
