"""How many examples a law is tried on: a fourth of its number with each change, all of them with
`make test-all`.

Most laws are derandomized: they meet the same examples each time, and the first ones find what an
edit breaks.
"""

from __future__ import annotations

import os

ALL = os.environ.get("SUBCUT_EXAMPLES") == "all"
MIN = 12


def examples(full: int) -> int:
    """So many of `full`."""
    return full if ALL else min(full, max(MIN, full // 4))
