"""Merged cuts: each piece gives bit for bit what its cut gives alone, and no two pieces share
anything."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import event, given, settings, strategies as st
from onnx import TensorProto, helper, numpy_helper

from fixtures import graphs, oracle
from fixtures.dags import random_dag
from subgraph.errors import UsageError
from subgraph.graph import merged_cuts, protobuf, region
from subgraph.graph.cut import cut_region
from subgraph.graph.graph import Graph, load
from subgraph.graph.merged_cuts import MAX_PIECES, SHARED_BYTES, MergedCut, merge_cuts, partition
from subgraph.graph.region import Region, build_region
from subgraph.runtime.capture import capture_samples, list_needed_inputs
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference, count_threads
from subgraph.storage.tensors import Record, save
from tests.helpers import chain_models, text_models
from tests.helpers.budget import within
from tests.helpers.examples import examples as fewer
from tests.helpers.refusals import raises
from tests.helpers.walked_files import walk_files

RUNNABLE = {f"{c.number}: {c.title}": c for c in graphs.CASES if c.refused is None and c.runs}


# ------------------------------------------------------------ helpers


def pieces(g: Graph, groups: Sequence[Sequence[int]]) -> list[Region]:
    """A region per group of nodes; without groups that are random, have no output or depend on no
    input."""
    found = []
    for group in groups:
        if group and not set(group) <= g.random_nodes:
            r = build_region(g, group)
            if r.outputs and (r.inputs or r.shapes):
                found.append(r)
    return found


def singles(g: Graph) -> list[Region]:
    return pieces(g, [[i] for i in g.in_order(range(len(g.nodes)))])


Capture = Mapping[str, Record]


def captured(
    reference: Reference,
    g: Graph,
    regions: Sequence[Region],
    folder: Path,
    shapes: Mapping[str, Any] | None = None,
) -> tuple[Capture, Path]:
    """Values of all boundary tensors of the regions, and their folder."""
    names = list(dict.fromkeys(n for r in regions for n in (*r.inputs, *r.shapes, *r.outputs)))
    above = region.find_upstream(g, names)
    samples = Feeding(shapes=shapes or {}).plan(g, list_needed_inputs(g, above, names))
    into = folder / "captured"
    into.mkdir()
    (sample,) = capture_samples(
        reference, g, above, {n: f"t{i}" for i, n in enumerate(names)}, samples, into
    )
    return sample.tensors, into / "0"


def run(
    reference: Reference,
    model: Path,
    given: Mapping[str, Record],
    outputs: Mapping[str, str],
    folder: Path,
) -> dict[str, list[bytes]]:
    """Run a model on captured values (`given`: input → record); bytes of `outputs` (output → name
    in the source)."""
    feeds = [replace(record, name=name) for name, record in given.items()]
    reference.load("tried", model)
    tensors = reference.run(
        "tried", folder, {n: f"out{i}" for i, n in enumerate(outputs)}, feeds
    ).tensors
    return {outputs[r.name]: [(folder / f).read_bytes() for f in r.files] for r in tensors}


def agree(reference: Reference, p: MergedCut, values: Capture, folder: Path) -> None:
    """Checker and runtime accept the merged model, and each piece gives what its cut gives alone,
    bit for bit."""
    place = folder / "pool.onnx"
    p.save(place)
    # shape inference takes a sparse weight for a vector
    sparse = bool(p.model.graph.sparse_initializer)
    onnx.checker.check_model(str(place), full_check=not sparse)
    fed = {new: values[old] for names in p.inputs for old, new in names.items()}
    together = run(
        reference, place, fed, {n: n for names in p.outputs for n in names.values()}, folder
    )
    for cut, outputs in zip(p.pieces, p.outputs, strict=True):
        assert list(outputs) == list(cut.outputs)
        alone = folder / "alone.onnx"
        cut.save(alone)
        want = run(
            reference,
            alone,
            {n: values[n] for n in cut.inputs},
            {n: n for n in cut.outputs},
            folder,
        )
        assert {n: together[outputs[n]] for n in cut.outputs} == want


def tried(
    reference: Reference, g: Graph, regions: Sequence[Region], folder: Path, **more: Any
) -> list[MergedCut]:
    """The regions cut, partitioned and merged; each merged cut is checked."""
    values, where = captured(reference, g, regions, folder, **more)
    cuts = [cut_region(g, r, [values], where) for r in regions]
    made = [merge_cuts(some) for some in partition(cuts)]
    for p in made:
        lawful(p)
        agree(reference, p, values, where)
    return made


def lawful(p: MergedCut) -> None:
    """Checked by onnx alone: each name belongs to one piece, inputs are not shared, no node occurs
    twice."""
    graph = p.model.graph
    owners = [set(names(graph, f"p{i}/")) for i in range(len(p.pieces))]
    assert sum(map(len, owners)) == len(set().union(*owners)) == len(set(names(graph)))
    fed = [n for some in p.inputs for n in some.values()]
    weights = {t.name for t in graph.initializer}
    assert fed == [v.name for v in graph.input if v.name not in weights] and len(set(fed)) == len(
        fed
    )
    assert [v.name for v in graph.output] == [n for some in p.outputs for n in some.values()]
    nodes = [i for cut in p.pieces for i in cut.region.nodes]
    assert len(set(nodes)) == len(nodes)
    assert len(graph.node) == sum(len(cut.model.graph.node) for cut in p.pieces)
    node_names = [n.name for n in graph.node if n.name]
    assert len(set(node_names)) == len(node_names)
    large = [
        t.name.partition("/")[2]
        for t in p.model.graph.initializer
        if protobuf.count_bytes(t) > SHARED_BYTES
    ]
    assert len(set(large)) == len(large)


def names(graph: onnx.GraphProto, prefix: str = "") -> Iterator[str]:
    """All names of tensors in a graph and its bodies that start with `prefix`."""
    found = [n for node in graph.node for n in (*node.input, *node.output) if n]
    found += [v.name for v in (*graph.input, *graph.output, *graph.value_info, *graph.initializer)]
    found += [s.values.name for s in graph.sparse_initializer]
    found += [a.tensor_name for a in graph.quantization_annotation]
    found += [
        e.value for a in graph.quantization_annotation for e in a.quant_parameter_tensor_names
    ]
    yield from (n for n in found if n.startswith(prefix))
    for node in graph.node:
        for body in oracle.bodies(node):
            yield from names(body, prefix)


# ------------------------------------------------------------ laws


def law(examples: int) -> Callable[[Any], Any]:
    return settings(max_examples=fewer(examples), deadline=None, database=None, derandomize=True)


@st.composite
def questions(draw: st.DrawFn) -> tuple[onnx.ModelProto, list[int]]:
    """A model, and positions at which to divide its nodes."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    model = random_dag(rng, draw(st.integers(3, 30)), with_if=draw(st.booleans()))
    marks = draw(st.lists(st.integers(1, len(model.graph.node)), max_size=8, unique=True))
    return model, [0, *sorted(marks), len(model.graph.node)]


