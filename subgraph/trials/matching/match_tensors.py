"""Tensors of the reference's model -> the same tensors in the candidate's own model.

Tensors are matched by name, by the map of the user, or by value on one captured sample. Converters
keep most names. If they do not (a fused node, another layout, a quantized tensor), the value
decides: the same numbers, perhaps transposed, cast or quantized. A match by value must be unique
both ways and keep the order of the graphs, since Identity, or a ReLU of positive values, outputs
equal tensors. A doubtful tensor is not matched, and the regions on its two sides are run as one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from subgraph.comparison.metrics import compute_norm
from subgraph.comparison.pair import compute_relative_l2
from subgraph.errors import UnknownName, UsageError
from subgraph.graph.graph import Graph
from subgraph.graph.kinds import VALUE, find_kinds
from subgraph.graph.nested import get_attribute
from subgraph.graph.properties import COPIES, FOLDED_IN_TFLITE, MIXES_AXES
from subgraph.graph.quantization import TFLITE, find_tensor_scales
from subgraph.graph.selection import is_tensor
from subgraph.graph.walks import find_ancestors, find_descendants, find_operator, skip_operators
from subgraph.iterables import group_values, ungroup
from subgraph.storage.dtypes import Scale
from subgraph.storage.layouts import iter_axis_orders
from subgraph.text import find_nearest
from subgraph.trials.matching.matched_tensor import Axes, MatchedTensor, Matches
from subgraph.trials.matching.name_forms import ENDINGS, expand_map
from subgraph.types import Array, StringMap, frozen

# Relative l2 distance up to which values may be the same tensor: int8 nets drift by less.
MAX_DISTANCE = 0.1
MIN_RIVAL_RATIO = 4.0  # a match must be nearer than any rival by this factor
WORK_OF_QUANTIZERS = frozenset(("Clip", "Relu"))  # if the range of their codes begins at 0
MAX_ROUNDING_DISTANCE = 1e-6  # a distance of rounding alone
MIN_DIFFERENT = 16  # different numbers in a tensor that its values can identify
PROFILE_RUNS = 64  # of sorted values, that are compared before the values themselves
MIN_EXACT = 8  # the same, if they differ by rounding alone
PROFILE_SLACK = 1e-6  # of rounding, when profiles are compared


Key = TypeVar("Key", bound=Hashable)


@frozen
class ModelValues:
    """A model, and the values of its tensors on one sample; None for a tensor without one."""

    graph: Graph
    value: Callable[[str], Array | None]


def match_tensors(
    reference: ModelValues,
    candidate: ModelValues,
    tensor_map: StringMap | None = None,
    known: Matches | None = None,
    refuted: Collection[tuple[str, str]] = (),
    misshapen: Collection[str] = (),
) -> dict[str, MatchedTensor]:
    """Find where in the candidate's model the tensors are that depend on the inputs' values.

    `tensor_map`: name in the reference's model → name in the candidate's; `known`: matches to begin
    with; `refuted`: such pairs of names that are not matched; `misshapen`: names that are matched
    though shapes differ. Complexity: linear in the values for names; values are compared only with
    those of the same sizes whose sorted values are near.

    Raises:
        UnknownName: `tensor_map` names a tensor that does not exist.
    """
    other_graph = candidate.graph
    others = {name: name for name in (*other_graph.inputs, *other_graph.maker)}
    graph = reference.graph
    tensor_map = expand_map(tensor_map or {}, graph, others)
    check_tensors(graph, tensor_map)
    check_tensors(other_graph, tensor_map.values())
    names = list_value_tensors(graph)
    places = _pair_ends(reference, candidate)
    named = {name: (target, "map") for name, target in tensor_map.items()}
    targets = dict.fromkeys((*other_graph.inputs, *list_value_tensors(other_graph)))
    scales = find_tensor_scales(other_graph)
    own = find_tensor_scales(graph)
    reference = ModelValues(graph, partial(_as_real, reference.value, own))
    matches = dict(known or {})
    orders: dict[str, Axes] = {}
    shifted = {*misshapen}  # with the outputs that nodes which keep the axes compute of them
    for name in names:
        expected = reference.value(name)
        # The input of a Relu may be matched with a tensor that its output can be, too.
        before = matches.get(skip_operators(graph, name, WORK_OF_QUANTIZERS))
        order = () if expected is None else _inherit_order(graph, name, orders, expected.ndim)
        for target, how in (
            ()
            if name in matches
            else _find_by_name(name, places | named, targets, reference, candidate)
        ):
            is_taken = before is not None and before.name == target != name
            if (name, target) in refuted or is_taken:
                continue
            match = MatchedTensor(
                target, how, scale=scales.get(target), reference_scale=own.get(name)
            )
            value = candidate.value(target)
            if target != name and not can_hold(graph, name, match, expected, value):
                continue
            fitted = _fit(match, expected, value, order)
            # Another order of axes is a fault, not a layout, if the shape does not show it, in
            # an output, or if the tensors above do not have it.
            shapes = {None if a is None else a.shape for a in (expected, value)}
            is_unseen = target == name and len(shapes) == 1
            is_inside = name not in graph.outputs
            is_layout = order and (is_inside or any(m.perm for m in matches.values()))
            layout = _turn(order) if is_layout else ()
            is_alone = is_unseen and fitted is not None and fitted.perm != layout
            is_plain = _are_plain_transposes(graph, name, other_graph, matches)
            if fitted and (is_alone or is_plain):
                fitted = replace(fitted, perm=())
            is_kept = name in graph.maker and find_operator(graph, name) not in MIXES_AXES
            is_turned = bool(fitted and fitted.perm) and is_kept
            is_shifted = is_turned and not shifted.isdisjoint(graph.reads[graph.maker[name]])
            if (name in misshapen or is_shifted) and value is not None:
                shifted.add(name)
                fitted = replace(match.with_type(value.dtype.name), perm=_turn(order))
            is_output = target == name and not is_inside and name in other_graph.outputs
            if fitted or is_output:  # an output is the output, however far its values deviate
                matches[name] = fitted or match
                break
        if expected is not None and (name in matches or order):
            orders[name] = (
                (matches[name].perm or tuple(range(expected.ndim))) if name in matches else order
            )
    used = {*other_graph.inputs, *(m.name for m in matches.values())}
    free = [MatchedTensor(n, "value", scale=scales.get(n)) for n in targets if n not in used]
    near = _find_near_values(reference, names, candidate, free, own, matches)
    return matches | _select_mutual(graph, other_graph, near, matches)


def find_misshapen(reference: ModelValues, candidate: ModelValues, matches: Matches) -> set[str]:
    """Find tensors of one name whose shapes differ by more than the order of long axes.

    An order in which the values of an intermediate tensor deviate far counts, too.
    """
    found = set()
    for name in {*list_value_tensors(reference.graph)}.intersection(
        list_value_tensors(candidate.graph)
    ):
        expected = reference.value(name)
        value = candidate.value(name)
        match = matches.get(name)
        perm = match.perm if match else ()
        if expected is not None and value is not None and expected.shape != value.shape:
            long_axes = [axis for axis in perm if expected.shape[axis] > 1]
            is_far = match and compute_relative_l2(expected, match.to_real(value)) > MAX_DISTANCE
            if long_axes == sorted(long_axes) or (is_far and name not in reference.graph.outputs):
                found.add(name)
    return found


def read_map(path: Path, graph: Graph | None = None) -> StringMap:
    """Read a file of lines `OURS THEIRS`, separated by blanks, a tab, a comma or `=`; `#` begins a
    remark. It may also be onnx2tf's report on the tensors of a model, which is `graph`.

    Raises:
        UsageError: it cannot be read, or a line has another form.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        raise UsageError(
            f"cannot read --map {path}: {e}",
            "a text file with a line OURS THEIRS for each",
            code="map.unreadable",
        ) from e
    if graph and text.startswith("{"):
        return _read_report(text, path, graph)
    tensor_map = {}
    for number, line in enumerate(text.splitlines(), 1):
        text = line.partition("#")[0].strip()
        words = text.split("\t") if "\t" in text else re.split(r"\s*[,=]\s*|\s+", text)
        if words == [""]:
            continue
        if len(words) != 2:
            raise UsageError(
                f"--map {path}, line {number}: expected OURS THEIRS",
                "two names of tensors",
                code="map.malformed",
            )
        tensor_map[words[0]] = words[1]
    return tensor_map


