"""An output that the candidate gets wrong, of a region -> what would make it equal: `likeness`, with what trials know.

Beside the values themselves: the same tensor of other samples, the region's inputs, and what the reference makes of
inputs that were misread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph.comparison.similarity.explanations import (
    Explanation,
    find_explanations,
    join_explanations,
    matching_tensors,
)
from subgraph.comparison.similarity.rearranged import misreadings
from subgraph.errors import ModelError
from subgraph.graph.region import Region
from subgraph.storage.folders import numbered_folder
from subgraph.storage.tensors import Record, load, save
from subgraph.trials.trial import Trials
from subgraph.verdict import Judgement

if TYPE_CHECKING:
    from subgraph.types import Array

NEAREST = 16  # samples whose values are looked for
# Of what runs on the reference once per misread input: nodes, samples, inputs.
MOST_NODES, MOST_SAMPLES, MOST_INPUTS = 64, 4, 2
LARGEST = 1 << 24  # elements of such an input
HUGE = 1 << 26  # elements of an output that is left alone: each takes four copies in float64


def looks_like(trials: Trials, region: Region, judged: Judgement) -> list[str]:
    """What one output of a region, alone or in place, looks like: a line each.

    Raises:
        BackendError: the candidate cannot be used.
    """
    found = alike(trials, region, judged)
    moved = join_explanations(one for one in found if not one.grid)
    return [*([moved] if moved else []), *(one.text for one in found if one.grid)]


def alike(trials: Trials, region: Region, judged: Judgement) -> list[Explanation]:
    """The same, as `find_explanations` gives it. Up to 20 runs of a small region on the reference where nothing fits.

    Raises:
        BackendError: the candidate cannot be used.
    """
    found = values(trials, region, judged)
    if found is None or found[0].size > HUGE:
        return []
    claim = trials.precision
    first = find_explanations(*found, dict(_others(trials, region, judged)), claim)
    if any(not one.grid for one in first) or found[0].dtype.kind in "iub":
        return first
    return [*matching_tensors(*found, dict(_misread(trials, region, judged)), claim), *first]


def values(trials: Trials, region: Region, judged: Judgement) -> tuple[Array, Array] | None:
    """The reference's and the candidate's value of an output; None where one is no tensor, or did not come.

    Raises:
        BackendError: the candidate cannot be used.
    """
    import numpy as np

    k, answer = sample(trials, judged), trials.run(region)
    if answer.failure or judged.name not in answer.tensors[k]:
        return None
    a = load(trials.values.records[k][judged.name], Path("/"))
    b = load(answer.tensors[k][judged.name], Path("/"))
    return (a, b) if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) else None


def sample(trials: Trials, judged: Judgement) -> int:
    """The number of the sample that a judgement is about."""
    return trials.values.labels.index(judged.sample) if judged.sample else 0


def _others(trials: Trials, region: Region, judged: Judgement) -> Iterator[tuple[str, Array]]:
    """What the candidate may have given instead: the same tensor of another sample, nearest first; an input."""
    k, records, labels = sample(trials, judged), trials.values.records, trials.values.labels
    near = sorted((i for i in range(len(records)) if i != k), key=lambda i: (abs(i - k), i))[:NEAREST]
    named = [(f"the values of sample {labels[i]}", records[i][judged.name]) for i in near]
    named += [(f"the input {n}, unchanged", records[k][n]) for n in region.inputs]
    size = _size(records[k][judged.name])
    for says, record in named:
        if record.form == "tensor" and _size(record) == size:
            yield says, _array(record)


def _misread(trials: Trials, region: Region, judged: Judgement) -> Iterator[tuple[str, Array]]:
    """What the reference gives where an input was misread."""
    records, k = trials.values.records, sample(trials, judged)
    if len(region.nodes) > MOST_NODES or len(records) > MOST_SAMPLES:
        return
    floats = [n for n in region.inputs if records[k][n].form == "tensor" and records[k][n].dtype == "float32"]
    for name in floats[:MOST_INPUTS]:
        if _size(records[k][name]) > LARGEST:
            continue
        per_sample = [dict(misreadings(_array(r[name]))) for r in records]
        for says in per_sample[k]:
            if all(says in each for each in per_sample):
                fed = [{name: _saved(trials, name, each[says])} for each in per_sample]
                try:
                    given = trials.run_on_reference(region, fed)[k]
                except ModelError:
                    continue
                if judged.name in given:
                    yield f"the input {name}: {says}", _array(given[judged.name])


def _saved(trials: Trials, name: str, value: Array) -> Record:
    folder = numbered_folder(trials.scratch, "misread").resolve()
    return save(name, value, "tensor(float)", folder, "x").within(str(folder))


def _array(record: Record) -> Array:
    value: Any = load(record, Path("/"))
    array: Array = value
    return array


def _size(record: Record) -> int:
    return sum(map(math.prod, record.shapes))
