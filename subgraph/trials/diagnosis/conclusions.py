"""Evidence about a failing region -> a conclusion: rounding, a bug, or not known."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from subgraph.precision import Precision
from subgraph.types import frozen


class Fact(StrEnum):
    """The fact that evidence states, as far as conclusions need it."""

    ALIKE = "alike"  # the values look like a change of the right ones
    APPROXIMATE = "approximate"  # an approximate kernel of one of its operators may deviate as far
    BEYOND = "beyond"  # rounding at the claimed precision does not explain the error
    CANDIDATE = "candidate"  # onnx's own evaluator agrees with the candidate
    COARSE = "coarse"  # one scale for values of very different sizes makes most of them 0
    EVERYWHERE = "everywhere"  # each node of the region deviates alone
    EXPORT = "export"  # one side is the source of the exported model
    FITS = "fits"  # rounding at a lower precision explains the error
    GRID = "grid"  # all values are those of a lower precision
    INPUT = "input"  # an input of the model was misread
    KNOWN = "known"  # the values are those of a known approximation
    MODEL = "model"  # plain onnxruntime computes the candidate's values of the candidate's model
    OPEN = "open"  # a lower precision may be the reason
    OVERFLOW = "overflow"  # the claimed precision cannot hold a weight
    PASS = "pass"  # without some passes of the optimizer it is right
    RANGE = "range"  # values beyond float16's range are infinite
    REFERENCE = "reference"  # onnx's own evaluator agrees with the reference
    RIGHT = "right"  # without the optimizer
    RIGHT_FINER = "right-finer"  # in full precision
    ROUNDS = "rounds"  # the conclusion: rounding, not a bug
    SOMEWHERE = "somewhere"  # some node of the region that rounds is right alone
    SWITCH = "switch"  # without one option
    WITHIN = "within"  # rounding at the claimed precision explains the error
    WRONG_FINER = "wrong-finer"  # in full precision as well


@frozen
class Evidence:
    """A line of evidence about a region that fails.

    Attributes:
        kind: conclusion, model, range, noise, precision, approximation, alone, input, likeness,
            exact, pass, switch, second, provider or export.
        says: The line.
        fact: The fact that it states; None if it decides nothing.
        precision: The lower precision that the fact is about; None without one.
        quoted: The part that a conclusion from this fact repeats.
    """

    kind: str
    says: str
    fact: Fact | None = None
    precision: Precision | None = None
    quoted: str = ""


# The first conclusion is drawn whose facts are all present. `{dtype}`, `{claim}`: the precision
# that explains the error; `{quoted}`: the likeness of the error, or how the input was misread;
# `{passes}`: those to blame, in brackets.
CONCLUSIONS = (
    ((Fact.INPUT,), "the input, not a node: {quoted}; the reference fed so returns the same"),
    ((Fact.EXPORT,), "{quoted}"),
    (
        (Fact.CANDIDATE,),
        "not known which side is wrong: onnx's own evaluator agrees with the candidate",
    ),
    (
        (Fact.OVERFLOW,),
        (
            "range: the claimed precision cannot hold a weight of this region; keep the region in"
            " float32"
        ),
    ),
    ((Fact.ALIKE,), "a bug, or another layout or preprocessing: the whole error {quoted}"),
    (
        (Fact.RANGE,),
        "range, not a bug: {quoted}; keep the region in float32",
    ),
    ((Fact.COARSE,), "the range, not a kernel: {quoted}"),
    (
        (Fact.WITHIN,),
        "rounding, not a bug: the criterion requires more than the claimed precision can reach",
    ),
    ((Fact.SWITCH,), "one option of the candidate is the reason: right with {quoted}"),
    ((Fact.MODEL,), "the model, not what runs it: {quoted}"),
    ((Fact.KNOWN,), "an approximation, no bug by itself: {quoted}"),
    (
        (Fact.FITS, Fact.WRONG_FINER),
        (
            "not known: {dtype} rounding explains the size of the error, but full precision is as"
            " wrong"
        ),
    ),
    (
        (Fact.FITS, Fact.GRID),
        "rounding, not a bug: the candidate computes in {dtype}; declare --precision {claim}",
    ),
    (
        (Fact.APPROXIMATE,),
        "perhaps no bug: within 0.002 of the scale, as approximate kernels may be ({quoted})",
    ),
    (
        (Fact.FITS, Fact.RIGHT_FINER),
        "rounding, not a bug: {dtype} arithmetic explains the error, and full precision is right",
    ),
    (
        (Fact.FITS, Fact.RIGHT),
        (
            "a bug of the candidate's optimizer, or an approximation no worse than {dtype}: right"
            " without it"
        ),
    ),
    (
        (Fact.FITS, Fact.EVERYWHERE),
        (
            "probably rounding, not a bug: {dtype} arithmetic explains it; "
            "if the candidate uses that, declare --precision {claim}"
        ),
    ),
    (
        (Fact.FITS, Fact.SOMEWHERE),
        "a bug, or an approximation: as small as {dtype} rounding, but {quoted}",
    ),
    (
        (Fact.FITS,),
        (
            "a bug, or {dtype} arithmetic: only the size of the error speaks for that; "
            "if the candidate uses it, declare --precision {claim}"
        ),
    ),
    (
        (Fact.RIGHT, Fact.REFERENCE),
        (
            "a bug of the candidate's optimizer{passes}: right without it; onnx's own evaluator"
            " confirms the reference"
        ),
    ),
    ((Fact.RIGHT,), "a bug of the candidate's optimizer{passes}: right without it"),
    ((Fact.WRONG_FINER,), "a bug: full precision is as wrong, so rounding is not the reason"),
    (
        (Fact.RIGHT_FINER,),
        (
            "not known: right in full precision; a bug of kernels for less, or more rounding than"
            " usual"
        ),
    ),
    (
        (Fact.GRID,),
        (
            "not known: the candidate computes in {dtype}, whose rounding explains only a part of"
            " the error"
        ),
    ),
    ((Fact.OPEN,), "not known: a precision below the claimed one might be the reason"),
    (
        (Fact.BEYOND, Fact.REFERENCE),
        "a bug: rounding does not explain it, and onnx's own evaluator agrees with the reference",
    ),
    ((Fact.BEYOND,), "a bug, unless the reference is wrong: rounding does not explain it"),
    (
        (Fact.REFERENCE,),
        "a bug, more likely than not: onnx's own evaluator agrees with the reference",
    ),
)
# In the order of conclusions.
QUOTED = (
    Fact.INPUT,
    Fact.EXPORT,
    Fact.COARSE,
    Fact.MODEL,
    Fact.ALIKE,
    Fact.RANGE,
    Fact.SWITCH,
    Fact.KNOWN,
    Fact.APPROXIMATE,
    Fact.SOMEWHERE,
)
# The facts of the conclusions that the candidate rounds, and does nothing wrong; "probably" is not
# enough.
ROUNDING = frozenset(
    (
        (Fact.WITHIN,),
        (Fact.FITS, Fact.GRID),
        (Fact.FITS, Fact.RIGHT_FINER),
    )
)
UNKNOWN = "not known: no evidence decides it"


def conclude(evidence: Sequence[Evidence]) -> Evidence:
    """Return the conclusion that the facts of all evidence lead to; its fact is `ROUNDS` if that
    is all."""
    facts = {e.fact for e in evidence if e.fact}
    explains = max(
        (e.precision for e in evidence if e.precision), key=Precision.roundoff, default=None
    )
    decisive, text = next(
        ((n, text) for n, text in CONCLUSIONS if facts.issuperset(n)), ((), UNKNOWN)
    )
    quoted = {e.fact: e.quoted for e in reversed(evidence)}
    what = next((quoted[fact] for fact in QUOTED if fact in quoted), "")
    passes = f" ({quoted[Fact.PASS]})" if Fact.PASS in quoted else ""
    says = text.format(
        dtype=explains and explains.dtype, claim=explains, quoted=what, passes=passes
    )
    return Evidence("conclusion", says, Fact.ROUNDS if decisive in ROUNDING else None)
