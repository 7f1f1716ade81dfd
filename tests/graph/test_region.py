"""`Region`: the nodes between two boundaries, and the tensors that enter and leave."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

from fixtures import graphs
from subgraph.errors import NoRegion
from subgraph.graph import graph, region
from subgraph.graph.graph import Graph
from subgraph.graph.region import find_region
from tests.helpers import text_models
from tests.helpers.refusals import raises

LAYERS = """pool1 res2a_branch1 bn2a_branch1 scale2a_branch1 res2a_branch2a bn2a_branch2a scale2a_branch2a
res2a_branch2a_relu res2a_branch2b bn2a_branch2b scale2a_branch2b res2a_branch2b_relu res2a_branch2c bn2a_branch2c
scale2a_branch2c res2a res2a_relu""".split()  # noqa: E501


def test_worked_example_has_its_region(resnet: Path) -> None:
    """pool1 … res2a_relu of a Caffe-named ResNet-50: 17 layers, one tensor in, one out."""
    g = graph.load(resnet)
    found = find_region(g, ["pool1"], ["res2a_relu"])
    assert text_models.labels(g, found.nodes) == LAYERS
    assert (found.start, found.end) == (("pool1",), ("res2a_relu",))
    assert (found.inputs, found.outputs) == (("conv1",), ("res2a",))
    assert (found.shapes, found.pulled, found.random) == ((), (), ())
    assert len(found.weights) == 36  # of 4 Conv 1 each, of 8 BatchNormalization 4 each


@pytest.fixture
def g(tmp_path: Path) -> Graph:
    r"""
    x ─ a ─┬─ b ─ c ─┬─ e ─▶ out         v ─ p ─▶ side
           └─ d ─────┘                   k ─ q      (k is a constant, nobody reads q)
    """
    return text_models.load(
        tmp_path,
        """g (float[2] x, float[2] v) => (float[2] out, float[2] side) {
            [a] ta = Relu(x)
            [b] tb = Add(ta, w)
            [c] tc = Relu(tb)
            [d] td = Neg(ta)
            [e] out = Add(tc, td)
            [p] side = Relu(v)
            [k] tk = Constant<value_floats = [1.0, 2.0]>()
            [q] tq = Neg(tk)
        }""",
        w=np.ones(2, np.float32),
    )


@dataclass(frozen=True)
class Found:
    start: str
    end: str
    nodes: str
    inputs: str
    outputs: str
    weights: str = ""


@pytest.mark.parametrize(
    "found",
    [
        Found("a", "e", "a b c d e", "x", "out", "w"),
        # the side branch is an input, no reason to drag it in
        Found("b", "e", "b c e", "ta td", "out", "w"),
        Found("b d", "e", "b c d e", "ta", "out", "w"),
        Found("b", "c", "b c", "ta", "tc", "w"),
        Found("b", "b c", "b c", "ta", "tb tc", "w"),  # an end above another is given as well
        Found("a", "c", "a b c", "x", "ta tc", "w"),  # ta is read by d, outside
        Found("d", "d", "d", "ta", "td"),
        Found("a p", "e side", "a b c d e p", "x v", "out side", "w"),
        Found("x", "tensor:tb", "a b", "x", "ta tb", "w"),
        Found("", "c", "a b c", "x", "ta tc", "w"),  # no start: from the inputs
        Found("c", "", "c e", "tb td", "out"),  # no end: to the outputs that it leads to
        Found("", "", "a b c d e p", "x v", "out side", "w"),
        Found("k", "q", "k q", "", "tq"),  # asked for by name, though it depends on no input
        Found("q", "q", "q", "", "tq"),
    ],
)
def test_between_has_all_nodes_on_paths(g: Graph, found: Found) -> None:
    got = find_region(g, found.start.split(), found.end.split())
    assert text_models.labels(g, got.nodes) == found.nodes.split()
    assert set(got.inputs) == set(found.inputs.split())
    assert set(got.outputs) == set(found.outputs.split())
    assert list(got.weights) == found.weights.split()


def test_no_start_and_no_end_are_named_by_what_they_came_to(g: Graph) -> None:
    assert find_region(g, (), ["c"]).start == ("x",)
    assert find_region(g, ["c"], ()).end == ("e",)


@pytest.mark.parametrize(
    ("start", "end", "code", "hint"),
    [
        ("e", "a", "region.end-is-upstream", "--start a --end e"),
        ("d", "a", "region.end-is-upstream", "--start a --end d"),
        ("b", "d", "region.no-path", "--start b --end e"),
        ("a", "p", "region.separate-branches", "one branch"),
        ("a p", "e", "region.separate-branches", ""),
        ("a", "e side", "region.separate-branches", ""),
        ("a", "q", "region.separate-branches", ""),
        ("a", "x", "region.end-is-input", "--start"),
        ("q", "", "region.separate-branches", ""),
        ("", "q", "region.separate-branches", ""),
    ],
)
def test_start_and_end_without_a_path_are_refused(
    g: Graph, start: str, end: str, code: str, hint: str
) -> None:
    with raises(NoRegion, code) as refusal:
        find_region(g, start.split(), end.split())
    assert hint in refusal.value.hint


def test_missing_producer_outside_the_region_is_no_error(tmp_path: Path) -> None:
    text = "g (float[2] x) => (float[2] y) { [a] t = Add(x, ghost) [b] y = Relu(t) }"
    assert find_region(text_models.load(tmp_path, text), ["b"], ["b"]).inputs == ("t",)


def test_model_without_inputs_or_made_outputs_has_no_ends_of_its_own(tmp_path: Path) -> None:
    g = text_models.load(
        tmp_path,
        "g () => (float[2] y) { k = Constant<value_floats = [1.0, 2.0]>() [n] y = Relu(k) }",
    )
    with raises(NoRegion, "region.no-ends", "model.onnx"):
        find_region(g, (), ["n"])
    assert find_region(g, ["n"], ()).outputs == ("y",)
    g = text_models.load(
        tmp_path, "g (float[2] x) => (float[2] w) { [n] y = Add(x, w) }", w=np.ones(2, np.float32)
    )
    with raises(NoRegion, "region.no-ends", "model.onnx"):
        find_region(g, ["n"], ())
    assert find_region(g, ["n"], ["n"]).outputs == ("y",)


def test_random_nodes_between_stay_outside(tmp_path: Path) -> None:
    g = text_models.load(
        tmp_path,
        """g (float[2] x) => (float[2] y) {
            [a] ta = Relu(x)
            [r] tr = RandomNormalLike(ta)
            [b] tb = Neg(tr)
            [c] y = Add(ta, tb)
        }""",
    )
    found = find_region(g, ["a"], ["c"])
    assert text_models.labels(g, found.nodes) == ["a", "b", "c"] and text_models.labels(
        g, found.random
    ) == ["r"]
    assert (found.inputs, found.outputs) == (("x", "tr"), ("ta", "y"))
    with raises(NoRegion, "region.only-random"):
        find_region(g, ["r"], ["r"])


def test_constants_that_enter_come_along(tmp_path: Path) -> None:
    """Not a tensor that is made inside, and not the output of a random node."""
    g = text_models.load(
        tmp_path,
        """g (float[2] x) => (float[2] y) {
            [k] tk = Constant<value_floats = [1.0, 2.0]>()
            [s] ts = Mul(tk, w)
            [a] ta = Relu(x)
            [b] tb = Add(ta, ts)
            [c] y = Sub(tb, tk)
        }""",
        w=np.ones(2, np.float32),
    )
    found = find_region(g, ["b"], ["c"])
    assert (
        text_models.labels(g, found.pulled) == ["k", "s"]
        and found.inputs == ("ta",)
        and found.weights == ("w",)
    )
    found = find_region(g, ["k", "b"], ["c"])
    assert text_models.labels(g, found.nodes) == ["k", "s", "b", "c"] and found.pulled == ()


def test_outputs_that_nobody_reads_stay_inside_unless_all_are_such(tmp_path: Path) -> None:
    """Unread outputs (a Dropout's mask, a TopK's values) do not leave, unless no output of the end
    is read."""
    g = text_models.load(
        tmp_path,
        """g (float[4] x, int64[1] k) => (float[4] y) {
            [drop] d, mask = Dropout(x)
            [top]  values, places = TopK(d, k)
            [rest] y = Cast<to = 1>(places)
            [lone] one, two = Split(d)
        }""",
    )
    assert find_region(g, ["drop"], ["drop"]).outputs == ("d",)
    assert find_region(g, ["top"], ["top"]).outputs == ("places",)
    assert find_region(g, ["top"], ["tensor:values"]).outputs == ("values", "places")
    assert find_region(g, ["lone"], ["lone"]).outputs == ("one", "two")


def test_above_has_every_node_that_a_tensor_needs(g: Graph) -> None:
    found = region.find_upstream(g, ["tc", "x"])
    assert (text_models.labels(g, found.nodes), found.inputs, found.weights) == (
        ["a", "b", "c"],
        ("x",),
        ("w",),
    )
    assert "tc" in found.outputs
    assert region.find_upstream(g, ["x"]).nodes == ()


def test_above_includes_random_nodes(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(graphs.random_inside(), path)
    g = graph.load(path)
    found = text_models.labels(g, region.find_upstream(g, ["z"]).nodes)
    assert found == "before first noise middle last".split()


def test_region_ends_before_a_zipmap(tmp_path: Path) -> None:
    """No file holds its maps; a ZipMap alone stays what was asked for."""
    text = """g (float[2,3] x) => (int64 z) {
        [relu] r = Relu(x) [soft] p = Softmax(r) [zip] z = ai.onnx.ml.ZipMap<classlabels_int64s = [0, 1, 2]>(p)
    }"""  # noqa: E501
    g = text_models.load(tmp_path, text, domains=("ai.onnx.ml",))
    found = find_region(g, ["relu"], ["zip"])
    assert (text_models.labels(g, found.nodes), found.end, found.outputs) == (
        ["relu", "soft"],
        ("soft",),
        ("p",),
    )
    assert find_region(g, [], []).outputs == ("p",)
    assert text_models.labels(g, find_region(g, ["zip"], ["zip"]).nodes) == ["zip"]
