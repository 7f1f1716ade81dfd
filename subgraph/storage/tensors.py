"""Tensors: name → value in memory, and on disk as .npy files with a record of the element type.

A value is a numpy array (bf16, fp8, int4 … as `ml_dtypes`), a list of arrays (ONNX sequence) or
None (empty optional). On disk a type that numpy lacks is stored as raw bits in unsigned integers of
the element's size (one byte for elements of less than a byte), because `.npy` would lose the type.
Arrays of strings are stored as fixed-width Unicode.
"""

from __future__ import annotations

import re
import shutil
import sys
import tokenize
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, cast

from subgraph.errors import BackendError, InputError
from subgraph.lazy import np
from subgraph.storage import dtypes
from subgraph.types import Array, Shape, Strings, frozen

Value: TypeAlias = "Array | list[Array] | None"
Tensors: TypeAlias = "Mapping[str, Value]"
Values: TypeAlias = "dict[str, Value]"

PACKED = frozenset(name for name, bits in dtypes.TYPES.values() if 0 < bits < 8)
NOT_NUMPY = PACKED | {
    name for name, _ in dtypes.TYPES.values() if name.startswith(("bfloat", "float8_"))
}

# onnxruntime and onnx.proto call element types by these names inside "tensor(…)".
PROTO_NAMES = {
    "float32": "float",
    "float64": "double",
    "float8_e4m3fn": "float8e4m3fn",
    "float8_e4m3fnuz": "float8e4m3fnuz",
    "float8_e5m2": "float8e5m2",
    "float8_e5m2fnuz": "float8e5m2fnuz",
    "float4_e2m1fn": "float4e2m1",
    "float8_e8m0fnu": "float8e8m0",
    "float6_e2m3fn": "float6e2m3",
    "float6_e3m2fn": "float6e3m2",
}
# Errors of numpy's reader, which parses the header of a .npy as Python source.
NPY_ERRORS = (
    OSError,
    ValueError,
    EOFError,
    MemoryError,
    SyntaxError,
    RecursionError,
    tokenize.TokenError,
)
COMPARED_BYTES = 1 << 18  # bytes at a time: what is compared stays in the processor's cache
MIN_MAPPED = 1 << 20  # bytes of a file from which mapping is quicker than reading
_FROM_PROTO = {PROTO_NAMES.get(name, name): name for name in dtypes.TYPE_NUMBERS}


@frozen
class Record:
    """One value on disk.

    Attributes:
        name: the tensor's name in the model.
        form: "tensor", "sequence", "optional" or "optional sequence".
        dtype: element type, numpy's or ml_dtypes' name.
        shapes: one per file.
        files: .npy files relative to the folder; one, or one per element of a sequence; none for an
            empty optional.
    """

    name: str
    form: str
    dtype: str
    shapes: tuple[Shape, ...]
    files: Strings

    def rebase(self, folder: Path | str) -> Record:
        """Return the record with its files in a folder; absolute paths stay."""
        return replace(self, files=tuple(Path(folder, file).as_posix() for file in self.files))

    def value(self, *, mapped: bool = False) -> Value:
        """Return the value, where the files' names are absolute paths; otherwise as `load`."""
        return load(self, Path("/"), mapped=mapped)

    def array(self, *, mapped: bool = False) -> Array:
        """Return the value of a single tensor."""
        return cast("Array", self.value(mapped=mapped))

    @property
    def type_text(self) -> str:
        """The type as onnx writes it: `optional(seq(tensor(float)))`."""
        text = format_tensor_type(self.dtype)
        if "sequence" in self.form:
            text = f"seq({text})"
        if "optional" in self.form:
            return f"optional({text})"
        return text

    @property
    def shape_text(self) -> str:
        if not self.files:
            return "nothing"
        return " ".join(format_shape(shape) for shape in self.shapes)


Records: TypeAlias = Mapping[str, Record]  # by tensor
RecordTuple: TypeAlias = tuple[Record, ...]


def format_shape(shape: Sequence[Any]) -> str:
    """Return 1×3×224×224, or `scalar`."""
    return "×".join("?" if d is None else str(d) for d in shape) or "scalar"


def has_dims(shape: Sequence[int], dims: Sequence[Any]) -> bool:
    """Return whether a shape has these dimensions, where names and None mean any size."""
    return len(shape) == len(dims) and all(
        d == size for size, d in zip(shape, dims, strict=True) if isinstance(d, int)
    )


def format_tensor_type(dtype: str) -> str:
    """Return the type of a tensor as onnx writes it.

    >>> format_tensor_type("float32")
    'tensor(float)'
    """
    return f"tensor({PROTO_NAMES.get(dtype, dtype)})"


MAPS = (
    "drop the ZipMap that outputs them: subcut remove MODEL --from ZIPMAP -o plain.onnx;"
    " plain.onnx is the model then"
)


