"""How results show themselves in a notebook. `subgraph.notebook`, which knows them all, is loaded only then."""

from __future__ import annotations

from importlib import import_module


class Displayed:
    """A result that a notebook shows as HTML."""

    def _repr_html_(self) -> str:
        """Called by IPython for the last value of a cell."""
        return str(import_module("subgraph.notebook").html(self))


class DisplayedDrawing(Displayed):
    """A result that has a drawing as well."""

    def _repr_svg_(self) -> str:
        """Called by IPython, and by tools that store a notebook's pictures."""
        return str(import_module("subgraph.notebook").drawing(self))