def _read_report(text: str, path: Path, graph: Graph) -> StringMap:
    """Return the pairs of onnx2tf's `model_tensor_correspondence_report.json`.

    It writes `conv:0` as `conv__0`, so that the node and the position identify the tensor. Of
    several tensors that became one, as before a fused activation, the last one has its value.

    Raises:
        UsageError: It is another kind of JSON.
    """
    keys = "onnx_output_name onnx_op_name onnx_output_index resolved_tflite_tensor_name".split()
    try:
        records = [r for r in json.loads(text)["records"] if r["exists_in_final_model"]]
        rows = [[record[key] for key in keys] for record in records]
    except (ValueError, KeyError, TypeError) as e:
        raise UsageError(
            f"--map {path}: this JSON is not onnx2tf's report on tensors",
            "model_tensor_correspondence_report.json, or lines OURS THEIRS",
            code="map.malformed",
        ) from e
    ours = {}
    for name, node, position, theirs in rows:
        if name not in graph.maker and node in graph.node_names:
            name = dict(enumerate(graph.makes[graph.node_names.index(node)])).get(position, name)
        if name in graph.maker:
            ours[theirs] = name
    return {name: theirs for theirs, name in ours.items()}


def check_tensors(graph: Graph, names: Iterable[str]) -> None:
    """Require that these names are tensors of the model.

    Raises:
        UnknownName: one of the names in a map is not a tensor of this model.
    """
    for name in names:
        if not is_tensor(graph, name):
            close = find_nearest(name, [*graph.inputs, *graph.maker])
            raise UnknownName(
                f"--map: no tensor '{name}' in {graph.path.name}",
                nearest=close,
                code="map.unknown-name",
            )


