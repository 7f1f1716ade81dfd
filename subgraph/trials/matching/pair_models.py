"""The reference's model and the candidate's -> `CandidateModel`: which tensor of one is which of
the other."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from subgraph.comparison.where import OutputChoice
from subgraph.errors import SubcutError, UsageError
from subgraph.graph.graph import VALUE, Graph
from subgraph.graph.quantization import scales_of
from subgraph.graph.types import declared_type
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.storage.layouts import axis_orders
from subgraph.storage.tensors import Record
from subgraph.trials.candidate_model import CandidateModel
from subgraph.trials.matching.match_tensors import (
    ModelValues,
    is_far_off,
    match_tensors,
    value_tensors,
)
from subgraph.trials.matching.matched_tensor import MatchedTensor
from subgraph.types import Array

log = logging.getLogger("subcut")

MAX_ATTEMPTS = 4  # to match more tensors behind a fault
MAX_HELD = 128  # tensors in memory while models are matched


def pair_models(
    graph: Graph,
    other: Graph,
    reference: Reference,
    values: ReferenceValues,
    scratch: Path,
    tensor_map: Mapping[str, str] | None = None,
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
    other_values, unknown = _values_of(graph, other, reference, values, scratch)
    ours = _first_sample(graph, values)
    theirs = _first_sample(other, other_values)
    matches = match_tensors(ours, theirs, tensor_map)
    for attempt in range(MAX_ATTEMPTS if is_far_off(ours, theirs, matches) else 0):
        pair = CandidateModel(graph, other, matches, other_values)
        theirs = _first_sample(
            other, _from_matched(pair, values, scratch / f"other-again{attempt}")
        )
        more = match_tensors(ours, theirs, tensor_map, matches)
        if len(more) == len(matches):
            break
        matches = more
    wanted = (choice or OutputChoice()).select(n for n in graph.outputs if n in graph.maker)
    unmatched = [n for n in wanted if graph.kinds([n])[n] == VALUE and n not in matches]
    if unmatched:
        raise UsageError(
            f"the output '{unmatched[0]}' is not in {other.path.name}",
            "--map FILE, with a line OURS THEIRS, names it",
            code="pair.unmatched",
        )
    return CandidateModel(graph, other, _typed(other, matches), other_values, unknown)


def _typed(other: Graph, matches: Mapping[str, MatchedTensor]) -> Mapping[str, MatchedTensor]:
    """The matches, whose element types are those that the candidate's file declares where no value
    shows them."""
    declared = other.value_infos({m.name for m in matches.values() if not m.dtype})
    types = {name: declared_type(info.type)[1] for name, info in declared.items()}
    return {
        n: m.of_type(types[m.name] or "") if not m.dtype and types.get(m.name) else m
        for n, m in matches.items()
    }


def _first_sample(graph: Graph, values: ReferenceValues | None) -> ModelValues:
    """Values of a model's tensors on the first sample; None for sequences, and where the model
    cannot be run."""
    if values is None:
        return ModelValues(graph, lambda name: None)
    values.need(value_tensors(graph))

    @lru_cache(maxsize=MAX_HELD)
    def value(name: str) -> Array | None:
        record = values.records[0].get(name)
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
        other_values.need(value_tensors(other))
    except SubcutError as e:
        log.info(
            "%s cannot be run on the reference, so that names alone decide: %s",
            other.path.name,
            e.what,
        )
        return None, e.what
    return other_values, ""


def _from_matched(
    pair: CandidateModel, values: ReferenceValues, folder: Path
) -> ReferenceValues | None:
    """The candidate's values on the first sample, each computed from the reference's values of the
    tensors before it.

    None where the candidate's model does not take these.
    """
    assert pair.values is not None
    folder.mkdir()
    again = ReferenceValues(pair.graph, pair.values.reference, pair.values.samples[:1], folder)
    again.captured = pair.values.captured[:1]
    known = [
        (m, r) for n, m in pair.matches.items() if (r := values.records[0][n]).form == "tensor"
    ]
    fed = {
        match.name: match.converted(record, folder, f"m{k}")
        for k, (match, record) in enumerate(known)
    }
    again.records = [{n: pair.values.records[0][n] for n in pair.graph.inputs} | fed]
    try:
        again.need(value_tensors(pair.graph), near=True)
    except SubcutError as e:
        log.debug("%s cannot be run from the matched tensors: %s", pair.graph.path.name, e.what)
        return None
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
        _, dtype, dims = declared_type(info.type)
        record = records[own]
        perm = _perm(record.shapes[0], dims) if record.form == "tensor" and record.shapes else ()
        match = MatchedTensor(name, "name", perm, "", scales.get(name), own_scales.get(own))
        match = match.of_type(dtype or record.dtype)
        if record.form == "tensor":
            record = match.converted(record, folder, f"i{k}")
        words += [f"{name}={file}" for file in record.files[:1]]
    return words


def _perm(shape: tuple[int, ...], dims: Sequence[Any] | None) -> tuple[int, ...]:
    """The order of axes that gives the declared dimensions; () where the present one does, or none,
    or several do.

    Of several, NHWC is taken.
    """
    orders = [] if dims is None else list(axis_orders(shape, dims))
    if not orders or orders[0] == tuple(range(len(shape))):
        return ()
    nhwc = (0, *range(2, len(shape)), 1)
    return nhwc if nhwc in orders else orders[0] if len(orders) == 1 else ()
