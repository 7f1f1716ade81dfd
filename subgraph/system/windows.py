"""`subgraph.system` on Windows: jobs, LockFileEx, a thread for each pipe.

A child starts suspended, is put into a job whose only handle subcut has (`KILL_ON_JOB_CLOSE`), and
then runs. The system ends the job when the handle closes, also after a kill of subcut.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from ctypes import wintypes
from pathlib import Path
from typing import IO, Any

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

assert sys.platform == "win32"  # for mypy: the rest is not read elsewhere

TERMINATED = 143  # exit code of a command after a request to end, as on Linux
KILLED = "STATUS_NO_MEMORY"  # as of `name_crash`: the system ends processes so when memory runs out
# Options of `Popen`: Ctrl-C does not reach the process.
APART: Fields = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
PYTHON = "Scripts/python.exe"  # in a virtual environment
SPECIAL_NAMES = True  # of devices (`nul.txt`), and of streams (`file:stream`)
LONGEST_PATH: int | None = 259  # characters, unless LongPathsEnabled is set in the registry
# Disadvantages of this system compared with Linux, for `subcut doctor`.
WEAKER: Strings = (
    "without a console a run that the page stops is ended, not interrupted",
    "what a C library printed last before a crash may be lost",
)
MAX_KEPT_CHUNKS = 64  # chunks of a pipe that were not read yet: then the child waits
LAST_OUTPUT_SECONDS = 0.5  # seconds for what an ended process wrote to arrive
# The byte that is locked: after all contents, since a lock of Windows keeps others from reading.
LOCK_AT = 1 << 62
# If another program has a file open: a virus scanner, an indexer, a reader.
RETRY_SECONDS = 0.01  # seconds between two attempts
MAX_RETRY_SECONDS = 3.0  # seconds
CREATE_SUSPENDED = 4
LIMIT_JOB_TIME = 4  # JOB_OBJECT_LIMIT_…
LIMIT_JOB_MEMORY = 0x200
BREAKAWAY_OK = 0x800
KILL_ON_JOB_CLOSE = 0x2000
PROCESS_ID_LIST = 3  # of JOBOBJECTINFOCLASS
EXTENDED_LIMITS = 9
MAX_PROCESSES = 4096  # of a job, that are looked at
FAIL_IMMEDIATELY = 1  # of LockFileEx
EXCLUSIVE_LOCK = 2
ERROR_LOCK_VIOLATION = 33
CRASHES = {
    0xC0000005: "SIGSEGV",  # access violation
    0xC00000FD: "SIGSEGV",  # stack overflow
    0xC0000374: "SIGABRT",  # the heap is damaged
    0xC0000409: "SIGABRT",  # abort() and __fastfail
    0xC000001D: "SIGILL",
    0xC0000094: "SIGFPE",  # integer division by zero
    0xC000013A: "SIGINT",
    0xC0000017: KILLED,
    0xC000012D: KILLED,  # the pagefile is full
}

_kernel = ctypes.WinDLL("kernel32", use_last_error=True)
_kernel.CreateJobObjectW.restype = _kernel.GetCurrentProcess.restype = wintypes.HANDLE


def _check(result: int) -> int:
    if not result:
        raise ctypes.WinError(ctypes.get_last_error())
    return result


# ------------------------------------------------------------ groups


class _Limits(ctypes.Structure):  # JOBOBJECT_EXTENDED_LIMIT_INFORMATION
    _fields_ = (
        ("PerProcessUserTimeLimit", ctypes.c_int64),
        ("PerJobUserTimeLimit", ctypes.c_int64),
        ("LimitFlags", wintypes.DWORD),
        ("MinimumWorkingSetSize", ctypes.c_size_t),
        ("MaximumWorkingSetSize", ctypes.c_size_t),
        ("ActiveProcessLimit", wintypes.DWORD),
        ("Affinity", ctypes.c_size_t),
        ("PriorityClass", wintypes.DWORD),
        ("SchedulingClass", wintypes.DWORD),
        ("IoInfo", ctypes.c_uint64 * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    )


class _ProcessIds(ctypes.Structure):  # JOBOBJECT_BASIC_PROCESS_ID_LIST
    _fields_ = (
        ("NumberOfAssignedProcesses", wintypes.DWORD),
        ("NumberOfProcessIdsInList", wintypes.DWORD),
        ("ProcessIdList", ctypes.c_size_t * MAX_PROCESSES),
    )


def _make_job() -> wintypes.HANDLE:
    return wintypes.HANDLE(_check(_kernel.CreateJobObjectW(None, None)))


def _limit(job: wintypes.HANDLE | None, limits: _Limits) -> None:
    _check(
        _kernel.SetInformationJobObject(
            job, EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits)
        )
    )


_starting = threading.Lock()  # of children, one at a time


@functools.cache
def _make_own_job() -> wintypes.HANDLE:
    """Return a job of this process, which its children are in as well."""
    job = _make_job()
    _check(_kernel.AssignProcessToJobObject(job, wintypes.HANDLE(_kernel.GetCurrentProcess())))
    return job


@contextlib.contextmanager
def _end_children_with_this_process() -> Iterator[None]:
    """Let a child that starts in the block end with this process, if that is killed in the block.

    It would stay for ever: suspended, and not yet in the job of its group. Behind the block others,
    such as the browser of `subcut view`, outlive this process again.
    """
    with _starting:
        _limit(_make_own_job(), _Limits(LimitFlags=KILL_ON_JOB_CLOSE | BREAKAWAY_OK))
        try:
            yield
        finally:
            _limit(_make_own_job(), _Limits(LimitFlags=BREAKAWAY_OK))


class ProcessGroup(PipedProcess):
    """A process that leads a group: what it starts ends with it, and it with this process, however
    this one ends.

    The group is a job, whose processes the system ends when its only handle closes, which this
    process has; none can leave it. Ctrl-C does not reach it. `memory`: bytes that it may allocate,
    `seconds`: of processor time that it may use.
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
        self._limits = _Limits(LimitFlags=KILL_ON_JOB_CLOSE)
        if memory is not None:
            self._limits.LimitFlags |= LIMIT_JOB_MEMORY
            self._limits.JobMemoryLimit = memory
        self._job: wintypes.HANDLE | None = _make_job()
        try:
            self.allow(seconds)
            environment = {"PYTHONIOENCODING": "utf-8", **disable_telemetry(env)}
            flags = subprocess.CREATE_NEW_PROCESS_GROUP | CREATE_SUSPENDED
            with _end_children_with_this_process():
                super().__init__(
                    [str(word) for word in words], env=environment, creationflags=flags, **options
                )
                process = wintypes.HANDLE(int(self._handle))  # type: ignore[attr-defined]
                try:
                    _check(_kernel.AssignProcessToJobObject(self._job, process))
                except BaseException:
                    self.kill()
                    raise
            ctypes.WinDLL("ntdll").NtResumeProcess(process)
        except BaseException:
            self._close_job()
            raise

    def allow(self, seconds: int | None) -> None:
        """Let it use so much processor time from now on."""
        if seconds is not None:
            self._limits.LimitFlags |= LIMIT_JOB_TIME
            self._limits.PerJobUserTimeLimit = seconds * 10_000_000
        _limit(self._job, self._limits)

    def has_exited(self) -> bool:
        """Return whether it ended. Its number is not used again while this object
        has its handle."""
        return self.poll() is not None

    def resident_memory(self) -> int:
        """Return the bytes of resident memory of the group. Shared memory is counted for each
        process."""
        found = _ProcessIds()
        total = 0
        _kernel.QueryInformationJobObject(
            self._job, PROCESS_ID_LIST, ctypes.byref(found), ctypes.sizeof(found), None
        )
        for pid in found.ProcessIdList[: found.NumberOfProcessIdsInList]:
            with contextlib.suppress(psutil.Error):
                total += psutil.Process(pid).memory_info().rss
        return total

    def end(self, *, strays: bool = False) -> None:
        """Kill all of it: nothing can stray."""
        if self._job is not None:
            _kernel.TerminateJobObject(self._job, 1)
            self.wait()
            self._close_job()

    def _close_job(self) -> None:
        if self._job is not None:
            _kernel.CloseHandle(self._job)
            self._job = None


