"""Arrays in a device's layout <-> in the model's: NHWC, NC1HWC0, FRACTAL_Z, FRACTAL_NZ and the
like.

Insight: each of these layouts splits some axes into blocks (C into C1 blocks of C0 values, the last
one padded with zeros), permutes the parts, and may join several parts into one dimension. So a row
of a table describes a layout, and two functions serve all. Sources: Ascend's CANN documentation and
msaccucmp's `builtin_format_convert`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence

from subgraph.errors import InputError
from subgraph.iterables import flatten
from subgraph.lazy import np
from subgraph.types import Array, Shape, Strings, frozen

PLAIN = "NCHW NHWC HWCN CHWN NCDHW NDHWC DHWCN DHWNC NC CN".split()
AS_THEY_ARE = ("", "ND", "NCHW", "NCDHW", "NC", "MD")
MAX_AXES = 6  # of an array whose axes are tried in all orders: 720 of them
C0 = 16  # values of float16 in one block of Ascend's matrix unit; 32 of int8

# Layout -> (its parts in the order of storage, the model's axes, how many leading parts are one
# stored dimension).
BLOCKED = {
    "NC1HWC0": ("N C1 H W C0", "N C H W", 1),
    "NHWC1C0": ("N H W C1 C0", "N C H W", 1),
    "C1HWNC0": ("C1 H W N C0", "N C H W", 1),
    "NDC1HWC0": ("N D C1 H W C0", "N C D H W", 1),
    "FRACTAL_Z": ("C1 H W N1 N0 C0", "N C H W", 3),
    "FRACTAL_Z_3D": ("D C1 H W N1 N0 C0", "N C D H W", 4),
    "FRACTAL_NZ": ("B C1 N1 N0 C0", "B N C", 1),
}
_ALIASES = {"NC1HWC0_C04": "NC1HWC0", "NC4HW4": "NC1HWC0"}  # the shape has the block's size
KNOWN = tuple(dict.fromkeys((*AS_THEY_ARE[1:], *PLAIN, *BLOCKED, *_ALIASES)))


def iter_axis_orders(shape: Sequence[int], dims: Sequence[int | str | None]) -> Iterator[Shape]:
    """Yield the orders of axes with which an array of `shape` has the dimensions `dims`.

    For each, `array.transpose(order).shape` is `dims`, where a name or None means any size. The
    unchanged order comes first; nothing is yielded for more than MAX_AXES axes. Complexity:
    factorial in the number of axes.

    >>> list(iter_axis_orders((1, 4, 4, 3), (1, 3, 4, 4)))
    [(0, 3, 1, 2), (0, 3, 2, 1)]
    """
    if len(shape) != len(dims) or len(shape) > MAX_AXES:
        return
    for order in itertools.permutations(range(len(shape))):
        if all(not isinstance(d, int) or shape[k] == d for k, d in zip(order, dims, strict=True)):
            yield order


@frozen
class _Blocks:
    """A blocked layout and the sizes of its parts."""

    parts: Strings
    axes: Strings
    joined: int
    sizes: dict[str, int]

    @property
    def split(self) -> Shape:
        """The stored shape with a dimension per part."""
        return tuple(self.sizes[p] for p in self.parts)

    @property
    def stored(self) -> Shape:
        return (math.prod(self.split[: self.joined]), *self.split[self.joined :])

    @property
    def order(self) -> Shape:
        """The order of parts in which those of one axis are neighbors."""
        return tuple(map(self.parts.index, flatten(map(self._find_parts, self.axes))))

    def _find_parts(self, axis: str) -> Strings:
        return (axis,) if axis in self.parts else (f"{axis}1", f"{axis}0")

    @property
    def full(self) -> Shape:
        """The model's shape with the last blocks padded."""
        return tuple(math.prod(self.sizes[p] for p in self._find_parts(axis)) for axis in self.axes)


