"""A fault that no cut shows is found by rewriting the full model.

It covers `questions.bisection.rewriting` and `graph.rewrites._full_model`.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import subgraph
from subgraph.graph.graph import load
from subgraph.graph.rewrites import STRONGEST, NodeChange, open_full_model
from subgraph.results.bisect import BisectDocument
from subgraph.search import Settings
from subgraph.types import JsonObject
from tests.helpers import text_models
from tests.helpers.planted_candidates import planted
from tests.helpers.run_command import run_program, subcut

NET = """g (float[2,3] x) => (float[2,3] y) {
    [a] a = Tanh(x) [b] b = Sin(a) [c] c = Relu(b) [d] d = Cos(c) [e] e = Add(d, a)
    [f] y = Sigmoid(e)
}"""
# The Relu that reads the Sin is lost, in graphs of six nodes or more with one output.
MERGES = """
maker = {name: node for node in nodes for name in node.output}
if len(nodes) >= 6 and len(model.graph.output) == 1:
    for node in nodes:
        before = maker.get(node.input[0])
        if node.op_type == "Relu" and before is not None and before.op_type == "Sin":
            node.op_type = "Identity"
"""
WHOLE_ONLY = """
if [v.name for v in model.graph.input] != ["x"] or [v.name for v in model.graph.output] != ["y"]:
    raise ValueError("only the full model can be built")
"""
LOSES_RELU = (
    WHOLE_ONLY
    + """
for node in nodes:
    if node.op_type == "Relu":
        node.op_type = "Identity"
"""
)
ALWAYS_WRONG = "found = {name: value + 1 for name, value in found.items()}"
NO_IF = """
if any(node.op_type == "If" for node in nodes):
    raise ValueError("not supported")
"""
NO_WHERE = """
if any(node.op_type in ("Where", "Less", "If") for node in nodes):
    raise ValueError("not supported")
"""
X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


# As MERGES, by less than the error of approximate kernels.
LEAKS = MERGES.replace(
    'node.op_type = "Identity"',
    'node.op_type = "LeakyRelu"; node.attribute.add(name="alpha", f=1e-3, type=1)',
)


def search(
    folder: Path,
    change: str = "",
    answer: str = "",
    by_rewriting: bool = False,
    text: str = NET,
    criterion: str = "numpy:rtol=1e-3,atol=1e-5",
) -> BisectDocument:
    graph = text_models.load(folder, text)
    (folder / "candidate.py").write_text(planted(change, answer))
    return subgraph.bisect(
        graph,
        str(folder / "candidate.py"),
        {next(iter(graph.inputs)): X},
        by_rewriting=by_rewriting,
        criterion=criterion,
        limits=Settings(steady=True),
        output=folder / "out",
    ).result


@pytest.mark.slow
def test_pass_that_runs_on_large_graphs_only_is_found_without_an_option(tmp_path: Path) -> None:
    found = search(tmp_path, MERGES)
    (finding,) = found.findings
    assert (finding.nodes, finding.kind, finding.certified) == (["b", "c"], "culprit", True)
    assert found.search.complete and found.search.healing
    assert found.search.healing.changes == ["a barrier on b before c"]
    session = onnxruntime.InferenceSession(found.search.healing.model)
    assert {node.op_type for node in load(found.search.healing.model).nodes} >= {"Where", "Relu"}
    original = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    assert np.array_equal(session.run(None, {"x": X})[0], original.run(None, {"x": X})[0])


def run(folder: Path, change: str, command: str) -> JsonObject:
    """The document of a command on the model, with a candidate of this fault."""
    text_models.load(folder, NET)
    np.save(folder / "x.npy", X)
    (folder / "fault.py").write_text(planted(change))
    words = [*command.split(), *"model.onnx -i x.npy -c fault.py --json".split()]
    return subcut(*words, cwd=folder).document


@pytest.mark.slow
@pytest.mark.small_inputs
def test_commands_that_follow_a_cure_do_as_they_say(tmp_path: Path) -> None:
    found = run(tmp_path, WHOLE_ONLY + MERGES, "bisect --by rewriting")
    following = {one["why"]: one["argv"][1:] for one in found["next"]}
    codes = {why: subcut(*words, cwd=tmp_path).code for why, words in following.items()}
    assert codes == {"run it again": 1, "try the cure": 0, "for a bug report": 0}
    with zipfile.ZipFile(tmp_path / "bisect-fault.py.zip") as packed:
        names = {name.partition("/")[2] for name in packed.namelist()}
        readme, report = (
            packed.read(f"bisect-fault.py/{name}").decode() for name in ("README.txt", "report.md")
        )
    assert names >= {"cure.onnx", "culprit/model.onnx", "culprit/inputs/x.npy"}
    assert "full model: b, c (Sin, Relu); right with a barrier on b before c\n" in readme
    assert "a barrier on b before c" in report
    ran = run_program([sys.executable, tmp_path / found["findings"][0]["case"] / "repro.py"])
    given, small = [line for line in ran.stdout.splitlines() if line.endswith(" got")]
    assert given.startswith("x = [-2, -1.2, -0.4, 0.4, 1.2, 2] (2×3) in, [0.508992, ")
    assert small == found["findings"][0]["small"]["numbers"]


@pytest.mark.slow
def test_node_whose_constant_is_folded_wrong_is_named(tmp_path: Path) -> None:
    text = NET.replace(
        "[a] a = Tanh(x)",
        """two = Constant<value = float {2.0}>()
        [square] four = Mul(two, two) [half] half = Sqrt(four) [a] a = Mul(x, half)""",
    )
    folds = """
