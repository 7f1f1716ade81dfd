"""Sizes of the trace baked into the graph: a second input size is tried on the reference.

Insight: what an exporter has baked in looks like any other constant. But a model that declares a dimension open must
run with another size of it, and its outputs must follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from subgraph.errors import InputError, SubcutError
from subgraph.graph.graph import Graph
from subgraph.graph.types import declared_type
from subgraph.inspection.lint import NOTE, WARNING, LintContext, LintIssue, unchecked, warning
from subgraph.inspection.ranges import Measured, MeasuredTensors, measure
from subgraph.runtime.inputs import Feeding
from subgraph.storage.tensors import shape_text
from subgraph.text import clean, shorten

IMAGE, OTHER = 224, 16  # what is tried first for an open dimension of an image, and of anything else
CHANNELS = 3
RANK_OF_IMAGES = 4
FIX = "export with dynamic axes, and compute sizes from the tensor (x.shape) rather than from numbers of the trace"
# Operators whose constant operand can hold a size of the trace.
SHAPED = frozenset("Reshape Expand Slice Resize Upsample Tile Pad".split())
Sizes = dict[str, list[int]]


@dataclass(frozen=True)
class OpenDim:
    """An open dimension: of which input, which axis, under what name."""

    input: str
    axis: int
    symbol: str


def check(asked: LintContext) -> Iterator[LintIssue]:
    """Runs a model with open dimensions, or one for which --shape gives another size, at two sizes."""
    try:
        shapes = {name: declared_type(v.type) for name, v in asked.graph.inputs.items()}
    except InputError as e:
        yield unchecked(e.what)
        return
    if any(form != "tensor" or dims is None for form, _, dims in shapes.values()):
        yield unchecked("an input is no tensor of known rank")
        return
    if asked.second:
        yield from _forced(asked)
        return
    open_axes = [
        OpenDim(name, k, d or "")
        for name, (_, _, dims) in shapes.items()
        for k, d in enumerate(dims or ())
        if not isinstance(d, int)
    ]
    if open_axes:
        yield from _varied(asked, open_axes)


def _forced(asked: LintContext) -> Iterator[LintIssue]:
    """A model of fixed sizes, opened, at the sizes that the user gives."""
    opened = _opened(asked.graph, asked.second)
    feeding = Feeding(shapes=asked.second, seed=asked.seed)
    failed = _run(asked, opened, feeding)
    if isinstance(failed, SubcutError):
        said = _said(asked.second, asked.second)
        yield from _located(asked, opened, feeding, f"fails with {said}, another size than its own", WARNING)


def _opened(graph: Graph, sizes: Mapping[str, Sequence[int]]) -> Graph:
    """The same graph whose inputs have these sizes."""
    model = type(graph.model)()
    model.CopyFrom(graph.model)
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, sizes.get(value.name, ()), strict=False):
            dim.dim_value = size
    return Graph(replace(graph.skeleton, model=model))


def _varied(asked: LintContext, axes: Sequence[OpenDim]) -> Iterator[LintIssue]:
    """First the sizes that the user gives, or likely ones; then another batch; then other sizes of the rest."""
    given = asked.fed if asked.fed and not asked.fed.is_default else None
    feeding = given or Feeding(shapes=_likely(asked.graph), seed=asked.seed)
    first = _run(asked, asked.graph, feeding)
    if isinstance(first, SubcutError):
        if given and isinstance(first, InputError):
            raise first
        yield unchecked(f"it does not run at the first size: {first.what}")
        return
    base = _sizes_of(asked, first)
    names = {a.symbol for a in axes if a.axis == 0 and a.symbol}
    batch = [a for a in axes if a.axis == 0 or a.symbol in names]
    for group in (batch, [a for a in axes if a not in batch]):
        sizes, moved = _other(base, group)
        if not moved:
            continue
        said = _said(sizes, dict.fromkeys(a.input for a in moved))
        second = _run(asked, asked.graph, Feeding(shapes=sizes, seed=asked.seed))
        if isinstance(second, InputError):  # sizes that hang together in a way that nobody has said
            yield unchecked(f"{said} cannot be fed: {second.what}")
        elif isinstance(second, SubcutError):
            reason = f"fails with {said}, though these dimensions are declared open"
            doubtful = _hang_together(moved)
            reason += " (unless their sizes must fit each other)" if doubtful else ""
            feeding = Feeding(shapes=sizes, seed=asked.seed)
            yield from _located(asked, asked.graph, feeding, reason, NOTE if doubtful else WARNING)
        else:
            yield from _not_followed(asked, first, second, moved, sizes)


def _said(sizes: Mapping[str, Sequence[int]], names: Iterable[str]) -> str:
    """`x=2×3×224×224`."""
    return " ".join(f"{name}={shape_text(tuple(sizes[name]))}" for name in names)


def _likely(graph: Graph) -> Sizes:
    """Sizes for open dimensions: a batch of one, images of 224×224 with three channels."""
    found: Sizes = {}
    known: dict[str, int] = {}
    for name, value in graph.inputs.items():
        dims = declared_type(value.type)[2] or []
        image = len(dims) == RANK_OF_IMAGES
        sizes = [IMAGE if image and k > 1 else CHANNELS if image and k == 1 else OTHER for k in range(len(dims))]
        sizes[:1] = [1] * bool(dims)
        found[name] = [d if isinstance(d, int) else known.setdefault(d or f"{name} {k}", s)
                       for k, (d, s) in enumerate(zip(dims, sizes, strict=True))]  # fmt: skip
    return found


def _other(base: Sizes, group: Sequence[OpenDim]) -> tuple[Sizes, list[OpenDim]]:
    """The sizes with these axes, and those of their names, at another size; equal sizes stay equal."""
    sizes = {name: list(shape) for name, shape in base.items()}
    moved = [a for a in group if a.input in sizes]
    for a in moved:
        sizes[a.input][a.axis] = _another(base[a.input][a.axis])
    return sizes, moved


def _another(size: int) -> int:
    """Smaller, so that no table of positions ends; divided by the same power of two, or half: 224 → 192, 16 → 8.

    >>> [_another(n) for n in (1, 2, 16, 77, 224, 640)]
    [2, 1, 8, 76, 192, 512]
    """
    if size < 2:
        return 2
    step = size & -size
    return size // 2 if step == size else size - step


def _hang_together(moved: Sequence[OpenDim]) -> bool:
    """May there be a rule between the sizes (past + new = all)? So where several inputs have names of their own."""
    names = {a.symbol or f"{a.input} {a.axis}" for a in moved}
    return len(names) > 1 and len({a.input for a in moved}) > 1


def _run(asked: LintContext, graph: Graph, feeding: Feeding) -> MeasuredTensors | SubcutError:
    """The outputs, or why there are none."""
    outputs = [n for n in asked.made if n in set(graph.outputs)]
    try:
        run = measure(graph, outputs, feeding, asked.size_of if graph is asked.graph else lambda name: None)
    except SubcutError as e:
        return e
    return SubcutError(run.failures[0].what) if run.failures else run


def _located(asked: LintContext, graph: Graph, feeding: Feeding, reason: str, severity: str) -> Iterator[LintIssue]:
    """The first node that fails at this size."""
    run = measure(graph, asked.made, feeding, lambda name: None)
    for failure in run.failures[:1]:
        place = asked.at(asked.graph.maker[failure.tensor])
        yield LintIssue(severity, place, f"{reason}: {_short(failure.what)}", FIX)
    if not run.failures:
        yield unchecked(f"{reason}, but each tensor alone can be had")


def _short(said: str) -> str:
    """A runtime's message without its prefix and its source file."""
    text = said.rpartition("Status Message: ")[2].rpartition(") ")[2] or said
    return shorten(clean(text).strip(), 160)


