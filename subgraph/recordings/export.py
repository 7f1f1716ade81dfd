"""The tensors of a case, of a dump or of a folder -> a folder in the device's form."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

import numpy as np

from subgraph.cases import case
from subgraph.cases.case import ModelSource, ResultFolder, ResultPlace, TensorEntry, WrittenManifest
from subgraph.documents import Word, absent, from_json
from subgraph.errors import InputError, UnknownName
from subgraph.graph.graph import Graph
from subgraph.graph.quantization import find_codes, find_tensor_scales
from subgraph.iterables import flatten
from subgraph.recordings import recording
from subgraph.recordings.dump_files import scan
from subgraph.recordings.dumps import DumpEntry, DumpHints, TensorSpec, raw
from subgraph.storage import folders
from subgraph.storage.convert import (
    BLOCKED_LAYOUT,
    TensorFormat,
    convert,
    convert_layout,
    encode_raw,
)
from subgraph.storage.dtypes import Scale
from subgraph.storage.tensors import find_dtype, to_bits
from subgraph.text import count, find_nearest
from subgraph.types import JsonObject, StringMap, frozen, frozen_keywords

SCHEMA = "subcut.export/1"
KINDS = "name a case, a dump, a folder of .npy files, or one .npy file without Python objects"


@frozen
class Forms:
    """The form of each tensor.

    Attributes:
        rest: The form of tensors that no glob in `own` matches, and of each open field there.
        own: Forms by globs of names; the first glob that matches counts.
        scales: Scales of real tensors that a model quantizes, with the element type of the codes.
    """

    rest: TensorFormat = field(default_factory=TensorFormat)
    own: Mapping[str, TensorFormat] = field(default_factory=dict)
    scales: Mapping[str, tuple[Scale, str]] = field(default_factory=dict)

    def find_format(self, name: str, dtype: str) -> TensorFormat:
        """Find the form of a tensor that has this element type now."""
        rest = self.rest
        fitting = (form for glob, form in self.own.items() if fnmatch.fnmatchcase(name, glob))
        own = next(fitting, rest)
        form = replace(own, dtype=own.dtype or rest.dtype, layout=own.layout or rest.layout)
        if form.scale or "float" not in dtype or "int" not in form.dtype or name not in self.scales:
            return form
        scale, stored = self.scales[name]
        new_type = np.iinfo(find_dtype(form.dtype))
        stored_type = np.iinfo(find_dtype(stored))
        if len(scale.step) > 1 or new_type.bits != stored_type.bits:
            return form
        zero = scale.zero[0] + int(new_type.min) - int(stored_type.min)
        return replace(form, scale=Scale(scale.step, (zero,)))


def find_scales(graph: Graph) -> dict[str, tuple[Scale, str]]:
    """Find scale and element type of the codes of each real tensor that a model quantizes."""
    scales = find_tensor_scales(graph)
    specs = recording.find_hints(graph).specs
    dtypes = {code: specs[code].dtype for code in scales if code in specs}
    known = (
        (real, code) for real, code in find_codes(graph).items() if "int" in dtypes.get(code, "")
    )
    return {real: (scales[code], dtypes[code]) for real, code in known}


@frozen
class ExportRequest:
    """All options that the result depends on."""

    source: str
    formats: Sequence[str]
    dtype: str
    layout: str
    dump_format: str | None = absent()
    tensors: StringMap | None = absent()


@frozen
class ExportedFile:
    """One file of the result.

    Attributes:
        layout: The layout; "" if the array has none.
        original_shape: The shape in NCHW, if the layout is padded.
        loss: A sentence about the loss of the conversion.
        scale: The scale of integer codes: real = (code - zero_point) * scale.
        zero_point: The zero point of integer codes.
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


