"""How far rounding alone moves the output, drawn on the reference: fails where the error is k times that (the default)

Per output, with c the precision the candidate claims (never finer than what the region's own float types can hold), eps
its unit roundoff, S = max|reference|, err = max|d| over finite elements, and
N = max over 4 draws of |perturbed reference − reference| + eps·S + q (q: half of float16's smallest step):

    agrees              err ≤ max(floor, k·eps)·S: no noise is drawn; or err ≤ k·N
    range               (fp16, bf16) the reference, rounded to c after every node, is as near as k·N; or it is infinite
                        exactly where the candidate is
    approximate kernel  (fp32) err ≤ 1e-3·S; seen only with a floor below that
    precision           agrees at c, but would be beyond 10·N in fp32 (1e-3·S, where no noise is drawn)
    ties                err ≤ N' of draws k times as far in which equal sums come apart, as where terms are added in
                        another order; so, too, the root mean squares. Asked where it fails and many are equal (all
                        weights the same, say), and not behind a choice. A softmax of large equal numbers needs it
    unresolved          (below fp32) err ≤ k·N, but beyond half of S: the noise would hide anything
    fail                all else; after one draw where err > 10·k·N already and no other rule may apply. NaN and
                        infinities that the reference alone has are never excused

Behind a choice (an index, a comparison) N holds the jumps that draws show, and a bug could hide below it. There,
besides, the share of elements beyond k·(Q + eps·S + q) must be at most twice that of the worst of 8 draws beyond
Q + eps·S + q, plus one element. Q, the noise without jumps, is the 0.9 quantile over elements of the largest deviation.
So an element that is wrong alone needs a draw that moved as far, and many wrong ones need draws that moved as many.

Scores with a mask added (−10⁴ and the like) are judged apart from the mask's plateau, which would set the scale.

Values that are no floats: indices of TopK, ArgMax, ArgMin may be i → j only if 0 < |v_i − v_j| ≤ 3·(noise_i + noise_j)
(equal values never: ONNX fixes their order; but behind quantization, where a draw breaks that tie). Quantized values
may be off by one step, or twice what draws show, at twice the share of the worst of 8 draws plus one element. Booleans
and classes: the same share; the one element only where draws change some as well or there are 100. NonMaxSuppression:
as sets. What no rounding reaches must be equal.

Where no noise can be had (recordings), fp32 keeps its floor, and lower precision is unresolved up to err = S.

The constants were measured on 31 networks, nine healthy runtimes and 20 real bugs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from subgraph.comparison.criteria import Noise, OutputContext, Rule, Ruling, agree, fail, number, settled
from subgraph.comparison.criteria._indices import jaccard, misranked
from subgraph.comparison.pair import Pair
from subgraph.comparison.precision import EPS, FLOATS, LARGEST, SUBNORMAL, held, mask_plateau
from subgraph.errors import ModelError, UsageError, WorkerDied
from subgraph.text import clean, count
from subgraph.verdict import Status

if TYPE_CHECKING:
    from subgraph.types import Array

FORM = "noise, noise:k=5 or noise:k=5,floor=0"
K = {"fp32": 10.0, "fp16": 3.0, "bf16": 3.0, "int8": 2.0}  # of 5,500 healthy rows one alarm
FLOOR = 1e-3  # of S, fp32: 4 of 3,383 healthy verdicts are beyond; what is within costs no draws
APPROXIMATE = 1e-3  # of S, fp32: tanh and exp by polynomials are up to here
PRECISION = 10.0  # BERT in bf16 has 5,600 in fp32 and 0.24 in bf16
DRAWS, JUMP_DRAWS = 4, 8
CLEAR = 10.0  # times what fails after one draw
QUANTILE = 0.9  # one draw in eight is expected to show 1.3 % of its elements beyond it
SHARE, SETS, GAP, STEP = 2.0, 1.5, 3.0, 2.0  # times what draws show: changed elements, Jaccard distance, gaps, steps
FEW = 100  # elements; of fewer, one that changes alone is a finding
DROWNED = 0.5  # of S: an error that noise can explain only because it could explain anything
HOPELESS = 1.0  # of S: without noise, low precision is not blamed for less


def rule(words: str) -> Rule:
    """The rule above. Words: `k=` replaces K for every claim, `floor=` (of S) replaces the floor.

    Raises:
        UsageError: other words, or no positive numbers.
    """
    k, floor = _read(words)

    def ask(pair: Pair, subject: OutputContext) -> Ruling:
        try:
            return _worst(_Question(*part, k, floor).answer() for part in _parts(pair, subject))
        except (ModelError, WorkerDied) as e:
            return Ruling(Status.UNRESOLVED, why=f"no noise to compare with: {e.what}")

    return ask


def _parts(pair: Pair, subject: OutputContext) -> list[tuple[Pair, OutputContext]]:
    """The output; or, where it holds scores and a mask's plateau, each of the two, with its own scale and noise."""
    plateau = mask_plateau(pair.reference) if pair.kind == "float" else None
    if plateau is None:
        return [(pair, subject)]
    found = []
    for where in (~plateau, plateau):
        noise = subject.noise and _Part(subject.noise, where)
        found.append((Pair(pair.reference[where], pair.candidate[where]), replace(subject, noise=noise)))
    return found


