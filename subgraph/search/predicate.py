"""An answer about a region -> its outcome for this search.

A region fails (FAIL) if it fails as the target does and explains the target's error. One that fails
and explains little (MINOR) steers the search past it, but it never counts as agreeing. Anything
else is unresolved, and never a pass.
"""

from __future__ import annotations

from enum import StrEnum

from subgraph.search.oracle import Answer
from subgraph.verdict import NO_OUTPUT, Signature, Status

# It gives outputs that have no difference to the reference's: there is no error to explain.
NO_ERROR = frozenset({Signature.SHAPE, Signature.MISSING})


class RegionOutcome(StrEnum):
    """What an answer about a region means for a search."""

    FAIL = "fail"  # it fails, and explains what is looked for
    MINOR = "minor"  # it fails, and explains little
    AGREE = "agree"
    UNRESOLVED = "unresolved"


NOT_HERE = (RegionOutcome.AGREE, RegionOutcome.MINOR)  # what is looked for lies elsewhere


def outcome_of(answer: Answer, signature: Signature | None) -> RegionOutcome:
    """The outcome of an answer about a region, when the target fails with `signature`.

    None: the whole does not fail. Then a region that fails has nothing to explain; one that is
    refused alone does run in the whole, and nothing is known about it.
    """
    if answer.status is Status.AGREE:
        return RegionOutcome.AGREE
    if signature is None:
        return (
            RegionOutcome.UNRESOLVED
            if answer.signature is Signature.REFUSED
            else RegionOutcome(answer.status)
        )
    if answer.signature in NO_OUTPUT:
        explains = answer.signature is signature or answer.share.is_culprit is True
        return RegionOutcome.FAIL if explains else RegionOutcome.UNRESOLVED
    if answer.signature is None or answer.status is Status.UNRESOLVED:
        return RegionOutcome.UNRESOLVED
    if answer.signature is Signature.PRECISION is signature:
        return RegionOutcome.MINOR  # rounding everywhere: no piece is to blame
    explains = answer.share.is_culprit is True or (
        answer.signature is signature and signature in NO_ERROR
    )
    return RegionOutcome.FAIL if explains else RegionOutcome.MINOR
