"""One file per criterion: `rule(words) -> Rule`; `words` is what stands behind `NAME:` on the command line.

A rule is asked only about two values of equal shape and element type; what differs there, or is missing, fails before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from subgraph.measure import Pair
from subgraph.verdict import Signature, Status

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


class Noise(Protocol):
    """What rounding does to one output of one region, for one sample. Questions may cost reference runs: ask late."""

    def draws(self, claim: str, count: int) -> list[Array]:
        """The output after `count` independent perturbations at a claimed precision; the shape of the reference."""

    def rounded(self, claim: str) -> Array:
        """The output where the reference is rounded to the claimed type after every node, in the reference's dtype."""

    def maker(self) -> str:
        """The op type of the node that makes the output."""

    def discrete(self) -> bool:
        """Does the output lie, within the region, behind a node that makes indices, booleans or a choice by them?"""

    def ranked(self, claim: str) -> tuple[Array, Array, int] | None:
        """For indices from TopK, ArgMax or ArgMin: the tensor that was compared, its noise per element (largest over
        the draws; of equal shape) and the axis. None for other outputs."""


@dataclass(frozen=True)
class Subject:
    """What a rule may know about an output beside its two values.

    Attributes:
        claim: the precision that the candidate says it computes in: fp32, fp16, bf16 or int8.
        noise: None where no reference can be asked (recordings of an unknown model, say).
    """

    name: str
    claim: str = "fp32"
    noise: Noise | None = None


@dataclass(frozen=True)
class Ruling:
    """A rule's answer. `label` and `why` as in `Judgement`; `noise`: the N it compared with, if any."""

    status: Status
    label: str = ""
    why: str = ""
    signature: Signature | None = None
    noise: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)


Rule = Callable[[Pair, Subject], Ruling]
