"""The kind of a tensor: what its value depends on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from subgraph.graph.kinds import CONSTANT, SHAPE, VALUE, find_kinds
from tests.helpers import text_models


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        ("fixed", CONSTANT),
        ("scaled", CONSTANT),
        ("its_shape", CONSTANT),  # of a weight: known without a run
        ("dims", SHAPE),
        ("target", SHAPE),
        ("spread", SHAPE),  # filled by a shape, with a constant
        ("mixed", VALUE),  # one path passes Shape, another does not
        ("folded", VALUE),
        ("noise", VALUE),
        ("noise_dims", SHAPE),
        ("chosen", VALUE),  # by a condition that is read from the input
        ("x", VALUE),
    ],
)
def test_dependencies_of_a_value_include_shapes_and_bodies(
    tmp_path: Path, tensor: str, kind: int
) -> None:
    g = text_models.load(
        tmp_path,
        """g (float[2,N] x, bool c) => (float[2,M] y) {
            fixed = Constant<value_ints = [1, 2]>()
            scaled = Mul(w, w)
            its_shape = Shape(w)
            dims = Shape(x)
            target = Concat<axis = 0>(dims, fixed)
            spread = ConstantOfShape(dims)
            mixed = Expand(x, dims)
            folded = Reshape(x, fixed)
            noise = RandomUniform<shape = [2, 2]>()
            noise_dims = Size(noise)
            chosen = If(c) <
                then_branch = t () => (int64[2] a) { a = Identity(dims) },
                else_branch = e () => (int64[2] a) { a = Identity(fixed) }>
            y = Foo(mixed, folded, noise, noise_dims, chosen, target, spread, its_shape)
        }""",
        w=np.ones(2, np.float32),
    )
    assert find_kinds(g, [tensor]) == {tensor: kind}
