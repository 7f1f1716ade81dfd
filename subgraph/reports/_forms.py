"""A document and a form of report -> text: which function of the form renders documents of that
schema."""

from __future__ import annotations

from types import ModuleType

from subgraph.results import Document

# The function of a form by the schema of what it renders.
RENDERERS = {
    "subcut.bisect/1": "render",
    "subcut.sweep/1": "render_sweep",
    "subcut.plan/1": "render_plan",
}


def renderer(document: Document) -> str:
    """The function of a form that renders documents of this schema."""
    return RENDERERS.get(document.schema, "render_compared")


def can_render(form: ModuleType, document: Document) -> bool:
    """Return whether a form renders documents of this schema."""
    return hasattr(form, renderer(document))


def rendered(form: ModuleType, document: Document) -> str:
    """The document in a form that can render it."""
    text: str = getattr(form, renderer(document))(document)
    return text
