"""The document of a bisection -> its answer: a headline, labeled lines, and the next commands.

The terminal, every form of report, the page, a notebook and `--json` show the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from subgraph import plugins, system
from subgraph.iterables import drop_repeats, flatten
from subgraph.reports._compared import (
    PINNED_ALONE,
    AnswerKind,
    Line,
    ReportedAnswer,
    find_reason,
    list_origins,
    make_precise_answer,
)
from subgraph.reports._words import (
    MAX_PIECES,
    describe_repeats,
    describe_worst,
    explain_share,
    format_list,
    format_nodes,
    format_percent,
    format_region,
    format_seconds,
    format_stderr,
    format_title,
    is_everywhere,
    is_proven,
    join_with_and,
    list_indices,
)
from subgraph.results.answer import NextCommand
from subgraph.results.bisect import (
    READS,
    BisectDocument,
    FindingDocument,
    InnerFinding,
    InsideDocument,
)
from subgraph.results.common import RuntimeDocument
from subgraph.search.oracle import FindingKind, Outcome
from subgraph.text import count, describe_agreement, describe_prediction, describe_run, split_spec
from subgraph.verdict import NO_OUTPUT, NUMBERS, Signature, Status, name_failure

DEVICES = ("by-hand", "recorded")  # backends of candidates that subcut cannot call
# Options that a next command does not repeat.
OUTPUT_OPTIONS = ("--json", "--brief", "-q", "--quiet", "--fresh")
# Options of a search that `plan` does not have.
SEARCH_OPTIONS = frozenset(
    "--by --dump-format --dump-layout --ignore --inside --keep-input --loop --max-trials"
    " --may-be-empty --no-freeze --recorded --repeat --weights --where --within".split()
)
MIN_COST = 0.01  # smaller effects of quantized weights or of a node are not stated
MAX_DIFFERENCES = 3  # differences between two models that an answer shows
# The label of a conclusion, by the text that it starts with.
CAUSES = {"a bug: ": "a bug", "rounding, not a bug: ": "rounding"}
RANGE = "range, not a bug: "
COARSE = "the range, not a kernel: "

Finding: TypeAlias = FindingDocument | InnerFinding


def answer(document: BisectDocument) -> ReportedAnswer:
    """Return the answer of a search.

    Args:
        document: The result of a search.
    """
    headline = _make_headline(document)
    if document.whole.flaky_tensors:
        headline = replace(headline, kind=AnswerKind.FLAKY, how="")
    findings = document.findings
    proof = _iter_proof_of_model(document)
    lines = [
        *flatten(describe_finding(f, proof) for f in findings[:1]),
        *_iter_lines_of_model(document),
    ]
    why = find_reason(document.whole.verdict)
    is_said = document.whole.verdict.why == headline.what
    if why and not is_said and not any(map(is_proven, findings)):
        lines.insert(0, ("outputs", why))  # no proven finding has a better reason
        lines.sort(key=lambda line: line[0] != "outputs")
    return replace(
        headline,
        cost=f"{count(document.cost.trials, 'run')}, {format_seconds(document.cost.seconds)}",
        lines=lines,
        further=[(format_title(f), list(describe_finding(f))) for f in findings[1:]],
        next=list(_iter_next(document)),
    )


def add_answer(document: BisectDocument) -> BisectDocument:
    """Return the document with its headline and the next commands."""
    reported = answer(document)
    return replace(document, says=reported.says, next=reported.next)


# ------------------------------------------------------------ headline


def _make_headline(document: BisectDocument) -> ReportedAnswer:
    """Return the kind of the answer, the place and the number of nodes."""
    findings = document.findings
    whole = document.whole.verdict
    if document.agree:
        return ReportedAnswer(AnswerKind.RIGHT, _format_agreement(document))
    if document.search.outcome == "pinned":
        return ReportedAnswer(AnswerKind.REFUSED, PINNED_ALONE)
    if document.search.outcome is Outcome.ELSEWHERE:
        return ReportedAnswer(AnswerKind.WRONG, "not in the region that was searched")
    if document.whole.precise:
        return make_precise_answer(document.setup.candidate.name, document.whole.precise)
    if not findings:
        return ReportedAnswer(AnswerKind.INCONCLUSIVE, whole.why or "nothing was compared")
    if document.search.outcome is Outcome.UNRESOLVED and whole.status is Status.FAIL:
        return ReportedAnswer(AnswerKind.INCONCLUSIVE, findings[0].cause.reason or "")
    kinds = {f.kind for f in findings}
    each_rounds = all(f.cause.rounding and find_innermost(f) == [f] for f in findings)
    is_known_error = whole.signature in NUMBERS
    if each_rounds and is_known_error and kinds != {FindingKind.ACCUMULATED}:
        return ReportedAnswer(AnswerKind.ROUNDING, _format_rounding(document))
    headline = _make_findings_headline(document)
    is_known = kinds != {FindingKind.UNRESOLVED}
    if is_known and (whole.status is Status.AGREE or (whole.mute and whole.status != Status.FAIL)):
        return replace(headline, what=f"{headline.what}; the outputs agree")
    return headline


def _format_agreement(document: BisectDocument) -> str:
    """Return the text about a model that agrees: the outputs and tensors that were compared."""
    within = f"within {document.setup.candidate.precision} rounding"
    claimed = document.search.outcome is Outcome.CLAIMED
    right = document.whole.pieces or (within if claimed else "")
    cost = document.setup.other_model and document.setup.other_model.weights
    if cost and cost >= MIN_COST:
        quantized = f"as quantized: the weights' steps alone move them by {format_percent(cost)}"
        right = ", ".join(filter(None, (right, quantized)))
    if document.whole.verdict.status is not Status.AGREE:
        return right
    looked_at = document.whole.looked_at  # None in documents of earlier releases
    mute = document.whole.verdict.mute or ()
    if looked_at is None:
        return describe_agreement(None, None, mute, right)
    where = f", and {looked_at.within} alone" if looked_at.within else ""
    return describe_agreement(looked_at.inner, looked_at.disturbance, mute, right, where)


def _format_rounding(document: BisectDocument) -> str:
    """Return the headline if every finding is rounding: no node is a culprit."""
    findings = [f for f in document.findings if not is_everywhere(f)]
    shared = [[c.node for c in f.effect.contributors or ()] or f.nodes for f in findings]
    nodes = drop_repeats(flatten(shared))
    verb = "contributes" if len(nodes) == 1 else "contribute"
    most = [f"{format_list(nodes)} {verb} most"] if nodes else []
    cause = f"not a bug, no node is a culprit (criterion {document.setup.criterion})"
    return "; ".join([cause, *most])


def _make_findings_headline(document: BisectDocument) -> ReportedAnswer:
    """Return the headline of findings: all places if they are few, else the first one."""
    findings = document.findings
    total = count(_count_searched(document), "node")
    is_certain = all(
        f.kind is FindingKind.CULPRIT and f.certified and not describe_wrong_input(f)
        for f in findings
    )
    if is_certain and 1 < len(findings) <= MAX_PIECES:
        wrong = len(set(flatten(map(list_indices, findings))))
        places = "; ".join(map(_format_place, findings))
        size = f"{wrong} of {total} in {len(findings)} places"
        return _make_failure_headline(_name_failures(document), _add_run(document, places), size)
    headline = _make_first_headline(document)
    if len(findings) == 1:
        return headline
    more = count(len(findings) - 1, "more finding")
    return replace(headline, what=f"{headline.what}; {more}")


def _make_first_headline(document: BisectDocument) -> ReportedAnswer:
    """Return the headline of the first finding."""
    finding = document.findings[0]
    whole = document.whole.verdict
    misreads = [row for row in finding.cause.differences or () if row.misread]
    if misreads and not finding.certified and whole.status is Status.FAIL:
        row = misreads[0]
        read = row.ours.removeprefix(READS)
        what = f"{row.node} reads {row.misread} in the candidate's model, and {read} in ours"
        return _make_failure_headline(name_failure(whole.signature, whole.process), what)
    if finding.kind is FindingKind.UNRESOLVED:
        why = finding.cause.reason or ""
        if whole.status is Status.FAIL:
            how = name_failure(whole.signature, whole.process)
            return _make_failure_headline(how, f"cause not found: {why}")
        return ReportedAnswer(AnswerKind.INCONCLUSIVE, why)
    if finding.kind is FindingKind.FLAKY:
        rate = format_percent(finding.run.rate)
        return ReportedAnswer(AnswerKind.FLAKY, f"{format_region(finding)} fails in {rate} of runs")
    if finding.kind is FindingKind.ACCUMULATED or is_everywhere(finding):
        return ReportedAnswer(AnswerKind.WRONG, format_title(finding))
    if misread := describe_wrong_input(finding):
        return ReportedAnswer(AnswerKind.WRONG, f"{misread}; seen at {format_region(finding)}")
    most = "" if finding.certified or len(finding.nodes) == 1 else "at most "
    size = f"{most}{len(list_indices(finding))} of {count(_count_searched(document), 'node')}"
    return _make_failure_headline(
        _name_failures(document), _add_run(document, _format_place(finding)), size
    )


def _make_failure_headline(verb: str, what: str, size: str = "") -> ReportedAnswer:
    """Return the answer for a candidate that fails in this way."""
    kind = AnswerKind.REFUSED if verb == AnswerKind.REFUSED else AnswerKind.WRONG
    return ReportedAnswer(kind, what, size, how=verb)


def _name_failures(document: BisectDocument) -> str:
    """Return how all findings fail, in one word or `dies of SIGSEGV`; if they differ, how the full
    model fails, if it returned nothing, else `wrong`."""
    words = {
        name_failure(f.signature, f.run.verdict.process if f.run.verdict else {})
        for f in document.findings
    }
    whole = document.whole.verdict
    if len(words) > 1 and whole.signature in NO_OUTPUT:
        return name_failure(whole.signature, whole.process)
    return words.pop() if len(words) == 1 else AnswerKind.WRONG


def _add_run(document: BisectDocument, place: str) -> str:
    """Return a place and the run of a session from which on it is wrong, if not the first."""
    since = describe_run(document.whole.verdict.from_run)
    return f"{place}, {since}" if since else place


def _format_place(finding: FindingDocument) -> str:
    """Return a finding's region and the regions in its body: `loop1 (Loop), in it a (Neg)`."""
    inner = find_innermost(finding)
    place = f"{format_region(finding)}{describe_repeats(finding)}"
    if inner[0] is finding:
        return place
    return f"{place}, in it {format_list([format_region(f) for f in inner], most=MAX_PIECES)}"


