"""Output of a region that disagrees -> what would make it equal, by what trials know besides its values.

The candidate may have returned another sample's values or an input of the region, or read an input in another layout:
then the reference's outputs for the misread input are what it holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np

from subgraph.comparison.similarity.explanations import (
    Explanation,
    find_explanations,
    join_explanations,
    matching_tensors,
)
from subgraph.comparison.similarity.rearranged import misreadings
from subgraph.errors import ModelError
from subgraph.graph.region import Region
from subgraph.storage.tensors import Record, load, save
from subgraph.trials.trial import Trials
from subgraph.types import Array
from subgraph.verdict import Judgement

MAX_OTHER_SAMPLES = 16
# Each misreading runs the region on the reference once: limits of its nodes, of samples and of inputs.
MAX_NODES, MAX_SAMPLES, MAX_INPUTS = 64, 4, 2
MAX_INPUT = 1 << 24  # elements of a misread input
MAX_OUTPUT = 1 << 26  # elements of an output that is explained: each takes four copies in float64


@dataclass(frozen=True)
class WrongOutput:
    """One output of a region, alone or in place, that disagrees on one sample.

    Its properties run the region if no result is stored, and then may raise BackendError.
    """

    trials: Trials
    region: Region
    judgement: Judgement

    @property
    def sample(self) -> int:
        """The index of the sample."""
        return self.trials.values.labels.index(self.judgement.sample) if self.judgement.sample else 0

    @cached_property
    def values(self) -> tuple[Array, Array] | None:
        """The reference's and the candidate's value; None where one is no tensor, or is missing."""
        result, name = self.trials.run(self.region), self.judgement.name
        if result.failure or name not in result.tensors[self.sample]:
            return None
        records = self.trials.values.records[self.sample][name], result.tensors[self.sample][name]
        expected, value = (load(record, Path("/")) for record in records)
        return (expected, value) if isinstance(expected, np.ndarray) and isinstance(value, np.ndarray) else None

    @cached_property
    def explanations(self) -> list[Explanation]:
        """What would make it equal. Up to 20 runs of a small region on the reference where nothing else does."""
        if self.values is None or self.values[0].size > MAX_OUTPUT:
            return []
        precision = self.trials.precision
        found = find_explanations(*self.values, dict(self._other_tensors()), precision)
        if any(not e.grid for e in found) or self.values[0].dtype.kind in "iub":
            return found
        return [*matching_tensors(*self.values, dict(self._misread_outputs()), precision), *found]

    @property
    def looks_like(self) -> list[str]:
        """The explanations as lines of text."""
        moved = join_explanations(e for e in self.explanations if not e.grid)
        return [*([moved] if moved else []), *(e.text for e in self.explanations if e.grid)]

    def _other_tensors(self) -> Iterator[tuple[str, Array]]:
        """Tensors of the same size, described: this one in other samples, nearest first; the region's inputs."""
        k, name, values = self.sample, self.judgement.name, self.trials.values
        records, labels = values.records, values.labels
        nearest = sorted((i for i in range(len(records)) if i != k), key=lambda i: (abs(i - k), i))[:MAX_OTHER_SAMPLES]
        described = [(f"the values of sample {labels[i]}", records[i][name]) for i in nearest]
        described += [(f"the input {n}, unchanged", records[k][n]) for n in self.region.inputs]
        size = _size(records[k][name])
        for text, record in described:
            if record.form == "tensor" and _size(record) == size:
                yield text, _load(record)

    def _misread_outputs(self) -> Iterator[tuple[str, Array]]:
        """The reference's outputs where an input was misread, each with the description of the misreading."""
        records, k = self.trials.values.records, self.sample
        if len(self.region.nodes) > MAX_NODES or len(records) > MAX_SAMPLES:
            return
        floats = [n for n in self.region.inputs if (records[k][n].form, records[k][n].dtype) == ("tensor", "float32")]
        for name in floats[:MAX_INPUTS]:
            if _size(records[k][name]) > MAX_INPUT:
                continue
            per_sample = [dict(misreadings(_load(r[name]))) for r in records]
            for text in per_sample[k]:
                if any(text not in misread for misread in per_sample):
                    continue
                feeds = [{name: self._save(name, misread[text])} for misread in per_sample]
                try:
                    outputs = self.trials.run_on_reference(self.region, feeds)[k]
                except ModelError:
                    continue
                if self.judgement.name in outputs:
                    yield f"the input {name}: {text}", _load(outputs[self.judgement.name])

    def _save(self, name: str, value: Array) -> Record:
        folder = self.trials.new_folder().resolve()
        return save(name, value, "tensor(float)", folder, "x").within(str(folder))


def _load(record: Record) -> Array:
    """The value of a record that is a single tensor."""
    return cast("Array", load(record, Path("/")))


def _size(record: Record) -> int:
    return sum(map(math.prod, record.shapes))
