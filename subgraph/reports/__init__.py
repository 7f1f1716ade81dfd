"""Reports: the document of a bisection -> text. Each form is one file in this folder.

To add a form, write `reports/NAME.py`; `subcut report -f NAME` and the contract test find it by its file name:

    \"""One line of help.\"""
    FILE = "report.txt"                       # the file name under which it is written

    def render(document: Document) -> str:    # the whole text, ending with one line end
        shown = cleaned(document)             # names from a model lose control characters
        return f"{headline(shown)}\\n"

A report computes nothing: all numbers are in the document, whose fields `bisect.schema.json` describes. The phrases
that forms share are here. Every text that comes from a model or a candidate passes through `quoted`, with which a form
escapes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from subgraph.reports._schema import problem as problem
from subgraph.reports._schema import schema as schema
from subgraph.text import clean, count

SCHEMA = "subcut.bisect/1"
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with these a spreadsheet starts a formula
MAX_PIECES = 3  # of another model, the most expensive ones
MAX_NAMES = 6  # of a region, in a line
UNKNOWN = "–"

Document = dict[str, Any]  # as `json.loads` gives it, of the schema `subcut.bisect/1`
Quoted = Callable[[str], str]


def cleaned(value: Any) -> Any:
    """The same document with every text safe to show: no control characters, no marks that reverse a line.

    >>> cleaned({"nodes": ["a\\x1b[31m\\n"]})
    {'nodes': ['a[31m']}
    """
    if isinstance(value, str):
        return clean(value).replace("\ufffe", "").replace("\uffff", "")  # XML cannot hold these two
    if isinstance(value, dict):
        return {cleaned(key): cleaned(item) for key, item in value.items()}
    return [cleaned(item) for item in value] if isinstance(value, list) else value


def cell(name: str) -> str:
    """A cleaned text for a spreadsheet: it never starts a formula.

    >>> cell("=1+1")
    "'=1+1"
    """
    return f"'{name}" if name.startswith(FORMULA) else name


# ---------------------------------------------------------------------------------------------------- numbers


def error(value: Any) -> str:
    """An error: `1.1e-02`, `0`, `inf`; a dash for None."""
    if isinstance(value, str) or value is None:
        return value or UNKNOWN
    return f"{value:.1e}" if value else "0"


def element(value: Any) -> str:
    """A tensor's value: a float with seven digits, anything else as it is."""
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def percent(share: Any) -> str:
    """`93 %`; a dash for None."""
    return UNKNOWN if share is None else share if isinstance(share, str) else f"{share * 100:.0f} %"


def seconds(value: float) -> str:
    """`41 ms`, `4.1 s`, `12 min`."""
    if value >= 120:
        return f"{value / 60:.0f} min"
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.1f} s"


def shape(sizes: Iterable[Any]) -> str:
    """`1×64×56×56`; `scalar` for none."""
    return "×".join(map(str, sizes)) or "scalar"


# ---------------------------------------------------------------------------------------------------- words


def listed(labels: Sequence[str], quoted: Quoted = str, most: int = MAX_NAMES) -> str:
    """`a, b and 7 more`."""
    more = len(labels) - most
    some = ", ".join(quoted(name) for name in (labels[: most - 1] if more > 0 else labels))
    return f"{some} and {more + 1} more" if more > 0 else some


def _and(labels: Sequence[str], quoted: Quoted) -> str:
    """`a, b and c`."""
    if len(labels) > MAX_NAMES or not labels:
        return listed(labels, quoted)
    *most, last = map(quoted, labels)
    return f"{', '.join(most)} and {last}" if most else last


def region(nodes_and_ops: Document, quoted: Quoted = str) -> str:
    """`/pad/Pad, /pool/MaxPool (Pad, MaxPool)`."""
    nodes, ops = nodes_and_ops["nodes"], list(dict.fromkeys(nodes_and_ops["ops"]))
    return f"{listed(nodes, quoted)} ({listed(ops, quoted)})" if nodes else "the whole model"


def title(finding: Document, quoted: Quoted = str) -> str:
    """A finding in one line, without its numbers."""
    kind = finding["kind"]
    if kind == "accumulated" and finding["contributors"]:
        return "the error accumulates: no region alone explains it"
    if kind == "accumulated":
        return f"the error accumulates over {region(finding, quoted)}: no piece of it is to blame more than others"
    if kind == "flaky":
        return f"flaky: {region(finding, quoted)} fails in {percent(finding['rate'])} of runs"
    if kind == "unresolved":
        return f"unresolved: {quoted(finding['reason'])}"
    claim = "smallest failing region" if finding["certified"] else "failing region, not certified as the smallest"
    return f"{claim}: {region(finding, quoted)}"


def runtime(about: Document) -> list[str]:
    """Name, backend, version and precision of a candidate or reference, without repetitions."""
    return [part for part in dict.fromkeys(about[key] for key in ("name", "backend", "version", "precision")) if part]


def headline(document: Document, quoted: Quoted = str) -> str:
    """The whole document in one line."""
    findings, why = document["findings"], document["whole"]["why"]
    if document["agree"]:
        claimed = document["outcome"] == "claimed"
        agreement = f"agrees within {document['candidate']['precision']} rounding" if claimed else "they agree"
        return f"{agreement}{f': {quoted(why)}' if why else ''}"
    if document["outcome"] == "pinned":
        return "they agree with pinned shapes only: the file as shipped does not run"
    if document["outcome"] == "elsewhere":
        return "the whole fails, the region asked about does not"
    if not findings:
        return f"nothing was established{f': {quoted(why)}' if why else ''}"
    more = len(findings) - 1
    masked = "the outputs agree, not the inside: " if document["whole"]["status"] == "agree" else ""
    return masked + title(findings[0], quoted) + (f"; {count(more, 'more finding')}" if more else "")


