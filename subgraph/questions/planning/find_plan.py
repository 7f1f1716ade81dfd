"""A model, its lowering and a criterion -> the places that stay in float, each of them proven.

Insight: it is an inverted search for a culprit. Each place alone is lowered, which shows its
sensitivity; then the shortest accepted prefix in that order is kept, then chunks are given back
(`search`). With gears, each kept place then takes the lowest gear that is accepted.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from threading import Lock, Semaphore

import numpy as np

from subgraph.editing.draft import Draft
from subgraph.errors import OutOfTime, SubcutError
from subgraph.graph.graph import Graph
from subgraph.graph.model_file import digest_model
from subgraph.iterables import flatten
from subgraph.log import log
from subgraph.questions.planning.lists import Kept
from subgraph.questions.planning.lists.names import render
from subgraph.questions.planning.lower import lower_model
from subgraph.questions.planning.places import (
    OUTPUT,
    Dynamic,
    Lowering,
    Place,
    Read,
    Twin,
    Unit,
    list_places,
)
from subgraph.questions.planning.smallest_set import SmallestSet, find_smallest_set
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.runtime.run_result import Job, RunResult, load_or_run
from subgraph.storage.digest import Part, digest, digest_file
from subgraph.storage.tensors import Record
from subgraph.trials.doubt import Settlement
from subgraph.trials.open_trials import with_own_model
from subgraph.trials.preflight import require_usable
from subgraph.trials.questions import explain_full_model
from subgraph.trials.score import ModelJudgement, judge_not_run
from subgraph.trials.trial import Trials
from subgraph.types import Array, frozen
from subgraph.verdict import Status
from subgraph.version import __version__

# Places, from which on they are measured in groups first if the time is limited.
MIN_GROUPED_PLACES = 64
GROUP_PLACES = 16  # places


# By place that is kept: 1 … of the gears, the next number is float; others are lowered.
Levels = Mapping[int, int]


@frozen
class TriedModel:
    """A model that was run: the places that it keeps, and the judgement on it."""

    levels: Levels
    judged: ModelJudgement

    @property
    def kept(self) -> int:
        """Number of places."""
        return len(self.levels)


@frozen
class LoweredModels:
    """The models in which some places of a model are kept, and the others are lowered.

    Attributes:
        graph: The model.
        twin: The lowering.
        unit: The unit that is kept as one.
        gears: The lowerings between the lowered model and float, by name, the lowest first.
    """

    graph: Graph
    twin: Twin
    unit: Unit
    gears: Mapping[str, Twin] = field(default_factory=dict)

    @cached_property
    def places(self) -> list[Place]:
        """The places, in the order of their numbers."""
        return list_places(self.graph, self.twin, self.unit)

    @property
    def _gears(self) -> list[tuple[str, Twin]]:
        return list(self.gears.items())

    def keep_in_float(self, kept: Collection[int]) -> Levels:
        """Return these places in float, all others lowered."""
        return dict.fromkeys(kept, len(self.gears) + 1)

    def list_lowerings(self, levels: Levels) -> dict[Read, Lowering]:
        """Return the lowering of each read; empty if the candidate's command lowers them."""
        lowerings: dict[Read, Lowering] = {}
        for k, place in enumerate(self.places if not self.twin.by_command else ()):
            level = levels.get(k, 0)
            if level == 0:
                lowerings |= {read: self.twin.make_lowering(read) for read in place.reads}
            elif level <= len(self.gears):
                lowerings |= self._get_lowering(place, self._gears[level - 1][1])
        return lowerings

    def _get_lowering(self, place: Place, twin: Twin) -> dict[Read, Lowering]:
        """Return the lowering of a place at a gear; empty if it cannot be lowered so."""
        if twin.rounded:
            nodes = {i for i, _ in place.reads}
            if nodes <= twin.rounded.keys():
                return {(i, ""): twin.rounded[i] for i in nodes}
            return {}
        wide = {r: twin.make_lowering(r) for r in place.reads if r[1] in twin.forms}
        changed = any(form != self.twin.make_lowering(r) for r, form in wide.items())
        if changed and len(wide) == len(place.reads):
            return wide
        return {}

    def make_draft(self, levels: Levels, *, simulated: bool = False) -> Draft:
        """Return the model with these levels; the float model itself if the candidate's command
        lowers it. `simulated`: as of `lower_model`."""
        graph = self.graph
        if self.twin.by_command:
            return Draft(graph)
        return lower_model(graph, self.list_lowerings(levels), simulated=simulated)

    def find_kept_nodes(self, kept: Collection[int], rounds: int = 0) -> Kept:
        """Return the nodes and tensors that the lists name.

        Args:
            kept: The kept places.
            rounds: How often the list is widened by the producers of the tensors that its nodes
                read, and of its outputs.
        """
        graph = self.graph
        reads = list(flatten(self.places[k].reads for k in kept))
        outputs = sorted({name for i, name in reads if i == OUTPUT})
        nodes = {i for i, _ in reads if i != OUTPUT}
        for _ in range(rounds):
            names = chain(outputs, graph.iter_inputs(nodes))
            nodes |= set(graph.producers(names))
        order = graph.in_order(nodes)
        tensors = list(graph.iter_outputs(order))
        return Kept([graph.label(i) for i in order], tensors, outputs)

    def describe_gears(self, levels: Levels) -> str:
        """Return the number of places at each gear: `, 3 in float16`."""
        lower = Counter(
            self.name_gear(level) for level in levels.values() if level <= len(self.gears)
        )
        return "".join(f", {number} in {name}" for name, number in lower.items())

    def name_gear(self, level: int) -> str:
        """Return the name of the gear of a kept place, or "float32"."""
        if level > len(self.gears):
            return "float32"
        return self._gears[level - 1][0]

    def lower(self, levels: Levels, place: int) -> Levels:
        """Return the levels with one place at its next lower level."""
        level = levels[place] - 1
        while level and not self._get_lowering(self.places[place], self._gears[level - 1][1]):
            level -= 1
        others = {k: v for k, v in levels.items() if k != place}
        return {**others, place: level} if level else others