@contextmanager
def saved(model: onnx.ModelProto) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="subcut-pool-") as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        yield path


def intervals(g: Graph, marks: Sequence[int]) -> list[Region]:
    order = g.in_order(range(len(g.nodes)))
    return pieces(g, [order[a:b] for a, b in pairwise(marks)])


@pytest.mark.rare
@pytest.mark.slow
@law(60)
@given(question=questions(), stub=st.sampled_from([100, 1 << 16]))
def test_each_piece_gives_what_it_gives_alone(
    question: tuple[onnx.ModelProto, list[int]], stub: int, reference: Reference
) -> None:
    model, marks = question
    with saved(model) as path, pytest.MonkeyPatch.context() as patch:
        walk_files(patch, stub_above=stub)
        g = load(path)
        regions = intervals(g, marks)
        made = tried(reference, g, regions, path.parent) if regions else []
        event(f"{len(made)} pools")
        assert sum(len(p.pieces) for p in made) == len(regions)


@law(60)
@given(question=questions(), most=st.sampled_from([None, 0, 300, 1000]))
def test_partition_has_each_piece_once_in_order_and_within_its_limits(
    question: tuple[onnx.ModelProto, list[int]], most: int | None
) -> None:
    model, marks = question
    with saved(model) as path:
        g = load(path)
        cuts = [cut_region(g, r) for r in intervals(g, marks)]
        found = partition(cuts, most)
    assert [cut for some in found for cut in some] == cuts
    for some in found:
        lawful(merge_cuts(some))
        assert most is None or sum(map(merged_cuts.count_bytes, some)) <= most or len(some) == 1
    if most is None:
        for some, following in pairwise(found):
            with raises(UsageError, "cut.overlap"):  # the reason why the next group begins there
                merge_cuts([*some, following[0]])