def list_value_tensors(graph: Graph) -> list[str]:
    """Return inputs, and tensors that depend on their values, of nodes that an output needs, in
    topological order."""
    kinds = find_kinds(graph, graph.maker)
    nodes = find_ancestors(graph, graph.producers(graph.outputs))
    made = list(graph.iter_outputs(graph.in_order(nodes)))
    return [*graph.inputs, *(n for n in made if kinds[n] == VALUE)]


def _pair_ends(reference: ModelValues, candidate: ModelValues) -> dict[str, tuple[str, str]]:
    """Pair inputs and outputs that a converter has renamed: all inputs by position, an output with
    the only other one of its sizes."""
    ours = reference.graph.inputs
    theirs = candidate.graph.inputs
    is_renamed = len(ours) == len(theirs) and not set(ours) & set(theirs)
    pairs = list(zip(ours, theirs, strict=True)) if is_renamed else []
    by_sizes = _group_outputs(candidate, reference.graph)
    for sizes, names in _group_outputs(reference, candidate.graph).items():
        others = by_sizes.get(sizes, [])
        if len(names) == len(others) == 1:
            pairs.append((names[0], others[0]))
    return {name: (target, "place") for name, target in pairs}


def _group_outputs(model: ModelValues, other: Graph) -> dict[Axes, list[str]]:
    """Group the outputs that the other model does not compute under this name by their sizes."""
    known = ((name, model.value(name)) for name in model.graph.outputs if name not in other.maker)
    return group_values((tuple(sorted(v.shape)), name) for name, v in known if v is not None)


