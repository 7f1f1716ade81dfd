"""A case -> one zip that a stranger can read, check and run; and back.

TOP/README.txt  environment.json  bundle.json    what a stranger reads first; the machine; sizes and digests
TOP/…                                            the case or the bisection, as it may leave (`belongings`)
TOP/candidate_files/                             the scripts that the candidate's command names (`scripts`)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from subgraph.cases import case, contents, redact, zip_archive
from subgraph.cases.contents import CaseFiles, as_json
from subgraph.cases.layout import BUNDLE_LIST, BUNDLE_SCHEMA, CANDIDATE_FILES, RUN_JSON, is_evidence
from subgraph.cases.readme import ENVIRONMENT, README, ReadmeData, letter
from subgraph.cases.redact import Redactor
from subgraph.cases.scripts import Scripts
from subgraph.cases.zip_archive import Archive, Listed
from subgraph.errors import InputError, OutputError, ResultExists, SubcutError, UsageError
from subgraph.graph import protobuf
from subgraph.storage import folders as folder
from subgraph.storage.digest import digest
from subgraph.text import clean
from subgraph.version import __version__

SUFFIX = ".zip"
AGREES = "-agrees"  # the end of a folder that a bisection keeps beside what goes wrong
LONG = 80  # characters of a bundle's name
MOST_LIST = 64 << 20  # bytes of the list of files


@dataclass(frozen=True)
class BundleRequest:
    """What is to be packed, and how.

    Attributes:
        folder: a case, a bisection or a sweep. target: the zip, whose one folder is called like it.
        what: is packed, in a word: two bundles of the same are one another's earlier result.
        given: files of the candidate that are to go along; bases: folders in which they go along by themselves.
        around: what tells the candidate, where no manifest around the case does; found: what it gave.
        command: what made the case, where its manifest does not say it.
    """

    folder: Path
    target: Path
    what: str
    given: Sequence[Path] = ()
    bases: Sequence[Path] = ()
    around: Mapping[str, Any] | None = None
    found: Mapping[str, Any] | None = None
    command: str = ""
    force: bool = False

    @property
    def name(self) -> str:
        """Of the one folder in the bundle."""
        return folder.safe_name(self.target.stem)


@dataclass(frozen=True)
class Packed:
    """A bundle that was written.

    Attributes:
        files: what is in it. warnings: what to look at before it is sent. left: files of the folder that stayed.
    """

    path: Path
    files: Mapping[str, Listed]
    warnings: Sequence[str] = ()
    left: Sequence[str] = field(default=())


def name_of(path: Path) -> str:
    """What a case's bundle is called: its folder, and what it belongs to where that alone says nothing.

    A folder that is called after a command with paths or secrets in it is not.

    >>> name_of(Path("subcut_out/manual-device/todo/5"))
    'manual-device-5'
    """
    path = path.resolve()
    own, above = (case.read_manifest(p) for p in (path, path.parent))
    if is_evidence(own):
        return _called(path, own)
    if is_evidence(above):
        return folder.safe_name(f"{_called(path.parent, above)}-{path.name}")
    return folder.safe_name(f"{path.parent.parent.name}-{path.name}" if path.parent.name == "todo" else path.name)


def _called(path: Path, around: Mapping[str, Any] | None) -> str:
    request = around.get("request") if around else None
    spec = str(request.get("candidate", "")) if isinstance(request, dict) else ""
    plain = redact.here(secrets=_secrets(around)).command(spec)
    if redact.same(spec, plain):
        return folder.safe_name(path.name)
    return folder.safe_name(f"{path.name.partition('-')[0]}-{plain}"[:LONG])


def plain_name(path: Path) -> str:
    """The folder that a bundle is unpacked to where none is named: its own name without the end."""
    return path.stem if path.suffix.lower() == SUFFIX else f"{path.name}-unpacked"


def require_free(target: Path, what: str, *, force: bool = False) -> None:
    """May a bundle go there? Yes where nothing stands, or an earlier bundle of the same.

    Raises:
        ResultExists: something else stands there. UsageError: its name does not end in .zip.
    """
    if target.suffix.lower() != SUFFIX:
        raise UsageError(f"-o {clean(str(target))}: a bundle is a .zip", f"-o {clean(target.name)}.zip")
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise ResultExists(f"{clean(str(target))} is in the way: it is no file", "choose another -o FILE.zip")
    if force or not target.exists():
        return
    try:
        with zip_archive.opened(target) as there:
            mine = json.loads(there.read(BUNDLE_LIST, MOST_LIST)).get("what") == digest(what)
    except (InputError, ValueError, AttributeError, RecursionError):
        mine = False
    if not mine:
        said = f"{clean(str(target))} is no earlier bundle of {clean(what)}"
        raise ResultExists(said, "--force replaces it; -o FILE.zip puts the new one elsewhere")


# ---------------------------------------------------------------------------------------------------- packing


def pack(wish: BundleRequest) -> Packed:
    """Write the bundle of a case. The same case gives the same bytes on the same machine.

    Raises:
        UsageError: there is no case that can be run. ResultExists: another file is in the way.
        InputError: a file is missing, or not ours to send. OutputError: it cannot be written.
    """
    require_free(wish.target, wish.what, force=wish.force)
    mine = contents.of(wish.folder)
    around = wish.around or mine.around
    private = redact.here(contents.names(mine), _secrets(around))
    scripts = Scripts(private, wish.bases)
    for path in wish.given:
        scripts.give(path)
    told = scripts.of(around) if around else None
    found = contents.cleared(mine, private, told, wish.command)
    found |= {f"{CANDIDATE_FILES}/{name}": path for name, path in scripts.files.items()}
    said = wish.found or _said(wish.folder)
    answer = private.document(said) if said else None
    found[README] = _letter(wish.name, mine, found, told, answer).encode()
    found[ENVIRONMENT] = as_json(private.document(redact.environment()))
    listed = {name: zip_archive.listed(source) for name, source in sorted(found.items())}
    found[BUNDLE_LIST] = as_json(
        {
            "schema": BUNDLE_SCHEMA,
            "what": digest(wish.what),
            "subcut": __version__,
            "found_with": None if mine.own else told,
            "found": answer,
            "files": {name: {"bytes": f.size, "sha256": f.sha256} for name, f in listed.items()},
        }
    )
    zip_archive.write(found, wish.name, wish.target)
    left = [f"{name}: {why}" for name, why in scripts.left.items()]
    return Packed(wish.target, listed, [*left, *_suspicious(wish.name, found, private)], mine.left)


def _said(place: Path) -> dict[str, Any] | None:
    """The verdict of a bisection on one of its regions, from the document beside it; None where there is none."""
    if place.resolve().name.endswith(AGREES) and (place.resolve().parent / RUN_JSON).is_file():
        return {"status": "agree", "why": f"the nearest neighbour of {place.resolve().name.removesuffix(AGREES)}"}
    try:
        document = json.loads((place.resolve().parent / RUN_JSON).read_text(encoding="utf-8"))
        finding = next(f for f in document["findings"] if Path(f["case"] or "").name == place.resolve().name)
        output = finding["verdict"]["outputs"][0]["name"] if finding["verdict"]["outputs"] else ""
        why = f"{output}: {finding['verdict']['why']}" if output else finding["verdict"]["why"]
        return {"status": finding["verdict"]["status"], "why": why}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, StopIteration, RecursionError):
        return None


def _secrets(around: Mapping[str, Any] | None) -> list[str]:
    """Values of a candidate's options that are secret by their name."""
    try:
        options = dict(around["request"]["identity"]["options"]) if around else {}
    except (KeyError, TypeError, ValueError):
        return []
    return [str(v) for k, v in options.items() if redact.SECRET.search(k) and len(str(v)) > redact.SHORT]


