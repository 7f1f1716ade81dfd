"""Outputs of a model whose right values are known -> the mistake of the wrapper that returned them,
in one sentence.

A wrapper is the user's code around a runtime: a Python file or a command. Its mistakes change every
output of every model alike: other types or shapes, exchanged names, another layout, values that
were scaled or squashed a second time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import numpy as np

from subgraph.comparison.pair import find_worst, pair_if_comparable
from subgraph.comparison.similarity.explanations import find_explanations
from subgraph.comparison.similarity.rearranged import iter_misreadings
from subgraph.storage.tensors import Tensors, Value, find_largest, format_shape
from subgraph.types import Array, Arrays

MAX_ROUNDING_ERROR = 1e-2  # of the largest value: rounding of a low precision stays within
MAX_NAMES = 5  # outputs whose names are tried in every order
Compute = Callable[[Arrays], Arrays]


def explain_breach(expected: Arrays, given: Tensors) -> str:
    """Return the mistake that all outputs show; "" if one of them is right, or no known mistake
    explains them.

    Args:
        expected: The right value of each output, numbers of which most differ.
        given: The values that the candidate returned, by name.
    """
    if sentence := _explain_kind(expected, given):
        return sentence
    arrays = {
        name: value
        for name, value in given.items()
        if name in expected and isinstance(value, np.ndarray)
    }
    if arrays.keys() != expected.keys() or any(
        is_right(expected[name], arrays[name]) for name in expected
    ):
        return ""
    with np.errstate(all="ignore"):
        if _is_garbage(arrays.values()):
            return "every value is NaN or infinite"
        first = next(iter(arrays.values())).flat[0]
        if all((value == first).all() for value in arrays.values()):
            return f"every value is {first:g}"
        for explain in (_explain_form, _explain_names, _explain_values):
            if sentence := explain(expected, arrays):
                return sentence
    return ""


def explain_form(expected: Arrays, given: Tensors) -> str:
    """Return the kind, shape or type that the wrapper changed, or the output that it lost; "" if
    the form is as declared or the values are wrong too."""
    if missing := sorted(expected.keys() - given.keys()):
        return f"'{missing[0]}' is missing"
    if sentence := _explain_kind(expected, given):
        return sentence
    arrays = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    if not expected or arrays.keys() != expected.keys():
        return ""
    if _is_garbage(arrays.values()):
        return f"every value of '{min(arrays)}' is NaN or infinite"
    return _explain_form(expected, arrays)


def _explain_kind(expected: Arrays, given: Tensors) -> str:
    for name, value in given.items():
        if isinstance(value, list):
            return f"'{name}' is a Python list, not an array"
        if name in expected and isinstance(value, np.ndarray) and value.dtype.kind in "OUST":
            return f"'{name}' is text, not an array of numbers"
    return ""


def explain_misread(compute: Compute, inputs: Arrays, given: Tensors) -> str:
    """Return how the wrapper misread the inputs, if its outputs are the right ones of the misread
    inputs; else ""."""
    misread = [dict(iter_misreadings(value)) for value in inputs.values()]
    for change in misread[0]:
        if not all(change in values for values in misread):
            continue
        expected = compute(
            {name: values[change] for name, values in zip(inputs, misread, strict=True)}
        )
        if all(name in given and is_right(value, given[name]) for name, value in expected.items()):
            return f"the inputs are {change}"
    return ""


def is_right(expected: Array, given: Value) -> bool:
    """Return whether a value has the right shape, a type that is as precise, and the right
    numbers."""
    if not isinstance(given, np.ndarray) or given.shape != expected.shape:
        return False
    return is_harmless_type(expected, given) and _is_near(expected, given)


def is_harmless_type(expected: Array, given: Array) -> bool:
    """Return whether the type is the declared one, or float64 instead of a narrower float."""
    return given.dtype == expected.dtype or (
        given.dtype == np.float64 and expected.dtype.kind in "fV"
    )


def _is_near(expected: Array, given: Array) -> bool:
    if given.size != expected.size:
        return False
    if given.dtype.kind not in "fiuV" or expected.dtype.kind not in "fiuV":
        return np.array_equal(expected.reshape(-1), given.reshape(-1))
    with np.errstate(all="ignore"):
        right, value = (array.reshape(-1).astype(np.float64) for array in (expected, given))
    finite = np.isfinite(right)
    if not np.array_equal(finite, np.isfinite(value)):
        return False
    limit = MAX_ROUNDING_ERROR * find_largest(right[finite])
    return bool((np.abs(right[finite] - value[finite]) <= limit).all())


def _is_garbage(arrays: Iterable[Array]) -> bool:
    """Return whether no value is finite."""
    return not any(np.isfinite(array.astype(np.float64, copy=False)).any() for array in arrays)


def _explain_form(expected: Arrays, given: Arrays) -> str:
    """Return the wrong shape or type of values that are right; "" if the values are wrong."""
    if not all(_is_near(expected[name], given[name]) for name in expected):
        return ""
    name = next(iter(expected))
    right = expected[name]
    value = given[name]
    if value.shape != right.shape:
        return (
            f"'{name}' has the shape {format_shape(value.shape)},"
            f" and {format_shape(right.shape)} is"
            " declared"
        )
    return f"'{name}' has the type {value.dtype}, and {right.dtype} is declared"


def _explain_names(expected: Arrays, given: Arrays) -> str:
    if not 1 < len(expected) <= MAX_NAMES:
        return ""
    for order in itertools.permutations(expected):
        exchanged = dict(zip(expected, order, strict=True))
        if all(_is_near(expected[right], given[name]) for name, right in exchanged.items()):
            pairs = (
                f"'{name}' holds '{right}'" for name, right in exchanged.items() if name != right
            )
            return f"the names of the outputs are exchanged: {', '.join(pairs)}"
    return ""


def _explain_values(expected: Arrays, given: Arrays) -> str:
    """Return the change that all outputs show, as a sentence; "" without one.

    It is another layout, a line, a squashing function or another byte order.
    """
    for text, function in (("softmax", _compute_softmax), ("sigmoid", _compute_sigmoid)):
        if all(_is_near(function(expected[name]), given[name]) for name in expected):
            return f"{text} was applied to the outputs"
        if all(_is_near(expected[name], function(given[name])) for name in expected):
            return f"the outputs lack a final {text}"
    if all(_is_near(expected[name], given[name].byteswap()) for name in expected):
        return "the outputs are big-endian"
    found = [find_explanations(expected[name], given[name]) for name in expected]
    shared = set.intersection(*({one.text for one in of if not one.narrows} for of in found))
    if shared:
        return f"the outputs are changed: {min(shared)}"
    return ""


def _compute_softmax(values: Array) -> Array:
    powers = np.exp(values.astype(np.float64) - values.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def _compute_sigmoid(values: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-values.astype(np.float64))))


def keeps_answer(expected: Arrays, first: Arrays, given: Tensors) -> bool:
    """Return whether the outputs for another input are still those of the first input.

    Args:
        expected: The right outputs for the other input.
        first: The right outputs for the first input.
        given: The values that the candidate returned for the other input.
    """
    changed = [name for name, value in expected.items() if not _is_near(value, first[name])]
    return bool(changed) and all(is_right(first[name], given.get(name)) for name in changed)


def describe_worst(expected: Arrays, given: Tensors) -> str:
    """Return the worst number that is wrong: `'y' is 0.3 at [0,0,0,1], and 0.5 is right`."""
    for name, right in expected.items():
        pair = pair_if_comparable(right, given.get(name))
        if pair and (worst := find_worst(pair)):
            at = ",".join(map(str, worst.index))
            return (
                f"'{name}' is {float(worst.candidate):.4g} at [{at}], and"
                f" {float(worst.reference):.4g} is right"
            )
    return "the values are wrong"
