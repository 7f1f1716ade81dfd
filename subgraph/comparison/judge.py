"""Two values of one output, and a rule -> one judgement: what cannot be compared at all is settled before the rule.

The words of a criterion become a rule here, too. Layout of the words: `NAME`, `NAME:words`, `path/to/file.py:words`, or
limits alone (`cosine>0.999`), which mean `threshold`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from subgraph import plugins
from subgraph.comparison.criteria import Noise, OutputContext, Rule
from subgraph.comparison.pair import Pair
from subgraph.errors import UsageError
from subgraph.storage.tensors import Value, shape_text
from subgraph.text import clean
from subgraph.types import Array
from subgraph.verdict import Judgement, Signature, Status, gravity

DEFAULT_METRICS = ("max_abs", "max_rel", "cosine", "mismatch")
LABELS = {Status.AGREE: "agrees", Status.FAIL: "fail", Status.UNRESOLVED: "unresolved"}
SHOWN = 8  # names that a candidate did give, where one is missing


def parse_criterion(words: str) -> Rule:
    """The rule that `numpy:rtol=1e-3`, `tnn`, `my_rule.py` or `cosine>0.999` stands for.

    Raises:
        UnknownName: no such criterion or metric; carries the nearest.
        UsageError: the criterion does not understand its words; says what it expects.
    """
    words = words.strip()
    path, suffix, rest = words.rpartition(".py:")  # a path may hold a colon, as C:\rules.py does
    if suffix:
        name = f"{path}.py"
    elif words.endswith(".py"):
        name, rest = words, ""
    else:
        name, _, rest = words.partition(":")
    if any(sign in name for sign in "<>"):
        name, rest = "threshold", words
    module = plugins.load("criteria", name)
    if not callable(getattr(module, "rule", None)):
        raise UsageError(f"criterion '{clean(name)}' has no function rule(words)", "see subgraph/criteria")
    rule: Rule = module.rule(rest)
    return rule


def judge_missing(name: str, given: Iterable[str], sample: str = "") -> Judgement:
    """The candidate gave no such output; `given` are the names that it did give."""
    names = [clean(n) for n in given]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    what = f"it gave {', '.join(names[:SHOWN])}{more}" if names else "it gave none"
    return _failed(name, Signature.MISSING, f"the candidate gave no such output; {what}", sample)


def judge(
    name: str,
    reference: Value,
    candidate: Value,
    rule: Rule,
    claim: str = "fp32",
    noise: Noise | None = None,
    metrics: Sequence[str] = DEFAULT_METRICS,
    sample: str = "",
) -> Judgement:
    """Does this output agree?

    Nothing that both sides hold to compare (an empty tensor, sequence or optional) is unresolved. A scalar equals its
    one value in shape (1,): runtimes without rank 0 give that. Of a sequence every element is judged, without noise,
    and the worst decides.

    Eight parameters: what is judged, by what, and what the judgement should carry; name all but the first four.

    Args:
        claim, noise: for the rule, see `criteria.OutputContext`.
        metrics: what `errors` should hold.

    Raises:
        UnknownName: no such metric.
    """
    if why := _other_kind(reference, candidate):
        return _failed(name, Signature.SHAPE, why, sample)
    if reference is None:
        return _unresolved(name, "nothing was compared: the optional is empty", sample)
    if isinstance(reference, list):
        assert isinstance(candidate, list)
        pairs = zip(reference, candidate, strict=True)
        found = [judge(f"element {i}", a, b, rule, claim, None, metrics, sample) for i, (a, b) in enumerate(pairs)]
        return _worst(name, found, sample)
    assert candidate is not None and not isinstance(candidate, list)
    if why := _other_form(reference, candidate):
        return _failed(name, Signature.SHAPE, why, sample)
    pair = Pair(reference, candidate.reshape(reference.shape))
    return _asked(pair, OutputContext(name, claim, noise), rule, metrics, sample)


def _asked(pair: Pair, subject: OutputContext, rule: Rule, metrics: Sequence[str], sample: str) -> Judgement:
    """The rule's answer, with what was measured beside it."""
    if not pair.size:
        return _unresolved(subject.name, f"nothing was compared: the shape is {_shape(pair.reference)}", sample)
    ruling = rule(pair, subject)
    status, why = ruling.status, ruling.why
    if status is Status.AGREE and not pair.compared:
        status, why = Status.UNRESOLVED, "nothing was compared: no element is finite in both"
    return Judgement(
        subject.name,
        status,
        (ruling.signature or Signature.MISMATCH) if status is Status.FAIL else None,
        ruling.label if status is ruling.status and ruling.label else LABELS[status],
        why,
        pair.measured(metrics) | ruling.metrics,
        pair.worst,
        ruling.noise,
        sample,
    )


def _worst(name: str, elements: Sequence[Judgement], sample: str) -> Judgement:
    """A sequence: what its worst element said."""
    if not elements:
        return _unresolved(name, "nothing was compared: the sequence is empty", sample)
    worst = max(elements, key=gravity)
    return replace(worst, name=name, why=f"{worst.name} of {len(elements)}: {worst.why}")


def _other_kind(reference: Value, candidate: Value) -> str:
    """Why a tensor, a sequence and an empty optional cannot be compared, or sequences of other lengths."""
    expected, found = _kind(reference), _kind(candidate)
    if expected != found:
        return f"{found} where {expected} was expected"
    if isinstance(reference, list) and isinstance(candidate, list) and len(reference) != len(candidate):
        return f"a sequence of {len(candidate)} where one of {len(reference)} was expected"
    return ""


def _kind(value: Value) -> str:
    if value is None:
        return "an empty optional"
    return "a sequence" if isinstance(value, list) else "a tensor"


def _other_form(reference: Array, candidate: Array) -> str:
    """Why two arrays of other shape or element type cannot be compared."""
    said = []
    # rank 0 and rank 1 of one element are the same
    if reference.shape != candidate.shape and {reference.shape, candidate.shape} != {(), (1,)}:
        said.append(f"{_shape(candidate)} where {_shape(reference)} was expected")
    expected, found = _type(reference), _type(candidate)
    if expected != found:
        said.append(f"{found} where {expected} was expected")
    return " and ".join(said)


def _shape(array: Array) -> str:
    return shape_text(array.shape)


def _type(array: Array) -> str:
    """Element type by name: strings of any kind alike, and either order of bytes."""
    return "string" if array.dtype.kind in "OUST" else array.dtype.name


def _failed(name: str, signature: Signature, why: str, sample: str) -> Judgement:
    return Judgement(name, Status.FAIL, signature, LABELS[Status.FAIL], why, sample=sample)


def _unresolved(name: str, why: str, sample: str) -> Judgement:
    return Judgement(name, Status.UNRESOLVED, None, LABELS[Status.UNRESOLVED], why, sample=sample)
