"""Is there another culprit? What is left without one item of the first must agree.

Insight: everything but one item of a certified region holds each other fault, wherever it lies and whatever it shares
with the first; while that fails there is another one, and when it agrees there is none.
"""

from __future__ import annotations

from subgraph.search.findings import Purpose
from subgraph.search.hunt import Progress
from subgraph.search.oracle import Items
from subgraph.search.predicate import SILENT
from subgraph.search.state import Search, SearchState
from subgraph.verdict import Signature, Status

ALIKE = 8.0  # times more likely: an item of the same kind as a guilty one


def rest(state: Progress, items: Items, *, wholly: bool = False) -> Search[bool]:
    """Is there another culprit? Takes the found one out of the scope: one item of it, or `wholly`."""
    book, status = state.book, Status.UNRESOLVED
    everything = state.scope
    for gone in _removals(book, items)[wholly:]:
        state.scope = everything
        state.without(gone)
        if state.pooled:
            return True  # known already to fail
        book.suspect = state.scope
        status = (yield from _left_over(book, state.scope)) if state.scope else Status.AGREE
        if status is not Status.UNRESOLVED:
            state.complete = status is Status.AGREE and set(gone) <= set(items)
            break
    if status is not Status.FAIL and not state.complete:
        book.notes.append(("whether all else agrees could not be asked without ", book.items(items)))
    book.left, book.more = 0, 0
    if status is not Status.FAIL:
        return False
    state.clean = sum(1 for k in state.scope if k < items[-1])
    book.left, book.more = len(state.scope), len(state.scope).bit_length() + 2
    _raise_alike(state, items)
    if state.led:
        yield from state.look()
    return True


def _left_over(book: SearchState, scope: Items) -> Search[Status]:
    """Does what is left fail? If it does with another signature, and explains the whole, that is looked for from now
    on: one signature at a time."""
    status = yield from book.region(Purpose.TAIL, scope)
    answer = book.known(scope)
    other = answer.status is Status.FAIL and answer.signature not in SILENT and answer.culprit is True
    if status is Status.UNRESOLVED and other:
        book.signature = answer.signature
        book.agreed.clear()
        return Status.FAIL
    return status


def _removals(book: SearchState, items: Items) -> list[Items]:
    """What to take out, so that the rest can be asked: one item; else all; else all with what reads them, which then
    is not asked about."""
    inside = set(items)
    readers = {k for k, row in enumerate(book.parents) if not inside.isdisjoint(row)}
    return list(dict.fromkeys([items[:1], items, items[-1:], tuple(sorted(inside | readers))]))


def _raise_alike(state: Progress, places: Items) -> None:
    """What is of the same kind as a guilty item is more likely to be guilty."""
    if state.labels is None or len(places) > 1:
        return
    label = state.labels[places[0]]
    for k in state.scope:
        if state.labels[k] == label:
            state.book.weights[k] *= ALIKE


def cross_examined(state: Progress) -> Search[None]:
    """Of several that were refused: each must still bring the rest to be refused, when it is the only one put back."""
    if state.book.signature is not Signature.REFUSED or not state.complete or len(state.findings) < 2:
        return
    place = {item: k for k, item in enumerate(state.book.order)}
    kept = []
    for finding in state.findings:
        back = tuple(sorted({*state.scope, *(place[item] for item in finding.items)}))
        if (yield from state.book.region(Purpose.CONFIRM, back)) is not Status.AGREE:
            kept.append(finding)
    state.findings = kept
