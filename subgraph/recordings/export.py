"""The tensors of a case, of a dump (subcut's or another tool's) or of a folder -> a folder in the
device's form."""

from __future__ import annotations

import fnmatch
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from subgraph.cases import case
from subgraph.cases.case import ModelSource, ResultFolder, ResultPlace, TensorEntry, WrittenManifest
from subgraph.documents import Word, absent, from_json
from subgraph.errors import InputError, UnknownName
from subgraph.graph.graph import Graph
from subgraph.graph.quantization import codes, scales_of
from subgraph.recordings import recording
from subgraph.recordings.dumps import DumpEntry, DumpHints
from subgraph.storage import dtypes, folders
from subgraph.storage.convert import (
    BLOCKED_LAYOUT,
    TensorFormat,
    convert,
    convert_layout,
    encode_raw,
)
from subgraph.storage.scale import Scale
from subgraph.storage.tensors import PACKED, Record, load, np_dtype, to_bits, unpack
from subgraph.text import nearest
from subgraph.types import Array, JsonObject, Shape, StringMap

SCHEMA = "subcut.export/1"
KINDS = "name a case, a dump, a folder of .npy files, or one .npy file without Python objects"


@dataclass(frozen=True)
class Forms:
    """The form of each tensor.

    Attributes:
        rest: of those that no glob in `own` matches; it also fills in what is left open there.
        own: by globs of names; the first that matches holds.
        scales: of real tensors that a model quantizes, with the element type of their codes.
    """

    rest: TensorFormat = field(default_factory=TensorFormat)
    own: Mapping[str, TensorFormat] = field(default_factory=dict)
    scales: Mapping[str, tuple[Scale, str]] = field(default_factory=dict)

    def of(self, name: str, dtype: str) -> TensorFormat:
        """The form of a tensor that has this element type now."""
        own = next(
            (form for glob, form in self.own.items() if fnmatch.fnmatchcase(name, glob)), self.rest
        )
        form = replace(
            own, dtype=own.dtype or self.rest.dtype, layout=own.layout or self.rest.layout
        )
        if form.scale or "float" not in dtype or "int" not in form.dtype or name not in self.scales:
            return form
        scale, stored = self.scales[name]
        wanted = np.iinfo(np_dtype(form.dtype))
        known = np.iinfo(np_dtype(stored))
        if len(scale.step) > 1 or wanted.bits != known.bits:
            return form
        return replace(
            form, scale=Scale(scale.step, (scale.zero[0] + int(wanted.min) - int(known.min),))
        )


def find_scales(graph: Graph) -> dict[str, tuple[Scale, str]]:
    """Real tensor -> scale and element type of its codes, where a model quantizes it or dequantizes
    to it."""
    scales = scales_of(graph)
    specs = recording.find_hints(graph).specs
    known = (
        (real, code) for real, code in codes(graph).items() if code in scales and code in specs
    )
    return {
        real: (scales[code], specs[code].dtype)
        for real, code in known
        if "int" in specs[code].dtype
    }


@dataclass(frozen=True)
class ExportRequest:
    """All options that the result depends on."""

    source: str
    formats: Sequence[str]
    dtype: str
    layout: str
    dump_format: str | None = absent()
    tensors: StringMap | None = absent()


@dataclass(frozen=True)
class ExportedFile:
    """One file of the result.

    Attributes:
        layout: "" if the array has none; original_shape: in NCHW, if the layout is padded.
        loss: what the conversion lost, in words.
        scale, zero_point: of integer codes, real = (code - zero_point) * scale.
    """

    name: str
    file: str
    format: str
    dtype: str
    shape: Sequence[int]
    layout: str
    loss: str
    original_shape: Sequence[int] | None = absent()
    scale: float | None = absent()
    zero_point: int | None = absent()


@dataclass(frozen=True, kw_only=True)
class ExportManifest(WrittenManifest):
    """The manifest of the result."""

    schema: Word = SCHEMA
    exported: Sequence[ExportedFile]
    left_out: Sequence[str]