def test_cut_that_overlaps_with_the_group_begins_the_next(tmp_path: Path) -> None:
    g = chain(tmp_path, 64)
    windows = [cut_region(g, build_region(g, range(a, a + 8))) for a in (0, 8, 12, 20, 0)]
    assert partition(windows) == [windows[:2], windows[2:]]


# ------------------------------------------------------------ kinds of models


NO_LINKS = pytest.mark.posix("on Windows symbolic links need a privilege")


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    "key", [pytest.param(k, marks=[NO_LINKS] if "symlink" in k else []) for k in RUNNABLE]
)
def test_table_of_models_is_merged(key: str, tmp_path: Path, reference: Reference) -> None:
    """Single nodes, and pairs of nodes."""
    case = RUNNABLE[key]
    g = load(case.build(tmp_path / "source"))
    shapes = {"x": (2, 6)} if "--shape" in case.options else None
    order = g.in_order(range(len(g.nodes)))
    for number, groups in enumerate(
        ([[i] for i in order], [order[i : i + 2] for i in range(0, len(order), 2)])
    ):
        regions = pieces(g, groups)
        folder = tmp_path / str(number)
        folder.mkdir()
        made = tried(reference, g, regions, folder, shapes=shapes)
        assert sum(len(p.pieces) for p in made) == len(regions) > 1


def test_bodies_that_capture_and_shadow_are_merged(tmp_path: Path, reference: Reference) -> None:
    """`a` and `t` name outer tensors, tensors of a body, and captured tensors; each keeps its
    meaning."""
    g = text_models.load(
        tmp_path,
        """g (float[2,8] x, bool c) => (float[2,8] y) <int64 trips = {2}, bool keep = {1}> {
            [t]    t = Neg(x)
            [one]  a = If(c) <
                then_branch = yes () => (float[2,8] r) { r = Add(t, w) },
                else_branch = no () => (float[2,8] b) { u = Mul(t, x) b = Sub(u, w) }>
            [two]  b = Loop(trips, keep, a) <body = step (int64 i, bool go, float[2,8] r) => (bool on, float[2,8] u) {
                on = Identity(go)
                v = Add(r, t)
                s = If(c) <
                    then_branch = deep () => (float[2,8] q) { k = Add(v, a) q = Tanh(k) },
                    else_branch = flat () => (float[2,8] q) { q = Sub(v, r) }>
                u = Tanh(s)
            }>
            [last] y = Add(b, t)
        }""",  # noqa: E501
        w=np.arange(8, dtype=np.float32),
    )
    (p,) = tried(reference, g, singles(g), tmp_path)
    assert p.inputs[2] == {"a": "p2/a", "t": "p2/t", "c": "p2/c"}
    loop = next(n for n in p.model.graph.node if n.op_type == "Loop").attribute[0].g
    assert [v.name for v in loop.input] == ["p2/i", "p2/go", "p2/r"]
    deep = next(n for n in loop.node if n.op_type == "If").attribute[0].g
    assert list(deep.node[0].input) == ["p2/v", "p2/a"]


def test_body_name_that_hides_an_outer_one_is_merged(tmp_path: Path) -> None:
    """onnxruntime refuses such a body, other runtimes accept it; the names keep their meaning."""
    text = """g (float[2] x, bool c) => (float[2] y) {
        [a] a = Neg(x)
        [y] y = If(c) <
            then_branch = yes () => (float[2] t) { x = Abs(a) a = Tanh(x) t = Add(a, x) },
            else_branch = no () => (float[2] t) { t = Add(a, x) }>
    }"""
    g = text_models.load(tmp_path, text)
    p = merge_cuts([cut_region(g, r) for r in singles(g)])
    yes, no = (a.g for a in p.model.graph.node[1].attribute)
    assert [(list(n.input), list(n.output)) for n in yes.node] == [
        (["p1/a"], ["p1/x"]),
        (["p1/x"], ["p1/a"]),
        (["p1/a", "p1/x"], ["p1/t"]),
    ]
    assert list(no.node[0].input) == ["p1/a", "p1/x"] and [n.name for n in yes.output] == ["p1/t"]


