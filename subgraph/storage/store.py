"""Results on disk: key → a JSON document and files, so that a killed run resumes and results are
judged again.

An entry is a folder `ab/abcdef…`, written in a hidden folder and renamed in one step. The insight:
readers trust nothing, so nothing needs to be flushed, counted or repaired. Each read verifies every
byte; an entry that is damaged, half deleted or removed by another process counts as missing. A kill
leaves at most one hidden folder, whose lock died with its process; the next run removes it.

A run never fails because of its store: if the store cannot be written, that is logged once, and
the run goes on unstored: its results lie in a temporary folder until `close`, and are not found by
their keys.

Long, because writing, reading and evicting without waiting for each other can only be understood
together.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from subgraph.errors import OutputError
from subgraph.log import log
from subgraph.storage import folders, store_entry
from subgraph.system import Lock, move
from subgraph.system.shared import Closable
from subgraph.types import Fields, JsonObject, frozen

DEFAULT_LIMIT_BYTES = 4 << 30  # bytes
# The store is measured after each 1/16 of its limit that is written, and kept 1/16 below it.
LIMIT_PARTS = 16
MAX_MOVES = 3  # attempts to move an entry to the place of damaged ones
OCCUPIED = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)  # of a rename onto an entry
GITIGNORE = "# Made by subcut: results that can be computed again.\n*\n"
CACHEDIR_TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n# A cache of subcut:"
    " https://bford.info/cachedir/\n"
)


@frozen
class StoreEntry:
    """A document, and the folder with its files, which belongs to the store and must not be
    changed."""

    document: JsonObject
    folder: Path


class Store(Closable):
    """Entries by key in the folder `root`, which any number of threads and processes may share.

    About `limit` bytes are kept; the least recently used entries are evicted first. Entries that a
    running process put or got since it started stay, even beyond the limit; if folders cannot be
    locked (NFS) each process protects only its own entries. The size, which includes the entries
    of other processes, is measured whenever this process has written a sixteenth of the limit.

    >>> from subgraph.storage.digest import digest
    >>> with tempfile.TemporaryDirectory() as place, Store(Path(place) / "store") as store:
    ...     folder = store.new_folder()
    ...     size = (folder / "out.npy").write_bytes(b"...")
    ...     put = store.put(digest("model", 3), {"took": 1.5}, folder)
    ...     got = store.get(digest("model", 3))
    ...     got == put, got.document, (got.folder / "out.npy").read_bytes()
    (True, {'took': 1.5}, b'...')
    """

    def __init__(self, root: Path, limit: int = DEFAULT_LIMIT_BYTES) -> None:
        self.root = root
        self.limit = limit
        # Of the fields below; not held while entries are read or written.
        self._guard = threading.RLock()
        # Our hidden folder: its time is our start, its lock shows that we run.
        self._session: Path | None = None
        self._sessions: dict[Path, Lock] = {}  # hidden folder → lock, with those no longer written
        self._numbers = itertools.count()
        self._folders: set[Path] = set()
        self._used: set[str] = set()
        self._locks: dict[str, threading.Lock] = {}  # by key, held while `memo` makes an entry
        self._warned: set[str] = set()
        self._unwritable = False
        # Bytes written since the store was measured: the first put measures.
        self._unmeasured = limit

    def close(self) -> None:
        """Remove folders that were never put, and temporary ones. The store may be used again."""
        with self._guard:
            sessions = self._sessions
            self._sessions = {}
            self._session = None
            self._folders.clear()
        for path, lock in sessions.items():
            shutil.rmtree(path, ignore_errors=True)
            lock.close()

    def new_folder(self, after: OSError | None = None) -> Path:
        """Return a fresh folder for the files of one entry: plain files with plain names. `close`
        removes it.

        Args:
            after: the error of writing into an earlier folder; from now on nothing is stored.

        Raises:
            OutputError: not even a temporary folder can be made.
        """
        if after is not None:
            self._stop_storing(after)
        while True:
            try:
                with self._guard:
                    folder = self._make_new_path()
                    folder.mkdir()
                    self._folders.add(folder)
                    return folder
            except OSError as e:
                if self._unwritable:
                    raise OutputError(
                        f"cannot write in {self.root}, nor in a temporary folder:"
                        f" {e.strerror or e}",
                        "free some space, or set TMPDIR to a folder that can be written",
                        code="output.no-temporary-folder",
                    ) from e
                self._stop_storing(e)

    def put(self, key: str, document: Fields, folder: Path) -> StoreEntry:
        """Store a document and the files of a folder under a key, and return the stored entry.

        From this call on the folder belongs to the store. The returned entry is the first one that
        was put under the key, or this one if nothing can be stored. Its document has the types of
        JSON: tuples are lists, keys are strings. Complexity: O(bytes in the folder).

        Raises:
            ValueError, TypeError: the key is not a hash; the document is not plain JSON, or has NaN
                or infinity; the folder is not in this store, or holds anything but plain files
                with plain names. Never OSError.
        """
        place = self._place(key)
        plain = json.dumps(dict(document), allow_nan=False)
        if folder not in self._folders:
            raise ValueError(f"{folder} is not a folder of this store, or was put before")
        try:
            names = store_entry.list_names(folder)
            self._folders.discard(folder)
            if self._unwritable:
                return StoreEntry(json.loads(plain), folder)
            files = {name: store_entry.compute_checksum(folder / name) for name in names}
            with self._guard:
                self._used.add(key)
            size = store_entry.write(folder, key, files, plain)
            earlier = self._move(folder, place)
        except OSError as e:
            self._stop_storing(e)
            return StoreEntry(json.loads(plain), folder)
        if earlier:
            _delete(folder)
            return earlier
        self._evict(size)
        return StoreEntry(json.loads(plain), place)

    def get(self, key: str) -> StoreEntry | None:
        """Return the verified entry under a key, if any. A damaged entry is removed,
        with a warning.

        O(bytes in the entry); one system call without one.

        Raises:
            ValueError: the key is not a hash.
        """
        place = self._place(key)
        try:
            before = place.lstat()
        except OSError:  # never put, or just removed; if nothing can be read, `put` warns
            return None
        try:
            if place.parent.is_symlink():  # nothing outside the store is touched
                place = place.parent
                before = place.lstat()
            if not self._unwritable:
                with contextlib.suppress(OSError):
                    # The start must precede each use, because other processes evict by that.
                    self._make_new_path()
            with _lock(place, shared=True):
                document = store_entry.read_verified(place, key)
                self._used.add(key)
                with contextlib.suppress(OSError):  # a read-only store
                    os.utime(place)
        except store_entry.DamagedEntryError as e:
            if self._remove(place, before):
                self._warned.discard(key)
            self._warn_once(
                key, f"{place} is damaged ({e}) and not used; if this comes again, check the disk"
            )
            return None
        except FileNotFoundError:  # just removed
            return None
        except OSError as e:
            self._warn_once(
                "read",
                f"cannot read {place}: {e.strerror or e}; it is computed again: let this user read"
                " there",
            )
            return None
        return StoreEntry(document, place)

    def memo(self, key: str, make: Callable[[Path], Fields]) -> tuple[JsonObject, Path]:
        """Return the document and the folder under a key; without one, `make(folder)` runs, once
        for all threads.

        If the disk is too full for the files of `make`, it runs a second time, unstored.

        Raises:
            As `make`, `put` and `new_folder`.
        """
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            entry = self.get(key)
            if entry is None:
                folder = self.new_folder()
                try:
                    document = make(folder)
                except OSError as e:
                    if not _is_full(e):
                        raise
                    document = make(folder := self.new_folder(after=e))
                entry = self.put(key, document, folder)
        return entry.document, entry.folder

    def _place(self, key: str) -> Path:
        if not re.fullmatch("[0-9a-f]{16,128}", key):
            raise ValueError(f"a key is a hash in hexadecimal digits, not {key!r}")
        return self.root / key[:2] / key

    def _make_new_path(self) -> Path:
        """Return a path for a new folder, in our hidden and locked folder, whose time is when it
        was made."""
        with self._guard:
            # The whole store may have been removed.
            if self._session is None or not self._session.exists():
                parent = Path(tempfile.gettempdir()) if self._unwritable else self.root
                folders.remove_leftovers(parent)
                session, self._sessions[session] = folders.make_locked_folder(parent, "store")
                for name, text in ((".gitignore", GITIGNORE), ("CACHEDIR.TAG", CACHEDIR_TAG)):
                    if parent == self.root and not (parent / name).exists():
                        (session / name).write_bytes(text.encode())
                        (session / name).replace(parent / name)
                (session / "rooms").mkdir()
                self._session = session
            return self._session / "rooms" / f"{next(self._numbers)}"

    def _move(self, folder: Path, place: Path, left: int = MAX_MOVES) -> StoreEntry | None:
        """Move a folder to its place; return the entry that another process put there before, if
        any."""
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if place.parent.is_symlink():
                raise NotADirectoryError(errno.ENOTDIR, f"{place.parent.name} is a link")
            move(folder, place)
            return None
        except OSError as e:
            if e.errno not in OCCUPIED or not left:
                raise
        return self.get(place.name) or self._move(folder, place, left - 1)

    def _stop_storing(self, e: OSError) -> None:
        with self._guard:
            if not self._unwritable:
                self._unwritable = True
                self._session = None
        if _is_full(e):
            hint = "free some space"
        else:
            hint = "let this user write there, with nothing in the way"
        what = folders.make_write_error(self.root, e).what
        self._warn_once(
            "write", f"{what}; this run goes on, but its results are not stored: {hint}"
        )

    def _warn_once(self, kind: str, text: str) -> None:
        with self._guard:
            new = kind not in self._warned
            self._warned.add(kind)
        if new:
            log.warning("%s", text)

    def _evict(self, size: int) -> None:
        """Count bytes written, and evict if the limit is exceeded. O(files in the store), now
        and then."""
        with self._guard:
            self._unmeasured += size
            if self._unmeasured < self.limit // LIMIT_PARTS:
                return
            self._unmeasured = 0
        entries = []
        for place in self.root.glob("[0-9a-f][0-9a-f]/*"):
            with contextlib.suppress(OSError):  # removed meanwhile, or no entry
                bytes_held = sum(file.lstat().st_size for file in place.iterdir())
                entries.append((place, place.lstat(), bytes_held))
        entries.sort(key=lambda entry: entry[1].st_mtime_ns)
        excess = sum(size for _, _, size in entries) - (self.limit - self.limit // LIMIT_PARTS)
        start = self.find_oldest_start()
        for place, before, size in entries:
            if excess <= 0 or before.st_mtime_ns >= start:
                return
            if place.name not in self._used and self._remove(place, before):
                excess -= size

    def find_oldest_start(self) -> int:
        """Find when the first of the running processes started, by the clock of the disk."""
        times = []
        for session in self.root.glob(f".*{folders.NEW}"):
            with contextlib.suppress(OSError):
                start = session.stat().st_mtime_ns
                try:
                    with _lock(session, wait=False):
                        pass
                except BlockingIOError:
                    times.append(start)
        return min(times, default=1 << 63)

    def _remove(self, place: Path, before: os.stat_result) -> bool:
        """Remove an entry in one step, if no process is reading it, or has read or replaced it
        since `before`."""
        try:
            with _lock(place, wait=False):
                now = place.lstat()
                if (
                    self._unwritable
                    or not os.path.samestat(now, before)
                    or now.st_mtime_ns != before.st_mtime_ns
                ):
                    return False
                moved = place.rename(self._make_new_path())
        except OSError:
            return False
        _delete(moved)
        return True


def _lock(
    place: Path, *, wait: bool = True, shared: bool = False
) -> AbstractContextManager[object]:
    """Return the lock of a folder; a file or link has none."""
    is_folder = stat.S_ISDIR(place.lstat().st_mode)
    if is_folder:
        return Lock(place, wait=wait, shared=shared)
    return contextlib.nullcontext()


def _is_full(e: OSError) -> bool:
    # numpy's words for a short write, without a number.
    return e.errno in folders.DISK_FULL or " requested and " in str(e)


def _delete(path: Path) -> None:
    """Remove a folder, or a file or link with its name."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
