"""The inputs of a body in each iteration: values of the graph around the body, and the state after
the earlier iterations.

The state before iteration k of a Loop is the output of the Loop limited to k iterations. The state
before iteration k of a Scan is the output of the Scan for the first k slices. For this reason a
state may be a sequence, and its shape may change from one iteration to the next.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from subgraph.bodies.model import ALL, LAST, Body
from subgraph.bodies.truncated import (
    RAN,
    TRIPS,
    make_counting_loop,
    make_slices_name,
    make_state_name,
    scan_states,
    truncate_loop,
)
from subgraph.errors import InputError, ModelError
from subgraph.graph import protobuf, region as regions
from subgraph.graph.cut import list_boundary_types
from subgraph.graph.graph import Graph
from subgraph.graph.opsets import get_opset
from subgraph.graph.value_types import find_common_type, open_dimensions
from subgraph.iterables import index_by_name
from subgraph.lazy import np
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.storage import dtypes, folders
from subgraph.storage.tensors import Record, Records, Value, format_tensor_type, write_value
from subgraph.text import clean, count
from subgraph.types import Fields, frozen

# A model, and a record for each of its inputs.
FedModel: TypeAlias = "tuple[protobuf.ModelProto, dict[str, Record]]"
KEY = "iterations"  # of the loaded model in the reference process
MIN_SCAN_OPSET = 9  # Scan of an earlier opset is a different operator


@frozen
class Iteration:
    """One run of a body.

    Attributes:
        number: The number of the iteration; 0 for a branch or a function.
        sample: The index of the sample.
        feeds: A record per input of the body.
        results: A record per output of the body that the full model has; only the states for Loop
            and Scan.
    """

    number: int
    sample: int
    feeds: Records
    results: Records


class NotRun(InputError):
    """The branch or iteration does not run for the inputs."""


def run_iterations(
    body: Body,
    values: ReferenceValues,
    iteration: str,
    folder: Path,
    samples: Sequence[int] | None = None,
) -> list[Iteration]:
    """Return one run of a body for each sample for which the body runs; with `ALL` all iterations.

    Args:
        body: The body.
        values: The values of the graph around the body.
        iteration: FIRST, LAST, ALL or a number as text.
        folder: A folder for values.
        samples: Indices of samples; None for all.

    Raises:
        NotRun: The body runs for no sample.
        InputError: An input does not fit.
        ModelError: The reference cannot run the model, or a Scan is of an opset before 9.
    """
    source = _find_source(body, values, folder)
    found: list[Iteration] = []
    why = ""
    with source.open():
        for k in range(len(values.samples)) if samples is None else samples:
            try:
                numbers = source.select_iterations(k, iteration)
                found += [
                    Iteration(n, k, source.find_feeds(k, n), source.find_results(k, n))
                    for n in numbers
                ]
            except NotRun as e:
                why = e.what
    if not found:
        raise NotRun(
            why,
            "give an input with which it runs (-i), or only cut: --no-capture",
            code="body.not-run",
        )
    return found


def count_iterations(body: Body, values: ReferenceValues, sample: int, folder: Path) -> int:
    """Return the number of iterations of a Loop or Scan for a sample.

    Raises: as `run_iterations`.
    """
    source = _find_source(body, values, folder)
    assert isinstance(source, _Iterated)
    with source.open():
        return source.count_runs(sample)


def truncate(
    body: Body, values: ReferenceValues, sample: int, trips: int, folder: Path
) -> FedModel:
    """Return the Loop or Scan as a model of at most `trips` iterations, and that model's inputs.

    Raises: as `run_iterations`.
    """
    source = _find_source(body, values, folder)
    assert isinstance(source, _Iterated)
    with source.open():
        return source.truncate(sample, trips)


def make_counter(body: Body, values: ReferenceValues, sample: int) -> FedModel:
    """Return a model of a Loop whose only model output counts iterations, and the model's inputs.

    The output `RAN` is `COUNTER_START` plus the number of iterations.

    Raises: as `run_iterations`.
    """
    types = _find_input_types(body.graph, body.name.node, values)
    return make_counting_loop(body, types), {name: values.records[sample][name] for name in types}


def _find_source(body: Body, values: ReferenceValues, folder: Path) -> _Source:
    node = body.graph.nodes[body.name.node]
    kinds = {"If": _Branch, "Loop": _Loop, "Scan": _Scan}
    return (kinds[node.op_type] if body.name.attribute else _Call)(body, values, folder)


@dataclass
class _Source:
    """The values of a body of one kind of node, in each iteration. A new kind is a new subclass."""

    body: Body
    values: ReferenceValues
    folder: Path
    _files: int = field(default=0, init=False)

    @property
    def graph(self) -> Graph:
        return self.body.graph

    @property
    def node(self) -> protobuf.NodeProto:
        """The node that has the body."""
        return self.graph.nodes[self.body.name.node]

    @property
    def inputs(self) -> list[str]:
        """The names of the node's inputs; "" for an omitted input."""
        return list(self.node.input)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Compute the values that the node reads, and keep what they need for this block."""
        self.values.need(
            [n for n in (*self.inputs, *self.body.outer) if n and not self._is_weight(n)]
        )
        yield

    def select_iterations(self, sample: int, iteration: str) -> Sequence[int]:
        """Return the numbers of the selected iterations.

        Raises:
            NotRun: They do not run for this sample.
        """
        return [0]

    def find_feeds(self, sample: int, number: int) -> dict[str, Record]:
        """Return a record per input of the body in an iteration."""
        return {n: self.find_record(n, sample) for n in self.body.outer}

    def find_results(self, sample: int, number: int) -> dict[str, Record]:
        """Return a record per output of the body that the node returns."""
        outputs = list(self.node.output)
        self.values.need([n for n in outputs if n])
        records = self.values.records[sample]
        return {
            result: replace(records[n], name=result)
            for result, n in zip(self.body.results, outputs, strict=False)
            if n and result
        }

    def find_record(self, name: str, sample: int) -> Record:
        """Return the record of a tensor of the graph around the body."""
        if not self._is_weight(name):
            return self.values.records[sample][name]
        if name not in self.graph.weights:
            raise ModelError(
                f"'{name}', which {self.body.name.text} reads, is sparse: that is not read",
                code="weight.sparse",
            )
        tensor = self.graph.weights[name]
        value = protobuf.to_array(tensor, self.graph.path)
        return self.save(name, value, dtypes.name_of(tensor.data_type))

    def read_scalar(self, name: str, sample: int, default: Any) -> Any:
        """Return the only element of a tensor; `default` for the tensor "" of an omitted input."""
        if not name:
            return default
        return self.find_record(name, sample).array().reshape(-1)[0].item()

    def save(self, name: str, value: Value, dtype: str) -> Record:
        """Write a value to a file, and return its record with this name."""
        self._files += 1
        return write_value(name, value, self.folder, f"v{self._files}", format_tensor_type(dtype))

    def _is_weight(self, name: str) -> bool:
        return name not in self.graph.maker and self.graph.is_weight(name)


class _Branch(_Source):
    """A branch of an If."""

    def select_iterations(self, sample: int, iteration: str) -> Sequence[int]:
        chosen = "then_branch" if self.read_scalar(self.inputs[0], sample, True) else "else_branch"
        if chosen != self.body.name.attribute:
            raise NotRun(
                f"{clean(self.body.name.text)} does not run: the other branch does, {chosen}",
                code="body.not-run",
            )
        return [0]


class _Call(_Source):
    """A call of a local function."""

    def find_feeds(self, sample: int, number: int) -> dict[str, Record]:
        given = filter(None, self.inputs)
        return _rename((self.find_record(n, sample) for n in given), self.body.formals)


class _Iterated(_Source, ABC):
    """The common part of Loop and Scan.

    A run of the node that ends before an iteration returns the state at the start of the iteration.
    """

    before_states = 0  # the number of outputs of the body before its states
    _types: dict[str, protobuf.TypeProto]  # types of the node's inputs that are not constant

    def _list_feeds(self, sample: int) -> dict[str, Record]:
        return {n: self.values.records[sample][n] for n in self._types}

    @property
    @abstractmethod
    def first_states(self) -> list[str]:
        """The names of the node's inputs that are the states in iteration 0."""

    @abstractmethod
    def compute_states(self, sample: int, number: int) -> list[Record]:
        """Return the states after `number` iterations, which is at least 1."""

    def find_states(self, sample: int, number: int) -> list[Record]:
        """Return the states before an iteration: one that runs, or the first that does not run."""
        if number:
            return self.compute_states(sample, number)
        return [self.find_record(name, sample) for name in self.first_states]

    def run_truncated(self, feeds: Iterable[Record], *others: str) -> list[Record]:
        """Run the loaded model, and return its states, then these other outputs."""
        names = [*map(make_state_name, range(len(self.first_states))), *others]
        self._files += 1
        into = self.folder / f"run{self._files}"
        into.mkdir()
        stems = folders.number_stems(names, "s")
        outputs = self.values.reference.run(KEY, into, stems, list(feeds)).by_name
        return [outputs[name].rebase(into.resolve()) for name in names]

    @abstractmethod
    def count_runs(self, sample: int, most: float = math.inf) -> int:
        """Return the number of iterations that run, at most `most`."""

    @abstractmethod
    def truncate(self, sample: int, trips: int) -> FedModel:
        """Return the node as a model of at most `trips` iterations, and that model's inputs."""

    def find_results(self, sample: int, number: int) -> dict[str, Record]:
        after = self.find_states(sample, number + 1)
        return _rename(after, self.body.results[self.before_states :])

    def select_iterations(self, sample: int, iteration: str) -> Sequence[int]:
        if iteration in (LAST, ALL):
            total = self.count_runs(sample)
            number = total - 1
        else:  # count no further: a Loop that does not end has these iterations, too
            number = int(iteration or 0)
            total = self.count_runs(sample, number + 1)
        if not 0 <= number < total:
            what = count(total, "iteration") if total else "no iteration"
            raise NotRun(
                f"{clean(self.body.name.text)}: {what} run{'s' * (total < 2)} for this input",
                code="body.not-run",
            )
        if iteration == ALL:
            return range(total)
        return [number]


