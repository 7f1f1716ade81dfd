"""What a trial said: plain data, never an exception."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """Does the candidate agree? What we are not sure of is unresolved."""

    AGREE = "agree"
    FAIL = "fail"
    UNRESOLVED = "unresolved"


class Signature(StrEnum):
    """How it fails."""

    MISMATCH = "mismatch"
    NAN = "nan"
    SHAPE = "shape"
    MISSING = "missing"
    REFUSED = "refused"  # while converting or building
    CRASH = "crash"
    TIMEOUT = "timeout"


@dataclass(frozen=True)
class Worst:
    """The element that is furthest off: its index and both values."""

    index: tuple[int, ...]
    reference: float | int | bool | str
    candidate: float | int | bool | str


@dataclass(frozen=True)
class Judgement:
    """One output of one sample, judged by one criterion.

    Attributes:
        label: what kind of agreement or failure; the default criterion's are agrees, range, approximate kernel,
            precision, fail.
        why: one line for people; names numbers and their limit.
        errors: value by metric; NaN where it is not defined.
        noise: what rounding alone would do, where that was asked for: the N of the default criterion.
    """

    name: str
    status: Status
    signature: Signature | None = None
    label: str = ""
    why: str = ""
    errors: Mapping[str, float] = field(default_factory=dict)
    worst: Worst | None = None
    noise: float | None = None
    sample: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data; JSON has neither NaN nor infinities: they travel as texts."""
        worst = self.worst and {
            "index": list(self.worst.index),
            "reference": _number(self.worst.reference),
            "candidate": _number(self.worst.candidate),
        }
        return {
            "name": self.name,
            "status": self.status.value,
            "signature": self.signature and self.signature.value,
            "label": self.label,
            "why": self.why,
            "errors": {k: _number(v) for k, v in self.errors.items()},
            "worst": worst,
            "noise": None if self.noise is None else _number(self.noise),
            "sample": self.sample,
        }


def _number(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class Verdict:
    """What one trial said about one region, over all samples.

    Attributes:
        outputs: a judgement per output and sample; empty where the candidate did not run.
        process: of a candidate that did not run: `signal`, `exit_code`, `stderr` (its last lines), as far as known.
        build, run: the candidate's own seconds; `run` over all samples.
        stored: it was found in the store, nothing was run.
        pooled: it ran beside other regions in one model; that it agrees there is no proof.
    """

    status: Status
    signature: Signature | None = None
    why: str = ""
    outputs: tuple[Judgement, ...] = ()
    process: Mapping[str, Any] = field(default_factory=dict)
    build: float = 0.0
    run: float = 0.0
    stored: bool = False
    pooled: bool = False

    @property
    def label(self) -> str:
        """The most remarkable label among the outputs."""
        return self.worst.label if self.worst else (self.signature or self.status).value

    @property
    def worst(self) -> Judgement | None:
        """The output that decides: among the failing ones, else the agreeing, that with the largest relative error."""
        return max(self.outputs, key=gravity, default=None)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "status": self.status.value,
            "signature": self.signature and self.signature.value,
            "label": self.label,
            "why": self.why,
            "outputs": [j.to_json() for j in self.outputs],
            "process": dict(self.process),
            "build_seconds": self.build,
            "run_seconds": self.run,
            "stored": self.stored,
            "pooled": self.pooled,
        }


# An output where nothing could be compared decides only where no other was compared.
_ORDER = {Status.UNRESOLVED: 0, Status.AGREE: 1, Status.FAIL: 2}


def gravity(judgement: Judgement) -> tuple[int, bool, float]:
    """Key for `max`: failing before agreeing before unresolved, remarkable labels first, then by relative error."""
    error = judgement.errors.get("max_rel", math.nan)
    return _ORDER[judgement.status], judgement.label not in ("", "agrees"), -1.0 if math.isnan(error) else error


def joined(judgements: Sequence[Judgement]) -> tuple[Status, Signature | None, str]:
    """Status, signature and reason of all outputs together.

    One failing output fails the whole. Outputs where nothing could be compared make it unresolved only where no other
    output was compared.
    """
    failing = [j for j in judgements if j.status is Status.FAIL]
    if failing:
        first = max(failing, key=gravity)
        # NaN, a wrong shape or a missing output says more than a plain mismatch beside it
        telling = next((j for j in failing if j.signature is not Signature.MISMATCH), first)
        return Status.FAIL, telling.signature, telling.why
    if any(j.status is Status.AGREE for j in judgements):
        return Status.AGREE, None, max(judgements, key=gravity).why
    return Status.UNRESOLVED, None, judgements[0].why if judgements else "nothing was compared"