def export(
    source: Path,
    place: ResultPlace,
    formats: Sequence[str],
    forms: Forms,
    dump_format: str = "",
    hints: DumpHints | None = None,
    command: str = "",
) -> ResultFolder[ExportManifest]:
    """Write every tensor of `source` in another form below `place`, at the same relative paths.

    Args:
        dump_format: of `source`, if another tool wrote it; detected if "".
        hints: types and shapes for files that do not store them.
        command: for the manifest.

    Raises:
        InputError: `source` holds no tensors. UnknownName: no such dump format, or a glob that no
            tensor matches.
        ResultExists: another result stands in the way.
    """
    if not os.path.exists(source):  # noqa: PTH110
        raise InputError(f"no folder {source}", KINDS, code="folder.not-found")
    own = {glob: form.words for glob, form in forms.own.items()}
    rest = forms.rest
    request = ExportRequest(
        str(source), formats, rest.dtype, rest.layout, dump_format or None, own or None
    )
    origin = ModelSource(folder=str(source))
    place = case.free_place(place, origin, [source])
    format = dump_format or _detect_tool_format(source)
    if format:
        entries, left_out = _read_recorded(source, format, hints, place.path)
    else:
        entries, left_out = _read_stored(source, place.path.resolve())
    names = [entry.name for entry in entries]
    for glob in forms.own:
        if not fnmatch.filter(names, glob):
            raise UnknownName(
                f"no tensor '{glob}' in {source}",
                nearest=nearest(glob, names),
                code="tensor.unknown",
            )
    with folders.aside(place.path) as work:
        exported = list(
            chain.from_iterable(_export(entry, work, formats, forms, left_out) for entry in entries)
        )
        manifest = ExportManifest(
            source=origin,
            command=command,
            request=request,
            exported=exported,
            left_out=left_out,
        )
        return ResultFolder(place.path, case.write_manifest(manifest, work))


def _detect_tool_format(source: Path) -> str:
    """The format of another tool's dump; "" for subcut's results, plain .npy files, and unknown
    files.

    Raises InputError: it may be several.
    """
    if (source.is_dir() and case.read_manifest(source) is not None) or source.suffix == ".npy":
        return ""
    formats = recording.detect(source)
    if not formats or formats == ["npy"]:
        return ""
    return formats[0] if len(formats) == 1 else recording.open(source).format


def _read_recorded(
    source: Path, format: str, hints: DumpHints | None, place: Path
) -> tuple[list[DumpEntry], list[str]]:
    """(entries of another tool's dump, what cannot be exported and why), without an earlier export
    at `place`."""
    recorded = recording.open(source, format, hints)
    entries = [
        e for e in recorded if place.resolve() not in (recorded.folder / e.file).resolve().parents
    ]
    readable = [replace(e, load=e.read, layout="NCHW") for e in entries if not e.missing]
    return readable, [f"{e.target}: {e.missing}" for e in entries if e.missing]


def _read_stored(source: Path, place: Path) -> tuple[list[DumpEntry], list[str]]:
    """The same of a result of subcut's, or of plain .npy files."""
    if source.is_file():
        return [_make_plain_entry(source, source.parent)], []
    document = case.read_plain_manifest(source)
    if document is not None:
        return _read_listed(source, document), []
    files = sorted(
        p
        for p in source.rglob("*")
        if p.suffix in (".npy", ".bin") and p.is_file() and place not in p.resolve().parents
    )
    files = [
        p for p in files if not any(part.startswith(".") for part in p.relative_to(source).parts)
    ]
    typed = [p for p in files if p.suffix == ".npy"]
    if not typed:
        raise InputError(f"no tensors in {source}", KINDS, code="export.no-tensors")
    stems = {p.with_suffix("") for p in typed}
    untyped = [p for p in files if p.suffix == ".bin" and p.with_suffix("") not in stems]
    left_out = [f"{p.relative_to(source)}: a .bin without a manifest has no type" for p in untyped]
    return [_make_plain_entry(p, source) for p in typed], left_out


@dataclass(frozen=True, kw_only=True)
class TensorManifest(case.Manifest):
    """A manifest as far as it lists files of tensors: that of a case, a dump or an export."""

    tensors: Sequence[TensorEntry] = ()
    exported: Sequence[ExportedFile] = ()


def _read_listed(source: Path, document: JsonObject) -> list[DumpEntry]:
    """The entries of the files that a manifest lists.

    Raises InputError: there are none; the manifest is damaged, or names files outside its folder.
    """
    where = str(source / case.MANIFEST)
    items = list(
        _iter_items(source, from_json(TensorManifest, document, where, "make the result anew"))
    )
    if not items:
        raise InputError(
            f"{source} holds no tensors: it was cut without a capture",
            "cut again without --no-capture",
            code="case.no-tensors",
        )
    for _, entry in items:
        if folders.is_outside(entry.file) or entry.dtype not in dtypes.TYPE_NUMBERS:
            raise InputError(
                f"{source / case.MANIFEST} is damaged: {entry.file} of type {entry.dtype}",
                code="case.damaged",
            )
    # Of a tensor in several formats only the .npy, the last by name, is exported.
    best = {entry.target: entry for _, entry in sorted(items, key=lambda item: item[0])}
    return [entry for _, entry in items if best[entry.target] is entry]


