"""Region and run result -> Verdict: compares the candidate's outputs with the reference's, and runs
nothing.

A judge is immutable. To judge the same results by another criterion, derive another judge: several
threads may use both at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, product

import numpy as np

from subgraph.comparison import CLIPPED, MAX_HEALTHY_ERROR
from subgraph.comparison.criteria import OutputContext, QuantizedValues, Rule
from subgraph.comparison.evidence import explain_mute
from subgraph.comparison.judge import (
    judge as judge_values,
    judge_missing,
    judge_nothing,
    parse_criterion,
)
from subgraph.comparison.noise.noise import BatchNoise, assign_to_sample, make_batch
from subgraph.comparison.where import limit_to_mask, select_elements
from subgraph.errors import BackendError, InputError, ModelError
from subgraph.graph.graph import Graph
from subgraph.graph.kinds import CONSTANT, find_kinds
from subgraph.graph.properties import COARSE
from subgraph.graph.quantization import quantizes_itself
from subgraph.graph.region import Region
from subgraph.graph.walks import find_operator
from subgraph.iterables import flatten, group_values
from subgraph.precision import Precision
from subgraph.results.common import ScoreDocument
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.runtime.run_result import Feeds, RunResult
from subgraph.storage.dtypes import Scale
from subgraph.storage.tensors import Records, Value, find_largest
from subgraph.text import describe_run
from subgraph.trials.candidate_model import (
    coarsen_inputs,
    find_code_type,
    find_half_step,
    find_tflite_scale,
)
from subgraph.trials.candidate_runtime import CandidateRuntime, ModelWriter
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.score import ByScore
from subgraph.types import Array, frozen_keywords
from subgraph.verdict import (
    NOTHING,
    Judgement,
    Signature,
    Status,
    Verdict,
    is_mute,
    join_judgements,
)

MAX_CLIPPED_SHARE = 1 / 3  # of the largest value: as much a calibration clips on another input
# Signatures of outputs to which no score can be assigned.
WITHOUT_VALUES = (Signature.MISSING, Signature.SHAPE)
# Near 0, their kernels keep no relative precision.
SATURATING_OPERATORS = ("HardSigmoid", "Sigmoid")


@frozen_keywords
class Judge:
    """Decides whether a run result of the candidate agrees with the reference.

    Attributes:
        model: the reference's values and rounding noise.
        runtime: the runtime under test; its precision and its own model widen the tolerance.
        rule: the rule that compares two values.
        criterion: the rule as the user named it.
        score: the task's score, which replaces the rule for the full model; None if only the rule
            decides.
        needs_evidence: whether outputs that show nothing about the candidate do not count as right,
            for the full model and for `scope`.
        scope: the region in question in addition to the full model; None for none.
    """

    model: ReferenceModel
    runtime: CandidateRuntime
    rule: Rule
    criterion: str = ""
    score: ByScore | None = None
    needs_evidence: bool = True
    scope: Region | None = None

    def with_criterion(self, criterion: str) -> Judge:
        """Return the judge that applies another criterion to the same results."""
        return replace(self, criterion=criterion, rule=parse_criterion(criterion))

    def ignore_evidence(self) -> Judge:
        """Return the judge that accepts outputs that show nothing about the candidate."""
        return replace(self, needs_evidence=False)

    @cached_property
    def precision(self) -> Precision:
        """The precision that the candidate claims to compute in.

        A claim of int8 is ignored if the model quantizes itself: its own steps bound the error,
        and the remaining nodes are computed as precisely as in any other model.
        """
        other = self.runtime.own_model
        claim = self._declared
        is_quantized_itself = not other and quantizes_itself(self.model.graph)
        if claim is Precision.INT8 and is_quantized_itself:
            return Precision.FP32
        return claim

    @property
    def _declared(self) -> Precision:
        """The precision that the user, the candidate's own model or the backend declares."""
        other = self.runtime.own_model
        of_model = other.precision if other else None
        return Precision(
            self.runtime.candidate.precision or of_model or self.runtime.about.precision
        )

    @property
    def has_fixed_point(self) -> bool:
        """Whether the candidate declares int8: its arithmetic may be fixed point."""
        return self._declared is Precision.INT8

    def find_claim(self, region: Region) -> Precision:
        """Return the precision that the candidate claims in a region.

        It is the precision that the user declared, or that of the element types there in the model
        of the candidate.
        """
        other = self.runtime.own_model
        if not other or self.runtime.candidate.precision or not other.precision:
            return self.precision
        if self.output_scales(region) is not None:
            return Precision.FP32
        return Precision(other.precision_of(region) or self.runtime.about.precision)

    def output_scales(self, region: Region) -> Mapping[str, Scale] | None:
        """Return the scales of the outputs that a region of the candidate's own model quantizes;
        None if other steps, or its runtime's precision, excuse more."""
        other = self.runtime.own_model
        is_exact = self.runtime.about.precision is Precision.FP32
        if not other or not is_exact or self.runtime.candidate.precision:
            return None
        is_part = region != self.model.whole() or other.is_of_case
        if is_part:
            return other.output_scales(region)
        return None

    # ------------------------------------------------------------ verdicts

    def verdict(self, region: Region, result: RunResult) -> Verdict:
        """Compare each output of each sample with the reference's value.

        Raises:
            BackendError: a file of the result, or of the reference, was overwritten while the
                candidate ran.
        """
        verdict = _judge_pass(self, region, result)
        if not result.first or not verdict.fails:
            return verdict
        first = _judge_pass(self, region, result.first)
        right = {(j.name, j.sample) for j in first.outputs if j.agrees}
        wrong = {(j.name, j.sample) for j in verdict.outputs if j.fails}
        if first.fails and not wrong & right:
            return verdict
        why = f"{describe_run(result.number)}: {verdict.why}"
        return replace(verdict, why=why, from_run=result.number)

    def verdict_of_mixed_run(self, result: RunResult) -> Verdict:
        """Return the verdict on outputs of the full model, a part of which the reference
        computed."""
        return _judge_pass(self.ignore_evidence(), self.model.whole(), result)

    def find_mask(self, name: str, k: int, given: Records) -> Array | None:
        """Return the elements of a model output that are compared in sample `k`; None for all.

        They are booleans of its shape.

        Raises:
            UsageError: the shape of a condition does not fit.
        """
        conditions = self.model.choice.where
        values = self.model.values
        if not conditions or name not in self.model.graph.outputs:
            return None
        values.need([condition.name for condition in conditions])
        return select_elements(conditions, name, values.records[k], given)

    # ------------------------------------------------------------ one pass

    def _judge(self, region: Region, result: RunResult) -> Verdict:
        is_whole = region == self.model.whole()
        needs_evidence = self.needs_evidence and (is_whole or region == self.scope)
        if result.failure:
            verdict = replace(result.failure, stored=result.stored)
            if needs_evidence:
                return _require_evidence(self, region, verdict)
            return verdict
        expected = self._get_expected(region)
        judgements = tuple(
            flatten(
                self._judge_outputs(region, result, records, k)
                for k, records in enumerate(expected)
            )
        )
        if self.score and is_whole and not any(j.signature in WITHOUT_VALUES for j in judgements):
            return self.score.verdict(result, judgements)
        judgements += tuple(_iter_batch_judgements(self, region, result, expected))
        if needs_evidence:
            judgements = _withdraw_mute_outputs(self, result.tensors, judgements)
        status, signature, why = join_judgements(judgements, every=is_whole)
        return Verdict(
            status, signature, why, judgements, {}, result.build, result.run, result.stored
        )

    def _get_expected(self, region: Region) -> Feeds:
        """Return the reference's outputs of a region.

        If the candidate's own model cannot represent the values that enter the region, the
        reference is run on the coarser values that it can represent.
        """
        records = self.model.values.records
        other = self.runtime.own_model
        if other is None or other.find_problem(region):
            return records
        if region == self.model.whole() and not other.is_of_case:
            return records
        coarser = coarsen_inputs(
            other, region, records, self.find_claim(region), self.model.new_folder
        )
        if not coarser:
            return records
        try:
            return self.model.make_values(self.model.run_on_reference(region, coarser))
        except ModelError:
            return records

    def _judge_outputs(
        self, region: Region, result: RunResult, records: Records, k: int
    ) -> Iterator[Judgement]:
        """Judge each output of sample `k`; `records` are the expected values."""
        graph = self.model.graph
        values = self.model.values
        other = self.runtime.own_model
        sample = values.labels[k]
        kinds = find_kinds(graph, region.outputs)
        noise = self.model.noise(region, k)
        scales = self.output_scales(region)
        coarse = not COARSE.isdisjoint(graph.ops[i] for i in region.nodes)
        # those that are not an input of any node that another output needs
        needed_by_nodes = (self.model.graph.reads[i] for i in self.model.whole().nodes)
        ignored = frozenset(self.model.choice.ignored).difference(*needed_by_nodes)
        for name in region.outputs:
            if kinds[name] == CONSTANT or name in ignored:
                continue
            given = result.tensors[k]
            if name not in given:
                yield judge_missing(name, result.others[k], sample)
                continue
            # a file just written is still in memory: mapping it copies nothing
            value = given[name].value(mapped=not result.stored)
            reference = records[name].value()
            mask = self.find_mask(name, k, given)
            if mask is not None and not mask.any():
                yield judge_nothing(name, "no element meets the condition of --where", sample)
                continue
            if (
                mask is not None
                and isinstance(reference, np.ndarray)
                and isinstance(value, np.ndarray)
            ):
                reference, value = limit_to_mask(reference, value, mask)
            half_step = 0.0
            quantized = clipped = None
            if other and isinstance(reference, np.ndarray):
                if scales and name in scales:
                    dtype = find_code_type(other, name)
                    quantized = compute_quantizer_values(scales[name], reference, dtype, coarse)
                elif scale := find_tflite_scale(other, name):
                    largest = find_largest(reference)
                    half_step = find_half_step(other, name, scale, largest)
                    codes = compute_quantizer_values(
                        scale, reference, find_code_type(other, name), coarse
                    )
                    held = ((codes.exact - codes.zero) * codes.step).astype(reference.dtype)
                    lost = np.abs(held - reference).max(initial=0.0)
                    clipped = held if lost <= MAX_CLIPPED_SHARE * largest else None
            is_model_output = name in graph.outputs
            context = OutputContext(
                name,
                self.find_claim(region),
                noise.get_output(name),
                is_model_output,
                half_step,
                len(values.samples),
                self.has_fixed_point and scales is None,
                quantized,
            )
            judged = judge_values(reference, value, self.rule, context, sample)
            if clipped is not None and judged.fails:
                limited = judge_values(clipped, value, self.rule, context, sample)
                judged = judged if limited.fails else replace(judged, label=CLIPPED)
            yield judged


