"""Runs as tasks of an executor: the results of one machine, by path or by content; lost workers
decide nothing.

Covers `runtime.remote.task`.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import save_model

from subgraph.errors import BackendError, Unreachable, WorkerDied
from subgraph.runtime import executors
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.remote import task
from subgraph.runtime.remote.remote_pool import RemoteWorkers, open_workers
from subgraph.runtime.run_result import Job
from subgraph.runtime.worker_pool import Cancel
from subgraph.storage import tensors
from subgraph.verdict import Signature
from tests.helpers import text_models
from tests.helpers.process_backends import until
from tests.helpers.refusals import raises
from tests.helpers.run_command import subcut

BACKEND = """
import os, time
import onnxruntime

def load(model, options):
    session = onnxruntime.InferenceSession(str(model))
    def run(feeds):
        if "sleep" in options:
            open(options["sleep"], "w").close()
            time.sleep(60)
        if "crash" in options:
            os.abort()
        return {"y": session.run(["y"], feeds)[0]}
    return run
"""


class Cluster(Executor):
    """Threads that lose some tasks."""

    def __init__(
        self, lost: int = 0, error: Callable[[], Exception] = lambda: OSError("gone")
    ) -> None:
        self.threads = ThreadPoolExecutor(2)
        self.lost = lost
        self.error = error
        self.submitted = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As of `Executor`."""
        self.submitted += 1
        if self.submitted <= self.lost:
            future: Future[Any] = Future()
            future.set_exception(self.error())
            return future
        return self.threads.submit(fn, *args, **kwargs)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = Cluster()
    monkeypatch.setattr(
        executors, "connect", lambda *_: executors.Connection("cluster.py:make", made)
    )
    yield made
    made.threads.shutdown()
    for workers in task._pools.values():
        workers.close()
    task._pools.clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A backend, and a model that doubles its input by a weight in a file of its own."""
    (tmp_path / "backend.py").write_text(BACKEND)
    (tmp_path / "model").mkdir()
    text = "g (float[300000] x) => (float[300000] y) { y = Mul(x, w) }"
    model = text_models.model(text, w=np.full(300_000, 2, np.float32))
    save_model(
        model, tmp_path / "model" / "model.onnx", save_as_external_data=True, location="weights.bin"
    )
    return tmp_path


def run_in(
    folder: Path, cancel: Cancel | None = None, asked: dict[str, str] | None = None, **options: str
) -> np.ndarray[Any, Any] | Signature | None:
    """The output, or how the candidate fails; `asked`: options of one run in place of the
    candidate's."""
    candidate = Candidate("c", str(folder / "backend.py"), options, executor="cluster.py:make")
    fed = tensors.save("x", np.ones(300_000, np.float32), "tensor(float)", folder, "x").rebase(
        str(folder)
    )
    into = folder / "out"
    into.mkdir()
    with open_workers(candidate) as workers:
        assert isinstance(workers, RemoteWorkers)
        if cancel:
            with cancel:
                result = workers.run(Job(folder / "model" / "model.onnx", [[fed]], ["y"], into))
        else:
            result = workers.run(
                Job(folder / "model" / "model.onnx", [[fed]], ["y"], into, options=asked)
            )
    assert not list(into.glob(".leash*"))
    if result.failure:
        return result.failure.signature
    assert result.sources == {
        str(folder / "backend.py"): result.sources[str(folder / "backend.py")]
    }
    value = tensors.load(result.tensors[0]["y"], into)
    assert isinstance(value, np.ndarray)
    return value


@pytest.mark.usefixtures("cluster")
def test_files_go_by_path_where_the_worker_sees_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "_place", None)
    assert np.all(run_in(folder) == 2)


@pytest.mark.slow  # 0.5 s for the runtime's start
def test_files_go_by_content_elsewhere(
    folder: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first task says that nothing is seen, the second that large files lack, the third has
    them."""
    monkeypatch.setattr(task, "has_files", lambda _: False)
    assert np.all(run_in(folder) == 2)
    assert cluster.submitted == 3


@pytest.mark.usefixtures("cluster")
def test_no_worker_elsewhere_is_lent(folder: Path) -> None:
    workers = open_workers(
        Candidate("c", str(folder / "backend.py"), {}, executor="cluster.py:make")
    )
    with workers, raises(BackendError, "executor.needs-local", "process of c"):
        workers.borrow()
    with raises(WorkerDied, "worker.stopped"):
        workers.borrow()


@pytest.mark.usefixtures("cluster")
def test_crash_is_the_candidates(folder: Path) -> None:
    assert run_in(folder, crash="1") is Signature.CRASH


@pytest.mark.usefixtures("cluster")
def test_run_may_have_options_of_its_own(folder: Path) -> None:
    assert np.all(run_in(folder, asked={}, crash="1") == 2)


def test_lost_task_is_run_again(folder: Path, cluster: Cluster) -> None:
    cluster.lost = 2
    assert np.all(run_in(folder) == 2)
    assert cluster.submitted == 3


@pytest.mark.parametrize("error", [OSError, BrokenExecutor, lambda: Exception("KilledWorker")])
def test_task_that_is_lost_too_often_decides_nothing(
    folder: Path, cluster: Cluster, error: Callable[[], Exception]
) -> None:
    cluster.lost = 9
    cluster.error = error
    with raises(Unreachable, "executor.worker-lost"):
        run_in(folder)


def test_worker_without_subcut(folder: Path, cluster: Cluster) -> None:
    cluster.lost, cluster.error = 1, lambda: ModuleNotFoundError(name="subgraph")
    with raises(BackendError, "executor.other-version", "load subcut"):
        run_in(folder)


@pytest.mark.usefixtures("cluster")
def test_another_version_or_another_file_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "__version__", "0.0")
    with raises(BackendError, "executor.other-version", "0.0"):
        run_in(folder)


@pytest.mark.slow  # 0.7 s: a process is ended
@pytest.mark.usefixtures("cluster")
def test_cancelled_run_ends_where_it_runs(folder: Path) -> None:
    cancel = Cancel()
    began = folder / "began"

    def set_later() -> None:
        while not began.exists():
            time.sleep(0.01)
        cancel.set()

    thread = threading.Thread(target=set_later)
    thread.start()
    with raises(WorkerDied, "worker.stopped"):
        run_in(folder, cancel, sleep=str(began))
    thread.join()
    until(lambda: not task._running)


def test_no_name_leads_out_of_the_folder(tmp_path: Path) -> None:
    key = hashlib.sha256(b"x").hexdigest()
    assert task._place({"model/x": key}, {}, tmp_path) == [key]
    with raises(BackendError, "executor.unsafe-name"):
        task._place({"../x": key}, {key: b"x"}, tmp_path)
    with raises(BackendError, "executor.file-damaged"):
        task._place({}, {key: b"y"}, tmp_path)


@pytest.mark.slow
def test_pool_of_processes_ends_with_the_command(tmp_path: Path) -> None:
    """A pipe that its processes hold would stay open."""
    pool = "import concurrent.futures as f\ndef make():\n    return f.ProcessPoolExecutor(2)\n"
    (tmp_path / "pool.py").write_text(pool)
    text_models.load(tmp_path, "g (float[4] x) => (float[4] y) { y = Relu(x) }")
    words = ("compare", "model.onnx", "-c", "ort", "--executor", "pool.py:make", "--trust")
    done = subcut(*words, cwd=tmp_path, env={}, timeout=60)  # waits for the end of its pipes
    assert done.code == 0
