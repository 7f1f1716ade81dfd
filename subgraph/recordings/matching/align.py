"""A recorded array -> the tensor that it holds: axes, shape, element type, and lost digits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator

import numpy as np

from subgraph.errors import Inconclusive, InputError
from subgraph.recordings import recording
from subgraph.recordings.dumps import TensorSpec
from subgraph.storage import dtypes
from subgraph.storage.dtypes import Scale
from subgraph.storage.layouts import iter_axis_orders
from subgraph.storage.tensors import find_dtype, find_largest
from subgraph.trials.matching.match_tensors import PROFILE_SLACK
from subgraph.trials.reference_model import ReferenceModel
from subgraph.types import Array, Shape, frozen

IMAGE_RANK = 4
CODES = frozenset(("int8", "uint8"))
MAX_OFF = 0.5  # of a tensor's codes, that requantization moves by one
MAX_ONE_SIDED = 0.1  # of them, net in one direction
MAX_STEP_SHARE = 0.02  # of a tensor's size; a printed digit that is worth more hides faults
NHWC = "as NHWC"
PADDED = "padding cut off"


@frozen
class Alignment:
    """The steps that bring a recorded array into a tensor's shape.

    Attributes:
        words: for readers; "" if at most axes of length 1 differ.
        stored: the recorded array, with the axes that are exchanged.
        order: of these axes.
        shape: of the tensor.
        padded: the shape that the padding is cut off; None if there is no padding.
    """

    words: str
    stored: Shape
    order: tuple[int, ...]
    shape: Shape
    padded: Shape | None = None

    @property
    def is_channels_last(self) -> bool:
        return self.words == NHWC

    def apply(self, array: Array) -> Array:
        """Return the array in the tensor's shape.

        Raises:
            ValueError: it has another number of elements.
        """
        ordered = array.reshape(self.stored).transpose(self.order)
        if self.padded is None:
            return ordered.reshape(self.shape)
        return ordered.reshape(self.padded)[tuple(slice(0, d) for d in self.shape)]


def iter_alignments(
    have: Shape, shape: Shape, guessed: bool = False, channels_last: bool | None = False
) -> Iterator[Alignment]:
    """Yield the ways to give an array of shape `have` a tensor's shape, the likeliest first.

    Args:
        have: The shape of the array.
        shape: The shape of the tensor.
        guessed: Whether the array's own shape is not from its file.
        channels_last: Whether the files hold channels last. None to try both. It matters only for
            images whose shape does not decide, such as 1×8×8×8: arrays of other ranks are tried as
            they are, also if it is True.
    """
    nhwc = (shape[0], *shape[2:], shape[1]) if len(shape) > 2 else ()
    channels_first = (0, len(shape) - 1, *range(1, len(shape) - 1))
    unchanged = Alignment("", shape, tuple(range(len(shape))), shape)
    last_first = Alignment(NHWC, nhwc, channels_first, shape)
    bare = _drop_ones(have)
    bare_shape = _drop_ones(shape)
    if (
        (guessed or len(have) == 1) and math.prod(have) == math.prod(shape)
    ) or have == shape == nhwc:
        if channels_last is not True or len(shape) != IMAGE_RANK:
            yield unchanged
        if channels_last is not False and nhwc:
            yield last_first
    elif bare == bare_shape:
        yield unchanged
    elif have == nhwc:
        yield last_first
    elif orders := list(iter_axis_orders(have, shape)):
        yield from (Alignment(f"transposed {order}", have, order, shape) for order in orders)
    elif orders := list(iter_axis_orders(bare, bare_shape)):
        yield from (
            Alignment(f"transposed {order}, reshaped", bare, order, shape) for order in orders
        )
    elif _is_blocked(have, shape):
        padded = (shape[0], have[1] * have[4], *shape[2:])
        yield Alignment(f"from NC1HWC0, {PADDED}", have, (0, 1, 4, 2, 3), shape, padded)
    elif len(have) == len(shape) and all(a >= s for a, s in zip(have, shape, strict=True)):
        yield Alignment(PADDED, have, tuple(range(len(have))), shape, have)


def iter_foldings(size: int, shape: Shape) -> Iterator[Alignment]:
    """Yield ways to give `size` elements a shape of which axes were split or joined."""
    bare = _drop_ones(shape)
    if size != math.prod(shape) or not 1 < len(bare) <= IMAGE_RANK:
        return
    for order in itertools.permutations(range(len(bare))):
        stored = tuple(bare[k] for k in order)
        back = tuple(int(k) for k in np.argsort(order))
        yield Alignment(f"folded {order}", stored, back, shape)


def _is_blocked(stored: Shape, shape: Shape) -> bool:
    """Return whether it is NC1HWC0 of an image: channels in blocks, the last one filled up."""
    if len(stored) != IMAGE_RANK + 1 or len(shape) != IMAGE_RANK:
        return False
    n, blocks, h, w, c0 = stored
    return (n, h, w) == (shape[0], *shape[2:]) and (blocks - 1) * c0 < shape[1] <= blocks * c0


def _drop_ones(shape: Shape) -> Shape:
    return tuple(s for s in shape if s != 1)


def convert_to_reference_type(array: Array, reference: Array, scale: Scale | None) -> Array:
    """Convert to the reference's element type; values beyond its range become infinite or wrap.

    Codes become the real numbers that they represent, if the reference holds these. Texts stay.
    """
    if scale and array.dtype.name in CODES and reference.dtype.kind == "f":
        array = scale.dequantize(array)
    if array.dtype == reference.dtype or "O" in (array.dtype.kind, reference.dtype.kind):
        return array
    with np.errstate(all="ignore"):
        return array.astype(find_dtype(reference.dtype.name))


def absorb_print_rounding(reference: Array, recorded: Array, step: float) -> Array:
    """Return `recorded` with the reference's value wherever printing explains the difference.

    Printing explains half of `step`, the last digit's worth, and one rounding to the element type
    in reading.
    """
    if not step or recorded.shape != reference.shape or reference.dtype.kind != "f":
        return recorded
    with np.errstate(all="ignore"):
        wide = reference.astype(np.float64)
        difference = np.abs(recorded.astype(np.float64) - wide)
        explained = difference <= step / 2 + np.finfo(reference.dtype).eps * np.abs(wide)
        return np.where(explained, reference, recorded)


def is_coarse(reference: Array, step: float) -> bool:
    """Return whether printing hides errors of `MAX_STEP_SHARE` of the values' size."""
    if not step or reference.dtype.kind != "f" or not reference.size:
        return False
    size = float(np.sqrt(np.nanmean(np.square(reference, dtype=np.float64))))
    return 0 < MAX_STEP_SHARE * size < step / 2


