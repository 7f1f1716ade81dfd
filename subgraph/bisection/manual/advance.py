"""A manual session: its log of answers -> the tasks to run next, or the result.

Nothing of a search is stored but its answers. Each command runs the search over them
(`manual.search`), which takes as long as the reference takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from subgraph.bisection.manual import tasks
from subgraph.bisection.manual.manual_search import ManualBisection, Pending
from subgraph.bisection.manual.manual_session import (
    WORDS,
    FedSample,
    LoggedTask,
    Session,
    clear,
)
from subgraph.bisection.manual.tasks import Task, TaskFormat, read_task, span_of
from subgraph.bisection.options import BisectionOptions
from subgraph.errors import UsageError
from subgraph.graph import protobuf
from subgraph.graph import region as regions
from subgraph.graph.graph import VALUE, Graph
from subgraph.precision import Precision
from subgraph.runtime.candidate import BY_HAND, Candidate
from subgraph.search import Settings
from subgraph.storage import folders
from subgraph.storage.digest import digest
from subgraph.storage.tensors import Record, copied
from subgraph.text import count
from subgraph.trials.open_trials import Setup
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.trial import Trials

MAX_NAMED = 3  # nodes that are left out; a region is then named by them
GONE = "put it back; or subcut manual reset, then start anew"


def model_digest(graph: Graph) -> str:
    """Digest of a model's structure and all its weights."""
    weights = [t for t in graph.weights.values() if protobuf.on_disk(t)]
    return digest(graph.skeleton.structure, protobuf.weights_digest(weights, graph.path))


# ------------------------------------------------------------ beginning


def check(session: Session, trials: Trials) -> None:
    """Check that the search can begin. Nothing is written.

    Raises:
        UsageError, InputError, ModelError, ResultExists: as when a bisection begins.
    """
    trials.model.values.need([*trials.graph.inputs, *_draw_outputs(trials.model)])
    with suppress(Pending):
        next(iter(ManualBisection(trials, options_of(session), {})))


def _draw_outputs(model: ReferenceModel) -> list[str]:
    """The outputs of random nodes."""
    graph = model.graph
    random_nodes = graph.in_order(set(model.whole().nodes) & graph.random_nodes)
    return list(graph.iter_outputs(random_nodes))


