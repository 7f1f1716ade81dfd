"""TNN: files per blob of a DUMP build, model_check's cpu_ and device_ files, and its text tensor file."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph.errors import InputError
from subgraph.recordings.dumps import MARKED, NONE, DumpEntry, DumpHints, _text
from subgraph.recordings.files import Files
from subgraph.storage.tensors import Tensors

if TYPE_CHECKING:
    from subgraph.types import Array

HOLDS = ("float32", "int8", "int32")
STEP = 1e-9  # "%.9f"
STEP_OF_FILE = 1e-6  # "%0.6f" in its tensor file
# COUNT-LAYER-in-0-BLOB-dims-1-8-16-16.txt; names may hold a `-`
_DUMPED = re.compile(r"(\d{5,})-(.+)-(in|out)-(\d+)-(.+)-dims((?:-\d+)*)\.txt")
_SIDES = ("cpu_", "device_", "tnn-")
_DTYPES = {0: "float32", 2: "int8", 3: "int32"}
_MOST = 1 << 40  # elements of one tensor


def plain(name: str) -> str:
    """`/` and `:` become `_`; older names of ONNX lose `:` alone."""
    return re.sub(r"[/:]", "_", name)


def detect(files: Files) -> int:
    """By the names of its dump, by both cpu_*.txt and device_*.txt, or by a text file that describes its tensors."""
    own = [n.rpartition("/")[2] for n in files.ending(".txt")]
    if any(_DUMPED.fullmatch(n) for n in own):
        return MARKED
    if {"cpu_", "device_"} <= {side for side in _SIDES for n in own if n.startswith(side)}:
        return MARKED
    return MARKED if any(_described(files, n) for n in files.ending(".txt")) else NONE


def entries(files: Files, known: DumpHints) -> Iterator[DumpEntry]:
    """Outputs and inputs of each layer, in the order of the run."""
    layers = _layers(files)
    for file in files.ending(".txt"):
        side, _, own = file.rpartition("/")
        found = _DUMPED.fullmatch(own)
        if found:
            yield _blob(files, file, found, side, layers)
        elif _described(files, file):
            yield from _tensors(files, file)
        elif own.startswith(_SIDES) and _text.is_numeric(files, file):
            yield _checked(files, file, own, known)


def _blob(files: Files, file: str, found: re.Match[str], side: str, layers: set[tuple[str, str]]) -> DumpEntry:
    layer, way, blob = _split(found, layers)
    shape = tuple(int(d) for d in found[6].split("-")[1:])
    dtype = "int32" if files.sizes[file] and _text.is_whole(files, file) else "float32"
    return DumpEntry(
        file,
        _text.loader(files, file, dtype, shape),
        dtype,
        shape,
        tensor=blob,
        node=layer,
        role="input" if way == "in" else "output",
        index=int(found[4]),
        side=side,
        step=STEP if dtype == "float32" else 0.0,
    )


def _split(found: re.Match[str], layers: set[tuple[str, str]]) -> tuple[str, str, str]:
    """(layer, in or out, blob). Where names hold `-in-0-` themselves, a .tnnproto beside the files decides."""
    middle = f"{found[2]}-{found[3]}-{found[4]}-{found[5]}"
    for cut in re.finditer(rf"-(in|out)-{found[4]}-", middle):
        if (middle[: cut.start()], middle[cut.end() :]) in layers:
            return middle[: cut.start()], cut[1], middle[cut.end() :]
    return found[2], found[3], found[5]


def _layers(files: Files) -> set[tuple[str, str]]:
    """(layer, blob) of all that a .tnnproto beside the files lists, as file names have them."""
    out: set[tuple[str, str]] = set()
    for name in files.ending(".tnnproto"):
        for layer in proto(files, name):
            out |= {(layer["name"].replace("/", "_"), plain(blob)) for blob in (*layer["inputs"], *layer["outputs"])}
    return out


def proto(files: Files, name: str) -> list[dict[str, Any]]:
    """The layers of a .tnnproto: type, name, inputs, outputs.

    Raises:
        InputError: it is none.
    """
    lines = [line.strip().strip('"').removesuffix(",").strip() for line in files.text(name).splitlines()]
    try:
        magic, count = int(lines[0].split()[3]), int(lines[4].split()[0])
        if magic not in (4206624770, 4206624772):
            raise ValueError(f"magic {magic}")
        return [_layer(line.split()) for line in lines[5 : 5 + count]]
    except (IndexError, ValueError) as e:
        raise files.damaged(name, f"no .tnnproto: {e}") from e


def _layer(words: list[str]) -> dict[str, Any]:
    fed, made = int(words[2]), int(words[3])
    names = words[4 : 4 + fed + made]
    if len(names) != fed + made or fed < 0:
        raise ValueError(f"layer {words[1]} has {len(names)} names")
    return {"type": words[0], "name": words[1], "inputs": names[:fed], "outputs": names[fed:]}


def _checked(files: Files, file: str, own: str, known: DumpHints) -> DumpEntry:
    """cpu_BLOB.txt and device_BLOB.txt of model_check: values without a shape."""
    side = next(s for s in _SIDES if own.startswith(s))
    blob = own[len(side) : -len(".txt")]
    dims = known.find(blob, plain).shape
    shape = None if dims is None or None in dims else tuple(d for d in dims if d is not None)
    note = "its shape is not known" if shape is None else ""
    load = _text.loader(files, file, "float32", shape)
    return DumpEntry(file, load, "float32", shape, tensor=blob, side=side.strip("_-"), step=STEP_OF_FILE, note=note)


def _described(files: Files, file: str) -> bool:
    """Is it a text tensor file: a number of tensors, then `NAME RANK DIMS… TYPE` and the first one's values?"""
    lines = files.head(file, 1024).split(b"\n")
    try:
        return len(lines) > 1 and int(lines[0]) > 0 and b"_" not in lines[0] and bool(_header(lines[1].split()))
    except ValueError:
        return False