def absorb_requantization(
    reference: Array, recorded: Array, scale: Scale, dtype: str
) -> tuple[Array, str]:
    """Replace elements that quantization explains by the reference's; return a remark on the codes.

    Both arrays are codes of type `dtype`, or the real numbers that these represent. If the codes
    are equal, quantization explains the difference. A deviation of one code is requantization,
    which rounds some elements up and others down. It is not requantization if most elements
    deviate, or many in one direction.
    """
    if recorded.shape != reference.shape:
        return recorded, ""
    with np.errstate(all="ignore"):
        codes = (
            a if a.dtype.name in CODES else scale.quantize(a, dtype) for a in (recorded, reference)
        )
        difference = np.subtract(*(c.astype(np.int16) for c in codes))
    size = difference.size
    up = int(np.count_nonzero(difference == 1))
    down = int(np.count_nonzero(difference == -1))
    rounds = up + down <= MAX_OFF * size and abs(up - down) <= max(1, MAX_ONE_SIDED * size)
    value = np.where(np.abs(difference) <= rounds, reference, recorded)
    if rounds:
        remark = f"{up + down} of {size} codes off by one, as requantization rounds"
        return value, remark if up or down else ""
    side = "high" if up > down else "low"
    return value, f"{max(up, down)} of {size} codes one too {side}: another zero point?"


def has_same_numbers(a: Array, b: Array) -> bool:
    """Return whether two arrays hold the same numbers in some order."""
    return a.size == b.size and bool(
        np.allclose(np.sort(a, axis=None), np.sort(b, axis=None), rtol=PROFILE_SLACK, atol=0)
    )


# ------------------------------------------------------------ values of the reference

CAPTURE_BYTES = 256 << 20  # of tensors that are captured in one run


def capture_tensors(model: ReferenceModel, names: Iterable[str]) -> None:
    """Capture tensors in several runs that each fit into memory; the values stay on disk.

    Raises:
        ModelError: the reference cannot give them.
    """
    lacking = [n for n in dict.fromkeys(names) if n not in model.values.records[0]]
    batch: list[str] = []
    room = CAPTURE_BYTES
    for name, size in iter_tensor_sizes(model, lacking) if lacking else ():
        if batch and size > room:
            model.values.need(batch, near=True)
            batch = []
            room = CAPTURE_BYTES
        batch.append(name)
        room -= size
    model.values.need(batch, near=True)


def iter_tensor_sizes(model: ReferenceModel, names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield (name, bytes) of tensors by the model's types; open dimensions count as 1."""
    specs = recording.find_hints(model.graph).specs
    for name in names:
        spec = specs.get(name, TensorSpec())
        bits = dtypes.count_bits(spec.dtype or "float32")
        yield name, math.prod(d or 1 for d in spec.shape or ()) * bits // 8


def read_reference_value(model: ReferenceModel, tensor: str, k: int) -> Array | None:
    """Read the reference's value of a tensor; None if it is not a tensor.

    Large values are memory-mapped, and keep their file open until they are freed: hold few of them.

    Raises:
        Inconclusive: it cannot be read back; InputError would blame the recording.
    """
    record = model.values.records[k].get(tensor)
    try:
        value = record.value(mapped=True) if record else None
    except InputError as e:
        raise Inconclusive(
            f"the reference's value of {tensor} is lost: {e.what}",
            "free some space",
            code="reference.value-lost",
        ) from e
    return value if isinstance(value, np.ndarray) else None


def displace(reference: Array, before: Array, after: Array) -> Array:
    """Move the reference by the difference of two recorded values, as a share of the larger scale.

    So two recordings are compared by the same rounding noise as each of them with the reference.
    If both are the same, NaN and infinities too, nothing moves.
    """
    old = before.astype(np.float64)
    new = after.astype(np.float64)
    exact = reference.astype(np.float64)
    scale, own = (find_largest(v[np.isfinite(v)]) for v in (old, exact))
    same = (old == new) | (np.isnan(old) & np.isnan(new))
    with np.errstate(all="ignore"):
        step = (new - old) * (own / scale if scale > own else 1.0)
        return np.where(same, reference, reference + step).astype(reference.dtype)


def measure_remoteness(reference: Array, before: Array, after: Array) -> float:
    """Measure the distance of two recorded values, as a share of the error of the first."""
    exact, old, new = (v.astype(np.float64) for v in (reference, before, after))
    finite = np.isfinite(old) & np.isfinite(exact)
    if not np.array_equal(old[~np.isfinite(old)], new[~np.isfinite(old)], equal_nan=True):
        return np.inf
    step, own = (np.sum(np.square(d[finite])) for d in (new - old, old - exact))
    if own:
        return float(np.sqrt(step / own))
    if step:
        return np.inf
    return 0.0
