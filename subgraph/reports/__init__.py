"""Reports: the document of a bisection, a comparison or a recording -> text. Each form is one file
in this folder.

To add a form, write `reports/NAME.py`; `subcut report -f NAME` and the contract test find it by its
file name:

    \"""One line of help.\"""
    FILE = "report.txt"                       # the file name under which it is written

    def render(document: BisectDocument) -> str:    # the whole text, ending with one line end
        shown = cleaned(document)             # names from a model lose control characters
        return f"{headline(shown)}\\n"

    def render_compared(document: ComparedDocument) -> str:   # optional: of `compare`, recordings
        return f"{view(cleaned(document)).headline}\\n"

    def render_sweep(document: SweepDocument) -> str:      # optional: of `sweep`
        return f"{document.exit_code}\\n"

A report computes nothing: all numbers are in the document, whose fields the dataclasses in
`subgraph.results` describe. The phrases that forms share are here. Every text that comes from a
model or a candidate passes through `quoted`, with which a form escapes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import chain
from pathlib import PurePath
from typing import Any, Protocol, TypeVar, cast

from subgraph import plugins, system
from subgraph.reports._compared import Compared as Compared
from subgraph.reports._compared import ComparedDocument as ComparedDocument
from subgraph.reports._compared import JudgedTensor as JudgedTensor
from subgraph.reports._compared import View as View
from subgraph.reports._compared import judged_tensors as judged_tensors
from subgraph.reports._compared import origins as origins
from subgraph.reports._compared import reason as reason
from subgraph.reports._compared import view as view
from subgraph.reports._forms import can_render as can_render
from subgraph.reports._forms import rendered as rendered
from subgraph.reports._forms import renderer as renderer
from subgraph.results.bisect import (
    BisectDocument,
    FindingDocument,
    InnerFinding,
    InsideDocument,
    Off,
    StepDocument,
    WorstElement,
)
from subgraph.results.common import RuntimeDocument
from subgraph.results.recorded import IntervalFinding, Suspect
from subgraph.results.sweep import SweepDocument, SweepOutcome
from subgraph.search.findings import FindingKind, Outcome
from subgraph.search.predicate import RegionOutcome
from subgraph.text import clean, count, from_run, prediction
from subgraph.verdict import NUMBERS, Signature, Status, VerdictDocument, name_failure

BAD = (SweepOutcome.WRONG, SweepOutcome.CRASHED, SweepOutcome.TIMEOUT)
MAX_PIECES = 3  # of another model, the most expensive ones; and places in a headline
MAX_NAMES = 6  # of a region, in a line
UNKNOWN = "–"
FLAKY = "flaky"
PROVEN = (FindingKind.CULPRIT, FindingKind.FLAKY)
LEAST_SHARE = 0.005  # what is rounded to 0 %
DEVICES = ("by-hand", "recorded")  # backends of candidates that subcut cannot call

T = TypeVar("T")  # a document, or a part of one
Quoted = Callable[[str], str]


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
    """The same document with every text safe to show: no control characters, no marks that reverse a line.

    >>> cleaned({"nodes": ["a\\x1b[31m\\n"]})
    {'nodes': ['a[31m']}
    """  # noqa: E501
    return cast("T", _cleaned(value))


def _cleaned(value: Any) -> Any:
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return clean(value).replace("\ufffe", "").replace("\uffff", "")  # XML cannot hold these two
    if isinstance(value, Mapping):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_cleaned, value))
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{f.name: _cleaned(getattr(value, f.name)) for f in fields(value)})
    return value


# ------------------------------------------------------------ numbers


def error(value: float | None) -> str:
    """An error: `1.1e-02`, `0`, `inf`; a dash for None."""
    if value is None:
        return UNKNOWN
    return f"{value:.1e}" if value else "0"


def size(judged: HasSignature, value: float | None) -> str:
    """The relative error of a verdict or step; where its values are NaN or infinite, that comes
    first: `NaN`."""
    return "NaN" if judged.signature == Signature.NAN else error(value)


def element(value: float | int | bool | str) -> str:
    """A tensor's value: a float with seven digits, anything else as it is."""
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def percent(share: float | None) -> str:
    """`93 %`, `under 1 %`, `more than all`, `none`; a dash for None. Shares beyond all and below nothing are those of
    errors that cancel each other.

    >>> [percent(share) for share in (0.93, 0.002, 0.0, 6.5, -1.79, None)]
    ['93 %', 'under 1 %', '0 %', 'more than all', 'none', '–']
    """  # noqa: E501
    if share is None:
        return UNKNOWN
    if not math.isfinite(share):
        return str(share)
    if share > 1 + LEAST_SHARE:
        return "more than all"
    if share < -LEAST_SHARE:
        return "none"
    return "under 1 %" if 0 < share < LEAST_SHARE else f"{abs(share) * 100:.0f} %"


