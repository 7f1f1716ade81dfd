"""The model with planted faults, on the reference -> how many of them the comparison would show.

A fault changes the value of one tensor, or one attribute of a node. The reference runs the nodes
downstream on the changed value, and the judge compares the outputs as if a candidate had computed
them. So the measurement depends on the input, the limits and the compared outputs, and on nothing
else: it is the null test (`comparison.evidence`) with faults in place of constants. The places are
seeded, and spread over the model in topological order.
"""

from __future__ import annotations

import random
import time

import numpy as np

from subgraph.errors import ModelError, NoRegion, WorkerDied
from subgraph.graph import protobuf
from subgraph.graph.region import Region, build_region
from subgraph.results.common import MissedFault, PowerDocument
from subgraph.runtime.run_result import Feeds, RunResult
from subgraph.storage.tensors import write_value
from subgraph.trials.doubt import DOUBTS, Doubt
from subgraph.trials.judge import Judge
from subgraph.trials.other_attributes import OtherAttribute, iter_other_attributes
from subgraph.trials.propagation import differ, propagate
from subgraph.trials.reference_model import ReferenceModel, has_forms_of
from subgraph.types import frozen

SCALE_FACTOR = 1.1  # of a scaled tensor
SCALED = f"scaled by {SCALE_FACTOR}"
SHIFTED = "shifted by a pixel"
ROTATED = "channels rotated by one"
ATTRIBUTE = "attribute"  # another value of one
AXES = {SHIFTED: -1, ROTATED: 1}
MAX_TRIED_ATTRIBUTES = 6  # values of one node, of which most are not valid
SETTLED = (Doubt.KERNELS, Doubt.STEPS)  # agreements that the nodes alone do not confirm
# With a limit of time, this many faults are planted: all, or each second or fourth of them.
MAX_FAULTS_IN_TIME = 20
STRIDES = (1, 2, 4)


def measure_power(judge: Judge, number: int) -> PowerDocument:
    """Count the planted faults that the outputs of the full model would show.

    Args:
        judge: The judge of the candidate.
        number: The number of faults.

    Raises:
        OutOfTime: The time is used up.
        ModelError: The reference cannot run the model.
    """
    return Planting(judge, number).measure(range(number))


def measure_power_in_time(judge: Judge, seconds: float) -> PowerDocument | None:
    """Count as many planted faults as the time allows; None if it allows too few.

    The first fault is planted near the inputs, so that the other ones hardly take longer.

    Raises:
        OutOfTime: The time of the command is used up.
        ModelError: The reference cannot run the model.
    """
    run = sum(captured.seconds for captured in judge.model.values.captured)
    if run * MAX_FAULTS_IN_TIME / STRIDES[-1] > seconds:
        return None
    planting = Planting(judge, MAX_FAULTS_IN_TIME)
    began = time.monotonic()
    planting.measure(range(1))
    took = time.monotonic() - began
    strides = (stride for stride in STRIDES if took * MAX_FAULTS_IN_TIME / stride <= seconds)
    stride = next(strides, None)
    if stride:
        return planting.measure(range(0, MAX_FAULTS_IN_TIME, stride))
    return None


@frozen
class PlantedFault:
    """A fault of a node.

    Attributes:
        region: The node, with the changed tensors as outputs.
        values: The changed tensors, per sample; empty if no value changes, so that this input shows
            no fault of the node.
        text: The change in words.
    """

    region: Region
    values: Feeds
    text: str


