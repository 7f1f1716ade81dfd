"""Your own converter: the names of the nodes, a line each, as `{keep}` of a command gets them."""

from __future__ import annotations

from subgraph.questions.planning.lists import Kept

FILE = "keep.txt"


def render(kept: Kept) -> str:
    """Return the nodes; one without a name is `#17`, by its number."""
    return "".join(f"{name}\n" for name in kept.nodes)
