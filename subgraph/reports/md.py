"""Markdown for a bug tracker (GitHub, GitLab): the text as a block of code, evidence, how to
reproduce it, environment."""

from __future__ import annotations

import re
from collections.abc import Sequence

from subgraph.iterables import flatten
from subgraph.reports import _swept, _text
from subgraph.reports._answer import answer, find_evidence
from subgraph.reports._compared import ComparedDocument
from subgraph.reports._words import cleaned, describe_sweep, format_list, format_runtime
from subgraph.results.bisect import BisectDocument
from subgraph.results.sweep import SweepDocument
from subgraph.text import align_columns, count

FILE = "report.md"
UNLIMITED = 1 << 20  # lines


def render(document: BisectDocument) -> str:
    """Return the document as the text of an issue.

    Blocks of code hold all names of a model, so that a tracker does not interpret them.
    """
    shown = cleaned(document)
    reasons = list(flatten(find_evidence(finding)[1] for finding in shown.findings))
    lines = [
        *_format_head(answer(shown).says, _text.render(shown, most=UNLIMITED)),
        *(["", "## Evidence", "", *_format_fence(reasons, "text")] if reasons else []),
        "",
        "## How to reproduce",
        "",
    ]
    for case in filter(None, (finding.case for finding in shown.findings)):
        needs = "model, inputs, expected outputs; needs only onnxruntime and numpy"
        lines.append(f"In the folder {format_code(case)} ({needs}):")
        lines += ["", *_format_fence(["python repro.py"], "sh"), ""]
    lines += [*_make_command(shown.command), "", "## Environment", ""]
    model = shown.model
    environment = shown.environment
    rows = [("model", f"{model.file}, {count(model.nodes, 'node')}")]
    rows.append(("structure sha256", model.structure_sha256 or ""))
    for name, runtime in (
        ("candidate", shown.setup.candidate),
        ("reference", shown.setup.reference),
    ):
        options = [f"{key}={value}" for key, value in runtime.options.items()]
        rows.append((name, " ".join([*format_runtime(runtime), *options])))
    rows.append(("criterion", shown.setup.criterion))
    if samples := list(filter(None, shown.setup.samples)):
        rows.append(("samples", format_list(samples)))
    names = ("subcut", "python", "machine", "threads")
    rows += [(name, str(getattr(environment, name))) for name in names]
    about = align_columns([*rows, *environment.packages.items()])
    return "\n".join([*lines, *_format_fence(about, "text")]) + "\n"


def render_compared(document: ComparedDocument) -> str:
    """Return a comparison as the text of an issue."""
    shown = cleaned(document)
    return _make_issue(shown.says, _text.render_compared(shown), shown.command)


def render_sweep(document: SweepDocument) -> str:
    """Return a sweep as the text of an issue."""
    shown = cleaned(document)
    return _make_issue(describe_sweep(shown), _swept.render_sweep(shown), shown.command)


def _make_issue(says: str, body: str, command: str) -> str:
    return "\n".join([*_format_head(says, body), "", *_make_command(command)]) + "\n"


def _format_head(says: str, body: str) -> list[str]:
    return [
        f"# subcut: {format_code(says)}",
        "",
        *_format_fence(body.rstrip("\n").split("\n"), "text"),
    ]


def _make_command(command: str) -> list[str]:
    return ["Found with:", "", *_format_fence([command], "sh")]


def format_code(name: str) -> str:
    """Return any text as a code span, whose fence is longer than a run of backticks in the text.

    An empty text has no code span.

    >>> format_code("a`b"), format_code("")
    ('``a`b``', '')
    """
    if not name.strip():
        return "(no name)" if name else ""
    fence = "`" * (_find_longest(name) + 1)
    pad = " " if name[0] in "` " or name[-1] in "` " else ""
    return f"{fence}{pad}{name}{pad}{fence}"


def _find_longest(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def _format_fence(lines: Sequence[str], kind: str) -> list[str]:
    fence = "`" * max(3, _find_longest("\n".join(lines)) + 1)
    return [f"{fence}{kind}", *lines, fence]
