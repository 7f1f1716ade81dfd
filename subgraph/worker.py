"""A backend in a child process: start, ask, kill. The child speaks JSON lines and .npy files: no pickle, no fork.

This is the parent half; the child half is `serve`. The child has a session (process group) of its own, so that killing
it kills all that it started; it ends when its lifeline or its standard input closes, so that a parent that is killed
leaves none behind, even in the middle of a run. Time and memory are limits of the parent's: it waits, polls, and kills.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from subgraph.errors import WorkerDied, from_json

TAIL = 16 << 10  # bytes of the child's standard error that are kept
LINES = 8  # of them that are told
POLL = 0.1  # seconds between two looks at a child that does not answer: does it live, how much memory does it hold?
GRACE = 2.0  # seconds that a dead child's last words may take
MARK = "SUBCUT_WORKER"  # in the environment of the child and of all that it starts, whatever session they move to


class Worker:
    """One child process that loads models on one backend and runs them.

    It starts at once and imports the runtime while the parent goes on. Use it as a context manager.

    `timeout`: seconds per request; `memory`: bytes of resident memory of the child and all that it started; `bounded`:
    the child may not even ask for more than is free now (breaks runtimes that reserve addresses for later).
    """

    def __init__(
        self,
        backend: str = "ort",
        *,
        timeout: float | None = None,
        memory: int | None = None,
        bounded: bool = False,
    ) -> None:
        self.timeout, self.memory = timeout, memory
        self._mark = uuid.uuid4().hex
        self._plain = backend == "ort"  # starts no processes of its own
        lifeline, self._lifeline = _pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "subgraph.serve", backend, str(lifeline), *(["bounded"] if bounded else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=[lifeline],
            # numpy is only the carrier here: without threads of its own it is imported in half the CPU time
            env={"OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONPATH": _import_path(), MARK: self._mark},
        )
        os.close(lifeline)
        self._answers = b""
        self._said = bytearray()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def ask(self, do: str, **what: Any) -> dict[str, Any]:
        """Send one request, wait for its answer.

        Raises:
            SubcutError: what the child reports, as the same kind of error.
            WorkerDied: it crashed, took too long or grew too large; says how, with the end of its standard error.
        """
        stdin, _ = self._pipes()
        self._said.clear()
        try:
            stdin.write(json.dumps({"do": do, **what}).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError as e:
            raise self._obituary(do) from e
        line = self._line(do)
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError as e:  # somebody else wrote into the pipe
            raise self._stopped(do, "crash", "gave an answer that is none") from e
        if "error" in answer:
            raise from_json(answer["error"])
        return answer

    def last_words(self) -> list[str]:
        """The last lines that it, or what it started, printed during the last request; it may still be alive."""
        pipe = self._process.stderr
        end = time.monotonic() + GRACE
        poll = select.poll()
        poll.register(pipe or 2, select.POLLIN)
        while self.alive and poll.poll(0) and time.monotonic() < end:
            time.sleep(0.001)  # the listener takes what is there
        return bytes(self._said).decode(errors="replace").strip().splitlines()[-LINES:]

    @property
    def alive(self) -> bool:
        """Can it be asked again?"""
        return self._process.poll() is None

    def _line(self, do: str) -> bytes:
        """The next line of its answers. A child that died is noticed though others may hold the pipe open."""
        pipe = self._pipes()[1].fileno()
        end = None if self.timeout is None else time.monotonic() + self.timeout
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while b"\n" not in self._answers:
            wait = POLL if end is None else min(POLL, max(end - time.monotonic(), 0.001))
            if poll.poll(wait * 1000):
                chunk = os.read(pipe, 1 << 16)
                if not chunk:
                    raise self._obituary(do)
                self._answers += chunk
            elif self._process.poll() is not None:
                raise self._obituary(do)
            elif end is not None and time.monotonic() >= end:
                raise self._stopped(do, "timeout", f"was stopped after {self.timeout:g} s")
            elif self.memory is not None and (held := resident(self._process.pid)) > self.memory:
                raise self._stopped(do, "crash", f"was stopped at {held >> 20} MiB, above {self.memory >> 20}")
        line, _, self._answers = self._answers.partition(b"\n")
        return line

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._process.stdin is not None and self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def _listen(self) -> None:
        """Keep the end of what the child says; a flood goes by."""
        assert self._process.stderr is not None
        pipe = self._process.stderr.fileno()
        with contextlib.suppress(OSError):  # closed under us
            while chunk := os.read(pipe, 1 << 16):
                self._said += chunk
                del self._said[:-TAIL]

    def _obituary(self, do: str) -> WorkerDied:
        code = self._process.wait()
        name = _signal_name(-code) if code < 0 else ""
        how = f"was ended by {name}" if name else f"ended with exit code {code}"
        return self._death(do, "crash", how, {"signal": name or None, "exit_code": None if name else code})

    def _stopped(self, do: str, signature: str, how: str) -> WorkerDied:
        return self._death(do, signature, how, {"signal": None, "exit_code": None})

    def _death(self, do: str, signature: str, how: str, process: dict[str, Any]) -> WorkerDied:
        self._kill()
        self._listener.join(GRACE)
        words = self.last_words()
        last = f": {' | '.join(words[-3:])}" if words else ""
        process["stderr"] = words
        what = f"the process that should {do} the model {how}{last}"
        hint = "the runtime itself crashed" if signature == "crash" and process["signal"] else ""
        return WorkerDied(what, hint, signature=signature, process=process)

    def _kill(self) -> None:
        """End the child and everything that it started, also what moved to a session of its own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if not self._plain:
            for pid in marked(self._mark):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End the child and everything that it started."""
        self._kill()
        with contextlib.suppress(OSError):
            os.close(self._lifeline)
        self._lifeline = -1
        self._listener.join(GRACE)
        for pipe in (*self._pipes(), self._process.stderr):
            with contextlib.suppress(BrokenPipeError):  # a request that was never read
                assert pipe is not None
                pipe.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _pipe() -> tuple[int, int]:
    """A pipe beside the standard streams, also where those were closed: `<&- >&- 2>&-`."""
    import fcntl

    ends = os.pipe()
    high = fcntl.fcntl(ends[0], fcntl.F_DUPFD_CLOEXEC, 3), fcntl.fcntl(ends[1], fcntl.F_DUPFD_CLOEXEC, 3)
    for end in ends:
        os.close(end)
    return high


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def resident(session: int) -> int:
    """Bytes of resident memory of all processes of a session; 0 where the system does not tell (no /proc).

    Memory that they share is counted for each. Complexity: linear in the processes of the machine.
    """
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = stat.read_bytes().rpartition(b")")[2].split()  # from the third on: state, parent, group, session
            if int(fields[3]) == session:
                total += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return total


def marked(mark: str) -> list[int]:
    """The processes that carry this mark in their environment."""
    found = []
    wanted = f"{MARK}={mark}".encode()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError, ValueError):
            if wanted in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found


def _import_path() -> str:
    """The folder that holds this package first: the child must run the same code."""
    mine = str(Path(__file__).resolve().parent.parent)
    theirs = os.environ.get("PYTHONPATH")
    return f"{mine}{os.pathsep}{theirs}" if theirs else mine
