"""Sizes of the trace baked into the graph: a second input size is tried on the reference.

A baked-in size looks like any other constant. But a model that declares a dimension open must run with another size of
it, and its outputs must follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from subgraph.errors import InputError, SubcutError
from subgraph.graph.graph import Graph
from subgraph.graph.types import declared_type
from subgraph.inspection.lint import NOTE, WARNING, LintContext, LintIssue, unchecked, warning
from subgraph.inspection.ranges import MeasuredTensor, MeasuredTensors, measure
from subgraph.runtime.inputs import Feeding
from subgraph.storage.tensors import shape_text
from subgraph.text import clean, shorten

IMAGE_SIZE, OTHER_SIZE = 224, 16  # first sizes for an open dimension of an image, and of other inputs
CHANNELS = 3
IMAGE_RANK = 4
FIX = "export with dynamic axes, and compute sizes from the tensor (x.shape) rather than from numbers of the trace"
# Operators whose constant operand may hold a size of the trace.
SIZE_OPS = frozenset("Reshape Expand Slice Resize Upsample Tile Pad".split())
Sizes = dict[str, list[int]]


@dataclass(frozen=True)
class OpenDim:
    """An open dimension of an input; `symbol` may be empty."""

    input: str
    axis: int
    symbol: str


def check(context: LintContext) -> Iterator[LintIssue]:
    """Runs a model at a second size, if it has open dimensions or --shape contradicts its sizes."""
    try:
        shapes = {name: declared_type(v.type) for name, v in context.graph.inputs.items()}
    except InputError as e:
        yield unchecked(e.what)
        return
    if any(form != "tensor" or dims is None for form, _, dims in shapes.values()):
        yield unchecked("an input is no tensor of known rank")
        return
    if context.second_sizes:
        yield from _check_fixed(context)
        return
    open_dims = [
        OpenDim(name, k, d or "")
        for name, (_, _, dims) in shapes.items()
        for k, d in enumerate(dims or ())
        if not isinstance(d, int)
    ]
    if open_dims:
        yield from _check_open(context, open_dims)


def _check_fixed(context: LintContext) -> Iterator[LintIssue]:
    """Run a model of fixed sizes at the sizes that the user gives."""
    resized = _resized(context.graph, context.second_sizes)
    feeding = Feeding(shapes=context.second_sizes, seed=context.seed)
    if isinstance(_run(context, resized, feeding), SubcutError):
        sizes = _sizes_text(context.second_sizes, context.second_sizes)
        yield from _locate(context, resized, feeding, f"fails with {sizes}, another size than its own", WARNING)


def _resized(graph: Graph, sizes: Mapping[str, Sequence[int]]) -> Graph:
    """The graph with these sizes of its inputs."""
    model = type(graph.model)()
    model.CopyFrom(graph.model)
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, sizes.get(value.name, ()), strict=False):
            dim.dim_value = size
    return Graph(replace(graph.skeleton, model=model))


def _check_open(context: LintContext, dims: Sequence[OpenDim]) -> Iterator[LintIssue]:
    """Run at the user's sizes, or likely ones; then with another batch size; then with other sizes of the rest."""
    chosen = context.feeding if context.feeding and not context.feeding.is_default else None
    first = _run(context, context.graph, chosen or Feeding(shapes=_likely_sizes(context.graph), seed=context.seed))
    if isinstance(first, SubcutError):
        if chosen and isinstance(first, InputError):
            raise first
        yield unchecked(f"it does not run at the first size: {first.what}")
        return
    base = _fed_sizes(context, first)
    batch_symbols = {d.symbol for d in dims if d.axis == 0 and d.symbol}
    batch = [d for d in dims if d.axis == 0 or d.symbol in batch_symbols]
    for group in (batch, [d for d in dims if d not in batch]):
        sizes, changed = _other_sizes(base, group)
        if not changed:
            continue
        text = _sizes_text(sizes, dict.fromkeys(d.input for d in changed))
        feeding = Feeding(shapes=sizes, seed=context.seed)
        second = _run(context, context.graph, feeding)
        if isinstance(second, InputError):  # the sizes depend on each other in a way that the model does not declare
            yield unchecked(f"{text} cannot be fed: {second.what}")
        elif isinstance(second, SubcutError):
            reason = f"fails with {text}, though these dimensions are declared open"
            doubtful = _may_depend(changed)
            reason += " (unless their sizes must fit each other)" if doubtful else ""
            yield from _locate(context, context.graph, feeding, reason, NOTE if doubtful else WARNING)
        else:
            yield from _check_outputs(context, first, second, changed, sizes)


def _sizes_text(sizes: Mapping[str, Sequence[int]], names: Iterable[str]) -> str:
    """`x=2×3×224×224`."""
    return " ".join(f"{name}={shape_text(tuple(sizes[name]))}" for name in names)


def _likely_sizes(graph: Graph) -> Sizes:
    """Sizes for open dimensions: a batch of one, images of 224×224 with three channels; equal for equal symbols."""
    sizes: Sizes = {}
    of_symbol: dict[str, int] = {}
    for name, value in graph.inputs.items():
        dims = declared_type(value.type)[2] or []
        image = len(dims) == IMAGE_RANK
        likely = [1, CHANNELS, IMAGE_SIZE, IMAGE_SIZE] if image else [1, *[OTHER_SIZE] * len(dims)][: len(dims)]
        sizes[name] = [
            d if isinstance(d, int) else of_symbol.setdefault(d or f"{name} {k}", size)
            for k, (d, size) in enumerate(zip(dims, likely, strict=True))
        ]
    return sizes


