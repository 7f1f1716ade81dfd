"""Weights and, where inputs are given, tensors beyond 65504: infinite in float16."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.inspection.lint import LintContext, LintIssue, unchecked, warning
from subgraph.inspection.lint._numbers import LARGEST_FP16, WIDER_THAN_FP16
from subgraph.text import count

BOUNDED = ("Clip",)  # operators for which an infinite constant works as well as a large one
WEIGHT = "use a value within ±65504 (-1e4 masks as well), or keep this node in float32"
RANGE = "keep this node in float32 or bfloat16, or scale what enters it"


def check(context: LintContext) -> Iterator[LintIssue]:
    """Each constant with such values, at a node that reads it; each measured tensor with such values."""  # noqa: E501
    for n in context.numbers:
        readers = [node for node in n.readers if not node.is_op(*BOUNDED)]
        if n.over and readers:
            reason = (
                f"constant '{n.name}' reaches {n.largest:.3g}: {count(n.over, 'value')} beyond"
                " 65504, infinite in"
            )
            yield warning(readers[0], f"{reason} float16", WEIGHT, n.name)
    for name, measured in context.measured.tensors.items():
        if name in context.graph.maker and measured.range and measured.dtype in WIDER_THAN_FP16:
            largest = max(abs(measured.range.low or 0), abs(measured.range.high or 0))
            if largest > LARGEST_FP16:
                reason = (
                    f"its output '{name}' reaches {largest:.3g} on these inputs: infinite in"
                    " float16"
                )
                yield warning(context.at(context.graph.maker[name]), reason, RANGE, name)
    for failure in context.measured.failures:
        yield unchecked(f"the reference fails at '{failure.tensor}': {failure.what}")
