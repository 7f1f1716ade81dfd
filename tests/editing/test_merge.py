"""Two models joined: end to end, side by side, as a batch; and nodes taken out, one by one or as a
tail.

Covers `editing.merge`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from fixtures import graphs
from fixtures.graphs import CASES, CutCase
from subgraph.editing.effect import compute_edge_values, measure_effect
from subgraph.editing.merge import bypass, merge, remove_tail
from subgraph.errors import ModelError, NoRegion, UnknownName, UsageError
from subgraph.graph.graph import Graph, load
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.runs import evaluate

RUNNABLE = [
    c for c in CASES if c.refused is None and c.runs and not c.options and "missing" not in c.title
]


def chain(path: Path, ops: dict[str, str], *, rows: int = 2, opset: int = 17) -> Graph:
    """Save x → … → y of one-input nodes, {name: op}; tensors inside are named as their node."""
    tensors = ["x", *list(ops)[:-1], "y"]
    nodes = " ".join(
        f"[{name}] {tensors[k + 1]} = {op}({tensors[k]})"
        for k, (name, op) in enumerate(ops.items())
    )
    text = f"g (float[{rows},4] x) => (float[{rows},4] y) {{ {nodes} }}"
    return load(text_models.save(path, text, opset=opset))


def run(path: Path, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    """Check a model, and run it."""
    onnx.checker.check_model(str(path), full_check=True)
    return evaluate(path, feeds)


X = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)


def test_end_to_end_by_a_map(tmp_path: Path) -> None:
    """Names of the second that are taken get a number; its input is not an input of the whole."""
    one = chain(tmp_path / "a.onnx", {"neg": "Neg", "exp": "Exp"})
    two = chain(tmp_path / "b.onnx", {"neg": "Abs", "log": "Sqrt"})
    draft = merge(one, two, {"y": "x"})
    draft.save(tmp_path / "ab.onnx")
    assert len(draft.remarks) == 2
    assert has_line(draft.remarks, "y → x")
    assert has_line(draft.remarks, "output y", "y_2")
    whole = load(tmp_path / "ab.onnx")
    assert (list(whole.inputs), whole.outputs, whole.node_names) == (
        ["x"],
        ["y_2"],
        ["neg", "exp", "neg_2", "log"],
    )
    assert np.allclose(run(whole.path, x=X)["y_2"], np.sqrt(np.exp(-X)))


def test_side_by_side_share_an_input_of_the_same_name_and_type(tmp_path: Path) -> None:
    one = chain(tmp_path / "a.onnx", {"n": "Neg"})
    two = chain(tmp_path / "b.onnx", {"a": "Abs"})
    draft = merge(one, two)
    draft.save(tmp_path / "ab.onnx")
    assert len(draft.remarks) == 2
    assert has_line(draft.remarks, "1 input: x")
    assert has_line(draft.remarks, "output y", "y_2")
    found = run(tmp_path / "ab.onnx", x=X)
    assert np.array_equal(found["y"], -X) and np.array_equal(found["y_2"], abs(X))
    other = chain(tmp_path / "c.onnx", {"a": "Abs"}, rows=3)
    merge(one, other).save(tmp_path / "ac.onnx")
    assert list(load(tmp_path / "ac.onnx").inputs) == ["x", "x_2"]


def test_models_that_do_not_fit_are_not_joined(tmp_path: Path) -> None:
    one = chain(tmp_path / "a.onnx", {"n": "Neg"})
    two = chain(tmp_path / "b.onnx", {"a": "Abs"}, rows=3)
    with raises(ModelError, "edit.types-differ", "'y' is float32 [2, 4]", "'x' is float32 [3, 4]"):
        merge(one, two, {"y": "x"})
    with raises(UnknownName, "edit.unknown-tensor", "'z'", "output of a.onnx"):
        merge(one, two, {"z": "x"})
    with raises(UnknownName, "edit.unknown-tensor", "'z'", "input of b.onnx"):
        merge(one, two, {"y": "z"})


# ------------------------------------------------------------ a tail


@pytest.mark.turns(3)
@pytest.mark.parametrize("case", RUNNABLE, ids=lambda c: f"{c.number}: {c.title}")
def test_tail_that_is_dropped_is_put_back(
    case: CutCase, tmp_path: Path, reference: Reference
) -> None:
    graph = load(case.build(tmp_path))
    try:
        captured = compute_edge_values(graph, case.end, Feeding(), reference, tmp_path / "values")
        draft, tail = remove_tail(graph, case.end, captured)
    except NoRegion:
        pytest.skip("the whole model is the tail")
    draft.save(tmp_path / "head.onnx")
    tail.save(tmp_path / "tail.onnx")
    head = load(tmp_path / "head.onnx")
    assert {graph.nodes[i].name for i in tail.region.nodes}.isdisjoint(head.node_names) or not all(
        graph.node_names
    )
    assert {n for n in head.maker if not head.readers_of([n])} <= {*head.outputs, *_unread(graph)}
    merge(head, load(tmp_path / "tail.onnx")).save(tmp_path / "whole.onnx")
    whole = load(tmp_path / "whole.onnx")
    assert whole.outputs == graph.outputs and list(whole.inputs) == list(graph.inputs)
    assert {row.status for row in measure_effect(graph, whole.path, Feeding(), reference)} <= {
        "same"
    }
    assert [e.key for e in whole.model.metadata_props] == [
        e.key for e in graph.model.metadata_props
    ]


def _unread(graph: Graph) -> set[str]:
    return {n for n in graph.maker if n not in graph.readers}


def test_nothing_is_left(tmp_path: Path) -> None:
    with raises(NoRegion, "edit.nothing-left"):
        remove_tail(chain(tmp_path / "a.onnx", {"n": "Neg", "a": "Abs"}), ["n"])


# ------------------------------------------------------------ one by one


def test_nodes_are_bypassed(tmp_path: Path) -> None:
    """In the middle, at the begin, at the end, several in a row, all."""
    graph = chain(tmp_path / "m.onnx", {"a": "Neg", "b": "Exp", "c": "Relu", "d": "Tanh"})
    for nodes, wanted in (
        ([1], np.tanh(np.maximum(-X, 0))),
        ([0], np.tanh(np.maximum(np.exp(X), 0))),
        ([3], np.maximum(np.exp(-X), 0)),
        ([1, 2], np.tanh(-X)),
        ([0, 1, 2, 3], X),
    ):
        path = tmp_path / f"{len(nodes)}{nodes[0]}.onnx"
        bypass(graph, nodes).save(path)
        assert np.allclose(run(path, x=X)["y"], wanted)
        assert len(load(path).nodes) == max(4 - len(nodes), 1)


def test_quantized_pair_is_bypassed_and_its_constants_go(tmp_path: Path) -> None:
    text = """g (float[2,4] x) => (float[2,4] y) <float s = {0.1}, int8 z = {0}> {
        [n] h = Neg(x) [q] q = QuantizeLinear(h, s, z) [d] y = DequantizeLinear(q, s, z)
    }"""
    graph = text_models.load(tmp_path, text)
    bypass(graph, [1, 2]).save(tmp_path / "new.onnx")
    new = load(tmp_path / "new.onnx")
    assert (new.node_names, dict(new.weights), new.makes) == (["n"], {}, [("y",)])
    assert np.array_equal(run(new.path, x=X)["y"], -X)


def test_body_reads_the_remaining_tensor(tmp_path: Path) -> None:
    """A body reads the bypassed node's output from outside."""
    onnx.save(graphs.if_body(), tmp_path / "m.onnx")
    graph = load(tmp_path / "m.onnx")
    bypass(graph, [graph.node_names.index("first")]).save(tmp_path / "new.onnx")
    wanted = graphs.if_body()
    first = next(node for node in wanted.graph.node if node.name == "first")
    first.op_type = "Identity"
    onnx.save(wanted, tmp_path / "wanted.onnx")
    x = np.ones((2, 8), np.float32)
    assert np.array_equal(
        run(tmp_path / "new.onnx", x=x)["y"], run(tmp_path / "wanted.onnx", x=x)["y"]
    )


def test_only_nodes_of_one_input_and_one_output(tmp_path: Path) -> None:
    onnx.save(graphs.skip_edge(), tmp_path / "m.onnx")
    graph = load(tmp_path / "m.onnx")
    add = graph.ops.index("Add")
    with raises(UsageError, "edit.not-bypassable", "(Add) has 2 inputs"):
        bypass(graph, [add])
