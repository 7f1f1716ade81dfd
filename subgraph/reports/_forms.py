"""A document and a form of report -> text: which function of the form renders documents of that
schema."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from subgraph.reports._compared import SCHEMAS as COMPARED

SCHEMA = "subcut.bisect/1"
SWEEP = "subcut.sweep/1"
PLAN = "subcut.plan/1"
KNOWN = (SCHEMA, *COMPARED, SWEEP, PLAN)  # schemas of documents

Document = dict[str, Any]  # as `json.loads` gives it


def renderer(document: Document) -> str:
    """The function of a form that renders documents of this schema; every form has `render`."""
    return {SCHEMA: "render", SWEEP: "render_sweep", PLAN: "render_plan"}.get(
        document["schema"], "render_compared"
    )


def can_render(form: ModuleType, document: Document) -> bool:
    """Does a form render documents of this schema? Every form does those of a bisection."""
    return hasattr(form, renderer(document))


def rendered(form: ModuleType, document: Document) -> str:
    """The document in a form that can render it."""
    text: str = getattr(form, renderer(document))(document)
    return text