@frozen
class ModelRunner:
    """Runs lowered models, and judges their outputs. Several threads may use it at once.

    Attributes:
        trials: The candidate and its judge.
        models: The lowered models.
        turns: The lock that each run waits for and holds.
    """

    trials: Trials
    models: LoweredModels
    turns: Semaphore

    @property
    def outputs(self) -> list[str]:
        """The outputs that a node computes."""
        return [n for n in self.models.graph.outputs if n in self.models.graph.maker]

    @cached_property
    def _identity(self) -> str:
        trials = self.trials
        own_model = trials.runtime.own_model
        inputs = [
            trials.model.values.digest([sample[n] for n in trials.graph.inputs])
            for sample in trials.model.values.records
        ]
        # A command is part of the candidate's key.
        lowering = own_model.identity if own_model else self.models.twin.precision
        return digest(
            "plan/3",
            __version__,
            digest_model(trials.graph),
            lowering,
            trials.processes.runs.candidate_key.text,
            *inputs,
        )

    @property
    def simulated(self) -> bool:
        """Whether the candidate does not round between float16 nodes, so that the models that it
        runs do."""
        candidate = self.trials.runtime.candidate
        return candidate.can.half_as_float and not candidate.device

    def judge_file(self, model: Path) -> ModelJudgement:
        """Return the judgement on another model with the same inputs and outputs.

        Raises:
            OutOfTime: The time that the user allowed is used up.
        """

        def job(_folder: Path, into: Path) -> Job:
            options = self.trials.runtime.candidate.options
            return Job(model, self._list_feeds(), self.outputs, into, options=options)

        return self.accept(self._load_or_run([self._identity, digest_file(model)], job))

    def accept(self, result: RunResult) -> ModelJudgement:
        """Judge the outputs of a model by the score of the task, or as `compare` judges them."""
        judge = self.trials.judge
        if judge.score:
            return judge.score.judge(result)
        if result.failure:
            return judge_not_run(result.failure.why)
        verdict = judge.verdict(self.trials.model.whole(), result)
        return ModelJudgement(verdict.status, verdict.why or verdict.status.value)

    def run(self, levels: Levels, samples: int | None = None) -> RunResult:
        """Return the result of the model with these levels, on the first samples or all; stored.

        Raises:
            OutOfTime: The time that the user allowed is used up.
        """

        def job(folder: Path, into: Path) -> Job:
            options = self.trials.runtime.candidate.options
            models = self.models
            model = folder / "model.onnx"
            models.make_draft(levels, simulated=self.simulated).save(model)
            if models.twin.by_command:
                options = {**options, "keep": render(models.find_kept_nodes(levels))}
            return Job(model, self._list_feeds(samples), self.outputs, into, options=options)

        return self._load_or_run([self.key_of(levels), samples], job)

    def _load_or_run(self, key: Sequence[Part], job: Callable[[Path, Path], Job]) -> RunResult:
        """Return the stored result of a job, or run it.

        Raises:
            OutOfTime: The time that the user allowed is used up.
        """

        def anew(into: Path) -> RunResult:
            if self.is_over():
                raise OutOfTime("the time is used up", code="time.used-up")
            with self.trials.model.make_temporary_folder() as folder:
                return self.trials.runtime.workers.run(job(folder, into), self.turns)

        return load_or_run(self.trials.model.store, [digest(*key)], anew)[0]

    def key_of(self, levels: Levels) -> str:
        """Return the key under which a run is stored. It has the lowered reads, not the places,
        which another unit numbers otherwise."""
        types = {
            read: "" if isinstance(form, Dynamic) else form.dtype
            for read, form in self.models.list_lowerings(levels).items()
        }
        # `_identity` has the scales.
        reads = [f"{i} {name} {dtype}" for (i, name), dtype in types.items()]
        kept = self.models.find_kept_nodes(levels).nodes if self.models.twin.by_command else ()
        return digest(self._identity, [*kept], sorted(reads))

    def is_over(self) -> bool:
        """Return whether the time that the user set is used up."""
        return self.trials.runtime.workers.deadline.has_passed

    def _list_feeds(self, samples: int | None = None) -> list[list[Record]]:
        names = list(self.trials.graph.inputs)
        return [[sample[n] for n in names] for sample in self.trials.model.values.records[:samples]]


