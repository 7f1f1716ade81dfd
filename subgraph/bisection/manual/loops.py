"""The folders of manual bisections: found, locked while a command works on them, removed."""

from __future__ import annotations

import logging
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from subgraph.bisection.manual import tasks
from subgraph.bisection.manual.state import FOLDERS, STATE, STATE_BEFORE, TODO, ManualState
from subgraph.errors import ResultExists, UsageError
from subgraph.storage import folders
from subgraph.system import Lock
from subgraph.text import clean, count

DAMAGED = "state-damaged.json"
BEGIN = "subcut manual start MODEL begins one"

log = logging.getLogger("subcut")


def folder_of(parent: Path, name: str) -> Path:
    """The folder of a loop."""
    return parent / f"manual-{folders.safe_name(name)}"


def find(parent: Path, name: str | None) -> Path:
    """The folder of the loop of this name; without a name, of the only one.

    Raises:
        UsageError: there is none, or several.
    """
    if name is not None:
        if not (folder_of(parent, name) / STATE).is_file():
            known = ", ".join(map(_name_of, _loops_in(parent)))
            hint = f"there is {known}; subcut manual start MODEL begins another" if known else BEGIN
            raise UsageError(f"no loop '{clean(name)}' in {clean(str(parent))}", hint)
        return folder_of(parent, name)
    loops = _loops_in(parent)
    if not loops:
        raise UsageError(f"no loop was started in {clean(str(parent))}", "subcut manual start MODEL; -o says where")
    if len(loops) > 1:
        names = ", ".join(map(_name_of, loops))
        raise UsageError(f"which loop? there are {names}", "--name says")
    return loops[0]


def _loops_in(parent: Path) -> list[Path]:
    return sorted(p.parent for p in parent.glob(f"manual-*/{STATE}"))


def _name_of(folder: Path) -> str:
    """What --name takes, as it is typed; of a damaged loop a part of its folder's name."""
    with suppress(UsageError):
        return shlex.quote(clean(ManualState.read(folder, STATE).name))
    return clean(folder.name.removeprefix("manual-"))


@contextmanager
def opened(folder: Path) -> Iterator[ManualState]:
    """The state of a loop, locked in the block.

    Raises:
        UsageError: the state is damaged, or another command works on the loop.
    """
    with locked(folder):
        yield _read(folder, repair=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """
    Raises:
        UsageError: another command works on this loop.
    """
    try:
        lock = Lock(folder, wait=False)
    except BlockingIOError:
        raise UsageError(f"another command works on {clean(str(folder))}", "wait until it is done") from None
    with lock:
        yield


def _read(folder: Path, *, repair: bool = False) -> ManualState:
    """The state; if it is damaged, the previous one: answers given since are asked for again. `repair`: the damaged one
    is kept aside."""
    try:
        return ManualState.read(folder, STATE)
    except UsageError as e:
        with suppress(UsageError):
            before = ManualState.read(folder, STATE_BEFORE)
            log.warning("%s; the one before the last change is used", e.what)
            if repair:
                _put_aside(folder)
            return before
        raise


def _put_aside(folder: Path) -> None:
    """The state before becomes the state; else the next change would put the damaged one in its place."""
    aside = folder / f".{STATE}.new"
    with suppress(OSError):
        shutil.copyfile(folder / STATE, folder / DAMAGED)
        shutil.copyfile(folder / STATE_BEFORE, aside)
        aside.replace(folder / STATE)


def require_none(folder: Path, force: bool) -> None:
    """
    Raises:
        ResultExists: there is a loop already.
    """
    if not (folder / STATE).exists() or force:
        return
    hint = "subcut manual next goes on; --name begins another beside it; --force loses these answers and begins anew"
    raise ResultExists(f"{clean(str(folder))} holds a loop: {so_far(folder)}", hint)


def so_far(folder: Path) -> str:
    """How far a loop has come, in words."""
    try:
        state = _read(folder)
    except UsageError:
        return "its state is damaged"
    trips = f" of {count(state.trips, 'trip')}" if state.log else ""
    return f"{count(len(state.log), 'answer')}{trips} so far, {count(len(state.open), 'question')} open"


def clear(folder: Path) -> list[Path]:
    """Remove a loop, its state first; return the folders of tasks that stay, because they hold other files."""
    for file in (STATE, STATE_BEFORE, DAMAGED):
        (folder / file).unlink(missing_ok=True)
    left = [place for place in sorted((folder / TODO).glob("*")) if not tasks.remove(place)]
    for name in FOLDERS:
        if name != TODO or not left:
            shutil.rmtree(folder / name, ignore_errors=True)
    return left
