"""ONNX's test_data_set folders: input_0.pb, output_0.pb … and any .pb that is a TensorProto."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph.errors import InputError
from subgraph.graph import protobuf
from subgraph.recordings.dumps import MARKED, NONE, TYPED, DumpEntry, DumpHints
from subgraph.recordings.files import Files
from subgraph.storage import dtypes
from subgraph.storage.tensors import Tensors

if TYPE_CHECKING:
    from subgraph.types import Array

HOLDS = tuple(dtypes.TYPE_NUMBERS)
_OWN = re.compile(r"(input|output)_(\d+)\.pb")


def detect(files: Files) -> int:
    """By the names input_0.pb and output_0.pb, or .pb files that begin as a tensor does."""
    own = [n for n in files.ending(".pb") if _OWN.fullmatch(n.rpartition("/")[2])]
    if own:
        return MARKED
    return TYPED if any(_is_tensor(files, n) for n in files.ending(".pb")) else NONE


def entries(files: Files, known: DumpHints) -> Iterator[DumpEntry]:
    """One per file; sequences and optionals are not read."""
    for file in files.ending(".pb"):
        side, _, own = file.rpartition("/")
        found = _OWN.fullmatch(own)
        more: dict[str, Any] = {"side": side, "stem": file.removesuffix(".pb")}
        if found:
            more |= {"role": found[1], "index": int(found[2])}
        try:
            tensor = _parsed(files, file)
        except InputError:
            if not found and not _is_tensor(files, file):
                continue  # a TensorFlow graph, say
            raise
        dtype = dtypes.TYPES[tensor.data_type][0]
        name = str(tensor.name)
        more |= {"tensor": name or own.removesuffix(".pb"), "originals": (name,) if name else ()}
        yield DumpEntry(file, partial(_array, files, file), dtype, tuple(int(d) for d in tensor.dims), **more)


def _is_tensor(files: Files, file: str) -> bool:
    """Dimensions (field 1) or the element type (field 2) stand first."""
    return files.head(file, 1) in (b"\x08", b"\x0a", b"\x10") and _quiet(files, file) is not None


def _quiet(files: Files, file: str) -> protobuf.TensorProto | None:
    try:
        return _parsed(files, file)
    except InputError:
        return None


def _parsed(files: Files, file: str) -> protobuf.TensorProto:
    """The message.

    Raises:
        InputError: it is no tensor, or one whose data lies in another file.
    """
    from google.protobuf.message import DecodeError

    try:
        tensor = protobuf.protos().TensorProto.FromString(files.bytes(file, 0, files.sizes[file]))
    except DecodeError as e:
        raise files.damaged(file, f"no ONNX tensor: {e}") from e
    if protobuf.on_disk(tensor) or tensor.external_data:
        raise files.damaged(file, "its values lie in another file, which is not read", "")
    if tensor.data_type not in dtypes.TYPES or any(d < 0 for d in tensor.dims):
        raise files.damaged(file, f"element type {tensor.data_type}, shape {list(tensor.dims)}")
    return tensor


def _array(files: Files, file: str) -> Array:
    from onnx import numpy_helper

    tensor = _parsed(files, file)
    _require_values(files, file, tensor)
    try:
        found: Array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError, UnicodeDecodeError) as e:
        raise files.damaged(file, e) from e
    return found


def _require_values(files: Files, file: str, tensor: protobuf.TensorProto) -> None:
    """A shape promises no more values than the message can hold: two of 4 bits, or four of 2, to a byte."""
    import math

    if math.prod(tensor.dims) > 4 * files.sizes[file]:
        raise files.damaged(file, f"{files.sizes[file]} bytes are no {list(tensor.dims)}")


def write(tensors: Tensors, folder: Path) -> None:
    """output_0.pb, output_1.pb … with the tensors' names in them.

    Raises:
        InputError: a value that is no array.
    """
    import numpy as np
    from onnx import numpy_helper

    for k, (name, value) in enumerate(tensors.items()):
        if value is None or isinstance(value, list):
            raise InputError(f"{name}: only arrays are written as .pb")
        data = numpy_helper.from_array(np.asarray(value), name).SerializeToString()
        (folder / f"output_{k}.pb").write_bytes(data)
