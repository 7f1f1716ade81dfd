"""Floats that differ, slice by slice: does rounding explain the error, and are the values of use?
For `noise`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from subgraph.comparison import CLEAR, JUMPS, MIN_REL_TOL, RANKS, STEPS
from subgraph.comparison.criteria import (
    FEW,
    MIN_ELEMENTS,
    Noise,
    OutputContext,
    Ruling,
    agree,
    fail,
)
from subgraph.comparison.criteria._decisions import Flips, class_axis, find_flips
from subgraph.comparison.criteria._slices import Slices, probability_axis
from subgraph.comparison.float_types import FLOATS
from subgraph.comparison.pair import Pair
from subgraph.errors import ModelError
from subgraph.precision import Precision
from subgraph.text import count
from subgraph.types import Array, frozen
from subgraph.verdict import NOTHING, Signature, Status

FP32 = Precision.FP32
K = dict.fromkeys(Precision, 3.0) | {FP32: 10.0}  # times the noise: explained
CAP = dict.fromkeys(Precision, 0.2) | {
    FP32: 1e-2,
    Precision.TF32: 0.1,
    Precision.FP16: 0.1,
}  # of a slice's scale: of use
# of a slice's scale, fp32: what is within costs no runs; MNN's healthy kernels reach 1.6e-3
FLOOR = 2e-3
UNIT_SCALE = 0.05  # least scale of values that all lie within 0 … 1: scores below are as good as 0
# perturbed runs; behind a choice or steps
RUNS = 4
JUMP_RUNS = 8
EARLY_FAIL = 10.0  # times the limit: fails after one run
# times the error of rounding after every node: perturbed runs that move farther are scaled down
EXAGGERATED = 10.0
QUANTILE = 0.9  # one of eight runs is expected to show 1.3 % of its elements beyond it
MAX_SHARE = 2.0  # times the share of elements that jump in perturbed runs
MAX_USEFUL_NOISE = 0.5  # of the scale: noise that explains a larger error would explain anything
ALONE = (
    0.5  # of an element's own value, and of the cap: farther off, one element alone may be wrong
)
MANY = (
    0.5,
    0.1,
    # share of the elements, and of the cap: as many that are so far off their own values may be wrong  # noqa: E501
)
MIN_CLEAR_ERROR = 1.0  # of the scale: without noise, a smaller error is unresolved in low precision
PRECISION_LOST = "fail, precision"
WHOLE = "the tensor"
LIMIT = "; limit {}"
MIN_IN_FULL = 1e-7  # smaller numbers are written with an exponent


@frozen
class Floats:
    """The floats of an output, or of a part of it that is judged by a scale of its own.

    Attributes:
        k_option, floor_option: as the user set them, None for the default.
        part: which elements, booleans, flat, one per element (two per complex one); None for all.
        subject: what they are called in sentences.
    """

    pair: Pair
    context: OutputContext
    k_option: float | None = None
    floor_option: float | None = None
    part: Array | None = None
    subject: str = WHOLE

    # ------------------------------------------------------------ constants

    @cached_property
    def model_precision(self) -> Precision:
        """The coarsest of the float types that it depends on: a correct run of a float16 model has
        float16's rounding errors, though the candidate computes in fp32.
        """
        noise = self.context.noise
        return Precision.of_type(noise.coarsest_type() if noise else self.pair.reference.dtype.name)

    @property
    def claim(self) -> Precision:
        """The claim that the candidate can be held to."""
        return max(self.context.claim, self.model_precision, key=Precision.roundoff)

    @cached_property
    def stepped(self) -> bool:
        """Whether the region quantizes its values. Then its own steps are the limit, whatever else
        rounds."""
        return bool(self.context.noise and self.context.noise.quantizes())

    @property
    def limited_as(self) -> Precision:
        """The precision whose limits apply: int8 for a region that quantizes itself."""
        return Precision.INT8 if self.stepped else self.claim

    @property
    def k(self) -> float:
        return K[self.limited_as] if self.k_option is None else self.k_option

    @property
    def floor(self) -> float:
        if self.floor_option is not None:
            return self.floor_option
        return FLOOR if self.context.claim is FP32 else 0.0

    @property
    def step(self) -> float:
        """q: half of the smallest step of the claimed type."""
        own = self.context.noise.half_step() if self.context.noise else 0.0
        return max(self.claim.half_step, self.context.half_step, own)

    @property
    def hidden(self) -> str:
        """The label of an output whose limit would hide any bug: a model's output tells nothing
        then."""
        return NOTHING if self.context.is_model_output else ""

    @property
    def must_be_of_use(self) -> bool:
        """In low precision inner tensors may be anything, as long as the model's outputs are of
        use."""
        return self.context.is_model_output or self.limited_as is FP32

    # ------------------------------------------------------------ per slice

    @cached_property
    def counted(self) -> Array | None:
        """The elements that count, flat; None for all."""
        finite = self.pair.finite
        if self.part is not None:
            return self.part & finite
        return None if finite.all() else finite

    def _of_counted(self, values: Array) -> Array:
        """`values`, flat, with 0 where an element does not count."""
        return values if self.counted is None else np.where(self.counted, values, 0.0)

    @cached_property
    def difference(self) -> Array:
        """|candidate − reference|, flat, 0 where an element does not count."""
        return self._of_counted(self.pair.in_place(self.pair.difference))

    @cached_property
    def slices(self) -> Slices:
        reference = self.pair.reference
        if self.pair.kind == "complex":
            return Slices((*reference.shape, 2), frozenset((reference.ndim,)), self.counted)
        axis = probability_axis(reference)
        return Slices(reference.shape, frozenset(() if axis is None else (axis,)), self.counted)

    @cached_property
    def errors(self) -> Array:
        """E: the largest difference of each slice; 0 where a slice is not judged."""
        return np.where(self.slices.judged, self.slices.largest(self.difference), 0.0)

    @cached_property
    def scales(self) -> Array:
        """S: the largest |reference| of each slice."""
        reference = self.pair.reference
        if (
            self.counted is None and reference.dtype.name == "float32"
        ):  # half as much memory as the pair's float64
            return self.slices.largest(np.abs(reference.reshape(-1)))
        return self.slices.largest(
            self._of_counted(self.pair.in_place(np.abs(self.pair.values[0])))
        )

    @cached_property
    def last_rounding(self) -> Array:
        """eps·S + q: what rounding the output itself does, per slice. What a narrower type before
        it does, perturbed runs show."""
        own = self.pair.reference.dtype.name if self.context.noise else self.model_precision.dtype
        return np.asarray(
            max(self.context.claim.eps, FLOATS.get(own, FP32.eps)) * self.scales + self.step
        )

    def explained_limits(self, noise: Array) -> Array:
        """The largest error of each slice that rounding explains, where it moves the slices by
        `noise`."""
        explained = self.k * self.slices.widening * noise
        return np.asarray(
            np.maximum(
                np.maximum(explained, self.floor * self.scales), MIN_REL_TOL * self.scales[0]
            )
        )

    @cached_property
    def usable_limits(self) -> Array:
        """The largest error of each slice with which its values are of use."""
        values = self.pair.values[0]
        unit = (
            self.pair.kind == "float"
            and float(values.min()) >= 0
            and float(values.max()) <= 1 + MIN_REL_TOL
        )
        scales = np.maximum(self.scales, UNIT_SCALE) if unit else self.scales
        limits = np.maximum(
            max(CAP[self.limited_as], self.floor) * scales, MIN_REL_TOL * self.scales[0]
        )
        return np.asarray(np.maximum(limits, self.k * self.step))

    def explains(self, noise: Array) -> bool:
        return bool((self.errors <= self.explained_limits(noise)).all())

    def worst(self, limits: Array) -> int:
        """The slice to name: of those whose errors are largest beside their limits."""
        return self.slices.telling(np.where(self.errors > 0, self.errors / limits, 0.0))

    def sentence(
        self, relation: str, limits: Array | None = None, place: int = 0, noise: float = 0.0
    ) -> str:
        """Return the error of the full tensor: `max error 0.27, 28 % of the tensor's largest …`.

        A slice is named only if the full tensor is within its limit.

        Args:
            relation: The end; `{}` is the limit, `{noise}` the noise.
            limits: The largest error of each slice that is allowed; None without a limit.
            place: The slice that decides; 0 for the full tensor.
            noise: How far rounding moves the full tensor.
        """
        allowed = np.zeros(1) if limits is None else limits
        if not place or self.errors[0] > allowed[0]:
            error, scale, limit = (float(v[0]) for v in (self.errors, self.scales, allowed))
            return describe_error(self.subject, error, scale, relation, limit, noise)
        error, scale, limit = (float(v[place]) for v in (self.errors, self.scales, allowed))
        full = describe_error(self.subject, float(self.errors[0]), float(self.scales[0]))
        name = self.slices.name(place, self.subject)
        share, most = _share(error, scale, limit)
        own = f"{share} its own largest value {_number(scale, 3)}" if scale else share
        return f"{full}; {name} is off by {own}{relation.format(most, noise=_number(noise, 2))}"

    # ------------------------------------------------------------ the rule

    def judge(self) -> Ruling:
        """The ruling of elements of which at least one is finite and differs."""
        error = _largest(self.difference)
        scale = self.pair.scale if self.part is None else float(self.scales[0])
        if (
            error <= MIN_REL_TOL * scale
        ):  # no slice is held to less: the slices need not be measured
            return agree(describe_error(self.subject, error, scale, LIMIT, MIN_REL_TOL * scale))
        if self.explains(self.last_rounding):
            return self.explained(self.last_rounding, drawn=False)
        noise = self.context.noise
        return self.with_noise(noise) if noise else self.without_noise()

    def with_noise(self, noise: Noise) -> Ruling:
        """Runs as few as needed: rounding after every node, one perturbed run, the others."""
        rounded = self.rounded(noise)
        jumps = noise.behind_choice()
        if rounded is not None and not jumps and self.explains(n := self.noise(rounded, [])):
            return self.explained(n)
        runs = JUMP_RUNS if jumps or noise.behind_steps() else RUNS
        if runs == RUNS:
            # One run shows a clear failure: the other three would have to move ten times as far.
            moved = self.deviations(noise.perturbed(self.context.claim, 1))
            if (
                moved
                and (
                    self.errors
                    > EARLY_FAIL * self.explained_limits(n := self.noise(rounded, moved))
                ).any()
            ):
                return self.ties(noise) or self.unexplained(n, rounded)
        moved = self.deviations(noise.perturbed(self.context.claim, runs))
        if moved is None:
            return shape_varies()
        if jumps:
            return self.with_jumps(rounded, moved)
        n = self.noise(rounded, moved)
        return (
            self.explained(n)
            if self.explains(n)
            else self.ties(noise) or self.unexplained(n, rounded)
        )

    def noise(self, rounded: Array | None, moved: Sequence[Array]) -> Array:
        """n of each slice, from how far the elements move where values are rounded, and in
        perturbed runs."""
        largest = (
            self.slices.largest(np.max(moved, axis=0)) if moved else np.zeros(self.scales.shape)
        )
        if (
            rounded is not None and not self.stepped
        ):  # where steps move it farther than any rounding
            exact = self.slices.largest(rounded)
            most = EXAGGERATED * (exact[0] + self.last_rounding[0])
            largest = np.maximum(
                largest * min(1.0, most / largest[0] if largest[0] else 1.0), exact
            )
        return np.asarray(largest + self.last_rounding)

    def with_jumps(self, rounded: Array | None, moved: Sequence[Array]) -> Ruling:
        """Behind a choice, elements may jump if they do so in perturbed runs: no farther, and not
        many more of them.

        A jump is a difference beyond k times what most elements move in perturbed runs. Elements
        that do not jump are judged by the noise without jumps.
        """
        counted = slice(None) if self.counted is None else self.counted
        typical = float(np.quantile(np.max(moved, axis=0)[counted], QUANTILE)) + float(
            self.last_rounding[0]
        )
        largest = max(float(run.max(initial=0.0)) for run in moved)
        jump_from = self.k * typical
        jumped = self.difference > jump_from
        if not jumped.any() or largest <= jump_from:
            n = self.noise(rounded, moved)
            return self.explained(n) if self.explains(n) else self.unexplained(n, rounded)
        share = MAX_SHARE * max(float((run > typical)[counted].mean()) for run in moved)
        allowed = int(share * self.slices.sizes[0]) + 1
        if int(jumped.sum()) > allowed or self.errors[0] > self.k * (
            largest + self.last_rounding[0]
        ):
            jumps = f"; {count(int(jumped.sum()), 'element')} moved far, as a changed choice does"
            most = self.k * largest / (float(self.scales[0]) or 1.0)
            why = self.sentence(jumps)
            return fail(f"{why}; rounding explains {allowed}, by up to {most:.2g} of the scale")
        others = replace(self, part=~jumped if self.part is None else self.part & ~jumped)
        without_jumps = [np.where(run > jump_from, 0.0, run) for run in moved]
        n = others.noise(
            None if rounded is None else np.where(rounded > jump_from, 0.0, rounded), without_jumps
        )
        found = others.explained(n) if others.explains(n) else others.unexplained(n, rounded)
        label = JUMPS if found.agrees and found.label == "agrees" else found.label
        why = f"{found.why}; {int(jumped.sum())} more moved far, as in perturbed runs"
        return replace(found, label=label, why=why)

    def deviations(self, runs: Sequence[Array]) -> list[Array] | None:
        """|perturbed − reference| of each run, flat, 0 if not finite. None if a shape differs."""
        if any(values.shape != self.pair.reference.shape for values in runs):
            return None
        if not runs:
            raise ModelError("no perturbed run gave finite values", code="noise.not-finite")
        pairs = (Pair(self.pair.reference, values) for values in runs)
        return [self._of_counted(pair.in_place(pair.difference)) for pair in pairs]

    def rounded(self, noise: Noise) -> Array | None:
        """X: how far rounding after every node moves the elements, flat; None where that is not
        known."""
        if self.context.claim is FP32:
            return None
        try:
            values = noise.rounded(self.context.claim)
        except ModelError:
            return None
        moved = self.deviations([values])
        if moved is None:
            return None
        lost = (
            self.pair.finite & ~Pair(self.pair.reference, values).finite
        )  # beyond the range: off by anything
        claim = self.context.claim
        return np.asarray(
            np.where(lost, claim.largest if claim.narrow else self.pair.scale, moved[0])
        )

    def ties(self, noise: Noise) -> Ruling | None:
        """Agreement if equal sums may differ; not behind a choice, which ties decide."""
        if noise.behind_choice():
            return None
        try:
            runs = noise.with_broken_ties(self.context.claim, RUNS, self.k)
        except ModelError:  # such runs could only excuse the error
            return None
        moved = self.deviations(runs) if runs else None
        if not moved:
            return None
        last = self.k * float(self.last_rounding[0])
        size, mean = (max(map(norm, moved)) + last for norm in (_largest, _rms))
        if self.errors[0] > size or _rms(self.difference) > mean:
            return None
        noise_of_ties = np.full(self.scales.shape, size / self.k)
        if self.claim is not FP32:  # there a softmax of large equal numbers may turn over
            found = self.explained(noise_of_ties)
            if not found.agrees:
                return found
        elif (self.errors > self.usable_limits).any():
            relation = (
                "; rounding moves it by {noise} where sums are equal, which would hide any bug"
            )
            return self.ruling(Status.UNRESOLVED, self.hidden, 0, relation, noise_of_ties, True)
        limit = np.array([size])
        why = self.sentence(f"{LIMIT}: rounding moves it so far where sums are equal", limit)
        ratio = {"noise_ratio": self.k * float(self.errors[0]) / size}
        return Ruling(Status.AGREE, "ties", why, noise=size / self.k, metrics=ratio)

    # ------------------------------------------------------------ rulings

    def explained(self, noise: Array, drawn: bool = True) -> Ruling:
        """Rounding explains the error: agrees if the values, and what is decided by them, are of
        use."""
        error = self.errors[0]
        scale = self.scales[0]
        found = None
        if flips := self.flips():
            found = self.flipped(flips, noise, drawn)
        elif self.must_be_of_use and (self.errors > self.usable_limits).any():
            place = self.worst(self.usable_limits)
            relation = "; rounding explains that, but values off by more than {} are useless"
            limits = self.usable_limits
            found = self.ruling(Status.FAIL, PRECISION_LOST, place, relation, noise, drawn, limits)
        undecided = found.label == PRECISION_LOST if found else self.amplifies(noise)
        if self.stepped and self.context.is_model_output and undecided:
            relation = "; the model turns one quantization step into {noise} of its output"
            return self.ruling(Status.UNRESOLVED, STEPS, 0, relation, noise, drawn)
        sampled = self.context.noise
        if found and found.label == PRECISION_LOST and sampled and sampled.behind_ranks():
            relation = "; rounding changes the order in which TopK and the like pick values"
            return self.ruling(Status.UNRESOLVED, RANKS, 0, relation, noise, drawn)
        if found:
            return found
        if scale and error > MAX_USEFUL_NOISE * scale:
            relation = "; rounding alone moves it by {noise}, which would hide any bug"
            return self.ruling(Status.UNRESOLVED, self.hidden, 0, relation, noise, drawn)
        if doubt := self.doubtful_element():
            return self.ruling(Status.UNRESOLVED, "", 0, doubt, noise, drawn)
        limits = self.explained_limits(noise)
        place = self.worst(limits)
        finer = "agrees" if self.claim is self.model_precision else "precision"
        finer = STEPS if self.stepped else finer
        label = finer if error > FLOOR * scale else "agrees"
        relation = LIMIT
        if label != "agrees" and self.judged_together and self.pair.size < FEW:
            relation += f"; {self.numbers} were judged together, more samples tell more"
        return self.ruling(Status.AGREE, label, place, relation, noise, drawn, limits)

    @property
    def judged_together(self) -> bool:
        """Whether the numbers of a model's output are judged in low precision by one scale,
        although each of them is the only one of its kind."""
        alone = (
            self.context.is_model_output
            and not self.slices.axes
            and self.context.samples < MIN_ELEMENTS
        )
        return alone and self.limited_as is not FP32 and self.pair.kind == "float"

    @property
    def numbers(self) -> str:
        """`6 numbers of one sample`."""
        samples = "one sample" if self.context.samples == 1 else "few samples"
        return f"{count(self.pair.size, 'number')} of {samples}"

    def doubtful_element(self) -> str:
        """Return a sentence about an element that may be wrong although all of them together are
        not; "" if there is none."""
        if not self.judged_together:
            return ""
        own = self._of_counted(self.pair.in_place(np.abs(self.pair.values[0])))
        lost = self.difference > ALONE * own
        cap = self.usable_limits[0]
        doubtful = lost & (self.difference > ALONE * cap)
        many, small = MANY
        if np.count_nonzero(lost & (self.difference > small * cap)) >= many * self.pair.size:
            doubtful = lost
        if not doubtful.any():
            return ""
        place = int(np.argmax(np.where(doubtful, self.difference, 0.0)))
        error, size = (_number(float(values[place]), 2) for values in (self.difference, own))
        off = f"element {place}, {size} in size, is off by {error}"
        alike = int(np.count_nonzero(doubtful))
        more = f", {alike} of them off by more than half of themselves" if alike > 1 else ""
        return (
            f"; {self.numbers}{more}: {off}; {MIN_ELEMENTS} samples or more tell whether rounding"
            " does that"
        )

    def amplifies(self, noise: Array) -> bool:
        """Return whether one step moves the full tensor farther than its limit of use."""
        return bool(noise[0] > self.usable_limits[0])

    def flips(self) -> Flips | None:
        """Changed winners, where the output is one by which a model decides; None if there are
        none."""
        pair = self.pair
        context = self.context
        if not context.is_model_output or pair.kind != "float" or not pair.finite.all():
            return None
        if (axis := class_axis(context.name, pair.reference)) is None:
            return None
        flips = find_flips(
            pair.reference, pair.candidate, axis, self.claim.eps, self.step, self.floor
        )
        return flips if flips.places.size else None

    def flipped(self, flips: Flips, noise: Array, drawn: bool) -> Ruling:
        """A changed winner is a bug if rounding cannot have changed it; else precision is lost."""
        source = self.context.noise
        number = JUMP_RUNS if self.stepped else RUNS
        runs = source.perturbed(self.context.claim, number) if source else []
        runs = [values for values in runs if values.shape == self.pair.reference.shape]
        wrong = (
            ~flips.explained(self.pair.reference, runs)
            if runs
            else np.zeros(flips.places.shape, bool)
        )
        first = int(np.argmax(wrong))
        which = (
            f"expected class {flips.winners[first]}, got {flips.others[first]}"
            f" ({flips.margins[first]:.1e} less)"
        )
        what = (
            f"{flips.places.size} of {count(flips.rows, 'decision')} along axis {flips.axis}"
            f" changed: {which}"
        )
        if wrong.any():
            says = f"; {what}; rounding does not explain {int(wrong.sum())} of them"
            return self.ruling(Status.FAIL, "fail", 0, says, noise, drawn)
        return self.ruling(
            Status.FAIL, PRECISION_LOST, 0, f"; rounding explains that, but {what}", noise, drawn
        )

    def unexplained(self, noise: Array, rounded: Array | None) -> Ruling:
        """Rounding does not explain the error; the label tells errors as small as those of
        approximate kernels.

        Where rounding after every node destroys the output, no candidate of this precision could be
        right.
        """
        limits = self.explained_limits(noise)
        place = self.worst(limits)
        own = 0.0 if rounded is None else _largest(rounded)
        if self.context.is_model_output and own > self.usable_limits[0]:
            far = (
                "far"
                if own >= Precision.FP16.largest
                else f"by {_number(100 * own / self.scales[0], 2)} % of its largest value"
            )
            relation = f"; {self.context.claim} itself moves the tensor {far}"
            return self.ruling(Status.FAIL, PRECISION_LOST, place, relation, noise, True)
        label = "fail"
        if self.context.claim is FP32 and (self.errors <= FLOOR * self.scales).all():
            label = "approximate kernel"
        return self.ruling(Status.FAIL, label, place, LIMIT, noise, True, limits)

    def ruling(
        self,
        status: Status,
        label: str,
        place: int,
        relation: str,
        noise: Array,
        drawn: bool,
        limits: Array | None = None,
    ) -> Ruling:
        """Return a ruling for which the slice at `place` decides; an agreement never names it.

        `drawn`: the noise was measured; the other arguments are those of `sentence`.
        """
        kind = Signature.PRECISION if label == PRECISION_LOST else Signature.MISMATCH
        signature = kind if status is Status.FAIL else None
        named = 0 if status is Status.AGREE else place
        why = self.sentence(relation, limits, named, float(noise[0]))
        if not drawn:
            return Ruling(status, label, why, signature)
        error = float(self.errors[place])
        size = float((self.slices.widening * noise)[place])
        without_noise = math.inf if error else 0.0
        ratio = error / size if size else without_noise
        return Ruling(status, label, why, signature, size, {"noise_ratio": ratio})

    def without_noise(self) -> Ruling:
        """The error is beyond what the last rounding explains, and there is no noise."""
        limits = self.explained_limits(self.last_rounding)
        place = self.worst(limits)
        if self.context.claim is FP32:
            why = f"{LIMIT}: rounding noise could not be measured"
            return fail(self.sentence(why, limits, place))
        if self.errors[0] > MIN_CLEAR_ERROR * self.scales[0]:
            return fail(self.sentence(""))
        if self.must_be_of_use and (self.errors > self.usable_limits).any():
            place = self.worst(self.usable_limits)
            relation = "; rounding may explain that, but values off by more than {} are useless"
            noise = self.last_rounding
            caps = self.usable_limits
            return self.ruling(Status.FAIL, PRECISION_LOST, place, relation, noise, False, caps)
        doubt = f"; {self.claim} may explain that or not: rounding noise could not be measured"
        return Ruling(Status.UNRESOLVED, why=self.sentence(doubt, limits, place))

    def clear(self, why: str) -> Ruling:
        """The ruling where noise could not be measured: it is unresolved unless the numbers speak
        for themselves."""
        if (self.errors > self.usable_limits).any():
            place = self.worst(self.usable_limits)
            return fail(self.sentence(f"{LIMIT}; {why}", self.usable_limits, place))
        limits = np.maximum(CLEAR * self.scales, self.explained_limits(self.last_rounding))
        place = self.worst(limits)
        if (
            self.errors > limits
        ).any() or self.flips():  # only noise tells whether rounding changes a winner
            return Ruling(Status.UNRESOLVED, why=self.sentence(f"; {why}", limits, place))
        return agree(self.sentence(LIMIT, limits))


def shape_varies() -> Ruling:
    """Unresolved: perturbed runs give other shapes."""
    return Ruling(Status.UNRESOLVED, why="the shape of this output depends on rounding")


def describe_error(
    subject: str,
    error: float,
    scale: float,
    relation: str = "",
    limit: float = 0.0,
    noise: float = 0.0,
) -> str:
    """Return an error and its limit as shares of the scale, which is the largest value.

    What is larger than the scale is a plain number.

    Args:
        subject: The tensor, or a part of it.
        error: The largest error.
        scale: The largest value.
        relation: As in `Floats.sentence`.
        limit: The largest error that is allowed.
        noise: How far rounding moves the tensor.
    """
    share, most = _share(error, scale, limit)
    moved = (
        _share(noise, scale, 0.0)[0].removesuffix(" of") if noise <= scale else _number(noise, 2)
    )
    end = relation.format(most, noise=moved)
    where, owner = ("", "the tensor's") if subject == WHOLE else (f" in {subject}", "its")
    if not scale:
        return f"max error {share}{where}{end}"
    return (
        f"max error {_number(error, 2)}{where}, {share} {owner} largest value"
        f" {_number(scale, 3)}{end}"
    )


def _share(error: float, scale: float, limit: float) -> tuple[str, str]:
    """Return an error beside its scale, `35 % of` or `more than`, and its limit."""
    if not scale:
        seen, most = _apart(error, limit)
        return f"{seen} where 0 is expected", most
    seen, most = _apart(100 * error / scale, 100 * limit / scale)
    share = f"{seen} % of" if error <= scale else "more than"
    return share, f"{most} %" if limit <= scale else _number(limit, 2)


def _apart(error: float, limit: float) -> tuple[str, str]:
    """Both with as many digits, at least two, as show which is larger."""
    for digits in range(2, 18):
        texts = _number(error, digits), _number(limit, digits)
        if texts[0] != texts[1]:
            break
    return texts


def _number(value: float, digits: int) -> str:
    """So many significant digits; numbers from a millionth to a million in full: `0.000012`."""
    if 10**digits - 0.5 <= value < 1e6:
        return f"{value:.0f}"
    if MIN_IN_FULL <= value < 1e-4:
        return np.format_float_positional(float(f"{value:.{digits}g}"), trim="-")
    return f"{value:.{digits}g}"


def _largest(values: Array) -> float:
    return float(values.max(initial=0.0))


def _rms(values: Array) -> float:
    return math.sqrt(float((values**2).mean())) if values.size else 0.0
