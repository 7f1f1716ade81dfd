"""`subcut manual`: the bisection of a device that nobody can call: it says what to run, and takes what came of it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from subgraph import project
from subgraph.cases import case
from subgraph.commands import Result, log, options, resolve
from subgraph.commands.options import Number, Text, option
from subgraph.documents import to_json
from subgraph.errors import InputError, UsageError
from subgraph.graph.graph import load
from subgraph.text import clean, count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from subgraph.bisection.manual.replayed_search import ManualBisection
    from subgraph.bisection.manual.state import ManualState
    from subgraph.search import Step
    from subgraph.trials.trial import Trials

SCHEMA = "subcut.manual/1"
DEVICE = "device"
SPAN_WIDTH = 44  # characters of the nodes that a step is about
MAX_BATCH = 64  # tasks at once

Name = Annotated[Text, option("--name", "NAME", "Which loop, where several stand side by side.")]
Numbers = Annotated[list[str] | None, typer.Argument(metavar="[K]…", help="Which questions; the only one if left out.")]


@options.with_option_groups("timeout", "memory_limit", "fresh")
def start(
    *,
    model: options.ModelArgument = None,
    name: Annotated[str, option("--name", "NAME", "What the device is called.")] = DEVICE,
    export: Annotated[
        str, option("--export", "bin:float16:NHWC", "The form of the inputs: FORMAT[:DTYPE][:LAYOUT].")
    ] = "npy,bin",
    batch: Annotated[int, option("--batch", "N", "So many questions for one trip to the device; 1.")] = 1,
    within: options.Within = None,
    inputs: options.InputOptions,
    comparison: options.CriterionOptions,
    runtime: options.RuntimeOptions,
    no_freeze: options.NoFreeze = False,
    result: options.ResultOptions,
) -> Result:
    """Begin: prepare what is to be run first. Without --precision it is that of the exported inputs."""
    from subgraph.bisection.manual import advance, state
    from subgraph.bisection.manual.tasks import TaskFormat
    from subgraph.runtime import candidate
    from subgraph.trials.session import open_trials

    settings = project.load()
    model_path = resolve.model_path(settings, model)
    criterion = resolve.criterion(settings, comparison)
    _check_batch(batch)
    feeding = resolve.feeding(settings, inputs)
    notes = resolve.log_random_inputs(feeding)
    custom_ops = settings.get("custom_ops", runtime.custom_ops, "")
    request: dict[str, Any] = {
        "name": name,
        "export": TaskFormat.parse(export).words,
        "batch": batch,
        "within": within or "",
        "criterion": criterion,
        "precision": candidate.precision("--precision", runtime.precision),
        "freeze": not no_freeze,
        "reference": settings.get("reference", runtime.reference, "ort"),
        "custom_ops": str(Path(custom_ops).resolve()) if custom_ops else "",
        "feeding": to_json(feeding.options),
        "command": shlex.join(["subcut", *sys.argv[1:]]),
        "notes": notes,
        "force": result.force,
    }
    folder = state.place_of(resolve.parent_folder(settings, result.output), name)
    state.require_none(folder, result.force)
    with resolve.reference(settings, runtime, result.trust) as reference:
        graph = load(model_path)
        model_identity = {"path": str(model_path.resolve()), "digest": advance.identity(graph)}
        loop = state.ManualState(folder, request, model_identity, [])
        with open_trials(graph, advance.plan_of(loop).setup, reference) as trials:
            advance.check(loop, trials)
            advance.make(folder)
            with state.alone(folder):
                advance.begin(loop, trials)
                return _advanced(loop, trials)


def _check_batch(batch: int | None) -> None:
    if batch is not None and not 1 <= batch <= MAX_BATCH:
        raise UsageError(f"--batch {batch}: expected 1 to {MAX_BATCH}")


def next_(
    name: Name = None,
    output: options.Output = None,
    batch: Annotated[Number, option("--batch", "N", "So many questions for one trip from now on.")] = None,
) -> Result:
    """Say again what is to be run; what is missing of it is written anew."""
    _check_batch(batch)
    with _loop(output, name) as loop:
        if batch is not None:
            loop.request["batch"] = batch
        return _going_on(loop)


def good(numbers: Numbers = None, name: Name = None, output: options.Output = None) -> Result:
    """The device's outputs are right; nobody needs to bring them."""
    return _said("good", numbers, name, output)


