"""A culprit with a body: the search goes on inside."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, strategies as st

from benchmarks import bodies as benchmark
from fixtures import bodies, bodies_wrong
from subgraph.questions.bisection.body_search import count_most_halvings, find_first_wrong
from subgraph.results.bisect import InnerFinding, InsideDocument
from subgraph.verdict import Signature, Status, Verdict
from tests.helpers.facts import has_line
from tests.helpers.planted_candidates import planted
from tests.helpers.run_command import subcut


@given(st.integers(1, 2000), st.data())
def test_the_first_wrong_iteration_is_found_by_halving(total: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, total - 1))
    asked: list[int] = []

    def fails(trips: int) -> bool:
        asked.append(trips)
        return trips > first

    assert find_first_wrong(total, fails) == first
    assert len(asked) <= count_most_halvings(total)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [k if k % 2 else pytest.param(k, marks=pytest.mark.rare) for k in range(len(bodies.KINDS))],
)
def test_the_node_the_body_and_the_iteration_are_named(seed: int) -> None:
    seeds = iter(range(seed, 1000, len(bodies.KINDS)))  # of one kind
    planted, first, outcome, _ = next(found for s in seeds if (found := benchmark.run(s)))
    assert outcome.is_right(planted, first), outcome


@pytest.mark.slow
def test_from_the_command_line(tmp_path: Path) -> None:
    """The text names the node inside and its case; the document follows its schema, which `subcut`
    checks."""
    planted = bodies.planted(1, ["Loop"])
    onnx.save(planted.model, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", bodies.values(1))
    spec = f"{bodies_wrong.__file__}:node={planted.node}"
    done = subcut("bisect", tmp_path / "m.onnx", "-c", spec, "-i", tmp_path / "x.npy", cwd=tmp_path)
    assert done.code == 1
    body = f"{planted.path[0]}@0"
    assert has_line(done.out, f"{body}, wrong", "0")
    assert has_line(done.out, f"on: {body}/{planted.node} (")
    (case,) = re.findall(r"case\s+(\S*-inside-\S*)", done.out)
    assert (tmp_path / case / "model.onnx").is_file()
    again = subcut("replay", case, "-c", spec, cwd=tmp_path)
    assert again.code == 1
    assert has_line(done.out, "wrong", f", in it {body}/{planted.node} ("), "the innermost one"
    inner = next(tmp_path.glob("subcut_out/*-inside-*"))
    refused = subcut("view", inner, "--no-browser", cwd=tmp_path)
    assert (refused.code, has_line(refused.err, "search", f"{body}")) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "told"),
    [pytest.param(6, ("--max-trials",), marks=pytest.mark.rare), (12, ("ended early: ",))],
)
def test_max_trials_is_for_what_is_inside_as_well(
    limit: int, told: tuple[str, ...], tmp_path: Path
) -> None:
    """Without a limit the search makes 14 runs, 7 of them inside; the document counts them all, and
    its seconds."""
    planted = bodies.planted(1, ["Loop"])
    onnx.save(planted.model, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", bodies.values(1))
    words = (
        "bisect",
        "m.onnx",
        "-c",
        f"{bodies_wrong.__file__}:node={planted.node}",
        "-i",
        "x.npy",
    )
    done = subcut(*words, "--max-trials", str(limit), cwd=tmp_path)
    assert has_line(done.out, "inside", "loop4")
    assert has_line(done.out, *told)
    outer = [
        p for p in tmp_path.glob("subcut_out/bisect-*/run.json") if "-inside-" not in p.parent.name
    ]
    document = json.loads(outer[0].read_text())
    inner = document["runs"].get("inside", 0)
    # what a share costs is never refused
    assert (document["trials"], bool(inner)) == (max(limit, 7), limit > 7)
    whole = subcut(*words, "--json", cwd=tmp_path).document
    assert (whole["trials"], whole["runs"]["inside"]) == (14, 7)
    (inside,) = (json.loads(p.read_text()) for p in tmp_path.glob("subcut_out/*-inside-*/run.json"))
    assert whole["seconds"] > inside["seconds"]


IN_LOOPS_ONLY = planted("""
from fixtures import bodies_wrong
for node in nodes:
    for attribute in node.attribute:
        if attribute.HasField("g") and node.op_type == "Loop":
            bodies_wrong.plant(attribute.g.node, options["node"], None, None)
