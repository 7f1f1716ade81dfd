"""A manual session: its log of answers -> the tasks to run next, or the result.

Nothing of a search is stored but its answers. Each command runs the search over them
(`manual.search`), which takes as long as the reference takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from subgraph.errors import UsageError
from subgraph.graph import protobuf, region as regions
from subgraph.graph.graph import Graph
from subgraph.precision import Precision
from subgraph.questions.bisection.manual import tasks
from subgraph.questions.bisection.manual.manual_search import ManualBisection, Pending
from subgraph.questions.bisection.manual.manual_session import (
    DEVICE,
    WORDS,
    LoggedTask,
    Session,
    clear,
)
from subgraph.questions.bisection.manual.tasks import Task, TaskFormat, format_span, read_task
from subgraph.questions.bisection.options import BisectionOptions
from subgraph.runtime.candidate import BY_HAND, Candidate
from subgraph.search import Settings
from subgraph.storage import folders
from subgraph.storage.digest import digest
from subgraph.text import count
from subgraph.trials.open_trials import Setup
from subgraph.trials.trial import Trials
from subgraph.types import frozen


def digest_model(graph: Graph) -> str:
    """Digest of a model's structure and all its weights."""
    weights = [t for t in graph.weights.values() if protobuf.is_on_disk(t)]
    return digest(graph.skeleton.structure, protobuf.digest_weights(weights, graph.path))


# ------------------------------------------------------------ beginning


def check(session: Session, trials: Trials) -> str:
    """Check that the search can begin, and return the digest of its inputs. Nothing is written.

    Raises:
        UsageError, InputError, ModelError, ResultExists: as when a bisection begins.
    """
    graph = trials.graph
    if graph.random_nodes:
        raise UsageError(
            f"{graph.label(min(graph.random_nodes))} draws other random numbers in each command",
            "subcut cut separates a part without random nodes",
            code="manual.random",
        )
    with suppress(Pending):
        next(iter(ManualBisection(trials, read_options(session), {})))
    return _digest_inputs(trials)


def _digest_inputs(trials: Trials) -> str:
    """Digest of all samples that the model is fed."""
    values = trials.values
    names = trials.graph.inputs
    values.need(names)
    return digest([values.digest([records[n] for n in names]) for records in values.records])


def make_folder(folder: Path) -> None:
    """Make the folder of a session.

    Raises:
        OutputError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise folders.make_write_error(folder.parent, e) from e


def begin(session: Session) -> Session:
    """Save the session for the first time; an earlier session in the folder is removed.

    Raises:
        OutputError: it cannot be written.
    """
    clear(session.folder)
    return session.save()


# ------------------------------------------------------------ going on


def read_options(session: Session) -> BisectionOptions:
    """Return the bisection of a session."""
    request = session.request
    dtype = TaskFormat.parse(request.export).form.dtype  # of the inputs that are handed out
    claim = request.precision or Precision.from_dtype(dtype.removeprefix("u"))
    candidate = Candidate(DEVICE, BY_HAND, precision=claim)
    setup = Setup(
        candidate, session.feeding, session.folder.parent, request.criterion, request.freeze
    )
    notes = (*request.notes, *_iter_notes(session))
    return BisectionOptions(
        setup,
        Settings(steady=True),
        request.within,
        request.command,
        notes,
        request.force,
        by_rewriting=request.by_rewriting,
    )


def _iter_notes(session: Session) -> Iterator[str]:
    answers = count(session.log, "answer")
    repeated = "nothing was repeated, so intermittent faults go unnoticed"
    yield f"run by hand: {answers} in {count(session.rounds, 'round')}; {repeated}"
    for word in WORDS:
        if number := sum(answer.word == word for answer in session.log):
            yield f"{count(number, 'answer')} without outputs: {word}"


def require_same_inputs(session: Session, trials: Trials) -> None:
    """Check that the model is fed the values with which the session began.

    Raises:
        UsageError: It is fed other values.
    """
    if session.fed and session.fed != _digest_inputs(trials):
        raise UsageError(
            "the inputs have changed since this session began",
            "put them back; or subcut manual reset, then start again",
            code="manual.inputs-changed",
        )


@frozen
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
    session = session.restrict_to(results)
    bisection = ManualBisection(trials, read_options(session), results)
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
        session = _prepare(session, next_tasks, needed)
    session = replace(session, shown=len(bisection.steps), settled=True).save()
    for folder in sorted(session.todo.glob("*")):
        number = folder.name.partition("-")[0]
        if number.isdigit() and int(number) not in session.open:
            tasks.remove(folder)
    return Advanced(session, bisection, has_ended, shown)


def _prepare(session: Session, next_tasks: Sequence[Task], needed: set[str]) -> Session:
    """Write the folders of the tasks and give each a number; complete ones stay."""
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
            tasks.write_task(task, number, session.todo, task_format, session.feeding)
        what = _describe_task(task, session.todo / str(number))
        own_round = logged.round if logged and number in session.open else next_round
        opened.append(LoggedTask(number, task.key, what, own_round, task.key in needed))
    numbers = [task.number for task in opened]
    kept = [task for task in session.tasks if task.number not in numbers]
    return replace(session, tasks=[*kept, *opened], open=numbers)


def _describe_task(task: Task, folder: Path) -> str:
    """Return a task in words: the part of the model, and further outputs; or how it is
    rewritten."""
    if task.how:
        return f"the whole model, rewritten: {task.how}"
    region = task.region
    model = task.model
    inner = len(region.outputs) - len(regions.build_region(model.graph, region.nodes).outputs)
    more = f", with {count(inner, 'intermediate tensor')} as outputs" if inner > 0 else ""
    if region.nodes == model.whole().nodes:
        return f"the whole model{more}"
    manifest = read_task(folder)
    return format_span(manifest.region if manifest else None) + more
