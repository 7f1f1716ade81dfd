"""`subcut bundle`: a case, or a whole model with its values -> one file that can be mailed and run elsewhere."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from subgraph import project
from subgraph.commands import Result, log, options
from subgraph.errors import UsageError
from subgraph.text import clean, count

if TYPE_CHECKING:
    from subgraph.cases.bundle import BundleRequest, Packed
    from subgraph.graph.graph import Graph
    from subgraph.runtime.candidate import Candidate

UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
SHOWN = 4  # files that stay, by name


def bundle(
    source: Annotated[
        str, typer.Argument(metavar="CASE|MODEL", help="What cut, bisect, sweep or manual left; or a whole model.")
    ],
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE.zip", help="The bundle; CASE.zip here, if not given.")
    ] = None,
    candidate_files: Annotated[
        list[str] | None,
        typer.Option(
            "--candidate-files",
            metavar="PATH",
            help="Further files of the candidate that are to go along, or a folder of them. Repeatable.",
        ),
    ] = None,
    candidate: options.CandidateSpec = None,
    inputs: options.Inputs = None,
    seed: options.Seed = None,
    shape: options.Shapes = None,
    mean: options.Mean = None,
    scale: options.Scale = None,
    bgr: options.Bgr = False,
    criterion: options.Criterion = None,
    precision: options.Precision = None,
    reference: options.ReferenceSpec = None,
    custom_ops: options.CustomOps = None,
    timeout: options.Timeout = None,
    memory_limit: options.MemoryLimit = None,
    trust: options.Trust = False,
    force: options.Force = False,
) -> Result:
    """Pack a case into one zip: model, tensors, what came instead, the candidate's command, the machine, a README.

    Tokens, user names and paths stay here. -c runs a candidate on a plain cut or a whole model and adds what it gives.
    `subcut replay FILE.zip` runs it elsewhere; without subcut, the repro.py in it does.
    """
    from subgraph.cases import bundle as job
    from subgraph.cases import contents

    settings = project.load()
    path = Path(source)
    is_model = path.is_file()
    graph = _model(path) if is_model else None
    if graph is None:
        contents.of(path)  # a slip there is told first
    feeds = (inputs, seed, shape, mean, scale, bgr or None, reference)
    if not is_model and any(word not in (None, []) for word in feeds):
        raise UsageError("-i and what goes with it are for a whole model", f"{clean(source)} has its own inputs")
    name = job.name_of(path.with_suffix("") if is_model else path)
    target = _target(output, name)
    job.require_free(target, name, force=force)
    bases = [Path.cwd(), *([settings.file.parent] if settings.file else [])]
    given = [Path(word) for word in candidate_files or ()]
    wish = job.BundleRequest(path, target, name, given, bases, force=force)
    if not is_model and candidate is None:
        return _told(job.pack(wish), path)
    with tempfile.TemporaryDirectory(prefix="subcut-") as temporary:
        place = Path(temporary) / name
        right = (settings, reference, custom_ops, trust)
        if graph is not None:
            feeding = options.feeding(settings, inputs, seed, shape, mean, scale, bgr)
            _whole(graph, place, feeding, right)
        else:
            _copied(path, place)
        wish = replace(wish, folder=place, command=shlex.join(["subcut", *sys.argv[1:]]) if is_model else "")
        if candidate is not None:
            rule = options.criterion(settings, criterion, None, None, None)
            doubted = options.candidate(settings, candidate, timeout, memory_limit, precision, custom_ops, trust)
            wish = _asked(wish, doubted, rule, right)
        return _told(job.pack(wish), path)


def _target(output: str | None, name: str) -> Path:
    """The zip; in a folder where one is named."""
    if output is None:
        return Path(f"{name}.zip")
    return Path(output) / f"{name}.zip" if output.endswith("/") or Path(output).is_dir() else Path(output)


def _model(path: Path) -> Graph:
    """
    Raises:
        UsageError: it is no model, but a bundle.
    """
    from subgraph.graph.graph import load

    if path.suffix == ".zip":
        raise UsageError(f"{clean(str(path))} is no model and no case", f"a bundle? subcut replay {clean(str(path))}")
    return load(path)


def _whole(graph: Graph, place: Path, feeding: Any, right: tuple[Any, ...]) -> None:
    """A whole model as a cut from its inputs to its outputs, in `place`.

    Raises:
        UsageError: its samples need a cut each.
    """
    from subgraph.cases import write_case
    from subgraph.cases.case import ResultPlace

    request = write_case.CaseRequest((), (), **feeding.options)
    with options.reference(*right) as running:
        found = write_case.extract(graph, request, ResultPlace(place.parent, place.name), running)
    if len(found) > 1:
        what = f"the samples have {len(found)} different shapes, and each needs a bundle of its own"
        raise UsageError(what, "give samples of one shape with -i")
    log.info("check  %s", clean(found[0].manifest["check"]["what"]))


def _copied(path: Path, place: Path) -> None:
    """A plain cut in a place of its own, so that what a candidate gives can be put beside it.

    Raises:
        UsageError: the case has a candidate already.
    """
    from subgraph.cases import contents

    mine = contents.of(path)
    if mine.around is not None or any(name.startswith("candidate/") for name in mine.files):
        raise UsageError(f"{clean(str(path))} holds what its own candidate gave", "leave -c out")
    for name, file in mine.files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place / name)


def _asked(wish: BundleRequest, doubted: Candidate, rule: str, right: tuple[Any, ...]) -> BundleRequest:
    """What the candidate gives for the case, put beside it, with what tells the candidate.

    Raises:
        BackendError: it cannot be used at all.
    """
    from subgraph.cases import case
    from subgraph.cases.find_case import find_case
    from subgraph.cases.layout import EVIDENCE_SCHEMA
    from subgraph.trials import replay
    from subgraph.verdict import joined

    found = find_case(wish.folder)
    verdicts = []
    for k in range(len(found.labels)):
        with replay.open_case(found, k, doubted, rule, options.reference(*right)) as asked:
            if not k:
                options.told(asked)
            region = asked.whole()
            answer = asked.run(region, fresh=True)
            verdicts.append(asked.verdict_of(region, answer))
            replay.save_outputs(answer, found, k)
    request = {"candidate": doubted.name, "identity": doubted.identity(""), "precision": doubted.precision}
    around = {
        "schema": f"{EVIDENCE_SCHEMA}1",
        "source": found.source,
        "command": wish.command,
        "request": case.plain(request | {"criterion": rule}),
        "versions": case.versions(),
        "files": [],
    }
    status, _, why = joined(tuple(j for v in verdicts for j in v.outputs))
    return replace(wish, around=around, found={"status": status, "why": why})


def _told(packed: Packed, source: Path) -> Result:
    size = packed.path.stat().st_size
    for line in packed.warnings:
        log.warning("%s", clean(line))
    for name in packed.left[:SHOWN]:
        log.info("left out: %s, which subcut did not write", clean(name))
    if len(packed.left) > SHOWN:
        log.info("left out: %d more", len(packed.left) - SHOWN)
    document = {
        "schema": "subcut.bundle/1",
        "exit_code": 0,
        "path": str(packed.path),
        "bytes": size,
        "source": str(source),
        "files": {name: {"bytes": f.size, "sha256": f.sha256} for name, f in packed.files.items()},
        "warnings": list(packed.warnings),
        "left_out": list(packed.left),
    }
    shown = next((f"{size / unit:.1f} {word}" for unit, word in UNITS if size >= unit), f"{size} bytes")
    return Result(document, f"{count(len(packed.files), 'file')}, {shown}: {clean(str(packed.path))}")
