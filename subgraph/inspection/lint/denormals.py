"""Denormal weights: magnitudes below 1.2e-38, which targets take for zero or compute slowly."""

from __future__ import annotations

from subgraph.inspection.lint import Issues, LintContext, note, warning

SMALLEST_NORMAL = 2.0**-126  # of float32
MIN_DENORMAL_SHARE = 0.5  # of a weight's values; fewer come from dead channels
FIX = "set magnitudes below 1.2e-38 to zero before converting"


def check(context: LintContext) -> Issues:
    """Each float32 constant with denormal values; a note if they are the minority."""
    for n in context.numbers:
        small = n.values.count_below(SMALLEST_NORMAL) if n.dtype == "float32" else 0
        if small:
            share = small / n.values.nonzero
            reason = f"{small} of {n.values.nonzero} nonzero values of '{n.name}' are denormal"
            reason += ": zero on targets that flush them, and slow on those that do not"
            yield (warning if share >= MIN_DENORMAL_SHARE else note)(
                n.readers[0], reason, FIX, n.name
            )
