"""A case <-> one zip that a stranger can read, check and run.

Files of a bundle:
    TOP/README.txt: The description that a stranger reads first.
    TOP/environment.json: The machine.
    TOP/bundle.json: Sizes and digests.
    TOP/…: The case or the bisection, redacted (`contents`).
    TOP/candidate_files/: Files of the candidate that the user names.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from os.path import normpath
from pathlib import Path

from subgraph.cases import case, contents, redact, zip_archive
from subgraph.cases.case import CaseOutcome, EvidenceRequest, Manifest
from subgraph.cases.contents import CaseFiles, PackedFiles, collect, read_data
from subgraph.cases.find_case import BundleList
from subgraph.cases.layout import BUNDLE_LIST, BUNDLE_SCHEMA, CANDIDATE_FILES, RUN_JSON, is_evidence
from subgraph.cases.readme import ENVIRONMENT, README, ReadmeData, write_readme
from subgraph.cases.redact import REMOVED, Redactor
from subgraph.cases.zip_archive import Archive, Checksum
from subgraph.documents import from_json, to_json
from subgraph.errors import (
    InputError,
    OutputError,
    ResultExists,
    SubcutError,
    UnknownName,
    UsageError,
)
from subgraph.graph import protobuf
from subgraph.origins.source import read_texts, strip_source_code
from subgraph.project import FILE_NAMES
from subgraph.runtime.command_line import CODE
from subgraph.storage import folders
from subgraph.storage.digest import digest
from subgraph.text import clean, count, find_nearest
from subgraph.types import Fields, frozen
from subgraph.version import __version__

SUFFIX = ".zip"
# ends the folder of the agreeing neighbor of a finding
AGREES = "-agrees"
MAX_NAME = 80  # characters of a bundle's name
MAX_LIST = 64 << 20  # bytes of the list of files


@frozen
class BundleRequest:
    """The case that is packed, and the options.

    Attributes:
        folder: A case, a bisection or a sweep.
        target: The zip; its one folder has the same name.
        identity: A word for the contents: a bundle can overwrite one with the same identity.
        candidate_files: Files of the candidate that are packed.
        bases: Folders to which the names of these files are relative.
        force: Whether the bundle can overwrite any file.
        keep: Fields and text files whose free texts are packed; "all" for all of them.
        source: Whether models and documents keep lines of the user's source code and their paths.
        metadata: Whether models keep their other metadata and documentation.
    """

    folder: Path
    target: Path
    identity: str
    candidate_files: Sequence[Path] = ()
    bases: Sequence[Path] = ()
    force: bool = False
    keep: Sequence[str] = ()
    source: bool = False
    metadata: bool = True

    @property
    def name(self) -> str:
        """Name of the one folder in the bundle."""
        return folders.make_safe_name(self.target.stem)


@frozen
class Packed:
    """A bundle that was written.

    Attributes:
        path: The zip.
        files: The size and digest of each file, by its name in the bundle.
        warnings: Private details that the bundle may have, a line each.
        unchanged: Texts that are packed as the user wrote them, a line each.
        left: Files of the folder that are not in the bundle.
        left_texts: Fields and text files that are omitted.
    """

    path: Path
    files: Mapping[str, Checksum]
    warnings: Sequence[str] = ()
    unchanged: Sequence[str] = ()
    left: Sequence[str] = ()
    left_texts: Sequence[str] = ()


def name_of(path: Path) -> str:
    """Return the name of a case's bundle: the folder's, with the outer folder's if it is no name.

    Commands in the name are redacted.

    >>> name_of(Path("subcut_out/manual-device/todo/5"))
    'manual-device-5'
    """
    path = path.resolve()
    own, above = map(case.read_manifest, (path, path.parent))
    if own and is_evidence(own.schema):
        return _redact_name(path, own)
    if above and is_evidence(above.schema):
        return folders.make_safe_name(f"{_redact_name(path.parent, above)}-{path.name}")
    return folders.make_safe_name(
        f"{path.parent.parent.name}-{path.name}" if path.parent.name == "todo" else path.name
    )


def _redact_name(path: Path, manifest: Manifest) -> str:
    evidence = manifest.evidence
    spec = evidence.candidate if evidence else ""
    plain = redact.make_redactor(_find_secrets(evidence)).redact_spec(spec)
    if redact.REMOVED not in plain and Path(spec).name == spec:
        return folders.make_safe_name(path.name)
    return folders.make_safe_name(f"{path.name.partition('-')[0]}-{plain}"[:MAX_NAME])


def make_plain_name(path: Path) -> str:
    """Return the default folder of an unpacked bundle: the name of the zip without its suffix."""
    if path.suffix.lower() == SUFFIX:
        return path.stem
    return f"{path.name}-unpacked"


def require_free(target: Path, identity: str, *, force: bool = False) -> None:
    """Check that a bundle can be written: no file exists, or an earlier bundle of the same
    identity.

    Raises:
        ResultExists: Another file exists.
        UsageError: The name does not end in .zip.
    """
    if target.suffix.lower() != SUFFIX:
        raise UsageError(
            f"-o {target}: a bundle is a .zip",
            f"-o {target.name}.zip",
            code="bundle.output-not-zip",
        )
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise ResultExists(
            f"{target} is in the way: it is not a file",
            "choose another -o FILE.zip",
            code="output.exists",
        )
    if force or not target.exists():
        return
    with (
        contextlib.suppress(InputError, ValueError, AttributeError, RecursionError),
        zip_archive.open_archive(target) as archive,
    ):
        if json.loads(archive.read(BUNDLE_LIST, MAX_LIST)).get("what") == digest(identity):
            return
    raise ResultExists(
        f"{target} is not an earlier bundle of {identity}",
        "--force replaces it; -o FILE.zip puts the new one elsewhere",
        code="output.exists",
    )


# ------------------------------------------------------------ packing


def pack(request: BundleRequest) -> Packed:
    """Write the bundle of a case. The same case has the same bytes on the same machine.

    Raises:
        UsageError: There is no case that can be run.
        ResultExists: Another file is in the way.
        UnknownName: The case has no text of a name in `keep`.
        InputError: A file is missing or cannot be sent.
        OutputError: The bundle cannot be written.
    """
    case_files = contents.find_files(request.folder)
    require_free(request.target, request.identity, force=request.force)
    evidence = case_files.evidence
    redactor = replace(
        redact.make_redactor(_find_secrets(evidence.evidence if evidence else None)),
        names=contents.list_names(case_files),
        keep=frozenset(request.keep),
        source=request.source,
        metadata=request.metadata,
    )
    scripts = collect(request.candidate_files, request.bases, redactor)
    found_with = None
    if evidence:  # the candidate's commands run in the folder of its files
        named = case.read_plain_manifest(case_files.evidence_folder)
        assert named
        named["request"]["identity"]["options"].pop("folder", None)
        found_with = redactor.document(named)
    files = contents.redact_files(case_files, redactor, found_with)
    files |= {f"{CANDIDATE_FILES}/{name}": path for name, path in scripts.items()}
    with folders.make_scratch(request.target.parent) as work:
        stripped = []
        models = [(n, p) for n, p in files.items() if isinstance(p, Path) and p.suffix == ".onnx"]
        for k, (name, path) in enumerate([] if request.source else models):
            files[name] = strip_source_code(path, work, f"{k}.onnx", not request.metadata)
            if files[name] != path and request.metadata:
                stripped.append(f"{clean(name)}: its source code is left out (--keep-source)")
        packed = _write_zip(request, case_files, files, redactor, found_with)
        return replace(packed, warnings=[*packed.warnings, *stripped])


def _write_zip(
    request: BundleRequest,
    case_files: CaseFiles,
    files: PackedFiles,
    redactor: Redactor,
    found_with: Fields | None,
) -> Packed:
    """Add the files that describe the others, and write the zip."""
    outcome = _read_outcome(request.folder)
    if outcome:
        outcome = CaseOutcome(**redactor.document(to_json(outcome)))
    evidence = from_json(Manifest, found_with).evidence if found_with else None
    unchanged = [*_iter_unchanged(files, redactor, evidence)]
    manifests = {c: files[f"{c}/{case.MANIFEST}" if c else case.MANIFEST] for c in case_files.cases}
    cases = {c: from_json(Manifest, json.loads(read_data(m))) for c, m in manifests.items()}
    names = tuple(sorted(files))
    data = ReadmeData(request.name, names, cases, evidence, outcome, unchanged)
    lacks_words = found_with is not None and redact.REMOVED in str(found_with["request"])
    files[README] = write_readme(data, lacks_words=lacks_words).encode()
    files[ENVIRONMENT] = case.as_json(to_json(redact.describe_environment()))
    if unknown := sorted(set(request.keep) - redactor.kept - {redact.ALL}):
        left = sorted(redactor.left)
        raise UnknownName(
            f"--keep {unknown[0]}: no text in this case has that name",
            "" if left else "omit --keep: no text is omitted",
            find_nearest(unknown[0], left) or left,
            code="bundle.unknown-text",
        )
    checksums = {
        name: zip_archive.compute_checksum(source) for name, source in sorted(files.items())
    }
    own = None if case_files.is_evidence else found_with
    listing = BundleList(
        what=digest(request.identity),
        subcut=__version__,
        found_with=own,
        found=outcome,
        files=checksums,
    )
    files[BUNDLE_LIST] = case.as_json(to_json(listing))
    zip_archive.write(files, request.name, request.target)
    warnings = [
        *_iter_missing_scripts(case_files.evidence, files),
        *_iter_suspicious(request.name, files, redactor),
    ]
    return Packed(
        request.target, checksums, warnings, unchanged, case_files.left, sorted(redactor.left)
    )


def _iter_unchanged(
    files: PackedFiles, redactor: Redactor, evidence: EvidenceRequest | None
) -> Iterator[str]:
    """Yield all texts that are packed as the user wrote them or the candidate printed them."""
    if evidence:
        options = evidence.identity.options.items()
        yield f"candidate: {evidence.candidate}"
        yield from (
            f"{k}: {v}" for k, v in options if v not in ("", None) and v != REMOVED and k != REMOVED
        )
    if redactor.kept:
        yield f"texts: {', '.join(sorted(redactor.kept))}"
    models = [
        read_texts(path)
        for path in files.values()
        if isinstance(path, Path) and path.suffix == ".onnx"
    ]
    entries = sum(len(m.metadata) for m in models)
    texts = sum(len(m.documentation) for m in models)
    if entries or texts:
        sentence = f"metadata: {count(entries, 'text')}, documentation: {count(texts, 'text')}"
        yield f"{sentence} (--strip-metadata leaves them out)"
    yield from (name for name in files if name.startswith(f"{CANDIDATE_FILES}/"))


def _iter_missing_scripts(manifest: Manifest | None, files: PackedFiles) -> Iterator[str]:
    """Yield a warning for each script of the candidate's command that is not packed."""
    evidence = manifest.evidence if manifest else None
    for word in evidence.identity.files if evidence else ():
        goes = (
            f"{CANDIDATE_FILES}/{Path(normpath(word)).as_posix()}" in files
            or Path(word).resolve() in files.values()
        )
        if word.endswith(CODE) and not goes:
            yield (
                f"{clean(Path(word).name)} of the candidate is not packed: --candidate-files PATH"
                " packs it"
            )