def explained(share: float) -> str:
    """`explains 93 % of the final error`."""
    cancels = ": errors cancel" if percent(share) in ("more than all", "none") else ""
    return f"explains {percent(share)} of the final error{cancels}"


def seconds(value: float) -> str:
    """`0.6 ms`, `41 ms`, `4.1 s`, `12 min`."""
    if value >= 120:
        return f"{value / 60:.0f} min"
    return f"{value * 1e3:.{int(value < 0.01)}f} ms" if value < 1 else f"{value:.1f} s"


def shape(sizes: Iterable[Any]) -> str:
    """`1×64×56×56`; `scalar` for none."""
    return "×".join(map(str, sizes)) or "scalar"


# ------------------------------------------------------------ words


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


def region(places: HasNodes, quoted: Quoted = str) -> str:
    """`/pad/Pad, /pool/MaxPool (Pad, MaxPool)`."""
    return _region(places.nodes, places.ops, quoted)


def _region(nodes: Sequence[str], ops: Sequence[str], quoted: Quoted) -> str:
    ops = list(dict.fromkeys(ops))
    return f"{listed(nodes, quoted)} ({listed(ops, quoted)})" if nodes else "the whole model"


def title(finding: FindingDocument, quoted: Quoted = str) -> str:
    """A finding in one line, without its numbers."""
    kind = finding.kind
    over = f" over {region(finding, quoted)}; no part of it explains more than others"
    if kind is FindingKind.ACCUMULATED:
        return (
            "the error"
            f" accumulates{'; no region alone explains it' if finding.contributors else over}"
        )
    if kind is FindingKind.FLAKY:
        return f"flaky: {region(finding, quoted)} fails in {percent(finding.rate)} of runs"
    if kind is FindingKind.UNRESOLVED:
        return f"unresolved: {quoted(finding.reason or '')}"
    if everywhere(finding):
        off = [*finding.nodes, *(finding.alike or ())]
        return (
            f"each of {len(off)} nodes, of all kinds, is off alone, so none is the culprit:"
            f" {listed(off, quoted)}"
        )
    if finding.rounding:
        return f"contributes rounding: {region(finding, quoted)}"
    claim = (
        "smallest failing region"
        if finding.certified
        else "failing region, perhaps not the smallest"
    )
    return f"{claim}: {region(finding, quoted)}{again(finding)}"


def all_indices(finding: FindingDocument | IntervalFinding) -> list[int]:
    """Positions of the nodes of a finding, and of the regions that it stands for."""
    repeats = finding.repeats if isinstance(finding, FindingDocument) else None
    return [*finding.indices, *chain.from_iterable(r.indices for r in repeats or ())]


def again(finding: FindingDocument) -> str:
    """`, × 7 (each of 7 Conv)`: how many regions a finding stands for; "" for one."""
    repeats = finding.repeats or ()
    if not repeats:
        return ""
    number = 1 + len(repeats)
    each = f" (each of {number} {finding.ops[0]})" if finding.of_kind == number else ""
    return f", × {number}{each}"


