"""A whole bisection, step by step: the search among the suspects, then its document and its folder.

If nothing fails while tensors that hold shapes are constants, the search runs once more with them as inputs: freezing
changes what a candidate does, and some faults need the one form, some the other.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from subgraph.bisection import costs, document, result_folder
from subgraph.bisection.oracle import NodeOracle, narrow, world
from subgraph.cases import case
from subgraph.cases.case import ResultPlace
from subgraph.documents import to_json
from subgraph.errors import UsageError
from subgraph.graph.graph import Graph
from subgraph.graph.region import between
from subgraph.runtime import candidate as candidates
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.inputs import Feeding
from subgraph.search import FindingKind, Findings, Outcome, Settings, Step
from subgraph.search.state import Steps
from subgraph.storage.folders import safe_name
from subgraph.trials.session import Setup, open_with_processes
from subgraph.trials.trial import Trials

log = logging.getLogger("subcut")

LONG = 60  # characters of a candidate's name in a folder's


@dataclass(frozen=True)
class BisectionOptions:
    """What is asked for, beside the model.

    Attributes:
        within: `A..B`, only the nodes between these two are suspects; "" for all.
        command: what the user said, for reports; notes: what their reader should know.
        force: may another result be replaced?
        hints: how many times as likely as others a node is to blame, by its index: it changes what is asked first.
    """

    setup: Setup
    limits: Settings = field(default_factory=Settings)
    within: str = ""
    command: str = ""
    notes: tuple[str, ...] = ()
    force: bool = False
    hints: Mapping[int, float] = field(default_factory=dict)

    @property
    def place(self) -> ResultPlace:
        """Where the result goes: one folder per candidate."""
        setup = self.setup
        return ResultPlace(setup.output, f"bisect-{safe_name(setup.candidate.name)[:LONG]}", self.force)

    @property
    def request(self) -> dict[str, Any]:
        """What the result depends on beside the model, as plain data."""
        setup = self.setup
        found: dict[str, Any] = json.loads(
            json.dumps(
                {
                    "candidate": setup.candidate.name,
                    "identity": setup.candidate.identity(""),
                    "precision": setup.candidate.precision,
                    "feeding": to_json(setup.feeding.options),
                    "criterion": setup.criterion,
                    "freeze": setup.freeze,
                    "within": self.within,
                }
            )
        )
        return found


class Bisection:
    """Iterate it: a Step per answer of the candidate. After the last one the result is written and told.

    Attributes:
        steps: those that came so far.
        findings: what the search concluded, once it ended; items are places in `world.groups`.
        document: all of it as plain data, as `subcut bisect --json` prints it, once it ended.
    """

    def __init__(self, trials: Callable[[], AbstractContextManager[Trials]], plan: BisectionOptions) -> None:
        """`trials`: opens what a search asks, for as long as it runs."""
        self._trials, self.plan = trials, plan
        self.steps: list[Step] = []
        self.findings: Findings | None = None
        self.document: dict[str, Any] = {}
        self.world: NodeOracle | None = None

    def __iter__(self) -> Iterator[Step]:
        """
        Raises:
            BackendError: the candidate cannot be used. ResultExists: another result stands in the way.
            UsageError, UnknownName: `within` names nothing. OutputError: nothing can be written.
        """
        begin, plan = time.monotonic(), self.plan
        self.steps.clear()
        with self._trials() as asked:
            self.world = self._asking(asked)
            result_folder.require_free(plan.place, plan.request, self.world)
            found = yield from self._searched()
            if self._vague(found) and asked.freeze:
                log.info("nothing fails with shapes as constants: once more, with shapes as inputs")
                asked.freeze = False
                self.world = self._asking(asked)
                found = yield from self._searched()
            self.findings = found
            self.document = document.document(
                self.world,
                found,
                self.steps,
                command=plan.command,
                criterion=plan.setup.criterion,
                seconds=time.monotonic() - begin,
                notes=[*plan.notes, *self._stale(found)],
            )
            if asked.candidate_model:
                self.document["other_model"] = self._other(found)
            if found.outcome is Outcome.DISAGREE:
                result_folder.save(self.world, self.document, plan.place, plan.request, plan.setup.feeding)

    def nodes(self, step: Step) -> list[str]:
        """The nodes that a step asked about; none where it was the whole model."""
        graph = self._world.trials.graph
        return [graph.label(i) for i in self._world.indices(step.items)]

    @property
    def suspects(self) -> int:
        """How many nodes are in question."""
        return self._world.size

    def search(self) -> Steps[Findings]:
        """The search from its beginning, over the answers that there are."""
        asked = self._world
        asked.hints = self.plan.hints
        return narrow(asked, replace(self.plan.limits, within=_scope(asked, self.plan.within)))

    def _asking(self, asked: Trials) -> NodeOracle:
        """The questions of the search; another way to answer them is put in here."""
        return world(asked, self.plan.limits.workers)

    @property
    def _world(self) -> NodeOracle:
        if self.world is None:
            raise UsageError("the bisection has not begun", "iterate it first")
        return self.world

    def _searched(self) -> Steps[Findings]:
        running = self.search()
        while True:
            try:
                step = next(running)
            except StopIteration as end:
                found: Findings = end.value
                return found
            self.steps.append(step)
            yield step

    def _vague(self, found: Findings) -> bool:
        """Does the whole fail, but no piece of it, though shapes are frozen somewhere?"""
        asked = self._world
        nothing = found.outcome is Outcome.DISAGREE and all(f.kind is FindingKind.UNRESOLVED for f in found.findings)
        return nothing and not found.stopped and any(asked.region([k]).shapes for k in range(len(asked.groups)))

    def _other(self, found: Findings) -> dict[str, Any]:
        """What the candidate's own model has in common with ours, and what it costs; the latter within the budget."""
        asked = self._world
        other = asked.trials.candidate_model
        assert other
        told = {"file": other.graph.path.name, "matched": other.summary()}
        if found.stopped or found.outcome is Outcome.AGREE:
            return told
        log.info("what each piece of %s costs: %d runs", other.graph.path.name, len(asked.groups))
        return told | costs.document(asked, costs.costs(asked), asked.trials.precision)

    def _stale(self, found: Findings) -> list[str]:
        """An earlier result of the same request that says otherwise."""
        graph, place = self._world.trials.graph, self.plan.place
        if found.outcome is Outcome.DISAGREE or not case.is_earlier(place, self.plan.request, case.source_of(graph)):
            return []
        return [f"{place.path} holds an earlier run's finding, which this run does not confirm"]


