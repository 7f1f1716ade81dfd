"""Sizes of the trace baked into the graph: a second input size is tried on the reference.

A baked-in size looks like any other constant. But a model that declares a dimension open must run
with another size of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from subgraph.errors import InputError, SubcutError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.value_types import read_type
from subgraph.inspection.lint import NOTE, WARNING, Issues, LintContext, LintIssue, make_unchecked
from subgraph.inspection.ranges import MeasuredTensors, measure
from subgraph.runtime.inputs import Feeding
from subgraph.storage.tensors import format_shape
from subgraph.text import clean, shorten
from subgraph.types import Shapes, frozen

# The first sizes to try for an open dimension of an image, and of other inputs.
IMAGE_SIZE = 224
OTHER_SIZE = 16
CHANNELS = 3
IMAGE_RANK = 4
FIX = (
    "export with dynamic axes, and compute sizes from the tensor (x.shape) rather than from numbers"
    " of the trace"
)
Sizes = dict[str, list[int]]


@frozen
class OpenDim:
    """An open dimension of an input; `symbol` may be empty."""

    input: str
    axis: int
    symbol: str


def check(context: LintContext) -> Issues:
    """Run a model at a second size, if it has open dimensions or --shape contradicts its sizes."""
    try:
        shapes = {name: read_type(v.type) for name, v in context.graph.inputs.items()}
    except InputError as e:
        yield make_unchecked(e.what)
        return
    if any(form != "tensor" or dims is None for form, _, dims in shapes.values()):
        yield make_unchecked("an input is not a tensor of known rank")
    elif sizes := context.second_sizes:
        reason = "fails with {}, another size than its own"
        model = protobuf.clone(context.graph.model)
        for value in model.graph.input:
            dims = value.type.tensor_type.shape.dim
            for dim, size in zip(dims, sizes.get(value.name, ()), strict=False):
                dim.dim_value = size
        graph = Graph(replace(context.graph.skeleton, model=model))
        yield from _try(context, graph, sizes, reason, WARNING)
    else:
        open_dims = []
        for name, (_, _, dims) in shapes.items():
            sizes_of = enumerate(dims or ())
            open_dims += [OpenDim(name, k, d or "") for k, d in sizes_of if not isinstance(d, int)]
        if open_dims:
            yield from _check_open(context, open_dims)


def _check_open(context: LintContext, dims: Sequence[OpenDim]) -> Issues:
    """Run at the user's sizes, or likely ones; then with another size of each open dimension."""
    chosen = context.feeding if context.feeding and not context.feeding.is_default else None
    likely = Feeding(shapes=_guess_sizes(context.graph), seed=context.seed)
    first = _run(context, context.graph, chosen or likely)
    if isinstance(first, SubcutError):
        if chosen and isinstance(first, InputError):
            raise first
        yield make_unchecked(f"it does not run at the first size: {first.what}")
        return
    fed = {}  # without inputs whose sizes differ between samples
    for name, tensor in first.tensors.items():
        fixed_sizes = [size for size in tensor.shape or () if size is not None]
        if name in context.graph.inputs and tensor.shape == tuple(fixed_sizes):
            fed[name] = fixed_sizes
    changed = [d for d in dims if d.input in fed]
    sizes = {d.input: fed[d.input] for d in changed}
    for d in changed:
        sizes[d.input][d.axis] = _choose_other_size(sizes[d.input][d.axis])
    reason = "fails with {}, though these dimensions are declared open"
    severity = WARNING
    symbols = {d.symbol or f"{d.input} {d.axis}" for d in changed}
    # Sizes of several inputs with different symbols can depend on each other.
    if len(symbols) > 1 and len({d.input for d in changed}) > 1:
        reason += " (unless their sizes must fit each other)"
        severity = NOTE
    yield from _try(context, context.graph, sizes, reason, severity)


def _try(
    context: LintContext,
    graph: Graph,
    sizes: Shapes,
    reason: str,
    severity: str,
) -> Issues:
    """Run the model at these sizes; the issue at the first node that fails."""
    feeding = Feeding(shapes=sizes, seed=context.seed)
    failed = _run(context, graph, feeding)
    text = " ".join(f"{name}={format_shape(tuple(shape))}" for name, shape in sizes.items())
    # The sizes depend on each other in a way that the model does not declare.
    if isinstance(failed, InputError):
        yield make_unchecked(f"{text} cannot be fed: {failed.what}")
    elif isinstance(failed, SubcutError):
        reason = reason.format(text)
        if failures := measure(graph, context.made, feeding).failures:
            node = context.get_node(context.graph.maker[failures[0].tensor])
            yield LintIssue(severity, node, f"{reason}: {_shorten_message(failures[0].what)}", FIX)
        else:
            yield make_unchecked(f"{reason}, but each tensor alone can be had")


def _guess_sizes(graph: Graph) -> Sizes:
    """Return sizes for open dimensions: a batch of one, images of 224×224 with three channels."""
    sizes = {}
    of_symbol: dict[str, int] = {}
    for name, value in graph.inputs.items():
        dims = read_type(value.type).dims or []
        likely = [1, *[OTHER_SIZE] * len(dims)][: len(dims)]
        if len(dims) == IMAGE_RANK:
            likely = [1, CHANNELS, IMAGE_SIZE, IMAGE_SIZE]
        sizes[name] = [
            d if isinstance(d, int) else of_symbol.setdefault(d or f"{name} {k}", size)
            for k, (d, size) in enumerate(zip(dims, likely, strict=True))
        ]
    return sizes


def _choose_other_size(size: int) -> int:
    """Return a smaller size, which exceeds no table of positions, with the same factors of two.

    >>> [_choose_other_size(n) for n in (1, 2, 16, 77, 224, 640)]
    [2, 1, 8, 76, 192, 512]
    """
    if size < 2:
        return 2
    step = size & -size
    return size // 2 if step == size else size - step


def _run(context: LintContext, graph: Graph, feeding: Feeding) -> MeasuredTensors | SubcutError:
    """Return the model's outputs, or the error with which the run fails."""
    outputs = [n for n in context.made if n in set(graph.outputs)]
    types = context.types if graph is context.graph else None
    try:
        measured = measure(graph, outputs, feeding, types)
    except SubcutError as e:
        return e
    if measured.failures:
        return SubcutError(measured.failures[0].what, code="reference.run-failed")
    return measured


def _shorten_message(message: str) -> str:
    """Return a runtime's message without its prefix and its source file."""
    text = message.rpartition("Status Message: ")[2].rpartition(") ")[2] or message
    return shorten(clean(text).strip(), 160)