def _worst(rulings: Iterable[Ruling]) -> Ruling:
    """The ruling that decides: a failure, else what is unresolved, else the most remarkable agreement."""
    order = (Status.AGREE, Status.UNRESOLVED, Status.FAIL)
    return max(rulings, key=lambda r: (order.index(r.status), r.label not in ("", "agrees")))


@dataclass(frozen=True)
class _Part:
    """The noise of some elements of an output."""

    whole: Noise
    where: Array

    def draws(self, claim: str, count: int) -> list[Array]:
        return [self._part(draw) for draw in self.whole.draws(claim, count)]

    def untied(self, claim: str, count: int, times: float) -> list[Array]:
        return [self._part(draw) for draw in self.whole.untied(claim, count, times)]

    def rounded(self, claim: str) -> Array:
        return self._part(self.whole.rounded(claim))

    def _part(self, values: Array) -> Array:
        return values[self.where] if values.shape == self.where.shape else values

    def maker(self) -> str:
        return self.whole.maker()

    def coarsest(self) -> str:
        return self.whole.coarsest()

    def discrete(self) -> bool:
        return self.whole.discrete()

    def stepped(self) -> bool:
        return self.whole.stepped()

    def ranked(self, claim: str) -> None:
        """Indices have no plateau."""


def _read(words: str) -> tuple[float | None, float | None]:
    values: dict[str, float] = {}
    for word in filter(None, words.strip().split(",")):
        name, sign, text = (part.strip() for part in word.partition("="))
        if name not in ("k", "floor") or not sign or name in values:
            raise UsageError(f"criterion 'noise' does not understand '{clean(word)}'", f"write {FORM}")
        values[name] = number(text, FORM)
        if values[name] < 0 or (name == "k" and values[name] == 0):
            raise UsageError(f"criterion 'noise': {name} = {values[name]:g} lets nothing agree", f"write {FORM}")
    return values.get("k"), values.get("floor")


