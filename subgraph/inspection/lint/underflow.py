"""Weights so small that --precision (default fp16) makes them zero: an epsilon of 1e-12."""

from __future__ import annotations

from subgraph.inspection.lint import Issues, LintContext, note, warning

# Of a weight's values; fewer occur in every trained network, and do no harm.
MIN_UNDERFLOW_SHARE = 0.1
FIX = "keep this node in float32, or use larger values (an epsilon of 1e-5, a scaled weight)"


def check(context: LintContext) -> Issues:
    """Each constant of which all values become zero; a note if a share of at least
    `MIN_UNDERFLOW_SHARE` does."""
    if context.for_int8:
        return
    zero = f"zero in {context.precision.dtype}"
    for n in context.numbers:
        node = n.readers[0]
        nonzero = n.values.nonzero
        lost = n.values.count_below(context.precision.half_step)
        if lost and lost == nonzero:
            reason = f"constant '{n.name}' is at most {n.values.largest:.3g}: {zero}, and what"
            reason += " divides by it infinite"
            yield warning(node, reason, FIX, n.name)
        elif nonzero and lost / nonzero >= MIN_UNDERFLOW_SHARE:
            share = f"{lost / nonzero:.0%} of the values of constant '{n.name}' are below 3e-08"
            yield note(node, f"{share}: {zero}", FIX, n.name)