def _count_searched(document: BisectDocument) -> int:
    """Return the number of nodes that carry values, or of all nodes.

    All nodes count if no step has a number, or if a finding has nodes that compute constants.
    """
    if any(finding.place.constants for finding in document.findings):
        return document.model.nodes
    counts = (step.region.count for step in document.search.steps if not step.region.indices)
    return next(counts, document.model.nodes)


# ------------------------------------------------------------ a finding


def describe_finding(finding: FindingDocument, proof: Sequence[str] = ()) -> Iterator[Line]:
    """Yield what a finding is: the values, the cause, the proof, the effect.

    Args:
        finding: The finding.
        proof: Further results of the search about it.
    """
    yield from (("inside", line) for line in iter_insides(finding.inside, finding.signature))
    yield from (("blame", line) for line in finding.cause.blame or ())
    yield from (("source", line) for line in list_origins(finding))
    yield from _iter_values(finding)
    if finding.run.small:
        yield "small", finding.run.small.numbers
    if conclusion := find_evidence(finding)[0]:
        label, text = split_cause(conclusion)
        yield label, text
    for difference in (finding.cause.differences or ())[:MAX_DIFFERENCES]:
        if difference.text not in conclusion:
            yield "differs", difference.text
    if finding.kind is FindingKind.UNRESOLVED and finding.nodes:
        yield "in doubt", format_region(finding)
    if evidence := [*_iter_proof(finding), *proof]:
        yield "proof", "; ".join(evidence)
    if finding.effect.contributors:
        shares = [
            f"{c.node} ({c.op}) {format_percent(c.explains)}" for c in finding.effect.contributors
        ]
        yield "shares", f"largest shares: {format_list(shares)}"
    if finding.effect.explains is not None:
        yield "effect", explain_share(finding.effect.explains)
    yield from (("stderr", line) for line in format_stderr(finding))


