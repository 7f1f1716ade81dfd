"""Workers of forked commands, forked as well: a process that has imported numpy and onnxruntime has a worker's start
cost 0.03 s of CPU instead of 0.5.

The command forks a nursery before it does anything else, so what a worker begins with is not what the command has
done by then. Tests that call `Worker`, and commands with an environment or streams of their own, start real processes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from subgraph.runtime import worker, worker_main
from subgraph.runtime.processes import adopt_orphans

REAL = ["-P", "-m", worker_main.__name__]  # how `runtime.worker` starts one
LIMIT = 1 << 20  # bytes of a request: the environment
PIPES = 4  # standard input, output, error; the lifeline


class Forked:
    """What `runtime.worker` uses of `subprocess.Popen`."""

    def __init__(self, pid: int, pipes: Sequence[IO[bytes]]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin, self.stdout, self.stderr = pipes

    def poll(self, options: int = os.WNOHANG) -> int | None:
        """The exit code, once it has ended."""
        if self.returncode is None and (ended := os.waitpid(self.pid, options))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode

    def wait(self) -> int | None:
        """The exit code, at its end."""
        return self.poll(0)


class Nursery:
    """The process that forks, seen from the command: it stands where `runtime.worker` has the module `subprocess`."""

    PIPE = subprocess.PIPE

    def __init__(self, import_path: list[str]) -> None:
        adopt_orphans()  # the kernel makes a worker, which is a grandchild of the nursery, this process's child
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        if not os.fork():
            _serve(theirs, import_path)
        theirs.close()

    def Popen(self, command: list[str], *, env: dict[str, str], pass_fds: list[int], **more: Any) -> Any:
        """A worker, as `subprocess.Popen` starts it."""
        if command[:4] != [sys.executable, *REAL]:
            return subprocess.Popen(command, env=env, pass_fds=pass_fds, **more)
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1], *pass_fds]
        ours = [pipes[0][1], pipes[1][0], pipes[2][0]]
        with self._lock:
            request = json.dumps([command[4:], str(Path.cwd()), env]).encode()
            self._socket.sendall(b"%8d" % len(request))
            socket.send_fds(self._socket, [request], theirs)
            pid = int(self._socket.recv(8))
        for number in theirs[:3]:
            os.close(number)
        return Forked(pid, [os.fdopen(end, mode, 0) for end, mode in zip(ours, ("wb", "rb", "rb"), strict=True)])


def start(import_path: list[str]) -> None:
    """From now on this process's workers come from a nursery."""
    worker.subprocess = Nursery(import_path)  # type: ignore[assignment]


def real_import_path() -> list[str]:
    """Where a worker finds modules, without $PYTHONPATH."""
    told = subprocess.run(
        [sys.executable, "-P", "-c", "import json, sys; print(json.dumps(sys.path))"],
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        check=True,
    )
    return list(json.loads(told.stdout))


def _serve(channel: socket.socket, import_path: list[str]) -> None:
    """Fork a worker per request, until the command ends."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    while head := channel.recv(8, socket.MSG_WAITALL):
        request, numbers = b"", []
        while len(request) < int(head):
            part, more, _, _ = socket.recv_fds(channel, min(LIMIT, int(head) - len(request)), PIPES)
            request += part
            numbers += more
        told = os.pipe()
        if not (between := os.fork()):
            if pid := os.fork():
                os.write(told[1], b"%8d" % pid)
                os._exit(0)
            _work(json.loads(request), numbers, import_path)
        os.waitpid(between, 0)  # from now on the worker is the command's child
        channel.sendall(os.read(told[0], 8))
        for number in (*told, *numbers):
            os.close(number)
    os._exit(0)


def _work(request: list[Any], numbers: list[int], import_path: list[str]) -> None:
    """Be what `python -P -m subgraph.runtime.worker_main …` is after its imports."""
    words, folder, environment = request
    os.setsid()
    os.chdir(folder)
    high = [os.dup(number) for number in numbers]  # none of them is 0 to 3
    for number, source in enumerate(high):
        os.dup2(source, number, inheritable=number < 3)
    os.closerange(PIPES, 1024)
    os.environ.clear()
    os.environ.update(environment)
    for number in (signal.SIGINT, signal.SIGXFSZ):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    sys.path[:] = [*environment.get("PYTHONPATH", "").split(os.pathsep), *import_path]
    for name in [n for n in sys.modules if n.partition(".")[0] in ("tests", "fixtures")]:
        del sys.modules[name]  # not what the worker has imported
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = ["worker_main", words[0], "3", *words[2:]]
    try:
        worker_main.main()
    except BaseException:  # noqa: BLE001 - it is the end of a process
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
