"""The open tasks of a manual bisection, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from subgraph import system
from subgraph.text import clean, count

if TYPE_CHECKING:
    from subgraph.bisection.manual.replayed_search import ManualBisection
    from subgraph.bisection.manual.state import ManualState

DEVICE = "device"


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


def open_task(manual: ManualState, number: int) -> OpenTask:
    """An open task, with its folders and what is to come back."""
    from subgraph.bisection.manual import results, tasks
    from subgraph.cases import case
    from subgraph.cases.layout import FROM_DEVICE

    task = manual.task(number)
    folders = tasks.folders_of(manual.todo, number)
    manifest = case.read_manifest(folders[0]) or {}
    return OpenTask(
        number=number,
        what=task.what,
        needed=task.needed,
        folders=[str(p) for p in folders],
        put=[str(p / FROM_DEVICE) for p in folders],
        inputs=[t["name"] for t in manifest.get("inputs", ())],
        outputs=[
            str(file) for output in results.expected_outputs(manifest) for file in output.files
        ],
    )


def next_steps(
    manual: ManualState, tasks: Sequence[OpenTask], bisection: ManualBisection, usual: Path
) -> list[str]:
    """The tasks and the next command, in words; `usual`: the folder of results that need not be
    named."""
    seen = bisection.new_steps
    more = (
        f", about {seen[-1].estimated_runs} more to come"
        if seen and seen[-1].estimated_runs
        else ""
    )
    lines = [f"{count(len(manual.log), 'answer')} so far{more}; to be run on {clean(manual.name)}:"]
    if manual.recorded and not manual.log:
        told = "known from the recording, which only guides the search:"
        lines = [told, *(f"  {clean(line)}" for line in manual.recorded.lines), *lines]
    lines[:0] = [f"! {clean(line)}" for line in bisection.contradictions]
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
    name = "" if manual.name == DEVICE else f" --name {system.quote(clean(manual.name))}"
    parent = manual.folder.parent
    name += "" if parent.resolve() == usual.resolve() else f" -o {system.quote(clean(str(parent)))}"
    words = f"good{number} | bad{number} | skip{number}"
    return [
        *lines,
        (
            f"then: subcut manual take{name}   or without outputs: subcut manual"
            f" {words}{name and ' …'}"
        ),
    ]
