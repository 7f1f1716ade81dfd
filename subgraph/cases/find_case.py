"""Folder -> the case in it, and the candidate that it was found with.

A case is in a folder that cut, bisect, sweep or manual left, or in an unpacked bundle. The
candidate is named by the manifest of the folder around it, or by the bundle's list; paths in a
bundle's list are relative to the bundle. All fields of a manifest are checked here: it may come
from anywhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from subgraph import system
from subgraph.cases import case
from subgraph.cases.case import (
    CaseOutcome,
    EvidenceRequest,
    ExpectedTest,
    ModelSource,
    TensorEntry,
)
from subgraph.cases.layout import (
    BUNDLE_LIST,
    BUNDLE_SCHEMA,
    CANDIDATE_FILES,
    FINDING_FOLDERS,
    LOOP_JSON,
    PLAN_JSON,
    RUN_JSON,
    SMALL,
    is_evidence,
)
from subgraph.cases.redact import REMOVED
from subgraph.cases.zip_archive import Checksum, name_problem
from subgraph.documents import from_json, read_document
from subgraph.errors import InputError, UsageError
from subgraph.iterables import flatten
from subgraph.runtime import candidate as candidates
from subgraph.runtime.candidate import Candidate
from subgraph.storage.digest import digest_file
from subgraph.storage.tensors import Record
from subgraph.text import list_some
from subgraph.types import Fields, Strings, frozen, frozen_keywords

MAX_NAMED = 8  # cases named in a hint


@frozen_keywords
class BundleList:
    """The bundle's list of itself, `bundle.json`. `what`: digest of its identity; `found`: outcome
    of `found_with`."""

    schema: str = BUNDLE_SCHEMA
    what: str = ""
    subcut: str = ""
    found_with: Fields | None = None
    found: CaseOutcome | None = None
    files: Mapping[str, Checksum]


@frozen
class FoundCase:
    """A case whose manifest was checked.

    Attributes:
        place: The folder of the case.
        labels: The labels of its samples; empty if the case holds no tensors.
        inputs: By tensor a record per sample, of its .npy files with absolute paths.
        outputs: The records of the outputs, as `inputs`.
        source: The model that was cut, as the manifest identifies it.
        expected: The operator test that the case was made from, if any.
        found_with: The candidate's request; None if no manifest names a candidate.
        bundle: The unpacked bundle of the case, if any.
    """

    place: Path
    labels: Strings
    inputs: Mapping[str, tuple[Record, ...]]
    outputs: Mapping[str, tuple[Record, ...]]
    source: ModelSource
    expected: ExpectedTest | None = None
    found_with: EvidenceRequest | None = None
    bundle: Path | None = None


def find_case(folder: Path, *, small: bool = False) -> FoundCase:
    """Return the case in a folder; of a bisection, its most important one.

    Args:
        folder: The folder.
        small: Whether to return the case with the small input that is inside it.

    Raises:
        UsageError: There is no case, or several of equal importance; or a manifest is damaged; or
            the case has no small input.
    """
    if not folder.is_dir():
        raise UsageError(
            f"no folder {folder}",
            "name a case that cut or bisect wrote",
            code="folder.not-found",
        )
    place, around = _locate(folder)
    bundle = find_bundle_root(place)
    if bundle is not None and around is None:
        listed = _read_bundle_list(bundle).found_with
        around = None if listed is None else listed.get("request", {})
    if small:
        place = place / SMALL
        if not (place / case.MANIFEST).is_file():
            raise UsageError(
                f"--small: {place.parent} has no small input",
                "omit --small: bisect found no smaller input that fails in the same way, or had"
                " --keep-input",
                code="case.no-small-input",
            )
    manifest = case.read_manifest(place)
    if manifest is None or manifest.inputs is None:
        raise UsageError(
            f"{place} is not a case",
            "name a folder that `subcut cut` or `subcut bisect` made",
            code="case.not-a-case",
        )
    subject = f"the manifest of the case {place}"
    hint = "make the case again, or run the repro.py in it"
    try:
        inputs, outputs = (
            {t.name: _make_records(place, t, len(manifest.samples)) for t in tensors or ()}
            for tensors in (manifest.inputs, manifest.outputs)
        )
        found_with = None if around is None else from_json(EvidenceRequest, around, subject, hint)
        identity = found_with.identity if found_with else None
        if identity and not min(identity.timeout, identity.memory or 1) > 0:
            raise ValueError("a limit of nothing")
    except (ValueError, KeyError) as e:
        raise UsageError(f"{subject} is damaged: {e}", hint, code="case.damaged") from e
    labels = tuple(sample.label for sample in manifest.samples)
    return FoundCase(
        place, labels, inputs, outputs, manifest.source, manifest.expected, found_with, bundle
    )


def find_result(folder: Path) -> Path:
    """Return the only result in a folder without a manifest, as of `-o FOLDER`; else the folder."""
    if (folder / case.MANIFEST).is_file():
        return folder
    inner = [file.parent for file in folder.glob(f"*/{case.MANIFEST}")]
    return inner[0] if len(inner) == 1 else folder


def find_bundle_root(folder: Path) -> Path | None:
    """Return the unpacked bundle that is a folder or its parent; None for another folder."""
    return next((p for p in (folder, folder.resolve().parent) if (p / BUNDLE_LIST).is_file()), None)


def require_no_loop(folder: Path) -> None:
    """Check that the folder is not the result of `bisect --loop`.

    Raises:
        UsageError: The folder is the result of `bisect --loop`, without a case; the hint names that
            of the search.
    """
    if not (folder / LOOP_JSON).is_file() or (folder / RUN_JSON).is_file():
        return
    try:
        document = json.loads((folder / LOOP_JSON).read_text(encoding="utf-8"))
        report = (document.get("bisection") or {}).get("report")
    except (OSError, ValueError, AttributeError):
        report = None
    if isinstance(report, str):
        inside = f"the search in its step: {Path(report).parent}"
    else:
        inside = "it has no case"
    raise UsageError(
        f"{folder} is of a loop, step by step; {LOOP_JSON} there is the whole of it",
        inside,
        code="case.is-loop",
    )


def _locate(folder: Path) -> tuple[Path, object]:
    """Return the folder of one case, and the request of the manifest around it, if any."""
    folder = find_result(folder)
    require_no_loop(folder)
    around = case.read_manifest(folder)
    if around is None or not is_evidence(around.schema):
        above = case.read_manifest(folder.resolve().parent)
        return folder, above.request if above and is_evidence(above.schema) else None
    inner = next((folder / name for name in FINDING_FOLDERS if (folder / name).is_dir()), None)
    if inner is None:
        names = sorted(p.name for p in folder.iterdir() if (p / case.MANIFEST).is_file())
        if (folder / PLAN_JSON).is_file():
            raise UsageError(
                f"{folder} is a plan, which holds no case",
                f"open {folder}/report.html",
                code="case.is-plan",
            )
        if not names:
            raise UsageError(
                f"{folder} holds no region",
                "the bisection named none",
                code="case.none-found",
            )
        if len(names) > 1:
            raise UsageError(
                f"{folder} holds {len(names)} cases",
                f"name the folder of one: {list_some(names, MAX_NAMED)}",
                code="case.ambiguous",
            )
        inner = folder / names[0]
    return inner, around.request


def _read_bundle_list(bundle: Path) -> BundleList:
    hint = "unpack the bundle again"
    listed = read_document(bundle / BUNDLE_LIST, BundleList, hint)
    if listed.schema != BUNDLE_SCHEMA:
        raise InputError(
            f"{bundle / BUNDLE_LIST} is damaged: its schema is not {BUNDLE_SCHEMA}",
            hint,
            code="bundle.damaged",
        )
    return listed


def _make_records(place: Path, tensor: TensorEntry, samples: int) -> tuple[Record, ...]:
    """Return the .npy files of a tensor, a record per sample.

    Raises:
        ValueError: there are too few samples, or a file leads elsewhere.
    """
    if len(tensor.samples) < samples:
        raise ValueError(f"{tensor.name} has {len(tensor.samples)} of {samples} samples")
    for stored_file in flatten(s.files for s in tensor.samples):
        if why := name_problem(stored_file.file):
            raise ValueError(f"the file {stored_file.file!r}: {why}")
    return tuple(
        Record(
            tensor.name,
            stored.form,
            stored.dtype,
            tuple(map(tuple, stored.shapes)),
            tuple(str(place.resolve() / f.file) for f in stored.files if f.format == "npy"),
        )
        for stored in tensor.samples[:samples]
    )


# ------------------------------------------------------------ candidate


def find_candidate(found_case: FoundCase) -> Candidate | None:
    """Return the candidate that a case was found with; None if no manifest names one. Its
    commands need trust.

    Raises:
        UsageError: it was run by hand, its precision means nothing, or its file is not in the
            bundle.
    """
    described = found_case.found_with
    if described is None:
        return None
    identity = described.identity
    origin = {candidates.BY_HAND: "run by hand", candidates.RECORDED: "recorded"}.get(
        identity.backend
    )
    if origin:
        place = system.quote(str(found_case.place))
        compare = (
            f"run its model.onnx there on its inputs/; subcut compare {place} --recorded DIR judges"
            " its outputs"
        )
        raise UsageError(
            f"{described.candidate} was {origin}: subcut cannot run it",
            f"{compare}. Or -c SPEC runs the case on a candidate here, -c ort for example",
            code="case.not-runnable",
        )
    precision = candidates.parse_precision("this case", described.precision)
    candidate = Candidate(
        described.candidate,
        identity.backend,
        dict(identity.options),
        precision,
        None,
        identity.timeout,
        int(identity.memory) if identity.memory else None,
        origin="this case",
        **identity.build(),
    )
    if found_case.bundle is None:
        return candidate
    return _take_from_bundle(candidate, found_case.bundle.resolve())


def _take_from_bundle(candidate: Candidate, bundle: Path) -> Candidate:
    """Return the candidate with its files taken from the bundle, in which its commands run.

    Its origin holds a digest of these files, so that a changed file requires trust again.
    """
    home = bundle / CANDIDATE_FILES
    if REMOVED in f"{candidate.backend} {candidate.name} {json.dumps(dict(candidate.options))}":
        raise UsageError(
            f"words of candidate {candidate.name} were removed when the bundle was made",
            "-c SPEC names another candidate",
            code="case.candidate-incomplete",
        )

    def absolute(value: Any) -> Any:
        inside = isinstance(value, str) and not name_problem(value) and (home / value).is_file()
        return str(home / value) if inside else value

    is_command = candidate.runs_commands
    options = {
        k: absolute(v) for k, v in candidate.options.items() if k != "folder" or not is_command
    }
    if is_command and home.is_dir():
        options["folder"] = str(home)
    seal = hashlib.sha256()
    for file in sorted(p for p in home.rglob("*") if p.is_file()):
        seal.update(
            f"{file.relative_to(home).as_posix()} {digest_file(file)}\n".encode(
                errors="surrogatepass"
            )
        )
    backend = absolute(candidate.backend)
    if backend.endswith(".py") and not Path(backend).is_file():
        raise UsageError(
            f"the candidate's file {Path(backend).name} is not in the bundle",
            "-c SPEC names another candidate",
            code="case.candidate-incomplete",
        )
    return replace(
        candidate, backend=backend, options=options, origin=f"this bundle ({seal.hexdigest()[:12]})"
    )
