"""A network -> what every criterion says of its windows with an error of known size in them.

The error is an Add inside the candidate's model, so it flows through real nodes to the window's outputs. What it does
to them is measured against the same model with nothing added; where that is nothing, it is masked and not counted.
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

from benchmarks.windows import Found, Task, candidates, judged, rng_of, value, windows
from subgraph.graph.region import Region
from subgraph.runtime.run_result import RunResult
from subgraph.storage.tensors import load
from subgraph.trials.trial import Trials

SIZES = (4, 8, 16)  # nodes of a window
ERRORS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # of the tensor's largest value
SHAPES = ("dense", "single")  # all elements are off, or one

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Site:
    """Where an error is put: at a tensor of a window's first third (`early`) or its last (`late`)."""

    region: Region
    place: str
    at: str


def measure_injected(trials: Trials, task: Task, found: Found, folder: Path) -> None:
    """All errors, at up to two sites of each window."""
    trials.values.need(trials.tensors())
    sites = [site for region in windows(trials.graph, SIZES, task.most) for site in _sites(trials, region)]
    with candidates(trials, task, folder) as (one,):
        for site in sites:
            _inject(one, task, site, found, folder)


def _sites(trials: Trials, region: Region) -> list[Site]:
    """Floats that do not leave the window; the two are different tensors."""
    made = [n for i in region.nodes for n in trials.graph.makes[i] if n not in region.outputs]
    known = trials.values.records[0]
    inner = [n for n in made if n in known and known[n].dtype == "float32"]
    if not inner:
        return []
    rng, third = rng_of(trials.graph.path.stem, region.nodes), math.ceil(len(inner) / 3)
    early, late = (str(rng.choice(some)) for some in (inner[:third], inner[-third:]))
    return [Site(region, "early", early)] + ([Site(region, "late", late)] if late != early else [])


def _inject(trials: Trials, task: Task, site: Site, found: Found, folder: Path) -> None:
    """All errors at one site."""
    clean_value, rng = value(trials, site.at), rng_of(task.network, site.region.nodes, site.at)
    scale = float(np.abs(clean_value).max(initial=0))
    shapes = {"dense": rng.uniform(-1, 1, clean_value.shape), "single": _single(rng, clean_value.shape)}
    ask = _asking(trials, site, folder)
    clean = ask(np.zeros(clean_value.shape))
    if clean.failure:
        found.absent[clean.failure.why] += 1
        return
    for size, shape in product(ERRORS, SHAPES):
        answer = ask(shapes[shape] * (size * scale))
        arrives = _arrives(site.region, clean, answer)
        if not arrives:
            found.masked += 1
            continue
        error: dict[str, Any] = {
            "at": site.at,
            "place": site.place,
            "error_size": size,
            "error_shape": shape,
            "arrives": arrives,
        }
        found.rows.append(judged(trials, task, site.region, answer, **error))


def _asking(trials: Trials, site: Site, folder: Path) -> Callable[[Array], RunResult]:
    """What the candidate gives with an error added to a tensor."""

    def ask(error: Array) -> RunResult:
        # stays until all is done: what is stored knows an error by its file's name
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".npy", delete=False) as file:
            np.save(file, error.astype(np.float32))
        options = {**trials.candidate.options, "at": site.at, "error": file.name}
        return replace(trials, candidate=replace(trials.candidate, options=options)).run(site.region)

    return ask


def _single(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Zeros, and a one."""
    error = np.zeros(math.prod(shape))
    error[rng.integers(error.size)] = 1.0
    return error.reshape(shape)


def _arrives(region: Region, clean: RunResult, answer: RunResult) -> float:
    """The largest effect at an output, of that output's scale; infinite where values are no numbers, 0 where all are
    equal."""
    most = 0.0
    for name in region.outputs:
        one, other = (load(a.tensors[0][name], Path("/")) for a in (clean, answer))
        assert isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
        if one.tobytes() == other.tobytes():
            continue
        if one.dtype.kind != "f":
            return math.inf
        difference = float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max())
        most = max(most, difference / (float(np.abs(one).max()) or 1.0))
    return most
