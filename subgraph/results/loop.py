"""The result of `subcut bisect --loop`, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from subgraph.documents import File, Number, Word, keyed, part
from subgraph.results.bisect import BisectDocument
from subgraph.types import StringMap, frozen, frozen_keywords


class LoopOutcome(StrEnum):
    """The outcome of a loop."""

    AGREE = "agree"
    STEP = "step"  # a step goes wrong, fed with the reference's state
    TOGETHER = "together"  # only several steps in a row, each of which is right
    ACCUMULATES = "accumulates"  # so do errors that grow from step to step
    FLAKY = "flaky"  # the same steps are wrong once, and right when they are asked again
    UNRESOLVED = "unresolved"


EXIT_CODES = {LoopOutcome.AGREE: 0, LoopOutcome.UNRESOLVED: 5}


@frozen
class StepSeen:
    """One step of the candidate, with the reference's tokens and states of its own.

    Attributes:
        error: largest relative error of its outputs; None where it gave none. status: by the
            criterion, without noise.
    """

    step: int
    error: Number | None
    status: Word


@frozen_keywords
class LoopSetup:
    """The loop that was run.

    Attributes:
        steps: how many the reference ran. prompt: tokens per row that the user gave.
        states: input → output.
    """

    model: File
    candidate: str
    reference: str
    steps: int
    prompt: int
    states: StringMap


@frozen_keywords
class LoopFinding:
    """The outcome of a loop.

    Attributes:
        first_wrong: the step to look at, from 0; since: the first step that it takes.
        bisection: the document of the search in the step; None where there was none.
    """

    outcome: LoopOutcome
    first_wrong: int | None = None
    since: int | None = None
    why: str = ""
    seen: Sequence[StepSeen] = ()
    bisection: BisectDocument | None = None


@frozen_keywords
class LoopDocument:
    """Everything about one loop. `walks`: runs of the candidate over a range of steps."""

    schema: Word = keyed("schema", default="subcut.loop/1")
    exit_code: int
    setup: LoopSetup = part()
    found: LoopFinding = part()
    walks: int = 0
    seconds: float = 0.0
    report: File | None = None

    def settle(self, **found: Any) -> LoopDocument:
        """Return the document with other values for fields of the finding."""
        return replace(self, found=replace(self.found, **found))
