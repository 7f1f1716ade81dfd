"""An input that is normalised twice: in the graph and by --mean or --scale, or twice in the graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from subgraph.inspection.lint import LintContext, LintIssue, warning
from subgraph.inspection.lint._places import LintNode, Scope
from subgraph.runtime.inputs import ImageOptions

if TYPE_CHECKING:
    pass

CARRIERS = ("Cast", "Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze")  # hand the pixels on as they are
CHANNELS = 4  # values of a mean or a standard deviation at most
FROM_PIXELS = 1 / 64  # a factor below that brings 0…255 to about 1, and what is about 1 to almost nothing
NO_OFFSET = 1e-6  # what is added to keep from dividing by zero, say


@dataclass(frozen=True)
class Stage:
    """One step of x → a·x + b: what it multiplies by, at most, and whether it shifts."""

    place: LintNode
    factor: float = 1.0
    shifts: bool = False


def check(asked: LintContext) -> Iterator[LintIssue]:
    """Each model input whose first nodes subtract a mean or divide by 64 and more twice, options counted in."""
    for name in asked.graph.inputs:
        stages = list(_stages(asked.scopes[0], name))
        shifts = [s for s in stages if s.shifts]
        scales = [s for s in stages if abs(s.factor) < FROM_PIXELS]
        for kind, found in (("subtracted", shifts), ("divided by 64 or more", scales)):
            if len(found) > 1:
                reason = f"input '{name}' is {kind} by constants twice, here and at {found[0].place.label}"
                yield warning(found[1].place, reason, "remove one of the two normalisations", name)
                break
        else:
            yield from _with_options(asked.picture, name, shifts, scales)


def _with_options(picture: ImageOptions, name: str, shifts: list[Stage], scales: list[Stage]) -> Iterator[LintIssue]:
    fix = "leave the option out: the model takes plain pixels"
    if shifts and any(picture.mean):
        yield warning(shifts[0].place, f"subtracts a mean from input '{name}', and --mean does so before", fix, name)
    elif scales and max(map(abs, picture.scale)) < FROM_PIXELS:
        yield warning(scales[0].place, f"scales input '{name}' down, and --scale does so before", fix, name)


def _stages(scope: Scope, tensor: str) -> Iterator[Stage]:
    """The constant steps behind a model input, until something else comes or the way forks."""
    while len(readers := scope.readers.get(tensor, [])) == 1:
        place = readers[0]
        if place.is_op("Sub", "Add", "Mul", "Div") and (stage := _stage(place, tensor)):
            yield stage
        elif not place.is_op(*CARRIERS) or place.input(0) != tensor:
            return
        tensor = str(place.node.output[0])


def _stage(place: LintNode, tensor: str) -> Stage | None:
    """A step by a constant per channel or for all; None for any other."""
    import numpy as np

    left = place.input(0) == tensor
    other = place.constant(1 if left else 0)
    if other is None or not 0 < other.size <= CHANNELS or (place.op == "Div" and not left):
        return None
    size = np.abs(other.astype(np.float64))
    if place.op in ("Add", "Sub"):
        return Stage(place, shifts=bool(size.max() > NO_OFFSET))
    if place.op == "Div":
        return Stage(place, float(1 / size.min())) if size.min() > 0 else None
    return Stage(place, float(size.max()))
