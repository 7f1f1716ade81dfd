"""The time that a command has: one object, which every process of it follows."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from subgraph.errors import OutOfTime
from subgraph.runtime.deadline import Deadline, if_time
from subgraph.runtime.reference import Reference

SLEEPS = """
import time
def load(model, options):
    if model.name == "slow.onnx":
        time.sleep(600)
    return lambda feeds: {}
"""


def test_deadline_shortens_each_timeout() -> None:
    assert Deadline().timeout(5.0) == 5.0 and Deadline().timeout(math.inf) == math.inf
    assert 0 < Deadline(time.monotonic() + 100).timeout(500) <= 100
    assert Deadline(time.monotonic() - 1).timeout(5.0) == 0


def test_optional_runs_are_omitted_after_the_time_limit() -> None:
    assert if_time(lambda: 1, 2) == 1
    assert if_time(Deadline(0.0).require, None) is None


def test_reference_is_ended_at_the_deadline_and_starts_again_where_there_is_time_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "sleeps.py").write_text(SLEEPS)
    deadline = Deadline()
    with Reference(str(tmp_path / "sleeps.py")) as reference:
        reference.share(deadline)
        reference.load("quick", Path("quick.onnx"))
        deadline.at = time.monotonic() + 0.05
        with pytest.raises(OutOfTime):
            reference.load("slow", Path("slow.onnx"))
        with pytest.raises(OutOfTime):
            reference.load("quick", Path("quick.onnx"))
        reference.drop("quick")
        deadline.at = math.inf
        reference.load("quick", Path("quick.onnx"))
        assert reference.run("quick", tmp_path, {}, []).tensors == ()
