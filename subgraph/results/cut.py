"""The results of `cut`, for `--json`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from subgraph.results.answer import CommandResult
from subgraph.types import Fields, frozen, frozen_keywords


@frozen
class BoundaryName:
    """A tensor at the boundary of a region; `producer` is None for an input of the model."""

    name: str
    producer: str | None


@frozen
class PlannedRegion:
    """The region of a cut: labels of nodes."""

    start: Sequence[str]
    end: Sequence[str]
    nodes: Sequence[str]
    pulled: Sequence[str]
    random: Sequence[str]


@frozen_keywords
class CutPlan(CommandResult):
    """The result of `cut --dry-run`: what would be written."""

    schema: Literal["subcut.cut/1"] = "subcut.cut/1"
    dry_run: Literal[True] = True
    path: str
    region: PlannedRegion
    inputs: Sequence[BoundaryName]
    shapes: Sequence[BoundaryName]
    outputs: Sequence[BoundaryName]


@frozen_keywords
class CutResult:
    """The cuts: each with its path and the fields of its manifest."""

    schema: Literal["subcut.cut/1"] = "subcut.cut/1"
    exit_code: int
    results: Sequence[Fields]
