"""`subcut sweep`: onnx's operator tests on candidates -> outcomes by operator: right, refused,
wrong, crashed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from subgraph.commands import Result, make_command_line, options
from subgraph.commands.options import Text, Texts, option
from subgraph.commands.resolve import ResolvedOptions
from subgraph.commands.table import make_next
from subgraph.errors import UsageError
from subgraph.log import log
from subgraph.text import clean
from subgraph.types import frozen

if TYPE_CHECKING:
    from subgraph.results.answer import NextCommand
    from subgraph.results.sweep import SweepDocument


@frozen
class SweepRuntimeOptions(options.RuntimeOptions):
    """Runs of the candidate.

    The models of a sweep are tiny: a minute is enough.
    """

    timeout: Text = option(
        "--timeout", "SECONDS", "Limit of one build or run of the candidate; 60."
    )


@options.add_option_groups("reference", "memory")
def sweep(
    *,
    candidate: Texts = option(
        "--candidate -c",
        "SPEC",
        "Runtime in doubt, as in compare. Repeatable.",
        options.complete_candidates,
    ),
    only: Texts = option(
        "--only", "NAME", "Only this operator or test, or those that match a glob. Repeatable."
    ),
    comparison: options.CriterionOptions,
    runtime: SweepRuntimeOptions,
    jobs: options.Jobs = None,
    result: options.ResultOptions,
) -> Result:
    """Run the operator tests of the onnx package on a candidate.

    Each test is right, refused, wrong, crashed or hanging; each wrong one gets a case folder. A
    sweep that was stopped goes on with the same command.

    Examples:
      subcut sweep -c ort --only 'Conv*'
      subcut sweep -c ort -c wrong.py --only '*Pool'

    Exit code 0: nothing is wrong; 1: something is wrong, crashes or hangs; 5: nothing could be
    established.
    """
    from subgraph.questions.sweep import result_folder
    from subgraph.questions.sweep.result_folder import make_document as sweep_document
    from subgraph.questions.sweep.sweep import RUN_TIMEOUT, open_sweep
    from subgraph.reports.text import render_sweep
    from subgraph.runtime.candidate import DEFAULT_TIMEOUT

    resolved = ResolvedOptions(comparison=comparison, runtime=runtime, result=result)
    criterion = resolved.criterion
    parent = resolved.output
    resolved.count_jobs(jobs)
    specs: list[str | None] = [*candidate] if candidate else [None]
    candidates = [resolved.make_candidate(spec) for spec in specs]
    if resolved.settings.get("timeout", runtime.timeout) is None:
        # the models are tiny: one that hangs should cost a minute, not ten
        candidates = [
            replace(c, timeout=RUN_TIMEOUT) if c.timeout == DEFAULT_TIMEOUT else c
            for c in candidates
        ]
    names = [c.name for c in candidates]
    if twice := [n for n in names if names.count(n) > 1]:
        raise UsageError(
            f"--candidate {twice[0]} is given twice", "give it once", code="option.repeated"
        )
    places = [
        result_folder.choose_place(c, only or (), parent, force=result.force) for c in candidates
    ]
    with open_sweep(
        candidates, parent, only=only or (), criterion=criterion, stored=resolved.stored
    ) as sweep:
        places = result_folder.find_free_places(places)
        for running in sweep.candidates:
            if running.about.caveat:
                log.warning("%s", clean(running.about.caveat))
        rows = sweep.rows(max(resolved.count_jobs(jobs, c) for c in candidates))
        document = sweep_document(sweep, rows, places, make_command_line())
        result_folder.save(sweep, rows, places, document)
    shown = render_sweep(document).rstrip()
    return Result(document, shown, list(_iter_next(document)))


def _iter_next(document: SweepDocument) -> Iterator[NextCommand]:
    """Yield the command that runs each wrong test again."""
    for row in document.rows:
        for entry, found in zip(document.candidates, row.results, strict=True):
            if found.status == "wrong":
                yield make_next("run it again", "replay", f"{entry.folder}/{row.test}")
