"""`subcut bundle RUN --as-known NAME`: a finding -> an entry of `subcut known`, in a folder to be read."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from subgraph import known, system
from subgraph.cases.layout import MODEL, RUN_JSON
from subgraph.commands import Result, log
from subgraph.commands.known import folders_of
from subgraph.commands.replay import candidate_of_case
from subgraph.commands.resolve import Asked
from subgraph.documents import to_json
from subgraph.errors import ResultExists, UsageError
from subgraph.text import clean

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}")  # of a file on any system


def finding_as_known(asked: Asked, run: Path, candidate: str | None, name: str, folder: Path) -> Result:
    """Write the entry of a bisection's finding, whose case the candidate was seen to get wrong, into a folder.

    Raises:
        UsageError: the run has no finding that an entry can be made of, or no candidate that runs here.
        ResultExists: there is an entry of that name. Inconclusive: no case shows what is wrong.
    """
    from subgraph.cases.find_case import find_case
    from subgraph.sweep import as_known, finding_as_known
    from subgraph.sweep.sweep import open_sweep

    if not NAME.fullmatch(name):
        raise UsageError(f"--as-known {clean(name)}: no name of an entry, which is a file", "letters, digits, - and _")
    if (run / RUN_JSON).is_file() or not run.joinpath(MODEL).is_file():
        finding_as_known.bisection_of(run)  # what it lacks is said before a case is looked for
    case = find_case(run)
    finding, blame = finding_as_known.finding_of(case)
    chosen = candidate_of_case(asked, case, candidate)
    runtime = known.runtime_of(chosen.backend, chosen.device)
    file = folder / runtime / f"{name}.toml"
    taken = [entry.path for entry in known.entries(folders_of(asked.settings), runtime)]
    if not asked.result.force and (file.exists() or f"{runtime}/{name}" in taken):
        raise ResultExists(f"there is an entry {runtime}/{name}", "another name, or --force")
    if blame is None:
        log.info("no blame: `subcut blame %s --versions ..` first tells releases, pass and cures", clean(str(run)))
    with open_sweep([chosen], asked.output, only=None, stored=asked.stored) as sweep:
        date = datetime.now(UTC).date().isoformat()
        found = finding_as_known.entry_of(sweep, case, finding, blame, name, date)
    as_known.write([found.entry], runtime, folder)
    entry = known.read(file)
    case_of, spec = entry.case, system.join([chosen.name])
    inputs = "stored inputs" if case_of and case_of.values else "drawn inputs"
    lines = [
        f"{file}  {entry.operator} {entry.says}",
        f"wrong here, on {inputs}: {found.result.verdict.why}",
        *([f"as wrong without: {', '.join(found.idle)}"] if found.idle else []),
        f'read it; then `known = ["{folder}"]` in subcut.toml adds it: subcut known {entry.path} --try -c {spec}',
    ]
    if not entry.when:
        log.warning("no attribute of it matters: each %s of a model will get a hint", clean(entry.operator))
    document = {"schema": "subcut.as_known/1", "exit_code": 0, "path": str(file), "entry": to_json(entry)}
    return Result(
        document | {"here": str(found.result.outcome), "idle": list(found.idle)}, "\n".join(map(clean, lines))
    )
