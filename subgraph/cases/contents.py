"""A case's folder -> its files as they may leave: what its manifests list, the texts without who and where.

Tensors and models go as they are. Texts that subcut wrote are cleared (`privacy`); reports are rendered anew from the
cleared document; what a candidate's command names is rewritten (`scripts`). What nothing lists stays here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from subgraph import reports
from subgraph.cases import case, zip_archive
from subgraph.cases.evidence import rendered_reports
from subgraph.cases.find_case import bundle_root
from subgraph.cases.layout import (
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
from subgraph.cases.redact import Redactor
from subgraph.errors import InputError, SubcutError, UsageError
from subgraph.graph import protobuf
from subgraph.text import clean

BROUGHT = {"candidate": (".npy", ".json", ".onnx", ".data"), FROM_DEVICE: (".npy", ".bin")}  # what came, beside a case
TIME = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")
RAW = (".npy", ".bin", ".onnx", ".data")


@dataclass(frozen=True)
class CaseFiles:
    """What belongs to a case, a bisection or a sweep.

    Attributes:
        folder: where it lies. files: name → file.
        around: the manifest that tells the candidate, if any; own: it is this folder's own.
        cases: the folders of the cases in it, "" for itself; the one that tells most comes first.
        left: files that stay, since nothing lists them.
    """

    folder: Path
    files: Mapping[str, Path]
    around: Mapping[str, Any] | None
    own: bool
    cases: tuple[str, ...]
    left: tuple[str, ...]

    def manifest(self, inside: str) -> dict[str, Any]:
        """Of the case in this folder, as it is."""
        found = case.read_manifest(self.folder / inside)
        assert found
        return found


def of(folder: Path) -> CaseFiles:
    """What belongs to the case in a folder.

    Raises:
        UsageError: there is no case, or none that can be run. InputError: a file is missing, or is none of the case.
    """
    if not folder.is_dir():
        raise UsageError(f"no folder {clean(str(folder))}", "name a case that cut or bisect left behind, or a model")
    mine = case.read_manifest(folder)
    if mine is None:
        raise UsageError(f"{clean(str(folder))} is no case", _hint(folder))
    if root := bundle_root(folder):
        again = f"zip it again: python -m zipfile -c {clean(root.resolve().name)}.zip {clean(str(root))}"
        raise UsageError(f"{clean(str(root))} is an unpacked bundle", again)
    above = case.read_manifest(folder.resolve().parent)
    around = next((m for m in (mine, above) if is_evidence(m)), None)
    names = list(map(str, mine["files"]))
    if around is not None and around is not mine:
        head = f"{folder.resolve().name}/"
        names = [str(n)[len(head) :] for n in around["files"] if str(n).startswith(head)]
    names += [n for n in _brought(folder) if n not in names]
    files = {name: _file(folder, name) for name in dict.fromkeys(names)}
    cases = _cases(folder, files, mine)
    inside = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() or p.is_symlink()}
    return CaseFiles(folder, files, around, around is mine, cases, tuple(sorted(inside - set(files))))


def _hint(folder: Path) -> str:
    inside = sorted(p.parent.name for p in folder.glob(f"*/{case.MANIFEST}"))[:8]
    inside = inside or [f"todo/{p.parent.name}" for p in sorted(folder.glob(f"todo/*/{case.MANIFEST}"))[:8]]
    if inside:
        return f"name one of the folders in it: {', '.join(map(clean, inside))}"
    return "name a folder that cut, bisect or sweep left behind, or a model"


def _brought(folder: Path) -> Iterator[str]:
    """What came, where it was put beside a case after its manifest."""
    for place, ends in BROUGHT.items():
        for path in sorted((folder / place).rglob("*")):
            if path.suffix in ends and path.is_file() and not path.is_symlink():
                yield path.relative_to(folder).as_posix()


def _file(folder: Path, name: str) -> Path:
    """A listed file; a manifest may come from anywhere."""
    path, where = folder / name, clean(str(folder))
    if why := zip_archive.name_problem(name):
        raise InputError(f"{where} lists '{clean(name)}', which cannot be sent: {why}", "make the case anew")
    if any(p.is_symlink() for p in (path, *(folder / q for q in PurePosixPath(name).parents if str(q) != "."))):
        raise InputError(f"{where}: {clean(name)} is a link", "put the file itself there")
    if not path.is_file():
        raise InputError(f"{where} lacks {clean(name)}, which its manifest lists", "make the case anew")
    return path


def _cases(folder: Path, files: Mapping[str, Path], mine: Mapping[str, Any]) -> tuple[str, ...]:
    """
    Raises:
        UsageError: there is none, or one has no tensors.
    """
    tops = sorted({name.partition("/")[0] for name in files if name.endswith(f"/{case.MANIFEST}")})
    first = [name for name in FINDING_FOLDERS if name in tops]
    found = [*first, *(name for name in tops if name not in first)] if is_evidence(mine) else [""]
    where = clean(str(folder))
    if not found:
        raise UsageError(f"{where} holds no case", "nothing went wrong there: there is nothing to send")
    for name in found:
        manifest = case.read_manifest(folder / name)
        if manifest is None or "inputs" not in manifest or "region" not in manifest:
            raise UsageError(f"{clean(str(folder / name))} is no case", "name a folder that cut, bisect or sweep made")
        if not manifest.get("samples"):
            what = f"{clean(str(folder / name))} has no tensors: it was cut with --no-capture"
            raise UsageError(what, "cut it without --no-capture")
    return tuple(found)


def names(belongings: CaseFiles) -> set[str]:
    """Names of nodes and tensors, which must stay as they are."""
    found: set[str] = set()
    for name, path in belongings.files.items():
        if path.suffix == ".onnx":
            graph = protobuf.read(path).model.graph
            found |= {graph.name, *(v.name for v in (*graph.input, *graph.output))}
            for node in graph.node:
                found |= {node.name, *node.input, *node.output}
        elif name == RUN_JSON:
            found |= set(_labels(_document(path)))
    return found - {""}


def _labels(value: Any, key: str = "") -> Iterator[str]:
    """Names that a bisection's document speaks of, which its cases need not have."""
    if isinstance(value, Mapping):
        for k, v in value.items():
            yield from _labels(v, str(k)) if k not in ("candidate", "reference") else ()
    elif isinstance(value, list):
        for v in value:
            yield from _labels(v, key)
    elif isinstance(value, str) and key in ("node", "nodes", "tensor", "name", "label", "first", "last", "without"):
        yield value


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise InputError(f"{clean(str(path))} is damaged: {clean(str(e))}", "make the case anew") from e


