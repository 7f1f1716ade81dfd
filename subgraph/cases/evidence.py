"""A folder around cases: a case per finding, with the candidate's tensors; the document, its reports and a manifest."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from subgraph import plugins
from subgraph.cases import case, write_case
from subgraph.cases.case import ModelSource, ResultPlace
from subgraph.cases.layout import CANDIDATE, EVIDENCE_SCHEMA, REPORT_FILES, sample_names
from subgraph.cases.write_case import CaseRequest
from subgraph.documents import to_json
from subgraph.errors import SubcutError
from subgraph.graph.graph import Graph
from subgraph.graph.region import Region
from subgraph.runtime.reference import Reference
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.storage.tensors import Record, copied

log = logging.getLogger("subcut")


@dataclass(frozen=True, kw_only=True)
class EvidenceManifest:
    """The manifest of a folder around cases."""

    schema: str = f"{EVIDENCE_SCHEMA}1"
    source: ModelSource
    command: str
    request: object
    versions: Mapping[str, str] = field(default_factory=case.versions)


def rendered_reports(document: object) -> dict[str, str]:
    """File name → text of the reports of a bisection's document."""
    return {file: plugins.load("reports", kind).render(document) for kind, file in REPORT_FILES.items()}


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
