"""`subcut lint`: a model -> known troubles, each with its node, the reason and a fix; nothing runs
on a target.

`subcut known`: what runtimes are known to compute wrongly -> a list, or one entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from subgraph import plugins, project
from subgraph.commands import Result, options, require_utf8
from subgraph.commands.options import Number, Text, Texts, option
from subgraph.commands.resolve import ResolvedOptions, parse_candidate
from subgraph.commands.table import convert_words
from subgraph.documents import to_json
from subgraph.errors import UnknownName, UsageError
from subgraph.graph.graph import load
from subgraph.inspection import known as entries_of
from subgraph.inspection.known import Entry
from subgraph.iterables import flatten, group_values
from subgraph.log import log
from subgraph.results.answer import NextCommand
from subgraph.results.commands import KnownResult, RulesResult
from subgraph.runtime.inputs import Feeding
from subgraph.text import align_columns, clean, count, find_nearest, shorten, shorten_names

if TYPE_CHECKING:
    from subgraph.graph.graph import Graph
    from subgraph.inspection.lint import (
        FindingNode,
        LintContext,
        LintDocument,
        LintFinding,
        LintIssue,
    )
    from subgraph.project import Project
    from subgraph.runtime.candidate import Candidate


PRECISIONS = ("fp16", "bf16", "int8")
MAX_LINES = 20  # lines of equal severity, rule and fix; the document has them all
MAX_NAMED = {"warning": 8, "note": 3}  # nodes that a folded line names
MAX_UNFOLDED = {"warning": 3, "note": 1}  # equal findings that have a line each; more are folded


complete_rules = options.complete_plugins("lint")


@options.add_option_groups()
def lint(
    *,
    model: options.ModelArgument = None,
    weights: options.Weights = None,
    trust: options.Trust = False,
    target_opset: Number = option(
        "--target-opset", "N", "Newest opset that the target accepts.", limits=options.FROM_1
    ),
    only: Texts = option(
        "--only",
        "RULE",
        "Only this rule, or a Python file with your own. Repeatable.",
        complete_rules,
    ),
    ignore: Texts = option("--ignore", "RULE", "Leave this rule out. Repeatable.", complete_rules),
    candidate: options.CandidateSpec = None,
    precision: Text = option(
        "--precision",
        "fp16",
        "Whose range is checked: fp16 (default), bf16 or int8.",
        words=PRECISIONS,
    ),
    rules: bool = option("--rules", None, "List the rules; read no model."),
    inputs: options.InputOptions,
) -> Result:
    """List known troubles with targets, before anything runs there.

    Each line names the node, the reason and a fix. With -c, nodes like those that this runtime is
    known to compute wrongly are notes (`subcut known`). With -i, --shape or --seed the ranges of
    all tensors are checked as well; --shape may try another size than the model's own.

    Examples:
      subcut lint model.onnx --target-opset 11
      subcut lint model.onnx --precision fp16 -i input.npy
      subcut lint model.onnx --seed 0 --ignore opset
      subcut lint --rules

    Exit code 0: no warnings (notes do not count); 1: warnings.
    """
    if rules:
        names = plugins.list_names("lint")
        rows = [{"name": name, "help": plugins.read_help("lint", name)} for name in names]
        lines = align_columns([[clean(row["name"]), clean(row["help"])] for row in rows])
        return Result(RulesResult(rules=rows), "\n".join(lines))
    from subgraph.inspection import lint
    from subgraph.precision import Precision

    resolved = ResolvedOptions(
        model=model, weights=weights, inputs=inputs, result=options.ResultOptions(trust=trust)
    )
    names = lint.choose_rules(only or (), ignore or ())
    model_path = resolved.model_path
    feeding = resolved.feeding
    graph = load(model_path)
    with require_utf8(model_path):
        from subgraph.inspection.lint import LintContext

        # shapes that contradict the model's own are a second size, for one rule, and not fed
        shapes = {
            name: shape
            for name, shape in feeding.shapes.items()
            if not _contradicts(graph, name, shape)
        }
        fed = replace(feeding, shapes=shapes)
        fed.plan(graph, graph.inputs)
        given = None if fed.is_default and inputs.seed is None else fed
        second = {} if shapes == feeding.shapes else feeding.shapes
        context = LintContext(graph, target_opset, given, second, feeding.picture, feeding.seed)
        if precision == Precision.INT8:
            context = replace(context, for_int8=True)
        else:
            context = replace(context, precision=Precision(precision or Precision.FP16))
        if candidate:
            described = parse_candidate(resolved, candidate)
            context = _hold_against(context, described, resolved.settings)
        document = lint.make_document(context, names)
    if precision and context.feeding is None:
        log.info("only weights are checked: -i INPUT adds the ranges of all tensors")
    for row in document.not_checked:
        log.debug("%s: not checked: %s", row.rule, row.why)
    following = []
    if any(finding.exponent is not None for finding in document.findings):
        words = convert_words("lint", "plan", ("--precision", "-c", "--candidate"))
        words += ["--to", document.precision, "--rescale"]
        following.append(NextCommand("bring these tensors into range, and prove it", words))
    return Result(document, render_findings(document), following)


def _contradicts(graph: Graph, name: str, shape: Sequence[int]) -> bool:
    """Return whether the model fixes a dimension of this input at another size."""
    try:
        Feeding(shapes={name: shape}).find_symbol_sizes(graph)
    except UsageError as e:
        return e.code == "shape.fixed-axis"
    return False


# ------------------------------------------------------------ text


def render_findings(document: LintDocument) -> str:
    """Return the findings for people: warnings first, each fix once, equal findings folded into one
    line."""
    width = max((len(clean(f.rule)) for f in document.findings), default=0)
    groups = groupby(document.findings, key=lambda f: (f.severity, f.rule))
    lines = list(
        flatten(
            _iter_group(f"{severity:<7}  {rule:<{width}}", list(found))
            for (severity, rule), found in groups
        )
    )
    scope = f"{count(document.rules, 'rule')}, {count(document.nodes, 'node')}"
    found = f"{count(document.warnings, 'warning')}, {count(document.notes, 'note')}"
    result = found if document.findings else "nothing found"
    lines.append(f"{result}: {scope}")
    return "\n".join(lines)


def _iter_group(head: str, findings: Sequence[LintFinding]) -> Iterator[str]:
    """Yield the findings of one rule, those with the same fix together."""
    by_fix = group_values((f.fix, f) for f in findings)
    for fix, same in by_fix.items():
        rows = list(_fold(same, same[0].severity))
        for node, reason in rows[:MAX_LINES]:
            yield f"{head}  {': '.join(filter(None, (node, clean(reason))))}"
        if len(rows) > MAX_LINES:
            yield f"{head}  … and {len(rows) - MAX_LINES} more (--json has them all)"
        if fix:
            yield f"  fix: {clean(fix)}"


def _fold(findings: Iterable[LintFinding], severity: str) -> Iterator[tuple[str, str]]:
    """Yield (node, reason); findings with the same reason are joined."""
    by_reason = group_values((f.reason, f) for f in findings)
    for reason, same in by_reason.items():
        if len(same) <= MAX_UNFOLDED[severity]:
            for f in same:
                source = str(f.node.source or "") if f.node else ""
                yield _name_node(f.node), f"{reason}   from {source}" if source else reason
        else:
            names = [_name_node(f.node) for f in same[: MAX_NAMED[severity]]] + ["…"] * (
                len(same) > MAX_NAMED[severity]
            )
            yield f"{count(same, 'node')} ({', '.join(names)})", reason


def _name_node(node: FindingNode | None) -> str:
    if node is None:
        return ""
    op = f"{node.domain}.{node.op}" if node.domain else node.op
    return shorten_names(clean(f"{node.label} ({op})"))


MAX_HINTS = 3  # nodes that are named before a search
MAX_SAYS = 90  # characters of a line


@options.add_option_groups()
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
    every = entries_of.list_entries(list_folders(project.load()))
    for word, names in (
        (runtime, {e.runtime for e in every}),
        (operator, {e.operator for e in every}),
    ):
        if word and word not in names:
            raise UnknownName(
                f"no entries of '{word}'",
                nearest=find_nearest(word, sorted(names)),
                code="known.no-entry",
            )
    chosen = [e for e in every if runtime in (None, e.runtime) and operator in (None, e.operator)]
    if name:
        chosen = [entries_of.find(name, chosen)]
    document = KnownResult(entries=[to_json(e) for e in chosen])
    if name:
        return Result(document, _describe_entry(chosen[0]))
    lines = align_columns(
        [(e.runtime, e.name, e.operator, shorten(clean(e.says), MAX_SAYS)) for e in chosen]
    )
    numbers = [f"{n} of {of}" for of, n in Counter(e.runtime for e in chosen).items()]
    lines.append(f"{len(chosen)} known: {', '.join(numbers)}")
    return Result(document, "\n".join(lines))


def list_folders(settings: Project) -> list[Path]:
    """Return the user's own folders with entries; those of a project file are relative to it."""
    base = settings.file.parent if settings.file else Path()
    return [base / word for word in settings.get("known", default=[])]


