"""The document of a bisection, from which all reports are made: plain data.

Errors are relative to the scale of the reference; `index` and `indices` are positions of nodes in
topological order. A share is a part of the full model's error, None if it was not measured.
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
    json_key,
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
    """The cost of one item: a node of the reference's model, or nodes that stay together.

    Attributes:
        node: The label of the last of its nodes.
        nodes: The labels of all its nodes.
        op: The operator of the last node.
        index: The position of the last node.
        error: The largest error of an output, over its scale, when the item runs alone.
        explains: The item's share of the final error.
    """

    node: Name
    nodes: Sequence[Name]
    op: Name
    index: int
    error: Number
    explains: Number


@frozen
class SaturatedTensor:
    """A tensor with values beyond the range of its quantized type, and their share, 0 to 1."""

    tensor: Name
    share: float


@frozen
class OtherModel:
    """The candidate's own model.

    Attributes:
        file: The file of the model.
        matched: The number of its tensors that were matched, in words.
        weights: How far its quantized weights move the outputs, as a share of the largest value.
            The reference takes these weights, so that the verdict does not count them.
        precision: The precision at which it is judged.
        of: The number of items of the model; left out if no cost was measured.
        nodes: The measured items, largest shares first.
        saturated: The tensors whose values do not fit the quantized type.
    """

    file: File
    matched: str
    weights: float | None = absent()
    precision: Word | None = absent()
    of: int | None = absent()
    nodes: Sequence[PieceCost] | None = absent()
    saturated: Sequence[SaturatedTensor] | None = absent()


@frozen
class EvidenceLine:
    """A fact that supports rounding, or a bug; the conclusion is the first.

    Attributes:
        kind: "model": whether the candidate's own model is to blame. "noise": the error compared
            with rounding noise. "precision": whether a lower precision than claimed explains it.
            "range": whether the claimed precision holds the weights. "exact": the same backend in
            full precision or without optimization. "pass", "switch": the part of the optimizer
            that the fault needs. "second": onnx's own evaluator. "input", "export", "likeness":
            the mistake that the values look like.
        says: The fact in a sentence.
    """

    kind: Word
    says: str


@frozen
class InnerFinding:
    """A place in a body that is wrong, with fields as of `FindingDocument`.

    Attributes:
        inside: The result of the search in a body within it.
    """

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
        body: The body as the user names it: `loop1/body@3`.
        iteration: The first wrong iteration; None if nothing iterates.
        iterations: The number of iterations that run; None if nothing iterates.
        outcome: The outcome of the search in the body; "" if no search was made.
        findings: The findings of that search.
        report: The page of that search; None if none was written.
        why: The reason why nothing more is known.
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
    """The machine and the versions of a run; `threads` is the number of the reference."""

    subcut: Version
    python: Version
    machine: Word
    threads: int
    packages: Mapping[str, Version]


@frozen
class AgreementEvidence:
    """The tensors that an agreement rests on.

    Attributes:
        outputs: The number of outputs of the model.
        runs: The number of runs of the full model in which they were compared.
        inner: The number of tensors that were read in place; None if none was read.
        within: The only region that was tried; "" if the full model was tried.
        disturbance: The change of the outputs through reading these tensors, relative to their
            largest value; None if they did not change.
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
        kind: The question in a word or two, for people.
        query: The question for programs: whole, claimed, profile, isolated, rest or prefix; empty
            in folders that an earlier release wrote.
        purpose: The purpose of the question in the search.
        form: The form in which the candidate received the model.
    """

    kind: Word
    query: str = ""
    purpose: Word = ""
    form: Word = ""


@frozen_keywords
class StepRegion:
    """The nodes of a step.

    Attributes:
        first: The label of the first node; empty for a region without nodes.
        last: The label of the last node; empty for a region without nodes.
        count: The number of nodes.
        indices: Their positions in the model.
    """

    first: Name
    last: Name
    count: int
    indices: Sequence[int]


@frozen_keywords
class StepDocument:
    """An answer of the candidate.

    Attributes:
        number: The number of the step, from 1.
        status: "minor" if the region fails and explains little of the searched error.
        changed: The conclusion from the answer, in words; may be empty.
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
    """A tensor at the boundary of a region."""

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
    """The element with the largest difference; `error` is that of its tensor."""

    index: Sequence[int]
    reference: float | int | bool | str
    candidate: float | int | bool | str
    tensor: Name
    error: Number | None


