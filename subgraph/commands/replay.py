"""`subcut replay`: a case or a bundle, run again on a candidate -> does it still go wrong?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from subgraph import project
from subgraph.commands import Result, log, options
from subgraph.errors import UnknownName, UsageError
from subgraph.text import clean, nearest

if TYPE_CHECKING:
    from subgraph.cases.find_case import FoundCase
    from subgraph.runtime.candidate import Candidate
    from subgraph.verdict import Verdict


def replay(
    folder: Annotated[
        str, typer.Argument(metavar="CASE|BUNDLE.zip", help="A case that cut or bisect left behind, or a bundle.")
    ],
    candidate: options.CandidateSpec = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Folder that a bundle is unpacked to; its name, here, if not given."
        ),
    ] = None,
    criterion: options.Criterion = None,
    rtol: options.Rtol = None,
    atol: options.Atol = None,
    metric: options.Metric = None,
    precision: options.Precision = None,
    custom_ops: options.CustomOps = None,
    timeout: options.Timeout = None,
    memory_limit: options.MemoryLimit = None,
    trust: options.Trust = False,
) -> Result:
    """Run a case again on a candidate, and judge what comes.

    Without --candidate: on the one that the case was found with; its commands run only with --trust. A bundle is
    checked and unpacked first. Exit code 0: it agrees; 1: it goes wrong; 5: nothing could be told.
    """
    from subgraph.cases.find_case import find_case
    from subgraph.verdict import Status

    settings = project.load()
    rule = options.criterion(settings, criterion, rtol, atol, metric)
    found = find_case(_folder(Path(folder), output))
    doubted = _candidate(settings, candidate, found, timeout, memory_limit, precision, custom_ops, trust)
    rows = []
    for k, label in enumerate(found.labels or ("",)):
        verdict = _verdict(found, k, doubted, rule, (settings, custom_ops, trust))
        rows.append({"sample": label, **verdict.to_json()})
    statuses = {row["status"] for row in rows}
    code = 1 if Status.FAIL in statuses else 0 if statuses == {Status.AGREE} else 5
    document = {"schema": "subcut.replay/1", "exit_code": code, "case": str(found.place), "candidate": doubted.name}
    lines = [f"{clean(str(found.place))}/ on {clean(doubted.name)}"]
    for row in rows:
        word = "FAIL" if row["status"] == "fail" else row["status"]
        label = f"{clean(row['sample'])}  " if row["sample"] else ""
        lines.append(f"  {label}{word}  {clean(row['why'])}")
        lines += [f"      | {clean(line)}" for line in row["process"].get("stderr") or ()]
    return Result(document | {"samples": rows}, "\n".join(lines), code)


def _folder(path: Path, output: str | None) -> Path:
    """The folder of a case, or that of a bundle, which is unpacked where it is not yet."""
    if not path.is_file():
        if path.suffix.lower() == ".zip" and not path.exists():
            beside = [clean(str(p)) for p in path.parent.glob("*.zip")]
            raise UnknownName(f"no file {clean(str(path))}", nearest=nearest(str(path), beside))
        if output is not None:
            raise UsageError(f"-o {clean(output)} is for a bundle", f"{clean(str(path))} is none; leave -o out")
        return path
    from subgraph.cases import bundle

    place = Path(output) if output is not None else Path(bundle.plain_name(path))
    new = bundle.unpack(path, place)
    log.info("%s to %s/", "unpacked" if new else "unpacked before", clean(str(place)))
    return place


def _candidate(
    settings: project.Project, spec: str | None, found: FoundCase, timeout: str | None, memory_limit: str | None,
    precision: str | None, custom_ops: str | None, trust: bool,
) -> Candidate:  # fmt: skip
    from subgraph.cases.find_case import candidate_of
    from subgraph.runtime import candidate as candidates

    wanted = None if spec else candidate_of(found)
    if wanted is None:
        return options.candidate(settings, spec, timeout, memory_limit, precision, custom_ops, trust)
    claim = candidates.precision("--precision", precision)
    wanted = replace(wanted, precision=claim) if claim else wanted
    shown = candidates.require_trust(wanted, trust)
    log.info("candidate %s, as the case was found%s", clean(wanted.name), f": {shown}" if shown else "")
    return wanted


def _verdict(found: FoundCase, k: int, doubted: Candidate, rule: str, right: tuple[Any, str | None, bool]) -> Verdict:
    """One sample of a case; `right`: what says how the reference runs."""
    from subgraph.sweep.result_folder import replay_test
    from subgraph.trials.replay import open_case

    if found.expected:
        return replay_test(found, found.expected, doubted, rule)
    settings, custom_ops, trust = right
    reference = options.reference(settings, None, custom_ops, trust)
    with open_case(found, k, doubted, rule, reference) as asked:
        if not k:
            options.told(asked)
        return asked.verdict(asked.whole(), fresh=True)
