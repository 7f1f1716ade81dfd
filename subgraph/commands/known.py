"""`subcut known`: what runtimes are known to compute wrongly -> a list, one entry, or its tests run
here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from subgraph import known as entries_of
from subgraph import project
from subgraph.commands import Result, log, options
from subgraph.commands.options import Text, option
from subgraph.commands.resolve import Asked
from subgraph.documents import to_json
from subgraph.errors import UnknownName, UsageError
from subgraph.known import Entry
from subgraph.results.commands import KnownResult
from subgraph.text import aligned, clean, nearest, shorten

if TYPE_CHECKING:
    from subgraph.graph.graph import Graph
    from subgraph.inspection.lint import LintIssue
    from subgraph.project import Project
    from subgraph.results.sweep import SweepOutcome
    from subgraph.runtime.candidate import Candidate

MAX_HINTS = 3  # nodes that are named before a search
MAX_SAYS = 90  # characters of a line


@options.with_option_groups()
def known(
    *,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="An entry; tract/NAME, --runtime or -c if several runtimes have one.",
        ),
    ] = None,
    runtime: Annotated[
        Text, option("--runtime", "NAME", "Only entries of this runtime: tract, mnn …")
    ] = None,
    operator: Annotated[
        Text, option("--operator", "NAME", "Only entries of this operator.")
    ] = None,
    try_it: Annotated[
        bool, option("--try", None, "Run the tests of the entry, or of all of the runtime's, here.")
    ] = False,
    candidate: options.CandidateSpec = None,
    result: options.ResultOptions,
) -> Result:
    """List what runtimes are known to compute wrong.

    NAME shows an entry, --try runs its tests here. An entry fits nodes by operator, attributes and
    types: a hint. `subcut lint MODEL -c SPEC` holds a model against the entries of a runtime.

    Examples:
      subcut known --runtime tract --operator MaxPool
      subcut known --try -c tract

    Exit code 0: listed, or nothing is wrong here; 1: something is.
    """
    asked = Asked(project.load(), result=result)
    if candidate and not try_it:
        raise UsageError(
            "-c goes with --try",
            "subcut lint MODEL -c SPEC holds a model against the entries",
            code="option.requires",
        )
    tested = asked.candidate(candidate) if candidate else None
    chosen = _chosen(entries_of.entries(folders_of(asked.settings)), runtime, operator)
    if name:
        own = entries_of.runtime_of(tested.backend, tested.device) if tested else ""
        chosen = [entries_of.find(name, chosen, own)]
    if not try_it:
        document = KnownResult(entries=[to_json(e) for e in chosen])
        return Result(to_json(document), _page(chosen[0]) if name else _list(chosen))
    if not tested:
        raise UsageError(
            "--try on which candidate?", f"-c {chosen[0].runtime}", code="argument.missing"
        )
    return _tried(asked, tested, chosen)


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


def _chosen(every: Sequence[Entry], runtime: str | None, operator: str | None) -> list[Entry]:
    """
    Raises:
        UnknownName: no entry is of that runtime, or of that operator.
    """
    for word, names in (
        (runtime, {e.runtime for e in every}),
        (operator, {e.operator for e in every}),
    ):
        if word and word not in names:
            raise UnknownName(
                f"no entries of '{clean(word)}'",
                nearest=nearest(word, sorted(names)),
                code="known.no-entry",
            )
    return [e for e in every if runtime in (None, e.runtime) and operator in (None, e.operator)]


def _list(chosen: Sequence[Entry]) -> str:
    lines = aligned(
        [(e.runtime, e.name, e.operator, shorten(clean(e.says), MAX_SAYS)) for e in chosen]
    )
    runtimes = Counter(e.runtime for e in chosen)
    return "\n".join(
        [
            *lines,
            f"{len(chosen)} known: {', '.join(f'{n} of {name}' for name, n in runtimes.items())}",
        ]
    )


def _page(entry: Entry) -> str:
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
        ("here", f"subcut known {entry.path} --try -c {entry.runtime}"),
    ]
    head = f"{entry.runtime}: {entry.operator} {entry.says}"
    model = map(clean, entry.case.model.splitlines()) if entry.case else ()
    return "\n".join(
        [clean(head), *aligned([("", word, clean(text)) for word, text in rows if text]), *model]
    )


def _tried(asked: Asked, candidate: Candidate, chosen: Sequence[Entry]) -> Result:
    """Run the tests and cases of entries of the candidate's runtime on it."""
    from subgraph.runtime.candidate import TIMEOUT
    from subgraph.sweep import known_case
    from subgraph.sweep.sweep import RUN_TIMEOUT, open_sweep

    runtime = entries_of.runtime_of(candidate.backend, candidate.device)
    own = [e for e in chosen if e.runtime == runtime]
    if not own:
        raise UsageError(
            f"no entry asked for is of {clean(runtime)}",
            "-c SPEC of the entries' runtime",
            code="known.other-runtime",
        )
    tests = sorted({test for entry in own for test in entry.tests})
    if candidate.timeout == TIMEOUT:  # the models are tiny
        candidate = replace(candidate, timeout=RUN_TIMEOUT)
    with open_sweep([candidate], asked.output, only=tests or None, stored=asked.stored) as sweep:
        version = sweep.candidates[0].about.version
        ended = {row.test.name: row.results[0].outcome for row in sweep.rows()}
        for entry, example in known_case.examples(own, sweep.scratch):
            ended[entry.path] = sweep.result(sweep.candidates[0], example).outcome
    states = {entry.name: _state(entry, ended) for entry in own}
    wrong = sum(word == "wrong" for word, _ in states.values())
    lines = aligned(
        [(word, entry.name, said) for entry in own for word, said in [states[entry.name]]]
    )
    here = f"{version}, which" if version else "what"
    total = f"of {len(own)} known for {clean(runtime)}, {wrong} are wrong in {here} runs here"
    entries = [{**to_json(e), "here": states[e.name][0]} for e in own]
    document = KnownResult(exit_code=int(wrong > 0), version=version, entries=entries)
    return Result(to_json(document), "\n".join([*map(clean, lines), total]), int(wrong > 0))


def _state(entry: Entry, ended: Mapping[str, SweepOutcome]) -> tuple[str, str]:
    """("wrong", "right" or "not known", how its tests ended). `ended`: by test, or by the path of
    an entry."""
    from subgraph.sweep.sweep import BAD

    ends = Counter(ended[name] for name in (*entry.tests, entry.path) if name in ended)
    words = (
        ", ".join(f"{n} {outcome}" for outcome, n in ends.items())
        or "this onnx has none of its tests"
    )
    if any(outcome in BAD for outcome in ends):
        return "wrong", words
    return ("right" if ends and set(ends) == {"right"} else "not known"), words
