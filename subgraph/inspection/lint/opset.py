"""What needs a newer opset than the target takes (--target-opset)."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.graph.operators import Schemas, element_text, type_text
from subgraph.inspection.lint import LintContext, LintIssue, note, warning
from subgraph.inspection.lint._places import LintNode
from subgraph.storage import dtypes

SOFTMAX = 13  # first opset in which the axis of Softmax is the last by default, and only one axis is normalised
MOVED = ("Softmax", "LogSoftmax", "Hardmax")
# Attributes of newer opsets → value that means the behaviour of older opsets; exporters write it down.
DEFAULTS = {"ceil_mode": 0, "dilations": 1, "count_include_pad": 0, "storage_order": 0, "training_mode": 0,
            "allowzero": 0, "antialias": 0, "batch_dims": 0, "reduction": "none"}  # fmt: skip
CONVERT = "export it with that opset, or convert it: onnx.version_converter"


def check(context: LintContext) -> Iterator[LintIssue]:
    """Each node that fits the schema of its operator at the model's opset, but not at the target's."""
    target, own = context.target, context.scopes[0].opsets.get("")
    if target is None:
        return
    if own is not None and own > target:
        reason = f"the model imports opset {own}, the target takes up to {target}: it may refuse the file as it is"
        yield note(None, reason, CONVERT)
    functions = frozenset(context.graph.functions)
    for scope in context.scopes:
        version = scope.opsets.get("", 0)
        if version > target:
            before = Schemas(scope.opsets, functions)
            after = Schemas({**scope.opsets, "": target}, functions)
            for node in scope.nodes:
                if not node.domain:
                    yield from _newer(node, before, after, target)


def _newer(node: LintNode, before: Schemas, after: Schemas, target: int) -> Iterator[LintIssue]:
    """Issues of a node at the target's opset, unless it is invalid anyway (rules `types` and `invalid`)."""
    types = _types(node)
    new = [issue for issue in after.check(node.proto, types) if not _is_default(node, issue.what)]
    if new and not any(before.check(node.proto, types)):
        for issue in new:
            reason = issue.what if f"opset {target}" in issue.what else f"{issue.what} at opset {target}"
            fix = f"export with opset {target}, or write it in operators that {target} has"
            yield warning(node, reason, fix, issue.tensor)
    elif not new and node.is_op(*MOVED) and target < SOFTMAX and _axis_matters(node):
        reason = f"before opset {SOFTMAX} it means all axes from its own on, flattened into one"
        yield warning(node, reason, "transpose so that its axis is the last one, and name the axis")


def _is_default(node: LintNode, what: str) -> bool:
    """Is the issue about an attribute that the older opset lacks, whose value means what that opset does anyway?"""
    name = what.split("'")[1] if what.startswith("has the attribute") else ""
    value = node.attribute(name)
    return name in DEFAULTS and all(v == DEFAULTS[name] for v in (value if isinstance(value, list) else [value]))


def _types(node: LintNode) -> dict[str, str]:
    """Types of the tensors at the node, as schemas write them."""
    types = {}
    for name in filter(None, (*node.proto.input, *node.proto.output)):
        if (proto := node.scope.type_of(name)) is not None:
            types[str(name)] = type_text(proto)
        elif dtype := node.dtype(name):
            types[str(name)] = element_text(dtypes.TYPE_NUMBERS[dtype])
    return types


def _axis_matters(node: LintNode) -> bool:
    """Is the axis another one than the last, or omitted so that the default differs?"""
    axis, shape = node.attribute("axis"), node.shape(node.input(0))
    if axis is None or axis == -1:
        return axis is None and shape is not None and len(shape) > 2
    return shape is not None and axis % len(shape) != len(shape) - 1