def bisect(
    graph: Graph,
    candidate: str | Candidate = "ort",
    inputs: Sequence[str] = (),
    *,
    seed: int = 0,
    shapes: Mapping[str, Sequence[int]] | None = None,
    criterion: str = "noise",
    reference: str | Candidate = "ort",
    within: str = "",
    limits: Settings | None = None,
    freeze: bool = True,
    output: str | Path = "subcut_out",
    force: bool = False,
) -> Bisection:
    """Find the smallest piece of a model that a candidate gets wrong: iterate what this returns.

    `candidate`, `reference`: a SPEC as after `-c`, or a `candidate.Candidate` with limits of its own. `inputs`: words
    as after `-i`. `within`: `A..B`. The result goes to a folder in `output`, where answers are kept as well: a loop
    that was stopped goes on when it is run again.

    >>> running = bisect(load("model.onnx"), "ort", ["x.npy"])                                   # doctest: +SKIP
    >>> for step in running: print(step.number, running.nodes(step), step.outcome)               # doctest: +SKIP
    >>> running.document["findings"][0]["nodes"]                                                 # doctest: +SKIP
    ['/pad/Pad', '/pool/MaxPool']

    Raises:
        UnknownName, UsageError: a SPEC means nothing. More while it is iterated: see `Bisection`.
    """
    doubted = candidates.parse(candidate) if isinstance(candidate, str) else candidate
    right = candidates.parse(reference) if isinstance(reference, str) else reference
    feeding = Feeding(tuple(map(str, inputs)), shapes or {}, seed)
    setup = Setup(doubted, feeding, Path(output), criterion, freeze)
    command = f"subgraph.bisect({graph.path.name!r}, {doubted.name!r})"
    plan = BisectionOptions(setup, limits or Settings(), within, command, force=force)
    return Bisection(partial(open_with_processes, graph, setup, right), plan)


def _scope(asked: NodeOracle, within: str) -> Sequence[int] | None:
    """The items between the two nodes of `A..B`."""
    if not within:
        return None
    start, sep, end = within.partition("..")
    if not sep:
        raise UsageError(f"--within {within}: expected two nodes", "--within conv1..pool5; either may be left out")
    nodes = set(between(asked.trials.graph, [start] if start else [], [end] if end else []).nodes)
    items = [k for k, group in enumerate(asked.groups) if nodes.intersection(group)]
    if not items:
        raise UsageError(f"--within {within}: nothing there carries values")
    return items
