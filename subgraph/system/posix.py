"""`subgraph.system` on Linux and macOS.

subcut can be killed with -9 while a candidate hangs. No process of the candidate must survive,
because it holds memory, a device, a license. Ways that fail: a thread in the child that waits for
the end of standard input (the backend holds Python's lock), `PR_SET_PDEATHSIG` (it fires when the
parent's thread ends, and grandchildren do not inherit it), a supervisor process for each worker (15
ms and 10 MB each, and it needs a supervisor, too).

So the child has the reading end of a pipe, its lifeline, whose other end only subcut has. On Linux,
the kernel sends SIGKILL to the child's process group when subcut ends and the pipe closes
(`F_SETOWN`, `F_SETSIG`, `O_ASYNC`). macOS lacks `F_SETSIG`: a shell waits on the pipe and kills the
group. Between the start and these calls, a worker reads the end of its input before the first
request, and a command without input is started by a shell that waits for one line.

A process in another session is not in the group. A worker adopts the orphans among its descendants
(`PR_SET_CHILD_SUBREAPER`); before subcut ends it, it is stopped, and the processes of its tree
outside of the group are killed first. After a crash of the worker, the commands adopt the orphans;
a program that imports subcut finds them by a mark in their environment. Remaining cases: such a
daemon after a kill -9 of subcut; on macOS, and for programs that import subcut after a crash, a
daemon that emptied its environment.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import grp
import math
import os
import pwd
import re
import resource
import select
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from subgraph.lazy import ctypes, platform
from subgraph.system.shared import (
    CHUNK_BYTES,
    MEMORY_SHARE,
    HeldFile,
    PipedProcess,
    delay_signals,
    disable_telemetry,
    psutil,
)
from subgraph.types import Fields, StringMap, Strings

assert sys.platform != "win32"  # for mypy: the rest is not read there

TERMINATED = 128 + signal.SIGTERM  # exit code of a command after a request to end
KILLED = "SIGKILL"  # as of `crash_name`: the system ends processes so when memory runs out
APART: Fields = {"start_new_session": True}  # options of `Popen`: Ctrl-C does not reach the process
# Variable in the environment of a group and of all that it starts, in other sessions too.
MARK = "SUBCUT_WORKER"
PYTHON = "bin/python"  # in a virtual environment
SPECIAL_NAMES = False  # of devices (`nul.txt`), and of streams (`file:stream`)
LONGEST_PATH: int | None = None  # characters; a longer one has a separate error here
# Disadvantages of this system compared with Linux, for `subcut doctor`.
WEAKER: Strings = ()
if sys.platform == "darwin":
    WEAKER = (
        (
            "limits of memory and processor time are checked ten times a second, not held by the"
            " system"
        ),
        "the memory of a process that has left its session and lost its parent is not counted",
        "one that also cleared its environment is not ended with the candidate",
    )
WATCH_SECONDS = 0.1  # seconds between two checks of a limit that the system does not hold
MAX_SCANS = 20  # for processes that were started while others were being killed
GROUPS = Path("/sys/fs/cgroup")
# Of versions 2 and 1 of control groups: limit, use, and the key of droppable memory.
GROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)
MAX_SOCKET_FOLDER_BYTES = 60  # bytes
F_SETSIG = 10  # linux/fcntl.h; Python's module lacks it before 3.13
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
LINE_BUFFERED = 1  # _IOLBF in stdio.h of glibc and musl

# ------------------------------------------------------------ groups


class ProcessGroup(PipedProcess):
    """A process that leads a group: what it starts ends with it, and it with this process, however
    this one ends.

    Ctrl-C does not reach it. `memory`: bytes that it may allocate, `seconds`: of processor time
    that it may use. One without input would not see that this process was killed before the kernel
    had its order, so a shell starts it then.
    """

    def __init__(
        self,
        words: Sequence[str | Path],
        *,
        env: StringMap | None = None,
        memory: int | None = None,
        seconds: int | None = None,
        **options: Any,
    ) -> None:
        if waits := options.get("stdin") == subprocess.DEVNULL:
            words = _start_waiting(words, env)
            options["stdin"] = subprocess.PIPE
        self._mark = os.urandom(16).hex()
        self._ended = threading.Event()
        self._most_memory = math.inf  # what is watched here, with a thread for it
        self._last_second = math.inf
        self._watcher: threading.Thread | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        held, lifeline = _open_pipe()
        self._lifeline = os.fdopen(lifeline, "wb", buffering=0)
        try:
            with _starting:
                marked = {**disable_telemetry(env), MARK: self._mark}
                super().__init__(
                    words, env=marked, start_new_session=True, pass_fds=[held], **options
                )
                _groups.add(self.pid)
            if not _kill_when_closed(held, self.pid):
                self._guard = _start_guard(held, self.pid)
            self._limit(memory, seconds)
            if waits and (gate := self.stdin):
                self.stdin = None
                # The shell was killed: its exit code shows that.
                with (
                    contextlib.suppress(BrokenPipeError),
                    gate,
                ):
                    gate.write(b"\n")
        except BaseException:
            self._lifeline.close()
            raise
        finally:
            os.close(held)

    def has_exited(self) -> bool:
        """Return whether it has exited, without reaping it: until `end`, its number stays."""
        try:
            if hasattr(os, "waitid"):
                options = os.WEXITED | os.WNOHANG | os.WNOWAIT
                return os.waitid(os.P_PID, self.pid, options) is not None
            return bool(psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE)
        except (ChildProcessError, psutil.Error):
            return True

    def resident_memory(self) -> int:
        """Return the bytes of resident memory of its session's processes and their descendants.

        Shared memory is counted for each. A process that left both its session and its parent is
        not seen. Complexity: linear in the processes of the machine (0.5 ms for 80).
        """
        pids = set(psutil.pids())
        sizes = {}
        waiting = [self.pid]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(pid) == self.pid:
                    waiting.append(pid)
        children: dict[int, list[int]] = {}
        with _parents_lock:
            for pid in _parents.keys() - pids:
                del _parents[pid]
            for pid in pids:
                # Reading takes 0.1 ms: a parent is read once, and again when the process has ended.
                if (parent := _parents.get(pid, -1)) and parent not in pids:
                    with contextlib.suppress(psutil.Error):
                        parent = _parents[pid] = psutil.Process(pid).ppid()
                children.setdefault(parent, []).append(pid)
        while waiting:
            if (pid := waiting.pop()) not in sizes:
                with contextlib.suppress(psutil.Error):
                    sizes[pid] = psutil.Process(pid).memory_info().rss
                waiting += children.get(pid, ())
        return sum(sizes.values())

    def end(self, *, strays: bool = False) -> None:
        """Kill all of it; `strays`: also processes that moved out of the group."""
        if self._ended.is_set():  # the system uses its number again
            return
        if strays:
            # It starts no more processes, and stays the parent of all orphans.
            self._send_signal(signal.SIGSTOP)
            _end_strays(self.pid, self._mark)
        self._send_signal(signal.SIGKILL)
        if self._guard:  # first: afterwards the number of the group may be another one's
            self._guard.kill()
            self._guard.wait()
        self.wait()
        self._ended.set()
        _groups.discard(self.pid)

    def allow(self, seconds: int) -> None:
        """Let it use so much processor time from now on."""
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # it has ended
                used = (
                    Path(f"/proc/{self.pid}/stat")
                    .read_text(encoding="ascii", errors="replace")
                    .rpartition(")")[2]
                )
                ticks = sum(map(int, used.split()[11:13]))  # in user's and in system mode
                hard = resource.prlimit(self.pid, resource.RLIMIT_CPU)[1]
                end = ticks // os.sysconf("SC_CLK_TCK") + 1 + seconds
                resource.prlimit(
                    self.pid, resource.RLIMIT_CPU, (end if hard < 0 else min(end, hard), hard)
                )
        else:
            self._watch(seconds=self._measure_processor_time() + seconds)

    def _limit(self, memory: int | None, seconds: int | None) -> None:
        """Bound the memory and processor time that it can use, unless they are bounded more
        already."""
        if sys.platform == "linux":
            with contextlib.suppress(ProcessLookupError):
                for kind, amount in (
                    (resource.RLIMIT_DATA, memory),
                    (resource.RLIMIT_CPU, seconds),
                ):
                    if amount is not None:
                        hard = resource.prlimit(self.pid, kind)[1]  # RLIM_INFINITY is -1
                        most = amount if hard < 0 else min(amount, hard)
                        resource.prlimit(self.pid, kind, (most, most))
        elif memory is not None or seconds is not None:
            self._watch(memory or math.inf, math.inf if seconds is None else seconds)

    def _watch(self, memory: float = math.inf, seconds: float = math.inf) -> None:
        """Have a thread kill the group when it exceeds a limit: the system has none for another
        process."""
        self._most_memory = min(memory, self._most_memory)
        self._last_second = seconds
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._keep_watch, daemon=True)
            self._watcher.start()

    def _keep_watch(self) -> None:
        while not self._ended.wait(WATCH_SECONDS) and not self.has_exited():
            if (
                self._measure_processor_time() > self._last_second
                or self.resident_memory() > self._most_memory
            ):
                self._send_signal(signal.SIGKILL)
                return

    def _measure_processor_time(self) -> float:
        """Return the seconds that its leader has used."""
        try:
            return float(sum(psutil.Process(self.pid).cpu_times()[:2]))
        except psutil.Error:
            return 0.0

    def _send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


class Pipes:
    """The standard streams of a child, all pipes. None of them is waited for alone; only `wait`
    waits."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        pipes = [pipe for pipe in (process.stdin, process.stdout, process.stderr) if pipe]
        self._stdin, self._stdout, self._stderr = (pipe.fileno() for pipe in pipes)
        for number in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(number, False)
        self._unsent = b""
        self._prints = True  # more may come from standard error

    def send(self, data: bytes) -> None:
        """Send as much as the pipe takes; `wait` sends the rest."""
        self._unsent += data
        with contextlib.suppress(BrokenPipeError):  # `wait` reports it
            self._write()

    def _write(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._unsent = self._unsent[os.write(self._stdin, self._unsent) :]

    def wait(self, seconds: float) -> bool:
        """Wait until something can be read, or be sent, or so long. Can the output be read, or has
        it ended?

        Raises:
            BrokenPipeError: nobody reads what is to be sent.
        """
        poll = select.poll()
        for number in (self._stdout, *([self._stderr] if self._prints else [])):
            poll.register(number, select.POLLIN)
        if self._unsent:
            poll.register(self._stdin, select.POLLOUT)
        ready = {number for number, _ in poll.poll(math.ceil(seconds * 1000))}
        if self._stdin in ready:
            self._write()
        return self._stdout in ready

    def read(self) -> bytes | None:
        """Return the bytes that have arrived on standard output; b"" at its end, None if nothing
        has."""
        return self._read(self._stdout)

    def read_errors(self) -> bytes | None:
        """Return the bytes that have arrived on standard error, as `read`."""
        chunk = self._read(self._stderr)
        self._prints = chunk != b""
        return chunk

    @staticmethod
    def _read(number: int) -> bytes | None:
        try:
            return os.read(number, CHUNK_BYTES)
        except BlockingIOError:
            return None

    def close(self) -> None:
        """Let go of them; the group closes them."""


_parents: dict[int, int] = {}  # of the processes of this machine
_parents_lock = threading.Lock()
_groups: set[int] = set()  # the leaders of all groups that have not been ended
_starting = threading.Lock()  # held until a new process is one of them
_adopts = False


def adopt_orphans() -> None:
    """Have the kernel make this process the parent of all that descend from it and lose theirs
    (Linux).

    So a process that moved to another session, without its environment, is still found in the tree
    of this one. Only for a process that is subcut's own: in another one's, children that are not
    subcut's would be taken for orphans.
    """
    global _adopts
    _adopts = True
    with contextlib.suppress(Exception):
        _load_c_library().prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_own_group() -> None:
    """Kill this process and its group, if it leads one."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)


def name_crash(code: int) -> str | None:
    """Return the name of the signal that ended a process, `SIGSEGV` for example; None if it ended
    by itself. `code`: as `subprocess` returns it."""
    if not 0 < -code < signal.NSIG:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def interrupt(process: subprocess.Popen[Any]) -> None:
    """Ask a process to end, as Ctrl-C does."""
    process.send_signal(signal.SIGINT)


def _start_waiting(words: Sequence[str | Path], env: StringMap | None) -> list[str | Path]:
    """Start a shell that becomes this command, without input, when it reads a line, and ends
    without one.

    Raises:
        FileNotFoundError: there is no such program.
    """
    if shutil.which(words[0], path=(os.environ if env is None else env).get("PATH")) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(words[0]))
    return ["/bin/sh", "-c", 'read _ && exec "$@" < /dev/null', "sh", *words]


def _open_pipe() -> tuple[int, int]:
    """Return the ends of a pipe, not 0 to 2 even if the standard streams were closed: `<&- >&-
    2>&-`."""
    ends = os.pipe()
    held, lifeline = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in ends)
    for end in ends:
        os.close(end)
    return held, lifeline


def _kill_when_closed(end: int, group: int) -> bool:
    """Have the kernel kill a group, which holds this end of a pipe, when our end of it closes.
    False: it cannot."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            fcntl.fcntl(end, fcntl.F_SETOWN, -group)
            fcntl.fcntl(end, F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)
            return True
    return False


def _start_guard(end: int, group: int) -> subprocess.Popen[bytes]:
    """Start a shell that kills a group when our end of the pipe closes (macOS)."""
    words = ["/bin/sh", "-c", f"read _; kill -9 -{group}"]
    devnull = subprocess.DEVNULL
    return subprocess.Popen(
        words, stdin=end, stdout=devnull, stderr=devnull, start_new_session=True, env={}
    )


def _end_strays(leader: int, mark: str) -> None:
    """Kill what a group's leader started outside of the group."""
    empty_scans = 0
    for _ in range(MAX_SCANS):
        strays = _find_strays(leader, mark)
        empty_scans = 0 if strays else empty_scans + 1
        # One is no proof: a process that ended during the scan may have started another before.
        if empty_scans > 1:
            break
        # A shell that is not stopped prints what was killed.
        for end in (
            psutil.Process.suspend,
            psutil.Process.kill,
        ):
            for process in strays:
                with contextlib.suppress(psutil.Error):
                    end(process)
        time.sleep(0.005)


def _find_strays(leader: int, mark: str) -> list[psutil.Process]:
    """Return the living processes outside of a group that descend from its leader, or have its mark
    in their environment.

    A process whose leader has ended by itself has its mark; or it is a child of this process, if
    this one adopts orphans. Complexity: linear in the processes of the machine (5 ms for 100).
    """
    found = set()
    with contextlib.suppress(psutil.Error):
        found.update(psutil.Process(leader).children(recursive=True))
    if _adopts:
        found.update(_find_orphans())
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            if sys.platform == "linux":  # a tenth of the time of psutil, which reads more
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                is_marked = f"{MARK}={mark}".encode() in variables
            else:
                is_marked = bool(psutil.Process(pid).environ().get(MARK) == mark)
            if is_marked:
                found.add(psutil.Process(pid))
    outside = []
    for process in found:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) != leader and process.status() != psutil.STATUS_ZOMBIE:
                outside.append(process)
    return outside


