"""The model with planted faults, on the reference -> how many of them the comparison would show.

A fault changes the value of one tensor. The reference runs the nodes downstream on the changed
value, and the judge compares the outputs as if a candidate had computed them. So the measurement
depends on the input, the limits and the compared outputs, and on nothing else: it is the null test
(`comparison.evidence`) with faults in place of constants. The places are seeded, and spread over
the model in topological order.
"""

from __future__ import annotations

import random

import numpy as np

from subgraph.errors import ModelError, WorkerDied
from subgraph.graph.region import Region, build_region
from subgraph.results.common import MissedFault, PowerDocument
from subgraph.runtime.run_result import Feeds, RunResult
from subgraph.storage.tensors import written
from subgraph.trials.doubt import DOUBTS, Doubt
from subgraph.trials.judge import Judge
from subgraph.trials.propagation import propagate
from subgraph.trials.reference_model import ReferenceModel

FACTOR = 1.1  # of a scaled tensor
SCALED = f"scaled by {FACTOR}"
SHIFTED = "shifted by a pixel"
ROTATED = "channels rotated by one"
AXES = {SHIFTED: -1, ROTATED: 1}
SETTLED = (Doubt.KERNELS, Doubt.STEPS)  # agreements that the nodes alone do not confirm


def measure_power(judge: Judge, number: int) -> PowerDocument:
    """Count the planted faults that the outputs of the full model would show.

    Args:
        judge: The judge of the candidate.
        number: The number of faults; each is in a floating tensor.

    Raises:
        OutOfTime: The time is used up.
        ModelError: The reference cannot run the model.
    """
    model = judge.model
    graph = model.graph
    seed = model.values.samples[0].seed
    draws = random.Random(seed)
    names = model.tensors()
    model.values.need([*graph.inputs, *graph.outputs, *names])
    known = model.values.records[0]
    names = [n for n in names if known[n].form == "tensor" and "float" in known[n].dtype]
    planted = 0
    missed = []
    for k in range(number if names else 0):
        name = names[int((k + draws.random()) * len(names) / number)]
        shape = known[name].shapes[0]
        kinds = [SCALED]
        if len(shape) > 2 and shape[-1] > 1:
            kinds.append(SHIFTED)
        if len(shape) > 1 and shape[1] > 1:
            kinds.append(ROTATED)
        how = kinds[k % len(kinds)]
        values = _plant(model, name, how)
        pairs = zip(model.values.records, values, strict=True)
        if all(
            np.array_equal(sample[name].array(), record.array())
            for sample, changed in pairs
            for name, record in changed.items()
        ):  # zeros stay zeros
            continue
        planted += 1
        node = graph.maker[name]
        region = build_region(graph, [node], [(name,)], keep_random=True)
        if not _is_shown(judge, region, values):
            missed.append(MissedFault(graph.label(node), name, how))
    return PowerDocument(planted, planted - len(missed), seed, missed)


def _is_shown(judge: Judge, region: Region, values: Feeds) -> bool:
    """Return whether the comparison shows the fault: an output fails, is not computed, or does not
    decide."""
    whole = judge.model.whole()
    try:
        samples = propagate(judge.model, region, values)
    except ModelError:
        return True
    except WorkerDied:  # of memory, perhaps
        return False
    outputs = tuple({name: sample[name] for name in judge.model.outputs} for sample in samples)
    result = RunResult(outputs, ((),) * len(outputs))
    return judge.verdict(whole, result).fails or any(
        DOUBTS[doubt].is_possible(judge) and DOUBTS[doubt].applies(judge, whole, result)
        for doubt in SETTLED
    )


def _plant(model: ReferenceModel, name: str, how: str) -> Feeds:
    """Return a changed tensor, per sample."""
    into = model.new_folder()
    values = []
    for k, sample in enumerate(model.values.records):
        array = sample[name].array()
        if how == SCALED:
            array = np.asarray(array.astype(np.float64) * FACTOR).astype(array.dtype)
        else:
            array = np.roll(array, 1, AXES[how])
        values.append({name: written(name, array, into, str(k), sample[name].type_text)})
    return values