def _other_sizes(base: Sizes, group: Sequence[OpenDim]) -> tuple[Sizes, list[OpenDim]]:
    """(sizes, changed dimensions): `base` with these dimensions at another size; equal sizes stay equal."""
    sizes = {name: list(shape) for name, shape in base.items()}
    changed = [d for d in group if d.input in sizes]
    for d in changed:
        sizes[d.input][d.axis] = _other_size(base[d.input][d.axis])
    return sizes, changed


def _other_size(size: int) -> int:
    """A smaller size, so that no table of positions is exceeded, with the same factors of two: 224 → 192, 16 → 8.

    >>> [_other_size(n) for n in (1, 2, 16, 77, 224, 640)]
    [2, 1, 8, 76, 192, 512]
    """
    if size < 2:
        return 2
    step = size & -size
    return size // 2 if step == size else size - step


def _may_depend(changed: Sequence[OpenDim]) -> bool:
    """May the sizes depend on each other (past + new = all)? Assumed if several inputs have symbols of their own."""
    symbols = {d.symbol or f"{d.input} {d.axis}" for d in changed}
    return len(symbols) > 1 and len({d.input for d in changed}) > 1


def _run(context: LintContext, graph: Graph, feeding: Feeding) -> MeasuredTensors | SubcutError:
    """The model's outputs, or the error with which the run fails."""
    outputs = [n for n in context.made if n in set(graph.outputs)]
    try:
        measured = measure(graph, outputs, feeding, context.types if graph is context.graph else None)
    except SubcutError as e:
        return e
    return SubcutError(measured.failures[0].what) if measured.failures else measured


def _locate(context: LintContext, graph: Graph, feeding: Feeding, reason: str, severity: str) -> Iterator[LintIssue]:
    """The issue at the first node that fails at this size."""
    failures = measure(graph, context.made, feeding).failures
    for failure in failures[:1]:
        node = context.at(context.graph.maker[failure.tensor])
        yield LintIssue(severity, node, f"{reason}: {_short(failure.what)}", FIX)
    if not failures:
        yield unchecked(f"{reason}, but each tensor alone can be had")


def _short(message: str) -> str:
    """A runtime's message without its prefix and its source file."""
    text = message.rpartition("Status Message: ")[2].rpartition(") ")[2] or message
    return shorten(clean(text).strip(), 160)


# ---------------------------------------------------------------------------------------------------- outputs


def _check_outputs(
    context: LintContext, first: MeasuredTensors, second: MeasuredTensors, changed: Sequence[OpenDim], sizes: Sizes
) -> Iterator[LintIssue]:
    """Outputs that do not follow along a declared dimension, or whose batch merged into another dimension."""
    symbols = {d.symbol: sizes[d.input][d.axis] for d in changed if d.symbol}
    deviations: dict[str, str] = {}
    for value in context.graph.model.graph.output:
        before, after = first.tensors.get(value.name), second.tensors.get(value.name)
        if before and after and (deviation := _deviation(value, before, after, symbols, changed)):
            deviations[value.name] = deviation
    if deviations:
        runs = [
            measure(context.graph, context.made, Feeding(shapes=shapes), context.types).tensors
            for shapes in (_fed_sizes(context, first), sizes)
        ]
        axes = slice(0, 1) if changed[0].axis == 0 else slice(None)
        for name, deviation in deviations.items():
            node = context.at(_find_cause(context, name, runs, axes))
            yield warning(node, f"output '{name}' {deviation}: a size of the trace is baked in", FIX, name)


def _fed_sizes(context: LintContext, run: MeasuredTensors) -> Sizes:
    """The sizes of the inputs in a run; inputs whose sizes differ between samples are left out."""
    shapes = {n: t.shape for n, t in run.tensors.items() if n in context.graph.inputs and t.shape is not None}
    return {n: [d for d in shape if d is not None] for n, shape in shapes.items() if None not in shape}


def _deviation(
    value: Any,
    before: MeasuredTensor,
    after: MeasuredTensor,
    symbols: Mapping[str, int],
    changed: Sequence[OpenDim],
) -> str:
    """How the shape of an output contradicts its declaration at the second size; empty if it does not."""
    old, new = before.shape, after.shape
    dims = declared_type(value.type)[2]
    if old is None or new is None:
        return ""
    for k, d in enumerate(dims if dims is not None and len(dims) == len(new) else ()):
        if d in symbols and new[k] not in (symbols[d], None):
            return f"has {new[k]} along '{d}', which is {symbols[d]}"
    batch = any(d.axis == 0 for d in changed) and len(old) > 1 and len(old) == len(new)
    if batch and old[0] == new[0] == 1 and any(a and b == 2 * a for a, b in zip(old[1:], new[1:], strict=True)):
        return f"is {shape_text(new)} for a batch of 2 (and {shape_text(old)} for one)"
    return ""


def _find_cause(context: LintContext, output: str, runs: Sequence[Mapping[str, MeasuredTensor]], axes: slice) -> int:
    """The first node above the output with a constant size, whose input follows along `axes` but not its output."""
    graph = context.graph
    for i in graph.in_order(graph.ancestors([graph.maker[output]])):
        node = context.scopes[0].nodes[i]
        if node.op in SIZE_OPS and node.constant(1) is not None:
            read, made = (_shapes(name, runs, axes) for name in (node.input(0), node.output(0)))
            if read[0] != read[1] and made[0] == made[1]:
                return i
    return graph.maker[output]


def _shapes(name: str, runs: Sequence[Mapping[str, MeasuredTensor]], axes: slice) -> list[Any]:
    """The tensor's shape along `axes` in each run."""
    return [(run[name].shape or ())[axes] if name in run else None for run in runs]