def _find_by_name(
    name: str,
    places: Mapping[str, tuple[str, str]],
    targets: Collection[str],
    reference: ModelValues,
    candidate: ModelValues,
) -> Iterator[tuple[str, str]]:
    """Yield names in the candidate's model that can mean this tensor, each with
    how it was found."""
    if name in places:
        yield places[name]
        return
    graph = reference.graph
    other = candidate.graph
    before = skip_operators(graph, name, FOLDED_IN_TFLITE)
    words = [before] if before != name and _has_fused_activation(other, before) else []
    # A quantizer whose range begins at 0 does the work of a Relu. The name of its output then
    # belongs to the codes that every reader gets, though a tensor upstream of them has it.
    readers = list(other.readers.get(name, ()))
    is_inner = name in other.maker and name not in other.outputs
    if is_inner and [other.ops[i] for i in readers] == ["QuantizeLinear"]:
        codes = other.makes[readers[0]][0]
        words += [] if codes in graph.maker else [codes]
    is_activated = any(graph.ops[i] in FOLDED_IN_TFLITE for i in graph.readers.get(name, ()))
    own = (name, *(name + ending for ending in ENDINGS))
    words += [n for n in own if not (is_activated and _has_fused_activation(other, n))]
    before = skip_operators(graph, name, WORK_OF_QUANTIZERS)
    words += [before + ending for ending in ENDINGS] if before != name else []
    yield from ((target, "name") for target in words if target in targets)


def can_hold(
    graph: Graph, name: str, match: MatchedTensor, expected: Array | None, value: Array | None
) -> bool:
    """Return whether a match can hold the reference's values of a tensor, as far as they are known.

    Codes cannot that clip them if the quantizer can do the work of all readers: a Relu or Clip. The
    codes of any other tensor are the tensor, even if their scale clips most of it.
    """
    readers = {graph.ops[i] for i in graph.readers.get(name, ())}
    if not readers or readers - WORK_OF_QUANTIZERS or match.scale is None or expected is None:
        return True
    if value is None or value.dtype.kind not in "iu":
        return True
    real = replace(match, scale=None).to_candidate(expected)
    return match.scale.compute_saturated_share(real, value.dtype.name) == 0


# ------------------------------------------------------------ values


def _as_real(
    value: Callable[[str], Array | None], scales: Mapping[str, Scale], name: str
) -> Array | None:
    """Return a tensor's value as real numbers."""
    stored = value(name)
    if stored is not None and name in scales:
        return scales[name].dequantize(stored)
    return stored


def _inherit_order(graph: Graph, name: str, orders: Mapping[str, Axes], rank: int) -> Axes:
    """Return the order of axes that a tensor has in the candidate's model if nothing but a
    Transpose changes it on the way.

    `orders`: of the tensors above, as `MatchedTensor.perm`, but never (). () if nothing is
    known.
    """
    maker = graph.maker.get(name)
    if not rank or maker is None or graph.ops[maker] in MIXES_AXES:
        return ()
    order = next((orders[n] for n in graph.reads[maker] if len(orders.get(n, ())) == rank), ())
    if graph.ops[maker] == "Transpose" and order:
        turned = get_attribute(graph.nodes[maker], "perm", order[::-1])
        order = tuple(turned.index(k) for k in order)
    return order


def _are_plain_transposes(ours: Graph, name: str, theirs: Graph, matches: Matches) -> bool:
    """Return whether a tensor of one name is a Transpose in both models, of a tensor in the order
    of our axes."""
    if {find_operator(ours, name), find_operator(theirs, name)} != {"Transpose"}:
        return False
    before = matches.get(ours.reads[ours.maker[name]][0])
    return before is not None and not before.perm


def _turn(order: Axes) -> Axes:
    """Return an order of axes as `MatchedTensor.perm`: () if it changes nothing."""
    return () if order == tuple(range(len(order))) else order


