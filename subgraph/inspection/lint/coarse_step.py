"""Tensors and weights of which int8 with one scale makes most values zero (--precision int8)."""

from __future__ import annotations

import numpy as np

from subgraph.graph.properties import CHANNEL_AXES, SQUASHES
from subgraph.inspection.lint import Issues, LintContext, warning
from subgraph.text import count

MIN_ZERO_SHARE = 0.5  # of the values other than 0 that become 0; fewer do no harm
STEPS = 255  # of the range of a tensor
WEIGHT_STEPS = 127  # of the largest magnitude of a weight
PER_CHANNEL = "quantize this weight per channel, or keep the node in float"
FIX = "clip outliers while calibrating, or: subcut plan MODEL --to int8 --rescale -i samples"


def check(context: LintContext) -> Issues:
    """Yield each weight with channels that vanish next to the largest one, and each measured tensor
    whose step is larger than most of its values."""
    if not context.for_int8:
        return
    for node in context.nodes(*CHANNEL_AXES):
        name = node.input(1)
        axis = CHANNEL_AXES[node.op][0]
        weight = node.constant(1)
        if weight is None or not weight.size or weight.ndim < 2 or weight.dtype.kind != "f":
            continue
        others = tuple(k for k in range(weight.ndim) if k != axis % weight.ndim)
        largest = np.abs(weight).max(axis=others)
        half_step = float(largest.max()) / WEIGHT_STEPS / 2
        lost = (largest > 0) & (largest < half_step)
        if lost.any():
            beside = f"weight '{name}' reaches {largest.max():.3g}, so that one scale for all makes"
            channels = f"{count(int(lost.sum()), 'channel')} below {half_step:.2g} zero in int8"
            yield warning(node, f"{beside} {channels}", PER_CHANNEL, name)
    graph = context.graph
    for name, tensor in context.measured.tensors.items():
        place = graph.maker.get(name)
        values = tensor.range
        is_exempt = place is not None and graph.ops[place] in {"Constant", *SQUASHES}
        if values is None or not values.sizes or is_exempt:
            continue
        high = max(values.high, 0.0)
        low = min(values.low, 0.0)
        step = high / STEPS - low / STEPS  # their difference may be infinite
        share = values.count_below(step / 2) / values.nonzero
        if share >= MIN_ZERO_SHARE:
            fact = f"its output '{name}' reaches {values.largest:.3g}, so that a step of int8 is"
            reason = f"{fact} {step:.2g}: at least {100 * share:.0f} % of its values become 0"
            yield warning(context.get_node(place), reason, FIX, name)
