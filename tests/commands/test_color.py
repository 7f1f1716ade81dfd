"""A text in the form that a stream shows: verdicts in color, lines of a terminal's width."""

from __future__ import annotations

import io
import os
import shutil
import sys

import pytest

from subgraph.commands.live import adapt_to_stream, fit_to_terminal

TABLE = (
    "wrong: 1 of 2 nodes: agreement\nright: outputs agree\n3.5e-01 FAIL  0.0e+00 agree  unresolved"
)
SHOWN = (
    "\x1b[1;31mwrong:\x1b[0m 1 of 2 nodes: agreement\n\x1b[32mright\x1b[0m: outputs"
    " \x1b[32magree\x1b[0m\n3.5e-01 \x1b[1;31mFAIL\x1b[0m  0.0e+00 \x1b[32magree\x1b[0m "
    " \x1b[33munresolved\x1b[0m"
)


@pytest.mark.parametrize(("when", "shown"), [("always", SHOWN), ("never", TABLE), ("auto", TABLE)])
def test_words_of_verdicts(when: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["subcut", "compare", "m.onnx", f"--color={when}"])
    assert adapt_to_stream(TABLE, io.StringIO()) == shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("model  is wrong by far", "model  is wrong by\n       far"),
        ("next  subcut lint model.onnx", "next  subcut lint model.onnx"),
        ("\nshort", "\nshort"),
    ],
    ids=["below its text", "a command", "empty"],
)
def test_lines_fit_a_terminal(line: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_: os.terminal_size((21, 9)))
    assert fit_to_terminal(line, Terminal()) == shown
    assert fit_to_terminal(line, io.StringIO()) == line
