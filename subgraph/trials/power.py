"""The model with planted faults, on the reference -> how many of them the comparison would show.

A fault changes the value of one tensor, or one attribute of its node. The reference runs the nodes
downstream on the changed value, and the judge compares the outputs as if a candidate had computed
them. So the measurement depends on the input, the limits and the compared outputs, and on nothing
else: it is the null test (`comparison.evidence`) with faults in place of constants. The places are
seeded, and spread over the model in topological order.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from subgraph.errors import ModelError, NoRegion, WorkerDied
from subgraph.graph import protobuf
from subgraph.graph.region import Region, build_region
from subgraph.results.common import MissedFault, PowerDocument
from subgraph.runtime.run_result import Feeds, RunResult
from subgraph.storage.tensors import written
from subgraph.trials.doubt import DOUBTS, Doubt
from subgraph.trials.judge import Judge
from subgraph.trials.propagation import propagate
from subgraph.trials.reference_model import ReferenceModel
from subgraph.types import Array
from subgraph.verdict import Status

log = logging.getLogger("subcut")

FACTOR = 1.1  # of a scaled tensor
MIN_AXES = 3  # of a tensor with pixels
SETTLED = (Doubt.KERNELS, Doubt.STEPS)  # agreements that the nodes alone do not confirm


@dataclass(frozen=True)
class Fault:
    """A planted fault.

    Attributes:
        region: The node of the changed tensor.
        tensor: The changed tensor.
        how: What was changed.
        values: Per sample, the changed value.
    """

    region: Region
    tensor: str
    how: str
    values: Feeds


def measure_power(judge: Judge, number: int) -> PowerDocument:
    """Count the planted faults that the outputs of the full model would show.

    Args:
        judge: The judge of the candidate.
        number: The number of faults.

    Raises:
        OutOfTime: The time is used up.
        ModelError: The reference cannot run the model.
    """
    seed = judge.model.values.samples[0].seed
    faults = list(_iter_faults(judge.model, number, random.Random(seed)))
    missed = [
        MissedFault(judge.model.graph.label(fault.region.nodes[0]), fault.tensor, fault.how)
        for fault in faults
        if not _is_shown(judge, fault)
    ]
    return PowerDocument(len(faults), len(faults) - len(missed), seed, missed)


def _is_shown(judge: Judge, fault: Fault) -> bool:
    """Return whether the outputs fail or cannot be computed, or do not decide: then the nodes run
    alone."""
    whole = judge.model.whole()
    try:
        values = propagate(judge.model, fault.region, fault.values)
    except (ModelError, WorkerDied):
        return True
    outputs = tuple({name: sample[name] for name in judge.model.outputs} for sample in values)
    result = RunResult(outputs, ((),) * len(outputs))
    return judge.verdict(whole, result).status is Status.FAIL or any(
        DOUBTS[doubt].is_possible(judge) and DOUBTS[doubt].applies(judge, whole, result)
        for doubt in SETTLED
    )


# ------------------------------------------------------------ faults


def _iter_faults(model: ReferenceModel, number: int, draws: random.Random) -> Iterator[Fault]:
    """Yield up to this number of faults; a tensor that no fault fits is omitted."""
    names = model.tensors()
    model.values.need([*model.graph.inputs, *model.graph.outputs, *names])
    kinds = list(KINDS.items())
    for k in range(number):
        name = names[int((k + draws.random()) * len(names) / number)]
        first = k % len(kinds)
        for how, plant in (*kinds[first:], *kinds[:first]):
            try:
                region = build_region(model.graph, [model.graph.maker[name]], [(name,)])
                values = plant(model, region, name)
            except (ModelError, NoRegion, WorkerDied) as e:
                log.debug("the reference refuses %s, %s: %s", name, how, e.what)
                continue
            if values:
                yield Fault(region, name, how, values)
                break


def _change_values(
    change: Callable[[Array, random.Random], Array | None],
    model: ReferenceModel,
    region: Region,
    name: str,
) -> Feeds | None:
    """Return the changed output of a node; None if it cannot be changed so."""
    into = model.new_folder()
    values = []
    for k, sample in enumerate(model.values.records):
        record = sample[name]
        draws = random.Random(region.nodes[0])  # the same channels in each sample
        changed = change(record.array(), draws) if record.form == "tensor" else None
        if changed is None:
            return None
        values.append({name: written(name, changed, into, str(k), record.type_text)})
    return values


def _change_attribute(model: ReferenceModel, region: Region, name: str) -> Feeds | None:
    """Return the outputs of a node with another attribute; None if a shape changes as well."""
    records = model.values.records
    model.capture(region)
    cut = model.cut(region, records)
    (node,) = (one for one in cut.model.graph.node if name in one.output)
    if not any(map(_change, node.attribute)):  # the first that can be changed
        return None
    feeds = [[sample[n] for n in cut.inputs] for sample in records]
    values = model.run_model(cut.model, feeds, cut.outputs)
    return values if model.has_forms_of(values, region.outputs) else None


def _change(attribute: protobuf.AttributeProto) -> bool:
    """Change an attribute; return whether it can be changed."""
    before = attribute.SerializeToString()
    middle = len(attribute.ints) // 2
    if attribute.HasField("f"):
        attribute.f = attribute.f * 2 or 1.0
    elif attribute.HasField("i") and attribute.i in (0, 1):
        attribute.i = 1 - attribute.i
    elif middle and attribute.name == "pads":
        attribute.ints[0] -= 1
        attribute.ints[middle] += 1
    return bool(attribute.SerializeToString() != before)


def _scale(array: Array, draws: random.Random) -> Array | None:
    is_float = array.dtype.kind in "fV"
    return np.asarray(array.astype(np.float64) * FACTOR).astype(array.dtype) if is_float else None


def _shift(array: Array, draws: random.Random) -> Array | None:
    return np.roll(array, 1, -1) if array.ndim >= MIN_AXES and array.shape[-1] > 1 else None


def _exchange(array: Array, draws: random.Random) -> Array | None:
    axis = min(1, array.ndim - 1)
    if array.ndim == 0 or array.shape[axis] < 2:
        return None
    order = list(range(array.shape[axis]))
    one, other = draws.sample(order, 2)
    order[one], order[other] = other, one
    return np.take(array, order, axis)


KINDS: Mapping[str, Callable[[ReferenceModel, Region, str], Feeds | None]] = {
    f"scaled by {FACTOR}": partial(_change_values, _scale),
    "shifted by a pixel": partial(_change_values, _shift),
    "two channels exchanged": partial(_change_values, _exchange),
    "another attribute": _change_attribute,
}
