"""The result of `subcut bisect --loop`, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from subgraph.documents import File, Number, Word, keyed
from subgraph.results.bisect import BisectDocument
from subgraph.types import StringMap, frozen


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


@dataclass(frozen=True, kw_only=True)
class LoopDocument:
    """The whole.

    Attributes:
        steps: how many the reference ran. prompt: tokens per row that the user gave.
        states: input → output. first_wrong: the step to look at, from 0; since: the first step that
            it takes.
        walks: runs of the candidate over a range of steps.
        bisection: the document of the search in the step; None where there was none.
    """

    schema: Word = keyed("schema", default="subcut.loop/1")
    exit_code: int
    outcome: LoopOutcome
    model: File
    candidate: str
    reference: str
    steps: int
    prompt: int
    states: StringMap
    first_wrong: int | None = None
    since: int | None = None
    why: str = ""
    seen: Sequence[StepSeen] = ()
    walks: int = 0
    seconds: float = 0.0
    report: File | None = None
    bisection: BisectDocument | None = None
