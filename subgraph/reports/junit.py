"""JUnit XML for Jenkins and GitLab: a test case for the whole model, each finding, each piece that
fails alone."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Sequence

from subgraph.reports import (
    ComparedDocument,
    cleaned,
    evidence,
    figure,
    headline,
    left_out,
    outcome,
    percent,
    region,
    runtime,
    sentences,
    stderr,
    swept,
    title,
    view,
    word,
)
from subgraph.reports._compared import View
from subgraph.results.bisect import BisectDocument
from subgraph.results.sweep import SweepDocument, SweepOutcome
from subgraph.search.findings import FindingKind
from subgraph.verdict import Signature, Status

FILE = "junit.xml"
HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
SUITE = "subcut.bisect"
ELEMENTS = {Status.FAIL: "failure", Status.UNRESOLVED: "error", "": "skipped"}  # of a cell
SWEPT = {
    SweepOutcome.RIGHT: "",
    SweepOutcome.REFUSED: "skipped",
    SweepOutcome.UNRESOLVED: "error",
}  # elements of a sweep's outcomes; of others: failure


def render(document: BisectDocument) -> str:
    """Findings are failures, unresolved ones errors; pieces that fail alone are failures, whatever
    they explain."""
    shown = cleaned(document)
    cases = [_whole(shown), *_findings(shown), *_alone(shown)]
    said = [headline(shown), *shown.notes]
    return _suite(
        f"subcut bisect {shown.model.file}", cases, shown.seconds, _properties(shown), said
    )


def _suite(
    name: str,
    cases: Sequence[ET.Element],
    seconds: float,
    properties: Iterable[tuple[str, str]],
    said: Sequence[str],
) -> str:
    """One suite as a file; `said`: lines of its output."""
    totals = {
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": str(sum(case.find("error") is not None for case in cases)),
        "skipped": str(sum(case.find("skipped") is not None for case in cases)),
        "time": f"{seconds:.3f}",
    }
    root = ET.Element("testsuites", {"name": "subcut", **totals})
    suite = ET.SubElement(root, "testsuite", {"name": name, **totals})
    listed = ET.SubElement(suite, "properties")
    for key, value in properties:
        ET.SubElement(listed, "property", {"name": key, "value": value})
    suite.extend(cases)
    ET.SubElement(suite, "system-out").text = "\n".join(said)
    ET.indent(root, " ")
    return HEAD + ET.tostring(root, encoding="unicode") + "\n"


def _case(name: str, seconds: float = 0.0) -> ET.Element:
    return ET.Element("testcase", {"name": name, "classname": SUITE, "time": f"{seconds:.3f}"})


def _whole(document: BisectDocument) -> ET.Element:
    """The test case of the whole model; details are in those of the findings."""
    whole = document.whole
    case = _case("whole model", whole.build_seconds + whole.run_seconds)
    if whole.status is not Status.AGREE:
        kind = "failure" if whole.status is Status.FAIL else "error"
        element = ET.SubElement(
            case, kind, {"message": f"{word(whole)}: {headline(document)}", "type": word(whole)}
        )
        element.text = whole.why
    return case


def _findings(document: BisectDocument) -> Iterator[ET.Element]:
    for number, finding in enumerate(document.findings, 1):
        verdict = finding.verdict
        seconds = verdict.build_seconds + verdict.run_seconds if verdict else 0.0
        case = _case(f"{number}. {finding.kind}: {region(finding)}", seconds)
        kind = "error" if finding.kind is FindingKind.UNRESOLVED else "failure"
        attributes = {"message": title(finding), "type": finding.signature or finding.kind}
        conclusion, reasons = evidence(finding)
        lines = [
            *sentences(finding),
            conclusion,
            *reasons,
            f"case {finding.case}" if finding.case else "",
        ]
        ET.SubElement(case, kind, attributes).text = "\n".join(filter(None, lines))
        if lines := stderr(finding):
            ET.SubElement(case, "system-err").text = "\n".join(lines)
        yield case


def _alone(document: BisectDocument) -> Iterator[ET.Element]:
    for number, piece in enumerate(document.alone, 1):
        case = _case(f"alone {number}: {region(piece)}")
        message = f"fails alone, accounts for little: {percent(piece.explains)} of the final error"
        ET.SubElement(
            case, "failure", {"message": message, "type": piece.signature or Signature.MISMATCH}
        )
        yield case


def _properties(document: BisectDocument) -> Iterator[tuple[str, str]]:
    model = document.model
    environment = document.environment
    yield "model", f"{model.file} sha256 {model.structure_sha256}"
    yield "candidate", " ".join(runtime(document.candidate))
    yield "reference", " ".join(runtime(document.reference))
    yield "criterion", document.criterion
    yield "command", document.command
    yield from (
        (name, str(getattr(environment, name)))
        for name in ("subcut", "python", "machine", "threads")
    )
    yield from environment.packages.items()


def render_compared(document: ComparedDocument) -> str:
    """A test case per tensor and column: wrong ones are failures, unresolved ones errors, unseen
    ones skipped."""
    shown = view(cleaned(document))
    suite_name = f"subcut compare {cleaned(document).model.file}"
    cases = [_verdict_case(shown)]
    for line in shown.lines:
        for column, one in zip(shown.columns, line.cells, strict=True):
            case = _compared_case(f"{line.tensor}: {column}")
            kind = ELEMENTS.get(one.status)
            if kind:
                text = f"{outcome(one)} {figure(one)}" if one.status else "not seen"
                ET.SubElement(
                    case, kind, {"message": text, **({"type": text} if one.status else {})}
                ).text = one.why
            if one.status or column != "alone":
                cases.append(case)
    return _suite(
        suite_name, cases, 0.0, shown.facts, [shown.headline, *shown.notes, *left_out(shown)]
    )


def render_sweep(document: SweepDocument) -> str:
    """A test case per test and candidate: wrong, crashed and hanging ones are failures, refused
    ones are skipped."""
    shown = cleaned(document)
    cases = []
    for k, candidate in enumerate(shown.candidates):
        for row in shown.rows:
            result = row.results[k]
            about = {"name": row.test, "classname": f"subcut.sweep.{candidate.name}"}
            case = ET.Element(
                "testcase",
                {**about, "time": f"{result.build_seconds + result.run_seconds:.3f}"},
            )
            kind = SWEPT.get(result.status, "failure")
            if kind:
                told = {
                    "message": f"{row.operator or row.kind}: {result.why}",
                    "type": result.status,
                }
                ET.SubElement(case, kind, told).text = result.case and f"case {result.case}"
            cases.append(case)
    facts = [
        ("criterion", shown.criterion),
        ("onnx", shown.tests.onnx),
        ("command", shown.command),
    ]
    facts += [("candidate", " ".join(runtime(candidate))) for candidate in shown.candidates]
    taken = sum(candidate.seconds for candidate in shown.candidates)
    left = [f"left out: {one.test}: {one.why}" for one in shown.left_out]
    return _suite("subcut sweep", cases, taken, facts, [swept(shown), *left])


def _compared_case(name: str) -> ET.Element:
    return ET.Element("testcase", {"name": name, "classname": "subcut.compare", "time": "0.000"})


def _verdict_case(shown: View) -> ET.Element:
    case = _compared_case("verdict")
    if shown.status is not Status.AGREE:
        kind = "failure" if shown.status is Status.FAIL else "error"
        ET.SubElement(case, kind, {"message": shown.headline, "type": shown.status})
    return case
