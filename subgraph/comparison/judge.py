"""Two values of one output, and a rule -> one judgement; values that cannot be compared are settled
before the rule.

The text of a criterion becomes a rule here: `NAME`, `NAME:options`, `path/to/file.py:options`, or
only limits (`cosine>0.999`), which mean `threshold`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from subgraph import plugins
from subgraph.comparison.contract import is_harmless_type
from subgraph.comparison.criteria import OutputContext, Rule
from subgraph.comparison.pair import Pair, find_worst
from subgraph.errors import UsageError
from subgraph.storage.tensors import Value, format_shape
from subgraph.text import clean, list_some, split_spec
from subgraph.types import Array
from subgraph.verdict import NOTHING, Judgement, Signature, Status, compute_gravity

DEFAULT_METRICS = ("max_abs", "max_rel", "cosine", "mismatch")
LABELS = {Status.AGREE: "agrees", Status.FAIL: "fail", Status.UNRESOLVED: "unresolved"}
MAX_OUTPUT_NAMES = 8  # names of the candidate's outputs in the message on a missing one


def parse_criterion(text: str) -> Rule:
    """Return the rule of `numpy:rtol=1e-3`, `tnn`, `my_rule.py` or `cosine>0.999`.

    Raises:
        UnknownName: no such criterion or metric; carries the nearest.
        UsageError: the criterion does not understand its options; names those that it expects.
    """
    name, options = _split(text)
    module = plugins.load("criteria", name)
    if not callable(getattr(module, "rule", None)):
        raise UsageError(
            f"criterion '{name}' has no function rule(options)",
            "define it: it returns judge(pair, context)",
            code="plugin.no-function",
        )
    rule: Rule = module.rule(options)
    return rule


def list_files(text: str) -> list[str]:
    """Return the Python files that a criterion runs: its own, and those of its metrics.

    This function runs none of them.

    >>> specs = ("./mine.py:tight", "threshold:cosine>0.9,./mine.py<1", "noise")
    >>> tuple(map(list_files, specs))
    (['./mine.py'], ['./mine.py'], [])

    Raises:
        UnknownName, UsageError: as `parse_criterion`.
    """
    name, options = _split(text)
    if name.endswith(".py"):
        return [name]
    named = getattr(plugins.load("criteria", name), "files", None)
    return list(named(options)) if named else []


def _split(text: str) -> tuple[str, str]:
    """Return a criterion's name or path, and its options."""
    text = text.strip()
    path, suffix, options = text.rpartition(".py:")  # a path may hold a colon, as C:\rules.py does
    if suffix:
        name = f"{path}.py"
    elif text.endswith(".py"):
        name = text
        options = ""
    else:
        name, _, options = split_spec(text)
    return ("threshold", text) if any(sign in name for sign in "<>") else (name, options)


def judge_missing(name: str, available: Iterable[str], sample: str = "") -> Judgement:
    """Return the judgement of an output that the candidate did not return.

    Args:
        name: The output.
        available: The names of the outputs that the candidate returned.
        sample: The sample.
    """
    names = [clean(n) for n in available]
    listed = f"it returned {list_some(names, MAX_OUTPUT_NAMES) or 'none'}"
    return _make_failure(
        name, Signature.MISSING, f"the candidate returned no such output; {listed}", sample
    )


def judge(
    reference: Value,
    candidate: Value,
    rule: Rule,
    context: OutputContext,
    sample: str = "",
    metrics: Sequence[str] = DEFAULT_METRICS,
) -> Judgement:
    """Judge one output.

    Unresolved if there is nothing to compare on both sides (an empty tensor, sequence or optional).
    A scalar may have shape (1,) in the candidate: some runtimes have no rank 0. Every element of a
    sequence is judged, without noise, and the worst decides.

    `metrics`: keys of the judgement's `errors`.

    Raises:
        UnknownName: no such metric.
    """
    name = context.name
    if why := _find_kind_mismatch(reference, candidate):
        return _make_failure(name, Signature.SHAPE, why, sample)
    if reference is None:
        return judge_nothing(name, "the optional is empty", sample)
    if isinstance(reference, list):
        assert isinstance(candidate, list)
        if not reference:
            return judge_nothing(name, "the sequence is empty", sample)
        inner = replace(context, noise=None, half_step=0.0)
        pairs = enumerate(zip(reference, candidate, strict=True))
        elements = [
            judge(a, b, rule, replace(inner, name=f"element {i}"), sample, metrics)
            for i, (a, b) in pairs
        ]
        worst = max(elements, key=compute_gravity)
        return replace(worst, name=name, why=f"{worst.name} of {len(elements)}: {worst.why}")
    assert candidate is not None and not isinstance(candidate, list)
    if candidate.dtype != reference.dtype and is_harmless_type(reference, candidate):
        candidate = candidate.astype(reference.dtype)
    reasons = []
    # Rank 0 and rank 1 of one element are the same.
    if reference.shape != candidate.shape and {reference.shape, candidate.shape} != {(), (1,)}:
        reasons.append(
            f"{format_shape(candidate.shape)} where {format_shape(reference.shape)} was expected"
        )
    expected = _name_dtype(reference)
    actual = _name_dtype(candidate)
    if expected != actual:
        reasons.append(f"{actual} where {expected} was expected")
    if why := " and ".join(reasons):
        return _make_failure(name, Signature.SHAPE, why, sample)
    if not reference.size:
        return judge_nothing(name, f"the shape is {format_shape(reference.shape)}", sample)
    return _judge_pair(
        Pair(reference, candidate.reshape(reference.shape)), context, rule, metrics, sample
    )


def _judge_pair(
    pair: Pair, context: OutputContext, rule: Rule, metrics: Sequence[str], sample: str
) -> Judgement:
    ruling = rule(pair, context)
    status = ruling.status
    label = ruling.label
    why = ruling.why
    if not pair.compared and (
        status is Status.AGREE or (status is Status.UNRESOLVED and not label)
    ):
        status = Status.UNRESOLVED
        label = NOTHING
        why = "no element is finite in both"
    signature = (ruling.signature or Signature.MISMATCH) if status is Status.FAIL else None
    errors = pair.compute_metric(metrics) | ruling.metrics
    label = label or LABELS[status]
    return Judgement(
        context.name, status, signature, label, why, errors, find_worst(pair), ruling.noise, sample
    )


def _find_kind_mismatch(reference: Value, candidate: Value) -> str:
    """Return the reason why the two cannot be compared: a tensor and a sequence, or sequences of
    different lengths."""
    expected = _describe_kind(reference)
    actual = _describe_kind(candidate)
    if expected != actual:
        return f"{actual} where {expected} was expected"
    if (
        isinstance(reference, list)
        and isinstance(candidate, list)
        and len(reference) != len(candidate)
    ):
        return f"a sequence of {len(candidate)} where one of {len(reference)} was expected"
    return ""


def _describe_kind(value: Value) -> str:
    if value is None:
        return "an empty optional"
    if isinstance(value, list):
        return "a sequence"
    return "a tensor"


def _name_dtype(array: Array) -> str:
    """Return an element type's name, the same for all kinds of strings, and for
    either byte order."""
    if array.dtype.kind in "OUST":
        return "string"
    return array.dtype.name


def _make_failure(name: str, signature: Signature, why: str, sample: str) -> Judgement:
    return Judgement(name, Status.FAIL, signature, LABELS[Status.FAIL], why, sample=sample)


def judge_nothing(name: str, why: str, sample: str) -> Judgement:
    """Return the judgement of an output of which nothing is compared."""
    return Judgement(name, Status.UNRESOLVED, None, NOTHING, why, sample=sample)
