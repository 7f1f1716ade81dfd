"""`Graph`: makers and readers of each tensor, and the order of the nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import helper, numpy_helper

from subgraph.errors import ModelError
from subgraph.graph.graph import find_made_twice
from tests.helpers import text_models
from tests.helpers.refusals import raises


def test_optional_inputs_and_outputs_that_are_left_out_are_no_tensors(tmp_path: Path) -> None:
    g = text_models.load(
        tmp_path, 'g (float[2] x) => (float[2] y) { y, "" = Dropout(x)  z = Clip(y, , x) }'
    )
    assert g.reads == [("x",), ("y", "x")]
    assert g.makes == [("y",), ("z",)]
    assert g.maker == {"y": 0, "z": 1}


def test_captured_tensors_of_a_body_are_read(tmp_path: Path) -> None:
    """Not the body's own inputs, weights and tensors; but a tensor that it only outputs, and reads
    of a nested body."""
    g = text_models.load(
        tmp_path,
        """g (float[2] x, bool c, int64 n) => (float[2] y) {
            a = Relu(x)
            b = Neg(x)
            i = If(c) <
                then_branch = t () => (float[2] a) {},
                else_branch = e () => (float[2] p) <float[2] w = {1, 2}> {
                    own = Add(b, w)
                    p = If(c) <
                        then_branch = tt () => (float[2] q) { q = Mul(own, a) },
                        else_branch = ee () => (float[2] q) { q = Identity(own) }
                    >
                }
            >
            y = Loop(n, c, i) <body = step (int64 k, bool go, float[2] state) => (bool on, float[2] next) {
                on = Identity(go)
                next = Add(state, b)
            }>
        }""",  # noqa: E501
    )
    assert set(g.reads[2]) == {"c", "a", "b"}
    assert set(g.reads[3]) == {"n", "c", "i", "b"}
    assert sorted(g.readers["b"]) == [2, 3]


def test_initializers_are_no_inputs(tmp_path: Path) -> None:
    g = text_models.load(
        tmp_path,
        "g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }",
        lambda m: m.graph.sparse_initializer.append(
            helper.make_sparse_tensor(
                numpy_helper.from_array(np.ones(1, np.float32), "s"),
                numpy_helper.from_array(np.array([1]), "i"),
                [4],
            )
        ),
        w=np.ones(2, np.float32),
    )
    assert list(g.inputs) == ["x"] and list(g.weights) == ["w"] and list(g.sparse) == ["s"]


def test_nodes_in_any_order_are_put_in_order(tmp_path: Path) -> None:
    g = text_models.load(
        tmp_path,
        "g (float[2] x) => (float[2] c) { [n3] c = Relu(b) [n1] a = Relu(x) [n2] b = Relu(a) }",
    )
    assert text_models.labels(g, g.in_order(range(3))) == ["n1", "n2", "n3"]


def test_cycle_is_named(tmp_path: Path) -> None:
    g = text_models.load(
        tmp_path,
        "g (float[2] x) => (float[2] b) { [one] a = Add(x, c) [two] b = Relu(a) [three] c ="
        " Relu(b) }",
    )
    with raises(ModelError, "graph.cycle") as refusal:
        _ = g.rank
    assert {"one", "two", "three"} <= set(refusal.value.what.replace(" → ", " ").split())


def test_tensor_made_twice_is_found(tmp_path: Path) -> None:
    g = text_models.load(
        tmp_path, "g (float[2] x) => (float[2] a) { a = Relu(x)  b = Relu(x)  a = Neg(x) }"
    )
    assert find_made_twice(g) == [("a", 0, 2)]
