"""The child's half of `worker`: loads models on one backend and runs them, on requests from
standard input.

Runs as `python -m subgraph.runtime.worker_main BACKEND`. The first line that it reads is the word
that its replies begin with (`runtime.protocol`). It writes the first line when the runtime is
imported; one reply per request follows. Output of a backend goes to standard error; its processes
inherit neither the requests nor the replies. The process ends with its parent, even while the
backend holds the interpreter's lock: it leads a `system.ProcessGroup`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import queue
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

from subgraph import plugins, system
from subgraph.documents import from_json, to_json
from subgraph.errors import (
    BackendError,
    InputError,
    ModelError,
    OutOfMemory,
    OutputError,
    Refused,
    SubcutError,
    UsageError,
)
from subgraph.iterables import index_by_name
from subgraph.lazy import np
from subgraph.plugins import HOME
from subgraph.precision import Precision
from subgraph.runtime import command_line
from subgraph.runtime.inputs import InputOrigin, Sample
from subgraph.runtime.protocol import (
    CHANNEL_LOST,
    SCRATCH,
    AboutRequest,
    BackendInfo,
    Done,
    DropRequest,
    ErrorReply,
    InternalReply,
    Loaded,
    LoadRequest,
    ModelRun,
    Names,
    NamesRequest,
    Request,
    RunRequest,
    Sources,
    SourcesRequest,
    list_switches,
    seal,
    to_texts,
)
from subgraph.storage import tensors
from subgraph.storage.tensors import Record, Values
from subgraph.types import Fields, StringMap


def main() -> None:
    """Report that the runtime is imported; reply to requests until standard input closes."""
    requests, replies = _take_pipes()
    system.adopt_orphans()
    # A backend's own commands may run another Python, which must not see this package's folder.
    first, _, rest = os.environ.get("PYTHONPATH", "").partition(os.pathsep)
    if first == str(HOME.resolve().parent):
        os.environ["PYTHONPATH"] = rest
        if not rest:
            del os.environ["PYTHONPATH"]
    if scratch := os.environ.pop(SCRATCH, ""):
        tempfile.tempdir = scratch
    server = Server(sys.argv[1])
    lines = _iter_requests(requests)
    word = next(lines)
    # numpy without its thread pool, which takes half the CPU time: it only carries arrays here.
    # Slow, and needed by every request: while the first one is on its way
    key = "OPENBLAS_NUM_THREADS"
    users = os.environ.get(key)
    os.environ.setdefault(key, "1")
    _ = np.ndarray
    if users is None:
        del os.environ[key]  # commands of a backend have their own numpy
    server.warm()
    answers = (_reply(server, line) for line in lines)
    for number, reply in enumerate(chain([Done()], answers)):
        _exit_if_forked(server.process)
        try:
            replies.write(seal(word, number) + json.dumps(to_json(reply)).encode() + b"\n")
            replies.flush()
        except OSError:
            os._exit(CHANNEL_LOST)
        server.held = ()  # freed after the reply: large arrays take a while


def _exit_if_forked(process: int) -> None:
    """End a fork that came back from the backend: only the first process may write outputs and
    reply."""
    if os.getpid() != process:
        os._exit(0)


def _take_pipes() -> tuple[int, io.BufferedWriter]:
    """Move the two pipes to other descriptors; a backend and its children read nothing and print to
    standard error."""
    requests = os.dup(0)
    replies = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    # Each line is written at once, because the last line before a crash is its reason.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    system.buffer_lines()
    return requests, replies


def _reply(server: Server, line: bytes) -> object:
    """Return the reply to a request.

    A request that cannot be read, and a failure of this module, are subcut's own errors.
    """
    try:
        request: Request = from_json(Request, json.loads(line))  # type: ignore[arg-type]
    except (ValueError, InputError) as e:
        return InternalReply(f"the request is unreadable: {e}")
    try:
        return server.answer(request)
    except SubcutError as e:
        return ErrorReply(e.to_json())
    except MemoryError:
        what = "running the model needs more memory than is free"
        return ErrorReply(OutOfMemory(what, code="memory.exceeded").to_json())
    except OSError as e:  # while writing; functions that read raise InputError
        if e.errno in (errno.ENOMEM, errno.EMFILE):
            what = f"the process that runs the model has used up a limit: {e.strerror}"
            return ErrorReply(ModelError(what, code="worker.limit").to_json())
        folder = request.into if isinstance(request, RunRequest) else ""
        # An error of numpy can lack the number.
        what = f"cannot write the tensors in {folder}: {e.strerror or e}"
        hint = "free some space, or choose another folder with -o"
        return ErrorReply(OutputError(what, hint, code="output.unwritable").to_json())
    except Exception as e:  # noqa: BLE001
        return InternalReply(f"{type(e).__name__}: {e}")


def _iter_requests(pipe: int) -> Iterator[bytes]:
    """Return the lines of a pipe, which a thread reads from now on.

    It ends the process group when the pipe closes.
    """
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def listen() -> None:
        rest = b""
        try:
            while chunk := os.read(pipe, 1 << 16):
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    lines.put(line)
        except OSError:
            os._exit(CHANNEL_LOST)
        system.end_own_group()  # the processes that the backend started end as well
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    return iter(lines.get, None)


class Server:
    """One backend and the models that are loaded on it."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.process = os.getpid()
        self.held: tuple[Any, ...] = ()
        self.models: dict[str, Callable[..., Any]] = {}
        self._module: ModuleType | None = None
        self._sources: dict[str, str] = {}

    @property
    def module(self) -> ModuleType:
        """The backend's module.

        Raises:
            BackendError: It cannot be imported.
            UnknownName: It does not exist.
            UsageError: It has no `load`.
        """
        if self._module is None:
            try:
                module = plugins.load("backends", self.backend)
            except ImportError as e:
                raise BackendError(
                    f"backend {self.backend} cannot be imported: {e}",
                    "subcut doctor",
                    code="backend.not-loadable",
                ) from e
            if not callable(getattr(module, "load", None)):
                raise UsageError(
                    f"{self.backend} has no function load(model, options)",
                    "it returns run(feeds)",
                    code="plugin.no-function",
                )
            self._module = module
        return self._module

    @contextlib.contextmanager
    def _guard_backend(
        self, kind: type[SubcutError], fails: str, hint: str = "", *, code: str
    ) -> Iterator[None]:
        """Guard a block in which the backend's code runs, which may raise anything, and fork.

        Args:
            kind: The kind of the error that replaces others than subcut's.
            fails: The predicate of its sentence.
            hint: Its hint.
            code: Its code.

        Raises:
            SubcutError: As the block raises it, or of this kind and code.
        """
        try:
            try:
                yield
            finally:
                _exit_if_forked(self.process)
        except (SubcutError, MemoryError) as e:
            self._require_device(e)
            raise
        except BaseException as e:
            self._require_device(e)
            if isinstance(e, ImportError) and kind is not ModelError:
                raise BackendError(
                    f"{self.backend} cannot be used: {e}", "subcut doctor", code="backend.unusable"
                ) from e
            own = getattr(self._module, "error_text", None) if isinstance(e, Exception) else None
            why = (own or _format_on_one_line)(e)
            raise kind(f"{self.backend} {fails}: {why}", hint, code=code) from e

    def _require_device(self, error: BaseException) -> None:
        """Check an error of the runtime for a device that lacks a feature.

        Raises:
            BackendError: The runtime's message is that the device lacks a feature.
        """
        lacks: StringMap = getattr(self._module, "DEVICE_LACKS", {})
        for pattern, feature in lacks.items():
            if re.search(pattern, str(error)):
                raise BackendError(
                    f"not measurable on this device (no {feature}): {str(error)[:400]}",
                    f"run it on a device that has {feature}; or convert the model to types that"
                    " this device computes",
                    code="backend.lacks-feature",
                ) from error

    def warm(self) -> None:
        """Import the runtime ahead of the first model; `load` reports an error."""
        with contextlib.suppress(Exception, SystemExit):
            getattr(self.module, "warm", lambda: None)()

    def answer(self, request: Request) -> object:
        """Return the reply to a request."""
        match request:
            case AboutRequest():
                return self.about(request.options)
            case LoadRequest():
                return self.load(request)
            case RunRequest():
                return self.run(request)
            case NamesRequest():
                return self.names(request)
            case SourcesRequest():
                self._sources = command_line.find_imports() | self._sources  # as first seen
                return Sources(self._sources)
            case DropRequest():
                self.models.pop(request.key, None)
                return Done()

    def about(self, options: Fields) -> BackendInfo:
        """Return the properties of the backend that the candidate's digest and the criterion need.

        Raises:
            BackendError: the runtime is not installed or does not start.
        """
        module = self.module

        def call(name: str, default: Any) -> Any:
            function = getattr(module, name, None)
            if function:
                return function(options)
            return default

        with self._guard_backend(
            BackendError, "fails to describe itself", "correct the file", code="backend.unusable"
        ):
            version: Callable[..., object] = getattr(module, "version", lambda: "")
            takes = getattr(version, "__code__", None)
            return BackendInfo(
                str(version(options) if takes and takes.co_argcount else version()),
                Precision(call("precision", Precision.FP32)),
                bool(getattr(module, "MULTI", False)),
                str(call("caveat", "")),
                to_texts(call("exact", {}) or {}),
                list_switches(call("switches", {}), options),
                str(getattr(module, "PASSES", "")),
            )

    def load(self, request: LoadRequest) -> Loaded:
        """Convert and build; the model of the same key that was loaded before is dropped first.

        Raises:
            Refused: the backend does not accept the model. BackendError: it cannot be used at all.
        """
        build = self.module.load
        begin = time.perf_counter()
        self.models.pop(request.key, None)  # freeing a model is part of the backend's time
        with self._guard_backend(Refused, "refuses the model", code="backend.refused-model"):
            if plugins.takes(build, request.model, request.options):
                run = build(request.model, request.options)
            else:
                run = build(request.model)
        if not callable(run):
            raise BackendError(
                f"{self.backend}: load gave {type(run).__name__}, not a function that runs the"
                " model",
                "return run(feeds)",
                code="plugin.wrong-return",
            )
        self.models[request.key] = run
        return Loaded(time.perf_counter() - begin)

    def names(self, request: NamesRequest) -> Names:
        """Return the names that a function of the backend, `tensors` or `passes`, returns for a
        model.

        Raises:
            BackendError: The function fails.
        """
        function = request.function
        with self._guard_backend(
            BackendError, f"fails in its function {function}", code="backend.unusable"
        ):
            names = list(getattr(self.module, function)(request.model, request.options))
        return Names(tuple(sorted(map(str, names))))

    def run(self, request: RunRequest) -> ModelRun:
        """Run a model once, and write the requested outputs that it returned.

        An output of the same bits as in the earlier run is not written again.

        Raises:
            InputError: A feed does not fit.
            ModelError: The run failed.
            BackendError: The model is not loaded.
            OSError: An output cannot be written.
        """
        folder = request.into
        if request.key not in self.models:
            raise BackendError(f"the process has no model '{request.key}'", code="worker.no-model")
        run = self.models[request.key]
        origins: dict[str, InputOrigin] = {}
        if isinstance(request.feeds, Sample):
            from subgraph.runtime import load_inputs  # 10 ms, for the reference only

            arrays, origins = load_inputs.load_sample(request.feeds)
            types = {spec.name: (spec.form, spec.dtype) for spec in request.feeds.specs}
        else:
            arrays = {r.name: tensors.load(r, folder, mapped=True) for r in request.feeds}
            types = {r.name: (r.form, r.dtype) for r in request.feeds}
        begin = time.perf_counter()
        with self._guard_backend(ModelError, "failed while running", code="backend.run-failed"):
            returned = run(arrays)
        if not isinstance(returned, Mapping):
            raise ModelError(
                f"{self.backend} gave {type(returned).__name__}, not a mapping of names to arrays:"
                " return {name: numpy.ndarray}",
                code="plugin.wrong-return",
            )
        with self._guard_backend(
            ModelError, "returned values that cannot be read", code="plugin.wrong-return"
        ):
            results: Values = dict(returned)
        seconds = time.perf_counter() - begin
        self.held = arrays, results
        fed = tuple(Record(n, *types[n], tensors.list_shapes(v), ()) for n, v in arrays.items())
        texts = {**{r.name: r.type_text for r in fed}, **getattr(run, "outputs", {})}
        results = {**arrays, **results}
        before = index_by_name(request.earlier)
        saved = tuple(
            self._save(name, results[name], texts.get(name, ""), folder, stem, before.get(name))
            for name, stem in request.outputs.items()
            if name in results
        )
        others = tuple(sorted(set(map(str, results)) - set(request.outputs) - set(arrays)))
        return ModelRun(saved, fed, origins, others, seconds)

    def _save(
        self, name: str, value: Any, declared: str, folder: Path, stem: str, earlier: Record | None
    ) -> Record:
        """Write one output, which may be any object, unless an earlier record holds it.

        Raises:
            ModelError: It is not a tensor.
            InputError: Its declared type cannot be stored.
            OSError: The disk is full.
        """
        form = tensors.parse_type(declared)[0] if declared else ""
        try:
            if isinstance(value, list):
                value = [_to_array(v) for v in value]
            elif value is not None:
                value = _to_array(value)
            text = _find_type(value, declared, form)
            if earlier and tensors.is_stored(earlier, value, text, folder):
                return earlier
            return tensors.save(name, value, text, folder, stem)
        except (OSError, MemoryError):
            raise
        except BaseException as e:
            why = e.what if isinstance(e, InputError) else _format_on_one_line(e)
            raise ModelError(
                f"{self.backend} gave for {name} what is not a tensor: {why}",
                code="plugin.wrong-return",
            ) from e


def _to_array(value: Any) -> Any:
    """Return the value as one array, in this machine's byte order.

    Raises:
        TypeError: It holds other objects than texts.
    """
    array = np.asarray(value)
    if array.dtype.kind == "O" and (
        odd := [v for v in array.flat if not isinstance(v, (str, bytes))]
    ):
        raise TypeError(f"it holds {type(odd[0]).__name__}")
    if array.dtype.isnative:
        return array
    return array.astype(array.dtype.newbyteorder("="))


def _find_type(value: Any, declared: str, form: str) -> str:
    """Return the declared type of a value that has it, or is empty; else the type of its arrays."""
    if declared and (value is None or (isinstance(value, list) and not value)):
        return declared
    text = tensors.find_type(value)
    fits = form.startswith("optional") or isinstance(value, list) == (form == "sequence")
    same = bool(declared) and tensors.parse_type(declared)[1] == tensors.parse_type(text)[1]
    return declared if fits and same else text


def _format_on_one_line(e: BaseException) -> str:
    """Return an error's type and text on one line, with its place in the user's own file."""
    return f"{type(e).__name__}: {' '.join(str(e).split())[:400]}{command_line.place_of(e)}"


if __name__ == "__main__":
    main()
