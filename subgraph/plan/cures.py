"""What may help a place without more bits: a weight's scale by channel, a range chosen anew from the samples.

`GEARS` names all gears between the lowered model and float32, the lowest first; each keeps the cures below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.plan.places import WEIGHTED, Form, Quantized, Twin, gear, symmetric
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.storage.scale import Scale
from subgraph.types import Array

CHANNEL = "channel"
CLIPPED = {"minmax": 0.0, "percentile": 1e-4}  # gear -> share of the values beyond each end of the range
WIDER = ("int16", "float16")
GEARS = (CHANNEL, *CLIPPED, *WIDER)
WORDS = {
    CHANNEL: "8 bits by channel",
    "minmax": "8 bits over all values",
    "percentile": "8 bits over 99.98 % of the values",
}
MAX_VALUES = 1 << 20  # of a tensor in each sample, from which a percentile is taken


def gears(graph: Graph, twin: Twin, values: ReferenceValues, names: Sequence[str]) -> dict[str, Twin]:
    """The asked gears, by what people call them, the lowest first.

    Raises:
        ModelError: the reference cannot give the values from which a range is chosen.
    """
    found: dict[str, Twin] = {}
    cured = twin
    for name in (n for n in GEARS if n in names):
        if name in WIDER:
            found[name] = gear(graph, cured, name)
            continue
        cured = _by_channel(graph, cured) if name == CHANNEL else _in_range(graph, cured, values, CLIPPED[name])
        found[WORDS[name]] = cured
    return found


def _by_channel(graph: Graph, twin: Twin) -> Twin:
    """The twin with each weight of one scale quantized by channel."""
    forms = dict(twin.forms)
    for i, node in enumerate(graph.nodes):
        axis = WEIGHTED.get(graph.ops[i])
        if axis is None or len(node.input) < 2 or not _has_one_scale(forms.get(name := node.input[1])):
            continue
        if (weight := graph.constant(name)) is not None:
            forms[name] = Quantized(symmetric(protobuf.to_array(weight, graph.path), axis), "int8")
    return replace(twin, forms=forms)


def _has_one_scale(form: Form | None) -> bool:
    return isinstance(form, Quantized) and form.dtype in ("int8", "uint8") and len(form.scale.step) == 1


def _in_range(graph: Graph, twin: Twin, values: ReferenceValues, share: float) -> Twin:
    """The twin with the range of each tensor but weights chosen anew: all but a share of the values at each end."""
    names = [n for n, form in twin.forms.items() if _has_one_scale(form) and not graph.is_weight(n)]
    values.need(names, near=True)
    ranges = {name: found for name in names if (found := _range(_arrays(values, name), share))}
    return replace(twin, forms={**twin.forms, **{n: _over(twin.forms[n], *found) for n, found in ranges.items()}})


def _arrays(values: ReferenceValues, name: str) -> Iterator[Array]:
    """Of each sample in which it is a tensor."""
    for records in values.records:
        if name in records and records[name].form == "tensor":
            yield records[name].array()


def _range(arrays: Iterator[Array], share: float) -> tuple[float, float] | None:
    """From where to where they reach, with 0; None where they hold nothing."""
    ends: list[Array] = []
    for array in arrays:
        flat = array[np.isfinite(array)]
        few = flat[:: max(flat.size // MAX_VALUES, 1)] if share or not flat.size else np.array([flat.min(), flat.max()])
        ends.append(few)
    all_values = np.concatenate(ends) if ends else np.zeros(0)
    if not all_values.size:
        return None
    low, high = np.quantile(all_values.astype(np.float64), (share, 1 - share))
    return min(float(low), 0.0), max(float(high), 0.0)


def _over(form: Form, low: float, high: float) -> Form:
    """The form, whose codes reach from `low` to `high`."""
    assert isinstance(form, Quantized)
    info = np.iinfo(form.dtype)
    step = float(f"{(high - low) / (info.max - info.min):.9g}")
    return replace(form, scale=Scale((step,), (round(info.min - low / step),), form.scale.axis)) if step else form
