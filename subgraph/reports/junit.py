"""JUnit XML for Jenkins and GitLab: a test case for the whole model, each finding, each piece that fails alone."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator

from subgraph.reports import (
    Document,
    cleaned,
    evidence,
    headline,
    percent,
    region,
    runtime,
    sentences,
    stderr,
    title,
    word,
)

FILE = "junit.xml"
HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
SUITE = "subcut.bisect"


def render(document: Document) -> str:
    """Findings are failures, unresolved ones errors; pieces that fail alone are failures, whatever they explain."""
    shown = cleaned(document)
    cases = [_whole(shown), *_findings(shown), *_alone(shown)]
    totals = {
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": str(sum(case.find("error") is not None for case in cases)),
        "skipped": str(sum(case.find("skipped") is not None for case in cases)),
        "time": f"{shown['seconds']:.3f}",
    }
    root = ET.Element("testsuites", {"name": "subcut", **totals})
    suite = ET.SubElement(root, "testsuite", {"name": f"subcut bisect {shown['model']['file']}", **totals})
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(shown):
        ET.SubElement(properties, "property", {"name": name, "value": value})
    suite.extend(cases)
    ET.SubElement(suite, "system-out").text = "\n".join([headline(shown), *shown["notes"]])
    ET.indent(root, " ")
    return HEAD + ET.tostring(root, encoding="unicode") + "\n"


def _case(name: str, seconds: float = 0.0) -> ET.Element:
    return ET.Element("testcase", {"name": name, "classname": SUITE, "time": f"{seconds:.3f}"})


def _whole(document: Document) -> ET.Element:
    """The test case of the whole model; details are in those of the findings."""
    whole = document["whole"]
    case = _case("whole model", whole["build_seconds"] + whole["run_seconds"])
    if whole["status"] != "agree":
        kind = "failure" if whole["status"] == "fail" else "error"
        element = ET.SubElement(case, kind, {"message": f"{word(whole)}: {headline(document)}", "type": word(whole)})
        element.text = whole["why"]
    return case


def _findings(document: Document) -> Iterator[ET.Element]:
    for number, finding in enumerate(document["findings"], 1):
        verdict = finding["verdict"]
        seconds = verdict["build_seconds"] + verdict["run_seconds"] if verdict else 0.0
        case = _case(f"{number}. {finding['kind']}: {region(finding)}", seconds)
        kind = "error" if finding["kind"] == "unresolved" else "failure"
        attributes = {"message": title(finding), "type": finding["signature"] or finding["kind"]}
        conclusion, reasons = evidence(finding)
        lines = [*sentences(finding), conclusion, *reasons, f"case {finding['case']}" if finding["case"] else ""]
        ET.SubElement(case, kind, attributes).text = "\n".join(filter(None, lines))
        if lines := stderr(finding):
            ET.SubElement(case, "system-err").text = "\n".join(lines)
        yield case


def _alone(document: Document) -> Iterator[ET.Element]:
    for number, piece in enumerate(document["alone"], 1):
        case = _case(f"alone {number}: {region(piece)}")
        message = f"fails alone, explains little: {percent(piece['explains'])} of the final error"
        ET.SubElement(case, "failure", {"message": message, "type": piece["signature"] or "mismatch"})
        yield case


def _properties(document: Document) -> Iterator[tuple[str, str]]:
    model, environment = document["model"], document["environment"]
    yield "model", f"{model['file']} sha256 {model['structure_sha256']}"
    yield from ((name, " ".join(runtime(document[name]))) for name in ("candidate", "reference"))
    yield "criterion", document["criterion"]
    yield "command", document["command"]
    yield from ((name, str(environment[name])) for name in ("subcut", "python", "machine", "threads"))
    yield from environment["packages"].items()
