"""A case -> what it was found with, and its trial on any candidate.

A case lies in a folder that cut, bisect, sweep or manual left, or in an unpacked bundle. What it was found with is told
by the manifest around it, or by the bundle's list; paths of a bundle are relative to it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from subgraph.cases import case
from subgraph.cases.layout import BUNDLE_LIST, BUNDLE_SCHEMA, CANDIDATE_FILES, FINDING_FOLDERS, is_evidence
from subgraph.cases.zip_archive import name_problem
from subgraph.errors import InputError, UsageError
from subgraph.graph.graph import load
from subgraph.runtime import candidate as candidates
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.runtime.run_result import RunResult
from subgraph.runtime.worker_pool import Workers
from subgraph.storage.digest import file_digest
from subgraph.text import clean
from subgraph.trials import candidate_model
from subgraph.trials.session import Setup, open_trials
from subgraph.trials.trial import Trials

CASES = 8  # named where there are several


@dataclass(frozen=True)
class FoundCase:
    """A case that was found.

    Attributes:
        manifest: its own. around: what tells the candidate that it was found with, if any.
        root: the bundle that it lies in, if it lies in one.
    """

    place: Path
    manifest: dict[str, Any]
    around: dict[str, Any] | None = None
    root: Path | None = None


def find(folder: Path) -> FoundCase:
    """The case in a folder; of a bisection the region that tells most.

    Raises:
        UsageError: there is none, several and none tells most, or its manifest is damaged.
    """
    if not folder.is_dir():
        raise UsageError(f"no folder {clean(str(folder))}", "name a case: what cut or bisect left behind")
    place, around = _place(folder)
    root = next((p for p in (place, place.resolve().parent) if (p / BUNDLE_LIST).is_file()), None)
    if root is not None and around is None:
        around = listed(root).get("found_with")
    manifest = case.read_manifest(place)
    _check(place, manifest, around)
    if manifest is None or "inputs" not in manifest:
        raise UsageError(f"{clean(str(place))} is no case", "name a folder that `subcut cut` or `subcut bisect` made")
    return FoundCase(place, manifest, around, root)


def _place(folder: Path) -> tuple[Path, dict[str, Any] | None]:
    """The folder of one case, and the manifest around it, if any."""
    around = case.read_manifest(folder)
    if not is_evidence(around):
        above = case.read_manifest(folder.resolve().parent)
        return folder, above if is_evidence(above) else None
    inner = next((folder / name for name in FINDING_FOLDERS if (folder / name).is_dir()), None)
    if inner is None:
        inside = sorted(p.name for p in folder.iterdir() if (p / case.MANIFEST).is_file())
        if not inside:
            raise UsageError(f"{clean(str(folder))} holds no region", "the bisection named none")
        if len(inside) > 1:
            some = ", ".join(map(clean, inside[:CASES])) + (", …" if len(inside) > CASES else "")
            raise UsageError(f"{clean(str(folder))} holds {len(inside)} cases", f"name the folder of one: {some}")
        inner = folder / inside[0]
    return inner, around


def listed(root: Path) -> dict[str, Any]:
    """The list of an unpacked bundle.

    Raises:
        UsageError: it is damaged.
    """
    try:
        found = json.loads((root / BUNDLE_LIST).read_text(encoding="utf-8"))
        if not isinstance(found, dict) or found.get("schema") != BUNDLE_SCHEMA:
            raise ValueError(f"its schema is not {BUNDLE_SCHEMA}")
        return found
    except (OSError, ValueError, RecursionError) as e:
        raise UsageError(
            f"{clean(str(root / BUNDLE_LIST))} is damaged: {clean(str(e))}", "unpack the bundle anew"
        ) from e


def _check(place: Path, own: Mapping[str, Any] | None, around: Mapping[str, Any] | None) -> None:
    """
    Raises:
        UsageError: a manifest of the case lacks what is needed; a folder without one is told by others.
    """
    try:
        if around is not None:
            identity = around["request"]["identity"]
            if not isinstance(identity["backend"], str):
                raise TypeError("a backend that is no text")
            _ = around["request"]["candidate"], dict(identity["options"])
            limits = float(identity["timeout"]), float(identity["memory"] or 1)
            if not min(limits) > 0:
                raise ValueError("a limit of nothing")
        if own is not None and "inputs" in own:
            _check_tensors(own)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as e:
        raise UsageError(
            f"the manifest of the case {clean(str(place))} is damaged: {type(e).__name__} {clean(str(e))}",
            "make the case anew, or run the repro.py in it",
        ) from e


def _check_tensors(own: Mapping[str, Any]) -> None:
    """Each tensor has its files for each sample, and they are files of the case."""
    labels = [str(sample["label"]) for sample in own["samples"]]
    expected = own.get("expected")
    if expected is not None:
        _ = str(expected["test"]), float(expected["rtol"]), float(expected["atol"])
    for tensor in (*own["inputs"], *(own["outputs"] if expected is not None else ())):
        stored = [tensor["samples"][k] for k in range(len(labels))]
        for sample in stored:
            _ = sample["form"], sample["dtype"], [tuple(map(int, shape)) for shape in sample["shapes"]]
            for file in sample["files"]:
                if why := name_problem(str(file["file"])):
                    raise ValueError(f"the file {file['file']!r}: {why}")
                _ = file["format"]
        if not isinstance(tensor["name"], str):
            raise TypeError("a name that is no text")


# ---------------------------------------------------------------------------------------------------- candidate


def found_with(found: FoundCase) -> Candidate | None:
    """The candidate that a case was found with; None where nothing tells it. Its commands need trust.

    Raises:
        UsageError: it was run by hand, or its precision means nothing.
    """
    if found.around is None:
        return None
    request = found.around["request"]
    identity = request["identity"]
    by = {candidates.BY_HAND: "run by hand", candidates.RECORDED: "recorded"}.get(identity["backend"])
    if by:
        raise UsageError(f"{clean(str(request['candidate']))} was {by}", "-c SPEC says what is to run this case")
    claim = candidates.precision("this case", request.get("precision"))
    wanted = Candidate(
        str(request["candidate"]), str(identity["backend"]), dict(identity["options"]), claim, None,
        float(identity["timeout"]), identity["memory"], origin="this case",
    )  # fmt: skip
    return wanted if found.root is None else _of_bundle(wanted, found.root)


def _of_bundle(wanted: Candidate, root: Path) -> Candidate:
    """Its files are those of the bundle, its commands run among them; to be trusted anew when one of them changes."""
    home = root.resolve() / CANDIDATE_FILES

    def whole(value: Any) -> Any:
        inside = isinstance(value, str) and value.startswith(f"{CANDIDATE_FILES}/") and not name_problem(value)
        return str(root.resolve() / value) if inside else value

    options = {k: whole(v) for k, v in wanted.options.items() if k != "folder" or wanted.backend != "cmd"}
    if wanted.backend == "cmd" and home.is_dir():
        options["folder"] = str(home)
    seal = hashlib.sha256()
    for file in sorted(p for p in home.rglob("*") if p.is_file()):
        seal.update(f"{file.relative_to(home).as_posix()} {file_digest(file)}\n".encode(errors="surrogatepass"))
    origin = f"this bundle ({seal.hexdigest()[:12]})"
    backend = whole(wanted.backend)
    if backend.endswith(".py") and not Path(backend).is_file():
        what = f"the candidate's file {clean(Path(backend).name)} is not in the bundle"
        raise UsageError(what, "-c SPEC says what is to run this case")
    return replace(wanted, backend=backend, options=options, origin=origin)


# ---------------------------------------------------------------------------------------------------- trial


@contextmanager
def asking(
    place: Path, manifest: Mapping[str, Any], k: int, candidate: Candidate, rule: str, reference: Reference
) -> Iterator[Trials]:
    """Trials on a case's model, fed with its sample `k`.

    Raises:
        InputError: an input is no single tensor. Others as `session.open_trials`.
    """
    words = []
    for tensor in manifest["inputs"]:
        files = [f["file"] for f in tensor["samples"][k]["files"] if f["format"] == "npy"] if tensor["samples"] else []
        if len(files) != 1:
            raise InputError(f"input '{clean(tensor['name'])}' of the case is no single tensor", "run its repro.py")
        words.append(f"{tensor['name']}={place / files[0]}")
    graph = load(place / "model.onnx")
    with (
        tempfile.TemporaryDirectory(prefix="subcut-") as temporary,
        reference as running,
        Workers(candidate) as workers,
    ):
        setup = Setup(candidate, Feeding(tuple(words)), Path(temporary), rule)
        with open_trials(graph, setup, running, workers) as asked:
            asked.candidate_model = candidate_model.of_case(graph, place / "candidate")
            yield asked


def put(answer: RunResult, manifest: Mapping[str, Any], k: int, place: Path) -> None:
    """What a candidate gave for sample `k` of a case, in `candidate/`, under the names that `outputs/` has."""
    for tensor in manifest["outputs"]:
        names = [f["file"] for f in tensor["samples"][k]["files"] if f["format"] == "npy"]
        given = answer.tensors[0].get(tensor["name"]) if answer.tensors else None
        for name, file in zip(names, given.files if given else (), strict=False):
            target = place / "candidate" / PurePosixPath(name).relative_to("outputs")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
