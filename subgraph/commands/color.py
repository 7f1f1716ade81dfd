"""The words of a verdict in color, where a stream shows colors."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

RED = "1;31"
GREEN = "32"
YELLOW = "33"
_VERDICTS = re.compile(
    r"(?P<red>^(?:error|wrong):|^[✗!] \w+|\bFAIL\b)|(?P<green>^(?:✓ )?right\b|\bagree\b)"
    r"|(?P<yellow>^[≈?] \w+|\bunresolved\b)",
    re.MULTILINE,
)
_STYLES = {"red": RED, "green": GREEN, "yellow": YELLOW}


def colored(text: str, stream: Any) -> str:
    """A text for a stream with the words of its verdicts in color, if the stream shows colors."""
    if not shows_color(stream):
        return text
    return _VERDICTS.sub(lambda m: f"\x1b[{_STYLES[str(m.lastgroup)]}m{m[0]}\x1b[0m", text)


def shows_color(stream: Any) -> bool:
    """By `--color`, else NO_COLOR, else FORCE_COLOR, else if it is a terminal."""
    words = sys.argv[1:]
    options = (
        w.partition("=")[2] or next(iter(words[i + 1 :]), "")
        for i, w in enumerate(words)
        if w.startswith("--color")
    )
    option = next(options, "")
    if option in ("always", "never"):
        return option == "always"
    if os.environ.get("NO_COLOR"):
        return False
    terminal = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    return bool(terminal or os.environ.get("FORCE_COLOR"))
