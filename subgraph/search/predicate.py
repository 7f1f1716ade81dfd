"""FAIL(R): an answer about a region -> what it means for this search.

A region fails only as the whole does (its signature), and only if it explains the whole; one that fails and explains
nothing is beside the point, as one that agrees. All else is unresolved, and never counted as a pass.
"""

from __future__ import annotations

from subgraph.search.oracle import Answer
from subgraph.verdict import Signature, Status

# The candidate gives nothing that could explain the whole, or be read inside.
SILENT = frozenset({Signature.CRASH, Signature.REFUSED, Signature.TIMEOUT})


def outcome(answer: Answer, signature: Signature | None) -> Status:
    """What an answer about a region says, when the whole fails with `signature`."""
    if answer.status is Status.AGREE:
        return Status.AGREE
    if signature in SILENT and answer.signature not in (None, signature) and answer.culprit is not None:
        return Status.FAIL if answer.culprit else Status.UNRESOLVED
    if answer.signature is None or not _same(answer, signature):
        return Status.UNRESOLVED
    if signature in SILENT:
        return Status.FAIL
    if answer.status is Status.UNRESOLVED or answer.culprit is None:
        return Status.UNRESOLVED
    return Status.FAIL if answer.culprit else Status.AGREE


def _same(answer: Answer, signature: Signature | None) -> bool:
    """Does it fail as the whole does? Where it explains what is wrong with the whole's values, NaN (garbage is other
    garbage each time), a wrong shape (who reads it reads beyond, or less) and a crash are the same failure."""
    if answer.signature is signature:
        return True
    garbage = answer.signature is Signature.NAN and signature is Signature.MISMATCH
    spoilt = answer.signature in (Signature.SHAPE, Signature.CRASH) and signature not in SILENT
    return answer.culprit is True and (garbage or spoilt)


def pointless(answer: Answer) -> bool:
    """Does it fail, and explain nothing?"""
    return answer.status is Status.FAIL and answer.signature not in SILENT and answer.culprit is False