class _Loop(_Iterated):
    """The body of a Loop."""

    before_states = 1  # the condition to continue

    @contextmanager
    def open(self) -> Iterator[None]:
        with super().open():
            self._types = _find_input_types(self.graph, self.body.name.node, self.values)
            model = make_counting_loop(self.body, self._types, truncated=True)
            with _load_run(self.values, model, self.graph, self.folder):
                yield

    @property
    def first_states(self) -> list[str]:
        return self.inputs[2:]

    def count_runs(self, sample: int, most: float = math.inf) -> int:
        trips = self.read_scalar(self.inputs[0], sample, math.inf)
        return self._run(sample, int(min(trips, most, (1 << 63) - 1)))[0]

    def compute_states(self, sample: int, number: int) -> list[Record]:
        return self._run(sample, number)[1]

    def _run(self, sample: int, trips: int) -> tuple[int, list[Record]]:
        """Return the number of iterations, at most `trips`, and the states after them."""
        most = self.save(TRIPS, np.array(max(trips, 0), np.int64), "int64")
        *states, ran = self.run_truncated([*self._list_feeds(sample).values(), most], RAN)
        return int(ran.array().reshape(-1)[0]), states

    def truncate(self, sample: int, trips: int) -> FedModel:
        return truncate_loop(self.body, self._types, trips), self._list_feeds(sample)

    def find_feeds(self, sample: int, number: int) -> dict[str, Record]:
        formals = self.body.formals
        feeds = super().find_feeds(sample, number)
        # Some bodies declare these two as tensors of shape [1], for example to feed a Slice.
        ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in self.body.proto.input}
        for formal, value, dtype in zip(formals, (number, True), ("int64", "bool"), strict=False):
            feeds[formal] = self.save(formal, np.full((1,) * ranks[formal], value, dtype), dtype)
        return feeds | _rename(self.find_states(sample, number), formals[2:])


