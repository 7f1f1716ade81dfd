"""Weights and, where inputs are given, tensors beyond 65504: infinite in float16."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.inspection.lint import LintContext, LintIssue, unchecked, warning
from subgraph.inspection.lint._numbers import LARGEST_FP16, WIDE
from subgraph.text import count

BOUNDS = ("Clip",)  # to it an infinite bound is as good as a large one
WEIGHT = "use a value within ±65504 (-1e4 masks as well), or keep this node in float32"
RANGE = "keep this node in float32 or bfloat16, or scale what enters it"


def check(asked: LintContext) -> Iterator[LintIssue]:
    """Each constant with such values, at the node that reads it; each tensor that gets there on what is fed."""
    for n in asked.numbers:
        readers = [place for place in n.readers if not place.is_op(*BOUNDS)]
        if n.over and readers:
            reason = f"constant '{n.name}' reaches {n.largest:.3g}: {count(n.over, 'value')} beyond 65504, infinite in"
            yield warning(readers[0], f"{reason} float16", WEIGHT, n.name)
    for name, measured in asked.run.measured.items():
        if name in asked.graph.maker and measured.range and measured.dtype in WIDE:
            largest = max(abs(measured.range.low or 0), abs(measured.range.high or 0))
            if largest > LARGEST_FP16:
                reason = f"its output '{name}' reaches {largest:.3g} on these inputs: infinite in float16"
                yield warning(asked.at(asked.graph.maker[name]), reason, RANGE, name)
    for failure in asked.run.failures:
        yield unchecked(f"the reference fails at '{failure.tensor}': {failure.what}")
