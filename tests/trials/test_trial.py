"""Trials of a candidate with seeded faults: which regions fail, and which runs are repeated.

Covers `trials.trial`, `trials.region_runs`,
`trials.model_writer`, `trials.candidate_runtime`, `trials.reference_model`,
`trials.pooled_runs` and `trials.open_trials`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from fixtures.dags import random_dag
from subgraph.errors import ModelError, UsageError
from subgraph.graph import region as regions
from subgraph.graph.graph import Graph, load
from subgraph.graph.kinds import VALUE, find_kinds
from subgraph.graph.region import Region
from subgraph.graph.walks import find_ancestors
from subgraph.runtime import candidate
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.runtime.worker_pool import Workers
from subgraph.trials import pooled_runs
from subgraph.trials.open_trials import Setup, open_trials
from subgraph.trials.trial import Trials
from subgraph.verdict import Signature, Status
from tests.helpers import text_models
from tests.helpers.examples import ALL
from tests.helpers.facts import has_line
from tests.helpers.open_trials import faulty_candidate, faulty_trials, region_of
from tests.helpers.refusals import raises

LINE = (
    "g (float[2,4] x) => (float[2,4] y) { [a] p = Relu(x) [b] q = Neg(p) [c] r = MatMul(q, w) [d] y"
    " = Tanh(r) }"
)
Ask = Callable[..., Trials]


@pytest.fixture
def ask(tmp_path: Path, reference: Reference, workers: Workers) -> Iterator[Ask]:
    """`ask(text or graph, **faults)` -> trials, each with its own folder and store."""
    with ExitStack() as stack:
        number = 0

        def opened(model: str | Graph, **more: Any) -> Trials:
            nonlocal number
            number += 1
            if isinstance(model, str):
                (tmp_path / f"{number}").mkdir()
                model = line(tmp_path / f"{number}", model)
            return stack.enter_context(faulty_trials(model, reference, workers, **more))

        yield opened


def line(folder: Path, text: str = LINE) -> Graph:
    return text_models.load(
        folder, text, w=np.random.default_rng(0).standard_normal((4, 4), np.float32)
    )


# ------------------------------------------------------------ what fails


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("faults", "failing"),
    [
        ({}, set()),
        ({"fault": "wrong", "op": "Neg"}, {"b", "ab", "bc", "abcd"}),
        ({"fault": "wrong", "nodes": "b+c"}, {"bc", "abcd"}),
        ({"fault": "wrong", "nodes": "a+d"}, {"abcd"}),
        ({"false": "b", "without": "a"}, {"b", "bc"}),
        ({"add": "a:-9"}, {"a", "ab", "abcd"}),
    ],
)
def test_fault_shows_where_it_is(faults: dict[str, str], failing: set[str], ask: Ask) -> None:
    trials = ask(LINE, **faults)
    found = {
        some
        for some in ("a", "b", "c", "d", "ab", "bc", "abcd")
        if fails(trials, region_of(trials.model.graph, *some))
    }
    assert found == failing
    outcome = trials.verdict(trials.model.whole())
    assert outcome.status is Status.FAIL if "abcd" in failing else Status.AGREE


def fails(trials: Trials, region: Region) -> bool:
    verdict = trials.verdict(region)
    assert verdict.status is not Status.UNRESOLVED, verdict
    return verdict.status is Status.FAIL


def test_fault_may_vanish_on_its_way(ask: Ask) -> None:
    """Where a saturation hides a wrong tensor, the node fails and a region with its successor
    agrees."""
    trials = ask(
        "g (float[4] x) => (float[4] y) { [a] p = Mul(x, x) [b] q = Sign(p) [c] y = Mul(q, x) }",
        add="a:0.5",
    )
    assert fails(trials, region_of(trials.model.graph, "a"))
    assert not fails(trials, region_of(trials.model.graph, "a", "b"))
    assert fails(trials, trials.model.whole(["p"]))


@pytest.mark.parametrize(
    ("fault", "signature", "why"),
    [
        ("nan", Signature.NAN, ("NaN: 8", "candidate")),
        ("inf", Signature.NAN, ("infinite: 8", "candidate")),
    ],
)
def test_non_finite_values_are_judged(
    fault: str, signature: Signature, why: tuple[str, ...], ask: Ask
) -> None:
    trials = ask(LINE, fault=fault, op="Neg")
    verdict = trials.verdict(region_of(trials.model.graph, "b"))
    assert (verdict.status, verdict.signature) == (Status.FAIL, signature)
    assert has_line(verdict.why, *why)


def test_output_that_is_not_returned_is_missing(ask: Ask) -> None:
    trials = ask(LINE, drop="q")
    verdict = trials.verdict(trials.model.whole(["p", "q"]))
    assert (verdict.status, verdict.signature) == (Status.FAIL, Signature.MISSING)
    assert {j.name: j.status for j in verdict.outputs} == {"y": "agree", "p": "agree", "q": "fail"}


def effect(
    model: onnx.ModelProto, region: Region, graph: Graph, guilty: int, fed: Mapping[str, Any]
) -> float:
    """How far a wrong node moves the outputs of a region that is fed right values, computed without
    a cut.

    In the whole model, the region's nodes read the tensors that enter it from inputs of their own.
    """
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    entering = [n for n in (*region.inputs, *region.shapes) if n not in graph.inputs]
    for i in region.nodes:
        node = changed.graph.node[i]
        node.input[:] = [f"{n}/fed" if n in entering else n for n in node.input]
    types = {
        "int64": onnx.TensorProto.INT64,
        "float32": onnx.TensorProto.FLOAT,
        "bool": onnx.TensorProto.BOOL,
    }
    for name in entering:
        value = fed[name]
        changed.graph.input.append(
            helper.make_tensor_value_info(f"{name}/fed", types[value.dtype.name], value.shape)
        )
    node = changed.graph.node[guilty]
    name = node.output[0]
    node.output[0] = f"{name}/right"
    changed.graph.initializer.append(numpy_helper.from_array(np.array(0.5, np.float32), "amount"))
    changed.graph.node.insert(
        guilty + 1, helper.make_node("Add", [f"{name}/right", "amount"], [name])
    )
    known = {i.name for i in changed.graph.output}
    changed.graph.output.extend(
        helper.make_empty_tensor_value_info(n) for n in region.outputs if n not in known
    )
    feeds = {n: fed[n] for n in graph.inputs} | {f"{n}/fed": fed[n] for n in entering}
    got = run(changed, list(region.outputs), feeds)
    return max(
        float(np.abs(got[n].astype(float) - fed[n].astype(float)).max()) for n in region.outputs
    )


def run(model: onnx.ModelProto, names: list[str], feeds: Mapping[str, Any]) -> dict[str, Any]:
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


@pytest.mark.turns(4)
@pytest.mark.parametrize("seed", range(10 if ALL else 5))
def test_region_fails_iff_the_fault_is_in_it_and_reaches_its_edge(
    seed: int, ask: Ask, tmp_path: Path
) -> None:
    rng = np.random.default_rng(seed)
    model = random_dag(rng, 14, with_if=False)
    graph = text_models.read(tmp_path, model)
    order = graph.in_order(trials_nodes(graph))
    ops = ("Sub", "Mul", "MatMul", "Relu", "Tanh", "Sigmoid", "Neg", "Concat", "Slice", "Reshape")
    floats = [
        i
        for i in order
        if graph.ops[i] in ops and find_kinds(graph, graph.makes[i])[graph.makes[i][0]] == VALUE
    ]
    guilty = int(rng.choice(floats))
    trials = ask(graph, criterion="max_abs<1e-4", add=f"{graph.label(guilty)}:0.5")
    for lo, hi in rng.integers(0, len(order), (6, 2)):
        region = regions.build_region(graph, order[min(lo, hi) : max(lo, hi) + 1])
        trials.model.values.need([*graph.inputs, *region.inputs, *region.shapes, *region.outputs])
        kinds = find_kinds(graph, region.outputs)
        if not any(kinds[n] == VALUE for n in region.outputs):
            continue
        fed = {n: loaded(trials, n) for n in trials.model.values.records[0]}
        expected = guilty in region.nodes and effect(model, region, graph, guilty, fed) > 1e-4
        assert fails(trials, region) == expected, (graph.label(guilty), region)
    pieces = [
        regions.build_region(graph, [i])
        for i in order
        if find_kinds(graph, graph.makes[i])[graph.makes[i][0]] == VALUE
    ]
    assert [v.status for v in pooled_runs.judge_pool(trials, pieces)] == [
        trials.verdict(p).status for p in pieces
    ]


def trials_nodes(graph: Graph) -> set[int]:
    return find_ancestors(graph, graph.producers(graph.outputs))


def loaded(trials: Trials, name: str, k: int = 0) -> Any:
    from subgraph.storage.tensors import load as value

    return value(trials.model.values.records[k][name], Path("/"))


# ------------------------------------------------------------ samples


def samples(folder: Path, *rows: int) -> tuple[str, ...]:
    """A folder of samples with so many rows each."""
    (folder / "samples").mkdir()
    for k, n in enumerate(rows):
        np.save(folder / f"samples/s{k}.npy", np.full((n, 4), k + 1, np.float32))
    return (str(folder / "samples"),)


CHAIN = (
    "g (float[N,4] x) => (float[N,2,2] y) { [s] s = Shape(x) [z] z = Constant<value=int64[1] {0}>()"
    " [n] n = Gather(s, z) [t] t = Constant<value=int64[2] {2,2}>() [u] u = Concat<axis=0>(n, t)"
    " [r] r = Reshape(x, u) [e] y = Neg(r) }"
)


@pytest.mark.parametrize("freeze", [True, False])
def test_samples_of_other_shapes_get_a_cut_of_their_own(
    freeze: bool, ask: Ask, tmp_path: Path
) -> None:
    trials = ask(CHAIN, inputs=samples(tmp_path, 1, 2, 1, 3, 2), freeze=freeze, add="e:1")
    verdict = trials.verdict(region_of(trials.model.graph, "r"))
    assert len(trials.log.made) == 3
    assert (verdict.status, [j.sample for j in verdict.outputs]) == (
        Status.AGREE,
        ["s0", "s1", "s2", "s3", "s4"],
    )
    verdict = trials.verdict(region_of(trials.model.graph, "r", "e"))
    assert [(j.sample, j.status, j.errors["max_abs"]) for j in verdict.outputs] == [
        (f"s{k}", Status.FAIL, 1.0) for k in range(5)
    ]
    assert len(trials.log.made) == 6


def test_one_bad_sample_fails_the_whole(ask: Ask, tmp_path: Path) -> None:
    trials = ask(
        "g (float[N,4] x) => (float[N,4] y) { [e] y = Neg(x) }",
        inputs=samples(tmp_path, 2, 2),
        step="e",
    )
    verdict = trials.verdict(trials.model.whole())
    assert [(j.sample, round(j.errors["max_abs"], 6)) for j in verdict.outputs] == [
        ("s0", 5),
        ("s1", 0.5),
    ]
    assert verdict.worst
    assert verdict.worst.sample == "s0"
    assert len(trials.log.made) == 1


# ------------------------------------------------------------ keys and the store


def key(trials: Trials, region: Region, repetition: int = 0) -> str:
    trials.model.values.need([*region.inputs, *region.shapes])
    return trials.processes.key(region, trials.model.values.records, repetition)


def outside(folder: Path, factor: float = 1.0) -> Graph:
    """A line whose two weights lie in files beside it: `w` before `c`, `v` before `d`."""
    folder.mkdir(exist_ok=True)
    text = (
        "g (float[2,64] x) => (float[2,64] y) { [a] p = Relu(x) [c] q = MatMul(p, w) [d] y ="
        " MatMul(q, v) }"
    )
    rng = np.random.default_rng(0)
    w, v = (rng.standard_normal((64, 64), np.float32) for _ in range(2))
    model = text_models.model(text, w=w, v=v * np.float32(factor))
    (folder / "weights").unlink(missing_ok=True)  # it would be added to
    onnx.save(
        model,
        folder / "model.onnx",
        save_as_external_data=True,
        location="weights",
        size_threshold=0,
    )
    return load(folder / "model.onnx")


def test_equal_trials_have_equal_keys(ask: Ask, tmp_path: Path) -> None:
    one, two = (ask(outside(tmp_path / name)) for name in ("here", "there"))
    for some in ("a", "c", "d", "ac", "acd"):
        assert key(one, region_of(one.model.graph, *some)) == key(
            two, region_of(two.model.graph, *some)
        )
    keys = {key(one, region_of(one.model.graph, *some)) for some in ("a", "c", "d", "ac", "acd")}
    assert len(keys) == 5
    region = region_of(one.model.graph, "c")
    renamed = replace(one.runtime.candidate, name="other", precision="fp16", origin="subcut.toml")
    assert key(one.with_candidate(renamed), region) == key(one, region)
    assert key(one.with_model(replace(one.model, scratch=tmp_path)), region) == key(one, region)


def test_weight_counts_where_it_is_read(ask: Ask, tmp_path: Path) -> None:
    one = ask(outside(tmp_path / "model"))
    before = {some: key(one, region_of(one.model.graph, *some)) for some in ("a", "c", "d")}
    other = ask(outside(tmp_path / "model", factor=2))
    assert {
        some for some in "acd" if key(other, region_of(other.model.graph, some)) != before[some]
    } == {"d"}


def test_whatever_changes_a_result_changes_the_key(ask: Ask, tmp_path: Path) -> None:
    base = ask(outside(tmp_path / "model"))
    region = region_of(base.model.graph, "c")
    np.save(tmp_path / "x.npy", np.ones((2, 64), np.float32))
    base_candidate = base.runtime.candidate
    others = [
        ask(outside(tmp_path / "model"), inputs=(str(tmp_path / "x.npy"),)),
        ask(outside(tmp_path / "model"), freeze=False),
        ask(outside(tmp_path / "model"), op="Neg"),
        *(
            base.with_candidate(replace(base_candidate, **c))
            for c in ({"timeout": 7.0}, {"memory": 1 << 33})
        ),
        base.with_candidate(candidate.parse("ort")),
    ]
    keys = [key(t, region) for t in (base, *others)] + [key(base, region, k) for k in (1, 2)]
    keys.append(key(base, base.model.whole(["q"])))
    keys.append(key(base, regions.build_region(base.model.graph, region.nodes, [("p",)])))
    assert len(set(keys[:-1])) == len(keys) - 1
    assert keys[-1] == keys[0]  # `p` is not made inside: nothing else leaves


def test_frozen_value_is_part_of_the_key(ask: Ask, tmp_path: Path) -> None:
    """Equal values enter, but the frozen shape differs."""
    text = (
        "g (float[1,4] x, float[N,M] like) => (float[2,2] y)"
        " { [s] s = Shape(like) [r] r = Reshape(x, s) [e] y = Neg(r) }"
    )
    keys = []
    np.save(tmp_path / "x.npy", np.ones((1, 4), np.float32))
    for shape in ((2, 2), (4, 1), (4, 1)):
        np.save(tmp_path / "like.npy", np.zeros(shape, np.float32))
        trials = ask(text, inputs=(f"x={tmp_path / 'x.npy'}", f"like={tmp_path / 'like.npy'}"))
        keys.append(key(trials, region_of(trials.model.graph, "r")))
    assert keys[0] != keys[1] == keys[2]


def test_stored_result_is_not_run_again(ask: Ask, tmp_path: Path) -> None:
    graph = line(tmp_path)
    log = tmp_path / "log"
    first = ask(graph, add="b:1", log=str(tmp_path))
    verdicts = [first.verdict(region_of(graph, *some)) for some in ("a", "b", "bc")]
    lines = log.read_text()
    assert lines.count("load") == lines.count("run") == 3
    again = [first.verdict(region_of(graph, *some)) for some in ("a", "b", "bc")]
    second = ask(graph, add="b:1", log=str(tmp_path), criterion="cosine>0.5")
    judged = [second.verdict(region_of(graph, *some)) for some in ("a", "b", "bc")]
    assert log.read_text() == lines
    assert [v.status for v in verdicts] == [v.status for v in again] == ["agree", "fail", "fail"]
    assert all(v.stored for v in (*again, *judged))
    assert not any(v.stored for v in verdicts)
    assert [(v.build, v.run) for v in again] == [(v.build, v.run) for v in verdicts]
    assert [[j.errors for j in v.outputs] for v in judged] == [
        [j.errors for j in v.outputs] for v in verdicts
    ]


def test_failures_are_stored_too(ask: Ask, tmp_path: Path) -> None:
    trials = ask(LINE, fault="nonsense", op="Neg")
    first, second = (trials.verdict(region_of(trials.model.graph, "b")) for _ in range(2))
    assert (first.status, first.signature) == (Status.UNRESOLVED, Signature.REFUSED)
    assert second == replace(first, stored=True)


# ------------------------------------------------------------ processes

SIDE_NODE = "float[2] x) => (float[2] x) { y = Relu(x) }"
MOODY = '''"""Right or wrong by process: each draws its number from a file when it starts."""
import os
from pathlib import Path
import onnxruntime

counter = Path(__file__).with_suffix(".count")
with counter.open("a") as file:
    file.write(".")
NUMBER = len(counter.read_text())
LOADS = []

def load(model, options):
    LOADS.append(1)
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    def run(feeds):
        found = dict(zip(names, session.run(names, dict(feeds))))
        wrong = NUMBER % 2 if options.get("by") == "process" else len(LOADS) > 1
        return {n: v + 1 for n, v in found.items()} if wrong else found
    return run
'''


@pytest.fixture
def moody(tmp_path: Path, reference: Reference) -> Iterator[Callable[[str], Trials]]:
    """Trials of a candidate that is wrong in every second process (`process`), or after the first
    load (`load`)."""
    (tmp_path / "moody.py").write_text(MOODY)
    with ExitStack() as stack:

        def opened(by: str) -> Trials:
            moody_candidate = candidate.parse(f"{tmp_path / 'moody.py'}:by={by}")
            workers = stack.enter_context(Workers(moody_candidate))
            setup = Setup(moody_candidate, Feeding(), tmp_path / "out", "numpy:rtol=1e-3")
            return stack.enter_context(open_trials(line(tmp_path), setup, reference, workers))

        yield opened


@pytest.mark.slow
def test_only_fresh_processes_show_what_differs_by_process(moody: Callable[[str], Trials]) -> None:
    trials = moody("process")
    region = region_of(trials.model.graph, "b")
    warm = [trials.verdict(region, repetition=k).status for k in range(3)]
    assert len(set(warm)) == 1
    fresh = [trials.verdict(region, repetition=k, fresh=True).status for k in range(3, 7)]
    assert set(fresh) == {Status.AGREE, Status.FAIL}
    assert fresh[0] == fresh[2] != fresh[1] == fresh[3]
    assert len(trials.log.made) == 7
    assert [trials.verdict(region, repetition=k, fresh=True).status for k in range(3, 7)] == fresh
    assert len(trials.log.made) == 7  # each repetition is stored


@pytest.mark.slow
def test_fresh_process_has_run_nothing(moody: Callable[[str], Trials]) -> None:
    """A worker that goes wrong after a while: a fresh one gives another verdict."""
    trials = moody("load")
    graph = trials.model.graph
    assert [trials.verdict(region_of(graph, n)).status for n in "abc"] == [
        Status.AGREE,
        Status.FAIL,
        Status.FAIL,
    ]
    assert [
        trials.verdict(region_of(graph, n), repetition=1, fresh=True).status for n in "abc"
    ] == [Status.AGREE] * 3


def test_the_result_of_a_used_process_never_serves_for_a_fresh_one(
    moody: Callable[[str], Trials],
) -> None:
    """Not even from the store; the result of a fresh process serves all."""
    trials = moody("load")
    region = region_of(trials.model.graph, "b")
    trials.verdict(region_of(trials.model.graph, "a"))
    assert trials.verdict(region).status is Status.FAIL
    assert trials.verdict(region, fresh=True).status is Status.AGREE
    assert (
        trials.verdict(region).status is Status.FAIL and trials.verdict(region, fresh=True).stored
    )
    assert len(trials.log.made) == 3
    other = region_of(trials.model.graph, "c")
    assert trials.verdict(other, fresh=True).status is Status.AGREE
    assert trials.verdict(other).stored and len(trials.log.made) == 4


# ------------------------------------------------------------ values


def test_the_tensors_of_a_model(ask: Ask) -> None:
    trials = ask(
        CHAIN.replace("=> (float[N,2,2] y)", "=> (float[N,2,2] y, float[N,4] x)"),
        inputs=(),
        freeze=True,
    )
    assert trials.model.tensors() == ["r", "y"]
    assert [trials.model.graph.label(i) for i in trials.model.whole().nodes] == list("sznture")
    text = (
        "g (float[2] x) => (float[2] y, float[2] k) { [d] d = Exp(x) [dd] dead = Log(d) [a] p ="
        " Neg(x) [k] k = Constant<value=float[2] {1.0, 2.0}>() [b] y = Abs(p) }"
    )
    trials = ask(text)
    assert trials.model.tensors() == ["p", "y"]
    verdict = trials.verdict(trials.model.whole(["p"]))
    # a constant says nothing of the candidate
    assert [j.name for j in verdict.outputs] == ["p", "y"]


def test_nothing_but_constants_is_unresolved(ask: Ask) -> None:
    text = (
        "g (float[2] x) => (float[2] y) { [k] k = Constant<value=float[2] {1.0, 2.0}>() [b] y ="
        " Abs(k) }"
    )
    trials = ask(text)
    verdict = trials.verdict(trials.model.whole())
    assert (verdict.status, verdict.outputs) == (Status.UNRESOLVED, ())
    assert has_line(verdict.why, "nothing")


def test_random_numbers_are_the_references(ask: Ask) -> None:
    """However often the reference runs, the candidate is fed the random numbers of the captured
    values."""
    text = (
        "g (float[64] x) => (float[64] y) { [a] a = Relu(x) [r] r = RandomNormalLike(x) [b] b ="
        " Add(a, r) [q] q = RandomNormalLike(x) [c] y = Add(b, q) }"
    )
    trials = ask(text)
    trials.model.values.need(["y"])
    for some in ("c", "b", "a", "bc", "abc"):
        assert trials.verdict(region_of(trials.model.graph, *some)).status is Status.AGREE, some
    assert trials.verdict(trials.model.whole()).status is Status.AGREE


def test_values_may_be_fed_in_place_of_the_references(ask: Ask) -> None:
    trials = ask(LINE, add="a:1")
    wrong = trials.run(region_of(trials.model.graph, "a"))
    rest = region_of(trials.model.graph, "b", "c", "d")
    assert trials.verdict(rest).status is Status.AGREE
    fed = trials.judge.verdict(rest, trials.run(rest, wrong.tensors))
    assert fed.status is Status.FAIL
    whole = trials.run(trials.model.whole())
    given = trials.model.run_on_reference(rest, wrong.tensors)[0]["y"]
    found = trials.model.values.digest([given])
    assert found[0] == trials.model.values.digest([whole.tensors[0]["y"]])[0]
    found = trials.model.values.digest([trials.model.run_on_reference(rest)[0]["y"]])
    assert found == trials.model.values.digest([trials.model.values.records[0]["y"]])


def test_unknown_criterion_is_refused_before_anything_runs(
    reference: Reference, tmp_path: Path
) -> None:
    with (
        raises(UsageError, "plugin.unknown", "noize"),
        Workers(faulty_candidate()) as own,
        faulty_trials(line(tmp_path), reference, own, criterion="noize"),
    ):
        raise AssertionError
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx"]


@pytest.mark.parametrize(
    ("nodes", "code", "about"),
    [
        ("float[2] x) => (float[2] x) { }", "model.no-outputs", "no nodes"),
        (SIDE_NODE, "model.no-outputs", "computes an output"),
    ],
)
def test_model_of_which_no_node_computes_an_output_is_refused(
    nodes: str, code: str, about: str, tmp_path: Path, reference: Reference
) -> None:
    graph = text_models.load(tmp_path, f"g ({nodes}")
    setup = Setup(candidate.parse("ort"), Feeding(), tmp_path / "out", "numpy:rtol=1e-3")
    with raises(ModelError, code, about), open_trials(graph, setup, reference):
        pass
