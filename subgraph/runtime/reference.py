"""The reference: onnxruntime with all optimisations off, in a process of its own.

`docs/why/reference-in-a-process.md` says why not in this one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from subgraph import plugins
from subgraph.errors import BackendError, ModelError, WorkerDied
from subgraph.graph.graph import Graph
from subgraph.graph.quantization import TFLITE
from subgraph.runtime.inputs import Sample
from subgraph.runtime.protocol import ModelRun
from subgraph.runtime.worker import Worker
from subgraph.storage.tensors import Record

WHOLE = "model"  # option of a backend that has some tensors only: the model of which it runs cuts
LITERT = "litert:kernels=builtin"  # runs operators of TensorFlow Lite; without delegates, which fuse
MAX_THREADS = 8  # more give nothing for one small run, and other bits on each machine


def threads() -> int:
    """Intra-op threads of the reference: the cores we may use, at most `MAX_THREADS`. Recorded with every result."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, MAX_THREADS)


def default_for(graph: Graph, **limits: Any) -> Reference:
    """The reference that runs this model where the user names none; `limits`: of `Reference`."""
    if any(node.domain == TFLITE for node in graph.nodes):
        backend, _, options = LITERT.partition(":")
        return Reference(backend, dict(o.split("=") for o in options.split(",")), **limits)
    return Reference(**limits)


class Reference:
    """The reference process: onnxruntime on the CPU, optimisations off, a fixed number of threads.

    The process starts with the constructor, so that the runtime is imported while the caller still reads the model.
    Another backend, or a library of custom operators (option `ops`), serves models that plain onnxruntime cannot run.
    Several threads may share a reference if each uses keys of its own.

    Attributes:
        backend, options: as given, with the reference's own options added where the backend is onnxruntime.
    """

    def __init__(
        self,
        backend: str = "ort",
        options: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        memory: int | None = None,
        restart: bool = False,
    ) -> None:
        """`timeout`, `memory`: as for `Worker`; `restart`: `load` starts a new process when a model has ended the last
        one, and models that were loaded in that one are lost."""
        self.backend = backend
        fixed = {"opt": "disable", "threads": threads(), "fixed": True} if backend == "ort" else {}
        self.options = {**fixed, **(options or {})}
        self._restart = restart
        self._start = partial(Worker, backend, timeout=timeout, memory=memory, bounded=backend == "ort")
        self._worker = self._start()
        self._lock = threading.RLock()
        self._version = ""

    def load(self, key: str, model: Path, weights: Path | None = None, *, reuse: bool = True) -> None:
        """Build `model` under the name `key`.

        Args:
            weights: the folder of its external data, if it is another one.
            reuse: plan which tensors share memory, in time quadratic in the nodes that small tensors pass through.

        Raises:
            Refused: the runtime does not accept it.
            WorkerDied: the process crashed.
        """
        options = {**self.options, **({"weights": str(weights)} if weights else {})}
        if not reuse and self.backend == "ort":
            options["reuse"] = False
        with self._lock:
            if self._restart and not self._worker.alive:
                self._worker.close()
                self._worker = self._start()
            self._worker.load(key, model, options)

    def run(self, key: str, into: Path, outputs: Mapping[str, str], feeds: Iterable[Record] | Sample) -> ModelRun:
        """Run `key` once; write `outputs` (name → file stem) into the folder. Files of `feeds` are relative to it.

        Raises:
            InputError: an input does not fit.
            ModelError: the run failed, or `key` was lost with the process that another model ended (`restart`).
            WorkerDied: the process crashed.
        """
        try:
            with self._lock:
                run = self._worker.run(key, into, outputs, feeds)
        except BackendError as e:
            if not self._restart or isinstance(e, WorkerDied):
                raise
            raise ModelError(f"the reference lost the model: {e.what}") from e
        if missing := [name for name in outputs if name not in run.by_name]:
            raise ModelError(f"the reference, {self.backend}, gives no value of '{missing[0]}'")
        return run

    def tensors(self, model: Path) -> frozenset[str] | None:
        """The tensors of a model that it has values of; None for all. From now on it runs cuts of this model.

        Raises:
            BackendError: it cannot be used.
        """
        if not plugins.defines("backends", self.backend, "tensors"):
            return None
        with self._lock:
            known = self._worker.tensors(model, self.options)
        if known is not None:
            self.options[WHOLE] = str(model.resolve())
        return known

    def identity(self) -> dict[str, Any]:
        """Backend, options and version: all that its values depend on, beside the model and its inputs."""
        if not self._version:
            with self._lock:
                self._version = self._worker.about(self.options).version
        return {"backend": self.backend, "options": dict(self.options), "version": self._version}

    def drop(self, key: str) -> None:
        """Forget a model; its memory is free again."""
        with self._lock:
            self._worker.drop(key)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other threads out for this block: a load and the runs that follow it."""
        with self._lock:
            yield

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close()
