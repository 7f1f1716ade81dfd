"""One file per form: `render(document) -> str`, and `FILE`, the name it is written under.

A report never computes: what it needs stands in the document (`bisect.schema.json`); it chooses, rounds and escapes.
The words that all forms share are here. Where a form quotes names in a way of its own, it passes `quoted`; everything
that comes from a model or a candidate goes through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from subgraph.reports._schema import problem as problem
from subgraph.reports._schema import schema as schema
from subgraph.text import clean, count

SCHEMA = "subcut.bisect/1"
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would take for one
DEAREST = 3  # pieces of another model that are named
MOST_NAMES = 6  # of a region, in a line
UNKNOWN = "–"

Document = dict[str, Any]
Quoted = Callable[[str], str]


def cleaned(value: Any) -> Any:
    """The same document with every text safe to show: no control characters, no marks that reverse a line.

    >>> cleaned({"nodes": ["a\\x1b[31m\\n"]})
    {'nodes': ['a[31m']}
    """
    if isinstance(value, str):
        return clean(value).replace("\ufffe", "").replace("\uffff", "")  # XML has no way to say these two
    if isinstance(value, dict):
        return {cleaned(key): cleaned(one) for key, one in value.items()}
    return [cleaned(one) for one in value] if isinstance(value, list) else value


def cell(name: str) -> str:
    """A cleaned text for a spreadsheet: it never starts a formula.

    >>> cell("=1+1")
    "'=1+1"
    """
    return f"'{name}" if name.startswith(FORMULA) else name


# ---------------------------------------------------------------------------------------------------- numbers


def error(value: Any) -> str:
    """An error: `1.1e-02`, `0`, `inf`; a dash where there is none."""
    if isinstance(value, str) or value is None:
        return value or UNKNOWN
    return f"{value:.1e}" if value else "0"


def element(value: Any) -> str:
    """A tensor's value: a float with seven digits, anything else as it is."""
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def percent(share: Any) -> str:
    """`93 %`; a dash where there is none."""
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


def listed(labels: Sequence[str], quoted: Quoted = str, most: int = MOST_NAMES) -> str:
    """`a, b and 7 more`."""
    more = len(labels) - most
    some = ", ".join(quoted(name) for name in (labels[: most - 1] if more > 0 else labels))
    return f"{some} and {more + 1} more" if more > 0 else some


def _and(labels: Sequence[str], quoted: Quoted) -> str:
    """`a, b and c`."""
    if len(labels) > MOST_NAMES or not labels:
        return listed(labels, quoted)
    *most, last = map(quoted, labels)
    return f"{', '.join(most)} and {last}" if most else last


def region(found: Document, quoted: Quoted = str) -> str:
    """`/pad/Pad, /pool/MaxPool (Pad, MaxPool)`."""
    ops = list(dict.fromkeys(found["ops"]))
    return f"{listed(found['nodes'], quoted)} ({listed(ops, quoted)})" if found["nodes"] else "the whole model"


def title(finding: Document, quoted: Quoted = str) -> str:
    """A finding in one line, without its numbers."""
    kind = finding["kind"]
    if kind == "accumulated":
        return "the error accumulates: no region alone explains it"
    if kind == "flaky":
        return f"flaky: {region(finding, quoted)} fails in {percent(finding['rate'])} of runs"
    if kind == "unresolved":
        return f"unresolved: {quoted(finding['reason'])}"
    sure = "smallest failing region" if finding["certified"] else "failing region, not certified as the smallest"
    return f"{sure}: {region(finding, quoted)}"


def runtime(one: Document) -> list[str]:
    """Name, backend, version and precision of a candidate or reference; nothing twice."""
    return [part for part in dict.fromkeys(one[key] for key in ("name", "backend", "version", "precision")) if part]


def headline(document: Document, quoted: Quoted = str) -> str:
    """The whole document in one line."""
    findings, why = document["findings"], document["whole"]["why"]
    if document["agree"]:
        claimed = document["outcome"] == "claimed"
        said = f"agrees within {document['candidate']['precision']} rounding" if claimed else "they agree"
        return f"{said}{f': {quoted(why)}' if why else ''}"
    if not findings:
        return f"nothing was established{f': {quoted(why)}' if why else ''}"
    more = len(findings) - 1
    return title(findings[0], quoted) + (f"; {count(more, 'more finding')}" if more else "")


def word(judged: Document) -> str:
    """`agree`, `FAIL`, `FAIL (crash)`, `refused`, `unresolved`: what a verdict, a step or a row says."""
    signature = judged.get("signature")
    if judged["status"] == "fail":
        return f"FAIL{f' ({signature})' if signature not in (None, 'mismatch') else ''}"
    return str(signature or "unresolved") if judged["status"] == "unresolved" else "agree"


def span(step: Document, quoted: Quoted = str) -> str:
    """`conv1 … prob`, or the one node; empty where a step has none."""
    ends = [quoted(step[key]) for key in ("first", "last") if step[key]]
    return " … ".join(dict.fromkeys(ends))


def sentences(finding: Document, quoted: Quoted = str) -> list[str]:
    """A finding's numbers, a line each: how it fails alone, the certificate, how it grows, how sure it is."""
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
    sure = "certified" if finding["certified"] else "nearest"
    verb = "agrees alone" if len(near["nodes"]) == 1 else "agree alone"
    return [f"{sure}: without {without}, {_and(near['nodes'], quoted)} {verb}"]


def _reservations(finding: Document, quoted: Quoted) -> list[str]:
    """What a culprit's proof lacks."""
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
    """Precision or bug: the conclusion ("" where there is none), and what it rests on, a line each."""
    known = finding.get("evidence", ())
    conclusion = next((quoted(one["says"]) for one in known if one["kind"] == "conclusion"), "")
    return conclusion, [quoted(one["says"]) for one in known if one["kind"] != "conclusion"]


def other_model(document: Document, quoted: Quoted = str) -> list[str]:
    """Where the candidate runs another model: what the two share, and what each piece of it costs, a line each."""
    told = document.get("other_model")
    if not told:
        return []
    lines = [quoted(told["matched"])]
    for row in told.get("nodes", ())[:DEAREST]:
        left = "" if row["remains"] is None else f", {percent(row['remains'])} is left if it runs on the reference"
        lines.append(f"{region(row | {'ops': [row['op']]}, quoted)} explains {percent(row['explains'])}{left}")
    ops = [
        f"{quoted(row['op'])} {percent(row['explains'])} in {count(row['nodes'], 'piece')}"
        for row in told.get("ops", ())
    ]
    lines += [f"by operator: {listed(ops)}"] if ops else []
    clipped = [f"{quoted(row['tensor'])} {percent(row['share'])}" for row in told.get("saturated", ())]
    return [*lines, *([f"clipped values: {listed(clipped)}"] if clipped else [])]


def stderr(finding: Document) -> list[str]:
    """The last lines that the candidate said before it ended."""
    verdict = finding["verdict"]
    return list(verdict["process"].get("stderr") or ()) if verdict else []
