"""What `subcut bisect --loop` found, as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from subgraph.documents import Number, keyed
from subgraph.results.bisect import BisectDocument


class LoopOutcome(StrEnum):
    """What is wrong with a loop."""

    AGREE = "agree"
    STEP = "step"  # a step goes wrong, fed with the reference's state
    TOGETHER = "together"  # only several steps in a row, each of which is right
    ACCUMULATES = "accumulates"  # so do errors that grow from step to step
    FLAKY = "flaky"  # the same steps are wrong once, and right when they are asked again
    UNRESOLVED = "unresolved"


EXIT_CODES = {LoopOutcome.AGREE: 0, LoopOutcome.UNRESOLVED: 5}


@dataclass(frozen=True)
class StepSeen:
    """One step of the candidate, with the reference's tokens and states of its own.

    Attributes:
        error: largest relative error of its outputs; None where it gave none. status: by the criterion, without noise.
        tokens: of each row, the winner of the reference and of the candidate; empty where they are the same.
        margin: how far apart the two are in the reference, relative to the largest logit; 0 where they are the same.
    """

    step: int
    error: Number | None
    status: str
    tokens: Sequence[tuple[int, int]] = ()
    margin: float = 0.0


@dataclass(frozen=True)
class StateError:
    """How far a state of the candidate is off before the step that goes wrong; `node` makes it."""

    state: str
    node: str
    error: Number


@dataclass(frozen=True)
class Growth:
    """Errors over the steps up to the wrong one: from which to which, and what a step does on average over all.

    `how`: "plus", it adds `per_step`; or "times", it multiplies by it; what fits better.
    `rounding`: the error that the reference has in the last of them when its states are a rounding off in each step.
    """

    first: float
    last: float
    how: str
    per_step: float
    rounding: float


@dataclass(frozen=True, kw_only=True)
class LoopDocument:
    """The whole.

    Attributes:
        steps: how many the reference ran. prompt: tokens per row that the user gave.
        states: input → output. first_wrong: the step to look at, from 0; since: the first step that it takes.
        flips: steps in which another token wins although the outputs agree.
        growth, drift: where errors accumulate. walks: runs of the candidate over a range of steps.
        bisection: the document of the search in the step; None where there was none.
    """

    schema: str = keyed("schema", default="subcut.loop/1")
    exit_code: int
    outcome: LoopOutcome
    model: str
    candidate: str
    reference: str
    steps: int
    prompt: int
    states: Mapping[str, str]
    first_wrong: int | None = None
    since: int | None = None
    why: str = ""
    seen: Sequence[StepSeen] = ()
    flips: Sequence[StepSeen] = ()
    growth: Growth | None = None
    drift: Sequence[StateError] = ()
    walks: int = 0
    seconds: float = 0.0
    report: str | None = None
    bisection: BisectDocument | None = None
