"""One file per sub-command, thin: words from the command line -> the functions below -> a Result.

A command prints nothing. What it has to say on the way goes to `log`, which `cli` shows on standard error.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

log = logging.getLogger("subcut")


@dataclass(frozen=True)
class Result:
    """What a command found: one document for `--json`, the same as text, and the exit code."""

    document: dict[str, Any]
    text: str
    exit_code: int = 0