class _Scan(_Iterated):
    """The body of a Scan."""

    @contextmanager
    def open(self) -> Iterator[None]:
        if get_opset(self.graph.model) < MIN_SCAN_OPSET:
            raise ModelError(
                f"{self.body.name.text}: Scan of an opset before 9 runs over batches",
                "convert the model: onnx.version_converter.convert_version(model, 11)",
                code="body.scan-opset",
            )
        with super().open():
            unsliced = {*self.first_states, *self.body.outer}
            types = _find_input_types(self.graph, self.body.name.node, self.values)
            self._types = {
                n: t for n, t in types.items() if n in unsliced or n not in self._scanned
            }
            samples = range(len(self.values.samples))
            slices = [
                open_dimensions(find_common_type([self.find_record(n, k) for k in samples]))
                for n in self._scanned
            ]
            model = scan_states(self.body, self._types, slices)
            with _load_run(self.values, model, self.graph, self.folder):
                yield

    @property
    def _attributes(self) -> Fields:
        return index_by_name(self.node.attribute)

    @property
    def _state_count(self) -> int:
        return len(self.inputs) - int(self._attributes["num_scan_inputs"].i)

    @property
    def _scanned(self) -> list[str]:
        return self.inputs[self._state_count :]

    def _get_entry(self, attribute: str, k: int) -> int:
        """Return the entry of an attribute for the k-th scanned tensor; 0 without the attribute."""
        found = self._attributes.get(attribute)
        return int(found.ints[k]) if found else 0

    def count_runs(self, sample: int, most: float = math.inf) -> int:
        (shape,) = self.find_record(self._scanned[0], sample).shapes
        return shape[self._get_entry("scan_input_axes", 0)]

    @property
    def first_states(self) -> list[str]:
        return self.inputs[: self._state_count]

    def compute_states(self, sample: int, number: int) -> list[Record]:
        return self.run_truncated(self._feed_slices(sample, number).values())

    def _feed_slices(self, sample: int, number: int) -> dict[str, Record]:
        """Return the inputs of the Scan, with the first `number` slices of each scanned tensor."""
        parts = self._iter_slices(sample, number, before=True)
        names = map(make_slices_name, range(len(self._scanned)))
        return self._list_feeds(sample) | _rename(parts, names)

    def truncate(self, sample: int, trips: int) -> FedModel:
        feeds = self._feed_slices(sample, trips)
        types = {n: find_common_type([r]) for n, r in feeds.items()}
        slices = [types.pop(make_slices_name(k)) for k in range(len(self._scanned))]
        return scan_states(self.body, types, slices, collects=True), feeds

    def _iter_slices(self, sample: int, number: int, *, before: bool) -> Iterator[Record]:
        """Yield for each scanned tensor the slices before an iteration, or the slice of it.

        Args:
            sample: The index of the sample.
            number: The number of the iteration.
            before: Whether the slices of all earlier iterations are yielded.
        """
        for k, name in enumerate(self._scanned):
            record = self.find_record(name, sample)
            array = record.array()  # only tensors are scanned
            axis = self._get_entry("scan_input_axes", k) % array.ndim
            backward = self._get_entry("scan_input_directions", k)
            at = array.shape[axis] - 1 - number if backward else number
            part: slice | int = at
            if before:
                part = slice(at + 1, None) if backward else slice(at)
            yield self.save(name, array[(slice(None),) * axis + (part,)], record.dtype)

    def find_feeds(self, sample: int, number: int) -> dict[str, Record]:
        parts = self._iter_slices(sample, number, before=False)
        records = chain(self.find_states(sample, number), parts)
        return super().find_feeds(sample, number) | _rename(records, self.body.formals)


def _rename(records: Iterable[Record], names: Iterable[str]) -> dict[str, Record]:
    """Give new names to records, and return the records by these names."""
    return {name: replace(r, name=name) for name, r in zip(names, records, strict=False)}


def _find_input_types(
    graph: Graph, i: int, values: ReferenceValues
) -> dict[str, protobuf.TypeProto]:
    """Return the types of the inputs of node `i` that are not weights or constants."""
    region = regions.build_region(graph, [i])
    names = region.entering
    values.need(names)
    return list_boundary_types(graph, names, values.records, {})


@contextmanager
def _load_run(
    values: ReferenceValues, model: protobuf.ModelProto, graph: Graph, folder: Path
) -> Iterator[None]:
    values.reference.load_model(KEY, model, graph.path, folder)
    try:
        yield
    finally:
        values.reference.drop(KEY)
