"""The short document of `--brief`, the corrections of an error, and the annotations of a workflow.

Covers `results.brief`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from subgraph.demo.files import make_files
from subgraph.results import brief
from tests.helpers import fake_candidate
from tests.helpers.chain_models import chain
from tests.helpers.open_trials import spec_of
from tests.helpers.run_command import subcut

FULL = {
    "schema": "subcut.bisect/1",
    "exit_code": 1,
    "says": "wrong: 20 of 28 nodes",
    "findings": [{"kind": "culprit", "nodes": [f"n{i}" for i in range(20)], "case": "out/culprit"}]
    * 9,
    "next": [{"why": "run it again", "argv": ["subcut", "replay", "out/culprit"]}],
    "report": "out/report.html",
    "steps": [{"number": n} for n in range(1000)],
}


WRONG = spec_of(fake_candidate.HERE, add="b:9")


@pytest.fixture
def chained(tmp_path: Path) -> Path:
    """A folder with a model of three nodes, of which `WRONG` computes one wrong."""
    chain(tmp_path / "m.onnx", ["a", "b", "c"])
    return tmp_path


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    for name, content in make_files().items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_the_short_form_keeps_the_answer_and_counts_the_nodes() -> None:
    short = brief.shorten(FULL, "✗ wrong\n" + "x" * 10_000)
    assert (short.of, short.says) == (FULL["schema"], FULL["says"])
    assert list(short.next) == FULL["next"]
    assert len(short.findings) == brief.MAX_FINDINGS
    assert short.findings[0].count == 20
    assert len(short.findings[0].nodes) == brief.MAX_NODES
    assert len(short.text) == brief.MAX_CHARACTERS


def test_a_document_without_a_headline_has_the_first_line_of_its_text() -> None:
    short = brief.shorten({"schema": "subcut.inspect/1", "exit_code": 0}, "m.onnx   28 nodes\nmore")
    assert short.says == "m.onnx 28 nodes"
    assert not short.findings


def test_an_answer_is_short_and_its_next_commands_run(chained: Path) -> None:
    done = subcut("bisect", "m.onnx", "-c", WRONG, "-q", "--brief", cwd=chained)
    assert done.code == 1
    assert len(done.out) <= 2_048
    answer = done.document
    assert answer["findings"][0]["nodes"] == ["b"]
    assert all("--brief" not in one["argv"] for one in answer["next"])
    again = subcut(*answer["next"][0]["argv"][1:], "--brief", cwd=chained)
    assert again.code == 1
    assert again.document["of"] == "subcut.replay/1"


def test_a_typo_is_answered_with_the_command_that_was_meant(demo: Path) -> None:
    done = subcut("model.onnx", "--start", "stem/padd", "--end", "stem/pool", "--brief", cwd=demo)
    assert done.code == 2
    answer = done.document
    assert answer["error"]["code"] == "node.unknown"
    words = answer["next"][0]["argv"]
    assert words == ["subcut", "model.onnx", "--start", "stem/pad", "--end", "stem/pool", "--brief"]
    assert subcut(*words[1:], cwd=demo).code == 0


def test_a_workflow_shows_the_answer_and_the_document_stays_whole(
    chained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = chained / "summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    done = subcut("compare", "m.onnx", "-c", WRONG, "--at", "b", "-q", "--json", cwd=chained)
    json.loads(done.out)
    assert f"::error title=subcut::{done.document['says']}" in done.err
    assert "node b " in summary.read_text(encoding="utf-8")


def test_a_summary_that_cannot_be_written_is_named(
    chained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(chained / "none" / "summary.md"))
    done = subcut("compare", "m.onnx", "-c", WRONG, "--at", "b", "-q", cwd=chained)
    assert done.code == 74
    assert "summary.md" in done.err


def test_names_end_neither_an_annotation_nor_a_block_of_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    brief.add_to_summary("wrong: <script>", "```\n<script>")
    shown = summary.read_text(encoding="utf-8")
    assert shown.startswith("### wrong: \\<script\\>\n")
    assert shown.count("```") == 2
    assert "\n" not in brief.to_annotation("a\n::error::b")


@pytest.mark.slow
def test_the_skill_is_short_and_its_commands_run(demo: Path) -> None:
    skill = subcut("help", "--skill", cwd=demo).out
    assert len(skill.splitlines()) <= 120
    code = skill.partition("```python\n")[2].partition("```")[0]
    (demo / "own.py").write_text(code, encoding="utf-8")
    done = subcut("compare", "model.onnx", "-c", "own.py", "-q", cwd=demo)
    assert (done.code, done.out.splitlines()[0][:5]) == (0, "right")
    for line in skill.partition("```sh\n")[2].partition("```")[0].splitlines():
        assert subcut(*line.split()[1:], cwd=demo).code in (0, 1), line
