"""A region that fails -> what speaks for rounding and what for a bug, a line each, the conclusion first.

The error beside rounding noise, at the claimed precision and below; what would make the tensors equal (`alike`); the
same backend in full precision or without optimisations, where it says how (`exact`); and onnx's own evaluator, for
whether the reference is right. Two more runs of a candidate at most, each in processes of its own; what cannot be asked
is said. Where nothing decides, the conclusion is that it is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from subgraph.comparison.criteria import OutputContext, Ruling
from subgraph.comparison.criteria.noise import rule
from subgraph.comparison.pair import Pair
from subgraph.comparison.precision import EPS, TYPE_OF
from subgraph.comparison.similarity.explanations import Explanation, join_explanations
from subgraph.errors import SubcutError
from subgraph.graph.region import Region
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.worker_pool import Workers
from subgraph.text import count
from subgraph.trials.similar_outputs import alike, sample, values
from subgraph.trials.trial import Trials
from subgraph.verdict import Judgement, Signature, Status, Verdict

EVALUATOR = "onnx-reference"
SLOW = 60.0  # seconds that one more run of the region may take
MOST_NODES = 64  # of a region that onnx's evaluator runs: it is in Python
NOISY_NODES = 2000  # of a region that is run with the noise of other precisions, eight times
BEYOND = 10.0  # times the noise: no rounding of that precision
FAINT = 0.02  # times the noise: a precision that would be off by so much more is not the reason
NEARER = 10.0  # times nearer to one side than to the other
ENDED = frozenset((Signature.CRASH, Signature.TIMEOUT, Signature.REFUSED))
WORDS = TYPE_OF | {"int8": "int8"}


@dataclass(frozen=True)
class Evidence:
    """Attributes:
    kind: conclusion, noise, precision, likeness, exact or second.
    fact: words for the conclusion; "" where it decides nothing.
    """

    kind: str
    says: str
    fact: str = ""

    def to_json(self) -> dict[str, str]:
        """Plain data."""
        return {"kind": self.kind, "says": self.says}


def opinions(trials: Trials, region: Region, verdict: Verdict, withheld: str = "") -> list[Evidence]:
    """All that can be said about a region that the candidate gets wrong, alone, by this verdict.

    `withheld`: why nothing more is run on a candidate, "" where it may be.

    Raises:
        BackendError: the candidate cannot be used. OutputError: nothing can be written.
    """
    found: list[Evidence] = []
    if verdict.worst:
        found += _WrongOutput(trials, region, verdict.worst).opinions()
    found += _exact(trials, region, verdict, withheld)
    if verdict.worst:
        found += _second(trials, region, verdict, withheld)
    says = _conclusion(found) if verdict.signature not in ENDED else ""
    return [*([Evidence("conclusion", says)] if says else []), *found]


# ---------------------------------------------------------------------------------------------------- numbers


@dataclass(frozen=True)
class _WrongOutput:
    """An output of a region whose values disagree."""

    trials: Trials
    region: Region
    judged: Judgement

    @cached_property
    def pair(self) -> Pair | None:
        """Its values; None where they differ in shape or type, or did not come."""
        found = values(self.trials, self.region, self.judged)
        if found is None or found[0].shape != found[1].shape or found[0].dtype != found[1].dtype:
            return None
        return Pair(*found)

    @cached_property
    def alike(self) -> list[Explanation]:
        """What would make it equal."""
        return alike(self.trials, self.region, self.judged)

    def opinions(self) -> Iterator[Evidence]:
        """What the numbers alone say."""
        if self.pair:
            yield from self.noise()
        elif self.judged.signature in (Signature.SHAPE, Signature.MISSING):
            yield Evidence("noise", f"no rounding: {self.judged.why}", "beyond")
        moved = join_explanations(one for one in self.alike if not one.grid)
        if moved:
            yield Evidence("likeness", f"looks like: {moved}", "alike")
        for one in self.alike:
            if one.grid == "range":
                yield Evidence("likeness", one.text, "range")
            elif one.grid and EPS[one.grid] > EPS[self.trials.precision]:
                yield Evidence("likeness", one.text, f"grid {one.grid}")

    def noise(self) -> Iterator[Evidence]:
        """The error in units of rounding noise: at the claim, and at what may be computed in without saying so."""
        claim, ruling = self.trials.precision, self.ruled(self.trials.precision)
        if ruling.status is Status.UNRESOLVED:
            yield Evidence("noise", ruling.why)
            return
        ratio = ruling.metrics.get("noise_ratio")
        fact = _size(ruling, ratio)
        if ratio is not None:
            yield Evidence("noise", f"the error is {_times(ratio)} × what rounding in {claim} does here", fact)
        else:
            within = f"rounding in {claim} does as much" if fact == "within" else "no rounding"
            yield Evidence("noise", f"{within}: {ruling.why}", fact)
        if fact != "within":
            yield from self.lower(claim)

    def lower(self, claim: str) -> Iterator[Evidence]:
        """Does a precision below the claimed one explain it? The finest that does is named."""
        if len(self.region.nodes) > NOISY_NODES:
            nodes = count(len(self.region.nodes), "node")
            yield Evidence("precision", f"{nodes}: not asked what lower precisions would do", "open")
            return
        rest = []
        for other in self.below(claim):
            ruling = self.ruled(other)
            ratio = ruling.metrics.get("noise_ratio")
            if ruling.status is Status.AGREE and (ratio is None or ratio >= FAINT):
                size = "" if ratio is None else f": {_times(ratio)} × its rounding noise"
                yield Evidence("precision", f"{WORDS[other]} arithmetic may be as far off{size}", f"fits {other}")
                return
            if ruling.status is Status.UNRESOLVED:
                rest = [Evidence("precision", f"{WORDS[other]} arithmetic might do anything here", "open")]
            elif ratio is not None:
                words = f"{WORDS[other]} arithmetic does not explain it: {_times(ratio)} × its rounding noise"
                rest = [Evidence("precision", words)] if ratio > 1 else []
        yield from rest

    def below(self, claim: str) -> list[str]:
        """Precisions that it may compute in; int8 explains so much that only its levels bring it up."""
        seen = ["int8"] if any(one.grid == "int8" for one in self.alike) else []
        return [c for c in (*TYPE_OF, *seen) if EPS[c] > EPS[claim]]

    def ruled(self, claim: str) -> Ruling:
        """The rule of the default criterion, with its noise, whatever criterion is used."""
        assert self.pair
        with self.trials.noise(self.region, sample(self.trials, self.judged)) as noise:
            return rule("floor=0")(self.pair, OutputContext(self.judged.name, claim, noise.of(self.judged.name)))


def _size(ruling: Ruling, ratio: float | None) -> str:
    """What the error is, at the claimed precision."""
    if ruling.status is Status.AGREE:
        return "approximate" if ruling.label == "approximate kernel" else "within"
    return "beyond" if ratio is None or ratio > BEYOND else ""


def _times(ratio: float) -> str:
    return f"{ratio:.0f}" if 10 <= ratio < 1e4 else f"{ratio:.2g}"


# ---------------------------------------------------------------------------------------------------- other runs


def _exact(trials: Trials, region: Region, verdict: Verdict, withheld: str) -> Iterator[Evidence]:
    """The same backend in full precision, or without its optimisations."""
    options = trials.about.exact
    if not options:
        return
    given = {k: str(v) for k, v in trials.candidate.options.items()}
    words = ",".join(f"{k}={v}" for k, v in options.items() if given.get(k) != v)
    if why := withheld or _slow(verdict):
        yield Evidence("exact", f"not run with {words}: {why}")
        return
    other = replace(trials.candidate, options=options, precision=None, timeout=min(SLOW, trials.candidate.timeout))
    try:
        with _instead(trials, other, "exact") as asked:
            answer, finer = asked.verdict(region), EPS[asked.precision] < EPS[trials.precision]
    except SubcutError as e:
        yield Evidence("exact", f"no answer with {words}: {e.what}")
        return
    if answer.status is Status.AGREE:
        blame = "precision, or a bug of the kernels for less" if finer else "its optimiser is to blame"
        yield Evidence("exact", f"right with {words}: {blame}", "right-finer" if finer else "right")
    elif answer.status is Status.FAIL:
        yield Evidence("exact", f"wrong with {words} as well: {answer.why}", "wrong-finer" if finer else "")
    else:
        yield Evidence("exact", f"no answer with {words}: {answer.why}")


def _second(trials: Trials, region: Region, verdict: Verdict, withheld: str) -> Iterator[Evidence]:
    """Whom does onnx's own evaluator agree with, on the same inputs?"""
    if EVALUATOR in (trials.candidate.backend, trials.reference.backend):
        return
    size = len(region.nodes)
    big = f"{count(size, 'node')} take too long in Python" if size > MOST_NODES else ""
    if why := big or withheld or _slow(verdict):
        yield Evidence("second", f"no second opinion: {why}")
        return
    evaluator = Candidate(EVALUATOR, EVALUATOR, timeout=SLOW, memory=trials.candidate.memory)
    try:
        with _instead(replace(trials, candidate_model=None), evaluator, "second") as asked:
            answer = asked.verdict(region)
            yield _side(answer, answer.status is Status.FAIL and _nearer(trials, asked, region, verdict))
    except SubcutError as e:
        yield Evidence("second", f"no second opinion: {e.what}")


