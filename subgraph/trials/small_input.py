"""A region that fails alone -> the smallest and simplest input with which it fails in the same way.

The region becomes a model with open shapes. First its axes become shorter, then its values simpler.
An input counts only if the reference runs on it, the candidate fails as before, and an agreement
would be earned (`comparison.evidence`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby

import numpy as np

from subgraph.errors import OutOfTime, SubcutError
from subgraph.graph.graph import Graph, load
from subgraph.graph.kinds import CONSTANT, find_kinds
from subgraph.graph.region import Region
from subgraph.graph.value_types import open_dimensions
from subgraph.iterables import ungroup
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.runtime.run_result import RunResult
from subgraph.storage.tensors import write_value
from subgraph.trials.judge import can_tell
from subgraph.trials.open_trials import Setup, open_trials
from subgraph.trials.trial import Trials
from subgraph.types import Array, Arrays
from subgraph.verdict import Signature, Verdict

MAX_RUNS = 40  # of the region, on the candidate
MAX_SECONDS = 20.0  # for all of them
MAX_INTEGER = 9  # of small integers
ORIGIN = "the captured values, smaller or simpler"
# Failures that an input does not cause, or whose repetition takes too long.
OTHER_CAUSES = (Signature.REFUSED, Signature.TIMEOUT, Signature.MEMORY)


@contextmanager
def open_small_input(
    trials: Trials, region: Region, verdict: Verdict, max_runs: int
) -> Iterator[SmallInputProgress | None]:
    """Search the small input of a region; its trials end with the block.

    Args:
        trials: The candidate.
        region: A region that fails alone.
        verdict: The verdict on it.
        max_runs: The most runs of the candidate.

    Yields:
        None if no other input fails in the same way, or if this kind of failure has none.

    Raises:
        SubcutError: The region has no standalone model.
    """
    model = trials.model
    runtime = trials.runtime
    values = model.values
    record = values.records[values.labels.index(verdict.worst.sample) if verdict.worst else 0]
    is_other = runtime.own_model or model.shared_tensors is not None or runtime.is_manual
    is_later = verdict.from_run or verdict.signature in OTHER_CAUSES
    if is_other or is_later or {record[name].form for name in region.inputs} != {"tensor"}:
        yield None
        return
    cut = model.cut(region, [record])
    folder = model.new_folder()
    for info in (*cut.model.graph.input, *cut.model.graph.output):
        open_dimensions(info.type)
    del cut.model.graph.value_info[:]
    cut.save(folder / "model.onnx")
    graph = load(folder / "model.onnx")
    setup = Setup(
        runtime.candidate,
        Feeding(records=({name: record[name] for name in cut.inputs},)),
        folder,
        trials.judge.criterion,
        stored=False,
        choice=model.choice.among(set(graph.outputs)),
    )
    with open_trials(graph, setup, model.reference, runtime.workers) as opened:
        small = SmallInputProgress(opened, max_runs)
        yield small if small.search() else None


class SmallInputProgress:
    """The search for the small input of a model, all of which is the region; then its result.

    Attributes:
        trials: The model, fed with the smallest input that was found.
        result: The candidate's outputs.
        verdict: The verdict on them.
        runs: The number of runs of the candidate.
    """

    def __init__(self, trials: Trials, max_runs: int) -> None:
        self.trials = trials
        self.runs = 0
        self._max_runs = max_runs
        self._until = (
            time.monotonic() + trials.runtime.workers.deadline.timeout(2 * MAX_SECONDS) / 2
        )
        self._run(trials)
        self._base = self.verdict
        known = trials.values.records[0]
        self._types = {name: known[name].type_text for name in trials.full_model.inputs}
        self._arrays = {name: known[name].array() for name in self._types}

    def search(self) -> bool:
        """Return whether there is a smaller input, which fails again in a fresh process."""
        original = self.trials
        axes = list(ungroup((name, range(array.ndim)) for name, array in self._arrays.items()))
        axes.sort(key=self._count_elements)
        same = [list(group) for _, group in groupby(axes, self._count_elements)]
        for group in (*([axis] for axis in axes), *same):
            any(map(self._try, self._iter_shorter(group)))
        for name, array in self._arrays.items():
            any(self._try({name: simpler}) for simpler in _iter_simple(array))
        if self.trials is original:
            return False
        self._run(self.trials, fresh=True)
        return self._is_same()

    def _count_elements(self, axis: tuple[str, int]) -> int:
        name, k = axis
        return int(self._arrays[name].shape[k])

    def _iter_shorter(self, axes: Sequence[tuple[str, int]]) -> Iterator[dict[str, Array]]:
        """Yield inputs whose axes of one size are shorter together, the shortest first."""
        size = self._count_elements(axes[0])
        powers = (2**k for k in range(2, size.bit_length()))
        for length in (1, 2, 3, *powers, size - 1):
            if not 0 < length < size:
                continue
            changed = dict(self._arrays)
            for name, axis in axes:
                new_size = min(length, changed[name].shape[axis])  # it may be shorter by now
                changed[name] = np.take(changed[name], range(new_size), axis)
            yield changed

    def _run(self, trials: Trials, *, fresh: bool = False) -> None:
        whole = trials.full_model
        trials.model.capture(whole)
        self.result: RunResult = trials.run_extra(whole, [{}], fresh=fresh)
        self.runs += 1
        self.verdict = trials.judge.verdict(whole, self.result)

    def _is_same(self) -> bool:
        """Return whether the candidate fails as on the given input."""
        is_same_kind = self.verdict.signature is self._base.signature
        return self.verdict.fails and is_same_kind and fails_alike(self.verdict, self._base)

    def _try(self, changed: Arrays) -> bool:
        """Return whether the candidate fails as before if these inputs change; they are kept then.

        Raises:
            OutOfTime: The time is used up.
        """
        if self.runs + 1 >= self._max_runs or time.monotonic() > self._until:
            return False
        arrays = {**self._arrays, **changed}
        model = self.trials.model
        into = model.new_folder()
        records = {
            name: write_value(name, array, into, f"x{i}", self._types[name])
            for i, (name, array) in enumerate(arrays.items())
        }
        samples = Feeding(records=(records,), origins=(ORIGIN,)).plan(model.graph, records)
        values = ReferenceValues(model.graph, model.reference, samples, into)
        trials = self.trials.with_model(model.with_values(values))
        try:
            self._run(trials)
        except OutOfTime:
            raise
        except SubcutError:  # the reference refuses this input
            return False
        is_same = self._is_same() and can_tell(trials.judge, model.whole())
        if is_same:
            self._arrays = arrays
            self.trials = trials
        return is_same


def _iter_simple(array: Array) -> Iterator[Array]:
    """Yield simpler values, the simplest first: zeros, ones, one element, small integers."""
    if array.dtype.kind in "OUSc":
        return
    places = np.arange(array.size).reshape(array.shape)
    signs = np.where(array < 0, -1, 1)
    whole = np.round(array.astype(float))
    for simple in (0 * places, 0 * places + 1, places == 0, places % MAX_INTEGER + 1, signs, whole):
        if not np.array_equal(simple, array):
            yield simple.astype(array.dtype)


# ------------------------------------------------------------ constants
# This finds the nodes that compute constants of a region, such as dequantized weights, and that its
# fault needs.
#
# A cut holds these nodes because optimizers look at them, but they are not items of a search: no
# value of the model's inputs passes through them. So each one is tested separately, by its constant
# in its place.

MAX_MAKERS = 32  # nodes that are tested, with a run each
MIN_ERROR_RATIO = 4.0  # times smaller is another error
WITH_OUTPUTS = (Signature.MISMATCH, Signature.NAN, Signature.PRECISION, Signature.SHAPE)


def find_needed_makers(trials: Trials, region: Region, verdict: Verdict) -> list[int]:
    """Find the nodes that compute constants of a region and without which its fault vanishes.

    Args:
        trials: the candidate, which runs the region once for each of these nodes.
        region: a region that fails alone.
        verdict: how it fails.

    Returns:
        Their indices in topological order. Empty if they cannot be tested one by one.

    Raises:
        BackendError: the candidate cannot be used.
    """
    graph = trials.graph
    makers = [i for i in region.pulled if graph.ops[i] != "Constant"]
    can_fold = trials.model.freeze and not trials.runtime.own_model and not trials.runtime.is_manual
    if not can_fold or len(makers) > MAX_MAKERS:
        return []
    needed = []
    folded: set[str] = set()
    for i in reversed(makers):  # the consumers of a constant before its producer
        constants = set(graph.makes[i])
        if constants.isdisjoint(_read_constants(graph, region, folded)):
            continue  # only a folded constant needs it
        # The piece has these constants as values of its cut, without their producers.
        replaced = folded | constants
        needed_constants = _read_constants(graph, region, replaced)
        computed = needed_constants.difference(replaced)
        pulled = tuple(i for i in region.pulled if not computed.isdisjoint(graph.makes[i]))
        weights = {n for n in graph.iter_inputs((*region.nodes, *pulled)) if graph.is_weight(n)}
        shapes = (*region.shapes, *sorted(needed_constants.intersection(replaced)))
        piece = replace(region, pulled=pulled, shapes=shapes, weights=tuple(sorted(weights)))
        try:
            piece_verdict = trials.judge.verdict(piece, trials.run_extra(piece))
        except SubcutError:  # a constant of this type cannot be written
            continue
        if fails_alike(piece_verdict, verdict):
            folded |= constants
        else:
            needed.append(i)
    return needed[::-1]


def fails_alike(verdict: Verdict, original: Verdict) -> bool:
    """Return whether a region fails as before; another constant or input may change its error a
    little."""
    if original.signature not in WITH_OUTPUTS:
        return (verdict.status, verdict.signature) == (original.status, original.signature)
    fails = verdict.fails and verdict.signature in WITH_OUTPUTS
    error = verdict.largest_error(unknown=math.inf)
    is_smaller = error * MIN_ERROR_RATIO < original.largest_error(unknown=math.inf)  # False for NaN
    return fails and not is_smaller


def _read_constants(graph: Graph, region: Region, folded: Collection[str]) -> set[str]:
    """Return the constants that nodes make and that the region needs, if some are folded."""
    constants = set()
    stack = list(graph.iter_inputs(region.nodes))
    while stack:
        name = stack.pop()
        if (
            name in constants
            or name not in graph.maker
            or find_kinds(graph, [name])[name] != CONSTANT
        ):
            continue
        constants.add(name)
        if name not in folded:
            stack += graph.reads[graph.maker[name]]
    return constants