def split_cause(conclusion: str) -> Line:
    """Return a conclusion as a label and a text: `a bug`, `rounding` or `cause`."""
    start = next(filter(conclusion.startswith, CAUSES), "")
    return CAUSES.get(start, "cause"), conclusion.removeprefix(start)


def _iter_values(finding: FindingDocument) -> Iterator[Line]:
    """Yield the element with the largest error and the error of its tensor."""
    worst = finding.run.worst
    verdict = finding.run.verdict
    why = verdict.why if verdict else ""
    if worst is None:
        if verdict:
            failed = next((j.name for j in verdict.outputs if why and j.why == why), "run alone")
            state = f"{failed}, {verdict.signature or verdict.status}"
            yield "what", f"{state}: {why}" if why else state
        return
    yield "what", f"{worst.tensor}: {describe_worst(worst, finding.run.off)}"
    decisive = [j.name for j in verdict.outputs if j.why == verdict.why] if verdict else []
    if why and decisive and decisive[0] != worst.tensor:
        why = f"{decisive[0]}: {why}"
    if why:
        yield "error", why


def _iter_proof(finding: FindingDocument) -> Iterator[str]:
    """Yield the reasons why this region is the one to blame."""
    run = finding.run
    verdict = run.verdict
    if run.runs:
        yield f"failed in {run.runs.failed} of {count(run.runs.of, 'run')}"
    elif run.reproduces is not None and run.reproduces < 1:
        yield f"fails in {format_percent(run.reproduces)} of its runs"
    elif verdict and verdict.status is Status.FAIL and run.worst and finding.place.edge:
        yield "fails alone on the reference's inputs"
    if near := run.nearest:
        verb = "agrees" if len(near.nodes) == 1 else "agree"
        neighbor = f"{join_with_and(near.nodes)} {verb}"
        without = join_with_and(near.without)
        if not finding.certified:
            yield f"not shown to be minimal; without {without}, {neighbor}"
        elif len(finding.nodes) == 1:
            yield f"without it, {neighbor}"
        else:
            dropped = "either node" if len(finding.nodes) == 2 else "any one node"
            yield f"without {dropped} it agrees"
    if is_proven(finding) and finding.cause.why:
        yield finding.cause.why
    if repeats := finding.place.repeats:
        ends = [" … ".join(dict.fromkeys((r.nodes[0], r.nodes[-1]))) for r in repeats]
        verb = "does" if len(ends) == 1 else "do"
        yield f"so {verb} {format_list(ends)}"