def word(judged: Document) -> str:
    """`agree`, `FAIL`, `FAIL (crash)`, `FAIL, explains little`, `refused`, `unresolved`: the outcome of a verdict, a
    step or a row."""
    signature = judged.get("signature")
    if judged["status"] in ("fail", "minor"):
        little = ", explains little" if judged["status"] == "minor" else ""
        return f"FAIL{f' ({signature})' if signature not in (None, 'mismatch') else ''}{little}"
    return str(signature or "unresolved") if judged["status"] == "unresolved" else "agree"


def span(step: Document, quoted: Quoted = str) -> str:
    """`conv1 … prob`, or the only node; empty for a step without nodes."""
    ends = [quoted(step[key]) for key in ("first", "last") if step[key]]
    return " … ".join(dict.fromkeys(ends))


def sentences(finding: Document, quoted: Quoted = str) -> list[str]:
    """A finding's numbers, a line each: how it fails alone, how the error grows, its certificate, reservations."""
    lines = [_alone(finding, quoted)] if finding["verdict"] or finding["worst"] else []
    if finding["kind"] == "accumulated":
        lines += _growing(finding, quoted)
    if finding["kind"] == "unresolved" and finding["nodes"]:
        lines.append(f"smallest region in doubt: {region(finding, quoted)}")
    if finding["kind"] == "flaky":
        lines.append(f"failed in {finding['runs']['failed']} of {count(finding['runs']['of'], 'run')}")
    elif finding["reproduces"] is not None and finding["reproduces"] < 1:
        lines.append(f"reproduces in {percent(finding['reproduces'])} of its runs")
    return [*lines, *_certificate(finding, quoted), *_reservations(finding, quoted)]


def _alone(finding: Document, quoted: Quoted) -> str:
    worst, off = finding["worst"], finding["off"]
    if worst is None:
        why = finding["verdict"]["why"]
        return f"alone, on reference inputs: {word(finding['verdict'])}{f': {quoted(why)}' if why else ''}"
    at = ",".join(map(str, worst["index"]))
    place = f"worst at [{at}]: {element(worst['candidate'])} for {element(worst['reference'])}"
    share = f"; {off['count']} of {off['of']} values off" if off else ""
    return f"alone, on reference inputs: max_rel {error(worst['error'])} on {quoted(worst['tensor'])}, {place}{share}"


def _certificate(finding: Document, quoted: Quoted) -> list[str]:
    near = finding["nearest"]
    if not near:
        return []
    without = "it" if near["without"] == finding["nodes"] else _and(near["without"], quoted)
    claim = "certified" if finding["certified"] else "nearest"
    verb = "agrees alone" if len(near["nodes"]) == 1 else "agree alone"
    return [f"{claim}: without {without}, {_and(near['nodes'], quoted)} {verb}"]


def _reservations(finding: Document, quoted: Quoted) -> list[str]:
    """Why a culprit's proof is incomplete, if it is."""
    return [quoted(finding["why"])] if finding["kind"] in ("culprit", "flaky") and finding.get("why") else []


def _growing(finding: Document, quoted: Quoted) -> list[str]:
    growth, lines = finding["growth"], []
    if growth:
        first, last = growth[0], growth[-1]
        after = f"{error(last['error'])} after {last['nodes']}"
        lines.append(f"grows from {error(first['error'])} after {count(first['nodes'], 'node')} to {after}")
    parts = [f"{quoted(c['node'])} ({quoted(c['op'])}) {percent(c['explains'])}" for c in finding["contributors"]]
    return [*lines, *([f"most of it: {listed(parts)}"] if parts else [])]


def evidence(finding: Document, quoted: Quoted = str) -> tuple[str, list[str]]:
    """Precision or bug: the conclusion ("" for none), and the evidence for it, a line each."""
    lines = finding.get("evidence", ())
    conclusion = next((quoted(line["says"]) for line in lines if line["kind"] == "conclusion"), "")
    return conclusion, [quoted(line["says"]) for line in lines if line["kind"] != "conclusion"]


def other_model(document: Document, quoted: Quoted = str) -> list[str]:
    """If the candidate runs another model: what the two share, and the error that each piece adds, a line each."""
    other = document.get("other_model")
    if not other:
        return []
    lines = [quoted(other["matched"])]
    for row in other.get("nodes", ())[:MAX_PIECES]:
        left = "" if row["remains"] is None else f", {percent(row['remains'])} is left if it runs on the reference"
        lines.append(f"{region(row | {'ops': [row['op']]}, quoted)} explains {percent(row['explains'])}{left}")
    ops = [
        f"{quoted(row['op'])} {percent(row['explains'])} in {count(row['nodes'], 'piece')}"
        for row in other.get("ops", ())
    ]
    lines += [f"by operator: {listed(ops)}"] if ops else []
    clipped = [f"{quoted(row['tensor'])} {percent(row['share'])}" for row in other.get("saturated", ())]
    return [*lines, *([f"clipped values: {listed(clipped)}"] if clipped else [])]


def stderr(finding: Document) -> list[str]:
    """The last lines that the candidate wrote to standard error before it ended."""
    verdict = finding["verdict"]
    return list(verdict["process"].get("stderr") or ()) if verdict else []
