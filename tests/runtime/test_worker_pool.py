"""Warm workers are used again, are replaced when they died or grew old, and end together."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from subgraph import system
from subgraph.errors import OutOfTime, OutputError, SubcutError, WorkerDied
from subgraph.precision import Precision
from subgraph.runtime import run_result, worker_pool
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.protocol import BackendInfo
from subgraph.runtime.run_result import MODEL, Job, run_model
from subgraph.runtime.worker import Worker
from subgraph.runtime.worker_pool import Workers
from subgraph.verdict import Signature
from tests.helpers.facts import has_line
from tests.helpers.process_backends import (
    MARK,
    all_gone,
    backend,
    ended,
    interrupted_at,
    living,
    until,
)
from tests.helpers.refusals import raises
from tests.helpers.run_command import PATIENCE, SOON

pytestmark = pytest.mark.usefixtures("own_workers")

Pool = Callable[..., Workers]  # of processes of a candidate
SAY_WHO = (  # the process's number is the only name that it gives
    "return {f'{os.getpid()} {feeds}': 0}"
)


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Nothing that a test started outlives it."""
    word = uuid4().hex
    monkeypatch.setenv(MARK, word)
    yield word
    all_gone(word)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """Starts workers of a candidate made of these lines, closed at the end."""
    started: list[Workers] = []

    def make(*, run: str = SAY_WHO, load: str = "pass", top: str = "", **limits: Any) -> Workers:
        path = backend(tmp_path, run=run, load=load, top=top)
        started.append(Workers(Candidate("mine", path, {"key": "fp16"}, **limits)))
        return started[-1]

    yield make
    for one in started:
        one.close()


def who(worker: Worker) -> str:
    """The number of the process that answers."""
    worker.load("m", Path("m"), {})
    return str(worker.run("m", Path(), {}, []).others[0]).split()[0]


def use(pool: Workers, loads: int = 1, fresh: bool = False) -> str:
    with pool.borrow(loads=loads, fresh=fresh) as worker:
        return who(worker)


def test_warm_one_is_used_again(pool: Pool) -> None:
    mine = pool()
    assert len({use(mine) for _ in range(4)}) == 1


def test_it_is_asked_what_the_candidate_is(pool: Pool) -> None:
    top = "def version(): return '1.2'\ndef precision(options): return options['key']"
    assert pool(top=top).about() == BackendInfo("1.2", Precision.FP16)


def test_old_one_is_replaced(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "MAX_LOADS", 3)
    mine = pool()
    seen = [use(mine) for _ in range(7)]
    assert seen == [seen[0]] * 3 + [seen[3]] * 3 + [seen[6]]
    assert len(set(seen)) == 3
    assert use(mine, loads=2) == seen[6]
    assert use(mine) != seen[6]


def test_runs_without_a_load_do_not_age_it(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "MAX_LOADS", 1)
    mine = pool()
    assert use(mine, loads=0) == use(mine, loads=0)


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("body", "limits"),
    [
        ("os.abort()", {}),
        ("time.sleep(600)", {"timeout": 2}),
        ("hold = b'x' * (400 << 20); time.sleep(600)", {"memory": 250 << 20}),
    ],
    ids=["crash", "timeout", "memory"],
)
def test_one_that_died_is_replaced(
    body: str, limits: dict[str, Any], pool: Pool, tmp_path: Path
) -> None:
    once = (
        f"if not os.path.exists({str(tmp_path / 'done')!r}):\n    open({str(tmp_path / 'done')!r},"
        f" 'w')\n    {body}\n"
    )
    mine = pool(run=f"{once}{SAY_WHO}", **limits)
    with pytest.raises(WorkerDied):
        use(mine)
    assert use(mine) == use(mine)


def test_one_that_died_while_nobody_used_it_is_no_crash(pool: Pool) -> None:
    mine = pool()
    first = use(mine)
    os.kill(int(first), signal.SIGKILL)
    until(lambda: ended(int(first)))
    assert use(mine) != first


def test_one_that_was_given_up_in_the_middle_is_not_used_again(pool: Pool, tmp_path: Path) -> None:
    """Not though the answer that nobody waited for may have come by now."""
    asked, running, go_on = (tmp_path / name for name in ("asked", "running", "go_on"))
    wait = (
        f"if os.path.exists({str(asked)!r}):\n"
        f"    open({str(running)!r}, 'w').close()\n"
        f"    while not os.path.exists({str(go_on)!r}): time.sleep(0.005)\n"
    )
    mine = pool(run=f"{wait}{SAY_WHO}")
    first = use(mine)
    asked.touch()
    with interrupted_at(running):
        use(mine)
    asked.unlink()
    go_on.touch()
    assert use(mine) != first


@pytest.mark.parametrize("step", ["load", "run"])
def test_at_the_deadline_a_request_is_ended_and_is_no_verdict(
    step: str, pool: Pool, tmp_path: Path
) -> None:
    workers = pool(**{step: "import time; time.sleep(600)"})
    workers.about()
    workers.deadline.at = time.monotonic() + 0.1
    with workers.borrow() as one, raises(OutOfTime, "time.used-up"):
        run_model(one, Job(Path("model.onnx"), [[]], ["y"], tmp_path))
    assert not one.alive
    workers.deadline.at = time.monotonic() + PATIENCE
    assert workers.about() == BackendInfo()


