"""How far rounding alone moves the output, drawn on the reference: fails where the error is k times that (the default)

Per output, with c the precision that the candidate claims (no finer than the region's own float types), eps its unit
roundoff, S = max|reference|, err = max|candidate − reference| over finite elements, and the rounding noise
N = max over 4 perturbed runs of |perturbed − reference| + eps·S + q (q: half of float16's smallest step):

    agrees              err ≤ max(floor, k·eps)·S: nothing is run; or err ≤ k·N
    range               (fp16, bf16) the reference, rounded to c after every node, is within k·N of the candidate; or it
                        is infinite exactly where the candidate is
    approximate kernel  (fp32) err ≤ 1e-3·S; seen only with a floor below that
    precision           agrees at c, but exceeds 10·N in fp32 (1e-3·S, where nothing is run)
    ties                err ≤ N' of runs that perturb k times as much and break ties between equal sums, as a runtime
                        does that adds terms in another order; and likewise the root mean squares. Tried where the
                        output fails, many sums are equal (all weights the same, for example), and no choice is
                        involved. A softmax of large equal numbers needs this
    unresolved          (below fp32) err ≤ k·N, but beyond half of S: such noise would hide any bug
    fail                all others; after one run if err > 10·k·N and no other label can apply. NaN and infinities of
                        the reference alone are never excused

Behind a choice (an index, a comparison) N holds the jumps of the perturbed runs, and could hide a bug. There the share
of elements beyond k·(Q + eps·S + q) must also be at most twice that of the worst of 8 runs beyond Q + eps·S + q, plus
one element. Q, the noise without jumps, is the 0.9 quantile over elements of the largest deviation. So a single wrong
element needs a run that moved as far, and many wrong elements need runs that moved as many.

Scores with a mask added (−10⁴ and the like) are judged apart from the mask's plateau, which would set the scale.

Other values: indices of TopK, ArgMax, ArgMin may be i → j only if 0 < |v_i − v_j| ≤ 3·(noise_i + noise_j) (equal values
never: ONNX fixes their order; but behind quantization, if a perturbed run breaks that tie). Quantized values may be off
by one step, or twice what perturbed runs show, in twice the share of the worst of 8 runs plus one element. Booleans and
classes: the same share; the one element only if perturbed runs change some too, or if there are 100. NonMaxSuppression:
as sets. Values that no rounding reaches must be equal.

Without noise (recordings), fp32 keeps its floor, and lower precision is unresolved up to err = S.

The constants were measured on 31 networks, nine healthy runtimes and 20 real bugs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from subgraph.comparison.criteria import Noise, OutputContext, Ranking, Rule, Ruling, agree, fail, parse_number, settle
from subgraph.comparison.criteria._indices import jaccard_distance, misranked
from subgraph.comparison.pair import Pair
from subgraph.comparison.precision import EPS, FLOATS, HALF_STEP, LARGEST, coarser_claim, mask_plateau
from subgraph.errors import ModelError, UsageError, WorkerDied
from subgraph.text import clean, count
from subgraph.types import Array
from subgraph.verdict import Signature, Status

USAGE = "noise, noise:k=5 or noise:k=5,floor=0"
K = {"fp32": 10.0, "fp16": 3.0, "bf16": 3.0, "int8": 2.0}  # one false alarm in 5,500 healthy rows
FLOOR = 1e-3  # of S, fp32: exceeded by 4 of 3,383 healthy verdicts; what is within costs no runs
APPROXIMATE = 1e-3  # of S, fp32: tanh and exp by polynomials reach this
PRECISION = 10.0  # times N: BERT in bf16 has 5,600 in fp32 and 0.24 in bf16
RUNS, JUMP_RUNS = 4, 8  # perturbed runs; behind a choice or steps
CLEAR = 10.0  # times k·N: fails after one run
QUANTILE = 0.9  # one of eight runs is expected to show 1.3 % of its elements beyond it
# Limits as multiples of what perturbed runs show: changed elements, Jaccard distance, gaps between values, steps.
MAX_SHARE, MAX_DISTANCE, MAX_GAP, MAX_STEPS = 2.0, 1.5, 3.0, 2.0
MIN_ELEMENTS = 100  # among fewer, a single changed element fails
DROWNED = 0.5  # of S: noise that explains a larger error would explain anything
HOPELESS = 1.0  # of S: without noise, a smaller error is unresolved in low precision


def rule(options: str) -> Rule:
    """The rule above. Options: `k=` replaces K for every claim, `floor=` (of S) replaces the floor.

    Raises:
        UsageError: other options, or no positive numbers.
    """
    k, floor = _parse(options)

    def judge(pair: Pair, context: OutputContext) -> Ruling:
        try:
            return _worst(_Part(pair, context, k, floor, part).judge() for pair, part in _parts(pair))
        except (ModelError, WorkerDied) as e:
            return Ruling(Status.UNRESOLVED, why=f"no noise to compare with: {e.what}")

    return judge


def _parts(pair: Pair) -> list[tuple[Pair, Array | None]]:
    """The whole output; or, for scores with a mask's plateau, each of the two: they have different scales."""
    plateau = mask_plateau(pair.reference) if pair.kind == "float" else None
    if plateau is None:
        return [(pair, None)]
    return [(Pair(pair.reference[part], pair.candidate[part]), part) for part in (~plateau, plateau)]