class Pipes:
    """The standard streams of a child, all pipes. None of them is waited for alone; only `wait`
    waits.

    Each has a thread, which closes it: Windows waits for pipes of this kind in no other way.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._changed = threading.Condition()
        self._unsent: collections.deque[bytes] = collections.deque()
        self._out: collections.deque[bytes] = collections.deque()  # the end is b"", and stays
        self._errors: collections.deque[bytes] = collections.deque()
        self._broken = self._closed = False
        stdin = process.stdin
        stdout = process.stdout
        stderr = process.stderr
        process.stdin = process.stdout = process.stderr = None
        for work, words in (
            (self._receive, (stdout, self._out)),
            (self._receive, (stderr, self._errors)),
            (self._deliver, (stdin,)),
        ):
            threading.Thread(target=work, args=words, daemon=True).start()

    def _receive(self, pipe: IO[bytes], into: collections.deque[bytes]) -> None:
        chunk = b"-"
        with pipe:
            while chunk:
                try:
                    chunk = os.read(pipe.fileno(), CHUNK_BYTES)
                except OSError:
                    chunk = b""
                with self._changed:
                    into.append(chunk)
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: len(into) < MAX_KEPT_CHUNKS or self._closed)

    def _deliver(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(OSError), pipe:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._unsent or self._closed)
                    if self._closed:
                        return
                    data = self._unsent.popleft()
                try:
                    while data:
                        data = data[os.write(pipe.fileno(), data) :]
                except OSError:
                    with self._changed:
                        self._broken = True
                        self._changed.notify_all()
                    return

    def send(self, data: bytes) -> None:
        """Send in the background."""
        with self._changed:
            self._unsent.append(data)
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until something can be read, or so long. Can the output be read, or has it ended?

        Raises:
            BrokenPipeError: nobody reads what is to be sent.
        """
        with self._changed:
            printed = self._errors
            self._changed.wait_for(
                lambda: self._out or (printed and printed[0]) or self._broken, seconds
            )
            if self._broken and not self._out:
                raise BrokenPipeError
            return bool(self._out)

    def read(self) -> bytes | None:
        """Return the bytes that have arrived on standard output; b"" at its end, None if nothing
        has."""
        return self._read(self._out)

    def read_errors(self) -> bytes | None:
        """Return the bytes that have arrived on standard error, as `read`."""
        return self._read(self._errors)

    def _read(self, arrived: collections.deque[bytes]) -> bytes | None:
        with self._changed:
            if not arrived and self._process.poll() is not None:
                self._changed.wait_for(lambda: arrived, LAST_OUTPUT_SECONDS)
            if not arrived or not arrived[0]:
                return arrived[0] if arrived else None
            self._changed.notify_all()
            return arrived.popleft()

    def close(self) -> None:
        """Let the threads end, once the child has."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def adopt_orphans() -> None:
    """Do nothing: no process leaves its job."""


def end_own_group() -> None:
    """Do nothing: the job ends what this process has started."""


def name_crash(code: int) -> str | None:
    """Return the name of the exception that ended a process, `SIGSEGV` for example; None if it
    ended by itself. `code`: as `subprocess` returns it."""
    return CRASHES.get(code & 0xFFFFFFFF)


def interrupt(process: subprocess.Popen[Any]) -> None:
    """Ask a process that was started `APART` to end, as Ctrl-C does. Without a console it is
    ended."""
    try:
        process.send_signal(signal.CTRL_BREAK_EVENT)
    except (OSError, SystemError):  # Python 3.11 raises a SystemError
        process.terminate()


# ------------------------------------------------------------ own end


def call_at_termination(call: Callable[[], object]) -> None:
    """Make Ctrl-Break, with which Windows and `interrupt` end a process, a KeyboardInterrupt, as
    Ctrl-C is."""
    signal.signal(signal.SIGBREAK, signal.default_int_handler)


@contextlib.contextmanager
def interrupt_on_termination() -> Iterator[None]:
    """Have a request to end raise KeyboardInterrupt, as Ctrl-C does."""
    before = signal.signal(signal.SIGBREAK, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGBREAK, before)


def delay_interrupts() -> AbstractContextManager[None]:
    """Delay Ctrl-C and a request to end until the block is done."""
    return delay_signals(signal.SIGINT, signal.SIGBREAK)


# ------------------------------------------------------------ limits


class _MemoryStatus(ctypes.Structure):
    _fields_ = (
        ("length", wintypes.DWORD),
        ("load", wintypes.DWORD),
        *(
            (name, ctypes.c_uint64)
            for name in ("total", "free", "page_total", "page_free", "virtual", "left", "more")
        ),
    )


def measure_free_memory() -> int:
    """Return the bytes that one process may use without a limit of the user."""
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    _check(_kernel.GlobalMemoryStatusEx(ctypes.byref(status)))
    return int(status.free * MEMORY_SHARE)


def count_cores() -> int:
    """Return the cores of the machine."""
    return os.cpu_count() or 1


def find_home_folder() -> str:
    """Return the user's home folder by the system, whatever else is in the environment; "" if the
    system has no home folder."""
    return os.environ.get("USERPROFILE", "")


def name_processor() -> str:
    """Return the system's name of its processor; "" without one."""
    import winreg

    try:
        with winreg.OpenKey(
            winreg.HKEY_LOCAL_MACHINE, r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
        ) as key:
            return " ".join(str(winreg.QueryValueEx(key, "ProcessorNameString")[0]).split())
    except OSError:
        return ""