@frozen_keywords
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
        dump_format: The format of `source`, if another tool wrote it; "" to detect it.
        hints: Types and shapes for files that do not store them.
        command: The command line, for the manifest.

    Raises:
        InputError: `source` holds no tensors. UnknownName: no such dump format, or a glob that no
            tensor matches.
        ResultExists: another result has this name.
    """
    if not os.path.exists(source):  # noqa: PTH110
        raise InputError(f"no folder {source}", KINDS, code="folder.not-found")
    own = {glob: form.words for glob, form in forms.own.items()}
    rest = forms.rest
    request = ExportRequest(
        str(source), formats, rest.dtype, rest.layout, dump_format or None, own or None
    )
    origin = ModelSource(folder=str(source))
    place = case.find_free_place(place, origin, [source])
    document = None
    if source.is_dir() and not dump_format:
        document = case.read_plain_manifest(source)
    if document is None:
        listed, left_out = _read_recorded(source, dump_format, hints, place.path)
    else:
        listed = _read_listed(source, document)
        left_out = []
    entries = [entry for entry in listed if not entry.missing]
    left_out += [f"{e.file}: {e.missing}" for e in listed if e.missing]
    if not entries:
        what = f"no tensors in {source}: {'; '.join(left_out)}"
        raise InputError(what, KINDS, code="export.no-tensors")
    names = [entry.name for entry in entries]
    for glob in forms.own:
        if not fnmatch.filter(names, glob):
            what = f"no tensor '{glob}' in {source}"
            raise UnknownName(what, nearest=find_nearest(glob, names), code="tensor.unknown")
    with folders.write_aside(place.path) as work:
        written = (_export(entry, work, formats, forms, left_out) for entry in entries)
        exported = [*flatten(written)]
        manifest = ExportManifest(
            source=origin, command=command, request=request, exported=exported, left_out=left_out
        )
        return ResultFolder(place.path, case.write_manifest(manifest, work))


def _read_recorded(
    source: Path, format: str, hints: DumpHints | None, place: Path
) -> tuple[list[DumpEntry], list[str]]:
    """Return the entries of a dump or of .npy files, and notes about files that are not read.

    Only the layout of .npy files is unknown.
    """
    recorded = recording.open(source, format, hints)
    is_plain = recorded.format == "npy"
    entries = [
        replace(e, load=e.read, layout="" if is_plain else "NCHW")
        for e in recorded
        if place.resolve() not in (recorded.folder / e.file).resolve().parents
    ]
    unread = recorded.left_out if is_plain else {}
    return entries, [f"{end}: {count(n, 'file')} without a type" for end, n in unread.items()]


@frozen_keywords
class TensorManifest(case.Manifest):
    """A manifest as far as it lists files of tensors: that of a case or a dump."""

    tensors: Sequence[TensorEntry] = ()


def _read_listed(source: Path, document: JsonObject) -> list[DumpEntry]:
    """Read the files that subcut's own manifest lists; of a tensor in several formats, the .npy.

    Raises InputError: there is no such file; the manifest is damaged, or names files outside its
    folder.
    """
    where = str(source / case.MANIFEST)
    manifest = from_json(TensorManifest, document, where, "make the result again")
    files = scan(source)
    specs = raw.read_manifest(files)
    own = (*(manifest.inputs or ()), *manifest.outputs, *manifest.dump_data, *manifest.tensors)
    for tensor in own:
        stored = flatten(sample.files for sample in tensor.samples)
        arrays = (f for f in stored if f.format == "npy")
        specs |= {f.file: (tensor.name, TensorSpec(f.dtype)) for f in arrays}
    if not specs:
        what = f"{source} holds no tensors: it was cut without a capture"
        raise InputError(what, "cut again without --no-capture", code="case.no-tensors")
    typed = {file.removesuffix(".npy") for file in specs if file.endswith(".npy")}
    return [
        raw.make_listed_entry(files, file, name, spec)
        for file, (name, spec) in specs.items()
        if file.endswith(".npy") or file.rpartition(".")[0] not in typed
    ]


def _export(
    entry: DumpEntry, work: Path, formats: Sequence[str], forms: Forms, left_out: list[str]
) -> Iterator[ExportedFile]:
    """Write one tensor in each format: codes of a known scale, as floats, are their real values.

    Arrays of unknown layout are taken to have the opposite of the wanted one.
    """
    if entry.dtype == "string":
        left_out.append(f"{entry.name}: texts have no other form")
        return
    form = forms.find_format(entry.name, entry.dtype)
    opposite = {"NHWC": "NCHW", "NCHW": "NHWC"}.get(form.layout, "NCHW")
    stored = entry.load()
    scale = form.scale or (entry.scale if form.dtype in ("", entry.dtype) else None)
    now = entry.layout or opposite
    is_real = entry.scale and ("float" in form.dtype or form.scale)
    real = entry.scale.dequantize(stored) if entry.scale and is_real else stored
    array, loss, layout = convert(real, form, now, entry.original_shape)
    dtype = form.dtype or entry.dtype
    if array.ndim not in (4, 5) or not (form.layout or entry.layout not in ("", "NCHW")):
        layout = ""
    plain = None
    if layout == BLOCKED_LAYOUT:
        plain = entry.original_shape or convert_layout(stored, now, "NCHW")[0].shape
    lost = loss.text if loss else ""
    coded = (scale.step[0], scale.zero[0]) if scale and len(scale.step) == 1 else (None, None)
    for format in formats:
        file = f"{entry.target}.{format}"
        (work / file).parent.mkdir(parents=True, exist_ok=True)
        if format == "npy":
            np.save(work / file, to_bits(array, dtype), allow_pickle=False)
        else:
            (work / file).write_bytes(encode_raw(array, dtype))
        form_of_file = (format, dtype, array.shape, layout, lost, plain, *coded)
        yield ExportedFile(entry.name, file, *form_of_file)
