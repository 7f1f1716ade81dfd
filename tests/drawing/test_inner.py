"""A node opens in place, with a drawing of each of its bodies."""

from __future__ import annotations

from subgraph.drawing.layout import Drawer, Layout
from subgraph.drawing.level import Inner
from subgraph.drawing.network import Network
from subgraph.drawing.svg import Marks, draw_svg


def body(word: str, first: int, inside: dict[int, list[Inner]] | None = None) -> Inner:
    names = [f"part/n{i}" for i in range(4)]
    tensors = [f"t{i}" for i in range(5)]
    network = Network(
        names, ["Relu"] * 4, [[t] for t in tensors[:-1]], [[t] for t in tensors[1:]], ["t0"], ["t4"]
    )
    return Inner(
        word,
        f"if/{word}/",
        first,
        4 + sum(b.size for row in (inside or {}).values() for b in row),
        network,
        inside or {},
    )


def drawer() -> Drawer:
    """A node `if` with two branches; in the second, node 1 has a branch, too."""
    deep = body("deep", 4)
    network = Network(
        ["a", "if", "b"],
        ["Relu", "If", "Relu"],
        [["x"], ["a"], ["if"]],
        [["a"], ["if"], ["b"]],
        ["x"],
        ["b"],
    )
    return Drawer(network, {1: [body("then", 3), body("else", 7, {1: [deep]})]})


def inside(picture: Layout, key: str) -> bool:
    """Are all boxes whose frame is `key` in that frame?"""
    frame = next(box for box in picture.boxes if box.key == key)
    held = [box for box in picture.boxes if box.parent == key]
    return bool(held) and all(
        frame.x <= box.x
        and frame.y <= box.y
        and box.x + box.width <= frame.x + frame.width
        and box.y + box.height <= frame.y + frame.height
        for box in held
    )


def test_open_group_is_in_its_frame_with_its_number() -> None:
    drawing = drawer()
    keys = drawing.openable
    assert list(keys.items()) == [("#1", ""), ("#8", "#1")]
    assert drawing.holders == ["", "", "", *["#1"] * 8, *["#8"] * 4]
    closed = drawing.layout(())
    assert [box.nodes for box in closed.boxes if box.kind == "node"] == [
        (0,),
        (1, *range(3, 15)),
        (2,),
    ]
    assert "+ If" in {box.label for box in closed.boxes}
    opened = drawing.layout(keys)
    assert sorted(n for box in opened.boxes for n in box.nodes) == list(range(15))
    assert {box.key for box in opened.boxes} >= {f"#{n}" for n in range(15)}
    assert [box.key for box in opened.boxes if box.kind == "body"] == [
        "if/then",
        "if/else",
        "if/else/if/deep",
    ]
    assert all(inside(opened, key) for key in ("#1", "#8", "if/then", "if/else", "if/else/if/deep"))
    assert {"if/then/t1", "if/else/if/deep/t1", "a"} <= {
        t for line in opened.lines for t in line.tensors
    }
    narrow = drawing.layout(keys, 240.0)
    assert narrow.width < 240 < opened.width and narrow.height > opened.height
    assert drawing.layout(()) == closed == drawer().layout(())


def test_marks_reach_what_is_inside() -> None:
    drawing = drawer()
    marks = Marks(found=[11], region=[1, *range(3, 15)])
    assert 'class="box node control region found" data-key="#1"' in draw_svg(
        drawing.layout(()), marks
    )
    assert 'class="box node activation region found" data-key="#11"' in draw_svg(
        drawing.layout(drawing.openable), marks
    )


def test_small_model_shows_its_bodies_at_once() -> None:
    assert drawer().choose_open() == {"#1"}