def _iter_items(folder: Path, manifest: TensorManifest) -> Iterator[tuple[str, DumpEntry]]:
    """(format, entry) of the files that the manifest of a case, a dump or an export lists."""
    own = (*(manifest.inputs or ()), *manifest.outputs, *manifest.dump_data)
    for tensor in (*own, *manifest.tensors):
        files = chain.from_iterable(stored.files for stored in tensor.samples)
        for f in files:
            if f.format == "npy":
                entry = _make_entry(
                    folder, tensor.name, f.file, "npy", f.dtype, tuple(f.shape), "NCHW"
                )
                yield "npy", entry
    for file in manifest.exported:
        layout = file.layout or "NCHW"
        stored = (file.file, file.format, file.dtype, tuple(file.shape), layout)
        entry = _make_entry(folder, file.name, *stored)
        scale = None if file.scale is None else Scale((file.scale,), (file.zero_point or 0,))
        shape = tuple(file.original_shape or ()) or None
        yield file.format, replace(entry, scale=scale, original_shape=shape)


def _make_entry(
    folder: Path, name: str, file: str, format: str, dtype: str, shape: Shape, layout: str
) -> DumpEntry:
    record = Record(name, "tensor", dtype, (shape,), (file,))
    return DumpEntry(
        file, partial(_load, folder, record, format), dtype, shape, layout, tensor=name
    )


def _load(folder: Path, record: Record, format: str) -> Array:
    """The array of a listed file; InputError if the file is missing, damaged or of another size."""
    path = folder / record.files[0]
    dtype = record.dtype
    shape = record.shapes[0]
    if not path.is_file():
        raise InputError(
            f"no file {path}", "it is listed in the manifest beside it", code="file.not-found"
        )
    if format == "npy":
        return np.asarray(load(record, folder))
    try:
        raw = np.fromfile(path, np.uint8)
        flat = (
            unpack(raw, dtype, math.prod(shape)) if dtype in PACKED else raw.view(np_dtype(dtype))
        )
        return flat.reshape(shape)
    except (OSError, ValueError) as e:
        raise InputError(
            f"cannot read {path} as {dtype} {list(shape)}: {e}", code="tensor.unreadable"
        ) from e


def _make_plain_entry(path: Path, base: Path) -> DumpEntry:
    """A .npy that no manifest lists; its header says type and shape, its layout is unknown."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, EOFError) as e:
        raise InputError(f"cannot read {path}: {e}", KINDS, code="tensor.unreadable") from e
    dtype = "string" if array.dtype.kind == "U" else str(array.dtype)
    if dtype not in dtypes.TYPE_NUMBERS:
        raise InputError(
            f"{path}: values of type {dtype} cannot be exported", code="tensor.unsupported-type"
        )
    return _make_entry(
        base, path.stem, path.relative_to(base).as_posix(), "npy", dtype, tuple(array.shape), ""
    )


def _export(
    entry: DumpEntry, work: Path, formats: Sequence[str], forms: Forms, left_out: list[str]
) -> Iterator[ExportedFile]:
    """Write one tensor in each format: codes of a known scale, as floats, are their real values.

    Arrays of unknown layout are taken to have the opposite of the wanted one.
    """
    if entry.dtype == "string":
        left_out.append(f"{entry.name}: texts have no other form")
        return
    form = forms.of(entry.name, entry.dtype)
    opposite = {"NHWC": "NCHW", "NCHW": "NHWC"}.get(form.layout, "NCHW")
    stored = entry.load()
    scale = form.scale or (entry.scale if form.dtype in ("", entry.dtype) else None)
    real = (
        entry.scale.dequantize(stored)
        if entry.scale and ("float" in form.dtype or form.scale)
        else stored
    )
    array, loss, layout = convert(real, form, entry.layout or opposite, entry.original_shape)
    dtype = form.dtype or entry.dtype
    layout = (
        layout if array.ndim in (4, 5) and (form.layout or entry.layout not in ("", "NCHW")) else ""
    )
    plain = None
    if layout == BLOCKED_LAYOUT:
        plain = (
            entry.original_shape
            or convert_layout(stored, entry.layout or opposite, "NCHW")[0].shape
        )
    for format in formats:
        file = f"{entry.target}.{format}"
        (work / file).parent.mkdir(parents=True, exist_ok=True)
        if format == "npy":
            np.save(work / file, to_bits(array, dtype), allow_pickle=False)
        else:
            (work / file).write_bytes(encode_raw(array, dtype))
        lost = loss.text if loss else ""
        per_tensor = (
            (scale.step[0], scale.zero[0]) if scale and len(scale.step) == 1 else (None, None)
        )
        yield ExportedFile(
            entry.name, file, format, dtype, array.shape, layout, lost, plain, *per_tensor
        )
