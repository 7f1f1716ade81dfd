"""Inputs as they are usually misread: what the reference is fed to find out whether a candidate misread its own so."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from subgraph.comparison.similarity.rearranged import misreadings
from subgraph.runtime.run_result import Feeds
from subgraph.storage.tensors import Record, load, save, type_of
from subgraph.text import clean
from subgraph.trials.trial import Trials
from subgraph.types import Array

# Each misreading runs nodes on the reference: limits of samples, of inputs, and of an input's elements.
MAX_SAMPLES, MAX_INPUTS = 4, 2
MAX_INPUT = 1 << 24
TYPES = frozenset(("float32", "float16", "float64", "uint8", "int8"))


@dataclass(frozen=True)
class MisreadInput:
    """One input, misread in the same way in all samples.

    Attributes:
        name: the input's.
        how: in words that go on "the input is …".
        feeds: per sample, the value that was read.
    """

    name: str
    how: str
    feeds: Feeds

    @property
    def text(self) -> str:
        """`the input x is laid out NHWC, but read as NCHW`."""
        return f"the input {self.name} is {self.how}"

    def sentence(self, trials: Trials) -> str:
        """The same of an input of the model, for the user who fed it; `your input` where there is no other."""
        name = f" '{clean(self.name)}'" if len(trials.graph.inputs) > 1 else ""
        return f"your input{name} is {self.how}"


def misread_inputs(trials: Trials, inputs: Sequence[str]) -> Iterator[MisreadInput]:
    """The usual misreadings of tensors that have values, one input at a time; none where that takes too long."""
    records = trials.values.records
    if len(records) > MAX_SAMPLES:
        return
    images = [n for n in inputs if (records[0][n].form, records[0][n].dtype in TYPES) == ("tensor", True)]
    for name in images[:MAX_INPUTS]:
        if max(math.prod(shape) for r in records for shape in r[name].shapes) > MAX_INPUT:
            continue
        per_sample = [dict(misreadings(cast("Array", load(r[name], Path("/"))))) for r in records]
        for how in per_sample[0]:
            if all(how in misread for misread in per_sample):
                pairs = zip(records, per_sample, strict=True)
                yield MisreadInput(name, how, [{name: _saved(trials, r[name], m[how])} for r, m in pairs])


def _saved(trials: Trials, record: Record, value: Array) -> Record:
    folder = trials.new_folder().resolve()
    return save(record.name, value, type_of(value), folder, "x").within(str(folder))


def fed_with(trials: Trials, misread: MisreadInput) -> Trials:
    """The same trials, fed with the misread input."""
    values = trials.values.with_input(misread.name, misread.feeds, misread.text)
    return replace(trials, values=values, _noise={})