def _side(answer: Verdict, candidate: bool) -> Evidence:
    """What the evaluator's answer says; `candidate`: is it far nearer to the candidate's?"""
    if answer.status is Status.AGREE:
        return Evidence("second", "onnx's own evaluator agrees with the reference", "reference")
    if candidate:
        return Evidence("second", "onnx's own evaluator agrees with the candidate", "candidate")
    if answer.status is Status.FAIL and answer.signature not in ENDED:
        return Evidence("second", f"onnx's own evaluator agrees with neither: {answer.why}")
    return Evidence("second", f"no second opinion: {answer.why}")


def _nearer(trials: Trials, asked: Trials, region: Region, verdict: Verdict) -> bool:
    """Is the decisive output of another run far nearer to the candidate's than to the reference's?"""
    assert verdict.worst
    ours, other = (values(one, region, verdict.worst) for one in (trials, asked))
    if ours is None or other is None:
        return False
    forms = {(v.shape, v.dtype) for v in (*ours, *other)}
    if len(forms) > 1:
        return bool((other[1].shape, other[1].dtype) == (ours[1].shape, ours[1].dtype))
    far, near = Pair(ours[0], other[1]), Pair(ours[1], other[1])
    if far.masked != near.masked:
        return near.masked < far.masked
    return near.error * NEARER <= far.error


