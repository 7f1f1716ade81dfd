"""`subcut replay`: a case or a bundle, run again on a candidate -> its verdict."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from subgraph.cases.layout import MODEL
from subgraph.commands import Result, options, resolve
from subgraph.commands.options import Text, option
from subgraph.commands.resolve import Asked
from subgraph.documents import to_json
from subgraph.errors import UnknownName, UsageError
from subgraph.log import log
from subgraph.results.commands import ReplayResult
from subgraph.text import clean, nearest

if TYPE_CHECKING:
    from subgraph.cases.find_case import FoundCase
    from subgraph.runtime.candidate import Candidate
    from subgraph.runtime.reference import Reference
    from subgraph.verdict import Verdict


@options.with_option_groups("output", "fresh", "force")
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

    asked = Asked(comparison=comparison, runtime=runtime, result=result)
    criterion = asked.criterion_words
    case = find_case(unpacked_folder(Path(folder), output), small=small)
    asked = replace(asked, path=case.place / MODEL)
    chosen = candidate_of_case(asked, case, candidate)
    labels = case.labels or ("",)
    verdicts = [_judge(case, k, chosen, criterion, asked.reference) for k in range(len(labels))]
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
        word = "FAIL" if verdict.status is Status.FAIL else verdict.status.value
        word = "refused" if refused else word
        lines.append("  " + "  ".join(filter(None, (clean(label), word, clean(verdict.why)))))
        lines += [f"      | {clean(line)}" for line in verdict.process.get("stderr") or ()]
    return Result(to_json(document), "\n".join(lines), code)


def unpacked_folder(path: Path, output: str | None) -> Path:
    """The folder of a case; a bundle is unpacked first, unless it was before.

    Raises:
        UnknownName: there is no such file. UsageError: `output` is given for what is not a bundle.
    """
    if not path.is_file():
        if path.suffix.lower() == ".zip" and not path.exists():
            beside = [str(p) for p in path.parent.glob("*.zip")]
            raise UnknownName(
                f"no file {path}",
                nearest=nearest(str(path), beside),
                code="file.not-found",
            )
        if output is not None:
            raise UsageError(
                f"-o {output} is for a bundle",
                f"{path} is none; leave -o out",
                code="option.conflict",
            )
        return path
    from subgraph.cases import bundle

    place = Path(output) if output is not None else Path(bundle.plain_name(path))
    unpacked = bundle.unpack(path, place)
    log.info("%s to %s/", "unpacked" if unpacked else "unpacked before", clean(str(place)))
    return place


def candidate_of_case(asked: Asked, case: FoundCase, spec: str | None) -> Candidate:
    """The candidate that the command line names, else that of the case, else that of the project.

    Raises:
        UsageError: it is not trusted, or cannot be run here.
    """
    from subgraph.cases.find_case import candidate_of
    from subgraph.runtime import candidate as candidates

    candidate = None if spec else candidate_of(case)
    if candidate is None:
        return asked.candidate(spec, case.place / MODEL)
    precision = candidates.parse_precision("--precision", asked.runtime.precision)
    candidate = replace(candidate, precision=precision) if precision else candidate
    log.info("candidate %s, as the case was found", clean(candidate.name))
    resolve.require_trust(candidate.code, asked.result.trust)
    if case.bundle:
        os.environ["PYTHONDONTWRITEBYTECODE"] = (
            "1"  # trust covers all files there: what a run adds would end it
        )
    return candidate


def _judge(
    case: FoundCase,
    k: int,
    candidate: Candidate,
    criterion: str,
    start_reference: Callable[[], Reference],
) -> Verdict:
    """One sample of a case; an operator test of a sweep is judged without the reference."""
    from subgraph.sweep.result_folder import replay_test
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
