"""Phrases and numbers that the forms of report share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any, Protocol, TypeVar, cast

from subgraph.iterables import drop_repeats, flatten
from subgraph.reports._compared import ComparedCell, View
from subgraph.results.bisect import (
    DeviatingElements,
    FindingDocument,
    WorstElement,
)
from subgraph.results.common import RuntimeDocument
from subgraph.results.compare import IntervalFinding, Suspect
from subgraph.results.sweep import SweepDocument, SweepOutcome
from subgraph.search.oracle import FindingKind, RegionOutcome
from subgraph.text import clean, count, list_some
from subgraph.verdict import Signature, Status, VerdictDocument

BAD = (SweepOutcome.WRONG, SweepOutcome.CRASHED, SweepOutcome.TIMEOUT)
MAX_PIECES = 3  # pieces of the candidate's model, findings or regions that one text names
MAX_NAMES = 6  # names of a region in a line
UNKNOWN = "–"
PROVEN = (FindingKind.CULPRIT, FindingKind.FLAKY)
MIN_SHARE = 0.005  # smaller shares would be rounded to 0 %

T = TypeVar("T")  # a document, or a part of one


class HasStatus(Protocol):
    """A verdict, a step, a row or a cell."""

    @property
    def status(self) -> str: ...


class HasSignature(Protocol):
    """A verdict, a step or a piece."""

    @property
    def signature(self) -> Signature | None: ...


class HasNodes(Protocol):
    """Nodes with their operators."""

    @property
    def nodes(self) -> Sequence[str]: ...
    @property
    def ops(self) -> Sequence[str]: ...


def cleaned(value: T) -> T:
    """Return a document without control characters and marks that reverse a line.

    >>> cleaned({"nodes": ["a\\x1b[31m\\n"]})
    {'nodes': ['a']}
    """
    return cast("T", _clean(value))


def _clean(value: Any) -> Any:
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return clean(value).replace("\ufffe", "").replace("\uffff", "")  # XML cannot hold these two
    if isinstance(value, Mapping):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_clean, value))
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{f.name: _clean(getattr(value, f.name)) for f in fields(value)})
    return value


# ------------------------------------------------------------ numbers


def format_error(value: float | None) -> str:
    """Return an error as `1.1e-02`, `0` or `inf`; a dash for None."""
    if value is None:
        return UNKNOWN
    return f"{value:.1e}" if value else "0"


def format_deviation(judged: HasSignature, value: float | None) -> str:
    """Return the relative error of a verdict or step; `NaN` if its values are NaN."""
    if judged.signature == Signature.NAN:
        return "NaN"
    return format_error(value)


def format_element(value: float | int | bool | str) -> str:
    """Return a tensor's value: a float with seven digits, anything else as it is."""
    if isinstance(value, float):
        return f"{value:.7g}"
    return str(value)


def format_percent(share: float | None) -> str:
    """Return a share in words; a dash for None.

    Shares of errors that cancel each other are larger than 1 or negative.

    >>> [format_percent(share) for share in (0.93, 0.002, 0.0, 6.5, -1.79, None)]
    ['93 %', 'under 1 %', '0 %', 'more than all', 'none', '–']
    """
    if share is None:
        return UNKNOWN
    if not math.isfinite(share):
        return str(share)
    if share > 1 + MIN_SHARE:
        return "more than all"
    if share < -MIN_SHARE:
        return "none"
    if 0 < share < MIN_SHARE:
        return "under 1 %"
    return f"{abs(share) * 100:.0f} %"


def explain_share(share: float) -> str:
    """Return `explains 93 % of the final error`."""
    cancels = ": errors cancel" if format_percent(share) in ("more than all", "none") else ""
    return f"explains {format_percent(share)} of the final error{cancels}"


def format_seconds(value: float) -> str:
    """Return `0.6 ms`, `41 ms`, `4.1 s` or `12 min`."""
    if value >= 120:
        return f"{value / 60:.0f} min"
    if value < 1:
        return f"{value * 1e3:.{int(value < 0.01)}f} ms"
    return f"{value:.1f} s"


# ------------------------------------------------------------ words


