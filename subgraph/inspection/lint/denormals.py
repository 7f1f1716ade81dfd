"""Denormal weights: magnitudes below 1.2e-38, which targets take for zero or compute slowly."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.inspection.lint import LintContext, LintIssue, note, warning

SHARE = 0.5  # of a weight's values; fewer are what dead channels leave behind, beside values that matter
FIX = "set magnitudes below 1.2e-38 to zero before converting"


def check(asked: LintContext) -> Iterator[LintIssue]:
    """Each float32 constant with such values; a note where they are fewer than the others."""
    for n in asked.numbers:
        if n.denormal:
            share = n.denormal / n.nonzero
            reason = f"{n.denormal} of {n.nonzero} nonzero values of constant '{n.name}' are denormal"
            reason += ": zero on targets that flush them, and slow on those that do not"
            yield (warning if share >= SHARE else note)(n.readers[0], reason, FIX, n.name)
