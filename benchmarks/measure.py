"""Commands -> what each costs as a whole process: CPU seconds, peak memory, wall seconds.

CPU is user + system time of the process and of all children it waited for (`wait4`). Peak memory is
the larger of two readings: `ru_maxrss`, which is exact for a process alone, and the summed RSS of
the process tree, polled every 5 ms, which is what matters once there are children (pages that they
share are counted in each). Both are kept.

This module is what the runner imports, and imports nothing heavy: on Linux a child's `ru_maxrss`
begins with its parent's size before exec, so a fat runner would be measured in every child. `floor`
says how much that is.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

POLL_SECONDS = 0.005
TIMEOUT_SECONDS = 900.0
PAGE_MIB = mmap.PAGESIZE / 2**20
READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Sample:
    """One run. Times in seconds, memory in MiB; `error` is empty if it ended with exit status 0."""

    cpu: float
    wall: float
    maxrss: float
    tree: float
    error: str

    @property
    def peak(self) -> float:
        return max(self.maxrss, self.tree)


@dataclass(frozen=True)
class Task:
    """A command to measure: `tool` at work on `subject`, writing into the folder that it is
    given."""

    tool: str
    subject: str
    command: Callable[[Path], list[str]]


@dataclass
class Result:
    """A task's samples, and what is wrong with its output (empty: right)."""

    tool: str
    subject: str
    nodes: int | None = None
    problem: str = ""
    samples: list[Sample] = field(default_factory=list)

    def median(self, what: str) -> float:
        """Of `cpu`, `wall`, `maxrss`, `tree` or `peak`."""
        return float(statistics.median(getattr(sample, what) for sample in self.samples))


def children(pid: int) -> list[int]:
    """The processes that any thread of this one has started."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def tree_mib(pid: int) -> float:
    """Resident MiB of a process and all below it; 0 for what has just ended."""
    own = 0.0
    with contextlib.suppress(OSError):
        own = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_MIB
    return own + sum(tree_mib(child) for child in children(pid))


def spawn(command: list[str], log: Path) -> int:
    """Start a command in a process group of its own, all that it says going to `log`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    actions = [(os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o600), (os.POSIX_SPAWN_DUP2, 1, 2)]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("SUBCUT_")
    }
    return os.posix_spawn(command[0], command, environment, file_actions=actions, setpgroup=0)


def watch(pid: int) -> float:
    """Wait until a process can be reaped, killing its group after the time limit; return the tree's
    peak."""
    peak = 0.0
    deadline = time.monotonic() + TIMEOUT_SECONDS
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while not poll.poll(POLL_SECONDS * 1000):
            peak = max(peak, tree_mib(pid))
            if time.monotonic() > deadline:
                os.killpg(pid, signal.SIGKILL)
                deadline = float("inf")
    finally:
        os.close(descriptor)
    return peak


def first_line(log: str) -> str:
    """An error's first line: of the last traceback, of polygraphy's `[!]`, else the last line."""
    lines = [line for line in log.splitlines() if line.strip()]
    tracebacks = [number for number, line in enumerate(lines) if line.startswith("Traceback")]
    if tracebacks:
        after = lines[tracebacks[-1] + 1 :]
        return next(
            (line for line in after if not line.startswith(" ")), "traceback without an error"
        )
    marked = [line for line in lines if line.startswith("[!]")]
    return (marked or lines[-1:] or ["said nothing"])[0]


def error_of(status: int, log: Path) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    if code > 0:
        return f"exit {code}: {first_line(log.read_text(errors='replace'))}"
    return ""


def measure(command: list[str], log: Path) -> Sample:
    """Run a command to its end. Its first word is a path; the working directory is ours."""
    start = time.perf_counter()
    pid = spawn(command, log)
    tree = watch(pid)
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - start
    cpu = usage.ru_utime + usage.ru_stime
    return Sample(cpu, wall, usage.ru_maxrss / 1024, tree, error_of(status, log))


def floor() -> float:
    """MiB that even the smallest child shows as its peak, because this process started it."""
    with tempfile.TemporaryDirectory() as folder:
        return measure([shutil.which("true") or "/bin/true"], Path(folder, "log")).maxrss


def warm(paths: Iterable[Path]) -> None:
    """Read files once, so that every run finds them in the page cache."""
    buffer = bytearray(READ_BYTES)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


Check = Callable[[Task, Path], tuple[int | None, str]]


def run_once(task: Task, scratch: Path, check: Check | None) -> tuple[Sample, int | None, str]:
    """One run into a new folder, which is judged by `check`, if there is one, and then deleted."""
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name, "out")
        folder.mkdir()
        sample = measure(task.command(folder), Path(name, "log"))
        if sample.error or check is None:
            return sample, None, sample.error
        return sample, *check(task, folder)


def interleave(tasks: list[Task], runs: int, scratch: Path, check: Check) -> list[Result]:
    """Each task once to warm up and to be judged, then all in turn `runs` times. What fails runs no
    more."""
    results = [Result(task.tool, task.subject) for task in tasks]
    for number in range(runs + 1):
        for task, result in zip(tasks, results, strict=True):
            if result.problem:
                continue
            sample, nodes, problem = run_once(task, scratch, None if number else check)
            result.problem = problem
            if number:
                result.samples.append(sample)
            else:
                result.nodes = nodes
                print(
                    f"  {task.subject}  {task.tool}: {problem or f'{sample.cpu:.2f} CPU s'}",
                    file=sys.stderr,
                )
    return results
