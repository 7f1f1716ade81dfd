"""Weights so small that --precision (default fp16) makes them zero: an epsilon of 1e-12."""

from __future__ import annotations

from subgraph.inspection.lint import Issues, LintContext, note, warning

SHARE = 0.1  # of a weight's values; fewer occur in every trained network, and do no harm
FIX = "keep this node in float32, or use a larger value (as an epsilon 1e-5 or so)"


def check(context: LintContext) -> Issues:
    """Each constant of which all values become zero; a note if a share of at least `SHARE` does."""
    if context.for_int8:
        return
    zero = f"zero in {context.precision.dtype}"
    for n in context.numbers:
        node = n.readers[0]
        if n.lost and n.lost == n.nonzero:
            reason = (
                f"constant '{n.name}' is at most {n.largest:.3g}: {zero}, and what divides by it"
                " infinite"
            )
            yield warning(node, reason, FIX, n.name)
        elif n.nonzero and n.lost / n.nonzero >= SHARE:
            share = (
                f"{n.lost / n.nonzero:.0%} of the values of constant '{n.name}' are below 3e-08:"
                f" {zero}"
            )
            yield note(node, share, FIX, n.name)