def _read_outcome(folder: Path) -> CaseOutcome | None:
    """Return the candidate's outcome on a case of a bisection or a sweep; None without one."""
    folder = folder.resolve()
    if folder.name.endswith(AGREES) and (folder.parent / RUN_JSON).is_file():
        why = f"the nearest neighbor of {folder.name.removesuffix(AGREES)}"
        return CaseOutcome("agree", why=why)
    manifest = case.read_manifest(folder)
    outcome = manifest.found if manifest else None
    return replace(outcome, candidate=None) if outcome else None


def _find_secrets(evidence: EvidenceRequest | None) -> list[str]:
    """Find the values of a candidate's options that are secret by their name."""
    options = evidence.identity.options if evidence else {}
    return [
        str(v)
        for k, v in options.items()
        if redact.SECRET.search(k) and len(str(v)) > redact.MIN_LENGTH
    ]


def _iter_suspicious(top: str, files: PackedFiles, redactor: Redactor) -> Iterator[str]:
    """Yield private details in names, and in models and scripts, which are packed unchanged."""
    if kinds := redactor.find_leaks(top.encode(), words=True):
        yield f"the bundle's own name has {' and '.join(kinds)}: -o FILE.zip sets another"
    for name, source in sorted(files.items()):
        text = not isinstance(source, Path) or name.startswith(f"{CANDIDATE_FILES}/")
        kinds = redactor.find_leaks(name.encode(), words=True)
        hint = ""
        if kinds:
            yield f"{clean(name)}: its name has {' and '.join(kinds)}"
        if text:
            kinds = redactor.find_leaks(read_data(source), words=True)
        elif isinstance(source, Path) and source.suffix == ".onnx":
            texts = read_texts(source)
            written = "\n".join((*texts.metadata, *texts.documentation)).encode()
            in_metadata = redactor.find_leaks(written, words=True, addresses=True)
            kinds = redactor.find_leaks(protobuf.read(source).model.SerializeToString())
            kinds += [kind for kind in in_metadata if kind not in kinds]
            hint = "; --strip-metadata leaves it out" if in_metadata else ""
        else:
            continue
        if kinds:
            yield f"{clean(name)} holds {' and '.join(kinds)}: it goes as it is{hint}"