def as_json(document: Any) -> bytes:
    """A document as our files have it."""
    return (json.dumps(document, indent=1) + "\n").encode("ascii")


# ---------------------------------------------------------------------------------------------------- cleared


def cleared(
    belongings: CaseFiles, private: Redactor, told: Mapping[str, Any] | None, command: str = ""
) -> dict[str, Path | bytes]:
    """All files as they may leave; `told`: the cleared manifest around. `command` made the case, where it says so."""
    found: dict[str, Path | bytes] = {}
    shown = ("", *REPORT_FILES.values())
    for name, path in belongings.files.items():
        last = PurePosixPath(name).name
        if last == case.MANIFEST or (RUN_JSON in belongings.files and name in shown):
            continue
        if path.suffix in RAW:
            found[name] = path
        elif last == REPRO:
            found[name] = REPRO_SCRIPT.read_bytes()
        elif path.suffix == ".json":
            found[name] = as_json(_cleared(name, _document(path), private))
        elif last in (LOG, TODO_TXT):
            found[name] = _lines(path, private).encode()
    if RUN_JSON in belongings.files:
        found |= _reports(json.loads(_read(found[RUN_JSON])))
    for inside in dict.fromkeys((*belongings.cases, *([""] if belongings.own else []))):
        head = f"{inside}/" if inside else ""
        mine = told if belongings.own and not inside else None
        manifest = dict(mine) if mine else private.document(belongings.manifest(inside))
        manifest |= {"command": private.command(command)} if command and not inside else {}
        own = sorted(name[len(head) :] for name in found if name.startswith(head))
        found[head + case.MANIFEST] = as_json(manifest | {"files": [*own, case.MANIFEST]})
    return found


def _cleared(name: str, document: Any, private: Redactor) -> Any:
    """A document of ours; where its cases are is said from the bundle's folder."""
    found = private.document(document)
    if name == RUN_JSON:
        found |= {"report": REPORT_FILES["html"]} if found.get("report") else {}
        for finding in found.get("findings", ()):
            if finding.get("case"):
                finding["case"] = Path(finding["case"]).name
    elif name == SWEEP_JSON:
        for entry in found.get("candidates", ()):
            entry["folder"] = "."
        for row in found.get("rows", ()):
            for result in row.get("results", ()):
                if result.get("case"):
                    result["case"] = Path(result["case"]).name
    return found


def _reports(document: dict[str, Any]) -> dict[str, Path | bytes]:
    """The reports of a cleared document; none where it is of another version."""
    try:
        if reports.problem(document):
            return {}
        return {file: text.encode() for file, text in rendered_reports(document).items()}
    except (SubcutError, KeyError, TypeError, AttributeError):
        return {}


def _lines(path: Path, private: Redactor) -> str:
    """A text of ours, line by line, without times."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        head, sep, rest = TIME.sub("", line).partition("Command: ")
        found.append(f"{head}{sep}{private.command(rest)}" if sep and not head else private.text(head + sep + rest))
    return "".join(f"{line}\n" for line in found)


def _read(source: Path | bytes) -> bytes:
    return source if isinstance(source, bytes) else source.read_bytes()
