"""`Graph`: makers and readers of each tensor, what its value depends on, and selectors."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
import onnx
import pytest
from hypothesis import given, settings, strategies as st
from onnx import helper, numpy_helper

from fixtures import oracle
from fixtures.dags import random_dag
from subgraph.errors import ModelError, UnknownName, UsageError
from subgraph.graph.graph import CONSTANT, SHAPE, VALUE, Graph, find_made_twice, load
from subgraph.text import nearest
from tests.helpers import text_models
from tests.helpers.budget import within
from tests.helpers.chain_models import chain
from tests.helpers.examples import examples
from tests.helpers.refusals import raises

# ------------------------------------------------------------ the index


def test_optional_inputs_and_outputs_that_are_left_out_are_no_tensors(tmp_path: Path) -> None:
    g = text_models.load(
        tmp_path, 'g (float[2] x) => (float[2] y) { y, "" = Dropout(x)  z = Clip(y, , x) }'
    )
    assert g.reads == [("x",), ("y", "x")]
    assert g.makes == [("y",), ("z",)]
    assert g.maker == {"y": 0, "z": 1}


def test_captured_tensors_of_a_body_are_read(tmp_path: Path) -> None:
    """Not the body's own inputs, weights and tensors; but a tensor that it only outputs, and reads
    of a nested body."""
    g = text_models.load(
        tmp_path,
        """g (float[2] x, bool c, int64 n) => (float[2] y) {
            a = Relu(x)
            b = Neg(x)
            i = If(c) <
                then_branch = t () => (float[2] a) {},
                else_branch = e () => (float[2] p) <float[2] w = {1, 2}> {
                    own = Add(b, w)
                    p = If(c) <
                        then_branch = tt () => (float[2] q) { q = Mul(own, a) },
                        else_branch = ee () => (float[2] q) { q = Identity(own) }
                    >
                }
            >
            y = Loop(n, c, i) <body = step (int64 k, bool go, float[2] state) => (bool on, float[2] next) {
                on = Identity(go)
                next = Add(state, b)
            }>
        }""",  # noqa: E501
    )
    assert set(g.reads[2]) == {"c", "a", "b"}
    assert set(g.reads[3]) == {"n", "c", "i", "b"}
    assert sorted(g.readers["b"]) == [2, 3]


def test_initializers_are_no_inputs(tmp_path: Path) -> None:
    g = text_models.load(
        tmp_path,
        "g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }",
        lambda m: m.graph.sparse_initializer.append(
            helper.make_sparse_tensor(
                numpy_helper.from_array(np.ones(1, np.float32), "s"),
                numpy_helper.from_array(np.array([1]), "i"),
                [4],
            )
        ),
        w=np.ones(2, np.float32),
    )
    assert list(g.inputs) == ["x"] and list(g.weights) == ["w"] and list(g.sparse) == ["s"]


@settings(max_examples=examples(60), deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**32 - 1), st.integers(3, 40))
def test_the_index_agrees_with_networkx(
    tmp_path_factory: pytest.TempPathFactory, seed: int, size: int
) -> None:
    model = random_dag(np.random.default_rng(seed), size)
    g = text_models.read(tmp_path_factory.mktemp("dag"), model)
    dag = oracle.digraph(model)
    assert [set(names) for names in g.reads] == [oracle.reads(node) for node in model.graph.node]
    assert {(i, j) for i in range(len(g.nodes)) for j in g.successors(i)} == set(dag.edges())
    assert list(g.ops) == [node.op_type for node in model.graph.node]
    for i in range(0, len(g.nodes), 3):
        assert g.ancestors([i]) == {i} | nx.ancestors(dag, i)
        assert g.descendants([i]) == {i} | nx.descendants(dag, i)
        assert set(g.predecessors(i)) == set(dag.predecessors(i))
        assert set(g.successors(i)) == set(dag.successors(i))
    assert all(g.rank[i] < g.rank[j] for i, j in dag.edges())


def test_nodes_in_any_order_are_put_in_order(tmp_path: Path) -> None:
    g = text_models.load(
        tmp_path,
        "g (float[2] x) => (float[2] c) { [n3] c = Relu(b) [n1] a = Relu(x) [n2] b = Relu(a) }",
    )
    assert text_models.labels(g, g.in_order(range(3))) == ["n1", "n2", "n3"]


def test_cycle_is_named(tmp_path: Path) -> None:
    g = text_models.load(
        tmp_path,
        "g (float[2] x) => (float[2] b) { [one] a = Add(x, c) [two] b = Relu(a) [three] c ="
        " Relu(b) }",
    )
    with raises(ModelError, "graph.cycle") as refusal:
        _ = g.rank
    assert {"one", "two", "three"} <= set(refusal.value.what.replace(" → ", " ").split())


def test_tensor_made_twice_is_found(tmp_path: Path) -> None:
    g = text_models.load(
        tmp_path, "g (float[2] x) => (float[2] a) { a = Relu(x)  b = Relu(x)  a = Neg(x) }"
    )
    assert find_made_twice(g) == [("a", 0, 2)]


# ------------------------------------------------------------ declared types


def test_types_come_from_inputs_outputs_and_value_info(tmp_path: Path) -> None:
    g = text_models.load(
        tmp_path,
        "g (float[2] x) => (float[N] y) <int64[3] a> { a = Foo(x)  b = Foo(a)  y = Foo(b) }",
        domains=(),
    )
    assert set(g.find_declared_types()) == {"x", "y", "a"}
    assert set(g.find_declared_types({"a", "b", "y"})) == {"a", "y"}
    assert g.find_declared_types(["a"])["a"].tensor_type.elem_type == onnx.TensorProto.INT64


@pytest.mark.parametrize("length", [1, 127, 128, 300, 20_000])
def test_type_is_found_by_a_name_of_any_length(tmp_path: Path, length: int) -> None:
    """Names are compared before a value_info is decoded; a length above 127 takes two bytes
    there."""
    name = "ü" * (length // 2) + "n" * (length % 2)
    info = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT16, [3])
    g = text_models.load(
        tmp_path,
        "g (float[2] x) => (float[2] y) { y = Relu(x) }",
        lambda m: m.graph.value_info.append(info),
    )
    assert g.find_declared_types([name])[name].tensor_type.elem_type == onnx.TensorProto.FLOAT16
    assert g.find_declared_types(["other"]) == {}


# ------------------------------------------------------------ random nodes

NOISE = "noise (v) => (r) { n = RandomNormalLike(v)  r = Add(v, n) }"


@pytest.mark.parametrize(
    ("text", "random"),
    [
        ("g (float[2] x) => (float[2] y) { a = RandomNormal<shape = [2]>()  y = Add(x, a) }", [0]),
        ("g (float[2] x) => (float[2] y) { a = Bernoulli(x)  y = Add(x, a) }", [0]),
        ("g (float[2] x) => (float[2] y) { a = acme.Bernoulli(x)  y = Add(x, a) }", []),
        (
            """g (float[2] x, bool c) => (float[2] y) { a = Relu(x)  y = If(c) <
                then_branch = t () => (float[2] r) { r = If(c) <
                    then_branch = tt () => (float[2] q) { q = RandomUniformLike(a) },
                    else_branch = ee () => (float[2] q) { q = Identity(a) }> },
                else_branch = e () => (float[2] r) { r = Identity(a) }> }""",
            [1],
        ),
        (
            'g (float[2] x) => (float[2] y) { y = fx.noise(x) } <domain: "fx", opset_import: ["" :'
            " 17]> " + NOISE,
            [0],
        ),
        (
            'g (float[2] x) => (float[2] y) { a = fx.quiet(x)  y = fx.outer(a) } <domain: "fx",'
            ' opset_import: ["" : 17, "fx" : 1]> outer (v) => (r) { r = fx.noise(v) } <domain:'
            ' "fx", opset_import: ["" : 17]> quiet (v) => (r) { r = Relu(v) } <domain: "fx",'
            ' opset_import: ["" : 17]> ' + NOISE,
            [1],
        ),
        (  # a function that is called like a plain operator
            "g (float[2] x) => (float[2] y) { a = Relu(x)  y = fx.Relu(a) } "
            '<domain: "fx", opset_import: ["" : 17]> ' + NOISE.replace("noise", "Relu"),
            [1],
        ),
    ],
)
def test_random_nodes_are_found_wherever_the_draw_is(
    tmp_path: Path, text: str, random: list[int]
) -> None:
    g = text_models.load(tmp_path, text, domains=("fx", "acme"))
    assert sorted(g.random_nodes) == random


def test_functions_that_call_many_are_looked_at_once(tmp_path: Path) -> None:
    """f0 calls f1 twice, which calls f2 twice …: following each call would take 2^20 steps."""
    functions = [
        f'<domain: "fx", opset_import: ["" : 17, "fx" : 1]> f{i} (v) => (r) {{ a = fx.f{j}(v)  r ='
        f" fx.f{j}(a) }}"
        for i, j in enumerate(range(1, 21))
    ]
    text = "g (float[2] x) => (float[2] y) { y = fx.f0(x) } " + " ".join(functions)
    text += ' <domain: "fx", opset_import: ["" : 17]> ' + NOISE.replace("noise", "f20")
    assert text_models.load(tmp_path, text, domains=("fx",)).random_nodes == {0}


@pytest.mark.parametrize(
    ("mode", "random"),
    [
        ("y = Dropout(x)", False),
        ("y = Dropout(x, ratio)", False),
        ("y = Dropout(x, ratio, no)", False),
        ("y = Dropout(x, ratio, yes)", True),
        ("m = Constant<value = bool {0}>() y = Dropout(x, ratio, m)", False),
        ("m = Constant<value = bool {1}>() y = Dropout(x, ratio, m)", True),
        ("y = Dropout(x, ratio, given)", True),  # nobody knows before a run
    ],
)
def test_dropout_draws_only_in_training(tmp_path: Path, mode: str, random: bool) -> None:
    g = text_models.load(
        tmp_path,
        f"g (float[2] x, bool given) => (float[2] y) <float ratio = {{0.5}}> {{ {mode} }}",
        yes=np.array(True),
        no=np.array(False),
    )
    assert bool(g.random_nodes) == random


# ------------------------------------------------------------ kinds


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        ("fixed", CONSTANT),
        ("scaled", CONSTANT),
        ("its_shape", CONSTANT),  # of a weight: known without a run
        ("dims", SHAPE),
        ("target", SHAPE),
        ("spread", SHAPE),  # filled by a shape, with a constant
        ("mixed", VALUE),  # one path passes Shape, another does not
        ("folded", VALUE),
        ("noise", VALUE),
        ("noise_dims", SHAPE),
        ("chosen", VALUE),  # by a condition that is read from the input
        ("x", VALUE),
    ],
)
def test_dependencies_of_a_value_include_shapes_and_bodies(
    tmp_path: Path, tensor: str, kind: int
) -> None:
    g = text_models.load(
        tmp_path,
        """g (float[2,N] x, bool c) => (float[2,M] y) {
            fixed = Constant<value_ints = [1, 2]>()
            scaled = Mul(w, w)
            its_shape = Shape(w)
            dims = Shape(x)
            target = Concat<axis = 0>(dims, fixed)
            spread = ConstantOfShape(dims)
            mixed = Expand(x, dims)
            folded = Reshape(x, fixed)
            noise = RandomUniform<shape = [2, 2]>()
            noise_dims = Size(noise)
            chosen = If(c) <
                then_branch = t () => (int64[2] a) { a = Identity(dims) },
                else_branch = e () => (int64[2] a) { a = Identity(fixed) }>
            y = Foo(mixed, folded, noise, noise_dims, chosen, target, spread, its_shape)
        }""",
        w=np.ones(2, np.float32),
    )
    assert g.kinds([tensor]) == {tensor: kind}


# ------------------------------------------------------------ selectors


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
            g.select(word)
        return
    found = g.select(word)
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
        g.select(word)
    assert type(refusal.value) is error


def test_exact_name_comes_before_all_else(tmp_path: Path) -> None:
    """Names that look like selectors: a node with the name of another's tensor, globs, `Relu@1`,
    `tensor:b`."""
    names = ["b", "[ab]", "Relu@1", "tensor:b", "a*"]
    g = load(chain(tmp_path / "m.onnx", names, ["t1", "t2", "b", "t4"]))
    assert [g.select(name).nodes for name in names] == [(i,) for i in range(len(names))]
    assert g.select("tensor:t1").nodes == (0,)


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
    assert [g.select(g.label(i)).nodes for i in range(len(names))] == [
        (i,) for i in range(len(names))
    ]


def test_tensor_is_found_by_its_producer(g: Graph) -> None:
    assert [
        g.tensor(word) for word in ("c1", "conv1", "#4", "data", "tensor:r1")
    ] == "c1 c1 n data r1".split()
    with raises(UsageError, "tensor.ambiguous", "split"):
        g.tensor("split")


@pytest.mark.parametrize(
    ("word", "best"),
    [("relu_3x", "relu_3"), ("RELU_3", "relu_3"), ("relu3", "relu_3"), ("3", "relu_3")],
)
def test_unknown_name_has_the_nearest_names(word: str, best: str) -> None:
    names = [f"{op}_{i}" for i in range(30) for op in ("conv", "relu", "pool")]
    found = nearest(word, names)
    assert len(found) == 3 and best in found


@pytest.mark.slow
def test_the_nearest_of_a_great_many_names_are_found_soon() -> None:
    """0.6 s of CPU time on the machine where this was written."""
    names = [
        f"/blocks.{i}/attention/output/dense/MatMul_{k}" for i in range(20_000) for k in range(8)
    ]
    with within(8):
        assert "/blocks.7/attention/output/dense/MatMul_3" in nearest(
            "blocks.7/attention/output/dense/MatMul_3", names
        )
        assert len(nearest("nothing like it", names)) == 3
