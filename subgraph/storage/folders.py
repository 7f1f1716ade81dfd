"""Result folders: written aside, renamed when complete, never half replaced; safe file names;
folders in the user's cache.

A result is built in a hidden folder next to its place (`.NAME.XXXX.subcut-new`) that is locked as
long as its process lives, and renamed into place. An older result is renamed first
(`.NAME.XXXX.subcut-old`), then removed. So a kill at any moment leaves the old result or the new
one: the next run puts an old one back if there is no new one, and removes hidden folders.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import hashlib
import itertools
import os
import re
import shutil
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import product
from pathlib import Path, PureWindowsPath

from subgraph.errors import OutputError
from subgraph.log import log
from subgraph.system import (
    LONGEST_PATH,
    SPECIAL_NAMES,
    Lock,
    delay_interrupts,
    find_cache_home,
    is_private,
    move,
)
from subgraph.text import clean
from subgraph.types import StringMap

MAX_NAME = 120  # bytes of a file name's stem; file systems allow 255, vendors' tools less
DEVICES = {
    "con",
    "conin$",
    "conout$",
    "prn",
    "aux",
    "nul",
    *(f"{d}{n}" for d, n in product(("com", "lpt"), range(1, 10))),
}
# Ends of the names of hidden folders, which `sweep` removes.
NEW = ".subcut-new"
OLD = ".subcut-old"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
MAX_TRIES = 20  # of making a folder that other runs may remove before it is locked


def make_safe_name(name: str) -> str:
    """Return a file name for any tensor or node name: ASCII letters, digits, `.`, `_`, `-`, `@`,
    `+`; not hidden, not long.

    A name that had to change ends in eight hex digits of its hash.
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = re.sub(r"[^A-Za-z0-9._@+-]+", "_", plain).strip("._-") or "x"
    if is_device(plain):
        plain = f"x_{plain}"
    if plain == name.replace("/", "_").replace(":", "_").strip("_") and len(plain) <= MAX_NAME:
        return plain
    mark = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{plain[: MAX_NAME - 9]}-{mark}"


def make_safe_names(names: Iterable[str]) -> StringMap:
    """Return a file name for each name, all distinct even on file systems that ignore case."""
    taken = set()
    file_names = {}
    for name in names:
        base = candidate = make_safe_name(name)
        count = 1
        while candidate.lower() in taken:
            count += 1
            candidate = f"{base}~{count}"
        taken.add(candidate.lower())
        file_names[name] = candidate
    return file_names


def number_stems(names: Iterable[str], prefix: str) -> dict[str, str]:
    """Return a file name without extension for each name: the prefix and a number."""
    return {name: f"{prefix}{number}" for number, name in enumerate(names)}


def is_device(part: str) -> bool:
    """Return whether Windows keeps this part of a path for a device, with any extension.

    >>> [is_device(part) for part in ("con", "NUL.txt", "com¹ .x", "console")]
    [True, True, True, False]
    """
    return unicodedata.normalize("NFKC", part).split(".")[0].strip().lower() in DEVICES


def is_outside(name: str) -> bool:
    r"""Return whether a file of this name is outside of its folder, on some system.

    On Windows, this holds for a device or a stream as well.

    >>> names = ("inputs/x.npy", "a..b", "../x", r"..\x", "/x", "C:x", r"\\host\share\x")
    >>> [is_outside(name) for name in names]
    [False, False, True, True, True, True, True]
    """
    path = PureWindowsPath(name)  # it knows both separators
    special = SPECIAL_NAMES and (":" in name or any(map(is_device, path.parts)))
    return special or bool(path.anchor) or ".." in path.parts


def link_or_copy(file: str | Path, target: str | Path) -> None:
    """Give a file a second name; copy it if the file system has no hard links."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


@contextmanager
def write_aside(place: Path) -> Iterator[Path]:
    """Yield a new folder, which is renamed to `place` after the block, or removed after an error.

    The caller has decided whether an older folder at `place` may be replaced.

    Raises:
        OutputError: the folder cannot be made or renamed (permission, full disk, a file in the
            way).
    """
    with make_scratch(place.parent, place.name) as work:
        yield work
        try:
            mask = os.umask(0)
            os.umask(mask)
            work.chmod(0o777 & ~mask)
            with delay_interrupts():
                _put(work, place)
        except OSError as e:
            raise OutputError(
                f"cannot put {place} in its place: {e.strerror or e}",
                "name another folder with -o",
                code="output.unwritable",
            ) from e


@contextmanager
def make_scratch(parent: Path, name: str = "subcut") -> Iterator[Path]:
    """Yield a fresh hidden folder in `parent`, removed when the block ends; `parent` too if it was
    made here and is empty.

    Raises:
        OutputError: the folder cannot be made or written (permission, full disk).
    """
    lock = work = None
    existing = next(
        (p for p in (parent, *parent.parents) if os.path.exists(p)),  # noqa: PTH110
        parent,
    )
    try:
        remove_leftovers(parent)
        with delay_interrupts():
            work, lock = make_locked_folder(parent, name)
        yield work
    except OSError as e:
        raise make_write_error(parent, e) from e
    finally:
        with delay_interrupts():
            if work is not None:
                shutil.rmtree(work, ignore_errors=True)
            if lock is not None:
                lock.close()
            with contextlib.suppress(OSError):  # not empty
                while parent != existing:
                    parent.rmdir()
                    parent = parent.parent


def make_temporary(name: str = "subcut") -> AbstractContextManager[Path]:
    """Yield a new folder for temporary files; remove those of killed runs."""
    return make_scratch(Path(tempfile.gettempdir()), name)


def make_lasting(name: str) -> Path:
    """Return a new temporary folder that exists until this process ends."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(make_temporary(name))


