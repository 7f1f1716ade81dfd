"""One file per criterion: `rule(words) -> Rule`; `words` is what stands behind `NAME:` on the command line.

`rule("")` is its default. A rule is asked only about two values of equal shape and element type; what differs there,
or is missing, fails before. `settled` answers what needs no rule of one's own, `limited` what limits of metrics decide;
`agree` and `fail` make an answer.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from subgraph.comparison.pair import Pair
from subgraph.errors import UsageError
from subgraph.text import clean, count
from subgraph.verdict import Signature, Status

if TYPE_CHECKING:
    from subgraph.types import Array


class Noise(Protocol):
    """What rounding does to one output of one region, for one sample. Questions may cost reference runs: ask late."""

    def draws(self, claim: str, count: int) -> list[Array]:
        """The output after `count` independent perturbations at a claimed precision; of another shape only where the
        shape hangs on values. This and the other questions raise ModelError where they cannot be answered."""

    def untied(self, claim: str, count: int, times: float) -> list[Array]:
        """The same where equal sums come apart, and all that is made is off by so many times as much as rounding puts
        it off; none where hardly any sums are equal."""

    def rounded(self, claim: str) -> Array:
        """The output where the reference is rounded to the claimed type after every node, in the reference's dtype."""

    def maker(self) -> str:
        """The op type of the node that makes the output."""

    def coarsest(self) -> str:
        """The float type that rounds most among the region's tensors: float64, float32, float16 or bfloat16."""

    def discrete(self) -> bool:
        """Does the output lie, within the region, behind a node that makes indices, booleans or a choice by them?"""

    def stepped(self) -> bool:
        """Does it lie behind a node that rounds to steps: QuantizeLinear, Round, a Cast to integers?"""

    def ranked(self, claim: str) -> tuple[Array, Array, int] | None:
        """For indices from TopK, ArgMax or ArgMin: the tensor that was compared, its noise per element (largest over
        the draws; of equal shape) and the axis. None for other outputs."""


@dataclass(frozen=True)
class OutputContext:
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


Rule = Callable[[Pair, OutputContext], Ruling]


def agree(why: str) -> Ruling:
    """It agrees, and here is how well."""
    return Ruling(Status.AGREE, "agrees", why)


def fail(why: str, signature: Signature = Signature.MISMATCH) -> Ruling:
    """It fails: by what number, and what the limit was."""
    return Ruling(Status.FAIL, "fail", why, signature)


def settled(pair: Pair, exact: bool = True) -> Ruling | None:
    """What every rule says before its own question; None where that question is still open.

    Nothing compared is unresolved; another NaN or infinity fails, either way round; and values that cannot be rounded
    (integers, booleans, strings) must be equal.

    Args:
        exact: False leaves integers, booleans and strings to the rule.
    """
    if pair.masked:
        return fail(_masks(pair), Signature.NAN)
    if not pair.compared:
        return Ruling(Status.UNRESOLVED, why=f"nothing was compared: {_nothing(pair)}")
    if pair.floating or not exact:
        return None
    if pair.changed:
        return fail(f"{pair.changed} of {count(pair.size, 'element')} changed, where none may: {pair.kind} values")
    return agree(f"all {count(pair.size, 'element')} equal ({pair.kind} values)")


def _nothing(pair: Pair) -> str:
    return "no element is finite in both" if pair.size else "it has no elements"


def _masks(pair: Pair) -> str:
    """`NaN: 3 in the candidate alone; infinite: 1 in the reference alone`."""
    said = []
    for kind, sides in (("NaN", pair.nan_only), ("infinite", pair.inf_only)):
        where = [f"{n} in the {side} alone" for n, side in zip(sides, ("candidate", "reference"), strict=True) if n]
        if where:
            said.append(f"{kind}: {' and '.join(where)}")
    return f"{'; '.join(said)}, of {count(pair.size, 'element')}"


HOLDS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
OPPOSITE = {"<=": ">", ">=": "<", "<": ">=", ">": "<="}


@dataclass(frozen=True)
class Limit:
    """What one metric may be, at most or at least: `metric sign limit`."""

    metric: str
    sign: str
    limit: float

    def holds(self, value: float) -> bool:
        """Never for NaN."""
        return HOLDS[self.sign](value, self.limit)

    def said(self, value: float) -> str:
        """`max_abs 2.1e-02 > 1e-03`: what is so, whether it holds or not."""
        if value != value:
            return f"{self.metric} is not defined here, so not {self.sign} {_short(self.limit)}"
        sign = self.sign if self.holds(value) else OPPOSITE[self.sign]
        return f"{self.metric} {shown(value, self.limit)} {sign} {_short(self.limit)}"


def limited(limits: Iterable[Limit], values: Mapping[str, float]) -> Ruling:
    """Agrees where all limits hold. `why` names those that do not, or else all."""
    said = [(limit.holds(values[limit.metric]), limit.said(values[limit.metric])) for limit in limits]
    broken = [text for holds, text in said if not holds]
    return fail(", ".join(broken)) if broken else agree(", ".join(text for _, text in said))


def _short(limit: float) -> str:
    return f"{limit:.0e}" if 0 < abs(limit) < 0.1 and float(f"{limit:.0e}") == limit else f"{limit:g}"


def number(text: str, form: str) -> float:
    """A number that the user typed for a tolerance; `form` is what the criterion expects.

    Raises:
        UsageError: it is none, or NaN.
    """
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if value != value:
        raise UsageError(f"'{clean(text)}' is no number", f"write {form}")
    return value


def shown(value: float, limit: float) -> str:
    """A number beside its limit, in as few digits, two at least, as show on which side of it it lies.

    >>> shown(0.0213, 1e-3), shown(0.99899, 0.999), shown(2.0, 2.0)
    ('2.1e-02', '0.99899', '2.0')
    """
    small = 0 < abs(value) < 0.1 or 1e4 <= abs(value) < float("inf")
    for digits in range(2 if 0.1 <= abs(value) < 1 else 1, 17):
        text = f"{value:.{digits}{'e' if small else 'f'}}"
        if (float(text) < limit, float(text) > limit) == (value < limit, value > limit):
            return text
    return repr(value)
