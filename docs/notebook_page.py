"""notebook.ipynb -> a page of the site, with the outputs that are stored in it.

The page is not committed. (myst-nb would do it with forty more packages, since it can run notebooks
too; a test does.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE / "notebook.md"


def page() -> str:
    """Markdown."""
    notebook = json.loads((HERE / "notebook.ipynb").read_text(encoding="utf-8"))
    return "\n\n".join(part for cell in notebook["cells"] for part in _parts(cell)) + "\n"


def _parts(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        data = output["data"]
        shown = "".join(data.get("text/html", ()))
        yield (
            f"```{{raw}} html\n{shown}\n```"
            if shown
            else f"```text\n{''.join(data['text/plain'])}\n```"
        )


def setup(app: Any) -> dict[str, bool]:
    """Sphinx's entry: write the page before it looks for it."""
    app.connect("builder-inited", lambda _: PAGE.write_text(page(), encoding="utf-8"))
    return {"parallel_read_safe": True}
