"""A backend in a child process: start, ask, kill. The child speaks JSON lines and .npy files: no pickle, no fork.

This is the parent half; the child half is `serve`. The child has a session (process group) of its own, so that killing
it kills all that it started; it ends when its lifeline or its standard input closes, so that a parent that is killed
leaves none behind, even in the middle of a run. Time and memory are limits of the parent's: it waits, polls, and kills.
One loop does all the waiting: it sends, receives, keeps the end of what the child prints, and looks at the limits.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from subgraph.documents import to_json
from subgraph.errors import BackendError, OutputError, WorkerDied, from_json
from subgraph.plugins import HOME
from subgraph.runtime.inputs import Sample
from subgraph.runtime.processes import MARK, find_marked, process_end, resident_memory, signal_name
from subgraph.runtime.protocol import BackendInfo, ModelRun
from subgraph.storage import folders
from subgraph.storage.tensors import Record

TAIL = 16 << 10  # bytes of the child's standard error that are kept
LINES = 8  # of them that are told
CHUNK = 1 << 16  # bytes; what a pipe holds on Linux
BURST = 16  # chunks in a row that are taken from a flood, before the limits are looked at again
POLL = 0.1  # seconds between two looks at a child that does not answer: does it live, how much memory does it hold?
LEAVING = 1.0  # seconds from a pipe's end to the end of the process; they close their files first
START = 120.0  # seconds for the runtime to be imported, before the first request's own time begins
SCANS = 20  # looks for processes that were started while others were being killed
SCRATCH = "SUBCUT_SCRATCH"  # in the environment: a folder for the child's temporary files, removed with the child

DOES = {"load": "load the model", "run": "run the model", "drop": "drop a model", "about": "say what the backend is"}


class Worker:
    """One child process that loads models on one backend and runs them.

    It starts at once and imports the runtime while the parent goes on. Use it as a context manager.

    `timeout`: seconds per request, counted once the runtime is imported; `memory`: bytes of resident memory of the
    child and all that it started; `bounded`: the child may not even ask for more than is free now (breaks runtimes that
    reserve addresses for later). One thread asks at a time; any may close it.

    Raises:
        BackendError: no process, or no folder for its files, can be had.
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
        self._plain = backend == "ort"  # starts no processes of its own, writes no files
        self._cleaning = contextlib.ExitStack()
        self._scratch = "" if self._plain else str(self._cleaning.enter_context(_scratch()))
        lifeline, self._lifeline = _pipe()
        try:
            self._process = self._started(backend, lifeline, ["bounded"] if bounded else [])
        except OSError as e:
            os.close(self._lifeline)
            self._cleaning.close()
            raise BackendError(f"cannot start a process: {e.strerror or e}", "are there too many?") from e
        finally:
            os.close(lifeline)
        self._stdin, self._stdout, self._stderr = self._pipes()
        self._unsent = b""
        self._answers = b""
        self._said = bytearray()
        self._starting = True
        self._owes = False  # an answer, to a request that was given up
        self._ended = self._closing = self._closed = False
        self._asking, self._killing = threading.Lock(), threading.Lock()

    def _started(self, backend: str, lifeline: int, more: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "subgraph.runtime.worker_main", backend, str(lifeline), *more],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=[lifeline],
            env={**os.environ, "PYTHONPATH": _import_path(), MARK: self._mark, SCRATCH: self._scratch},
        )

    def _pipes(self) -> tuple[int, int, int]:
        pipes = self._process.stdin, self._process.stdout, self._process.stderr
        numbers = [pipe.fileno() for pipe in pipes if pipe is not None]
        for number in numbers:
            os.set_blocking(number, False)
        return numbers[0], numbers[1], numbers[2]

    # ------------------------------------------------------------------------------------------------ asking

    def about(self, options: Mapping[str, Any]) -> BackendInfo:
        """What the backend says about itself.

        Raises:
            BackendError: the runtime is not installed or does not start. WorkerDied: as all requests.
        """
        return BackendInfo(**self._ask("about", options=dict(options)))

    def load(self, key: str, model: Path, options: Mapping[str, Any]) -> float:
        """Convert and build `model` under the name `key`; the seconds that it took.

        Raises:
            Refused: the backend does not accept the model. BackendError: it cannot be used at all.
            WorkerDied: as all requests.
        """
        return float(self._ask("load", key=key, model=str(model), options=dict(options))["seconds"])

    def run(self, key: str, into: Path, outputs: Mapping[str, str], feeds: Iterable[Record] | Sample) -> ModelRun:
        """Run `key` once; write `outputs` (name → file stem) into the folder. Files of `feeds` are relative to it.

        Raises:
            InputError: an input does not fit. ModelError: the run failed. WorkerDied: as all requests.
        """
        fed = {"sample": to_json(feeds)} if isinstance(feeds, Sample) else {"feeds": [r.to_json() for r in feeds]}
        return ModelRun.from_json(self._ask("run", key=key, into=str(into), outputs=dict(outputs), **fed))

    def drop(self, key: str) -> None:
        """Forget a model; its memory is free again."""
        self._ask("drop", key=key)

    def _ask(self, do: str, **arguments: object) -> dict[str, Any]:
        """Send one request, wait for its reply.

        Raises:
            SubcutError: what the child reports, as the same kind of error.
            WorkerDied: it crashed, took too long, grew too large or was closed; says how, with the end of its standard
                error.
        """
        with self._asking:
            if self._ended or self._owes:
                raise WorkerDied(f"the process that should {DOES[do]} was stopped before", process=process_end([]))
            self._listen()
            self._said.clear()
            self._unsent = json.dumps({"do": do, **arguments}).encode() + b"\n"
            self._owes = True
            if self._starting:
                self._line(do, None if self.timeout is None else max(self.timeout, START))
                self._starting = False
            answer = self._read(do, self._line(do, self.timeout))
            self._owes = False
            if "error" not in answer:
                return answer
            error = from_json(answer["error"])
            if isinstance(error, WorkerDied):  # a process that it had started; only we know what that printed
                error.process = process_end(self.last_words()) | error.process
            raise error

    def _read(self, do: str, line: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(line)
        except ValueError:  # somebody else wrote into the pipe
            answer = None
        if not isinstance(answer, dict):
            raise self._stopped(do, "crash", "gave an answer that is none")
        return answer

    def last_words(self) -> list[str]:
        """The last lines that it, or what it started, printed during the last request; it may still be alive."""
        if not self._closed:
            self._listen()
        return bytes(self._said).decode(errors="replace").strip().splitlines()[-LINES:]

    @property
    def alive(self) -> bool:
        """Can it be asked again?"""
        return not self._owes and not self._ended and not self._gone()

    def _gone(self) -> bool:
        """Has it ended? It is not reaped here: until `_kill` its number, and its group's, must not be used again."""
        if not hasattr(os, "waitid"):
            return self._process.poll() is not None
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def _line(self, do: str, limit: float | None) -> bytes:
        """The next line of its answers, after all of the request was sent.

        A child that died is noticed though others may hold its pipes open.
        """
        end = math.inf if limit is None else time.monotonic() + limit
        look = time.monotonic() + POLL
        poll = select.poll()
        for number, events in ((self._stdout, select.POLLIN), (self._stderr, select.POLLIN)):
            poll.register(number, events)
        if self._unsent:
            poll.register(self._stdin, select.POLLOUT)
        while b"\n" not in self._answers:
            self._attend(do, poll, max(min(look, end) - time.monotonic(), 0))
            if time.monotonic() >= look:
                self._look(do)
                look = time.monotonic() + POLL
            if time.monotonic() >= end and b"\n" not in self._answers:
                raise self._stopped(do, "timeout", f"was stopped after {limit or 0:g} s")
        line, _, self._answers = self._answers.partition(b"\n")
        return line

    def _attend(self, do: str, poll: select.poll, seconds: float) -> None:
        """Send, receive and listen as far as goes now; wait for the first chance."""
        ready = [number for number, _ in poll.poll(math.ceil(seconds * 1000))]
        if self._stdin in ready and self._send(do):
            poll.unregister(self._stdin)
        if self._stderr in ready and not self._listen():
            poll.unregister(self._stderr)
        if self._stdout in ready:
            self._receive(do)
        elif self._gone():
            self._receive(do)
            if b"\n" not in self._answers:
                raise self._obituary(do)

    def _send(self, do: str) -> bool:
        """Send what fits; True when nothing is left."""
        try:
            self._unsent = self._unsent[os.write(self._stdin, self._unsent) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            raise self._obituary(do) from None
        return not self._unsent

    def _receive(self, do: str) -> None:
        try:
            chunk = os.read(self._stdout, CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            raise self._obituary(do)
        self._answers += chunk

    def _listen(self) -> bool:
        """Keep the end of what the child has printed by now; a flood goes by. False at the end of its pipe."""
        for _ in range(BURST):
            try:
                chunk = os.read(self._stderr, CHUNK)
            except BlockingIOError:
                return True
            self._said += chunk
            del self._said[:-TAIL]
            if len(chunk) < CHUNK:
                return bool(chunk)
        return True

    def _look(self, do: str) -> None:
        if self.memory is not None and (held := resident_memory(self._process.pid)) > self.memory:
            raise self._stopped(do, "crash", f"was stopped at {held >> 20} MiB, above {self.memory >> 20}")

    # ------------------------------------------------------------------------------------------------ ending

    def _obituary(self, do: str) -> WorkerDied:
        end = time.monotonic() + LEAVING
        while not self._gone() and time.monotonic() < end:
            time.sleep(0.001)
        if self._closing:
            return self._stopped(do, "crash", "was stopped: its answer is no longer wanted")
        if not self._gone():
            return self._stopped(do, "crash", "closed its pipes")
        self._kill()
        code = self._process.returncode
        name = signal_name(-code) if code < 0 else ""
        how = f"was ended by {name}" if name else f"ended with exit code {code}"
        return self._death(do, "crash", how, name or None, None if name else code)

    def _stopped(self, do: str, signature: str, how: str) -> WorkerDied:
        self._kill()
        return self._death(do, signature, how, None, None)

    def _death(self, do: str, signature: str, how: str, name: str | None, code: int | None) -> WorkerDied:
        words = self.last_words()
        last = f": {' | '.join(words[-3:])}" if words else ""
        what = f"the process that should {DOES[do]} {how}{last}"
        hint = "the runtime itself crashed" if name else ""
        return WorkerDied(what, hint, signature=signature, process=process_end(words, name, code))

    def _kill(self) -> None:
        """End the child and everything that it started, also what moved to a session of its own. Only once: later its
        number may be somebody else's."""
        with self._killing:
            if self._ended:
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            if not self._plain:
                self._kill_others()
            self._process.wait()
            self._ended = True

    def _kill_others(self) -> None:
        """End what the child started in sessions of their own."""
        import psutil

        for _ in range(SCANS):
            others = [process for process in find_marked(self._mark) if process.pid != self._process.pid]
            if not others:
                break
            for process in others:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            time.sleep(0.005)

    def close(self) -> None:
        """End the child and everything that it started; a thread that waits for its answer gets WorkerDied."""
        self._closing = True
        self._kill()
        with self._asking:  # whoever asks notices the end before its pipes are closed
            if self._closed:
                return
            self._closed = True
            self._listen()
            os.close(self._lifeline)
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()
            self._cleaning.close()

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


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for temporary files; what killed runs have left is removed with it."""
    try:
        with folders.scratch(Path(tempfile.gettempdir()), "subcut-worker") as place:
            yield place
    except OutputError as e:
        raise BackendError(f"no temporary folder: {e.what}", "free some space, or set $TMPDIR") from e


def _import_path() -> str:
    """The folder that holds this package first: the child must run the same code."""
    mine = str(HOME.resolve().parent)
    theirs = os.environ.get("PYTHONPATH")
    return f"{mine}{os.pathsep}{theirs}" if theirs else mine
