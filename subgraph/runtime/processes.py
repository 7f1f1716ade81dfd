"""Processes that a worker started: how they are found and measured, and what is said about one that ended.

psutil is imported inside the functions: its import takes 10 ms, which `subcut cut` and TAB need not pay.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

SCRATCH = "SUBCUT_SCRATCH"  # in a worker's environment: a folder for its temporary files, removed when it ends
MARK = "SUBCUT_WORKER"  # in the environment of a worker and of all that it starts, whatever session they move to
MEMORY_SHARE = 0.9  # of the memory that is free: the machine stays usable


def free_memory() -> int:
    """Bytes that one candidate may use where the user gives no limit."""
    import psutil

    return int(psutil.virtual_memory().available * MEMORY_SHARE)


def resident_memory(session: int) -> int:
    """Bytes of resident memory of a session's processes and of all that descend from them.

    Shared memory is counted for each. A process that left both its session and its parent is not seen.
    Complexity: linear in the processes of the machine (0.8 ms for 80).
    """
    import psutil

    sizes: dict[int, int] = {}
    for pid in (session, *psutil.pids()):  # the session's leader first: nearly all others descend from it
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if pid not in sizes and os.getsid(pid) == session:
                root = psutil.Process(pid)
                for process in (root, *root.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        sizes[process.pid] = process.memory_info().rss
    return sum(sizes.values())


def find_marked(mark: str) -> list[psutil.Process]:
    """The processes of this user whose environment holds `MARK` with this value.

    Complexity: linear in the processes of the machine (3 ms for 100).
    """
    import psutil

    processes = []
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.environ().get(MARK) == mark:
                processes.append(process)
    return processes


def process_end(lines: Sequence[str], signal: str | None = None, code: int | None = None) -> dict[str, object]:
    """`process` of `WorkerDied` and of a verdict: always these three keys. `lines`: the last of standard error."""
    return {"signal": signal, "exit_code": code, "stderr": list(lines)}


def signal_name(number: int) -> str:
    """`SIGSEGV`, or `signal 40` for those without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