# ------------------------------------------------------------ files


class _Overlapped(ctypes.Structure):
    _fields_ = (
        ("Internal", ctypes.c_void_p),
        ("InternalHigh", ctypes.c_void_p),
        ("Offset", wintypes.DWORD),
        ("OffsetHigh", wintypes.DWORD),
        ("hEvent", wintypes.HANDLE),
    )


class Lock(HeldFile):
    """The lock of a folder or file: held until `close`, or until this process ends, however it
    ends.

    For a folder, a file next to it is locked, `.NAME.lock`, which goes with the handle: a folder
    with an open file in it cannot be renamed.
    """

    def __init__(
        self, path: Path, *, wait: bool = True, shared: bool = False, name: str = ""
    ) -> None:
        """`shared`: any number of processes may hold it so at once. `name`: what a folder will be
        renamed to.

        Raises:
            BlockingIOError: another process holds it (only without `wait`). OSError: there is no
                such path.
        """
        is_folder = path.is_dir()
        try:
            self._handle = (
                _open_beside(path, name, wait)
                if is_folder
                else os.open(path, os.O_RDWR | os.O_NOINHERIT)
            )
        except PermissionError:
            if not path.exists():
                raise
            return
        try:
            self._lock(wait, shared)
            if is_folder:
                path.lstat()
        except OSError as e:
            os.close(self._handle)
            if isinstance(e, (BlockingIOError, FileNotFoundError)):
                raise
        else:
            self.works = True

    def _lock(self, wait: bool, shared: bool) -> None:
        import msvcrt

        flags = (0 if shared else EXCLUSIVE_LOCK) | (0 if wait else FAIL_IMMEDIATELY)
        place = _Overlapped(Offset=LOCK_AT & 0xFFFFFFFF, OffsetHigh=LOCK_AT >> 32)
        handle = wintypes.HANDLE(msvcrt.get_osfhandle(self._handle))
        if not _kernel.LockFileEx(handle, flags, 0, 1, 0, ctypes.byref(place)):
            if (code := ctypes.get_last_error()) == ERROR_LOCK_VIOLATION:
                raise BlockingIOError(0, "another process holds the lock")
            raise ctypes.WinError(code)