class Planting:
    """Faults at places that are spread over a model."""

    def __init__(self, judge: Judge, number: int) -> None:
        """Choose the places and compute their values."""
        model = judge.model
        self._judge = judge
        self._model = model
        self._seed = model.values.samples[0].seed
        names = model.tensors()
        draws = random.Random(self._seed)
        places = [int((k + draws.random()) * len(names) / number) for k in range(number)]
        self._names = [names[place] for place in places] if names else []
        model.values.need([*model.graph.inputs, *model.graph.outputs, *self._names])

    def measure(self, places: range) -> PowerDocument:
        """Plant the faults of some places, and count those that would show."""
        graph = self._model.graph
        planted = 0
        missed = []
        for k in places if self._names else ():
            fault = self.plant(k)
            planted += fault is not None
            if fault and not self.is_shown(fault):
                node = fault.region.nodes[0]
                missed.append(MissedFault(graph.label(node), self._names[k], fault.text))
        return PowerDocument(planted, planted - len(missed), self._seed, missed)

    def is_shown(self, fault: PlantedFault) -> bool:
        """Return whether the comparison shows a fault: an output fails, is not computed, or does
        not decide."""
        if not fault.values:
            return False
        judge = self._judge
        whole = self._model.whole()
        try:
            samples = propagate(self._model, fault.region, fault.values)
        except ModelError:
            return True
        except WorkerDied:  # of memory, perhaps
            return False
        outputs = tuple({name: sample[name] for name in self._model.outputs} for sample in samples)
        result = RunResult(outputs, ((),) * len(outputs))
        return judge.verdict(whole, result).fails or any(
            DOUBTS[doubt].is_possible(judge) and DOUBTS[doubt].applies(judge, whole, result)
            for doubt in SETTLED
        )

    def plant(self, k: int) -> PlantedFault | None:
        """Return the fault of a place: of one kind, or of the next one if that changes nothing.

        None if no kind fits the tensor.
        """
        name = self._names[k]
        record = self._model.values.records[0][name]
        is_tensor = record.form == "tensor"
        shape = record.shapes[0] if is_tensor else ()
        fits = {
            SCALED: "float" in record.dtype,
            SHIFTED: len(shape) > 2 and shape[-1] > 1,
            ROTATED: len(shape) > 1 and shape[1] > 1,
            ATTRIBUTE: True,
        }
        kinds = [kind for kind in fits if is_tensor and fits[kind]]
        first = k % max(len(kinds), 1)
        for kind in (*kinds[first:], *kinds[:first]):
            fault = self._change_attribute(k) if kind == ATTRIBUTE else self._change_tensor(k, kind)
            if fault:
                return fault
        if kinds in ([], [ATTRIBUTE]):
            return None
        return PlantedFault(self._make_node_region(name), [], f"{kinds[0]}: no value changes")

    def _make_node_region(self, name: str) -> Region:
        graph = self._model.graph
        return build_region(graph, [graph.maker[name]], [(name,)], keep_random=True)

    def _change_tensor(self, k: int, kind: str) -> PlantedFault | None:
        name = self._names[k]
        into = self._model.new_folder()
        values = []
        for number, sample in enumerate(self._model.values.records):
            array = sample[name].array()
            if kind == SCALED:
                array = np.asarray(array.astype(np.float64) * SCALE_FACTOR).astype(array.dtype)
            else:
                array = np.roll(array, 1, AXES[kind])
            record = write_value(name, array, into, str(number), sample[name].type_text)
            values.append({name: record})
        if not differ(self._model, [name], values):
            return None
        return PlantedFault(self._make_node_region(name), values, kind)

    def _change_attribute(self, k: int) -> PlantedFault | None:
        """Return a fault with another attribute that the reference accepts."""
        model = self._model
        graph = model.graph
        i = graph.maker[self._names[k]]
        try:
            region = build_region(graph, [i])
        except NoRegion:
            return None
        model.capture(region)
        others = list(iter_other_attributes(graph.nodes[i], graph.model))
        random.Random(f"{self._seed} {k}").shuffle(others)
        for other in others[:MAX_TRIED_ATTRIBUTES]:
            values = _run_with(model, region, other)
            if (
                values
                and has_forms_of(model, values, region.outputs)
                and differ(model, region.outputs, values)
            ):
                return PlantedFault(region, values, other.says)
        return None


def _run_with(model: ReferenceModel, region: Region, other: OtherAttribute) -> Feeds | None:
    """Return the reference's outputs of a node with another attribute; None if it is not valid."""

    def change(cut: protobuf.ModelProto) -> None:
        for node in cut.graph.node:
            if set(region.outputs) & set(node.output):
                other.apply(node)

    try:
        return model.run_on_reference(region, change=change)
    except ModelError:
        return None
