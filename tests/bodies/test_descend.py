"""Bodies as models of their own, fed as in the whole.

Covers `bodies.descend`, `bodies.iterations`, `bodies.model` and `bodies.truncated`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from fixtures import bodies
from subgraph.bodies.descend import BodyGraph, descend
from subgraph.bodies.iterations import NotRun
from subgraph.errors import ModelError, SubcutError, UnknownName, UsageError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph, load
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.storage.tensors import Record, load as load_value
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises

LOOP = """g (float[2,3] x, int64 n) => (float[2,3] y, float[k,2,3] ys) <float[3,3] w = {1,0,2, 0,1,0, 1,1,1}> {
    [pre] h = Relu(x)
    [one] c = Constant<value = float {0.5}>()
    [go] t = Constant<value = bool {1}>()
    [loop] y, ys = Loop(n, t, h) <
      body = step (int64 i, bool go, float[2,3] s) => (bool on, float[2,3] s2, float[2,3] o) {
        [mm] a = MatMul(s, w)
        [add] d = Add(a, h)
        [mul] s2 = Mul(d, c)
        [neg] o = Neg(s2)
        [lim] lim = Constant<value = int64 {3}>()
        on = Less(i, lim)
    }>
}"""  # noqa: E501


def feeding(folder: Path, **values: Any) -> Feeding:
    """A feeding from files with these arrays."""
    for name, value in values.items():
        np.save(folder / f"{name}.npy", value)
    return Feeding(tuple(f"{name}={folder / name}.npy" for name in values))


def inside(
    graph: Graph, name: str, fed: Feeding, reference: Reference | None, folder: Path
) -> BodyGraph:
    return descend(graph, [name], fed, reference, folder / "scratch") or pytest.fail("no body")


def value(record: Record) -> Any:
    return load_value(record, Path("/"))


@pytest.mark.parametrize(
    ("at", "numbers"), [("", [0]), ("@2", [2]), ("@last", [3]), ("@all", [0, 1, 2, 3])]
)
def test_iterations_of_a_loop_are_fed_as_in_the_whole(
    at: str, numbers: list[int], reference: Reference, tmp_path: Path
) -> None:
    graph = text_models.load(tmp_path, LOOP)
    x = np.arange(6, dtype=np.float32).reshape(2, 3) / 7
    found = inside(
        graph, f"loop/body{at}/mm", feeding(tmp_path, x=x, n=np.int64(10)), reference, tmp_path
    )
    assert [run.number for run in found.runs] == numbers
    assert found.names == (f"loop/body{at}/mm",)
    assert found.feeding
    origins = zip(found.feeding.origins, numbers, strict=True)
    assert all(has_line(origin, "loop/body", f"iteration {k}") for origin, k in origins)
    assert found.feeding.labels == (
        tuple(f"iteration_{k}" for k in numbers) if len(numbers) > 1 else ()
    )
    assert list(found.graph.inputs) == ["i", "go", "s", "h"]
    inner = [f"loop/body{at}/{name}" for name in ("mm", "add", "mul", "neg", "lim", "#5")]
    assert found.graph.node_names == ["one", *inner]
    w = np.array([[1, 0, 2], [0, 1, 0], [1, 1, 1]], np.float32)
    states = [x]
    for _ in range(4):
        states.append((states[-1] @ w + x) * np.float32(0.5))
    for run in found.runs:
        assert value(run.feeds["i"]) == run.number
        assert np.array_equal(value(run.feeds["s"]), states[run.number])
        assert np.array_equal(value(run.results["s2"]), states[run.number + 1])


@pytest.mark.parametrize(
    ("rest", "called"),
    [
        ("#1", "loop/body/add"),
        # counted in the body, not with the constant that its graph holds, too
        ("#5", "loop/body/#5"),
        ("MatMul@1", "loop/body/mm"),
        ("d", "d"),
        ("s", "s"),
        ("tensor:a", "tensor:a"),
        ("", ""),
        ("*", "loop/body/*"),
        ("#6", "loop/body/#6"),
        ("Add@2", "loop/body/Add@2"),
        ("x", "loop/body/x"),  # of the graph around: unknown in here
    ],
)
def test_body_takes_what_a_graph_takes(rest: str, called: str, tmp_path: Path) -> None:
    graph = text_models.load(tmp_path, LOOP)
    name = f"loop/body/{rest}".removesuffix("/")
    assert inside(graph, name, Feeding(), None, tmp_path).names == (called,)


@pytest.mark.parametrize("n", [0, 2])
def test_iteration_that_does_not_run_is_an_error(
    n: int, reference: Reference, tmp_path: Path
) -> None:
    graph = text_models.load(tmp_path, LOOP)
    fed = feeding(tmp_path, x=np.ones((2, 3), np.float32), n=np.int64(n))
    with raises(NotRun, "body.not-run", "2 iterations" if n else "no iteration"):
        inside(graph, "loop/body@2/mm", fed, reference, tmp_path)


def test_loop_need_not_end_for_its_beginning_to_be_seen(
    reference: Reference, tmp_path: Path
) -> None:
    graph = text_models.load(
        tmp_path, LOOP.replace("Loop(n, t, h)", "Loop(, t, h)").replace("Less(i, lim)", "Or(go, t)")
    )
    fed = feeding(tmp_path, x=np.ones((2, 3), np.float32))
    assert [run.number for run in inside(graph, "loop/body@5", fed, reference, tmp_path).runs] == [
        5
    ]


@pytest.mark.parametrize("kinds", bodies.KINDS, ids="-".join)
def test_each_body_alone_gives_what_it_gives_within_the_whole(
    kinds: tuple[str, ...], reference: Reference, tmp_path: Path
) -> None:
    """Bit for bit: the body's graph is run by plain onnxruntime on what the records say that it is
    fed."""
    planted = bodies.planted(len(kinds), kinds)
    onnx.save(planted.model, tmp_path / "m.onnx")
    graph = load(tmp_path / "m.onnx")
    path = "/".join(planted.path)
    wanted = path + ("@all" if kinds[-1] in ("Loop", "Scan") else "")
    fed = feeding(tmp_path, x=bodies.values(0))
    found = inside(graph, f"{wanted}/{planted.node}", fed, reference, tmp_path)
    onnx.checker.check_model(onnx.load(found.graph.path))
    assert any(name.endswith(f"/{planted.node}") for name in found.graph.node_names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        found.graph.path, options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    needed = {i.name for i in session.get_inputs()}
    for run in found.runs:
        made = dict(
            zip(names, session.run(names, {n: value(run.feeds[n]) for n in needed}), strict=True)
        )
        assert run.results
        for name, record in run.results.items():
            assert np.array_equal(np.asarray(made[name]), np.asarray(value(record))), name


def test_the_branch_that_does_not_run_is_cut_without_values(
    reference: Reference, tmp_path: Path
) -> None:
    planted = bodies.planted(0, ["If"])
    onnx.save(planted.model, tmp_path / "m.onnx")
    graph = load(tmp_path / "m.onnx")
    holder, taken = planted.path[0].split("/")
    other = {"then_branch": "else_branch", "else_branch": "then_branch"}[taken]
    fed = feeding(tmp_path, x=bodies.values(0))
    with raises(NotRun, "body.not-run", taken):
        inside(graph, f"{holder}/{other}", fed, reference, tmp_path)
    found = inside(graph, f"{holder}/{other}", fed, None, tmp_path)
    assert found.feeding is None
    assert [node.op_type for node in found.graph.nodes] == ["Neg"]


def test_body_opens_when_a_tensor_of_the_graph_around_it_is_declared(tmp_path: Path) -> None:
    text = """g (float[2,3] x, bool c) => (float[2,3] y) {
        [pre] h = Relu(x)
        [cond] y = If(c) <
          then_branch = one () => (float[2,3] o) { [neg] o = Neg(h) },
          else_branch = two () => (float[2,3] p) { [abs] p = Abs(h) }>
    }"""
    onnx.save(onnx.shape_inference.infer_shapes(text_models.model(text)), tmp_path / "m.onnx")
    found = inside(load(tmp_path / "m.onnx"), "cond/then_branch", Feeding(), None, tmp_path)
    assert [node.op_type for node in found.graph.nodes] == ["Neg"]


def test_samples_for_which_a_body_does_not_run_are_left_out(
    reference: Reference, tmp_path: Path
) -> None:
    graph = text_models.load(tmp_path, LOOP)
    for k, n in enumerate((0, 3, 1)):
        (tmp_path / "samples" / str(k)).mkdir(parents=True)
        np.save(tmp_path / "samples" / str(k) / "n.npy", np.int64(n))
        np.save(tmp_path / "samples" / str(k) / "x.npy", np.full((2, 3), k, np.float32))
    found = inside(
        graph, "loop/body@last", Feeding((str(tmp_path / "samples"),)), reference, tmp_path
    )
    assert [(run.sample, run.number) for run in found.runs] == [(1, 2), (2, 0)]


@pytest.mark.parametrize(
    ("names", "error", "code", "about"),
    [
        (["loop/body/mm", "pre"], UsageError, "region.two-graphs", "loop/body"),
        (["loop/body@1/mm", "loop/body@2/add"], UsageError, "region.two-graphs", "loop/body@1"),
        (["loop/bdy/mm"], UnknownName, "body.unknown", "bdy"),
    ],
)
def test_piece_lies_in_one_graph(
    names: list[str], error: type[SubcutError], code: str, about: str, tmp_path: Path
) -> None:
    graph = text_models.load(tmp_path, LOOP)
    with raises(error, code, about):
        descend(graph, names, Feeding(), None, tmp_path)


def test_loop_that_draws_random_numbers_is_refused(tmp_path: Path) -> None:
    text = LOOP.replace("a = MatMul(s, w)", "r = RandomNormalLike(s) a = Add(s, r)")
    with raises(ModelError, "body.random"):
        descend(text_models.load(tmp_path, text), ["loop/body/add"], Feeding(), None, tmp_path)


def test_weight_that_changes_on_disk_makes_another_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large weight that stays on disk the bytes count, not only where they lie."""
    monkeypatch.setattr(protobuf, "MIN_STUB_BYTES", 0)
    path = text_models.load(tmp_path, LOOP).path
    model = onnx.load(path)
    found = []
    for value in (1.0, 2.0):
        model.graph.initializer[0].CopyFrom(
            onnx.numpy_helper.from_array(np.full((3, 3), value, np.float32), "w")
        )
        (tmp_path / "w.data").unlink(missing_ok=True)
        onnx.save(model, path, save_as_external_data=True, location="w.data", size_threshold=0)
        model = onnx.load(path)
        body = descend(load(path), ["loop/body"], Feeding(), None, tmp_path) or pytest.fail(
            "no body"
        )
        weights = {
            t.name: onnx.numpy_helper.to_array(t)
            for t in onnx.load(body.graph.path).graph.initializer
        }
        found.append(weights["w"].flat[0])
    assert found == [1.0, 2.0]


