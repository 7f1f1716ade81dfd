"""Markdown for a bug tracker (GitHub, GitLab): minimal region, numbers, how to reproduce,
environment, steps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain

from subgraph import system
from subgraph.reports._answer import answer, evidence
from subgraph.reports._compared import ComparedDocument, TensorLine, view
from subgraph.reports._words import (
    BAD,
    UNKNOWN,
    cleaned,
    describe_sweep,
    figure,
    interval_title,
    left_out,
    listed,
    outcome,
    place,
    runtime,
    seconds,
    shape,
    size,
    span,
    word,
)
from subgraph.results.bisect import BisectDocument, EdgeTensors, FindingDocument
from subgraph.results.sweep import SweepDocument, SweepOutcome, Totals
from subgraph.text import count

FILE = "report.md"


def render(document: BisectDocument) -> str:
    """Return the document as the text of an issue.

    Names from a model are code spans, which trackers do not interpret.
    """
    shown = cleaned(document)
    found = answer(shown, code)
    whole = shown.whole
    why = f": {code(whole.why)}" if whole.why else ""
    lines = [
        f"# subcut: {code(shown.model.file)}: {found.says}",
        "",
        *_list_lines(found.lines),
        *(f"- **next** {one.why}: {code(system.join(one.argv))}" for one in found.next),
        "",
        f"The full model on {code(shown.candidate.name)}: **{word(whole)}**{why}",
    ]
    notes = [f"- {code(note)}" for note in shown.notes]
    lines += ["", *notes] if notes else []
    told = [("Evidence", ()), *((f"{k}. {t}", of) for k, (t, of) in enumerate(found.further, 2))]
    for finding, (heading, of) in zip(shown.findings, told, strict=False):
        lines += _finding(finding, heading, of)
    lines += [
        "",
        "## How to reproduce",
        "",
        *_reproduce(shown),
        "",
        "## Environment",
        "",
        *_environment(shown),
    ]
    return "\n".join([*lines, "", *_steps(shown, found.cost)]).rstrip("\n") + "\n"


def _list_lines(lines: Iterable[tuple[str, str]]) -> list[str]:
    return [f"- **{label}** {text}" for label, text in lines]


def code(name: str) -> str:
    """Return a code span that holds any text: its fence is longer than the text's longest run of backticks.

    An empty text has no code span.

    >>> code("a`b"), code("")
    ('``a`b``', '')
    """  # noqa: E501
    if not name.strip():
        return "(no name)" if name else ""
    fence = "`" * (_longest(name) + 1)
    pad = " " if name[0] in "` " or name[-1] in "` " else ""
    return f"{fence}{pad}{name}{pad}{fence}"


def table_code(name: str) -> str:
    """A code span for a table; a name with a `|`, which would end the cell, becomes HTML."""
    if "|" not in name:
        return code(name)
    return f"<code>{re.sub(r'[^0-9A-Za-z /]', lambda m: f'&#{ord(m[0])};', name)}</code>"


def _longest(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def _fence(lines: Sequence[str], kind: str = "") -> list[str]:
    fence = "`" * max(3, _longest("\n".join(lines)) + 1)
    return [f"{fence}{kind}", *lines, fence]


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (heading, ["---"] * len(heading), *rows)]


def _finding(finding: FindingDocument, heading: str, lines: Iterable[tuple[str, str]]) -> list[str]:
    """Return the lines of a finding, its evidence, and the tensors around it."""
    told = [*_list_lines(lines), *(f"- {line}" for line in evidence(finding, code)[1])]
    edge = _edge(finding.edge) if finding.edge else []
    parts = [part for part in (told, edge) if part]
    return [*chain(["", f"## {heading}"], *(["", *part] for part in parts))] if parts else []


def _edge(edge: EdgeTensors) -> list[str]:
    rows = [
        (way, table_code(t.tensor), table_code(t.dtype), table_code(shape(t.shape)))
        for way, tensors in (("in", edge.inputs), ("out", edge.outputs))
        for t in tensors
    ]
    return _table(("boundary", "tensor", "dtype", "shape"), rows)


def _reproduce(document: BisectDocument) -> list[str]:
    lines = []
    for case in filter(None, (finding.case for finding in document.findings)):
        lines.append(
            f"In the folder {code(case)} (model, inputs, expected outputs; needs only onnxruntime"
            " and numpy):"
        )
        lines += ["", *_fence(["python repro.py"], "sh"), ""]
    return [*lines, "Found with:", "", *_fence([document.command], "sh")]


def _environment(document: BisectDocument) -> list[str]:
    model = document.model
    environment = document.environment
    rows = [("model", f"{table_code(model.file)}, {count(model.nodes, 'node')}")]
    rows.append(("structure sha256", table_code(model.structure_sha256 or "")))
    for name, one in (("candidate", document.candidate), ("reference", document.reference)):
        parts = [*runtime(one), *(f"{key}={value}" for key, value in one.options.items())]
        rows.append((name, " ".join(table_code(part) for part in parts)))
    rows.append(("criterion", table_code(document.criterion)))
    if samples := list(filter(None, document.samples)):
        rows.append(("samples", listed(samples, table_code)))
    rows += [
        (name, table_code(str(getattr(environment, name))))
        for name in ("subcut", "python", "machine", "threads")
    ]
    rows += [
        (table_code(name), table_code(version)) for name, version in environment.packages.items()
    ]
    return _table(("", ""), rows)


def _steps(document: BisectDocument, cost: str) -> list[str]:
    rows = [
        (
            str(step.number),
            table_code(step.kind),
            span(step, table_code) or UNKNOWN,
            str(step.count),
            size(step, step.error),
            word(step),
            seconds(step.seconds),
            table_code(step.changed) if step.changed else "",
        )
        for step in document.steps
    ]
    compiled = count(document.compiled_nodes, "node")
    heading = ("#", "run", "region", "nodes", "error / scale", "answer", "took", "left")
    summary = f"<summary>Steps: {cost}, {compiled} compiled</summary>"
    return ["<details>", summary, "", *_table(heading, rows), "", "</details>"]


def render_compared(document: ComparedDocument) -> str:
    """A comparison as the text of an issue; names are code spans."""
    shown = view(cleaned(document))
    lines = [f"# subcut: {code(shown.answer.says)}", ""]
    lines += _table(("", ""), ((table_code(name), table_code(text)) for name, text in shown.facts))
    lines += ["", *(f"- {line}" for line in (*map(code, shown.notes), *left_out(shown, code)))]
    for finding in shown.findings:
        lines += [
            "",
            f"## {interval_title(finding, code)}",
            "",
            *(f"- {line}" for line in place(finding, code)),
        ]
    if commands := [system.join(one.argv) for one in shown.answer.next]:
        lines += ["", "## Next", "", *_fence(commands, "sh")]
    sources = ["source"] if any(line.source for line in shown.lines) else []
    heading = (
        "#",
        "node",
        "op",
        "tensor",
        *map(table_code, shown.columns),
        "recorded as",
        *sources,
    )
    rows = (
        (
            str(line.index),
            *map(table_code, (line.node, line.op, line.tensor)),
            *(
                f"{figure(cell)} {table_code(outcome(cell))}" if cell.status else UNKNOWN
                for cell in line.cells
            ),
            _name_entries(line),
            *[table_code(line.source) if line.source else UNKNOWN for _ in sources],
        )
        for line in shown.lines
    )
    lines += ["", "## Tensors", "", *_table(heading, rows), "", "Found with:", ""]
    return "\n".join([*lines, *_fence([cleaned(document).command], "sh")]).rstrip("\n") + "\n"


def render_sweep(document: SweepDocument) -> str:
    """A sweep as the text of an issue: what is bad, then each operator that is not right
    throughout, by candidate."""
    shown = cleaned(document)
    names = [candidate.name for candidate in shown.candidates]
    lines = [f"# subcut: {code(describe_sweep(shown))}", ""]
    lines += [
        f"- candidate: {' '.join(map(code, filter(None, runtime(c))))}" for c in shown.candidates
    ]
    lines += [
        f"- tests: {shown.tests.count} of onnx {code(shown.tests.onnx)}, by {code(shown.criterion)}"
    ]
    bad = [
        (
            table_code(row.operator or row.kind),
            table_code(row.test),
            table_code(name),
            result.status,
            table_code(result.why),
        )
        for row in shown.rows
        for name, result in zip(names, row.results, strict=True)
        if result.status in BAD
    ]
    if bad:
        lines += [
            "",
            "## Wrong",
            "",
            *_table(("operator", "test", "candidate", "outcome", "why"), bad),
        ]
    mixed = [
        (
            table_code(operator.operator),
            str(operator.tests),
            *map(_outcomes, operator.totals),
        )
        for operator in shown.operators
        if any(t[SweepOutcome.RIGHT] != operator.tests for t in operator.totals)
    ]
    if mixed:
        heading = ("operator", "tests", *map(table_code, names))
        lines += ["", "## Operators that are not right in every test", "", *_table(heading, mixed)]
    return (
        "\n".join([*lines, "", "Found with:", "", *_fence([shown.command], "sh")]).rstrip("\n")
        + "\n"
    )


def _outcomes(totals: Totals) -> str:
    """`3 right, 1 wrong`."""
    return ", ".join(f"{number} {word}" for word, number in totals.items() if number)


def _name_entries(line: TensorLine) -> str:
    return ", ".join(table_code(f"{name} ({how})") for name, how in line.names) or UNKNOWN
