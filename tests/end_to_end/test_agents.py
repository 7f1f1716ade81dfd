"""A program that reads only `--brief` and runs only what `next` names reaches the culprit."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import agents

TASKS = 8  # a fault at one node and one at two nodes per network, and two mistakes of wrappers
MAX_BYTES = 6_000


@pytest.mark.slow
def test_the_next_commands_lead_to_the_culprit(tmp_path: Path) -> None:
    tasks = list(agents.iter_tasks(tmp_path))
    faults = [task for task in tasks if task.nodes]
    mistakes = [task for task in tasks if task.word]
    chosen = [*faults[:: agents.SINGLE + 1][: TASKS - 2], *mistakes[::4]]
    assert {len(task.nodes) for task in chosen} == {0, 1, 2}
    for k, task in enumerate(chosen):
        place = tmp_path / f"task{k}"
        place.mkdir()
        walk = agents.walk(task, place)
        assert walk.solved, (task.name, walk)
        assert walk.commands <= 3
        assert walk.size <= MAX_BYTES, (task.name, walk)