def format_list(labels: Sequence[str], most: int = MAX_NAMES) -> str:
    """Return `a, b and 7 more`."""
    return list_some(labels, most - (len(labels) > most))


def join_with_and(labels: Sequence[str]) -> str:
    """Return `a, b and c`."""
    if len(labels) > MAX_NAMES or not labels:
        return format_list(labels)
    *most, last = labels
    return f"{', '.join(most)} and {last}" if most else last


def format_region(places: HasNodes) -> str:
    """Return nodes with their operators: `/pad/Pad, /pool/MaxPool (Pad, MaxPool)`."""
    return format_nodes(places.nodes, places.ops)


def format_nodes(nodes: Sequence[str], ops: Sequence[str]) -> str:
    """Return names and their operators: `a, b (Pad, MaxPool)`."""
    ops = drop_repeats(ops)
    if nodes:
        return f"{format_list(nodes)} ({format_list(ops)})"
    return "the whole model"


def format_title(finding: FindingDocument) -> str:
    """Return a finding in one line, without its numbers."""
    kind = finding.kind
    place = format_region(finding)
    if kind is FindingKind.ACCUMULATED and finding.effect.contributors:
        return "the error accumulates; no region alone explains it"
    if kind is FindingKind.ACCUMULATED:
        return f"the error accumulates over {place}; no part of it explains more than others"
    if kind is FindingKind.FLAKY:
        return f"flaky: {place} fails in {format_percent(finding.run.rate)} of runs"
    if kind is FindingKind.UNRESOLVED:
        return f"unresolved: {finding.cause.reason or ''}"
    if is_everywhere(finding):
        nodes = [*finding.nodes, *(finding.place.alike or ())]
        return (
            f"each of {len(nodes)} nodes, of all kinds, deviates alone, so none is the culprit:"
            f" {format_list(nodes)}"
        )
    if finding.cause.rounding:
        return f"contributes rounding: {place}"
    claim = "smallest failing region"
    if not finding.certified:
        claim = "failing region, perhaps not the smallest"
    return f"{claim}: {place}{describe_repeats(finding)}"


def list_indices(finding: FindingDocument | IntervalFinding) -> list[int]:
    """Return the positions of a finding's nodes and of the regions that repeat it."""
    repeats = finding.place.repeats if isinstance(finding, FindingDocument) else None
    return [*finding.indices, *flatten(r.indices for r in repeats or ())]


def describe_repeats(finding: FindingDocument) -> str:
    """Return how many regions repeat a finding: `, × 7 (each of 7 Conv)`; "" for a single one."""
    number = 1 + len(finding.place.repeats or ())
    kind = finding.place.of_kind
    nodes = ""
    if kind and kind.nodes == number:
        nodes = f" (each of {number} {kind.op})"
    elif kind and kind.distinct:
        nodes = f" (each {kind.op} with {format_list(kind.distinct)})"
    return f", × {number}{nodes}" if number > 1 else ""


def is_proven(finding: FindingDocument | IntervalFinding) -> bool:
    """Return whether runs prove a finding's nodes wrong; else they are suspects."""
    return finding.kind in PROVEN


def is_everywhere(finding: FindingDocument) -> bool:
    """Return whether a finding is about nearly all nodes, each of which deviates alone."""
    return bool(finding.place.alike) and finding.signature is not Signature.REFUSED


def format_runtime(about: RuntimeDocument) -> list[str]:
    """Return name, backend, version and precision; no backend with the same name."""
    backend = PurePath(about.backend).name
    if PurePath(about.name).name == backend:
        backend = ""
    return list(filter(None, (about.name, backend, about.version, about.precision)))


def format_state(judged: HasStatus) -> str:
    """Return the state of a verdict, a step or a row: `agree`, `FAIL (crash)`, `unresolved`.

    A criterion's label other than `agrees` follows: `agree (range)`.
    """
    signature = getattr(judged, "signature", None)  # a row of a profile has none
    if judged.status in (Status.FAIL, RegionOutcome.MINOR):
        little = ", accounts for little" if judged.status == RegionOutcome.MINOR else ""
        kind = "" if signature in (None, Signature.MISMATCH) else f" ({signature})"
        return f"FAIL{kind}{little}"
    if judged.status == Status.UNRESOLVED:
        return str(signature or Status.UNRESOLVED)
    label = getattr(judged, "label", "")  # a step has none
    if label in ("", "agrees"):
        return "agree"
    return f"agree ({label})"


