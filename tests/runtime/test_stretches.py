"""A run in stretches gives the bytes of the plain run, whatever lies between its nodes."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings, strategies as st

from fixtures import graphs
from fixtures.dags import random_dag
from subgraph.errors import ModelError, OutOfMemory
from subgraph.graph import graph, region
from subgraph.graph.graph import Graph
from subgraph.runtime.capture import Captured, capture_samples, list_needed_inputs
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import OWN_BYTES, Reference
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.runtime.stretches import Cost, compute_peak, find_end, iter_stretches
from subgraph.storage.tensors import load
from tests.helpers import text_models
from tests.helpers.refusals import raises

ONE_BYTE = OWN_BYTES + 1  # every node is a stretch of its own
RUNNABLE = {f"{c.number}: {c.title}": c for c in graphs.CASES if c.refused is None and c.runs}
LINE = """g (float[N,4] x) => (float[N,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}> {
    [a] a = MatMul(x, w)  [b] b = Tanh(a)  [c] c = MatMul(b, w)  [d] y = Add(c, a) }"""
Values = dict[str, Any]


@pytest.fixture(scope="module")
def small() -> Any:
    """A reference that has room for one node."""
    with Reference(limit=ONE_BYTE) as shared:
        yield shared


def captured(
    reference: Any, g: Graph, names: list[str], into: Path, given: tuple[str, ...] = ()
) -> Captured:
    above = region.find_upstream(g, names)
    shapes = {"x": (4, 8)} if "width" in str(g.model.graph.input) else {}
    samples = Feeding(given, shapes, 0).plan(g, list_needed_inputs(g, above, names))
    into.mkdir()
    return capture_samples(
        reference, g, above, {n: f"t{i}" for i, n in enumerate(names)}, samples, into
    )[0]


def values(reference: Any, g: Graph, names: list[str], into: Path, *given: str) -> Values:
    found = captured(reference, g, names, into, given)
    return {n: load(found.tensors[n], into / "0") for n in names}


def same(one: Any, other: Any) -> bool:
    """Equal bits."""
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    if one is None or other is None:
        return one is other
    as_bytes = [a.astype(str) if a.dtype == object else a for a in (one, other)]
    return bool(
        one.dtype == other.dtype
        and one.shape == other.shape
        and as_bytes[0].tobytes() == as_bytes[1].tobytes()
    )


# ------------------------------------------------------------ same bits


@pytest.mark.turns(4)
@pytest.mark.parametrize("title", RUNNABLE)
def test_the_bytes_of_the_plain_run(
    title: str, tmp_path: Path, reference: Reference, small: Reference
) -> None:
    """Bodies, functions, sequences, optionals, shapes, sparse and external weights: every tensor
    that nodes make."""
    g = graph.load(RUNNABLE[title].build(tmp_path / "model"))
    if g.random_nodes:
        pytest.skip("another run draws other numbers")
    names = [n for i in region.find_upstream(g, g.outputs).nodes for n in g.makes[i]] or g.outputs
    plain, found = (
        values(r, g, names, tmp_path / k) for k, r in (("plain", reference), ("stretched", small))
    )
    assert [n for n in names if not same(plain[n], found[n])] == []


@pytest.mark.parametrize("seed", range(6))
def test_the_outputs_of_any_graph(
    seed: int, tmp_path: Path, reference: Reference, small: Reference
) -> None:
    """Nothing inside is asked for, so that values live on disk only between two stretches."""
    g = text_models.read(tmp_path, random_dag(np.random.default_rng(seed), 30))
    names = [n for n in g.outputs if n in g.maker]
    plain, found = (
        values(r, g, names, tmp_path / k) for k, r in (("plain", reference), ("stretched", small))
    )
    assert [n for n in names if not same(plain[n], found[n])] == []


def test_random_numbers_are_drawn_once(tmp_path: Path, small: Reference) -> None:
    g = text_models.load(
        tmp_path,
        """g (float[64] x) => (float[64] y, float[64] z) {
            [r] r = RandomNormalLike(x)  [a] y = Add(x, r)  [b] z = Sub(y, x) }""",
    )
    found = values(small, g, ["x", "r", "y"], tmp_path / "out")
    assert np.array_equal(found["y"], found["x"] + found["r"])


# ------------------------------------------------------------ on disk


class Watched:
    """A reference whose stretches are counted."""

    def __init__(self, real: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
        self.real, self.stretches, self.kept = real, 0, list[list[str]]()
        run = real.process.run_held

        def watched(into: Path, *args: Any) -> Any:
            self.kept.append(sorted(p.name for p in into.glob("*.npy")))
            self.stretches += 1
            return run(into, *args)

        monkeypatch.setattr(real.process, "run_held", watched)


@pytest.fixture
def watch(small: Reference, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(small, monkeypatch)


def make_chain(folder: Path) -> Graph:
    """Eight nodes in a row; the weights in a file beside the model."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    weights: dict[str, Any] = {
        f"w{k}": rng.standard_normal((128, 128), np.float32) for k in range(8)
    }
    nodes = " ".join(f"[n{k}] h{k + 1} = MatMul(h{k}, w{k})" for k in range(8))
    made = text_models.model(f"g (float[2,128] h0) => (float[2,128] h8) {{ {nodes} }}", **weights)
    onnx.save(
        made, folder / "model.onnx", save_as_external_data=True, location="w.data", size_threshold=0
    )
    return graph.load(folder / "model.onnx")


