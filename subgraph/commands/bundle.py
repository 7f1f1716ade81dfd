"""`subcut bundle`: a case, or a whole model with its values -> one file that can be mailed and run
elsewhere."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from subgraph import project
from subgraph.cases.layout import MODEL
from subgraph.commands import Result, command_line, log, options, resolve
from subgraph.commands.options import Text, Texts, option
from subgraph.commands.resolve import Asked
from subgraph.documents import to_json
from subgraph.errors import UsageError
from subgraph.results.commands import PackedResult
from subgraph.storage import folders
from subgraph.text import clean, count

if TYPE_CHECKING:
    from subgraph.cases.bundle import BundleRequest, Packed
    from subgraph.graph.graph import Graph

UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
LEFT_OUT_NAMED = 4  # files that are not packed


@options.with_option_groups("rtol", "atol", "metric", "output", "fresh")
def bundle(
    *,
    source: Annotated[
        str,
        typer.Argument(
            metavar="CASE|MODEL", help="Folder that cut, bisect, sweep or manual wrote, or a model."
        ),
    ],
    output: Text = option("--output -o", "FILE.zip", "The zip; default CASE.zip in this folder."),
    candidate_files: Texts = option(
        "--candidate-files",
        "PATH",
        "Files of the candidate to pack as they are, or a folder of them. Repeatable.",
    ),
    keep: Texts = option(
        "--keep",
        "NAME",
        "Also pack free texts, which may be private: those of a field (why, notes, stderr,"
        " command …), a file "
        "(log.txt), or all. Repeatable.",
    ),
    source_code: bool | None = option(
        "--keep-source/--strip-source",
        None,
        "Pack, or leave out, lines of source code and their paths, which PyTorch writes into"
        " models. Default: ask; "
        "without a terminal they are left out.",
        default=None,
    ),
    strip_metadata: bool = option(
        "--strip-metadata", None, "Leave out all metadata and documentation of the models."
    ),
    candidate: options.CandidateSpec = None,
    inputs: options.InputOptions,
    comparison: options.CriterionOptions,
    runtime: options.RuntimeOptions,
    result: options.ResultOptions,
) -> Result:
    """Pack a piece of a model into one zip that runs elsewhere.

    The zip holds the model, its inputs, the right outputs, the candidate's outputs, the versions of
    the machine, and a README.txt. With -c, the candidate runs on a plain cut or whole model first.
    Free texts and most words of commands are left out. `subcut replay FILE.zip` runs it elsewhere;
    without subcut, `python repro.py` does.

    Examples:
      subcut bundle subcut_out/bisect-wrong.py -o fault.zip
      subcut bundle model.onnx -c wrong.py -o whole.zip
    """
    from subgraph.cases import contents
    from subgraph.cases.bundle import BundleRequest, name_of, pack, require_free

    if source_code and strip_metadata:
        raise UsageError(
            "--keep-source and --strip-metadata: source code is metadata",
            "give one of them",
            code="option.conflict",
        )
    settings = project.load()
    path = Path(source)
    graph = _load_model(path) if path.is_file() else None
    if graph is None:
        contents.of(path)  # a mistake there is reported first
        if runtime.reference is not None or inputs != options.InputOptions():
            raise UsageError(
                "-i and what goes with it are for a whole model",
                f"{clean(source)} has its own inputs",
                code="option.conflict",
            )
    name = name_of(path.with_suffix("") if graph else path)
    target = _target(output, name)
    require_free(target, name, force=result.force)
    bases = [Path.cwd(), *([settings.file.parent] if settings.file else [])]
    given = [Path(word) for word in candidate_files or ()]
    request = BundleRequest(
        path,
        target,
        name,
        given,
        bases,
        force=result.force,
        keep=keep or (),
        metadata=not strip_metadata,
    )
    if graph is None and candidate is None:
        return _result(pack(_with_source(request, source_code)), path)
    model = graph.path if graph else path / MODEL
    asked = Asked(settings, None, None, inputs, comparison, runtime, result, model)
    with folders.temporary() as temporary:
        folder = temporary / name
        if graph is None:
            _copy_case(path, folder)
            request = replace(request, folder=folder)
        else:
            _cut_whole(graph, folder, asked)
            request = replace(request, folder=folder, command=command_line())
        if candidate is not None:
            request = _with_candidate(request, asked, candidate)
        return _result(pack(_with_source(request, source_code)), path)


def _with_source(request: BundleRequest, send: bool | None) -> BundleRequest:
    """The request, with or without the source code that the models hold; asks where the user did
    not say."""
    from subgraph.cases import contents
    from subgraph.origins import source_metadata

    if not request.metadata:
        return request
    found = source_metadata.found(contents.of(request.folder).files)
    for model in found:
        log.info("%s: source code in %s", clean(model.file), count(model.places, "place"))
        log.info("  %s", clean(model.example))
    if send is None and found and sys.stdin and sys.stdin.isatty() and sys.stderr.isatty():
        send = typer.confirm(
            "Send these lines and paths of your source code?", default=False, err=True
        )
    elif send is None and found:
        log.warning("this source code, and its paths, are left out: --keep-source packs them")
    return replace(request, source=bool(send))


def _target(output: str | None, name: str) -> Path:
    """The zip; in a folder where one is named."""
    if output is None:
        return Path(f"{name}.zip")
    return (
        Path(output) / f"{name}.zip"
        if output.endswith("/") or Path(output).is_dir()
        else Path(output)
    )


def _load_model(path: Path) -> Graph:
    """
    Raises:
        UsageError: it is not a model, but a bundle.
    """
    from subgraph.graph.graph import load

    if path.suffix == ".zip":
        name = clean(str(path))
        raise UsageError(
            f"{name} is neither a model nor a case",
            f"a bundle? subcut replay {name}",
            code="bundle.no-source",
        )
    return load(path)


def _cut_whole(graph: Graph, folder: Path, asked: Asked) -> None:
    """Write the whole model as a cut from its inputs to its outputs.

    Raises:
        UsageError: its samples need a cut each.
    """
    from subgraph.cases import write_case
    from subgraph.cases.case import ResultPlace

    request = write_case.CaseRequest((), (), **asked.feeding.options)
    with asked.reference() as reference:
        cases = write_case.extract(
            graph, request, ResultPlace(folder.parent, folder.name), reference, asked.feeding
        )
    if len(cases) > 1:
        what = f"the samples have {len(cases)} different shapes, and each needs a bundle of its own"
        raise UsageError(what, "give samples of one shape with -i", code="bundle.several-shapes")
    log.info("check  %s", clean(cases[0].manifest.check.what))


def _copy_case(path: Path, folder: Path) -> None:
    """Copy a plain cut, so that a candidate's outputs can be put beside it.

    Raises:
        UsageError: the case has a candidate already.
    """
    from subgraph.cases import contents

    case = contents.of(path)
    if case.evidence is not None or any(name.startswith("candidate/") for name in case.files):
        raise UsageError(
            f"{clean(str(path))} holds what its own candidate gave",
            "leave -c out",
            code="option.conflict",
        )
    for name, file in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / name)


def _with_candidate(request: BundleRequest, asked: Asked, spec: str) -> BundleRequest:
    """Run the candidate on the case; put its outputs beside it, and in the request what names the
    candidate.

    Raises:
        BackendError: it cannot be used at all.
    """
    from subgraph.cases.case import CaseOutcome, plain
    from subgraph.cases.find_case import find_case
    from subgraph.cases.layout import EVIDENCE_SCHEMA
    from subgraph.comparison.where import OutputChoice
    from subgraph.trials.replay import open_case, save_outputs
    from subgraph.verdict import joined
    from subgraph.version import versions

    criterion = asked.criterion_words
    candidate = asked.candidate(spec)
    case = find_case(request.folder)
    verdicts = []
    for k in range(len(case.labels)):
        with (
            asked.reference() as reference,
            open_case(case, k, candidate, criterion, reference) as trials,
        ):
            if not k:
                resolve.log_caveat(trials.runtime)
            region = trials.model.whole()
            run_result = trials.run(region, fresh=True)
            verdicts.append(trials.judge.verdict(region, run_result))
            save_outputs(run_result, case, k)
    compared = to_json(OutputChoice.of_document(case.found_with).document())
    identity = {
        "candidate": candidate.name,
        "identity": candidate.identity(""),
        "precision": candidate.precision,
    }
    evidence = {
        "schema": f"{EVIDENCE_SCHEMA}1",
        "source": to_json(case.source),
        "command": request.command,
        "request": plain(identity | {"criterion": criterion} | compared),
        "versions": versions(),
        "files": [],
    }
    status, signature, why = joined(
        tuple(chain.from_iterable(v.outputs for v in verdicts)), every=True
    )
    return replace(request, evidence=evidence, outcome=CaseOutcome(status, signature, why))


def _result(packed: Packed, source: Path) -> Result:
    size = packed.path.stat().st_size
    for line in packed.warnings:
        log.warning("%s", clean(line))
    for line in packed.unchanged:
        log.info("packed as it is: %s", clean(line))
    if packed.left_texts:
        log.info("texts left out: %s (--keep NAME packs one)", ", ".join(packed.left_texts))
    for name in packed.left[:LEFT_OUT_NAMED]:
        log.info("left out: %s, which subcut did not write", clean(name))
    if len(packed.left) > LEFT_OUT_NAMED:
        log.info("left out: %d more", len(packed.left) - LEFT_OUT_NAMED)
    document = PackedResult(
        path=str(packed.path),
        bytes=size,
        source=str(source),
        files=packed.files,
        warnings=packed.warnings,
        unchanged=packed.unchanged,
        left_out_texts=packed.left_texts,
        left_out=packed.left,
    )
    shown = next(
        (f"{size / unit:.1f} {word}" for unit, word in UNITS if size >= unit), f"{size} bytes"
    )
    return Result(
        to_json(document), f"{count(len(packed.files), 'file')}, {shown}: {clean(str(packed.path))}"
    )
