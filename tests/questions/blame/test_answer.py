"""What is pasted: each kind of finding in words, and names that try tricks. Covers
`questions.blame.answer`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onnx import helper

from subgraph.documents import from_json, to_json
from subgraph.questions.blame.answer import format_states, list_plain_lines, make_paragraph
from subgraph.questions.blame.attributes import describe_node
from subgraph.results.blame import BlameDocument, Cure, ReleaseOutcomes, ReleaseState, TriedRelease
from subgraph.verdict import Signature
from tests.helpers.facts import has_line


def found(**fields: Any) -> BlameDocument:
    """A document with these fields."""
    usual: dict[str, Any] = {
        "exit_code": 1,
        "model": "m.onnx",
        "candidate": "ort",
        "runtime": "onnxruntime",
        "version": "1.31.1",
        "outcome": "disagree",
        "region": ["a", "b"],
        "ops": ["Pad", "MaxPool"],
        "whole": False,
        "signature": Signature.MISMATCH,
        "why": "off by 0.99",
        "kernels": None,
        "passes": [],
        "switches": [],
        "versions": None,
        "cures": [],
        "answer": "",
        "notes": [],
        "case": None,
        "folder": None,
        "runs": 1,
        "installs": 0,
        "seconds": 1.0,
        "command": "subcut blame",
    }
    return from_json(BlameDocument, to_json(usual | fields))


def tried(states: str) -> list[TriedRelease]:
    letters = {"r": ReleaseState.RIGHT, "w": ReleaseState.WRONG, "u": ReleaseState.UNKNOWN}
    return [TriedRelease(f"1.{k}", letters[letter]) for k, letter in enumerate(states)]


def test_releases_are_spans_in_their_order() -> None:
    history = ReleaseOutcomes(
        ["1.2", "1.3"], ["1.1", "1.4"], {"1.0": "no wheel"}, "1.2", "1.4", 36, tried("urwwr")
    )
    assert "1.2 … 1.3 wrong" in make_paragraph(found(versions=history))
    assert format_states([]) == ""


def test_only_what_is_proven_is_a_cure() -> None:
    cures = [
        Cure("pass", "without the pass A", "disabled_optimizers=A", True, "whole", 1.03),
        Cure(
            "rewrite",
            "a Clip before a",
            "x.onnx",
            False,
            "region",
            None,
            "off by 0.5",
            equal="bit-identical",
        ),
    ]
    lines = make_paragraph(found(cures=cures)).split("\n")
    assert [line.partition(",")[0] == "- Cure" for line in lines[1:3]] == [True, False]
    assert has_line(list_plain_lines(found(answer=make_paragraph(found())))[0], "No cure")


def test_names_play_no_tricks() -> None:
    odd = "a`b\n\x1b[31m'\"{}"
    text = make_paragraph(found(region=[odd], notes=[odd]))
    assert "\x1b" not in text
    assert len(text.split("\n")) == 3


def test_tracker_is_told_nodes_values_and_environment() -> None:
    """A terminal and a report say these elsewhere."""
    pool = helper.make_node(
        "AveragePool",
        ["x"],
        ["y"],
        name="pool",
        ceil_mode=1,
        auto_pad="NOTSET",
        kernel_shape=[3, 3],
    )
    told = found(
        nodes=[describe_node(pool)],
        seen="expected 0.25, got 0.19 at [0,1]",
        environment="Linux x86_64; Python 3.11.7",
    )
    lines = make_paragraph(told).split("\n")
    node = "`'pool': AveragePool, auto_pad='NOTSET', ceil_mode=1, kernel_shape=[3, 3]`"
    assert lines[1] == f"- Node: {node}"
    assert has_line(lines[2], "expected 0.25", "0.19 at [0,1]")
    assert has_line(lines[-1], "Environment", "Linux x86_64", "Python 3.11.7")
    (line,) = list_plain_lines(replace(told, answer=make_paragraph(told)))
    assert has_line(line, "No cure")
