"""`subcut bisect --loop`: a decoder, step by step -> the step that goes wrong, and the piece of
it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from subgraph.commands import Result, command_line
from subgraph.errors import OutOfTime
from subgraph.log import log
from subgraph.text import clean

if TYPE_CHECKING:
    from subgraph.bisection.bisection import Bisection
    from subgraph.decoding.step_search import LoopSearch
    from subgraph.results.loop import LoopDocument
    from subgraph.runtime.reference import Reference
    from subgraph.search import Settings
    from subgraph.trials.open_trials import Setup

MIN_SECONDS = 1e-3  # for the search in the step


def bisect_loop(
    model_path: Path,
    loop: Path,
    setup: Setup,
    reference: Reference,
    limits: Settings,
    run: Callable[[Bisection], Result],
    begin: float,
    *,
    force: bool,
) -> Result:
    """`run` makes the search in a step; `begin`: when the command began, by `time.monotonic`.

    Raises:
        UsageError: the file, the inputs or what they are for cannot be made sense of.
        ModelError: the reference cannot run a step. BackendError: the candidate cannot be used.
        OutOfTime: it is used up before the candidate had run all steps.
    """
    from subgraph.decoding import decoder as loop_files
    from subgraph.decoding.decoder import resolve_decoder
    from subgraph.decoding.inputs import read_inputs
    from subgraph.decoding.result_folder import find_free_place, render_text, save
    from subgraph.decoding.run_steps import trace_reference
    from subgraph.decoding.step_search import LoopSearch
    from subgraph.documents import to_json
    from subgraph.graph.graph import load
    from subgraph.graph.model_file import copy_model
    from subgraph.results.loop import EXIT_CODES, LoopOutcome
    from subgraph.runtime.inputs import Feeding
    from subgraph.runtime.remote.remote_pool import open_workers
    from subgraph.storage import folders
    from subgraph.trials.open_trials import open_trials

    file = loop_files.read_loop_file(loop)
    graph = load(model_path).prepare()
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
        scratch = stack.enter_context(folders.scratch(setup.output.absolute()))
        log.info("the reference walks: %d steps at most", given.steps)
        (scratch / "model").mkdir()
        copy_model(graph, scratch / "model" / "model.onnx")
        walked = trace_reference(given, reference, scratch / "model" / "model.onnx", scratch)
        first = {record.name: record for record in walked.feeds(0, walked.states[0])}
        fed = Feeding(setup.feeding.inputs, records=(first,), origins=("step 0",))
        of_first = replace(setup, feeding=fed, needs_evidence=False)
        trials = stack.enter_context(open_trials(graph, of_first, reference, workers))
        search = LoopSearch(walked, setup, workers, trials)
        document = search.run()
        log.info("%s", render_text(document).split("\n")[0])
        if document.outcome == "step":
            spent = time.monotonic() - begin
            document = _search(search, document, limits, run, spent, force=force)
        elif document.outcome == "agree":
            try:
                document = _search_inside(search, document, limits, run, begin, force=force)
            except OutOfTime as e:
                unresolved = LoopOutcome.UNRESOLVED
                why = f"{e} before it was known whether each step is off by rounding"
                document = replace(
                    document, outcome=unresolved, exit_code=EXIT_CODES[unresolved], why=why
                )
    document = save(
        replace(document, seconds=round(time.monotonic() - begin, 3)), place, graph, command_line()
    )
    return Result(to_json(document), render_text(document), document.exit_code)


def _search_inside(
    search: LoopSearch,
    document: LoopDocument,
    limits: Settings,
    run: Callable[[Bisection], Result],
    begin: float,
    *,
    force: bool,
) -> LoopDocument:
    """A loop that agrees, with what a search says of a step that is off by more than rounding, if
    there is one."""
    from subgraph.results.loop import LoopOutcome

    k = search.step_beyond_rounding(document.seen)
    if k is None:
        return document
    log.info("step %d is off by more than rounding: looking inside", k)
    at = replace(document, outcome=LoopOutcome.STEP, first_wrong=k, since=k, exit_code=1)
    return _judge(document, _search(search, at, limits, run, time.monotonic() - begin, force=force))


def _judge(agreeing: LoopDocument, searched: LoopDocument) -> LoopDocument:
    """A loop that agrees, after the search in its step that is off by more than rounding."""
    from subgraph import reports
    from subgraph.results.loop import EXIT_CODES, LoopOutcome

    k = searched.first_wrong
    found = searched.bisection
    if found and found.exit_code == EXIT_CODES[LoopOutcome.AGREE]:
        return replace(agreeing, why=f"step {k}: {reports.answer(found).says}", bisection=found)
    if found and found.exit_code == 1:
        why = "by rounding alone; the steps before are within what approximate kernels may do"
        return replace(searched, why=why)
    why = f"step {k} is off by more than rounding, and it is not known why"
    unresolved = LoopOutcome.UNRESOLVED
    return replace(
        searched, outcome=unresolved, exit_code=EXIT_CODES[unresolved], why=searched.why or why
    )


def _search(
    search: LoopSearch,
    document: LoopDocument,
    limits: Settings,
    run: Callable[[Bisection], Result],
    spent: float,
    *,
    force: bool,
) -> LoopDocument:
    """The document with that of the bisection of its step."""
    from subgraph.bisection.bisection import Bisection
    from subgraph.bisection.options import BisectionOptions

    k = document.first_wrong
    assert k is not None
    if limits.max_time is not None:
        limits = replace(limits, max_time=max(limits.max_time - spent, MIN_SECONDS))
    notes = (f"step {k} of {document.steps} of a loop, fed with the reference's state before it",)
    with search.at(k) as (trials, setup):
        bisection = Bisection(
            trials, BisectionOptions(setup, limits, "", command_line(), notes, force)
        )
        try:
            run(bisection)
        except OutOfTime:
            return replace(document, why="the time is used up before the search in this step")
    return replace(document, bisection=bisection.result)
