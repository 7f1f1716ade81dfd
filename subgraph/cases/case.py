"""Result folders of every kind: where they go, what their manifest says, what may be replaced."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subgraph.documents import absent, to_json
from subgraph.errors import ResultExists
from subgraph.graph.graph import Graph
from subgraph.runtime.capture import Captured
from subgraph.runtime.reference import Reference
from subgraph.storage.convert import TensorFormat, write_bin
from subgraph.storage.tensors import Record
from subgraph.text import shorten
from subgraph.version import __version__

MANIFEST = "manifest.json"
KEYS = frozenset(("schema", "source", "request", "command", "files"))  # in the manifest of each kind of result


@dataclass(frozen=True)
class ResultPlace:
    """Where a result goes, and whether it may replace anything that stands there."""

    parent: Path
    name: str
    force: bool = False

    @property
    def path(self) -> Path:
        return self.parent / self.name


@dataclass(frozen=True)
class ModelSource:
    """What identifies the model that a result was made from, as a manifest has it."""

    file: str
    bytes: int | None = absent()
    structure_sha256: str | None = absent()
    weights_sha256: str | None = absent()
    path: str | None = absent()


@dataclass(frozen=True)
class Case:
    """One result folder and its manifest."""

    path: Path
    manifest: dict[str, Any]


def require_free(place: ResultPlace, request: object, source: ModelSource | None, reads: Sequence[Path] = ()) -> None:
    """May a result go here? Yes where nothing stands, or the same request's own earlier result, untouched.

    With `place.force` also where any other result stands. Never: a folder that subcut did not write, one that we stand
    in, or one that holds what is read (`reads`); a slip of the hand must not cost a folder.

    Raises:
        ResultExists: something else stands there; says what.
    """
    path = place.path
    if not os.path.lexists(path):
        return
    elsewhere = "choose another folder with -o"
    if path.is_symlink() or not path.is_dir():
        raise ResultExists(f"{path} is in the way: it is no folder", f"move it, or {elsewhere}")
    if _holds(path, Path.cwd()):
        raise ResultExists(f"{path} cannot be replaced: it is the folder that you are in", elsewhere)
    mine = read_manifest(path)
    if mine is None:
        if any(path.iterdir()):
            raise ResultExists(f"{path} holds something that subcut did not write", f"move it, or {elsewhere}")
        return
    other = _other(path, mine, request, source)
    if not other:
        return
    if any(_holds(path, p) for p in reads):
        raise ResultExists(f"{path} cannot be replaced: it holds what is read", elsewhere)
    if not place.force:
        raise ResultExists(f"{path} holds {other}", "--force replaces it; -o puts the new one elsewhere")


def is_earlier(place: ResultPlace, request: object, source: ModelSource) -> bool:
    """Does an untouched result of the same request stand there?"""
    mine = read_manifest(place.path)
    return mine is not None and not _other(place.path, mine, request, source)


def _holds(folder: Path, path: Path) -> bool:
    return folder.resolve() in (path.resolve(), *path.resolve().parents)


def _other(path: Path, mine: Mapping[str, Any], request: object, source: ModelSource | None) -> str:
    """What a result folder holds that this request would not write anew; "" if nothing."""
    digest = mine["source"].get("structure_sha256")
    if digest and digest != (source and source.structure_sha256):
        return f"a result of another model, {mine['source'].get('file')}"
    if mine["request"] != request:
        return f"the result of `{shorten(str(mine['command']))}`"
    listed = set(mine["files"])
    strange = [p for p in path.rglob("*") if p.is_file() and p.relative_to(path).as_posix() not in listed]
    return f"files that subcut did not write: {strange[0].relative_to(path)} …" if strange else ""


def read_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest in a folder, if it is one of ours and readable."""
    try:
        data = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or not data.keys() >= KEYS or not str(data["schema"]).startswith("subcut."):
        return None
    return data if isinstance(data["source"], dict) and isinstance(data["files"], list) else None


def write_manifest(manifest: object, work: Path) -> dict[str, Any]:
    """Write the manifest, a dataclass or plain JSON, as the last file of a result; return it as JSON.

    Its key "files", the last, lists all files of the result.
    """
    document: dict[str, Any] = to_json(manifest)
    files = sorted(p.relative_to(work).as_posix() for p in work.rglob("*") if p.is_file())
    document["files"] = [*files, MANIFEST]
    (work / MANIFEST).write_text(json.dumps(document, indent=1) + "\n", encoding="ascii")
    return document


def plain(request: Any) -> Any:
    """A request as JSON would give it back (tuples as lists), to compare with a manifest's."""
    return json.loads(json.dumps(request))


def source_of(graph: Graph) -> ModelSource:
    """What identifies the model that a graph was read from."""
    return ModelSource(graph.path.name, graph.skeleton.size, graph.skeleton.structure)


def versions() -> dict[str, str]:
    """Of what took part; read from the installed metadata, without importing anything."""
    from importlib.metadata import version

    python = ".".join(map(str, sys.version_info[:3]))
    return {"subcut": __version__, "python": python} | {
        name: version(name) for name in ("onnx", "onnxruntime", "numpy")
    }


def reference_of(reference: Reference) -> dict[str, Any]:
    """How the reference values were made."""
    if reference.backend != "ort":
        return {"runtime": Path(reference.backend).name, "options": dict(reference.options)}
    own = {"custom_ops": Path(reference.options["custom_ops"]).name} if "custom_ops" in reference.options else {}
    return {
        "runtime": "onnxruntime",
        "provider": reference.options.get("providers", "CPUExecutionProvider"),
        "optimisation": reference.options["opt"],
        "threads": reference.options["threads"],
    } | own


def sample_of(sample: Captured) -> dict[str, Any]:
    """One sample: its label and what was fed."""
    fed = [
        {"name": r.name, "dtype": r.dtype, "shapes": [list(s) for s in r.shapes], "from": sample.origins[r.name]}
        for r in sample.fed.values()
    ]
    return {"label": sample.label, "fed": fed}


def tensor_of(graph: Graph, name: str, stored: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One tensor over all samples: producer, type, shape (null where samples differ), files."""
    maker = graph.maker.get(name)
    shapes = [s["shapes"] for s in stored]
    return {
        "name": name,
        "producer": None if maker is None else graph.label(maker),
        "dtype": stored[0]["dtype"],
        "form": stored[0]["form"],
        "shape": shapes[0] if all(s == shapes[0] for s in shapes) else None,
        "samples": list(stored),
    }


def store(
    found: Record, source: Path, target: str, work: Path, formats: Iterable[str], form: TensorFormat, *, keep: bool
) -> tuple[dict[str, Any], list[str]]:
    """Put a captured value into `work/target`, in each form asked for; describe it, and say what was lost.

    The true values are always there as .npy; `form` concerns the .bin. `keep`: the captured file is needed again.
    """
    (work / target).mkdir(parents=True, exist_ok=True)
    for file in found.files:
        (shutil.copyfile if keep else shutil.move)(source / file, work / target / file)
    moved = found if target == "." else found.within(target)
    files: list[dict[str, Any]] = [
        {"file": f, "format": "npy", "dtype": found.dtype, "shape": list(s), "layout": ""}
        for f, s in zip(moved.files, moved.shapes, strict=True)
    ]
    losses: list[str] = []
    if "bin" in formats:
        entries, losses = write_bin(moved, work, form)
        files += entries
    shapes = [list(s) for s in found.shapes]
    return {"form": found.form, "dtype": found.dtype, "shapes": shapes, "files": files}, losses