def is_proven(finding: FindingDocument | IntervalFinding) -> bool:
    """Are a finding's nodes wrong by what was run, or only suspects: of a recording, or a region in
    doubt?"""
    return finding.kind in PROVEN


def everywhere(finding: FindingDocument) -> bool:
    """Does a finding stand for nearly all nodes, each of which is off alone?"""
    return bool(finding.alike) and finding.signature is not Signature.REFUSED


def runtime(about: RuntimeDocument) -> list[str]:
    """Name, backend, version and precision of a candidate or reference, without a backend that is
    called so."""
    backend = PurePath(about.backend).name
    named = PurePath(about.name).name == backend
    return [
        part
        for part in (about.name, "" if named else backend, about.version, about.precision)
        if part
    ]


def replay_command(document: BisectDocument, case: str) -> str:
    """What runs a case again; of a device that cannot be called, what judges its outputs. Code of
    the user's is named once more: what only the case names would need `--trust`."""
    about = document.candidate
    if about.backend in DEVICES:
        return f"subcut compare {case} --recorded DIR"
    reference = document.reference
    if _stated(reference, "SCRIPT"):  # beside onnxruntime, the module is what differs
        about = reference
    runs_commands = any(step in about.options for step in _stated(about, "COMMANDS") or ())
    is_code = about.backend.endswith(".py") or runs_commands or _stated(about, "SCRIPT")
    spec = f" -c {system.quote(about.name)}" if is_code else ""
    criterion = document.criterion
    rule = (
        "" if criterion == "noise" else f" --criterion {system.quote(criterion)}"
    )  # by the usual one it may agree
    return f"subcut replay {case}{spec}{rule}"


def _stated(about: RuntimeDocument, name: str) -> Any:
    """A constant of the backend of a candidate or reference; None if it is not one of subcut's
    own."""
    is_own = about.backend in plugins.own_names("backends")
    return plugins.constant("backends", about.backend, name) if is_own else None


def headline(document: BisectDocument, quoted: Quoted = str) -> str:
    """The verdict on the whole document in one line: right, wrong, flaky or unresolved, and of how
    many nodes."""
    says = _outcome(document, quoted)
    is_flaky = document.flaky_tensors and not says.startswith(FLAKY)
    return f"{FLAKY}, {says}" if is_flaky else says


def _outcome(document: BisectDocument, quoted: Quoted) -> str:
    """The headline of a candidate that returns the same values each time."""
    findings = document.findings
    why = document.whole.why
    if document.agree:
        claimed = document.outcome is Outcome.CLAIMED
        right = f"right within {document.candidate.precision} rounding" if claimed else "right"
        if pieces := document.pieces:
            right = f"right {quoted(pieces)}"
        whole = f": {_agreeing(document, quoted)}" if document.whole.status is Status.AGREE else ""
        return f"{right}{whole}"
    if document.outcome == "pinned":
        return "right with pinned shapes only: the candidate does not run the file as shipped"
    if document.outcome is Outcome.ELSEWHERE:
        return "wrong, but not in the region that was asked about"
    if precise := document.precise:
        setting = ",".join(f"{k}={v}" for k, v in precise.options.items())
        return (
            f"wrong only in {precise.computes_in}: with {quoted(setting)} the outputs agree in"
            f" {precise.precision}"
        )
    if not findings:
        return f"inconclusive: {quoted(why) or 'nothing was compared'}"
    only_rounds = all(f.rounding and innermost(f) == [f] for f in findings)
    if (
        only_rounds
        and any(f.kind is not FindingKind.ACCUMULATED for f in findings)
        and document.whole.signature in NUMBERS
    ):
        return _rounding(document, quoted)
    is_known = any(f.kind is not FindingKind.UNRESOLVED for f in findings)
    verdict = document.whole
    is_silent = verdict.status is not Status.FAIL and bool(verdict.mute)
    is_hidden = verdict.status is Status.AGREE or is_silent
    masked = "outputs agree, the inside does not: " if is_known and is_hidden else ""
    places = all(
        f.kind is FindingKind.CULPRIT and f.certified and not wrong_input(f) for f in findings
    )
    if places and 1 < len(findings) <= MAX_PIECES:
        wrong = len(set(chain.from_iterable(map(all_indices, findings))))
        what = _name_failures(findings)
        nodes = f"{wrong} of {count(_searched(document), 'node')} in {len(findings)} places"
        return (
            f"{masked}{what}{since(document)}: {nodes}:"
            f" {'; '.join(_place(f, quoted) for f in findings)}"
        )
    more = f"; {count(len(findings) - 1, 'more finding')}" if len(findings) > 1 else ""
    return f"{masked}{_verdict(document, quoted)}{more}"


