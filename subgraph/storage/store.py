"""Results on disk: key → a JSON document and files, so that a killed run resumes and another criterion judges anew.

An entry is a folder `ab/abcdef…`, written aside in a room and renamed in one step. The insight: whoever reads trusts
nothing, so nothing needs to be flushed, counted or repaired. Each reading verifies every byte; what is damaged, half
deleted or taken away by another process is simply not there. A kill leaves at most one hidden folder, whose lock died
with its process; the next run sweeps it.

Losing the store never loses a run: where it cannot be written, that is said once, and what the run makes lives in a
temporary folder until `close`.

Long, because who writes, who reads and who evicts without waiting for each other can only be understood together.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import logging
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subgraph.errors import OutputError
from subgraph.storage import folders, store_entry

DEFAULT = 4 << 30  # bytes
SLICE = 16  # the store is measured each time it grew by this part of its limit, then kept this part below it
TRIES = 3  # of putting an entry where damaged ones stand
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)  # of a rename onto an entry
IGNORE = "# Made by subcut: results that can be computed again.\n*\n"
TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# A cache of subcut: https://bford.info/cachedir/\n"
log = logging.getLogger("subcut")


@dataclass(frozen=True)
class StoreEntry:
    """A document, and the folder with its files: the store's own, only to be read."""

    document: dict[str, Any]
    folder: Path


