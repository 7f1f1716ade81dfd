"""The document of a loop -> text: which step, then what the search in it says."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph import plugins
from subgraph.documents import to_json
from subgraph.results.loop import LoopDocument, LoopOutcome, StepSeen
from subgraph.text import clean, count

MAX_FLIPS = 4  # that are listed
MAX_STATES = 3


def text(document: LoopDocument) -> str:
    """
    >>> from subgraph.results.loop import LoopDocument, LoopOutcome
    >>> text(LoopDocument(exit_code=0, outcome=LoopOutcome.AGREE, model="m.onnx", candidate="ort", reference="ort",
    ...                   steps=64, prompt=5, states={}))
    'right: m.onnx on ort agrees in all 64 steps'
    """
    return "\n".join(_lines(document))


def _lines(document: LoopDocument) -> Iterator[str]:
    yield _headline(document)
    if document.why:
        yield f"  {document.why}"
    if document.growth:
        grown = document.growth
        step = f"× {grown.per_step:.2f} per step" if grown.how == "times" else f"about {grown.per_step:.1e} per step"
        yield f"  the error grows from {grown.first:.1e} to {grown.last:.1e}, {step}"
        yield f"  rounding of the states alone makes {grown.rounding:.1e} of it in the reference"
    for state in document.drift[:MAX_STATES]:
        yield f"  state {clean(state.state)} is off by {state.error:.1e}, made by {clean(state.node)}"
    yield from _flips(document)
    if parted := next((s for s in document.seen if s.tokens), None):
        where = f"parts from the reference's at step {parted.step}: {_tokens(parted)}"
        yield f"  left to itself, the candidate's text {where}"
    if document.bisection:
        yield plugins.load("reports", "text").render(to_json(document.bisection)).rstrip("\n")
    if document.report:
        yield f"steps {document.report}"


def _headline(document: LoopDocument) -> str:
    model, of, wrong = clean(document.model), document.steps, document.first_wrong
    on = f"{model} on {clean(document.candidate)}"
    match document.outcome:
        case LoopOutcome.AGREE:
            return f"right: {on} agrees in all {count(of, 'step')}"
        case LoopOutcome.STEP:
            before = f"; the {count(wrong, 'step')} before are right" if wrong else ""
            return f"wrong: {on} goes wrong in step {wrong} of {of}{before}"
        case LoopOutcome.TOGETHER:
            return f"wrong: {on} goes wrong between steps {document.since} and {wrong} of {of}"
        case LoopOutcome.ACCUMULATES:
            return f"wrong: {on} accumulates errors over steps: from step {wrong} of {of} on they are too large"
        case LoopOutcome.FLAKY:
            return f"flaky: {on} answers differently when it is asked the same again"
    return f"unresolved: {on} departs in step {wrong} of {of}" if wrong is not None else f"unresolved: {on}"


def _flips(document: LoopDocument) -> Iterator[str]:
    """Steps in which the winner is another one of two that are as good as equal."""
    for step in document.flips[:MAX_FLIPS]:
        apart = f"the logits agree, and the two are {step.margin:.1e} of the largest apart"
        yield f"  step {step.step}: {_tokens(step)}: {apart}"
    if more := len(document.flips[MAX_FLIPS:]):
        yield f"  and {count(more, 'more step')} like this"


def _tokens(step: StepSeen) -> str:
    return ", ".join(f"token {b} instead of {a}" for a, b in step.tokens)
