"""Nodes that make constants: those that the fault of a finding needs belong to the finding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.planted_candidates import planted
from tests.helpers.run_command import subcut

# Both the bias and the weight are made of constants.
MODEL = """g (float[3,4] x) => (float[3,4] y) { [first] a = Relu (x)
    [wide] v = DequantizeLinear <axis = 1> (w, scales) [row] r = Reshape (bias, shape)
    [mm] b = MatMul (a, v) [add] c = Add (b, r) [last] y = Sigmoid (c) }"""
RNG = np.random.default_rng(0)
WEIGHTS = {
    "w": RNG.integers(-99, 99, (4, 4)).astype(np.int8),
    "scales": np.array([0.01, 0.02, 0.04, 0.08], np.float32),
    "bias": RNG.normal(size=4).astype(np.float32),
    "shape": np.array([1, 4]),
}
# It takes the scales of constant codes along another axis.
OTHER_AXIS = planted("""
constants = {tensor.name for tensor in model.graph.initializer}
for node in nodes:
    if node.op_type == "DequantizeLinear" and node.input[0] in constants:
        node.attribute[0].i = 0
""")
# It computes another function after a MatMul.
WRONG_PRODUCT = planted("""
for node in nodes:
    if node.op_type == "MatMul":
        made, node.output[0] = node.output[0], "product"
        model.graph.node.append(helper.make_node("Sin", ["product"], [made]))
order = {name: k for k, node in enumerate(nodes) for name in node.output}
sines = [node for node in model.graph.node if node.op_type == "Sin"]
for node in sines:
    model.graph.node.remove(node)
    maker = next(k for k, n in enumerate(model.graph.node) if node.input[0] in n.output)
    model.graph.node.insert(maker + 1, node)
""")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "nodes", "constants"),
    [
        (OTHER_AXIS, ["wide", "mm"], ["wide"]),
        pytest.param(WRONG_PRODUCT, ["mm"], None, marks=pytest.mark.slow),
    ],
    ids=["needed", "not needed"],
)
def test_maker_of_a_constant_belongs_to_a_finding_that_needs_it(
    code: str, nodes: list[str], constants: list[str] | None, tmp_path: Path
) -> None:
    text_models.save(tmp_path / "m.onnx", MODEL, **WEIGHTS)
    np.save(tmp_path / "x.npy", RNG.normal(size=(3, 4)).astype(np.float32))
    (tmp_path / "wrong.py").write_text(code, encoding="utf-8")
    words = ("bisect", "m.onnx", "-i", "x.npy", "-c", "wrong.py", "--trust")
    done = subcut(*words, "--json", cwd=tmp_path)
    [found] = done.document["findings"]
    assert (found["nodes"], found.get("constants")) == (nodes, constants)
    total = "6 nodes" if constants else "4 nodes"
    assert has_line(subcut(*words, cwd=tmp_path).out, *nodes, f"{len(nodes)} of {total}")


@pytest.mark.slow
def test_blame_turns_the_axis_of_a_constants_scales(tmp_path: Path) -> None:
    """The axis is at its default, so it cannot be left out."""
    text_models.save(tmp_path / "m.onnx", MODEL, **WEIGHTS)
    np.save(tmp_path / "x.npy", RNG.normal(size=(3, 4)).astype(np.float32))
    (tmp_path / "wrong.py").write_text(OTHER_AXIS, encoding="utf-8")
    words = ("-i", "x.npy", "-c", "wrong.py", "--trust")
    done = subcut("blame", "m.onnx", *words, cwd=tmp_path)
    assert has_line(done.out, "Attribute", "axis=1 of 'wide'"), done.out + done.err