def can_tell(judge: Judge, region: Region) -> bool:
    """Return whether an agreement on a region would be earned, with the reference's values."""
    return _require_evidence(judge, region, Verdict(Status.AGREE)).agrees


def find_score(judge: Judge, result: RunResult, verdict: Verdict) -> ScoreDocument | None:
    """Return the score of the full model; None without a score, or if the candidate returned no
    values for it."""
    if (
        judge.score is None
        or result.failure
        or any(j.signature in WITHOUT_VALUES for j in verdict.outputs)
    ):
        return None
    return judge.score.document(result.tensors)


@contextmanager
def require_files_unchanged(judge: Judge, region: Region, *results: RunResult) -> Iterator[None]:
    """Verify that the files which are compared in this block are those that subcut wrote.

    Raises:
        BackendError: the candidate, or another program, has overwritten one of them.
    """
    hint = "a candidate may write only into its own folders; damaged files are written again"
    try:
        yield
    except InputError as e:  # whatever is read here, subcut has written
        raise BackendError(
            f"a file of subcut is damaged or gone since it was written: {e.what}",
            hint,
            code="store.changed",
        ) from e
    values = judge.model.values
    boundary = region.boundary
    fed = flatten(map(records.get, boundary) for records in values.records)
    files = (record.files for record in fed if record)
    if file := values.watched.find_change(chain(*files, *(result.files for result in results))):
        what = (
            f"while the candidate ran, something wrote over {file}: the results of the comparison"
            " are not reliable"
        )
        raise BackendError(what, hint, code="store.changed")