def test_names_like_those_of_a_pool_are_merged(tmp_path: Path, reference: Reference) -> None:
    g = load(
        chain_models.chain(tmp_path / "m.onnx", ["p1/n", "n"], ["x"], source="p1/x", sink="p0/p1/x")
    )
    (p,) = tried(reference, g, singles(g), tmp_path)
    assert p.inputs == ({"p1/x": "p0/p1/x"}, {"x": "p1/x"}) and p.outputs[1] == {
        "p0/p1/x": "p1/p0/p1/x"
    }


def test_unnamed_and_equally_named_nodes_are_merged(tmp_path: Path, reference: Reference) -> None:
    text = (
        "g (float[2] x) => (float[2] y) { a = Neg(x) [n] b = Abs(a) [n] c = Tanh(b) [n] y ="
        " Abs(c) }"
    )
    g = text_models.load(tmp_path, text)
    regions = pieces(g, [[0, 1], [2, 3]])
    values, _ = captured_of(g, regions, tmp_path)
    p = merge_cuts([cut_region(g, r) for r in regions])
    assert [n.name for n in p.model.graph.node] == ["", "p0/n", "p1/n", "p1/n#3"]
    agree(reference, p, values, tmp_path)


def captured_of(g: Graph, regions: Sequence[Region], folder: Path) -> tuple[Capture, Path]:
    """Seeded values, for models that onnxruntime refuses as a whole."""
    rng = np.random.default_rng(0)
    tensors = dict.fromkeys(n for r in regions for n in (*r.inputs, *r.outputs))
    drawn = {n: rng.standard_normal(2, dtype=np.float32) for n in tensors}
    return {
        n: save(n, v, "tensor(float)", folder, f"t{i}") for i, (n, v) in enumerate(drawn.items())
    }, folder


def test_int4_boundary_is_merged(tmp_path: Path, reference: Reference) -> None:
    text = """g (float[2,5] x) => (float[2,5] y) <float scale = {0.5}> {
        q = QuantizeLinear(x, scale, zero)
        t = Transpose<perm = [1, 0]>(q)
        r = Transpose<perm = [1, 0]>(t)
        y = DequantizeLinear(r, scale, zero)
    }"""
    g = text_models.load(tmp_path, text, int4_zero, opset=21, ir=10)
    regions = pieces(g, [[0], [3]])
    made = tried(reference, g, [*regions], tmp_path)
    assert [len(p.pieces) for p in made] == [2]
    assert made[0].model.graph.input[1].type.tensor_type.elem_type == TensorProto.INT4