def test_names_of_the_graph_itself_lead_nowhere(tmp_path: Path) -> None:
    found = descend(text_models.load(tmp_path, LOOP), ["pre", "loop"], Feeding(), None, tmp_path)
    assert found is None


SCAN = """g (float[4,2] x, float[2] s0) => (float[2] y) {
    [scan] y = Scan<num_scan_inputs = 2, scan_input_directions = [0, DIRECTION],
      body = step (float[2] s, float[2] a, float[2] b) => (float[2] s2) {
        [sum] m = ReduceSum<keepdims = 0>(x, axis)
        [neg] minus = Neg(b)
        [add] s2 = Sum(s, a, minus, m)
      }>(s0, x, OTHER)
}"""


@pytest.mark.parametrize(("other", "direction"), [("x", 0), ("x", 1), ("w", 0), ("w", 1), ("c", 1)])
def test_scan_reads_whole_or_twice_what_it_scans(
    other: str, direction: int, reference: Reference, tmp_path: Path
) -> None:
    """The state before an iteration is that of the first slices; weights and constants are sliced
    as well."""
    x = np.arange(8, dtype=np.float32).reshape(4, 2) ** 2
    text = SCAN.replace("DIRECTION", str(direction)).replace("OTHER", other)
    text = text.replace("[scan]", "[make] c = Identity(w) [scan]" if other == "c" else "[scan]")
    graph = text_models.load(tmp_path, text, w=x + 7, axis=np.array([0]))
    fed = feeding(tmp_path, x=x, s0=np.ones(2, np.float32))
    found = inside(graph, "scan/body@all/add", fed, reference, tmp_path)
    scanned = (x if other == "x" else x + 7)[:: -1 if direction else 1]
    state = np.ones(2, np.float32)
    for k, run in enumerate(found.runs):
        assert np.array_equal(value(run.feeds["s"]), state)
        assert np.array_equal(value(run.feeds["b"]), scanned[k])
        state = state + x[k] - scanned[k] + x.sum(axis=0)
        assert np.array_equal(value(run.results["s2"]), state)
    assert len(found.runs) == 4


