"""The manual bisection: its log of answers -> the tasks to run next, or the result.

Insight: nothing of a search is stored but its answers. Each command runs the search over them
(`replayed_search`), which takes as long as the reference takes.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from subgraph.bisection.manual import tasks
from subgraph.bisection.manual.records import FedSample, LoggedTask
from subgraph.bisection.manual.replayed_search import ManualBisection, Pending
from subgraph.bisection.manual.sessions import clear
from subgraph.bisection.manual.state import WORDS, ManualState
from subgraph.bisection.manual.tasks import Task
from subgraph.bisection.options import BisectionOptions
from subgraph.cases import case
from subgraph.errors import UsageError
from subgraph.graph import protobuf
from subgraph.graph import region as regions
from subgraph.graph.graph import VALUE, Graph
from subgraph.precision import Precision
from subgraph.runtime.candidate import BY_HAND, Candidate
from subgraph.search import Settings
from subgraph.storage import folders
from subgraph.storage.digest import digest
from subgraph.storage.tensors import Record
from subgraph.text import clean, count
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.session import Setup
from subgraph.trials.trial import Trials

FEW = 3  # nodes that are left out; a region is then named by them
GONE = "put it back; or subcut manual reset, then start anew"


def check(state: ManualState, trials: Trials) -> None:
    """Can the search begin? Nothing is written.

    Raises:
        UsageError, InputError, ModelError, ResultExists: as when a bisection begins.
    """
    trials.model.values.need([*trials.model.graph.inputs, *_drawn(trials.model)])
    with suppress(Pending):
        next(iter(ManualBisection(trials, options_of(state), {})))


def _drawn(model: ReferenceModel) -> list[str]:
    """The outputs of random nodes."""
    graph = model.graph
    return [
        n
        for i in graph.in_order(set(model.whole().nodes) & graph.random_nodes)
        for n in graph.makes[i]
    ]


def make_folder(folder: Path) -> None:
    """
    Raises:
        OutputError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise folders.unwritable(folder.parent, e) from e


def begin(state: ManualState, model: ReferenceModel) -> None:
    """Keep the values that are fed, and save the state for the first time; an earlier session in
    the folder is removed.

    Raises:
        OutputError: it cannot be written.
    """
    graph = model.graph
    values = model.values
    drawn = _drawn(model)
    clear(state.folder)
    try:
        for k, (captured, records) in enumerate(zip(values.captured, values.records, strict=True)):
            tensors = [
                _keep(state.folder, records[n], f"input_{i}", k, "inputs")
                for i, n in enumerate(graph.inputs)
            ]
            tensors += [
                _keep(state.folder, records[n], f"node_{i}", k, "drawn")
                for i, n in enumerate(drawn)
            ]
            fed = list(captured.fed.values())
            origins = captured.origins
            texts = {n: str(o) for n, o in origins.items()}
            kinds = {n: o.kind for n, o in origins.items()}
            state.samples.append(FedSample(captured.label, fed, texts, tensors, kinds))
        if state.recorded:
            outputs = [
                [
                    _keep(state.folder, record, f"output_{i}", k, "recorded")
                    for i, record in enumerate(sample)
                ]
                for k, sample in enumerate(state.recorded.outputs)
            ]
            state.recorded = replace(state.recorded, outputs=outputs)
    except OSError as e:
        raise folders.unwritable(state.folder, e) from e
    state.save()


def _keep(folder: Path, record: Record, stem: str, k: int, kind: str) -> Record:
    """Copy a value of sample `k`; its record, relative to `folder`. Values that no file can feed go
    to `drawn`."""
    into = f"{kind if record.form == 'tensor' else 'drawn'}/{k}"
    (folder / into).mkdir(parents=True, exist_ok=True)
    files = tuple(f"{into}/{stem}{f'#{j}' if j else ''}.npy" for j in range(len(record.files)))
    for source, target in zip(record.files, files, strict=True):
        shutil.copyfile(source, folder / target)
    return replace(record, files=files)


def model_digest(graph: Graph) -> str:
    """Digest of a model's structure and all its weights."""
    weights = [t for t in graph.weights.values() if protobuf.on_disk(t)]
    return digest(graph.skeleton.structure, protobuf.weights_digest(weights, graph.path))


def options_of(state: ManualState) -> BisectionOptions:
    """The bisection of a session."""
    request = state.request
    claim = request.precision or Precision.of_type(
        state.task_format.form.dtype.removeprefix("u")
    )  # of its inputs
    candidate = Candidate(state.name, BY_HAND, precision=claim)
    setup = Setup(candidate, state.feeding, state.folder.parent, request.criterion, request.freeze)
    notes = (*request.notes, *_notes(state))
    return BisectionOptions(
        setup, Settings(steady=True), request.within, request.command, notes, request.force
    )