def iter_conversions(judge: Judge, result: RunResult) -> Iterator[str]:
    """Yield a sentence if outputs of the full model came as float64 that are declared as a
    narrower type."""
    if result.failure:
        return
    declared = {name: judge.model.values.records[0][name].dtype for name in judge.model.outputs}
    given = {name: record.dtype for name, record in result.tensors[0].items() if name in declared}
    wide = [name for name, dtype in given.items() if dtype == "float64" != declared[name]]
    if wide:
        narrow = declared[wide[0]]
        yield (
            f"{', '.join(wide)}: float64 in the candidate, {narrow} in the model; the values"
            " were converted"
        )


def _judge_pass(judge: Judge, region: Region, result: RunResult) -> Verdict:
    with require_files_unchanged(judge, region, result):
        return judge._judge(region, result)


def _require_evidence(judge: Judge, region: Region, verdict: Verdict) -> Verdict:
    """Withdraw an agreement without values if even the reference's own values show nothing."""
    if not verdict.agrees:
        return verdict
    judge.model.capture(region)
    values = judge.model.values
    judgements = _withdraw_mute_outputs(
        judge,
        values.records,
        [
            Judgement(name, verdict.status, why=verdict.why, sample=sample)
            for sample, name in product(values.labels, region.outputs)
        ],
    )
    status, signature, why = join_judgements(judgements, every=True)
    return replace(verdict, status=status, signature=signature, why=why, outputs=judgements)


