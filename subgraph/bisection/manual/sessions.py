"""The folders of manual sessions: found, locked while a command works on them, removed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from subgraph import system
from subgraph.bisection.manual import tasks
from subgraph.bisection.manual.state import FOLDERS, STATE, TODO, ManualState
from subgraph.errors import ResultExists, UsageError
from subgraph.storage import folders
from subgraph.system import Lock
from subgraph.text import clean, count

COPIES = ("state-before.json", "state-damaged.json")  # which older versions wrote
BEGIN = "subcut manual start MODEL begins one"


def folder_of(parent: Path, name: str) -> Path:
    """The folder of a session."""
    return parent / f"manual-{folders.safe_name(name)}"


def find(parent: Path, name: str | None) -> Path:
    """The folder of the session of this name; without a name, of the only one.

    Raises:
        UsageError: there is none, or several.
    """
    if name is not None:
        if not (folder_of(parent, name) / STATE).is_file():
            known = ", ".join(map(_name_of, _sessions_in(parent)))
            hint = f"there is {known}; subcut manual start MODEL begins another" if known else BEGIN
            raise UsageError(
                f"no manual session '{clean(name)}' in {clean(str(parent))}",
                hint,
                code="manual.unknown-session",
            )
        return folder_of(parent, name)
    sessions = _sessions_in(parent)
    if not sessions:
        raise UsageError(
            f"no manual session in {clean(str(parent))}",
            "subcut manual start MODEL; -o names the folder",
            code="manual.no-session",
        )
    if len(sessions) > 1:
        names = ", ".join(map(_name_of, sessions))
        raise UsageError(
            f"several manual sessions in {clean(str(parent))}: {names}",
            "name one with --name",
            code="manual.ambiguous-session",
        )
    return sessions[0]


def _sessions_in(parent: Path) -> list[Path]:
    return sorted(p.parent for p in parent.glob(f"manual-*/{STATE}"))


def _name_of(folder: Path) -> str:
    """What --name takes, as it is typed; of a damaged session a part of its folder's name."""
    with suppress(UsageError):
        return system.quote(clean(ManualState.read(folder).name))
    return clean(folder.name.removeprefix("manual-"))


@contextmanager
def opened(folder: Path) -> Iterator[ManualState]:
    """The state of a session, locked in the block.

    Raises:
        UsageError: the state is damaged, or another command works on the session.
    """
    with locked(folder):
        yield ManualState.read(folder)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """
    Raises:
        UsageError: another command works on this session.
    """
    try:
        lock = Lock(folder, wait=False)
    except BlockingIOError:
        raise UsageError(
            f"another command works on {clean(str(folder))}",
            "wait until it is done",
            code="manual.locked",
        ) from None
    with lock:
        yield


def require_none(folder: Path, force: bool) -> None:
    """
    Raises:
        ResultExists: there is a session already.
    """
    if not (folder / STATE).exists() or force:
        return
    hint = (
        "subcut manual next goes on; --name begins another beside it; --force loses these answers"
        " and begins anew"
    )
    raise ResultExists(
        f"{clean(str(folder))} holds a manual session: {so_far(folder)}",
        hint,
        code="manual.session-exists",
    )


def so_far(folder: Path) -> str:
    """How far a session has come, in words."""
    try:
        state = ManualState.read(folder)
    except UsageError:
        return "its state is damaged"
    rounds = f" of {count(state.rounds, 'round')}" if state.log else ""
    return (
        f"{count(len(state.log), 'answer')}{rounds} so far, {count(len(state.open), 'task')} open"
    )


def clear(folder: Path) -> list[Path]:
    """Remove a session, its state first; return the folders of tasks that stay, because they hold
    other files."""
    for file in (STATE, *COPIES):
        (folder / file).unlink(missing_ok=True)
    left = [place for place in sorted((folder / TODO).glob("*")) if not tasks.remove(place)]
    for name in FOLDERS:
        if name != TODO or not left:
            shutil.rmtree(folder / name, ignore_errors=True)
    return left
