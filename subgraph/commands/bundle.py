"""`subcut bundle`: a case -> one file that can be mailed and run elsewhere.

`subcut replay`: a case or a bundle, run again on a candidate -> its verdict.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from subgraph import project
from subgraph.cases.layout import MODEL
from subgraph.commands import Result, options, resolve
from subgraph.commands.options import Text, Texts, option
from subgraph.commands.resolve import ResolvedOptions, find_criterion_words
from subgraph.commands.table import make_next
from subgraph.errors import UnknownName, UsageError
from subgraph.log import log
from subgraph.results.commands import PackedResult, ReplayResult
from subgraph.text import clean, count, find_nearest, format_size

if TYPE_CHECKING:
    from subgraph.cases.bundle import Packed
    from subgraph.cases.find_case import FoundCase
    from subgraph.runtime.candidate import Candidate
    from subgraph.runtime.reference import Reference
    from subgraph.verdict import Verdict


MAX_OMITTED_NAMES = 4  # files that are not packed


@options.add_option_groups()
def bundle(
    *,
    source: Annotated[
        str,
        typer.Argument(metavar="CASE", help="Folder that cut, bisect, sweep or manual wrote."),
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
        "Also pack free texts, which may be private: those of a field (why, notes, stderr …),"
        " a file (log.txt), or all. Repeatable.",
    ),
    source_code: bool = option(
        "--keep-source",
        None,
        "Also pack lines of source code and their paths, which PyTorch writes into models.",
    ),
    strip_metadata: bool = option(
        "--strip-metadata", None, "Leave out all metadata and documentation of the models."
    ),
    force: bool = option("--force", None, "Replace another result that is in the way."),
) -> Result:
    """Pack a piece of a model into one zip that runs elsewhere.

    The zip holds the model, its inputs, the right outputs, the candidate's outputs, the versions of
    the machine, and a README.txt. Free texts and most words of commands are left out. `subcut
    replay FILE.zip` runs it elsewhere; without subcut, `python repro.py` does.

    Examples:
      subcut bundle subcut_out/bisect-wrong.py -o fault.zip
      subcut bundle subcut_out/bisect-wrong.py/culprit --candidate-files wrong.py
    """
    from subgraph.cases.bundle import BundleRequest, name_of, pack

    if source_code and strip_metadata:
        raise UsageError(
            "--keep-source and --strip-metadata: source code is metadata",
            "give one of them",
            code="option.conflict",
        )
    settings = project.load()
    path = Path(source)
    name = name_of(path)
    target = Path(output or f"{name}.zip")
    if output and (output.endswith("/") or target.is_dir()):
        target /= f"{name}.zip"
    request = BundleRequest(
        path,
        target,
        name,
        [Path(word) for word in candidate_files or ()],
        [Path.cwd(), *([settings.file.parent] if settings.file else [])],
        force=force,
        keep=keep or (),
        source=source_code,
        metadata=not strip_metadata,
    )
    return _make_result(pack(request), path)


def _make_result(packed: Packed, source: Path) -> Result:
    size = packed.path.stat().st_size
    for line in packed.warnings:
        log.warning("%s", clean(line))
    for line in packed.unchanged:
        log.info("in the bundle, to be checked: %s", clean(line))
    if packed.left_texts:
        log.info("texts left out: %s (--keep NAME packs one)", ", ".join(packed.left_texts))
    for name in packed.left[:MAX_OMITTED_NAMES]:
        log.info("left out: %s, which subcut did not write", clean(name))
    if len(packed.left) > MAX_OMITTED_NAMES:
        log.info("left out: %d more", len(packed.left) - MAX_OMITTED_NAMES)
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
    return Result(
        document,
        f"{count(packed.files, 'file')}, {format_size(size)}: {clean(str(packed.path))}",
        next=[make_next("run it again", "replay", str(packed.path))],
    )


@options.add_option_groups("output", "fresh", "force")
def replay(
    *,
    folder: Annotated[
        str,
        typer.Argument(
            metavar="CASE|BUNDLE.zip",
            help="Folder that cut, bisect, sweep or manual wrote, or a bundle.",
        ),
    ],
    candidate: options.CandidateSpec = None,
    output: Text = option(
        "--output -o",
        "DIR",
        "Folder that a bundle is unpacked to; default: its name, in this folder.",
    ),
    small: bool = option(
        "--small", None, "The small input that bisect found, in place of the real one."
    ),
    comparison: options.CriterionOptions,
    runtime: options.RuntimeOptions,
    result: options.ResultOptions,
) -> Result:
    """Run a case or a bundle again on a candidate and compare.

    Without --candidate, the candidate is the one that the case was found with; its commands run
    only with --trust. A bundle is checked and unpacked first.

    Examples:
      subcut replay subcut_out/bisect-wrong.py -c wrong.py
      subcut replay fault.zip -c ort

    Exit code 0: it agrees; 1: it disagrees, or is refused; 5: nothing could be established.
    """
    from subgraph.cases.find_case import find_case
    from subgraph.verdict import Signature, Status

    resolved = ResolvedOptions(comparison=comparison, runtime=runtime, result=result)
    criterion = find_criterion_words(resolved)
    case = find_case(open_folder(Path(folder), output), small=small)
    resolved = replace(resolved, path=case.place / MODEL)
    chosen = find_candidate_of_case(resolved, case, candidate)
    labels = case.labels or ("",)
    verdicts = [
        _judge(case, k, chosen, criterion, resolved.start_reference) for k in range(len(labels))
    ]
    rows = [
        {"sample": label, **verdict.to_json()}
        for label, verdict in zip(labels, verdicts, strict=True)
    ]
    statuses = {verdict.status for verdict in verdicts}
    is_refused = [verdict.signature is Signature.REFUSED for verdict in verdicts]
    if Status.FAIL in statuses or any(is_refused):
        headline = "refused" if all(is_refused) else "wrong"
        code = 1
    elif statuses == {Status.AGREE}:
        headline = "right"
        code = 0
    else:
        headline = "inconclusive"
        code = 5
    document = ReplayResult(
        exit_code=code, case=str(case.place), candidate=chosen.name, samples=rows
    )
    lines = [f"{headline}: {clean(str(case.place))}/ on {clean(chosen.name)}"]
    for label, verdict, refused in zip(labels, verdicts, is_refused, strict=True):
        word = "FAIL" if verdict.fails else verdict.status.value
        word = "refused" if refused else word
        lines.append("  " + "  ".join(filter(None, (clean(label), word, clean(verdict.why)))))
        lines += [f"      | {clean(line)}" for line in verdict.process.get("stderr") or ()]
    following = []
    if code == 1:
        following.append(make_next("what it depends on", "blame", document.case))
        following.append(make_next("for a bug report", "bundle", document.case))
    return Result(document, "\n".join(lines), following)


def open_folder(path: Path, output: str | None) -> Path:
    """Return the folder of a case; unpack a bundle, unless it was before.

    Raises:
        UnknownName: there is no such file.
        UsageError: `output` is set, but the path is not a bundle.
    """
    if not path.is_file():
        if path.suffix.lower() == ".zip" and not path.exists():
            beside = [str(p) for p in path.parent.glob("*.zip")]
            raise UnknownName(
                f"no file {path}",
                nearest=find_nearest(str(path), beside),
                code="file.not-found",
            )
        if output is not None:
            raise UsageError(
                f"-o {output} is for a bundle",
                f"{path} is not a bundle; leave -o out",
                code="option.conflict",
            )
        return path
    from subgraph.cases import bundle

    place = Path(output) if output is not None else Path(bundle.make_plain_name(path))
    unpacked = bundle.unpack(path, place)
    log.info("%s to %s/", "unpacked" if unpacked else "unpacked before", clean(str(place)))
    return place


def find_candidate_of_case(
    resolved: ResolvedOptions, case: FoundCase, spec: str | None
) -> Candidate:
    """Return the candidate that the command line names, else that of the case, else that of the
    project.

    Raises:
        UsageError: it is not trusted, or cannot be run here.
    """
    from subgraph.cases.find_case import find_candidate
    from subgraph.runtime import candidate as candidates

    candidate = None if spec else find_candidate(case)
    if candidate is None:
        return resolved.make_candidate(spec, case.place / MODEL)
    precision = candidates.parse_precision("--precision", resolved.runtime.precision)
    candidate = replace(candidate, precision=precision) if precision else candidate
    log.info("candidate %s, as the case was found", clean(candidate.name))
    resolve.require_trust(candidate.code, resolved.result.trust)
    if case.bundle:
        # Trust covers all files there: what a run adds would end it.
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    return candidate


def _judge(
    case: FoundCase,
    k: int,
    candidate: Candidate,
    criterion: str,
    start_reference: Callable[[], Reference],
) -> Verdict:
    """Judge one sample of a case.

    An operator test of a sweep is judged without the reference.
    """
    from subgraph.questions.sweep.result_folder import replay_test
    from subgraph.trials.open_trials import open_case

    if case.expected:
        return replay_test(case, case.expected, candidate, criterion)
    with (
        start_reference() as reference,
        open_case(case, k, candidate, criterion, reference) as trials,
    ):
        if not k:
            resolve.log_caveat(trials.runtime)
        return trials.verdict(trials.model.whole(), fresh=True)
