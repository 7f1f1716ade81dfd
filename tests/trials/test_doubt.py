"""The policy for verdicts that the full model does not decide, and those who follow it: pytest and
sweeps. Bisections, comparisons and loops have tests of their own."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from subgraph.agreement import Search, find_disagreement
from subgraph.precision import Precision
from subgraph.project import Project
from subgraph.questions.sweep.expected import ExpectedOutputs, open_runtime
from subgraph.questions.sweep.operator_tests import Example
from subgraph.runtime.candidate import Candidate, parse
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.run_result import RunResult
from subgraph.runtime.worker_pool import Workers
from subgraph.storage import tensors
from subgraph.storage.store import Store
from subgraph.trials.doubt import (
    DOUBTS,
    ROUNDING_DOUBTS,
    UNDOUBTED,
    Decision,
    Deviation,
    Doubt,
    NodeEvidence,
    find_doubt,
    settle_rounding,
)
from subgraph.trials.open_trials import Setup, open_with_processes
from subgraph.verdict import Status
from tests.helpers import text_models
from tests.helpers.planted_candidates import planted

CONV = Deviation.make(["Conv", "Relu"], 8e-4, agrees_usually=True)
EXP = Deviation.make(["Exp"], 1e-3, agrees_usually=True)
ADD = Deviation.make(["Add"], 1e-4, agrees_usually=True)
WRONG_CONV = Deviation.make(["Conv"], 0.5, agrees_usually=False)


@pytest.mark.parametrize(
    ("deviations", "is_beyond_rounding", "decision"),
    [
        ((), False, Decision.FULL_MODEL),
        ((), True, Decision.ROUNDING_ALONE),
        ((CONV,), False, Decision.APPROXIMATE_KERNELS),
        ((CONV, EXP), True, Decision.APPROXIMATE_KERNELS),
        ((CONV, ADD), True, Decision.ROUNDING_ALONE),
        ((ADD,), False, Decision.ROUNDING_ALONE),
        ((WRONG_CONV,), True, Decision.ROUNDING_ALONE),
    ],
)
def test_the_nodes_decide(
    deviations: tuple[Deviation, ...], is_beyond_rounding: bool, decision: Decision
) -> None:
    settled = settle_rounding(NodeEvidence(deviations), is_beyond_rounding=is_beyond_rounding)
    assert settled.decision is decision
    assert bool(settled.explanation) is (decision is Decision.APPROXIMATE_KERNELS)


def test_nodes_that_were_not_run_cannot_decide() -> None:
    for deviations in ((), (CONV,)):
        evidence = NodeEvidence(deviations)
        settled = settle_rounding(evidence, is_beyond_rounding=True, is_partial=True)
        assert settled.decision is Decision.NODES_NEEDED
    settled = settle_rounding(NodeEvidence([ADD]), is_beyond_rounding=True, is_partial=True)
    # what is seen is enough to know that it is no approximate kernel
    assert settled.decision is Decision.ROUNDING_ALONE


def test_wrong_tensor_elsewhere_is_never_excused() -> None:
    for deviations, is_beyond, is_partial in itertools.product(
        ((), (CONV,), (ADD,)), (False, True), (False, True)
    ):
        settled = settle_rounding(
            NodeEvidence(deviations),
            is_beyond_rounding=is_beyond,
            is_another_tensor_wrong=True,
            is_partial=is_partial,
        )
        expected = Decision.ROUNDING_ALONE if is_beyond or deviations else Decision.FULL_MODEL
        assert settled.decision is expected and not settled.explanation


def test_the_explanation_names_operators_and_the_largest_error() -> None:
    evidence = NodeEvidence([CONV, CONV, EXP], unseen=2)
    says = (
        "within approximate kernels (2 Conv, 1 Exp, up to 1.0e-03 of the scale; 2 nodes were not"
        " looked at)"
    )
    assert evidence.explanation == says
    assert (
        NodeEvidence([CONV, ADD]).explanation
        == NodeEvidence().explanation
        == UNDOUBTED.explanation
        == ""
    )


# ------------------------------------------------------------ reasons

LINE = "g (float[4, 16] x) => (float[4, 16] y) { [a] p = Abs (x) [b] y = Exp (p) }"
# An output of each node of a kind, times 1.001: the other nodes are right.
BEYOND_ROUNDING = planted("""
for node in nodes:
    if node.op_type == options["op"]:
        right, node.output[0] = node.output[0], node.output[0] + "/exact"
        factor = numpy_helper.from_array(np.float32(1.001), right + "/factor")
        model.graph.initializer.append(factor)
        mul = helper.make_node("Mul", [right + "/exact", factor.name], [right])
        model.graph.node.insert(list(model.graph.node).index(node) + 1, mul)
