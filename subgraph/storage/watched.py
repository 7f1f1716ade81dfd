"""Files that are written once: which of them another program has written over since."""

from __future__ import annotations

import os
from collections.abc import Iterable


class Watched:
    """Files that nobody may change, by size and time as they were when they were added. For any number of threads.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file, watched = Path(folder, "x.npy"), Watched()
    ...     size = file.write_bytes(b"...")
    ...     watched.add([str(file)])
    ...     before = watched.changed([str(file)])
    ...     size = file.write_bytes(b"....")
    ...     before, watched.changed([str(file)]) == str(file)
    ('', True)
    """  # noqa: E501

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int]] = {}

    def add(self, files: Iterable[str]) -> None:
        """Watch these from now on; what is watched already stays as it was."""
        for file in files:
            if state := _read_state(file):
                self._known.setdefault(file, state)

    def changed(self, files: Iterable[str]) -> str:
        """The first of these files that is watched and is not as it was; "" if there is none.

        One that is gone counts as it was: the store may be removed by its owner, and whoever needs
        the file says so. One system call per file.
        """
        for file in files:
            if file in self._known and _read_state(file) not in (None, self._known[file]):
                return file
        return ""


def _read_state(file: str) -> tuple[int, int] | None:
    try:
        status = os.stat(file)  # noqa: PTH116
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
