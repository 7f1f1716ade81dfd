"""Tensors as the reference computes them -> shape, range, and how many NaN, infinities and zeros each holds.

Insight: one run cannot give all tensors of a large model at once, neither in memory nor on disk. So they are asked for
in batches of bounded size, in topological order, and each file is read in pieces and deleted. The same batches find the
node at which the reference fails: a batch that fails is halved until one tensor is left.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from subgraph.errors import InputError, ModelError, SubcutError, WorkerDied
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.region import above
from subgraph.runtime.capture import Captured, feeds_of, record
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.storage import dtypes
from subgraph.storage.tensors import Record, from_bits, np_dtype

if TYPE_CHECKING:
    from subgraph.types import Array

BATCH = 200 << 20  # bytes of tensors that one run gives, as far as their sizes are known before
FIRST = 8  # tensors of unknown size in the first batch; the sizes of these tell what to expect of the others
MARGIN = 2  # tensors of unknown size are taken to be so many times larger than those before were
FAILURES = 3  # nodes at which the reference may fail before we give up
PIECE = 1 << 20  # elements that are looked at at a time
VALUES = 16  # integers: a tensor of at most so many is shown as it is, a shape for example

Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class Range:
    """What the elements of a tensor are like. `low`, `high` and `total` leave NaN and infinities out.

    Of complex numbers it is the magnitudes.
    """

    elements: int = 0
    low: float | None = None
    high: float | None = None
    total: float = 0.0
    nan: int = 0
    inf: int = 0
    zeros: int = 0

    def __add__(self, other: Range) -> Range:
        lows = [r.low for r in (self, other) if r.low is not None]
        highs = [r.high for r in (self, other) if r.high is not None]
        return Range(
            self.elements + other.elements,
            min(lows, default=None),
            max(highs, default=None),
            self.total + other.total,
            self.nan + other.nan,
            self.inf + other.inf,
            self.zeros + other.zeros,
        )

    def to_json(self) -> dict[str, Any]:
        """min, max, mean, nan, inf, zeros, elements; null where no element is finite."""
        finite = self.elements - self.nan - self.inf
        mean = self.total / finite if finite and math.isfinite(self.total) else None
        return {
            "min": self.low, "max": self.high, "mean": mean,
            "nan": self.nan, "inf": self.inf, "zeros": self.zeros, "elements": self.elements,
        }  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One tensor, over all samples and, of a sequence, over all its elements.

    Attributes:
        shape: None for a dimension that differs between samples; None for all where even the rank does, or where there
            is no element.
        range: None for texts.
        value: of a small tensor of integers or booleans that is the same in all samples, nested lists.
    """

    form: str
    dtype: str
    shape: Shape | None
    range: Range | None
    value: Any = None


@dataclass(frozen=True)
class MissingTensor:
    """A tensor that the reference cannot give, and why."""

    tensor: str
    what: str


@dataclass(frozen=True)
class MeasuredTensors:
    """What was measured; `origins` says per model input where its values came from."""

    measured: Mapping[str, Measured] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    failures: tuple[MissingTensor, ...] = ()
    samples: int = 0


