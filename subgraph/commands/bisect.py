"""`subcut bisect`: the whole model disagrees -> the smallest piece that goes wrong, proved, in a folder."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from subgraph import project
from subgraph.commands import Result, log, options
from subgraph.commands import recorded as r
from subgraph.errors import UsageError
from subgraph.graph.graph import load
from subgraph.text import clean, count

if TYPE_CHECKING:
    from subgraph.bisection.bisection import Bisection
    from subgraph.search import Settings, Step

WIDE = 24  # characters of a node's name in a line
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def bisect(
    model: options.ModelArgument = None,
    candidate: options.CandidateSpec = None,
    candidate_model: options.CandidateModel = None,
    map_file: options.Map = None,
    within: Annotated[
        str | None, typer.Option("--within", metavar="A..B", help="Only look between these two nodes.")
    ] = None,
    inputs: options.Inputs = None,
    seed: options.Seed = None,
    shape: options.Shapes = None,
    mean: options.Mean = None,
    scale: options.Scale = None,
    bgr: options.Bgr = False,
    criterion: options.Criterion = None,
    rtol: options.Rtol = None,
    atol: options.Atol = None,
    metric: options.Metric = None,
    precision: options.Precision = None,
    reference: options.ReferenceSpec = None,
    custom_ops: options.CustomOps = None,
    timeout: options.Timeout = None,
    memory_limit: options.MemoryLimit = None,
    max_trials: Annotated[
        int | None, typer.Option("--max-trials", metavar="N", help="Stop after so many runs.")
    ] = None,
    max_time: Annotated[
        str | None, typer.Option("--max-time", metavar="2h", help="Stop after so long: 90s, 30m.")
    ] = None,
    repeat: Annotated[
        int | None, typer.Option("--repeat", metavar="N", help="Runs that must agree before the whole model does; 7.")
    ] = None,
    jobs: options.Jobs = None,
    recorded: r.Recorded = None,
    dump_format: r.DumpFormat = None,
    dump_layout: r.DumpLayout = None,
    no_freeze: Annotated[
        bool, typer.Option("--no-freeze", help="Tensors that hold shapes become inputs, not constants.")
    ] = False,
    output: options.Output = None,
    fresh: options.Fresh = False,
    trust: options.Trust = False,
    force: options.Force = False,
) -> Result:
    """Find the smallest piece of a model that a candidate gets wrong.

    With --recorded and no candidate: between which tensors a device's recording goes wrong. With both, the recording
    says where to look first.

    Exit code 0: they agree; 1: something disagrees; 5: nothing could be established. A run that was stopped goes on
    with the same command.
    """
    from contextlib import ExitStack, nullcontext

    from subgraph.bisection.bisection import Bisection, BisectionOptions
    from subgraph.comparison.judge import criterion as rule_of
    from subgraph.recordings.interval import hints
    from subgraph.recordings.runs import open_runs
    from subgraph.runtime.worker_pool import Workers
    from subgraph.trials.session import Setup, open_trials

    settings = project.load()
    path = options.model_of(model, settings)
    rule = options.criterion(settings, criterion, rtol, atol, metric)
    rule_of(rule)  # a slip there is told before anything starts
    limits = _limits(max_trials, max_time, repeat, options.jobs(settings, jobs))
    about = r.asked(recorded, dump_format, dump_layout, precision, seed) if recorded else None
    if about and not settings.get("candidate", candidate):
        r.alone({"--candidate-model": candidate_model, "--map": map_file, "--within": within,
                 "--max-trials": max_trials, "--max-time": max_time, "--repeat": repeat})  # fmt: skip
        return r.bisect(
            settings, model, about, options.feeding(settings, inputs, seed, shape, mean, scale, bgr), rule,
            options.reference(settings, reference, custom_ops, trust), freeze=not no_freeze, output=output, force=force,
        )  # fmt: skip
    doubted = options.candidate(settings, candidate, timeout, memory_limit, precision, custom_ops, trust)
    feeding = options.feeding(settings, inputs, seed, shape, mean, scale, bgr)
    parent = Path(settings.get("output", output, "subcut_out"))
    other = options.other(candidate_model, map_file)
    setup = Setup(doubted, feeding, parent, rule, freeze=not no_freeze, stored=not fresh, **other)
    with ExitStack() as stack:
        running = stack.enter_context(options.reference(settings, reference, custom_ops, trust))
        workers = stack.enter_context(Workers(doubted))
        graph = load(path)
        if about:
            runs, feeding = stack.enter_context(open_runs(graph, about, feeding))
            setup = replace(setup, feeding=feeding)
        notes = [] if feeding.inputs else [f"the inputs are random values, seed {feeding.seed}; real ones show more"]
        for note in notes:
            log.info("%s (-i FILE)", note)
        command = shlex.join(["subcut", *sys.argv[1:]])
        plan = BisectionOptions(setup, limits, within or "", command, tuple(notes), force)
        with open_trials(graph, setup, running, workers) as asked:
            options.told(asked)
            plan = replace(plan, hints=hints(graph, r.weights(asked, runs) if about else None))
            return _followed(Bisection(lambda: nullcontext(asked), plan))


def _followed(job: Bisection) -> Result:
    """Each step is told as it comes, then the result."""
    from subgraph import plugins

    for step in job:
        for line in _told(job, step):
            log.info(line)
    text = plugins.load("reports", "text").render(job.document)
    return Result(job.document, text.rstrip("\n"), job.document["exit_code"])


def _limits(max_trials: int | None, max_time: str | None, repeat: int | None, jobs: int) -> Settings:
    from subgraph.search import Settings

    if max_trials is not None and max_trials < 1:
        raise UsageError(f"--max-trials {max_trials}: at least one run is needed")
    if repeat is not None and repeat < 2:
        raise UsageError(f"--repeat {repeat}: at least two runs tell whether a model agrees")
    plain = Settings(max_trials=max_trials, max_time=_seconds(max_time), workers=jobs)
    return plain if repeat is None else replace(plain, agreeing=repeat)


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    m = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip().lower())
    if m is None:
        raise UsageError(f"--max-time {text}: expected a time", "90s, 30m, 2h")
    if not float(m[1]):
        raise UsageError(f"--max-time {text}: nothing runs in no time", "leave it out for no limit")
    return float(m[1]) * UNITS[m[2]]


def _told(job: Bisection, step: Step) -> Iterator[str]:
    """A line per step; an estimate after the first."""
    verdict = step.answer.verdict
    nodes = job.nodes(step)
    ends = dict.fromkeys(_end_of(clean(n)) for n in (nodes[:1] + nodes[-1:]))
    span = " … ".join(ends) or "whole model"
    worst = verdict.worst if verdict else None
    error = worst.errors.get("max_rel") if worst else None
    word = "FAIL" if step.outcome == "fail" else step.outcome.value
    told = step.answer.signature.value if step.answer.signature and step.answer.signature != "mismatch" else ""
    share = f"explains {step.answer.share:.0%}" if step.answer.share is not None and step.outcome == "fail" else ""
    size = f"{error:.1e}" if error is not None else ""
    known = "(known)" if verdict and verdict.stored else ""
    number = count(len(nodes) or job.suspects, "node")
    said = " ".join(filter(None, (word, told, share, known)))
    yield f"{step.number:>3}  {step.purpose.value:<8}  {span:<{2 * WIDE}}  {number:>11}  {size:>7}  {said}"
    if len(job.steps) == 1 and step.outcome == "fail":
        each = step.answer.seconds
        yield f"     {each:.2g} s a run, about {step.more} more runs: {each * step.more:.2g} s"


def _end_of(name: str) -> str:
    """A long name's end tells more than its begin: `…ers.3/attention/MatMul`."""
    return name if len(name) <= WIDE else f"…{name[1 - WIDE :]}"