def _fit(
    match: MatchedTensor, expected: Array | None, value: Array | None, likely: Axes = ()
) -> MatchedTensor | None:
    """Return the match with its type and order of axes.

    Args:
        match: The match.
        expected: The reference's value; None if unknown.
        value: The candidate's value; None if unknown.
        likely: The order of axes to take if the values do not determine it.

    Returns:
        None if the two cannot be the same tensor.
    """
    if value is None or expected is None:
        return match
    match = match.with_type(value.dtype.name)
    same_shape = expected.shape == value.shape
    if same_shape and (
        expected.ndim < 2 or compute_relative_l2(expected, match.to_real(value)) <= MAX_DISTANCE
    ):
        return match
    perms = [_turn(order) for order in iter_axis_orders(expected.shape, value.shape)]
    turned = [replace(match, perm=perm) for perm in perms]
    if len(turned) < 2:
        return turned[0] if turned else None
    distances = sorted((compute_relative_l2(expected, m.to_real(value)), m.perm) for m in turned)
    (best, perm), (second, _) = distances[:2]
    if best * MIN_RIVAL_RATIO < second and best <= MAX_DISTANCE:
        return replace(match, perm=perm)
    # A value that deviates far in every order shows nothing about the order.
    likely = _turn(likely)
    if likely in perms and (likely or same_shape):
        return replace(match, perm=likely)
    return match if same_shape else None


def _has_fused_activation(graph: Graph, name: str) -> bool:
    """Return whether the operator of TensorFlow Lite that outputs a tensor ends with a fused
    activation."""
    node = graph.nodes[graph.maker[name]] if name in graph.maker else None
    return (
        node is not None
        and node.domain == TFLITE
        and any(a.name == "activation" for a in node.attribute)
    )


Near = tuple[float, MatchedTensor]  # a possible match and its distance


def _find_near_values(
    reference: ModelValues,
    names: Collection[str],
    candidate: ModelValues,
    free: Iterable[MatchedTensor],
    own: Mapping[str, Scale],
    matches: Matches,
) -> dict[str, list[Near]]:
    """Return the matches whose values are near, by tensor of the reference's model.

    Only those count that may be near a tensor without a match.
    """
    unmatched = {*names} - matches.keys()
    if not unmatched:
        return {}
    known = ((name, reference.value(name)) for name in names)
    floats = ((n, a) for n, a in known if a is not None and a.dtype.kind == "f")
    sums = BlockSums((n, a) for n, a in floats if is_varied(a))
    near: dict[str, list[Near]] = {name: [] for name in names}
    for match in free:
        value = candidate.value(match.name)
        if value is None:
            continue
        alike = sums.find_near(match.to_real(value), MAX_DISTANCE)
        if unmatched.isdisjoint(alike):
            continue
        for name in alike:
            expected = reference.value(name)
            fitted = _fit(replace(match, reference_scale=own.get(name)), expected, value)
            if fitted and expected is not None:
                apart = compute_relative_l2(expected, fitted.to_real(value))
                near[name] += [(apart, fitted)] if apart <= MAX_DISTANCE else []
    return {name: options for name, options in near.items() if options}


def is_varied(value: Array, least: int = MIN_DIFFERENT) -> bool:
    """Return whether a tensor holds enough different numbers, `least`, to be identified by them."""
    return value.size >= least and np.unique(value.reshape(-1)[: 1 << 16]).size >= least


def profile_of(value: Array) -> Array:
    """Return a few numbers of a tensor, for a lower bound of its distance from another tensor.

    The distance of these numbers is at most that of the two tensors, whatever the order of axes.
    They are the means of runs of the sorted values, and the length of the remainder: to sort never
    increases the distance of vectors, and these are lengths of parts at right angles. They are NaN
    if a value is not finite.
    """
    flat = np.sort(value, axis=None).astype(np.float64)
    if not flat.size or not np.all(np.isfinite(flat[[0, -1]])):
        return np.full(min(PROFILE_RUNS, flat.size) + 1, np.nan)
    starts = np.linspace(0, flat.size, min(PROFILE_RUNS, flat.size), endpoint=False).astype(
        np.int64
    )
    lengths = np.diff(starts, append=flat.size)
    means = np.add.reduceat(flat, starts) / lengths
    rest = compute_norm(flat - np.repeat(means, lengths))
    return np.append(means * np.sqrt(lengths), rest)


