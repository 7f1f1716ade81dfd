"""The headline of an answer: its kind, the place, and the next commands.

A search and a comparison have the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from subgraph.results.common import NextCommand, PreciseSetting

Line: TypeAlias = tuple[str, str]  # a label and a text


PINNED_ALONE = "the candidate does not run the file as shipped; with pinned shapes it is right"


class Kind(StrEnum):
    """The kinds of answers."""

    WRONG = "wrong"
    ROUNDING = "rounding"
    FLAKY = "flaky"
    INCONCLUSIVE = "inconclusive"
    REFUSED = "refused"
    RIGHT = "right"


SIGNS = {
    Kind.WRONG: "✗",
    Kind.ROUNDING: "≈",
    Kind.FLAKY: "!",
    Kind.INCONCLUSIVE: "?",
    Kind.REFUSED: "✗",
    Kind.RIGHT: "✓",
}


@dataclass(frozen=True)
class ReportedAnswer:
    """The answer of a search.

    Attributes:
        kind: The kind.
        how: How the candidate fails, in words: `dies of SIGSEGV`; "" for the word of the kind.
        what: The place that is wrong, or the reason of another kind.
        size: The number of nodes; "" if the answer is about the full model.
        cost: Runs and seconds.
        lines: Labels and texts: the first finding, then the full model.
        further: The further findings: a title, and lines.
        next: The commands that follow from the answer.
    """

    kind: Kind
    what: str
    size: str = ""
    cost: str = ""
    lines: Sequence[Line] = ()
    further: Sequence[tuple[str, Sequence[Line]]] = ()
    next: Sequence[NextCommand] = ()
    how: str = ""

    @property
    def name(self) -> str:
        """The first words."""
        return self.how or self.kind

    @property
    def says(self) -> str:
        """The headline in one sentence: `wrong: 2 of 27 nodes: a, b (Pad, MaxPool)`."""
        return ": ".join(filter(None, (self.name, self.size, self.what)))

    @property
    def sign(self) -> str:
        """The mark in front of the kind."""
        return SIGNS[self.kind]


def say_precise(name: str, precise: PreciseSetting) -> ReportedAnswer:
    """Return the answer for a candidate whose outputs agree with a setting of its runtime alone."""
    computes = f"{name} computes in {precise.computes_in}"
    return ReportedAnswer(Kind.ROUNDING, f"{computes}; {precise.says}")


def parse_headline(says: str, exit_code: int) -> ReportedAnswer:
    """Return the answer whose headline a document has."""
    by_code = {0: Kind.RIGHT, 1: Kind.WRONG}.get(exit_code, Kind.INCONCLUSIVE)
    how, _, what = says.partition(": ")
    kind = next((kind for kind in Kind if how.startswith(kind)), by_code)
    return ReportedAnswer(kind, what, how=how)
