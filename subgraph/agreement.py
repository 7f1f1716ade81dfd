"""A model on a candidate as a test: if it is not right, the failure names the culprit, its cause
and its place.

The whole model runs once on each side. Only if that is not right, a bisection begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import field
from pathlib import Path

from subgraph import reports, system
from subgraph.commands import resolve
from subgraph.commands.options import CriterionOptions, InputOptions, ResultOptions, RuntimeOptions
from subgraph.commands.resolve import Asked
from subgraph.comparison.where import OutputChoice
from subgraph.errors import SubcutError
from subgraph.graph.graph import load
from subgraph.project import Project, parse_seconds
from subgraph.questions.bisection.bisection import Bisection
from subgraph.questions.bisection.options import BisectionOptions
from subgraph.results.bisect import BisectDocument
from subgraph.runtime.python_values import Inputs, make_input_arguments
from subgraph.runtime.remote.remote_pool import open_workers
from subgraph.search import Settings
from subgraph.storage.store import Store
from subgraph.text import clean
from subgraph.trials.candidate_runtime import Form
from subgraph.trials.doubt import Doubt, find_doubt
from subgraph.trials.open_trials import Setup, open_trials
from subgraph.trials.preflight import require_usable
from subgraph.trials.trial import Trials
from subgraph.types import Shapes, StringMap, frozen
from subgraph.verdict import Verdict


@frozen
class Search:
    """The options of the search after a disagreement.

    Attributes:
        output: The folder of its result and of stored answers.
        max_time: Its time limit: `90s`, `10m`.
        command: The command that runs the test again, for the report.
    """

    output: Path
    max_time: str
    command: str


@frozen
class Disagreement:
    """The reason why a model is not known to be right.

    Attributes:
        lines: The answer for people, the verdict first.
        places: The paths of `case` and `report`, if they were written.
    """

    lines: Sequence[str]
    places: StringMap = field(default_factory=dict)


def find_disagreement(
    settings: Project,
    model: str,
    spec: str | None,
    inputs: Inputs,
    search: Search,
    *,
    trust: bool,
    criterion: str | None = None,
    reference: str | None = None,
    shapes: Shapes | None = None,
    seed: int | None = None,
    may_be_empty: Sequence[str] = (),
) -> Disagreement | None:
    """Return the disagreement of a candidate with a model; None if the candidate is right.

    It is right if every output of every sample was compared, and none is wrong.

    An argument that is None comes from `settings`. `model`, `spec`, `criterion` and `reference`
    are words as on the command line.

    Args:
        inputs: A file, a folder of samples, several of these, or an array for each name.
        may_be_empty: The outputs that count as right even if the inputs tell nothing about them.
        trust: Whether code that these arguments name may run.

    Raises:
        SubcutError: The model, the inputs or the candidate cannot be used.
    """
    sizes = [f"{name}={'x'.join(map(str, shape))}" for name, shape in (shapes or {}).items()]
    limits = Settings(max_time=parse_seconds(search.max_time), workers=Asked(settings).jobs(None))
    with ExitStack() as stack:
        asked = Asked(
            settings,
            model,
            None,
            InputOptions(list(make_input_arguments(inputs)), seed, sizes),
            CriterionOptions(criterion),
            RuntimeOptions(reference=reference),
            ResultOptions(trust=trust),
        )
        path = asked.model_path
        rule = asked.criterion
        candidate = asked.choose_candidate(spec, path)
        feeding = asked.feeding
        choice = OutputChoice(may_be_empty=tuple(may_be_empty))
        setup = Setup(candidate, feeding, search.output, rule, choice=choice)
        workers = stack.enter_context(open_workers(candidate))
        running = stack.enter_context(asked.reference())
        trials = stack.enter_context(open_trials(load(path), setup, running, workers))
        verdict, is_settled = _run_whole(trials)
        seen = clean(f"{path.name} on {candidate.name}: {_find_reason(verdict)}")
        if verdict.agrees and is_settled:
            unread = any(output.is_unresolved for output in verdict.outputs)
            return (
                Disagreement(("unresolved: an output was not compared", seen)) if unread else None
            )
        notes = tuple(resolve.log_random_inputs(feeding))
        bisection = Bisection(
            trials, BisectionOptions(setup, limits, command=search.command, notes=notes)
        )
        try:
            for _ in bisection:
                pass
        except SubcutError as e:
            says = "wrong" if verdict.fails else "unresolved"
            return Disagreement((f"{says}: {seen}", f"not searched: {e.what}"))
        if verdict.agrees and bisection.result.agree:
            return None  # what the nodes alone do was in doubt, and they are right
        return _describe_finding(bisection, seen)


def _run_whole(trials: Trials) -> tuple[Verdict, bool]:
    """Return the verdict of a new run of the whole model, since a stored answer may be that of an
    older runtime; and whether it needs no look inside.

    The file as shipped must run: if it does only with pinned shapes, that run does not count.
    """
    with Store(trials.model.scratch / "anew") as store:
        processes = trials.processes.with_store(store)
        anew = Trials(processes, processes.judge)
        verdict = anew.verdict(anew.full_model)  # in a process that has loaded nothing before
        is_settled = not find_doubt(anew, tuple(Doubt))
        if verdict.agrees:
            require_usable(anew, anew.run(anew.full_model))
    forms = anew.runner.forms
    if forms.only_pinned:
        verdict = forms.verdicts[Form.SHIPPED]
    return verdict, is_settled


def _find_reason(verdict: Verdict) -> str:
    """Return the reason, with the output and the sample that decide."""
    unread = [output for output in verdict.outputs if output.is_unresolved]
    about = unread[0] if unread and verdict.agrees else verdict.worst
    if about is None:
        return verdict.why
    sample = f", sample {about.sample}" if about.sample else ""
    return f"{about.name}: {about.why}{sample}"


def _describe_finding(bisection: Bisection, seen: str) -> Disagreement | None:
    """Return the result of a search that began because one run of the full model was not right."""
    shown = reports.cleaned(bisection.result)
    if shown.agree and (shown.whole.verdict.fails or shown.whole.pieces):
        return None  # within the precision that the candidate claims, or what its pieces do
    flaky = f"flaky: not right in the first run, then right in {len(bisection.steps)} runs"
    lines = [flaky if shown.agree else reports.answer(shown).says, seen, *_iter_causes(shown)]
    case = next((finding.case for finding in shown.findings if finding.case), None)
    places = {name: place for name, place in (("case", case), ("report", shown.report)) if place}
    lines += [f"{name}: {place}" for name, place in places.items()]
    lines += [f"next: {system.join(reports.make_replay_command(shown, case))}"] if case else []
    return Disagreement(lines, places)


def _iter_causes(document: BisectDocument) -> Iterable[str]:
    """Yield the causes of the first finding, as far as they are known: an optimizer, rounding, a
    bug."""
    return (
        line for finding in document.findings[:1] if (line := reports.find_evidence(finding)[0])
    )
