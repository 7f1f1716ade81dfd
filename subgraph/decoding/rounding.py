"""Errors over the steps of a loop: how they grow, and how far rounding alone moves the results of the reference."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph.decoding.walk import Trace
from subgraph.precision import Precision
from subgraph.storage.tensors import Record, distance, save, tensor_text

if TYPE_CHECKING:
    from subgraph.types import Array

SATURATED = 0.3  # of the values' scale
MIN_POINTS = 3


def error_of_rounding(walked: Trace, end: int, precision: Precision, folder: Path) -> float:
    """The largest relative error of the results of step `end` when each value of each state before it is off by up to
    one rounding in that precision. It is a lower bound: values inside a step are not touched.

    Complexity: as many steps of the reference.

    Raises:
        ModelError: the reference cannot run a step.
    """
    states, results = walked.state_before(0), walked.results[0]
    for k in range(end + 1):
        into = folder / f"rounding{k}"
        into.mkdir(parents=True)
        moved = {name: _moved(record, precision.eps, k, into, f"s{i}") for i, (name, record) in
                 enumerate(states.items())}  # fmt: skip
        results, states = walked.step(k, moved, into)
        shutil.rmtree(folder / f"rounding{k - 1}", ignore_errors=True)
    pairs = ((walked.results[end][n].value(), record.value()) for n, record in results.items())
    return max((relative_error(*pair) for pair in pairs), default=0.0)


def _moved(record: Record, eps: float, seed: int, folder: Path, stem: str) -> Record:
    """A state with each value off by up to a rounding; one that holds no floats as it is."""
    import numpy as np

    value = record.value()
    if value is None or isinstance(value, list) or value.dtype.kind != "f":
        return record
    drawn = np.random.default_rng(seed).uniform(-1, 1, value.shape)
    moved = (value * (1 + eps * drawn)).astype(value.dtype)
    text = tensor_text(record.dtype)
    return save(record.name, moved, text, folder, stem).within(str(folder.resolve()))


def relative_error(expected: Any, actual: Any) -> float:
    """The largest difference over the largest magnitude; infinity where shapes, NaN or infinities differ."""
    if isinstance(expected, list) or isinstance(actual, list) or expected is None or actual is None:
        return 0.0 if expected is actual else math.inf
    if expected.shape != actual.shape:
        return math.inf
    found = distance(expected, actual)
    if found is None:
        return math.inf
    return found[0] / found[1] if found[1] else (math.inf if found[0] else 0.0)


def growth_of(errors: Sequence[float]) -> tuple[str, float]:
    """("plus" | "times", by how much) the errors of steps 0, 1, … grow in a step, on average.

    The better of two lines through their logarithms: over the number of the step or over the step. Errors of nearly the
    scale of the values grow no more, and are left out.
    """
    import numpy as np

    points = [(k + 1, e) for k, e in enumerate(errors) if 0 < e < SATURATED]
    if len(points) < MIN_POINTS:
        return "times", 1.0
    steps, logs = np.array([k for k, _ in points], float), np.log([e for _, e in points])
    (_, of_power), (slope, of_times) = (_line(x, logs) for x in (np.log(steps), steps))
    if of_power < of_times:
        return "plus", float((points[-1][1] - points[0][1]) / (steps[-1] - steps[0]))
    return "times", math.exp(slope)


def _line(x: Array, y: Array) -> tuple[float, float]:
    """(slope, sum of squared residuals) of the line of least squares."""
    import numpy as np

    (slope, offset) = np.polyfit(x, y, 1)
    return float(slope), float(((y - slope * x - offset) ** 2).sum())