def _rounding(document: BisectDocument, quoted: Quoted) -> str:
    """Where every finding is rounding, none is a culprit: `wrong by numpy, but only by rounding,
    not a bug: …`."""
    findings = [f for f in document.findings if not everywhere(f)]
    shared = [[c.node for c in f.contributors or ()] or f.nodes for f in findings]
    nodes = list(dict.fromkeys(node for one in shared for node in one))
    some = (
        f"; {listed(nodes, quoted)} contribute{'s' if len(nodes) == 1 else ''} most"
        if nodes
        else ""
    )
    return (
        f"wrong by {quoted(document.criterion)}, but only by rounding, not a bug: no node is a"
        f" culprit{some}"
    )


def _agreeing(document: BisectDocument, quoted: Quoted) -> str:
    """`outputs agree; intermediate tensors were not checked`: what was compared, all of which
    agrees."""
    looked_at = document.looked_at  # documents of before have none
    inner = looked_at.inner if looked_at else None
    where = f", and {quoted(looked_at.within)} alone" if looked_at and looked_at.within else ""
    mute = "".join(
        f"; this input tells nothing about '{quoted(name)}'" for name in document.whole.mute or ()
    )
    if inner is None:
        return f"outputs agree{where}; intermediate tensors were not checked{mute}"
    if looked_at and (disturbance := looked_at.disturbance):
        moved = (
            f"reading them changed the outputs by {100 * disturbance:.2g} % of their largest value"
        )
        return (
            f"outputs agree; {count(inner, 'intermediate tensor')} agree too, but"
            f" {moved}{where}{mute}"
        )
    return f"outputs and {count(inner, 'intermediate tensor')} agree{where}{mute}"


def _verdict(document: BisectDocument, quoted: Quoted) -> str:
    """The verdict that the first finding leads to: `wrong: 2 of 27 nodes: a, b (Pad, MaxPool)`."""
    finding = document.findings[0]
    kind = finding.kind
    wrong = document.whole.status is Status.FAIL
    if kind is FindingKind.UNRESOLVED:
        how = name_failure(document.whole.signature, document.whole.process)
        known = f"{how}, cause not found" if wrong else "inconclusive"
        return f"{known}: {quoted(finding.reason or '')}"
    if kind is FindingKind.FLAKY:
        return title(finding, quoted)
    if kind is FindingKind.ACCUMULATED or everywhere(finding):
        return f"wrong: {title(finding, quoted)}"
    if misread := wrong_input(finding, quoted):
        return f"wrong: {misread}; seen at {region(finding, quoted)}"
    most = "" if finding.certified else "at most "
    nodes = f"{len(all_indices(finding))} of {count(_searched(document), 'node')}"
    return (
        f"{_name_failures(document.findings)}{since(document)}: {most}{nodes}:"
        f" {_place(finding, quoted)}"
    )


