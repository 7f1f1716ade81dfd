"""A test of a model on a candidate, of which a failure names the culprit, its cause and its place.

The full model runs once on the reference and once on the candidate. A bisection begins only if the
outputs do not agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import field
from pathlib import Path

from subgraph import reports, system
from subgraph.commands import resolve
from subgraph.commands.options import CriterionOptions, InputOptions, ResultOptions, RuntimeOptions
from subgraph.commands.resolve import ResolvedOptions
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
    """The options of the bisection that follows a disagreement.

    Attributes:
        output: The folder of its result and of cached results.
        max_time: Its time limit as text: `90s`, `10m`.
        command: The command that runs the test again, for the report.
    """

    output: Path
    max_time: str
    command: str


@frozen
class Disagreement:
    """The reason why a candidate is not known to be right.

    Attributes:
        lines: The lines for the user; the first line is the verdict.
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
    """Return the disagreement of a candidate with the reference; None if the candidate is right.

    The candidate is right if every output of every sample was compared and no output is wrong.

    `settings` has the value of each argument that is None. `model`, `spec`, `criterion` and
    `reference` are texts as on the command line.

    Args:
        inputs: A file, a folder of samples, several of these, or an array for each name.
        search: The options of the bisection.
        may_be_empty: The outputs that count as right even if these inputs could not show a fault.
        trust: Whether code that these arguments name is allowed to run.

    Raises:
        SubcutError: The model, the inputs or the candidate cannot be used.
    """
    sizes = [f"{name}={'x'.join(map(str, shape))}" for name, shape in (shapes or {}).items()]
    limits = Settings(
        max_time=parse_seconds(search.max_time), workers=ResolvedOptions(settings).count_jobs(None)
    )
    with ExitStack() as stack:
        resolved = ResolvedOptions(
            settings,
            model,
            None,
            InputOptions(list(make_input_arguments(inputs)), seed, sizes),
            CriterionOptions(criterion),
            RuntimeOptions(reference=reference),
            ResultOptions(trust=trust),
        )
        path = resolved.model_path
        rule = resolved.criterion
        candidate = resolved.choose_candidate(spec, path)
        feeding = resolved.feeding
        choice = OutputChoice(may_be_empty=tuple(may_be_empty))
        setup = Setup(candidate, feeding, search.output, rule, choice=choice)
        workers = stack.enter_context(open_workers(candidate))
        running = stack.enter_context(resolved.start_reference())
        trials = stack.enter_context(open_trials(load(path), setup, running, workers))
        verdict, is_settled = _run_full_model(trials)
        fact = clean(f"{path.name} on {candidate.name}: {_find_reason(verdict)}")
        if verdict.agrees and is_settled:
            if not any(output.is_unresolved for output in verdict.outputs):
                return None
            return Disagreement(("unresolved: an output was not compared", fact))
        notes = tuple(resolve.log_random_inputs(feeding))
        bisection = Bisection(
            trials, BisectionOptions(setup, limits, command=search.command, notes=notes)
        )
        try:
            for _ in bisection:
                pass
        except SubcutError as e:
            says = "wrong" if verdict.fails else "unresolved"
            return Disagreement((f"{says}: {fact}", f"not searched: {e.what}"))
        if verdict.agrees and bisection.result.agree:
            return None  # only the single nodes were in doubt, and the search found them right
        return _describe_finding(bisection, fact)


def _run_full_model(trials: Trials) -> tuple[Verdict, bool]:
    """Run the full model, and return its verdict and whether that verdict needs no bisection.

    No cached result is used, because an older runtime may have computed it. The user's file itself
    must run: a run that succeeds only with pinned shapes does not count.
    """
    with Store(trials.model.scratch / "anew") as store:
        processes = trials.processes.with_store(store)
        fresh = Trials(processes, processes.judge)
        verdict = fresh.verdict(fresh.full_model)  # this process has loaded no other model
        is_settled = not find_doubt(fresh, tuple(Doubt))
        if verdict.agrees:
            require_usable(fresh, fresh.run(fresh.full_model))
    forms = fresh.runner.forms
    if forms.only_pinned:
        verdict = forms.verdicts[Form.SHIPPED]
    return verdict, is_settled


def _find_reason(verdict: Verdict) -> str:
    """Return the reason of a verdict, with the output and the sample that decide it."""
    unresolved = [output for output in verdict.outputs if output.is_unresolved]
    output = unresolved[0] if unresolved and verdict.agrees else verdict.worst
    if output is None:
        return verdict.why
    sample = f", sample {output.sample}" if output.sample else ""
    return f"{output.name}: {output.why}{sample}"


def _describe_finding(bisection: Bisection, fact: str) -> Disagreement | None:
    """Return the result of a search that began because one run of the full model was not right.

    Args:
        bisection: The search, which has ended.
        fact: The result of that run, in a line.
    """
    shown = reports.cleaned(bisection.result)
    if shown.agree and (shown.whole.verdict.fails or shown.whole.pieces):
        return None  # rounding explains it, at the claimed precision or by the pieces of the model
    flaky = f"flaky: not right in the first run, then right in {len(bisection.steps)} runs"
    lines = [flaky if shown.agree else reports.answer(shown).says, fact, *_iter_causes(shown)]
    case = next((finding.case for finding in shown.findings if finding.case), None)
    places = {name: place for name, place in (("case", case), ("report", shown.report)) if place}
    lines += [f"{name}: {place}" for name, place in places.items()]
    lines += [f"next: {system.join(reports.make_replay_command(shown, case))}"] if case else []
    return Disagreement(lines, places)


def _iter_causes(document: BisectDocument) -> Iterable[str]:
    """Yield the cause of the first finding, if the search has found one: an optimizer, rounding or
    a bug."""
    return (
        line for finding in document.findings[:1] if (line := reports.find_evidence(finding)[0])
    )
