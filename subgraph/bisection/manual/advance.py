"""The by-hand loop: a log of answers -> what is to be run next, or the result of the bisection.

Insight: nothing of a search is kept but its answers; each command runs it over them (`byhand`), which takes as long as
the reference takes.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from subgraph.bisection.bisection import BisectionOptions
from subgraph.bisection.manual import tasks
from subgraph.bisection.manual.replayed_search import ManualBisection, Pending
from subgraph.bisection.manual.state import LoggedTask, ManualState, clear
from subgraph.bisection.manual.tasks import Task
from subgraph.cases import case
from subgraph.errors import UsageError
from subgraph.graph import protobuf
from subgraph.graph import region as regions
from subgraph.graph.graph import VALUE, Graph
from subgraph.runtime.candidate import BY_HAND, Candidate
from subgraph.search import Settings, Step
from subgraph.storage import folders
from subgraph.storage.digest import digest
from subgraph.storage.tensors import Record
from subgraph.text import clean, count
from subgraph.trials.session import Setup
from subgraph.trials.trial import Trials

FEW = 3  # nodes, so that a region is named by what it leaves out
GONE = "put it back; or subcut manual reset, then start anew"
CLAIMS = {"float16": "fp16", "bfloat16": "bf16", "int8": "int8", "uint8": "int8"}  # of a device that wants such inputs


def check(loop: ManualState, asked: Trials) -> None:
    """Would the search begin? Nothing is written.

    Raises:
        UsageError, InputError, ModelError, ResultExists: as a bisection's beginning.
    """
    asked.values.need([*asked.graph.inputs, *_drawn(asked)])
    with suppress(Pending):
        next(iter(ManualBisection(asked, plan_of(loop), {})))


def _drawn(asked: Trials) -> list[str]:
    graph = asked.graph
    return [n for i in graph.in_order(set(asked.whole().nodes) & graph.random_nodes) for n in graph.makes[i]]


def make(folder: Path) -> None:
    """
    Raises:
        OutputError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise folders.unwritable(folder.parent, e) from e


def begin(loop: ManualState, asked: Trials) -> None:
    """Keep what is fed, and save the loop for the first time; what an earlier one left there is gone.

    Raises:
        OutputError: it cannot be written.
    """
    graph, drawn = asked.graph, _drawn(asked)
    clear(loop.folder)
    try:
        for k, (captured, known) in enumerate(zip(asked.values.captured, asked.values.records, strict=True)):
            tensors = [_kept(loop.folder, known[n], i, k) for i, n in enumerate(graph.inputs)]
            tensors += [_kept(loop.folder, known[n], i, k, "drawn") for i, n in enumerate(drawn)]
            fed = [r.to_json() for r in captured.fed.values()]
            sample = {"label": captured.label, "fed": fed, "origins": dict(captured.origins), "tensors": tensors}
            loop.samples.append(sample)
    except OSError as e:
        raise folders.unwritable(loop.folder, e) from e
    loop.save()


def _kept(folder: Path, record: Record, i: int, k: int, where: str = "inputs") -> dict[str, Any]:
    """A copy of a value of sample `k`, and its record. What can be fed as a file has the name of an input's file."""
    into = f"{where if record.form == 'tensor' else 'drawn'}/{k}"
    (folder / into).mkdir(parents=True, exist_ok=True)
    word = "input" if where == "inputs" else "node"
    files = [f"{into}/{word}_{i}{f'#{j}' if j else ''}.npy" for j in range(len(record.files))]
    for source, target in zip(record.files, files, strict=True):
        shutil.copyfile(source, folder / target)
    return replace(record, files=tuple(files)).to_json()


def identity(graph: Graph) -> str:
    """What tells whether the model has changed: its structure and all its weights."""
    weights = [t for t in graph.weights.values() if protobuf.on_disk(t)]
    return digest(graph.skeleton.structure, protobuf.weights_digest(weights, graph.path))


def plan_of(loop: ManualState) -> BisectionOptions:
    """The bisection that this is."""
    r = loop.request
    claim = r["precision"] or CLAIMS.get(loop.export.form.dtype)
    candidate = Candidate(loop.name, BY_HAND, precision=claim)
    setup = Setup(candidate, loop.feeding, loop.folder.parent, r["criterion"], r["freeze"])
    notes = (*r["notes"], *_notes(loop))
    return BisectionOptions(setup, Settings(steady=True), r["within"], r["command"], notes, r["force"])


