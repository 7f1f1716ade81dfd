"""Python environments for what subcut does not carry: converters of other formats, other releases of runtimes.

They lie in the user's cache, one per set of requirements, made aside and renamed when they are complete; a lock keeps
two commands from making the same one. uv makes them where there is one, else venv and pip. Whoever calls `make` has
shown `commands` to the user before.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from subgraph.errors import BackendError, OutputError
from subgraph.storage import folders
from subgraph.storage.cache import cache_folder
from subgraph.storage.digest import digest
from subgraph.text import clean

log = logging.getLogger("subcut")

SECONDS = 3600  # that an installation may take
REQUIREMENTS = "requirements.txt"  # in the folder of an environment: what it was made for
LAST_LINES = 6  # of what pip says when it fails


@dataclass(frozen=True)
class Installation:
    """What is installed, as pip names it: `tf2onnx==1.17.0`. `sources`: options for pip that say from where."""

    requirements: tuple[str, ...]
    sources: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Where it lies, or will."""
        key = digest("environment/1", sys.version, sys.base_prefix, list(self.requirements), list(self.sources))
        return cache_folder("environments") / key[:20]

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def is_ready(self) -> bool:
        """Is it there, complete?"""
        return (self.folder / REQUIREMENTS).is_file() and os.access(self.python, os.X_OK)

    def commands(self, folder: Path) -> list[list[str]]:
        """The command lines that make it in a folder."""
        python, wanted = str(folder / "bin" / "python"), [*self.sources, *self.requirements]
        if uv := shutil.which("uv"):
            make = [uv, "venv", "--quiet", "--python", sys.executable, str(folder)]
            return [make, [uv, "pip", "install", "--quiet", "--python", python, *wanted]]
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        return [[sys.executable, "-m", "venv", str(folder)], [*pip, *wanted]]


def make(environment: Installation) -> Path:
    """The environment's interpreter; the environment is made if it is not there. Waits for another process that does.

    Raises:
        BackendError: something cannot be installed. OutputError: nothing can be written.
    """
    with _locked(environment.folder):
        if not environment.is_ready:
            with folders.aside(environment.folder) as work:
                for command in environment.commands(work):
                    _run(command, environment)
                (work / REQUIREMENTS).write_text("\n".join(environment.requirements) + "\n", encoding="utf-8")
        os.utime(environment.folder)
    return environment.python


def _run(command: Sequence[str], environment: Installation) -> None:
    """
    Raises:
        BackendError: it fails, with the last lines of what it says.
    """
    shown = " ".join(map(clean, environment.requirements))
    outside = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    try:
        done = subprocess.run(
            command, env=outside, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as e:
        raise BackendError(
            f"installing {shown} took more than {SECONDS} s", "look at the network, and try again"
        ) from e
    except OSError as e:
        raise BackendError(f"cannot run {clean(command[0])}: {e.strerror or e}", "install Python's venv module") from e
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").splitlines()
        lines = [line for line in said if line.strip() and not line.startswith("WARNING")][-LAST_LINES:]
        hint = "--index-url and --find-links say where to look, as for pip"
        raise BackendError("\n".join([f"cannot install {shown}:", *map(clean, lines)]), hint)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from making this environment, for this block."""
    try:
        with folder.with_name(f".{folder.name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("another command is installing the same: waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as e:
        raise OutputError(f"cannot write {folder.parent}: {e.strerror or e}", "set XDG_CACHE_HOME to a folder") from e
