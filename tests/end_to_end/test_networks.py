"""The networks on which criteria are measured are valid, small and deterministic; no value explodes
or vanishes.

Covers `fixtures.networks`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from fixtures.networks import MASKED, NETWORKS, VOCABULARY

MAX_VALUE = 30.0  # of any tensor except masks and the exponentials of box sizes
MIN_DEVIATION = 0.02
MAX_PROBABILITY = 0.98  # a softmax beyond is saturated


def values(model: onnx.ModelProto, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Every float tensor, on inputs other than those that the network was scaled with."""
    names = [name for node in model.graph.node for name in node.output]
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    del copy.graph.output[:]
    copy.graph.output.extend(map(helper.make_empty_tensor_value_info, names))
    session = ort.InferenceSession(copy.SerializeToString())
    rng = np.random.default_rng(seed)
    feeds = {}
    for v in model.graph.input:
        shape = [d.dim_value for d in v.type.tensor_type.shape.dim]
        floats = v.type.tensor_type.elem_type == TensorProto.FLOAT
        feeds[v.name] = (
            rng.standard_normal(shape, np.float32) if floats else rng.integers(0, VOCABULARY, shape)
        )
    outputs = zip(names, session.run(names, feeds), strict=True)
    return {name: v for name, v in outputs if v.dtype == np.float32}


@pytest.mark.parametrize("name", NETWORKS)
def test_network_is_valid_small_and_deterministic(name: str) -> None:
    model = NETWORKS[name]()
    onnx.checker.check_model(model, full_check=True)
    assert 30 <= len(model.graph.node) <= 120
    assert model.SerializeToString(deterministic=True) == NETWORKS[name]().SerializeToString(
        deterministic=True
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_nothing_explodes_vanishes_or_saturates(name: str) -> None:
    model = NETWORKS[name]()
    ops = {node.output[0]: node.op_type for node in model.graph.node}
    for tensor, value in values(model, seed=7).items():
        unmasked = value[value > MASKED / 2]
        assert np.isfinite(value).all()
        assert ops.get(tensor) == "Exp" or np.abs(unmasked).max() < MAX_VALUE, tensor
        assert unmasked.std() > MIN_DEVIATION, tensor
    outputs = values(model, seed=7)
    for node in model.graph.node:
        if node.op_type == "Softmax" and node.output[0] in {o.name for o in model.graph.output}:
            assert outputs[node.output[0]].max() < MAX_PROBABILITY
