"""Headerless bytes -> an array, with type, shape, layout and row padding from a manifest or a
model."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from subgraph.errors import InputError
from subgraph.iterables import flatten
from subgraph.recordings.dump_files import Files, fill_open_dimension
from subgraph.recordings.dumps import NO_SHAPE, DumpEntry, DumpHints, TensorSpec
from subgraph.storage import dtypes, layouts
from subgraph.storage.dtypes import Scale
from subgraph.storage.tensors import PACKED, find_dtype, format_shape, unpack
from subgraph.types import Array, JsonObject, Shape

MANIFEST = "manifest.json"
EXPORT = "subcut.export/"  # how the schema of its manifest begins
BLOCK_SIZES = (16, 32, 8, 4)  # C0 of float16, of int8, of others
_HINT = "name type and shape in a manifest.json next to it, or name the model"


def count_bytes(dtype: str, count: int) -> int:
    """Return the bytes of `count` elements, packed."""
    return math.ceil(count * dtypes.count_bits(dtype) / 8)


def read(files: Files, name: str, dtype: str, shape: Shape, offset: int = 0) -> Array:
    """Return an array of this type and shape.

    Raises:
        InputError: the file does not have as many bytes.
    """
    count = math.prod(shape)
    data = files.map_part(name, offset, count_bytes(dtype, count))
    flat = unpack(data, dtype, count) if dtype in PACKED else data.view(find_dtype(dtype))
    return files.reshape(name, flat, shape)


def make_entry(
    files: Files, name: str, spec: TensorSpec, hints: DumpHints, default: str = "", **fields: Any
) -> DumpEntry:
    """Return the entry of a headerless file.

    `default`: the type that the tool writes by default. `fields`: of the entry, such as its names.
    """
    entry = _make_entry(files, name, spec, hints, default)
    return replace(entry, **{"scale": spec.scale} | fields)


def _make_entry(
    files: Files, name: str, spec: TensorSpec, hints: DumpHints, default: str
) -> DumpEntry:
    layout = layouts.normalize_name(spec.layout or hints.layout)
    if spec.aligned:
        return _make_padded_entry(files, name, spec, layout, spec.aligned)
    size = files.sizes[name] - spec.offset
    narrow = hints.narrow if "float" in spec.dtype else ""
    for dtype in dict.fromkeys(d for d in (default, spec.dtype, narrow) if d and d != "string"):
        shape, stored = fit_size(spec.shape, dtype, size, layout)
        known = spec.closed_shape
        if known and spec.stored and count_bytes(dtype, math.prod(spec.stored)) == size:
            shape = known
            stored = spec.stored
        if stored is not None:
            load = partial(read, files, name, dtype, stored, spec.offset)
            guessed = spec.guessed and len(stored) != 1  # a lone dimension follows from the size
            entry = DumpEntry(name, load, dtype, stored, layout, original_shape=shape)
            return replace(entry, guessed=guessed)
    unshaped = _make_flat_entry(files, name, spec, default, size)
    if unshaped.missing and spec.guessed and hints.flat_if_misfit:
        flat = _make_flat_entry(files, name, TensorSpec(spec.dtype), default, size)
        if flat.missing:
            return unshaped
        return replace(flat, guessed=True)
    return unshaped


def _make_flat_entry(
    files: Files, name: str, spec: TensorSpec, default: str, size: int
) -> DumpEntry:
    """Make a flat entry if the type is known and no shape contradicts; else one without values."""
    dtype = default or spec.dtype
    is_typed = spec.shape is None and dtype not in ("", "string") and size >= 0
    if not is_typed or (size * 8) % dtypes.count_bits(dtype):
        shape = "no shape" if spec.shape is None else format_shape(spec.shape)
        missing = f"{size} bytes, headerless; known of it: {dtype or 'no type'}, {shape}; {_HINT}"
        return DumpEntry(name, dtype=dtype, missing=missing)
    count = size * 8 // dtypes.count_bits(dtype)
    load = partial(read, files, name, dtype, (count,), spec.offset)
    return DumpEntry(name, load, dtype, (count,), note=NO_SHAPE)


def fit_size(
    dims: tuple[int | None, ...] | None, dtype: str, size: int, layout: str = ""
) -> tuple[Shape, Shape | None]:
    """Return a tensor's shape, and its shape in a file of `size` bytes; None if none fits.

    The second is None if a file of another size would hold the tensor.
    """
    if dims is None:
        return (), None
    shape = fill_open_dimension(dims, size * 8 // dtypes.count_bits(dtype))
    if shape is None or min(shape, default=0) < 0:
        return (), None
    for c0 in BLOCK_SIZES if layout in layouts.BLOCKED else (4,):
        stored = layouts.compute_stored_shape(shape, layout, c0)
        if count_bytes(dtype, math.prod(stored)) == size:
            return shape, stored
    return (), None


def _make_padded_entry(
    files: Files, name: str, spec: TensorSpec, layout: str, aligned: Shape
) -> DumpEntry:
    """Make the entry of padded rows: a part of an array of the shape `aligned`."""
    shape = tuple(d for d in spec.shape or () if d is not None)
    if not spec.dtype or spec.dtype in PACKED or len(shape) != len(spec.shape or ()):
        missing = f"padded rows of no known type and shape; {_HINT}"
        return DumpEntry(name, dtype=spec.dtype, missing=missing)

    def load() -> Array:
        pairs = zip_longest(aligned, shape, fillvalue=-1)
        if not all(a >= d >= 0 for a, d in pairs):
            raise files.make_error(
                name, f"{list(shape)} is not part of the aligned {list(aligned)}"
            )
        padded = read(files, name, spec.dtype, aligned, spec.offset)
        return padded[tuple(map(slice, shape))]

    return DumpEntry(name, load, spec.dtype, shape, layout)


def read_manifest(files: Files) -> dict[str, tuple[str, TensorSpec]]:
    """Read the tensor and spec of each file from the folder's manifest, a user's or subcut's own.

    Raises:
        InputError: it is damaged, or names a type that does not exist.
    """
    data = files.read_json_if_there(MANIFEST)
    if not isinstance(data, dict):
        return {}
    with files.reading(MANIFEST, hint='wanted: {"tensors": [{"name", "file", …}]}'):
        own = (data.get(key, ()) for key in ("tensors", "inputs", "outputs"))
        items = [(i, _parse_spec) for i in flatten(own)]
        items += [(i, _parse_exported_spec) for i in data.get("exported", ())]
        named = [(i, spec) for i, spec in items if "file" in i or "bin" in i]
        return {str(i.get("file") or i["bin"]): (str(i["name"]), spec(i)) for i, spec in named}


def _parse_spec(item: JsonObject) -> TensorSpec:
    dtype = str(item.get("dtype", ""))
    if dtype and dtype not in dtypes.TYPE_NUMBERS:
        what = f"{MANIFEST} has element type '{dtype}', which ONNX does not have"
        raise InputError(what, code="tensor.unsupported-type")
    aligned = tuple(int(d) for d in item.get("aligned") or ()) or None
    shape = None
    if item.get("shape") is not None:
        shape = tuple(None if d is None else int(d) for d in item["shape"])
    layout = str(item.get("layout", ""))
    offset = int(item.get("offset", 0))
    # `"scale": 0.02, "zero_point": 128`, or lists of them per channel of `"axis"`
    steps = np.ravel(item.get("scale", ()))
    zeros = np.ravel(item.get("zero_point", 0))
    scale = None
    if steps.size:
        if zeros.size not in (1, steps.size) or not (steps > 0).all():
            raise ValueError(f"scale {steps.tolist()}, zero point {zeros.tolist()}")
        zero = tuple(map(int, np.broadcast_to(zeros, steps.shape)))
        scale = Scale(tuple(map(float, steps)), zero, int(item.get("axis", 1)))
    return TensorSpec(dtype, shape, layout, aligned, offset, scale)


def read_exported_scales(files: Files) -> dict[str, Scale | None]:
    """Read the scale of each file's codes in a folder that `subcut export` wrote; else nothing."""
    data = files.read_json_if_there(MANIFEST)
    if not isinstance(data, dict) or not str(data.get("schema", "")).startswith(EXPORT):
        return {}
    return {file: spec.scale for file, (_, spec) in read_manifest(files).items()}


def _parse_exported_spec(item: JsonObject) -> TensorSpec:
    """Parse the spec of a file that `subcut export` wrote, whose shape is that of the file."""
    spec = _parse_spec(item)
    if not (stored := spec.closed_shape):
        return spec
    shape = item.get("original_shape") or layouts.compute_plain_shape(stored, spec.layout)
    return replace(spec, shape=tuple(map(int, shape)), stored=stored)
