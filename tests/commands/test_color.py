"""The words of a verdict in color."""

from __future__ import annotations

import io
import sys

import pytest

from subgraph.commands.live import color_verdicts

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
    assert color_verdicts(TABLE, io.StringIO()) == shown