def bad(numbers: Numbers = None, name: Name = None, output: options.Output = None) -> Result:
    """They are wrong. Bringing them (`take`) tells more: how much, and whether that explains the whole."""
    return _said("bad", numbers, name, output)


def skip(numbers: Numbers = None, name: Name = None, output: options.Output = None) -> Result:
    """The device cannot run this one. If that is so of the whole model, what it cannot run is looked for."""
    return _said("skip", numbers, name, output)


def take(
    folder: Annotated[
        str | None,
        typer.Argument(metavar="DIR", help="Where the outputs are; each question's from_device/ if not given."),
    ] = None,
    number: Annotated[Number, option("--number -k", "K", "Only of this question.")] = None,
    name: Name = None,
    output: options.Output = None,
) -> Result:
    """Read the outputs that came back, .npy or headerless .bin, and judge them.

    DIR holds the outputs of the one question, or a folder 1, 2, … for each.
    """
    with _loop(output, name) as loop:
        finished = None if loop.settled else _going_on(loop)  # a command that was killed
        try:
            numbers = loop.take(None if folder is None else Path(folder), number)
        except (UsageError, InputError):
            if finished is None:
                raise
            return finished
        log.info("taken: %s", ", ".join(map(str, numbers)))
        return _going_on(loop)


def log_(name: Name = None, output: options.Output = None) -> Result:
    """What was answered up to here, in order."""
    with _loop(output, name) as loop:
        rows = [
            {"number": s.number, "what": loop.of(s.number).what, "said": s.word, "when": s.when, "command": s.step}
            for s in loop.log
        ]
    width = max((len(clean(str(row["what"]))) for row in rows), default=0)
    lines = [f"{r['number']:>3}  {clean(str(r['what'])):<{width}}  {r['said']:<5}  {r['when']}" for r in rows]
    document = {"schema": SCHEMA, "exit_code": 0, "name": loop.name, "folder": str(loop.folder), "log": rows}
    return Result(document, "\n".join(lines) or "nothing was answered yet")


def undo(
    commands: Annotated[int, typer.Argument(metavar="[N]", help="Of so many commands.")] = 1,
    name: Name = None,
    output: options.Output = None,
) -> Result:
    """Take back what the last command answered."""
    with _loop(output, name) as loop:
        back = loop.undo(commands)
        log.info("taken back: %s", ", ".join(map(str, back)))
        return _going_on(loop)


def reset(name: Name = None, output: options.Output = None) -> Result:
    """End the loop and remove it; what subcut did not write stays."""
    from subgraph.bisection.manual import state

    folder = state.find(_parent(output), name)
    with state.alone(folder):
        left = state.clear(folder)
    with suppress(OSError):  # it holds something else
        folder.rmdir()
    document = {"schema": SCHEMA, "exit_code": 0, "folder": str(folder), "left": [str(p) for p in left]}
    return Result(document, f"{clean(str(folder))} is no loop any more{'; it holds other files' if left else ''}")


ACTIONS: dict[str, Callable[..., Result]] = {
    "start": start,
    "next": next_,
    "good": good,
    "bad": bad,
    "skip": skip,
    "take": take,
    "log": log_,
    "undo": undo,
    "reset": reset,
}

# ---------------------------------------------------------------------------------------------------- the parts


def _parent(output: str | None) -> Path:
    return resolve.parent_folder(project.load(), output)


@contextmanager
def _loop(output: str | None, name: str | None) -> Iterator[ManualState]:
    from subgraph.bisection.manual import state

    with state.opened(state.find(_parent(output), name)) as loop:
        yield loop


def _said(word: str, numbers: list[str] | None, name: str | None, output: str | None) -> Result:
    chosen = [_number(text) for text in numbers or ()]
    with _loop(output, name) as loop:
        if not loop.settled:  # a command that was killed: this one, it seems
            finished = _going_on(loop)
            before = [said.number for said in loop.log if said.word == word]
            if before and set(chosen or before[-1:]) <= set(before):
                return finished
        loop.say(chosen, word)
        return _going_on(loop)


def _number(text: str) -> int:
    if not text.isdigit():
        raise UsageError(f"'{text}' is no number of a question", "subcut manual next lists them")
    return int(text)


