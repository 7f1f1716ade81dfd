"""Outputs of few numbers, each of which is the only one of its kind: samples of them are judged as
a batch.

Insight: six joints of a robot lie in one tensor of six numbers. Together they have one scale, by
which an error of the smallest is nothing; over several samples each has a scale of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from subgraph.comparison.criteria import FEW, MIN_ELEMENTS, Noise, Ranking
from subgraph.comparison.pair import Pair
from subgraph.precision import Precision
from subgraph.storage.tensors import Value
from subgraph.types import Array
from subgraph.verdict import Judgement


def batched(values: Sequence[Value]) -> Array | None:
    """`(samples, elements)` of an output of floats; None where the samples are few, differ in
    shape, or can be judged alone: they have many elements, or two axes."""
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    if len(arrays) < max(MIN_ELEMENTS, len(values)) or len({a.shape for a in arrays}) > 1:
        return None
    first = arrays[0]
    small = 0 < first.size < FEW and sum(n > 1 for n in first.shape) < 2
    return _batch(arrays) if small and Pair(first, first).kind == "float" else None


def of_sample(judged: Judgement, shape: Sequence[int], labels: Sequence[str]) -> Judgement:
    """The judgement of a batch as that of the sample whose element is farthest off; `shape`: of the
    output in it."""
    worst = judged.worst
    why = f"{judged.why}; axis 0 are {len(labels)} samples"
    if worst is None:
        return replace(judged, why=why, sample=labels[0])
    k, element = worst.index
    index = tuple(int(i) for i in np.unravel_index(element, tuple(shape)))
    return replace(judged, why=why, worst=replace(worst, index=index), sample=labels[k])


@dataclass(frozen=True)
class BatchNoise(Noise):
    """Rounding noise of an output of several samples, which are judged as a batch; methods as in
    `criteria.Noise`."""

    samples: Sequence[Noise]

    def perturbed(self, claim: Precision, count: int) -> list[Array]:
        return _batches(noise.perturbed(claim, count) for noise in self.samples)

    def with_broken_ties(self, claim: Precision, count: int, times: float) -> list[Array]:
        return _batches(noise.with_broken_ties(claim, count, times) for noise in self.samples)

    def rounded(self, claim: Precision) -> Array:
        return _batch([noise.rounded(claim) for noise in self.samples])

    def op_type(self) -> str:
        return self.samples[0].op_type()

    def coarsest_type(self) -> str:
        return self.samples[0].coarsest_type()

    def behind_choice(self) -> bool:
        return self.samples[0].behind_choice()

    def behind_steps(self) -> bool:
        return self.samples[0].behind_steps()

    def quantizes(self) -> bool:
        return self.samples[0].quantizes()

    def half_step(self) -> float:
        return self.samples[0].half_step()

    def quantized_values(self) -> None:
        return None

    def are_codes(self) -> bool:
        return self.samples[0].are_codes()

    def is_foreign(self) -> bool:
        return self.samples[0].is_foreign()

    def ranking(self, claim: Precision) -> Ranking | None:
        return None


def _batch(values: Sequence[Array]) -> Array:
    return np.stack([value.reshape(-1) for value in values])


def _batches(runs: Iterable[Sequence[Array]]) -> list[Array]:
    """The same run of all samples, for as many as all have."""
    return [_batch(values) for values in zip(*runs, strict=False)]
