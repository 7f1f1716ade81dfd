"""The verdict of a trial: plain data, never an exception."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import StrEnum

from subgraph.documents import Number, absent, to_json
from subgraph.iterables import group_values
from subgraph.text import count, explain_mute_outputs
from subgraph.types import Fields, JsonObject, StringMap, frozen


class Status(StrEnum):
    """Whether the candidate agrees; unresolved if that is not known.

    >>> Status("fail") is Status.FAIL
    True
    """

    AGREE = "agree"
    FAIL = "fail"
    UNRESOLVED = "unresolved"


class Signature(StrEnum):
    """The kind of failure.

    >>> Signature("refused") is Signature.REFUSED
    True
    """

    MISMATCH = "mismatch"
    # Rounding at the claimed precision explains it, but the values are useless.
    PRECISION = "precision"
    NAN = "nan"
    SHAPE = "shape"
    MISSING = "missing"
    REFUSED = "refused"  # an error while the runtime converts or builds the model
    THROWS = "throws"  # a run raised an exception or returned an exit code; the process continues
    MEMORY = "memory"  # the run needs more memory than is free, or than --memory-limit allows
    CRASH = "crash"  # the process ended, for example by a signal
    TIMEOUT = "timeout"


# The label of an output that any candidate could return, because it is empty or constant.
NOTHING = "tells nothing"
NUMBERS = frozenset((Signature.MISMATCH, Signature.PRECISION))  # all values exist, and some deviate
# A run began and ended without an output.
ENDED = frozenset((Signature.THROWS, Signature.MEMORY, Signature.CRASH))
# The candidate has no output: no error to explain, and no intermediate tensor to read.
NO_OUTPUT = ENDED | {Signature.REFUSED, Signature.TIMEOUT}
# Predicates for failures without comparable numbers.
FAILURES = {
    Signature.NAN: "NaN or inf",
    Signature.SHAPE: "wrong shape",
    Signature.MISSING: "missing output",
    Signature.REFUSED: "refused",
    Signature.THROWS: "throws",
    Signature.MEMORY: "out of memory",
    Signature.CRASH: "dies",
    Signature.TIMEOUT: "hangs",
}


class Graded:
    """Conditions of an object with a status."""

    status: Status

    @property
    def agrees(self) -> bool:
        """Whether the candidate agrees."""
        return self.status is Status.AGREE

    @property
    def fails(self) -> bool:
        """Whether the candidate fails."""
        return self.status is Status.FAIL

    @property
    def is_unresolved(self) -> bool:
        """Whether it is not known whether the candidate agrees."""
        return self.status is Status.UNRESOLVED


@frozen
class Worst:
    """The element with the largest difference: its index and both values."""

    index: tuple[int, ...]
    reference: float | int | bool | str
    candidate: float | int | bool | str


@frozen
class Judgement(Graded):
    """One output of one sample, judged by one criterion.

    Attributes:
        label: The kind of agreement or failure; with the default criterion: agrees, range,
            approximate kernel, precision, steps, fail, "fail, precision".
        why: The reason in a line, with numbers and their limits.
        errors: The value by metric; NaN if the metric is not defined.
        noise: The N of the default criterion, the change of the output by rounding alone; None if
            it was not measured.
    """

    name: str
    status: Status
    signature: Signature | None = None
    label: str = ""
    why: str = ""
    errors: Mapping[str, Number] = field(default_factory=dict)
    worst: Worst | None = None
    noise: Number | None = None
    sample: str = ""


@frozen
class Verdict(Graded):
    """The outcome of one trial: one region, all samples.

    Attributes:
        outputs: A judgement per output and sample; empty if the candidate did not run.
        process: The `signal`, `exit_code` and last lines of `stderr` of a candidate that did not
            run, as far as known.
        build: The seconds that the candidate took to build the model.
        run: The seconds that it took to run all samples.
        stored: Whether the result comes from the store, without a run.
        pooled: Whether the region ran with other regions in one model; agreement there is no proof.
        from_run: The first wrong run of a session whose first run is right; else None.

    >>> verdict = Verdict(Status.FAIL, Signature.REFUSED, "no operator LSTM")
    >>> verdict.status.value, verdict.signature.value, verdict.why
    ('fail', 'refused', 'no operator LSTM')
    """

    status: Status
    signature: Signature | None = None
    why: str = ""
    outputs: tuple[Judgement, ...] = ()
    process: Fields = field(default_factory=dict)
    build: float = 0.0
    run: float = 0.0
    stored: bool = False
    pooled: bool = False
    from_run: int | None = None

    @property
    def is_mute(self) -> bool:
        """Whether no output could show a fault of the candidate."""
        return self.is_unresolved and bool(self.outputs) and all(map(is_mute, self.outputs))

    @property
    def label(self) -> str:
        """The label of the worst output."""
        if self.worst:
            return self.worst.label
        return (self.signature or self.status).value

    @property
    def worst(self) -> Judgement | None:
        """The failing output with the largest relative error; without failing ones, the agreeing
        one."""
        return max(self.outputs, key=compute_gravity, default=None)

    def largest_error(self, metric: str = "max_rel", unknown: float = 0.0) -> float:
        """Return the largest error of an output by a metric; `unknown` for one without it."""
        return max((judged.errors.get(metric, unknown) for judged in self.outputs), default=0.0)

    def to_document(self) -> VerdictDocument:
        """Return the verdict as a document has it."""
        return VerdictDocument(
            self.status,
            self.signature,
            self.label,
            self.why,
            self.process,
            self.build,
            self.run,
            self.stored,
            self.pooled,
            from_run=self.from_run,
            outputs=self.outputs,
        )

    def to_json(self) -> JsonObject:
        """Return plain data; NaN and infinities as texts."""
        return dict(to_json(self.to_document()))


@frozen
class RunOutcome(Graded):
    """The outcome of a run in a document: a `Verdict` without its outputs."""

    status: Status
    signature: Signature | None
    label: str
    why: str
    process: Fields
    build_seconds: float
    run_seconds: float
    stored: bool
    pooled: bool
    from_run: int | None = absent()


@frozen
class VerdictDocument(RunOutcome):
    """A `Verdict` in a document."""

    outputs: Sequence[Judgement] = field(kw_only=True)


def name_failure(signature: Signature | None, process: Fields) -> str:
    """Return how a candidate fails, with the signal that ended it: `dies of SIGSEGV`, `wrong`."""
    word = FAILURES.get(signature, "wrong") if signature else "wrong"
    signal = process.get("signal")
    if signal and signature is Signature.CRASH:
        return f"{word} of {signal}"
    return word


def is_mute(judgement: Judgement) -> bool:
    """Return whether an output could not show a fault of the candidate."""
    return judgement.is_unresolved and judgement.label == NOTHING


def find_mute(judgements: Iterable[Judgement]) -> dict[str, str]:
    """Return the outputs that could not show a fault in any sample, with the reasons."""
    judgements = list(judgements)
    telling = {j.name for j in judgements if not is_mute(j)}
    return {j.name: j.why for j in judgements if j.name not in telling}


# An output without comparable values decides only if no output has any.
_ORDER = {Status.UNRESOLVED: 0, Status.AGREE: 1, Status.FAIL: 3}


def compute_gravity(judgement: Judgement) -> tuple[int, bool, float]:
    """Return a key for `max`: failing before agreeing before unresolved.

    Remarkable labels come first, then the relative error decides.

    Among failing ones, what rounding explains comes last.
    """
    error = judgement.errors.get("max_rel", math.nan)
    order = _ORDER[judgement.status] - (judgement.signature is Signature.PRECISION)
    return order, judgement.label not in ("", "agrees"), -1.0 if math.isnan(error) else error


def join_judgements(
    judgements: Sequence[Judgement], *, every: bool
) -> tuple[Status, Signature | None, str]:
    """Return the status, signature and reason of all outputs together.

    The result fails with any output. It is unresolved if an output is, if `every` output must be
    judged, and else if no output agrees. An output without comparable values does not decide,
    unless no output has any.
    """
    failing = [j for j in judgements if j.fails]
    if failing:
        first = max(failing, key=compute_gravity)
        # NaN, a wrong shape or a missing output is worse than a mismatch, and a mismatch is worse
        # than lost precision
        telling = next((j for j in failing if j.signature not in NUMBERS), first)
        return Status.FAIL, telling.signature, telling.why
    unknown = [j for j in judgements if j.is_unresolved and not is_mute(j)]
    if any(j.agrees for j in judgements) and not (every and unknown):
        return Status.AGREE, None, max(judgements, key=compute_gravity).why
    undecided = next(iter(unknown or judgements), None)
    if undecided is None:
        return Status.UNRESOLVED, None, "nothing was compared"
    if not unknown:
        return Status.UNRESOLVED, None, explain_silence(find_mute(judgements))
    name = f"{undecided.name}: " if len(judgements) > 1 else ""
    return Status.UNRESOLVED, None, name + undecided.why


def iter_mute_notes(verdict: Verdict) -> Iterator[str]:
    """Yield notes about outputs that could not show a fault."""
    mute = find_mute(verdict.outputs)
    if verdict.is_mute:
        yield (
            "give a real input: -i FILE.npy, or -i PICTURE with --mean and --scale; "
            f"--may-be-empty '{next(iter(mute))}' accepts this one"
        )
    elif verdict.agrees:
        names = group_values((why, name) for name, why in mute.items())
        yield from (f"{explain_mute_outputs(alike)}: {why}" for why, alike in names.items())


def explain_silence(mute: StringMap) -> str:
    """Return the reason why nothing is known: no output could show a fault of the candidate."""
    name, why = next(iter(mute.items()))
    more = f" (nor about {count(len(mute) - 1, 'other output')})" if len(mute) > 1 else ""
    return f"this input tells nothing about '{name}'{more}: {why}"
