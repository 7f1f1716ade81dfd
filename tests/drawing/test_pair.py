"""Two networks beside each other: what is matched, and which pieces differ."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from subgraph.drawing.network import Network
from subgraph.drawing.pair import matched, pieces
from tests.drawing.test_layout import networks

PLAIN = Network(
    ["conv", "bn", "relu", "pool", "fc"],
    ["Conv", "BatchNormalization", "Relu", "MaxPool", "Gemm"],
    [["x", "w"], ["a", "g"], ["b"], ["c"], ["d", "m"]],
    [["a"], ["b"], ["c"], ["d"], ["y"]],
    ["x"],
    ["y"],
)
FUSED = Network(
    ["", "", ""], ["FusedConv", "MaxPool", "Gemm"], [["x", "v"], ["c"], ["d", "m"]], [["c"], ["d"], ["y"]], ["x"], ["y"]
)


def test_what_was_fused_is_one_piece() -> None:
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
def test_a_network_beside_itself_does_not_differ(network: Network) -> None:
    pairs = matched(network, network)
    assert all(a == b for a, b in pairs.items())
    assert not any(piece.changed for piece in pieces(network, network, pairs))
