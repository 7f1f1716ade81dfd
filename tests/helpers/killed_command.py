"""A command that is killed at a chosen rename, not after a chosen time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.helpers.run_command import PATIENCE, environment

KILLED = 9  # the exit code of a process that has ended before its rename
PROGRAM = f"""
import os, sys
left = int(sys.argv.pop(1))
def count(event, args):
    global left
    left -= event == "os.rename"
    if event == "os.rename" and left == 0:
        os.write(1, os.fsencode(os.path.abspath(args[1])))
        os._exit({KILLED})
sys.addaudithook(count)
from subgraph.cli import main
main()
"""


def kill_before_rename(number: int, *words: str | Path, cwd: Path) -> Path | None:
    """Run one command line, which ends without any cleanup before its rename of this number (from
    1).

    Returns:
        The target of the rename that did not happen. None if the command came to its end (exit code
        0 or 1).
    """
    line = [sys.executable, "-P", "-c", PROGRAM, str(number), *words]
    done = subprocess.run(
        line, cwd=cwd, env=environment(), capture_output=True, timeout=PATIENCE, check=False
    )
    assert done.returncode in (0, 1, KILLED), done
    return Path(done.stdout.decode()) if done.returncode == KILLED else None
