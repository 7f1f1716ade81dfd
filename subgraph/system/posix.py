"""`subgraph.system` on Linux and macOS."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psutil

TERMINATED = 128 + signal.SIGTERM  # exit code of a command that was asked to end
KILLED = "SIGKILL"  # as of `crash_name`: the system ends processes so when memory runs out
APART: Mapping[str, Any] = {"start_new_session": True}  # options of `Popen`: Ctrl-C does not reach the process
MARK = "SUBCUT_WORKER"  # in the environment of a group and of all that it starts, whatever session they move to
SCANS = 20  # for processes that were started while others were being killed
MEMORY_SHARE = 0.9  # of the memory that is free: the machine stays usable
F_SETSIG = 10  # linux/fcntl.h; Python's module lacks it before 3.13
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
LINE_BUFFERED = 1  # _IOLBF in stdio.h of glibc and musl

# ---------------------------------------------------------------------------------------------------- groups


class ProcessGroup(subprocess.Popen[bytes]):
    """A process that leads a group: what it starts ends with it, and it with this process, however this one ends.

    Ctrl-C does not reach it. `memory`: bytes that it may allocate, `seconds`: of processor time that it may use.
    """

    def __init__(
        self, words: Sequence[str | Path], *, env: Mapping[str, str] | None = None, memory: int | None = None,
        seconds: int | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self._mark, self._ended = os.urandom(16).hex(), False
        held, lifeline = _pipe()
        self._lifeline = os.fdopen(lifeline, "wb", buffering=0)
        try:
            with _starting:
                marked = {**(os.environ if env is None else env), MARK: self._mark}
                super().__init__(words, env=marked, start_new_session=True, pass_fds=[held], **options)
                _groups.add(self.pid)
            _kill_when_closed(held, self.pid)
            limit(self.pid, memory=memory, seconds=seconds)
        except BaseException:
            self._lifeline.close()
            raise
        finally:
            os.close(held)

    def has_exited(self) -> bool:
        """Without reaping the process: until `end`, its number and its group's must not be used again."""
        if not hasattr(os, "waitid"):
            return self.poll() is not None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def resident_memory(self) -> int:
        """Bytes of resident memory of its session's processes and of all that descend from them.

        Shared memory is counted for each. A process that left both its session and its parent is not seen.
        Complexity: linear in the processes of the machine (0.5 ms for 80).
        """
        import psutil

        pids, sizes, waiting = set(psutil.pids()), dict[int, int](), [self.pid]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(pid) == self.pid:
                    waiting.append(pid)
        children = _children(pids)
        while waiting:
            if (pid := waiting.pop()) not in sizes:
                with contextlib.suppress(psutil.Error):
                    sizes[pid] = psutil.Process(pid).memory_info().rss
                waiting += children.get(pid, ())
        return sum(sizes.values())

    def end(self, *, strays: bool = False) -> None:
        """Kill all of it; `strays`: also what moved out of the group. The exit code tells how it ended."""
        if self._ended:  # the system uses its number again
            return
        if strays:
            self._signal(signal.SIGSTOP)  # it starts no more processes, and stays the parent of all orphans
            _end_strays(self.pid, self._mark)
        self._signal(signal.SIGKILL)
        self.wait()
        self._ended = True
        _groups.discard(self.pid)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def close(self) -> None:
        """Close the pipes of an ended group."""
        self._lifeline.close()
        for pipe in filter(None, (self.stdin, self.stdout, self.stderr)):
            with contextlib.suppress(OSError):  # what was not sent is not wanted
                pipe.close()

    def __exit__(self, *_: object) -> None:
        self.end()
        self.close()


_groups: set[int] = set()  # the leaders of all groups that have not been ended
_starting = threading.Lock()  # held until a new process is one of them
_adopts = False