# ---------------------------------------------------------------------------------------------------- outputs


def _not_followed(
    asked: LintContext, first: MeasuredTensors, second: MeasuredTensors, moved: Sequence[OpenDim], sizes: Sizes
) -> Iterator[LintIssue]:
    """Outputs that stay as they were along an axis that is declared to follow, or whose batch went elsewhere."""
    symbols = {a.symbol: sizes[a.input][a.axis] for a in moved if a.symbol}
    lost: dict[str, str] = {}
    for value in asked.graph.model.graph.output:
        before, after = first.measured.get(value.name), second.measured.get(value.name)
        if before and after and (why := _strays(value, before, after, symbols, moved)):
            lost[value.name] = why
    if lost:
        seen = [_all_shapes(asked, Feeding(shapes=s)) for s in (_sizes_of(asked, first), sizes)]
        for name, why in lost.items():
            maker = asked.at(_where(asked, name, seen, slice(0, 1) if moved[0].axis == 0 else slice(None)))
            yield warning(maker, f"output '{name}' {why}: a size of the trace is baked in", FIX, name)


def _sizes_of(asked: LintContext, run: MeasuredTensors) -> Sizes:
    """The sizes of the inputs that were fed; those that differ between samples are left out."""
    fed = {n: m.shape for n, m in run.measured.items() if n in asked.graph.inputs}
    return {
        n: [d for d in shape if d is not None] for n, shape in fed.items() if shape is not None and None not in shape
    }


def _strays(value: Any, before: Measured, after: Measured, symbols: Mapping[str, int], moved: Sequence[OpenDim]) -> str:
    old, new = before.shape, after.shape
    dims = declared_type(value.type)[2]
    if old is None or new is None:
        return ""
    for k, d in enumerate(dims if dims is not None and len(dims) == len(new) else ()):
        if d in symbols and new[k] not in (symbols[d], None):
            return f"has {new[k]} along '{d}', which is {symbols[d]}"
    batch = any(a.axis == 0 for a in moved) and len(old) > 1 and len(old) == len(new)
    if batch and old[0] == new[0] == 1 and any(a and b == 2 * a for a, b in zip(old[1:], new[1:], strict=True)):
        return f"is {shape_text(new)} for a batch of 2 (and {shape_text(old)} for one)"
    return ""


def _all_shapes(asked: LintContext, feeding: Feeding) -> Mapping[str, Measured]:
    return measure(asked.graph, asked.made, feeding, asked.size_of).measured


def _where(asked: LintContext, output: str, seen: Sequence[Mapping[str, Measured]], part: slice) -> int:
    """The first node above the output that has a constant size, and whose input follows but not its output."""
    graph = asked.graph
    for i in graph.in_order(graph.ancestors([graph.maker[output]])):
        place = asked.scopes[0].places[i]
        if place.op in SHAPED and place.constant(1) is not None:
            came, went = (_shapes(name, seen, part) for name in (place.input(0), str(place.node.output[0])))
            if came[0] != came[1] and went[0] == went[1]:
                return i
    return graph.maker[output]


def _shapes(name: str, seen: Sequence[Mapping[str, Measured]], part: slice) -> list[Any]:
    """A part of the tensor's shape in each of two runs."""
    return [(run[name].shape or ())[part] if name in run else None for run in seen]