""")


def spec_of(folder: Path, op: str) -> str:
    """A candidate whose nodes of a kind deviate by more than rounding."""
    text_models.save(folder / "m.onnx", LINE)
    values = np.random.default_rng(0).uniform(-0.1, 0.1, (4, 16))
    np.save(folder / "x.npy", values.astype(np.float32))
    (folder / "off.py").write_text(BEYOND_ROUNDING)
    return f"{folder / 'off.py'}:op={op}"


@pytest.mark.parametrize(
    ("op", "criterion", "reason"),
    [("Exp", "noise", Doubt.KERNELS), ("none", "noise", None), ("Exp", "noise:floor=1e-2", None)],
)
def test_reason_to_doubt_an_agreement(
    op: str, criterion: str, reason: Doubt | None, tmp_path: Path
) -> None:
    candidate = parse(spec_of(tmp_path, op))
    graph = text_models.load(tmp_path, LINE)
    setup = Setup(candidate, Feeding((str(tmp_path / "x.npy"),)), tmp_path / "out", criterion)
    with open_with_processes(graph, setup, Candidate("ort", "ort")) as trials:
        assert find_doubt(trials, ROUNDING_DOUBTS) is reason
        by_hand = trials.with_runtime(replace(trials.runtime, is_manual=True))
        assert find_doubt(by_hand, list(DOUBTS)) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "is_right"), [("Exp", True), pytest.param("Abs", False, marks=pytest.mark.slow)]
)
def test_pytest_follows_the_policy(op: str, is_right: bool, tmp_path: Path) -> None:
    search = Search(tmp_path / "out", "10m", "")
    spec = spec_of(tmp_path, op)
    inputs = tmp_path / "x.npy"
    found = find_disagreement(Project(), str(tmp_path / "m.onnx"), spec, inputs, search, trust=True)
    assert (found is None) is is_right


@pytest.mark.parametrize(("op", "status"), [("Exp", Status.AGREE), ("Abs", Status.FAIL)])
def test_sweep_follows_the_policy(op: str, status: Status, tmp_path: Path) -> None:
    model = text_models.save(
        tmp_path / "m.onnx", f"g (float[8] x) => (float[8] y) {{ y = {op}(x) }}"
    )
    x = np.linspace(0.1, 1, 8, dtype=np.float32)
    y = np.exp(x) if op == "Exp" else np.abs(x)

    def record(name: str, value: np.ndarray, stem: str) -> tensors.Record:
        return tensors.write_value(name, value, tmp_path, stem)

    example = Example(op, model, (record("x", x, "x"),), (record("y", y, "y"),), 0.0, 0.0, "0" * 64)
    run = RunResult(({"y": record("y", y * np.float32(1.001), "y1")},), ((),))
    candidate = Candidate("ort", "ort")
    with (
        Store(tmp_path / "store") as store,
        Workers(candidate) as workers,
        ExpectedOutputs("noise", open_runtime(workers, store), tmp_path) as expected,
    ):
        verdict, _ = expected.verdict(example, run, Precision.FP32)
    assert verdict.status is status
