"""The list of `benchmarks.same_answers` is well formed and covers every command; what varies is
masked.

Covers `benchmarks.answers` and `benchmarks.same_answers`.
"""

from __future__ import annotations

import io
import json
import shlex
import zipfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks import answers, same_answers
from benchmarks.same_answers import Answer
from fixtures import given
from subgraph import cli
from tests.helpers.facts import has_line

GROUPS = list(same_answers.groups())


def test_groups_have_titles_of_their_own_and_folders_that_can_be_written() -> None:
    assert not [
        title for title, count in Counter(group.title for group in GROUPS).items() if count > 1
    ]
    assert {group.folder for group in GROUPS} <= set(given.FOLDERS)


def test_every_command_of_subcut_is_in_the_list() -> None:
    commands = [shlex.split(command) for group in GROUPS for command in group.commands]
    assert {words[2 if words[0] == "in" else 0] for words in commands} == {"subcut", "python"}
    said = {word for words in commands for word in words[1:2] if words[-1] != "--help"}
    group: Any = typer.main.get_command(cli.app)
    assert set(group.commands) - said <= {"view"}  # which serves a page until it is stopped


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("built in 36.4 ms, ran in 0.6 ms", "built in 5 s, ran in 12 ms"),
        ("2026-11-24 16:07:11 Check", "2027-01-02 01:02:03 Check"),
        ("/home/me/here/x.npy", "<here>/x.npy"),
        ("onnxruntime 1.31.1", "onnxruntime 1.32.0"),
        ('{"seconds": 3.1, "nodes": ["a"]}', '{"nodes": ["a"], "seconds": 0.2}'),
        ("row,seconds,words\nstep,0.1,whole", "row,seconds,words\nstep,0.25,whole"),
    ],
)
def test_varying_values_are_masked(text: str, same: str) -> None:
    places = {"/home/me/here": "<here>"}
    assert answers.answer_text(text, places) == answers.answer_text(same, places)


@pytest.mark.parametrize(
    ("text", "other"), [("7.6e-02 FAIL", "7.5e-02 FAIL"), ('{"nodes": 3}', '{"nodes": 4}')]
)
def test_counted_values_are_not_masked(text: str, other: str) -> None:
    assert answers.answer_text(text, {}) != answers.answer_text(other, {})


def test_zip_is_compared_by_its_members() -> None:
    def packed(date: tuple[int, int, int, int, int, int], text: str) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr(zipfile.ZipInfo("log.txt", date), text)
        return out.getvalue()

    first = packed((2026, 1, 1, 0, 0, 0), "took 1 s")
    same = packed((2026, 2, 2, 0, 0, 0), "took 2 s")
    other = packed((2026, 1, 1, 0, 0, 0), "failed")
    assert answers.content("a.zip", first, {}) == answers.content("a.zip", same, {})
    assert answers.content("a.zip", first, {}) != answers.content("a.zip", other, {})


def test_differences_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right = Answer("subcut inspect", 0, "3 nodes\n", "", {"a.txt": "1"})
    wrong = Answer("subcut inspect", 1, "4 nodes\n", "", {"b.txt": "1"})
    for name, answer in (("a", right), ("b", wrong)):
        (tmp_path / name).mkdir()
        document = {"title": "demo: look", "answers": [asdict(answer)]}
        (tmp_path / name / "demo.json").write_text(json.dumps(document), encoding="utf-8")
    folders = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert same_answers.main(["compare", folders[0], folders[0]]) == 0
    assert "1 same" in capsys.readouterr().out
    assert same_answers.main(["compare", *folders]) == 1
    shown = capsys.readouterr().out
    assert "exit code 0 -> 1" in shown and "-3 nodes" in shown and has_line(shown, "b.txt", "-> 1")
