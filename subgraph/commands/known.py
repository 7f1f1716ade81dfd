"""`subcut known`: what runtimes are known to compute wrongly -> a list, or one entry."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from subgraph import known as entries_of
from subgraph import project
from subgraph.commands import Result
from subgraph.commands.options import Text, option, with_option_groups
from subgraph.documents import to_json
from subgraph.errors import UnknownName, UsageError
from subgraph.known import Entry
from subgraph.log import log
from subgraph.results.commands import KnownResult
from subgraph.text import aligned, clean, nearest, shorten

if TYPE_CHECKING:
    from subgraph.graph.graph import Graph
    from subgraph.inspection.lint import LintIssue
    from subgraph.project import Project
    from subgraph.runtime.candidate import Candidate

MAX_HINTS = 3  # nodes that are named before a search
MAX_SAYS = 90  # characters of a line


@with_option_groups()
def known(
    *,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="An entry; tract/NAME or --runtime if several runtimes have one.",
        ),
    ] = None,
    runtime: Text = option("--runtime", "NAME", "Only entries of this runtime: tract, mnn …"),
    operator: Text = option("--operator", "NAME", "Only entries of this operator."),
) -> Result:
    """List what runtimes are known to compute wrong.

    NAME shows an entry. An entry fits nodes by operator, attributes and types: a hint. `subcut lint
    MODEL -c SPEC` holds a model against the entries of a runtime, `subcut sweep -c SPEC --only
    TEST` runs a test that an entry names.

    Examples:
      subcut known --runtime tract --operator MaxPool
      subcut known tract/lstm-direction-reverse

    Exit code 0: listed.
    """
    every = entries_of.entries(folders_of(project.load()))
    for word, names in (
        (runtime, {e.runtime for e in every}),
        (operator, {e.operator for e in every}),
    ):
        if word and word not in names:
            raise UnknownName(
                f"no entries of '{word}'",
                nearest=nearest(word, sorted(names)),
                code="known.no-entry",
            )
    chosen = [e for e in every if runtime in (None, e.runtime) and operator in (None, e.operator)]
    if name:
        chosen = [entries_of.find(name, chosen)]
    document = KnownResult(entries=[to_json(e) for e in chosen])
    if name:
        return Result(to_json(document), _describe_entry(chosen[0]))
    lines = aligned(
        [(e.runtime, e.name, e.operator, shorten(clean(e.says), MAX_SAYS)) for e in chosen]
    )
    numbers = [f"{n} of {of}" for of, n in Counter(e.runtime for e in chosen).items()]
    lines.append(f"{len(chosen)} known: {', '.join(numbers)}")
    return Result(to_json(document), "\n".join(lines))


def folders_of(settings: Project) -> list[Path]:
    """The user's own folders with entries; those of a project file are relative to it."""
    base = settings.file.parent if settings.file else Path()
    return [base / word for word in settings.get("known", default=[])]


def release_of(candidate: Candidate) -> str:
    """The release of the runtime that a candidate runs; "" where that is not known without starting
    it."""
    from subgraph.environments import releases

    if candidate.release or candidate.package or candidate.python:
        return candidate.release
    try:
        return releases.beside(candidate.backend)
    except UsageError:
        return ""


def hints(graph: Graph, candidate: Candidate) -> list[LintIssue]:
    """A note for each node like those that the candidate's runtime is known to compute wrongly."""
    from subgraph.inspection.lint import LintContext, run_rules

    context = LintContext(
        graph,
        runtime=entries_of.runtime_of(candidate.backend, candidate.device),
        release=release_of(candidate),
        known=folders_of(project.load()),
    )
    return [issue for issue in run_rules(context, ["known"]) if issue.node]


def log_known(graph: Graph, candidate: Candidate) -> list[int]:
    """The nodes of `hints`; the first ones are logged."""
    nodes = [(issue.node, issue.reason) for issue in hints(graph, candidate) if issue.node]
    for node, reason in nodes[:MAX_HINTS]:
        log.info("perhaps %s", clean(f"{node.label} ({node.op}) {reason}"))
    return [node.top for node, _ in nodes if node.top is not None]


def _describe_entry(entry: Entry) -> str:
    when = [f"{key}={value}" for key, value in entry.when.items()]
    unless = [f"{key}={value}" for key, value in entry.unless.items()]
    rows = [
        ("nodes", ", ".join([entry.operator, *when])),
        ("not", ", ".join(unless)),
        ("releases", entry.releases("")),
        ("how far", entry.off),
        ("cure", entry.cure),
        ("thread", entry.thread),
        ("tests", ", ".join(entry.tests)),
        ("case", "a model of its own, below" if entry.case else ""),
        ("tried", entry.date),
        ("here", entry.command),
    ]
    head = f"{entry.runtime}: {entry.operator} {entry.says}"
    model = map(clean, entry.case.model.splitlines()) if entry.case else ()
    return "\n".join(
        [clean(head), *aligned([("", word, clean(text)) for word, text in rows if text]), *model]
    )
