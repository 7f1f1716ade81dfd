"""A backend in a child process: start, ask, kill. The child speaks JSON lines and .npy files: no pickle, no fork.

The parent half is `Worker`; the child half runs as `python -m subgraph.worker`. The child has a session (process group)
of its own, so that killing it kills all that it started; it ends when its standard input closes, so that a parent that
is killed leaves none behind, even in the middle of a run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from subgraph.errors import BackendError, OutputError, SubcutError, WorkerDied, from_json

TAIL = 4096  # bytes of the child's standard error that are kept for the message
MEMORY_SHARE = 0.9  # of the memory that is free now: a damaged size in a model must not take the machine down


class Worker:
    """One child process that loads models on one backend and runs them.

    It starts at once and imports the runtime while the parent goes on. Use it as a context manager.
    """

    def __init__(self, backend: str = "ort") -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "subgraph.worker", backend],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            # numpy is only the carrier here: without threads of its own it is imported in half the CPU time
            env={"OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONPATH": _import_path()},
        )

    def ask(self, do: str, **what: Any) -> dict[str, Any]:
        """Send one request, wait for its answer.

        Raises:
            SubcutError: what the child reports, as the same kind of error.
            WorkerDied: it crashed or was killed; says by which signal, with the end of its standard error.
        """
        stdin, stdout = self._pipes()
        try:
            stdin.write(json.dumps({"do": do, **what}).encode() + b"\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise self._obituary(do)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise from_json(answer["error"])
        return answer

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._process.stdin is not None and self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def _obituary(self, do: str) -> WorkerDied:
        code = self._process.wait()
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - TAIL))
        words = self._log.read().decode(errors="replace").strip().splitlines()[-3:]
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        last = f": {' | '.join(words)}" if words else ""
        return WorkerDied(f"the process that should {do} the model {how}{last}", "the runtime itself crashed")

    def close(self) -> None:
        """End the child and everything that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in self._pipes():
            with contextlib.suppress(BrokenPipeError):  # a request that was never read
                pipe.close()
        self._log.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _import_path() -> str:
    """The folder that holds this package first: the child must run the same code."""
    mine = str(Path(__file__).resolve().parent.parent)
    theirs = os.environ.get("PYTHONPATH")
    return f"{mine}{os.pathsep}{theirs}" if theirs else mine


# ---------------------------------------------------------------------------------------------------- the child


def main() -> None:
    """Answer requests until standard input closes."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a runtime prints must not mix with the answers
    _limit_memory()
    models: dict[str, Any] = {}
    for line in _requests():
        try:
            answer = _answer(json.loads(line), models)
        except SubcutError as e:
            answer = {"error": e.to_json()}
        except MemoryError:
            answer = {"error": {"kind": "ModelError", "what": "running the model needs more memory than is free"}}
        except OSError as e:  # what reads turns it into an InputError
            what = f"cannot write the tensors: {e.strerror or e}"  # numpy gives no number when a write falls short
            hint = "free some space, or choose another folder with -o"
            answer = {"error": OutputError(what, hint).to_json()}
        except Exception as e:  # noqa: BLE001 - a mistake of ours; leaving the loop would end in an abort without a word
            what = f"the process that runs the model failed: {type(e).__name__}: {e}"
            answer = {"error": BackendError(what, "please report it").to_json()}
        answers.write(json.dumps(answer).encode() + b"\n")


def _requests() -> Any:
    """Lines from standard input; a thread reads them, and ends the process when the pipe closes."""
    import queue
    import threading

    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin.buffer:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    # While the first request is on its way: the slow imports. Each request needs them.
    import numpy as np  # noqa: F401

    __import__(f"subgraph.backends.{sys.argv[1]}", fromlist=["warm"]).warm()
    while True:
        yield lines.get()


def _limit_memory() -> None:
    """Bound what this process may allocate (not what it maps from files) by what is free now."""
    try:
        import resource

        with Path("/proc/meminfo").open(encoding="ascii") as info:
            free = next(int(line.split()[1]) << 10 for line in info if line.startswith("MemAvailable"))
    except (ImportError, OSError, StopIteration):
        return  # no such limit on this system
    limit = int(free * MEMORY_SHARE)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _answer(request: Mapping[str, Any], models: dict[str, Any]) -> dict[str, Any]:
    """load: {key, model, options}. run: {key, feeds | sample, outputs: {name: stem}, into}."""
    from importlib import import_module

    if request["do"] == "load":
        backend = import_module(f"subgraph.backends.{sys.argv[1]}")
        models[request["key"]] = run = backend.load(Path(request["model"]), request["options"])
        return {"inputs": run.inputs, "outputs": run.outputs}
    if request["do"] == "run":
        return _run(models[request["key"]], request)
    raise ValueError(request["do"])


def _run(run: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    from subgraph import inputs, tensors

    into = Path(request["into"])
    origins: dict[str, str] = {}
    if "sample" in request:
        feeds, origins = inputs.realise(request["sample"])
    else:
        records = [tensors.Record.from_json(r) for r in request["feeds"]]
        feeds = {r.name: tensors.load(r, into) for r in records}
    outputs: Mapping[str, str] = request["outputs"]
    found = {n: (t, v) for n, (t, v) in run(feeds, [n for n in outputs if n in run.outputs]).items()}
    found.update((n, (run.inputs[n], feeds[n])) for n in outputs if n in feeds)
    saved = [tensors.save(n, v, t, into, outputs[n]) for n, (t, v) in found.items()]
    fed = [tensors.Record(n, *tensors.parse_type(run.inputs[n]), _shapes(v), ()) for n, v in feeds.items()]
    return {"tensors": [r.to_json() for r in saved], "fed": [r.to_json() for r in fed], "origins": origins}


def _shapes(value: Any) -> tuple[tuple[int, ...], ...]:
    if value is None:
        return ()
    return tuple(tuple(a.shape) for a in (value if isinstance(value, list) else [value]))


if __name__ == "__main__":
    main()