NO_FILES = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"


@pytest.mark.posix("Windows has no limit of the size of files")
def test_process_that_may_write_no_file_is_a_result_of_the_candidate(
    pool: Pool, tmp_path: Path
) -> None:
    """It is ended, because its next run would fail as well."""
    with pool(run=NO_FILES).borrow() as one:
        result = run_model(one, Job(Path("model.onnx"), [[]], ["y"], tmp_path))
    assert result.failure and result.failure.signature is Signature.THROWS
    assert has_line(result.failure.why, "its values")
    assert not one.alive


@pytest.mark.posix("Windows has no limit of the size of files")
@pytest.mark.parametrize("fault", ["full", "limited"])
def test_disk_that_is_full_for_subcut_as_well_is_no_result_of_the_candidate(
    fault: str, pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full = "def full(*a, **k): raise OSError(28, os.strerror(28))\nnp.save = full"
    monkeypatch.setattr(run_result, "can_write", lambda folder: fault == "full")
    workers = pool(run=is_full if fault == "full" else NO_FILES)
    with workers.borrow() as one, pytest.raises(OutputError):
        run_model(one, Job(Path("model.onnx"), [[]], ["y"], tmp_path))


def test_fresh_one_has_run_nothing_and_is_ended(pool: Pool) -> None:
    mine = pool(top="loads = []", load="loads.append(1); assert len(loads) == 1, 'used before'")
    warm = use(mine)
    fresh = [use(mine, fresh=True) for _ in range(2)]
    assert len({warm, *fresh}) == 3
    assert not any(psutil.pid_exists(int(pid)) for pid in fresh)
    assert psutil.pid_exists(int(warm))


def test_one_that_has_loaded_nothing_is_fresh_and_stays(pool: Pool) -> None:
    """The process that told its version, and each fresh one, ended without a second use."""
    mine = pool(top="def version(): return str(os.getpid())")
    told = mine.about().version.split()[0]
    first, second = (use(mine, fresh=True) for _ in range(2))
    assert first == use(mine) == told and second != first
    assert not psutil.pid_exists(int(second))


def test_fresh_one_that_stays_holds_no_model(pool: Pool, tmp_path: Path) -> None:
    """Beside the next one, a large model was in memory twice."""
    mine = pool(run="return {}")
    job = Job(Path("m"), [[]], [], tmp_path, fresh=True)
    assert not mine.run(job).failure
    with mine.borrow() as worker, pytest.raises(SubcutError):
        worker.run(MODEL, Path(), {}, [])


def test_threads_have_processes_of_their_own(pool: Pool, mark: str) -> None:
    mine = pool()
    meet = threading.Barrier(3)
    seen: list[str] = []

    def work() -> None:
        with mine.borrow(loads=1) as worker:
            meet.wait(PATIENCE)
            seen.append(who(worker))

    for _ in range(2):
        threads = [threading.Thread(target=work) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert sorted(seen[:3]) == sorted(seen[3:]), "the second round finds those of the first"
    assert len(set(seen)) == len(living(mark)) == 3


def test_closing_ends_those_at_work_and_their_verdict_is_nobodys(
    pool: Pool, tmp_path: Path, mark: str
) -> None:
    """The thread's block ends with WorkerDied even where it took the crash for an answer."""
    running = tmp_path / "running"
    running.mkdir()
    mine = pool(
        run=f"open({str(running)!r} + f'/{{os.getpid()}}', 'w'); ctypes.PyDLL(None).sleep(600)"
    )
    ends: list[str] = []

    def work(swallow: bool) -> None:
        try:
            with mine.borrow() as worker:
                try:
                    who(worker)
                except WorkerDied as e:
                    ends.append(e.signature)
                    if not swallow:
                        raise
            ends.append("an answer")
        except WorkerDied:
            ends.append("WorkerDied")

    threads = [threading.Thread(target=work, args=(swallow,)) for swallow in (False, True)]
    for t in threads:
        t.start()
    until(lambda: len(list(running.iterdir())) == 2)
    begin = time.monotonic()
    mine.close()
    for t in threads:
        t.join(SOON)
    assert time.monotonic() - begin < SOON
    assert sorted(ends) == ["WorkerDied", "WorkerDied", "crash", "crash"]
    all_gone(mark)


def test_after_closing_none_is_started(
    pool: Pool, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = pool()
    mine.close()
    mine.close()
    monkeypatch.setattr(worker_pool, "Worker", None)
    for fresh in (False, True):
        with raises(WorkerDied, "worker.stopped"):
            use(mine, fresh=fresh)
    all_gone(mark)


def test_without_a_limit_it_is_what_is_free(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "measure_free_memory", lambda: 123 << 30)
    with pool().borrow() as worker:
        assert worker.memory == 123 << 30
    with pool(memory=5 << 30, timeout=7.0).borrow() as worker:
        assert (worker.memory, worker.timeout) == (5 << 30, 7.0)
    monkeypatch.undo()
    assert system.measure_free_memory() > 1 << 20
