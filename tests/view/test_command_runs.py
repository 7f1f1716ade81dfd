"""Runs of the page: one at a time, their progress as events, stopped in order; no code of the
folder is imported."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from subgraph.errors import UsageError
from subgraph.view import command_runs
from subgraph.view.command_runs import Runs
from tests.helpers.chain_models import chain
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import PATIENCE


def script(text: str) -> Any:
    """Instead of subcut's own command: a script in Python."""
    return mock.patch.object(
        command_runs, "COMMAND", (command_runs.COMMAND[0], "-I", "-S", "-c", text)
    )


def ended(session: Runs) -> dict[str, Any]:
    until = time.monotonic() + PATIENCE
    while session.events[-1]["type"] != "end":
        assert time.monotonic() < until
        session.wait_for_events(session.events[-1]["id"], 1.0)
    return session.events[-1]


def test_progress_and_result_are_events() -> None:
    session = Runs(lambda document, words: {"report": document["n"], "words": words})
    text = """import sys
print('{"text": "half", "live": {"done": 1}}', file=sys.stderr)
print("a\\x1b", file=sys.stderr)
print('{"n": 3}')"""
    with script(text):
        session.start("cut", ["cut", "a b.onnx"])
    assert ended(session)["document"] == {"n": 3} and session.events[-1]["report"] == 3
    begin, half, line = session.events[:3]
    assert (
        begin["command"] == "subcut cut 'a b.onnx'"
        and half["live"] == {"done": 1}
        and line["text"] == "a"
    )
    assert [event["id"] for event in session.events] == [1, 2, 3, 4]


def test_run_imports_nothing_of_the_folder_and_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(77)", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    *python, _, _ = command_runs.COMMAND
    with mock.patch.object(
        command_runs, "COMMAND", (*python, "-S", "-c", "import json; print(json.dumps({'n': 1}))")
    ):
        session = Runs()
        with mock.patch("subprocess.Popen", wraps=subprocess.Popen) as popen:
            session.start("cut", [])
    assert ended(session)["document"] == {"n": 1}
    # a terminal would be asked for trust
    assert popen.call_args.kwargs["stdin"] == subprocess.DEVNULL


def test_run_that_dies_is_an_error() -> None:
    session = Runs()
    with script("import sys; print('out of luck', file=sys.stderr); sys.exit(9)"):
        session.start("cut", [])
    what = ended(session)["document"]["error"]["what"]
    assert has_line(what, "9", "out of luck")


def test_one_run_at_a_time_which_can_be_stopped() -> None:
    session = Runs()
    assert session.stop() is False
    with script("import sys, time; print('up', file=sys.stderr, flush=True); time.sleep(60)"):
        session.start("bisect", [])
        with raises(UsageError, "view.busy"):
            session.start("cut", [])
    while len(session.events) < 2:
        session.wait_for_events(1, 1.0)
    assert session.stop() is True
    assert ended(session)["document"]["error"]
    session.close()
    assert session.wait_for_events(0, 1.0) is None
    with pytest.raises(UsageError):
        session.start("cut", [])


def test_lines_of_progress_go_first_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command_runs, "MAX_KEPT", 10)
    session = Runs()
    session.show("cut", "a", {})
    with script("import sys; [print(k, file=sys.stderr) for k in range(50)]"):
        session.start("cut", [])
    ended(session)
    assert [event["type"] for event in session.events] == [
        "begin",
        "end",
        "begin",
        *["progress"] * 6,
        "end",
    ]
    assert [event["text"] for event in session.events[3:9]] == [str(k) for k in range(44, 50)]


@pytest.mark.slow
def test_the_real_command_runs_and_imports_nothing_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("json.py").write_text("open('pwned', 'w')", encoding="utf-8")
    session = Runs()
    session.start("cut", ["cut", "none.onnx", "--start=a"])
    document = ended(session)["document"]
    assert document["schema"] == "subcut.error/1" and "none.onnx" in document["error"]["what"]
    assert not Path("pwned").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting", ["[candidates.npu]\nrun = 'touch pwned'\n", "candidate = 'cmd:touch pwned'\n"]
)
def test_untrusted_project_file_runs_nothing(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the page's choice is made: by `subcut view`'s own reading of the project file."""
    from subgraph import project
    from subgraph.commands.options import InputOptions
    from subgraph.commands.view import RunOptions, make_view_options
    from subgraph.view.page_session import StartRequest, ViewSession
    from subgraph.view.values import open_model

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    Path("subcut.toml").write_text(setting, encoding="utf-8")
    options = make_view_options(project.load(), RunOptions(), InputOptions(), None, None)
    session = ViewSession(open_model(chain(Path("m.onnx"), ["a", "b", "c"])), "m.onnx", options)
    (first, *_) = options.candidates
    assert first in ("npu", "cmd:touch pwned")
    session.run(StartRequest(first, kind="bisect"))
    error = ended(session.runs)["document"]["error"]
    assert error["code"] == "trust.required" and "--trust" in error["hint"]
    assert not Path("pwned").exists()
