"""ONNX's test_data_set folders (input_0.pb, output_0.pb …) and onnxruntime's .tensorproto.

Source of the last: onnxruntime/core/framework/debug_node_inputs_outputs_utils.cc, where the
destination is "files": TENSOR.tensorproto, in whose name all but letters and digits is `_`; the
message holds the tensor's own name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial

from google.protobuf.message import DecodeError

from subgraph.errors import InputError
from subgraph.graph import protobuf
from subgraph.lazy import onnx
from subgraph.recordings.dump_files import Files
from subgraph.recordings.dumps import MARKED, NONE, TYPED, DumpEntry, DumpHints
from subgraph.storage import dtypes
from subgraph.types import Array

ORT_END = ".tensorproto"  # of onnxruntime's builds with DEBUG_NODE_INPUTS_OUTPUTS, written to files
ENDS = (".pb", ORT_END)
_NUMBERED = re.compile(r"(input|output)_(\d+)\.pb")


def detect(files: Files) -> int:
    """Detect the format by the names input_0.pb, output_0.pb, the end .tensorproto, or .pb files
    that are tensors."""
    numbered = (_NUMBERED.fullmatch(n.rpartition("/")[2]) for n in files.ending(".pb"))
    if files.ending(ORT_END) or any(numbered):
        return MARKED
    if any(_is_tensor(files, n) for n in files.ending(".pb")):
        return TYPED
    return NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """Yield one per file; sequences and optionals are not read."""
    for file in files.ending(*ENDS):
        side, _, base = file.rpartition("/")
        numbered = _NUMBERED.fullmatch(base)
        try:
            tensor = _parse_tensor(files, file)
        except InputError:
            if not numbered and not file.endswith(ORT_END) and not _is_tensor(files, file):
                continue  # a TensorFlow graph, for example
            raise
        name = str(tensor.name)
        yield DumpEntry(
            file,
            partial(_read_array, files, file),
            dtypes.TYPES[tensor.data_type][0],
            tuple(int(d) for d in tensor.dims),
            tensor=name or base.rpartition(".")[0],
            role=numbered[1] if numbered else "output",
            index=int(numbered[2]) if numbered else 0,
            originals=(name,) if name else (),
            side=side,
        )


def _is_tensor(files: Files, file: str) -> bool:
    """Return whether it parses, and begins with dimensions (field 1) or element type (field 2)."""
    if files.head(file, 1) not in (b"\x08", b"\x0a", b"\x10"):
        return False
    try:
        return bool(_parse_tensor(files, file))
    except InputError:
        return False


def _parse_tensor(files: Files, file: str) -> protobuf.TensorProto:
    """Parse the message.

    Raises InputError: it is not a tensor, or its data is in another file.
    """
    try:
        tensor: protobuf.TensorProto = protobuf.load_protos().TensorProto.FromString(
            files.read(file)
        )
    except DecodeError as e:
        raise files.make_error(file, f"no ONNX tensor: {e}") from e
    if protobuf.is_on_disk(tensor) or tensor.external_data:
        raise files.make_error(file, "its values lie in another file, which is not read", "")
    if tensor.data_type not in dtypes.TYPES or any(d < 0 for d in tensor.dims):
        raise files.make_error(file, f"element type {tensor.data_type}, shape {list(tensor.dims)}")
    return tensor


def _read_array(files: Files, file: str) -> Array:
    tensor = _parse_tensor(files, file)
    # A byte holds at most four values, of 2 bits each.
    if math.prod(tensor.dims) > 4 * files.sizes[file]:
        raise files.make_error(file, f"{files.sizes[file]} bytes do not fill {list(tensor.dims)}")
    with files.reading(file):
        array: Array = onnx.numpy_helper.to_array(tensor)
    return array