def parse_type(text: str) -> tuple[str, str]:
    """Return (form, dtype) of `tensor(float)`, `seq(tensor(int64))`, `optional(tensor(bfloat16))` …

    Raises:
        InputError: A type that holds no tensors, such as a map.
    """
    m = re.fullmatch(r"(optional\()?(seq\()?tensor\((\w+)\)+", text)
    if not m or m[3] not in _FROM_PROTO:
        raise InputError(
            f"values of type {text} cannot be stored",
            MAPS if "map(" in text else "cut elsewhere: between plain tensors",
            code="tensor.unsupported-type",
        )
    words = ("optional" if m[1] else "", "sequence" if m[2] else "")
    return " ".join(filter(None, words)) or "tensor", _FROM_PROTO[m[3]]


def list_arrays(value: Value) -> list[Array]:
    """Return the arrays in a value: one, one per element of a sequence, none of an empty
    optional."""
    if isinstance(value, list):
        return value
    if value is None:
        return []
    return [value]


def list_shapes(value: Value) -> tuple[Shape, ...]:
    """Return the shape of each array in a value."""
    return tuple(tuple(np.shape(a)) for a in list_arrays(value))


def find_type(value: Value) -> str:
    """Return the type of a value that came without one, as onnx writes it: `tensor(float)`.

    Raises:
        InputError: there is no array in it, or ONNX has no such element type.
    """
    arrays = list_arrays(value)
    if not arrays:
        raise InputError(
            "an empty sequence or optional has no element type", code="tensor.empty-sequence"
        )
    dtype = np.asarray(arrays[0]).dtype
    name = "string" if dtype.kind in "OUST" else dtype.name
    if name not in dtypes.TYPE_NUMBERS:
        raise InputError(f"ONNX has no element type {dtype}", code="tensor.unsupported-type")
    text = format_tensor_type(name)
    if isinstance(value, list):
        return f"seq({text})"
    return text


