"""The `subcut` command as a process of its own, for tests of what a user meets."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer

from subgraph.commands import Result
from subgraph.results.answer import ErrorEntry
from subgraph.system import APART

SUBCUT = Path(sys.executable).with_name("subcut")
ON_WINDOWS = sys.platform == "win32"
COMMAND = (
    [sys.executable, "-P", "-c", "from subgraph.cli import main; main()"]
    if ON_WINDOWS
    else [str(SUBCUT)]
)
# seconds for a command that takes a few, on a busy machine; fakes that hang sleep for 600
PATIENCE = 600 if ON_WINDOWS else 200
# under a limit on file sizes Python 3.11 leaves truncated .pyc files
NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}
SOON = 100  # seconds for an event that takes a tenth of one, likewise


@dataclass(frozen=True)
class Done:
    """Exit code and output of a command line."""

    code: int
    out: str
    err: str
    reported: str = ""  # code of the error, if the command ran in the process of the test

    @property
    def problem(self) -> str:
        """Code of the error that ended the command; of another process only with --json."""
        return self.reported or str(self.document["error"]["code"])

    @property
    def document(self) -> dict[str, Any]:
        """Standard output, which must be exactly one JSON document."""
        found = json.loads(self.out, parse_constant=_not_json)
        assert isinstance(found, dict)
        return found


def _not_json(word: str) -> None:
    raise AssertionError(f"{word} is not JSON")


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of the tests without variables that subcut reads."""
    noisy = ("SUBCUT_", "_SUBCUT_", "COMP_")
    plain = {k: v for k, v in os.environ.items() if not k.startswith(noisy)}
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS", "PYTHONIOENCODING"):
        plain.pop(name, None)
    if ON_WINDOWS:
        plain |= {"PYTHONIOENCODING": "utf-8", "PYTHONPATH": str(Path(__file__).parents[2])}
    return plain | {"HOME": "/nonexistent"} | dict(more or {})


def subcut(
    *words: str | Path, cwd: Path, env: Mapping[str, str] | None = None, **more: Any
) -> Done:
    """Run one command line to its end.

    It runs in this process, which saves the start of Python and of the reference, unless the test
    wants streams of its own, or variables that the processes of the command read as well.
    """
    if not more and all(name.startswith(("SUBCUT_", "XDG_")) for name in env or ()):
        return _run_here([str(w) for w in words], cwd, environment(env))
    done = subprocess.run(
        [*COMMAND, *words],
        cwd=cwd,
        env=environment(env),
        capture_output=True,
        encoding="utf-8",
        check=False,
        **({"stdin": subprocess.DEVNULL, "timeout": PATIENCE} | more),
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def run_program(
    words: Sequence[str | Path],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = PATIENCE,
) -> subprocess.CompletedProcess[str]:
    """Run any program to its end, and keep what it printed."""
    return subprocess.run(
        words, cwd=cwd, env=env, timeout=timeout, capture_output=True, text=True, check=False
    )


def together(words: Sequence[str], cwd: Path, env: Mapping[str, str]) -> Done:
    """Run one command line in this process; `out` has what a terminal shows, of both streams."""
    return _run_here(words, cwd, environment(env), streams=1)


def _run_here(
    words: Sequence[str], cwd: Path, variables: Mapping[str, str], streams: int = 2
) -> Done:
    from subgraph import cli

    codes: list[str] = []
    report = cli._report

    def note(error: ErrorEntry, code: int, form: cli.OutputForm) -> int | Result:
        codes.append(error.code)
        return report(error, code, form)

    with contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8"))
            for _ in range(streams)
        ]
        out = opened[0]
        err = opened[-1]
        nothing = stack.enter_context(Path(os.devnull).open(encoding="utf-8"))
        for name, value in (
            ("stdin", nothing),
            ("stdout", out),
            ("stderr", err),
            ("argv", [str(SUBCUT), *words]),
        ):
            stack.enter_context(mock.patch.object(sys, name, value))
        stack.enter_context(mock.patch.dict(os.environ, variables, clear=True))
        stack.enter_context(contextlib.chdir(cwd))
        stack.enter_context(_own_settings())
        stack.enter_context(mock.patch.object(cli, "_exit", sys.exit))
        stack.enter_context(mock.patch.object(cli, "_report", note))
        with pytest.raises(SystemExit) as end:
            cli.main()
        found: list[str] = []
        for stream in (out, err):
            stream.seek(0)
            found.append(stream.read())
    assert "Traceback" not in found[1], found[1]
    assert isinstance(end.value.code, int)
    return Done(end.value.code, found[0], found[1], codes[-1] if codes else "")


@contextlib.contextmanager
def _own_settings() -> Iterator[None]:
    """What a command sets for its process holds for this block; it tells nobody that it is still
    working."""
    from subgraph import cli

    if not hasattr(cli._build_command, "cache_info"):  # built once for all tests: it takes 30 ms
        vars(cli)["_build_command"] = functools.cache(cli._build_command)
    log = logging.getLogger("subcut")
    logging_before = log.handlers[:], log.level, log.propagate
    terminate = signal.getsignal(signal.SIGTERM)
    threshold = gc.get_threshold()
    try:
        with mock.patch.object(cli, "_log_heartbeat", lambda: None):
            yield
    finally:
        log.handlers[:], log.level, log.propagate = logging_before
        signal.signal(signal.SIGTERM, terminate)
        gc.set_threshold(*threshold)


def in_process(*words: str | Path) -> Result:
    """Run one command line in this process, where the test stands; an error is raised, not
    shown."""
    from subgraph import cli

    with _own_settings():
        result = typer.main.get_command(cli.app).main(
            args=[str(w) for w in words], prog_name="subcut", standalone_mode=False
        )
    assert isinstance(result, Result)
    return result


def start(
    *words: str | Path, cwd: Path, env: Mapping[str, str] | None = None, **more: Any
) -> subprocess.Popen[str]:
    """Start one command line in a process group of its own, as a shell would; `finish` waits for
    its end."""
    return subprocess.Popen(
        [*COMMAND, *words],
        cwd=cwd,
        env=environment(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        **APART,
        **more,
    )


def finish(process: subprocess.Popen[str], patience: float = PATIENCE) -> Done:
    """Exit code and output of a command line that was started, at its end."""
    out, err = process.communicate(timeout=patience)
    assert "Traceback" not in err, err
    return Done(process.returncode, out, err)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too."""
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def manifest(folder: Path) -> dict[str, Any]:
    """A result's manifest; every file that it lists must be there, and no other."""
    found = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    assert sorted(found["files"]) == sorted(tree(folder))
    return found
