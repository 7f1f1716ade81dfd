"""Weights from which targets compute other values: NaN, infinity, a variance below zero."""

from __future__ import annotations

import numpy as np

from subgraph.graph.properties import WEIGHTED
from subgraph.inspection.lint import Issues, LintContext, warning

FIX = "export the model again: a weight overflowed in training or in a conversion"
EPSILON = 1e-5  # the default of the standard


def check(context: LintContext) -> Issues:
    """Yield each constant with NaN, weight with infinities, and BatchNormalization with a negative
    variance."""
    for n in context.numbers:
        layer = next((node for node in n.readers if node.is_op(*WEIGHTED)), None)
        if n.values.nan:
            yield warning(
                n.readers[0], f"{n.values.nan} values of constant '{n.name}' are NaN", FIX, n.name
            )
        elif n.values.inf and layer:
            yield warning(
                layer, f"{n.values.inf} values of weight '{n.name}' are infinite", FIX, n.name
            )
    for node in context.nodes("BatchNormalization"):
        variance = node.constant(4)
        epsilon = node.attribute("epsilon", EPSILON)
        if variance is None or epsilon is None:
            continue
        below = int(np.count_nonzero(variance.astype(np.float64) + epsilon < 0))
        if below:
            reason = (
                f"{below} values of its variance '{node.input(4)}' are below zero: the square root"
                " is NaN"
            )
            yield warning(node, reason, FIX, node.input(4))
