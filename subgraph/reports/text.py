"""Plain text: the findings in words, as `subcut bisect` prints them at the end."""

from __future__ import annotations

from subgraph.reports import Document, cleaned, evidence, headline, other_model, percent, sentences, stderr, title
from subgraph.reports import region as region_words
from subgraph.text import count

FILE = "report.txt"


def render(document: Document) -> str:
    """The document as lines for a terminal."""
    shown = cleaned(document)
    lines = [line for finding in shown["findings"] for line in _finding(finding)] or [headline(shown)]
    if shown["alone"]:
        lines.append(f"fail alone, explain little: {count(len(shown['alone']), 'piece')}")
        lines += [f"  {region_words(piece)}   {percent(piece['explains'])}" for piece in shown["alone"]]
    lines += other_model(shown)
    lines += [f"note: {note}" for note in shown["notes"]]
    cases = [finding["case"] for finding in shown["findings"] if finding["case"]]
    places = [f"case {case}" for case in cases] + ([f"report {shown['report']}"] if shown["report"] else [])
    if len(places) > 2:
        lines += places
    elif places:
        lines.append("   ".join(places))
    return "\n".join(lines) + "\n"


def _finding(finding: Document) -> list[str]:
    share = finding["explains"]
    explains = f"      explains {percent(share)} of the final error" if share is not None else ""
    conclusion, reasons = evidence(finding)
    lines = [*sentences(finding), *([conclusion] if conclusion else []), *(f"- {line}" for line in reasons)]
    return [f"{title(finding)}{explains}", *(f"  {line}" for line in (*lines, *(f"| {s}" for s in stderr(finding))))]
