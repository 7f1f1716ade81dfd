"""The document of a plan: which places of a model stay in float."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from subgraph.documents import File, Name, Number, Word, absent, json_key, part
from subgraph.results.common import Answered
from subgraph.types import StringMap, frozen, frozen_keywords


@frozen
class KeptPlace:
    """One place that stays in float.

    Attributes:
        name: The name of the node, operator or tensor, or "output NAME".
        nodes: Its nodes.
        ops: Their operators.
        tensors: The tensors that are read there.
        error: The error of the outputs with this place alone lowered: |d| / |a|, the worst output
            and sample.
        gear: "float32", or the lowest accepted precision above that of the lowered model.
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
        words: The name of the score.
        limit: The least accepted score.
        as_it_is: The score of the lowered model without kept places.
        plan: The score of the written model.
        in_float: The score of the float model.
        samples: The number of scored samples.
        interval: The range of 95 % of the draws of as many samples: of the drop, or of the score
            if the user named its least value; None for one sample.
        of: The quantity of the interval.
        sure: Whether the interval is within the limit.
    """

    words: str
    limit: float
    as_it_is: Number | None
    plan: Number | None
    in_float: Number = json_key("float")
    samples: int
    interval: tuple[float, float] | None
    of: Literal["drop", "score"]
    sure: bool


@frozen
class TriedPlan:
    """One model that was run: its number of kept places, and whether it was accepted."""

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
    """The result of `--rescale`.

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
        precision: The precision of the lowered places.
        unit: The kind of a place: node, block, operator or scale.
        places: The number of places that may be lowered.
    """

    precision: Word
    unit: str
    criterion: str
    places: int


@frozen_keywords
class PlanResult:
    """The places that stay in float.

    Attributes:
        kept: The places that stay in float; None if no plan was accepted.
        minimal: Whether each kept place was lowered again, with the others kept, and refused.
        proven: The number of kept places for which that was tried.
        weights: The bytes of weights in each precision: "low", "between", "float".
        scales: The result of `--rescale`; None without it.
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
        runs: The number of models that were run.
        tried: These models, in the order of their numbers of kept places.
        sensitivity: The error of each place that was lowered alone, in the order of the model.
    """

    runs: int
    seconds: float
    tried: Sequence[TriedPlan]
    sensitivity: Sequence[PlaceError] = ()


@frozen_keywords
class PlanFiles:
    """The files of a plan.

    Attributes:
        model: The written model; None if a command of the user lowers the model.
        lists: The file that a tool takes, by tool.
        tried_lists: The lists with which a tool was run. A list of any other tool was not tried.
        path: The folder; None before it is written.
    """

    model: File | None
    lists: StringMap = field(default_factory=dict)
    tried_lists: Sequence[TriedList] = ()
    path: str | None = absent()


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanDocument(Answered):
    """Everything about one plan."""

    schema: Word = "subcut.plan/1"
    notes: Sequence[str] = ()
    setup: PlanSetup = part()
    result: PlanResult = part()
    trials: PlanTrials = part()
    files: PlanFiles = part()
