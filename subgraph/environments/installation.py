"""Environments in the user's cache: one per set of requirements, made if it is missing, listed,
removed.

They are made aside and renamed when they are complete; a lock keeps two commands from making the
same one. uv makes them if there is one, else venv and pip. Whoever calls `make` has shown
`list_commands` to the user before.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import util
from pathlib import Path

from subgraph import children
from subgraph.environments import emulated
from subgraph.errors import BackendError, OutputError, explain_os_error
from subgraph.iterables import flatten
from subgraph.log import log
from subgraph.storage import folders
from subgraph.storage.digest import digest
from subgraph.storage.folders import find_cache_folder
from subgraph.system import PYTHON, Lock, is_private, join
from subgraph.text import clean, mask_logins
from subgraph.types import Strings, frozen

MAX_INSTALL_SECONDS = 3600  # that an installation may take
REQUIREMENTS = "requirements.txt"  # in the folder of an environment: what it was made for
FROM_WHERE = "--index-url and --find-links name other indexes, as for pip"
MAX_LAST_LINES = 6  # of the output of pip that fails
# Beginnings of the lines of pip that state no reason.
UNTOLD = (
    "WARNING",
    "Collecting",
    "Looking in",
    "  Downloading",
    "Using Python",
)
ALONE = ("--no-deps", "--only-binary", ":all:")
# Options of pip, for an output that nobody reads.
QUIET = (
    "--disable-pip-version-check",
    "--no-input",
)


@frozen
class Installation:
    """The packages of an environment, as pip names them: `tf2onnx==1.17.0`.

    Attributes:
        sources: Options for pip: the places of packages.
        alone: Whether the packages that these depend on are omitted, and only wheels are installed,
            so that none of their code runs.
        processor: The processor of the packages, as `emulated` names it; "" for this machine's.
    """

    requirements: Strings
    sources: Strings = ()
    alone: bool = False
    processor: str = ""

    @property
    def folder(self) -> Path:
        """The folder of the environment, which may not exist yet."""
        words = [list(self.requirements), list(self.sources)]
        own = [*["alone"] * self.alone, *filter(None, [self.processor])]
        key = digest("environment/1", sys.version, sys.base_prefix, *words, *own)
        return find_cache_folder("environments") / key[:20]

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / PYTHON

    @property
    def is_ready(self) -> bool:
        """Whether it is there, complete, and only this user can have put it there."""
        is_there = (self.folder / REQUIREMENTS).is_file() and os.access(self.python, os.X_OK)
        return is_there and is_private(self.folder) and is_private(self.python.parent)

    def list_commands(self, folder: Path) -> list[list[str]]:
        """Return the command lines that build it in a folder."""
        python = str(folder / PYTHON)
        sources = [*self.sources, *(ALONE if self.alone else ())]
        wanted = [*sources, *self.requirements]
        if self.processor:
            pip = children.make_python_command("-m", "pip")
            packages = str(emulated.find_packages_folder(self.processor, folder))
            place = ["--target", packages, *emulated.choose_wheels(self.processor)]
            return [[*pip, "install", *QUIET, "--no-compile", *place, *wanted]]
        if uv := shutil.which("uv"):
            make = [uv, "venv", "--quiet", "--python", sys.executable, str(folder)]
            return [make, [uv, "pip", "install", "--python", python, *wanted]]
        make = children.make_python_command("-m", "venv", folder)
        if util.find_spec("pip") is None:
            pip = children.make_python_command("-m", "pip", python=folder / PYTHON)
            return [make, [*pip, "install", *QUIET, *wanted]]
        make.insert(-1, "--without-pip")  # pip takes most of 3 seconds
        pip = children.make_python_command("-m", "pip", "--python", python)
        return [make, [*pip, "install", *QUIET, "--no-compile", *wanted]]


def make_pip_sources(index_url: str | None, find_links: Sequence[str]) -> list[str]:
    """Return options for pip, which runs in a separate folder: folders here, and addresses."""
    places = (
        str(Path(place).absolute() if Path(place).exists() else place) for place in find_links
    )
    return [
        *(["--index-url", index_url] if index_url else []),
        *flatten(("--find-links", place) for place in places),
    ]


def show(environment: Installation) -> None:
    """Log the commands that will make it."""
    if environment.processor and not emulated.find_system(environment.processor).is_dir():
        log.info("  apt-get fetches %s's C library and Python (17 MB) first", environment.processor)
        return
    for command in environment.list_commands(environment.folder):
        log.info("  %s", mask_logins(clean(join(command))))


def make(environment: Installation, timeout: float = MAX_INSTALL_SECONDS) -> Path:
    """Make an environment that does not exist yet; return its interpreter.

    Waits for another process that does.

    Args:
        timeout: Seconds that each of its commands may take.

    Raises:
        BackendError: something cannot be installed. OutputError: nothing can be written.
    """
    with _lock(environment.folder):
        if not environment.is_ready:
            _make_system(environment)
            with folders.write_aside(environment.folder) as work:
                for command in environment.list_commands(work):
                    _run(command, environment, timeout=timeout)
                if environment.processor:
                    emulated.write_interpreter(environment.processor, work, environment.folder)
                (work / REQUIREMENTS).write_text(
                    "\n".join(environment.requirements) + "\n", encoding="utf-8"
                )
        os.utime(environment.folder)
    return environment.python


def _make_system(environment: Installation) -> None:
    """Make the system of the environment's processor, if that is another one and not made yet.

    Raises:
        BackendError: as of `make`.
    """
    if processor := environment.processor:
        folder = emulated.find_system(processor)
        with _lock(folder):
            if not folder.is_dir():
                with folders.write_aside(folder) as work:
                    emulated.make_system(
                        processor,
                        work,
                        lambda command: _run(command, environment, emulated.UNFETCHED),
                    )


def list_environments() -> list[Path]:
    """Return the folders of all complete environments, the last used one first."""
    folders_ = [path.parent for path in find_cache_folder("environments").glob(f"*/{REQUIREMENTS}")]
    return sorted(folders_, key=lambda folder: folder.stat().st_mtime, reverse=True)


def read_requirements(folder: Path) -> list[str]:
    """Return the requirements that the environment in a folder was made for."""
    return (folder / REQUIREMENTS).read_text(encoding="utf-8").split()


def _log_download(line: str) -> None:
    """Log the line of pip or uv about a large file, with its size, before the download."""
    if re.match(r"Downloading .*\([\d.,]+ ?[MG]i?B\)", line):
        log.info("  %s", mask_logins(clean(line)))


def _run(
    command: Sequence[str],
    environment: Installation,
    hint: str = FROM_WHERE,
    timeout: float = MAX_INSTALL_SECONDS,
) -> None:
    """Run a command in an environment.

    Raises:
        BackendError: It fails; with its last lines, and a hint about a full disk.
    """
    requirements = " ".join(environment.requirements)
    environment_variables = {
        k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }
    parent = environment.folder.parent
    what = f"cannot run {command[0]}"
    venv_hint = "install Python's venv module"
    try:
        with (
            explain_os_error(BackendError, what, venv_hint, code="environment.no-venv"),
            folders.make_scratch(parent, "pip") as place,  # what it unpacks goes with it
        ):
            env = {**environment_variables, "TMPDIR": str(place)}
            done = children.run(
                command, timeout=timeout, on_line=_log_download, env=env, cwd=parent
            )
    except subprocess.TimeoutExpired as e:
        raise BackendError(
            f"installing {requirements} took more than {timeout:.0f} s",
            "look at the network, and try again",
            code="environment.timeout",
        ) from e
    if done.code:
        if children.DISK_FULL.search((done.err or done.out).decode(errors="replace")):
            hint = "free some space, or set $XDG_CACHE_HOME and $TMPDIR to where there is more"
        lines = (mask_logins(line) for line in done.list_last_lines(MAX_LAST_LINES, *UNTOLD))
        raise BackendError(
            " | ".join([f"cannot install {requirements}", *lines]),
            hint,
            code="environment.install-failed",
        )


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Keep other processes from making this environment, for this block."""
    what = f"cannot write {folder.parent}"
    hint = "set XDG_CACHE_HOME to a folder"
    with explain_os_error(OutputError, what, hint, code="output.unwritable"):
        place = folder.with_name(f".{folder.name}.lock")
        place.touch()
        try:
            lock = Lock(place, wait=False)
        except BlockingIOError:
            log.info("another command is installing the same: waiting for it")
            lock = Lock(place)
        with lock:
            yield
