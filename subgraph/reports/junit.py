"""JUnit XML for a continuous-integration server: a test case per finding, or per tensor."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import Literal

from subgraph.reports._answer import answer, find_evidence
from subgraph.reports._compared import ComparedDocument, make_view
from subgraph.reports._words import cleaned, format_outcome, format_region, format_title
from subgraph.results.bisect import BisectDocument
from subgraph.search.oracle import FindingKind
from subgraph.verdict import Status

FILE = "junit.xml"
HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'


def render(document: BisectDocument) -> str:
    """Return a search as a suite: the full model, then each finding."""
    shown = cleaned(document)
    model_case = _make_case(
        "whole model", shown.whole.verdict.status, answer(shown).says, shown.whole.verdict.why
    )
    cases = [model_case]
    for number, finding in enumerate(shown.findings, 1):
        is_open = finding.kind is FindingKind.UNRESOLVED
        status = Status.UNRESOLVED if is_open else Status.FAIL
        conclusion, reasons = find_evidence(finding)
        name = f"{number}. {finding.kind}: {format_region(finding)}"
        cases.append(
            _make_case(name, status, format_title(finding), "\n".join([conclusion, *reasons]))
        )
    return _format_suite(f"subcut bisect {shown.model.file}", cases)


def render_compared(document: ComparedDocument) -> str:
    """Return a comparison as a suite: the verdict, then each compared tensor in each column."""
    shown = make_view(cleaned(document))
    cases = [_make_case("verdict", shown.status, shown.answer.says, "")]
    for line in shown.lines:
        for column, cell in zip(shown.columns, line.cells, strict=True):
            if cell.status:
                cases.append(
                    _make_case(
                        f"{line.tensor}: {column}", cell.status, format_outcome(cell), cell.why
                    )
                )
    return _format_suite(f"subcut {shown.kind}", cases)


def _make_case(name: str, status: Status | Literal[""], message: str, text: str) -> ET.Element:
    case = ET.Element("testcase", {"name": name, "classname": "subcut"})
    if status is not Status.AGREE:
        kind = "failure" if status is Status.FAIL else "error"
        ET.SubElement(case, kind, {"message": message}).text = text
    return case


def _format_suite(name: str, cases: Sequence[ET.Element]) -> str:
    counts = {"tests": str(len(cases))}
    for kind in ("failure", "error"):
        counts[f"{kind}s"] = str(sum(case.find(kind) is not None for case in cases))
    root = ET.Element("testsuites", {"name": "subcut", **counts})
    ET.SubElement(root, "testsuite", {"name": name, **counts}).extend(cases)
    ET.indent(root, " ")
    return HEAD + ET.tostring(root, encoding="unicode") + "\n"
