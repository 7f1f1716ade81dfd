"""Two drawings beside each other: matched boxes at one height, nothing overlaps, no line leaves its
box."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from subgraph.drawing.layout import Drawer, Layout
from subgraph.drawing.network import Network
from subgraph.drawing.pair import matched
from subgraph.drawing.same_height import same_height
from subgraph.drawing.svg import FRAMES
from tests.helpers.random_networks import networks


def chain(*ops: str) -> Network:
    """Operators in a row; what an operator in capitals makes is called after it."""
    tensors = ["x", *(op if op.isupper() else f"{op}{k}{len(ops)}" for k, op in enumerate(ops))]
    return Network(
        [""] * len(ops),
        ops,
        [[t] for t in tensors[:-1]],
        [[t] for t in tensors[1:]],
        ["x"],
        tensors[-1:],
    )


def middles(drawing: Layout) -> dict[str, float]:
    return {box.label: box.y + box.height / 2 for box in drawing.boxes}


def test_corresponding_boxes_have_one_height() -> None:
    one = chain("A", "q", "q", "B", "C")
    other = chain("A", "B", "q", "C")
    first, second = same_height(
        (Drawer(one).layout(), Drawer(other).layout()), (one, other), matched(one, other)
    )
    here = middles(first)
    there = middles(second)
    assert all(here[word] == there[word] for word in ("x", "A", "B", "C"))
    tips = {line.tensors: line.points[-1][1] for line in second.lines}
    assert tips["A",] == next(box.y for box in second.boxes if box.label == "B")
    assert first.height == second.height > Drawer(one).layout().height


@settings(max_examples=25)
@given(networks(), st.data())
def test_pulling_apart_keeps_order_and_size(network: Network, data: st.DataObject) -> None:
    drawer = Drawer(network)
    keys = sorted(filter(None, drawer.tree.numbers))
    some = data.draw(st.sets(st.sampled_from(keys))) if keys else set()
    before = drawer.layout(some), drawer.layout(())
    for old, new in zip(
        before, same_height(before, (network, network), matched(network, network)), strict=True
    ):
        plain = [(a, b) for a, b in zip(old.boxes, new.boxes, strict=True) if a.kind not in FRAMES]
        assert all((a.x, a.height) == (b.x, b.height) and a.y <= b.y for a, b in plain)
        assert all(a.height <= b.height + 0.1 for a, b in zip(old.boxes, new.boxes, strict=True))
        for (a, moved_a), (b, moved_b) in pairwise(sorted(plain, key=lambda pair: pair[0].y)):
            assert round(moved_b.y - moved_a.y, 1) >= round(b.y - a.y, 1) - 0.1
        assert all(box.y + box.height <= new.height for box in new.boxes)
        place = {box.key: box for box in new.boxes if box.kind not in FRAMES}
        for line in new.lines:
            if line.points and line.source in place:
                box = place[line.source]
                assert abs(line.points[0][1] - box.y - box.height) < 0.2
            if line.points and line.target in place:
                assert abs(line.points[-1][1] - place[line.target].y) < 0.2
