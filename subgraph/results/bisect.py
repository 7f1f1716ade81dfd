"""The document of a bisection, from which all reports are made: plain data.

Errors are relative to the scale of the reference; `index` and `indices` are positions of nodes in
topological order. A share is a part of the whole model's error, None where it was not asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from subgraph.documents import (
    File,
    Name,
    Number,
    Version,
    Word,
    absent,
    keyed,
    part,
)
from subgraph.graph.region import Surroundings
from subgraph.origins.source import Source
from subgraph.results.common import (
    ComparedModel,
    ComparedOutputs,
    FormDocument,
    PowerDocument,
    PreciseSetting,
    Reported,
    RuntimeDocument,
    WholeDocument,
)
from subgraph.search.oracle import FindingKind, Outcome, RegionOutcome
from subgraph.types import frozen, frozen_keywords
from subgraph.verdict import Signature, Status, Verdict, VerdictDocument


@frozen
class PieceCost:
    """Cost of one item. `node`, `op`, `index` are those of the last of its `nodes`.

    Attributes:
        error: largest error of an output, over its scale, when the item runs alone.
        explains: share of the final error.
        remains: part of the final error that is left if the item runs on the reference; None if
            unknown.
    """

    node: Name
    nodes: Sequence[Name]
    op: Name
    index: int
    error: Number
    explains: Number
    remains: float | None


@frozen
class OperatorCost:
    """The sum over all items with the same operators."""

    op: Name
    nodes: int
    explains: Number


@frozen
class Saturated:
    """A tensor, and the share of its values beyond the range of the quantized type."""

    tensor: Name
    share: float


@frozen
class OtherModel:
    """The candidate's own model: how much of it was matched and, if measured, what it costs,
    largest shares first.

    Attributes:
        weights: How far its quantized weights move the outputs, as a share of the largest value.
            The reference takes these weights, so that the verdict does not count them.
    """

    file: File
    matched: str
    weights: float | None = absent()
    precision: Word | None = absent()
    of: int | None = absent()
    nodes: Sequence[PieceCost] | None = absent()
    ops: Sequence[OperatorCost] | None = absent()
    saturated: Sequence[Saturated] | None = absent()


@frozen
class EvidenceLine:
    """A fact that supports rounding, or a bug; the conclusion is the first.

    Attributes:
        kind: model: is the candidate's own model to blame? noise: the error beside rounding noise.
            precision: could a lower one than claimed explain it? range: does the claimed one hold
            the weights? exact: the same backend in full precision or without optimization. pass,
            switch: what of the optimizer it takes. second: onnx's own evaluator. input, export,
            likeness: what it is.
    """

    kind: Word
    says: str


@frozen
class InnerFinding:
    """A place in a body that goes wrong; all as in `FindingDocument`. `inside`: of a body within
    it."""

    kind: Word
    signature: Signature | None
    nodes: Sequence[Name]
    ops: Sequence[Name]
    certified: bool
    case: File | None
    evidence: Sequence[EvidenceLine] = ()
    inside: InsideDocument | None = absent()


@frozen
class InsideDocument:
    """The result of the search in a body.

    Attributes:
        body: as the user names it: `loop1/body@3`.
        iteration: the first that goes wrong; None where nothing iterates. iterations: how many run.
        outcome: of the search in there; "" where there was none.
        report: its page. why: why nothing more is known.
    """

    body: Name
    iteration: int | None
    iterations: int | None
    outcome: Word = ""
    findings: Sequence[InnerFinding] = ()
    report: File | None = None
    why: str = ""

    def is_same_fault(self, outer: Verdict) -> bool:
        """Return whether the search found something, and no refusal of a part if the node as a
        whole runs."""
        return any(
            bool(f.nodes)
            and (f.signature == Signature.REFUSED) == (outer.signature == Signature.REFUSED)
            for f in self.findings
        )


@frozen
class RunEnvironment:
    subcut: Version
    python: Version
    machine: Word
    threads: int
    packages: Mapping[str, Version]


@frozen
class LookedAt:
    """The tensors that an agreement rests on.

    Attributes:
        outputs: how many of the model. runs: of the whole model, in which they were compared.
        inner: tensors read in place; None where none was.
        within: the region that was asked about alone; "" where there was none.
        disturbance: how far reading these tensors moved the outputs, relative to their largest
            value; None if it did not.
    """

    outputs: int
    runs: int
    inner: int | None
    within: str
    disturbance: float | None = absent()


@frozen
class ProfileRow:
    """A tensor of the profile; of several samples the one with the largest error."""

    index: int
    node: Name
    op: Name
    tensor: Name
    error: Number | None
    status: Status


@frozen_keywords
class StepQuery:
    """A question to the candidate.

    Attributes:
        kind: what was asked, in a word or two, for people.
        query: the same: whole, claimed, profile, isolated, rest or prefix; empty in folders of
            before.
        form: how the candidate was given the model.
    """

    kind: Word
    query: str = ""
    purpose: Word = ""
    form: Word = ""


@frozen_keywords
class StepRegion:
    """The nodes of a step.

    Attributes:
        first, last: labels of nodes, empty where there are none. count: of nodes.
    """

    first: Name
    last: Name
    count: int
    indices: Sequence[int]


@frozen_keywords
class StepDocument:
    """An answer of the candidate.

    Attributes:
        number: from 1.
        status: "minor" if it fails, and explains little of what is looked for.
        changed: what is known since, in words; may be empty.
    """

    number: int
    asked: StepQuery = part()
    region: StepRegion = part()
    status: RegionOutcome
    signature: Signature | None
    error: Number | None
    explains: Number | None = None
    seconds: float
    changed: str


@frozen
class BoundaryTensor:
    tensor: Name
    dtype: Word
    shape: Sequence[int | str]


@frozen
class EdgeTensors:
    """The tensors that enter and leave a region."""

    inputs: Sequence[BoundaryTensor]
    outputs: Sequence[BoundaryTensor]


@frozen
class WorstElement:
    """The element that is furthest off; `error` is that of its tensor."""

    index: Sequence[int]
    reference: float | int | bool | str
    candidate: float | int | bool | str
    tensor: Name
    error: Number | None


@frozen
class Nearest:
    """The nearest neighbor of a finding that agrees: the same region without some nodes."""

    without: Sequence[Name]
    nodes: Sequence[Name]
    indices: Sequence[int]
    error: Number | None


@frozen
class Off:
    """Elements of an output that are off."""

    count: int
    of: int


@frozen
class Bin:
    decade: int
    count: int


@frozen
class Histogram:
    """Differences of an output's elements over its scale: `count` elements in [10^decade,
    10^(decade + 1))."""

    equal: int
    bins: Sequence[Bin]
    not_finite: int


@frozen
class Grown:
    """The error of the model's first `nodes`, run on the model's own inputs."""

    nodes: int
    error: Number | None


@frozen
class Contributor:
    node: Name
    op: Name
    index: int
    explains: Number | None


QUANTIZER = "quantizer of"  # before the tensor, in a difference of how its values are quantized
READS = "reads "  # before the tensor, in a difference of what nodes read


@frozen
class ModelDifference:
    """A difference between the reference's model and the candidate's.

    Attributes:
        node: the node; of the candidate's model if only that one has it.
        part: operator, an attribute, an input or an output.
        ours, theirs: the part on either side; "" if that side does not have it.
    """

    node: Name
    part: Name
    ours: str
    theirs: str

    @property
    def misread(self) -> str:
        """The tensor that the candidate's node reads in place of another one; "" if it reads the
        same."""
        return self.theirs.removeprefix(READS) if self.theirs.startswith(READS) else ""

    @property
    def text(self) -> str:
        """`conv1: pads: [1, 1] in ours, [0, 0] in theirs`."""
        ours = self.ours or "none"
        theirs = self.theirs or "none"
        return f"{self.node}: {self.part}: {ours} in ours, {theirs} in theirs"


@frozen
class RunCounts:
    """Of a flaky finding: runs that failed, of how many."""

    failed: int
    of: int


@frozen
class KindDocument:
    """An operator that several nodes of a finding have.

    Attributes:
        nodes: how many nodes of the model have it.
        distinct: attributes and number of inputs that all nodes of the finding have, and no other
            node with this operator; empty if others may be wrong as well.
    """

    op: Name
    nodes: int
    distinct: Sequence[str] = ()


@frozen
class RegionNodes:
    nodes: Sequence[Name]
    indices: Sequence[int]


@frozen
class SmallInput:
    """The smallest and simplest input with which a finding fails in the same way.

    Its case is the folder `small` in that of the finding.

    Attributes:
        numbers: The input and both outputs in a line: `x = [1, 2] in, [0, 1.5] expected, …`.
        runs: The runs of the candidate that the search took.
    """

    numbers: Name
    runs: int


@frozen_keywords
class FindingPlace:
    """The surroundings of a finding, and other regions that fail as it does.

    Attributes:
        sources: of each of the nodes; left out where none is known.
        constants: of the nodes those that make constants of the others; the fault needs them.
        alike: nodes of all kinds, each of which is off alone.
        repeats: other regions with the same operators, which fail in the same way: this finding
            stands for them, too. of_kind: their operator; left out if a region has several nodes.
    """

    sources: Sequence[Source | None] | None = absent()
    constants: Sequence[Name] | None = absent()
    edge: EdgeTensors | None
    neighbours: Surroundings | None
    alike: Sequence[str] | None = absent()
    repeats: Sequence[RegionNodes] | None = absent()
    of_kind: KindDocument | None = absent()


@frozen_keywords
class FindingRun:
    """The runs of a finding's region alone.

    Attributes:
        verdict: of the region, in a fresh process.
        worst: the element that is furthest off, in the output that decides. off, histogram: of that
            output.
        nearest: the nearest region that agrees alone: ours without some nodes, or, around one node,
            what is left.
        reproduces: share of its runs that failed.
        rate: how often it fails, 0 to 1.
        small: the smallest input that fails in the same way; left out if no smaller one does.
    """

    verdict: VerdictDocument | None
    worst: WorstElement | None
    off: Off | None
    histogram: Histogram | None
    nearest: Nearest | None
    reproduces: float | None
    rate: float | None = absent(of_kind="flaky")
    runs: RunCounts | None = absent(of_kind="flaky")
    small: SmallInput | None = absent()


@frozen_keywords
class FindingEffect:
    """The part of a finding in the full model's error.

    Attributes:
        explains: share of it.
        growth: the model's first nodes run on its own inputs.
        contributors: largest share first.
    """

    explains: Number | None
    growth: Sequence[Grown] | None = absent(of_kind="accumulated")
    contributors: Sequence[Contributor] | None = absent(of_kind="accumulated")


@frozen_keywords
class FindingCause:
    """The reason why a finding fails, as far as it is known.

    Attributes:
        reason: why it could not be resolved.
        rounding: the candidate rounds there, and does nothing wrong; left out where that is not
            known.
        differences: between the two models, if the candidate runs another one; at most 12.
        more_differences: how many are left out.
        blame: what `subcut blame` found, a line each: releases, passes, cures.
    """

    why: str = ""
    reason: str | None = absent(of_kind="unresolved")
    rounding: bool | None = absent()
    differences: Sequence[ModelDifference] | None = absent()
    more_differences: int | None = absent()
    blame: Sequence[str] | None = absent()


@frozen_keywords
class FindingDocument(InnerFinding):
    """A place that goes wrong.

    Attributes:
        nodes: for "unresolved" the smallest region in doubt; for "accumulated" they may be empty.
        certified: it failed alone, and without any one of its sources and sinks it agreed.
        case: its folder, with `repro.py`.
    """

    kind: FindingKind
    indices: Sequence[int]
    place: FindingPlace = part()
    run: FindingRun = part()
    effect: FindingEffect = part()
    cause: FindingCause = part()


@frozen
class Irrelevant:
    """A region that fails alone and explains little."""

    signature: Signature | None
    nodes: Sequence[Name]
    indices: Sequence[int]
    ops: Sequence[Name]
    explains: Number | None
    error: Number | None


@frozen
class Healing:
    """The changes of the full model that heal it and keep its values.

    Attributes:
        means: how nodes are rewritten: barriers between nodes, an If around each node ….
        changes: each change in words; with any one of them left out, the full model fails again.
        model: the file of the full model with these changes.
    """

    means: Word
    changes: Sequence[Name]
    model: File


@frozen_keywords
class SearchSetup:
    """The candidate and the reference of a search, and how they were compared.

    Attributes:
        body: of a node of the user's model, which is what was searched, as --within takes it.
        other_model: where the candidate runs another model: what the two share, and what each piece
            costs.
    """

    candidate: RuntimeDocument
    reference: RuntimeDocument
    criterion: str
    samples: Sequence[Name]
    outputs: ComparedOutputs = part()
    body: Name | None = absent()
    other_model: OtherModel | None = absent()


@frozen_keywords
class WholeResult:
    """The result of the full model.

    Attributes:
        verdict: on its outputs.
        looked_at: the tensors that an agreement rests on; None in documents of before.
        profile: every tensor in place, in topological order; None where the candidate refused or
            none was taken.
        pieces: where the whole does not decide and its pieces do: within what they are right.
        flaky_tensors: Tensors that differ from run to run on the same values; None if no such
            tensor was seen.
        precise: The setting with which the outputs agree; None if it was not asked for or fails as
            well. No search was made then.
        power: The planted faults that this right answer would have shown; left out if they would
            take longer than a second.
    """

    verdict: WholeDocument = keyed("whole")
    looked_at: LookedAt | None = None
    forms: Sequence[FormDocument] = ()
    profile: Sequence[ProfileRow] | None
    pieces: str | None = absent()
    flaky_tensors: Sequence[Name] | None = absent()
    precise: PreciseSetting | None = absent()
    power: PowerDocument | None = absent()


@frozen_keywords
class SearchResult:
    """The way of a search, and how it ended.

    Attributes:
        outcome: claimed: the model agrees as far as the precision allows that the candidate claims.
            elsewhere: the whole disagrees, the region asked about (--within) does not. pinned: the
            file as shipped is refused, with pinned shapes it agrees. disagree with a whole that
            agrees: something inside fails alone.
        alone: pieces that fail alone and explain little.
        healing: What heals the full model, if its nodes were rewritten because no cut shows the
            fault. Each finding then fails with all other nodes rewritten.
        complete: Whether the model agrees with all findings on the reference; None if not known.
    """

    outcome: Outcome | Literal["pinned"]
    steps: Sequence[StepDocument]
    alone: Sequence[Irrelevant]
    healing: Healing | None = absent()
    complete: bool | None = absent()


@frozen_keywords
class SearchCost:
    """The cost of a search.

    Attributes:
        trials: runs of the candidate, those inside of findings included.
        compiled_nodes: nodes sent to its compiler.
        runs: by purpose. seconds: the whole search.
    """

    trials: int
    compiled_nodes: int
    runs: Mapping[str, int] = field(default_factory=dict)
    seconds: float


@dataclass(frozen=True, kw_only=True, repr=False)
class BisectDocument(Reported):
    """Everything about one bisection.

    Attributes:
        notes: what a reader must know to judge it, a line each: random inputs, a probe-sensitive
            candidate …
    """

    schema: Literal["subcut.bisect/1"] = "subcut.bisect/1"
    notes: Sequence[str]
    model: ComparedModel
    setup: SearchSetup = part()
    whole: WholeResult = part()
    search: SearchResult = part()
    findings: Sequence[FindingDocument]
    cost: SearchCost = part()
    environment: RunEnvironment