def measure(graph: Graph, names: Sequence[str], fed: Feeding, size_of: Callable[[str], int | None]) -> MeasuredTensors:
    """Run the reference and measure tensors that nodes make, and the model inputs that they need.

    `names` are in topological order; `size_of` gives a tensor's bytes, None where they are not known before.
    Complexity: one run of the ancestors per `BATCH` bytes.

    Raises:
        InputError, UnknownName: what is to be fed does not fit.
    """
    if not names:
        return MeasuredTensors()
    samples = len(fed.plan(graph, feeds_of(graph, above(graph, names), names)))
    pending, failures, guess = [list(names)], list[MissingTensor](), BATCH // FIRST
    with _Runner(graph, fed) as runner:
        while pending and len(failures) < FAILURES:
            batch, rest = _split(pending.pop(0), size_of, guess, BATCH // samples)
            pending[:0] = [rest] if rest else []
            try:
                guess = runner.run(batch) or guess
            except InputError:
                raise
            except SubcutError as e:
                if len(batch) > 1:
                    pending[:0] = [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
                    continue
                failures.append(MissingTensor(batch[0], e.what))
                lost = {name for i in graph.descendants([graph.maker[batch[0]]]) for name in graph.makes[i]}
                pending = [left for names in pending if (left := [n for n in names if n not in lost])]
    return MeasuredTensors(runner.measured, runner.origins, tuple(failures), samples)


def _split(
    names: list[str], size_of: Callable[[str], int | None], guess: int, budget: int
) -> tuple[list[str], list[str]]:
    """As many of the first tensors as fit into the budget, at least one; and the others."""
    total = 0
    for k, name in enumerate(names):
        size = size_of(name)
        total += guess if size is None else size
        if total > budget and k:
            return names[:k], names[k:]
    return names, []


class _Runner:
    """The reference, and what it has given so far. A process that dies is replaced."""

    def __init__(self, graph: Graph, fed: Feeding) -> None:
        self.graph = graph
        self.fed = fed
        self.measured: dict[str, Measured] = {}
        self.origins: dict[str, str] = {}
        self._open = ExitStack()
        self._reference = self._open.enter_context(Reference())

    def run(self, names: Sequence[str]) -> int:
        """Measure these tensors; return how large to expect others to be, in bytes.

        Raises:
            SubcutError: they cannot be had.
        """
        asked = [*names, *self._anchors()]
        region = above(self.graph, asked)
        inputs = feeds_of(self.graph, region, asked)
        wanted = dict.fromkeys((*names, *(n for n in inputs if n not in self.measured)))
        stems = {name: f"t{k}" for k, name in enumerate(dict.fromkeys((*wanted, *asked)))}
        with tempfile.TemporaryDirectory(prefix="subcut-") as temporary:
            into = Path(temporary)
            samples = self.fed.plan(self.graph, inputs)
            try:
                captured = record(self._reference, self.graph, region, stems, samples, into)
            except WorkerDied:
                self._open.close()
                self._reference = self._open.enter_context(Reference())
                raise
            self.origins.update(_origins(captured))
            self.measured.update((name, _measured(name, captured, into)) for name in wanted)
        sizes = [size for name in names if (size := _bytes(self.measured[name])) is not None]
        return MARGIN * sum(sizes) // max(len(sizes), 1)

    def _anchors(self) -> list[str]:
        """Tensors that make a run need every input that an earlier one needed.

        So the inputs of all batches are the same: an open dimension that they share has one size, and files are told
        apart in the same way.
        """
        if len(self.graph.inputs) < 2:
            return []
        made = (
            (name for i in self.graph.readers.get(n, ()) for name in self.graph.makes[i]) for n in self.graph.inputs
        )
        return [name for names in made if (name := next((n for n in names if n in self.measured), ""))]

    def __enter__(self) -> _Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()


def _origins(captured: Sequence[Captured]) -> dict[str, str]:
    if len(captured) == 1:
        return dict(captured[0].origins)
    return {name: f"{len(captured)} samples" for sample in captured for name in sample.origins}


def _bytes(measured: Measured) -> int | None:
    return None if measured.range is None else size_of_elements(measured.range.elements, measured.dtype)


def size_of_elements(number: int, dtype: str) -> int:
    """Bytes of so many elements in a file: those of less than a byte take one."""
    return number * max(dtypes.bits_of(dtype) // 8, 1)


# ---------------------------------------------------------------------------------------------------- elements


def _measured(name: str, captured: Sequence[Captured], into: Path) -> Measured:
    """One tensor's files, of all samples, read in pieces."""
    records = [sample.tensors[name] for sample in captured]
    shapes = [shape for r in records for shape in r.shapes]
    files = [(r, into / str(k) / file) for k, r in enumerate(records) for file in r.files]
    found = [_look(file, r) for r, file in files]
    ranges = [r for r, _ in found if r is not None]
    total = sum(ranges, Range()) if len(ranges) == len(found) else None
    values = [value for _, value in found]
    same = values[0] if values and all(v == values[0] for v in values) and records[0].form == "tensor" else None
    return Measured(records[0].form, records[0].dtype, _common(shapes), total, same)


def _common(shapes: Collection[Shape]) -> Shape | None:
    """The shape that all have; None where they differ."""
    if len({len(shape) for shape in shapes}) != 1:
        return None
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True))


def _look(file: Path, r: Record) -> tuple[Range | None, Any]:
    """(range, value) of one file, which is deleted."""
    import numpy as np

    if r.dtype == "string":
        return None, None
    small = file.stat().st_size < PIECE  # an empty tensor cannot be mapped
    array = from_bits(np.load(file, mmap_mode=None if small else "r", allow_pickle=False), r.dtype)
    out = range_of(array), _value(array)
    file.unlink()
    return out


def _value(array: Array) -> Any:
    return array.tolist() if array.size <= VALUES and array.dtype.kind in "iub" else None


def range_of(array: Array) -> Range:
    """The range of an array of numbers or booleans; memory for one piece beside it."""
    flat = array.ravel("K")
    return sum((_piece(flat[k : k + PIECE]) for k in range(0, flat.size, PIECE)), Range())


def _piece(values: Array) -> Range:
    import numpy as np

    if values.dtype.kind == "c":
        values = np.abs(values)
    if values.dtype.kind not in "iub":
        name = values.dtype.name
        values = values.astype(np.int16 if name.startswith(("int", "uint")) else np.float64)
    zeros = values.size - int(np.count_nonzero(values))
    if values.dtype.kind != "f":
        return Range(
            values.size, int(values.min()), int(values.max()), float(values.sum(dtype=np.float64)), 0, 0, zeros
        )
    nan = int(np.count_nonzero(np.isnan(values)))
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()) + 0.0, float(finite.max()) + 0.0) if finite.size else (None, None)  # no -0.0
    with np.errstate(over="ignore"):
        total = float(finite.sum())
    return Range(values.size, low, high, total, nan, values.size - nan - finite.size, zeros)


def of_weight(graph: Graph, name: str) -> Measured | None:
    """A dense initializer; None where it has no numbers or its bytes cannot be had."""
    import numpy as np
    import onnx.numpy_helper

    tensor = graph.weights[name]
    dtype, bits = dtypes.TYPES.get(tensor.data_type, ("", 0))
    if not bits:
        return None
    shape = tuple(int(d) for d in tensor.dims)
    try:
        if protobuf.on_disk(tensor) and bits >= 8 and protobuf.element_count(tensor):
            blob = protobuf.locate(tensor, graph.path)
            array: Any = np.memmap(blob.file, np_dtype(dtype), "r", blob.offset, shape)
        else:
            full = protobuf.load_raw(tensor, graph.path) if protobuf.on_disk(tensor) else tensor
            array = onnx.numpy_helper.to_array(protobuf.protos().TensorProto.FromString(full.SerializeToString()))
    except (ModelError, OSError, ValueError, TypeError):  # `problems` says what is wrong with it
        return None
    return Measured("tensor", dtype, shape, range_of(array), _value(array))