def find_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype in memory: numpy's own or one of ml_dtypes; strings are objects.

    Raises:
        BackendError: this interpreter, of another environment than subcut's own, has no ml_dtypes.
    """
    if name == "string":
        return np.dtype(object)
    if name in NOT_NUMPY:
        try:
            import ml_dtypes
        except ImportError as e:
            raise BackendError(
                f"{sys.prefix} has no ml_dtypes, which {name} needs",
                "pip install ml_dtypes",
                code="package.not-installed",
            ) from e

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype
    return np.dtype(name)


def to_bits(array: Array, dtype: str) -> Array:
    """Return the array as a .npy stores it: raw unsigned bits if numpy lacks the type."""
    if dtype == "string":
        return array.astype(np.str_)
    if dtype not in NOT_NUMPY:
        return array
    bits = (
        np.ascontiguousarray(array).view(np.dtype(f"u{array.dtype.itemsize}")).reshape(array.shape)
    )
    if dtype in PACKED:
        return bits & np.uint8((1 << dtypes.count_bits(dtype)) - 1)
    return bits


def from_bits(array: Array, dtype: str) -> Array:
    """Return the inverse of `to_bits`.

    Raises:
        InputError: the array in the file has another type.
    """
    wanted = find_dtype(dtype)
    if dtype == "string" and array.dtype.kind in "UO":
        return array.astype(object)
    expected = f"{dtype} was"
    if dtype in NOT_NUMPY:
        if are_bits(array.dtype, wanted):
            return array.astype(array.dtype.newbyteorder("="), copy=False).view(wanted)
        expected = f"the raw bits of {dtype} were"
    elif array.dtype == wanted:
        return array
    raise InputError(f"found {array.dtype} where {expected} stored", code="tensor.other-type")


def are_bits(stored: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    """Return whether elements are raw bits of a type that numpy lacks: unsigned or void.

    In memory those types have the kind of void as well, but not its type.
    """
    raw = stored.kind == "u" or (stored.type is np.void and stored.names is None)
    return raw and stored.itemsize == dtype.itemsize


def save(name: str, value: Value, type_text: str, folder: Path, stem: str) -> Record:
    """Write one value as .npy file(s) `stem.npy` or `stem#0.npy` … (no safe name has a `#`); return
    its record."""
    form, dtype = parse_type(type_text)
    many = isinstance(value, list)
    arrays = list_arrays(value)
    files = tuple(f"{stem}#{i}.npy" if many else f"{stem}.npy" for i in range(len(arrays)))
    for file, array in zip(files, arrays, strict=True):
        np.save(folder / file, to_bits(np.asarray(array, order="C"), dtype), allow_pickle=False)
    if many and form == "optional":
        form = "optional sequence"
    return Record(name, form, dtype, list_shapes(value), files)


def is_stored(record: Record, value: Value, type_text: str, folder: Path) -> bool:
    """Return whether `save` would write the same type, shapes and bits again."""
    arrays = list_arrays(value)
    kind = Record(record.name, *parse_type(type_text), list_shapes(value), record.files)
    is_same = (kind.type_text, kind.shapes) == (record.type_text, record.shapes)
    if not is_same or len(arrays) != len(record.files):
        return False
    for file, array in zip(record.files, arrays, strict=True):
        bits = to_bits(np.asarray(array, order="C"), record.dtype)
        if bits.nbytes == 0:  # there is nothing to map
            continue
        try:
            stored = np.lib.format.open_memmap(folder / file, mode="r")
        except NPY_ERRORS:  # somebody changed it
            return False
        if stored.dtype != bits.dtype:
            return False
        # Views need no copy in memory.
        x = stored.view(np.ndarray).reshape(-1).view(np.uint8)
        y = bits.reshape(-1).view(np.uint8)
        parts = [slice(at, at + COMPARED_BYTES) for at in range(0, len(x), COMPARED_BYTES)]
        if not all(np.array_equal(x[part], y[part]) for part in parts):
            return False
    return True


def write_value(name: str, value: Value, folder: Path, stem: str, type_text: str = "") -> Record:
    """Save a value, and return its record with absolute paths.

    Args:
        type_text: The type of the record, as `format_tensor_type` writes it; "": the value's own.
    """
    saved = save(name, value, type_text or find_type(value), folder, stem)
    return saved.rebase(folder.resolve())


def copy_record(
    record: Record, into: Path, stem: str, *, copy: Callable[[str, Path], object] | None = None
) -> Record:
    """Copy the files of a value to another folder, and return a record of the copies.

    Args:
        stem: The file name of the copies, without the suffix. The record's paths are relative to
            `into`.
        copy: Copies one file. None for `shutil.copyfile`.
    """
    files = []
    for file in record.files:
        _, many, number = Path(file).stem.partition("#")
        files.append(f"{stem}{many}{number}.npy")
        (copy or shutil.copyfile)(file, into / files[-1])
    return replace(record, files=tuple(files))


def load(record: Record, folder: Path, *, mapped: bool = False) -> Value:
    """Read a value back. `mapped`: large ones are mapped, not read; writing to them changes no
    file.

    Raises:
        InputError: a file is missing, damaged or of another type.
    """
    arrays = []
    for file in record.files:
        array = read_npy(folder / file, mapped=mapped)
        try:
            arrays.append(from_bits(array, record.dtype))
        except InputError as e:
            raise InputError(f"{folder / file}: {e.what}", code=e.code) from e
    if "sequence" in record.form:
        return arrays
    return arrays[0] if arrays else None


def read_npy(path: Path, *, mapped: bool = False) -> Array:
    """Return the array in a .npy file; `mapped` as in `load`.

    Raises:
        InputError: it is missing or damaged, or holds Python objects.
    """
    try:
        if mapped and path.stat().st_size >= MIN_MAPPED:
            return np.lib.format.open_memmap(path, mode="c").view(np.ndarray)
        with path.open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except NPY_ERRORS as e:
        raise InputError(
            f"cannot read {path}: {e}",
            "give a .npy file without Python objects",
            code="tensor.unreadable",
        ) from e


def pack(bits: Array, dtype: str) -> Array:
    """Return the low bits of each byte as packed bytes, flat, as in ONNX's raw_data: lowest bit
    first, zeros at the end."""
    each = np.unpackbits(bits.reshape(-1, 1), axis=1, bitorder="little")
    return np.packbits(each[:, : dtypes.count_bits(dtype)], bitorder="little")


def unpack(data: Array, dtype: str, count: int) -> Array:
    """Return `count` elements of the type itself from packed bytes, flat."""
    width = dtypes.count_bits(dtype)
    each = np.unpackbits(data, count=count * width, bitorder="little").reshape(count, width)
    return from_bits(np.packbits(each, axis=1, bitorder="little").reshape(count), dtype)


def find_largest(values: Array) -> float:
    """Return the largest magnitude of some numbers; 0 of none."""
    return float(np.abs(values).max(initial=0.0))


def measure_distance(expected: Array, actual: Array) -> tuple[float, float] | None:
    """Return (largest difference, largest magnitude expected) of the finite values of two arrays of
    one shape.

    None if NaN or infinities have different positions or another sign.
    """
    x = expected.astype(np.complex128)
    y = actual.astype(np.complex128)
    finite = np.isfinite(x) & np.isfinite(y)
    if (~finite & (x != y) & ~(np.isnan(x) & np.isnan(y))).any():
        return None
    return find_largest(x[finite] - y[finite]), find_largest(x[finite])
