"""Laws of drawings, over random graphs, sets of open groups and widths.

Covers `drawing.layered`, `drawing.level`, `drawing.network`, `drawing.groups`, `drawing.svg` and
`drawing.page`.
"""

from __future__ import annotations

import itertools
import time
import xml.etree.ElementTree as ET
from collections import Counter

from hypothesis import given, settings, strategies as st

from subgraph.drawing.groups import MAX_FLAT, Tree, sort_topologically
from subgraph.drawing.layered import Edge, Item, place_in_layers
from subgraph.drawing.layout import Box, Drawer, Layout
from subgraph.drawing.network import Network
from subgraph.drawing.svg import Marks, draw_svg
from tests.helpers.examples import examples
from tests.helpers.random_networks import networks


@st.composite
def drawings(draw: st.DrawFn) -> tuple[Network, Drawer, Layout]:
    network = draw(networks())
    drawer = Drawer(network)
    keys = sorted(drawer.tree.numbers)
    opened = draw(st.none() | st.sets(st.sampled_from(keys)))
    return network, drawer, drawer.layout(opened, draw(st.sampled_from([200.0, 400.0, 1400.0])))


def inside(inner: Box, outer: Box) -> bool:
    return (
        outer.x <= inner.x
        and outer.y <= inner.y
        and inner.x + inner.width <= outer.x + outer.width + 0.2
        and inner.y + inner.height <= outer.y + outer.height + 0.2
    )


@settings(max_examples=examples(30))
@given(drawings())
def test_every_node_is_in_one_box_and_no_boxes_overlap(
    drawing: tuple[Network, Drawer, Layout],
) -> None:
    network, _, layout = drawing
    assert Counter(n for box in layout.boxes for n in box.nodes) == Counter(range(len(network.ops)))
    by_key = {box.key: box for box in layout.boxes}
    assert len(by_key) == len(layout.boxes)
    for box in layout.boxes:
        assert box.x >= 0 and box.y >= 0
        assert box.x + box.width <= layout.width and box.y + box.height <= layout.height
        assert not box.parent or inside(box, by_key[box.parent])
    for one, other in itertools.combinations(layout.boxes, 2):
        if one.parent == other.parent:
            assert (
                one.x + one.width <= other.x
                or other.x + other.width <= one.x
                or one.y + one.height <= other.y
                or other.y + other.height <= one.y
            )


@settings(max_examples=examples(30))
@given(drawings())
def test_every_line_goes_down_and_every_tensor_is_a_line_or_a_stub(
    drawing: tuple[Network, Drawer, Layout],
) -> None:
    network, drawer, layout = drawing
    for line in layout.lines:
        assert all(0 <= x <= layout.width and 0 <= y <= layout.height for x, y in line.points)
        heights = [y for _, y in line.points]
        assert heights == sorted(heights) and heights[0] < heights[-1]
    shown = {t for line in layout.lines for t in line.tensors} | {
        t for stub in layout.stubs for t in stub.tensors
    }
    holder = {n: box.key for box in layout.boxes for n in box.nodes}
    for leaf, row in enumerate(network.sources[: len(network.ops)]):
        for maker, tensor in row:
            ends = holder[leaf], holder.get(maker, drawer.key(maker))
            assert ends[0] == ends[1] or tensor in shown


@settings(max_examples=examples(25))
@given(networks())
def test_drawing_again_gives_the_same(network: Network) -> None:
    drawer = Drawer(network)
    everything = frozenset(drawer.tree.numbers)
    first = drawer.layout(everything)
    drawer.layout(())
    assert drawer.layout(everything) == first == Drawer(network).layout(everything)


@settings(max_examples=examples(30))
@given(drawings())
def test_svg_is_well_formed_whatever_the_names(drawing: tuple[Network, Drawer, Layout]) -> None:
    network, _, layout = drawing
    values: dict[str, float | str] = {"t0": 1e-3, "t1": "nan"}
    marks = Marks(
        {0, 1}, {"t0", "in"}, values, {"t1"}, {i: tuple(m) for i, m in enumerate(network.makes)}
    )
    root = ET.fromstring(draw_svg(layout, marks, '"<title>'))
    assert root.tag.endswith("svg")
    assert {e.tag.rpartition("}")[2] for e in root.iter()} <= {
        *"svg style g rect text title path".split()
    }


