"""A result and its text -> the short document of `--brief`, for programs and agents.

The text of an answer is short already, so it is part of the short document; lists of all tensors,
steps and nodes are not.

In a GitHub workflow the answer is an annotation, too, and a paragraph of the step's summary. GitHub
documents the forms: "Workflow commands for GitHub Actions".
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from subgraph.documents import absent, from_json
from subgraph.results.answer import ErrorEntry
from subgraph.text import clean, clean_lines
from subgraph.types import Fields, frozen, frozen_keywords

MAX_FINDINGS = 4
MAX_NODES = 8
MAX_CHARACTERS = 1_200


@frozen_keywords
class BriefFinding:
    """A finding in short.

    Attributes:
        kind: `culprit`, `accumulated`, …; as in the full document.
        nodes: The names of the first `MAX_NODES` nodes.
        count: The number of nodes.
        case: The folder that runs this region alone; None if none was written.
    """

    kind: str
    nodes: Sequence[str]
    count: int
    case: str | None


@frozen_keywords
class BriefDocument:
    """The answer of any command in at most about 2 kB.

    Attributes:
        of: The schema of the full document, which `--json` prints.
        exit_code: The exit code.
        says: The headline, one sentence.
        findings: The first `MAX_FINDINGS` findings of a search.
        next: The commands that follow: `{why, argv}`.
        report: The page with all details.
        error: The error, in place of an answer.
        text: The first `MAX_CHARACTERS` characters of the text that a terminal shows.
    """

    schema: Literal["subcut.brief/1"] = "subcut.brief/1"
    of: str
    exit_code: int
    says: str
    findings: Sequence[BriefFinding] = ()
    next: Sequence[object] = ()
    report: str | None = absent()
    error: ErrorEntry | None = absent()
    text: str


@frozen
class _FullFinding:
    """A finding of any command, as far as it is read here."""

    kind: str = ""
    nodes: Sequence[str] = ()
    case: str | None = None


@frozen_keywords
class _FullDocument:
    """The result of any command, as far as it is read here."""

    schema: str
    exit_code: int
    says: str = ""
    error: ErrorEntry | None = None
    findings: Sequence[_FullFinding] = ()
    next: Sequence[object] = ()
    report: str | None = None


def shorten(document: Fields, text: str) -> BriefDocument:
    """Return the short form of a result.

    Args:
        document: The full document, as plain JSON data.
        text: The text that a terminal shows for it.
    """
    full = from_json(_FullDocument, document)
    shown = clean_lines(text)
    headline = full.error.what if full.error else shown.partition("\n")[0]
    return BriefDocument(
        of=full.schema,
        exit_code=full.exit_code,
        says=full.says or " ".join(headline.split()),
        findings=[
            BriefFinding(
                kind=finding.kind,
                nodes=finding.nodes[:MAX_NODES],
                count=len(finding.nodes),
                case=finding.case,
            )
            for finding in full.findings[:MAX_FINDINGS]
        ],
        next=full.next,
        report=full.report,
        error=full.error,
        text=shown[:MAX_CHARACTERS],
    )


ESCAPES = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})  # in the text of a workflow command
# The schemas of answers that a workflow shows.
ANSWERS = frozenset(
    f"subcut.{name}/1" for name in ("bisect", "compare", "interval", "recorded", "side-by-side")
)


def is_github_workflow() -> bool:
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
        text: The text that a terminal shows.

    Raises:
        OSError: The file cannot be written.
    """
    if name := os.environ.get("GITHUB_STEP_SUMMARY"):
        shown = clean_lines(text).replace("```", "'''")
        with Path(name).open("a", encoding="utf-8") as file:
            # no sign of Markdown or HTML works in the headline
            signs = (f"\\{sign}" if sign in r"\`*_<>[]#|" else sign for sign in clean(says))
            file.write(f"### {''.join(signs)}\n\n```text\n{shown}\n```\n\n")
