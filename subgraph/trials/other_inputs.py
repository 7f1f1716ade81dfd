"""Reference values -> the outputs for other inputs, which show whether an output tells anything."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from subgraph.comparison.evidence import make_other_inputs
from subgraph.errors import OutOfTime, SubcutError
from subgraph.log import log
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.storage.tensors import Record, written

MAX_OTHER_SAMPLES = 8  # whose outputs are compared with those of one sample


@dataclass(frozen=True)
class OtherInputs:
    """The reference's outputs for other inputs than those of one sample. Several threads may share
    it.

    Attributes:
        values: the reference's values of all samples.
        inputs: the model's inputs that an output depends on.
        outputs: the outputs that are compared.
        new_folder: makes a folder that lives as long as the session.
    """

    values: ReferenceValues
    inputs: Sequence[str]
    outputs: Sequence[str]
    new_folder: Callable[[], Path]
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def outputs_without(
        self, k: int, names: Collection[str] = ()
    ) -> Sequence[Mapping[str, Record]]:
        """The outputs for other inputs than sample `k`: other samples, or two drawn inputs.

        Inputs that the reference refuses are left out. `names`: further tensors that are needed.
        """
        if others := list(itertools.islice(self._other_samples(k), MAX_OTHER_SAMPLES)):
            return others
        try:
            with self._lock:
                for values in self._drawn_values:
                    values.need(names)
                return [sample for values in self._drawn_values for sample in values.records]
        except OSError as e:
            log.debug("no other input is tried, for the disk is full: %s", e)
            return []

    def _other_samples(self, k: int) -> Iterator[Mapping[str, Record]]:
        records = self.values.records
        own = self._digests(records[k])
        return (s for s in (*records[k + 1 :], *records[:k]) if self._digests(s) != own)

    def _digests(self, sample: Mapping[str, Record]) -> list[str]:
        return self.values.digest([sample[name] for name in self.inputs])

    @cached_property
    def _drawn_values(self) -> list[ReferenceValues]:
        sample = self.values.records[0]
        values = {name: sample[name].value() for name in self.inputs}
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        inputs = []
        for drawn in make_other_inputs(arrays):
            folder = self.new_folder()
            given = {name: sample[name] for name in self.values.graph.inputs if name in sample}
            for i, (name, value) in enumerate(drawn.items()):
                given[name] = written(name, value, folder, f"x{i}", given[name].type_text)
            inputs.append(given)
        return self._run_on_inputs(inputs) if inputs else []

    def _run_on_inputs(self, inputs: Sequence[Mapping[str, Record]]) -> list[ReferenceValues]:
        """The values for these inputs, in one session if the reference accepts all of them."""
        values = self.values.with_inputs(inputs)
        try:
            values.need(self.outputs)
        except OutOfTime:
            raise  # without other inputs, an agreement would not be earned
        except SubcutError as e:
            log.debug("the reference refuses another input: %s", e.what)
            if len(inputs) < 2:
                return []
            return [one for sample in inputs for one in self._run_on_inputs([sample])]
        return [values]
