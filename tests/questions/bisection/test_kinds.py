"""What the nodes of a finding have that others with the same operator do not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from subgraph.graph.graph import load
from subgraph.questions.bisection.items import describe_kind
from subgraph.results.bisect import KindDocument
from tests.helpers import text_models

TEXT = """g (float[1,2,4,4] x, float[2,2,1,1] w, float[2] b) => (float[1,2,4,4] y) {
    [c0] t0 = Conv <kernel_shape = [1, 1]> (x, w, b) [c1] t1 = Conv <kernel_shape = [1, 1]> (t0, w)
    [c2] t2 = Conv <kernel_shape = [1, 1], group = 1> (t1, w, b) [r] y = Relu (t2)
}"""


@pytest.mark.parametrize(
    ("wrong", "is_complete", "distinct"),
    [
        ({0, 2}, True, ["3 inputs"]),
        ({0, 2}, False, []),
        ({0, 1}, True, []),
        ({2}, True, ["group=1"]),
        ({0, 1, 2}, True, []),
    ],
)
def test_distinct_traits(
    wrong: set[int], is_complete: bool, distinct: list[str], tmp_path: Path
) -> None:
    text_models.save(tmp_path / "m.onnx", TEXT)
    kind = describe_kind(load(tmp_path / "m.onnx"), wrong, is_complete=is_complete)
    assert kind == KindDocument("Conv", 3, distinct)