def _withdraw_mute_outputs(
    judge: Judge, given: Feeds, judgements: Sequence[Judgement]
) -> tuple[Judgement, ...]:
    """Withdraw the agreement of outputs that tell nothing about the candidate, unless some
    output fails."""
    allowed = judge.model.choice.may_be_empty
    judgements = tuple(
        replace(j, status=Status.AGREE) if is_mute(j) and j.name in allowed else j
        for j in judgements
    )
    # Only if no output decides: one that agrees would vouch for one that differs.
    doubted = tuple(map(partial(_doubt_saturated, judge, given), judgements))
    if all(j.is_unresolved for j in doubted):
        judgements = doubted
    if any(j.fails for j in judgements):
        return judgements
    samples = group_values(
        (judgement.name, judgement)
        for judgement in judgements
        if judgement.agrees and judgement.name not in allowed
    )
    reasons = {name: _explain_mute(judge, given, of_output) for name, of_output in samples.items()}
    return tuple(
        (
            replace(j, status=Status.UNRESOLVED, label=NOTHING, why=why)
            if (why := reasons.get(j.name))
            else j
        )
        for j in judgements
    )


def _doubt_saturated(judge: Judge, given: Feeds, judgement: Judgement) -> Judgement:
    """Withdraw the failure of a Sigmoid whose values all are about 0: kernels keep an error
    relative to 1 there, and the reference's own may be as large."""
    graph = judge.model.graph
    is_saturating = find_operator(graph, judgement.name) in SATURATING_OPERATORS
    is_noise = judge.criterion.partition(":")[0] == "noise"
    if judgement.signature is not Signature.MISMATCH or not (is_noise and is_saturating):
        return judgement
    k = judge.model.values.labels.index(judgement.sample)
    records = judge.model.values.records[k][judgement.name], given[k][judgement.name]
    largest = max(find_largest(record.array()) for record in records)
    if not largest < MAX_HEALTHY_ERROR:
        return judgement
    why = f"its values are so small (at most {largest:.2g}) that 0 would be about as near"
    return replace(judgement, status=Status.UNRESOLVED, signature=None, label=NOTHING, why=why)


