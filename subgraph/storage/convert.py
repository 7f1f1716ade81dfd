"""Tensors in a device's format: headerless .bin, another element type, another layout; losses are
counted."""

from __future__ import annotations

import math
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from subgraph.documents import ABSENT, File, Word
from subgraph.errors import UnknownName, UsageError
from subgraph.lazy import ml_dtypes, np
from subgraph.storage import dtypes, layouts, tensors
from subgraph.storage.dtypes import Scale
from subgraph.storage.tensors import PACKED, Record, find_largest
from subgraph.text import find_nearest
from subgraph.types import Array, Shape, Strings, frozen

LAYOUTS = ("NCHW", "NHWC")
BLOCKED_LAYOUT = "NC1HWC0"  # of Ascend
WRITTEN_LAYOUTS = (*LAYOUTS, BLOCKED_LAYOUT)  # commands and boards are fed in LAYOUTS
FORMATS = ("npy", "bin")
BIG_ENDIAN = "big"


@frozen
class TensorFormat:
    """Element type and layout of tensors on a device; an empty one means the model's.

    `scale`: one step and zero point, of the codes of an integer type; None: values are rounded as
    they are. `only_floats`: indices and masks stay in their own element type.
    """

    dtype: str = ""
    layout: str = ""
    scale: Scale | None = field(default=None, repr=False, metadata={ABSENT: True})
    only_floats: bool | None = field(default=None, repr=False, metadata={ABSENT: True})

    @property
    def words(self) -> str:
        """The specification: `int8:scale=0.02:zero=-3:NHWC`."""
        scale = (
            (f"scale={self.scale.step[0]:g}", f"zero={self.scale.zero[0]}") if self.scale else ()
        )
        return ":".join(filter(None, (self.dtype, *scale, self.layout)))

    def __post_init__(self) -> None:
        names = [n for n in dtypes.TYPE_NUMBERS if n != "string"]
        dtype = self.dtype
        if dtype and dtype not in names:
            raise UnknownName(
                f"no element type '{dtype}'",
                nearest=find_nearest(dtype, names),
                code="tensor.unknown-type",
            )
        if self.layout and self.layout not in WRITTEN_LAYOUTS:
            raise UsageError(
                f"no layout '{self.layout}'",
                f"known: {', '.join(WRITTEN_LAYOUTS)}",
                code="layout.unknown",
            )
        if self.scale and "int" not in dtype:
            raise UsageError(
                f"{dtype or 'a type that is not given'} has no scale",
                "int8:scale=0.02:zero=-3",
                code="export.no-scale",
            )
        if self.scale:
            low, high = dtypes.find_code_range(dtype)
            if not all(low <= zero <= high for zero in self.scale.zero):
                raise UsageError(
                    f"zero point {self.scale.zero[0]} is no {dtype}",
                    f"it is from {low} to {high}",
                    code="option.out-of-range",
                )

    @classmethod
    def parse(cls, words: str) -> TensorFormat:
        """Parse the format of the tensors of a board or a command.

        >>> TensorFormat.parse("float16:NHWC")
        TensorFormat(dtype='float16', layout='NHWC')

        Raises:
            UnknownName: no such element type. UsageError: two of one kind.
        """
        dtype = layout = ""
        for word in filter(None, words.split(":")):
            is_layout = word.upper() in LAYOUTS
            if layout if is_layout else dtype:
                raise UsageError(
                    f"{words}: expected [DTYPE][:LAYOUT]", "float16:NHWC", code="option.malformed"
                )
            if is_layout:
                layout = word.upper()
            else:
                dtype = word
        return cls(dtype, layout, only_floats="float" in dtype)


@frozen
class DeviceForm:
    """Element type, layout and order of bytes of a device's tensors; by default, the model's."""

    form: TensorFormat = field(default_factory=TensorFormat)
    big: bool = False

    @classmethod
    def parse(cls, words: str) -> DeviceForm:
        """Return the form that these words describe.

        Raises:
            UnknownName, UsageError: a word means nothing.
        """
        others = [word for word in words.split(":") if word != BIG_ENDIAN]
        return cls(TensorFormat.parse(":".join(others)), len(others) < len(words.split(":")))

    def dtype(self, own: str) -> str:
        """Return the element type of a tensor of that type in the model."""
        is_kept = self.form.only_floats and "float" not in own
        return own if is_kept else self.form.dtype or own


