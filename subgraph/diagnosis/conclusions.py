"""Evidence about a failing region -> a conclusion: rounding, a bug, or not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from subgraph.precision import Precision


@dataclass(frozen=True)
class Evidence:
    """Attributes:
    kind: conclusion, range, noise, precision, input, likeness, exact, pass, switch, second or export.
    fact: words by which `CONCLUSIONS` are chosen; "" where it decides nothing.
    """

    kind: str
    says: str
    fact: str = ""


# The first is drawn whose facts are all there; `{0}` is the precision that explains the error, `{1}` its claim, `{2}`
# what the error looks like, or how the input was misread; `{3}` the passes.
CONCLUSIONS = (
    ("input", "the input, not a node: {2}; the reference fed so gives the same"),
    ("export", "{2}"),
    ("candidate", "not known which side is wrong: onnx's own evaluator agrees with the candidate"),
    ("overflow", "range: the claimed precision cannot hold a weight of this region; keep the region in float32"),
    ("alike", "a bug, or another layout or preprocessing: the whole error {2}"),
    ("range", "range, not a bug: the candidate computes in float16, which ends at 65504; declare --precision fp16"),
    ("switch", "one option of the candidate is the reason: right with that option off"),
    ("within", "rounding, not a bug: the criterion asks for more than the claimed precision can give"),
    ("fits wrong-finer", "not known: {0} rounding explains the size of the error, but full precision is as wrong"),
    ("fits grid", "rounding, not a bug: the candidate computes in {0}; declare --precision {1}"),
    (
        "approximate",
        "no bug, by the size of the error: within 0.002 of the scale, as of approximate kernels",
    ),
    ("fits right-finer", "rounding, not a bug: {0} arithmetic explains the error, and full precision is right"),
    ("fits right", "a bug of the candidate's optimiser, or an approximation no worse than {0}: right without it"),
    (
        "fits",
        "probably rounding, not a bug: {0} arithmetic explains it; if the candidate uses that, declare --precision {1}",
    ),
    (
        "right reference",
        "a bug of the candidate's optimiser{3}: right without it; onnx's own evaluator confirms the reference",
    ),
    ("right", "a bug of the candidate's optimiser{3}: right without it"),
    ("wrong-finer", "a bug: full precision is as wrong, so rounding is not the reason"),
    (
        "right-finer",
        "not known: right in full precision; a bug of kernels for less, or more rounding than usual",
    ),
    ("grid", "not known: the candidate computes in {0}, whose rounding explains only a part of the error"),
    ("open", "not known: a precision below the claimed one might be the reason"),
    ("beyond reference", "a bug: rounding does not explain it, and onnx's own evaluator agrees with the reference"),
    ("beyond", "a bug, unless the reference is wrong: rounding does not explain it"),
    ("reference", "a bug, more likely than not: onnx's own evaluator agrees with the reference"),
)
UNKNOWN = "not known: no evidence decides it"


def conclude(evidence: Sequence[Evidence]) -> str:
    """The conclusion that the facts of all evidence lead to."""
    facts = {fact for e in evidence for fact in e.fact.split()}
    explains = max((p for p in Precision if p in facts), key=Precision.roundoff, default=None)
    conclusion = next((text for needed, text in CONCLUSIONS if facts.issuperset(needed.split())), UNKNOWN)
    says = {e.fact: e.says for e in reversed(evidence)}
    alike = next((says[fact] for fact in ("input", "export", "alike") if fact in says), "")
    passes = f" ({says['pass'].removeprefix('right without ')})" if "pass" in says else ""
    return conclusion.format(explains and explains.dtype, explains, alike, passes)
