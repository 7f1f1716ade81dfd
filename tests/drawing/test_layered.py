"""Laws of layered drawings."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from subgraph.drawing.layered import layered

TREE = tuple[int, list[tuple[int, int]]]


@st.composite
def graphs(draw: st.DrawFn) -> TREE:
    count = draw(st.integers(1, 12))
    ends = st.integers(0, count - 1)
    return count, draw(st.lists(st.tuples(ends, ends), max_size=24, unique=True))


@settings(max_examples=60)
@given(graphs())
def test_nothing_in_a_drawing_overlaps(graph: TREE) -> None:
    count, edges = graph
    widths = {i: 60.0 + 13 * i for i in range(count)}
    picture = layered(widths, dict.fromkeys(edges, 70.0))
    items = [(x, y, widths[i], 44.0) for i, (x, y) in picture.boxes.items()]
    items += [(x, y, 70.0, 18.0) for x, y in picture.labels.values()]
    for (x1, y1, w1, h1), (x2, y2, w2, h2) in itertools.combinations(items, 2):
        assert abs(x1 - x2) >= (w1 + w2) / 2 or abs(y1 - y2) >= (h1 + h2) / 2
    assert all(w / 2 <= x <= picture.width - w / 2 and h / 2 <= y <= picture.height - h / 2 for x, y, w, h in items)
    assert set(picture.paths) == {(a, b) for a, b in edges if a < b}
    for (a, b), path in picture.paths.items():
        assert path[0][1] > picture.boxes[a][1] and path[-1][1] < picture.boxes[b][1]
        assert [y for _, y in path] == sorted(y for _, y in path), "edges go down"
