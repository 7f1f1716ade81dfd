"""A model, how it is lowered, and what is accepted -> the places that stay in float, each of them proven.

Insight: it is a search for a culprit turned round. Each place alone is lowered, which says how sensitive it is; then
the shortest prefix in that order is kept that is accepted, then chunks are given back (`search`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import Lock, Semaphore

import numpy as np

from subgraph.editing.draft import Draft
from subgraph.errors import OutOfTime, SubcutError
from subgraph.graph.model_file import model_digest
from subgraph.plan.lists import Kept
from subgraph.plan.lists.names import render
from subgraph.plan.lower import lowered
from subgraph.plan.places import OUTPUT, Place, Read, Twin, Unit, places
from subgraph.plan.score import Acceptance, Judged, not_run
from subgraph.plan.search import Found, smallest
from subgraph.results.plan import PlanSeconds
from subgraph.runtime.cached_runs import load_or_run
from subgraph.runtime.run_result import Job, RunResult
from subgraph.storage.digest import digest
from subgraph.trials.trial import Trials
from subgraph.types import Array
from subgraph.verdict import Status
from subgraph.version import __version__

log = logging.getLogger("subcut")

REPEATS = 5  # timed runs of each model


@dataclass(frozen=True)
class Tried:
    """A model that was run: the places that it keeps, and what was said of it."""

    kept: frozenset[int]
    judged: Judged


@dataclass
class Planner:
    """Runs models in which some places are kept. Several threads may ask at once.

    Attributes:
        outputs: of the model, that are compared.
        tried: every model that was judged, in the order of asking.
        errors: by place, how far the outputs are off where it alone is lowered; infinite where that does not run.
        problem: why there is no plan, other than that the time is used up; "" where there may be one.
        is_wrong: the problem is that the float model was judged, and is not accepted.
    """

    trials: Trials
    twin: Twin
    unit: Unit
    acceptance: Acceptance
    jobs: int = 1
    tried: dict[frozenset[int], Tried] = field(default_factory=dict)
    errors: dict[int, float] = field(default_factory=dict)
    problem: str = ""
    is_wrong: bool = False
    _lock: Lock = field(default_factory=Lock)

    @cached_property
    def places(self) -> list[Place]:
        return places(self.trials.graph, self.twin, self.unit)

    @cached_property
    def outputs(self) -> list[str]:
        return [n for n in self.trials.graph.outputs if n in self.trials.graph.maker]

    @cached_property
    def _identity(self) -> str:
        trials, other = self.trials, self.trials.candidate_model
        fed = [trials.values.digest([sample[n] for n in trials.graph.inputs]) for sample in trials.values.records]
        lowering = other.identity if other else self.twin.precision  # a command is part of the candidate's key
        return digest("plan/1", __version__, model_digest(trials.graph), lowering, trials.candidate_key.text, *fed)

    def reads(self, kept: Collection[int]) -> frozenset[Read]:
        """What is lowered where these places are kept."""
        found = [place.reads for k, place in enumerate(self.places) if k not in kept]
        return frozenset().union(*found)

    def draft(self, kept: Collection[int]) -> Draft:
        """The model in which these places are kept; the float model itself where the candidate's command lowers it."""
        graph = self.trials.graph
        return Draft(graph) if self.twin.by_command else lowered(graph, self.twin, self.reads(kept))

    def kept_nodes(self, kept: Collection[int]) -> Kept:
        """What the lists name."""
        graph = self.trials.graph
        reads = [read for k in kept for read in self.places[k].reads]
        nodes = graph.in_order({i for i, _ in reads if i != OUTPUT})
        lowered = {i for i, _ in self.reads(kept) if i != OUTPUT}
        whole = {graph.ops[i] for i in nodes} - {graph.ops[i] for i in lowered}
        return Kept(
            nodes=[graph.label(i) for i in nodes],
            tensors=[n for i in nodes for n in graph.makes[i]],
            outputs=sorted({name for i, name in reads if i == OUTPUT}),
            operators=sorted(whole),
        )

    def run(self, kept: Collection[int]) -> RunResult:
        """What the model gives in which these places are kept; stored.

        Raises:
            OutOfTime: the time that the user gave is used up.
        """
        key = digest(self._identity, sorted(map(list, self.reads(kept))))

        def anew(into: Path) -> RunResult:
            if self.is_over():
                raise OutOfTime("the time is used up")
            with self.trials.temporary_folder() as folder:
                return self.trials.workers.run(self._job(kept, folder, into))

        return load_or_run(self.trials.store, [key], anew)[0]

    def is_over(self) -> bool:
        """Is the time that the user gave used up?"""
        return time.monotonic() > self.trials.workers.deadline

    def _job(self, kept: Collection[int], folder: Path, into: Path) -> Job:
        """A run of the model in which these places are kept; it is written to the folder."""
        names, options = list(self.trials.graph.inputs), self.trials.candidate.options
        feeds = [[sample[n] for n in names] for sample in self.trials.values.records]
        self.draft(kept).save(folder / "model.onnx")
        if self.twin.by_command:
            options = {**options, "keep": render(self.kept_nodes(kept))}
        return Job(folder / "model.onnx", feeds, self.outputs, into, options=options)

    def judge(self, kept: Collection[int]) -> Judged:
        """What is said of the model in which these places are kept; asked once."""
        key = frozenset(kept)
        if key not in self.tried:
            judged = self.acceptance.judge(self.run(kept))
            with self._lock:
                self.tried[key] = Tried(key, judged)
                number = len(self.tried)
            what = {Status.AGREE: "accepted", Status.FAIL: "refused"}.get(judged.status, "unresolved")
            log.info("%d: %d of %d places in float: %s   %s", number, len(key), len(self.places), what, judged.why)
        return self.tried[key].judged

    def measure(self) -> None:
        """How far the outputs are off with each place alone lowered, the model's own order, `jobs` at once."""
        every = range(len(self.places))
        self.trials.workers.turns = Semaphore(self.jobs)
        with ThreadPoolExecutor(max_workers=self.jobs) as pool:
            done = 0
            try:
                for k, error in zip(every, pool.map(self._error_of, every), strict=True):
                    self.errors[k] = error
                    done += 1
                    extra = {"step": done, "of": len(every), "sparse": True}
                    log.info("%s alone: off by %.2g", self.places[k].name, error, extra=extra)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _error_of(self, place: int) -> float:
        result = self.run([k for k in range(len(self.places)) if k != place])
        if result.failure:
            return math.inf
        pairs = [
            (records[n].array(), sample[n].array())
            for records, sample in zip(self.trials.values.records, result.tensors, strict=True)
            for n in self.outputs
            if n in sample and records[n].form == "tensor"
        ]
        return max((distance(a, b) for a, b in pairs if a.dtype.kind == "f"), default=0.0)

    def find(self) -> Found | None:
        """The smallest set of places to keep; None where there is none, or no time: `problem` says which."""
        every = frozenset(range(len(self.places)))
        try:
            if not (judged := self.judge(every)).accepted:
                self.problem, self.is_wrong = (
                    f"not even with every place in float: {judged.why}",
                    judged.status is Status.FAIL,
                )
                return None
            if self.judge(()).accepted:
                return Found((), 0)
            self.measure()
        except OutOfTime:
            if not self.errors:
                return None
        order = sorted(every, key=lambda k: (-self.errors.get(k, 0.0), k))
        found = smallest(order, lambda kept: self.judge(kept).accepted)
        lowered_again = (self.tried.get(frozenset(found.kept) - {place}) for place in found.kept)
        return replace(found, proven=sum(one is not None and one.judged.status is Status.FAIL for one in lowered_again))

    def seconds(self, kept: Collection[int]) -> PlanSeconds | None:
        """Of a run over all samples, in turn: the float model, and that in which these places are kept.

        None where there is no time left for it, or a command would convert each model again.
        """
        if self.is_over() or self.twin.by_command:
            return None
        every = range(len(self.places))
        times: list[tuple[float, float]] = []
        with self.trials.temporary_folder() as folder:
            jobs = []
            for name, which in (("float", every), ("plan", kept)):
                (folder / name / "out").mkdir(parents=True)
                jobs.append(self._job(which, folder / name, folder / name / "out"))
            for _ in range(REPEATS):
                whole, lower = (self.trials.workers.run(job).run for job in jobs)
                times.append((whole, lower))
        return PlanSeconds(in_float=min(w for w, _ in times), plan=min(p for _, p in times))


def distance(reference: Array, other: Array) -> float:
    """|a − b| / |a|; infinite where a value is not finite, or the shapes differ."""
    if reference.shape != other.shape:
        return math.inf
    a, b = reference.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(a)
    if not np.all(np.isfinite(b[finite])):
        return math.inf
    norm = float(np.linalg.norm(a[finite]))
    off = float(np.linalg.norm(a[finite] - b[finite]))
    return off / norm if norm else (math.inf if off else 0.0)


def score_as_it_is(planner: Planner) -> Judged:
    """What is said of the lowered model itself: that of the pair, else every place lowered.

    Where the candidate cannot run its own model, that is said in place of a score.
    """
    trials = planner.trials
    if trials.candidate_model is None:
        return planner.judge(())
    try:
        return planner.acceptance.judge(trials.run(trials.whole()))
    except SubcutError as e:
        return not_run(e.what)
