"""The reference: onnxruntime with all optimizations off, in a separate process.

A damaged model can make onnxruntime divide by zero, follow a wild size or request 200 GB. In a
child process, that is an exit by a signal, which becomes an error message. The child has a limit of
memory (`RLIMIT_DATA`, which counts mapped weights as well), and ends when its standard input
closes. It imports the runtime while the model is read, so the main process needs neither numpy nor
onnxruntime.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from subgraph import plugins
from subgraph.errors import BackendError, ModelError, OutOfMemory, UsageError, WorkerDied
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.quantization import TFLITE
from subgraph.graph.region import Region
from subgraph.runtime.backends import capabilities
from subgraph.runtime.candidate import parse_memory
from subgraph.runtime.deadline import Deadline
from subgraph.runtime.protocol import ModelRun
from subgraph.runtime.stretches import Feeds, StretchedModel, lacks_memory
from subgraph.runtime.worker import Worker
from subgraph.system import count_cores, measure_free_memory
from subgraph.system.shared import Closable
from subgraph.types import Fields, JsonObject, StringMap, Strings, frozen

PLAIN = "ort"  # the reference if none is named
WHOLE = "model"  # option of a backend that has some tensors only: the model of which it runs cuts
# Runs operators of TensorFlow Lite without delegates, because delegates fuse operators.
LITERT = "litert:kernels=builtin"
KERNEL_ALIGN = 64  # bytes; as onnxruntime's own allocator
OWN_BYTES = 112 << 20  # bytes of the process without a model: Python, numpy and onnxruntime
STACK_BYTES = 64 << 20  # bytes that stacks of threads reserve and hardly use
MIN_LIMIT = 256 << 20  # bytes
MAX_UNPLANNED_BYTES = 256 << 20  # bytes of weights that need no plan without a limit of the user
HELD = "held"  # key of the model of which other keys are stretches
MAX_THREADS = 8  # more are no faster in one small run, and cause other bits on each machine


def count_threads() -> int:
    """Return the intra-op threads of the reference: the available cores, at most `MAX_THREADS`."""
    return min(count_cores(), MAX_THREADS)


def find_fixed_options(backend: str = PLAIN) -> JsonObject:
    """Return the options for the same values on every machine; empty if the backend has none."""
    options = capabilities(backend).reference
    if options:
        return {**options, "threads": count_threads()}
    return {}


def parse_limit(text: str | None) -> int | None:
    """Return the bytes that `--memory` allows each of subcut's own processes; None for free memory.

    Raises:
        UsageError: It is not a size, or less than the process takes without a model.
    """
    if text is None:
        return None
    size = parse_memory(text)
    if size < MIN_LIMIT:
        raise UsageError(
            f"--memory {text}: the process that runs the reference takes a third of 256M by itself",
            "256M or more",
            code="option.out-of-range",
        )
    return size


def make_default(graph: Graph, **limits: Any) -> Reference:
    """Return the default reference for a model; `limits`: of `Reference`."""
    if any(node.domain == TFLITE for node in graph.nodes):
        backend, _, options = LITERT.partition(":")
        return Reference(backend, dict(o.split("=") for o in options.split(",")), **limits)
    return Reference(**limits)


@frozen
class LoadedAncestors:
    """The nodes that the process holds to capture tensors.

    Attributes:
        graph: The model that they belong to.
        nodes: Their indices.
        outputs: The tensors that they return.
        needed: The model inputs that they take.
    """

    graph: Graph
    nodes: frozenset[int]
    outputs: frozenset[str]
    needed: Strings

    def covers(self, graph: Graph, above: Region, tensors: Iterable[str]) -> bool:
        """Return whether a run of these nodes returns the tensors of a region of the model, and
        runs no other node."""
        produced = {name for name in tensors if name in graph.maker}
        # Otherwise, values of random nodes are fed.
        is_fed_alike = {*above.entering} <= {*self.needed}
        is_same = self.nodes == {*above.nodes} and produced <= self.outputs
        return graph is self.graph and bool(produced) and is_fed_alike and is_same


def write_model(
    model: protobuf.ModelProto, source: Path, folder: Path, *, in_place: bool
) -> tuple[Path, StringMap]:
    """Write a model whose large weights are still in a file, as of `Reference.load_model`.

    Args:
        model: The model, which is changed.
        source: The file that it was read from.
        folder: The folder for the written model.
        in_place: Whether the runtime reads weights at aligned offsets in place.

    Returns:
        The written file, and the options that find its weights.
    """
    path = folder / "model.onnx"
    weights = [t for t in model.graph.initializer if protobuf.is_on_disk(t)]
    blobs = [protobuf.locate(tensor, source) for tensor in weights]
    is_aligned = all(b.file != source and b.offset % KERNEL_ALIGN == 0 for b in blobs)
    if weights and in_place and is_aligned:
        path.write_bytes(model.SerializeToString())
        return path, {"weights": str(source.parent.resolve())}
    protobuf.write(model, source, path, external=True)
    return path, {}


class ReferenceProcess:
    """The process of a reference, and the models that it holds.

    Attributes:
        worker: The process; another one after a restart.
        deadline: The end of the last request of each process.
        ancestors: The nodes that are loaded to capture tensors (`runtime.capture`), if any.
    """

    def __init__(
        self, start: Callable[..., Worker], deadline: Deadline, limit: int | None, *, fixed: bool
    ) -> None:
        """Start the process.

        Args:
            start: The constructor of a worker.
            deadline: As of the class.
            limit: As of `Reference`.
            fixed: As of `Reference`.
        """
        self.deadline = deadline
        self.ancestors: LoadedAncestors | None = None
        self._start = start
        self._limit = limit
        self._fixed = fixed
        self._held: object = None  # what the process has under the key `HELD`
        self.worker = self._start_worker()

    def _start_worker(self) -> Worker:
        bounded = None
        if self._fixed:
            free = measure_free_memory()  # a damaged size in a model must not take the machine down
            bounded = self._bound = min(self._limit + STACK_BYTES, free) if self._limit else free
        worker = self._start(bounded=bounded)
        worker.deadline = self.deadline
        return worker

    @contextmanager
    def report_memory_limit(self) -> Iterator[None]:
        """Report it as an error if the process meets its limit in the block.

        Raises:
            OutOfMemory: The process met its limit in the block.
        """
        try:
            yield
        except ModelError as e:
            if not (self._fixed and lacks_memory(e)):
                raise
            raise OutOfMemory(
                f"the reference needs more than the {self._bound / 2**30:.1f} GiB of memory that it"
                f" may use: {e.what}",
                "is the model damaged? else give smaller inputs (--shape, -i), or free some memory",
                code="memory.exceeded",
            ) from e

    def ensure_alive(self) -> None:
        """Start another process if the present one has ended; its models are lost."""
        if not self.worker.alive:
            self.worker.close()
            self.worker = self._start_worker()
            self._held = None
            self.ancestors = None

    def load(self, key: str, model: Path, options: Fields) -> None:
        """Build the model in a file under a name."""
        with self.report_memory_limit():
            self.worker.load(key, model, options)

    def hold(
        self,
        token: object,
        build: Callable[[], protobuf.ModelProto],
        source: Path,
        folder: Path,
        options: Fields,
    ) -> None:
        """Load the model that `build` returns in place of the stretch that the process holds.

        Nothing is loaded if that has the same token. `source`, `folder`: as of `load_model`.
        """
        if self._held == token and self.worker.alive:
            return
        self.release()
        self.ensure_alive()
        # The process keeps the files of the model open.
        with tempfile.TemporaryDirectory(prefix="model-", dir=folder) as inner:
            path, more = write_model(build(), source, Path(inner), in_place=self._fixed)
            self.load(HELD, path, {**options, **more})
        self._held = token

    def run_held(self, into: Path, outputs: StringMap, feeds: Feeds) -> ModelRun:
        """Run the stretch that the process holds, as `Reference.run`."""
        return self.worker.run(HELD, into, outputs, feeds)

    def release(self) -> None:
        """Forget the stretch that the process holds, so that its memory is free again."""
        if self._held is not None and self.worker.alive:
            self.worker.drop(HELD)
        self._held = None


class Reference(Closable):
    """The reference process: onnxruntime on the CPU, optimizations off, a fixed number of threads.

    The process starts with the constructor, so that the runtime is imported while the caller still
    reads the model. Another backend, or a library of custom operators (option `ops`), serves models
    that plain onnxruntime cannot run. Several threads may share a reference if each uses separate
    keys.

    A model whose weights need more than `limit` is run in stretches (`runtime.stretches`), of which
    the process holds one at a time.

    Attributes:
        backend: The backend.
        options: Its options, with the fixed ones.
        fixed: Whether it has fixed options, as onnxruntime does. If so, it runs models in
            stretches, within a limit of memory.
        python: The interpreter of a separate release; None for that of subcut.
        limit: Bytes of memory that the process may use; None for the free memory.
        exceeded: Whether there was a model that did not fit.
        deadline: The end of the last request, as of `Workers`; `share` sets it.
        process: The process.
    """

    def __init__(
        self,
        backend: str = PLAIN,
        options: Fields | None = None,
        *,
        timeout: float | None = None,
        memory: int | None = None,
        restart: bool = False,
        python: Path | None = None,
        limit: int | None = None,
    ) -> None:
        """Start the process.

        Args:
            backend: The backend.
            options: Its options; None for the fixed ones.
            timeout: As of `Worker`.
            memory: As of `Worker`.
            restart: Whether `load` starts a new process when a model has ended the last one, whose
                models are lost.
            python: As of `Worker`.
            limit: As of the class.
        """
        self.backend = backend
        self.limit = limit
        self.fixed = bool(capabilities(backend).reference)
        self.options = {**find_fixed_options(backend), **(options or {})}
        self.exceeded = False
        self.deadline = Deadline()
        self.python = python
        self._restart = restart
        most = memory or limit or (None if self.fixed else measure_free_memory())
        start = partial(Worker, backend, timeout=timeout, memory=most, python=python)
        self.process = ReferenceProcess(start, self.deadline, limit, fixed=self.fixed)
        self._lock = threading.RLock()
        self._version = ""
        self._stretched: dict[str, StretchedModel] = {}

    def share(self, deadline: Deadline) -> None:
        """Take this deadline from now on."""
        self.deadline = self.process.deadline = deadline
        self.process.worker.deadline = deadline

    def load(self, key: str, model: Path, *, reuse: bool = True) -> None:
        """Build the model in a file under the name `key`; its folder holds no other large files.

        Args:
            reuse: plan which tensors share memory, in time quadratic in the nodes that small
                tensors pass through.

        Raises:
            Refused: the runtime does not accept it.
            WorkerDied: the process crashed.
        """
        size = sum(file.stat().st_size for file in model.parent.iterdir() if file.is_file())
        if not self._runs_in_stretches(key, size, lambda: Graph(protobuf.read(model)), reuse):
            self._load(key, model, self._make_options(reuse))

    def load_model(
        self,
        key: str,
        model: protobuf.ModelProto,
        source: Path,
        folder: Path,
        *,
        reuse: bool = True,
    ) -> None:
        """Load a model whose large weights are still in a file; write the model into a folder.

        onnxruntime reads external weights in place if all are at multiples of 64 bytes, as it
        aligns its own allocations. Else they are copied to aligned offsets: a kernel that sums can
        start with single elements until its pointer is aligned, which changes the last bits, and
        a cut must return the values of the full model bit for bit.
        `model` is changed.
        """

        def graph() -> Graph:
            read = protobuf.find_reading_class().FromString(model.SerializeToString())
            return Graph(protobuf.Skeleton(source, read, 0, ""))

        on_disk = sum(
            protobuf.count_bytes(t) for t in model.graph.initializer if protobuf.is_on_disk(t)
        )
        if not self._runs_in_stretches(key, on_disk, graph, reuse):
            path, more = write_model(model, source, folder, in_place=self.fixed)
            self._load(key, path, {**self._make_options(reuse), **more})

    def _make_options(self, reuse: bool) -> JsonObject:
        """Return the options of a model; `reuse`: as of `load`."""
        if reuse or not self.fixed:
            return self.options
        return {**self.options, "reuse": False}

    def _load(self, key: str, model: Path, options: Fields) -> None:
        with self._lock:
            self._stretched.pop(key, None)
            is_late = self.process.worker.is_late
            if self._restart or self.limit or self._stretched or is_late:
                self.process.ensure_alive()
            self.process.load(key, model, options)

    def run(self, key: str, into: Path, outputs: StringMap, feeds: Feeds) -> ModelRun:
        """Run `key` once; write `outputs` (name → file stem) into the folder.

        Files of `feeds` are relative to it.

        Raises:
            InputError: An input does not fit.
            ModelError: The run failed, or `key` was lost with the process that another model ended
                (`restart`).
            WorkerDied: The process crashed.
        """
        try:
            with self._lock:
                if stretched := self._stretched.get(key):
                    run = stretched.run(into, outputs, feeds)
                else:
                    with self.process.report_memory_limit():
                        run = self.process.worker.run(key, into, outputs, feeds)
        except BackendError as e:
            if not self._restart or isinstance(e, WorkerDied):
                raise
            raise ModelError(f"the reference lost the model: {e.what}", code=e.code) from e
        values = run.by_name
        if missing := [name for name in outputs if name not in values]:
            raise ModelError(
                f"the reference, {self.backend}, has no value of '{missing[0]}'",
                code="reference.no-value",
            )
        return run

    def tensors(self, model: Path) -> frozenset[str] | None:
        """Return the tensors of a model that it has values of; None for all.

        From now on it runs cuts of this model.

        Raises:
            BackendError: It cannot be used.
        """
        if not plugins.defines("backends", self.backend, "tensors"):
            return None
        with self._lock:
            known = frozenset(self.process.worker.names("tensors", model, self.options))
        self.options[WHOLE] = str(model.resolve())
        return known

    def identity(self) -> JsonObject:
        """Return backend, options and version, on which its values depend."""
        if not self._version:
            with self._lock:
                self._version = self.process.worker.about(self.options).version
        return {"backend": self.backend, "options": dict(self.options), "version": self._version}

    def drop(self, key: str) -> None:
        """Forget a model, so that its memory is free again."""
        with self._lock:
            if self._stretched.pop(key, None) is None:
                self.process.worker.drop(key)

    # ------------------------------------------------------------ stretches

    def _runs_in_stretches(
        self, key: str, weights: int, graph: Callable[[], Graph], reuse: bool
    ) -> bool:
        """Return whether the model runs in stretches. With a limit every model does, often in one;
        else those that do not fit into free memory. `weights`: their bytes, roughly."""
        if not self.fixed or not (self.limit or weights > MAX_UNPLANNED_BYTES):
            return False
        space = (self.limit or measure_free_memory()) - OWN_BYTES
        model = StretchedModel(graph(), self.process, space, self._make_options(reuse))
        fits = model.fits()
        self.exceeded = self.exceeded or not fits
        if fits and not self.limit:
            return False
        with self._lock:
            self._stretched[key] = model
        return True

    def exclude_others(self) -> AbstractContextManager[object]:
        """Keep other threads out of a block: a load and the runs that follow it."""
        return self._lock

    def close(self) -> None:
        """End the process."""
        self.process.worker.close()