@given(
    st.lists(st.tuples(st.floats(5, 150), st.floats(5, 150)), min_size=1, max_size=14), st.data()
)
def test_no_row_is_wider_than_the_limit(
    sizes: list[tuple[float, float]], data: st.DataObject
) -> None:
    items = tuple(Item(a, b, 36.0) for a, b in sizes)
    ends = st.integers(0, len(items) - 1)
    pairs = data.draw(
        st.lists(st.tuples(ends, ends).filter(lambda e: e[0] < e[1]), max_size=25, unique=True)
    )
    placed = place_in_layers(items, tuple(Edge(a, b, 60.0) for a, b in pairs), 300.0)
    assert placed.width <= 300.01
    unlimited = place_in_layers(items, tuple(Edge(a, b, 60.0) for a, b in pairs), 1e9)
    trunk = [unlimited.at[i][0] for i in unlimited.members]
    assert max(trunk, default=0.0) - min(trunk, default=0.0) < 0.01


def chain(count: int, scoped: bool) -> Network:
    """`count` nodes in a row, by 10 in a scope and these by 10, or with names that tell nothing."""
    names = [f"/stage{i // 100}/block{i // 10}/op{i}" if scoped else f"n{i}" for i in range(count)]
    reads = [["in" if i == 0 else f"t{i - 1}"] for i in range(count)]
    return Network(
        names, ["Relu"] * count, reads, [[f"t{i}"] for i in range(count)], ["in"], [f"t{count - 1}"]
    )


def test_no_group_holds_more_than_can_be_drawn() -> None:
    """A chain without scopes, and a graph without any cut point."""
    for network in (chain(3000, False), crossing(3000)):
        tree = Tree(network)
        assert max(len(group.members) for group in tree.groups.values()) <= MAX_FLAT
        assert sorted(tree.groups[tree.root].leaves) == list(range(network.leaves))


def crossing(count: int) -> Network:
    """Two tensors cross every cut."""
    reads = [[f"t{i - 2}" if i > 1 else "in"] for i in range(count)]
    return Network(
        [f"n{i}" for i in range(count)],
        ["Relu"] * count,
        reads,
        [[f"t{i}"] for i in range(count)],
        ["in"],
    )


def test_trunk_is_straight_through_open_groups() -> None:
    drawer = Drawer(chain(300, True))
    layout = drawer.layout(drawer.tree.numbers)
    assert len({x for line in layout.lines for x, _ in line.points}) == 1


def test_opening_one_group_costs_little_of_opening_all() -> None:
    drawer = Drawer(chain(1000, True))
    begin = time.thread_time()
    drawer.layout(drawer.tree.numbers)
    everything = time.thread_time() - begin
    drawer.layout(())
    begin = time.thread_time()
    drawer.layout(["stage7"])
    assert time.thread_time() - begin < everything / 5


def test_groups_that_depend_on_each_other_are_ordered_by_their_first_node() -> None:
    assert sort_topologically([0, 1, 2], [(0, 1), (1, 0), (1, 2)], {0: 5, 1: 3, 2: 9}) == [1, 0, 2]


def test_tensor_with_many_readers_is_named_at_those_far_below() -> None:
    reads = [["in"], *([f"t{i}", "t0"] for i in range(20))]
    network = Network(
        [""] * 21, ["Add"] * 21, reads, [[f"t{i}"] for i in range(21)], ["in"], ["t20"]
    )
    layout = Drawer(network).layout()
    stubs = [stub for stub in layout.stubs if stub.tensors == ("t0",)]
    assert {stub.key for stub in stubs if stub.way == "out"} == {"#0"} and len(stubs) > 5


