"""Tensors as the reference computes them → shape, range, and numbers of NaN, infinities and zeros.

One run cannot give all tensors of a large model: neither memory nor disk would hold them. They are
requested in batches of bounded size, in topological order; each file is read in pieces and deleted.
If the reference fails on a batch, the batch is halved until the tensor at which it fails is alone.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from subgraph import system
from subgraph.errors import InputError, ModelError, SubcutError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.region import find_upstream
from subgraph.graph.shape_inference import InferredTypes
from subgraph.graph.value_types import find_common_shape, get_tensor_type
from subgraph.graph.walks import find_descendants
from subgraph.iterables import flatten
from subgraph.runtime.capture import Captured, capture_samples, list_needed_inputs
from subgraph.runtime.inputs import Feeding, InputOrigin, OriginKind
from subgraph.runtime.reference import Reference, make_default
from subgraph.storage import dtypes, folders
from subgraph.storage.tensors import from_bits, read_npy
from subgraph.types import Array, frozen

# Of the tensors of one run, as far as their sizes are known before; or, if that is more, the
# memory and the disk that are free, divided by the next number: each run computes all from the
# inputs on.
BATCH_BYTES = 200 << 20
BATCH_PARTS = 10
# Tensors of unknown size in the first batch; their sizes give the estimate for others.
MAX_FIRST_UNKNOWN = 8
SIZE_MARGIN = 2  # tensors of unknown size are estimated at this multiple of the mean known size
MAX_FAILURES = 3  # nodes at which the reference may fail before measuring stops
PIECE_ELEMENTS = 1 << 20  # elements read at a time
MAX_EXPONENT = 1100  # of float64, in magnitude
MAX_VALUES = 16  # elements of an integer tensor whose values are given, a shape for example

Shape = tuple[int | None, ...]  # None: a dimension that differs between samples


@frozen
class RangeSummary:
    """A range as documents show it; None if no element is finite, or the sum overflows."""

    min: float | None
    max: float | None
    mean: float | None
    nan: int
    inf: int
    zeros: int
    elements: int


@frozen
class Range:
    """Statistics of the elements of a tensor; of complex numbers, of their magnitudes.

    `low`, `high` and `total` (the sum) are over finite elements only. `least` is the smallest
    magnitude above 0. Without such elements, `low` and `least` are infinite, and `high` minus
    infinity. `sizes`: by e, the number of elements with 2**(e - 1) <= |v| < 2**e.
    """

    elements: int = 0
    low: float = math.inf
    high: float = -math.inf
    total: float = 0.0
    nan: int = 0
    inf: int = 0
    zeros: int = 0
    least: float = math.inf
    sizes: Mapping[int, int] = field(default_factory=dict)

    def __add__(self, other: Range) -> Range:
        return Range(
            self.elements + other.elements,
            min(self.low, other.low),
            max(self.high, other.high),
            self.total + other.total,
            self.nan + other.nan,
            self.inf + other.inf,
            self.zeros + other.zeros,
            min(self.least, other.least),
            Counter(self.sizes) + Counter(other.sizes),
        )

    @property
    def largest(self) -> float:
        """The largest finite magnitude, 0 without one."""
        return max(-self.low, self.high, 0)

    @property
    def nonzero(self) -> int:
        """The number of finite elements other than 0."""
        return sum(self.sizes.values())

    def count_below(self, size: float) -> int:
        """Return the number of elements other than 0 whose magnitude is below a size, counted by
        powers of two and so too small rather than too large."""
        return sum(count for e, count in self.sizes.items() if 2.0 ** (e - 1) <= size / 2)

    def count_beyond(self, size: float) -> int:
        """Return the number of finite elements whose magnitude is beyond a size, counted as
        `count_below` does; at least one if there is one."""
        beyond = sum(count for e, count in self.sizes.items() if 2.0 ** (e - 1) > size)
        return max(beyond, int(self.largest > size))

    def summary(self) -> RangeSummary:
        """Return the range with the mean of the finite elements."""
        finite = self.elements - self.nan - self.inf
        mean = self.total / finite if finite and math.isfinite(self.total) else None
        low, high = (self.low, self.high) if finite else (None, None)
        return RangeSummary(low, high, mean, self.nan, self.inf, self.zeros, self.elements)


@frozen
class MeasuredTensor:
    """One tensor over all samples and, for a sequence, over all its elements.

    Attributes:
        form: As in `storage.tensors.Record`.
        dtype: As in `storage.tensors.Record`.
        shape: None if the rank differs, or if there is no element.
        range: None for strings.
        value: nested lists; of a tensor of at most `MAX_VALUES` integers or booleans that is equal
            in all samples.
    """

    form: str
    dtype: str
    shape: Shape | None
    range: Range | None
    value: Any = None


@frozen
class MissingTensor:
    """A tensor that the reference fails to compute, and its message."""

    tensor: str
    what: str


@frozen
class MeasuredTensors:
    """Measured tensors by name; `origins`: where the values of each model input came from."""

    tensors: Mapping[str, MeasuredTensor] = field(default_factory=dict)
    origins: Mapping[str, InputOrigin] = field(default_factory=dict)
    failures: tuple[MissingTensor, ...] = ()
    samples: int = 0


def measure(
    graph: Graph,
    names: Sequence[str],
    feeding: Feeding,
    types: InferredTypes | None = None,
) -> MeasuredTensors:
    """Run the reference, and measure tensors that nodes make and the model inputs that they depend
    on.

    `names` are in topological order. Sizes are estimated from `types`. Tensors downstream of a node
    at which the reference fails are omitted. Complexity: one run of the ancestors per batch.

    Raises:
        InputError, UnknownName: the inputs do not fit the model.
    """
    if not names:
        return MeasuredTensors()
    samples = len(
        feeding.plan(graph, list_needed_inputs(graph, find_upstream(graph, names), names))
    )
    pending = [list(names)]
    failures = list[MissingTensor]()
    estimate = BATCH_BYTES // MAX_FIRST_UNKNOWN
    free = min(system.measure_free_memory(), shutil.disk_usage(tempfile.gettempdir()).free)
    budget = max(BATCH_BYTES, free // BATCH_PARTS) // samples
    with make_default(graph, restart=True) as reference:
        measuring = _Measuring(graph, feeding, reference)
        while pending and len(failures) < MAX_FAILURES:
            batch, rest = _split(pending.pop(0), types, estimate, budget)
            pending[:0] = [rest] if rest else []
            try:
                estimate = measuring.run(batch) or estimate
            except InputError:
                raise
            except SubcutError as e:
                if len(batch) > 1:
                    pending[:0] = [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
                    continue
                failures.append(MissingTensor(batch[0], e.what))
                lost = set(graph.iter_outputs(find_descendants(graph, [graph.maker[batch[0]]])))
                pending = [
                    left for names in pending if (left := [n for n in names if n not in lost])
                ]
    return MeasuredTensors(measuring.tensors, measuring.origins, tuple(failures), samples)


def _split(
    names: list[str], types: InferredTypes | None, estimate: int, budget: int
) -> tuple[list[str], list[str]]:
    """Return the first tensors, as many as the budget (bytes) allows but at least one; and the
    others."""
    total = 0
    for k, name in enumerate(names):
        size = _count_declared_bytes(types.type_of(name)) if types else None
        total += estimate if size is None else size
        if total > budget and k:
            return names[:k], names[k:]
    return names, []


def _count_declared_bytes(proto: protobuf.TypeProto | None) -> int | None:
    """Count the bytes of a tensor in a file, if its type has a fixed shape."""
    known = get_tensor_type(proto)
    if not known or known.dims is None or known.dtype not in dtypes.TYPE_NUMBERS:
        return None
    is_fixed = all(isinstance(d, int) for d in known.dims)
    if is_fixed:
        return _count_bytes(math.prod(known.dims), known.dtype)
    return None


def _count_bytes(elements: int, dtype: str) -> int:
    """Count the bytes in a file, in which an element of less than a byte takes one."""
    return elements * max(dtypes.count_bits(dtype) // 8, 1)


@dataclass
class _Measuring:
    """The results of `measure` up to the present batch."""

    graph: Graph
    feeding: Feeding
    reference: Reference
    tensors: dict[str, MeasuredTensor] = field(default_factory=dict)
    origins: dict[str, InputOrigin] = field(default_factory=dict)

    def run(self, batch: Sequence[str]) -> int:
        """Measure these tensors; return an estimate for the bytes of others, 0 without one.

        Raises:
            SubcutError: the run fails.
        """
        names = [*batch, *self._list_anchors()]
        region = find_upstream(self.graph, names)
        inputs = list_needed_inputs(self.graph, region, names)
        new = dict.fromkeys((*batch, *(n for n in inputs if n not in self.tensors)))
        stems = folders.number_stems(dict.fromkeys((*new, *names)), "t")
        with folders.make_temporary() as folder:
            samples = self.feeding.plan(self.graph, inputs)
            captured = capture_samples(self.reference, self.graph, region, stems, samples, folder)
            origins = captured[0].origins
            if len(captured) > 1:
                of_all = InputOrigin(OriginKind.FILE, f"{len(captured)} samples")
                origins = dict.fromkeys(flatten(s.origins for s in captured), of_all)
            self.origins.update(origins)
            self.tensors.update((name, _measure_files(name, captured, folder)) for name in new)
        measured = [self.tensors[name] for name in batch]
        sizes = [_count_bytes(t.range.elements, t.dtype) for t in measured if t.range is not None]
        return SIZE_MARGIN * sum(sizes) // max(len(sizes), 1)

    def _list_anchors(self) -> list[str]:
        """List tensors by which this run needs every model input that an earlier run needed.

        With the same inputs in all batches, an open dimension that inputs share gets one size, and
        files are assigned to inputs in the same way.
        """
        graph = self.graph
        if len(graph.inputs) < 2:
            return []
        produced = (graph.iter_outputs(graph.readers.get(n, ())) for n in graph.inputs)
        return [
            name
            for names in produced
            if (name := next((n for n in names if n in self.tensors), ""))
        ]


# ------------------------------------------------------------ elements


def _measure_files(name: str, captured: Sequence[Captured], folder: Path) -> MeasuredTensor:
    """Measure one tensor by its files, of all samples, which are deleted."""
    records = [sample.tensors[name] for sample in captured]
    shapes = list(flatten(r.shapes for r in records))
    ranges: list[Range | None] = []
    values: list[Any] = []
    for k, record in enumerate(records):
        for file in record.files:
            if record.dtype == "string":
                ranges.append(None)
                values.append(None)
                continue
            array = from_bits(read_npy(folder / str(k) / file, mapped=True), record.dtype)
            ranges.append(compute_range(array))
            values.append(_read_value(array))
            (folder / str(k) / file).unlink()
    measured = [r for r in ranges if r is not None]
    total = sum(measured, Range()) if len(measured) == len(ranges) else None
    is_same = bool(values) and all(v == values[0] for v in values)
    same = values[0] if is_same and records[0].form == "tensor" else None
    return MeasuredTensor(records[0].form, records[0].dtype, find_common_shape(shapes), total, same)


def _read_value(array: Array) -> Any:
    if array.size <= MAX_VALUES and array.dtype.kind in "iub":
        return array.tolist()
    return None


def compute_range(array: Array) -> Range:
    """Return the range of an array of numbers or booleans, in the memory of one more piece."""
    flat = array.ravel("K")
    pieces = (flat[k : k + PIECE_ELEMENTS] for k in range(0, flat.size, PIECE_ELEMENTS))
    return sum(map(_find_range_of_piece, pieces), Range())


def _find_range_of_piece(values: Array) -> Range:
    if values.dtype.kind == "c":
        values = np.abs(values)
    if values.dtype.kind not in "iub":  # float, or a type of ml_dtypes, whose kind is V
        values = values.astype(
            np.int16 if values.dtype.name.startswith(("int", "uint")) else np.float64
        )
    zeros = values.size - int(np.count_nonzero(values))
    if values.dtype.kind != "f":
        total = float(values.sum(dtype=np.float64))
        return Range(values.size, int(values.min()), int(values.max()), total, 0, 0, zeros)
    nan = int(np.count_nonzero(np.isnan(values)))
    finite = values[np.isfinite(values)]
    low = float(finite.min(initial=np.inf)) + 0.0  # no -0.0
    high = float(finite.max(initial=-np.inf)) + 0.0
    with np.errstate(over="ignore"):
        total = float(finite.sum())
    infinite = values.size - nan - finite.size
    size = np.abs(finite[finite != 0])
    least = float(size.min(initial=np.inf))
    counts = np.bincount(np.frexp(size)[1] + MAX_EXPONENT)
    sizes = {e - MAX_EXPONENT: n for e, n in enumerate(counts.tolist()) if n}
    return Range(values.size, low, high, total, nan, infinite, zeros, least, sizes)


def measure_tensor(tensor: protobuf.TensorProto, path: Path) -> Range:
    """Return the range of a stored tensor of numbers, read in pieces.

    Raises:
        ModelError, OSError, ValueError, TypeError: It cannot be read.
    """
    return sum(
        map(_find_range_of_piece, protobuf.iter_pieces(tensor, path, PIECE_ELEMENTS)), Range()
    )


def measure_weight(graph: Graph, name: str) -> MeasuredTensor | None:
    """Measure a dense initializer, or the value of a Constant node; None if it is neither, holds
    strings or cannot be read."""
    tensor = graph.constant(name)
    if tensor is None:
        return None
    dtype, bits = dtypes.TYPES.get(tensor.data_type, ("", 0))
    if not bits:
        return None
    shape = tuple(map(int, tensor.dims))
    try:
        measured = measure_tensor(tensor, graph.path)
        small = measured.elements <= MAX_VALUES
        value = _read_value(protobuf.to_array(tensor, graph.path)) if small else None
    except (ModelError, OSError, ValueError, TypeError):  # `inspection.validate` reports why
        return None
    return MeasuredTensor("tensor", dtype, shape, measured, value)
