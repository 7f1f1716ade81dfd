"""Errors that rounding alone explains, drawn on the reference for each slice: the criterion fails
where the error is k times that (the default)

The slices of an output are the full tensor and, per axis, each index, except the classes of a
distribution. Axes of length 1 count as dropped, slices of fewer than 4 elements are omitted. With c
the precision that the candidate claims (no finer than the region's own float types), eps its unit
roundoff and q half of float16's smallest step, or of a tensor's scale in TensorFlow Lite (1/256 of
a Softmax, as specified; of a chosen one no more than 1/127 of the largest value), of a slice s:

    S  its largest |reference|
    E  its largest |candidate − reference|
    N  the largest |perturbed − reference| of 4 runs, every value perturbed by one rounding (8 runs
       downstream of a choice)
    X  the largest |rounded − reference|, rounded to c after every node; below fp32, where it is
       known
    n = max(t·N, X) + eps·S + q, with t = min(1, 10·(X + eps·S) / N) of the full tensor: noise far
        beyond X is scaled down

    explained  E ≤ k·(1 + 8/|s|)·n; or 2e-3·S (fp32); or 1e-6 of the full tensor's S. k is 10 (fp32)
               or 3; 8/|s| is 0 for the full tensor
    usable     E ≤ cap·S, or 1e-6 of the full tensor's S, or k·q; cap is 1e-2 (fp32), 0.1 (fp16),
               0.2 (bf16, int8). If all values are in 0 … 1, S counts as 0.05 at least. In fp32
               every tensor must be usable, in other precisions only the model's outputs

An output agrees if all its slices are explained and usable. It fails if a slice is not explained.
Its label is "fail, precision" if a slice is explained but not usable, whatever the cause of the
error, or if rounding after every node alone destroys a model's output. The worst slice is named.
Other labels:

    steps               agrees by the model's own steps, by more than 2e-3 of the scale; or see
                        below
    jumps               agrees, because single elements jump downstream of a choice; `bisect` runs
                        each node isolated
    precision           agrees below fp32, by more than 2e-3 of the scale
    range               (fp16, bf16) the reference, rounded to c after every node, is infinite if
                        the candidate is; of a model's output only where the reference itself is
                        beyond c's largest value
    approximate kernel  (fp32) fails with a floor below 2e-3, but is within that: `noise:floor=0`
                        lists them
    ties                E ≤ N' of runs that perturb k times as much and break ties between equal
                        sums, as a runtime does that adds terms in another order; and likewise the
                        root mean squares. Tried where the output fails, many sums are equal (all
                        weights the same, for example), and no choice is involved. A softmax of
                        large equal numbers needs this; in fp32 it is unresolved beyond the cap
    unresolved          explained, but beyond half of S: such noise would hide any bug. A model's
                        output has the label `verdict.NOTHING`

Runs are avoided. E ≤ 1e-6·S of the full tensor agrees at once. Nothing is run if eps·S + q, the
2e-3 or the 1e-6 allow the error. If X allows the error, only the run for X is needed. If the error
is 10 times larger than one perturbed run allows, no further run follows.

A region that quantizes its values (QuantizeLinear and its kind) is judged by its own steps,
whatever the candidate claims. 8 perturbed runs also move 1 % of the elements downstream of each
quantizer by one step; k is 3, the cap 0.2, q half a step of an output that was just dequantized,
and X bounds nothing. If the n of a model's output is beyond its cap, or only steps explain that
the output is, it is unresolved, with the label "steps": the regions between the quantizers decide
(`trials.doubt`). The steps themselves may deviate by one anywhere, by more if perturbed runs show
half as much.

A model's output without slices, of fewer than 100 numbers, is also judged over its samples, as a
batch, if there are four (`comparison.noise.noise.make_batch`). With fewer samples, below fp32 or by
steps, it is unresolved if one element deviates by more than half of its value and by more than half
of the cap; or if half of the elements do, with a tenth of the cap.

Decisions: where a model's output is a distribution, its logarithm, or logits of a vocabulary
(`_decisions.class_axis`), a changed winner fails if no perturbed run changes it and its margin is
beyond 3·(n_winner + n_other); other changes are "fail, precision". Margins within the rounding of
both values (within 2e-3 in fp32) are ties.

Downstream of a choice (an index, a comparison) single elements jump. If some do in perturbed runs,
those of the candidate may jump as far, and twice as many; the others are judged by the noise
without jumps. An output that is not usable, downstream of TopK and other operators whose order
rounding changes, is unresolved, label "ranks".

Scores with a mask added (−10⁴ and the like) are judged apart from the mask's plateau, which would
set the scale. NaN and infinities of the reference alone are never excused.

Other values: indices of TopK, ArgMax, ArgMin may be i → j only if 0 < |v_i − v_j| ≤ 3·(noise_i +
noise_j) (equal values never: ONNX fixes their order; but downstream of quantization, if a perturbed
run breaks that tie). Quantized values, also those that were just dequantized, have a limit of their
distance from the exact values if no other quantizer of the region is upstream. It is 0.55 of a
step, or 0.5 + k·eps of the largest exact value. It is 1.5 steps downstream of operators whose
integer kernels are tables (`properties.COARSE`), in recordings, and if the candidate declares int8,
because it can compute in fixed point. Twice as many elements as in the worst of 8 runs may exceed
the limit. Other quantized values may deviate by one step, or by twice the deviation of perturbed
runs, in twice their share of elements plus one. Booleans and classes: the same share; the one
element only if perturbed runs change some too, or if there are 100. NonMaxSuppression: as sets.
Values that no rounding reaches must be equal.

Values of another model that its quantizer rounds, where no other step adds up, may be as far from
the nearest code, and must agree as int8: the quantizer can clip them.

Quantized values of TensorFlow Lite's operators may deviate by one step. Inside of these operators
nothing can be perturbed, but their results can: floats by one rounding, and perturbed runs move 1 %
of the codes that enter an operator by one step. The output's codes may deviate by twice as many
steps as in these runs, plus one, in twice as many elements, plus one. If these runs move a model's
output beyond its cap, it is unresolved, label "steps", as above.

If noise cannot be measured, an error beyond the cap fails, an error within 1e-5 of the scale of
each slice agrees, and an error between the two is unresolved.

Without noise (recordings), fp32 keeps its 2e-3 per slice; lower precision is unresolved up to
E = S, or for a model's output up to the cap.

The constants were measured on 31 networks, nine healthy runtimes and 20 real bugs, and on 20
trained models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from subgraph.comparison import CLIPPED, STEPS
from subgraph.comparison.criteria import (
    Noise,
    OutputContext,
    QuantizedValues,
    Ranking,
    Rule,
    Ruling,
    agree,
    all_equal,
    fail,
    parse_number,
    settle,
)
from subgraph.comparison.criteria._decisions import compute_jaccard_distance, find_misranked
from subgraph.comparison.criteria._float_rule import (
    JUMP_RUNS,
    MAX_SHARE,
    SHAPE_VARIES,
    judge_floats,
    judge_floats_without_noise,
)
from subgraph.comparison.criteria._floats import CAP, PRECISION_LOST, Floats, K
from subgraph.comparison.float_types import mask_plateau
from subgraph.comparison.pair import Pair, find_mask_differences
from subgraph.errors import ModelError, UsageError, WorkerDied
from subgraph.graph.quantization import CARRIERS, QUANTIZERS
from subgraph.precision import Precision
from subgraph.storage.tensors import find_largest
from subgraph.text import count
from subgraph.types import Array
from subgraph.verdict import Signature, Status

USAGE = "noise, noise:k=5 or noise:k=5,floor=0"
# Limits as multiples of the values in perturbed runs: Jaccard distance, gaps between values, steps.
MAX_DISTANCE = 1.5
MAX_GAP = 3.0
MAX_STEPS = 2.0
MAX_CODES = 0.5  # of a type's range: the sum that the roundings of several operators can reach
MAX_TIE_DISTANCE = 0.05  # of a step: a value this near to the middle of two codes may become either
MIN_ELEMENTS = 100  # among fewer, a single changed element fails


def rule(options: str) -> Rule:
    """Return the rule above. Options: `k=` replaces k for every claim, `floor=` (of S) replaces
    fp32's 2e-3 for every claim.

    Raises:
        UsageError: other options, or no positive numbers.
    """
    k, floor = _parse(options)

    def judge(pair: Pair, context: OutputContext) -> Ruling:
        try:
            return _judge(pair, context, k, floor)
        except (ModelError, WorkerDied) as e:
            # Only cases that are plain without noise are decided.
            why = f"rounding noise could not be measured: {e.what}"
            if pair.floating:
                with np.errstate(all="ignore"):
                    ruling = _find_worst(
                        judge_floats_without_noise(part, why)
                        for part in _iter_parts(Floats(pair, replace(context, noise=None)))
                    )
                return replace(ruling, label="range") if pair.masked and ruling.agrees else ruling
            early_ruling = _judge_no_floats_without_noise(pair)
            return replace(early_ruling, why=f"{_describe_changed(pair)}; {why}")

    return judge


def _parse(options: str) -> tuple[float | None, float | None]:
    """Parse `k` and `floor`, None unless set."""
    values = {}
    for option in filter(None, options.strip().split(",")):
        name, sign, text = (part.strip() for part in option.partition("="))
        if name not in ("k", "floor") or not sign or name in values:
            raise UsageError(
                f"criterion 'noise' does not understand '{option}'",
                f"write {USAGE}",
                code="criterion.malformed",
            )
        values[name] = parse_number(text, USAGE)
        if values[name] < 0 or (name == "k" and values[name] == 0):
            raise UsageError(
                f"criterion 'noise': {name} = {values[name]:g} lets nothing agree",
                f"write {USAGE}",
                code="criterion.out-of-range",
            )
    return values.get("k"), values.get("floor")


def _judge(pair: Pair, context: OutputContext, k: float | None, floor: float | None) -> Ruling:
    noise = context.noise
    if pair.masked and (ruling := _judge_masks(pair, context)):
        return ruling
    if not pair.compared:
        if pair.masked:
            return Ruling(
                Status.UNRESOLVED,
                "range",
                f"no value was compared: all are beyond the range of {context.claim}",
            )
        return settle(pair) or Ruling(Status.UNRESOLVED, why="nothing was compared")
    if not pair.changed:
        return agree(all_equal(pair))
    if noise and pair.kind == "integer" and noise.are_codes():
        return _judge_codes(pair, context, noise)
    if noise and context.quantized:
        return _judge_codes_of_other_model(pair, context, noise, context.quantized, (k, floor))
    if noise and (quantized := noise.find_quantized_values()):
        return _judge_nearest_codes(pair, context, noise, quantized, k or K[context.claim])
    if (
        noise
        and (not pair.floating or noise.depends_on_choice())
        and (ranking := noise.ranking(context.claim))
    ):
        return _judge_indices(pair, context.claim, noise, ranking)
    if pair.floating:
        with np.errstate(all="ignore"):  # limits of huge values overflow, and 0 / 0 is no error
            ruling = _find_worst(map(judge_floats, _iter_parts(Floats(pair, context, k, floor))))
        return replace(ruling, label="range") if pair.masked and ruling.agrees else ruling
    return (
        _judge_no_floats(pair, context.claim, noise)
        if noise
        else _judge_no_floats_without_noise(pair)
    )


# Values at least as large represent infinity: the lowest float32 is a mask, too.
MIN_MASK_VALUE = 1e30


def _iter_parts(floats: Floats) -> Iterator[Floats]:
    """Yield the whole output; or, for scores with a mask's plateau, each of the two: they have
    different scales."""
    plateau = mask_plateau(floats.pair.reference) if floats.pair.kind == "float" else None
    if plateau is None:
        yield floats
        return
    for part, subject in ((~plateau, "what is not masked"), (plateau, "the mask")):
        yield replace(floats, part=part.reshape(-1), subject=subject)


def _find_worst(rulings: Iterable[Ruling]) -> Ruling:
    """Return the ruling that decides: fail before unresolved before agree, and a label other than
    "agrees" before that."""
    order = (Status.AGREE, Status.UNRESOLVED, Status.FAIL)
    return max(
        rulings,
        key=lambda r: (order.index(r.status), r.label == "fail", r.label not in ("", "agrees")),
    )


def _judge_masks(pair: Pair, context: OutputContext) -> Ruling | None:
    """Judge NaN and infinities that differ; None if the claimed type's range
    excuses all of them."""
    claim = context.claim
    noise = context.noise
    if not claim.narrow or pair.kind == "complex":
        return settle(pair)
    reference = pair.reference.astype(np.float64).reshape(-1)
    unequal = find_mask_differences(pair)
    if not np.isfinite(reference[unequal]).all():
        return settle(pair)
    unexcused = unequal & ~(np.abs(reference) > claim.largest)
    if not unexcused.any():
        plateau = mask_plateau(pair.reference)
        infinite = unequal if plateau is None else unequal & ~plateau.reshape(-1)
        infinite &= np.abs(pair.reference.reshape(-1)) < MIN_MASK_VALUE
        if not context.is_model_output or not infinite.any():
            return None
        return Ruling(
            Status.FAIL,
            PRECISION_LOST,
            f"{int(infinite.sum())} of {pair.size} values are infinite: beyond the range of"
            f" {context.claim}",
            Signature.PRECISION,
        )
    if noise is None:
        return Ruling(
            Status.UNRESOLVED,
            why=f"NaN or infinite in the candidate alone: perhaps beyond the range of {claim}",
        )
    rounded = noise.round_nodes(claim).astype(np.float64).reshape(-1)
    if rounded.size != unexcused.size or np.isfinite(rounded[unexcused]).any():
        return settle(pair)
    if not context.is_model_output:
        return None
    return Ruling(
        Status.FAIL,
        PRECISION_LOST,
        f"{int(unexcused.sum())} of {pair.size} values are NaN or infinite; so they are rounded to"
        f" {claim}: not usable",
        Signature.PRECISION,
    )


def _judge_indices(pair: Pair, claim: Precision, noise: Noise, ranking: Ranking) -> Ruling:
    """Judge indices of TopK, ArgMax and ArgMin."""
    wrong = find_misranked(pair.reference, pair.candidate, ranking, MAX_GAP)
    # Quantized values can be equal by chance: a run may break the tie.
    if wrong.any() and noise.depends_on_steps():
        wrong &= ~np.any(
            [values != pair.reference for values in noise.perturb(claim, JUMP_RUNS)], axis=0
        )
    if wrong.any():
        return fail(f"{int(wrong.sum())} of {pair.size} indices select another element")
    differing = f"{pair.changed} of {pair.size} indices differ"
    return agree(f"{differing}, all between values closer than rounding noise")


def _judge_no_floats(pair: Pair, claim: Precision, noise: Noise) -> Ruling:
    """Judge integers, booleans and strings, which must be equal, or differ as noise explains."""
    if not (noise.depends_on_choice() or noise.depends_on_steps()):
        return fail(f"{_describe_changed(pair)}, and rounding cannot change any")
    runs = noise.perturb(claim, JUMP_RUNS)
    if noise.op_type() == "NonMaxSuppression":
        distance = compute_jaccard_distance(pair.reference, pair.candidate)
        limit = MAX_DISTANCE * max(
            compute_jaccard_distance(pair.reference, values) for values in runs
        )
        ruling = agree if distance <= limit else fail
        return ruling(f"Jaccard distance of the sets: {distance:.3f}, allowed {limit:.3f}")
    if any(values.shape != pair.reference.shape for values in runs):
        return SHAPE_VARIES
    pairs = [Pair(pair.reference, values) for values in runs]
    if (
        noise.quantizes()
        and not noise.depends_on_choice()
        and noise.op_type() in QUANTIZERS | CARRIERS
    ):
        return _judge_steps(pair, pairs)
    most = max(p.changed for p in pairs)
    one = 0 if noise.depends_on_choice() and not most and pair.size < MIN_ELEMENTS else 1
    allowed = int(MAX_SHARE * most + one)
    if pair.changed > allowed:
        return fail(f"{_describe_changed(pair)}, allowed {allowed}")
    if noise.depends_on_steps() and pair.kind == "integer":
        steps = max(1.0, MAX_STEPS * max(p.error for p in pairs))
        if pair.error > steps:
            return fail(
                f"{_describe_changed(pair)}, by up to {pair.error:g} steps, allowed {steps:g}"
            )
    return agree(f"{_describe_changed(pair)}, allowed {allowed}")


def _judge_codes_of_other_model(
    pair: Pair,
    context: OutputContext,
    noise: Noise,
    quantized: QuantizedValues,
    options: tuple[float | None, float | None],
) -> Ruling:
    """Return values that a quantizer of the candidate's model rounds: by its steps, then as int8,
    because its scale can clip them."""
    nearest = _judge_nearest_codes(pair, context, noise, quantized, options[0] or K[context.claim])
    if not nearest.agrees:
        return nearest
    as_int8 = replace(context, claim=Precision.INT8, quantized=None)
    ruling = _judge(pair, as_int8, *options)
    return nearest if ruling.agrees else replace(ruling, label=CLIPPED)


def _judge_nearest_codes(
    pair: Pair, context: OutputContext, noise: Noise, quantized: QuantizedValues, k: float
) -> Ruling:
    """Return the ruling of codes, each of which must be the nearest to its exact value, or as near.

    The exact values are those that their quantizer rounds.
    """
    largest = find_largest(quantized.exact - quantized.zero)
    has_next_codes = float(quantized.is_coarse or context.has_fixed_point)
    allowed = 0.5 + max(MAX_TIE_DISTANCE, k * context.claim.eps * largest, has_next_codes)

    def is_far(values: Array) -> Array:
        return np.asarray(np.abs(quantized.measure_distances(values)) > allowed)

    far = is_far(pair.candidate)
    changed = _describe_changed(pair)
    if not far.any():
        return agree(f"{changed}, each to a code as near to the value that is quantized")
    runs = noise.perturb(context.claim, JUMP_RUNS)
    most = int(MAX_SHARE * max(np.count_nonzero(is_far(values)) for values in runs))
    count = int(np.count_nonzero(far))
    distances = quantized.measure_distances(pair.candidate)[far]
    high = int(np.count_nonzero(distances > 0))
    furthest = float(np.abs(distances).max())
    why = (
        f"{changed}, {count} of them to a code that is not the nearest to the value that is"
        f" quantized ({high} too high, {count - high} too low), up to {furthest:.2g} steps away;"
        f" allowed {most}"
    )
    return agree(why) if count <= most else fail(why)


def _judge_steps(pair: Pair, runs: Sequence[Pair], own: int = 0, spare: int = 0) -> Ruling:
    """Judge steps that the region itself makes, and what perturbed runs make of them: a value may
    take the next one anywhere, and others where perturbed runs show as many, or in `spare` elements
    more. `own`: steps that no run shows."""
    allowed = max(1.0, own + MAX_STEPS * max(p.error for p in runs))
    share = int(MAX_SHARE * max(np.count_nonzero(p.difference > 1) for p in runs)) + spare
    far = int(np.count_nonzero(pair.difference > 1))
    most = f"by up to {count(int(pair.error), 'step')}"
    if far > share or pair.error > allowed:
        limit = f"allowed {allowed:g}, in {share} of them beyond one" if share else "allowed one"
        return fail(f"{_describe_changed(pair)}, {most}, {limit}")
    return agree(f"{_describe_changed(pair)}, {most}")


def _judge_codes(pair: Pair, context: OutputContext, noise: Noise) -> Ruling:
    """Judge quantized values of TensorFlow Lite's operators by their own steps.

    The result is unresolved if one step makes a model's output unusable.
    """
    differ = f"{pair.changed} of {count(pair.size, 'code')} differ"
    if pair.error <= 1:
        return agree(f"{differ}, by one step")
    try:
        runs = [Pair(pair.reference, values) for values in noise.perturb(context.claim, JUMP_RUNS)]
    except (ModelError, WorkerDied):
        info = np.iinfo(pair.reference.dtype)
        beyond = pair.error > MAX_CODES * (int(info.max) - int(info.min))
        why = f"{differ}, by up to {pair.error:g} steps"
        if beyond:
            return fail(why)
        return Ruling(Status.UNRESOLVED, why=f"{why}: roundings may add up, or not")
    if any(run.reference.shape != run.candidate.shape for run in runs):
        return SHAPE_VARIES
    moved = max(run.error for run in runs)
    steps = _judge_steps(pair, runs, own=1, spare=int(moved > 0))
    spread = float(np.ptp(pair.reference.astype(np.int64)))
    if steps.agrees and context.is_model_output and moved > CAP[Precision.INT8] * spread:
        part = moved / (spread or 1.0)
        return Ruling(
            Status.UNRESOLVED,
            STEPS,
            f"{steps.why}; the model turns one quantization step into {100 * part:.0f} % of its"
            " output",
            noise=moved,
        )
    return steps


def _judge_no_floats_without_noise(pair: Pair) -> Ruling:
    """Return the ruling of values that are not floats, without noise."""
    why = f"{_describe_changed(pair)}; rounding noise could not be measured"
    return fail(why) if pair.changed / pair.size > 0.5 else Ruling(Status.UNRESOLVED, why=why)


def _describe_changed(pair: Pair) -> str:
    """Return `3 of 1,000 booleans changed`."""
    noun = {"boolean": "boolean", "string": "text"}.get(pair.kind, "element")
    return f"{pair.changed} of {count(pair.size, noun)} changed"