""")


@pytest.mark.slow
def test_candidate_that_refuses_bodies_alone(tmp_path: Path) -> None:
    """As some do a whole number or a truth value as input. Its refusal is not taken for the
    fault."""
    planted = bodies.planted(1, ["Loop"])
    onnx.save(planted.model, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", bodies.values(1))
    refused = "'Loop' not in ops and any('/' in n.name for n in nodes)"
    refusal = f"""
    ops = [n.op_type for n in nodes]
    if {refused}:
        raise ValueError('no such input')
    for node"""
    (tmp_path / "loops.py").write_text(IN_LOOPS_ONLY.replace("\n    for node", refusal, 1))
    spec = f"{tmp_path / 'loops.py'}:node={planted.node}"
    done = subcut(
        "bisect", tmp_path / "m.onnx", "-c", spec, "-i", tmp_path / "x.npy", "--json", cwd=tmp_path
    )
    (finding,) = done.document["findings"]
    assert finding["ops"] == ["Loop"]
    inside = finding["inside"]
    assert (inside["findings"], "refuses" in inside["why"]) == ([], True)


@pytest.mark.slow
def test_fault_that_only_bodies_show_is_that_of_the_node(tmp_path: Path) -> None:
    planted = bodies.planted(1, ["Loop"])
    onnx.save(planted.model, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", bodies.values(1))
    (tmp_path / "loops.py").write_text(IN_LOOPS_ONLY)
    spec = f"{tmp_path / 'loops.py'}:node={planted.node}"
    done = subcut(
        "bisect", tmp_path / "m.onnx", "-c", spec, "-i", tmp_path / "x.npy", "--json", cwd=tmp_path
    )
    (finding,) = done.document["findings"]
    assert (done.code, finding["ops"], finding["inside"]["outcome"]) == (1, ["Loop"], "agree")


LOOPS_WRONG = """
import onnx, onnxruntime
from onnx import helper

def load(model, options):
    network = onnx.load(model)
    nodes = network.graph.node
    for k, node in reversed(list(enumerate(nodes))):
        if node.op_type == options["op"]:
            globals()[options["kind"]](nodes, k, node)
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(network.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, feeds), strict=True))

def fewer(nodes, k, node):
    trips, one = f"{node.input[0]}:fewer", f"{node.input[0]}:one"
    made = helper.make_node("Constant", [], [one], value_int=1), helper.make_node("Sub", [node.input[0], one], [trips])
    node.input[0] = trips
    for new in reversed(made):
        nodes.insert(k, new)

def whole_only(nodes, k, node):
    if node.input[0] == "subcut:trips":
        raise ValueError("Loop of another length")
    twice(nodes, k, node)

def twice(nodes, k, node):
    right = f"{node.output[0]}:right"
    nodes.insert(k + 1, helper.make_node("Add", [right, right], [node.output[0]]))
    node.output[0] = right

"""  # noqa: E501


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "op", "says"),
    [
        ("fewer", "Loop", ("/body", "too early", "4", "5")),
        ("whole_only", "Loop", ("iteration", "not known", "1")),
        ("twice", "Loop", ("agrees", "node itself")),
        pytest.param("twice", "Scan", ("agrees", "node itself"), marks=pytest.mark.rare),
    ],
)
def test_node_that_is_wrong_itself(
    kind: str, op: str, says: tuple[str, ...], tmp_path: Path
) -> None:
    onnx.save(bodies.planted(1, [op]).model, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", bodies.values(1))
    (tmp_path / "loops.py").write_text(LOOPS_WRONG)
    done = subcut(
        "bisect", "m.onnx", "-c", f"loops.py:kind={kind},op={op}", "-i", "x.npy", cwd=tmp_path
    )
    assert has_line(done.out, *says), done.out


def test_finding_inside_is_the_same_fault_only_where_both_are_refused_or_neither() -> None:
    found = InsideDocument(
        "a", None, None, findings=[InnerFinding("culprit", None, ["n"], ["Neg"], True, None)]
    )
    assert found.is_same_fault(Verdict(Status.FAIL, Signature.MISMATCH))
    assert not found.is_same_fault(Verdict(Status.FAIL, Signature.REFUSED))
    assert not replace(found, findings=()).is_same_fault(Verdict(Status.FAIL, Signature.MISMATCH))