def _header(words: list[bytes]) -> tuple[str, tuple[int, ...], str]:
    """(name, shape, element type) from `data 4 1 3 16 16 0`.

    Raises:
        ValueError: it is none such.
    """
    rank = int(words[1]) if len(words) > 2 else -1
    if rank < 0 or len(words) != 3 + rank:
        raise ValueError("no header of a tensor")
    shape = tuple(int(w) for w in words[2:-1])
    if any(d < 0 for d in shape) or math.prod(shape) > _MOST:
        raise ValueError(f"shape {list(shape)}")
    return words[0].decode(), shape, _DTYPES.get(int(words[-1]), "")


def _tensors(files: Files, file: str) -> Iterator[DumpEntry]:
    """The tensors of a text tensor file; each header says how many lines follow."""
    data = files.bytes(file, 0, files.sizes[file]).split(b"\n")
    at = 1
    for _ in range(min(int(data[0]), len(data))):
        try:
            name, shape, dtype = _header(data[at].split())
        except (IndexError, ValueError) as e:
            raise files.damaged(file, f"line {at + 1}: {e}") from e
        count = math.prod(shape)
        if at + 1 + count > len(data):
            raise files.damaged(file, f"{name}: {len(data) - at - 1} lines are no {list(shape)} values")
        stem = f"{file[: -len('.txt')]}/{plain(name)}"
        load = partial(_values, files, file, (at + 1, count), dtype, shape)
        lacks = "" if dtype else "an element type that TNN does not have"
        step = STEP_OF_FILE if dtype == "float32" else 0.0
        yield DumpEntry(file, load, dtype, shape, tensor=name, stem=stem, step=step, lacks=lacks)
        at += 1 + count


def _values(files: Files, file: str, part: tuple[int, int], dtype: str, shape: tuple[int, ...]) -> Array:
    data = files.bytes(file, 0, files.sizes[file]).split(b"\n")[part[0] : part[0] + part[1]]
    found = _text.numbers(files, file, b"\n".join(data), dtype)
    if found.size != part[1]:
        raise files.damaged(file, f"{found.size} values are no {list(shape)}")
    return files.shaped(file, found, shape)


def write(tensors: Tensors, folder: Path) -> None:
    """`tensors.txt` as model_check -i and -f take it; six digits behind the point, as TNN prints.

    Raises:
        InputError: a type that TNN does not have, or a name with a blank in it.
    """
    import numpy as np

    numbers = {name: number for number, name in _DTYPES.items()}
    text = [f"{len(tensors)}\n"]
    for name, value in tensors.items():
        array = np.asarray(value)
        if value is None or isinstance(value, list) or array.dtype.name not in numbers:
            raise InputError(f"{name}: TNN's tensor file holds {', '.join(numbers)}", "subcut export --dtype float32")
        if not name or len(name.split()) > 1 or name != name.strip():
            raise InputError(f"'{name}': TNN's tensor file holds no names with blanks")
        dims = "".join(f" {d}" for d in array.shape)
        text.append(f"{name} {array.ndim}{dims} {numbers[array.dtype.name]}\n")
        text.append(_text.lines(array, "%0.6f" if array.dtype.kind == "f" else "%d"))
    (folder / "tensors.txt").write_text("".join(text), encoding="utf-8")
