"""Sphinx's settings for the site that `make docs` builds."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from pygments.lexers.shell import BashSessionLexer

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from subgraph.version import __version__  # noqa: E402

project = "subcut"
release = __version__
copyright = "the authors of subcut"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "command_pages",
    "notebook_page",
]
exclude_patterns = ["requirements.lock", "candidates/*/*"]

myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 3  # links to headings are checked as well
suppress_warnings = ["misc.highlighting_failure"]  # console blocks hold `…` and TOML in part

smartquotes = False  # options are written with two hyphens
default_role = "code"  # docstrings write `name`

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
add_module_names = False

html_theme = "furo"
html_title = f"subcut {release}"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["site.css"]


class SessionLexer(BashSessionLexer):
    """A console block, in which a line that begins with `#` is output: tables number nodes so."""

    _ps1rgx = re.compile(r"^(\$ )(.*\n?)")


def setup(app: Any) -> None:
    """Sphinx's entry for settings that are code."""
    app.add_lexer("console", SessionLexer)
