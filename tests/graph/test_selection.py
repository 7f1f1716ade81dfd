"""Selectors: the nodes and tensors that a text names."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings, strategies as st

from subgraph.errors import UnknownName, UsageError
from subgraph.graph.graph import Graph, load
from subgraph.graph.selection import find_fitting_tensors, select, select_tensor
from subgraph.text import find_nearest
from tests.helpers import text_models
from tests.helpers.budget import within
from tests.helpers.chain_models import chain
from tests.helpers.examples import examples
from tests.helpers.refusals import raises


@pytest.fixture
def g(tmp_path: Path) -> Graph:
    """data ─ conv1 ▶ relu/1 ▶ conv2 ▶ relu/2 ▶ (nameless Neg) ▶ split ▶ left, right; two nodes
    called `twin`."""
    return text_models.load(
        tmp_path,
        """g (float[8] data) => (float[4] left, float[4] right) <float[8] w = {1,1,1,1,1,1,1,1}> {
            [conv1] c1 = Mul(data, w)
            [relu_1] r1 = Relu(c1)
            [conv2] c2 = Mul(r1, w)
            [relu_2] r2 = Relu(c2)
            n = Neg(r2)
            [twin] t1 = Abs(n)
            [twin] t2 = Abs(t1)
            [split] left, right = Split(t2)
        }""",
        _with_slashes,
    )


def _with_slashes(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.name = node.name.replace("_", "/")


@pytest.mark.parametrize(
    ("word", "nodes", "tensor"),
    [
        ("conv1", (0,), None),
        ("relu/1", (1,), None),
        ("c2", (2,), "c2"),  # a tensor: the node that makes it
        ("right", (7,), "right"),
        ("data", (0,), "data"),  # an input of the model: the nodes that read it
        ("node:conv2", (2,), None),
        ("tensor:n", (4,), "n"),
        ("#4", (4,), None),
        ("#0", (0,), None),
        ("Relu@2", (3,), None),
        ("Abs@1", (5,), None),
        ("conv?2", None, None),
        ("*v2", (2,), None),
        ("relu/[2]", (3,), None),
        ("sp*", (7,), None),
    ],
)
def test_word_selects_a_node(
    g: Graph, word: str, nodes: tuple[int, ...] | None, tensor: str | None
) -> None:
    if nodes is None:
        with pytest.raises(UnknownName):
            select(g, word)
        return
    found = select(g, word)
    assert (found.text, found.nodes, found.tensor) == (word, nodes, tensor)


@pytest.mark.parametrize(
    ("word", "code", "facts"),
    [
        ("twin", "node.ambiguous", ("2 nodes",)),
        ("node:twin", "node.ambiguous", ("#5, #6",)),
        ("twi*", "node.ambiguous", ("#5, #6",)),
        ("conv*", "node.ambiguous", ("conv1, conv2",)),
        ("w", "node.is-weight", ("'w'",)),
        ("tensor:w", "node.is-weight", ()),
        ("#8", "node.unknown", ("#7",)),
        ("#99999999999999999999", "node.unknown", ()),
        ("Relu@3", "node.unknown", ("2 Relu",)),
        ("Relu@0", "node.unknown", ("1",)),
        ("Conv@1", "node.unknown", ("'Conv@1'",)),
        ("node:c1", "node.unknown", ()),
        ("tensor:conv1", "node.unknown", ()),
        ("conv3", "node.unknown", ("'conv1'", "'conv2'")),
        ("xyz*", "node.unknown", ("'xyz*'",)),
        ("", "node.unknown", ("''",)),
    ],
)
def test_unknown_or_ambiguous_word_is_refused(
    g: Graph, word: str, code: str, facts: tuple[str, ...]
) -> None:
    error = UnknownName if code == "node.unknown" else UsageError
    with raises(error, code, *facts) as refusal:
        select(g, word)
    assert type(refusal.value) is error


def test_exact_name_comes_before_all_else(tmp_path: Path) -> None:
    """Names that look like selectors: a node with the name of another's tensor, globs, `Relu@1`,
    `tensor:b`."""
    names = ["b", "[ab]", "Relu@1", "tensor:b", "a*"]
    g = load(chain(tmp_path / "m.onnx", names, ["t1", "t2", "b", "t4"]))
    assert [select(g, name).nodes for name in names] == [(i,) for i in range(len(names))]
    assert select(g, "tensor:t1").nodes == (0,)


@settings(max_examples=examples(100), deadline=None, derandomize=True, database=None)
@given(
    st.lists(
        st.sampled_from(["", "a", "b", "conv1", "Relu", "a/b:0", "ü ñ", "*", "node:a"]),
        min_size=1,
        max_size=8,
    )
)
def test_label_selects_its_node(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    g = load(chain(tmp_path_factory.mktemp("names") / "m.onnx", names))
    assert [select(g, g.label(i)).nodes for i in range(len(names))] == [
        (i,) for i in range(len(names))
    ]


def test_tensor_is_found_by_its_producer(g: Graph) -> None:
    assert [
        select_tensor(g, word) for word in ("c1", "conv1", "#4", "data", "tensor:r1")
    ] == "c1 c1 n data r1".split()
    with raises(UsageError, "tensor.ambiguous", "split"):
        select_tensor(g, "split")


@pytest.mark.parametrize(
    ("word", "best"),
    [("relu_3x", "relu_3"), ("RELU_3", "relu_3"), ("relu3", "relu_3"), ("3", "relu_3")],
)
def test_unknown_name_has_the_nearest_names(word: str, best: str) -> None:
    names = [f"{op}_{i}" for i in range(30) for op in ("conv", "relu", "pool")]
    found = find_nearest(word, names)
    assert len(found) == 3 and best in found


@pytest.mark.slow
def test_the_nearest_of_a_great_many_names_are_found_soon() -> None:
    """0.6 s of CPU time on the machine where this was written."""
    names = [
        f"/blocks.{i}/attention/output/dense/MatMul_{k}" for i in range(20_000) for k in range(8)
    ]
    with within(8):
        assert "/blocks.7/attention/output/dense/MatMul_3" in find_nearest(
            "blocks.7/attention/output/dense/MatMul_3", names
        )
        assert len(find_nearest("nothing like it", names)) == 3


@pytest.mark.parametrize(
    ("glob", "tensors"),
    [("relu/*", ["r1", "r2"]), ("?1", ["c1", "r1", "t1"]), ("c1", []), ("split", []), ("q*", [])],
)
def test_glob_fits_names_of_tensors_and_of_their_producers(
    g: Graph, glob: str, tensors: list[str]
) -> None:
    assert find_fitting_tensors(g, [*g.inputs, *g.maker], glob) == tensors
