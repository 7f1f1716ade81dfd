"""Messages on standard error: lines, or one live line on a terminal. Covers `commands.live`
and `log`."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from subgraph.commands.live import EventHandler, LineFormatter, ProgressHandler
from tests.helpers.facts import has_line

STEP = {
    "done": 25,
    "of": 27,
    "left": "2 of 27 nodes left",
    "estimate": "about 2 to 14 more runs (1 s to 7 s)",
}
ASKING = {"asking": "running /pad/Pad (1 node)"}

Message = tuple[str, Mapping[str, Any]]


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def said(stream: io.StringIO, messages: list[Message], **options: bool) -> str:
    """All that the handler writes for these messages, and the text of its live line."""
    handler = ProgressHandler(stream, **options)
    handler.setFormatter(LineFormatter())
    for text, extra in messages:
        record = logging.makeLogRecord({"msg": text, "levelno": logging.INFO, **extra})
        handler.handle(record)
    fields = (
        [" ".join(str(v) for v in task.fields.values()) for task in handler.bar.tasks]
        if handler.bar
        else []
    )
    handler.close_bar()
    return stream.getvalue() + "".join(fields)


MESSAGES: list[Message] = [
    ("running /pad/Pad (1 node)", {"live": ASKING}),
    ("  4  2 of 27 nodes left", {"live": STEP}),
]


def test_where_it_is_no_terminal_a_step_is_a_line_and_what_is_asked_is_not_said() -> None:
    assert has_line(said(io.StringIO(), MESSAGES), "4  2 of 27")


def test_on_a_terminal_it_is_one_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = said(Terminal(), MESSAGES)
    assert "  4  2 of" not in shown and all(
        text in shown for text in ("2 of 27 nodes left", "about 2 to 14", "/pad/Pad")
    )
    assert has_line(said(Terminal(), MESSAGES, verbose=True), "4  2 of 27")
    assert has_line(said(Terminal(), MESSAGES, live=False), "4  2 of 27")


def test_signs_of_life_are_needed_only_without_a_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    beat: Message = ("still working … 15 s", {"heartbeat": True})
    assert "still working" in said(Terminal(), [beat])
    assert "still working" not in said(Terminal(), [*MESSAGES, beat])


def test_warnings_stand_above_the_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    warning: Message = ("the model is odd", {"levelno": logging.WARNING})
    assert has_line(said(Terminal(), [*MESSAGES, warning]), "warning", "odd")


def test_for_the_page_a_message_is_a_line_of_json() -> None:
    stream = io.StringIO()
    handler = EventHandler(stream)
    for text, extra in [*MESSAGES, ("plain\x1b", {})]:
        record = logging.LogRecord("subcut", logging.INFO, "", 0, text, (), None)
        vars(record).update(extra)
        handler.emit(record)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line.get("live") for line in lines] == [ASKING, STEP, None] and lines[2] == {
        "text": "plain"
    }