@dataclass(frozen=True)
class _Question:
    """One output, and what it takes to judge it."""

    pair: Pair
    subject: OutputContext
    k_word: float | None
    floor_word: float | None

    @cached_property
    def coarsest(self) -> str:
        noise, own = self.subject.noise, self.pair.reference.dtype.name
        return noise.coarsest() if noise else own if own in FLOATS else "float64"

    @cached_property
    def claim(self) -> str:
        """What the candidate can be held to."""
        return held(self.subject.claim, self.coarsest)

    @cached_property
    def k(self) -> float:
        return K[self.claim] if self.k_word is None else self.k_word

    @cached_property
    def floor(self) -> float:
        if self.floor_word is not None:
            return self.floor_word
        return FLOOR if self.subject.claim == "fp32" else 0.0

    def least(self, claim: str) -> float:
        """eps·S + q: what the last rounding does."""
        return EPS[claim] * self.pair.scale + SUBNORMAL.get(claim, 0.0)

    def answer(self) -> Ruling:
        pair, noise = self.pair, self.subject.noise
        if pair.masked and (ruling := self.masks()):
            return ruling
        if not pair.compared:
            if pair.masked:
                return Ruling(Status.UNRESOLVED, "range", "nothing was compared: all is beyond the claimed range")
            return settled(pair) or Ruling(Status.UNRESOLVED, why="nothing was compared")
        if not pair.changed:
            return agree(f"all {count(pair.size, 'element')} equal")
        if noise and (not pair.floating or noise.discrete()) and (ranked := noise.ranked(self.subject.claim)):
            return self.indices(noise, *ranked)
        if pair.floating:
            ruling = self.floats()
            if ruling.status is Status.FAIL:
                ruling = self.ties(noise) or ruling
            return replace(ruling, label="range") if pair.masked and ruling.status is Status.AGREE else ruling
        return self.no_floats(noise) if noise else self.unknown_values()

    def masks(self) -> Ruling | None:
        """NaN and infinities that differ: None where the range of the claimed type excuses all of them."""
        pair, claim, noise = self.pair, self.subject.claim, self.subject.noise
        if claim not in LARGEST or pair.kind == "complex":
            return settled(pair)
        reference, candidate = (v.astype(np.float64).reshape(-1) for v in (pair.reference, pair.candidate))
        off = ~pair.finite & (reference != candidate) & ~(np.isnan(reference) & np.isnan(candidate))
        if not np.isfinite(reference[off]).all():
            return settled(pair)
        open_ = off & ~(np.abs(reference) > LARGEST[claim])
        if not open_.any():
            return None
        if noise is None:
            return Ruling(Status.UNRESOLVED, why=f"NaN or infinite in the candidate: perhaps beyond {claim}'s range")
        rounded = noise.rounded(claim).astype(np.float64).reshape(-1)
        return settled(pair) if rounded.size != open_.size or np.isfinite(rounded[open_]).any() else None

    # ------------------------------------------------------------------------------------------------ floats

    def floats(self) -> Ruling:
        """The rule for values that can be rounded."""
        pair, noise = self.pair, self.subject.noise
        scale, error = pair.scale, pair.error
        free = max(self.floor, self.k * EPS[self.claim]) * scale
        if error <= free:
            label = "precision" if self.claim != "fp32" and error > FLOOR * scale else "agrees"
            return replace(agree(f"max_abs {error:.1e} within {free:.1e}"), label=label)
        if noise is None:
            return self.unknown_floats()
        jumps = noise.discrete()
        if not (jumps or noise.stepped()) and (ruling := self.clear(noise)):
            return ruling
        draws = noise.draws(self.subject.claim, JUMP_DRAWS if jumps or noise.stepped() else DRAWS)
        moved = self.deviations(draws)
        if moved is None:
            return _hangs()
        size = max(map(_largest, moved)) + self.least(self.claim)
        limit = self.k * size
        ratio = {"noise_ratio": error / size if size else math.inf}
        if self.claim != "fp32" and DROWNED * scale < error <= limit and not jumps and scale:
            why = f"max_abs {error:.1e} of {scale:.1e}: rounding alone moves it by {size:.1e}, so nothing can be told"
            return Ruling(Status.UNRESOLVED, why=why, noise=size, metrics=ratio)
        if error <= limit and (not jumps or self.as_many(moved)):
            label = "precision" if self.reduced(noise, len(draws)) else "agrees"
            why = f"max_abs {error:.1e} within {self.k:g} × noise {size:.1e}"
            return Ruling(Status.AGREE, label, why, noise=size, metrics=ratio)
        if self.subject.claim in LARGEST and (off := self.from_rounded(noise)) <= limit:
            why = f"as near as {off:.1e} to the reference rounded to {self.subject.claim} after every node"
            return Ruling(Status.AGREE, "range", why, noise=size, metrics=ratio)
        if self.subject.claim == "fp32" and error <= APPROXIMATE * scale and not jumps:
            why = f"max_abs {error:.1e} is {ratio['noise_ratio']:.0f} × noise, but within {APPROXIMATE:g} of the scale"
            return Ruling(Status.AGREE, "approximate kernel", why, noise=size, metrics=ratio)
        why = f"max_abs {error:.1e} beyond {self.k:g} × noise {size:.1e}"
        if error <= limit:
            why = f"more elements are off than noise explains, by up to {error:.1e}"
        return replace(fail(why), noise=size, metrics=ratio)

    def clear(self, noise: Noise) -> Ruling | None:
        """A failure that one draw shows: three more cost as much as all else, and would have to move ten times as far.

        Not where the type's range or an approximate kernel may excuse it.
        """
        moved = self.deviations(noise.draws(self.subject.claim, 1))
        size = None if moved is None else _largest(moved[0]) + self.least(self.claim)
        if size is None or self.pair.error <= CLEAR * self.k * size or self.may_be_range():
            return None
        ratio = {"noise_ratio": self.pair.error / size if size else math.inf}
        why = f"max_abs {self.pair.error:.1e} beyond {self.k:g} × noise {size:.1e}"
        return replace(fail(why), noise=size, metrics=ratio)

    def ties(self, noise: Noise | None) -> Ruling | None:
        """Agreement where equal sums may come apart. Ties decide a choice: there they may not."""
        if noise is None or noise.discrete():
            return None
        moved = self.deviations(noise.untied(self.subject.claim, DRAWS, self.k))
        if not moved:
            return None
        size, mean = (max(map(norm, moved)) + self.k * self.least(self.claim) for norm in (_largest, _rms))
        if self.pair.error > size or _rms(self.pair.difference) > mean:
            return None
        why = f"max_abs {self.pair.error:.1e} within {size:.1e}: so far rounding moves it once equal sums come apart"
        ratio = {"noise_ratio": self.k * self.pair.error / size}
        return Ruling(Status.AGREE, "ties", why, noise=size / self.k, metrics=ratio)

    def may_be_range(self) -> bool:
        """May the type's range or an approximate kernel excuse it?"""
        approximate = self.subject.claim == "fp32" and self.pair.error <= APPROXIMATE * self.pair.scale
        return approximate or self.subject.claim in LARGEST

    def deviations(self, draws: Sequence[Array]) -> list[Array] | None:
        """|draw − reference| of each draw where both values and it are finite (else 0); None where a shape differs."""
        found = []
        for draw in draws:
            if draw.shape != self.pair.reference.shape:
                return None
            drawn = Pair(self.pair.reference, draw)
            each = np.zeros(drawn.finite.shape)
            each[drawn.finite] = drawn.difference
            found.append(each[self.pair.finite])
        return found

    def as_many(self, moved: Sequence[Array]) -> bool:
        """Are no more elements beyond the noise without jumps than draws show?"""
        usual = float(np.quantile(np.max(moved, axis=0), QUANTILE)) + self.least(self.claim)
        worst = max(float((each > usual).mean()) for each in moved)
        return float((self.pair.difference > self.k * usual).mean()) <= SHARE * worst + 1 / self.pair.compared

    def from_rounded(self, noise: Noise) -> float:
        """The largest |candidate − rounded reference|; infinite where that is not finite."""
        rounded = noise.rounded(self.subject.claim)
        if rounded.shape != self.pair.candidate.shape:
            return math.inf
        other = Pair(rounded, self.pair.candidate)
        return other.error if bool(other.finite[self.pair.finite].all()) else math.inf

    def reduced(self, noise: Noise, draws: int) -> bool:
        """Would it be beyond the noise of fp32?"""
        fine = held("fp32", self.coarsest)
        if self.claim == fine:
            return False
        moved = self.deviations(noise.draws("fp32", draws)) or [self.pair.difference]
        return self.pair.error > PRECISION * (max(map(_largest, moved)) + self.least(fine))

    def unknown_floats(self) -> Ruling:
        """No noise can be had, and the error is beyond what the last rounding explains."""
        relative = self.pair.error / self.pair.scale if self.pair.scale else math.inf
        if self.subject.claim == "fp32":
            return fail(f"max_abs is {relative:.1e} of the scale, and no noise can be drawn that would explain it")
        if relative > HOPELESS:
            return fail(f"max_abs {self.pair.error:.1e} is beyond the largest value, {self.pair.scale:.1e}")
        return Ruling(Status.UNRESOLVED, why=f"max_abs is {relative:.1e} of the scale; {self.claim} may do that or not")

    # ------------------------------------------------------------------------------------------------ no floats

    def indices(self, noise: Noise, value: Array, wobble: Array, axis: int) -> Ruling:
        """Indices of TopK, ArgMax, ArgMin."""
        pair = self.pair
        wrong = misranked(pair.reference, pair.candidate, value, wobble, axis, GAP)
        if wrong.any() and noise.stepped():  # quantized values are equal by chance: see whether a draw tells them apart
            draws = noise.draws(self.subject.claim, JUMP_DRAWS)
            wrong &= ~np.any([d != pair.reference for d in draws], axis=0)
        if wrong.any():
            return fail(f"{int(wrong.sum())} of {pair.size} indices point to another value")
        return agree(f"{pair.changed} of {pair.size} indices differ, all between values that noise cannot tell apart")

    def no_floats(self, noise: Noise) -> Ruling:
        """Integers, booleans and strings that differ."""
        pair = self.pair
        if not (noise.discrete() or noise.stepped()):
            return fail(f"{pair.changed} of {count(pair.size, 'element')} changed, and no rounding reaches them")
        draws = noise.draws(self.subject.claim, JUMP_DRAWS)
        if noise.maker() == "NonMaxSuppression":
            off = jaccard(pair.reference, pair.candidate)
            limit = SETS * max(jaccard(pair.reference, d) for d in draws)
            say = agree if off <= limit else fail
            return say(f"as sets {off:.3f} apart (Jaccard), noise explains {limit:.3f}")
        if any(d.shape != pair.reference.shape for d in draws):
            return _hangs()
        shares = [Pair(pair.reference, d).changed / pair.size for d in draws]
        one = 0.0 if noise.discrete() and not any(shares) and pair.size < FEW else 1 / pair.size
        share, limit = pair.changed / pair.size, SHARE * max(shares) + one
        if share > limit:
            return fail(f"{share:.2%} of the elements changed, noise explains {limit:.2%}")
        if noise.stepped() and pair.kind == "integer":
            most = max(1.0, STEP * max(Pair(pair.reference, d).error for d in draws))
            if pair.error > most:
                return fail(f"off by {pair.error:g} steps, noise explains {most:g}")
        return agree(f"{share:.2%} of the elements changed, noise explains {limit:.2%}")

    def unknown_values(self) -> Ruling:
        """Values that are no floats and differ, without noise."""
        share = self.pair.changed / self.pair.size
        why = f"{share:.2%} of the elements changed, and no noise can be drawn that would explain it"
        return fail(why) if share > 0.5 else Ruling(Status.UNRESOLVED, why=why)


def _largest(values: Array) -> float:
    return float(values.max(initial=0.0))


def _rms(values: Array) -> float:
    return math.sqrt(float((values**2).mean())) if values.size else 0.0


def _hangs() -> Ruling:
    return Ruling(Status.UNRESOLVED, why="the very shape of this output hangs on rounding")