def _name_failures(findings: Sequence[FindingDocument]) -> str:
    """How all findings fail, in one word or `dies of SIGSEGV`; `wrong` if they fail differently."""
    ends = [finding.verdict.process if finding.verdict else {} for finding in findings]
    words = {name_failure(f.signature, end) for f, end in zip(findings, ends, strict=True)}
    return words.pop() if len(words) == 1 else "wrong"


def since(document: BisectDocument) -> str:
    """` from the second run of a session on`; "" where the first run is wrong as well."""
    return f" {words}" if (words := from_run(document.whole.from_run)) else ""


def _place(finding: FindingDocument, quoted: Quoted) -> str:
    """The region of a finding, with what is known to be wrong in it: `loop1 (Loop), in it
    loop1/body@2/n (Neg)`."""
    inner = innermost(finding)
    more = (
        ""
        if inner[0] is finding
        else f", in it {listed([region(f, quoted) for f in inner], most=MAX_PIECES)}"
    )
    return region(finding, quoted) + again(finding) + more


def _searched(document: BisectDocument) -> int:
    """Number of nodes among which was searched: those that carry values; of the model, where no
    step tells it, or a finding has others."""
    if any(finding.constants for finding in document.findings):
        return document.model.nodes
    return next(
        (s.count for s in document.steps if not s.indices),
        document.model.nodes,
    )


def shares(document: BisectDocument) -> list[str]:
    """How the shares of several findings relate, in a line; empty where there are not several."""
    known = [
        f.explains
        for f in document.findings
        if f.explains is not None and math.isfinite(f.explains)
    ]
    total = sum(known)
    if len(known) < 2:
        return []
    if round(total * 100) > 100 or min(known) < 0:
        return ["the shares overlap: errors partly cancel or add up along one path"]
    return [
        f"together they explain {percent(total)} of the final error; {percent(1 - total)} is left"
    ]


def common_cause(document: BisectDocument, quoted: Quoted = str) -> list[str]:
    """What all of several findings look like, in a line; empty where they do not look alike."""
    findings = document.findings
    likenesses = [{e.says for e in f.evidence if e.kind == "likeness"} for f in findings]
    common = set.intersection(*likenesses) if len(findings) > 1 else set()
    return (
        [f"all {len(findings)} findings share one cause: {quoted(sorted(common)[0])}"]
        if common
        else []
    )


def predictions(document: BisectDocument, quoted: Quoted = str) -> list[str]:
    """`logits: prediction unchanged`, a line per output that looks like class scores."""
    return [
        f"{quoted(name)}: {prediction(both.top1, both.top5)}"
        for name, both in document.whole.ranking.items()
    ]


def runs(document: BisectDocument) -> str:
    """`24 trials: 23 in the steps, 1 to measure shares; 1 step reuses a trial`: the number that all
    reports give."""
    by_purpose = {"explain": 0, "inside": 0, **document.runs}
    others = {"to measure shares": by_purpose["explain"], "inside of nodes": by_purpose["inside"]}
    own = document.trials - sum(others.values())
    reused = len(document.steps) - own
    parts = [f"{n} {what}" for what, n in {"in the steps": own, **others}.items() if n]
    again = (
        f"; {count(reused, 'step')} {'reuses' if reused == 1 else 'reuse'} a trial"
        if reused > 0
        else ""
    )
    measured = f": {', '.join(parts)}" if len(parts) > 1 else ""
    return f"{count(document.trials, 'trial')}{measured}{again}"


def word(judged: HasStatus) -> str:
    """`agree`, `FAIL`, `FAIL (crash)`, `FAIL, accounts for little`, `refused`, `unresolved`: of a
    verdict, a step or a row. A criterion's label that says more than that they agree follows:
    `agree (range)`."""
    signature = getattr(judged, "signature", None)  # a row of a profile has none
    if judged.status in (Status.FAIL, RegionOutcome.MINOR):
        little = ", accounts for little" if judged.status == RegionOutcome.MINOR else ""
        kind = "" if signature in (None, Signature.MISMATCH) else f" ({signature})"
        return f"FAIL{kind}{little}"
    if judged.status == Status.UNRESOLVED:
        return str(signature or Status.UNRESOLVED)
    label = getattr(judged, "label", "")  # a step has none
    return "agree" if label in ("", "agrees") else f"agree ({label})"