def adopt_orphans() -> None:
    """Have the kernel make this process the parent of all that descend from it and lose theirs (Linux).

    So a process that moved to a session of its own, without its environment, is still found in this one's tree. Only
    for a process that is subcut's own: in another one's, children that are not subcut's would be taken for orphans.
    """
    global _adopts
    _adopts = True
    with contextlib.suppress(Exception):
        _c_library().prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_own_group() -> None:
    """Kill this process and its group, if it leads one."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)


def crash_name(code: int) -> str | None:
    """What ended a process, `SIGSEGV` for example; None where it ended by itself. `code`: as `subprocess` gives it."""
    if not 0 < -code < signal.NSIG:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def interrupt(process: subprocess.Popen[Any]) -> None:
    """Ask a process to end, as Ctrl-C does."""
    process.send_signal(signal.SIGINT)


def _pipe() -> tuple[int, int]:
    """The ends of a pipe, not 0 to 2 even if the standard streams were closed: `<&- >&- 2>&-`."""
    import fcntl

    ends = os.pipe()
    high = fcntl.fcntl(ends[0], fcntl.F_DUPFD_CLOEXEC, 3), fcntl.fcntl(ends[1], fcntl.F_DUPFD_CLOEXEC, 3)
    for end in ends:
        os.close(end)
    return high


def _kill_when_closed(held: int, group: int) -> None:
    """Have the kernel kill a group, which holds this end of a pipe, when our end of it closes (Linux)."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import fcntl

        fcntl.fcntl(held, fcntl.F_SETOWN, -group)
        fcntl.fcntl(held, F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(held, fcntl.F_SETFL, fcntl.fcntl(held, fcntl.F_GETFL) | os.O_ASYNC)


def _end_strays(leader: int, mark: str) -> None:
    """Kill what a group's leader started outside of the group."""
    import psutil

    empty_scans = 0
    for _ in range(SCANS):
        strays = _find_strays(leader, mark)
        empty_scans = 0 if strays else empty_scans + 1
        if empty_scans > 1:  # one is no proof: a process that ended during the scan may have started another before
            break
        for end in (psutil.Process.suspend, psutil.Process.kill):  # a shell that is not stopped says what was killed
            for process in strays:
                with contextlib.suppress(psutil.Error):
                    end(process)
        time.sleep(0.005)


def _find_strays(leader: int, mark: str) -> list[psutil.Process]:
    """The living processes outside of a group that descend from its leader, or have its mark in their environment.

    What a leader left that has ended by itself has its mark; or it is a child of this process, if this one adopts
    orphans. Complexity: linear in the processes of the machine (5 ms for 100).
    """
    import psutil

    found: set[psutil.Process] = set()
    with contextlib.suppress(psutil.Error):
        found.update(psutil.Process(leader).children(recursive=True))
    if _adopts:
        found.update(_orphans())
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.environ().get(MARK) == mark:
                found.add(process)
    return [process for process in found if _lives_outside(process, leader)]


def _orphans() -> list[psutil.Process]:
    """What ended groups left: children of this process in sessions of their own that lead no group. The dead are
    reaped."""
    import psutil

    own, orphans = os.getsid(0), []
    with _starting:
        children = psutil.Process().children()
    for child in children:
        with contextlib.suppress(psutil.Error, OSError):
            if child.pid in _groups or os.getsid(child.pid) in {own, *_groups}:
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


# ---------------------------------------------------------------------------------------------------- own end


def at_termination(call: Callable[[], object]) -> None:
    """Call this when the process is asked to end, other than by Ctrl-C. Only in the main thread."""
    signal.signal(signal.SIGTERM, lambda *_: call())


@contextlib.contextmanager
def termination_interrupts() -> Iterator[None]:
    """In this block a request to end is a KeyboardInterrupt, as Ctrl-C is."""
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def interrupts_delayed() -> Iterator[None]:
    """Delay Ctrl-C and a request to end until the block is done."""
    if threading.current_thread() is not threading.main_thread():  # only this one is interrupted
        yield
        return
    received: list[int] = []
    handlers = {n: signal.signal(n, lambda number, _: received.append(number)) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)
        if received:
            signal.raise_signal(received[0])


# ---------------------------------------------------------------------------------------------------- limits


def memory(share: float) -> int:
    """Bytes: a share of the machine's memory."""
    return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * share)