# ------------------------------------------------------------ unpacking


def unpack(path: Path, place: Path) -> bool:
    """Check a bundle and write its complete folder to `place`; return False if it exists already.

    Raises:
        InputError: The file is not a bundle, is damaged, or has entries that no bundle has.
        ResultExists: Another folder or file is at `place`.
        OutputError: The folder cannot be written.
    """
    with zip_archive.open_archive(path) as archive:
        checksums, data = _read_list(archive)
        if place.exists() or place.is_symlink():
            if _is_same(place, data, checksums):
                return False
            raise ResultExists(
                f"{place} is in the way: it is not what {path.name} holds",
                f"-o DIR unpacks elsewhere; subcut replay {place} runs its present contents",
                code="output.exists",
            )
        above = next((p for p in place.absolute().parents if p.exists()), None)
        free = archive.total
        if above:
            with contextlib.suppress(OSError):
                free = shutil.disk_usage(above).free
        if archive.total > free:
            raise OutputError(
                f"unpacked it has {archive.total:,} bytes, and {above} has {free:,} left",
                "free some space, or choose another -o DIR",
                code="output.disk-full",
            )
        with folders.write_aside(place) as work:
            archive.unpack(work, checksums, {BUNDLE_LIST: data})
    return True


def _read_list(archive: Archive) -> tuple[dict[str, Checksum], bytes]:
    """Return the checksums in the bundle's list of files, and the bytes of that list.

    Raises:
        InputError: The list is missing or damaged.
    """
    data = archive.read(BUNDLE_LIST, MAX_LIST)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise zip_archive.make_damage_error(
            archive.path, f"its {BUNDLE_LIST} cannot be read: {type(e).__name__}"
        ) from e
    if isinstance(document, dict) and (schema := str(document.get("schema"))) != BUNDLE_SCHEMA:
        raise zip_archive.make_kind_error(
            archive.path, f"its list is of another kind, {schema[:80]}"
        )
    listed = from_json(
        BundleList,
        document,
        f"{archive.path}: its {BUNDLE_LIST}",
        "get it again; nothing was unpacked",
    )
    checksums = {name: checksum for name, checksum in listed.files.items() if name != BUNDLE_LIST}
    for name in checksums:
        folder, _, last = name.rpartition("/")
        if last.lower() in FILE_NAMES and folder.partition("/")[0] != CANDIDATE_FILES:
            raise zip_archive.make_refusal(
                archive.path, f"{name} would set what subcut does in that folder"
            )
    return checksums, data


def _is_same(place: Path, data: bytes, checksums: Mapping[str, Checksum]) -> bool:
    """Return whether the folder holds this bundle, each file unchanged."""
    try:
        return (place / BUNDLE_LIST).read_bytes() == data and all(
            not (place / name).is_symlink()
            and zip_archive.compute_checksum(place / name) == checksum
            for name, checksum in checksums.items()
        )
    except (OSError, SubcutError):
        return False