def span(step: StepDocument, quoted: Quoted = str) -> str:
    """`conv1 … prob`, or the only node; empty for a step without nodes."""
    ends = [quoted(end) for end in (step.first, step.last) if end]
    return " … ".join(dict.fromkeys(ends))


def sentences(finding: FindingDocument, quoted: Quoted = str) -> list[str]:
    """A finding's source and numbers, a line each: share, how it fails alone, how the error grows,
    if 1-minimal."""
    share = finding.explains
    lines = [
        *insides(finding.inside, quoted, finding.signature),
        *map(quoted, finding.blame or ()),
        *origins(finding, quoted),
    ]
    lines += [explained(share)] if share is not None else []
    lines += [_alone(finding, quoted)] if finding.verdict or finding.worst else []
    if finding.kind is FindingKind.ACCUMULATED:
        lines += _growing(finding, quoted)
    if finding.kind is FindingKind.UNRESOLVED and finding.nodes:
        lines.append(f"smallest region in doubt: {region(finding, quoted)}")
    if finding.runs:
        lines.append(f"failed in {finding.runs.failed} of {count(finding.runs.of, 'run')}")
    elif finding.reproduces is not None and finding.reproduces < 1:
        lines.append(f"fails in {percent(finding.reproduces)} of its runs")
    incomplete = is_proven(finding) and finding.why  # the proof that it is the culprit
    if repeats := finding.repeats:
        names = listed(
            [" … ".join(dict.fromkeys((r.nodes[0], r.nodes[-1]))) for r in repeats], quoted
        )
        lines.append(f"so {'does' if len(repeats) == 1 else 'do'} {names}")
    return [
        *lines,
        *_certificate(finding, quoted),
        *([quoted(finding.why)] if incomplete else []),
    ]


def insides(
    found: InsideDocument | None, quoted: Quoted = str, signature: Signature | None = None
) -> list[str]:
    """What a search in a node's body found, from outside to inside. `signature`: how the node
    itself fails."""
    if not found:
        return []
    k = found.iteration
    where = f"inside {quoted(found.body)}"
    where += "" if k is None else f", wrong from iteration {k} of {found.iterations} on"
    if not found.findings:
        agrees = found.outcome in (Outcome.AGREE, Outcome.CLAIMED)
        alone = (
            "what is in it agrees alone, so the node itself is wrong"
            if agrees
            else "nothing was established"
        )
        if agrees and signature is Signature.REFUSED:
            alone = (
                "the body that runs is accepted alone; the runtime refuses the node with all of its"
                " bodies"
            )
        return [f"{where}: {quoted(found.why) or alone}"]
    why = f"; {quoted(found.why)}" if found.why else ""
    lines = []
    for inner in found.findings:
        doubt = (
            "unresolved, the smallest region in doubt: "
            if inner.kind == FindingKind.UNRESOLVED
            else ""
        )
        lines.append(f"{where}: {doubt}{region(inner, quoted)}{why}")
        lines += [f"  case {quoted(inner.case)}"] if inner.case else []
        lines += insides(inner.inside, quoted, inner.signature)
    return lines


Finding = FindingDocument | InnerFinding


def innermost(finding: Finding) -> list[Finding]:
    """The certified findings that are furthest inside of a finding; the finding itself where there
    are none."""
    inner = [f for f in (finding.inside.findings if finding.inside else ()) if f.certified]
    return [deepest for f in inner for deepest in innermost(f)] or [finding]