def to_model(array: Array, layout: str, shape: Shape | None = None, model: str = "") -> Array:
    """Return the array in the model's order of axes, without padding.

    Args:
        array: as the device stores it.
        layout: of the array; "" and ND mean: as in the model.
        shape: of the tensor in the model. Without it the padding stays.
        model: the model's own order of axes, if not NCHW or NCDHW.

    Raises:
        InputError: the layout is unknown, the array cannot have it, or the shape does not fit.

    >>> import numpy as np
    >>> to_model(np.zeros((1, 1, 4, 4, 16)), "NC1HWC0", (1, 3, 4, 4)).shape
    (1, 3, 4, 4)
    """
    layout = _ALIASES.get(layout, layout)
    if model and model == layout:
        return _fit(array, shape, layout)
    if layout in BLOCKED:
        return _from_blocks(array, layout, shape, model)
    if layout in AS_THEY_ARE and (layout not in PLAIN or model in AS_THEY_ARE):
        return _fit(array, shape, layout)
    if layout not in PLAIN:
        raise InputError(
            f"values in layout {layout} cannot be read",
            _suggest_layouts(layout),
            code="layout.unsupported",
        )
    turned = array.transpose(_find_axes(layout, model)) if array.ndim == len(layout) else array
    if shape is None or turned.shape == tuple(shape):
        return turned
    if array.shape == tuple(shape):
        return array
    if [d for d in turned.shape if d != 1] == [d for d in shape if d != 1]:
        return turned.reshape(shape)
    raise _make_size_error(array, layout, shape)


def from_model(array: Array, layout: str, c0: int = C0) -> Array:
    """Return the inverse of `to_model` for an array in NCHW or NCDHW (any rank from 2 for
    FRACTAL_NZ); padded with 0.

    Raises:
        InputError: the layout is unknown or the array cannot have it.
    """
    block = 4 if layout in ("NC4HW4", "NC1HWC0_C04") else c0
    layout = _ALIASES.get(layout, layout)
    if layout in BLOCKED:
        shape = _pad_rank(array.shape, layout)
        blocks = _make_blocks(layout, shape, block)
        filled = np.zeros(blocks.full, array.dtype)
        filled[tuple(slice(0, d) for d in shape)] = array.reshape(shape)
        split = filled.reshape([blocks.split[i] for i in blocks.order])
        stored = split.transpose(np.argsort(blocks.order)).reshape(blocks.stored)
        if layout == "FRACTAL_NZ":
            return stored.reshape((*array.shape[:-2], *stored.shape[1:]))
        return stored
    if layout in AS_THEY_ARE:
        return array
    if layout in PLAIN and array.ndim == len(layout):
        return array.transpose(np.argsort(_find_axes(layout, "")))
    raise InputError(
        f"an array of shape {list(array.shape)} has no layout {layout}",
        _suggest_layouts(layout),
        code="layout.wrong-shape",
    )


def compute_stored_shape(shape: Shape, layout: str, c0: int = C0) -> Shape:
    """Return the stored shape of a tensor in NCHW or NCDHW; the same shape without such a layout.

    >>> compute_stored_shape((1, 3, 4, 5), "NHWC"), compute_stored_shape((1, 3, 4, 5), "NC1HWC0")
    ((1, 4, 5, 3), (1, 1, 4, 5, 16))
    """
    layout = _ALIASES.get(layout, layout)
    if layout == "FRACTAL_NZ" or (
        layout in BLOCKED and len(shape) <= len(BLOCKED[layout][1].split())
    ):
        stored = _make_blocks(layout, _pad_rank(shape, layout), c0).stored
        return (*shape[:-2], *stored[1:]) if layout == "FRACTAL_NZ" else stored
    if layout in PLAIN and len(layout) == len(shape):
        axes = [a for a in "NCDHW" if a in layout]
        return tuple(shape[axes.index(a)] for a in layout)
    return shape


def compute_plain_shape(stored: Shape, layout: str) -> Shape:
    """Return the inverse of `compute_stored_shape` for a layout without blocks.

    >>> compute_plain_shape((1, 4, 5, 3), "NHWC")
    (1, 3, 4, 5)
    """
    if layout in PLAIN and len(layout) == len(stored):
        return tuple(stored[i] for i in _find_axes(layout, ""))
    return stored


def _suggest_layouts(layout: str) -> str:
    if layout in KNOWN:
        return ""
    return f"known: {', '.join(KNOWN)}"


def _find_axes(layout: str, model: str) -> Shape:
    """Return the position of each of the model's axes in a plain layout."""
    axes = model if sorted(model) == sorted(layout) else "".join(a for a in "NCDHW" if a in layout)
    return tuple(layout.index(a) for a in axes)


def _make_size_error(array: Array, layout: str, shape: Shape, hint: str = "") -> InputError:
    return InputError(
        f"values in layout {layout}, shape {list(array.shape)}, do not fill {list(shape)}",
        hint,
        code="layout.wrong-shape",
    )


