"""Networks for laws of drawings."""

from __future__ import annotations

from hypothesis import strategies as st

from subgraph.drawing.network import Network

NAMES = st.sampled_from(
    ["", "a/x", "a/b/x", "a/b/c/y", "/d/z", "plain", "<b>&\"'", "卷" * 40, "a/b", "\x1b[31m\ufffe"]
)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Also cyclic, unsorted and with tensors that nobody makes; tensors are called after their
    makers."""
    count = draw(st.integers(1, 30))
    ops = draw(
        st.lists(st.sampled_from(["Conv", "Constant", "Add"]), min_size=count, max_size=count)
    )
    tensors = st.sampled_from(["in", "weight", *(f"t{i}" for i in range(count))])
    reads = [[] if op == "Constant" else draw(st.lists(tensors, max_size=4)) for op in ops]
    if draw(st.booleans()):  # in topological order
        reads = [[t for t in row if t[0] != "t" or int(t[1:]) < i] for i, row in enumerate(reads)]
    names = draw(st.lists(NAMES, min_size=count, max_size=count))
    outputs = draw(st.lists(tensors, max_size=2, unique=True))
    return Network(
        names, ops, reads, [[f"t{i}"] for i in range(count)], ["in"], outputs, {"t0": "float32 1×3"}
    )