def _open_beside(folder: Path, name: str, wait: bool) -> int:
    """Open a file in a folder and lock it.

    Raises:
        BlockingIOError: another process holds it. PermissionError: nothing can be written there.
    """
    file = folder.with_name(f".{(name or folder.name).lstrip('.')}.lock")
    while True:
        try:
            return os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOINHERIT | os.O_TEMPORARY)
        except PermissionError:
            if not file.exists():
                raise
        if not wait:  # its last holder is closing it
            raise BlockingIOError(0, "another process holds the lock")
        time.sleep(RETRY_SECONDS)


def flush(path: Path) -> None:
    """Have what was written to a file survive a power cut. Folders cannot be opened."""
    if path.is_file():
        handle = os.open(path, os.O_RDWR | os.O_BINARY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def move(path: Path, to: Path) -> None:
    """Rename a file or folder; nothing is there. Waits a little if another program has something
    in it open."""
    end = time.monotonic() + MAX_RETRY_SECONDS
    while True:
        try:
            path.rename(to)
            return
        except PermissionError:
            if to.exists() or time.monotonic() >= end:
                raise
        time.sleep(RETRY_SECONDS)


def link_folder(link: Path, folder: Path) -> None:
    """Have a folder also be found at another place: by a junction, which needs no privilege."""
    import _winapi

    _winapi.CreateJunction(str(folder), str(link))


def shorten_folder(folder: str) -> str:
    """Return a folder by a name that leaves room for that of a socket in it: any."""
    return folder


def find_cache_home() -> Path | None:
    """Return the folder of files of this user that may be deleted at any time; None if there is no
    such folder."""
    return _find_home("XDG_CACHE_HOME", "LOCALAPPDATA")


def is_private(place: Path, *parents: Path) -> bool:
    """Return True: the folders of a user's profile are closed to others, and no access list is read
    elsewhere."""
    return True


def find_config_home() -> Path | None:
    """Return the folder of settings of this user; None if there is no such folder."""
    return _find_home("XDG_CONFIG_HOME", "APPDATA")


def _find_home(*variables: str) -> Path | None:
    homes = (Path(os.environ.get(name, "")) for name in variables)
    return next((home for home in homes if home.is_absolute()), None)


_reading = threading.Lock()  # a file's position, and what is read there


def read_at(handle: int, count: int, offset: int) -> bytes:
    """Read at most `count` bytes of an open file; threads may share the handle."""
    with _reading:
        os.lseek(handle, offset, os.SEEK_SET)
        return os.read(handle, count)


def read_nothing_ahead(handle: int) -> None:
    """Do nothing: Windows reads ahead as it likes."""


def buffer_lines() -> None:
    """Do nothing: Microsoft's C library has no buffering by lines."""


def flush_c() -> None:
    """Have C libraries of this process write what they hold back."""
    ctypes.CDLL("ucrtbase").fflush(None)


# ------------------------------------------------------------ command lines


def split(line: str) -> list[str]:
    r"""Split a command line into words. `\` means itself.

    Raises:
        ValueError: a quotation is not closed.
    """
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    lexer.escape = ""
    return list(lexer)


def find_program(word: str, folder: str | None) -> str:
    """Return the first word of a command that runs in a folder, as `Popen` takes it: relative to
    the folder of this process."""
    if folder and re.search(r"[\\/]", word):
        return str(Path(folder, word).resolve())
    return word


def quote(word: str) -> str:
    """Return a word as a command line has it, for cmd and PowerShell."""
    if re.fullmatch(r"[\w+=:./\\~-]+", word):
        return word
    return (
        '"' + re.sub(r'(\\*)("|$)', lambda m: m[1] * 2 + ("\\" if m[2] else "") + m[2], word) + '"'
    )


def join(words: Iterable[str]) -> str:
    """Return words as a command line, as `quote` writes them."""
    return " ".join(map(quote, words))
