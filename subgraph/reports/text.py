"""Plain text: the verdict, its reason, what to do next, figures; as `subcut bisect` prints them at the end."""

from __future__ import annotations

from subgraph.reports import (
    Document,
    cleaned,
    evidence,
    figure,
    headline,
    interval_title,
    left_out,
    other_model,
    outcome,
    percent,
    place,
    predictions,
    replay_command,
    sentences,
    shares,
    stderr,
    title,
    view,
)
from subgraph.reports import region as region_words
from subgraph.text import count

FILE = "report.txt"


def render(document: Document) -> str:
    """The document as lines for a terminal."""
    shown = cleaned(document)
    findings, whole = shown["findings"], shown["whole"]
    lines = [headline(shown)]
    if not findings and shown["agree"] and whole["why"]:
        lines.append(f"  {whole['why']}")
    for number, finding in enumerate(findings, 1):
        lines += [f"{number}. {title(finding)}"] if len(findings) > 1 else []
        lines += [f"  {line}" for line in _finding(shown, finding)]
    lines += shares(shown)
    lines += [] if shown["agree"] else predictions(shown)
    if shown["alone"]:
        lines.append(f"{count(len(shown['alone']), 'piece')} that fail alone and explain little of the final error:")
        lines += [f"  {region_words(piece)}   {percent(piece['explains'])}" for piece in shown["alone"]]
    lines += other_model(shown)
    lines += [f"note: {note}" for note in shown["notes"]]
    cases = [finding["case"] for finding in findings if finding["case"]]
    places = [f"case {case}" for case in cases] + ([f"report {shown['report']}"] if shown["report"] else [])
    if len(places) > 2:
        lines += places
    elif places:
        lines.append("   ".join(places))
    return "\n".join(lines) + "\n"


def _finding(document: Document, finding: Document) -> list[str]:
    """The reason, what to do with the case, figures, evidence."""
    conclusion, reasons = evidence(finding)
    lines = [conclusion] if conclusion else []
    if case := finding["case"]:
        lines.append(f"next: {replay_command(document, case)}   or, for a bug report, subcut bundle {case}")
    return [*lines, *sentences(finding), *(f"- {line}" for line in reasons), *(f"| {s}" for s in stderr(finding))]


def render_compared(document: Document) -> str:
    """A comparison as lines for a terminal: the verdict, where, what to do next, the tensors that are not right."""
    shown = view(cleaned(document))
    lines = [shown.headline, *(f"{name}: {text}" for name, text in shown.facts), *left_out(shown)]
    lines += [f"note: {note}" for note in shown.notes]
    for finding in shown.findings:
        lines += [interval_title(finding), *(f"  {line}" for line in place(finding))]
    lines += [f"next: {command}   {what}" for command, what in shown.next]
    for line in shown.lines:
        if any(cell.status in ("fail", "unresolved") for cell in line.cells):
            judged = zip(shown.columns, line.cells, strict=True)
            told = "; ".join(f"{name} {figure(cell)} {outcome(cell)}" for name, cell in judged if cell.status)
            source = f"   from {line.source}" if line.source else ""
            lines.append(f"#{line.index} {line.node} ({line.op}) {line.tensor}: {told}{source}")
    return "\n".join(lines) + "\n"
