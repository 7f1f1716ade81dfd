"""Criteria, each of which decides whether one output agrees. One file per criterion; the user types
its name.

To add one, write `criteria/NAME.py`, or any `FILE.py` that is given by its path:

    '''One line of help, such as max|d| ≤ limit'''
    from subgraph.comparison.criteria import OutputContext, Rule, Ruling, agree, fail, settle
    from subgraph.comparison.pair import Pair

    def rule(options: str) -> Rule:
        '''The rule for `NAME:options`; `rule("")` is the default.

Raises:
            UsageError: the options are unknown.
        '''
        limit = float(options or 1e-3)

        def judge(pair: Pair, context: OutputContext) -> Ruling:
            if ruling := settle(pair):  # NaN, infinities, integers, nothing to compare
                return ruling
            decide = agree if pair.error <= limit else fail
            return decide(f"max_abs {pair.error:.1e}, allowed {limit:.1e}")

        return judge

Shape and element type are equal when a rule is called; outputs that are missing or differ there
have failed before. `tests/comparison/test_criteria.py` tests every file of this folder.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Protocol

import numpy as np

from subgraph.comparison.pair import Pair, count_infinite_only, count_nan_only
from subgraph.errors import UsageError
from subgraph.precision import Precision
from subgraph.text import count
from subgraph.types import Array, frozen
from subgraph.verdict import Graded, Signature, Status

MIN_ELEMENTS = 4  # of a slice with a separate scale
MAX_BATCH_NUMBERS = 100  # numbers that are judged together: among more, a single one matters little


@frozen
class Ranking:
    """The values that a TopK, ArgMax or ArgMin compared.

    Attributes:
        values: the tensor compared.
        noise: the largest |perturbed − reference| of each element; float64, in the shape of
            `values`.
        axis: the axis along which the indices count.
    """

    values: Array
    noise: Array
    axis: int


@frozen
class QuantizedValues:
    """The values that a quantizer rounds to an output of codes, or to one that was just
    dequantized.

    Attributes:
        exact: the values before rounding, in steps, within the range of the codes; float64.
        step: the step of the quantizer.
        zero: the zero point of the quantizer.
        is_coarse: whether integer kernels of an operator before it can deviate by one more step.
    """

    exact: Array
    step: float
    zero: int
    is_coarse: bool = False

    def measure_distances(self, values: Array) -> Array:
        """Return the distance of the output's values from the exact ones, in steps."""
        wide = values.astype(np.float64)
        codes = wide if values.dtype.kind in "iu" else wide / self.step + self.zero
        return np.asarray(codes - self.exact)


class Noise(Protocol):
    """Rounding noise of one output of one region, for one sample.

    Methods with a claim may run the reference, so call them late; they raise ModelError if the
    region cannot be run with perturbations.
    """

    def perturb(self, claim: Precision, count: int) -> list[Array]:
        """Return the output of `count` runs, perturbed independently by one rounding at the claimed
        precision.

        The shape differs from the reference's only if it depends on values.
        """

    def break_ties(self, claim: Precision, count: int, times: float) -> list[Array]:
        """Return the output of `count` runs in which also equal computed values are perturbed
        independently, by `times` roundings; empty if hardly any sums are equal."""

    def round_nodes(self, claim: Precision) -> Array:
        """Return the output of the reference whose values are rounded to the claimed type after
        every node, in the reference's dtype."""

    def op_type(self) -> str:
        """Return the op type of the node that produces the output."""

    def coarsest_type(self) -> str:
        """Return the float type with the largest unit roundoff among the output and the tensors of
        the region on which it depends: float64, float32, float16 or bfloat16."""

    def depends_on_choice(self) -> bool:
        """Return whether the output depends, within the region, on indices, booleans or a choice by
        them."""

    def depends_on_steps(self) -> bool:
        """Return whether it depends on a node that rounds to steps: QuantizeLinear, Round, a Cast
        to integers."""

    def depends_on_ranks(self) -> bool:
        """Return whether it depends on the order of inexact values, as after TopK."""

    def quantizes(self) -> bool:
        """Return whether it is, or depends on, steps to which the region itself rounds.

        QuantizeLinear is an example. A right runtime may take other steps then, in any precision.
        """

    def half_step(self) -> float:
        """Return half a step of such an output that was just dequantized; 0 for other outputs."""

    def find_quantized_values(self) -> QuantizedValues | None:
        """Return the values that the only quantizer before the output rounds; None for other
        outputs."""

    def are_codes(self) -> bool:
        """Return whether an operator of TensorFlow Lite quantizes it, inside of which nothing can
        be perturbed."""

    def ranking(self, claim: Precision) -> Ranking | None:
        """Return the values that a TopK, ArgMax or ArgMin compared for this output of indices; None
        for other outputs."""


@frozen
class OutputContext:
    """The facts about an output that a rule can use in addition to its two values.

    Attributes:
        claim: the precision that the candidate claims: fp32, tf32, fp16, bf16 or int8.
        noise: None if no reference can be run (recordings of an unknown model, for example).
        is_model_output: whether the tensor leaves the model. Its values must be usable in every
            precision.
        half_step: the distance by which the candidate's type moves a value if it is the type that
            the operator must have.
        samples: the number of samples that have such outputs.
        has_fixed_point: whether the candidate declares int8: it can round a code to the next one.
        quantized: the values that a quantizer of the candidate's own model rounds to the output.
    """

    name: str
    claim: Precision = Precision.FP32
    noise: Noise | None = None
    is_model_output: bool = False
    half_step: float = 0.0
    samples: int = 1
    has_fixed_point: bool = False
    quantized: QuantizedValues | None = None


