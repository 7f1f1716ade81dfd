"""Shape inference: what onnx can compute within its limits is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from subgraph.graph import shape_inference
from tests.helpers import text_models

GREAT = 1_000_000_000


@pytest.mark.slow
@pytest.mark.posix("wine takes the limit of a job and does not hold it")
def test_long_tensor_is_not_tracked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """To track its values would take 140 GB: types that need no values are known, as before."""
    text = f"g (float[{GREAT}] x) => (float[n] z) {{ y = Mul(x, x) z = Add(y, x) }}"
    found = shape_inference.infer_types(text_models.load(tmp_path, text))
    lengths = {name: t.tensor_type.shape.dim[0].dim_value for name, t in found.inferred.items()}
    assert lengths == {"y": GREAT, "z": GREAT}
    assert "1.0 GiB" in caplog.text
    assert found.complaints == []


def test_long_weight_that_is_an_input_is_inferred(tmp_path: Path) -> None:
    text = "g (float[3] x, float[3] w) => (float[n] z) { y = Add(x, w) z = Concat<axis = 0>(y, w) }"
    found = shape_inference.infer_types(
        text_models.load(tmp_path, text, ir=3, w=np.zeros(3, np.float32))
    )
    assert [d.dim_value for d in found.inferred["z"].tensor_type.shape.dim] == [6]
    assert [v.name for v in found.graph.input] == ["x", "w"]
    assert [t.name for t in found.graph.initializer] == ["w"]
    assert found.complaints == []
