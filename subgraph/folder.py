"""Result folders: written aside, renamed when complete, never half replaced; and safe file names.

A result is built in a hidden folder beside its place (`.NAME.XXXX.partial`) that is locked as long as its
process lives. Renaming it into place is atomic; where an older result stands there, the two are exchanged in one
system call. So a kill at any moment leaves the old result or the new one, and the next run removes what was left aside.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from subgraph.errors import OutputError

MAX_NAME = 120  # bytes of a file name's stem; file systems end at 255, vendors' tools earlier
_DEVICES = {"con", "prn", "aux", "nul", *(f"{d}{n}" for d in ("com", "lpt") for n in range(1, 10))}
RENAME_EXCHANGE = 2  # linux/fs.h


def safe_name(name: str) -> str:
    """A file name for any tensor or node name: ASCII letters, digits, `.`, `_`, `-`, `@`, `+`; not hidden, not long.

    A name that had to change is told apart by eight hex digits of its hash.
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = re.sub(r"[^A-Za-z0-9._@+-]+", "_", plain).strip("._-") or "x"
    same = plain == name.replace("/", "_").replace(":", "_").strip("_") and len(plain) <= MAX_NAME
    if same and plain.lower().split(".")[0] not in _DEVICES:
        return plain
    return f"{plain[: MAX_NAME - 9]}-{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:8]}"


def safe_names(names: Iterable[str]) -> dict[str, str]:
    """name → file name, all distinct even where a file system does not tell upper from lower case."""
    taken: set[str] = set()
    out: dict[str, str] = {}
    for name in names:
        base = candidate = safe_name(name)
        count = 1
        while candidate.lower() in taken:
            count += 1
            candidate = f"{base}~{count}"
        taken.add(candidate.lower())
        out[name] = candidate
    return out


@contextmanager
def aside(place: Path) -> Iterator[Path]:
    """A fresh folder beside `place`, put in its place when the block ends, removed when it raises.

    The caller decides before whether what stands at `place` may be replaced.

    Raises:
        OutputError: the folder cannot be made or renamed (permission, full disk, a file in the way).
    """
    with scratch(place.parent, place.name) as work:
        yield work
        try:
            work.chmod(0o777 & ~_umask())
            _put(work, place)
        except OSError as e:
            raise OutputError(f"cannot put {place} in its place: {e.strerror or e}", "choose another -o") from e


@contextmanager
def scratch(parent: Path, name: str = "subcut") -> Iterator[Path]:
    """A fresh hidden folder in `parent`, removed when the block ends; `parent` too if this made it and it is empty.

    Raises:
        OutputError: the folder cannot be made or written (permission, full disk).
    """
    lock = work = None
    first = next((p for p in (parent, *parent.parents) if p.exists()), parent)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        sweep(parent)
        work, lock = _fresh(parent, name)
        yield work
    except OSError as e:
        raise OutputError(
            f"cannot write in {parent}: {e.strerror or e}", "free some space, or choose another folder with -o"
        ) from e
    finally:
        if work is not None:  # in `aside`, after a success: the result that was replaced, or nothing
            shutil.rmtree(work, ignore_errors=True)
        if lock is not None:
            os.close(lock)
        _drop_empty(parent, first)


def _drop_empty(folder: Path, upto: Path) -> None:
    """Remove folders made for a result that never came."""
    while folder != upto:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def _fresh(parent: Path, name: str) -> tuple[Path, int | None]:
    """A new folder and its lock. Another run's `sweep` may take it before it is locked: then again."""
    while True:
        work = Path(tempfile.mkdtemp(prefix=f".{name[:60]}.", suffix=".partial", dir=parent))
        lock = _lock(work, wait=True)
        if work.exists():
            return work, lock
        if lock is not None:
            os.close(lock)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _put(work: Path, place: Path) -> None:
    if not place.exists() and not place.is_symlink():
        try:
            work.rename(place)
            return
        except OSError:
            if not place.exists():  # not a race with another run
                raise
    if not _exchange(work, place):
        old = work.with_suffix(
            ".old"
        )  # no exchange on this system: two steps, the old result stays until both are done
        place.rename(old)
        work.rename(place)
        shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, two: Path) -> bool:
    """Swap two folders in one step; False where the system cannot."""
    import ctypes

    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    at_cwd = -100
    done = call(at_cwd, os.fsencode(one), at_cwd, os.fsencode(two), RENAME_EXCHANGE)
    return bool(done == 0)


def _lock(folder: Path, *, wait: bool) -> int | None:
    """Lock a folder until the handle is closed or this process ends; None where the system has no such locks.

    Raises:
        OSError: somebody else holds it (only without `wait`), or it is gone.
    """
    try:
        import fcntl
    except ImportError:
        return None
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(handle)
        raise
    return handle


def sweep(parent: Path) -> None:
    """Remove what killed runs left aside in `parent`: unfinished folders whose lock nobody holds."""
    for work in parent.glob(".*.partial"):
        try:
            handle = _lock(work, wait=False)
        except OSError:  # somebody is writing it, or it is not ours to touch
            continue
        if handle is not None:
            shutil.rmtree(work, ignore_errors=True)
            os.close(handle)
