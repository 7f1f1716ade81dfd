"""Tensors of the reference's model -> the same tensors in the candidate's own model.

By name, as the user says, or by value on one captured sample. Converters keep most names. Where they do not (a fused
node, another layout, a quantized tensor), the value decides: the same numbers, perhaps transposed, cast or quantized. A
match by value must be unique both ways and keep the order of the graphs, since Identity, or a ReLU of positive values,
makes equal tensors. A doubtful tensor is not matched, and the regions on its two sides are run as one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from subgraph.comparison.pair import relative_l2
from subgraph.documents import KEY
from subgraph.errors import UnknownName, UsageError
from subgraph.graph.graph import VALUE, Graph
from subgraph.graph.quantization import Scale, scales_of
from subgraph.storage.layouts import axis_orders
from subgraph.storage.tensors import np_dtype
from subgraph.text import clean, nearest
from subgraph.types import Array

NEAR = 0.1  # relative l2 distance up to which values may be the same tensor: int8 nets drift by less
CLEARER = 4.0  # a match must be so many times nearer than any rival
DOUBTFUL = 1.5  # a neighbour at less than this times the own distance may as well be meant
SURELY = 1e-6  # a distance of rounding alone
MIN_DIFFERENT = 16  # different numbers in a tensor that its values can identify
# Operators that change no number: their output is the same tensor once more.
COPYING = frozenset("Identity Transpose Dropout Cast DequantizeLinear".split())
SUFFIXES = ("_quantized", "_QuantizeLinear_Output", "_DequantizeLinear_Output")  # onnxruntime's quantizer


@dataclass(frozen=True)
class MatchedTensor:
    """Where a tensor of the reference's model is in the candidate's.

    Attributes:
        name: its name there. how: "name", "map" or "value".
        perm: candidate's value = reference's value.transpose(perm); () where the axes are in the same order.
        dtype: its element type there; "" if unknown.
        scale: of quantized values there. own: of the reference's own values, where it is quantized in another way.
    """

    name: str = field(metadata={KEY: "other"})
    how: str
    perm: tuple[int, ...] = ()
    dtype: str = ""
    scale: Scale | None = None
    own: Scale | None = None

    def of_type(self, dtype: str) -> MatchedTensor:
        """With its element type; integers without a scale are the reference's own, as far as is known."""
        same = self.own is not None and self.scale is None and np_dtype(dtype).kind in "iu"
        return replace(self, dtype=dtype, scale=self.own if same else self.scale)

    def to_candidate(self, value: Array) -> Array:
        """A value of the reference's model in the layout and type of the candidate's."""
        real = self.own.dequantize(value) if self.own else value
        turned = real.transpose(self.perm) if self.perm else real
        if self.scale and self.dtype:
            return self.scale.quantize(turned, self.dtype)
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(turned.astype(np_dtype(self.dtype)) if self.dtype else turned)

    def to_reference(self, value: Array, dtype: str) -> Array:
        """The inverse; `dtype`: the reference's."""
        real = self.to_real(value)
        return self.own.quantize(real, dtype) if self.own else real.astype(np_dtype(dtype))

    def to_real(self, value: Array) -> Array:
        """The candidate's value as real numbers in the reference's layout; a value of another rank keeps its axes."""
        real = self.scale.dequantize(value) if self.scale else value
        if not self.perm or len(self.perm) != real.ndim:
            return real
        return np.ascontiguousarray(real.transpose(np.argsort(self.perm)))

    @property
    def plain(self) -> bool:
        """Is it the same tensor, up to its name and type?"""
        return not self.perm and self.scale is None and self.own is None


@dataclass(frozen=True)
class ModelValues:
    """A model, and the values of its tensors on one sample; None for a tensor without one."""

    graph: Graph
    value: Callable[[str], Array | None]


def match_tensors(
    reference: ModelValues, candidate: ModelValues, tensor_map: Mapping[str, str] | None = None
) -> dict[str, MatchedTensor]:
    """Tensors of the reference's model that depend on the inputs' values, and where they are in the candidate's.

    `tensor_map`: name in the reference's model → name in the candidate's. Complexity: linear in the values for names;
    values are compared only with those of the same sizes and about the same mean and spread.

    Raises:
        UnknownName: `tensor_map` names a tensor that does not exist.
    """
    tensor_map = tensor_map or {}
    check_tensors(reference.graph, tensor_map)
    check_tensors(candidate.graph, tensor_map.values())
    names = _value_tensors(reference.graph)
    ours, theirs = reference.graph.inputs, candidate.graph.inputs
    if len(ours) == len(theirs) and not set(ours) & set(theirs):  # a converter has renamed them all
        tensor_map = {**dict(zip(ours, theirs, strict=True)), **tensor_map}
    targets = dict.fromkeys((*candidate.graph.inputs, *_value_tensors(candidate.graph)))
    scales, own = scales_of(candidate.graph), scales_of(reference.graph)
    reference = ModelValues(reference.graph, partial(_real, reference.value, own))
    matches: dict[str, MatchedTensor] = {}
    for name in names:
        for target, how in _by_name(name, tensor_map, targets):
            match = MatchedTensor(target, how, scale=scales.get(target), own=own.get(name))
            fitted = _fit(match, reference.value(name), candidate.value(target))
            if target == name and name in reference.graph.outputs and name in candidate.graph.outputs:
                matches[name] = fitted or match  # an output is the output, however far off its values are
                break
            if fitted and not (how == "name" and _is_displaced(reference, candidate, name, fitted)):
                matches[name] = fitted
                break
    used = {*candidate.graph.inputs, *(m.name for m in matches.values())}
    free = [MatchedTensor(n, "value", scale=scales.get(n)) for n in targets if n not in used]
    near = _near_values(reference, [n for n in names if n not in matches], candidate, free, own)
    return matches | _mutual(reference.graph, candidate.graph, near, matches)


