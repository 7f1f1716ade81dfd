"""The document of a loop -> text: which step, then what the search in it says."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph import plugins
from subgraph.results.loop import LoopDocument, LoopOutcome
from subgraph.text import clean, count


def text(document: LoopDocument) -> str:
    """
    >>> from subgraph.results.loop import LoopDocument, LoopOutcome
    >>> text(LoopDocument(exit_code=0, outcome=LoopOutcome.AGREE, model="m.onnx", candidate="ort", reference="ort",
    ...                   steps=64, prompt=5, states={}))
    'right: m.onnx on ort agrees in all 64 steps'
    """  # noqa: E501
    return "\n".join(_lines(document))


def _lines(document: LoopDocument) -> Iterator[str]:
    yield _headline(document)
    if document.why:
        yield f"  {document.why}"
    if document.bisection:
        yield plugins.load("reports", "text").render(document.bisection).rstrip("\n")
    if document.report:
        yield f"steps {document.report}"


def _headline(document: LoopDocument) -> str:
    model = clean(document.model)
    of = document.steps
    wrong = document.first_wrong
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
            return (
                f"wrong: {on} accumulates errors over steps: from step {wrong} of {of} on they are"
                " too large"
            )
        case LoopOutcome.FLAKY:
            return f"flaky: {on} answers differently when it is asked the same again"
    return (
        f"unresolved: {on} departs in step {wrong} of {of}"
        if wrong is not None
        else f"unresolved: {on}"
    )