def _worst(rulings: Iterable[Ruling]) -> Ruling:
    """The ruling that decides: fail before unresolved before agree, and a label other than "agrees" before that."""
    order = (Status.AGREE, Status.UNRESOLVED, Status.FAIL)
    return max(rulings, key=lambda r: (order.index(r.status), r.label not in ("", "agrees")))


def _parse(options: str) -> tuple[float | None, float | None]:
    """`k` and `floor`, None unless set."""
    values: dict[str, float] = {}
    for option in filter(None, options.strip().split(",")):
        name, sign, text = (part.strip() for part in option.partition("="))
        if name not in ("k", "floor") or not sign or name in values:
            raise UsageError(f"criterion 'noise' does not understand '{clean(option)}'", f"write {USAGE}")
        values[name] = parse_number(text, USAGE)
        if values[name] < 0 or (name == "k" and values[name] == 0):
            raise UsageError(f"criterion 'noise': {name} = {values[name]:g} lets nothing agree", f"write {USAGE}")
    return values.get("k"), values.get("floor")


@dataclass(frozen=True)
class _Part:
    """An output, or the part of it with a scale of its own, and all that judges it.

    Attributes:
        pair: the elements of the part.
        k_option, floor_option: as the user set them, None for the default.
        part: which elements of the output these are, booleans of its shape; None for all.
    """

    pair: Pair
    context: OutputContext
    k_option: float | None
    floor_option: float | None
    part: Array | None

    @cached_property
    def coarsest(self) -> str:
        """The coarsest float type of the region, as far as it is known."""
        noise, own = self.context.noise, self.pair.reference.dtype.name
        return noise.coarsest_type() if noise else own if own in FLOATS else "float64"

    @cached_property
    def claim(self) -> str:
        """The claim that the candidate can be held to."""
        return coarser_claim(self.context.claim, self.coarsest)

    @cached_property
    def k(self) -> float:
        return K[self.claim] if self.k_option is None else self.k_option

    @cached_property
    def floor(self) -> float:
        if self.floor_option is not None:
            return self.floor_option
        return FLOOR if self.context.claim == "fp32" else 0.0

    def last_rounding(self, claim: str) -> float:
        """eps·S + q: what rounding the output itself does."""
        return EPS[claim] * self.pair.scale + HALF_STEP.get(claim, 0.0)

    def perturbed(self, noise: Noise, claim: str, runs: int) -> list[Array]:
        """This part of the output of perturbed runs."""
        return [self.select(values) for values in noise.perturbed(claim, runs)]

    def select(self, values: Array) -> Array:
        """The elements of this part, if `values` have the shape of the whole output."""
        return values[self.part] if self.part is not None and values.shape == self.part.shape else values

    def judge(self) -> Ruling:
        pair, noise = self.pair, self.context.noise
        if pair.masked and (ruling := self.masks()):
            return ruling
        if not pair.compared:
            if pair.masked:
                return Ruling(Status.UNRESOLVED, "range", "nothing was compared: all is beyond the claimed range")
            return settle(pair) or Ruling(Status.UNRESOLVED, why="nothing was compared")
        if not pair.changed:
            return agree(f"all {count(pair.size, 'element')} equal")
        may_rank = noise and self.part is None and (not pair.floating or noise.behind_choice())
        if noise and may_rank and (ranking := noise.ranking(self.context.claim)):
            return self.indices(noise, ranking)
        if pair.floating:
            ruling = self.floats()
            if ruling.status is Status.FAIL:
                ruling = self.ties(noise) or ruling
            return replace(ruling, label="range") if pair.masked and ruling.status is Status.AGREE else ruling
        return self.no_floats(noise) if noise else self.no_floats_without_noise()

    def masks(self) -> Ruling | None:
        """NaN and infinities that differ; None if the range of the claimed type excuses all of them."""
        pair, claim, noise = self.pair, self.context.claim, self.context.noise
        if claim not in LARGEST or pair.kind == "complex":
            return settle(pair)
        reference, unequal = pair.reference.astype(np.float64).reshape(-1), pair.mask_differences
        if not np.isfinite(reference[unequal]).all():
            return settle(pair)
        unexcused = unequal & ~(np.abs(reference) > LARGEST[claim])
        if not unexcused.any():
            return None
        if noise is None:
            return Ruling(Status.UNRESOLVED, why=f"NaN or infinite in the candidate: perhaps beyond {claim}'s range")
        rounded = self.select(noise.rounded(claim)).astype(np.float64).reshape(-1)
        failed = rounded.size != unexcused.size or np.isfinite(rounded[unexcused]).any()
        return settle(pair) if failed else None

    # ------------------------------------------------------------------------------------------------ floats

    def floats(self) -> Ruling:
        """Values that can be rounded, but for `ties`."""
        error, scale, noise = self.pair.error, self.pair.scale, self.context.noise
        allowed = max(self.floor, self.k * EPS[self.claim]) * scale
        if error <= allowed:
            label = "precision" if self.claim != "fp32" and error > FLOOR * scale else "agrees"
            return replace(agree(f"max_abs {error:.1e} within {allowed:.1e}"), label=label)
        return self.floats_with_noise(noise) if noise else self.floats_without_noise()

    def floats_with_noise(self, noise: Noise) -> Ruling:
        error, scale, claim = self.pair.error, self.pair.scale, self.context.claim
        jumps = noise.behind_choice()
        approximate = claim == "fp32" and error <= APPROXIMATE * scale and not jumps
        runs = JUMP_RUNS if jumps or noise.behind_steps() else RUNS
        if runs == RUNS and not approximate and claim not in LARGEST:
            # One run shows a clear failure: the other three would have to move ten times as far.
            moved = self.deviations(self.perturbed(noise, claim, 1))
            if moved and error > CLEAR * self.k * (size := self.noise(moved)):
                return self.ruling(Status.FAIL, "fail", f"beyond {self.k:g} × noise {size:.1e}", size)
        moved = self.deviations(self.perturbed(noise, claim, runs))
        if moved is None:
            return _shape_varies()
        size = self.noise(moved)
        limit = self.k * size
        if self.claim != "fp32" and DROWNED * scale < error <= limit and not jumps and scale:
            why = f"of {scale:.1e}: rounding alone moves it by {size:.1e}, so nothing can be told"
            return self.ruling(Status.UNRESOLVED, "", why, size)
        if error <= limit and (not jumps or self.few_jumps(moved)):
            label = "precision" if self.exceeds_fp32(noise, runs) else "agrees"
            return self.ruling(Status.AGREE, label, f"within {self.k:g} × noise {size:.1e}", size)
        if claim in LARGEST and (distance := self.distance_to_rounded(noise)) <= limit:
            why = f"as near as {distance:.1e} to the reference rounded to {claim} after every node"
            return replace(self.ruling(Status.AGREE, "range", "", size), why=why)
        if approximate:
            why = f"is {error / size if size else math.inf:.0f} × noise, but within {APPROXIMATE:g} of the scale"
            return self.ruling(Status.AGREE, "approximate kernel", why, size)
        failed = self.ruling(Status.FAIL, "fail", f"beyond {self.k:g} × noise {size:.1e}", size)
        more = f"more elements are off than noise explains, by up to {error:.1e}"
        return replace(failed, why=more) if error <= limit else failed

    def noise(self, moved: Sequence[Array]) -> float:
        """N: the largest deviation, and the last rounding."""
        return max(map(_largest, moved)) + self.last_rounding(self.claim)

    def ruling(self, status: Status, label: str, relation: str, size: float) -> Ruling:
        """A ruling by the noise `size`; `relation`: of the error to that."""
        error = self.pair.error
        ratio = {"noise_ratio": error / size if size else math.inf}
        signature = Signature.MISMATCH if status is Status.FAIL else None
        return Ruling(status, label, f"max_abs {error:.1e} {relation}", signature, size, ratio)

    def ties(self, noise: Noise | None) -> Ruling | None:
        """Agreement if equal sums may differ; not behind a choice, which ties decide."""
        if noise is None or noise.behind_choice():
            return None
        broken = [self.select(values) for values in noise.with_broken_ties(self.context.claim, RUNS, self.k)]
        moved = self.deviations(broken)
        if not moved:
            return None
        size, mean = (max(map(norm, moved)) + self.k * self.last_rounding(self.claim) for norm in (_largest, _rms))
        if self.pair.error > size or _rms(self.pair.difference) > mean:
            return None
        why = f"max_abs {self.pair.error:.1e} within {size:.1e}: so far rounding moves it once equal sums come apart"
        ratio = {"noise_ratio": self.k * self.pair.error / size}
        return Ruling(Status.AGREE, "ties", why, noise=size / self.k, metrics=ratio)

    def deviations(self, runs: Sequence[Array]) -> list[Array] | None:
        """|perturbed − reference| of each run, at the elements compared; 0 if not finite. None if a shape differs."""
        deviations = []
        for perturbed in runs:
            if perturbed.shape != self.pair.reference.shape:
                return None
            pair = Pair(self.pair.reference, perturbed)
            each = np.zeros(pair.finite.shape)
            each[pair.finite] = pair.difference
            deviations.append(each[self.pair.finite])
        return deviations

    def few_jumps(self, moved: Sequence[Array]) -> bool:
        """Are no more elements beyond the noise without jumps than perturbed runs show?"""
        usual = float(np.quantile(np.max(moved, axis=0), QUANTILE)) + self.last_rounding(self.claim)
        worst = max(float((each > usual).mean()) for each in moved)
        return float((self.pair.difference > self.k * usual).mean()) <= MAX_SHARE * worst + 1 / self.pair.compared

    def distance_to_rounded(self, noise: Noise) -> float:
        """The largest |candidate − rounded reference|; infinite where that is not finite."""
        rounded = self.select(noise.rounded(self.context.claim))
        if rounded.shape != self.pair.candidate.shape:
            return math.inf
        other = Pair(rounded, self.pair.candidate)
        return other.error if bool(other.finite[self.pair.finite].all()) else math.inf

    def exceeds_fp32(self, noise: Noise, runs: int) -> bool:
        """Would the error be beyond the noise of fp32?"""
        finest = coarser_claim("fp32", self.coarsest)
        if self.claim == finest:
            return False
        moved = self.deviations(self.perturbed(noise, "fp32", runs)) or [self.pair.difference]
        return self.pair.error > PRECISION * (max(map(_largest, moved)) + self.last_rounding(finest))

    def floats_without_noise(self) -> Ruling:
        """The error is beyond what the last rounding explains, and there is no noise."""
        relative = self.pair.error / self.pair.scale if self.pair.scale else math.inf
        if self.context.claim == "fp32":
            return fail(f"max_abs is {relative:.1e} of the scale, and no noise can be drawn that would explain it")
        if relative > HOPELESS:
            return fail(f"max_abs {self.pair.error:.1e} is beyond the largest value, {self.pair.scale:.1e}")
        return Ruling(Status.UNRESOLVED, why=f"max_abs is {relative:.1e} of the scale; {self.claim} may do that or not")

    # ------------------------------------------------------------------------------------------------ no floats

    def indices(self, noise: Noise, ranking: Ranking) -> Ruling:
        """Indices of TopK, ArgMax, ArgMin."""
        pair = self.pair
        wrong = misranked(pair.reference, pair.candidate, ranking, MAX_GAP)
        if wrong.any() and noise.behind_steps():  # quantized values are equal by chance: does a run break the tie?
            runs = noise.perturbed(self.context.claim, JUMP_RUNS)
            wrong &= ~np.any([values != pair.reference for values in runs], axis=0)
        if wrong.any():
            return fail(f"{int(wrong.sum())} of {pair.size} indices point to another value")
        return agree(f"{pair.changed} of {pair.size} indices differ, all between values that noise cannot tell apart")

    def no_floats(self, noise: Noise) -> Ruling:
        """Integers, booleans and strings that differ."""
        pair = self.pair
        if not (noise.behind_choice() or noise.behind_steps()):
            return fail(f"{pair.changed} of {count(pair.size, 'element')} changed, and no rounding reaches them")
        runs = noise.perturbed(self.context.claim, JUMP_RUNS)
        if noise.op_type() == "NonMaxSuppression":
            distance = jaccard_distance(pair.reference, pair.candidate)
            limit = MAX_DISTANCE * max(jaccard_distance(pair.reference, values) for values in runs)
            ruling = agree if distance <= limit else fail
            return ruling(f"as sets {distance:.3f} apart (Jaccard), noise explains {limit:.3f}")
        if any(values.shape != pair.reference.shape for values in runs):
            return _shape_varies()
        pairs = [Pair(pair.reference, values) for values in runs]
        shares = [p.changed / pair.size for p in pairs]
        one = 0.0 if noise.behind_choice() and not any(shares) and pair.size < MIN_ELEMENTS else 1 / pair.size
        share, limit = pair.changed / pair.size, MAX_SHARE * max(shares) + one
        if share > limit:
            return fail(f"{share:.2%} of the elements changed, noise explains {limit:.2%}")
        if noise.behind_steps() and pair.kind == "integer":
            steps = max(1.0, MAX_STEPS * max(p.error for p in pairs))
            if pair.error > steps:
                return fail(f"off by {pair.error:g} steps, noise explains {steps:g}")
        return agree(f"{share:.2%} of the elements changed, noise explains {limit:.2%}")

    def no_floats_without_noise(self) -> Ruling:
        """The same without noise."""
        share = self.pair.changed / self.pair.size
        why = f"{share:.2%} of the elements changed, and no noise can be drawn that would explain it"
        return fail(why) if share > 0.5 else Ruling(Status.UNRESOLVED, why=why)


def _largest(values: Array) -> float:
    return float(values.max(initial=0.0))


def _rms(values: Array) -> float:
    return math.sqrt(float((values**2).mean())) if values.size else 0.0


def _shape_varies() -> Ruling:
    return Ruling(Status.UNRESOLVED, why="the very shape of this output hangs on rounding")
