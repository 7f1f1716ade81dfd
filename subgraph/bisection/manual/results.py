"""Outputs that came back from a device -> tensors in the model's type and layout; files that do not
fit are errors.

Each output comes as its task says: NAME.npy, or NAME.bin without a header, in the form that was
handed out.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from subgraph.bisection.manual.tasks import BY_HAND, files_of
from subgraph.cases import case
from subgraph.cases.layout import FROM_DEVICE
from subgraph.errors import InputError
from subgraph.runtime.run_result import RunResult
from subgraph.storage import dtypes, tensors
from subgraph.storage.convert import relayout
from subgraph.storage.tensors import NOT_NUMPY, PACKED, Record, np_dtype, shape_text, tensor_text
from subgraph.text import clean, count

if TYPE_CHECKING:
    from subgraph.types import Array

MAX_NAMED = 4  # outputs in an error message


@dataclass(frozen=True)
class ExpectedFile:
    """One file that is to come back.

    Attributes:
        stem: path below `from_device`, without extension.
        dtype, shape: in the model. raw_dtype, raw_shape, raw_layout: of a .bin.
    """

    stem: str
    dtype: str
    shape: tuple[int, ...]
    raw_dtype: str
    raw_shape: tuple[int, ...]
    raw_layout: str = ""

    @property
    def size(self) -> int:
        """Bytes of a .bin."""
        return (math.prod(self.raw_shape) * dtypes.bits_of(self.raw_dtype) + 7) // 8

    def find(self, folder: Path) -> Path | None:
        """The file, if it came.

        Raises:
            InputError: it came twice.
        """
        files = [
            p for p in (folder / f"{self.stem}.npy", folder / f"{self.stem}.bin") if p.is_file()
        ]
        if len(files) > 1:
            raise InputError(
                f"{folder / self.stem} came as .npy and as .bin",
                "remove the one that is wrong",
                code="manual.ambiguous-output",
            )
        return files[0] if files else None

    def __str__(self) -> str:
        if self.dtype == "string":
            return f"{self.stem}.npy"
        layout = f" {self.raw_layout}" if self.raw_layout and len(self.raw_shape) > 3 else ""
        return (
            f"{self.stem}.bin ({self.raw_dtype} {shape_text(self.raw_shape)}{layout}, {self.size}"
            " bytes) or .npy"
        )


@dataclass(frozen=True)
class ExpectedOutput:
    """An output of one sample; `sample`: its position in the task's cut. `files`: one, or one per
    element of a sequence."""

    name: str
    sample: int
    form: str
    files: list[ExpectedFile]


def expected_outputs(manifest: Mapping[str, Any]) -> list[ExpectedOutput]:
    """The outputs that a task's manifest asks for.

    Raises:
        InputError: the manifest is damaged.
    """
    try:
        return [
            ExpectedOutput(
                str(tensor["name"]), k, str(stored["form"]), list(_expected_files(stored))
            )
            for tensor in manifest["outputs"]
            for k, stored in enumerate(tensor["samples"])
        ]
    except (KeyError, TypeError, ValueError, IndexError) as e:
        raise InputError(
            f"a manifest is damaged: {type(e).__name__} {e}",
            "subcut manual next writes it anew",
            code="manual.damaged",
        ) from e


def _expected_files(stored: Mapping[str, Any]) -> Iterator[ExpectedFile]:
    raw_files = files_of(stored, "bin")
    for k, file in enumerate(files_of(stored, "npy")):
        raw = raw_files[k] if raw_files else file
        shape, raw_shape = (tuple(map(int, f["shape"])) for f in (file, raw))
        _ = [dtypes.bits_of(f["dtype"]) for f in (file, raw)]  # each is a type of ONNX's
        stem = Path(*Path(file["file"]).with_suffix("").parts[1:]).as_posix()
        yield ExpectedFile(stem, str(file["dtype"]), shape, raw["dtype"], raw_shape, raw["layout"])


def source_folders(
    cuts: Sequence[Path], number: int, source: Path | None, only: bool
) -> list[Path]:
    """The folder of the outputs of each cut of a task: in `source`, or `from_device`.

    `only`: `source` holds this task alone, so that its files may lie in it directly.

    Raises:
        InputError: there is no such folder.
    """
    if source is None:
        return [place / FROM_DEVICE for place in cuts]
    if not source.is_dir():
        raise InputError(
            f"no folder {clean(str(source))}",
            "name the folder that holds the outputs",
            code="folder.not-found",
        )
    if only and len(cuts) == 1 and not (source / str(number)).is_dir():
        return [source]
    own = [source / place.name for place in cuts]
    return [place / FROM_DEVICE if (place / FROM_DEVICE).is_dir() else place for place in own]


def no_outputs(cuts: Sequence[Path], sources: Sequence[Path]) -> InputError:
    """The error if no output of a task came."""
    expected = _all_files(cuts[0])
    more = f" and {len(expected) - 1} more" if len(expected) > 1 else ""
    return InputError(
        f"no outputs in {clean(str(sources[0]))}",
        clean(f"expected: {expected[0]}{more}"),
        code="manual.no-outputs",
    )


def are_complete(cuts: Sequence[Path], sources: Sequence[Path]) -> bool:
    """Did all outputs of a task come? False if none did: nobody has run it yet.

    Raises:
        InputError: some are missing.
    """
    files = [
        (folder, file)
        for cut, folder in zip(cuts, sources, strict=True)
        for file in _all_files(cut)
    ]
    missing = [(folder, file) for folder, file in files if file.find(folder) is None]
    if len(missing) == len(files):
        return False
    if missing:
        folder = missing[0][0]
        names = ", ".join(str(file) for _, file in missing[:MAX_NAMED])
        more = f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
        inside = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
        ellipsis = " …" if len(inside) > MAX_NAMED else ""
        there = f"; there is {', '.join(inside[:MAX_NAMED])}{ellipsis}" if inside else ""
        what = f"{len(missing)} of {count(len(files), 'output')} missing in {clean(str(folder))}"
        raise InputError(what, clean(f"{names}{more}{there}"), code="manual.missing-outputs")
    return True


def _all_files(cut: Path) -> list[ExpectedFile]:
    manifest = case.read_manifest(cut)
    if manifest is None:
        raise InputError(
            f"{cut / case.MANIFEST} is damaged or gone",
            "subcut manual next writes it anew",
            code="manual.damaged",
        )
    files = [file for output in expected_outputs(manifest) for file in output.files]
    if not files:
        raise InputError(
            f"{cut / case.MANIFEST} names no file of an output",
            "subcut manual next writes it anew",
            code="manual.damaged",
        )
    return files


def read(cuts: Sequence[Path], sources: Sequence[Path], room: Path) -> RunResult:
    """The outputs of a task that are all there, with their files in `room`, in the model's type and
    layout.

    Raises:
        InputError: a file has another type, shape or size.
    """
    samples: dict[int, dict[str, Record]] = {}
    for cut, folder in zip(cuts, sources, strict=True):
        manifest = case.read_manifest(cut)
        assert manifest
        for output in expected_outputs(manifest):
            k = manifest[BY_HAND]["samples"][output.sample]
            records = samples.setdefault(k, {})
            records[output.name] = _save(output, folder, room, f"s{k}-o{len(records)}")
    return RunResult(tuple(samples[k] for k in sorted(samples)), ((),) * len(samples))


def _save(output: ExpectedOutput, folder: Path, room: Path, stem: str) -> Record:
    if not output.files:
        return Record(output.name, output.form, "float32", (), ())
    arrays = [_read(file, folder) for file in output.files]
    dtype = output.files[0].dtype
    text = tensor_text(dtype)
    if "sequence" in output.form:
        record = tensors.save(output.name, arrays, f"seq({text})", room, stem)
    else:
        record = tensors.save(output.name, arrays[0], text, room, stem)
    return Record(output.name, output.form, record.dtype, record.shapes, record.files)


def _read(file: ExpectedFile, folder: Path) -> Array:
    path = file.find(folder)
    assert path
    array = _from_npy(path, file) if path.suffix == ".npy" else _from_bin(path, file)
    if array.shape != file.shape and array.size == 1 == math.prod(file.shape):
        array = array.reshape(file.shape)
    if array.shape != file.shape:
        what = f"{path} has the shape {shape_text(array.shape)}, not {shape_text(file.shape)}"
        raise InputError(what, f"expected: {file}; or say `bad`", code="manual.wrong-shape")
    return _cast(array, file.dtype, path)


def _from_bin(path: Path, file: ExpectedFile) -> Array:
    if file.dtype == "string":
        raise InputError(
            f"{path}: string tensors have no .bin form",
            "save them as .npy",
            code="tensor.no-raw-form",
        )
    dtype = file.raw_dtype
    size = path.stat().st_size
    if size != file.size:
        what = (
            f"{path} has {count(size, 'byte')}, not {file.size}: {dtype}"
            f" {shape_text(file.raw_shape)}"
        )
        raise InputError(
            what,
            "a .bin has no header; .npy files say their type and shape themselves",
            code="tensor.wrong-size",
        )
    raw = np.fromfile(path, np.uint8)
    elements = math.prod(file.raw_shape)
    flat = tensors.unpack(raw, dtype, elements) if dtype in PACKED else raw.view(np_dtype(dtype))
    return _to_model_layout(flat.reshape(file.raw_shape), file)


def _from_npy(path: Path, file: ExpectedFile) -> Array:
    array = tensors.read_npy(path)
    for dtype in (file.dtype, file.raw_dtype):
        if dtype in NOT_NUMPY and tensors.are_bits(array.dtype, np_dtype(dtype)):
            array = tensors.from_bits(array, dtype)
            break
    return array if array.shape == file.shape else _to_model_layout(array, file)


def _to_model_layout(array: Array, file: ExpectedFile) -> Array:
    """From the device's layout to the model's, if the array has the device's shape."""
    turned = array.shape == file.raw_shape and file.raw_layout == "NHWC"
    axes = relayout(file.raw_shape, file.raw_layout, "NCHW") if turned else None
    return np.ascontiguousarray(array.transpose(axes)) if axes else array


def _cast(array: Array, dtype: str, path: Path) -> Array:
    """In the model's element type: floats are rounded, other types must not lose anything.

    Raises:
        InputError: something would be lost.
    """
    want = np_dtype(dtype)
    if array.dtype == want or dtype == "string":
        return array.astype(want)
    floats = "float" in array.dtype.name and "float" in dtype
    integers = array.dtype.kind in "iub" and want.kind in "iub"
    with np.errstate(all="ignore"), contextlib.suppress(TypeError, ValueError):
        cast = array.astype(want)
        if floats or (integers and np.array_equal(cast.astype(array.dtype), array)):
            return cast
    raise InputError(
        f"{path} holds {array.dtype.name}, not {dtype}",
        "convert it to what the device's numbers mean",
        code="manual.wrong-type",
    )
