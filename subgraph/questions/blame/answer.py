"""A document and a folder of the findings about a fault: answer and rewritten models.

The answer is a paragraph to paste into an issue tracker.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from subgraph.cases.case import as_json
from subgraph.cases.evidence import write_document
from subgraph.cases.layout import BLAME, BLAME_ANSWER, BLAME_JSON
from subgraph.documents import to_json
from subgraph.graph.region import build_region
from subgraph.iterables import flatten
from subgraph.questions.blame.attributes import describe_node
from subgraph.questions.blame.blame import Blame, ReleasesAsked
from subgraph.questions.blame.maker import Maker
from subgraph.reports import describe_worst
from subgraph.reports.md import format_code
from subgraph.results.bisect import BisectDocument, FindingDocument, RunEnvironment
from subgraph.results.blame import (
    BlameCost,
    BlamedCause,
    BlameDocument,
    BlamedRegion,
    BlamedRuntime,
    Cure,
    ReleaseOutcomes,
    TriedRelease,
)
from subgraph.runtime.deadline import if_time
from subgraph.storage import folders
from subgraph.text import clean, count, list_some
from subgraph.trials.diagnosis.passes import describe_sets
from subgraph.verdict import NO_OUTPUT, Signature, name_failure

MAX_NODES = 6  # that a sentence names
MAX_CURES = 4
MAX_FINDINGS = 8  # that are explained: those with a case
# Titles of the lines of the answer that a report has elsewhere.
NODE = "Node"
SEEN = "Furthest off"
ENVIRONMENT = "Environment"
MAX_UNPROVEN = 2
UNKNOWN = 5  # exit code


def list_plain_lines(document: BlameDocument) -> list[str]:
    """Return the lines of the answer after the first one, without Markdown.

    Lines that a report has elsewhere are omitted.
    """
    omitted_titles = tuple(f"- {word}: " for word in (NODE, SEEN, ENVIRONMENT))
    lines = [
        line for line in document.answer.split("\n")[1:] if not line.startswith(omitted_titles)
    ]
    return [line.removeprefix("- ").replace("`", "") for line in lines]


def make_paragraph(document: BlameDocument) -> str:
    """Return Markdown: versions, region, pass, cures with their cost, a line each.

    Names are code spans.
    """
    cause = document.cause
    region = document.region
    lines = [_format_head(document), *(f"- {NODE}: {format_code(node)}" for node in region.nodes)]
    if region.seen:
        lines.append(f"- {SEEN}: {clean(region.seen)}")
    lines += [f"- Differs: {clean(text)}" for text in region.differences[:MAX_CURES]]
    if cause.versions:
        lines.append(f"- Releases: {format_history(cause.versions)}")
    if cause.passes:
        title = f"Step of {clean(cause.made_by)}" if cause.made_by else "Optimizer pass"
        lines.append(f"- {title}: right without {format_code(describe_sets(cause.passes))}")
    elif cause.made_by and document.exit_code == 1:
        lines.append(f"- {clean(cause.made_by)}: without all that it can leave out, it is as wrong")
    elif cause.kernels:
        lines.append(
            "- Neither optimizer nor precision: without optimizations, in full precision, it is as"
            " wrong"
        )
    if cause.attributes:
        lines.append(
            f"- Attribute: right without {' or '.join(map(format_code, cause.attributes))}"
        )
    proven = [cure for cure in cause.cures if cure.proven]
    lines += [
        f"- Cure, proven on the full model: {_format_cure(cure)}" for cure in proven[:MAX_CURES]
    ]
    others = [cure for cure in cause.cures if not cure.proven]
    lines += [
        f"- Not proven: {_format_cure(cure)}: {_describe_unproven(cure)}"
        for cure in others[:MAX_UNPROVEN]
    ]
    if document.exit_code == 1 and not proven:
        hint = ""
        if cause.is_model_wrong and not cause.made_by:
            hint = ": `subcut blame MODEL --made-by TOOL` finds the step of the tool that made it"
        lines.append(f"- No cure is proven{hint}")
    lines += [f"- Note: {clean(note)}" for note in document.notes]
    if document.environment:
        lines.append(f"- {ENVIRONMENT}: {clean(document.environment)}")
    return "\n".join(lines)


def _describe_unproven(cure: Cure) -> str:
    is_region = cure.heals == "region"
    heals = "heals the region, and not the whole model" if is_region else "heals the samples"
    if cure.why:
        return f"{heals}: {clean(cure.why)}"
    return heals


def _format_head(document: BlameDocument) -> str:
    """Return who is wrong, where, and how."""
    cause = document.cause
    region = document.region
    who = f"{clean(document.runtime.name)} {clean(document.runtime.version)}".strip()
    if cause.made_by:
        who = f"{clean(cause.made_by)}'s model"
    elif cause.is_model_wrong:
        who = "The candidate's model"
    if not document.exit_code:
        within = f" {region.pieces}" if region.pieces else ""
        return f"**{who} agrees on {format_code(clean(document.model))}{within}**"
    if document.exit_code == UNKNOWN:
        return (
            f"**It is not known whether {who} is right on {format_code(clean(document.model))}**:"
            f" {clean(region.why)}"
        )
    names = [format_code(clean(name)) for name in region.labels]
    kinds = ", ".join(dict.fromkeys(clean(op) for op in region.ops))
    where = f"{list_some(names, MAX_NODES)} ({kinds})"
    if region.whole and len(names) > MAX_NODES:
        where = f"{format_code(clean(document.model))} as a whole"
    does = f"computes {where} wrong"
    if region.signature is Signature.REFUSED:
        does = f"is invalid at {where}" if cause.is_model_wrong else f"refuses {where}"
    elif region.signature in NO_OUTPUT:
        does = f"{name_failure(region.signature, {})} on {where}"
    return f"**{who} {does}**: {clean(region.why)}"


def format_history(versions: ReleaseOutcomes) -> str:
    """Return `1.15.0 … 1.31.1 wrong, 1.32.0 right (4 of 36 tried)`."""
    tried = f"{len(versions.tried)} of {count(versions.releases, 'release')} tried"
    return f"{format_states(versions.tried)} ({tried})"


def format_states(releases: Sequence[TriedRelease]) -> str:
    """Return `1.15.0 … 1.31.1 wrong, 1.32.0 right`: consecutive releases in one
    state are one span."""
    spans = []
    for state, group in groupby(releases, key=attrgetter("state")):
        names = [release.version for release in group]
        ends = " … ".join(dict.fromkeys((names[0], names[-1])))
        outcome = "cannot be tried" if state == "unknown" else state
        spans.append(f"{ends} {outcome}")
    return ", ".join(spans)


def _format_cure(cure: Cure) -> str:
    time = "" if cure.slowdown is None else f", {cure.slowdown:.2f} × the time"
    equal = f"; {cure.equal} on the reference" if cure.equal else ""
    return f"{clean(cure.what)} ({format_code(clean(cure.how))}{time}{equal})"


def summarize(document: BlameDocument) -> str:
    """Return the answer for a terminal, and its folder."""
    lines = [document.answer.partition("\n")[0].replace("**", "").replace("`", "")]
    lines += [f"- {line}" for line in list_plain_lines(document)]
    cost = document.cost
    runs = f"{count(cost.runs, 'run')}, {count(cost.installs, 'install')}"
    lines.append(f"{runs}, {cost.seconds:.0f} s in addition to the search")
    if document.folder:
        lines.append(f"answer and models: {clean(document.folder)}/")
    return "\n".join(lines)


def explain_findings(
    blame: Blame,
    search: BisectDocument,
    requested: ReleasesAsked | None,
    command: str,
    maker: Maker | None = None,
) -> list[BlameDocument]:
    """Explain each finding, those after the first as far as the time allows; only the first if one
    cure heals the full model.

    Args:
        blame: The blame of the full model.
        search: The document of the bisection.
        requested: The releases to try.
        command: The command line for the documents.
        maker: The tool that wrote the candidate's model, if its steps are tried.

    Returns:
        A document per finding, or that of the full model.

    Raises:
        UsageError: The releases cannot be read.
        SubcutError: The candidate cannot be used, or the folder cannot be written.
    """
    findings_with_nodes = [finding for finding in search.findings if finding.indices]
    documents = list[BlameDocument]()
    for finding in findings_with_nodes[: 1 if blame.healing or maker else MAX_FINDINGS]:
        explain = partial(_explain, blame, search, finding, requested, command, maker)
        document = if_time(explain, None) if documents else explain()
        if document is None:
            break
        documents.append(document)
        if finding.case:
            cause = replace(finding.cause, blame=list_plain_lines(document))
            findings = [replace(f, cause=cause) if f is finding else f for f in search.findings]
            search = replace(search, findings=findings)
            with folders.make_scratch(folder := Path(finding.case).parent) as work:
                write_document(search, work)
                for path in work.iterdir():
                    path.replace(folder / path.name)
    return documents or [_explain(blame, search, None, requested, command, maker)]


def _explain(
    blame: Blame,
    search: BisectDocument,
    finding: FindingDocument | None,
    requested: ReleasesAsked | None,
    command: str,
    maker: Maker | None,
) -> BlameDocument:
    """Find passes, options, releases and cures, and write the folder next to the case.

    Raises: as `explain_findings`.
    """
    began = time.monotonic()
    trials = blame.trials
    blame = replace(blame, notes=[])
    graph = trials.graph
    if finding and not blame.healing:
        alone = replace(blame, region=build_region(graph, finding.indices))
        if alone.is_wrong:
            blame = alone
    if finding and finding.place.repeats:
        places = 1 + len(finding.place.repeats)
        blame.notes.append(f"{places} places are wrong in this way: the first is named")
    wrong = blame.is_wrong
    worst, deviations = (finding.run.worst, finding.run.off) if finding else (None, None)
    differences = (finding.cause.differences if finding and wrong else None) or ()
    passes = blame.find_passes() if wrong and not maker else []
    attributes = blame.find_attributes() if wrong else []
    switches, kernels = blame.find_switches(exact=not passes) if wrong else ({}, None)
    versions = if_time(partial(blame.history, requested), None) if requested else None
    case = Path(finding.case) if finding and finding.case else None
    home = case or trials.model.scratch
    with folders.write_aside(home / BLAME) as work:
        prove = partial(blame.cures, passes, switches, versions, requested, work, home / BLAME)
        cures = if_time(prove, list[Cure]()) if wrong else []
        if maker and wrong:
            steps = partial(blame.steps, maker, work, home / BLAME)
            passes, more = if_time(steps, (passes, list[Cure]()))
            cures += more
        if trials.runtime.workers.deadline.has_passed:
            blame.notes.append("the time is used up: more may be found with a larger --max-time")
        nodes: Sequence[int] = blame.region.nodes
        if blame.healing:
            nodes = graph.in_order(flatten(f.indices for f in search.findings))
        runtime, version = blame.name_runtime()
        document = BlameDocument(
            exit_code=search.exit_code if wrong or not (versions and versions.wrong) else 1,
            model=graph.path.name,
            outcome=search.search.outcome,
            environment=_format_environment(search.environment) if wrong else "",
            answer="",
            notes=blame.notes,
            case=str(case) if case else None,
            folder=str(home / BLAME) if case else None,
            command=command,
            runtime=BlamedRuntime(
                candidate=trials.runtime.candidate.name,
                name=runtime,
                version=version,
            ),
            region=BlamedRegion(
                labels=[graph.label(i) for i in nodes],
                pieces=search.whole.pieces,
                ops=[graph.ops[i] for i in nodes],
                whole=not blame.healing and blame.region == trials.model.whole(),
                signature=blame.verdict.signature,
                why=blame.verdict.why,
                nodes=[describe_node(graph.nodes[i]) for i in nodes[:MAX_NODES] if wrong],
                seen=describe_worst(worst, deviations) if worst else "",
                differences=[d.text for d in differences],
            ),
            cause=BlamedCause(
                kernels=kernels,
                passes=passes,
                attributes=attributes,
                made_by=maker.title if maker else "",
                is_model_wrong=blame.is_model_wrong,
                switches=list(switches),
                versions=versions,
                cures=cures,
            ),
            cost=BlameCost(
                runs=blame.runs,
                installs=blame.installs,
                seconds=round(time.monotonic() - began, 3),
            ),
        )
        document = replace(document, answer=make_paragraph(document))
        (work / BLAME_JSON).write_bytes(as_json(to_json(document)))
        (work / BLAME_ANSWER).write_bytes(f"{document.answer}\n".encode())
        return document


def _format_environment(environment: RunEnvironment) -> str:
    """Return `Linux x86_64, 8 cores; Python 3.11.7; onnx 1.22.0; …; found by subcut 0.1.0`."""
    packages = [f"{name} {version}" for name, version in environment.packages.items()]
    return "; ".join(
        [
            environment.machine,
            f"Python {environment.python}",
            *packages,
            f"found by subcut {environment.subcut}",
        ]
    )
