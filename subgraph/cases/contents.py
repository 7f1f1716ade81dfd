"""A case's folder -> its files as they may leave this machine: those of its manifests, redacted.

Tensors and models are packed unchanged. Documents are redacted (`redact`); reports are rendered
again from the redacted document; logs stay here unless the user keeps them. Files that no manifest
lists are omitted.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from subgraph import results
from subgraph.cases import case
from subgraph.cases.case import MANIFEST, Manifest
from subgraph.cases.evidence import render_reports
from subgraph.cases.find_case import find_bundle_root, find_result
from subgraph.cases.layout import (
    BLAME,
    BLAME_ANSWER,
    BLAME_JSON,
    CANDIDATE,
    CANDIDATE_FILES,
    FINDING_FOLDERS,
    FROM_DEVICE,
    LOG,
    REPORT_FILES,
    REPRO,
    REPRO_SCRIPT,
    RUN_JSON,
    SWEEP_JSON,
    TODO_TXT,
    is_evidence,
)
from subgraph.cases.redact import ALL, Redactor
from subgraph.cases.zip_archive import name_problem
from subgraph.documents import from_json, read_json
from subgraph.errors import InputError, SubcutError, UsageError, explain_os_error
from subgraph.graph import protobuf
from subgraph.iterables import drop_repeats
from subgraph.text import clean
from subgraph.types import Fields, Strings, frozen

PackedFiles: TypeAlias = dict[str, Path | bytes]  # by name in the bundle
# Folders that are filled after a case's manifest is written, and the kinds of files in them.
LATER = {CANDIDATE: (".npy", ".json", ".onnx", ".data", ".tflite"), FROM_DEVICE: (".npy", ".bin")}
SKIPPED = ("__pycache__",)  # folders of the candidate, besides hidden ones
UNCHANGED = (".npy", ".bin", ".onnx", ".data", ".tflite", ".prototxt", ".caffemodel")


@frozen
class WithCase:
    """A finding, of which the folder of its case is read."""

    case: str | None = None


@frozen
class ReadRun:
    """`run.json` of another version, as far as it is read here."""

    schema: str
    findings: Sequence[WithCase] = ()


@frozen
class CaseFiles:
    """The files of a case, a bisection or a sweep.

    Attributes:
        folder: The folder.
        files: The path of each file, by its name in the folder.
        evidence: The manifest that names the candidate, if any: that of the folder or its parent.
        evidence_folder: The folder of that manifest.
        is_evidence: Whether `evidence` is the manifest of the folder.
        cases: The folders of the cases in it, "" for itself; the most important one comes first.
        left: Files that no manifest lists.
    """

    folder: Path
    files: Mapping[str, Path]
    evidence: Manifest | None
    evidence_folder: Path
    is_evidence: bool
    cases: Strings
    left: Strings


def find_files(folder: Path) -> CaseFiles:
    """Return the files of the case in a folder.

    Raises:
        UsageError: There is no case that can be run.
        InputError: A file is missing, or does not belong to the case.
    """
    if not folder.is_dir():
        raise UsageError(
            f"no folder {folder}",
            "name a case that cut or bisect wrote",
            code="folder.not-found",
        )
    folder = find_result(folder)
    manifest = case.read_manifest(folder)
    if manifest is None:
        raise UsageError(f"{folder} is not a case", _make_hint(folder), code="case.not-a-case")
    if bundle := find_bundle_root(folder):
        hint = f"zip it again: python -m zipfile -c {bundle.resolve().name}.zip {bundle}"
        raise UsageError(f"{bundle} is an unpacked bundle", hint, code="case.is-bundle")
    parent = folder.resolve().parent
    is_own = is_evidence(manifest.schema)
    above = None if is_own else case.read_manifest(parent)
    evidence = manifest if is_own else above
    if evidence and not is_evidence(evidence.schema):
        evidence = None
    names = list(manifest.files)
    if evidence is not None and not is_own:
        head = f"{folder.resolve().name}/"
        names = [name.removeprefix(head) for name in evidence.files if name.startswith(head)]
    names += [n for n in _iter_later(folder) if n not in names]
    files = {name: _find_file(folder, name) for name in dict.fromkeys(names)}
    cases = _find_cases(folder, files, manifest)
    inside = {
        p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() or p.is_symlink()
    }
    left = tuple(sorted(inside - set(files)))
    return CaseFiles(folder, files, evidence, folder if is_own else parent, is_own, cases, left)


def _make_hint(folder: Path) -> str:
    for parent in ("", "todo/"):
        names = sorted(f"{parent}{p.parent.name}" for p in folder.glob(f"{parent}*/{MANIFEST}"))
        if names:
            return f"name one of the folders in it: {', '.join(map(clean, names[:8]))}"
    return "name a folder that cut, bisect or sweep wrote"


def _iter_later(folder: Path) -> Iterator[str]:
    """Yield files that were added to a case after its manifest; full models of `blame` stay
    here."""
    files = [
        path
        for path in sorted(folder.glob(f"**/{BLAME}/*"))
        if path.name in (BLAME_JSON, BLAME_ANSWER)
    ]
    for place, suffixes in LATER.items():
        files += [p for p in sorted((folder / place).rglob("*")) if p.suffix in suffixes]
    for path in files:
        if path.is_file() and not path.is_symlink():
            yield path.relative_to(folder).as_posix()


def _find_file(folder: Path, name: str) -> Path:
    """Return the path of a listed file; a manifest may come from anywhere."""
    path = folder / name
    if why := name_problem(name):
        raise InputError(
            f"{folder} lists '{name}', which cannot be sent: {why}",
            "make the case again",
            code="bundle.unsafe-name",
        )
    parts = (PurePosixPath(name), *PurePosixPath(name).parents)
    if any((folder / part).is_symlink() for part in parts[:-1]):
        raise InputError(
            f"{folder}: {name} is a link", "put the file itself there", code="bundle.link"
        )
    if not path.is_file():
        raise InputError(
            f"{folder} lacks {name}, which its manifest lists",
            "make the case again",
            code="case.file-missing",
        )
    return path


def _find_cases(folder: Path, files: Mapping[str, Path], manifest: Manifest) -> Strings:
    """Return the folders of the cases, the most important first.

    Raises:
        UsageError: There is no case, or one has no tensors.
    """
    inner = sorted(name.rpartition("/")[0] for name in files if name.endswith(f"/{MANIFEST}"))
    first = [name for name in FINDING_FOLDERS if name in inner]
    own = [] if is_evidence(manifest.schema) else [""]
    cases = drop_repeats((*own, *first, *inner))
    if not cases:
        raise UsageError(
            f"{folder} holds no case",
            "name the folder of a finding; without a case, send report.md and the model",
            code="case.none-found",
        )
    for name in cases:
        case_manifest = case.read_manifest(folder / name)
        if case_manifest is None or not case_manifest.is_case:
            fact = f"{folder / name} is not a case"
            raise UsageError(
                fact, "name a folder that cut, bisect or sweep made", code="case.not-a-case"
            )
        if not case_manifest.samples:
            fact = f"{folder / name} has no tensors: it was cut with --no-capture"
            raise UsageError(fact, "cut it without --no-capture", code="case.no-tensors")
    return tuple(cases)


def list_names(case_files: CaseFiles) -> frozenset[str]:
    """Return the names that are packed anyway: of the files, the model, and its
    nodes and tensors."""
    names = {*case_files.files, *(name.partition("/")[2] for name in case_files.files)}
    for path in case_files.files.values():
        if path.suffix == ".onnx":
            graph = protobuf.read(path).model.graph
            names |= {graph.name, *(v.name for v in (*graph.input, *graph.output))}
            for node in graph.node:
                names |= {node.name, node.op_type, *node.input, *node.output}
    for folder in case_files.cases:
        if manifest := case.read_manifest(case_files.folder / folder):
            names.add(manifest.source.file)
    return frozenset(names - {""})


def read_data(source: Path | bytes) -> bytes:
    """Return the bytes of a file that is packed: from disk, or made in memory."""
    if isinstance(source, bytes):
        return source
    return source.read_bytes()


# ------------------------------------------------------------ redacted


def redact_files(
    case_files: CaseFiles, redactor: Redactor, found_with: Fields | None
) -> PackedFiles:
    """Return all files as they may leave.

    Args:
        case_files: The files.
        redactor: The rules of redaction.
        found_with: The redacted manifest that names the candidate.
    """
    files: PackedFiles = {}
    document_name = next((name for name in (RUN_JSON, SWEEP_JSON) if name in case_files.files), "")
    for name, path in case_files.files.items():
        base_name = PurePosixPath(name).name
        if base_name == MANIFEST or (document_name and name in REPORT_FILES.values()):
            continue
        if path.suffix in UNCHANGED:
            files[name] = path
        elif base_name == REPRO:
            files[name] = REPRO_SCRIPT.read_bytes()
        elif path.suffix == ".json":
            hint = "make the case again"
            document = read_json(path, hint)
            if path.name in (RUN_JSON, SWEEP_JSON):  # results are read from it
                schema: Any = document.get("schema") if isinstance(document, dict) else None
                kind = results.find_type(schema) if schema in results.KNOWN else ReadRun
                from_json(kind, document, str(path), hint)
            files[name] = case.as_json(_redact_document(name, document, redactor))
        elif base_name in (LOG, TODO_TXT, BLAME_ANSWER):
            text = redactor.text(path.read_text(encoding="utf-8", errors="replace"), base_name)
            is_kept = base_name in redactor.kept or ALL in redactor.keep
            files |= {name: text.encode()} if is_kept else {}
    if document_name:
        document = json.loads(read_data(files[document_name]))
        with contextlib.suppress(SubcutError, TypeError):  # one of another version has no reports
            texts = render_reports(results.parse(document))
            files |= {file: text.encode() for file, text in texts.items()}
    for folder in dict.fromkeys((*case_files.cases, *([""] if case_files.is_evidence else []))):
        head = f"{folder}/" if folder else ""
        evidence = found_with if case_files.is_evidence and not folder else None
        manifest = dict(
            evidence or redactor.document(case.read_plain_manifest(case_files.folder / folder))
        )
        own = sorted(name[len(head) :] for name in files if name.startswith(head))
        files[head + MANIFEST] = case.as_json(manifest | {"files": [*own, MANIFEST]})
    return files


def _redact_document(name: str, document: Any, redactor: Redactor) -> Any:
    """Redact a document of subcut; its folder becomes the bundle's, as the redactor leaves only the
    last part of a file's path."""
    redacted = redactor.document(document)
    if name == RUN_JSON and isinstance(redacted.get("model"), dict):
        redacted["model"].pop("network", None)  # the structure of the model stays private
    if name == SWEEP_JSON:
        for entry in redacted.get("candidates", ()):
            entry["folder"] = "."
    return redacted


