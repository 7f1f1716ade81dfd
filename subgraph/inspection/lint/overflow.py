"""Weights and, with inputs, tensors that leave the range of --precision (fp16), or vanish in it."""

from __future__ import annotations

from dataclasses import replace

from subgraph.inspection.lint import Issues, LintContext, make_unchecked, note, warning
from subgraph.inspection.overflow import BOUNDED, TroubleKind
from subgraph.text import count

WEIGHT = "use a value within ±{largest:.6g} (-1e4 masks as well), or keep this node in float32"
RANGE = "keep this node in float32, or scale its inputs"
SCALE = "scale it: subcut plan MODEL --to {precision} --rescale folds the factor in and proves it"
PURPOSE = "none is needed: a mask is to be large; -1e4 masks as well, in every type"
MASK = "reaches {largest:.3g}: infinite in {type}, as a mask on purpose"
SENTENCES = {
    TroubleKind.OVERFLOW: "reaches {largest:.3g} on these inputs: infinite in {type}",
    TroubleKind.VANISHES: (
        "is down to {least:.3g} on these inputs: zero in {type}, where a node may divide by it"
    ),
    TroubleKind.MASK: MASK,
}


def check(context: LintContext) -> Issues:
    """Yield each constant with such values, at a node that reads it, and each measured tensor."""
    if context.for_int8:
        return
    precision = context.precision
    for n in context.numbers:
        readers = [node for node in n.readers if not node.is_op(*BOUNDED)]
        over = n.values.count_beyond(precision.largest)
        if not over or not readers:
            continue
        if readers[0].scope is context.scopes[0] and context.overflow.is_mask(n.name):
            words = MASK.format(largest=n.values.largest, type=precision.dtype)
            yield note(readers[0], f"constant '{n.name}' {words}", PURPOSE, n.name)
        else:
            reason = (
                f"constant '{n.name}' reaches {n.values.largest:.3g}: {count(over, 'value')} beyond"
                f" {precision.largest:.6g}, infinite in"
            )
            fix = WEIGHT.format(largest=precision.largest)
            yield warning(readers[0], f"{reason} {precision.dtype}", fix, n.name)
    graph = context.graph
    for trouble in context.overflow.troubles:
        name = trouble.tensor
        values = trouble.measured
        words = SENTENCES[trouble.kind].format(
            largest=values.largest, least=values.least, type=precision.dtype
        )
        role = "output" if name in graph.maker else "input"
        place = graph.maker[name] if name in graph.maker else next(iter(graph.readers[name]), None)
        reason = f"its {role} '{name}' {words}"
        if trouble.kind is TroubleKind.MASK:
            yield note(context.get_node(place), reason, PURPOSE, name)
            continue
        fix = RANGE
        if trouble.exponent is not None:
            reason += f"; divided by 2^{trouble.exponent}, it is in range"
            fix = SCALE.format(precision=precision.value)
        yield replace(
            warning(context.get_node(place), reason, fix, name), exponent=trouble.exponent
        )
    for failure in context.measured.failures:
        yield make_unchecked(f"the reference fails at '{failure.tensor}': {failure.what}")
