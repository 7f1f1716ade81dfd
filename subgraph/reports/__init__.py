"""Reports: the document of a bisection, a comparison or a recording -> text. Each form is one file
in this folder.

To add a form, write `reports/NAME.py`; `subcut report -f NAME` and the contract test find it by its
file name:

    \"""One line of help.\"""
    FILE = "report.txt"                       # the file name under which it is written

    def render(document: BisectDocument) -> str:    # the whole text, ending with one line end
        shown = cleaned(document)             # names from a model lose control characters
        return f"{answer(shown).says}\\n"

    def render_compared(document: ComparedDocument) -> str:   # optional: of `compare`, recordings
        return f"{view(cleaned(document)).answer.says}\\n"

    def render_sweep(document: SweepDocument) -> str:      # optional: of `sweep`
        return f"{document.exit_code}\\n"

A report computes nothing: all numbers are in the document, whose fields the dataclasses in
`subgraph.results` describe. The phrases that forms share are here.
"""

from __future__ import annotations

from types import ModuleType

from subgraph.reports._answer import DEVICES as DEVICES
from subgraph.reports._answer import add_answer as add_answer
from subgraph.reports._answer import answer as answer
from subgraph.reports._answer import evidence as evidence
from subgraph.reports._answer import replay_words as replay_words
from subgraph.reports._compared import PINNED_ALONE as PINNED_ALONE
from subgraph.reports._compared import Compared as Compared
from subgraph.reports._compared import ComparedDocument as ComparedDocument
from subgraph.reports._compared import JudgedTensor as JudgedTensor
from subgraph.reports._compared import Kind as Kind
from subgraph.reports._compared import ReportedAnswer as ReportedAnswer
from subgraph.reports._compared import View as View
from subgraph.reports._compared import list_judged_tensors as list_judged_tensors
from subgraph.reports._compared import say_precise as say_precise
from subgraph.reports._compared import view as view
from subgraph.reports._words import beside as beside
from subgraph.reports._words import cleaned as cleaned
from subgraph.reports._words import describe_sweep as describe_sweep
from subgraph.reports._words import error as error
from subgraph.reports._words import is_proven as is_proven
from subgraph.reports._words import join_with_and as join_with_and
from subgraph.reports._words import listed as listed
from subgraph.reports._words import percent as percent
from subgraph.reports._words import region as region
from subgraph.reports._words import runtime as runtime
from subgraph.reports._words import seconds as seconds
from subgraph.reports._words import word as word
from subgraph.results import Document

# Function of a form by the schema of a document that it renders.
RENDERERS = {
    "subcut.bisect/1": "render",
    "subcut.sweep/1": "render_sweep",
    "subcut.plan/1": "render_plan",
}


def renderer(document: Document) -> str:
    """Return the name of the function of a form that renders documents of this schema."""
    return RENDERERS.get(document.schema, "render_compared")


def can_render(form: ModuleType, document: Document) -> bool:
    """Return whether a form renders documents of this schema."""
    return hasattr(form, renderer(document))


def render_document(form: ModuleType, document: Document) -> str:
    """Return a document in a form that can render it."""
    text: str = getattr(form, renderer(document))(document)
    return text
