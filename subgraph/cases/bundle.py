"""A case <-> one zip that a stranger can read, check and run.

TOP/README.txt  environment.json  bundle.json    what a stranger reads first; the machine; sizes and
digests TOP/…                                            the case or the bisection, redacted
(`contents`) TOP/candidate_files/                             files of the candidate that the user
names (`scripts`)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from os.path import normpath
from pathlib import Path

from subgraph.cases import case, contents, redact, zip_archive
from subgraph.cases.case import CaseOutcome
from subgraph.cases.contents import CaseFiles, collect, data_of
from subgraph.cases.find_case import BundleList
from subgraph.cases.layout import BUNDLE_LIST, BUNDLE_SCHEMA, CANDIDATE_FILES, RUN_JSON, is_evidence
from subgraph.cases.readme import ENVIRONMENT, README, ReadmeData, readme
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
from subgraph.text import clean, count, nearest
from subgraph.types import Fields, JsonObject, frozen
from subgraph.version import __version__

SUFFIX = ".zip"
# ends the folder of the agreeing neighbor that a bisection keeps beside each finding
AGREES = "-agrees"
MAX_NAME = 80  # characters of a bundle's name
MAX_LIST = 64 << 20  # bytes of the list of files


@frozen
class BundleRequest:
    """The case that is packed, and the options.

    Attributes:
        folder: a case, a bisection or a sweep. target: the zip; its one folder has the same name.
        identity: what is packed, in a word: a bundle may overwrite one with the same identity.
        candidate_files: files of the candidate that go along; bases: folders that their names are
            relative to.
        keep: fields and text files whose free texts go along; "all" for all of them.
        source: lines of the user's source code, with their paths, go along in models and documents.
        metadata: other metadata and documentation of models go along.
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
        return folders.safe_name(self.target.stem)


@frozen
class Packed:
    """A bundle that was written.

    Attributes:
        files: name in the bundle → size and digest. warnings: what to look at before it is sent.
        unchanged: what goes along as the user wrote it, a line each.
        left: files of the folder that are not in the bundle. left_texts: fields and text files that
            are left out.
    """

    path: Path
    files: Mapping[str, Checksum]
    warnings: Sequence[str] = ()
    unchanged: Sequence[str] = ()
    left: Sequence[str] = ()
    left_texts: Sequence[str] = ()


def name_of(path: Path) -> str:
    """A case's bundle is named after its folder, and after the folder around where that alone says nothing.

    Commands in the name are redacted.

    >>> name_of(Path("subcut_out/manual-device/todo/5"))
    'manual-device-5'
    """  # noqa: E501
    path = path.resolve()
    own, above = (case.read_plain_manifest(p) for p in (path, path.parent))
    if own and is_evidence(own["schema"]):
        return _redact_name(path, own)
    if above and is_evidence(above["schema"]):
        return folders.safe_name(f"{_redact_name(path.parent, above)}-{path.name}")
    return folders.safe_name(
        f"{path.parent.parent.name}-{path.name}" if path.parent.name == "todo" else path.name
    )


def _redact_name(path: Path, evidence: Fields | None) -> str:
    request = evidence.get("request") if evidence else None
    spec = str(request.get("candidate", "")) if isinstance(request, dict) else ""
    plain = redact.this_machine(_find_secrets(evidence)).spec(spec)
    if redact.REMOVED not in plain and Path(spec).name == spec:
        return folders.safe_name(path.name)
    return folders.safe_name(f"{path.name.partition('-')[0]}-{plain}"[:MAX_NAME])


def plain_name(path: Path) -> str:
    """The folder that a bundle is unpacked to where none is named: its own name without the end."""
    return path.stem if path.suffix.lower() == SUFFIX else f"{path.name}-unpacked"


