"""Boards that a command reaches: lent to one run each, and avoided where they do not answer."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from subgraph.errors import Unreachable, UsageError
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.executors import parse_hosts, parse_resources
from subgraph.runtime.run_result import Job, RunResult
from subgraph.runtime.worker_pool import Hosts, Workers
from subgraph.storage import tensors
from subgraph.verdict import Signature
from tests.helpers import text_models
from tests.helpers.refusals import raises

SCRIPT = """#!/bin/sh
echo "$1" >> hosts.log
case "$1" in
  away) exit 255 ;;
  slow) sleep 5 ;;
esac
cp "$3"/x.npy "$4"/y.npy
"""


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a command that copies its input, and with an identity model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("subgraph.runtime.backends.cmd.RETRY_SECONDS", ())
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    text = "g (float[2] x) => (float[2] y) { y = Identity(x) }"
    text_models.save(tmp_path / "model.onnx", text)
    return tmp_path


def run_on(board: Path, *hosts: str, timeout: float = 60.0) -> RunResult:
    command = f"{board}/run.sh {{host}} {{model}} {{inputs}} {{outputs}}"
    candidate = Candidate("board", "cmd", {"run": command}, timeout=timeout, hosts=hosts)
    fed = tensors.save("x", np.ones(2, np.float32), "tensor(float)", board, "x").rebase(str(board))
    into = board / "out"
    into.mkdir(exist_ok=True)
    with Workers(candidate) as workers:
        return workers.run(Job(board / "model.onnx", [[fed]], ["y"], into))


def used(board: Path) -> list[str]:
    return list(dict.fromkeys((board / "hosts.log").read_text().split()))


def test_run_goes_to_a_host(board: Path) -> None:
    assert run_on(board, "b1", "b2").failure is None
    assert used(board) == ["b1"]


@pytest.mark.slow  # the child tries a lost connection again, after 1 and 3 seconds
def test_host_that_does_not_answer_is_no_verdict(board: Path) -> None:
    assert run_on(board, "away", "b2").failure is None
    assert used(board) == ["away", "b2"]
    with raises(Unreachable, "hosts.no-answer", "away"):
        run_on(board, "away")


@pytest.mark.slow  # two timeouts
def test_only_what_takes_too_long_on_two_hosts_takes_too_long(board: Path) -> None:
    assert run_on(board, "slow", "b2", timeout=2.0).failure is None
    failure = run_on(board, "slow", timeout=2.0).failure
    assert failure and failure.signature is Signature.TIMEOUT


def test_without_a_host_the_command_is_not_run(board: Path) -> None:
    with raises(UsageError, "command.no-host", "{host}"):
        run_on(board)


def test_each_host_is_lent_once() -> None:
    hosts = Hosts(["b1"])
    other = Hosts(["b1"])
    ended = threading.Event()

    def wait() -> None:
        with other.lease([], lambda: None):
            ended.set()

    with hosts.lease([], lambda: None) as host:
        assert host == "b1"
        thread = threading.Thread(target=wait)
        thread.start()
        assert not ended.wait(0.05)
    assert ended.wait(5)
    thread.join()


def test_host_lost_twice_is_used_last() -> None:
    hosts = Hosts(["b1", "b2"])
    for _ in range(2):
        hosts.note("b1", answered=False)
    with hosts.lease([], lambda: None) as host:
        assert host == "b2"
    with hosts.lease(["b2"], lambda: None) as host:
        assert host == "b1"
    assert not hosts.none_answers


@pytest.mark.parametrize(
    "table",
    [
        {"run": "a {host}"},
        {"run": "a", "hosts": ["b1"]},
        {"run": "a {host}", "hosts": [1]},
        {"run": "a {host}", "hosts": ["-oProxyCommand=x"]},
        {"run": "a {host}", "hosts": ["b1"], "executor": "dask://h:1"},
    ],
)
def test_tables_that_make_no_sense(table: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="host"):
        parse_hosts("here", table, ("convert", "run"))


def test_resources_are_numbers_above_0() -> None:
    assert parse_resources("here", {"npu": 1}) == {"npu": 1.0}
    for wrong in (0, -1, "1", True):
        with raises(UsageError, "executor.wrong-resources", "npu"):
            parse_resources("here", {"npu": wrong})