def make_numbered_folder(parent: Path, stem: str) -> Path:
    """Make a new, empty folder `stem0`, or with the first number that is free.

    Any number of threads can call it. `parent` is created.
    """
    for number in itertools.count():
        with contextlib.suppress(FileExistsError):
            (parent / f"{stem}{number}").mkdir(parents=True)
            break
    return parent / f"{stem}{number}"


def make_write_error(folder: Path, e: OSError) -> OutputError:
    """Return the error for a folder that cannot be written."""
    if isinstance(e, (FileExistsError, NotADirectoryError)):
        return OutputError(
            f"cannot write in {folder}: it is not a folder",
            "choose another one with -o",
            code="output.not-folder",
        )
    length = len(str(folder.absolute()))
    if LONGEST_PATH and length + MAX_NAME > LONGEST_PATH:
        hint = (
            f"name a shorter one with -o: Windows takes {LONGEST_PATH}, with the file's name; or"
            " set LongPathsEnabled"
        )
        return OutputError(
            f"cannot write in {folder}: {e.strerror or e}; its path has {length} characters",
            f"{hint} in its registry",
            code="output.path-too-long",
        )
    is_full = e.errno in (*DISK_FULL, None)  # numpy's short write has no number
    hint = "name another folder with -o"
    return OutputError(
        f"cannot write in {folder}: {e.strerror or e}",
        f"free some space, or {hint}" if is_full else hint,
        code="output.unwritable",
    )


def make_locked_folder(parent: Path, name: str) -> tuple[Path, Lock]:
    """Return a new folder and its lock, tried again if other runs remove it before it is locked,
    or an empty `parent`."""
    for left in reversed(range(MAX_TRIES)):
        parent.mkdir(parents=True, exist_ok=True)
        try:
            work = Path(tempfile.mkdtemp(prefix=f".{name[:60]}.", suffix=NEW, dir=parent))
            lock = Lock(work)
        except FileNotFoundError:
            if not left:
                raise
            continue
        if work.exists():
            break
        lock.close()
    return work, lock


def _put(work: Path, place: Path) -> None:
    if not place.exists() and not place.is_symlink():
        try:
            move(work, place)
            return
        except OSError:
            if not place.exists():  # not a race with another run
                raise
    old = place.with_name(f".{place.name}.{work.name.split('.')[-2]}{OLD}")
    with Lock(place, name=old.name):  # until it is removed: only the next run may put it back
        move(place, old)
        try:
            move(work, place)
        except OSError:
            move(old, place)
            raise
        shutil.rmtree(old, ignore_errors=True)


def remove_leftovers(parent: Path) -> None:
    """Remove the hidden folders of killed runs from `parent`, whose locks are free; put old results
    back."""
    for work in (*parent.glob(f".*{NEW}"), *parent.glob(f".*{OLD}")):
        try:
            lock = Lock(work, wait=False)
        except OSError:  # a running process holds it, or it is not ours to touch
            continue
        if not lock.works:
            continue
        place = work.with_name(work.name[1:].rsplit(".", 2)[0])
        if work.suffix == OLD and not place.exists():
            with contextlib.suppress(OSError):
                move(work, place)
        else:
            shutil.rmtree(work, ignore_errors=True)
        lock.close()


def find_cache_folder(name: str) -> Path:
    """Return `~/.cache/subcut/NAME` (Linux), which is created; a temporary folder if it cannot be.

    A folder that another user can write is not used: what is in it may be run.
    """
    if home := find_cache_home():
        own = home / "subcut"
        folder = own / name
        with contextlib.suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
            for place in (own, folder):
                place.mkdir(0o700, exist_ok=True)
            if not is_private(folder, own, home):
                _warn(home)
            elif os.access(folder, os.W_OK):
                return folder
    return _make_temporary(f"subcut-{name}")


@functools.cache
def _warn(home: Path) -> None:
    what = (
        "%s is not used as a cache, because another user owns it or subcut/ in it, or can write"
        " there"
    )
    log.warning(
        f"{what}: chmod -R go-w, or set XDG_CACHE_HOME to a folder that is yours", clean(str(home))
    )


_make_temporary = functools.cache(make_lasting)
