"""Tensors → a folder in the form in which a tool writes them, for tests that read it back."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import numpy_helper

from subgraph.recordings.dumps import _ascend, _text
from subgraph.storage import dtypes
from subgraph.storage.convert import encode_raw
from subgraph.storage.folders import is_outside, make_safe_names
from subgraph.storage.tensors import NOT_NUMPY

Array = npt.NDArray[Any]
Tensors = Mapping[str, Array]

PRINTED = {"float32": "%.9g", "float64": "%.17g"}  # as many digits as make the printed value exact
NUMPY = tuple(name for name in dtypes.TYPE_NUMBERS if name not in NOT_NUMPY)
TNN = {"float32": 0, "int8": 2, "int32": 3}
CLASS = "polygraphy_class"


class CannotHoldError(ValueError):
    """The format cannot hold this name."""


def format_lines(array: Array, form: str) -> str:
    """One value per line: `%.9f`, `%d`."""
    return "".join(f"{form % v}\n" for v in array.reshape(-1).tolist())


def dtype_of(array: Array) -> str:
    """ONNX's name of an array's element type."""
    return "string" if array.dtype.kind == "O" else array.dtype.name


def write_ascend(tensors: Tensors, folder: Path) -> None:
    """One file per tensor, each an op of its name with one output in the model's layout."""
    stems = make_safe_names(_ascend.plain(name) for name in tensors)
    for k, (name, array) in enumerate(tensors.items()):
        dtype = dtype_of(array)
        data = encode_raw(array, dtype)
        head = _ascend.make_message_class()(version="2.0", op_name=name)
        output = head.output.add(data_type=_ascend.NUMBERS[dtype], format=2, size=len(data))
        output.shape.dim.extend(array.shape)
        text = head.SerializeToString()
        stem = re.sub(r"[.+@~]", "_", stems[_ascend.plain(name)])
        content = len(text).to_bytes(8, "little") + text + data
        (folder / f"Tensor.{stem}.{k}.{10**15}").write_bytes(content)


def write_mnn(tensors: Tensors, folder: Path) -> None:
    """input.json and a .txt per input, as testMNNFromOnnx.py takes them."""
    listed = []
    for name, array in tensors.items():
        path = folder / f"{name}.txt"
        if is_outside(name) or name != Path(name).as_posix():
            raise CannotHoldError(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(format_lines(array, "%.18e"), encoding="ascii")
        listed.append({"name": name, "shape": list(array.shape)})
    (folder / "input.json").write_text(json.dumps({"inputs": listed, "outputs": []}))


def write_npy(tensors: Tensors, folder: Path) -> None:
    """One .npy per tensor."""
    stems = make_safe_names(tensors)
    for name, array in tensors.items():
        np.save(
            folder / f"{stems[name]}.npy",
            array.astype(np.str_) if array.dtype.kind == "O" else array,
            allow_pickle=False,
        )


def write_onnx_pb(tensors: Tensors, folder: Path) -> None:
    """output_0.pb, output_1.pb … with the tensors' names in them."""
    for k, (name, array) in enumerate(tensors.items()):
        content = numpy_helper.from_array(array, name).SerializeToString()
        (folder / f"output_{k}.pb").write_bytes(content)


def write_polygraphy(tensors: Tensors, folder: Path) -> None:
    """`outputs.json`, as `polygraphy run --load-outputs` takes it."""
    outputs = {}
    for name, array in tensors.items():
        file = BytesIO()
        np.save(file, array, allow_pickle=False)
        text = base64.b64encode(file.getvalue()).decode()
        outputs[name] = {"values": {"array": text, CLASS: "ndarray"}, CLASS: "LazyArray"}
    run = {"outputs": outputs, "runtime": None, "runner_name": "made", CLASS: "IterationResult"}
    data = {"lst": [["made", [run]]], CLASS: "RunResults"}
    (folder / "outputs.json").write_text(json.dumps(data), encoding="ascii")


def write_qnn(tensors: Tensors, folder: Path) -> None:
    """Inputs for qnn-net-run: float32 .raw files and input_list.txt."""
    stems = make_safe_names(tensors)
    words = []
    for name, array in tensors.items():
        if ":=" in name or name.split() != [name]:
            raise CannotHoldError(name)
        (folder / f"{stems[name]}.raw").write_bytes(np.ascontiguousarray(array, "<f4").tobytes())
        words.append(f"{name}:={stems[name]}.raw")
    (folder / "input_list.txt").write_text(" ".join(words) + "\n", encoding="utf-8")


def write_raw(tensors: Tensors, folder: Path) -> None:
    """A .bin per tensor, little-endian, and a manifest.json."""
    stems = make_safe_names(tensors)
    listed = []
    for name, array in tensors.items():
        dtype = dtype_of(array)
        file = f"{stems[name]}.bin"
        (folder / file).write_bytes(encode_raw(array, dtype))
        listed.append({"name": name, "file": file, "dtype": dtype, "shape": list(array.shape)})
    (folder / "manifest.json").write_text(json.dumps({"tensors": listed}))


def write_text(tensors: Tensors, folder: Path) -> None:
    """One .txt per tensor, one value per line, with as many digits as its type has."""
    stems = make_safe_names(tensors)
    for name, array in tensors.items():
        form = PRINTED.get(array.dtype.name, "%d" if array.dtype.kind in "iub" else "%.9g")
        (folder / f"{stems[name]}.txt").write_text(format_lines(array, form), encoding="ascii")


def write_tnn(tensors: Tensors, folder: Path) -> None:
    """`tensors.txt` as model_check -i and -f take it; six digits behind the point."""
    text = [f"{len(tensors)}\n"]
    for name, array in tensors.items():
        dims = "".join(f" {d}" for d in array.shape)
        text.append(f"{name} {array.ndim}{dims} {TNN[array.dtype.name]}\n")
        text.append(format_lines(array, "%0.6f" if array.dtype.kind == "f" else "%d"))
    (folder / "tensors.txt").write_text("".join(text), encoding="utf-8")


# By format: the function that writes it, and the element types that come back unchanged.
WRITERS: dict[str, tuple[Callable[[Tensors, Path], None], tuple[str, ...]]] = {
    "ascend": (write_ascend, tuple(_ascend.NUMBERS)),
    "mnn": (write_mnn, ("float32",)),
    "npy": (write_npy, NUMPY),
    "onnx-pb": (write_onnx_pb, tuple(dtypes.TYPE_NUMBERS)),
    "polygraphy": (write_polygraphy, tuple(name for name in NUMPY if name != "string")),
    "qnn": (write_qnn, ("float32",)),
    "raw": (write_raw, tuple(name for name in dtypes.TYPE_NUMBERS if name != "string")),
    "text": (write_text, _text.HOLDS),
    "tnn": (write_tnn, tuple(TNN)),
}