def _find_orphans() -> list[psutil.Process]:
    """Return the processes that ended groups left: children of this process in sessions of their
    own that lead no group. The dead are reaped."""
    own = os.getsid(0)
    orphans = []
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


# ------------------------------------------------------------ own end


def call_at_termination(call: Callable[[], object]) -> None:
    """Call this at a request to end, other than by Ctrl-C. Only in the main thread."""
    signal.signal(signal.SIGTERM, lambda *_: call())


@contextlib.contextmanager
def interrupt_on_termination() -> Iterator[None]:
    """Have a request to end raise KeyboardInterrupt, also if a shell's `&` ignores Ctrl-C."""
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    handler = (
        signal.default_int_handler if ignored else lambda *_: signal.raise_signal(signal.SIGINT)
    )
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def delay_interrupts() -> AbstractContextManager[None]:
    """Delay Ctrl-C and a request to end until the block is done."""
    return delay_signals(signal.SIGINT, signal.SIGTERM)


# ------------------------------------------------------------ limits


def measure_free_memory() -> int:
    """Return the bytes that one process may use without a limit of the user."""
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as info:
            free = next(
                int(line.split()[1]) << 10 for line in info if line.startswith("MemAvailable")
            )
    except (OSError, StopIteration):
        free = psutil.virtual_memory().available
    # The control group of this process, such as that of a container, can leave it less.
    for most, used, kept in GROUP_FILES:
        with contextlib.suppress(OSError, ValueError):  # "max" is not a number
            limit = int((GROUPS / most).read_text(encoding="ascii"))
            taken = int((GROUPS / used).read_text(encoding="ascii"))
            statistics = (GROUPS / used).with_name("memory.stat").read_text(encoding="ascii")
            lines = (line for line in statistics.splitlines() if line.startswith(f"{kept} "))
            cached = sum(int(line.split()[1]) for line in lines)
            free = min(free, max(limit - taken + cached, 0))
    return int(free * MEMORY_SHARE)


