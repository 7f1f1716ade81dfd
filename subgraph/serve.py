"""The child half of `worker`: loads models on one backend and runs them, as told by JSON lines on standard input.

Runs as `python -m subgraph.serve BACKEND LIFELINE [bounded]`. What a backend prints goes to standard error, never
between the answers. Tensors travel as .npy files. The process ends when its parent does, even while the backend keeps
the interpreter's lock: the kernel kills its whole group when the lifeline (a pipe that nobody writes to) closes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from subgraph.errors import BackendError, ModelError, OutputError, Refused, SubcutError

MEMORY_SHARE = 0.9  # of the memory that is free now: a damaged size in a model must not take the machine down
F_SETSIG = 10  # linux/fcntl.h; Python's module lacks it before 3.13


def main() -> None:
    """Answer requests until standard input closes."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a runtime prints must not mix with the answers
    _die_with_parent(int(sys.argv[2]))
    if "bounded" in sys.argv[3:]:
        _limit_memory()
    server = Server(sys.argv[1])
    for line in _requests(server):
        answers.write(json.dumps(_answered(server, line)).encode() + b"\n")


def _answered(server: Server, line: bytes) -> dict[str, Any]:
    try:
        return server.answer(json.loads(line))
    except SubcutError as e:
        return {"error": e.to_json()}
    except MemoryError:
        return {"error": {"kind": "ModelError", "what": "running the model needs more memory than is free"}}
    except OSError as e:  # what reads turns it into an InputError
        what = f"cannot write the tensors: {e.strerror or e}"  # numpy gives no number when a write falls short
        hint = "free some space, or choose another folder with -o"
        return {"error": OutputError(what, hint).to_json()}
    except Exception as e:  # noqa: BLE001 - a mistake of ours; leaving the loop would end in an abort without a word
        what = f"the process that runs the model failed: {type(e).__name__}: {e}"
        return {"error": BackendError(what, "please report it").to_json()}


def _die_with_parent(lifeline: int) -> None:
    """Have the kernel kill this process group when the parent's end of the pipe closes (Linux)."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import fcntl

        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _requests(server: Server) -> Iterator[bytes]:
    """Lines from standard input; a thread reads them, and ends the process group when the pipe closes."""
    import queue
    import threading

    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin.buffer:
            lines.put(line)
        if os.getpgrp() == os.getpid():  # a group of our own: whatever the backend started ends with us
            os.killpg(0, signal.SIGKILL)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    # While the first request is on its way: the slow imports. Each request needs them.
    import numpy as np  # noqa: F401

    server.warm()
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


class Server:
    """One backend and the models that are loaded on it."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.models: dict[str, Callable[..., Any]] = {}
        self._module: ModuleType | None = None

    @property
    def module(self) -> ModuleType:
        """The backend's module.

        Raises:
            BackendError: it cannot be imported. UnknownName, UsageError: there is none.
        """
        if self._module is None:
            from subgraph import plugins

            try:
                self._module = plugins.load("backends", self.backend)
            except ImportError as e:
                raise BackendError(f"backend {self.backend} cannot be imported: {e}", "subcut doctor") from e
        return self._module

    def warm(self) -> None:
        """Import the runtime ahead of the first model; `load` reports what is wrong with it."""
        with contextlib.suppress(SubcutError, ImportError):
            getattr(self.module, "warm", lambda: None)()

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """about: {options}. load: {key, model, options}. run: {key, feeds | sample, outputs: {name: stem}, into}.

        drop: {key}.
        """
        asked = {"about": self.about, "load": self.load, "run": self.run, "drop": self.drop}
        return asked[request["do"]](request)

    def about(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What the candidate's digest and the criterion need to know about the backend.

        Raises:
            BackendError: the runtime is not installed or does not start.
        """
        module = self.module
        try:
            version = module.version() if hasattr(module, "version") else ""
            precision = module.precision(request["options"]) if hasattr(module, "precision") else "fp32"
        except ImportError as e:
            raise BackendError(f"{self.backend} cannot be used: {e}", "subcut doctor") from e
        return {"version": str(version), "precision": precision, "multi": bool(getattr(module, "MULTI", False))}

    def load(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Convert and build; the model of the same key that was loaded before is dropped first.

        Raises:
            Refused: the backend does not accept the model. BackendError: it cannot be used at all.
        """
        self.models.pop(request["key"], None)
        module = self.module
        begin = time.perf_counter()
        try:
            self.models[request["key"]] = module.load(Path(request["model"]), request["options"])
        except (SubcutError, MemoryError):
            raise
        except ImportError as e:
            raise BackendError(f"{self.backend} cannot be used: {e}", "subcut doctor") from e
        except Exception as e:
            raise Refused(f"{self.backend} refuses the model: {type(e).__name__}: {_short(e)}") from e
        return {"seconds": time.perf_counter() - begin}

    def drop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Forget a model."""
        self.models.pop(request["key"], None)
        return {}

    def run(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Feed, run once, write the outputs that are asked for and there; say which others there were.

        Raises:
            InputError: a feed does not fit. ModelError: the run failed. OSError: an output cannot be written.
        """
        from subgraph import inputs, tensors

        into, model = Path(request["into"]), self.models[request["key"]]
        origins: dict[str, str] = {}
        if "sample" in request:
            feeds, origins = inputs.realise(request["sample"])
            types = {s["name"]: (s["form"], s["dtype"]) for s in request["sample"]["specs"]}
        else:
            folder = Path(request.get("folder", into))
            records = [tensors.Record.from_json(r) for r in request["feeds"]]
            feeds = {r.name: tensors.load(r, folder) for r in records}
            types = {r.name: (r.form, r.dtype) for r in records}
        begin = time.perf_counter()
        found = self._found(model, feeds)
        seconds = time.perf_counter() - begin
        fed = [tensors.Record(n, *types[n], tensors.shapes_of(v), ()) for n, v in feeds.items()]
        texts = {**{r.name: r.type_text for r in fed}, **getattr(model, "outputs", {})}
        found = {**feeds, **found}
        saved = [
            tensors.save(n, found[n], texts.get(n) or tensors.type_of(found[n]), into, stem)
            for n, stem in request["outputs"].items()
            if n in found
        ]
        others = sorted(set(map(str, found)) - set(request["outputs"]) - set(feeds))
        return {
            "tensors": [r.to_json() for r in saved],
            "fed": [r.to_json() for r in fed],
            "origins": origins,
            "others": others,
            "seconds": seconds,
        }

    def _found(self, model: Callable[..., Any], feeds: Mapping[str, Any]) -> dict[str, Any]:
        try:
            found = model(feeds)
        except (SubcutError, MemoryError):
            raise
        except Exception as e:
            raise ModelError(f"{self.backend} failed while running: {type(e).__name__}: {_short(e)}") from e
        if not isinstance(found, Mapping):
            raise ModelError(f"{self.backend} gave {type(found).__name__}, not a mapping of names to arrays")
        return dict(found)


def _short(e: Exception) -> str:
    return " ".join(str(e).split())[:400]


if __name__ == "__main__":
    main()
