"""`subcut manual`: a bisection of a device that only a person can run: tasks to run there, outputs
taken back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from subgraph import project, system
from subgraph.commands import Result, can_ask, make_command_line, options, resolve
from subgraph.commands.live import format_step
from subgraph.commands.options import Number, option
from subgraph.commands.resolve import ResolvedOptions
from subgraph.commands.table import make_next
from subgraph.errors import InputError, UsageError
from subgraph.graph.graph import load
from subgraph.iterables import flatten
from subgraph.log import log
from subgraph.precision import Precision
from subgraph.questions.bisection.manual import MAX_BATCH
from subgraph.results.commands import GivenAnswer, ManualLog, ManualProgress, ManualReset
from subgraph.text import clean, count
from subgraph.trust import remember
from subgraph.types import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from subgraph.questions.bisection.manual.manual_search import ManualBisection
    from subgraph.questions.bisection.manual.manual_session import Session
    from subgraph.trials.trial import Trials


BATCHES = (1, MAX_BATCH)
HELP = """Find the wrong piece on a device that you operate by hand.

The search of `subcut bisect`, as folders (tasks) to run on the device; `take` reads the
outputs that you bring back.

Examples:
  subcut manual start model.onnx
"""

Numbers = Annotated[
    list[str] | None,
    typer.Argument(metavar="K", help="Numbers of tasks; not needed if only one is open."),
]


@options.add_option_groups("timeout", "memory_limit", "fresh")
def start(
    *,
    model: options.ModelArgument = None,
    weights: options.Weights = None,
    export: str = option(
        "--export",
        "bin:float16:NHWC",
        "Form of the inputs: FORMAT[:DTYPE][:LAYOUT]; default npy,bin.",
        default="npy,bin",
    ),
    batch: int = option(
        "--batch", "N", "Tasks to hand out at a time; default 1.", default=1, limits=BATCHES
    ),
    within: options.Within = None,
    by: options.By = None,
    inputs: options.InputOptions,
    comparison: options.CriterionOptions,
    runtime: options.RuntimeOptions,
    no_freeze: options.NoFreeze = False,
    result: options.ResultOptions,
) -> Result:
    """Begin a search, and write the folders to run first.

    Without --precision, the device is assumed to compute in the type of the exported inputs. If
    the device has left layer dumps, `subcut bisect --recorded` prints the command to type here.

    Examples:
      subcut manual start model.onnx --export bin:float16:NHWC --batch 4
    """
    from subgraph.questions.bisection.manual import advance, manual_session as sessions
    from subgraph.questions.bisection.manual.tasks import TaskFormat
    from subgraph.runtime import candidate
    from subgraph.trials.open_trials import open_trials

    resolved = ResolvedOptions(project.load(), model, weights, inputs, comparison, runtime, result)
    settings = resolved.settings
    model_path = resolved.model_path
    criterion = resolved.criterion
    feeding = resolved.feeding
    custom_ops = settings.get("custom_ops", runtime.custom_ops, "")
    claim = candidate.parse_precision("--precision", runtime.precision)
    request = sessions.ManualRequest(
        export=TaskFormat.parse(export).words,
        batch=batch,
        within=within or "",
        criterion=criterion,
        precision=Precision(claim) if claim else None,
        freeze=not no_freeze,
        reference=settings.get(
            "reference", runtime.reference, resolve.choose_usual_reference(model_path)
        ),
        custom_ops=str(Path(custom_ops).resolve()) if custom_ops else "",
        feeding=feeding.options,
        command=make_command_line(),
        notes=(),
        force=result.force,
        by_rewriting=bool(by),
    )
    folder = sessions.find_folder(resolved.output)
    sessions.require_none(folder, result.force)
    with ExitStack() as stack:
        reference = stack.enter_context(resolved.start_reference())
        graph = load(model_path)
        notes = resolve.log_random_inputs(feeding)
        request = replace(request, feeding=feeding.options, notes=notes)
        manual = sessions.Session(
            folder=folder,
            request=request,
            model=sessions.ModelIdentity(str(model_path.resolve()), advance.digest_model(graph)),
            tasks=[],
            log=[],
            open=[],
            shown=0,
            settled=False,
        )
        setup = replace(advance.read_options(manual).setup, feeding=feeding)
        trials = stack.enter_context(open_trials(graph, setup, reference))
        fed = advance.check(manual, trials)
        advance.make_folder(folder)
        stack.enter_context(sessions.lock_folder(folder))
        sessions.require_none(folder, result.force)  # another command may have begun one meanwhile
        manual = advance.begin(replace(manual, fed=fed))
        # code that the user typed or trusted at the start is trusted until it or the state changes
        remember(resolve.find_criterion_code(manual.request.criterion, manual.origin))
        if other := _read_options(manual).choose_reference():
            remember(other.code)
        return _advance(manual, trials)


def next_(
    output: options.Output = None,
    trust: options.Trust = False,
) -> Result:
    """Show the open tasks; write missing files again."""
    with _open_session(output) as manual:
        return _continue(manual, trust)


def _make_answer(word: str, about: str) -> Callable[..., Result]:
    """Return the command that records an answer to tasks; `about`: its help."""

    def answer(
        numbers: Numbers = None,
        output: options.Output = None,
        trust: options.Trust = False,
    ) -> Result:
        from subgraph.questions.bisection.manual import manual_session

        for text in numbers or ():
            if not text.isdigit():
                raise UsageError(
                    f"'{text}' is not a task number",
                    "subcut manual next lists them",
                    code="manual.unknown-task",
                )
        chosen = list(map(int, numbers or ()))
        with _open_session(output) as manual:
            manual, killed = _finish_killed(manual, trust)
            if killed:
                answered = [answer.number for answer in manual.log if answer.word == word]
                if answered and set(chosen or answered[-1:]) <= set(answered):
                    return killed
            return _continue(manual_session.answer(manual, chosen, word), trust)

    answer.__doc__ = about
    return answer


@options.add_option_groups()
def take(
    folder: Annotated[
        str | None,
        typer.Argument(
            metavar="DIR", help="Folder of the outputs; default: the from_device/ of each task."
        ),
    ] = None,
    number: Number = option("--number -k", "K", "Only the outputs of this task."),
    output: options.Output = None,
    trust: options.Trust = False,
) -> Result:
    """Read the device's outputs (.npy or .bin) and judge them.

    DIR holds the outputs of one task, or a folder 1, 2, … for each task. A task of which a file is
    missing, or does not fit, stays open; the others are taken.

    Examples:
      subcut manual take
      subcut manual take from_board --number 3
    """
    from subgraph.questions.bisection.manual import manual_session

    with _open_session(output) as manual:
        manual, killed = _finish_killed(manual, trust)
        source = None if folder is None else Path(folder)
        try:
            taken = manual_session.take(manual, source, number)
        except (UsageError, InputError):
            if killed is None:
                raise
            return killed
        log.info("taken: %s", ", ".join(map(str, taken.numbers)))
        for open_, e in taken.problems.items():
            log.warning("%d stays open: %s (%s)", open_, e.what, e.hint)
        result = _continue(taken.session, trust)
        left = [{"number": n, "why": e.what, "hint": e.hint} for n, e in taken.problems.items()]
        return replace(result, answer=result.document | {"stay_open": left})


def log_(output: options.Output = None) -> Result:
    """List the answers, in order."""
    with _open_session(output) as manual:
        rows = [
            GivenAnswer(
                answer.number,
                manual.task(answer.number).what,
                answer.word,
                answer.when,
                answer.command,
            )
            for answer in manual.log
        ]
    width = max((len(clean(row.what)) for row in rows), default=0)
    lines = [f"{r.number:>3}  {clean(r.what):<{width}}  {r.said:<5}  {r.when}" for r in rows]
    document = ManualLog(folder=str(manual.folder), log=rows)
    return Result(document, "\n".join(lines) or "nothing was answered yet")


def undo(
    output: options.Output = None,
    trust: options.Trust = False,
) -> Result:
    """Take back the answers of the last command."""
    from subgraph.questions.bisection.manual import manual_session

    with _open_session(output) as manual:
        manual, numbers = manual_session.undo(manual)
        log.info("taken back: %s", ", ".join(map(str, numbers)))
        return _continue(manual, trust)


@options.add_option_groups()
def reset(
    output: options.Output = None,
    yes: bool = option("--yes -y", None, "Do not ask."),
) -> Result:
    """End the search and remove its answers; files of others stay."""
    from subgraph.questions.bisection.manual import manual_session as sessions

    folder = sessions.find(_find_parent(output))
    with sessions.lock_folder(folder):
        lost = f"{clean(str(folder))} holds a manual session: {sessions.describe_progress(folder)}"
        if not yes:
            if not can_ask():
                raise UsageError(
                    f"{lost}; reset removes it",
                    "subcut manual log shows the answers; --yes removes them",
                    code="manual.not-confirmed",
                )
            typer.confirm(f"{lost}. Remove it, with all answers?", abort=True, err=True)
        left = sessions.clear(folder)
    with suppress(OSError):  # it holds something else
        folder.rmdir()
    document = ManualReset(folder=str(folder), left=[str(p) for p in left])
    others = ", except for other files" if left else ""
    return Result(document, f"removed {clean(str(folder))}{others}")


ACTIONS: dict[str, Callable[..., Result]] = {
    "start": start,
    "next": next_,
    "good": _make_answer("good", "Answer: the device's outputs are right."),
    "bad": _make_answer("bad", "Answer: the device's outputs are wrong (`take` measures it)."),
    "skip": _make_answer("skip", "Answer: the device cannot run this piece, or the whole model."),
    "take": take,
    "log": log_,
    "undo": undo,
    "reset": reset,
}


def _find_parent(output: str | None) -> Path:
    return ResolvedOptions(result=options.ResultOptions(output)).output


@contextmanager
def _open_session(output: str | None) -> Iterator[Session]:
    """Provide the session in a folder of results, locked in the block."""
    from subgraph.questions.bisection.manual import manual_session as sessions
    from subgraph.questions.bisection.manual.manual_session import Session

    folder = sessions.find(_find_parent(output))
    with sessions.lock_folder(folder):
        yield Session.read(folder)


def _finish_killed(manual: Session, trust: bool) -> tuple[Session, Result | None]:
    """Finish the work of a command that was killed; return the session, and its result."""
    if manual.settled:
        return manual, None
    result = _continue(manual, trust)
    return type(manual).read(manual.folder), result


def _continue(manual: Session, trust: bool) -> Result:
    """Run the search over the recorded answers.

    Raises:
        UsageError: the model is gone, or has changed; or the state names code that is not trusted.
    """
    from subgraph.questions.bisection.manual import advance
    from subgraph.trials.open_trials import open_trials

    path = Path(manual.model.path)
    if not path.is_file():
        raise UsageError(
            f"the model {path} is gone",
            "put it back; or subcut manual reset",
            code="manual.model-gone",
        )
    resolve.require_trust(
        resolve.find_criterion_code(manual.request.criterion, manual.origin), trust
    )
    with _read_options(manual, trust=trust).start_reference() as reference:
        graph = load(path)
        if advance.digest_model(graph) != manual.model.digest:
            raise UsageError(
                f"{path.name} has changed since this session began",
                "put the old one back; or subcut manual start --force starts again with this one",
                code="model.changed",
            )
        with open_trials(graph, advance.read_options(manual).setup, reference) as trials:
            advance.require_same_inputs(manual, trials)
            return _advance(manual, trials)


def _read_options(manual: Session, *, trust: bool = False) -> ResolvedOptions:
    """Return the options that the state of a session holds."""
    request = manual.request
    runtime = options.RuntimeOptions(
        reference=request.reference, custom_ops=request.custom_ops or None
    )
    result = options.ResultOptions(trust=trust)
    return ResolvedOptions(
        runtime=runtime, result=result, path=Path(manual.model.path), origin=manual.origin
    )


def _advance(manual: Session, trials: Trials) -> Result:
    """Return the end of the search, or the tasks to run next."""
    from subgraph.questions.bisection.items import Remaining
    from subgraph.questions.bisection.manual import advance

    advanced = advance.advance(manual, trials)
    manual = advanced.session
    bisection = advanced.bisection
    finding = bisection.result if advanced.has_ended else None
    remaining = Remaining(bisection.suspects)
    for step in bisection.steps:
        labels = bisection.nodes(step)
        remaining.add(step, labels)
        if step.number > advanced.shown:
            log.info(format_step(step, remaining, labels))
    tasks = [open_task(manual, number) for number in manual.open]
    document = ManualProgress(
        exit_code=finding.exit_code if finding else 0,
        folder=str(manual.folder),
        ended=finding is not None,
        answers=len(manual.log),
        trips=manual.rounds,
        open=tasks,
        result=bisection.document if finding else None,
    )
    if finding is None:
        lines = format_next_steps(manual, tasks, bisection, _find_parent(None))
        following = make_next("when the device's outputs lie there", "manual", "take")
        return Result(document, "\n".join(lines), [following] if tasks else [])
    from subgraph import plugins

    answers = count(manual.log, "answer")
    log.info("the search has ended: %s in %s", answers, count(manual.rounds, "round"))
    text: str = plugins.load("reports", "text").render(finding)
    return Result(document, text.rstrip("\n"))


@frozen
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
    """Return an open task, with its folders and what is to come back."""
    from subgraph.cases.layout import FROM_DEVICE
    from subgraph.questions.bisection.manual import outputs, tasks

    task = manual.task(number)
    folders = tasks.list_folders(manual.todo, number)
    manifest = tasks.read_task(folders[0])
    expected = outputs.list_expected_outputs(manifest) if manifest else []
    return OpenTask(
        number=number,
        what=task.what,
        needed=task.needed,
        folders=[str(folder) for folder in folders],
        put=[str(folder / FROM_DEVICE) for folder in folders],
        inputs=[tensor.name for tensor in (manifest and manifest.inputs) or ()],
        outputs=[str(file) for file in flatten(output.files for output in expected)],
    )


def format_next_steps(
    manual: Session, tasks: Sequence[OpenTask], bisection: ManualBisection, usual: Path
) -> list[str]:
    """Return the tasks and the next command, in words; `usual`: the folder of results that need not
    be named."""
    seen = bisection.steps
    if seen and seen[-1].estimated_runs:
        more = f", about {seen[-1].estimated_runs} more to come"
    else:
        more = ""
    lines = [
        f"{count(manual.log, 'answer')} so far{more}; {count(tasks, 'task')} to run on the device"
    ]
    width = max(len(clean(task.what)) for task in tasks)
    for task in tasks:
        ahead = "" if task.needed else "   (optional now; may save a round)"
        lines.append(
            f"{task.number:>3}  {clean(task.what):<{width}}  {clean(task.folders[0])}/{ahead}"
        )
    first = tasks[0]
    several = f"{count(first.outputs, 'output')}, as TODO.txt lists them"
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