def _letter(
    name: str, mine: CaseFiles, found: Mapping[str, Path | bytes], told: Mapping[str, Any] | None, answer: Any
) -> str:
    def document(file: str) -> Any:
        data = found[file]
        assert isinstance(data, bytes)
        return json.loads(data)

    cases = {c: document(f"{c}/{case.MANIFEST}" if c else case.MANIFEST) for c in mine.cases}
    return letter(
        ReadmeData(name, tuple(sorted(found)), cases, told, document(RUN_JSON) if RUN_JSON in found else None, answer)
    )


def _suspicious(top: str, found: Mapping[str, Path | bytes], private: Redactor) -> Iterator[str]:
    """What a look through all that leaves finds: in models and scripts, which go as they are, and in names."""
    if kinds := private.found(top.encode(), words=True):
        yield f"the bundle's own name has {' and '.join(kinds)}: -o FILE.zip gives it another"
    for name, source in sorted(found.items()):
        text = not isinstance(source, Path) or name.startswith(f"{CANDIDATE_FILES}/")
        kinds = private.found(name.encode(), words=True)
        if kinds:
            yield f"{clean(name)}: its name has {' and '.join(kinds)}"
        if text:
            kinds = private.found(source if isinstance(source, bytes) else source.read_bytes(), words=True)
        elif isinstance(source, Path) and source.suffix == ".onnx":
            kinds = private.found(protobuf.read(source).model.SerializeToString())
        else:
            continue
        if kinds:
            yield f"{clean(name)} holds {' and '.join(kinds)}: it goes as it is"