def read_map(path: Path) -> dict[str, str]:
    """A file of lines `OURS THEIRS`, separated by blanks, a tab, a comma or `=`; `#` begins a remark.

    Raises:
        UsageError: it cannot be read, or a line has another form.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as e:
        raise UsageError(
            f"cannot read --map {clean(str(path))}: {e}", "a text file with a line OURS THEIRS for each"
        ) from e
    tensor_map = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        words = text.split("\t") if "\t" in text else re.split(r"\s*[,=]\s*|\s+", text)
        if words == [""]:
            continue
        if len(words) != 2:
            raise UsageError(f"--map {clean(str(path))}, line {number}: expected OURS THEIRS", "two names of tensors")
        tensor_map[words[0]] = words[1]
    return tensor_map


def check_tensors(graph: Graph, names: Iterable[str]) -> None:
    """
    Raises:
        UnknownName: one of the names in a map is no tensor of this model.
    """
    for name in names:
        if name not in graph.maker and name not in graph.inputs:
            close = nearest(name, [*graph.inputs, *graph.maker])
            raise UnknownName(f"--map: no tensor '{clean(name)}' in {clean(graph.path.name)}", nearest=close)


def _value_tensors(graph: Graph) -> list[str]:
    """Inputs, and tensors that depend on their values, in topological order."""
    kinds = graph.kinds(graph.maker)
    made = [n for i in graph.in_order(range(len(graph.nodes))) for n in graph.makes[i]]
    return [*graph.inputs, *(n for n in made if kinds[n] == VALUE)]


def _by_name(name: str, tensor_map: Mapping[str, str], targets: Collection[str]) -> Iterator[tuple[str, str]]:
    """Names in the candidate's model that may mean this tensor, each with how it was found."""
    if name in tensor_map:
        yield tensor_map[name], "map"
        return
    for target in (name, *(name + suffix for suffix in SUFFIXES)):
        if target in targets:
            yield target, "name"


# ---------------------------------------------------------------------------------------------------- values


def _real(value: Callable[[str], Array | None], scales: Mapping[str, Scale], name: str) -> Array | None:
    """A tensor's value as real numbers."""
    stored = value(name)
    return scales[name].dequantize(stored) if stored is not None and name in scales else stored


def _fit(match: MatchedTensor, expected: Array | None, value: Array | None) -> MatchedTensor | None:
    """The match with its type and order of axes; None where the two cannot be the same tensor."""
    if value is None or expected is None:
        return match
    match = match.of_type(value.dtype.name)
    same_shape = expected.shape == value.shape
    if same_shape and (expected.ndim < 2 or relative_l2(expected, match.to_real(value)) <= NEAR):
        return match
    unchanged = tuple(range(expected.ndim))
    perms = [() if order == unchanged else order for order in axis_orders(expected.shape, value.shape)]
    turned = [replace(match, perm=perm) for perm in perms]
    if len(turned) < 2:
        return turned[0] if turned else None
    distances = sorted((relative_l2(expected, m.to_real(value)), m.perm) for m in turned)
    (best, perm), (second, _) = distances[:2]
    if best * CLEARER < second and best <= NEAR:
        return replace(match, perm=perm)
    return match if same_shape else None  # a value that is far off in every order says nothing about the order


def _is_displaced(reference: ModelValues, candidate: ModelValues, name: str, match: MatchedTensor) -> bool:
    """Does the candidate's tensor of this name hold a neighbouring tensor's values?

    A converter that drops a Relu, because the quantization behind it clips anyway, gives its name to the tensor that
    the Relu read. Where this cannot be told, as behind a region that fails, the answer is yes.
    """
    graph, maker, target_maker = reference.graph, reference.graph.maker.get(name), candidate.graph.maker.get(match.name)
    if maker is None or target_maker is None:
        return False
    op = candidate.graph.ops[target_maker]
    if op == graph.ops[maker] or op.startswith("Fused"):
        return False  # a FusedConv holds its Relu
    value = candidate.value(match.name)
    if value is None:
        return False
    real = match.to_real(value)

    def distance_from(tensor: str) -> float:
        expected = reference.value(tensor)
        return math.inf if expected is None else relative_l2(expected, real)

    own = distance_from(name)
    neighbours = {*graph.reads[maker], *(n for i in graph.successors(maker) for n in graph.makes[i])} - {name}
    return own > NEAR and any(distance_from(n) < own * DOUBTFUL for n in neighbours if n in graph.maker)


