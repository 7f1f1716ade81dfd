"""Output of a region that disagrees -> the change that would make it equal.

The candidate may have returned another sample's values, or read an input in another layout:
then it holds the reference's outputs for the misread input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

import numpy as np

from subgraph.comparison.pair import Pair, pair_if_comparable
from subgraph.comparison.similarity.explanations import (
    Explanation,
    find_explanations,
    find_matching_tensors,
    join_explanations,
)
from subgraph.comparison.similarity.rearranged import iter_misreadings
from subgraph.errors import ModelError
from subgraph.graph.region import Region
from subgraph.iterables import pick
from subgraph.runtime.run_result import Feeds
from subgraph.storage.tensors import Record, write_value
from subgraph.text import clean
from subgraph.trials.judge import Judge
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.trial import Trials
from subgraph.types import Array, frozen
from subgraph.verdict import Judgement

MAX_OTHER_SAMPLES = 16
MAX_NODES = 64  # of a region that is run on the reference for each misread input
# with which an input is misread; its elements
MAX_SAMPLES = 16
MAX_INPUTS = 2
MAX_INPUT = 1 << 24
MISREAD_TYPES = frozenset(("float32", "float16", "float64", "uint8", "int8"))
MAX_OUTPUT = 1 << 26  # elements of an output that is explained: each takes four copies in float64


@frozen
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

    def sentence(self, model: ReferenceModel) -> str:
        """Return the text for an input of the model, for the user who fed it.

        It begins with `your input` if the model has no other input.
        """
        name = f" '{clean(self.name)}'" if len(model.graph.inputs) > 1 else ""
        return f"your input{name} is {self.how}"


def iter_misread_inputs(model: ReferenceModel, inputs: Sequence[str]) -> Iterator[MisreadInput]:
    """Yield the usual misreadings of tensors that have values, one input at a time; none if that
    takes too long."""
    records = model.values.records
    if len(records) > MAX_SAMPLES:
        return
    known = pick(records[0], inputs)
    images = [
        n
        for n, record in known.items()
        if record.form == "tensor" and record.dtype in MISREAD_TYPES
    ]
    for name in images[:MAX_INPUTS]:
        if max(_count_elements(r[name]) for r in records) > MAX_INPUT:
            continue
        per_sample = [dict(iter_misreadings(r[name].array())) for r in records]
        for how in per_sample[0]:
            if all(how in misread for misread in per_sample):
                yield MisreadInput(
                    name,
                    how,
                    [
                        {name: write_value(name, m[how], model.new_folder(), "x")}
                        for m in per_sample
                    ],
                )


def feed_misread(judge: Judge, misread: MisreadInput) -> Judge:
    """Return this judge for the model that is fed with the misread input."""
    values = judge.model.values.replace_input(misread.name, misread.feeds, misread.text)
    return replace(judge, model=judge.model.with_values(values))


@frozen
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
        if self.judgement.sample:
            return self.trials.values.labels.index(self.judgement.sample)
        return 0

    @cached_property
    def values(self) -> tuple[Array, Array] | None:
        """The reference's and the candidate's value; None if one is not a tensor, or is
        missing."""
        result = self.trials.run(self.region)
        name = self.judgement.name
        if result.failure or name not in result.tensors[self.sample]:
            return None
        expected = self.trials.values.records[self.sample][name].value()
        value = result.tensors[self.sample][name].value()
        return (
            (expected, value)
            if isinstance(expected, np.ndarray) and isinstance(value, np.ndarray)
            else None
        )

    @cached_property
    def pair(self) -> Pair | None:
        """Both values; None if they cannot be compared."""
        if self.values:
            return pair_if_comparable(*self.values)
        return None

    @property
    def explanations(self) -> list[Explanation]:
        """The changes that would make it equal: up to 16 reference runs of a small region."""
        return [*(Explanation(misread.text) for misread in self.misread), *self._alike]

    @cached_property
    def _alike(self) -> list[Explanation]:
        """The changes that would make the values equal, by themselves."""
        if self.values is None or self.values[0].size > MAX_OUTPUT:
            return []
        k = self.sample
        records = self.trials.values.records
        labels = self.trials.values.labels
        nearest = sorted((i for i in range(len(records)) if i != k), key=lambda i: (abs(i - k), i))
        samples = {i: records[i][self.judgement.name] for i in nearest[:MAX_OTHER_SAMPLES]}
        size = _count_elements(records[k][self.judgement.name])
        others = {
            f"the values of sample {labels[i]}": record.array()
            for i, record in samples.items()
            if record.form == "tensor" and _count_elements(record) == size
        }
        return find_explanations(*self.values, others, self.trials.judge.precision)

    @cached_property
    def misread(self) -> list[MisreadInput]:
        """Inputs of the region that lead to these values if they are misread so.

        If the values by themselves look like a change, only inputs of the model are tried: users
        feed those.
        """
        if (
            self.values is None
            or self.values[0].size > MAX_OUTPUT
            or self.values[0].dtype.kind in "iub"
        ):
            return []
        alike = any(not e.narrows for e in self._alike)
        inputs = [n for n in self.region.inputs if n in self.trials.graph.inputs or not alike]
        outputs: dict[str, tuple[MisreadInput, Array]] = {}
        name = self.judgement.name
        is_small = len(self.region.nodes) <= MAX_NODES
        for misread in iter_misread_inputs(self.trials.model, inputs) if is_small else ():
            with suppress(ModelError):
                made = self.trials.model.run_on_reference(self.region, misread.feeds)
                if name in made[self.sample]:
                    outputs[misread.text] = (misread, made[self.sample][name].array())
        found = find_matching_tensors(
            *self.values, {t: v for t, (_, v) in outputs.items()}, self.trials.judge.precision
        )
        return [outputs[e.text][0] for e in found]

    @property
    def wrong_input(self) -> str:
        """`your input is laid out NHWC, but read as NCHW`, if a misread input of the model leads to
        these values."""
        inputs = self.trials.graph.inputs
        return next((m.sentence(self.trials.model) for m in self.misread if m.name in inputs), "")

    @property
    def looks_like(self) -> list[str]:
        """The explanations as lines of text."""
        moved = join_explanations(e for e in self.explanations if not e.narrows)
        return [*([moved] if moved else []), *(e.text for e in self.explanations if e.narrows)]


def _count_elements(record: Record) -> int:
    return sum(map(math.prod, record.shapes))
