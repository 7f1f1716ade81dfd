"""A network -> how every criterion judges its windows with an injected error of known size.

The error is an Add inside the candidate's model, so it flows through real nodes to the window's
outputs. Its effect on them is measured against the same model with zeros added; without any effect
it is masked, and not counted.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.windows import Task, TaskResult, candidates, judge_window, rng_of, value, windows
from subgraph.graph.region import Region
from subgraph.runtime.run_result import RunResult
from subgraph.storage.tensors import load
from subgraph.trials.trial import Trials

SIZES = (4, 8, 16)  # nodes of a window
ERRORS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # of the tensor's largest value
SHAPES = ("dense", "single")  # all elements are wrong, or one

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Site:
    """Tensor that gets an error; `place`: in the window's first third (`early`) or its last
    (`late`)."""

    region: Region
    place: str
    at: str


def measure_injected(trials: Trials, task: Task, task_result: TaskResult, folder: Path) -> None:
    """All errors, at up to two sites of each window."""
    trials.model.values.need(trials.model.tensors())
    sites = [
        site
        for region in windows(trials.model.graph, SIZES, task.max_windows)
        for site in _sites(trials, region)
    ]
    with candidates(trials, task, folder) as (candidate_trials,):
        for site in sites:
            _inject(candidate_trials, task, site, task_result, folder)


def _sites(trials: Trials, region: Region) -> list[Site]:
    """Up to two different float tensors that do not leave the window."""
    made = [n for i in region.nodes for n in trials.model.graph.makes[i] if n not in region.outputs]
    records = trials.model.values.records[0]
    inner = [n for n in made if n in records and records[n].dtype == "float32"]
    if not inner:
        return []
    rng = rng_of(trials.model.graph.path.stem, region.nodes)
    third = math.ceil(len(inner) / 3)
    early, late = (str(rng.choice(names)) for names in (inner[:third], inner[-third:]))
    return [Site(region, "early", early)] + ([Site(region, "late", late)] if late != early else [])


def _inject(trials: Trials, task: Task, site: Site, task_result: TaskResult, folder: Path) -> None:
    """All errors at one site."""
    clean_value = value(trials, site.at)
    rng = rng_of(task.network, site.region.nodes, site.at)
    scale = float(np.abs(clean_value).max(initial=0))
    shapes = {
        "dense": rng.uniform(-1, 1, clean_value.shape),
        "single": _single(rng, clean_value.shape),
    }
    run = _runner(trials, site, folder)
    clean = run(np.zeros(clean_value.shape))
    if clean.failure:
        task_result.absent[clean.failure.why] += 1
        return
    for size, shape in product(ERRORS, SHAPES):
        run_result = run(shapes[shape] * (size * scale))
        arrives = _effect(site.region, clean, run_result)
        if not arrives:
            task_result.masked += 1
            continue
        error: dict[str, Any] = {
            "at": site.at,
            "place": site.place,
            "error_size": size,
            "error_shape": shape,
            "arrives": arrives,
        }
        task_result.rows.append(judge_window(trials, task, site.region, run_result, **error))


def _runner(trials: Trials, site: Site, folder: Path) -> Callable[[Array], RunResult]:
    """A function that runs the candidate with an error added to a tensor."""

    def run(error: Array) -> RunResult:
        # the file stays until the task ends: stored results know an error by its file's name
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".npy", delete=False) as file:
            np.save(file, error.astype(np.float32))
        options = {**trials.runtime.candidate.options, "at": site.at, "error": file.name}
        return trials.with_candidate(replace(trials.runtime.candidate, options=options)).run(
            site.region
        )

    return run


def _single(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Zeros, and a single 1 at a random place."""
    error = np.zeros(math.prod(shape))
    error[rng.integers(error.size)] = 1.0
    return error.reshape(shape)


def _effect(region: Region, clean: RunResult, run_result: RunResult) -> float:
    """The largest difference at an output over its scale; infinite if values are not floats, 0 if
    all are equal."""
    largest = 0.0
    for name in region.outputs:
        expected, actual = (load(r.tensors[0][name], Path("/")) for r in (clean, run_result))
        assert isinstance(expected, np.ndarray) and isinstance(actual, np.ndarray)
        if expected.tobytes() == actual.tobytes():
            continue
        if expected.dtype.kind != "f":
            return math.inf
        difference = float(np.abs(expected.astype(np.float64) - actual.astype(np.float64)).max())
        largest = max(largest, difference / (float(np.abs(expected).max()) or 1.0))
    return largest