# ---------------------------------------------------------------------------------------------------- unpacking


def unpack(path: Path, place: Path) -> bool:
    """Check a bundle and put its folder at `place`, whole or not at all; False where it stands there already.

    Raises:
        InputError: it is no bundle, is damaged, or has what no bundle of ours has. ResultExists: something else stands
            at `place`. OutputError: it cannot be written.
    """
    with zip_archive.opened(path) as there:
        listed, data = _listed(there)
        if place.exists() or place.is_symlink():
            if _is_same(place, data, listed):
                return False
            raise ResultExists(
                f"{clean(str(place))} is in the way: it is not what {clean(path.name)} holds",
                f"-o DIR unpacks elsewhere; subcut replay {clean(str(place))} runs what stands there",
            )
        _require_room(place, there.total)
        with folder.aside(place) as work:
            there.unpack(work, listed, {BUNDLE_LIST: data})
    return True


def _listed(there: Archive) -> tuple[dict[str, Listed], bytes]:
    """The bundle's list of files, and its bytes.

    Raises:
        InputError: there is none, or it is damaged.
    """
    data = there.read(BUNDLE_LIST, MOST_LIST)
    try:
        document = json.loads(data)
        if document["schema"] != BUNDLE_SCHEMA:
            raise zip_archive.no_bundle(
                there.path, f"its list is of another kind, {clean(str(document['schema']))[:80]}"
            )
        files = document["files"].items()
        found = {
            str(name): Listed(int(entry["bytes"]), str(entry["sha256"])) for name, entry in files if name != BUNDLE_LIST
        }
        return found, data
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise zip_archive.damaged(there.path, f"its {BUNDLE_LIST} cannot be read: {type(e).__name__}") from e


def _is_same(place: Path, data: bytes, listed: Mapping[str, Listed]) -> bool:
    """Does the folder hold this bundle, each file as it was?"""
    try:
        return (place / BUNDLE_LIST).read_bytes() == data and all(
            not (place / name).is_symlink() and zip_archive.listed(place / name) == wanted
            for name, wanted in listed.items()
        )
    except (OSError, SubcutError):
        return False


def _require_room(place: Path, size: int) -> None:
    above = next((p for p in place.absolute().parents if p.exists()), None)
    try:
        free = shutil.disk_usage(above).free if above else size
    except OSError:
        return
    if size > free:
        what = f"unpacked it has {size:,} bytes, and {clean(str(above))} has {free:,} left"
        raise OutputError(what, "free some space, or choose another -o DIR")
