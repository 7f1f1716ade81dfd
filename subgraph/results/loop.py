"""The result of `subcut bisect --loop`, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from subgraph.documents import File, Number, Word, json_key, part
from subgraph.results.bisect import BisectDocument
from subgraph.types import StringMap, frozen, frozen_keywords


class LoopOutcome(StrEnum):
    """The outcome of a loop."""

    AGREE = "agree"
    STEP = "step"  # a step is wrong on the reference's state
    TOGETHER = "together"  # only several steps in a row, each of which is right
    ACCUMULATES = "accumulates"  # so do errors that grow from step to step
    FLAKY = "flaky"  # the same steps are wrong once and right in a second run
    UNRESOLVED = "unresolved"


EXIT_CODES = {LoopOutcome.AGREE: 0, LoopOutcome.UNRESOLVED: 5}


@frozen
class StepSeen:
    """One step of the candidate, with the reference's tokens and the candidate's states.

    Attributes:
        error: The largest relative error of its outputs; None for a step without outputs.
        status: The status by the criterion, without noise.
    """

    step: int
    error: Number | None
    status: Word


@frozen_keywords
class LoopSetup:
    """The loop that was run.

    Attributes:
        steps: The number of steps that the reference ran.
        prompt: The number of tokens per row in the user's input.
        states: The output that becomes the state, by input.
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
        first_wrong: The wrong step, from 0; None if no step is.
        since: The first step that the fault needs.
        bisection: The document of the search in the step; None if no search was made.
    """

    outcome: LoopOutcome
    first_wrong: int | None = None
    since: int | None = None
    why: str = ""
    seen: Sequence[StepSeen] = ()
    bisection: BisectDocument | None = None


@frozen_keywords
class LoopDocument:
    """Everything about one loop; `walks` is the number of runs over a range of steps."""

    schema: Word = json_key("schema", default="subcut.loop/1")
    exit_code: int
    setup: LoopSetup = part()
    found: LoopFinding = part()
    walks: int = 0
    seconds: float = 0.0
    report: File | None = None

    def settle(self, **found: Any) -> LoopDocument:
        """Return the document with other values for fields of the finding."""
        return replace(self, found=replace(self.found, **found))
