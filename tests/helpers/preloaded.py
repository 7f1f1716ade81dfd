"""The command line with all that most commands import, for processes that are forked: `tests.helpers.run_command`."""

from __future__ import annotations

import os
import sys

import numpy  # noqa: F401
import onnx  # noqa: F401

import subgraph.bisection.bisection
import subgraph.cases.write_case
import subgraph.inspection.describe
import subgraph.recordings.compare
import subgraph.sweep.sweep
import subgraph.trials.compare  # noqa: F401
from subgraph import cli


def run(words: list[str], cwd: str, environment: dict[str, str], streams: list[str]) -> None:
    """Be the process of one command line: `words` with the program first; `streams`: files for output and errors."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    places = [(os.devnull, os.O_RDONLY), *((stream, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for stream in streams)]
    for number, (path, flags) in enumerate(places):
        handle = os.open(path, flags, 0o600)
        os.dup2(handle, number)
        os.close(handle)
    sys.stdin, sys.argv = open(0, closefd=False), words  # noqa: SIM115
    cli.main()
