"""Names of bodies as they are typed, and all graphs of a model. Covers `bodies.model`."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import external_data_helper

from fixtures import bodies
from subgraph.bodies import model as module
from subgraph.bodies.descend import enter_body
from subgraph.bodies.model import (
    ALL,
    FIRST,
    LAST,
    build_part_tree,
    find_part,
    has_bodies,
    is_loop_or_scan,
    iter_body_names,
    split_selector,
)
from subgraph.errors import SubcutError, UnknownName, UsageError
from subgraph.graph.graph import Graph, load
from subgraph.graph.selection import select
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises

TEXT = """g (float[2] x, bool c) => (float[2] y) {
    [first] h = Relu(x)
    [loop] l = Loop(, c, h) <body = step (int64 i, bool go, float[2] s) => (bool go, float[2] t) { [neg] t = Neg(s) }>
    [if] y = If(c) <then_branch = t1 () => (float[2] p) { [p] p = Abs(l) },
                    else_branch = t2 () => (float[2] q) { [q] q = Neg(l) }>
}"""  # noqa: E501


def _rename(model: onnx.ModelProto) -> None:
    """Names with slashes, which the text form does not have."""
    first, loop, _ = model.graph.node
    first.name = "a/b"
    loop.name = "a/b/loop"
    loop.attribute[0].g.node[0].name = "inner/neg"


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return text_models.load(tmp_path_factory.mktemp("names"), TEXT, _rename)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a/b/loop/body/inner/neg", (1, "body", FIRST, "a/b/loop/body", "inner/neg")),
        ("a/b/loop/body@3/inner/neg", (1, "body", "3", "a/b/loop/body@3", "inner/neg")),
        ("#1/body@last", (1, "body", LAST, "#1/body@last", "")),
        ("#1/body@all/*", (1, "body", ALL, "#1/body@all", "*")),
        ("if/else_branch/q", (2, "else_branch", FIRST, "if/else_branch", "q")),
    ],
)
def test_the_longest_name_of_a_node_that_holds_a_body_comes_first(
    graph: Graph, text: str, found: tuple[int, str, str, str, str]
) -> None:
    name, rest = split_selector(graph, text) or pytest.fail("no body")
    assert (name.node, name.attribute, name.iteration, name.text, rest) == found


@pytest.mark.parametrize(
    "text", ["a/b", "h", "x", "a/b/nothing", "a/*", "#0/body", "#7/body", "if", "loop/body/neg"]
)
def test_all_else_is_a_name_in_the_graph_itself(graph: Graph, text: str) -> None:
    assert split_selector(graph, text) is None


@pytest.mark.parametrize(
    ("text", "error", "code", "about"),
    [
        ("if/then/p", UnknownName, "body.unknown", "'then'"),
        ("a/b/loop/body@x/neg", UsageError, "body.unknown-iteration", "'x'"),
        ("a/b/loop/body@-1/neg", UsageError, "body.unknown-iteration", "-1"),
        ("if/then_branch@2/p", UsageError, "body.no-iterations", "'if'"),
    ],
)
def test_name_that_is_not_a_body_is_refused(
    graph: Graph, text: str, error: type[SubcutError], code: str, about: str
) -> None:
    with raises(error, code, about):
        split_selector(graph, text)


def test_which_nodes_have_something_inside(graph: Graph) -> None:
    assert [has_bodies(graph, i) for i in range(3)] == [False, True, True]
    assert [is_loop_or_scan(graph, i) for i in range(3)] == [False, True, False]
    assert [*iter_body_names(graph, 2)] == ["if/then_branch", "if/else_branch"]


def test_function_is_named_by_its_call(tmp_path: Path) -> None:
    planted = bodies.planted(3, ["function"])
    onnx.save(planted.model, tmp_path / "m.onnx")
    graph = load(tmp_path / "m.onnx")
    name, rest = split_selector(graph, f"{planted.path[0]}/{planted.node}") or pytest.fail(
        "no body"
    )
    assert (name.attribute, name.text, rest) == ("", planted.path[0], planted.node)
    assert [*iter_body_names(graph, name.node)] == [f"{planted.path[0]}/"]


@pytest.mark.parametrize(
    ("name", "holder"), [("loop/body/neg", "loop"), ("if/then_branch/p", "if"), ("first/neg", "")]
)
def test_command_that_does_not_look_inside_says_so(name: str, holder: str, tmp_path: Path) -> None:
    """`draw`, `replace` and `remove`, for example, work on the graph around."""
    with pytest.raises(UnknownName) as raised:
        select(text_models.load(tmp_path, TEXT), name)
    said = f"inside node '{holder}'" if holder else "no node or tensor 'first/neg'"
    assert said in raised.value.what


@pytest.mark.parametrize("seed", range(10))
def test_each_node_has_one_number_and_the_name_by_which_it_is_cut(
    tmp_path: Path, seed: int
) -> None:
    planted = bodies.planted(seed)
    onnx.save(planted.model, tmp_path / "m.onnx")
    graph = load(tmp_path / "m.onnx")
    whole = build_part_tree(graph)
    known = list(whole.all())
    numbers = [part.first + i for part in known for i in range(len(part.graph.nodes))]
    assert numbers == list(range(whole.size))
    inner = known[-1].graph.label(len(known[-1].graph.nodes) - 1)
    found = graph
    names: tuple[str, ...] = (inner,)
    while deeper := enter_body(found, names):  # as `subcut cut` finds it
        found, names = deeper[1].graph, deeper[1].names
    assert list(found.node_names) == list(known[-1].graph.node_names) and names == (inner,)
    wrong = "/".join([*planted.path, planted.node])
    part, name = find_part(known, wrong.replace("/body/", "/body@2/"))
    assert name in part.graph.names and part.graph.names[name] < len(part.graph.nodes)
    assert find_part(known, graph.label(0)) == (whole, graph.label(0))


def test_body_without_its_weights_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = bodies.planted(1, ("Loop",)).model
    for tensor in model.graph.initializer:
        if tensor.name.startswith("w"):
            external_data_helper.set_external_data(tensor, "gone.bin", offset=0, length=36)
            tensor.ClearField("raw_data")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    whole = build_part_tree(load(tmp_path / "m.onnx"))
    assert (
        whole.size == len(whole.graph.nodes)
        and has_line(caplog.text, "loop4")
        and "gone.bin" in caplog.text
    )


def test_function_with_too_many_calls_is_omitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(bodies.planted(9).model, tmp_path / "m.onnx")
    graph = load(tmp_path / "m.onnx")
    monkeypatch.setattr(module, "MAX_NODES", build_part_tree(graph).size - len(graph.nodes) - 1)
    assert len(graph.nodes) < build_part_tree(graph).size <= len(graph.nodes) + module.MAX_NODES
