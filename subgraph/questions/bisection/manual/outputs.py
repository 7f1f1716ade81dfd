"""Outputs that came back from a device -> tensors in the model's type and layout; files that do not
fit are errors.

Each output comes as its task says: NAME.npy, or NAME.bin without a header, in the form that was
handed out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from subgraph.cases import case
from subgraph.cases.layout import FROM_DEVICE
from subgraph.errors import InputError
from subgraph.iterables import flatten, ungroup
from subgraph.questions.bisection.manual.tasks import TaskManifest, list_files_of_kind, read_task
from subgraph.runtime.run_result import RunResult
from subgraph.storage import dtypes, tensors
from subgraph.storage.convert import StoredFile, find_axes
from subgraph.storage.tensors import (
    NOT_NUMPY,
    PACKED,
    Record,
    find_dtype,
    format_shape,
    format_tensor_type,
)
from subgraph.text import clean, count, list_some
from subgraph.types import Array, frozen

WRITE_AGAIN = "subcut manual next writes it again"


@frozen
class ExpectedFile:
    """One file that is to come back.

    Attributes:
        own: the .npy of the reference's value, in the model's type and layout.
        handed: the form of a .bin.
    """

    own: StoredFile
    handed: StoredFile

    @property
    def stem(self) -> str:
        """The path below `from_device`, without extension."""
        return Path(*Path(self.own.file).with_suffix("").parts[1:]).as_posix()

    @property
    def size(self) -> int:
        """Bytes of a .bin."""
        return (math.prod(self.handed.shape) * dtypes.count_bits(self.handed.dtype) + 7) // 8

    def find(self, folder: Path) -> Path | None:
        """Find the file, if it came.

        Raises:
            InputError: it came twice.
        """
        paths = (folder / f"{self.stem}.npy", folder / f"{self.stem}.bin")
        files = [path for path in paths if path.is_file()]
        if len(files) > 1:
            raise InputError(
                f"{folder / self.stem} came as .npy and as .bin",
                "remove the one that is wrong",
                code="manual.ambiguous-output",
            )
        return files[0] if files else None

    def __str__(self) -> str:
        if self.own.dtype == "string":
            return f"{self.stem}.npy"
        shape = self.handed.shape
        layout = f" {self.handed.layout}" if self.handed.layout and len(shape) > 3 else ""
        return (
            f"{self.stem}.bin ({self.handed.dtype} {format_shape(shape)}{layout}, {self.size}"
            " bytes) or .npy"
        )


@frozen
class ExpectedOutput:
    """An output of one sample.

    Attributes:
        name: the tensor.
        sample: the position of the sample in the task's cut.
        form: tensor, sequence or optional.
        files: one file, or one per element of a sequence.
    """

    name: str
    sample: int
    form: str
    files: list[ExpectedFile]


def list_expected_outputs(manifest: TaskManifest) -> list[ExpectedOutput]:
    """Return the outputs that a task's manifest requests.

    Raises:
        InputError: the manifest is damaged.
    """
    outputs = []
    for tensor in manifest.outputs:
        for k, stored in enumerate(tensor.samples):
            own = list_files_of_kind(stored, "npy")
            pairs = zip(own, list_files_of_kind(stored, "bin") or own, strict=False)
            files = [ExpectedFile(*pair) for pair in pairs]
            for file in (*own, *stored.files):
                if file.dtype not in dtypes.TYPE_NUMBERS:
                    raise InputError(
                        f"a manifest is damaged: unknown type {file.dtype}",
                        WRITE_AGAIN,
                        code="manual.damaged",
                    )
            outputs.append(ExpectedOutput(tensor.name, k, stored.form, files))
    return outputs


@frozen
class TaskFolders:
    """The folders of one task, and those in which its outputs are.

    Attributes:
        cuts: the folders of the task, one per cut.
        sources: the folder of the outputs of each cut.
    """

    cuts: Sequence[Path]
    sources: Sequence[Path]

    @classmethod
    def find(
        cls, cuts: Sequence[Path], number: int, source: Path | None, *, is_only: bool
    ) -> TaskFolders:
        """Find the outputs in `source`, or in `from_device`.

        Args:
            cuts: the folders of the task.
            number: the number of the task.
            source: the folder that the user named; None for the `from_device` of each cut.
            is_only: whether `source` is for this task alone, so that it may hold its files
                directly.

        Raises:
            InputError: the folder does not exist.
        """
        if source is None:
            return cls(cuts, [place / FROM_DEVICE for place in cuts])
        if not source.is_dir():
            raise InputError(
                f"no folder {source}",
                "name the folder that holds the outputs",
                code="folder.not-found",
            )
        if is_only and len(cuts) == 1 and not (source / str(number)).is_dir():
            return cls(cuts, [source])
        own = [source / place.name for place in cuts]
        inner = [place / FROM_DEVICE for place in own]
        return cls(cuts, [i if i.is_dir() else o for i, o in zip(inner, own, strict=True)])

    def are_complete(self) -> bool:
        """Return whether all outputs came; False if none did, because nobody has run the task yet.

        Raises:
            InputError: some are missing.
        """
        files = list(ungroup(zip(self.sources, map(_list_files, self.cuts), strict=True)))
        missing = [(folder, file) for folder, file in files if file.find(folder) is None]
        if len(missing) == len(files):
            return False
        if missing:
            folder = clean(str(missing[0][0]))
            expected = list_some([str(file) for _, file in missing], 1)
            raise InputError(
                f"{len(missing)} of {count(files, 'output')} missing in {folder}",
                clean(f"expected: {expected}"),
                code="manual.missing-outputs",
            )
        return True

    def no_outputs(self) -> InputError:
        """Return the error if no output of the task came."""
        expected = list_some(list(map(str, _list_files(self.cuts[0]))), 1)
        return InputError(
            f"no outputs in {clean(str(self.sources[0]))}",
            clean(f"expected: {expected}"),
            code="manual.no-outputs",
        )

    def read(self, room: Path) -> RunResult:
        """Read the outputs, which have all come; write them into `room`, in the model's type and
        layout.

        Raises:
            InputError: a file has another type, shape or size.
        """
        samples: dict[int, dict[str, Record]] = {}
        for cut, folder in zip(self.cuts, self.sources, strict=True):
            manifest = _read_manifest(cut)
            numbers = manifest.by_hand.samples if manifest.by_hand else ()
            for output in list_expected_outputs(manifest):
                k = numbers[output.sample]
                records = samples.setdefault(k, {})
                records[output.name] = _save(output, folder, room, f"s{k}-o{len(records)}")
        return RunResult(tuple(samples[k] for k in sorted(samples)), ((),) * len(samples))


def _read_manifest(cut: Path) -> TaskManifest:
    manifest = read_task(cut)
    if manifest is None:
        raise InputError(
            f"{cut / case.MANIFEST} is damaged or gone", WRITE_AGAIN, code="manual.damaged"
        )
    return manifest


def _list_files(cut: Path) -> list[ExpectedFile]:
    files = list(flatten(output.files for output in list_expected_outputs(_read_manifest(cut))))
    if not files:
        raise InputError(
            f"{cut / case.MANIFEST} names no file of an output", WRITE_AGAIN, code="manual.damaged"
        )
    return files


# ------------------------------------------------------------ one file


def _save(output: ExpectedOutput, folder: Path, room: Path, stem: str) -> Record:
    if not output.files:
        return Record(output.name, output.form, "float32", (), ())
    arrays = [_read(file, folder) for file in output.files]
    text = format_tensor_type(output.files[0].own.dtype)
    if "sequence" in output.form:
        record = tensors.save(output.name, arrays, f"seq({text})", room, stem)
    else:
        record = tensors.save(output.name, arrays[0], text, room, stem)
    return replace(record, form=output.form)


def _read(file: ExpectedFile, folder: Path) -> Array:
    path = file.find(folder)
    assert path
    shape = file.own.shape
    array = _read_npy(path, file) if path.suffix == ".npy" else _read_bin(path, file)
    if array.shape != shape and array.size == 1 == math.prod(shape):
        array = array.reshape(shape)
    if array.shape != shape:
        raise InputError(
            f"{path} has the shape {format_shape(array.shape)}, not {format_shape(shape)}",
            f"expected: {file}; or answer `bad`",
            code="manual.wrong-shape",
        )
    own_dtype = file.own.dtype
    wanted = find_dtype(own_dtype)
    if array.dtype == wanted or own_dtype == "string":
        return array.astype(wanted)
    are_floats = "float" in array.dtype.name and "float" in own_dtype
    are_integers = array.dtype.kind in "iub" and wanted.kind in "iub"
    if are_floats or are_integers:
        with np.errstate(all="ignore"):
            cast = array.astype(wanted)
        if are_floats or np.array_equal(cast.astype(array.dtype), array):
            return cast
    raise InputError(
        f"{path} holds {array.dtype.name}, not {own_dtype}",
        "convert it to the values that the device's numbers represent",
        code="manual.wrong-type",
    )


def _read_bin(path: Path, file: ExpectedFile) -> Array:

    if file.own.dtype == "string":
        raise InputError(
            f"{path}: string tensors have no .bin form",
            "save them as .npy",
            code="tensor.no-raw-form",
        )
    dtype = file.handed.dtype
    shape = file.handed.shape
    size = path.stat().st_size
    if size != file.size:
        raise InputError(
            f"{path} has {count(size, 'byte')}, not {file.size}: {dtype} {format_shape(shape)}",
            "a .bin has no header; .npy files contain their type and shape",
            code="tensor.wrong-size",
        )
    raw = np.fromfile(path, np.uint8)
    is_packed = dtype in PACKED
    if is_packed:
        flat = tensors.unpack(raw, dtype, math.prod(shape))
    else:
        flat = raw.view(find_dtype(dtype))
    return _convert_layout(flat.reshape(shape), file)


def _read_npy(path: Path, file: ExpectedFile) -> Array:
    array = tensors.read_npy(path)
    for dtype in (file.own.dtype, file.handed.dtype):
        if dtype in NOT_NUMPY and tensors.are_bits(array.dtype, find_dtype(dtype)):
            array = tensors.from_bits(array, dtype)
            break
    if array.shape == file.own.shape:
        return array
    return _convert_layout(array, file)


def _convert_layout(array: Array, file: ExpectedFile) -> Array:
    """Transpose from the device's layout to the model's, if the array has the device's shape."""
    handed = file.handed
    is_turned = array.shape == handed.shape and handed.layout == "NHWC"
    axes = find_axes(handed.shape, handed.layout, "NCHW") if is_turned else None
    if axes:
        return np.ascontiguousarray(array.transpose(axes))
    return array