def iter_insides(found: InsideDocument | None, signature: Signature | None) -> Iterator[str]:
    """Yield what a search in a node's body found, from outside to inside.

    Args:
        found: The search; None without a search.
        signature: How the node itself fails.
    """
    if not found:
        return
    where = found.body
    if found.iteration is not None:
        where += f", wrong from iteration {found.iteration} of {found.iterations} on"
    if not found.findings:
        yield f"{where}: {found.why or _format_body(found, signature)}"
    why = f"; {found.why}" if found.why else ""
    for inner in found.findings:
        is_open = inner.kind == FindingKind.UNRESOLVED
        doubt = "unresolved, the smallest region in doubt: " if is_open else ""
        case = f"; case {inner.case}" if inner.case else ""
        yield f"{where}: {doubt}{format_region(inner)}{why}{case}"
        yield from iter_insides(inner.inside, inner.signature)


def _format_body(found: InsideDocument, signature: Signature | None) -> str:
    """Return what a search that found nothing in a body means for the node."""
    if found.outcome not in (Outcome.AGREE, Outcome.CLAIMED):
        return "nothing was established"
    if signature is Signature.REFUSED:
        return (
            "the body that runs is accepted alone; the runtime refuses the node with all of its"
            " bodies"
        )
    return "what is in it agrees alone, so the node itself is wrong"


