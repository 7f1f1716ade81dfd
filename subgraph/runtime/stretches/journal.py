"""How far a run in stretches has come, on disk: after a kill the next run of the same goes on there.

A state is a folder: the files of the tensors that are still read or were asked for, and `at.json`, which names them.
Files are flushed before `at.json` is renamed into place, and removed after it no longer names them. The folder's name
is a hash of all that the values depend on, so that another model, input or runtime finds another folder; it is locked
as long as its process lives. Which stretches led to a state does not matter: the tensors that are alive in front of a
node are the same for every plan.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from subgraph.documents import from_json, to_json
from subgraph.runtime.inputs import Origin
from subgraph.storage.tensors import Record
from subgraph.system import Lock, flush

AT = "at.json"
NAME = "[0-9a-f]{64}"  # of a journal
UNSURE_SECONDS = 2  # after a change; ticks of file systems are as long
KEPT_SECONDS = 7 * 86400  # a state that nobody goes on with


@dataclass
class RunState:
    """How far a run has come.

    Attributes:
        position: nodes that have run, in topological order; -1 before the inputs were read.
        records: the tensors that are read later or were asked for; files relative to the state's folder. Those with
            absolute ones are the caller's, who gives them again.
        fed, origins, seconds: as of `protocol.ModelRun`.
    """

    position: int = -1
    records: dict[str, Record] = field(default_factory=dict)
    fed: tuple[Record, ...] = ()
    origins: dict[str, Origin] = field(default_factory=dict)
    seconds: float = 0.0


class Journal:
    """The folder of one state, locked until `close`."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError: another process runs the same; nothing can be written there; or it is a link elsewhere."""
        if folder.is_symlink() or folder.parent.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, f"{folder} is a link")
        for place in (folder.parent, folder):  # the folder of results is there, or was renamed
            place.mkdir(exist_ok=True)
        self.folder = folder
        self._lock = Lock(folder, wait=False)

    def read(self) -> RunState:
        """The last state that was written; a new one where there is none, or where a file of it is missing."""
        try:
            found = json.loads((self.folder / AT).read_text(encoding="utf-8"))
            records = [Record.from_json(r) for r in found["records"]]
            fed = tuple(Record.from_json(r) for r in found["fed"])
            origins = from_json(dict[str, Origin], found["origins"])
            state = RunState(found["position"], {r.name: r for r in records}, fed, origins, found["seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            state = RunState()
        files = [self.folder / file for record in state.records.values() for file in record.files]
        if any(file.parent != self.folder or file.is_symlink() or not file.is_file() for file in files):
            state = RunState()
        self._remove_others(state.records.values())
        os.utime(self.folder)
        return state

    def write(self, state: RunState) -> None:
        """Make this the state from which a later run goes on; files that it does not name are removed."""
        own = [r for r in state.records.values() if not any(Path(f).is_absolute() for f in r.files)]
        for file in (file for record in own for file in record.files):
            flush(self.folder / file)
        new = self.folder / f"{AT}.new"
        document = {**vars(state), "records": own}
        new.write_text(json.dumps(to_json(document)), encoding="utf-8")
        flush(new)
        new.replace(self.folder / AT)
        self._remove_others(own)

    def _remove_others(self, records: Iterable[Record]) -> None:
        named = {AT, *(file for record in records for file in record.files)}
        for path in self.folder.iterdir():
            if path.is_dir():  # of a model that was being loaded
                shutil.rmtree(path, ignore_errors=True)
            elif path.name not in named:
                path.unlink()

    def close(self) -> None:
        """Let another process go on from here."""
        self._lock.close()


@dataclass(frozen=True)
class Journals:
    """The folder of all journals; `used`: those of this process, which removes them when it ends well."""

    folder: Path
    used: list[Path]

    def open(self, key: str) -> Journal:
        """The journal of a run.

        Raises:
            OSError: as of `Journal`.
        """
        journal = Journal(self.folder.absolute() / key)
        self.used.append(journal.folder)
        for other in journal.folder.parent.iterdir():
            with contextlib.suppress(OSError):
                if re.fullmatch(NAME, other.name) and time.time() - other.stat().st_mtime > KEPT_SECONDS:
                    remove_journal(other)
        return journal


def remove_journal(folder: Path) -> None:
    """Remove a journal whose values are of no more use, and the folder of all if it is empty; not another process's."""
    with contextlib.suppress(OSError):
        journal = Journal(folder)
        shutil.rmtree(folder, ignore_errors=True)
        journal.close()
        folder.parent.rmdir()


def identity_of(files: Iterable[Path]) -> list[str]:
    """What tells a file from any other and from itself before a change, without reading it: device, number, size,
    times of the last change of contents and of anything."""
    found = []
    for file in sorted(files):
        s = file.stat()
        found.append(f"{file} {s.st_dev} {s.st_ino} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns}")
    return found


def is_settled(files: Iterable[Path]) -> bool:
    """Does `identity_of` tell the next change, too? Not within the tick of the clock in which a file was changed."""
    return all(time.time() - max(s.st_mtime, s.st_ctime) > UNSURE_SECONDS for s in (file.stat() for file in files))
