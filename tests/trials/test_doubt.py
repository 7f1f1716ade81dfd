"""The policy for verdicts that the full model does not decide. It is pure: no model, no
candidate."""

from __future__ import annotations

import itertools

import pytest

from subgraph.trials.doubt import UNDOUBTED, Decision, Deviation, NodeEvidence, settle_rounding

CONV = Deviation.of(["Conv", "Relu"], 8e-4, agrees_usually=True)
EXP = Deviation.of(["Exp"], 1e-3, agrees_usually=True)
ADD = Deviation.of(["Add"], 1e-4, agrees_usually=True)
WRONG_CONV = Deviation.of(["Conv"], 0.5, agrees_usually=False)


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
    assert settled.decision is Decision.ROUNDING_ALONE, (
        "what is seen is enough to know that it is no approximate kernel"
    )


def test_a_wrong_tensor_elsewhere_is_never_excused() -> None:
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
