"""The document of a plan: which places of a model stay in float."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from subgraph.documents import File, Name, Number, Word, absent, keyed, part
from subgraph.results.common import Answered
from subgraph.types import StringMap, frozen, frozen_keywords


@frozen
class KeptPlace:
    """One place that stays in float.

    Attributes:
        name: of the node, operator or tensor, or "output NAME". nodes, ops: of it; tensors: what is
            read there.
        error: how far the outputs are off with this place alone lowered: |d| / |a|, the worst
            output and sample.
        gear: "float32", or the lowest one above the lowered model's that was accepted.
    """

    name: Name
    nodes: Sequence[Name]
    ops: Sequence[Name]
    tensors: Sequence[Name]
    error: Number | None
    gear: str = "float32"


@frozen_keywords
class PlanScore:
    """A score of the task.

    Attributes:
        words: its name. limit: the least score that is accepted.
        as_it_is: of the lowered model itself; plan: of the written one; in_float: of the float
            model.
        samples: that were scored. interval: of 95 % of the draws of as many samples: the drop, or
            the score where its least value is given; None of one sample. sure: it is within the
            limit.
    """

    words: str
    limit: float
    as_it_is: Number | None
    plan: Number | None
    in_float: Number = keyed("float")
    samples: int
    interval: tuple[float, float] | None
    of: Literal["drop", "score"]
    sure: bool


@frozen
class PlanTried:
    """One model that was run: how many places it keeps, and whether it was accepted."""

    kept: int
    accepted: bool
    score: Number | None
    why: str


@frozen
class PlaceError:
    """The error of the outputs with one place alone lowered, as `KeptPlace.error`."""

    name: Name
    error: Number


@frozen
class TriedList:
    """The model that another tool made with its list, as it was judged.

    Attributes:
        tool: Name of the list.
        added: Number of nodes in the list that the plan itself does not keep.
        accepted: Whether the model is good enough.
        score: Its score; None without one.
        why: The reason in words.
    """

    tool: str
    added: int
    accepted: bool
    score: Number | None
    why: str


@frozen
class ScaledTensor:
    """A tensor that leaves the lower precision.

    Attributes:
        name: Its name.
        kind: The way in which it does: overflow, vanishes or unequal channels.
        largest: Its largest magnitude.
        exponent: It was divided by 2 to this power, or a channel by the largest of them; None
            without a cure.
        channels: The exponent of each channel; empty if the tensor has one.
    """

    name: Name
    kind: Word
    largest: Number
    exponent: int | None
    channels: Sequence[int] = ()


@frozen
class PlanScales:
    """What `--rescale` did.

    Attributes:
        tensors: The tensors that leave the lower precision on these inputs.
        weights: Names of the constants that took a factor.
        factors: Names of the tensors after which a Mul was put.
        difference: Largest |a − b| / |a| of the outputs in float32; 0 if they are bit-identical.
        model: The float32 model with the scales; None if the model's own weights stay.
        noise: Largest |a − b| / |a| of the outputs of the quantized model without and with the
            scales, which are used only if it is smaller with them; None for a float type.
    """

    tensors: Sequence[ScaledTensor]
    weights: Sequence[Name] = ()
    factors: Sequence[Name] = ()
    difference: Number = 0.0
    model: File | None = None
    noise: tuple[Number, Number] | None = None


@frozen_keywords
class PlanSetup:
    """The request of a plan.

    Attributes:
        precision: of what is lowered. unit: node, block, operator or scale.
        places: all that may be lowered.
    """

    precision: Word
    unit: str
    criterion: str
    places: int


@frozen_keywords
class PlanResult:
    """The places that stay in float.

    Attributes:
        kept: what stays in float; None where no plan was accepted.
        minimal: each kept place was lowered again, with the others kept, and refused. proven: how
            many of them were.
        weights: bytes of weights: "low", "between" in a gear above that, "float".
        scales: what `--rescale` did; None without it.
    """

    kept: Sequence[KeptPlace] | None
    minimal: bool
    proven: int
    score: PlanScore | None
    weights: Mapping[str, int] | None
    scales: PlanScales | None = None


@frozen_keywords
class PlanTrials:
    """The models that were run for a plan.

    Attributes:
        runs: models that were asked about. tried: these, in the order of how many places they keep.
        sensitivity: of each place that was lowered alone, in the order of the model.
    """

    runs: int
    seconds: float
    tried: Sequence[PlanTried]
    sensitivity: Sequence[PlaceError] = ()


@frozen_keywords
class PlanFiles:
    """The files of a plan.

    Attributes:
        model: the written model; None where a command of the user's lowers it. lists: by tool, the
            file that it takes.
        tried_lists: of the tools that were run with theirs; a list of any other tool was not tried.
        path: The folder; None before it is written.
    """

    model: File | None
    lists: StringMap = field(default_factory=dict)
    tried_lists: Sequence[TriedList] = ()
    path: str | None = absent()


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanDocument(Answered):
    """Everything about one plan. `says`: the answer in a line."""

    schema: Word = "subcut.plan/1"
    notes: Sequence[str] = ()
    setup: PlanSetup = part()
    result: PlanResult = part()
    trials: PlanTrials = part()
    files: PlanFiles = part()