def _alone(finding: FindingDocument, quoted: Quoted) -> str:
    worst = finding.worst
    verdict = finding.verdict
    why = f": {quoted(verdict.why)}" if verdict and verdict.why else ""
    if worst is None:
        said = f"{word(verdict)}{why}" if verdict else ""
        return f"alone, on the reference's inputs: {said}"
    seen = beside(worst, finding.off)
    reasons = [j.name for j in verdict.outputs if j.why == verdict.why] if verdict else []
    decisive = reasons[0] if reasons else worst.tensor  # whose reason it is
    where = "" if decisive == worst.tensor else f"{quoted(worst.tensor)}: "
    return f"alone, on the reference's inputs: {quoted(decisive)}{why}; {where}{seen}"


def swept(document: SweepDocument) -> str:
    """`wrong.py: 3 of 41 operators wrong`, for each candidate; of those that are not wrong, what is
    right."""
    parts = []
    for k, candidate in enumerate(document.candidates):
        operators = [o.totals[k] for o in document.operators]
        wrong = sum(any(totals[word] for word in BAD) for totals in operators)
        right = sum(totals[SweepOutcome.RIGHT] == sum(totals.values()) for totals in operators)
        what = (
            f"{wrong} of {count(len(operators), 'operator')} wrong"
            if wrong
            else f"right in {right} of {len(operators)}"
        )
        parts.append(f"{candidate.name}: {what}")
    return "; ".join(parts)


def beside(worst: WorstElement, off: Off | None) -> str:
    """`expected 0.25, got 0.19 at [0,1]; 3 of 64 values differ`."""
    at = ",".join(map(str, worst.index))
    share = f"; {off.count} of {off.of} values differ" if off else ""
    return f"expected {element(worst.reference)}, got {element(worst.candidate)} at [{at}]{share}"


def _certificate(finding: FindingDocument, quoted: Quoted) -> list[str]:
    """Whether the region is 1-minimal, and the nearest region that agrees."""
    near = finding.nearest
    if not near:
        return []
    rest = f"{_and(near.nodes, quoted)} {'agrees' if len(near.nodes) == 1 else 'agree'}"
    if not finding.certified:
        return [f"not shown to be minimal; without {_and(near.without, quoted)}, {rest}"]
    if len(finding.nodes) == 1:
        return [f"minimal: a single node; without it, {rest}"]
    which = "either node" if len(finding.nodes) == 2 else "any one node"
    return [f"minimal: removing {which} makes the error vanish"]


def _growing(finding: FindingDocument, quoted: Quoted) -> list[str]:
    growth = finding.growth
    lines = []
    if growth:
        first = growth[0]
        last = growth[-1]
        after = f"{error(last.error)} after {last.nodes}"
        lines.append(
            f"the error grows from {error(first.error)} after {count(first.nodes, 'node')} to"
            f" {after}"
        )
    parts = [
        f"{quoted(c.node)} ({quoted(c.op)}) {percent(c.explains)}"
        for c in finding.contributors or ()
    ]
    return [*lines, *([f"largest shares: {listed(parts)}"] if parts else [])]


def evidence(finding: FindingDocument, quoted: Quoted = str) -> tuple[str, list[str]]:
    """Precision or bug: the conclusion ("" for none), and the evidence for it, a line each; of the
    innermost finding, whose error nothing dilutes."""
    lines = innermost(finding)[0].evidence
    conclusion = next((quoted(line.says) for line in lines if line.kind == "conclusion"), "")
    reasons = [quoted(line.says) for line in lines if line.kind not in ("conclusion", "input")]
    reasons += [quoted(difference.text) for difference in finding.differences or ()]
    if finding.more_differences:
        reasons.append(f"and {count(finding.more_differences, 'further difference')}")
    return conclusion, reasons


def wrong_input(finding: FindingDocument, quoted: Quoted = str) -> str:
    """`your input is laid out NHWC, but read as NCHW`, where that is all; "" otherwise."""
    return next(
        (quoted(line.says) for line in finding.evidence if line.kind == "input"),
        "",
    )


