"""Workers, and children for onnx, that outlive the command that started them: the next command of
this test process is lent them.

To start one takes longer than most tests. Those of the candidates with faults are lent once per
test: faults may hang on how many processes there were. Tests that are about starting have the
fixture `own_workers`.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from subgraph.cases import check
from subgraph.children import ScriptProcess
from subgraph.editing import draft
from subgraph.errors import SubcutError
from subgraph.graph import cut, onnx_process, protobuf, rewrites, shape_inference
from subgraph.graph.onnx_process import MAX_MEMORY, OnnxProcess
from subgraph.questions.blame import rewritten
from subgraph.runtime import reference, worker_pool
from subgraph.runtime.deadline import Deadline
from subgraph.runtime.inputs import Sample
from subgraph.runtime.protocol import ModelRun
from subgraph.runtime.worker import Worker
from subgraph.storage.tensors import Record
from tests.helpers import fake_candidate, mistaken_candidate

ONCE_PER_TEST = (fake_candidate.HERE, mistaken_candidate.HERE)
BACKENDS = ("ort", "onnx-reference", *ONCE_PER_TEST)

State = dict[str, Any]  # of a `Worker`
T = TypeVar("T")
_idle: dict[str, list[State]] = defaultdict(list)  # by backend
_onnx: list[ScriptProcess] = []
_used: dict[str, list[State]] = defaultdict(list)  # of `ONCE_PER_TEST`, in this test


def lend(on: bool = True) -> None:
    """From now on, commands and fixtures of this process are lent workers, or none."""
    for module in (reference, worker_pool):
        vars(module)["Worker"] = LentWorker if on else Worker
    for module in (cut, shape_inference, check, draft, rewrites, rewritten):
        vars(module)["OnnxProcess"] = LentOnnxProcess if on else OnnxProcess


def next_test() -> None:
    """What this test has used may be used again."""
    for backend, states in _used.items():
        _idle[backend] += states
    _used.clear()


def close() -> None:
    """End all processes that nobody uses."""
    next_test()
    for states in _idle.values():
        while states:
            worker = Worker.__new__(Worker)
            vars(worker).update(states.pop())
            worker.close()
    while _onnx:
        _onnx.pop().end()


class LentOnnxProcess(OnnxProcess):
    """One whose child may be older, and may stand in another folder than its user.

    Where a test sets another limit of memory, the child is its own.
    """

    @property
    def _own(self) -> bool:
        return onnx_process.MAX_MEMORY != MAX_MEMORY

    def check(self, model: protobuf.ModelProto | Path) -> None:
        """As `OnnxProcess.check`."""
        super().check(model.absolute() if isinstance(model, Path) else model)

    def _start(self, size: int) -> ScriptProcess:
        return _onnx.pop() if _onnx and not self._own else super()._start(size)

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.end() if self._own else _onnx.append(self._child)
            self._child = None


class LentWorker(Worker):
    """A worker whose process may be older, and may stand in another folder than its user."""

    def __init__(
        self,
        backend: str = "ort",
        *,
        timeout: float | None = None,
        memory: int | None = None,
        bounded: int | None = None,
        python: Path | None = None,
    ) -> None:
        # by the user: the process itself is made for that
        limited = bounded is not None and memory is not None
        lent = _idle[backend] if backend in BACKENDS and python is None and not limited else None
        if lent:
            vars(self).update(lent.pop())
            self.timeout, self.memory, self.deadline = timeout, memory, Deadline()
        else:
            super().__init__(
                backend, timeout=timeout, memory=memory, bounded=bounded, python=python
            )
        self._backend = backend if lent is not None else ""
        self._keys: set[str] = set()
        self._one_closes = threading.Lock()

    def load(self, key: str, model: Path, options: Mapping[str, Any]) -> float:
        """As `Worker.load`."""
        self._keys.add(key)
        return self._named(lambda: super(LentWorker, self).load(key, model.absolute(), options))

    def run(
        self,
        key: str,
        into: Path,
        outputs: Mapping[str, str],
        feeds: Iterable[Record] | Sample,
        earlier: Iterable[Record] = (),
    ) -> ModelRun:
        """As `Worker.run`."""
        if isinstance(feeds, Sample):
            files = [(name, path and str(Path(path).absolute())) for name, path in feeds.files]
            feeds = replace(feeds, files=files)
        return self._named(
            lambda: super(LentWorker, self).run(key, into.absolute(), outputs, feeds, earlier)
        )

    def names(self, what: str, model: Path, options: Mapping[str, Any]) -> tuple[str, ...]:
        """As `Worker.names`."""
        return super().names(what, model.absolute(), options)

    def _named(self, act: Callable[[], T]) -> T:
        """Errors name files as the user does."""
        try:
            return act()
        except SubcutError as e:
            e.what = e.what.replace(f"{Path.cwd()}{os.sep}", "")
            e.args = (e.what,)
            raise

    def close(self) -> None:
        """Keep the process for the next test, without the models of this one."""
        with self._one_closes:
            if not self._backend or self._request_lock.locked() or not self.alive:
                super().close()
                return
            try:
                for key in self._keys:
                    self.drop(key)
            except SubcutError:
                super().close()
                return
            kept = _used if self._backend in ONCE_PER_TEST else _idle
            kept[self._backend].append(dict(vars(self)))
            gone = copy(self.process)
            gone.has_ended = gone._is_closed = True
            self.process = gone
