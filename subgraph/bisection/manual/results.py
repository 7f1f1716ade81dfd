"""What came back from a device by hand -> tensors in the model's type and layout; what does not fit is told.

Outputs come as `handout` says: NAME.npy, or NAME.bin without a header, in the form that was handed out.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph.bisection.manual.tasks import OURS, files_of
from subgraph.cases import case
from subgraph.cases.layout import FROM_DEVICE
from subgraph.errors import InputError
from subgraph.runtime.run_result import RunResult
from subgraph.storage import dtypes
from subgraph.storage.convert import relayout
from subgraph.storage.tensors import (
    NOT_NUMPY,
    PACKED,
    PROTO_NAMES,
    Record,
    are_bits,
    from_bits,
    np_dtype,
    read_npy,
    shape_text,
    unpack,
)
from subgraph.storage.tensors import save as save_tensor
from subgraph.text import clean, count

if TYPE_CHECKING:
    from subgraph.types import Array

SHOWN = 4  # outputs that an error names


@dataclass(frozen=True)
class ExpectedFile:
    """One file that is to come back.

    Attributes:
        stem: below `from_device`, without an end.
        dtype, shape: as the model has it. raw: dtype, shape and layout of a .bin.
    """

    stem: str
    dtype: str
    shape: tuple[int, ...]
    raw: tuple[str, tuple[int, ...], str]

    @property
    def size(self) -> int:
        """Bytes of a .bin."""
        dtype, shape, _ = self.raw
        return (math.prod(shape) * dtypes.bits_of(dtype) + 7) // 8

    def find(self, folder: Path) -> Path | None:
        """Its file, if it came.

        Raises:
            InputError: twice.
        """
        found = [p for p in (folder / f"{self.stem}.npy", folder / f"{self.stem}.bin") if p.is_file()]
        if len(found) > 1:
            raise InputError(f"{folder / self.stem} came as .npy and as .bin", "remove the one that is wrong")
        return found[0] if found else None

    def __str__(self) -> str:
        dtype, shape, layout = self.raw
        if self.dtype == "string":
            return f"{self.stem}.npy"
        turned = f" {layout}" if layout and len(shape) > 3 else ""
        return f"{self.stem}.bin ({dtype} {shape_text(shape)}{turned}, {self.size} bytes) or .npy"


def wanted(manifest: Mapping[str, Any]) -> list[tuple[str, int, str, list[ExpectedFile]]]:
    """(name, sample's place, form, files) of each output.

    Raises:
        InputError: the manifest is damaged.
    """
    try:
        return [
            (str(tensor["name"]), k, str(stored["form"]), list(_wanted(stored)))
            for tensor in manifest["outputs"]
            for k, stored in enumerate(tensor["samples"])
        ]
    except (KeyError, TypeError, ValueError, IndexError) as e:
        raise InputError(f"a manifest is damaged: {type(e).__name__} {e}", "subcut manual next writes it anew") from e


def _wanted(stored: Mapping[str, Any]) -> Iterator[ExpectedFile]:
    raws = files_of(stored, "bin")
    for k, file in enumerate(files_of(stored, "npy")):
        raw = raws[k] if raws else file
        shape = tuple(map(int, file["shape"]))
        stem = str(Path(*Path(file["file"]).with_suffix("").parts[1:]))
        yield ExpectedFile(
            stem, str(file["dtype"]), shape, (raw["dtype"], tuple(map(int, raw["shape"])), raw["layout"])
        )


def folders_of(cuts: Sequence[Path], number: int, source: Path | None, only: bool) -> list[Path]:
    """Where the outputs of each cut of a question are: in `source`, or where they were wanted.

    `only`: no other question is looked for in `source`, so that its files may lie in it as they are.

    Raises:
        InputError: there is no such folder.
    """
    if source is None:
        return [place / FROM_DEVICE for place in cuts]
    if not source.is_dir():
        raise InputError(f"no folder {clean(str(source))}", "name the folder that holds the outputs")
    if only and len(cuts) == 1 and not (source / str(number)).is_dir():
        return [source]
    own = [source / place.name for place in cuts]
    return [place / FROM_DEVICE if (place / FROM_DEVICE).is_dir() else place for place in own]


def nothing(cuts: Sequence[Path], given: Sequence[Path]) -> tuple[str, str]:
    """What to say where no output came."""
    wanted_ = _of(cuts[0])
    more = f" and {len(wanted_) - 1} more" if len(wanted_) > 1 else ""
    return f"no outputs in {clean(str(given[0]))}", clean(f"expected: {wanted_[0]}{more}")


def came(places_: Sequence[Path], given: Sequence[Path]) -> bool:
    """Did anything come back for a question? Else nobody has run it yet.

    Raises:
        InputError: something did, but not all: says what is missing.
    """
    files = [(folder, w) for p, folder in zip(places_, given, strict=True) for w in _of(p)]
    lacking = [(folder, w) for folder, w in files if w.find(folder) is None]
    if len(lacking) == len(files):
        return False
    if lacking:
        raise InputError(*_missing(lacking, len(files)))
    return True


def _of(place: Path) -> list[ExpectedFile]:
    manifest = case.read_manifest(place)
    if manifest is None:
        raise InputError(f"{place / case.MANIFEST} is damaged or gone", "subcut manual next writes it anew")
    return [w for *_, files in wanted(manifest) for w in files]


def _missing(lacking: Sequence[tuple[Path, ExpectedFile]], of: int) -> tuple[str, str]:
    folder = lacking[0][0]
    names = ", ".join(str(w) for _, w in lacking[:SHOWN])
    more = f" and {len(lacking) - SHOWN} more" if len(lacking) > SHOWN else ""
    inside = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    there = f"; there is {', '.join(inside[:SHOWN])}{' …' if len(inside) > SHOWN else ''}" if inside else ""
    return f"{len(lacking)} of {count(of, 'output')} missing in {clean(str(folder))}", clean(f"{names}{more}{there}")


def read(places_: Sequence[Path], given: Sequence[Path], room: Path) -> RunResult:
    """The outputs that came back, their files in `room`, in the model's type and layout.

    Raises:
        InputError: a file of another type, shape or size; all are there.
    """
    found: dict[int, dict[str, Record]] = {}
    for place, folder in zip(places_, given, strict=True):
        manifest = case.read_manifest(place)
        assert manifest
        for name, k, form, files in wanted(manifest):
            sample = manifest[OURS]["samples"][k]
            arrays = [_read(w, folder) for w in files]
            stem = f"s{sample}-o{len(found.get(sample, ()))}"
            found.setdefault(sample, {})[name] = _save(name, form, files, arrays, room, stem)
    return RunResult(tuple(found[k] for k in sorted(found)), ((),) * len(found))


def _save(name: str, form: str, files: Sequence[ExpectedFile], arrays: list[Array], room: Path, stem: str) -> Record:
    if not files:
        return Record(name, form, "float32", (), ())
    text = f"tensor({PROTO_NAMES.get(files[0].dtype, files[0].dtype)})"
    many = "sequence" in form
    record = save_tensor(name, arrays if many else arrays[0], f"seq({text})" if many else text, room, stem)
    return Record(name, form, record.dtype, record.shapes, record.files)


def _read(w: ExpectedFile, folder: Path) -> Array:
    path = w.find(folder)
    assert path
    array = _from_npy(path, w) if path.suffix == ".npy" else _from_bin(path, w)
    if array.shape != w.shape and array.size == 1 == math.prod(w.shape):
        array = array.reshape(w.shape)
    if array.shape != w.shape:
        have, want = shape_text(array.shape), shape_text(w.shape)
        raise InputError(f"{path} has the shape {have}, not {want}", f"expected: {w}; or say `bad`")
    return _as(array, w.dtype, path)


def _from_bin(path: Path, w: ExpectedFile) -> Array:
    import numpy as np

    dtype, shape, _ = w.raw
    if w.dtype == "string":
        raise InputError(f"{path}: texts have no .bin form", "save them as .npy")
    size = path.stat().st_size
    if size != w.size:
        what = f"{path} has {count(size, 'byte')}, not {w.size}: {dtype} {shape_text(shape)}"
        raise InputError(what, "a .bin has no header; .npy files say their type and shape themselves")
    raw = np.fromfile(path, np.uint8)
    elements = math.prod(shape)
    flat = unpack(raw, dtype, elements) if dtype in PACKED else raw.view(np_dtype(dtype))
    return _plain(flat.reshape(shape), w)


def _from_npy(path: Path, w: ExpectedFile) -> Array:
    array = read_npy(path)
    for dtype in (w.dtype, w.raw[0]):
        if dtype in NOT_NUMPY and are_bits(array.dtype, np_dtype(dtype)):
            array = from_bits(array, dtype)
            break
    return array if array.shape == w.shape else _plain(array, w)


def _plain(array: Array, w: ExpectedFile) -> Array:
    """From the device's layout to the model's, where it has the shape of the former."""
    import numpy as np

    _, shape, layout = w.raw
    axes = relayout(shape, layout, "NCHW") if array.shape == shape and layout == "NHWC" else None
    return np.ascontiguousarray(array.transpose(axes)) if axes else array


def _as(array: Array, dtype: str, path: Path) -> Array:
    """In the model's element type; floats are rounded to it, of others nothing may get lost.

    Raises:
        InputError: something would.
    """
    import numpy as np

    want = np_dtype(dtype)
    if array.dtype == want or dtype == "string":
        return array.astype(want)
    both = "float" in array.dtype.name and "float" in dtype
    with np.errstate(all="ignore"), contextlib.suppress(TypeError, ValueError):
        cast = array.astype(want)
        numbers = array.dtype.kind in "iub" and want.kind in "iub"
        if both or (numbers and np.array_equal(cast.astype(array.dtype), array)):
            return cast
    raise InputError(f"{path} holds {array.dtype.name}, not {dtype}", "convert it to what the device's numbers mean")
