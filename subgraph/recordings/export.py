"""The tensors of a case, of a dump (subcut's or another tool's) or of a folder -> a folder in the device's form."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from subgraph import system
from subgraph.cases import case
from subgraph.cases.case import Case, ResultPlace
from subgraph.documents import absent
from subgraph.errors import InputError
from subgraph.recordings import recording
from subgraph.recordings.dumps import DumpEntry, DumpHints
from subgraph.storage import dtypes, folders
from subgraph.storage.convert import TensorFormat, convert, raw_bytes
from subgraph.storage.tensors import PACKED, Record, load, np_dtype, to_bits, unpack
from subgraph.types import Array

SCHEMA = "subcut.export/1"
KINDS = "name a case, a dump, a folder of .npy files, or one .npy file without Python objects"


@dataclass(frozen=True)
class ExportRequest:
    """All options that the result depends on."""

    source: str
    formats: Sequence[str]
    dtype: str
    layout: str
    dump_format: str | None = absent()


@dataclass(frozen=True)
class ExportedFile:
    """One file of the result. `layout`: "" if the array has none; `loss`: what the conversion lost, in words."""

    name: str
    file: str
    format: str
    dtype: str
    shape: Sequence[int]
    layout: str
    loss: str


@dataclass(frozen=True)
class ExportManifest:
    """The manifest of the result."""

    schema: str
    source: Mapping[str, str]
    command: str
    request: ExportRequest
    exported: Sequence[ExportedFile]
    left_out: Sequence[str]


def export(
    source: Path,
    place: ResultPlace,
    formats: Sequence[str],
    form: TensorFormat,
    dump_format: str = "",
    hints: DumpHints | None = None,
) -> Case:
    """Write every tensor of `source` in another form below `place`, at the same relative paths.

    Args:
        dump_format: of `source`, if another tool wrote it; detected if "".
        hints: types and shapes for files that do not store them.

    Raises:
        InputError: `source` holds no tensors. UnknownName: no such dump format.
        ResultExists: another result stands in the way.
    """
    if not os.path.exists(source):  # noqa: PTH110 - a name that is too long is not a folder either
        raise InputError(f"no folder {source}", KINDS)
    request = ExportRequest(str(source), formats, form.dtype, form.layout, dump_format or None)
    place = case.free_place(place, {"folder": str(source)}, [source])
    format = dump_format or _tool_format(source)
    if format:
        entries, left_out = _recorded(source, format, hints, place.path)
    else:
        entries, left_out = _stored(source, place.path.resolve())
    words = ["subcut", "export", str(source), "--format", ",".join(formats)]
    for option, value in (("--dtype", form.dtype), ("--layout", form.layout), ("--dump-format", dump_format)):
        words += [option, value] if value else []
    with folders.aside(place.path) as work:
        exported = [file for entry in entries for file in _export(entry, work, formats, form, left_out)]
        command = system.join(words)
        manifest = ExportManifest(SCHEMA, {"folder": str(source)}, command, request, exported, left_out)
        return Case(place.path, case.write_manifest(manifest, work))


def _tool_format(source: Path) -> str:
    """The format of another tool's dump; "" for subcut's results, plain .npy files, and unknown files.

    Raises InputError: it may be several.
    """
    if (source.is_dir() and case.read_manifest(source) is not None) or source.suffix == ".npy":
        return ""
    formats = recording.detect(source)
    if not formats or formats == ["npy"]:
        return ""
    return formats[0] if len(formats) == 1 else recording.open(source).format


def _recorded(source: Path, format: str, hints: DumpHints | None, place: Path) -> tuple[list[DumpEntry], list[str]]:
    """(entries of another tool's dump, what cannot be exported and why), without an earlier export at `place`."""
    recorded = recording.open(source, format, hints)
    entries = [e for e in recorded if place.resolve() not in (recorded.folder / e.file).resolve().parents]
    readable = [replace(e, load=e.read, layout="NCHW") for e in entries if not e.missing]
    return readable, [f"{e.target}: {e.missing}" for e in entries if e.missing]


def _stored(source: Path, place: Path) -> tuple[list[DumpEntry], list[str]]:
    """The same of a result of subcut's, or of plain .npy files."""
    if source.is_file():
        return [_plain(source, source.parent)], []
    manifest = case.read_manifest(source)
    if manifest is not None:
        return _listed(source, manifest), []
    files = sorted(
        p
        for p in source.rglob("*")
        if p.suffix in (".npy", ".bin") and p.is_file() and place not in p.resolve().parents
    )
    files = [p for p in files if not any(part.startswith(".") for part in p.relative_to(source).parts)]
    typed = [p for p in files if p.suffix == ".npy"]
    if not typed:
        raise InputError(f"no tensors in {source}", KINDS)
    stems = {p.with_suffix("") for p in typed}
    untyped = [p for p in files if p.suffix == ".bin" and p.with_suffix("") not in stems]
    left_out = [f"{p.relative_to(source)}: a .bin without a manifest has no type" for p in untyped]
    return [_plain(p, source) for p in typed], left_out


def _listed(source: Path, manifest: dict[str, Any]) -> list[DumpEntry]:
    """The entries of the files that a manifest lists.

    Raises InputError: there are none; the manifest is damaged, or names files outside its folder.
    """
    try:
        items = list(_items(source, manifest))
    except (KeyError, TypeError, AttributeError) as e:
        raise InputError(f"{source / case.MANIFEST} is damaged: {type(e).__name__} {e}", "make the result anew") from e
    if not items:
        raise InputError(f"{source} holds no tensors: it was cut without a capture", "cut again without --no-capture")
    for _, entry in items:
        if folders.leads_out(entry.file) or entry.dtype not in dtypes.TYPE_NUMBERS:
            raise InputError(f"{source / case.MANIFEST} is damaged: {entry.file} of type {entry.dtype}")
    # Of a tensor in several formats only the .npy, the last by name, is exported.
    best = {entry.target: entry for _, entry in sorted(items, key=lambda item: item[0])}
    return [entry for _, entry in items if best[entry.target] is entry]


def _items(folder: Path, manifest: dict[str, Any]) -> Iterator[tuple[str, DumpEntry]]:
    """(format, entry) of the files that the manifest of a case, a dump or an export lists."""
    for tensor in (t for role in ("inputs", "outputs", "dump_data", "tensors") for t in manifest.get(role, ())):
        for f in (f for stored in tensor["samples"] for f in stored["files"] if f["format"] == "npy"):
            yield "npy", _entry(folder, tensor["name"], f["file"], "npy", f["dtype"], tuple(f["shape"]), "NCHW")
    for f in manifest.get("exported", ()):
        dtype, shape, layout = f["dtype"], tuple(f["shape"]), f["layout"] or "NCHW"
        yield f["format"], _entry(folder, f["name"], f["file"], f["format"], dtype, shape, layout)


def _entry(
    folder: Path, name: str, file: str, format: str, dtype: str, shape: tuple[int, ...], layout: str
) -> DumpEntry:
    record = Record(name, "tensor", dtype, (shape,), (file,))
    return DumpEntry(file, partial(_load, folder, record, format), dtype, shape, layout, tensor=name)


def _load(folder: Path, record: Record, format: str) -> Array:
    """The array of a listed file; InputError if the file is missing, damaged or of another size."""
    path, dtype, shape = folder / record.files[0], record.dtype, record.shapes[0]
    if not path.is_file():
        raise InputError(f"no file {path}", "it is listed in the manifest beside it")
    if format == "npy":
        return np.asarray(load(record, folder))
    try:
        raw = np.fromfile(path, np.uint8)
        flat = unpack(raw, dtype, math.prod(shape)) if dtype in PACKED else raw.view(np_dtype(dtype))
        return flat.reshape(shape)
    except (OSError, ValueError) as e:
        raise InputError(f"cannot read {path} as {dtype} {list(shape)}: {e}") from e


def _plain(path: Path, base: Path) -> DumpEntry:
    """A .npy that no manifest lists; its header says type and shape, its layout is unknown."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, EOFError) as e:
        raise InputError(f"cannot read {path}: {e}", KINDS) from e
    dtype = "string" if array.dtype.kind == "U" else str(array.dtype)
    if dtype not in dtypes.TYPE_NUMBERS:
        raise InputError(f"{path}: values of type {dtype} cannot be exported")
    return _entry(base, path.stem, path.relative_to(base).as_posix(), "npy", dtype, tuple(array.shape), "")


def _export(
    entry: DumpEntry, work: Path, formats: Sequence[str], form: TensorFormat, left_out: list[str]
) -> Iterator[ExportedFile]:
    """Write one tensor in each format. Arrays of unknown layout are taken to have the opposite of the wanted one."""
    if entry.dtype == "string":
        left_out.append(f"{entry.name}: texts have no other form")
        return
    opposite = {"NHWC": "NCHW", "NCHW": "NHWC"}.get(form.layout, "NCHW")
    array, loss, layout = convert(entry.load(), form, entry.layout or opposite)
    dtype = form.dtype or entry.dtype
    layout = layout if array.ndim in (4, 5) and (form.layout or entry.layout == "NHWC") else ""
    for format in formats:
        file = f"{entry.target}.{format}"
        (work / file).parent.mkdir(parents=True, exist_ok=True)
        if format == "npy":
            np.save(work / file, to_bits(array, dtype), allow_pickle=False)
        else:
            (work / file).write_bytes(raw_bytes(array, dtype))
        yield ExportedFile(entry.name, file, format, dtype, array.shape, layout, loss.text if loss else "")
