"""The parts that `posix` and `windows` share.

Runtimes in child processes report nothing to their vendors: `disable_telemetry`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Self

from subgraph.lazy import LazyModule
from subgraph.types import StringMap

if TYPE_CHECKING:
    import psutil as psutil
else:
    psutil = LazyModule("psutil")

CHUNK_BYTES = 1 << 16  # bytes that are read from a pipe at once; its capacity on Linux
MEMORY_SHARE = 0.9  # of the memory that is free: the machine stays usable
# onnxruntime also leaves a file `.ses` in $TMPDIR.
OFF = {
    "ORT_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}


def disable_telemetry(env: StringMap | None = None) -> dict[str, str]:
    """Return an environment, this process's own by default, with telemetry off unless the user
    decided on it."""
    return {**OFF, **(os.environ if env is None else env)}


class PipedProcess(subprocess.Popen[bytes]):
    """A process whose pipes close with its block."""

    _lifeline: IO[bytes] | None = None

    def end(self, *, strays: bool = False) -> None:
        """Kill it."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the pipes of an ended group."""
        for pipe in filter(None, (self._lifeline, self.stdin, self.stdout, self.stderr)):
            with contextlib.suppress(OSError):  # what was not sent is not wanted
                pipe.close()

    def __exit__(self, *_: object) -> None:
        self.end()
        self.close()


class Closable:
    """An object that its `with` block closes."""

    def close(self) -> None:
        """Release what the object holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class HeldFile(Closable):
    """An open file that is locked.

    Attributes:
        works: False if the file system has no locks: nothing is held then.
    """

    works = False
    _handle: int

    def close(self) -> None:
        """Let others have it."""
        if self.works:
            self.works = False
            os.close(self._handle)


@contextlib.contextmanager
def delay_signals(*numbers: signal.Signals) -> Iterator[None]:
    """Delay these signals until the block is done."""
    if threading.current_thread() is not threading.main_thread():  # only this one is interrupted
        yield
        return
    received = []
    handlers = {n: signal.signal(n, lambda number, _: received.append(number)) for n in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)
        if received:
            signal.raise_signal(received[0])