def setup_of(loop: ManualState) -> Setup:
    """The same, fed with what was fed when the loop began, whatever became of the files since."""
    setup = plan_of(loop).setup
    folder = loop.folder.resolve() / "inputs"
    own = (str(folder),) if folder.is_dir() else ()
    return replace(setup, feeding=replace(setup.feeding, inputs=own))


def _notes(loop: ManualState) -> Iterator[str]:
    answers, trips = count(len(loop.log), "answer"), count(loop.trips, "trip")
    yield f"asked by hand: {answers} in {trips}; nothing was repeated, so that a device that wavers would not show"
    for word, means in (("good", "good"), ("bad", "bad"), ("skip", "not to be run")):
        if number := sum(said.word == word for said in loop.log):
            yield f"{count(number, 'answer')} without outputs: said to be {means}"


def restore(loop: ManualState, asked: Trials) -> None:
    """Give a session the values that the loop began with.

    Raises:
        UsageError: they are gone.
    """
    values, home, fed = asked.values, str(loop.folder.resolve()), loop.fed()
    if len(fed) != len(values.samples):
        raise UsageError(f"inputs in {clean(str(loop.folder))} are gone", GONE)
    values.samples = [replace(s, label=captured.label) for s, captured in zip(values.samples, fed, strict=True)]
    for known, captured in zip(values.records, fed, strict=True):
        for record in captured.tensors.values():
            for file in record.files:
                if not (loop.folder / file).is_file():
                    raise UsageError(f"{clean(str(loop.folder / file))} is gone", GONE)
            known[record.name] = record.within(home)
    values.captured = fed


def advance(loop: ManualState, asked: Trials) -> tuple[dict[str, Any] | None, list[Step], ManualBisection]:
    """Run the search over the answers, and prepare what it asks next.

    Returns its document, once it has ended; the steps that were not told yet; and itself.

    Raises:
        ResultExists: another result stands where this one should go. ModelError: the reference fails.
        OutputError: nothing can be written.
    """
    job = ManualBisection(asked, plan_of(loop), loop.answers())
    document = None
    try:
        for _ in job:
            pass
        document, loop.open = job.document, []
    except Pending as pending:
        _prepare(loop, asked, job.next_tasks(pending, loop.request["batch"]))
    steps = job.new_steps[loop.told :]
    loop.told, loop.settled = len(job.new_steps), True
    loop.save()
    loop.clear()
    return document, steps, job


def _prepare(loop: ManualState, asked: Trials, questions: Sequence[Task]) -> None:
    """Number the questions and make their folders; those that are there stay."""
    known = {a.key: a for a in loop.asked}
    trip = 1 + max((loop.of(said.number).trip for said in loop.log), default=0)
    opened = []
    loop.todo.mkdir(exist_ok=True)
    for question in questions:
        mine = known.get(question.key)
        number = mine.number if mine else 1 + max((a.number for a in loop.asked), default=0)
        if not tasks.is_there(loop.todo, number, question.key):
            tasks.write(asked, question, number, loop.todo, loop.export, loop.feeding)
        manifest = case.read_manifest(loop.todo / str(number)) or {}
        of = mine.trip if mine and number in loop.open else trip  # with those that it was handed out with
        new = LoggedTask(number, question.key, _what(question, manifest, asked), of)
        loop.asked = [*(a for a in loop.asked if a.number != number), new]
        opened.append(number)
    loop.open = opened


def _what(question: Task, manifest: Mapping[str, Any], asked: Trials) -> str:
    """In words: which part of the model, and with which outputs."""
    region, whole = question.region, asked.whole()
    inner = len(region.outputs) - len(regions.of_nodes(asked.graph, region.nodes).outputs)
    more = f", with {count(inner, 'inner tensor')} as outputs" if inner > 0 else ""
    inside = set(region.nodes)
    graph = asked.graph
    kinds = graph.kinds([n for i in whole.nodes for n in graph.makes[i]])
    without = [i for i in whole.nodes if i not in inside and any(kinds[n] == VALUE for n in graph.makes[i])]
    if not without:
        return f"the whole model{more}"
    if len(without) <= FEW < len(region.nodes):
        return f"all but {', '.join(graph.label(i) for i in without)}{more}"
    return tasks.ends(manifest) + more