def _fit(array: Array, shape: Shape | None, layout: str) -> Array:
    """Return the array in another shape.

    Raises:
        InputError: the shape has another number of values.
    """
    if shape is None or array.shape == tuple(shape):
        return array
    if array.size != math.prod(shape):
        raise _make_size_error(array, layout or "ND", shape, "another layout, another shape?")
    return array.reshape(shape)


def _pad_rank(shape: Shape, layout: str) -> Shape:
    """Return the model's shape in the layout's rank: 1s appended, or all leading dimensions joined
    as a batch."""
    rank = len(BLOCKED[layout][1].split())
    if layout == "FRACTAL_NZ":
        matrix = (1, 1, *shape)[-2:] if len(shape) < 2 else shape[-2:]
        return (math.prod(shape[:-2]), *matrix)
    if len(shape) > rank:
        raise InputError(
            f"a tensor of shape {list(shape)} has no layout {layout}", code="layout.wrong-shape"
        )
    return (*shape, *(1,) * (rank - len(shape)))


def _make_blocks(layout: str, shape: Shape, c0: int, n0: int = 16) -> _Blocks:
    """Return the parts' sizes for a model's shape of the layout's rank."""
    parts, axes, joined = BLOCKED[layout]
    size = {"C0": c0, "N0": n0}
    sizes = {}
    for axis, d in zip(axes.split(), shape, strict=True):
        if axis in parts.split():
            sizes[axis] = d
        else:
            sizes |= {f"{axis}0": size[f"{axis}0"], f"{axis}1": math.ceil(d / size[f"{axis}0"])}
    return _Blocks(tuple(parts.split()), tuple(axes.split()), joined, sizes)


def _from_blocks(array: Array, layout: str, shape: Shape | None, model: str) -> Array:
    rank = len(BLOCKED[layout][0].split()) - BLOCKED[layout][2] + 1
    if array.ndim != rank and not (layout == "FRACTAL_NZ" and array.ndim >= 4):
        raise InputError(
            f"values in layout {layout} have {rank} dimensions, not {list(array.shape)}",
            code="layout.wrong-shape",
        )
    axes = BLOCKED[layout][1].replace(" ", "")
    is_other_order = sorted(model) == sorted(axes) and model != axes
    turned = shape is not None and len(model) == len(shape) and is_other_order
    order = "".join(a for a in "NCDHW" if a in model)
    own = tuple(shape[model.index(a)] for a in order) if shape is not None and turned else shape
    if layout == "FRACTAL_NZ":
        flat = array.reshape((math.prod(array.shape[:-4]), *array.shape[-4:]))
    else:
        flat = array
    blocks = _find_blocks(flat, layout, own)
    merged = flat.reshape(blocks.split).transpose(blocks.order).reshape(blocks.full)
    if own is None:
        if layout == "FRACTAL_NZ":
            return merged.reshape((*array.shape[:-4], *merged.shape[-2:]))
        return merged
    cut = merged[tuple(slice(0, d) for d in _pad_rank(own, layout))]
    if turned:
        return cut.transpose([order.index(a) for a in model])
    return cut.reshape(own)


def _find_blocks(array: Array, layout: str, shape: Shape | None) -> _Blocks:
    """Return the parts' sizes, from the stored shape and, if parts are joined, from the model's.

    Raises:
        InputError: the two contradict each other.
    """
    parts, axes, joined = BLOCKED[layout]
    names = parts.split()
    if shape is None:
        if joined > 1:
            raise InputError(
                f"values in layout {layout} need the tensor's shape",
                "give the model",
                code="layout.no-shape",
            )
        return _Blocks(
            tuple(names), tuple(axes.split()), joined, dict(zip(names, array.shape, strict=True))
        )
    sizes = dict(zip(names[joined:], array.shape[1:], strict=True)) | (
        {} if joined > 1 else {names[0]: array.shape[0]}
    )
    blocks = _make_blocks(
        layout, _pad_rank(shape, layout), max(sizes["C0"], 1), max(sizes.get("N0", 1), 1)
    )
    if blocks.stored != array.shape:
        raise _make_size_error(array, layout, shape)
    return blocks


def normalize_name(text: str) -> str:
    """Return a layout's name from a vendor's spelling: `nc1hwc0`, `FRACTAL_Z:64`, `DefaultFormat`.

    >>> normalize_name("Format_NHWC")
    'NHWC'
    """
    name = re.sub(r"(?i)^(acl_)?format_|:.*$", "", text.strip()).upper()
    if name in ("DEFAULTFORMAT", "NONE", "ANY", "NULL"):
        return ""
    return name