def int4_zero(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(helper.make_tensor("zero", TensorProto.INT4, [], [1]))


def test_quantization_annotations_and_metadata_are_merged(tmp_path: Path) -> None:
    g = text_models.read(tmp_path, graphs.quantization_annotations())
    p = merge_cuts([cut_region(g, r) for r in pieces(g, [[0], [1, 2]])])
    said = {
        a.tensor_name: [e.value for e in a.quant_parameter_tensor_names]
        for a in p.model.graph.quantization_annotation
    }
    assert said["p0/h"] == ["p0/h.scale", "p0/h.zero_point"] and said["p1/a"] == [
        "p1/a.scale",
        "p1/a.zero_point",
    ]
    assert {n for some in said.values() for n in some} <= {
        t.name for t in p.model.graph.initializer
    }

    m = load(graphs_saved(graphs.metadata(), tmp_path / "m"))
    q = merge_cuts([cut_region(m, r) for r in singles(m)]).model
    source = graphs.metadata()
    assert (q.metadata_props, q.opset_import, q.functions) == (
        source.metadata_props,
        source.opset_import,
        source.functions,
    )
    assert (
        q.graph.metadata_props == source.graph.metadata_props and q.graph.name == source.graph.name
    )
    assert [n.doc_string for n in q.graph.node] == [n.doc_string for n in source.graph.node]


def graphs_saved(model: onnx.ModelProto, folder: Path) -> Path:
    folder.mkdir()
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


# ------------------------------------------------------------ weights


W = np.arange(32, dtype=np.float32).reshape(4, 8)[:, :4].copy()  # 64 bytes, of which W + 1 … differ
LARGE = np.arange(64, dtype=np.float32).reshape(8, 8)


def test_pieces_that_share_a_large_constant_go_into_separate_pools(
    tmp_path: Path, reference: Reference
) -> None:
    """An initializer of one name, a Constant node, a function with a constant; equal content alone
    does not count."""
    g = text_models.load(
        tmp_path,
        """g (float[8,8] x) => (float[8,8] y) {
            [name]     a = MatMul(x, w)
            [again]    b = Add(a, w)
            [copy]     d = Add(b, w2)
            [constant] k = Constant<value = float[1] {0}>()
            [reads]    e = Sub(d, k)
            [rereads]  f = Sub(e, k)
            [calls]    h = fx.add(f)
            [recalls]  i = fx.add(h)
            [last]     y = Tanh(i)
        }
        <domain: "fx", opset_import: ["" : 17]>
        add (v) => (r) { k = Constant<value = float[1] {0}>() r = Add(v, k) }""",
        hold_the_same,
        domains=("fx",),
        w=LARGE,
        w2=LARGE,
    )
    regions = [r for r in singles(g) if r.inputs]
    made = tried(reference, g, regions, tmp_path)
    labels = [[g.label(cut.region.nodes[0]) for cut in p.pieces] for p in made]
    assert labels == [
        ["name"],
        ["again", "copy", "reads"],
        ["rereads", "calls"],
        ["recalls", "last"],
    ]


def hold_the_same(model: onnx.ModelProto) -> None:
    """Put `LARGE` into the Constant nodes."""
    nodes = {n.name: n for n in model.graph.node}
    nodes["constant"].attribute[0].t.CopyFrom(numpy_helper.from_array(LARGE))
    model.functions[0].node[0].attribute[0].t.CopyFrom(numpy_helper.from_array(LARGE))


def test_the_list_of_a_constant_node_is_a_constant(tmp_path: Path) -> None:
    numbers = ", ".join(map(str, range(20)))
    text = f"""g (int64[20] x) => (int64[20] y) {{
        k = Constant<value_ints = [{numbers}]>()
        a = Add(x, k)
        y = Sub(a, k)
    }}"""
    g = text_models.load(tmp_path, text)
    assert [len(some) for some in partition([cut_region(g, r) for r in singles(g)])] == [1, 1]


@pytest.mark.parametrize(("size", "together"), [(SHARED_BYTES, [2]), (SHARED_BYTES + 1, [1, 1])])
def test_constant_is_large_from_shared_bytes_on(
    size: int, together: list[int], tmp_path: Path
) -> None:
    kind = f"uint8[{size}]"
    text = f"g ({kind} x) => ({kind} y) <{kind} a> {{ a = Add(x, w) y = Sub(a, w) }}"
    g = text_models.load(tmp_path, text, w=np.arange(size, dtype=np.uint8))
    assert [len(some) for some in partition([cut_region(g, r) for r in singles(g)])] == together


def test_small_constants_are_copied_into_each_piece(tmp_path: Path, reference: Reference) -> None:
    """A bound of Clip, 64 bytes of weights, a Constant, and a Cast whose result is declared
    small."""
    g = text_models.load(
        tmp_path,
        """g (float[4,4] x) => (float[4,4] y) <float low = {0}, float half> {
            [two]  two = Constant<value = double {2.0}>()
            [cast] half = Cast<to = 1>(two)
            a = Clip(x, low)
            b = MatMul(a, w)
            c = Clip(b, low)
            d = MatMul(c, w)
            e = Mul(d, half)
            y = Div(e, half)
        }""",
        w=W,
    )
    (p,) = tried(reference, g, singles(g), tmp_path)
    assert [t.name for t in p.model.graph.initializer] == ["p0/low", "p1/w", "p2/low", "p3/w"]
    assert sum(n.op_type == "Constant" for n in p.model.graph.node) == 2


@pytest.mark.parametrize("declared", ["", ", float[32] ramp", ", float[n] ramp"])
def test_node_that_makes_a_large_constant_stands_in_one_piece(
    declared: str, tmp_path: Path
) -> None:
    text = f"""g (float[32] x) => (float[32] y) <float from = {{0}}, float to = {{32}}, float by = {{1}}, float[32] a{declared}> {{
        ramp = Range(from, to, by)
        [one] a = Add(x, ramp)
        [two] y = Mul(a, ramp)
    }}"""  # noqa: E501
    g = text_models.load(tmp_path, text)
    assert [len(some) for some in partition([cut_region(g, r) for r in singles(g)])] == [1, 1]
    with raises(UsageError, "cut.overlap", "#0"):
        merge_cuts([cut_region(g, r) for r in singles(g)])


def test_frozen_shapes_are_contents_too(tmp_path: Path, reference: Reference) -> None:
    """`wide` depends on a shape only, and is large: pieces that read it share a constant once it is
    frozen."""
    text = """g (float[n,20] x) => (float[n,20] y) {
        dims = Shape(x)
        wide = ConstantOfShape(dims)
        [one] a = Add(x, wide)
        [two] y = Mul(a, wide)
    }"""
    g = text_models.load(tmp_path, text)
    regions = pieces(g, [[2], [3]])
    values, where = captured(reference, g, regions, tmp_path)
    cuts = [cut_region(g, r, [values], where) for r in regions]
    assert cuts[0].frozen == ("wide",) and [len(some) for some in partition(cuts)] == [1, 1]
    with raises(UsageError, "cut.overlap", "wide"):
        merge_cuts(cuts)
    thawed = [cut_region(g, r, [values], where, freeze=False) for r in regions]
    assert [len(some) for some in partition(thawed)] == [2]
    agree(reference, merge_cuts(thawed), values, where)


@pytest.mark.parametrize("outside", [False, True])
def test_weights_stay_on_disk_until_they_are_written(
    outside: bool, tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk_files(monkeypatch)
    text = (
        "g (float[8,8] x) => (float[8,8] y) { a = MatMul(x, w) b = MatMul(a, w2) c = MatMul(b, w3)"
        " y = MatMul(c, w) }"
    )
    path = text_models.load(tmp_path, text, w=LARGE, w2=LARGE + 1, w3=LARGE).path
    if outside:
        onnx.save(
            onnx.load(path), path, save_as_external_data=True, location="weights", size_threshold=0
        )
    g = load(path)
    made = tried(reference, g, singles(g), tmp_path)
    assert [len(p.pieces) for p in made] == [3, 1]
    for p in made:
        assert all(map(protobuf.is_on_disk, p.model.graph.initializer))
        files = p.save(tmp_path / "again.onnx")
        assert [f.name for f in files] == ["again.onnx", *["again.onnx.data"][:outside]]
        assert p.save(tmp_path / "again.onnx") == files  # the pool is not used up


def test_functions_are_shared_once(tmp_path: Path, reference: Reference) -> None:
    g = text_models.read(tmp_path, graphs.nested_functions())
    made = tried(reference, g, singles(g), tmp_path)
    assert [f.name for f in made[0].model.functions] == ["outer", "inner", "center"]


# ------------------------------------------------------------ refusals


def test_invalid_pool_is_refused(tmp_path: Path) -> None:
    g = chain(tmp_path, 4)
    cuts = [cut_region(g, r) for r in singles(g)]
    other = load(g.path)
    with raises(UsageError, "cut.piece-count"):
        merge_cuts([])
    with raises(UsageError, "cut.piece-count"):
        merge_cuts(cuts[:1] * (MAX_PIECES + 1))
    with raises(UsageError, "cut.overlap", "n1") as refusal:
        merge_cuts([cuts[1], cuts[2], cut_region(g, build_region(g, [0, 1]))])
    assert "partition" in refusal.value.hint
    for verb in (merge_cuts, partition):
        with raises(UsageError, "cut.several-graphs"):
            verb([cuts[0], cut_region(other, singles(other)[1])])
    assert partition([]) == []


# ------------------------------------------------------------ size and time


def chain(folder: Path, count: int, side: int = 2) -> Graph:
    """Nodes in a row, typed throughout."""
    nodes = [
        helper.make_node("Relu" if i % 2 else "Neg", [f"t{i}"], [f"t{i + 1}"], f"n{i}")
        for i in range(count)
    ]
    infos = [
        helper.make_tensor_value_info(f"t{i}", TensorProto.FLOAT, [side]) for i in range(count + 1)
    ]
    made = helper.make_graph(nodes, "chain", infos[:1], infos[-1:], value_info=infos[1:-1])
    return text_models.read(
        folder, helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )


@pytest.mark.slow
def test_thousand_pieces_are_merged(tmp_path: Path, reference: Reference) -> None:
    """From cuts to a file: 0.08 s on the machine where this was written."""
    g = chain(tmp_path, MAX_PIECES + 10)
    cuts = [cut_region(g, r) for r in singles(g)]
    with within(2):
        found = partition(cuts)
        p = merge_cuts(found[0])
        p.save(tmp_path / "pool.onnx")
    assert [len(some) for some in found] == [MAX_PIECES, 10]
    lawful(merge_cuts(found[1]))
    x = np.linspace(-1, 1, 2, dtype=np.float32)
    got = oracle.run(
        tmp_path / "pool.onnx",
        {n: x for some in p.inputs for n in some.values()},
        ["p0/t1", "p999/t1000"],
        1,
    )
    assert got["p0/t1"].tolist() == [1, -1] and got["p999/t1000"].tolist() == [0, 1]


def test_memory_bounds_a_pool(tmp_path: Path) -> None:
    g = chain(tmp_path, 10, side=100)  # 800 bytes on the edges of each piece
    cuts = [cut_region(g, r) for r in singles(g)]
    assert [len(some) for some in partition(cuts, most_bytes=2400)] == [3, 3, 3, 1]
    assert [len(some) for some in partition(cuts, most_bytes=799)] == [1] * 10


def test_group_without_room_stays_closed(tmp_path: Path) -> None:
    """16, 160 and 16 bytes, at most 170 each: the last cut does not join the first group again."""
    text = """g (float[2] x) => (float[2] z) <float[2] a, float[19,2] b> {
        a = Neg(x)
        b = Expand(a, size)
        z = Abs(a)
        y = Tanh(b)
    }"""
    g = text_models.load(tmp_path, text, size=np.array([19, 2]))
    cuts = [cut_region(g, r) for r in pieces(g, [[0], [1], [2]])]
    assert list(map(merged_cuts.count_bytes, cuts)) == [16, 160, 16]
    assert partition(cuts, most_bytes=170) == [[cuts[0]], [cuts[1]], [cuts[2]]]
    assert partition(cuts, most_bytes=180) == [cuts[:2], cuts[2:]]


@pytest.mark.rare
def test_single_nodes_of_a_resnet_with_optimizations(
    resnet: Path, tmp_path: Path, reference: Reference
) -> None:
    """With optimizations on, nodes are fused and folded within a piece, never across pieces."""
    g = load(resnet)
    regions = singles(g)
    values, where = captured(reference, g, regions, tmp_path)
    made = [
        merge_cuts(some) for some in partition([cut_region(g, r, [values], where) for r in regions])
    ]
    assert sum(len(p.pieces) for p in made) == len(regions) == len(g.nodes)
    arrays = {n: np.load(where / r.files[0]) for n, r in values.items()}
    for p in made:
        lawful(p)
        p.save(tmp_path / "pool.onnx")
        got = optimized(
            tmp_path / "pool.onnx",
            {new: arrays[old] for some in p.inputs for old, new in some.items()},
        )
        for cut, outputs in zip(p.pieces, p.outputs, strict=True):
            cut.save(tmp_path / "alone.onnx")
            want = optimized(tmp_path / "alone.onnx", {n: arrays[n] for n in cut.inputs})
            for name in cut.outputs:
                np.testing.assert_allclose(got[outputs[name]], want[name], rtol=1e-5, atol=1e-5)


def optimized(model: Path, feeds: Mapping[str, Any]) -> dict[str, Any]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = count_threads()
    options.log_severity_level = 4
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    made = [o.name for o in session.get_outputs()]
    return dict(zip(made, session.run(made, dict(feeds)), strict=True))
