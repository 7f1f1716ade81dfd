"""The open tasks of a manual bisection, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from subgraph import system
from subgraph.text import clean, count

if TYPE_CHECKING:
    from subgraph.bisection.manual.manual_search import ManualBisection
    from subgraph.bisection.manual.manual_session import Session


@dataclass(frozen=True)
class OpenTask:
    """A task that has no answer yet. `needed`: the search waits for it; `put`: the folders for its
    outputs."""

    number: int
    what: str
    needed: bool
    folders: list[str]
    put: list[str]
    inputs: list[str]
    outputs: list[str]


def open_task(manual: Session, number: int) -> OpenTask:
    """An open task, with its folders and what is to come back."""
    from subgraph.bisection.manual import outputs, tasks
    from subgraph.cases.layout import FROM_DEVICE

    task = manual.task(number)
    folders = tasks.folders_of(manual.todo, number)
    manifest = tasks.read_task(folders[0])
    expected = outputs.list_expected_outputs(manifest) if manifest else []
    return OpenTask(
        number=number,
        what=task.what,
        needed=task.needed,
        folders=[str(folder) for folder in folders],
        put=[str(folder / FROM_DEVICE) for folder in folders],
        inputs=[tensor.name for tensor in (manifest and manifest.inputs) or ()],
        outputs=[str(file) for file in chain.from_iterable(output.files for output in expected)],
    )


def next_steps(
    manual: Session, tasks: Sequence[OpenTask], bisection: ManualBisection, usual: Path
) -> list[str]:
    """The tasks and the next command, in words; `usual`: the folder of results that need not be
    named."""
    seen = bisection.steps
    more = (
        f", about {seen[-1].estimated_runs} more to come"
        if seen and seen[-1].estimated_runs
        else ""
    )
    lines = [f"{count(len(manual.log), 'answer')} so far{more}; to be run on the device:"]
    width = max(len(clean(task.what)) for task in tasks)
    for task in tasks:
        ahead = "" if task.needed else "   (optional now; may save a round)"
        lines.append(
            f"{task.number:>3}  {clean(task.what):<{width}}  {clean(task.folders[0])}/{ahead}"
        )
    first = tasks[0]
    several = f"{count(len(first.outputs), 'output')}, as TODO.txt lists them"
    outputs = clean(first.outputs[0]) if len(first.outputs) == 1 else several
    lines.append(f"outputs of {first.number} go to {clean(first.put[0])}/: {outputs}")
    number = "" if len(tasks) == 1 else f" {first.number}"
    parent = manual.folder.parent
    place = "" if parent.resolve() == usual.resolve() else f" -o {system.quote(clean(str(parent)))}"
    words = f"good{number} | bad{number} | skip{number}"
    return [
        *lines,
        (f"then: subcut manual take{place}   or without outputs: subcut manual {words}{place}"),
    ]