def _slow(verdict: Verdict) -> str:
    """Why a region that takes too long is not run again; "" where it may be."""
    took = verdict.build + verdict.run
    return f"the region takes {took:.0f} s" if took > SLOW else ""


@contextmanager
def _instead(trials: Trials, candidate: Candidate, name: str) -> Iterator[Trials]:
    """The same questions, asked of another candidate in processes of its own; answers are kept alike.

    Raises:
        SubcutError: it cannot be used.
    """
    scratch = trials.scratch / name
    scratch.mkdir(exist_ok=True)
    with Workers(candidate) as workers:
        yield replace(trials, candidate=candidate, workers=workers, scratch=scratch)


# ---------------------------------------------------------------------------------------------------- conclusion

# The first of these whose facts were all found; `{0}` is the precision that explains the error, `{1}` its claim.
CONCLUSIONS = (
    ("candidate", "not known who errs: onnx's own evaluator agrees with the candidate"),
    ("alike", "a bug, or another layout or preprocessing: one simple change accounts for all of the error"),
    ("range", "range, not a bug: it computes in float16, which ends there; declare --precision fp16"),
    ("within", "rounding, not a bug: the criterion asks for more than the precision it claims can give"),
    ("fits wrong-finer", "not known: {0} rounding explains its size, but it is as wrong in full precision"),
    ("fits grid", "rounding, not a bug: it computes in {0}; declare --precision {1}"),
    ("approximate", "no bug, by its size: within 0.001 of the scale, as approximate kernels are, or float16"),
    ("fits right-finer", "rounding, not a bug: {0} arithmetic explains it, and full precision is right"),
    ("fits right", "a bug of its optimiser, or an approximation no worse than {0}: right without it"),
    ("fits", "probably rounding, not a bug: {0} arithmetic explains it; if it computes so, declare --precision {1}"),
    ("right reference", "a bug of its optimiser: right without it, and onnx's own evaluator agrees with the reference"),
    ("right", "a bug of its optimiser: right without it"),
    ("wrong-finer", "a bug: as wrong in full precision, so rounding is not the reason"),
    ("right-finer", "not known: right in full precision; a bug of the kernels for less, or more rounding than usual"),
    ("grid", "not known: it computes in {0}, whose rounding explains only a part of the error"),
    ("open", "not known: a precision below the one it claims might be the reason"),
    ("beyond reference", "a bug: rounding does not explain it, and onnx's own evaluator agrees with the reference"),
    ("beyond", "a bug, unless the reference errs: rounding does not explain it"),
    ("reference", "a bug, more likely than not: onnx's own evaluator agrees with the reference"),
)
UNKNOWN = "not known: nothing that could be asked decides it"


def _conclusion(found: Iterable[Evidence]) -> str:
    """What all of it comes to."""
    facts = {word for one in found for word in one.fact.split()}
    coarsest = max(facts & WORDS.keys(), key=EPS.__getitem__, default="")
    said = next((words for needed, words in CONCLUSIONS if facts.issuperset(needed.split())), UNKNOWN)
    return said.format(WORDS.get(coarsest, ""), coarsest)
