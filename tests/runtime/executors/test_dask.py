"""A Dask cluster of this machine; skipped where `distributed` is not installed. Covers
`runtime.executors`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from subgraph.errors import BackendError, UnknownName, UsageError
from subgraph.runtime import executors
from tests.helpers.refusals import raises
from tests.helpers.run_command import run_program

FACTORY = """
from concurrent.futures import ThreadPoolExecutor

def make():
    return ThreadPoolExecutor(3)

def none():
    return 3

def fails():
    raise OSError("no cluster")
"""


def test_any_executor_by_module_or_file(tmp_path: Path) -> None:
    (tmp_path / "cluster.py").write_text(FACTORY)
    spec = f"{tmp_path}/cluster.py:make"
    executor = executors.connect(executors.check(spec), {})
    assert executor.slots == 3
    assert executors.connect(spec, {}) is executor
    executors.forget(executor)
    assert executors.connect(spec, {}) is not executor
    for name, code, about in (
        ("none", "executor.wrong-return", "int"),
        ("fails", "executor.failed", "no cluster"),
        ("absent", "executor.failed", "AttributeError"),
    ):
        with raises(BackendError, code, about):
            executors.connect(f"{tmp_path}/cluster.py:{name}", {})


ENDS = """
import atexit, sys, threading
from concurrent.futures import ThreadPoolExecutor
from subgraph.runtime import executors

class Pool(ThreadPoolExecutor):
    def shutdown(self, wait=True, *, cancel_futures=False):
        print("shut down", cancel_futures)

def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

if __name__ == "__main__":
    executors.connect("ends:Pool", {})
    atexit.register(setattr, threading.Thread, "start", refuse)  # runs before what was registered earlier
"""  # noqa: E501


def test_script_ends_where_python_starts_no_thread_any_more(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(ENDS)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    words = [sys.executable, "ends.py"]
    done = run_program(words, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "shut down True\n", "")


@pytest.mark.parametrize("spec", ["dask://", "make", ":make", "a.py:", "a.py:x y"])
def test_unknown_executor_is_refused(spec: str) -> None:
    with raises(UsageError, "executor.malformed"):
        executors.check(spec)
    with raises(UnknownName, "plugin.unknown", "dusk"):
        executors.check("dusk://host:1")


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    from subgraph.runtime.executors import dask

    monkeypatch.setattr(dask, "ANSWER_SECONDS", 0.3)
    with raises(BackendError, "executor.no-answer", "dask://"):
        executors.connect("dask://127.0.0.1:1", {})


class FakeClient:
    """A scheduler's client: which workers there are, and what importing subcut gives on each."""

    def __init__(self, **imports: Exception | None) -> None:
        self.imports = imports

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        assert n_workers == -1
        return {"workers": {name: {"resources": {}} for name in self.imports}}

    def wait_for_workers(self, count: int, timeout: float) -> None:
        raise TimeoutError

    def run(self, function: Any, code: str, on_error: str) -> dict[str, Exception | None]:
        function(code)  # what every worker has
        assert on_error == "return" and "subgraph" in code
        return self.imports


def test_workers_that_cannot_do_it_end_the_command() -> None:
    """None at all after a limit; one without subcut, whose tasks would end it without a word."""
    from subgraph.runtime.executors.dask import require_workers as require

    require(FakeClient(a=None), "b1:8786", {})
    with raises(BackendError, "executor.no-workers", "dask://b1:8786", "60 s"):
        require(FakeClient(), "b1:8786", {})
    lacking = FakeClient(a=None, b=ModuleNotFoundError("No module named 'subgraph'"))
    with raises(BackendError, "executor.other-version", "worker b", "No module named"):
        require(lacking, "b1:8786", {})
    with raises(BackendError, "executor.no-resource", "npu=1"):
        require(FakeClient(a=None), "b1:8786", {"npu": 1})


@pytest.mark.slow  # a cluster starts in seconds
def test_resource_that_no_worker_has() -> None:
    distributed = pytest.importorskip("distributed")
    workers = {
        "n_workers": 1,
        "threads_per_worker": 1,
        "processes": False,
        "dashboard_address": None,
    }
    with distributed.LocalCluster(**workers, resources={"npu": 1}, protocol="tcp") as cluster:
        spec = cluster.scheduler_address.replace("tcp", "dask")
        executor = executors.connect(spec, {"npu": 1.0})
        assert executor.slots == 1
        assert executor.executor.submit(len, "abc").result() == 3
        with raises(BackendError, "executor.no-resource", "gpu=1"):
            executors.connect(spec, {"gpu": 1.0})
        executor.executor.shutdown(wait=False, cancel_futures=True)