@frozen
class NearestAgreement:
    """The nearest neighbor of a finding that agrees: the same region without some nodes."""

    without: Sequence[Name]
    nodes: Sequence[Name]
    indices: Sequence[int]
    error: Number | None


@frozen
class DeviatingElements:
    """The number of elements of an output that deviate."""

    count: int
    of: int


@frozen
class HistogramBin:
    """The number of elements with a difference in a decade."""

    decade: int
    count: int


@frozen
class Histogram:
    """Differences of an output's elements over its scale: `count` elements in [10^decade,
    10^(decade + 1))."""

    equal: int
    bins: Sequence[HistogramBin]
    not_finite: int


@frozen
class ErrorGrowth:
    """The error after the model's first nodes, `nodes` of them, on the model's own inputs."""

    nodes: int
    error: Number | None


@frozen
class Contributor:
    """A node that adds to an accumulated error, and its share of the full model's error."""

    node: Name
    op: Name
    index: int
    explains: Number | None


QUANTIZER = "quantizer of"  # before the tensor, in a difference of how its values are quantized
READS = "reads "  # before the tensor, in a difference of the inputs of nodes


@frozen
class ModelDifference:
    """A difference between the reference's model and the candidate's.

    Attributes:
        node: The node; that of the candidate's model if only this model has it.
        part: The operator, an attribute, an input or an output.
        ours: The part in the reference's model; "" if that model does not have it.
        theirs: The part in the candidate's model; "" if that model does not have it.
    """

    node: Name
    part: Name
    ours: str
    theirs: str

    @property
    def misread(self) -> str:
        """The tensor that the candidate's node reads in place of another one; "" if it reads the
        same."""
        if self.theirs.startswith(READS):
            return self.theirs.removeprefix(READS)
        return ""

    @property
    def text(self) -> str:
        """`conv1: pads: [1, 1] in ours, [0, 0] in theirs`."""
        ours = self.ours or "none"
        theirs = self.theirs or "none"
        return f"{self.node}: {self.part}: {ours} in ours, {theirs} in theirs"


@frozen
class RunCounts:
    """The runs of a flaky finding, and how many of them failed."""

    failed: int
    of: int


@frozen
class KindDocument:
    """An operator that several nodes of a finding have.

    Attributes:
        nodes: The number of nodes of the model that have it.
        distinct: The attributes and the number of inputs that all nodes of the finding have, and
            no other node with this operator has; empty if other nodes may be wrong as well.
    """

    op: Name
    nodes: int
    distinct: Sequence[str] = ()


