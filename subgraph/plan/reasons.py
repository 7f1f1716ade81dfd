"""The reasons why many places stay in float: ranges, an output's own step, or many small errors; as
runs and values tell."""

from __future__ import annotations

import math
from itertools import chain
from statistics import median

from subgraph.plan.places import OUTPUT, Quantized
from subgraph.plan.plan import Planner
from subgraph.plan.search import Found
from subgraph.text import clean, count

HALF = 0.5  # of the places: beyond, it is said why
CUT_OFF = 1e-3  # of a tensor's values


def why_many(planner: Planner, found: Found) -> str:
    """A sentence where more than half of the places stay, else "".

    Raises:
        ModelError: the reference cannot give the values of a tensor.
    """
    if len(found.kept) <= HALF * len(planner.places):
        return ""
    found_out = [] if found.minimal else ["the search was not over, and more time may keep fewer"]
    errors = [planner.sensitivity(k) for k in found.kept]
    if lost := sum(map(math.isinf, errors)):
        found_out.append(f"{lost} of them alone give no numbers, or do not run")
    reads = list(chain.from_iterable(planner.places[k].reads for k in found.kept))
    if cut := [
        name for name in dict.fromkeys(name for _, name in reads) if _is_cut_off(planner, name)
    ]:
        verb = "is" if len(cut) == 1 else "are"
        found_out.append(
            f"{count(len(cut), 'tensor')} {verb} cut off by their ranges ({clean(cut[0])} …)"
        )
    if found.minimal and (steps := [name for i, name in reads if i == OUTPUT]):
        found_out.append(
            f"the output {clean(steps[0])} is too coarse in the steps of its own scale"
        )
    if len(found_out) == (not found.minimal):
        alone = [e for e in errors if e]
        off = f", by {median(alone):.1g} in the median" if alone else ""
        found_out.append(f"no few are to blame: each alone is off a little{off}, and that adds up")
    return f"more than half of the places stay: {'; '.join(found_out)}"


def _is_cut_off(planner: Planner, name: str) -> bool:
    """Return whether a tensor's range excludes some of its values."""
    form = planner.twin.forms.get(name)
    values = planner.trials.model.values
    if not isinstance(form, Quantized) or planner.trials.graph.is_weight(name):
        return False
    values.need([name], near=True)
    arrays = [
        sample[name].array()
        for sample in values.records
        if name in sample and sample[name].form == "tensor"
    ]
    return any(form.scale.saturated(array, form.dtype) > CUT_OFF for array in arrays)
