"""Denormal weights: magnitudes below 1.2e-38, which targets take for zero or compute slowly."""

from __future__ import annotations

from subgraph.inspection.lint import Issues, LintContext, note, warning

SHARE = 0.5  # of a weight's values; fewer come from dead channels
FIX = "set magnitudes below 1.2e-38 to zero before converting"


def check(context: LintContext) -> Issues:
    """Each float32 constant with denormal values; a note if they are the minority."""
    for n in context.numbers:
        if n.denormal:
            share = n.denormal / n.nonzero
            reason = (
                f"{n.denormal} of {n.nonzero} nonzero values of constant '{n.name}' are denormal"
            )
            reason += ": zero on targets that flush them, and slow on those that do not"
            yield (warning if share >= SHARE else note)(n.readers[0], reason, FIX, n.name)
