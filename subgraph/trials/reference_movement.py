"""How far the reference's own outputs move if it runs with another number of threads.

A model that finds the scales of its quantized values as it runs returns other values with another
number of threads: onnxruntime's DynamicQuantizeLSTM quantizes the part of each thread with a
separate scale. Two correct runs of such a model differ by this movement, so a candidate that
differs by no more is right. Parts of the batch are not tried: if the first axis is no batch, they
have other outputs, and would excuse any candidate.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from subgraph.comparison.metrics import norm
from subgraph.comparison.pair import differences
from subgraph.errors import OutOfTime, SubcutError
from subgraph.graph.quantization import finds_scales
from subgraph.runtime.reference import Reference
from subgraph.runtime.run_result import RunResult
from subgraph.storage.tensors import Record
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.trial import Trials
from subgraph.types import Array
from subgraph.verdict import NUMBERS, Status, is_mute

log = logging.getLogger("subcut")

THREADS = (1, 2)
MAX_ERROR_RATIO = 2.0  # of the movement: two correct runs may move in opposite directions


@dataclass(frozen=True)
class ReferenceMovement:
    """A movement of the reference that explains the candidate's outputs.

    Attributes:
        way: How its work was split: `1 and 2 threads`.
    """

    way: str

    @property
    def says(self) -> str:
        """The reason in a line."""
        return f"because the reference itself moves as much with {self.way}"


def find_reference_movement(trials: Trials, result: RunResult) -> ReferenceMovement | None:
    """Return the movement that explains the candidate's outputs of the full model.

    Args:
        trials: The candidate.
        result: The candidate's outputs.

    Returns:
        None if the outputs agree or differ by more than numbers, the model finds no scales as it
        runs, or the reference moves by less.
    """
    model = trials.model
    verdict = trials.judge.verdict(model.whole(), result)
    names = {j.name for j in verdict.outputs if j.status is not Status.AGREE and not is_mute(j)}
    is_numeric = verdict.signature in (None, *NUMBERS)
    are_tensors = all(model.values.records[0][name].form == "tensor" for name in names)
    is_dynamic = any(map(finds_scales, model.graph.nodes)) and not model.graph.random_nodes
    if not (names and is_numeric and are_tensors and is_dynamic):
        return None
    try:
        expected = _read_outputs(model.values.records, names)
        errors = list(map(_measure_distance, expected, _read_outputs(result.tensors, names)))
        for way, moved in _iter_ways(model, names):
            movements = map(_measure_distance, expected, moved)
            pairs = zip(errors, movements, strict=True)
            if all(error <= MAX_ERROR_RATIO * movement < math.inf for error, movement in pairs):
                return ReferenceMovement(way)
    except OutOfTime:
        raise
    except SubcutError as e:
        log.debug("the reference is not run in another way: %s", e.what)
    return None


def _read_outputs(samples: Sequence[Mapping[str, Record]], names: Collection[str]) -> list[Array]:
    return [sample[name].array() for sample, name in itertools.product(samples, names)]


def _measure_distance(expected: Array, given: Array) -> float:
    """Return the distance of an output; infinite if the shapes differ."""
    is_alike = expected.shape == given.shape
    return norm(differences(expected, given).reshape(-1)) if is_alike else math.inf


def _iter_ways(model: ReferenceModel, names: Collection[str]) -> Iterator[tuple[str, list[Array]]]:
    """Yield the reference's outputs, each time computed in another way."""
    own = model.reference
    threads = own.options.get("threads", 0)
    for number in THREADS if own.fixed else ():
        if number == threads:
            continue
        with Reference(own.backend, {**own.options, "threads": number}, python=own.python) as other:
            other.share(own.deadline)
            values = model.values.with_inputs(model.values.records, other)
            values.need(names)
            least, most = sorted((number, threads))
            yield f"{least} and {most} threads", _read_outputs(values.records, names)
