"""Laws of cutting, over random DAGs: skip edges, shared tensors, several inputs and outputs, If
bodies, shape chains.

The examples are the same on every run; SUBCUT_SEED=7 gives others.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import onnx
import pytest
from hypothesis import assume, event, given, seed, settings, strategies as st

from fixtures import oracle
from fixtures.dags import random_dag
from subgraph.cases import write_case
from subgraph.cases.case import ResultPlace
from subgraph.errors import NoRegion
from subgraph.graph import graph, region
from subgraph.graph.cut import cut
from subgraph.graph.graph import Graph
from subgraph.graph.kinds import find_kinds
from subgraph.graph.region import prepare_graph
from subgraph.graph.value_types import find_value_infos
from subgraph.runtime.capture import capture_samples, list_needed_inputs
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.load_inputs import load_sample
from subgraph.runtime.reference import Reference, count_threads
from tests.helpers.examples import examples as fewer
from tests.helpers.walked_files import walk_files

SEED = os.environ.get("SUBCUT_SEED")


def law(examples: int) -> Callable[[Any], Any]:
    """A property, tested on this many examples of about 20 ms each."""

    def mark(test: Any) -> Any:
        test = settings(
            max_examples=fewer(examples), deadline=None, database=None, derandomize=SEED is None
        )(test)
        return seed(int(SEED))(test) if SEED is not None else test

    return mark


@dataclass(frozen=True)
class Question:
    """A model, selectors of starts and ends as a user might type them, and the nodes that they
    stand for."""

    model: onnx.ModelProto
    start: tuple[str, ...]
    end: tuple[str, ...]
    start_nodes: tuple[frozenset[int], ...]
    end_nodes: tuple[frozenset[int], ...]

    @property
    def between(self) -> set[int]:
        """The nodes between starts and ends, by networkx."""
        return oracle.between(
            self.model, set().union(*self.start_nodes), set().union(*self.end_nodes)
        )

    @property
    def has_answer(self) -> bool:
        """Is each start and each end on a path?"""
        return all(nodes & self.between for nodes in (*self.start_nodes, *self.end_nodes))


@st.composite
def models(draw: st.DrawFn, most: int = 40) -> onnx.ModelProto:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return random_dag(rng, draw(st.integers(3, most)), with_if=draw(st.booleans()))


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """Mostly with a region between: an end is drawn from the descendants of a start."""
    model = draw(models())
    below = oracle.digraph(model)
    starts = [
        draw(selectors(model, range(len(model.graph.node)))) for _ in range(draw(st.integers(1, 2)))
    ]
    some = [i for _, nodes in starts for i in nodes]
    sensible = sorted(set(some).union(*(nx.descendants(below, i) for i in some)))
    pool = draw(st.sampled_from([sensible, sensible, sensible, list(range(len(model.graph.node)))]))
    ends = [draw(selectors(model, pool, with_inputs=False)) for _ in range(draw(st.integers(1, 2)))]
    (start, start_nodes), (end, end_nodes) = zip(*starts, strict=True), zip(*ends, strict=True)
    return Question(model, start, end, start_nodes, end_nodes)


@st.composite
def selectors(
    draw: st.DrawFn, model: onnx.ModelProto, pool: Sequence[int], *, with_inputs: bool = True
) -> tuple[str, frozenset[int]]:
    """A selector of one of the nodes in `pool`, or of a model input, and the nodes that it stands
    for."""
    if with_inputs and draw(st.integers(0, 5)) == 0:
        name = draw(st.sampled_from([v.name for v in model.graph.input]))
        return name, frozenset(
            i for i, node in enumerate(model.graph.node) if name in oracle.reads(node)
        )
    i = draw(st.sampled_from(list(pool)))
    node = model.graph.node[i]
    tensor = draw(st.sampled_from(list(node.output)))
    word = draw(
        st.sampled_from([node.name, f"node:{node.name}", f"#{i}", tensor, f"tensor:{tensor}"])
    )
    return word, frozenset({i})


@contextmanager
def saved(model: onnx.ModelProto) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="subcut-law-") as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        yield path


def fed(g: Graph) -> dict[str, Any]:
    """The inputs that subcut generates by default."""
    (sample,) = Feeding().plan(g, g.inputs)
    return load_sample(sample)[0]


def whole(path: Path, feeds: dict[str, Any], tensors: Sequence[str], threads: int) -> oracle.Values:
    """Values of intermediate tensors of the whole model, on plain onnxruntime."""
    made = [name for name in tensors if name not in feeds]
    tapped = path.with_name("whole.onnx")
    tapped.write_bytes(oracle.tapped(onnx.load(path), made).SerializeToString())
    return oracle.run(tapped, feeds, made, threads) | feeds


# ------------------------------------------------------------ the law


@law(150)
@given(question=questions())
def test_the_cut_gives_the_whole_models_values_or_the_refusal_is_right(
    question: Question, reference: Reference
) -> None:
    request = write_case.CaseRequest(start=question.start, end=question.end)
    with saved(question.model) as path:
        g = graph.load(path)
        place = ResultPlace(path.parent / "out", "")
        if not question.has_answer:
            event("refused")
            with pytest.raises(NoRegion):
                write_case.extract(g, request, place, reference)
            assert not place.parent.exists()
            return
        (done,) = write_case.extract(g, request, place, reference)
        assert done.manifest.check.status == "identical"
        assert {node.index for node in done.manifest.region.nodes} == question.between

        piece = onnx.load(done.path / "model.onnx")
        onnx.checker.check_model(piece, full_check=True)
        assert done.manifest.reference
        count = int(str(done.manifest.reference.threads))
        names = {
            role: [t.name for t in getattr(done.manifest, role)] for role in ("inputs", "outputs")
        }
        frozen = done.manifest.region.frozen
        values = whole(path, fed(g), [*names["inputs"], *names["outputs"], *frozen], count)
        found = oracle.run(
            done.path / "model.onnx",
            {n: values[n] for n in names["inputs"]},
            names["outputs"],
            count,
        )
        for name in names["outputs"]:
            assert not oracle.differences(values[name], found[name]), name
        for name in frozen:
            assert not oracle.differences(values[name], oracle.weight(piece, name)), name
        for tensor in (*done.manifest.inputs, *done.manifest.outputs):
            (stored,) = tensor.samples
            file = next(f.file for f in stored.files if f.format == "npy")
            assert not oracle.differences(values[tensor.name], np.load(done.path / file)), (
                tensor.name
            )


@law(60)
@given(model=models(), data=st.data())
def test_captured_values_are_those_of_the_whole_model(
    model: onnx.ModelProto, data: st.DataObject, reference: Reference
) -> None:
    made = [name for node in model.graph.node for name in node.output]
    chosen = data.draw(st.lists(st.sampled_from(made), min_size=1, max_size=4, unique=True))
    with saved(model) as path:
        g = graph.load(path)
        above = region.find_upstream(g, chosen)
        assert set(above.nodes) | set(above.pulled) == oracle.ancestors_of(model, chosen)
        samples = Feeding().plan(g, list_needed_inputs(g, above, chosen))
        stems = {name: f"t{i}" for i, name in enumerate(chosen)}
        (captured,) = capture_samples(reference, g, above, stems, samples, path.parent)
        values = whole(path, fed(g), chosen, count_threads())
        for name in chosen:
            file = path.parent / "0" / captured.tensors[name].files[0]
            assert not oracle.differences(values[name], np.load(file)), name


# ------------------------------------------------------------ the region


@law(150)
@given(question=questions())
def test_region_is_what_lies_between_with_the_edge_around_it(question: Question) -> None:
    """Nodes: descendants of the starts that are ancestors of the ends. In: what is read there, made
    elsewhere and no constant. Out: what is made there and read elsewhere, or given by the model, or
    asked for. By networkx alone.
    """
    assume(question.has_answer)
    nodes = question.model.graph.node
    model = question.model
    with saved(model) as path:
        g = graph.load(path)
        found = region.find_region(g, question.start, question.end)
    inside = question.between
    assert set(found.nodes) == inside and not found.random

    dag = oracle.digraph(model)
    given_ = {v.name for v in model.graph.input}
    maker = {name: i for i, node in enumerate(nodes) for name in node.output}
    varies = {
        i
        for i in range(len(nodes))
        if any(oracle.reads(nodes[j]) & given_ for j in {i, *nx.ancestors(dag, i)})
    }
    made = {name for i in inside for name in nodes[i].output}
    entering = set().union(*(oracle.reads(nodes[i]) for i in inside)) - made
    assert set(found.inputs) | set(found.shapes) == {
        n for n in entering if n in given_ or maker.get(n) in varies
    }
    constant = {maker[n] for n in entering if n in maker and maker[n] not in varies}
    assert set(found.pulled) == constant.union(*(nx.ancestors(dag, i) for i in constant)) - inside

    read_outside = set().union(
        *(oracle.reads(nodes[i]) for i in range(len(nodes)) if i not in inside)
    )
    leaving = made & (read_outside | {v.name for v in model.graph.output})
    asked = {name for ends in question.end_nodes for i in ends for name in nodes[i].output}
    assert leaving <= set(found.outputs) <= leaving | asked


@law(60)
@given(question=questions())
def test_only_what_passes_shape_is_a_shape(question: Question) -> None:
    """A tensor is frozen only if every path to it from a model input passes Shape."""
    assume(question.has_answer)
    nodes = question.model.graph.node
    with saved(question.model) as path:
        found = region.find_region(graph.load(path), question.start, question.end)
    dag = oracle.digraph(question.model)
    maker = {name: i for i, node in enumerate(nodes) for name in node.output}
    dag.remove_nodes_from([i for i, node in enumerate(nodes) if node.op_type == "Shape"])
    sources = {
        i for i in dag if set(oracle.reads(nodes[i])) & {v.name for v in question.model.graph.input}
    }
    for name in (*found.inputs, *found.shapes):
        i = maker.get(name)
        by_value = i is None or (i in dag and bool(({i} | nx.ancestors(dag, i)) & sources))
        assert by_value == (name in found.inputs), name


@law(60)
@given(question=questions())
def test_cutting_a_cut_at_its_own_edges_gives_the_same_nodes(question: Question) -> None:
    assume(question.has_answer)
    with saved(question.model) as path:
        first = cut(graph.load(path), question.start, question.end)
        again_path = path.with_name("again.onnx")
        first.save(again_path)
        g = graph.load(again_path)
        again = cut(g, first.region.start, first.region.end)
        assert [n.name for n in again.model.graph.node] == [n.name for n in first.model.graph.node]
        assert (sorted(again.inputs), again.outputs) == (sorted(first.inputs), first.outputs)
        # what is a shape of something above is an input like others here
        if not first.region.shapes:
            assert again.model == first.model
        if first.inputs:
            through = region.find_region(g, (), ())  # from all inputs to all outputs
            assert {*through.nodes, *through.pulled} <= set(range(len(g.nodes)))
            assert set(through.outputs) <= set(first.outputs)
            if set(through.outputs) == set(first.outputs):  # else an end depends on no input
                assert {*through.nodes, *through.pulled} == set(range(len(g.nodes)))


@law(60)
@given(question=questions())
def test_types_found_without_a_run_are_those_of_the_run(
    question: Question, reference: Reference
) -> None:
    """Half of the models declare no types, which onnx infers."""
    assume(question.has_answer)
    with saved(question.model) as path:
        g = graph.load(path)
        bare = cut(g, question.start, question.end)
        asked = write_case.CaseRequest(start=question.start, end=question.end, freeze=False)
        (done,) = write_case.extract(g, asked, ResultPlace(path.parent / "out", ""), reference)
        run = onnx.load(done.path / "model.onnx").graph
        for mine, true in (
            (bare.model.graph.input, run.input),
            (bare.model.graph.output, run.output),
        ):
            assert [v.name for v in mine] == [v.name for v in true]
            for a, b in zip(mine, true, strict=True):
                assert a.type.tensor_type.elem_type == b.type.tensor_type.elem_type
                dims = zip(a.type.tensor_type.shape.dim, b.type.tensor_type.shape.dim, strict=True)
                assert all(x.dim_value in (0, y.dim_value) for x, y in dims)


# ------------------------------------------------------------ weights on disk


@contextmanager
def thresholds(walk: int, stub: int) -> Iterator[None]:
    """Files above `walk` bytes are walked, weights above `stub` stay on disk."""
    with pytest.MonkeyPatch.context() as patch:
        walk_files(patch, walk, stub_above=stub)
        yield


def comparable(model: onnx.ModelProto) -> onnx.ModelProto:
    """The order of initializers has no meaning, nor has `data_location`, which `onnx.load` leaves
    behind."""
    weights = sorted(model.graph.initializer, key=lambda t: str(t.name))
    for tensor in weights:
        tensor.ClearField("data_location")
    del model.graph.initializer[:]
    model.graph.initializer.extend(weights)
    return model


@law(60)
@given(question=questions(), stub=st.sampled_from([50, 100, 200]))
def test_model_read_without_its_weights_gives_the_same_cut(question: Question, stub: int) -> None:
    assume(question.has_answer)
    with saved(question.model) as path:
        small = cut(graph.load(path), question.start, question.end)
        small.save(path.with_name("small.onnx"))
        with thresholds(0, stub):
            large = cut(graph.load(path), question.start, question.end)
            large.save(path.with_name("large.onnx"))
        event("weights on disk" if large.weights else "no weight on disk")
        want = comparable(onnx.load(path.with_name("small.onnx")))
        assert comparable(onnx.load(path.with_name("large.onnx"))) == want
        assert comparable(large.to_model()) == comparable(small.to_model()) == want


@pytest.mark.slow
@law(60)
@given(question=questions())
def test_capture_with_weights_on_disk_gives_the_same_files(
    question: Question, reference: Reference
) -> None:
    """Weights inside a large file, or in a file of their own, at any offset: the same result, bit
    for bit."""
    assume(question.has_answer)
    request = write_case.CaseRequest(start=question.start, end=question.end)
    with saved(question.model) as path:
        files: list[dict[str, bytes]] = []
        models_: list[onnx.ModelProto] = []
        for name, walk in (("plain", 1 << 20), ("large", 0), ("external", 0)):
            source = path.with_name(name) / "model.onnx"
            source.parent.mkdir()
            copy = onnx.load(path)
            if name == "external":
                onnx.save(
                    copy,
                    source,
                    save_as_external_data=True,
                    location="weights.data",
                    size_threshold=0,
                )
            else:
                source.write_bytes(path.read_bytes())
            # bytes: what onnxruntime needs to know when it loads stays inside
            with thresholds(walk, 100):
                (done,) = write_case.extract(
                    graph.load(source), request, ResultPlace(source.parent / "out", ""), reference
                )
            assert done.manifest.check.status == "identical"
            files.append({p.name: p.read_bytes() for p in done.path.rglob("*.npy")})
            model = comparable(onnx.load(done.path / "model.onnx"))
            del model.metadata_props[:]  # the digest of the source
            models_.append(model)
        assert files[0] == files[1] == files[2]
        assert models_[0] == models_[1] == models_[2]


@law(100)
@given(models(), st.data())
def test_prepared_graph_gives_the_same_regions_and_cuts(
    model: onnx.ModelProto, data: st.DataObject
) -> None:
    with saved(model) as path:
        plain = graph.load(path)
        prepared = prepare_graph(graph.load(path))
        chosen = data.draw(st.sets(st.integers(0, len(plain.nodes) - 1), min_size=1))
        want = region.build_region(plain, chosen)
        assert region.build_region(prepared, chosen) == want
        names = [*plain.maker, *plain.inputs, *plain.weights]
        assert find_kinds(prepared, names) == find_kinds(plain, names)
        assert list(find_value_infos(prepared, names).items()) == list(
            find_value_infos(plain, names).items()
        )