def describe_sweep(document: SweepDocument) -> str:
    """Return `wrong.py: 3 of 41 operators wrong` or `right in 38 of 41`, for each candidate."""
    parts = []
    for k, candidate in enumerate(document.candidates):
        operators = [o.totals[k] for o in document.operators]
        wrong = sum(any(totals[word] for word in BAD) for totals in operators)
        right = sum(totals[SweepOutcome.RIGHT] == sum(totals.values()) for totals in operators)
        result = f"right in {right} of {len(operators)}"
        if wrong:
            result = f"{wrong} of {count(operators, 'operator')} wrong"
        parts.append(f"{candidate.name}: {result}")
    return "; ".join(parts)


def describe_worst(worst: WorstElement, off: DeviatingElements | None) -> str:
    """Return `expected 0.25, got 0.19 at [0,1]; 3 of 64 values differ`."""
    at = ",".join(map(str, worst.index))
    share = f"; {off.count} of {off.of} values differ" if off else ""
    expected = format_element(worst.reference)
    return f"expected {expected}, got {format_element(worst.candidate)} at [{at}]{share}"


def format_stderr(finding: FindingDocument) -> list[str]:
    """Return the last lines that the candidate wrote to standard error before it ended."""
    verdict = finding.run.verdict
    return list_stderr_lines(verdict) if verdict else []


def list_stderr_lines(verdict: VerdictDocument) -> list[str]:
    """Return the last lines that the candidate wrote to standard error."""
    lines = verdict.process.get("stderr")
    if isinstance(lines, (list, tuple)):
        return list(map(str, lines))
    return []


# ------------------------------------------------------------ compared


def format_outcome(cell: ComparedCell) -> str:
    """Return `agree` or `FAIL (nan), unlike simulator`; a dash for an unseen tensor."""
    if not cell.status:
        return UNKNOWN
    outcome_text = format_state(cell)
    if cell.beside:
        return f"{outcome_text}, {cell.beside}"
    return outcome_text


def place(finding: IntervalFinding) -> list[str]:
    """Return an interval's ends, suspects and unseen tensors, a line each."""
    starts = []
    ends = finding.ends
    if ends.last_good:
        starts.append(f"{join_with_and(ends.last_good)} (good)")
    if ends.wrong_before:
        starts.append(f"{join_with_and(ends.wrong_before)} (wrong already)")
    start = ", ".join(starts) or "the model input"
    lines = [f"from {start} to {join_with_and(ends.first_bad)} (wrong)"]
    if ends.adds_an_error is False:
        lines.append(
            "for the recorded inputs, the reference computes the same: the error grew upstream"
        )
    suspects = format_list(list(map(_describe, finding.place.suspects)))
    lines.append(f"suspects, the likeliest first: {suspects}")
    if ends.not_seen:
        lines.append(f"not seen: {format_list(ends.not_seen)}")
    return lines


def _describe(suspect: Suspect) -> str:
    line = str(suspect.source or "")
    source = f", from {line}" if line else ""
    why = f": {suspect.why}" if suspect.why else ""
    return f"#{suspect.index} {suspect.node} ({suspect.op}){source}{why}"


def format_interval(finding: IntervalFinding) -> str:
    """Return `at most 3 nodes: conv1, relu1, add1`."""
    what = "" if finding.ends.first else "downstream, adds another error: "
    return f"{what}at most {count(finding.nodes, 'node')}: {format_list(finding.nodes)}"


def list_left_out(shown: View) -> list[str]:
    """Return the entries that were recorded and not compared, a line per reason."""
    lines = []
    for why, n, names in shown.left_out:
        examples = f": {format_list(names)}" if names else ""
        lines.append(f"{n} left out, {why}{examples}")
    return lines
