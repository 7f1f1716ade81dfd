"""The legend of the operators' kinds: where there is one, how wide it is, and that no kind is
lost."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from subgraph.drawing.layout import Drawer
from subgraph.drawing.legend import legend
from subgraph.drawing.network import Network
from subgraph.drawing.svg import svg

KINDS = ["multiply", "activation", "normalize", "reduce", "layout", "quantize", "control"]


def network(ops: list[str]) -> Network:
    names = [f"n{k}" for k in range(len(ops))]
    return Network(
        names, ops, [["x"], *([n] for n in names[:-1])], [[n] for n in names], ["x"], names[-1:]
    )


def test_few_boxes_or_one_kind_have_no_legend() -> None:
    assert legend(["multiply"] * 4 + ["layout"] * 3, 900.0) == ("", 0.0, 0.0)
    assert legend(["multiply"] * 99, 900.0) == ("", 0.0, 0.0)
    assert "convolution" in legend(["multiply"] * 4 + ["layout"] * 4, 900.0)[0]


def test_rows_end_within_the_width_and_a_narrow_one_is_as_wide_as_its_words() -> None:
    for width in (120.0, 340.0, 940.0):
        text, wide, high = legend(KINDS * 2, width)
        items = re.findall(r'<text x="([\d.]+)" y="([\d.]+)">([^<]+)', text)
        assert len(items) == len(KINDS) and wide >= width
        assert all(float(x) + 6.7 * len(words) <= wide and float(y) < high for x, y, words in items)
    assert legend(KINDS * 2, 120.0)[1] > 120.0


def test_the_legend_stands_above_the_drawing_which_keeps_its_place() -> None:
    layout = Drawer(network(["Conv", "Relu"] * 5)).layout()
    root = ET.fromstring(svg(layout, title="net"))
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    assert top < 0 and height + top == layout.height and left == -(width - layout.width) / 2
    assert (
        ET.fromstring(svg(Drawer(network(["Conv", "Relu"])).layout()))
        .attrib["viewBox"]
        .startswith("0 0 ")
    )
