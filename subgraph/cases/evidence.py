"""A folder around cases: a case per finding, with the candidate's tensors; the document, its
reports and a manifest."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from subgraph import plugins, reports, results
from subgraph.cases import case, write_case
from subgraph.cases.case import (
    CaseManifest,
    CaseOutcome,
    ModelSource,
    ReferenceEntry,
    ResultFolder,
    ResultPlace,
    SampleEntry,
    TensorEntry,
    WrittenManifest,
)
from subgraph.cases.layout import (
    CANDIDATE,
    EVIDENCE_SCHEMA,
    REPORT_FILES,
    RUN_JSON,
    list_sample_names,
)
from subgraph.cases.write_case import CaseRequest
from subgraph.documents import Version, Word, json_key, part, read_document, to_json
from subgraph.errors import InputError, OutputError, ResultExists, SubcutError
from subgraph.graph import region
from subgraph.graph.graph import Graph
from subgraph.graph.region import Region
from subgraph.log import log
from subgraph.runtime.capture import capture_samples, list_needed_inputs
from subgraph.runtime.inputs import Feeding, FeedingOptions
from subgraph.runtime.reference import Reference
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.storage import folders
from subgraph.storage.convert import TensorFormat
from subgraph.storage.tensors import Records, copy_record, from_bits, read_npy
from subgraph.text import clean
from subgraph.types import Array, StringMap, Strings, frozen, frozen_keywords
from subgraph.version import list_versions

if TYPE_CHECKING:
    from subgraph.results.bisect import BisectDocument
    from subgraph.results.compare import ComparisonDocument, RecordedDocument


T = TypeVar("T", bound="BisectDocument | ComparisonDocument | RecordedDocument")
OUTPUTS = "outputs"  # of the reference, in a case


@frozen
class CaseValue:
    """The files of a tensor of one sample in a case: numbers, of type `dtype`.

    Attributes:
        tensor: The tensor.
        sample: The label of the sample.
        source: The candidate that ran the case; "" for a device that ran the full model.
        dtype: The element type.
        reference: The file of the reference.
        given: The file of `source`; None without one.
    """

    tensor: str
    sample: str
    source: str
    dtype: str
    reference: Path
    given: Path | None

    def load(self) -> tuple[Array, Array | None]:
        """Return (reference, given); large arrays are mapped, not read. A value that is damaged or
        of another type is not given.

        Raises:
            InputError: the reference's file is damaged, or of another type.
        """
        candidate = None
        if self.given is not None:
            with contextlib.suppress(InputError):
                candidate = self._read(self.given)
        return self._read(self.reference), candidate

    def _read(self, file: Path) -> Array:
        return from_bits(read_npy(file, mapped=True), self.dtype)


@frozen_keywords
class EvidenceManifest(WrittenManifest):
    """The manifest of a folder around cases."""

    schema: Word = f"{EVIDENCE_SCHEMA}1"
    versions: Mapping[str, Version] = field(default_factory=list_versions)


def render_reports(document: results.Document) -> dict[str, str]:
    """Return the text of each report that renders a document, by file name."""
    forms = {file: plugins.load("reports", kind) for kind, file in REPORT_FILES.items()}
    return {
        file: reports.render_document(form, document)
        for file, form in forms.items()
        if reports.can_render(form, document)
    }


def list_case_values(folder: Path, tensor: str) -> list[CaseValue]:
    """Return the files of a tensor in a case's folder, of its samples in order; links that lead out
    of it are left out.

    Raises:
        InputError: the manifest is damaged.
    """
    manifest = case.read_manifest(folder)
    if manifest is None:
        return []
    tensors = (*manifest.outputs, *(manifest.inputs or ()), *manifest.dump_data)
    stored = next((entry.samples for entry in tensors if entry.name == tensor), ())
    labels = [sample.label for sample in manifest.samples] or [""]
    source = (manifest.found.candidate if manifest.found else None) or ""
    values = []
    for label, stored_file in zip(labels, stored, strict=False):
        file = next((f.file for f in stored_file.files if f.format == "npy"), "")
        reference = _find_inside(folder, file)
        numbers = stored_file.dtype != "string" and not stored_file.dtype.startswith("complex")
        if reference is None or stored_file.form != "tensor" or not numbers:
            continue
        of_candidate = Path(CANDIDATE, *PurePosixPath(file).parts[1:])
        if PurePosixPath(file).parts[0] == OUTPUTS:
            candidate_file = _find_inside(folder, str(of_candidate))
        else:
            candidate_file = None
        values.append(
            CaseValue(tensor, label, source, stored_file.dtype, reference, candidate_file)
        )
    return values


def _find_inside(folder: Path, file: str) -> Path | None:
    """Return a file of a folder; None if it does not exist, or leads elsewhere."""
    path = folder / file
    if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
        return path
    return None


def save_document(document: T, place: ResultPlace, source: ModelSource, reads: Sequence[Path]) -> T:
    """Write a comparison's document and its reports into a folder without cases; return it with the
    page's path.

    It has a `command`, and gets the path as its `report`; if nothing can be written, a warning
    is logged.
    """
    try:
        place = case.find_free_place(place, source, reads)
        saved = replace(document, report=(place.path / REPORT_FILES["html"]).as_posix())
        with folders.write_aside(place.path) as work:
            write_document(saved, work)
            request = {"schema": saved.schema}
            case.write_manifest(
                EvidenceManifest(source=source, command=saved.command, request=request), work
            )
    except (OutputError, ResultExists) as e:
        log.warning("no report: %s", e.what)
        return document
    log.info("report: %s", clean(saved.report or ""))
    return saved


def write_document(document: results.Document, work: Path, name: str = RUN_JSON) -> None:
    """Write a document and its reports into a folder."""
    (work / name).write_bytes(case.as_json(to_json(document)))
    for file, text in render_reports(document).items():
        (work / file).write_text(text, encoding="utf-8")


def add_case(
    graph: Graph,
    region: Region,
    feeding: Feeding,
    place: ResultPlace,
    reference: Reference,
    values: ReferenceValues,
    *,
    freeze: bool,
) -> bool:
    """Write a region as a case; if the region cannot be cut, warn and return False."""
    request = CaseRequest.make_for_nodes(graph, region.nodes, feeding, freeze=freeze)
    try:
        write_case.write_region(graph, region, request, place, reference, values)
    except SubcutError as e:
        log.warning("no folder for %s: %s", place.name, e.what)
        return False
    return True


def list_sample_folders(parent: Path, labels: Sequence[str]) -> list[Path]:
    """Return the folder of each sample's tensors: `parent` itself for a lone sample, else
    `parent/LABEL`."""
    return [parent / name for name in list_sample_names(labels)]


def add_candidate(
    case_folder: Path,
    labels: Sequence[str],
    samples: Sequence[Records],
    outcome: CaseOutcome,
    numbers: str | None,
) -> None:
    """Add the candidate's outputs to a case, and the outcome to its manifest.

    `numbers`: the line of the manifest if all tensors are short.
    """
    for into, tensors in zip(
        list_sample_folders(case_folder / CANDIDATE, labels), samples, strict=False
    ):
        copy_tensors(tensors, folders.make_safe_names(tensors), into)
    manifest = read_document(case_folder / case.MANIFEST, CaseManifest, "make the case again")
    case.write_manifest(replace(manifest, found=outcome, numbers=numbers), case_folder)


def copy_tensors(tensors: Records, stems: StringMap, folder: Path) -> None:
    """Copy the files of tensors, with absolute paths, into a new folder; `stems`: tensor → file
    stem."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, record in tensors.items():
        copy_record(record, folder, stems[name])