def require_free(target: Path, identity: str, *, force: bool = False) -> None:
    """Check that a bundle can go there: nothing is there, or an earlier bundle of the same
    identity.

    Raises:
        ResultExists: something else stands there. UsageError: its name does not end in .zip.
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
    try:
        with zip_archive.open_archive(target) as archive:
            is_earlier = json.loads(archive.read(BUNDLE_LIST, MAX_LIST)).get("what") == digest(
                identity
            )
    except (InputError, ValueError, AttributeError, RecursionError):
        is_earlier = False
    if not is_earlier:
        raise ResultExists(
            f"{target} is not an earlier bundle of {identity}",
            "--force replaces it; -o FILE.zip puts the new one elsewhere",
            code="output.exists",
        )


# ------------------------------------------------------------ packing


def pack(request: BundleRequest) -> Packed:
    """Write the bundle of a case. The same case gives the same bytes on the same machine.

    Raises:
        UsageError: there is no case that can be run. ResultExists: another file is in the way.
        UnknownName: the case has no text that is to be kept.
        InputError: a file is missing, or not ours to send. OutputError: it cannot be written.
    """
    case_files = contents.of(request.folder)
    require_free(request.target, request.identity, force=request.force)
    evidence = case_files.evidence
    redactor = replace(
        redact.this_machine(_find_secrets(evidence)), names=contents.names(case_files)
    )
    scripts = collect(request.candidate_files, request.bases, redactor)
    redactor = replace(
        redactor,
        keep=frozenset(request.keep),
        source=request.source,
        metadata=request.metadata,
    )
    found_with = _redact_manifest(evidence, redactor) if evidence else None
    files = contents.redacted(case_files, redactor, found_with)
    files |= {f"{CANDIDATE_FILES}/{name}": path for name, path in scripts.items()}
    with folders.scratch(request.target.parent) as work:
        stripped = []
        models = [(n, p) for n, p in files.items() if isinstance(p, Path) and p.suffix == ".onnx"]
        for k, (name, path) in enumerate([] if request.source else models):
            files[name] = strip_source_code(path, work, f"{k}.onnx", not request.metadata)
            if files[name] != path and request.metadata:
                stripped.append(f"{clean(name)}: its source code is left out (--keep-source)")
        packed = _write_zip(request, case_files, files, redactor, evidence, found_with)
        return replace(packed, warnings=[*packed.warnings, *stripped])


def _write_zip(
    request: BundleRequest,
    case_files: CaseFiles,
    files: dict[str, Path | bytes],
    redactor: Redactor,
    evidence: Fields | None,
    found_with: Fields | None,
) -> Packed:
    """Add what tells of the files, and write the zip."""
    outcome = _read_outcome(request.folder)
    if outcome:
        outcome = CaseOutcome(**redactor.document(to_json(outcome)))
    unchanged = [*_iter_unchanged(files, redactor, found_with)]
    manifests = {c: files[f"{c}/{case.MANIFEST}" if c else case.MANIFEST] for c in case_files.cases}
    cases = {c: json.loads(data_of(source)) for c, source in manifests.items()}
    files[README] = readme(
        ReadmeData(request.name, tuple(sorted(files)), cases, found_with, outcome, unchanged)
    ).encode()
    files[ENVIRONMENT] = case.as_json(to_json(redact.environment()))
    if unknown := sorted(set(request.keep) - redactor.kept - {redact.ALL}):
        left = sorted(redactor.left)
        raise UnknownName(
            f"--keep {unknown[0]}: no text in this case has that name",
            "" if left else "omit --keep: no text is omitted",
            nearest(unknown[0], left) or left,
            code="bundle.unknown-text",
        )
    checksums = {name: zip_archive.checksum_of(source) for name, source in sorted(files.items())}
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
        *_iter_missing_scripts(evidence, files),
        *_iter_suspicious(request.name, files, redactor),
    ]
    return Packed(
        request.target, checksums, warnings, unchanged, case_files.left, sorted(redactor.left)
    )


def _redact_manifest(evidence: Fields, redactor: Redactor) -> JsonObject:
    """The manifest that names the candidate, redacted; its commands run in the folder of its
    files."""
    request = evidence["request"]
    options = {k: v for k, v in request["identity"]["options"].items() if k != "folder"}
    identity = {**request["identity"], "options": options}
    return dict(redactor.document({**evidence, "request": {**request, "identity": identity}}))


def _iter_unchanged(
    files: Mapping[str, Path | bytes], redactor: Redactor, found_with: Fields | None
) -> Iterator[str]:
    """Yield everything that goes along as the user wrote it, or as the candidate said it."""
    if found_with:
        options = found_with["request"]["identity"]["options"].items()
        yield f"candidate: {found_with['request']['candidate']}"
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
        told = f"metadata: {count(entries, 'text')}, documentation: {count(texts, 'text')}"
        yield f"{told} (--strip-metadata leaves them out)"
    yield from (name for name in files if name.startswith(f"{CANDIDATE_FILES}/"))


def _iter_missing_scripts(
    evidence: Fields | None, files: Mapping[str, Path | bytes]
) -> Iterator[str]:
    """Code that the candidate's command names and that does not go along."""
    for word in (evidence or {}).get("request", {}).get("identity", {}).get("files", {}):
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
    """The candidate's outcome on a case of a bisection or a sweep; None where there is none."""
    folder = folder.resolve()
    if folder.name.endswith(AGREES) and (folder.parent / RUN_JSON).is_file():
        why = f"the nearest neighbor of {folder.name.removesuffix(AGREES)}"
        return CaseOutcome("agree", why=why)
    manifest = case.read_manifest(folder)
    found = manifest.found if manifest else None
    return replace(found, candidate=None) if found else None