def count_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def find_home_folder() -> str:
    """Return the user's home folder by the system's list of users; "" without one."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except (KeyError, OSError):
        return ""


def name_processor() -> str:
    """Return the system's name of its processor; "" without one."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    m = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", text, re.MULTILINE)
    return " ".join(m[1].split()) if m else platform.processor()


# ------------------------------------------------------------ files


class Lock(HeldFile):
    """The lock of a folder or file: held until `close`, or until this process ends, however it
    ends."""

    def __init__(
        self, path: Path, *, wait: bool = True, shared: bool = False, name: str = ""
    ) -> None:
        """`shared`: any number of processes may hold it so at once. `name`: what a folder will be
        renamed to.

        Raises:
            BlockingIOError: another process holds it (only without `wait`). OSError: there is no
                such path.
        """
        # NFS locks for itself only what may be written.
        mode = os.O_RDONLY if shared or path.is_dir() else os.O_RDWR
        self._handle = os.open(path, mode | os.O_CLOEXEC)
        try:
            fcntl.flock(
                self._handle,
                (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB),
            )
            self.works = True
        except BlockingIOError:
            os.close(self._handle)
            raise
        except OSError:
            os.close(self._handle)


def flush(path: Path) -> None:
    """Have what was written to a file, or renamed in a folder, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def move(path: Path, to: Path) -> None:
    """Rename a file or folder; nothing is there."""
    path.rename(to)


def link_folder(link: Path, folder: Path) -> None:
    """Have a folder also be found at another place."""
    link.symlink_to(folder, target_is_directory=True)


@functools.cache
def shorten_folder(folder: str) -> str:
    """Return a folder by a name that leaves room for that of a socket in it: Linux has 108 bytes
    for both."""
    if sys.platform == "linux" and len(os.fsencode(folder)) > MAX_SOCKET_FOLDER_BYTES:
        # The descriptor stays open as long as this process lives.
        return f"/proc/{os.getpid()}/fd/{os.open(folder, os.O_RDONLY)}"
    return folder


def find_cache_home() -> Path | None:
    """Return the folder of files of this user that may be deleted at any time; None if there is no
    such folder."""
    home = _find_home("XDG_CACHE_HOME", "Library/Caches" if sys.platform == "darwin" else ".cache")
    return (
        home
        if home and (home.parent.is_dir() or home == Path(os.environ.get("XDG_CACHE_HOME", "")))
        else None
    )


def is_private(place: Path, *parents: Path) -> bool:
    """Return whether a folder or file and its parents belong to this user or to root, and nobody
    else can write them.

    A parent may have the sticky bit: nobody can replace what belongs to another user in it.

    Raises:
        OSError: One of them does not exist.
    """
    for one in (place, *parents):
        status = one.stat()
        if status.st_uid not in (os.geteuid(), 0):
            return False
        is_sticky = one is not place and status.st_mode & stat.S_ISVTX
        writable = status.st_mode & (stat.S_IWOTH | stat.S_IWGRP)
        if not writable or is_sticky:
            continue
        if writable != stat.S_IWGRP or not is_group_of_one_user(status.st_gid):
            return False
    return True


def is_group_of_one_user(group: int) -> bool:
    """Return whether a group is this user's own: many systems make one for each user, who writes
    files for it."""
    try:
        user = pwd.getpwuid(os.geteuid())
        own = grp.getgrgid(group)
    except KeyError:
        return False
    return group == user.pw_gid and own.gr_name == user.pw_name and {*own.gr_mem} <= {user.pw_name}


def find_config_home() -> Path | None:
    """Return the folder of settings of this user; None if there is no such folder."""
    return _find_home(
        "XDG_CONFIG_HOME", "Library/Application Support" if sys.platform == "darwin" else ".config"
    )


def _find_home(variable: str, folder: str) -> Path | None:
    named = Path(os.environ.get(variable, ""))
    # Relative ones are to be ignored (XDG Base Directory Specification 0.8).
    if named.is_absolute():
        return named
    home = Path(os.path.expanduser("~"))  # noqa: PTH111
    return home / folder if home.is_absolute() else None


def read_at(handle: int, count: int, offset: int) -> bytes:
    """Read at most `count` bytes of an open file; threads may share the handle."""
    return os.pread(handle, count, offset)


def read_nothing_ahead(handle: int) -> None:
    """Have only requested parts of an open file be read from the disk."""
    if sys.platform == "linux":
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)


def buffer_lines() -> None:
    """Have C libraries write line by line: the last line before a crash is its reason."""
    with contextlib.suppress(Exception):  # another C library: its last lines may be lost
        library = _load_c_library()
        library.setvbuf(ctypes.c_void_p.in_dll(library, "stdout"), None, LINE_BUFFERED, 0)


def flush_c() -> None:
    """Have C libraries of this process write what they hold back."""
    _load_c_library().fflush(None)


def _load_c_library() -> Any:
    return ctypes.CDLL(None, use_errno=True)


# ------------------------------------------------------------ command lines


def find_program(word: str, folder: str | None) -> str:
    """Return the first word of a command that runs in a folder, as `Popen` takes it."""
    return word


split = shlex.split
join = shlex.join
quote = shlex.quote