def test_counter_of_one_element_stays_one(reference: Reference, tmp_path: Path) -> None:
    """Bodies that declare it as [1] hand it to Slice, which takes no scalar."""
    text = """g (float[4] x, int64 n, bool[1] t) => (float[4] y) { [loop] y = Loop(n, t, x) <
        body = step (int64[1] i, bool[1] go, float[4] s) => (bool[1] on, float[4] s2) {
          [next] e = Add(i, one)
          [slice] r = Slice(x, i, e)
          [add] s2 = Add(s, r)
          [on] on = Identity(go)
        }> }"""
    graph = text_models.load(tmp_path, text, one=np.array([1]))
    x = np.arange(4, dtype=np.float32)
    fed = feeding(tmp_path, x=x, n=np.int64(3), t=np.array([True]))
    (run,) = inside(graph, "loop/body@2/slice", fed, reference, tmp_path).runs
    assert np.array_equal(value(run.results["s2"]), x + 0 + 1 + 2)


def test_fed_tensor_names_the_innermost_body(reference: Reference, tmp_path: Path) -> None:
    planted = bodies.planted(3, ["Loop", "Loop"])
    onnx.save(planted.model, tmp_path / "m.onnx")
    outer, inner = (f"{name}@0" for name in planted.path)
    fed = feeding(tmp_path, x=bodies.values(0))
    found = inside(load(tmp_path / "m.onnx"), f"{outer}/{inner}", fed, reference, tmp_path)
    assert found.feeding
    (origin,) = found.feeding.origins
    assert has_line(origin, f"{outer}/{planted.path[1]}", "iteration 0")
