"""Two networks beside each other: what is matched, and which pieces differ."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from subgraph.drawing.network import Network
from subgraph.drawing.pair import matched, pieces
from tests.helpers.random_networks import networks

PLAIN = Network(
    ["conv", "bn", "relu", "pool", "fc"],
    ["Conv", "BatchNormalization", "Relu", "MaxPool", "Gemm"],
    [["x", "w"], ["a", "g"], ["b"], ["c"], ["d", "m"]],
    [["a"], ["b"], ["c"], ["d"], ["y"]],
    ["x"],
    ["y"],
)
FUSED = Network(
    ["", "", ""],
    ["FusedConv", "MaxPool", "Gemm"],
    [["x", "v"], ["c"], ["d", "m"]],
    [["c"], ["d"], ["y"]],
    ["x"],
    ["y"],
)


def test_fused_nodes_are_one_piece() -> None:
    changed = [piece for piece in pieces(PLAIN, FUSED, matched(PLAIN, FUSED)) if piece.changed]
    assert [(p.tensor, p.nodes, p.others) for p in changed] == [("c", (0, 1, 2), (0,))]


def test_where_names_are_gone_the_structure_matches() -> None:
    """From below: the operators in front of matched ones."""
    new = {"x": "in", "c": "1", "d": "2", "y": "out"}
    renamed = replace(
        FUSED,
        reads=[[new.get(t, t) for t in row] for row in FUSED.reads],
        makes=[[new[t] for t in row] for row in FUSED.makes],
        inputs=["in"],
        outputs=["out"],
    )
    pairs = matched(PLAIN, renamed)
    assert pairs == {"x": "in", "y": "out", "d": "2"}
    changed = [piece for piece in pieces(PLAIN, renamed, pairs) if piece.changed]
    assert [(p.nodes, p.others) for p in changed] == [((0, 1, 2, 3), (0, 1))]


@settings(max_examples=25)
@given(networks())
def test_network_beside_itself_does_not_differ(network: Network) -> None:
    pairs = matched(network, network)
    assert all(a == b for a, b in pairs.items())
    assert not any(piece.changed for piece in pieces(network, network, pairs))


def test_models_that_differ_by_quantizers_correspond() -> None:
    plain = Network(["", ""], ["Conv", "Relu"], [["x", "w"], ["a"]], [["a"], ["y"]], ["x"], ["y"])
    reads = [["w8"], ["x"], ["x8"], ["xf", "wf"], ["a"], ["a8"], ["af"]]
    makes = [["wf"], ["x8"], ["xf"], ["a"], ["a8"], ["af"], ["y"]]
    ops = (
        "DequantizeLinear QuantizeLinear DequantizeLinear Conv QuantizeLinear DequantizeLinear Relu"
    ).split()
    quantized = Network([""] * 7, ops, reads, makes, ["x"], ["y"])
    found = pieces(plain, quantized, matched(plain, quantized))
    assert [(p.others, p.changed, p.quantized) for p in found] == [
        ((0, 1, 2, 3), True, True),
        ((4, 5, 6), True, True),
    ]
    other = replace(quantized, ops=[*ops[:-1], "Clip"])
    assert [p.quantized for p in pieces(plain, other, matched(plain, other))] == [True, False]
