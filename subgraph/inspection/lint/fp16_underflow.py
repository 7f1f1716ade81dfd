"""Weights so small that float16 makes them zero: an epsilon of 1e-12 for example."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.inspection.lint import LintContext, LintIssue, note, warning

SHARE = 0.1  # of a weight's values; fewer are what training leaves in every network, and do no harm
FIX = "keep this node in float32, or use a larger value (as an epsilon 1e-5 or so)"


def check(asked: LintContext) -> Iterator[LintIssue]:
    """Each constant that becomes zero as a whole; a note where a good part of its values does."""
    for n in asked.numbers:
        place = n.readers[0]
        if n.lost and n.lost == n.nonzero:
            reason = f"constant '{n.name}' is at most {n.largest:.3g}: zero in float16, and what divides by it infinite"
            yield warning(place, reason, FIX, n.name)
        elif n.nonzero and n.lost / n.nonzero >= SHARE:
            share = f"{n.lost / n.nonzero:.0%} of the values of constant '{n.name}' are below 3e-08: zero in float16"
            yield note(place, share, FIX, n.name)