@frozen
class RegionNodes:
    """The nodes of a region, by label and by position."""

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
        sources: The place in the user's code of each node; left out if none is known.
        constants: Those of the nodes that compute constants of the other nodes. The fault needs
            them.
        edge: The tensors at the boundary of the region.
        neighbours: The nodes around the region.
        alike: Nodes of all kinds, each of which deviates alone.
        repeats: Other regions with the same operators, which fail in the same way. This finding
            represents them, too.
        of_kind: The operator of these regions; left out if a region has several nodes.
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
        verdict: The verdict on the region, in a fresh process.
        worst: The element with the largest difference, in the output that decides.
        off: The elements of that output that deviate.
        histogram: The differences of that output.
        nearest: The nearest region that agrees alone: this region without some nodes, or, around
            a single node, the rest.
        reproduces: The share of its runs that failed.
        rate: The frequency of the failure, 0 to 1.
        runs: The runs from which the rate follows.
        small: The smallest input that fails in the same way; left out if no smaller one does.
    """

    verdict: VerdictDocument | None
    worst: WorstElement | None
    off: DeviatingElements | None
    histogram: Histogram | None
    nearest: NearestAgreement | None
    reproduces: float | None
    rate: float | None = absent(of_kind="flaky")
    runs: RunCounts | None = absent(of_kind="flaky")
    small: SmallInput | None = absent()


@frozen_keywords
class FindingEffect:
    """The part of a finding in the full model's error.

    Attributes:
        explains: The share of that error.
        growth: The errors of the model's first nodes on its own inputs.
        contributors: The nodes that add to the error, largest share first.
    """

    explains: Number | None
    growth: Sequence[ErrorGrowth] | None = absent(of_kind="accumulated")
    contributors: Sequence[Contributor] | None = absent(of_kind="accumulated")


@frozen_keywords
class FindingCause:
    """The reason why a finding fails, as far as it is known.

    Attributes:
        why: The conclusion in a sentence.
        reason: The reason why the finding could not be resolved.
        rounding: Whether the candidate only rounds there, which is no fault; left out if that
            is not known.
        differences: At most 12 differences between the two models, if the candidate runs another
            model.
        more_differences: The number of differences that are left out.
        blame: The results of `subcut blame`, a line each: releases, passes, cures.
    """

    why: str = ""
    reason: str | None = absent(of_kind="unresolved")
    rounding: bool | None = absent()
    differences: Sequence[ModelDifference] | None = absent()
    more_differences: int | None = absent()
    blame: Sequence[str] | None = absent()


@frozen_keywords
class FindingDocument(InnerFinding):
    """A place that is wrong.

    Attributes:
        nodes: The smallest failing region; for "unresolved" the smallest region in doubt; for
            "accumulated" they may be empty.
        certified: Whether the region failed alone, and agreed without any one of its sources and
            sinks.
        case: The folder of the region, with `repro.py`.
    """

    kind: FindingKind
    indices: Sequence[int]
    place: FindingPlace = part()
    run: FindingRun = part()
    effect: FindingEffect = part()
    cause: FindingCause = part()


@frozen
class MinorRegion:
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
        means: The way in which nodes are rewritten: barriers between nodes, an If around each
            node ….
        changes: Each change in words. Without any one of them, the full model fails again.
        model: The file of the full model with these changes.
    """

    means: Word
    changes: Sequence[Name]
    model: File


@frozen_keywords
class SearchSetup:
    """The candidate and the reference of a search, and how they were compared.

    Attributes:
        body: The body of a node of the user's model that was searched, as --within takes it.
        other_model: The match of the two models and the cost of each piece, if the candidate runs
            another model.
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
        verdict: The verdict on its outputs.
        looked_at: The tensors that an agreement rests on; None in documents of earlier releases.
        forms: The forms of the full model that were tried.
        profile: Every tensor in place, in topological order; None if the candidate refused, or
            if no profile was taken.
        pieces: The limit within which all pieces are right, if the full model does not decide.
        flaky_tensors: Tensors that differ from run to run on the same values; None if no such
            tensor was seen.
        precise: The setting with which the outputs agree; None if it was not tried or fails as
            well. With it, no search follows.
        power: The planted faults that this right answer would have shown; left out if they would
            take longer than a second.
    """

    verdict: WholeDocument = json_key("whole")
    looked_at: AgreementEvidence | None = None
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
        outcome: "claimed": the model agrees as far as the claimed precision of the candidate
            allows. "elsewhere": the full model disagrees, the region of --within does not.
            "pinned": the candidate refuses the file as shipped, which agrees with pinned shapes.
            "disagree" for a full model that agrees: something inside fails alone.
        steps: The questions to the candidate and its answers.
        alone: Pieces that fail alone and explain little.
        healing: The rewrites that heal the full model, if no cut shows the fault. Each finding
            then fails with all other nodes rewritten.
        complete: Whether the model agrees with all findings on the reference; None if not known.
        stopped: The reason why it ended early; None if it did not.
    """

    outcome: Outcome | Literal["pinned"]
    steps: Sequence[StepDocument]
    alone: Sequence[MinorRegion]
    healing: Healing | None = absent()
    complete: bool | None = absent()
    stopped: str | None = absent()


@frozen_keywords
class SearchCost:
    """The cost of a search.

    Attributes:
        trials: The number of runs of the candidate, those inside of findings included.
        compiled_nodes: The number of nodes sent to its compiler.
        runs: The number of runs by purpose.
        seconds: The time of the search.
    """

    trials: int
    compiled_nodes: int
    runs: Mapping[str, int] = field(default_factory=dict)
    seconds: float


@dataclass(frozen=True, kw_only=True, repr=False)
class BisectDocument(Reported):
    """Everything about one bisection.

    Attributes:
        notes: The facts that a reader needs to judge the answer, a line each: random inputs, a
            probe-sensitive candidate …
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
