"""Processes that a worker started: how they are found and measured, and what is said about one that ended.

psutil is imported inside the functions: its import takes 10 ms, which `subcut cut` and TAB need not pay.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from subgraph.environments import releases
from subgraph.plugins import HOME

if TYPE_CHECKING:
    import psutil

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
SCRATCH = "SUBCUT_SCRATCH"  # in a worker's environment: a folder for its temporary files, removed when it ends
MARK = "SUBCUT_WORKER"  # in the environment of a worker and of all that it starts, whatever session they move to
SCANS = 20  # for processes that were started while others were being killed
MEMORY_SHARE = 0.9  # of the memory that is free: the machine stays usable

workers: set[int] = set()  # the processes of the workers that have not been ended
starting = threading.Lock()  # held until a new process is one of them
_adopts = False


def adopt_orphans() -> None:
    """Have the kernel make this process the parent of all that descend from it and lose theirs (Linux).

    So a process that moved to a session of its own, without its environment, is still found in this one's tree. Only
    for a process that is subcut's own: in another one's, children that are not subcut's would be taken for orphans.
    """
    global _adopts
    _adopts = True
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def free_memory() -> int:
    """Bytes that one candidate may use where the user gives no limit."""
    import psutil

    return int(psutil.virtual_memory().available * MEMORY_SHARE)


def resident_memory(session: int) -> int:
    """Bytes of resident memory of a session's processes and of all that descend from them.

    Shared memory is counted for each. A process that left both its session and its parent is not seen.
    Complexity: linear in the processes of the machine (0.5 ms for 80).
    """
    import psutil

    pids, sizes, waiting = set(psutil.pids()), dict[int, int](), [session]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) == session:
                waiting.append(pid)
    children = _children(pids)
    while waiting:
        if (pid := waiting.pop()) not in sizes:
            with contextlib.suppress(psutil.Error):
                sizes[pid] = psutil.Process(pid).memory_info().rss
            waiting += children.get(pid, ())
    return sum(sizes.values())


_parents: dict[int, int] = {}
_parents_lock = threading.Lock()


def _children(pids: set[int]) -> dict[int, list[int]]:
    """The children of each of these processes, which are all that there are.

    A parent is read once, and again when it has ended: reading all takes a tenth of a millisecond for each process.
    """
    import psutil

    children: dict[int, list[int]] = {}
    with _parents_lock:
        for pid in _parents.keys() - pids:
            del _parents[pid]
        for pid in pids:
            if (parent := _parents.get(pid, -1)) and parent not in pids:
                with contextlib.suppress(psutil.Error):
                    parent = _parents[pid] = psutil.Process(pid).ppid()
            children.setdefault(parent, []).append(pid)
    return children


def open_pipe() -> tuple[int, int]:
    """The ends of a pipe, not 0 to 2 even if the standard streams were closed: `<&- >&- 2>&-`."""
    import fcntl

    ends = os.pipe()
    high = fcntl.fcntl(ends[0], fcntl.F_DUPFD_CLOEXEC, 3), fcntl.fcntl(ends[1], fcntl.F_DUPFD_CLOEXEC, 3)
    for end in ends:
        os.close(end)
    return high


def end_others(worker: int, mark: str) -> None:
    """Kill what a worker started outside of its own group."""
    import psutil

    empty_scans = 0
    for _ in range(SCANS):
        others = _find_others(worker, mark)
        empty_scans = 0 if others else empty_scans + 1
        if empty_scans > 1:  # one is no proof: a process that ended during the scan may have started another before
            break
        for end in (
            psutil.Process.suspend,
            psutil.Process.kill,
        ):  # stopped first: a shell says that its child was killed
            for process in others:
                with contextlib.suppress(psutil.Error):
                    end(process)
        time.sleep(0.005)


def _find_others(worker: int, mark: str) -> list[psutil.Process]:
    """The living processes outside of a worker's group that descend from it, or have its mark in their environment.

    What a worker left that has ended by itself has its mark; or it is a child of this process, if this one adopts
    orphans. Complexity: linear in the processes of the machine (5 ms for 100).
    """
    import psutil

    found: set[psutil.Process] = set()
    with contextlib.suppress(psutil.Error):
        found.update(psutil.Process(worker).children(recursive=True))
    if _adopts:
        found.update(_orphans())
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.environ().get(MARK) == mark:
                found.add(process)
    return [process for process in found if _lives_outside(process, worker)]


def _orphans() -> list[psutil.Process]:
    """What ended workers left: children of this process in sessions of their own that are no workers. The dead are
    reaped."""
    import psutil

    own, orphans = os.getsid(0), []
    with starting:
        children = psutil.Process().children()
    for child in children:
        with contextlib.suppress(psutil.Error, OSError):
            if child.pid in workers or os.getsid(child.pid) in {own, *workers}:
                continue
            if child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)
            else:
                orphans.append(child)
    return orphans


def _lives_outside(process: psutil.Process, group: int) -> bool:
    import psutil

    try:
        return os.getpgid(process.pid) != group and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ProcessLookupError):
        return False


def import_path(python: Path | None, scratch: str) -> str:
    """$PYTHONPATH of a worker, with the folder of this package first: the child must run the same code.

    The interpreter of another environment sees this package and what reads models, linked into a folder, no more.
    """
    if python:
        folder = Path(scratch, "import")
        releases.lend(folder, python.parent.parent)
        return str(folder)
    own, users = str(HOME.resolve().parent), os.environ.get("PYTHONPATH")
    return f"{own}{os.pathsep}{users}" if users else own


def process_end(lines: Sequence[str], signal: str | None = None, code: int | None = None) -> dict[str, object]:
    """`process` of `WorkerDied` and of a verdict: always these three keys. `lines`: the last of standard error."""
    return {"signal": signal, "exit_code": code, "stderr": list(lines)}


def signal_name(number: int) -> str:
    """`SIGSEGV`, or `signal 40` for those without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