Near = tuple[float, MatchedTensor]  # a possible match and its distance


def _near_values(
    reference: ModelValues, names: Iterable[str], candidate: ModelValues, free: Iterable[MatchedTensor],
    own: Mapping[str, Scale],
) -> dict[str, list[Near]]:  # fmt: skip
    """By tensor of the reference's model, the matches whose values are near."""
    by_sizes: dict[tuple[int, ...], list[MatchedTensor]] = {}
    for match in free:
        value = candidate.value(match.name)
        if value is not None and value.dtype.kind in "fiuV":
            by_sizes.setdefault(tuple(sorted(value.shape)), []).append(match)
    near: dict[str, list[Near]] = {}
    for name in names:
        expected = reference.value(name)
        if expected is None or expected.dtype.kind != "f" or not varied(expected):
            continue
        for match in by_sizes.get(tuple(sorted(expected.shape)), ()):
            value = candidate.value(match.name)
            if value is None or not _same_spread(expected, match.to_real(value)):
                continue
            fitted = _fit(replace(match, own=own.get(name)), expected, value)
            apart = relative_l2(expected, fitted.to_real(value)) if fitted else math.inf
            if fitted and apart <= NEAR:
                near.setdefault(name, []).append((apart, fitted))
    return near


def varied(value: Array) -> bool:
    """Does a tensor hold enough different numbers to be identified by them?"""
    return value.size >= MIN_DIFFERENT and np.unique(value.reshape(-1)[: 1 << 16]).size >= MIN_DIFFERENT


def _same_spread(a: Array, b: Array) -> bool:
    """Have two tensors about the same mean and standard deviation, whatever the order of their axes?"""
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        scale = float(np.abs(x).max(initial=0.0)) or 1.0
        return bool(abs(x.mean() - y.mean()) <= NEAR * scale and abs(x.std() - y.std()) <= NEAR * scale)


# ---------------------------------------------------------------------------------------------------- uniqueness


def _mutual(
    reference: Graph, candidate: Graph, near: Mapping[str, list[Near]], matches: Mapping[str, MatchedTensor]
) -> dict[str, MatchedTensor]:
    """The matches by value that no rival on either side comes close to, and that keep the order of the graphs."""
    back: dict[str, list[tuple[float, str]]] = {}
    for name, options in near.items():
        for apart, match in options:
            back.setdefault(match.name, []).append((apart, name))
    chosen: dict[str, MatchedTensor] = {}
    for name, options in near.items():
        best = min(options, key=lambda option: (option[0], candidate.rank[candidate.maker[option[1].name]]))
        original = _original(candidate, best[1].name)
        apart, match = next((option for option in options if option[1].name == original), best)
        rivals = [a for a, m in options if _original(candidate, m.name) != original]
        rivals += [a for a, n in back[match.name] if _original(reference, n) != _original(reference, name)]
        unique = all(a > max(apart * CLEARER, SURELY) for a in rivals)
        unique = unique and _is_first_copy(reference, name, [n for _, n in back[match.name]])
        if unique and _keeps_order(reference, candidate, name, match, {**matches, **chosen}):
            chosen[name] = match
    return chosen


def _original(graph: Graph, name: str) -> str:
    """The tensor that this one is a copy of; the tensor itself where it is none."""
    while (maker := graph.maker.get(name)) is not None and graph.ops[maker] in COPYING and graph.nodes[maker].input:
        name = graph.nodes[maker].input[0]
    return name


def _is_first_copy(graph: Graph, name: str, rivals: Iterable[str]) -> bool:
    """Is the tensor the first among the rivals that are copies of the same tensor?"""
    copies = [n for n in rivals if _original(graph, n) == _original(graph, name)]
    return min(copies, key=lambda n: graph.rank[graph.maker[n]] if n in graph.maker else -1) == name


def _keeps_order(
    reference: Graph, candidate: Graph, name: str, match: MatchedTensor, matches: Mapping[str, MatchedTensor]
) -> bool:
    """Is no tensor above this one matched with one that is only below its match, or the other way round?"""
    above, below = _above_and_below(reference, name)
    higher, lower = _above_and_below(candidate, match.name)
    return not any(
        (n in above and m.name in lower - higher) or (n in below and m.name in higher - lower)
        for n, m in matches.items()
    )


def _above_and_below(graph: Graph, name: str) -> tuple[set[str], set[str]]:
    """Tensors made by the ancestors and by the descendants of a tensor's node, both with the node itself."""
    nodes = [graph.maker[name]] if name in graph.maker else []
    above, below = graph.ancestors(nodes), graph.descendants(nodes)
    return {n for i in above for n in graph.makes[i]}, {n for i in below for n in graph.makes[i]}
