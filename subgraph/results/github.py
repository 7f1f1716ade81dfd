"""An answer -> an annotation and a paragraph of the step's summary, in a GitHub workflow.

GitHub documents the forms: "Workflow commands for GitHub Actions".
"""

from __future__ import annotations

import os
from pathlib import Path

from subgraph.text import clean, clean_lines

ESCAPES = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})  # in the text of a workflow command
# The schemas of answers that a workflow shows.
ANSWERS = frozenset(
    f"subcut.{name}/1" for name in ("bisect", "compare", "interval", "recorded", "side-by-side")
)


def is_running() -> bool:
    """Return whether a GitHub workflow runs this process."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def to_annotation(says: str) -> str:
    """Return the line of a log that GitHub shows as an error.

    >>> to_annotation("wrong: 100 % of a, b")
    '::error title=subcut::wrong: 100 %25 of a, b'
    """
    return f"::error title=subcut::{clean(says).translate(ESCAPES)}"


def add_to_summary(says: str, text: str) -> None:
    """Append an answer to the summary of the step, if GitHub names its file.

    Args:
        says: The headline.
        text: What a terminal shows.

    Raises:
        OSError: The file cannot be written.
    """
    if name := os.environ.get("GITHUB_STEP_SUMMARY"):
        shown = clean_lines(text).replace("```", "'''")
        with Path(name).open("a", encoding="utf-8") as file:
            file.write(f"### {_escape(says)}\n\n```text\n{shown}\n```\n\n")


def _escape(says: str) -> str:
    """Return a headline in which no sign of Markdown or HTML works."""
    return "".join(f"\\{sign}" if sign in r"\`*_<>[]#|" else sign for sign in clean(says))