def test_value_lies_on_disk_until_its_last_reader(watch: Watched, tmp_path: Path) -> None:
    """Nothing of it is left when the run has ended."""
    values(watch.real, make_chain(tmp_path / "m"), ["h3", "h8"], tmp_path / "out")
    assert watch.stretches == 9 and max(map(len, watch.kept)) == 2
    assert watch.kept[-1] == ["s2-0.npy", "s6-0.npy"]  # h3, which was asked for, and h7
    assert not list((tmp_path / "out").rglob("stretches-*"))


def test_file_that_changes_meanwhile_is_an_error(
    watch: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = make_chain(tmp_path / "m")
    run: Callable[..., Any] = watch.real.process.run_held

    def changing(*args: Any) -> Any:
        os.utime(tmp_path / "m/w.data")
        return run(*args)

    monkeypatch.setattr(watch.real.process, "run_held", changing)
    with raises(ModelError, "weight.changed", "weights"):
        values(watch.real, g, ["h8"], tmp_path / "out")


# ------------------------------------------------------------ too large


def test_stretch_that_takes_too_much_is_halved(
    watch: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes are not known before the run: what the process does not manage is tried in shorter
    stretches."""
    g = text_models.load(tmp_path, LINE)
    monkeypatch.setattr(watch.real, "limit", 1 << 40)
    run = watch.real.process.run_held
    asked = list[int]()

    def refusing(into: Path, outputs: Any, feeds: Any) -> Any:
        asked.append(len(outputs))
        if len(asked) in (2, 3):
            raise OutOfMemory("running the model needs more memory than is free")
        return run(into, outputs, feeds)

    monkeypatch.setattr(watch.real.process, "run_held", refusing)
    found = values(watch.real, g, ["y"], tmp_path / "out")
    with Reference() as plain:
        assert same(found["y"], values(plain, g, ["y"], tmp_path / "plain")["y"])
    assert len(asked) == 5  # the inputs; four, two, one node; the other three


def test_node_that_is_too_large_is_named(tmp_path: Path) -> None:
    """It really runs, in a process that may take 200 MB."""
    g = text_models.load(
        tmp_path,
        """g (float[N] x) => (float[M] y) <int64[1] many = {100000000}> {
            [s] s = Tanh(x)  [big] b = Expand(s, many)  [end] y = ReduceSum(b) }""",
    )
    with Reference(limit=200 << 20) as one:
        with raises(ModelError, "memory.node-too-large", "big (Expand)", "88 MiB") as failure:
            values(one, g, ["y"], tmp_path / "out")
        assert "--memory" in failure.value.hint
        assert values(one, g, ["s"], tmp_path / "after")["s"].shape == (1,)


def test_error_of_the_model_is_not_about_memory(small: Reference, tmp_path: Path) -> None:
    g = text_models.load(
        tmp_path,
        "g (float[4] x) => (float[1] z) <int64[1] far = {99}> { [a] a = Neg(x)  [bad] z = Gather(a,"
        " far) }",
    )
    with raises(ModelError, "backend.run-failed", "idx=99"):
        values(small, g, ["z"], tmp_path / "out")


def test_known_value_is_not_run_again(watch: Watched, tmp_path: Path) -> None:
    """Each later question runs what lies between it and values that are stored, and no more."""
    g = make_chain(tmp_path / "m")
    known = ReferenceValues(g, watch.real, Feeding().plan(g, g.inputs), tmp_path / "values")
    known.need(["h4", "h8"])
    watch.stretches = 0
    known.need(["h6"])
    assert watch.stretches == 2
    assert same(
        load(known.records[0]["h6"], Path("/")),
        values(watch.real, g, ["h6"], tmp_path / "out")["h6"],
    )


def test_samples_may_have_other_shapes(tmp_path: Path) -> None:
    """One stretch holds all of it, and is not built again where the shapes are the same."""
    g = text_models.load(tmp_path, LINE)
    folders = [tmp_path / "samples" / name for name in "abc"]
    for folder, length in zip(folders, (2, 3, 3), strict=True):
        folder.mkdir(parents=True)
        np.save(folder / "x.npy", np.ones((length, 4), np.float32))
    samples = Feeding((str(tmp_path / "samples"),)).plan(g, g.inputs)
    (tmp_path / "out").mkdir()
    with Reference(limit=1 << 30) as one:
        found = capture_samples(
            one, g, region.find_upstream(g, ["y"]), {"y": "t"}, samples, tmp_path / "out"
        )
    assert [c.tensors["y"].shapes for c in found] == [((2, 4),), ((3, 4),), ((3, 4),)]


def test_request_without_a_node_is_an_error(tmp_path: Path, small: Reference) -> None:
    text_models.load(tmp_path, LINE)
    small.load("line", tmp_path / "model.onnx")
    with raises(ModelError, "reference.no-value", "'w'"):
        small.run("line", tmp_path, {"w": "t"}, [])
    with raises(ModelError, "reference.no-value", "'x'"):
        small.run("line", tmp_path, {"y": "t"}, [])
    small.drop("line")


SIZES = st.integers(0, 20)
NODES = st.lists(
    st.builds(
        Cost,
        st.dictionaries(st.sampled_from("abcdef"), st.just(7), max_size=3),
        work=SIZES,
    )
)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(NODES, st.data(), st.integers(1, 120))
def test_plan_covers_all_nodes_in_order_within_the_limit(
    costs: list[Cost], data: st.DataObject, limit: int
) -> None:
    live = data.draw(st.lists(SIZES, min_size=len(costs) + 1, max_size=len(costs) + 1))
    start = data.draw(st.integers(0, len(costs)))
    plan = list(iter_stretches(costs, live, limit, start))
    assert list(chain.from_iterable(plan)) == list(range(start, len(costs)))
    for nodes in plan:
        assert len(nodes) == 1 or compute_peak(costs, live, nodes) <= limit
        longer = range(nodes.start, nodes.stop + 1)
        assert nodes.stop == len(costs) or compute_peak(costs, live, longer) > limit, (
            "it could be longer"
        )


def test_weight_counts_once() -> None:
    """Two nodes that read the same one fit where two that read different ones do not."""
    same = Cost({"w": 60})
    other = Cost({"v": 60})
    assert find_end([same, same, other], [0] * 4, 0, 100) == 2
    assert [list(s) for s in iter_stretches([same, other, same], [0] * 4, 100)] == [[0], [1], [2]]


def test_tensors_that_enter_a_stretch_take_room() -> None:
    costs = [Cost({"a": 30}), Cost({"b": 30}), Cost({"c": 30})]
    assert find_end(costs, [0, 0, 0, 0], 0, 80) == 2
    assert find_end(costs, [50, 50, 0, 0], 0, 100) == 1
    assert compute_peak(costs, [10, 5, 20, 0], range(3)) == 10 + 90 + 20
