"""Nodes that need a newer opset than the target accepts (--target-opset)."""

from __future__ import annotations

from subgraph.graph.nested import find_function_key
from subgraph.graph.opsets import (
    drop_defaults,
    find_misfit,
    find_schema,
    format_element_type,
    format_schema_type,
)
from subgraph.inspection.lint import Issues, LintContext, note, warning
from subgraph.inspection.lint._places import LintNode
from subgraph.storage import dtypes

# The first opset in which Softmax normalizes only one axis, by default the last.
MIN_LAST_AXIS_OPSET = 13
MOVED = ("Softmax", "LogSoftmax", "Hardmax")
ABSENT = "is not part of"  # how the reason begins that names the first opset itself
CONVERT = "export it with that opset, or convert it: subcut convert MODEL --opset {}"


def check(context: LintContext) -> Issues:
    """Yield each node that fits its operator at the model's opset, but not at the target's."""
    target = context.target
    own = context.scopes[0].opsets.get("")
    if target is None:
        return
    if own is not None and own > target and any(not node.domain for node in context.all_nodes):
        reason = (
            f"the model imports opset {own}, the target takes up to {target}: it may refuse the"
            " file as it is"
        )
        yield note(None, reason, CONVERT.format(target))
    functions = context.graph.functions
    for scope in context.scopes:
        version = scope.opsets.get("", 0)
        if version > target:
            for node in scope.nodes:
                if not node.domain and find_function_key(node.proto) not in functions:
                    yield from _check_newer(node, version, target)


def _check_newer(node: LintNode, version: int, target: int) -> Issues:
    """Yield the reason why a valid node does not fit the target's opset."""
    types = {}
    for name in filter(None, (*node.proto.input, *node.proto.output)):
        if (proto := node.scope.type_of(name)) is not None:
            types[str(name)] = format_schema_type(proto)
        elif dtype := node.dtype(name):
            types[str(name)] = format_element_type(dtypes.TYPE_NUMBERS[dtype])
    reason = find_misfit(drop_defaults(node.proto), target, types)
    if reason and not find_misfit(node.proto, version, types):
        form = find_schema(node.op, version)
        if form and not reason.startswith(ABSENT):
            reason += f"; its form is that of opset {form.since_version}"
        yield warning(
            node, reason, f"export with opset {target}, or write it in operators that {target} has"
        )
    elif (
        not reason
        and node.is_op(*MOVED)
        and target < MIN_LAST_AXIS_OPSET
        and _depends_on_axis(node)
    ):
        reason = (
            f"before opset {MIN_LAST_AXIS_OPSET} it means all axes from its own on,"
            " flattened into one"
        )
        yield warning(node, reason, "transpose so that its axis is the last one, and name the axis")


def _depends_on_axis(node: LintNode) -> bool:
    """Return whether the axis is another one than the last, or a default that differs."""
    axis = node.attribute("axis")
    shape = node.shape(node.input(0))
    if axis is None or axis == -1:
        return axis is None and shape is not None and len(shape) > 2
    return shape is not None and axis % len(shape) != len(shape) - 1