def find_innermost(finding: Finding) -> list[Finding]:
    """Return the certified findings that are furthest inside of a finding, or the finding."""
    inner = [f for f in (finding.inside.findings if finding.inside else ()) if f.certified]
    return list(flatten(map(find_innermost, inner))) or [finding]


def find_evidence(finding: FindingDocument) -> tuple[str, list[str]]:
    """Return the conclusion, "" for none, and the evidence for it, of the innermost finding.

    Nothing dilutes the error of the innermost finding.
    """
    lines = find_innermost(finding)[0].evidence
    conclusion = next((line.says for line in lines if line.kind == "conclusion"), "")
    reasons = [line.says for line in lines if line.kind not in ("conclusion", "input")]
    reasons += [
        difference.text for difference in (finding.cause.differences or ())[MAX_DIFFERENCES:]
    ]
    if finding.cause.more_differences:
        reasons.append(f"and {count(finding.cause.more_differences, 'further difference')}")
    return conclusion, reasons


def describe_wrong_input(finding: FindingDocument) -> str:
    """Return the sentence about an input that was misread, or ""."""
    return next((line.says for line in finding.evidence if line.kind == "input"), "")


# ------------------------------------------------------------ the full model


def _iter_proof_of_model(document: BisectDocument) -> list[str]:
    """Return what runs of all other nodes, or of a rewritten model, showed."""
    healing = document.search.healing
    rewritten = []
    if healing:
        rewritten = [f"it fails with all other nodes rewritten ({healing.means})"]
    if not document.search.complete:
        return rewritten
    if document.whole.looked_at and document.whole.looked_at.within:
        return ["all other nodes of the searched region agree"]
    subject = "this region" if len(document.findings) == 1 else "all findings"
    change = "rewritten" if healing else "on the reference"
    return [*rewritten, f"with {subject} {change}, the full model agrees"]


def _iter_lines_of_model(document: BisectDocument) -> Iterator[Line]:
    """Yield what is known about the full model and all findings together."""
    if not document.agree:
        for name, both in document.whole.verdict.ranking.items():
            yield "outputs", f"{name}: {describe_prediction(both.top1, both.top5)}"
    if document.search.alone:
        pieces = [f"{format_region(p)} {format_percent(p.explains)}" for p in document.search.alone]
        verbs = "fails alone and explains" if len(pieces) == 1 else "fail alone and explain"
        sentence = (
            f"{count(pieces, 'piece')} {verbs} little of the final error: {format_list(pieces)}"
        )
        yield "also", sentence
    if healing := document.search.healing:
        proof = "; without any one of them it fails" if len(healing.changes) > 1 else ""
        yield "cure", f"{format_list(healing.changes)}: {healing.model}{proof}"
    yield from _iter_costs(document)


def _iter_costs(document: BisectDocument) -> Iterator[Line]:
    """Yield what the candidate's model shares with the reference's, and what each piece costs."""
    other = document.setup.other_model
    if not other:
        return
    yield "matched", other.matched
    for row in (other.nodes or ())[:MAX_PIECES]:
        if row.explains >= MIN_COST:
            place = format_nodes(row.nodes, [row.op])
            yield "cost", f"{place} explains {format_percent(row.explains)}"
    if clipped := [f"{row.tensor} {format_percent(row.share)}" for row in other.saturated or ()]:
        yield "clipped", f"values clipped by their scale: {format_list(clipped)}"


# ------------------------------------------------------------ next commands