def other_model(document: BisectDocument, quoted: Quoted = str) -> list[str]:
    """If the candidate runs another model: what the two share, and the error that each piece adds,
    a line each."""
    other = document.other_model
    if not other:
        return []
    lines = [quoted(other.matched)]
    for row in (other.nodes or ())[:MAX_PIECES]:
        left = (
            ""
            if row.remains is None
            else f"; with it on the reference, {percent(row.remains)} is left"
        )
        explains = f"{_region(row.nodes, [row.op], quoted)} explains {percent(row.explains)}"
        lines.append(f"{explains}{left}")
    ops = [
        f"{quoted(row.op)} {percent(row.explains)} in {count(row.nodes, 'piece')}"
        for row in other.ops or ()
    ]
    lines += [f"by operator: {listed(ops)}"] if ops else []
    clipped = [f"{quoted(row.tensor)} {percent(row.share)}" for row in other.saturated or ()]
    return [*lines, *([f"values clipped by their scale: {listed(clipped)}"] if clipped else [])]


def stderr(finding: FindingDocument) -> list[str]:
    """The last lines that the candidate wrote to standard error before it ended."""
    verdict = finding.verdict
    return stderr_lines(verdict) if verdict else []


def stderr_lines(verdict: VerdictDocument) -> list[str]:
    """The last lines that the candidate wrote to standard error."""
    lines = verdict.process.get("stderr")
    return list(map(str, lines)) if isinstance(lines, (list, tuple)) else []


# ------------------------------------------------------------ compared


def outcome(cell: Compared) -> str:
    """`agree`, `FAIL (nan), unlike simulator`, `unresolved`; a dash for a tensor that was not
    seen."""
    if not cell.status:
        return UNKNOWN
    outcome_text = word(cell)
    return f"{outcome_text}, {cell.beside}" if cell.beside else outcome_text


def figure(cell: Compared) -> str:
    """The relative error of a cell; a dash where there is none."""
    return error(cell.error)


def place(finding: IntervalFinding, quoted: Quoted = str) -> list[str]:
    """An interval's ends, suspects and unseen tensors, a line each."""
    good = [f"{_and(finding.last_good, quoted)} (good)"] if finding.last_good else []
    good += (
        [f"{_and(finding.wrong_before, quoted)} (wrong already)"] if finding.wrong_before else []
    )
    lines = [
        f"from {', '.join(good) or 'the model input'} to {_and(finding.first_bad, quoted)} (wrong)"
    ]
    if finding.adds_an_error is False:
        lines.append(
            "fed with what was recorded before it, the reference gives the same: the error grew"
            " above"
        )
    lines.append(
        f"suspects, the likeliest first: {listed([_suspect(s, quoted) for s in finding.suspects])}"
    )
    return [
        *lines,
        *([f"not seen: {listed(finding.not_seen, quoted)}"] if finding.not_seen else []),
    ]


def _suspect(suspect: Suspect, quoted: Quoted) -> str:
    line = str(suspect.source or "")
    source = f", from {quoted(line)}" if line else ""
    why = f": {quoted(suspect.why)}" if suspect.why else ""
    return f"#{suspect.index} {quoted(suspect.node)} ({quoted(suspect.op)}){source}{why}"


def interval_title(finding: IntervalFinding, quoted: Quoted = str) -> str:
    """`at most 3 nodes: conv1, relu1, add1`."""
    what = "" if finding.first else "behind it, adds an error of its own: "
    return f"{what}at most {count(len(finding.nodes), 'node')}: {listed(finding.nodes, quoted)}"


def left_out(shown: View, quoted: Quoted = str) -> list[str]:
    """What was recorded and not compared, a line per reason."""
    return [
        f"{n} left out, {quoted(why)}{f': {listed(names, quoted)}' if names else ''}"
        for why, n, names in shown.left_out
    ]