def free_memory() -> int:
    """Bytes that one process may use where the user gives no limit."""
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as info:
            free = next(int(line.split()[1]) << 10 for line in info if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        import psutil

        free = psutil.virtual_memory().available
    return int(free * MEMORY_SHARE)


def limit(pid: int, *, memory: int | None = None, seconds: int | None = None) -> None:
    """Bound what a process may allocate, and the processor time that it may use, where it is not bounded more already.

    0 is this process. Nothing where the system has no such limit of another process.
    """
    with contextlib.suppress(ImportError, AttributeError, ProcessLookupError):
        import resource

        for kind, amount in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_CPU, seconds)):
            if amount is not None:
                hard = resource.prlimit(pid, kind)[1]  # RLIM_INFINITY is -1
                most = amount if hard < 0 else min(amount, hard)
                resource.prlimit(pid, kind, (most, most))


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def home_folder() -> str:
    """The user's home folder by the system's list of users, whatever the environment says; "" if it is not there."""
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_dir
    except (ImportError, KeyError, OSError):
        return ""


def processor() -> str:
    """What the system calls its processor; "" where it does not say."""
    import platform
    import re

    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    m = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", text, re.MULTILINE)
    return " ".join(m[1].split()) if m else platform.processor()


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


# ---------------------------------------------------------------------------------------------------- files


class Lock:
    """The lock of a folder or file: held until `close`, or until this process ends, however it ends.

    Attributes:
        works: False where the file system has no locks (NFS): nothing is held then.
    """

    def __init__(self, path: Path, *, wait: bool = True, shared: bool = False) -> None:
        """`shared`: any number of processes may hold it so at once.

        Raises:
            BlockingIOError: another process holds it (only without `wait`). OSError: there is no such path.
        """
        self.works = False
        try:
            import fcntl
        except ImportError:
            return
        mode = os.O_RDONLY if shared or path.is_dir() else os.O_RDWR  # NFS locks for itself only what may be written
        self._handle = os.open(path, mode | os.O_CLOEXEC)
        try:
            fcntl.flock(self._handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
            self.works = True
        except BlockingIOError:
            os.close(self._handle)
            raise
        except OSError:
            os.close(self._handle)

    def close(self) -> None:
        """Let others have it."""
        if self.works:
            self.works = False
            os.close(self._handle)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def flush(path: Path) -> None:
    """Have what was written to a file, or renamed in a folder, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_at(handle: int, count: int, offset: int) -> bytes:
    """At most `count` bytes of an open file; threads may share the handle."""
    return os.pread(handle, count, offset)


def read_nothing_ahead(handle: int) -> None:
    """Have only those parts of an open file be read from the disk that are asked for."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)


def ready(seconds: float, reads: Sequence[int], writes: Sequence[int] = ()) -> set[int]:
    """Those of some pipes that can be read or written now, or are closed; waits for one."""
    poll = select.poll()
    for number in reads:
        poll.register(number, select.POLLIN)
    for number in writes:
        poll.register(number, select.POLLOUT)
    return {number for number, _ in poll.poll(math.ceil(seconds * 1000))}


def buffer_lines() -> None:
    """Have C libraries of this process write their output line by line: the last line before a crash says why."""
    import ctypes

    with contextlib.suppress(Exception):  # another C library: its last lines may be lost
        library = _c_library()
        library.setvbuf(ctypes.c_void_p.in_dll(library, "stdout"), None, LINE_BUFFERED, 0)


def flush_c() -> None:
    """Have C libraries of this process write what they hold back."""
    _c_library().fflush(None)


def _c_library() -> Any:
    import ctypes  # 4 ms

    return ctypes.CDLL(None, use_errno=True)
