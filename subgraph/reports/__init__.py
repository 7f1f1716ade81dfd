"""Reports: the document of a bisection, a comparison, a recording, a sweep or a plan -> text.

Each form of report is one file in this folder. To add a form, write `reports/NAME.py`. The command
`subcut report -f NAME` and the contract test find it by its file name:

    \"""One line of help.\"""
    FILE = "report.txt"                       # the file name under which it is written

    def render(document: BisectDocument) -> str:    # the whole text, ending with one line end
        shown = cleaned(document)             # names from a model lose control characters
        return f"{answer(shown).says}\\n"

    def render_compared(document: ComparedDocument) -> str:   # optional: of `compare`, recordings
        return f"{make_view(cleaned(document)).answer.says}\\n"

    def render_sweep(document: SweepDocument) -> str:      # optional: of `sweep`
        return f"{document.exit_code}\\n"

The function `render_plan` for `plan` is optional, too. A report computes nothing: all numbers are
in the document. The dataclasses in `subgraph.results` describe its fields. This package also has
the phrases that several forms use.
"""

from __future__ import annotations

from types import ModuleType

from subgraph.reports._answer import (
    DEVICES as DEVICES,
    add_answer as add_answer,
    answer as answer,
    find_evidence as find_evidence,
    make_replay_command as make_replay_command,
)
from subgraph.reports._compared import (
    PINNED_ALONE as PINNED_ALONE,
    AnswerKind as AnswerKind,
    ComparedCell as ComparedCell,
    ComparedDocument as ComparedDocument,
    JudgedTensor as JudgedTensor,
    ReportedAnswer as ReportedAnswer,
    View as View,
    list_judged_tensors as list_judged_tensors,
    make_precise_answer as make_precise_answer,
    make_view as make_view,
)
from subgraph.reports._words import (
    cleaned as cleaned,
    describe_sweep as describe_sweep,
    describe_worst as describe_worst,
    format_error as format_error,
    format_list as format_list,
    format_percent as format_percent,
    format_region as format_region,
    format_runtime as format_runtime,
    format_seconds as format_seconds,
    format_state as format_state,
    is_proven as is_proven,
    join_with_and as join_with_and,
)
from subgraph.results import Document

# The function that renders documents of each schema; `render_compared` for any other schema.
RENDERERS = {
    "subcut.bisect/1": "render",
    "subcut.sweep/1": "render_sweep",
    "subcut.plan/1": "render_plan",
}


def find_renderer(document: Document) -> str:
    """Return the name of the function with which a form renders a document of this schema."""
    return RENDERERS.get(document.schema, "render_compared")


def can_render(form: ModuleType, document: Document) -> bool:
    """Return whether a form renders documents of this schema."""
    return hasattr(form, find_renderer(document))


def render_document(form: ModuleType, document: Document) -> str:
    """Return a document in a form that can render it."""
    text: str = getattr(form, find_renderer(document))(document)
    return text
