"""The tensors of a case, of a dump (ours or another tool's) or a folder -> a folder in the device's form, and back."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph.cases import case
from subgraph.cases.case import Case, ResultPlace
from subgraph.errors import InputError
from subgraph.recordings import recording
from subgraph.recordings.dumps import DumpEntry, DumpHints
from subgraph.storage import dtypes, folders
from subgraph.storage.convert import TensorFormat, convert, raw_bytes
from subgraph.storage.tensors import PACKED, Record, load, np_dtype, to_bits, unpack

if TYPE_CHECKING:
    from subgraph.types import Array

SCHEMA = "subcut.export/1"
KINDS = "name a case, a dump, a folder of .npy files, or one .npy file without Python objects"


@dataclass(frozen=True)
class StoredArray:
    """One stored array: which tensor, which file, and how it is to be read; `entry` where another tool recorded it."""

    name: str
    file: str
    format: str
    dtype: str
    shape: tuple[int, ...]
    layout: str
    entry: DumpEntry | None = None

    @property
    def target(self) -> str:
        """What its file is called elsewhere, without the end."""
        return self.entry.target if self.entry else Path(self.file).with_suffix("").as_posix()

    def read(self, folder: Path) -> Array:
        """The array in its true type.

        Raises:
            InputError: the file is missing, damaged or of another size.
        """
        import numpy as np

        if self.entry:
            return self.entry.read()
        if not (folder / self.file).is_file():
            raise InputError(f"no file {folder / self.file}", "it is listed in the manifest beside it")
        if self.format == "npy":
            return np.asarray(load(Record(self.name, "tensor", self.dtype, (self.shape,), (self.file,)), folder))
        try:
            raw = np.fromfile(folder / self.file, np.uint8)
            count = int(np.prod(self.shape, dtype=np.int64))
            flat = unpack(raw, self.dtype, count) if self.dtype in PACKED else raw.view(np_dtype(self.dtype))
            return flat.reshape(self.shape)
        except (OSError, ValueError) as e:
            raise InputError(f"cannot read {folder / self.file} as {self.dtype} {list(self.shape)}: {e}") from e


def export(
    source: Path,
    place: ResultPlace,
    formats: Sequence[str],
    form: TensorFormat,
    dump_format: str = "",
    known: DumpHints | None = None,
) -> Case:
    """Write every tensor of `source` in another form below `place`, at the same relative paths.

    Args:
        dump_format: which tool recorded `source`; found out where it is "".
        known: types and shapes of files that say nothing of themselves.

    Raises:
        InputError: `source` holds no tensors. UnknownName: no such dump format.
        ResultExists: another result stands in the way.
    """
    if not os.path.exists(source):  # noqa: PTH110 - a name that is too long is no folder either
        raise InputError(f"no folder {source}", KINDS)
    request = {"source": str(source), "formats": list(formats), "dtype": form.dtype, "layout": form.layout}
    request |= {"dump_format": dump_format} if dump_format else {}
    case.require_free(place, request, None, [source])
    word = dump_format or _foreign(source)
    base, items, left_out = _recorded(source, word, known, place.path) if word else _items(source, place.path.resolve())
    with folders.aside(place.path) as work:
        exported = [entry for item in items for entry in _export_one(item, base, work, formats, form, left_out)]
        words = ["subcut", "export", str(source), "--format", ",".join(formats)]
        words += ["--dtype", form.dtype] if form.dtype else []
        words += ["--layout", form.layout] if form.layout else []
        words += ["--dump-format", dump_format] if dump_format else []
        manifest: dict[str, Any] = {
            "schema": SCHEMA,
            "source": {"folder": str(source)},
            "command": shlex.join(words),
            "request": request,
            "exported": exported,
            "left_out": left_out,
        }
        written = case.write_manifest(manifest, work)
    return Case(place.path, written)


def _foreign(source: Path) -> str:
    """The word for the format of another tool's dump; "" for what is ours, plain .npy files, or nothing known.

    Raises:
        InputError: it may be several.
    """
    if (source.is_dir() and case.read_manifest(source) is not None) or source.suffix == ".npy":
        return ""
    found = recording.detect(source)
    if not found or found == ["npy"]:
        return ""
    return found[0] if len(found) == 1 else recording.open(source).format


def _recorded(
    source: Path, word: str, known: DumpHints | None, place: Path
) -> tuple[Path, list[StoredArray], list[str]]:
    """The same as `_items` of another tool's dump."""
    found = recording.open(source, word, known)
    entries = [e for e in found if place.resolve() not in (found.folder / e.file).resolve().parents]
    left_out = [f"{e.target}: {e.lacks}" for e in entries if e.lacks]
    items = [StoredArray(e.name, e.file, word, e.dtype, e.shape or (), "NCHW", e) for e in entries if not e.lacks]
    return found.folder, items, left_out


