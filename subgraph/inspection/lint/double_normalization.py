"""An input that is normalized twice: in the graph, or in the graph and by --mean or --scale."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from subgraph.graph.properties import REARRANGES
from subgraph.inspection.lint import Issues, LintContext, warning
from subgraph.inspection.lint._places import LintNode, Scope
from subgraph.types import frozen

CARRIERS = REARRANGES | {"Cast"}  # pass pixel values on unchanged
MAX_CHANNELS = 4  # values of a mean or a standard deviation
# A factor below scales 0…255 to about 1, and applied twice to almost nothing.
MAX_PIXEL_FACTOR = 1 / 64
MAX_GUARD_OFFSET = 1e-6  # a smaller constant only prevents division by zero


@frozen
class Stage:
    """One step of x → a·x + b: the largest factor a, and whether b is not zero."""

    node: LintNode
    factor: float = 1.0
    shifts: bool = False


def check(context: LintContext) -> Issues:
    """Yield an issue for each input that first nodes and options shift or divide twice."""
    for name in context.graph.inputs:
        stages = list(_iter_stages(context.scopes[0], name))
        shifts = [s for s in stages if s.shifts]
        scales = [s for s in stages if abs(s.factor) < MAX_PIXEL_FACTOR]
        for kind, same in (("subtracted", shifts), ("divided by 64 or more", scales)):
            if len(same) > 1:
                reason = (
                    f"input '{name}' is {kind} by constants twice, here and at {same[0].node.label}"
                )
                yield warning(same[1].node, reason, "remove one of the two normalizations", name)
                break
        else:
            fix = "leave the option out: the model takes plain pixels"
            options = context.image_options
            if shifts and any(options.mean):
                yield warning(
                    shifts[0].node,
                    f"subtracts a mean from input '{name}', and --mean does so before",
                    fix,
                    name,
                )
            elif scales and max(map(abs, options.scale)) < MAX_PIXEL_FACTOR:
                yield warning(
                    scales[0].node,
                    f"scales input '{name}' down, and --scale does so before",
                    fix,
                    name,
                )


def _iter_stages(scope: Scope, tensor: str) -> Iterator[Stage]:
    """Yield the steps with constants after a model input, up to another operator or a branch."""
    while len(readers := scope.readers.get(tensor, [])) == 1:
        node = readers[0]
        if node.is_op("Sub", "Add", "Mul", "Div") and (stage := _find_stage(node, tensor)):
            yield stage
        elif not node.is_op(*CARRIERS) or node.input(0) != tensor:
            return
        tensor = node.output(0)


def _find_stage(node: LintNode, tensor: str) -> Stage | None:
    """Return the step of a node with one constant, or one per channel; None for any other."""
    left = node.input(0) == tensor
    operand = node.constant(1 if left else 0)
    if operand is None or not 0 < operand.size <= MAX_CHANNELS or (node.op == "Div" and not left):
        return None
    size = np.abs(operand.astype(np.float64))
    if node.op in ("Add", "Sub"):
        return Stage(node, shifts=bool(size.max() > MAX_GUARD_OFFSET))
    if node.op == "Div":
        if size.min() > 0:
            return Stage(node, float(1 / size.min()))
        return None
    return Stage(node, float(size.max()))
