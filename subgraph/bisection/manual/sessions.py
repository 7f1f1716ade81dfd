"""The folders of manual sessions: found, locked while a command works on them, removed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from subgraph import system
from subgraph.bisection.manual import tasks
from subgraph.bisection.manual.session import FOLDERS, STATE, TODO, Session
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
    """Find the folder of the session of this name; without a name, of the only one.

    Raises:
        UsageError: there is none, or several.
    """
    sessions = sorted(path.parent for path in parent.glob(f"manual-*/{STATE}"))
    place = clean(str(parent))
    if name is not None:
        folder = folder_of(parent, name)
        if folder not in sessions:
            known = ", ".join(map(_name_of, sessions))
            hint = f"there is {known}; subcut manual start MODEL begins another" if known else BEGIN
            raise UsageError(
                f"no manual session '{clean(name)}' in {place}", hint, code="manual.unknown-session"
            )
        return folder
    if not sessions:
        raise UsageError(
            f"no manual session in {place}",
            "subcut manual start MODEL; -o names the folder",
            code="manual.no-session",
        )
    if len(sessions) > 1:
        raise UsageError(
            f"several manual sessions in {place}: {', '.join(map(_name_of, sessions))}",
            "name one with --name",
            code="manual.ambiguous-session",
        )
    return sessions[0]


def _name_of(folder: Path) -> str:
    """The argument of --name, as it is typed; of a damaged session a part of its folder's name."""
    with suppress(UsageError):
        return system.quote(clean(Session.read(folder).request.name))
    return clean(folder.name.removeprefix("manual-"))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a session in the block.

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
    """Require that a folder holds no session, unless `force`.

    Raises:
        ResultExists: it holds one.
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
        session = Session.read(folder)
    except UsageError:
        return "its state is damaged"
    rounds = f" of {count(session.rounds, 'round')}" if session.log else ""
    answers = count(len(session.log), "answer")
    return f"{answers}{rounds} so far, {count(len(session.open), 'task')} open"


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
