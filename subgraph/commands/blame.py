"""`subcut blame`: a model that disagrees -> which pass, option or release broke it, and cures that
are proven."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from subgraph import project
from subgraph.commands import Result, make_command_line, options
from subgraph.commands.bisect import log_steps, open_search
from subgraph.commands.bundle import find_candidate_of_case, open_folder
from subgraph.commands.options import Text, option
from subgraph.commands.resolve import ResolvedOptions
from subgraph.errors import OutOfTime, UsageError
from subgraph.graph.graph import load
from subgraph.graph.region import prepare_graph
from subgraph.log import log
from subgraph.project import parse_seconds
from subgraph.text import clean

if TYPE_CHECKING:
    from subgraph.questions.bisection.bisection import Bisection
    from subgraph.questions.blame.blame import ReleasesAsked
    from subgraph.questions.blame.maker import Maker
    from subgraph.trials.candidate_model import CandidateModel

PLAIN_SPEC = "ort:opt=disable"  # runs a model whose tool is tried
MAX_SEARCH_SHARE = 0.5  # of the time; what explains the fault has the remaining one


@options.add_option_groups()
def blame(
    *,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL|CASE|BUNDLE.zip", help="A model, or a folder that bisect or cut wrote."
        ),
    ] = None,
    candidate: options.CandidateSpec = None,
    versions: Text = option(
        "--versions", "1.19..1.32|A,B", "Also try these releases of the runtime; `..` means all."
    ),
    made_by: Text = option(
        "--made-by",
        "TOOL",
        "Make the candidate's model by a tool, and find the step of it that breaks the model:"
        " onnxoptimizer, onnxsim, onnxslim, onnxscript, ort, quantize_static,"
        " quantize_dynamic, a Python file, or a command: './make.sh {model} {made} {skip:A,B}'.",
    ),
    index_url: Text = option("--index-url", "URL", "Where releases come from, as for pip."),
    find_links: options.FindLinks = None,
    max_time: options.MaxTime = None,
    weights: options.Weights = None,
    inputs: options.InputOptions,
    comparison: options.CriterionOptions,
    runtime: options.RuntimeOptions,
    result: options.ResultOptions,
) -> Result:
    """Say which pass, option or release is to blame, and what cures it.

    The search names the region first. Then passes of the optimizer and the candidate's options are
    turned off, and with --versions other releases are installed apart and tried. Each possible cure
    runs on the full model, on all samples and on three more inputs drawn like them: only what
    agrees there is proven. With --made-by a tool makes the candidate's model, and its steps
    are left out in turn.

    Examples:
      subcut blame model.onnx -c wrong.py
      subcut blame model.onnx -c ort --versions 1.30..1.32
      subcut blame model.onnx --made-by onnxoptimizer

    Exit code 0: nothing is wrong; 1: something is, and was explained; 5: nothing could be
    established.
    """
    from subgraph.environments.installation import make_pip_sources
    from subgraph.questions.blame.blame import ReleasesAsked

    sources = make_pip_sources(index_url, find_links or ())
    if sources and not versions:
        raise UsageError(
            "--index-url and --find-links name the source of releases",
            "--versions .. tries all",
            code="option.requires",
        )
    if versions is None:
        releases = None
    else:
        releases = ReleasesAsked("" if versions == ".." else versions, tuple(sources))
    limit = parse_seconds(max_time)
    began = time.monotonic()
    from subgraph.cases.find_case import find_case
    from subgraph.search import Settings
    from subgraph.trials.open_trials import Setup

    if model and model.lower().endswith(".zip"):
        model = str(open_folder(Path(model), None))
    resolved = ResolvedOptions(project.load(), model, weights, inputs, comparison, runtime, result)
    model_path = resolved.model_path
    criterion = resolved.criterion
    case = find_case(resolved.case) if resolved.case else None
    # optimizations of the runtime would hide the step that introduced a fault
    spec = candidate or (PLAIN_SPEC if made_by else None)
    if case:
        chosen = find_candidate_of_case(resolved, case, spec)
    else:
        chosen = resolved.make_candidate(spec, model_path)
    if releases:
        releases.check(chosen.backend)
    settings = Settings(max_time=limit and MAX_SEARCH_SHARE * limit)
    with ExitStack() as stack:
        reference = stack.enter_context(resolved.start_reference())
        maker = None
        own_model: Path | CandidateModel | None = None
        if made_by:
            from subgraph.questions.blame.maker import open_maker

            making = open_maker(made_by, chosen, model_path, resolved.feeding, resolved.output)
            maker, own_model = stack.enter_context(making)
        elif case:
            from subgraph.cases.layout import CANDIDATE
            from subgraph.trials.candidate_model import load_own_model

            own_model = load_own_model(prepare_graph(load(model_path)), case.place / CANDIDATE)
        setup = Setup(
            chosen,
            resolved.feeding,
            resolved.output,
            criterion,
            stored=resolved.stored,
            candidate_model=own_model,
        )
        search = open_search(model_path, setup, reference, None, settings, "", result.force, began)
        bisection = stack.enter_context(search)
        log_steps(bisection)
        headline = clean(bisection.result.says)
        log.info("%s", headline)
        reference.deadline.limit(began, limit)
        try:
            return _blame(bisection, releases, maker)
        except OutOfTime as e:
            raise OutOfTime(
                f"{headline}; {e.what} before it was explained", e.hint, code=e.code
            ) from e


def _blame(bisection: Bisection, resolved: ReleasesAsked | None, maker: Maker | None) -> Result:
    """Explain the findings of a search."""
    from subgraph.questions.blame.answer import explain_findings, summarize
    from subgraph.questions.blame.blame import Blame

    trials = bisection.oracle.trials
    # the fault has shown that the outputs depend on the input
    trials = replace(trials, judge=trials.judge.ignore_evidence())
    criterion = bisection.result.setup.criterion  # with which the fault was found
    setup = replace(bisection.options.setup, criterion=criterion, needs_evidence=False)
    result = bisection.result
    blame = Blame(trials, trials.model.whole(), setup, result.search.healing)
    documents = explain_findings(blame, result, resolved, make_command_line(), maker)
    return Result(documents[0], "\n\n".join(map(summarize, documents)))