@frozen
class Loss:
    """The losses of a conversion of the element type.

    Attributes:
        overflowed: finite values that became infinite or NaN, or were clipped to the type's range.
        vanished: non-zero values that became zero.
        invalid: NaN or infinite values that the type does not have (they became 0 or the range's
            end).
        max_abs: largest difference among the others; scale: the largest magnitude of the original.
    """

    count: int
    overflowed: int
    vanished: int
    invalid: int
    max_abs: float
    scale: float

    @property
    def text(self) -> str:
        """`max error 1.2e-04 of 3.5; 12 of 4096 values overflow`, or `nothing lost`."""
        parts = [f"max error {self.max_abs:.1e} of {self.scale:.3g}"] if self.max_abs else []
        counts = {
            "overflow": self.overflowed,
            "vanish to 0": self.vanished,
            "are invalid": self.invalid,
        }
        parts += (f"{n} of {self.count} values {what}" for what, n in counts.items() if n)
        return "; ".join(parts) or "nothing lost"


@frozen
class StoredFile:
    """One file of a tensor, as manifests list it: `format` npy or bin; `layout` is empty for the
    model's own."""

    file: File
    format: Word
    dtype: Word
    shape: Shape
    layout: Word = ""


def parse_formats(text: str) -> Strings:
    """Parse `npy,bin` into ("npy", "bin").

    Raises:
        UnknownName: no such format.
    """
    names = tuple(dict.fromkeys(n.strip() for n in text.split(",") if n.strip()))
    for name in names:
        if name not in FORMATS:
            raise UnknownName(
                f"no format '{name}'; known: {', '.join(FORMATS)}",
                nearest=find_nearest(name, FORMATS),
                code="export.unknown-format",
            )
    return names


def convert_layout(
    array: Array, source: str, target: str, shape: Shape | None = None
) -> tuple[Array, str]:
    """Return the array in another layout, and that layout; as it is if its rank has none.

    Args:
        shape: in NCHW, without which a blocked array keeps its padding.

    Raises:
        InputError: the array does not have the layout `source`.
    """
    if not target or source == target:
        return array, source
    if source == BLOCKED_LAYOUT and array.ndim == 5:
        array = layouts.to_model(array, source, shape)
        source = "NCHW"
    if target == BLOCKED_LAYOUT:
        if array.ndim != 4:
            return array, source
        block = 32 if array.dtype.itemsize == 1 else layouts.C0
        return layouts.from_model(layouts.to_model(array, source), target, block), target
    axes = find_axes(array.shape, source, target)
    return (np.ascontiguousarray(array.transpose(axes)), target) if axes else (array, source)


def find_axes(shape: Shape, source: str, target: str) -> Shape | None:
    """Return the axes for `transpose`; None if nothing changes: only tensors of 4 or 5
    dimensions have a layout."""
    if not target or source == target or len(shape) not in (4, 5):
        return None
    inner = tuple(range(2, len(shape)))
    return (0, *inner, 1) if target == "NHWC" else (0, len(shape) - 1, *range(1, len(shape) - 1))


def convert(
    array: Array,
    tensor_format: TensorFormat,
    layout: str = "NCHW",
    shape: Shape | None = None,
) -> tuple[Array, Loss | None, str]:
    """Return the array in another format, what was lost (None if the type stays), and its layout
    afterwards.

    `shape`: in NCHW, of an array in a blocked layout.
    """
    dtype = tensor_format.dtype
    loss = None
    if dtype and array.dtype != tensors.find_dtype(dtype):
        if array.dtype == object:
            raise UsageError(
                "texts cannot be converted to numbers",
                "leave --dtype out",
                code="export.not-numbers",
            )
        array, loss = _convert_type(array, dtype, tensor_format.scale)
    array, layout = convert_layout(array, layout, tensor_format.layout, shape)
    return array, loss, layout