def _explain_mute(judge: Judge, given: Feeds, judgements: Sequence[Judgement]) -> str:
    """Return the reason why an output shows nothing in any of the samples that agree.

    Returns:
        "" if it shows something in one of them.
    """
    name = judgements[0].name
    why = ""
    for judgement in judgements:
        k = judge.model.values.labels.index(judgement.sample)
        mask = judge.find_mask(name, k, given[k])
        reference = _limit_to_mask(judge.model.values.records[k][name].value(), mask)
        candidate = _limit_to_mask(given[k][name].value(), mask)
        samples = judge.model.others.outputs_without(k, [name])
        others = [_limit_to_mask(sample[name].value(), mask) for sample in samples]
        why = explain_mute(reference, candidate, others)
        if not why:
            return ""
    return why


def _iter_batch_judgements(
    judge: Judge, region: Region, result: RunResult, expected: Feeds
) -> Iterator[Judgement]:
    """Judge small outputs of the model over all samples as one tensor, each element with its
    own scale.

    Yields only judgements that do not agree: they reveal more than the samples alone.
    """
    if judge.criterion.partition(":")[0] != "noise" or judge.model.choice.where:
        return
    for name in region.outputs:
        if name not in judge.model.outputs:
            continue
        made = [tensors[name].value() if name in tensors else None for tensors in result.tensors]
        reference = make_batch([records[name].value() for records in expected])
        candidate = make_batch(made)
        if reference is None or candidate is None:
            continue
        noises = [judge.model.noise(region, k) for k in range(len(expected))]
        noise = BatchNoise(noises[0], name, [of_sample.get_output(name) for of_sample in noises])
        context = OutputContext(name, judge.precision, noise, True, samples=len(expected))
        judgement = judge_values(reference, candidate, judge.rule, context)
        if not judgement.agrees:
            yield assign_to_sample(
                judgement, expected[0][name].shapes[0], judge.model.values.labels
            )


def compute_quantizer_values(
    scale: Scale, exact: Array, dtype: str, is_coarse: bool
) -> QuantizedValues:
    """Return the values that a quantizer with one scale rounds, in its steps."""
    limits = np.iinfo(dtype)
    (step,) = scale.step
    (zero,) = scale.zero
    steps = np.clip(exact.astype(np.float64) / step + zero, limits.min, limits.max)
    return QuantizedValues(steps, step, zero, is_coarse)


def _limit_to_mask(value: Value, mask: Array | None) -> Value:
    """Return the elements of a tensor that are compared; a value of another shape unchanged."""
    if mask is None or not isinstance(value, np.ndarray) or value.shape != mask.shape:
        return value
    return np.asarray(value[mask])


class JudgeProperties:
    """Properties of an object with a judge."""

    judge: Judge

    @property
    def model(self) -> ReferenceModel:
        """The model on the reference: values, cuts, rounding noise."""
        return self.judge.model

    @property
    def graph(self) -> Graph:
        """The model."""
        return self.judge.model.graph

    @property
    def values(self) -> ReferenceValues:
        """The reference's values of all samples."""
        return self.judge.model.values

    @property
    def full_model(self) -> Region:
        """The full model, as a region."""
        return self.judge.model.whole()

    @property
    def runtime(self) -> CandidateRuntime:
        """The runtime under test."""
        return self.judge.runtime

    @cached_property
    def writer(self) -> ModelWriter:
        """The writer of the models that the candidate is given."""
        return ModelWriter(self.model, self.runtime)
