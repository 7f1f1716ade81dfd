"""A folder around cases: a case per finding, with the candidate's tensors; the document, its reports and a manifest."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from subgraph import plugins, reports
from subgraph.cases import case, write_case
from subgraph.cases.case import ModelSource, ResultPlace
from subgraph.cases.layout import CANDIDATE, EVIDENCE_SCHEMA, REPORT_FILES, RUN_JSON, sample_names
from subgraph.cases.write_case import CaseRequest
from subgraph.documents import to_json
from subgraph.drawing.tensor import WorstTensor, worst_tensor
from subgraph.errors import OutputError, ResultExists, SubcutError
from subgraph.graph.graph import Graph
from subgraph.graph.region import Region
from subgraph.runtime.reference import Reference
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.storage import folders
from subgraph.storage.tensors import Record, copied, from_bits, read_npy
from subgraph.text import clean

if TYPE_CHECKING:
    from subgraph.types import Array

log = logging.getLogger("subcut")

OUTPUTS = "outputs"  # of the reference, in a case
MOST_DRAWN = 1 << 24  # elements of a tensor


@dataclass(frozen=True, kw_only=True)
class EvidenceManifest:
    """The manifest of a folder around cases."""

    schema: str = f"{EVIDENCE_SCHEMA}1"
    source: ModelSource
    command: str
    request: object
    versions: Mapping[str, str] = field(default_factory=case.versions)


def rendered_reports(document: dict[str, Any], folder: Path) -> dict[str, str]:
    """File name → text of the reports of a document, of those forms that render it; `folder` has its cases."""
    forms = {file: plugins.load("reports", kind) for kind, file in REPORT_FILES.items()}
    drawn = pictures(document, folder)
    return {
        file: reports.rendered(form, document, drawn)
        for file, form in forms.items()
        if reports.can_render(form, document)
    }


def pictures(document: Mapping[str, Any], folder: Path) -> dict[int, WorstTensor]:
    """Position of a finding → its worst tensor drawn, where the case in `folder` has it from both sides."""
    found = {}
    for k, finding in enumerate(document.get("findings", ())):
        name = (finding.get("worst") or {}).get("tensor") or next(iter(finding.get("first_bad", ())), None)
        if name is None or not finding.get("case"):
            continue
        try:
            both = _both(folder / Path(finding["case"]).name, name, _sample(finding, name))
        except SubcutError as e:
            log.debug("%s is not drawn: %s", clean(name), e.what)
            continue
        if both is not None:
            found[k] = worst_tensor(clean(name), *both)
    return found


def _sample(finding: Mapping[str, Any], tensor: str) -> str:
    """The sample in which a tensor is judged worst; "" for a lone one."""
    outputs = (finding.get("verdict") or {}).get("outputs", ())
    return next((str(output["sample"]) for output in outputs if output["name"] == tensor), "")


def _both(folder: Path, tensor: str, sample: str) -> tuple[Array, Array] | None:
    """The reference's and the candidate's value of an output of a case; None where one is missing or cannot be drawn.

    Raises:
        SubcutError: the manifest or a file is damaged.
    """
    manifest = case.read_manifest(folder) or {}
    entry = next((e for e in manifest.get("outputs", ()) if e["name"] == tensor), None)
    labels = [one["label"] for one in manifest.get("samples", ())]
    stored = (entry or {}).get("samples") or [None]
    one = stored[labels.index(sample)] if sample in labels[: len(stored)] else stored[0]
    file = next((f["file"] for f in one["files"] if f["format"] == "npy"), None) if one else None
    if file is None or PurePosixPath(file).parts[0] != OUTPUTS or one["form"] != "tensor":
        return None
    paths = [folder / file, folder / CANDIDATE / PurePosixPath(file).relative_to(OUTPUTS)]
    if not all(p.is_file() and p.resolve().is_relative_to(folder.resolve()) for p in paths):
        return None
    reference, given = (from_bits(read_npy(path), one["dtype"]) for path in paths)
    numbers = one["dtype"] != "string" and not one["dtype"].startswith("complex")
    fits = reference.shape == given.shape and 0 < reference.size <= MOST_DRAWN
    return (reference, given) if numbers and fits else None


def save_document(document: Any, place: ResultPlace, source: ModelSource, reads: Sequence[Path] = ()) -> dict[str, Any]:
    """Write a comparison's document and its reports into a folder without cases; return it as JSON.

    It has a `command`, and gets the page's path as its `report`; where nothing can be written, a warning is logged.
    """
    try:
        place = case.free_place(place, source, reads)
        shown: dict[str, Any] = to_json(replace(document, report=str(place.path / REPORT_FILES["html"])))
        with folders.aside(place.path) as work:
            write_document(shown, work)
            request = {"schema": shown["schema"]}
            case.write_manifest(EvidenceManifest(source=source, command=shown["command"], request=request), work)
    except (OutputError, ResultExists) as e:
        log.warning("no report: %s", e.what)
        return dict(to_json(document))
    log.info("report: %s", clean(shown["report"]))
    return shown


def write_document(document: dict[str, Any], work: Path, name: str = RUN_JSON) -> None:
    """Write a document and its reports into a folder."""
    (work / name).write_bytes(case.as_json(document))
    for file, text in rendered_reports(document, work).items():
        (work / file).write_text(text, encoding="utf-8")


def add_case(
    graph: Graph,
    region: Region,
    request: CaseRequest,
    place: ResultPlace,
    reference: Reference,
    values: ReferenceValues,
) -> bool:
    """Write a region as a case; where the region cannot be cut, warn and return False."""
    try:
        write_case.write_region(graph, region, request, place, reference, values)
    except SubcutError as e:
        log.warning("no folder for %s: %s", place.name, e.what)
        return False
    return True


def sample_folders(parent: Path, labels: Sequence[str]) -> list[Path]:
    """The folder of each sample's tensors: `parent` itself for a lone sample, else `parent/LABEL`."""
    return [parent / name for name in sample_names(labels)]


def candidate_folders(case_folder: Path, labels: Sequence[str]) -> list[Path]:
    """The folder of each sample's tensors from the candidate, laid out as the case's `outputs/`."""
    return sample_folders(case_folder / CANDIDATE, labels)


@dataclass(frozen=True)
class CandidateOutcome:
    """What a candidate gave on a case, for the case's manifest; `why` in words."""

    candidate: str
    status: str
    signature: str | None
    why: str


def add_outcome(case_folder: Path, outcome: CandidateOutcome) -> None:
    """Add the outcome to a case's manifest, whose repro.py shows it; the list of files gets the candidate's."""
    manifest = case.read_manifest(case_folder)
    assert manifest is not None
    del manifest["files"]
    case.write_manifest(manifest | {"found": to_json(outcome)}, case_folder)


def copy_tensors(tensors: Mapping[str, Record], stems: Mapping[str, str], folder: Path) -> None:
    """Copy the files of tensors, with absolute paths, into a folder that is made; `stems`: tensor → file stem."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, record in tensors.items():
        copied(record, folder, stems[name])
