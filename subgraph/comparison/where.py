"""The choice of a model's outputs and elements that are compared: `--ignore OUTPUT`, `--where
'NAME>0.5'`.

A condition is one on values of an output. It holds for an element where the reference's value or
the candidate's fulfils it, so that what only one side finds is compared as well. NaN fulfils every
condition: it may hide anything.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence, Set

import numpy as np

from subgraph.errors import UsageError
from subgraph.results.common import ComparedOutputs
from subgraph.storage.tensors import Record, Records, format_shape
from subgraph.text import clean
from subgraph.types import Array, Strings, frozen

SIGNS = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


@frozen
class Where:
    """A condition on values of the output `name`; `sign`: of `SIGNS`."""

    name: str
    sign: str
    number: float

    def __str__(self) -> str:
        # No digit is lost: `replay` reads it.
        return f"{self.name}{self.sign}{repr(self.number).removesuffix('.0')}"


@frozen
class OutputChoice:
    """The compared part of the model's outputs: not those that are ignored, and of the others the
    elements for which all conditions hold.

    Attributes:
        ignored: names of outputs.
        may_be_empty: names of outputs that count as right even if they are no evidence for the
            candidate.
    """

    ignored: Strings = ()
    where: tuple[Where, ...] = ()
    may_be_empty: Strings = ()

    @classmethod
    def parse(
        cls,
        ignore: Sequence[str] | None = None,
        may_be_empty: Sequence[str] | None = None,
        where: Sequence[str] | None = None,
    ) -> OutputChoice:
        """Return the choice that the options name.

        Args:
            ignore: The values of `--ignore`.
            may_be_empty: The values of `--may-be-empty`.
            where: The values of `--where`.

        Raises:
            UsageError: A condition cannot be read.
        """
        conditions = tuple(map(parse_where, where or ()))
        return cls(tuple(ignore or ()), conditions, tuple(may_be_empty or ()))

    def among(self, outputs: Set[str]) -> OutputChoice:
        """Return the choice for a model with these outputs; all if it leaves none of them."""
        ignored = tuple(name for name in self.ignored if name in outputs)
        where = tuple(condition for condition in self.where if condition.name in outputs)
        return OutputChoice(() if outputs == {*ignored} else ignored, where)

    def select(self, outputs: Iterable[str]) -> list[str]:
        """Return the outputs that are compared.

        Raises:
            UsageError: None of them is.
        """
        selected = [name for name in outputs if name not in self.ignored]
        if self.ignored and not selected:
            raise UsageError(
                "--ignore leaves no output to compare",
                "leave one of them out",
                code="compare.all-ignored",
            )
        return selected

    def document(self) -> ComparedOutputs:
        """Return the choice as documents and requests hold it."""
        return ComparedOutputs(
            ignored=self.ignored or None, where=tuple(map(str, self.where)) or None
        )

    @property
    def options(self) -> list[tuple[str, str]]:
        """Each option, as typed, with the output that it names."""
        return [
            *((f"--ignore {name}", name) for name in self.ignored),
            *((f"--where {condition}", condition.name) for condition in self.where),
            *((f"--may-be-empty {name}", name) for name in self.may_be_empty),
        ]

    @property
    def sentences(self) -> list[str]:
        """The omitted parts, for the reader of an answer."""
        if self.ignored:
            left = [f"left out of the comparison: {', '.join(map(clean, self.ignored))}"]
        else:
            left = []
        held = " and ".join(clean(str(condition)) for condition in self.where)
        return [
            *left,
            *([f"outputs are compared only where {held}, on either side"] if held else []),
        ]


def parse_where(text: str) -> Where:
    """Parse a condition, such as `confidence>0.5`; if the name has signs, the last one counts.

    Raises:
        UsageError: it is not a condition.
    """
    m = re.fullmatch(
        r"\s*(.+?)\s*(>=|<=|==|!=|>|<)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*", text
    )
    if not m:
        raise UsageError(
            f"--where {text}: expected a condition",
            "--where 'confidence>0.5'",
            code="option.malformed",
        )
    return Where(m[1], m[2], float(m[3]))


def select_elements(
    where: Sequence[Where], name: str, known: Records, given: Records
) -> Array | None:
    """Return the elements of an output that are compared, as booleans of its shape; None without a
    condition, or if it is not one tensor.

    A condition's axes are the first axes of the output: each is as long, or 1. The condition holds
    for all other axes.

    Args:
        where: The conditions.
        name: The output.
        known: The reference's values.
        given: The candidate's values.

    Raises:
        UsageError: the shape of a condition does not fit.
    """
    value = known[name].value()
    if not where or not isinstance(value, np.ndarray):
        return None
    selected = np.ones(value.shape, bool)
    for condition in where:
        mask = _holds(condition, known[condition.name])
        if condition.name in given and given[condition.name].shapes == known[condition.name].shapes:
            mask = mask | _holds(condition, given[condition.name])
        spread = mask.reshape(*mask.shape, *[1] * (value.ndim - mask.ndim))
        if mask.ndim > value.ndim or any(
            n not in (1, m) for n, m in zip(spread.shape, value.shape, strict=True)
        ):
            shapes = (
                f"{condition.name} is {format_shape(mask.shape)},"
                f" {name} {format_shape(value.shape)}"
            )
            raise UsageError(
                f"--where {condition} does not fit: {shapes}",
                "its axes must be the first ones of each output, as long or 1; --ignore"
                f" {name} leaves it out",
                code="where.wrong-shape",
            )
        selected &= spread
    return selected


def _holds(where: Where, record: Record) -> Array:
    value = record.value()
    if not isinstance(value, np.ndarray) or value.dtype.kind in "OUST":
        raise UsageError(
            f"--where {where}: {where.name} holds no numbers",
            "name another output",
            code="where.not-numbers",
        )
    return np.asarray(SIGNS[where.sign](value, where.number) | (value != value), bool)


def limit_to_mask(reference: Array, candidate: Array, mask: Array) -> tuple[Array, Array]:
    """Return both arrays, with nothing to compare outside of the mask.

    There both have NaN, or the reference's values if the type has no NaN. Arrays of another shape
    or type stay as they are.
    """
    if candidate.shape != reference.shape or candidate.dtype != reference.dtype:
        return reference, candidate
    if reference.dtype.kind in "fV":
        nan = np.asarray(np.nan, reference.dtype)
        return np.where(mask, reference, nan), np.where(mask, candidate, nan)
    return reference, np.where(mask, candidate, reference)
