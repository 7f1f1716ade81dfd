"""All that is asked about a fault -> the document, and a folder: answer, script, rewritten
models."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from subgraph.blame import answer
from subgraph.blame.attributes import described
from subgraph.blame.blame import Blame, ReleasesAsked
from subgraph.cases.case import as_json
from subgraph.cases.evidence import rendered_reports
from subgraph.cases.layout import BLAME, RUN_JSON
from subgraph.documents import to_json
from subgraph.reports import beside
from subgraph.results.bisect import BisectDocument, FindingDocument, RunEnvironment
from subgraph.results.blame import BlameDocument, Cure
from subgraph.runtime.deadline import if_time
from subgraph.storage import folders


def explain(
    blame: Blame,
    search: BisectDocument,
    finding: FindingDocument | None,
    asked: ReleasesAsked | None,
    command: str,
) -> BlameDocument:
    """Ask for passes, options, releases and cures, and write the folder beside the case.

    `search`: the document of the bisection; `finding`: the one of it that the region is of.

    Raises:
        UsageError: the releases cannot be read. SubcutError: the candidate cannot be used, or
            nothing can be written.
    """
    began = time.monotonic()
    trials = blame.trials
    wrong = blame.is_wrong
    if (places := sum(1 + len(f.repeats or ()) for f in search.findings)) > 1:
        blame.notes.append(f"{places} places are wrong: this is about the first")
    passes = blame.passes() if wrong else []
    attributes = blame.attributes() if wrong else []
    kernels = blame.kernels() if wrong and not passes else None
    switches = blame.switches(exact=not passes) if wrong else {}
    versions = if_time(partial(blame.history, asked), None) if asked else None
    case = Path(finding.case) if finding and finding.case else None
    home = case if case else trials.model.scratch
    with folders.aside(home / BLAME) as work:
        prove = partial(blame.cures, passes, switches, versions, asked, work, home / BLAME)
        cures = if_time(prove, list[Cure]()) if wrong else []
        if trials.runtime.workers.deadline.has_passed:
            blame.notes.append("the time is used up: more may be found with a larger --max-time")
        region = [trials.graph.label(i) for i in blame.region.nodes]
        ops = [trials.graph.ops[i] for i in blame.region.nodes]
        runtime, version = blame.runtime()
        document = BlameDocument(
            exit_code=search.exit_code if wrong or not (versions and versions.wrong) else 1,
            model=trials.graph.path.name,
            candidate=trials.runtime.candidate.name,
            runtime=runtime,
            version=version,
            outcome=search.outcome,
            pieces=search.pieces,
            region=region,
            ops=ops,
            whole=blame.region == trials.model.whole(),
            signature=blame.verdict.signature,
            why=blame.verdict.why,
            kernels=kernels,
            passes=passes,
            attributes=attributes,
            nodes=[described(trials.graph.nodes[i]) for i in blame.region.nodes[: answer.MAX_NODES]]
            if wrong
            else (),
            seen=beside(finding.worst, finding.off) if finding and finding.worst else "",
            environment=_environment(search.environment) if wrong else "",
            switches=list(switches),
            versions=versions,
            cures=cures,
            answer="",
            script="",
            notes=blame.notes,
            case=str(case) if case else None,
            folder=str(home / BLAME) if case else None,
            runs=blame.runs,
            installs=blame.installs,
            seconds=round(time.monotonic() - began, 3),
            command=command,
        )
        document = answer.written(
            document,
            work,
            case,
            trials.runtime.candidate if trials.runtime.candidate.can.reference else None,
        )
    if case and finding is not None:
        _add_to_report(search, finding, answer.plain(document), case.parent)
    return document


def _environment(of: RunEnvironment) -> str:
    """`Linux x86_64, 8 cores; Python 3.11.7; onnx 1.22.0; …; found by subcut 0.1.0`."""
    packages = [f"{name} {version}" for name, version in of.packages.items()]
    return "; ".join([of.machine, f"Python {of.python}", *packages, f"found by subcut {of.subcut}"])


def _add_to_report(
    search: BisectDocument, finding: FindingDocument, lines: Sequence[str], folder: Path
) -> None:
    """Have the report of the bisection tell it, too."""
    findings = [replace(f, blame=lines) if f is finding else f for f in search.findings]
    document = replace(search, findings=findings)
    texts = {RUN_JSON: as_json(to_json(document)).decode(), **rendered_reports(document)}
    with folders.scratch(folder) as work:
        for name, text in texts.items():
            (work / name).write_text(text, encoding="utf-8")
        for name in texts:
            (work / name).replace(folder / name)