def setup_of(state: ManualState) -> Setup:
    """Its setup, fed with the values kept when the session began, whatever has become of the user's
    files."""
    setup = options_of(state).setup
    folder = state.folder.resolve() / "inputs"
    kept = (str(folder),) if folder.is_dir() else ()
    return replace(setup, feeding=replace(setup.feeding, inputs=kept))


def _notes(state: ManualState) -> Iterator[str]:
    answers = count(len(state.log), "answer")
    rounds = count(state.rounds, "round")
    repeated = "nothing was repeated, so intermittent faults go unnoticed"
    if state.request.repeat > 1:
        repeated = f"each piece was run {state.request.repeat} times"
    yield f"run by hand: {answers} in {rounds}; {repeated}"
    if state.recorded:
        yield (
            f"the recording {state.recorded.name} only guided the search: every reported node"
            " was run"
        )
    for word in WORDS:
        if number := sum(answer.word == word for answer in state.log):
            yield f"{count(number, 'answer')} without outputs: {word}"


def restore(state: ManualState, model: ReferenceModel) -> None:
    """Give the trials the values with which the session began.

    Raises:
        UsageError: they are gone.
    """
    values = model.values
    home = str(state.folder.resolve())
    if len(state.samples) != len(values.samples):
        raise UsageError(
            f"inputs in {clean(str(state.folder))} are gone", GONE, code="manual.inputs-gone"
        )
    values.samples = [
        replace(s, label=fed.label) for s, fed in zip(values.samples, state.samples, strict=True)
    ]
    for known, fed in zip(values.records, state.samples, strict=True):
        for record in fed.tensors:
            for file in record.files:
                if not (state.folder / file).is_file():
                    raise UsageError(
                        f"{clean(str(state.folder / file))} is gone",
                        GONE,
                        code="manual.inputs-gone",
                    )
            known[record.name] = record.within(home)
    values.captured = [fed.captured for fed in state.samples]


def advance(state: ManualState, trials: Trials) -> tuple[ManualBisection, bool, int]:
    """Run the search over the answers, and prepare the tasks that it needs next.

    Returns the bisection, whether it has ended, and how many of its steps were shown before.

    Raises:
        ResultExists: another result stands where this one should go. ModelError: the reference
            fails.
        OutputError: nothing can be written.
    """
    repeat = state.request.repeat
    bisection = ManualBisection(trials, options_of(state), state.results(), state.evidence, repeat)
    ended = True
    try:
        for _ in bisection:
            pass
        state.open = []
    except Pending as pending:
        ended = False
        _prepare(
            state,
            trials.model,
            pending,
            bisection.by_hand.next_tasks(pending, state.request.batch * repeat),
        )
    shown, state.shown, state.settled = state.shown, len(bisection.new_steps), True
    state.save()
    state.remove_closed_tasks()
    return bisection, ended, shown


def _prepare(
    state: ManualState, model: ReferenceModel, pending: Pending, next_tasks: Sequence[Task]
) -> None:
    """Number the tasks and write their folders; complete ones stay."""
    by_key = {t.key: t for t in state.tasks}
    needed = {t.key for t in pending.tasks}
    next_round = 1 + max((state.task(answer.number).round for answer in state.log), default=0)
    opened = []
    state.todo.mkdir(exist_ok=True)
    for task in next_tasks:
        logged = by_key.get(task.key)
        number = logged.number if logged else 1 + max((t.number for t in state.tasks), default=0)
        if not tasks.is_complete(state.todo, number, task.key):
            tasks.write_task(model, task, number, state.todo, state.task_format, state.feeding)
        own_round = logged.round if logged and number in state.open else next_round
        what = _what(task, state.todo / str(number), model)
        what += (
            f" (run {task.run + 1} of {state.request.repeat})" if state.request.repeat > 1 else ""
        )
        new = LoggedTask(number, task.key, what, own_round, task.key in needed)
        state.tasks = [*(t for t in state.tasks if t.number != number), new]
        opened.append(number)
    state.open = opened


def _what(task: Task, folder: Path, model: ReferenceModel) -> str:
    """A task in words: the part of the model, and further outputs."""
    graph = model.graph
    region = task.region
    whole = model.whole()
    inner = len(region.outputs) - len(regions.of_nodes(graph, region.nodes).outputs)
    more = f", with {count(inner, 'intermediate tensor')} as outputs" if inner > 0 else ""
    inside = set(region.nodes)
    kinds = graph.kinds([n for i in whole.nodes for n in graph.makes[i]])
    without = [
        i for i in whole.nodes if i not in inside and any(kinds[n] == VALUE for n in graph.makes[i])
    ]
    if not without:
        return f"the whole model{more}"
    if len(without) <= FEW < len(region.nodes):
        return f"all but {', '.join(graph.label(i) for i in without)}{more}"
    return tasks.span_of(case.read_manifest(folder) or {}) + more