def find_release(candidate: Candidate) -> str:
    """Return the release of the runtime that a candidate runs; "" if that is not known without
    starting it."""
    from subgraph.environments import releases

    if candidate.release or candidate.package or candidate.python:
        return candidate.release
    try:
        return releases.find_own_release(candidate.backend)
    except UsageError:
        return ""


def _hold_against(context: LintContext, candidate: Candidate, settings: Project) -> LintContext:
    """Return the context with the known entries of a candidate's runtime."""
    return replace(
        context,
        runtime=entries_of.find_runtime(candidate.backend, candidate.device),
        release=find_release(candidate),
        known=list_folders(settings),
    )


def list_hints(graph: Graph, candidate: Candidate) -> list[LintIssue]:
    """Return a note for each node like those that the candidate's runtime is known to compute
    wrongly."""
    from subgraph.inspection.lint import LintContext, run_rules

    context = _hold_against(LintContext(graph), candidate, project.load())
    return [issue for issue in run_rules(context, ["known"]) if issue.node]


def log_known(graph: Graph, candidate: Candidate) -> list[int]:
    """Return the nodes of `list_hints`; the first ones are logged."""
    nodes = [(issue.node, issue.reason) for issue in list_hints(graph, candidate) if issue.node]
    for node, reason in nodes[:MAX_HINTS]:
        log.info("perhaps %s", clean(f"{node.label} ({node.op}) {reason}"))
    return [node.top for node, _ in nodes if node.top is not None]


def _describe_entry(entry: Entry) -> str:
    when = [f"{key}={value}" for key, value in entry.when.items()]
    unless = [f"{key}={value}" for key, value in entry.unless.items()]
    rows = [
        ("nodes", ", ".join([entry.operator, *when])),
        ("not", ", ".join(unless)),
        ("releases", entry.format_releases("")),
        ("how far", entry.off),
        ("cure", entry.cure),
        ("thread", entry.thread),
        ("tests", ", ".join(entry.tests)),
        ("case", "a standalone model, below" if entry.case else ""),
        ("tried", entry.date),
        ("here", entry.command),
    ]
    head = f"{entry.runtime}: {entry.operator} {entry.says}"
    model = map(clean, entry.case.model.splitlines()) if entry.case else ()
    return "\n".join(
        [
            clean(head),
            *align_columns([("", word, clean(text)) for word, text in rows if text]),
            *model,
        ]
    )
