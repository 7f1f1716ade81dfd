"""The reference's model and the candidate's -> `CandidateModel`: which tensor of one is which of
the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from subgraph.comparison.where import OutputChoice
from subgraph.errors import SubcutError, UsageError
from subgraph.graph.graph import VALUE, Graph
from subgraph.graph.quantization import scales_of
from subgraph.graph.value_types import read_type
from subgraph.log import log
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.storage.layouts import iter_axis_orders
from subgraph.storage.tensors import Record
from subgraph.trials.candidate_model import CandidateModel
from subgraph.trials.matching.match_tensors import (
    NEAR,
    ModelValues,
    find_misshapen,
    match_tensors,
    value_tensors,
)
from subgraph.trials.matching.matched_tensor import MatchedTensor
from subgraph.trials.matching.meaning import MeaningTests
from subgraph.types import Array, Shape, StringMap

MAX_ATTEMPTS = 4  # to match more tensors behind a fault
MAX_BREAKS = 4  # nodes that the reference does not run, after which no more is captured
MAX_HELD = 128  # tensors in memory while models are matched


def pair_models(
    graph: Graph,
    other: Graph,
    reference: Reference,
    values: ReferenceValues,
    scratch: Path,
    tensor_map: StringMap | None = None,
    choice: OutputChoice | None = None,
) -> CandidateModel:
    """Match tensors of the candidate's model `other` on the first sample. One run of each model on
    the reference.

    Behind a fault values are not alike any more. So where some are far off, the candidate's model
    is run again from the reference's value of each tensor that was matched, until no more are
    matched.

    `choice`: the outputs of `graph` that `other` must have.

    Raises:
        UsageError: an input or output of `graph` is not in `other`. UnknownName: `tensor_map` names
            no tensor.
    """
    values.need(value_tensors(graph))
    other_values, unknown = _values_of(graph, other, reference, values, scratch)
    ours = _first_sample(graph, values)
    theirs = _first_sample(other, other_values)
    pair = CandidateModel(graph, other, {}, other_values, unknown)
    pair = _match_by_meaning(pair, ours, theirs, values, scratch, tensor_map)
    for attempt in range(MAX_ATTEMPTS if other_values else 0):
        tests = MeaningTests(pair, values, scratch / f"other-again{attempt}")
        if tests.agree_in_place(NEAR):
            break
        theirs = _first_sample(other, _compute_from_matched(tests))
        more = match_tensors(ours, theirs, tensor_map, pair.matches, pair.refuted)
        if len(more) == len(pair.matches):
            break
        pair = replace(pair, matches=more)
    wanted = (choice or OutputChoice()).select(n for n in graph.outputs if n in graph.maker)
    unmatched = [n for n in wanted if graph.kinds([n])[n] == VALUE and n not in pair.matches]
    if unmatched:
        raise UsageError(
            f"the output '{unmatched[0]}' is not in {other.path.name}",
            "--map FILE, with a line OURS THEIRS, names it",
            code="pair.unmatched",
        )
    return replace(pair, matches=_add_types(other, pair.matches, values.records[0]))


def _match_by_meaning(
    pair: CandidateModel,
    ours: ModelValues,
    theirs: ModelValues,
    values: ReferenceValues,
    scratch: Path,
    tensor_map: StringMap | None,
) -> CandidateModel:
    """Match tensors by name and by value, without those whose names are refuted."""
    match = partial(match_tensors, ours, theirs, tensor_map)
    pair = replace(pair, matches=match())
    if pair.values is None:
        return pair
    misshapen = find_misshapen(ours, theirs, pair.matches)
    if misshapen:
        tentative = replace(pair, matches=match(misshapen=misshapen))
        tests = MeaningTests(tentative, values, scratch / "other-shapes")
        misshapen = tests.find_misshapen(misshapen & tentative.matches.keys())
        pair = replace(pair, matches=match(misshapen=misshapen))
    for attempt in range(MAX_ATTEMPTS):
        found = MeaningTests(pair, values, scratch / f"other-names{attempt}").find_refuted()
        if not found:
            break
        refuted = {*pair.refuted, *((name, pair.matches[name].name) for name in found)}
        matches = match(refuted=refuted, misshapen=misshapen)
        pair = replace(pair, matches=matches, refuted=refuted)
    return pair


def _add_types(
    other: Graph, matches: Mapping[str, MatchedTensor], ours: Mapping[str, Record]
) -> Mapping[str, MatchedTensor]:
    """The matches, with element types where no value shows them: those that the candidate's file
    declares, else those of our tensors."""
    untyped = {name: m for name, m in matches.items() if not m.dtype}
    declared = other.value_infos({m.name for m in untyped.values()})
    types = {name: read_type(info.type)[1] for name, info in declared.items()}
    typed = {
        n: m.of_type(types.get(m.name) or (ours[n].dtype if m.plain else ""))
        for n, m in untyped.items()
    }
    return {**matches, **typed}


def _first_sample(graph: Graph, values: ReferenceValues | None) -> ModelValues:
    """Values of a model's tensors on the first sample; None for sequences, and where the model
    cannot be run."""

    @lru_cache(maxsize=MAX_HELD)
    def value(name: str) -> Array | None:
        record = values.records[0].get(name) if values else None
        array = record.array() if record and record.form == "tensor" else None
        return array if isinstance(array, np.ndarray) and array.dtype.kind != "O" else None

    return ModelValues(graph, value)


def _values_of(
    graph: Graph, other: Graph, reference: Reference, values: ReferenceValues, scratch: Path
) -> tuple[ReferenceValues | None, str]:
    """The reference's values of `other` on the same inputs; None and why where it cannot run it:
    then names decide."""
    values.need(list(graph.inputs))
    samples = []
    try:
        for k, captured in enumerate(values.records):
            words = _inputs_of(graph, other, captured, scratch / f"other-in{k}")
            (sample,) = Feeding(tuple(words)).plan(other, other.inputs)
            samples.append(replace(sample, label=values.labels[k]))
        other_values = ReferenceValues(other, reference, samples, scratch / "other-values")
        other_values.need(list(other.inputs))
    except SubcutError as e:
        log.info(
            "%s cannot be run on the reference, so that names alone decide: %s",
            other.path.name,
            e.what,
        )
        return None, e.what
    return other_values, _need_computable(other_values, value_tensors(other))


def _need_computable(values: ReferenceValues, names: Sequence[str]) -> str:
    """Capture the tensors that the reference can compute; return why it cannot compute the first
    of the others, "" if there is none.

    `names` are in topological order. Halves are tried where all at once fail, and nothing
    downstream of a node that fails: one run, or a few per such node.
    """
    graph = values.graph
    broken = set[int]()
    reasons: list[str] = []

    def need(some: Sequence[str]) -> None:
        some = [n for n in some if graph.maker.get(n) not in broken]
        try:
            if len(reasons) < MAX_BREAKS:
                values.need(some, near=True)
            return
        except SubcutError as e:
            reason = e.what
        if len(some) == 1:
            reasons.append(reason)
            broken.update(graph.descendants([graph.maker[some[0]]]))
            return
        need(some[: len(some) // 2])
        need(some[len(some) // 2 :])

    need(names)
    return next(iter(reasons), "")


def _compute_from_matched(tests: MeaningTests) -> ReferenceValues:
    """The candidate's values on the first sample, each computed from the reference's values of the
    tensors before it, as far as it takes these."""
    pair = tests.pair
    own = pair.values
    assert own
    again = ReferenceValues(pair.graph, own.reference, own.samples[:1], tests.folder / "again")
    again.captured = own.captured[:1]
    again.records = [{n: own.records[0][n] for n in pair.graph.inputs} | tests.fed]
    _need_computable(again, value_tensors(pair.graph))
    return again


def _inputs_of(
    graph: Graph, other: Graph, records: Mapping[str, Record], folder: Path
) -> list[str]:
    """Words NAME=FILE for the inputs of `other`: those of `graph`, by name, else by position,
    transposed or cast.

    An input that `graph` does not have gets none, and so random values.
    """
    folder.mkdir(parents=True)
    words = []
    by_position = dict(zip(other.inputs, graph.inputs, strict=False))
    scales = scales_of(other)
    own_scales = scales_of(graph)
    for k, (name, info) in enumerate(other.inputs.items()):
        own = name if name in graph.inputs else by_position.get(name)
        if own is None:
            continue
        _, dtype, dims = read_type(info.type)
        record = records[own]
        perm = _perm(record.shapes[0], dims) if record.form == "tensor" and record.shapes else ()
        match = MatchedTensor(name, "name", perm, "", scales.get(name), own_scales.get(own))
        match = match.of_type(dtype or record.dtype)
        if record.form == "tensor":
            record = match.converted(record, folder, f"i{k}")
        words += [f"{name}={file}" for file in record.files[:1]]
    return words


def _perm(shape: Shape, dims: Sequence[Any] | None) -> Shape:
    """The order of axes that gives the declared dimensions; () where the present one does, or none,
    or several do.

    Of several, NHWC is taken.
    """
    orders = [] if dims is None else list(iter_axis_orders(shape, dims))
    if not orders or orders[0] == tuple(range(len(shape))):
        return ()
    nhwc = (0, *range(2, len(shape)), 1)
    if nhwc in orders:
        return nhwc
    return orders[0] if len(orders) == 1 else ()