def test_constants_are_shown_in_the_box_that_reads_them() -> None:
    network = Network(
        ["c", "a"], ["Constant", "Add"], [[], ["in", "t0"]], [["t0"], ["t1"]], ["in"], ["t1"]
    )
    layout = Drawer(network).layout()
    assert [box.nodes for box in layout.boxes if box.kind == "node"] == [(0, 1)]
    # a region of the reader has all of its box
    assert network.add_constants([1]) == {0, 1} and network.add_constants([]) == set()


def paddle(count: int) -> Network:
    """Blocks of four operators in a row, each called by its operator and the number among its
    like."""
    kinds = ["Conv", "Add", "Relu", "Mul"]
    names = [f"p2o.{kinds[i % 4]}.{i // 4}" for i in range(count)]
    reads = [
        ["in" if i == 0 else f"t{i - 1}", *([f"t{i - 3}"] if i % 4 == 3 else [])]
        for i in range(count)
    ]
    return Network(
        names,
        [kinds[i % 4] for i in range(count)],
        reads,
        [[f"t{i}"] for i in range(count)],
        ["in"],
    )


def test_number_behind_the_operator_is_no_scope() -> None:
    """A group of all Conv would be in a cycle with that of all Add: what stands together is a
    group."""
    tree = Tree(paddle(160))
    order, edges = tree.sort_members(tree.groups[tree.root].members)
    assert len(tree.groups) > 4 and all(order.index(a) < order.index(b) for a, b in edges)
    for group in tree.groups.values():
        nodes = sorted(leaf for leaf in group.leaves if leaf < 160)
        assert nodes == list(range(nodes[0], nodes[-1] + 1))


def test_scopes_that_follow_the_data_are_groups_also_where_one_node_stands_elsewhere() -> None:
    network = chain(40, True)

    def groups(names: list[str]) -> set[str]:
        other = Network(
            names, network.ops, network.reads, network.makes, network.inputs, network.outputs
        )
        return set(Tree(other).numbers)

    named = [f"/{'stem' if i < 10 else 'body'}/op{i}" for i in range(40)]
    assert {"stem", "body"} <= groups(named)
    named[20] = "/stem/late"  # read by the body, which it reads
    assert {"stem", "body"} <= groups(named)
    assert not {"a", "b"} & groups([f"/{'ab'[i % 2]}/op{i}" for i in range(40)])


def test_groups_that_would_be_called_alike_are_called_by_their_ends() -> None:
    names = [f"p2o.Conv.{i}" for i in range(120)]
    tensors = ["x", *names]
    network = Network(
        names, ["Conv"] * 120, [[t] for t in tensors[:-1]], [[t] for t in names], ["x"], [names[-1]]
    )
    labels = [g.label for g in Tree(network).groups.values() if g.key]
    assert len(labels) > 3 and len(set(labels)) == len(labels)
    assert labels[0].startswith("p2o.Conv.0 … p2o.Conv.")


def test_names_that_are_long_and_alike_are_shown_where_they_differ() -> None:
    names = [f"/encoder/layer.{i}/attention/output/dense/MatMul_output_0" for i in range(12)]
    reads = [[*names[:i], "in"] for i in range(12)]
    network = Network(names, ["Sum"] * 12, reads, [[n] for n in names], ["in"], names[-1:])
    layout = Drawer(network).layout()
    labels = {box.detail for box in layout.boxes if box.kind == "node"}
    assert len(labels) == 12


def test_box_has_a_line_for_its_weights() -> None:
    network = Network(["a", "b"], ["Conv", "Relu"], [["x"], ["a"]], [["a"], ["b"]], ["x"], ["b"])
    plain, noted = (Drawer(network, notes=notes).layout() for notes in ({}, {0: "⟨8×3×3×3⟩ ⟨8⟩"}))
    heights = [[box.height for box in layout.boxes] for layout in (plain, noted)]
    assert [b - a for a, b in zip(*heights, strict=True)] == [0.0, 14.0, 0.0, 0.0]
    assert [box.note for box in noted.boxes] == ["", "⟨8×3×3×3⟩ ⟨8⟩", "", ""]
