"""A model that the candidate's memory does not hold -> one search per stretch of it, on captured
values.

Without a run of the full model it is unknown whether a failing region of a stretch explains the
outputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import add

from subgraph.iterables import flatten, pick
from subgraph.questions.bisection.oracle import NodeOracle
from subgraph.runtime.stretches import Cost, compute_held_bytes, iter_stretches
from subgraph.search import (
    Finding,
    FindingKind,
    Findings,
    Outcome,
    Purpose,
    QueryKind,
    Settings,
    Step,
)
from subgraph.search.driver import Steps, each
from subgraph.search.oracle import Items

# Share of the memory for the weights of a stretch: copies in other forms and tensors need the rest.
MAX_WEIGHTS_SHARE = 0.5
UNSEEN = (
    "every region is fed with captured values, so it is unknown whether a failing region explains"
    " the outputs"
)


def list_stretches(oracle: NodeOracle) -> list[Items]:
    """Return the items, in ranges whose weights fit into the candidate's memory; all in one range
    if the full model fits."""
    trials = oracle.trials
    everything = oracle.all_items
    weights = trials.graph.weights
    room = trials.runtime.workers.memory
    if room is None or not trials.runner.too_large(trials.full_model):
        return [everything]
    held = {name: compute_held_bytes(weight) for name, weight in weights.items()}
    of_items = [oracle.region([k]).weights for k in everything]
    costs = [Cost(pick(held, names)) for names in of_items]
    total = sum(dict(flatten(cost.weights.items() for cost in costs)).values())
    # Two stretches at least: the whole was too much.
    most = min(int(room * MAX_WEIGHTS_SHARE), total // 2)
    return [tuple(items) for items in iter_stretches(costs, [0] * (len(costs) + 1), most)]


def capture(oracle: NodeOracle) -> None:
    """Compute the reference's outputs of the model, and the tensors that enter and leave each
    stretch, in the same run.

    Raises:
        InputError: an input does not fit. ModelError: the reference cannot run the model.
            WorkerDied: it crashed.
    """
    parts = list_stretches(oracle)
    ends = [
        oracle.trials.full_model,
        *(oracle.region(items) for items in parts if len(parts) > 1),
    ]
    oracle.trials.model.capture(*ends)


def search_stretches(oracle: NodeOracle, settings: Settings) -> Steps[Findings]:
    """Search the model; if the candidate's memory does not hold it, each stretch, as between two
    nodes."""
    parts = list_stretches(oracle)
    results = list[Findings]()
    numbers = itertools.count(1)

    def number_step(step: Step) -> Step | None:
        """Give a step its number; omit every run of the full model but the first."""
        is_repeated = results and step.query.kind is QueryKind.WHOLE
        if is_repeated:
            return None
        return replace(step, number=next(numbers))

    if len(parts) == 1:
        whole = yield from each(oracle.search(settings), number_step)
        if whole.stopped or not oracle.trials.runner.too_large(oracle.trials.full_model):
            return whole
        # The full model was tried, and its memory did not suffice.
        results = [whole]
        parts = list_stretches(oracle)
    scope = set(oracle.all_items if settings.within is None else settings.within)
    begin = settings.clock()
    for within in filter(None, (scope.intersection(items) for items in parts)):
        runs = sum(result.counts.total() for result in results)
        limits = settings.subtract(runs, settings.clock() - begin)
        search = oracle.search(replace(limits, within=within, repeat=1))
        findings = yield from each(search, number_step)
        # The baseline of a stretch is answered without a run.
        results.append(replace(findings, counts=findings.counts.exclude(Purpose.BASELINE)))
        if findings.stopped:
            break
    return _join_results(oracle, results, len(parts))


def _join_results(oracle: NodeOracle, results: Sequence[Findings], parts: int) -> Findings:
    """Join the results of all stretches into one."""
    counts = reduce(add, (findings.counts for findings in results))
    named = tuple(
        flatten(findings.findings for findings in results if findings.outcome is Outcome.DISAGREE)
    )
    why = f"the whole model: {oracle.trials.runner.too_large(oracle.trials.full_model)}"
    notes = ((f"{why}; {UNSEEN}", ()), *flatten(findings.notes for findings in results))
    stopped = next((findings.stopped for findings in results if findings.stopped), "")
    if not named:
        says = stopped or f"{why}; no region of its {parts} stretches fails on captured values"
        named = (Finding(FindingKind.UNRESOLVED, oracle.all_items, None, why=says),)
    outcomes = {findings.outcome for findings in results}
    return Findings(
        Outcome.DISAGREE if Outcome.DISAGREE in outcomes else Outcome.UNRESOLVED,
        counts,
        findings=named,
        irrelevant=tuple(flatten(findings.irrelevant for findings in results)),
        unresolved=tuple(flatten(findings.unresolved for findings in results)),
        stopped=stopped,
        budget_spent=any(findings.budget_spent for findings in results),
        notes=notes,
    )