constants = {name for node in nodes if node.op_type == "Constant" for name in node.output}
for node in nodes if len(nodes) >= 9 else ():
    if node.op_type == "Mul" and set(node.input) <= constants:
        node.op_type = "Sub"
"""
    (finding,) = search(tmp_path, folds, text=text).findings
    assert (finding.nodes, finding.certified) == (["square"], True)


@pytest.mark.slow
def test_case_that_does_not_fail_is_not_written(tmp_path: Path) -> None:
    hides = 'if any(p.key.startswith("subcut.") for p in model.metadata_props):\n    nodes = []\n'
    found = search(tmp_path, hides + MERGES, by_rewriting=True)
    assert [finding.case for finding in found.findings] == [None] and not found.next
    assert found.report
    assert subcut("bundle", Path(found.report).parent, cwd=tmp_path).problem == "case.none-found"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "region", "cure", "is_proven"),
    [
        (WHOLE_ONLY + MERGES, ["b", "c"], "a barrier on b before c", True),
        pytest.param(
            LOSES_RELU + NO_IF,
            ["c"],
            "c as the reference computes it for these inputs",
            False,
            marks=pytest.mark.rare,  # 20 s
        ),
    ],
)
def test_blame_proves_the_cure_of_the_search(
    tmp_path: Path, change: str, region: list[str], cure: str, *, is_proven: bool
) -> None:
    found = run(tmp_path, change, "blame")
    assert (found["region"], found["signature"]) == (region, "mismatch")
    proofs = {one["what"]: one["proven"] for one in found["cures"]}
    assert proofs[cure] is is_proven and any(proofs.values())


@pytest.mark.slow
def test_large_region_that_needs_all_its_nodes_is_not_searched_again(tmp_path: Path) -> None:
    """The fault needs ten nodes in one graph, of which an If around each one heals it."""
    chain = "".join(f"[n{k}] t{k + 1} = Sin(t{k}) " for k in range(12))
    text = f"g (float[2,3] t0) => (float[2,3] t12) {{ {chain} }}"
    together = "wrong = {f'n{k}' for k in range(1, 11)} <= {node.name for node in nodes}"
    found = search(
        tmp_path, together, "found = {n: v + wrong for n, v in found.items()}", text=text
    )
    (finding,) = found.findings
    assert finding.nodes == [f"n{k}" for k in range(1, 11)] and finding.certified
    purposes = [step.asked.purpose for step in found.search.steps]
    assert purposes.count("baseline") == 1 and not found.search.healing


@pytest.mark.slow
def test_search_by_rewriting_runs_no_cut(tmp_path: Path) -> None:
    found = search(tmp_path, WHOLE_ONLY + MERGES, by_rewriting=True)
    assert [finding.nodes for finding in found.findings] == [["b", "c"]]
    assert {step.asked.query for step in found.search.steps if step.region.indices} <= {
        "rewritten",
        "profile",
    }


@pytest.mark.slow
def test_error_below_that_of_kernels_is_found_by_rewriting(tmp_path: Path) -> None:
    text = NET.replace("Cos", "Exp")
    found = search(tmp_path, WHOLE_ONLY + LEAKS, "", True, text, "noise")
    assert [finding.nodes for finding in found.findings] == [["b", "c"]]


@pytest.mark.slow
def test_node_that_is_wrong_in_the_full_model_is_put_into_an_if(tmp_path: Path) -> None:
    found = search(tmp_path, LOSES_RELU)
    assert [finding.nodes for finding in found.findings] == [["c"]]
    assert found.search.healing and found.search.healing.means == "an If around each node"
    assert "Relu" not in {node.op_type for node in load(found.search.healing.model).nodes}


@pytest.mark.slow
def test_candidate_without_where_has_another_barrier(tmp_path: Path) -> None:
    found = search(tmp_path, NO_WHERE + MERGES, by_rewriting=True)
    assert [finding.nodes for finding in found.findings] == [["b", "c"]]


@pytest.mark.slow
def test_fault_that_no_rewriting_heals_stays_unresolved(tmp_path: Path) -> None:
    found = search(tmp_path, WHOLE_ONLY, ALWAYS_WRONG, by_rewriting=True)
    assert [finding.kind for finding in found.findings] == ["unresolved"]
    assert not found.search.healing and any("no rewriting" in note for note in found.notes)


@pytest.mark.slow
def test_model_that_is_right_is_right_by_rewriting(tmp_path: Path) -> None:
    assert search(tmp_path, by_rewriting=True).agree


@pytest.mark.parametrize("barrier", range(len(STRONGEST)))
def test_each_change_alone_and_all_together_keep_the_values(tmp_path: Path, barrier: int) -> None:
    graph = text_models.load(tmp_path, NET)
    expected = onnxruntime.InferenceSession(str(graph.path)).run(None, {"x": X})[0]
    edges = [NodeChange(name, i) for i in range(6) for name in graph.reads[i]]
    everything = [*edges, *(NodeChange("", i) for i in range(6))]
    with open_full_model(graph, lambda name: X) as model:
        model.barrier = barrier
        assert all(map(model.can_hide, range(6)))
        for changes in (everything, *([one] for one in everything)):
            made = onnxruntime.InferenceSession(model.make(changes).SerializeToString())
            assert np.allclose(made.run(None, {"x": X})[0], expected, atol=1e-6), changes


TWO_MERGES = MERGES + MERGES.replace('"Relu"', '"Sigmoid"').replace('"Sin"', '"Add"')
SKIPS = """g (float[2,3] x) => (float[2,3] y) {
    [a] a = Tanh(x) [b] b = Relu(a) [c] c = Neg(b) [d] d = Elu(c) [e] e = Cos(d)
    [f] y = Add(e, b)
}"""
LOSES_TWO = WHOLE_ONLY + NO_IF + """
for node in nodes:
    if node.op_type in ("Relu", "Elu"):
        node.op_type = "Identity"
"""  # fmt: skip


@pytest.mark.slow
def test_two_faults_are_both_named(tmp_path: Path) -> None:
    found = search(tmp_path, TWO_MERGES, by_rewriting=True)
    assert sorted([*finding.nodes] for finding in found.findings) == [["b", "c"], ["e", "f"]]
    assert found.search.complete


@pytest.mark.slow
def test_fault_that_values_hide_is_searched_for(tmp_path: Path) -> None:
    """No barrier heals them, and the candidate refuses an If."""
    found = search(tmp_path, LOSES_TWO, by_rewriting=True, text=SKIPS)
    assert sorted([*finding.nodes] for finding in found.findings) == [["b"], ["d"]]


@pytest.mark.slow
def test_note_says_that_values_hide_errors(tmp_path: Path) -> None:
    found = search(tmp_path, LOSES_RELU + NO_IF, by_rewriting=True)
    assert [finding.nodes for finding in found.findings] == [["c"]]
    assert not found.search.complete
    assert any("hide errors upstream" in note for note in found.notes)
