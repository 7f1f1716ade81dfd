"""`subcut bisect`: the whole model disagrees -> the smallest piece that goes wrong, proved, in a folder."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from subgraph import project
from subgraph.case import Place
from subgraph.commands import Result, log
from subgraph.commands import options as o
from subgraph.errors import UsageError
from subgraph.folder import safe_name
from subgraph.graph import Graph, load
from subgraph.text import clean, count

if TYPE_CHECKING:
    from subgraph.bisect import World
    from subgraph.search import Findings, Settings, Step

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
LONG = 60  # characters of a candidate's name in a folder's


def bisect(
    model: o.ModelArgument = None,
    candidate: o.CandidateSpec = None,
    within: Annotated[
        str | None, typer.Option("--within", metavar="A..B", help="Only look between these two nodes.")
    ] = None,
    inputs: o.Inputs = None,
    seed: o.Seed = None,
    shape: o.Shapes = None,
    mean: o.Mean = None,
    scale: o.Scale = None,
    bgr: o.Bgr = False,
    criterion: o.Criterion = None,
    rtol: o.Rtol = None,
    atol: o.Atol = None,
    metric: o.Metric = None,
    precision: o.Precision = None,
    reference: o.ReferenceSpec = None,
    custom_ops: o.CustomOps = None,
    timeout: o.Timeout = None,
    memory_limit: o.MemoryLimit = None,
    max_trials: Annotated[
        int | None, typer.Option("--max-trials", metavar="N", help="Stop after so many runs.")
    ] = None,
    max_time: Annotated[
        str | None, typer.Option("--max-time", metavar="2h", help="Stop after so long: 90s, 30m.")
    ] = None,
    repeat: Annotated[
        int | None, typer.Option("--repeat", metavar="N", help="Runs that must agree before the whole model does; 7.")
    ] = None,
    jobs: o.Jobs = None,
    no_freeze: Annotated[
        bool, typer.Option("--no-freeze", help="Tensors that hold shapes become inputs, not constants.")
    ] = False,
    output: o.Output = None,
    fresh: o.Fresh = False,
    trust: o.Trust = False,
    force: o.Force = False,
) -> Result:
    """Find the smallest piece of a model that a candidate gets wrong.

    Exit code 0: they agree; 1: something disagrees; 5: nothing could be established. A run that was stopped goes on
    with the same command.
    """
    from subgraph.judge import criterion as rule_of
    from subgraph.session import Setup, trials
    from subgraph.workers import Workers

    begin = time.monotonic()
    settings = project.load()
    path = o.model_of(model, settings)
    rule = o.criterion(settings, criterion, rtol, atol, metric)
    rule_of(rule)  # a slip there is told before anything starts
    limits = _limits(max_trials, max_time, repeat, o.jobs(settings, jobs))
    doubted = o.candidate(settings, candidate, timeout, memory_limit, precision, custom_ops, trust)
    feeding = o.feeding(settings, inputs, seed, shape, mean, scale, bgr)
    parent = Path(settings.get("output", output, "subcut_out"))
    place = Place(parent, f"bisect-{safe_name(doubted.name)[:LONG]}", force)
    setup = Setup(doubted, feeding, parent, rule, freeze=not no_freeze, stored=not fresh)
    with o.reference(settings, reference, custom_ops, trust) as running, Workers(doubted) as workers:
        graph = load(path)
        notes = [] if feeding.inputs else [f"the inputs are random values, seed {feeding.seed}; real ones show more"]
        for note in notes:
            log.info("%s (-i FILE)", note)
        with trials(graph, setup, running, workers) as asked:
            return _run(asked, graph, within, limits, place, setup, notes, begin)


def _run(
    asked: Any, graph: Graph, within: str | None, limits: Settings, place: Place, setup: Any, notes: list[str],
    begin: float,
) -> Result:  # fmt: skip
    """Search, write down, tell."""
    from subgraph import bisect as job
    from subgraph import evidence, plugins, summary
    from subgraph.search import FindingKind, Outcome

    world = job.world(asked, limits.workers)
    request = _request(setup, within)
    evidence.require_free(place, request, world)
    found, steps = _searched(world, replace(limits, within=_scope(graph, world, within)))
    vague = found.outcome is Outcome.DISAGREE and all(f.kind is FindingKind.UNRESOLVED for f in found.findings)
    if vague and asked.freeze and not found.spent and any(world.region([k]).shapes for k in range(len(world.nodes))):
        log.info("nothing fails with shapes as constants: once more, with shapes as inputs")
        asked.freeze = False
        world = job.world(asked, limits.workers)
        more, again = _searched(world, replace(limits, within=_scope(graph, world, within)))
        steps = [*steps, *again]
        found = more
    document = summary.document(
        world,
        found,
        steps,
        command=shlex.join(["subcut", *sys.argv[1:]]),
        criterion=setup.criterion,
        seconds=time.monotonic() - begin,
        notes=notes,
    )
    if found.outcome is Outcome.DISAGREE:
        evidence.save(world, document, place, request, setup.feeding)
    text = plugins.load("reports", "text").render(document)
    return Result(document, text.rstrip("\n"), document["exit_code"])


def _request(setup: Any, within: str | None) -> dict[str, Any]:
    """What the result depends on beside the model."""
    from dataclasses import asdict

    identity = setup.candidate.identity("")
    plain = {"candidate": setup.candidate.name, "identity": identity, "feeding": asdict(setup.feeding)}
    plain |= {"criterion": setup.criterion, "freeze": setup.freeze, "within": within or ""}
    found: dict[str, Any] = json.loads(json.dumps(plain))
    return found


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
    return float(m[1]) * UNITS[m[2]]


def _scope(graph: Graph, world: World, within: str | None) -> Sequence[int] | None:
    """The items between the two nodes of `A..B`."""
    from subgraph.region import between

    if within is None:
        return None
    start, sep, end = within.partition("..")
    if not sep:
        raise UsageError(f"--within {within}: expected two nodes", "--within conv1..pool5; either may be left out")
    nodes = set(between(graph, [start] if start else [], [end] if end else []).nodes)
    items = [k for k, node in enumerate(world.nodes) if node in nodes]
    if not items:
        raise UsageError(f"--within {within}: nothing there carries values")
    return items


def _searched(world: World, limits: Settings) -> tuple[Findings, list[Step]]:
    """The findings, and the steps that led to them; each step is told as it comes."""
    from subgraph.bisect import bisect as search

    steps: list[Step] = []
    running = search(world, limits)
    while True:
        try:
            step = next(running)
        except StopIteration as end:
            found: Findings = end.value
            return found, steps
        steps.append(step)
        for line in _told(world, step, steps):
            log.info(line)


def _told(world: World, step: Step, steps: Sequence[Step]) -> Iterator[str]:
    """A line per step; an estimate after the first."""
    graph, verdict = world.trials.graph, step.answer.verdict
    ends = [clean(graph.label(world.nodes[k])) for k in (step.items[:1] + step.items[-1:])]
    span = " … ".join(dict.fromkeys(ends)) or "whole model"
    worst = verdict.worst if verdict else None
    error = worst.errors.get("max_rel") if worst else None
    word = "FAIL" if step.outcome == "fail" else step.outcome.value
    told = step.answer.signature.value if step.answer.signature and step.answer.signature != "mismatch" else ""
    share = f"  explains {step.answer.share:.0%}" if step.answer.share is not None and step.outcome == "fail" else ""
    size = f"{error:.1e}" if error is not None else ""
    known = "  (known)" if step.answer.seconds == 0 else ""
    nodes = count(len(step.items) or len(world.nodes), "node")
    yield f"{step.number:>3}  {step.purpose.value:<8}  {span}   {nodes}   {size}  {word} {told}{share}{known}".rstrip()
    if len(steps) == 1 and step.outcome == "fail":
        each = step.answer.seconds
        yield f"     {each:.2g} s a run, about {step.more} more runs: {each * step.more:.2g} s"