def make_folder(folder: Path) -> None:
    """Make the folder of a session.

    Raises:
        OutputError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise folders.make_write_error(folder.parent, e) from e


def begin(session: Session, model: ReferenceModel) -> Session:
    """Keep the values that are fed, and save the session for the first time; an earlier session in
    the folder is removed.

    Raises:
        OutputError: it cannot be written.
    """
    clear(session.folder)
    try:
        samples = list(_read_kept_samples(session.folder, model))
    except OSError as e:
        raise folders.make_write_error(session.folder, e) from e
    return replace(session, samples=samples).save()


def _read_kept_samples(folder: Path, model: ReferenceModel) -> Iterator[FedSample]:
    values = model.values
    stems = {name: ("inputs", f"input_{i}") for i, name in enumerate(model.graph.inputs)}
    stems |= {name: ("drawn", f"node_{i}") for i, name in enumerate(_draw_outputs(model))}
    for k, (captured, records) in enumerate(zip(values.captured, values.records, strict=True)):
        origins = captured.origins
        yield FedSample(
            captured.label,
            list(captured.fed.values()),
            {name: str(origin) for name, origin in origins.items()},
            [_keep(folder, records[n], stem, k, kind) for n, (kind, stem) in stems.items()],
            {name: origin.kind for name, origin in origins.items()},
        )


def _keep(folder: Path, record: Record, stem: str, k: int, kind: str) -> Record:
    """Copy a value of sample `k`; return its record, relative to `folder`. Values that no file can
    feed go to `drawn`."""
    kind = kind if record.form == "tensor" else "drawn"
    place = f"{kind}/{k}"
    (folder / place).mkdir(parents=True, exist_ok=True)
    return copied(record, folder / place, stem).within(place)


# ------------------------------------------------------------ going on


def options_of(session: Session) -> BisectionOptions:
    """The bisection of a session."""
    request = session.request
    dtype = TaskFormat.parse(request.export).form.dtype  # of the inputs that are handed out
    claim = request.precision or Precision.of_type(dtype.removeprefix("u"))
    candidate = Candidate(request.name, BY_HAND, precision=claim)
    setup = Setup(
        candidate, session.feeding, session.folder.parent, request.criterion, request.freeze
    )
    notes = (*request.notes, *_notes(session))
    return BisectionOptions(
        setup, Settings(steady=True), request.within, request.command, notes, request.force
    )


def setup_of(session: Session) -> Setup:
    """The setup of a session, fed with the values kept when the session began, so that the user's
    files are not needed."""
    setup = options_of(session).setup
    folder = session.folder.resolve() / "inputs"
    kept = (str(folder),) if folder.is_dir() else ()
    return replace(setup, feeding=replace(setup.feeding, inputs=kept))


def _notes(session: Session) -> Iterator[str]:
    answers = count(len(session.log), "answer")
    repeated = "nothing was repeated, so intermittent faults go unnoticed"
    yield f"run by hand: {answers} in {count(session.rounds, 'round')}; {repeated}"
    for word in WORDS:
        if number := sum(answer.word == word for answer in session.log):
            yield f"{count(number, 'answer')} without outputs: {word}"


def restore(session: Session, model: ReferenceModel) -> None:
    """Give the trials the values with which the session began.

    Raises:
        UsageError: they are gone.
    """
    values = model.values
    if len(session.samples) != len(values.samples):
        place = session.folder
        raise UsageError(f"inputs in {place} are gone", GONE, code="manual.inputs-gone")
    home = str(session.folder.resolve())
    for known, fed in zip(values.records, session.samples, strict=True):
        for record in fed.tensors:
            kept = record.within(home)
            if missing := [file for file in kept.files if not Path(file).is_file()]:
                raise UsageError(f"{missing[0]} is gone", GONE, code="manual.inputs-gone")
            known[record.name] = kept
    values.samples = [
        replace(sample, label=fed.label)
        for sample, fed in zip(values.samples, session.samples, strict=True)
    ]
    values.captured = [fed.captured for fed in session.samples]


@dataclass(frozen=True)
class Advanced:
    """A session after the search was run over its answers.

    Attributes:
        session: the session, with the tasks that are open.
        bisection: the bisection.
        has_ended: whether the search has ended.
        shown: how many of the bisection's steps were shown before.
    """

    session: Session
    bisection: ManualBisection
    has_ended: bool
    shown: int


def advance(session: Session, trials: Trials) -> Advanced:
    """Run the search over the answers, and prepare the tasks that it needs next.

    Raises:
        ResultExists: another result exists where this one should go.
        ModelError: the reference fails.
        OutputError: nothing can be written.
    """
    results = session.results()
    session = session.restricted_to(results)
    bisection = ManualBisection(trials, options_of(session), results)
    shown = session.shown
    has_ended = True
    try:
        for _ in bisection:
            pass
        session = replace(session, open=[])
    except Pending as pending:
        has_ended = False
        next_tasks = bisection.oracle.next_tasks(pending, session.request.batch)
        needed = {task.key for task in pending.tasks}
        session = _prepare(session, bisection.oracle.trials.model, next_tasks, needed)
    session = replace(session, shown=len(bisection.steps), settled=True).save()
    for folder in sorted(session.todo.glob("*")):
        number = folder.name.partition("-")[0]
        if number.isdigit() and int(number) not in session.open:
            tasks.remove(folder)
    return Advanced(session, bisection, has_ended, shown)


def _prepare(
    session: Session, model: ReferenceModel, next_tasks: Sequence[Task], needed: set[str]
) -> Session:
    """Number the tasks and write their folders; complete ones stay."""
    by_key = {task.key: task for task in session.tasks}
    next_round = 1 + max((session.task(a.number).round for a in session.log), default=0)
    next_number = 1 + max((task.number for task in session.tasks), default=0)
    task_format = TaskFormat.parse(session.request.export)
    opened = []
    session.todo.mkdir(exist_ok=True)
    for task in next_tasks:
        logged = by_key.get(task.key)
        number = logged.number if logged else next_number
        next_number += not logged
        if not tasks.is_complete(session.todo, number, task.key):
            tasks.write_task(model, task, number, session.todo, task_format, session.feeding)
        what = _what(task, session.todo / str(number), model)
        own_round = logged.round if logged and number in session.open else next_round
        opened.append(LoggedTask(number, task.key, what, own_round, task.key in needed))
    numbers = [task.number for task in opened]
    kept = [task for task in session.tasks if task.number not in numbers]
    return replace(session, tasks=[*kept, *opened], open=numbers)


def _what(task: Task, folder: Path, model: ReferenceModel) -> str:
    """A task in words: the part of the model, and further outputs."""
    graph = model.graph
    region = task.region
    whole = model.whole()
    inner = len(region.outputs) - len(regions.build_region(graph, region.nodes).outputs)
    more = f", with {count(inner, 'intermediate tensor')} as outputs" if inner > 0 else ""
    outside = [i for i in whole.nodes if i not in set(region.nodes)]
    kinds = graph.kinds(list(graph.iter_outputs(outside)))
    without = [i for i in outside if any(kinds[name] == VALUE for name in graph.makes[i])]
    if not without:
        return f"the whole model{more}"
    if len(without) <= MAX_NAMED < len(region.nodes):
        return f"all but {', '.join(graph.label(i) for i in without)}{more}"
    manifest = read_task(folder)
    span = span_of(manifest.region) if manifest else ""
    return f"{span}{more}"