@frozen
class DumpRequest:
    """All settings on which a dump depends, in addition to the model."""

    tensors: Strings
    fed: FeedingOptions = part(default_factory=FeedingOptions)
    formats: Strings = ("npy",)
    tensor_format: TensorFormat = json_key("form", default_factory=TensorFormat)


@frozen_keywords
class DumpManifest(WrittenManifest):
    """The manifest of a dump; `losses`: what conversions lost, in words."""

    schema: Word = "subcut.dump/1"
    tensors: Sequence[TensorEntry]
    samples: Sequence[SampleEntry]
    seed: int
    reference: ReferenceEntry
    versions: Mapping[str, Version] = field(default_factory=list_versions)
    losses: Sequence[str]


def dump(
    graph: Graph,
    request: DumpRequest,
    place: ResultPlace,
    reference: Reference,
    feeding: Feeding | None = None,
    command: str = "",
) -> ResultFolder[DumpManifest]:
    """Run the ancestors of the tensors once per sample and write them, a folder per sample if
    there are several.

    Args:
        graph: The model.
        request: The tensors and settings.
        place: The folder of the dump.
        reference: The runtime.
        feeding: The inputs of the model; None for those of the request.
        command: The command line for the manifest.

    Raises:
        ResultExists: Another result is in the way.
        SubcutError: The inputs cannot be read, or the model cannot be run.
    """
    plain_request = to_json(request)
    source = case.describe_source(graph)
    place = case.find_free_place(place, source, [graph.path])
    stems = folders.make_safe_names(request.tensors)
    above = region.find_upstream(graph, stems)
    feeding = feeding or Feeding(**vars(request.fed))
    samples = feeding.plan(graph, list_needed_inputs(graph, above, request.tensors))
    targets = list_sample_names([s.label for s in samples])
    with folders.write_aside(place.path) as work, folders.make_scratch(place.parent) as scratch:
        captured = capture_samples(reference, graph, above, stems, samples, scratch)
        losses = []
        tensors = []
        for name in request.tensors:
            stored = []
            for k, target in enumerate(targets):
                value = captured[k].tensors[name].rebase(scratch / str(k))
                entry, lost = case.store(
                    value, target, work, request.formats, request.tensor_format, keep=False
                )
                stored.append(entry)
                losses += lost
            tensors.append(case.describe_tensor(graph, name, stored))
        manifest = DumpManifest(
            source=source,
            command=command,
            request=plain_request,
            tensors=tensors,
            samples=[case.describe_sample(s) for s in captured],
            seed=request.fed.seed,
            reference=case.describe_reference(reference),
            losses=losses,
        )
        return ResultFolder(place.path, case.write_manifest(manifest, work))
