"""`subcut compare`: every tensor of a model on a candidate, in place and alone -> a table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from subgraph import project
from subgraph.commands import Result, log, options, resolve, table
from subgraph.commands.options import Text, Texts, option
from subgraph.commands.recorded import TensorChoice, compare_recorded, recording_options, refuse_beside_recorded
from subgraph.errors import UsageError
from subgraph.graph.graph import load
from subgraph.text import clean, count

if TYPE_CHECKING:
    from subgraph.runtime.reference import Reference
    from subgraph.trials.session import Setup

COLUMNS = ("index", "node", "op", "tensor")
JUDGED = ("status", "signature", "label", "sample")
ERRORS = ("max_abs", "max_rel", "cosine", "mismatch")
NOTE = "in place: these tensors were made outputs, which disturbs fusion: a hint, no proof"


@options.with_option_groups("force")
def compare(
    *,
    model: options.ModelArgument = None,
    candidate_options: options.CandidateOptions,
    at: Annotated[
        Texts,
        option(
            "--at", "NAME", "Only this node or tensor, or those that fit a glob. Repeatable.", options.complete_nodes
        ),
    ] = None,
    fail_fast: Annotated[bool, option("--fail-fast", None, "Stop at the first tensor that is wrong.")] = False,
    align: Annotated[
        Text, option("--align", "output|all", "As TNN's converter: the outputs alone; all, to the first bad.")
    ] = None,
    recorded: options.RecordedOptions,
    inputs: options.InputOptions,
    comparison: options.CriterionOptions,
    runtime: options.RuntimeOptions,
    jobs: options.Jobs = None,
    no_freeze: options.NoFreeze = False,
    csv_file: options.CsvFile = None,
    result: options.ResultOptions,
) -> Result:
    """Compare every tensor of a model on a candidate, in place and alone; or those that a device recorded.

    Exit code 0: all agree; 1: something disagrees; 5: nothing could be established.
    """
    settings = project.load()
    criterion = resolve.criterion(settings, comparison)
    if align not in (None, "output", "all"):
        raise UsageError(
            f"--align {align}: expected output or all", "--align output compares the model's outputs alone"
        )
    choice = TensorChoice(at or (), align == "output", fail_fast or align == "all")
    table.check(csv_file)
    if recorded.recorded:
        refuse_beside_recorded({
            "--candidate": candidate_options.spec, "--candidate-model": candidate_options.other_model,
            "--map": candidate_options.tensor_map,
        })  # fmt: skip
        recordings = recording_options(recorded, runtime, inputs)
        feeding, reference = resolve.feeding(settings, inputs), resolve.reference(settings, runtime, result.trust)
        parent = resolve.parent_folder(settings, result.output)
        model_path = resolve.model_path(settings, model)
        return compare_recorded(model_path, recordings, feeding, criterion, reference, parent, choice, csv_file)
    model_path = resolve.model_path(settings, model)
    jobs = resolve.jobs(settings, jobs)
    setup = resolve.setup(settings, candidate_options, inputs, criterion, runtime, result, freeze=not no_freeze)
    with resolve.reference(settings, runtime, result.trust) as reference:
        return _compare(model_path, setup, reference, choice, jobs, csv_file)


def _compare(
    model_path: Path, setup: Setup, reference: Reference, choice: TensorChoice, jobs: int, csv_file: str | None
) -> Result:
    from subgraph.documents import to_json
    from subgraph.runtime.worker_pool import Workers
    from subgraph.trials.compare import compare_tensors, document
    from subgraph.trials.session import open_trials

    with Workers(setup.candidate) as workers:
        graph = load(model_path)
        if not setup.feeding.inputs:
            log.info("inputs: random values, seed %d; real ones show more (-i FILE)", setup.feeding.seed)
        with open_trials(graph, setup, reference, workers) as trials:
            resolve.log_caveat(trials)
            comparison = compare_tensors(trials, choice.words(graph), jobs=jobs, fail_fast=choice.fail_fast)
            found = to_json(document(trials, comparison, setup.criterion))
    return table.result(found, text(found), as_csv(found) if csv_file else "", csv_file)


# ---------------------------------------------------------------------------------------------------- text


def text(document: dict[str, Any]) -> str:
    """The document for people: the whole model first, then a line per tensor, then what to make of it."""
    lines = [_candidate(document), *_whole(document), *_table(document["rows"])]
    in_place = document["in_place"]
    if document["rows"]:
        # where it gave no values, the column says nothing
        given = any(row["in_place"] for row in document["rows"])
        lines.append(NOTE if given else f"in place: {_word(in_place)}   {clean(in_place['why'])}")
    return "\n".join([*lines, *_summary(document)])


def _candidate(document: dict[str, Any]) -> str:
    c = document["candidate"]
    backend = Path(c["backend"]).name
    known = Path(c["name"]).name == backend
    shown = " ".join(filter(None, ("" if known else backend, c["version"])))
    return "   ".join(clean(part) for part in (f"candidate    {c['name']}", shown, c["precision"]) if part)


def _whole(document: dict[str, Any]) -> list[str]:
    whole = document["whole"]
    lines = [f"whole model  {_word(whole)}   {clean(_reason(whole))}"]
    for name, shares in whole["ranking"].items():
        lines.append(f"             {clean(name)}: top-1 {shares['top1']:.0%}, top-5 {shares['top5']:.0%} agree")
    lines += [f"             | {clean(line)}" for line in whole["process"].get("stderr") or ()]
    lines.append(f"             built in {_seconds(whole['build_seconds'])}, ran in {_seconds(whole['run_seconds'])}")
    return lines


def _reason(verdict: dict[str, Any]) -> str:
    """Why, with the output that it is about, and the sample where there are several."""
    about = next((j for j in verdict["outputs"] if all(j[k] == verdict[k] for k in ("status", "why"))), None)
    if about is None:
        return str(verdict["why"])
    return f"{about['name']}: {about['why']}{f', sample {sample}' if (sample := about['sample']) else ''}"


def _word(judged: dict[str, Any]) -> str:
    """`agree`, `FAIL (mismatch)`, `refused` …; a label of the criterion where it says more."""
    if judged["status"] == "fail":
        signature = judged["signature"]
        return f"FAIL{f' ({signature})' if signature and signature != 'mismatch' else ''}"
    if judged["status"] == "unresolved":
        return str(judged["signature"] or "unresolved")
    label = judged.get("label") or "agrees"
    return "agree" if label == "agrees" else f"agree ({label})"


def _seconds(value: float) -> str:
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.1f} s"


def _table(rows: list[dict[str, Any]]) -> list[str]:
    cells = [("", "node", "op", "tensor", "in place", "alone")]
    for row in rows:
        names = (f"#{row['index']}", clean(row["node"]), row["op"], clean(row["tensor"]))
        cells.append((*names, _cell(row["in_place"]), _cell(row["alone"])))
    return table.aligned(cells) if rows else []


def _cell(judged: dict[str, Any] | None) -> str:
    if judged is None:
        return "-"
    error = judged.get("errors", {}).get("max_rel")
    return f"{error:.1e} {_word(judged)}" if isinstance(error, float) else _word(judged)


def _summary(document: dict[str, Any]) -> list[str]:
    rows, bad = document["rows"], document["first_bad"]
    if not rows:
        return ["no tensor to compare: whatever the model's outputs need depends on constants and shapes alone"]
    parts = []
    for key, words in (("in_place", "in place"), ("alone", "alone")):
        judged = [r[key]["status"] for r in rows if r[key]]
        wrong = judged.count("fail")
        unsure = f", {judged.count('unresolved')} unresolved" if "unresolved" in judged else ""
        parts.append(f"{wrong} of {len(judged)} wrong {words}{unsure}")
    lines = [f"{count(len(rows), 'tensor')}: {'; '.join(parts)}{' (stopped there)' if document['stopped'] else ''}"]
    if bad:
        lines.append(f"first bad tensor  {clean(bad['tensor'])}   node {clean(bad['node'])} ({bad['op']})")
        lines += [f"looks like        {clean(words)}" for words in bad["looks_like"]]
    elif document["whole"]["status"] == "fail":
        lines.append("each tensor agrees, yet the whole fails: a fault of several nodes together, such as a fusion")
    return lines


# ---------------------------------------------------------------------------------------------------- CSV


def as_csv(document: dict[str, Any]) -> str:
    """One line per tensor, of several samples the worst in each way; no cell starts a formula."""
    ways = ("in_place", "alone")
    head = [*COLUMNS, *(f"{way}_{name}" for way in ways for name in (*JUDGED, *ERRORS))]
    return table.render(head, (_cells(row, ways) for row in document["rows"]))


def _cells(row: dict[str, Any], ways: Iterable[str]) -> list[Any]:
    cells = [row[name] for name in COLUMNS]
    for way in ways:
        judged = row[way] or {}
        errors = judged.get("errors", {})
        cells += [*(judged.get(name) for name in JUDGED), *(errors.get(name) for name in ERRORS)]
    return cells