@frozen
class Ruling(Graded):
    """The answer of a rule.

    Attributes:
        label: As in `Judgement`.
        why: As in `Judgement`.
        noise: The N with which the error was compared. None without a comparison.
    """

    status: Status
    label: str = ""
    why: str = ""
    signature: Signature | None = None
    noise: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)


Rule = Callable[[Pair, OutputContext], Ruling]


def agree(why: str) -> Ruling:
    """Return an agreement; `why` describes how well the values agree."""
    return Ruling(Status.AGREE, "agrees", why)


def fail(why: str, signature: Signature = Signature.MISMATCH) -> Ruling:
    """Return a failure; `why` names the number and its limit."""
    return Ruling(Status.FAIL, "fail", why, signature)


def settle(pair: Pair, exact: bool = True) -> Ruling | None:
    """Return the ruling if it is the same for every criterion; None if the criterion has to decide.

    A NaN or infinity on one side only fails. The ruling is unresolved if nothing was compared.
    Values that cannot be rounded (integers, booleans, strings) must be equal, or are left to the
    criterion if not `exact`.
    """
    if pair.masked:
        parts = []
        for kind, sides in (("NaN", count_nan_only(pair)), ("infinite", count_infinite_only(pair))):
            counts = [
                f"{n} in the {side} alone"
                for n, side in zip(sides, ("candidate", "reference"), strict=True)
                if n
            ]
            if counts:
                parts.append(f"{kind}: {' and '.join(counts)}")
        return fail(f"{'; '.join(parts)}, of {count(pair.size, 'element')}", Signature.NAN)
    if not pair.compared:
        why = "no element is finite in both" if pair.size else "it has no elements"
        return Ruling(Status.UNRESOLVED, why=f"nothing was compared: {why}")
    if pair.floating or not exact:
        return None
    if pair.changed:
        return fail(
            f"{pair.changed} of {count(pair.size, 'element')} changed, where none may: {pair.kind}"
            " values"
        )
    return agree(f"{all_equal(pair)} ({pair.kind} values)")


def all_equal(pair: Pair) -> str:
    """Return the sentence on two tensors without a difference."""
    if pair.size == 1:
        return "the only element is equal"
    return f"all {pair.size} elements are equal"


HOLDS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
OPPOSITE = {"<=": ">", ">=": "<", "<": ">=", ">": "<="}


@frozen
class Limit:
    """A limit of one metric: `metric sign limit`, with a sign of `HOLDS`."""

    metric: str
    sign: str
    limit: float

    def holds(self, value: float) -> bool:
        """Return whether the value is within the limit; NaN never is."""
        return bool(HOLDS[self.sign](value, self.limit))

    def compare(self, value: float) -> str:
        """Return the value with its relation to the limit: `max_abs 2.1e-02 > 1e-03`."""
        if value != value:
            return (
                f"{self.metric} is not defined here, so not {self.sign} {_format_limit(self.limit)}"
            )
        sign = self.sign if self.holds(value) else OPPOSITE[self.sign]
        return (
            f"{self.metric} {format_beside(value, self.limit)} {sign} {_format_limit(self.limit)}"
        )


def check_limits(limits: Iterable[Limit], values: Mapping[str, float]) -> Ruling:
    """Return an agreement if all limits are satisfied, else a failure.

    `why` names the limits that are not satisfied, or else all of them.

    Args:
        values: value by metric.
    """
    checked = [
        (limit.holds(values[limit.metric]), limit.compare(values[limit.metric])) for limit in limits
    ]
    broken = [text for holds, text in checked if not holds]
    if broken:
        return fail(", ".join(broken))
    return agree(", ".join(text for _, text in checked))


def _format_limit(limit: float) -> str:
    if 0 < abs(limit) < 0.1 and float(f"{limit:.0e}") == limit:
        return f"{limit:.0e}"
    return f"{limit:g}"


def refuse_options(name: str, options: str) -> None:
    """Refuse the options of a criterion that has none.

    Raises:
        UsageError: there are some.
    """
    if options.strip():
        raise UsageError(
            f"criterion '{name}' takes no options, not '{options}'",
            f"write {name}",
            code="criterion.malformed",
        )


def parse_number(text: str, usage: str) -> float:
    """Parse a number that the user typed for a tolerance.

    Args:
        text: The number.
        usage: An example of the criterion, for the hint.

    Raises:
        UsageError: `text` is not a number, or NaN.
    """
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if value != value:
        raise UsageError(f"'{text}' is not a number", f"write {usage}", code="criterion.malformed")
    return value


def format_beside(value: float, limit: float) -> str:
    """Format a value with the fewest digits, at least two, that show on which side of the limit it
    is.

    >>> format_beside(0.0213, 1e-3), format_beside(0.99899, 0.999), format_beside(2.0, 2.0)
    ('2.1e-02', '0.99899', '2.0')
    """
    form = "e" if 0 < abs(value) < 0.1 or 1e4 <= abs(value) < float("inf") else "f"
    for digits in range(2 if 0.1 <= abs(value) < 1 else 1, 17):
        text = f"{value:.{digits}{form}}"
        if (float(text) < limit, float(text) > limit) == (value < limit, value > limit):
            return text
    return repr(value)