def _find_secrets(evidence: Fields | None) -> list[str]:
    """Values of a candidate's options that are secret by their name."""
    try:
        options = dict(evidence["request"]["identity"]["options"]) if evidence else {}
    except (KeyError, TypeError, ValueError):
        return []
    return [
        str(v)
        for k, v in options.items()
        if redact.SECRET.search(k) and len(str(v)) > redact.MIN_LENGTH
    ]


def _iter_suspicious(
    top: str, files: Mapping[str, Path | bytes], redactor: Redactor
) -> Iterator[str]:
    """Private details that are left: in names, and in models and scripts, which are packed
    unchanged."""
    if kinds := redactor.leaks(top.encode(), words=True):
        yield f"the bundle's own name has {' and '.join(kinds)}: -o FILE.zip gives it another"
    for name, source in sorted(files.items()):
        text = not isinstance(source, Path) or name.startswith(f"{CANDIDATE_FILES}/")
        kinds = redactor.leaks(name.encode(), words=True)
        hint = ""
        if kinds:
            yield f"{clean(name)}: its name has {' and '.join(kinds)}"
        if text:
            kinds = redactor.leaks(data_of(source), words=True)
        elif isinstance(source, Path) and source.suffix == ".onnx":
            texts = read_texts(source)
            written = "\n".join((*texts.metadata, *texts.documentation)).encode()
            in_metadata = redactor.leaks(written, words=True, addresses=True)
            kinds = redactor.leaks(protobuf.read(source).model.SerializeToString())
            kinds += [kind for kind in in_metadata if kind not in kinds]
            hint = "; --strip-metadata leaves it out" if in_metadata else ""
        else:
            continue
        if kinds:
            yield f"{clean(name)} holds {' and '.join(kinds)}: it goes as it is{hint}"


# ------------------------------------------------------------ unpacking


def unpack(path: Path, place: Path) -> bool:
    """Check a bundle and put its folder at `place`, whole or not at all; False where it stands
    there already.

    Raises:
        InputError: it is not a bundle, is damaged, or has what no bundle has. ResultExists:
            something else stands
            at `place`. OutputError: it cannot be written.
    """
    with zip_archive.open_archive(path) as archive:
        checksums, data = _read_list(archive)
        if place.exists() or place.is_symlink():
            if _is_same(place, data, checksums):
                return False
            raise ResultExists(
                f"{place} is in the way: it is not what {path.name} holds",
                f"-o DIR unpacks elsewhere; subcut replay {place} runs what stands there",
                code="output.exists",
            )
        _require_disk_space(place, archive.total)
        with folders.aside(place) as work:
            archive.unpack(work, checksums, {BUNDLE_LIST: data})
    return True


def _read_list(archive: Archive) -> tuple[dict[str, Checksum], bytes]:
    """The checksums in the bundle's list of files, and the bytes of that list.

    Raises:
        InputError: there is none, or it is damaged.
    """
    data = archive.read(BUNDLE_LIST, MAX_LIST)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise zip_archive.damaged(
            archive.path, f"its {BUNDLE_LIST} cannot be read: {type(e).__name__}"
        ) from e
    if isinstance(document, dict) and (schema := str(document.get("schema"))) != BUNDLE_SCHEMA:
        raise zip_archive.no_bundle(archive.path, f"its list is of another kind, {schema[:80]}")
    listed = from_json(
        BundleList,
        document,
        f"{archive.path}: its {BUNDLE_LIST}",
        "get it anew; nothing was unpacked",
    )
    checksums = {name: checksum for name, checksum in listed.files.items() if name != BUNDLE_LIST}
    for name in checksums:
        folder, _, last = name.rpartition("/")
        if last.lower() in FILE_NAMES and folder.partition("/")[0] != CANDIDATE_FILES:
            raise zip_archive.refused(
                archive.path, f"{name} would set what subcut does in that folder"
            )
    return checksums, data


def _is_same(place: Path, data: bytes, checksums: Mapping[str, Checksum]) -> bool:
    """Return whether the folder holds this bundle, each file unchanged."""
    try:
        return (place / BUNDLE_LIST).read_bytes() == data and all(
            not (place / name).is_symlink() and zip_archive.checksum_of(place / name) == checksum
            for name, checksum in checksums.items()
        )
    except (OSError, SubcutError):
        return False


def _require_disk_space(place: Path, size: int) -> None:
    above = next((p for p in place.absolute().parents if p.exists()), None)
    try:
        free = shutil.disk_usage(above).free if above else size
    except OSError:
        return
    if size > free:
        raise OutputError(
            f"unpacked it has {size:,} bytes, and {above} has {free:,} left",
            "free some space, or choose another -o DIR",
            code="output.disk-full",
        )