def _items(source: Path, place: Path) -> tuple[Path, list[StoredArray], list[str]]:
    """(folder, what is in it, what cannot be exported and why). What an earlier export left at `place` is no source."""
    if source.is_file():
        return source.parent, [_bare(source, source.parent)], []
    manifest = case.read_manifest(source)
    if manifest is not None:
        return source, _listed(source, manifest), []
    found = sorted(
        p
        for p in source.rglob("*")
        if p.suffix in (".npy", ".bin") and p.is_file() and place not in p.resolve().parents
    )
    found = [p for p in found if not any(part.startswith(".") for part in p.relative_to(source).parts)]
    files = [p for p in found if p.suffix == ".npy"]
    if not files:
        raise InputError(f"no tensors in {source}", KINDS)
    beside = {p.with_suffix("") for p in files}
    headless = [p for p in found if p.suffix == ".bin" and p.with_suffix("") not in beside]
    left_out = [f"{p.relative_to(source)}: a .bin without a manifest has no type" for p in headless]
    return source, [_bare(p, source) for p in files], left_out


def _listed(source: Path, manifest: dict[str, Any]) -> list[StoredArray]:
    """What the manifest lists.

    Raises:
        InputError: nothing; or it is damaged, or names files outside its folder.
    """
    try:
        items = list(_read(manifest))
    except (KeyError, TypeError, AttributeError) as e:
        raise InputError(f"{source / case.MANIFEST} is damaged: {type(e).__name__} {e}", "make the result anew") from e
    if not items:
        raise InputError(f"{source} holds no tensors: it was cut without a capture", "cut again without --no-capture")
    for item in items:
        if Path(item.file).is_absolute() or ".." in Path(item.file).parts or item.dtype not in dtypes.TYPE_NUMBERS:
            raise InputError(f"{source / case.MANIFEST} is damaged: {item.file} of type {item.dtype}")
    by_stem = {str(Path(item.file).with_suffix("")): item for item in sorted(items, key=lambda i: i.format)}
    return [item for item in items if by_stem[str(Path(item.file).with_suffix(""))] is item]  # one form of each: .npy


def _read(manifest: dict[str, Any]) -> Iterator[StoredArray]:
    for tensor in (t for role in ("inputs", "outputs", "dump_data", "tensors") for t in manifest.get(role, ())):
        for stored in tensor["samples"]:
            for f in stored["files"]:
                if f["format"] == "npy":
                    yield StoredArray(tensor["name"], f["file"], "npy", f["dtype"], tuple(f["shape"]), "NCHW")
    for f in manifest.get("exported", ()):
        yield StoredArray(f["name"], f["file"], f["format"], f["dtype"], tuple(f["shape"]), f["layout"] or "NCHW")


def _bare(path: Path, base: Path) -> StoredArray:
    """A .npy that nobody describes; its own header says what it is."""
    import numpy as np

    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, EOFError) as e:
        raise InputError(f"cannot read {path}: {e}", KINDS) from e
    dtype = "string" if array.dtype.kind == "U" else str(array.dtype)
    if dtype not in dtypes.TYPE_NUMBERS:
        raise InputError(f"{path}: values of type {dtype} cannot be exported")
    return StoredArray(path.stem, path.relative_to(base).as_posix(), "npy", dtype, tuple(array.shape), "")


def _export_one(
    item: StoredArray, base: Path, work: Path, formats: Sequence[str], form: TensorFormat, left_out: list[str]
) -> Iterator[dict[str, Any]]:
    import numpy as np

    if item.dtype == "string":
        left_out.append(f"{item.name}: texts have no other form")
        return
    opposite = {"NHWC": "NCHW", "NCHW": "NHWC"}.get(form.layout, "NCHW")
    array, loss, layout = convert(item.read(base), form, item.layout or opposite)
    dtype = form.dtype or item.dtype
    known = layout if array.ndim in (4, 5) and (form.layout or item.layout == "NHWC") else ""
    for kind in formats:
        target = Path(f"{item.target}.{kind}")
        (work / target).parent.mkdir(parents=True, exist_ok=True)
        if kind == "npy":
            np.save(work / target, to_bits(array, dtype), allow_pickle=False)
        else:
            (work / target).write_bytes(raw_bytes(array, dtype))
        yield {
            "name": item.name,
            "file": target.as_posix(),
            "format": kind,
            "dtype": dtype,
            "shape": list(array.shape),
            "layout": known,
            "loss": loss.text if loss else "",
        }