def _convert_type(array: Array, dtype: str, scale: Scale | None) -> tuple[Array, Loss]:
    wanted = tensors.find_dtype(dtype)
    if np.iscomplexobj(array) and wanted.kind != "c":
        raise UsageError(
            f"complex values cannot be converted to {dtype}",
            "leave --dtype out",
            code="export.not-numbers",
        )
    wide = array.astype(np.complex128 if wanted.kind == "c" else np.float64)
    finite = np.isfinite(wide)
    with np.errstate(all="ignore"):
        if dtype == "bool":
            out = wide != 0
            over = np.zeros(array.shape, bool)
        elif "int" in dtype:
            out, over = _to_integers(scale.steps(wide) if scale else array, dtype)
        else:
            # beyond the largest by more than half a step, which some types saturate
            out = array.astype(wanted)
            info = (ml_dtypes if dtype in tensors.NOT_NUMPY else np).finfo(wanted)
            largest = float(info.max)
            # between the largest and the one below it
            step = math.ldexp(float(info.eps), math.frexp(largest)[1] - 1)
            over = np.abs(wide) > largest + step / 2
        back = scale.dequantize(out).astype(wide.dtype) if scale else out.astype(wide.dtype)
    over = finite & (over | ~np.isfinite(back))
    counted = finite & ~over
    return out, Loss(
        count=array.size,
        overflowed=int(over.sum()),
        vanished=int((counted & (wide != 0) & (back == 0)).sum()),
        invalid=int((~finite & np.isfinite(back)).sum()),
        max_abs=find_largest(back[counted] - wide[counted]),
        scale=find_largest(wide[finite]),
    )


def _to_integers(array: Array, dtype: str) -> tuple[Array, Array]:
    """Return (rounded to nearest, half to even, and clipped to the type's range, NaN as 0; where it
    was clipped).

    In integers throughout: float64 holds neither 2⁶³ - 1 nor 2⁶⁴ - 1.
    """
    low, high = dtypes.find_code_range(dtype)
    if array.dtype.kind in "iu":
        over = array > high
        under = array < low
        whole = array
    else:
        rounded = np.rint(
            np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
        )
        over = rounded >= float(high + 1)
        under = rounded < float(low)
        whole = np.where(over | under, 0, rounded)
    out = whole.astype(np.uint64 if dtype.startswith("u") else np.int64)
    out[over] = high
    out[under] = low
    return out.astype(tensors.find_dtype(dtype)), over | under


def encode_raw(array: Array, dtype: str) -> bytes:
    """Encode little-endian bytes without a header.

    Types of less than a byte are packed as in ONNX's raw_data.
    """
    bits = tensors.to_bits(array, dtype)
    return (tensors.pack(bits, dtype) if dtype in PACKED else np.ascontiguousarray(bits)).tobytes()


def write_bin(
    record: Record, folder: Path, tensor_format: TensorFormat
) -> tuple[list[StoredFile], list[str]]:
    """Write a .bin next to each .npy of a record; return the files, and the losses in words.

    Without a conversion the values are copied from file to file, without loading them.
    """
    written = []
    losses = []
    if tensor_format.only_floats and "float" not in record.dtype:
        tensor_format = replace(tensor_format, dtype="")
    for file, shape in zip(record.files, record.shapes, strict=True):
        if record.dtype == "string":
            losses.append(f"{record.name}: string tensors have no .bin form")
            continue
        target = Path(file).with_suffix(".bin").as_posix()
        stored = StoredFile(target, "bin", record.dtype, shape)
        if (
            not tensor_format.dtype
            and not find_axes(shape, "NCHW", tensor_format.layout)
            and record.dtype not in PACKED
        ):
            tensors.read_npy(folder / file, mapped=True).tofile(folder / target)
        else:
            array: Any = tensors.load(
                Record(record.name, "tensor", record.dtype, (shape,), (file,)), folder
            )
            converted, loss, layout = convert(array, tensor_format)
            dtype = tensor_format.dtype or record.dtype
            (folder / target).write_bytes(encode_raw(converted, dtype))
            stored = StoredFile(
                target, "bin", dtype, converted.shape, layout if tensor_format.layout else ""
            )
            if loss:
                losses.append(f"{record.name} as {dtype}: {loss.text}")
        written.append(stored)
    return written, losses