@dataclass
class Planner:
    """Searches the smallest set of places to keep. Several threads may use it at once.

    Attributes:
        trials: The candidate and its judge.
        models: The lowered models.
        jobs: Number of models that run at once.
        tried: Every model that was judged, in the order of the runs.
        errors: By place, how far the outputs deviate if it alone is lowered; infinite if that model
            does not run.
        estimates: By place, an estimate of its error: that of its neighbors together, shared out.
        ranking: Number of runs for the estimates.
        problem: The reason why there is no plan, other than that the time is used up; "" if there
            may be a plan.
        is_wrong: Whether the problem is that the float model was judged, and is not accepted.
    """

    trials: Trials
    models: LoweredModels
    jobs: int = 1
    tried: dict[frozenset[tuple[int, int]], TriedModel] = field(default_factory=dict)
    errors: dict[int, float] = field(default_factory=dict)
    estimates: dict[int, float] = field(default_factory=dict)
    ranking: int = 0
    problem: str = ""
    is_wrong: bool = False
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.runner = ModelRunner(self.trials, self.models, Semaphore(self.jobs))

    @property
    def runs(self) -> int:
        """Number of models that were run, stored ones among them."""
        return len(self.tried) + len(self.errors) + self.ranking

    def judge(self, levels: Levels) -> ModelJudgement:
        """Judge the model with these levels; run once."""
        key = frozenset(levels.items())
        if key not in self.tried:
            judged = self.runner.accept(self.runner.run(levels))
            with self._lock:
                self.tried[key] = TriedModel(levels, judged)
                number = len(self.tried)
            outcome = {Status.AGREE: "accepted", Status.FAIL: "refused"}.get(
                judged.status, "unresolved"
            )
            gears = self.models.describe_gears(levels)
            places = f"{len(key)} of {len(self.models.places)} places kept{gears}"
            log.info("%d: %s: %s   %s", number, places, outcome, judged.why)
        return self.tried[key].judged

    @cached_property
    def as_it_is(self) -> ModelJudgement:
        """The judgement on the lowered model itself: that of the pair, else every place lowered.

        If the candidate cannot run its own model, the judgement has that fact instead of a score.
        """
        trials = self.trials
        try:
            if trials.runtime.own_model is None:
                return self.judge({})
            return self.runner.accept(trials.run(trials.model.whole()))
        except SubcutError as e:
            return judge_not_run(e.what)

    def measure(self) -> None:
        """Measure how far the outputs deviate with each place alone lowered, `jobs` at once.

        If the time is limited, half of it is for this, and of many places it is estimated first,
        so that the sensitive ones are known by then.

        Raises:
            OutOfTime: that half is used up.
        """
        every: Sequence[int] = range(len(self.models.places))
        until = time.monotonic() + self.trials.runtime.workers.deadline.timeout(math.inf) / 2
        if math.isfinite(until) and len(every) > MIN_GROUPED_PLACES:
            self._estimate(until)
            every = sorted(every, key=lambda k: (-self.estimates[k], k))
        for (k,), error in self._iter_errors([[k] for k in every], until):
            self.errors[k] = error
            extra = {"step": len(self.errors), "of": len(every), "sparse": True}
            log.info("%s alone: off by %.2g", self.models.places[k].name, error, extra=extra)

    def _estimate(self, until: float) -> None:
        """Measure the errors of neighbors together on the first sample, in equal shares.

        Raises:
            OutOfTime: it is later than `until`.
        """
        every = range(len(self.models.places))
        groups = [every[k : k + GROUP_PLACES] for k in range(0, len(every), GROUP_PLACES)]
        self.estimates = dict.fromkeys(every, 0.0)
        for group, error in self._iter_errors(groups, until, samples=1):
            self.ranking += 1
            self.estimates |= dict.fromkeys(group, error / math.sqrt(len(group)))

    def _iter_errors(
        self, groups: Sequence[Sequence[int]], until: float, samples: int | None = None
    ) -> Iterator[tuple[Sequence[int], float]]:
        """Yield each group of places, and how far the outputs deviate if it alone is lowered.

        Raises:
            OutOfTime: It is later than `until`.
        """
        with ThreadPoolExecutor(max_workers=self.jobs) as pool:
            try:
                errors = pool.map(lambda group: self._measure_error(group, until, samples), groups)
                yield from zip(groups, errors, strict=True)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _measure_error(self, group: Collection[int], until: float, samples: int | None) -> float:
        if time.monotonic() > until:
            raise OutOfTime("the time for measuring is used up", code="time.used-up")
        result = self.runner.run(
            self.models.keep_in_float(
                [k for k in range(len(self.models.places)) if k not in group]
            ),
            samples,
        )
        if result.failure:
            return math.inf
        pairs = [
            (records[n].array(), sample[n].array())
            for (records, sample), n in product(
                zip(self.trials.model.values.records, result.tensors, strict=samples is None),
                self.runner.outputs,
            )
            if n in sample and records[n].form == "tensor"
        ]
        return max((measure_distance(a, b) for a, b in pairs if a.dtype.kind == "f"), default=0.0)

    def find(self) -> SmallestSet | None:
        """Find the smallest set of places to keep.

        Returns:
            None without such a set, or if no time is left; `problem` has the reason.

        Raises:
            BackendError: The candidate runs nothing, or its outputs break the contract.
            Refused: The candidate's file does not load, and its nodes do.
        """
        every = frozenset(range(len(self.models.places)))
        in_float = with_own_model(self.trials, None)
        try:
            require_usable(in_float, self.runner.run({}))
            if self.judge({}).agrees:
                return SmallestSet((), 0)
            if not (judged := self.judge(self.models.keep_in_float(every))).agrees:
                reason = explain_full_model(in_float)
                self.problem = f"not even with every place in float: {judged.why}"
                if reason:
                    self.problem += f"; {reason.says}"
                is_moving = isinstance(reason, Settlement)
                self.is_wrong = judged.fails and not is_moving
                return None
        except OutOfTime:
            return None
        with suppress(OutOfTime):
            self.measure()
        order = sorted(every, key=lambda k: (-self.measure_sensitivity(k), k))
        smallest_set = find_smallest_set(
            order, lambda kept: self.judge(self.models.keep_in_float(kept)).agrees
        )
        levels = self._find_lowest_gears(self.models.keep_in_float(smallest_set.kept))
        refused = (self.tried.get(frozenset(self.models.lower(levels, k).items())) for k in levels)
        proven = sum(neighbor is not None and neighbor.judged.fails for neighbor in refused)
        return replace(smallest_set, kept=tuple(levels), proven=proven, levels=levels)

    def measure_sensitivity(self, place: int) -> float:
        """Return how far the outputs deviate by this place, as far as it was measured."""
        return self.errors.get(place, self.estimates.get(place, 0.0))

    def _find_lowest_gears(self, levels: Levels) -> Levels:
        """Find the lowest accepted level of each kept place.

        The least sensitive comes first, until none can be lower.
        """
        lowered = bool(self.models.gears)
        try:
            while lowered:
                lowered = False
                for place in reversed(list(levels)):
                    while (
                        place in levels
                        and self.judge(lower := self.models.lower(levels, place)).agrees
                    ):
                        levels = lower
                        lowered = True
        except OutOfTime:
            pass
        return {
            k: levels[k] for k in sorted(levels, key=lambda k: (-self.measure_sensitivity(k), k))
        }


def compare_outputs(values: ReferenceValues, others: ReferenceValues) -> dict[str, float]:
    """Return the largest distance of each output of two models over all samples."""
    names = [name for name in values.graph.outputs if name in values.graph.maker]
    values.need(names)
    others.need(names)
    pairs = list(zip(values.records, others.records, strict=True))
    return {n: max(measure_distance(a[n].array(), b[n].array()) for a, b in pairs) for n in names}


def measure_distance(reference: Array, other: Array) -> float:
    """Return |a − b| / |a|; infinite if a value is not finite, or the shapes differ."""
    if reference.shape != other.shape:
        return math.inf
    expected = reference.astype(np.float64)
    actual = other.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.all(np.isfinite(actual[finite])):
        return math.inf
    norm = float(np.linalg.norm(expected[finite]))
    distance = float(np.linalg.norm(expected[finite] - actual[finite]))
    if norm:
        return distance / norm
    if distance:
        return math.inf
    return 0.0
