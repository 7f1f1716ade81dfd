"""Tests of one kind take turns: of the many parameters of a test a part runs, another one for each
commit.

`@pytest.mark.turns(3)`: of a test's parameters a third runs at a time. `SLOW_TURNS=4`: so do all
slow tests, as in CI. `TESTS_TURN=N` says whose turn it is; `.ci/run` counts commits. With `make
test-all` or `TESTS_TURN=all` all run, and so does a test that is named on the command line.
"""

from __future__ import annotations

import os
from zlib import crc32

import pytest

from tests.helpers.examples import ALL


def takes_its_turn(item: pytest.Item) -> bool:
    """Does a test run this time?"""
    named = any("::" in str(word) for word in item.config.args)
    turn = os.environ.get("TESTS_TURN", "0")
    if ALL or named or turn == "all":
        return True
    mark = item.get_closest_marker("turns")
    slow_turns = int(os.environ.get("SLOW_TURNS", "1")) if item.get_closest_marker("slow") else 1
    every = max(int(mark.args[0]) if mark else 1, slow_turns)
    return crc32(item.nodeid.encode()) % every == int(turn) % every