def _iter_next(document: BisectDocument) -> Iterator[NextCommand]:
    """Yield the commands that follow from the answer."""
    about = document.setup.candidate
    conclusion = next((find_evidence(finding)[0] for finding in document.findings), "")
    is_typed = document.command.startswith("subcut ")
    if document.search.stopped and is_typed:
        yield NextCommand("continue", _list_typed_arguments(document, "--max-time", "--max-trials"))
    case = next((finding.case for finding in document.findings if finding.case), None)
    if case:
        yield from _iter_next_of_case(document, case, conclusion)
    if not is_typed or about.backend in DEVICES:
        return
    words = _list_typed_arguments(document)
    if precise := document.whole.precise:
        spec = about.name
        joint = "," if split_spec(spec)[1] else ":"
        finer = [f"{word}{joint}{precise.setting}" if word == spec else word for word in words]
        if precise.setting and finer != words:
            yield NextCommand(f"in {precise.precision}", finer)
        claim = f"if {precise.computes_in} is intended"
        yield NextCommand(claim, [*words, "--precision", precise.computes_in])
    if SEARCH_OPTIONS.isdisjoint(word.partition("=")[0] for word in words):
        yield from _iter_plans(document, conclusion)
    looked_at = document.whole.looked_at
    if document.whole.precise or (document.agree and looked_at and looked_at.inner is None):
        yield NextCommand("check intermediate tensors, too", [*words, "--inside"])


def _iter_next_of_case(
    document: BisectDocument, case: str, conclusion: str
) -> Iterator[NextCommand]:
    """Yield the commands that use the first case."""
    about = document.setup.candidate
    healing = document.search.healing
    if not about.is_function:
        yield NextCommand("run it again", make_replay_command(document, case))
    if healing and about.backend not in DEVICES and not about.is_function:
        trial = ["bisect", healing.model, "-i", str(Path(case) / "inputs"), "-c", about.name]
        yield NextCommand("try the cure", ["subcut", *trial, *_list_criterion_arguments(document)])
    if "not a bug: " not in conclusion:
        bundled = str(Path(case).parent) if healing else case
        yield NextCommand("for a bug report", ["subcut", "bundle", bundled])


def _iter_plans(document: BisectDocument, conclusion: str) -> Iterator[NextCommand]:
    """Yield the command that finds the nodes to keep in float."""
    plan = []
    other_model = document.setup.other_model
    adds_up = any(
        finding.kind is FindingKind.ACCUMULATED or finding.signature is Signature.PRECISION
        for finding in document.findings
    )
    if (adds_up or conclusion.startswith(COARSE)) and other_model and other_model.nodes:
        plan = _list_typed_arguments(document)[2:]
    elif conclusion.startswith(RANGE) and not other_model:
        plan = [
            *_list_typed_arguments(document, "-c", "--candidate", "--precision")[2:],
            "--to",
            "fp16",
        ]
    if plan:
        yield NextCommand("what must stay in float", ["subcut", "plan", *plan])


def _list_typed_arguments(document: BisectDocument, *omitted: str) -> list[str]:
    """Return the arguments of the typed command, without output options and without these, each
    of which has a value."""
    arguments = []
    words = iter(system.split(document.command))
    for word in words:
        if word in omitted:
            next(words, None)
        elif word not in OUTPUT_OPTIONS and {word.partition("=")[0], word[:2]}.isdisjoint(omitted):
            arguments.append(word)
    return arguments


def make_replay_command(document: BisectDocument, case: str) -> list[str]:
    """Return the command that runs a case again, or judges the outputs of a device.

    The command names code of the user again: code that only the case names needs `--trust`.
    """
    about = document.setup.candidate
    if about.backend in DEVICES:
        return ["subcut", "compare", case, "--recorded", "DIR"]
    reference = document.setup.reference
    if _read_constant(reference, "SCRIPT"):  # the module differs from onnxruntime, the candidate
        about = reference
    runs_commands = any(step in about.options for step in _read_constant(about, "COMMANDS") or ())
    is_code = about.backend.endswith(".py") or runs_commands or _read_constant(about, "SCRIPT")
    spec = ["-c", about.name] if is_code else []
    return ["subcut", "replay", case, *spec, *_list_criterion_arguments(document)]


def _list_criterion_arguments(document: BisectDocument) -> list[str]:
    """Return the option for the criterion, without which the candidate may agree."""
    criterion = document.setup.criterion
    if criterion == "noise":
        return []
    return ["--criterion", criterion]


def _read_constant(about: RuntimeDocument, name: str) -> Any:
    """Return a constant of a backend of subcut; None for any other backend."""
    is_own = about.backend in plugins.list_own_names("backends")
    if is_own:
        return plugins.read_constant("backends", about.backend, name)
    return None