class BlockSums(Generic[Key]):
    """Finds which arrays may be near another one, in any order of axes, by a profile of each."""

    def __init__(self, arrays: Iterable[tuple[Key, Array]]) -> None:
        by_size = group_values(
            (array.size, (key, profile_of(array)))
            for key, array in arrays
            if array.dtype.kind in "fiubV"
        )
        self._rows = {
            size: ([key for key, _ in rows], np.stack([profile for _, profile in rows]))
            for size, rows in by_size.items()
        }

    def find_near(self, array: Array, share: float) -> list[Key]:
        """Return the arrays that may differ from `array` by at most this share of their length."""
        keys, profiles = self._rows.get(array.size, ([], None))
        if profiles is None or array.dtype.kind not in "fiubV" or not share:
            return []
        apart = np.linalg.norm(profiles - profile_of(array), axis=1)
        limits = share * np.linalg.norm(profiles, axis=1) * (1 + PROFILE_SLACK)
        return [key for key, is_near in zip(keys, apart <= limits, strict=True) if is_near]


# ------------------------------------------------------------ uniqueness


def _select_mutual(
    reference: Graph,
    candidate: Graph,
    near: Mapping[str, list[Near]],
    matches: Matches,
) -> dict[str, MatchedTensor]:
    """Return the matches by value that no rival on either side comes close to, and that keep the
    order of the graphs. A rival can be a tensor that has a match."""
    back = group_values(
        (match.name, (apart, name)) for name, (apart, match) in ungroup(near.items())
    )
    chosen: dict[str, MatchedTensor] = {}
    for name, options in near.items():
        if name in matches:
            continue
        best = min(
            options, key=lambda option: (option[0], candidate.rank[candidate.maker[option[1].name]])
        )
        original = _find_original(candidate, best[1].name)
        apart, match = next((option for option in options if option[1].name == original), best)
        rivals = [a for a, m in options if _find_original(candidate, m.name) != original]
        own = _find_original(reference, name)
        originals = {n: _find_original(reference, n) for _, n in back[match.name]}
        rivals += [a for a, n in back[match.name] if originals[n] != own]
        unique = all(a > max(apart * MIN_RIVAL_RATIO, MAX_ROUNDING_DISTANCE) for a in rivals)
        copies = [n for n in originals if originals[n] == own]
        unique = unique and name == min(
            copies,
            key=lambda n: reference.rank[reference.maker[n]] if n in reference.maker else -1,
        )
        if unique and _keeps_order(reference, candidate, name, match, {**matches, **chosen}):
            chosen[name] = match
    return chosen


def _find_original(graph: Graph, name: str) -> str:
    """Return the tensor that this one is a copy of; the tensor itself if it is not a copy."""
    return skip_operators(graph, name, COPIES)


def _keeps_order(
    reference: Graph,
    candidate: Graph,
    name: str,
    match: MatchedTensor,
    matches: Matches,
) -> bool:
    """Return whether no upstream tensor is matched with one that is only downstream of its match,
    or vice versa. The graphs are walked only for matches whose ranks are in another order."""
    own = reference.maker.get(name)
    its = candidate.maker.get(match.name)
    if own is None or its is None:
        return True
    makers = [(reference.maker.get(n), candidate.maker.get(m.name)) for n, m in matches.items()]
    crossing = [
        (i, j)
        for i, j in makers
        if i is not None
        and j not in (None, its)
        and (reference.rank[i] - reference.rank[own]) * (candidate.rank[j] - candidate.rank[its])
        <= 0
    ]
    if not crossing:
        return True
    above = find_ancestors(reference, [own])
    below = find_descendants(reference, [own])
    higher = find_ancestors(candidate, [its])
    lower = find_descendants(candidate, [its])
    return not any((i in above and j in lower) or (i in below and j in higher) for i, j in crossing)
