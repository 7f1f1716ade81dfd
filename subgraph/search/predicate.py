"""FAIL(R): an answer about a region -> its meaning for this search.

A region fails only if it fails as the whole does and explains the whole. One that fails and explains nothing counts as
agreeing. Anything else is unresolved, and never counts as a pass.
"""

from __future__ import annotations

from subgraph.search.oracle import Answer
from subgraph.verdict import NUMBERS, Signature, Status

# The candidate gives no output: there is no error to explain, and no inner tensor to read.
NO_OUTPUT = frozenset({Signature.CRASH, Signature.REFUSED, Signature.TIMEOUT})


def outcome(answer: Answer, signature: Signature | None) -> Status:
    """Meaning of an answer about a region, when the whole fails with `signature`.

    None: the whole does not fail. Then a region that fails has nothing to explain; one that is refused alone does run
    in the whole, and nothing is known about it.
    """
    if answer.status is Status.AGREE:
        return Status.AGREE
    if signature is None:
        return Status.UNRESOLVED if answer.signature is Signature.REFUSED else answer.status
    if signature in NO_OUTPUT and answer.signature not in (None, signature) and answer.culprit is not None:
        return Status.FAIL if answer.culprit else Status.UNRESOLVED
    if answer.signature is None or not _same(answer, signature):
        return Status.UNRESOLVED
    if signature in NO_OUTPUT:
        return Status.FAIL
    if answer.status is Status.UNRESOLVED or answer.culprit is None:
        return Status.UNRESOLVED
    return Status.FAIL if answer.culprit else Status.AGREE


def _same(answer: Answer, signature: Signature | None) -> bool:
    """Does the region fail as the whole does? If it explains the whole's wrong values, three other signatures count as
    the same failure: NaN (uninitialised memory differs from run to run), a wrong shape (its reader reads too much or
    too little) and a crash."""
    if answer.signature is signature or {answer.signature, signature} == NUMBERS:
        return True
    garbage = answer.signature is Signature.NAN and signature in NUMBERS
    spoilt = answer.signature in (Signature.SHAPE, Signature.CRASH) and signature not in NO_OUTPUT
    return answer.culprit is True and (garbage or spoilt)


def explains_nothing(answer: Answer) -> bool:
    """Does the region fail, but explain nothing?"""
    return answer.status is Status.FAIL and answer.signature not in NO_OUTPUT and answer.culprit is False
