"""`subcut bisect`: a model that fails -> the smallest failing region, certified, as a case folder.

With `--loop`, a decoder, step by step -> the step that fails, and the smallest region in it.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from subgraph import project
from subgraph.commands import Result, make_command_line, open_body, options, resolve
from subgraph.commands.lint import log_known
from subgraph.commands.live import FIRST_ANSWER_LEVEL, log_step
from subgraph.commands.options import Number, Text, option
from subgraph.commands.recorded import (
    NEEDS_CANDIDATE,
    bisect_recorded,
    compare_recordings,
    iter_recording_notes,
    read_recording_options,
)
from subgraph.commands.resolve import ResolvedOptions
from subgraph.errors import OutOfTime
from subgraph.graph.graph import load
from subgraph.graph.region import prepare_graph
from subgraph.iterables import index_by_name
from subgraph.log import log
from subgraph.project import parse_seconds
from subgraph.text import clean, describe_prediction, shorten

if TYPE_CHECKING:
    from subgraph.questions.bisection.bisection import Bisection
    from subgraph.questions.decoding.step_search import LoopSearch
    from subgraph.recordings.device_runs import RecordedRun, RecordingOptions
    from subgraph.results.loop import LoopDocument
    from subgraph.runtime.reference import Reference
    from subgraph.search import Settings, Step
    from subgraph.trials.open_trials import Setup


ESTIMATE_SECONDS = 15.0  # between two lines on how much is still to come
MIN_SECONDS = 1e-3  # for the search, once the model is read


@options.add_option_groups()
def bisect(
    *,
    model: options.ModelArgument = None,
    candidate_options: options.CandidateOptions,
    weights: options.Weights = None,
    within: options.Within = None,
    inputs: options.InputOptions,
    comparison: options.CriterionOptions,
    compared: options.OutputOptions,
    runtime: options.RuntimeOptions,
    max_trials: Number = option(
        "--max-trials",
        "N",
        "Stop after N runs of the candidate.",
        limits=options.FROM_1,
        refused_beside="--recorded",
    ),
    max_time: options.MaxTime = None,
    repeat: Number = option(
        "--repeat",
        "N",
        "Runs of the whole model that must agree; default 2, up to 7 if quick.",
        limits=options.FROM_1,
        refused_beside="--recorded",
    ),
    inside: bool = option(
        "--inside",
        None,
        "Check intermediate tensors, too, if outputs agree.",
        refused_beside="--recorded",
    ),
    by: options.By = None,
    jobs: options.Jobs = None,
    recorded: options.RecordedOptions,
    loop: Text = option(
        "--loop",
        "FILE",
        "Step by step: outputs become the next inputs, by the table in FILE (loop.toml).",
    ),
    keep_input: bool = option(
        "--keep-input",
        None,
        "Search no smaller and simpler input for a finding.",
        refused_beside="--recorded",
    ),
    no_freeze: options.NoFreeze = False,
    result: options.ResultOptions,
    given: options.GivenOptions,
) -> Result:
    """Find the smallest piece that a candidate computes wrong.

    With --loop, a decoder runs token by token, and the search is in the first
    wrong step. With --recorded and no candidate, the answer is the tensors
    between which a device's recording becomes wrong. With both, the search
    begins there. A search that was stopped goes on with the same command.

    Examples:
      subcut bisect model.onnx -c wrong.py
      subcut bisect model.onnx -c wrong.py --criterion numpy:rtol=1e-3
      subcut bisect model.onnx -c 'cmd:python run.py {model} {inputs} {outputs}'
      subcut bisect model.onnx --recorded dumps

    Exit code 0: they agree; 1: something disagrees, at the outputs or inside; 5: nothing could be
    established.
    """
    from subgraph.comparison.where import OutputChoice
    from subgraph.search import Settings

    begin = time.monotonic()  # the processes that start from here on are part of --max-time
    resolved = ResolvedOptions(project.load(), model, weights, inputs, comparison, runtime, result)
    model_path = resolved.model_path
    _ = resolved.criterion  # a mistake there is reported first
    chosen = OutputChoice.parse(**vars(compared))
    jobs_at_once = resolved.count_jobs(jobs)
    limits = Settings(
        max_trials, parse_seconds(max_time), jobs_at_once, inside=inside, repeat=repeat
    )
    recordings = None
    if recorded.recorded:
        of_recording = None
        if not candidate_options.other_model:
            of_recording = candidate_options.tensor_map
            candidate_options = replace(candidate_options, tensor_map=None)
        recordings = read_recording_options(recorded, runtime, inputs, of_recording, chosen)
    if recordings and not resolved.settings.get("candidate", candidate_options.spec):
        given.refuse_beside("--recorded", NEEDS_CANDIDATE)
        return bisect_recorded(resolved, recordings, freeze=not no_freeze)
    setup = replace(resolved.make_setup(candidate_options, freeze=not no_freeze), choice=chosen)
    limits = replace(limits, workers=resolved.count_jobs(jobs, setup.candidate))
    if loop:
        given.refuse_beside("--loop")
        with resolved.start_reference() as reference:
            return bisect_loop(
                model_path,
                Path(loop),
                setup,
                reference,
                limits,
                begin,
                force=result.force,
            )
    with (
        resolved.start_reference() as reference,
        open_search(
            model_path, setup, reference, recordings, limits, within or "", result.force, begin
        ) as bisection,
    ):
        bisection.options = replace(bisection.options, by_rewriting=bool(by), keep_input=keep_input)
        return log_steps(bisection)


@contextmanager
def open_search(
    model_path: Path,
    setup: Setup,
    reference: Reference,
    recordings: RecordingOptions | None,
    limits: Settings,
    within: str,
    force: bool,
    begin: float,
) -> Iterator[Bisection]:
    """Open a search on a candidate; the nodes that recordings suspect are tried first.

    Args:
        model_path: The model.
        setup: The candidate, inputs and criterion.
        reference: The reference.
        recordings: The recordings; None without any.
        limits: The limits of the search.
        within: The two nodes of `--within`; "" for the full model.
        force: Whether the result replaces another result.
        begin: The time at which the command began, by `time.monotonic`.
    """
    from subgraph.questions.bisection.bisection import Bisection
    from subgraph.questions.bisection.options import BisectionOptions
    from subgraph.recordings.device_runs import open_runs
    from subgraph.recordings.interval import weigh_intervals, weigh_nodes
    from subgraph.runtime.remote.remote_pool import open_workers
    from subgraph.trials.open_trials import open_trials

    with ExitStack() as stack:
        workers = stack.enter_context(open_workers(setup.candidate))
        workers.deadline.limit(begin, limits.max_time)
        graph = load(model_path)
        runs: Sequence[RecordedRun] = ()
        if recordings:
            found = stack.enter_context(open_runs(graph, recordings, setup.feeding))
            runs = found.runs
            setup = replace(setup, feeding=found.feeding)
        notes = resolve.log_random_inputs(setup.feeding)
        ends = within.split("..", 1)
        there = open_body(
            graph, [end for end in ends if end], setup.feeding, reference, setup.output
        )
        graph, feeding, names = stack.enter_context(there)
        setup = replace(setup, feeding=feeding)
        left = iter(names)
        ends = [next(left) if end else "" for end in ends]
        within = "..".join(ends) if any(ends) else ""
        trials = stack.enter_context(open_trials(graph, setup, reference, workers))
        resolve.log_caveat(trials.runtime)
        suspects = log_known(graph, setup.candidate) if setup.candidate.has_process else []
        compared = compare_recordings(trials.judge, runs) if recordings else []
        weights = weigh_intervals(compared)
        notes = [*notes, *iter_recording_notes(compared)]
        command = make_command_line()
        limits = _limit_to_remaining(limits, begin)
        hints = cache(partial(weigh_nodes, graph, weights, suspects))
        plan = BisectionOptions(setup, limits, within, command, tuple(notes), force, hints)
        yield Bisection(trials, plan)


def _limit_to_remaining(limits: Settings, begin: float) -> Settings:
    """Return the limits of a search, without the time that was used since `begin`."""
    if limits.max_time is None:
        return limits
    remaining = limits.max_time - (time.monotonic() - begin)
    return replace(limits, max_time=max(remaining, MIN_SECONDS))


def log_steps(bisection: Bisection) -> Result:
    """Run the search; log each step as it ends, and now and then how much is still to come."""
    from subgraph.reports.text import COLUMNS, render

    last_estimate_at = -math.inf
    for number, step in enumerate(bisection):
        if not number:
            log.log(FIRST_ANSWER_LEVEL, "%s", _describe_first_answer(bisection, step))
        remaining = bisection.remaining
        log_step(
            step,
            remaining,
            bisection.nodes(step),
            sorted(bisection.oracle.list_indices(step.items)),
        )
        if remaining.estimate and time.monotonic() - last_estimate_at >= ESTIMATE_SECONDS:
            last_estimate_at = time.monotonic()
            log.info("     %s", remaining.estimate, extra={"live": {}})
    found = bisection.result
    text = render(found, min(shutil.get_terminal_size((COLUMNS, 0)).columns, COLUMNS))
    return Result(bisection.document, text.rstrip("\n"))


def _describe_first_answer(bisection: Bisection, step: Step) -> str:
    """Return `outputs: differ in 1 of 2: max error 0.02: 7.6 % …, prediction unchanged`."""
    from subgraph.trials.compare_tensors import compute_ranking
    from subgraph.verdict import NUMBERS, name_failure

    verdict = step.answer.verdict
    if verdict is None or verdict.agrees:
        return f"outputs: {step.answer.status}"
    if verdict.is_unresolved:
        return f"outputs: {verdict.status}: {shorten(verdict.why)}"
    failing = {j.name for j in verdict.outputs if j.fails}
    outputs = {j.name for j in verdict.outputs}
    where = f" in {len(failing)} of {len(outputs)}" if outputs else ""
    is_numeric = verdict.signature in NUMBERS
    kind = "differ" if is_numeric else name_failure(verdict.signature, verdict.process)
    how = f"outputs: {kind}{where}: {verdict.why}"
    trials = bisection.oracle.trials
    ranks = compute_ranking(trials.model, trials.run(trials.model.whole())).values()
    return ", ".join([how, *dict.fromkeys(describe_prediction(**shares) for shares in ranks)])


def bisect_loop(
    model_path: Path,
    loop: Path,
    setup: Setup,
    reference: Reference,
    limits: Settings,
    begin: float,
    *,
    force: bool,
) -> Result:
    """Search a loop, a decoder for example, for the step that fails, and search that step.

    Args:
        model_path: The model of one step.
        loop: The file that describes the loop.
        setup: The candidate, inputs and criterion.
        reference: The reference.
        limits: The limits of the search.
        begin: The time at which the command began, by `time.monotonic`.
        force: Whether the result replaces another result.

    Raises:
        UsageError: The file or the inputs do not fit the model.
        ModelError: The reference cannot run a step.
        BackendError: The candidate cannot be used.
        OutOfTime: The time is used up before the candidate has run all steps.
    """
    from subgraph.graph.model_file import copy_model
    from subgraph.questions.decoding.decoder import read_loop_file, resolve_decoder
    from subgraph.questions.decoding.inputs import read_inputs
    from subgraph.questions.decoding.result_folder import find_free_place, render_text, save
    from subgraph.questions.decoding.run_steps import trace_reference
    from subgraph.questions.decoding.step_search import LoopSearch
    from subgraph.runtime.inputs import Feeding
    from subgraph.runtime.remote.remote_pool import open_workers
    from subgraph.storage import folders
    from subgraph.trials.open_trials import open_trials

    file = read_loop_file(loop)
    graph = prepare_graph(load(model_path))
    named = {word.partition("=")[0] for word in setup.feeding.inputs}
    decoder = resolve_decoder(graph, file, named)
    given = read_inputs(decoder, file, setup.feeding)
    place = find_free_place(setup, graph, force=force)
    for state, output in decoder.states.items():
        log.debug("state %s gets %s", clean(state), clean(output))
    with ExitStack() as stack:
        workers = stack.enter_context(open_workers(setup.candidate))
        workers.deadline.limit(begin, limits.max_time)
        reference.share(workers.deadline)
        reference.identity()  # the document needs it, also once the time is used up
        scratch = stack.enter_context(folders.make_scratch(setup.output.absolute()))
        log.info("the reference walks: %d steps at most", given.steps)
        model = scratch / "model" / "model.onnx"
        model.parent.mkdir()
        copy_model(graph, model)
        walked = trace_reference(given, reference, model, scratch)
        first = index_by_name(walked.feeds(0, walked.states[0]))
        fed = Feeding(setup.feeding.inputs, records=(first,), origins=("step 0",))
        of_first = replace(setup, feeding=fed, needs_evidence=False)
        trials = stack.enter_context(open_trials(graph, of_first, reference, workers))
        search = LoopSearch(walked, setup, workers, trials)
        document = search.run()
        log.info("%s", render_text(document).split("\n")[0])
        if document.found.outcome == "step":
            document = _search(search, document, limits, begin, force=force)
        elif document.found.outcome == "agree":
            try:
                document = _search_inside(search, document, limits, begin, force=force)
            except OutOfTime as e:
                why = f"{e} before it was known whether each step deviates by rounding"
                document = _make_unresolved(document, why)
    document = save(
        replace(document, seconds=round(time.monotonic() - begin, 3)),
        place,
        graph,
        make_command_line(),
    )
    return Result(document, render_text(document))


def _search_inside(
    search: LoopSearch,
    document: LoopDocument,
    limits: Settings,
    begin: float,
    *,
    force: bool,
) -> LoopDocument:
    """Search the step of an agreeing loop that deviates by more than rounding, if there is one."""
    from subgraph import reports
    from subgraph.results.loop import EXIT_CODES, LoopOutcome

    k = search.step_beyond_rounding(document.found.seen)
    if k is None:
        return document
    log.info("step %d deviates by more than rounding: looking inside", k)
    at = replace(document.settle(outcome=LoopOutcome.STEP, first_wrong=k, since=k), exit_code=1)
    searched = _search(search, at, limits, begin, force=force)
    k = searched.found.first_wrong
    found = searched.found.bisection
    if found and found.exit_code == EXIT_CODES[LoopOutcome.AGREE]:
        return document.settle(why=f"step {k}: {reports.answer(found).says}", bisection=found)
    if found and found.exit_code == 1:
        why = "by rounding alone; the steps before are within what approximate kernels may do"
        return searched.settle(why=why)
    why = f"step {k} deviates by more than rounding, and it is not known why"
    return _make_unresolved(searched, searched.found.why or why)


def _make_unresolved(document: LoopDocument, why: str) -> LoopDocument:
    from subgraph.results.loop import EXIT_CODES, LoopOutcome

    outcome = LoopOutcome.UNRESOLVED
    return replace(document.settle(outcome=outcome, why=why), exit_code=EXIT_CODES[outcome])


def _search(
    search: LoopSearch,
    document: LoopDocument,
    limits: Settings,
    begin: float,
    *,
    force: bool,
) -> LoopDocument:
    """Return the document with that of the bisection of its step."""
    from subgraph.questions.bisection.bisection import Bisection
    from subgraph.questions.bisection.options import BisectionOptions

    k = document.found.first_wrong
    assert k is not None
    limits = _limit_to_remaining(limits, begin)
    notes = (
        f"step {k} of {document.setup.steps} of a loop, fed with the reference's state before it",
    )
    with search.open_step(k) as (trials, setup):
        bisection = Bisection(
            trials, BisectionOptions(setup, limits, "", make_command_line(), notes, force)
        )
        try:
            log_steps(bisection)
        except OutOfTime:
            return document.settle(why="the time is used up before the search in this step")
    return document.settle(bisection=bisection.result)
