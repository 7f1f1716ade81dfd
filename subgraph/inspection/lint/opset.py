"""What needs a newer opset than the target takes (--target-opset)."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.graph.operators import Schemas, element_text, type_text
from subgraph.inspection.lint import LintContext, LintIssue, note, warning
from subgraph.inspection.lint._places import LintNode
from subgraph.storage import dtypes

SOFTMAX = 13  # from this opset on its axis is the last by default, and the only one
MOVED = ("Softmax", "LogSoftmax", "Hardmax")
# Attributes that came later -> the value at which nothing has changed; exporters write it down.
PLAIN = {"ceil_mode": 0, "dilations": 1, "count_include_pad": 0, "storage_order": 0, "training_mode": 0, "allowzero": 0,
         "antialias": 0, "batch_dims": 0, "reduction": "none"}  # fmt: skip
CONVERT = "export it with that opset, or convert it: onnx.version_converter"


def check(asked: LintContext) -> Iterator[LintIssue]:
    """Each node that does not fit its operator's schema at the target's opset, though it does at the model's own."""
    target, own = asked.target, asked.scopes[0].opsets.get("")
    if target is None:
        return
    if own is not None and own > target:
        reason = f"the model imports opset {own}, the target takes up to {target}: it may refuse the file as it is"
        yield note(None, reason, CONVERT)
    functions = frozenset(asked.graph.functions)
    for scope in asked.scopes:
        version = scope.opsets.get("", 0)
        if version > target:
            before = Schemas(scope.opsets, functions)
            after = Schemas({**scope.opsets, "": target}, functions)
            for place in scope.places:
                if not place.domain:
                    yield from _newer(place, before, after, target)


def _newer(place: LintNode, before: Schemas, after: Schemas, target: int) -> Iterator[LintIssue]:
    """What is wrong at the target's opset; of a node that is wrong anyway `types` and `invalid` tell."""
    types = _types(place)
    late = [f for f in after.check(place.node, types) if not _says_nothing(place, f.what)]
    if late and not any(before.check(place.node, types)):
        for f in late:
            reason = f.what if f"opset {target}" in f.what else f"{f.what} at opset {target}"
            fix = f"export with opset {target}, or write it in operators that {target} has"
            yield warning(place, reason, fix, f.tensor)
    elif not late and place.is_op(*MOVED) and target < SOFTMAX and _matters(place):
        reason = f"before opset {SOFTMAX} it means all axes from its own on, flattened into one"
        yield warning(place, reason, "transpose so that its axis is the last one, and name the axis")


def _says_nothing(place: LintNode, what: str) -> bool:
    """Is it about an attribute that the older opset lacks, and whose value means what that opset does anyway?"""
    name = what.split("'")[1] if what.startswith("has the attribute") else ""
    value = place.attribute(name)
    return name in PLAIN and all(v == PLAIN[name] for v in (value if isinstance(value, list) else [value]))


def _types(place: LintNode) -> dict[str, str]:
    """The types of the tensors at the node, as schemas write them."""
    found = {}
    for name in filter(None, (*place.node.input, *place.node.output)):
        if (proto := place.scope.type_of(name)) is not None:
            found[str(name)] = type_text(proto)
        elif dtype := place.dtype(name):
            found[str(name)] = element_text(dtypes.TYPE_NUMBERS[dtype])
    return found


def _matters(place: LintNode) -> bool:
    """Is it over another axis than the last, or does it leave out the axis, whose default has changed?"""
    axis, shape = place.attribute("axis"), place.shape(place.input(0))
    if axis is None or axis == -1:
        return axis is None and shape is not None and len(shape) > 2
    return shape is not None and axis % len(shape) != len(shape) - 1