class Store:
    """Entries by key in the folder `root`, which any number of threads and processes may share.

    About `limit` bytes are kept; the longest unused go first. What a living process put or got since it began stays,
    even beyond the limit; where folders cannot be locked (NFS) each process knows only its own. What others put counts
    whenever this one wrote a sixteenth of the limit.

    >>> from subgraph.storage.digest import digest
    >>> with tempfile.TemporaryDirectory() as place, Store(Path(place) / "store") as store:
    ...     room = store.room()
    ...     written = (room / "out.npy").write_bytes(b"...")
    ...     put = store.put(digest("model", 3), {"took": 1.5}, room)
    ...     got = store.get(digest("model", 3))
    ...     got == put, got.document, (got.folder / "out.npy").read_bytes()
    (True, {'took': 1.5}, b'...')
    """

    def __init__(self, root: Path, limit: int = DEFAULT) -> None:
        self.root, self.limit = root, limit
        self._guard = threading.RLock()  # of what follows; not held while entries are read or written
        self._session: Path | None = None  # our hidden folder: its time is when we began, its lock says that we live
        self._sessions: dict[Path, int | None] = {}  # with their locks: also those that are no longer written
        self._numbers = itertools.count()
        self._rooms: set[Path] = set()
        self._used: set[str] = set()
        self._here: dict[str, tuple[str, Path]] = {}  # what could not be put
        self._making: dict[str, threading.Lock] = {}
        self._said: set[str] = set()
        self._shut = False  # it cannot be written
        self._grown = limit  # bytes since it was measured: the first put measures

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove rooms that were never put, and what is temporary. Any call after this begins anew."""
        with self._guard:
            sessions, self._sessions, self._session = self._sessions, {}, None
            self._rooms.clear()
            self._here.clear()
        for path, handle in sessions.items():
            shutil.rmtree(path, ignore_errors=True)
            if handle is not None:
                os.close(handle)

    def room(self, after: OSError | None = None) -> Path:
        """A fresh folder for the files of one entry: plain files with plain names. It is gone after `close`.

        Args:
            after: what came of writing files into an earlier room; this one and all later ones are temporary.

        Raises:
            OutputError: not even a temporary folder can be made.
        """
        if after is not None:
            self._trouble(after)
        while True:
            try:
                with self._guard:
                    room = self._spot()
                    room.mkdir()
                    self._rooms.add(room)
                    return room
            except OSError as e:
                if self._shut:
                    what = f"cannot write in {self.root}, nor in a temporary folder: {e.strerror or e}"
                    raise OutputError(what, "free some space, or set TMPDIR to a folder that can be written") from e
                self._trouble(e)

    def put(self, key: str, document: Mapping[str, Any], room: Path) -> StoreEntry:
        """Keep a document and the files of a room under a key; the room belongs to the store from here on.

        Returns what is kept: the entry of whoever was first. The document is as JSON gives it back (tuples are lists,
        keys are strings). O(bytes in the room).

        Raises:
            ValueError, TypeError: the key is no hash; the document is not plain JSON, or has NaN or infinity in it; the
                room is none of this store, or holds anything but plain files with plain names. Never because of a disk.
        """
        place = self._place(key)
        plain = json.dumps(dict(document), allow_nan=False)
        if room not in self._rooms:
            raise ValueError(f"{room} is no room of this store, or was put before")
        try:
            names = store_entry.names(room)
            if self._shut:
                return self._keep_here(key, plain, room)
            files = {name: store_entry.checksum(room / name) for name in names}
            with self._guard:
                self._used.add(key)
            size = store_entry.write(room, key, files, plain)
            theirs = self._move(room, place)
        except OSError as e:
            self._trouble(e)
            return self._keep_here(key, plain, room)
        self._rooms.discard(room)
        if theirs:
            _drop(room)
            return theirs
        self._grow(size)
        return StoreEntry(json.loads(plain), place)

    def get(self, key: str) -> StoreEntry | None:
        """What is kept under a key, verified; None where nothing is. What is damaged is removed, and that is said.

        O(bytes in the entry); one system call where there is none.

        Raises:
            ValueError: the key is no hash.
        """
        place = self._place(key)
        if here := self._here.get(key):
            return StoreEntry(json.loads(here[0]), here[1])
        try:
            seen = place.lstat()
        except OSError:  # never put, or just taken away; if nothing can be, `put` says so
            return None
        try:
            if place.parent.is_symlink():  # nothing outside is touched
                place = place.parent
                seen = place.lstat()
            if not self._shut:
                with contextlib.suppress(OSError):
                    self._spot()  # we begin before we use anything: whoever evicts sees that
            with _locked(place, shared=True):
                document = store_entry.verified(place, key)
                self._used.add(key)
                with contextlib.suppress(OSError):  # it can only be read
                    os.utime(place)
        except store_entry.Damaged as e:
            if self._remove(place, seen):
                self._said.discard(key)
            self._say(key, f"{place} is damaged ({e}) and not used; if this comes again, check the disk")
            return None
        except FileNotFoundError:  # just taken away
            return None
        except OSError as e:
            self._say("read", f"cannot read {place}: {e.strerror or e}; it is made again: let this user read there")
            return None
        return StoreEntry(document, place)

    def memo(self, key: str, make: Callable[[Path], dict[str, Any]]) -> tuple[dict[str, Any], Path]:
        """The document and the folder under a key, made by `make(room)` where there is none: once for all threads.

        Where the disk is too full for what `make` writes, it is called a second time, with a temporary room.

        Raises:
            What `make` raises, and as `put` and `room`.
        """
        with self._guard:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            entry = self.get(key) or self._made(key, make)
        return entry.document, entry.folder

    def _made(self, key: str, make: Callable[[Path], dict[str, Any]], after: OSError | None = None) -> StoreEntry:
        room = self.room(after)
        temporary = self._shut
        try:
            try:
                document = make(room)
            except OSError as e:
                if temporary or not _is_full(e):
                    raise
                _drop(room)
                return self._made(key, make, e)
            return self.put(key, document, room)
        finally:
            if room in self._rooms:  # it was not put
                self._rooms.discard(room)
                _drop(room)

    def _place(self, key: str) -> Path:
        if not re.fullmatch("[0-9a-f]{16,128}", key):
            raise ValueError(f"a key is a hash in hexadecimal digits, not {key!r}")
        return self.root / key[:2] / key

    def _spot(self) -> Path:
        """A path for a room, in a hidden and locked folder of ours, whose time is when it was made."""
        with self._guard:
            if self._session is None or not self._session.exists():  # somebody may remove the whole store
                parent = Path(tempfile.gettempdir()) if self._shut else self.root
                folders.sweep(parent)
                session, self._sessions[session] = folders.fresh(parent, "store")
                for name, text in ((".gitignore", IGNORE), ("CACHEDIR.TAG", TAG)):
                    if parent == self.root and not (parent / name).exists():
                        (session / name).write_text(text, encoding="ascii")
                        (session / name).rename(parent / name)
                (session / "rooms").mkdir()
                self._session = session
            return self._session / "rooms" / f"{next(self._numbers)}"

    def _move(self, room: Path, place: Path, left: int = TRIES) -> StoreEntry | None:
        """Put a room in its place, or tell what somebody else put there."""
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if place.parent.is_symlink():
                raise NotADirectoryError(errno.ENOTDIR, f"{place.parent.name} is a link")
            room.rename(place)
            return None
        except OSError as e:
            if e.errno not in TAKEN or not left:
                raise
        return self.get(place.name) or self._move(room, place, left - 1)

    def _keep_here(self, key: str, plain: str, room: Path) -> StoreEntry:
        _drop(room / store_entry.NAME)
        with self._guard:
            self._rooms.discard(room)
            self._here[key] = plain, room
        return StoreEntry(json.loads(plain), room)

    def _trouble(self, e: OSError) -> None:
        with self._guard:
            if not self._shut:
                self._shut, self._session = True, None
        todo = "free some space" if _is_full(e) else "let this user write there, with nothing in the way"
        what = folders.unwritable(self.root, e).what
        self._say("write", f"{what}; this run goes on, but its results are not kept: {todo}")

    def _say(self, kind: str, text: str) -> None:
        with self._guard:
            new = kind not in self._said
            self._said.add(kind)
        if new:
            log.warning("%s", text)

    def _grow(self, size: int) -> None:
        """Keep the limit. O(files in the store), now and then."""
        with self._guard:
            self._grown += size
            if self._grown < self.limit // SLICE:
                return
            self._grown = 0
        found = sorted(_entries(self.root), key=lambda entry: entry[1].st_mtime_ns)
        excess = sum(size for _, _, size in found) - (self.limit - self.limit // SLICE)
        began = self._oldest()
        for place, seen, size in found:
            if excess <= 0 or seen.st_mtime_ns >= began:
                return
            if place.name not in self._used and self._remove(place, seen):
                excess -= size

    def _oldest(self) -> int:
        """When the first of the living processes began, by the clock of the disk."""
        times = []
        for session in self.root.glob(f".*{folders.NEW}"):
            with contextlib.suppress(OSError):
                began = session.stat().st_mtime_ns
                try:
                    with _locked(session, wait=False):
                        pass
                except BlockingIOError:
                    times.append(began)
        return min(times, default=1 << 63)

    def _remove(self, place: Path, seen: os.stat_result) -> bool:
        """Take an entry away in one step, if nobody is reading it and nobody has read or replaced it since."""
        try:
            with _locked(place, wait=False):
                now = place.lstat()
                if self._shut or not os.path.samestat(now, seen) or now.st_mtime_ns != seen.st_mtime_ns:
                    return False
                gone = place.rename(self._spot())
        except OSError:
            return False
        _drop(gone)
        return True


@contextlib.contextmanager
def _locked(place: Path, *, wait: bool = True, shared: bool = False) -> Iterator[None]:
    """Hold the lock of a folder; of anything else nothing."""
    handle = folders.lock(place, wait=wait, shared=shared) if stat.S_ISDIR(place.lstat().st_mode) else None
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _entries(root: Path) -> Iterator[tuple[Path, os.stat_result, int]]:
    """Each entry with its time and its size in bytes."""
    for place in root.glob("[0-9a-f][0-9a-f]/*"):
        with contextlib.suppress(OSError):  # taken away meanwhile, or no entry
            yield place, place.lstat(), sum(file.lstat().st_size for file in place.iterdir())


def _is_full(e: OSError) -> bool:
    return e.errno in FULL or " requested and " in str(e)  # numpy's words where a write falls short; without a number


def _drop(path: Path) -> None:
    """Remove a folder, or a file or link that stands where one should be."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