def collect(paths: Sequence[Path], bases: Sequence[Path], redactor: Redactor) -> dict[str, Path]:
    """Name below `candidate_files/` -> file, of files and folders. Names are relative to the first
    of `bases` around.

    Raises:
        UsageError: a file is not there, or holds a secret. InputError: it cannot be read, or its
            name cannot be used.
    """
    files: dict[str, Path] = {}
    for path in paths:
        if not path.exists():
            raise UsageError(
                f"--candidate-files {path}: no such file",
                "name a file or a folder",
                code="file.not-found",
            )
        for file in map(Path.resolve, _iter_files(path)):
            base = next(
                (b.resolve() for b in bases if file.is_relative_to(b.resolve())),
                path.resolve().parent,
            )
            name = file.relative_to(base).as_posix()
            if kinds := [
                kind
                for kind in redactor.find_leaks(_read(file))
                if "secret" in kind or "token" in kind
            ]:
                raise UsageError(
                    f"{file} holds {kinds[0]}",
                    "take it out of there before it is sent",
                    code="bundle.secret",
                )
            if why := name_problem(f"{CANDIDATE_FILES}/{name}"):
                raise InputError(
                    f"{file}: its name cannot be used: {why}",
                    "rename it",
                    code="bundle.unsafe-name",
                )
            if files.setdefault(name, file) != file:
                raise InputError(
                    f"{file} and {files[name]} would be one file",
                    "rename one",
                    code="bundle.same-name",
                )
    return files


def _read(file: Path) -> bytes:
    fact = f"cannot read {file}"
    with explain_os_error(InputError, fact, "make it readable", code="file.unreadable"):
        return file.read_bytes()


def _iter_files(path: Path) -> Iterator[Path]:
    """Yield a file, or the files of a folder; no hidden files, no links."""
    if path.is_file():
        yield path
        return
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in SKIPPED)
        for file in sorted(files):
            inner = Path(folder, file)
            if not file.startswith(".") and inner.is_file() and not inner.is_symlink():
                yield inner