def _going_on(loop: ManualState) -> Result:
    """Run the search over the answers.

    Raises:
        UsageError: the model is gone, or has changed.
    """
    from subgraph.bisection.manual import advance
    from subgraph.trials.session import open_trials

    path = Path(loop.model["path"])
    if not path.is_file():
        raise UsageError(f"the model {clean(str(path))} is gone", "put it back; or subcut manual reset")
    r = loop.request
    runtime = options.RuntimeOptions(reference=r["reference"], custom_ops=r["custom_ops"] or None)
    with resolve.reference(project.load(), runtime, trust=False) as reference:
        graph = load(path)
        if advance.identity(graph) != loop.model["digest"]:
            hint = "put the old one back; or subcut manual start --force begins anew with this one"
            raise UsageError(f"{clean(path.name)} has changed since this loop began", hint)
        with open_trials(graph, advance.setup_of(loop), reference) as trials:
            advance.restore(loop, trials)
            return _advanced(loop, trials)


def _advanced(loop: ManualState, trials: Trials) -> Result:
    """What the answers came to: the end of the search, or what is to be run next."""
    from subgraph.bisection.manual import advance

    document, steps, job = advance.advance(loop, trials)
    for step in steps:
        log.info(_line(job, step))
    base: dict[str, Any] = {
        "schema": SCHEMA,
        "exit_code": document["exit_code"] if document else 0,
        "name": loop.name,
        "folder": str(loop.folder),
        "ended": document is not None,
        "answers": len(loop.log),
        "trips": loop.trips,
        "open": [_open(loop, n) for n in loop.open],
        "result": document,
    }
    if document is not None:
        from subgraph import plugins

        log.info("the search has ended: %s in %s", count(len(loop.log), "answer"), count(loop.trips, "trip"))
        text: str = plugins.load("reports", "text").render(document)
        return Result(base, text.rstrip("\n"), base["exit_code"])
    return Result(base, "\n".join(_todo(loop, base["open"], job)))


def _open(loop: ManualState, number: int) -> dict[str, Any]:
    from subgraph.bisection.manual import results, tasks
    from subgraph.cases.layout import FROM_DEVICE

    places = tasks.places(loop.todo, number)
    first = case.read_manifest(places[0]) or {}
    return {
        "number": number,
        "what": loop.of(number).what,
        "needed": number == loop.open[0],
        "folders": [str(p) for p in places],
        "put": [str(p / FROM_DEVICE) for p in places],
        "inputs": [t["name"] for t in first.get("inputs", ())],
        "outputs": [str(w) for *_, files in results.wanted(first) for w in files],
    }


def _todo(loop: ManualState, rows: Sequence[dict[str, Any]], job: ManualBisection) -> list[str]:
    """What to do next, in words."""
    steps = job.new_steps
    more = f", about {steps[-1].more} more to come" if steps and steps[-1].more else ""
    lines = [f"{count(len(loop.log), 'answer')} so far{more}; to be run on {clean(loop.name)}:"]
    width = max(len(clean(row["what"])) for row in rows)
    for row in rows:
        ahead = "" if row["needed"] else "   (ahead: it may spare a trip)"
        lines.append(f"{row['number']:>3}  {clean(row['what']):<{width}}  {clean(row['folders'][0])}/{ahead}")
    first = rows[0]["outputs"]
    wanted = clean(first[0]) if len(first) == 1 else f"{count(len(first), 'output')}, as TODO.txt lists them"
    lines.append(f"outputs of {rows[0]['number']} go to {clean(rows[0]['put'][0])}/: {wanted}")
    own = "" if len(rows) == 1 else f" {rows[0]['number']}"
    which = "" if loop.name == DEVICE else f" --name {shlex.quote(clean(loop.name))}"
    words = f"good{own} | bad{own} | skip{own}"
    return [*lines, f"then: subcut manual take{which}   or without outputs: subcut manual {words}{which and ' …'}"]


def _line(job: ManualBisection, step: Step) -> str:
    """One answer, as the search takes it."""
    nodes = job.nodes(step)
    span = " … ".join(dict.fromkeys(clean(n) for n in nodes[:1] + nodes[-1:])) or "whole model"
    verdict = step.answer.verdict
    error = verdict.worst.errors.get("max_rel") if verdict and verdict.worst else None
    word = "FAIL" if step.outcome == "fail" else step.outcome.value
    share = f"explains {step.answer.share:.0%}" if step.answer.share is not None and word == "FAIL" else ""
    size = f"{error:.1e}" if error is not None else ""
    return f"{step.number:>3}  {step.purpose.value:<8}  {span:<{SPAN_WIDTH}}  {size:>7}  {word}  {share}".rstrip()
