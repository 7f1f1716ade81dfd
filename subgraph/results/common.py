"""The parts that documents share: the model, the runtimes, the forms that were tried, the verdict
on the full model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from subgraph.documents import CommandLine, File, Name, Version, Word, absent
from subgraph.drawing.network import Network
from subgraph.results.answer import NextCommand
from subgraph.types import Fields, StringMap, frozen, frozen_keywords
from subgraph.verdict import Signature, Status, VerdictDocument

MAX_MISSED = 4  # planted faults that are named


@frozen
class RuntimeDocument:
    """A candidate, or the reference."""

    name: str
    backend: str
    options: Fields
    version: Version
    precision: Word

    @property
    def is_function(self) -> bool:
        """Whether it is a function or an object of a Python program, which no command can run."""
        return self.name.endswith("()")


@frozen
class PreciseSetting:
    """The setting of the runtime with which a model agrees that fails without it.

    Attributes:
        options: Options of the candidate that it changes; empty if the candidate has no setting,
            and the outputs agree within the rounding of its precision.
        precision: The precision of the runtime with it.
        computes_in: The precision of the runtime without it.
    """

    options: Fields
    precision: Word
    computes_in: Word

    @property
    def setting(self) -> str:
        """The options as a candidate's SPEC has them: `precision=f32`; "" without options."""
        return ",".join(f"{name}={value}" for name, value in self.options.items())

    @property
    def says(self) -> str:
        """Its effect: `with precision=f32 the outputs agree in fp32`."""
        if not self.options:
            return f"within the rounding of {self.computes_in} the outputs agree"
        return f"with {self.setting} the outputs agree in {self.precision}"


@frozen
class ComparedModel:
    """The model.

    Attributes:
        graph: The name of its graph; may be empty.
        network: The network that a report draws.
    """

    file: File
    graph: Name
    nodes: int
    structure_sha256: str | None
    path: str | None = absent()
    network: Network | None = absent()


@frozen
class FormDocument:
    """The result of a form of the full model: as shipped (the user's file), or pinned (with shapes
    of its inputs)."""

    form: Word
    status: Status
    signature: Signature | None
    why: str


@frozen
class Agreement:
    """Shares of the samples in which the largest element, or one of the five largest, is the
    same."""

    top1: float
    top5: float


@frozen
class WholeDocument(VerdictDocument):
    """The verdict on the full model.

    Attributes:
        ranking: Agreement of the winners by output that looks like class scores, the worst over all
            samples.
        mute: The reason why an output could not show a fault, by output; None if each output
            could.
    """

    ranking: Mapping[str, Agreement] = field(kw_only=True)
    mute: StringMap | None = absent()


@dataclass(frozen=True, kw_only=True, repr=False)
class Answered:
    """The head of the document of an answer.

    Attributes:
        says: The headline in one sentence, which is the document's text in Python; "" in documents
            of earlier releases.
        command: The command line as typed.
    """

    exit_code: int
    says: str = ""
    command: CommandLine = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.says!r})"


@dataclass(frozen=True, kw_only=True, repr=False)
class Reported(Answered):
    """The head of an answer that has a page.

    Attributes:
        agree: Whether nothing disagrees.
        report: The page's file; None if none was written.
        next: The commands that follow from the answer; a text each in documents of
            earlier releases.
    """

    agree: bool
    report: File | None = None
    next: Sequence[NextCommand | CommandLine] = ()


@frozen_keywords
class ComparedOutputs:
    """The part of the model's outputs that is compared.

    Attributes:
        ignored: The outputs that are not compared; None if all are.
        where: The conditions that hold for the elements that are compared; None for all elements.
    """

    ignored: Sequence[Name] | None = absent()
    where: Sequence[Name] | None = absent()


@frozen_keywords
class ScoreDocument:
    """The score of the full model on the task, if it judges instead of a criterion.

    Attributes:
        words: The name of the score.
        limit: The least accepted score.
        interval: The range of 95 % of the draws of as many samples: of the drop, or of the score
            if the user named its least value; None for one sample.
        of: The quantity of the interval.
        sure: Whether the interval is within the limit.
        says: All of this in a line.
    """

    words: str
    limit: float
    candidate: float
    reference: float
    samples: int
    interval: tuple[float, float] | None
    of: Literal["drop", "score"]
    sure: bool
    says: str


@frozen
class MissedFault:
    """A planted fault that the outputs would not show.

    Attributes:
        node: The node whose tensor is changed.
        tensor: The tensor.
        fault: The change: "scaled by 1.1", "shifted by a pixel", "channels rotated by one", or
            another value of an attribute: "axis=2 instead of 1".
    """

    node: Name
    tensor: Name
    fault: Word


@frozen
class PowerDocument:
    """The number of planted faults that this input, these limits and these outputs would show.

    Attributes:
        planted: The number of faults; each run has one.
        shown: Those that the comparison would show.
        seed: The seed of their places.
        missed: The other ones.
    """

    planted: int
    shown: int
    seed: int
    missed: Sequence[MissedFault]

    @property
    def says(self) -> str:
        """The result in a line: `9 of 10 planted faults would show; missed: pool (scaled …)`."""
        told = [f"{one.node} ({one.fault})" for one in self.missed[:MAX_MISSED]]
        if more := len(self.missed) - len(told):
            told.append(f"and {more} more")
        missed = f"; missed: {', '.join(told)}" if told else ""
        return f"power: {self.shown} of {self.planted} planted faults would show{missed}"
