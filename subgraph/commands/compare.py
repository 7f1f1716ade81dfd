"""`subcut compare`: every tensor of a model on a candidate, in place and isolated -> a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from subgraph import project
from subgraph.commands import Result, command_line, inside, log, options, resolve, table
from subgraph.commands.options import Text, Texts, option
from subgraph.commands.recorded import (
    TensorChoice,
    compare_recorded,
    recording_options,
    refuse_beside_recorded,
)
from subgraph.commands.resolve import Asked
from subgraph.documents import to_json
from subgraph.errors import UsageError
from subgraph.graph.graph import load
from subgraph.text import clean, count, prediction
from subgraph.verdict import Judgement, Status, Verdict

if TYPE_CHECKING:
    from subgraph.runtime.reference import Reference
    from subgraph.trials.compare import Comparison, ComparisonRow
    from subgraph.trials.session import Setup

FOLDER_NAME_CHARS = 60  # characters of a candidate's name in a folder's
MOST_BODIES = 4  # that a note lists
METRICS = ("max_abs", "max_rel", "cosine", "mismatch")
JUDGED = ("status", "signature", "label", "sample", *METRICS)
NOTE = "in place: reading inner tensors makes them outputs, which may change fusion: a hint, not a proof"


@options.with_option_groups("force", "spec")
def compare(
    *,
    model: options.ModelArgument = None,
    candidate: Annotated[
        Texts, option("--candidate -c", "SPEC", "The runtime in doubt, as in bisect. Repeatable: side by side.")
    ] = None,
    candidate_options: options.CandidateOptions,
    weights: options.Weights = None,
    at: Annotated[
        Texts,
        option(
            "--at", "NAME", "Only this node or tensor, or those that match a glob. Repeatable.", options.complete_nodes
        ),
    ] = None,
    save: Annotated[
        Text, option("--save", "DIR", "Also write the compared tensors of both sides as .npy, with a list of them.")
    ] = None,
    fail_fast: Annotated[bool, option("--fail-fast", None, "Stop at the first tensor that is wrong.")] = False,
    align: Annotated[
        Text,
        option(
            "--align",
            "output|all",
            "As TNN's converter: only the outputs, or all tensors up to the first wrong one.",
        ),
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
    """Compare every tensor of a model on a candidate with the reference.

    Each tensor is compared in a run of the whole model, and each node as a model of its own. With --recorded, the
    tensors are those that a device has written.

    Examples:
      subcut compare model.onnx -c wrong.py
      subcut compare model.onnx -c wrong.py --at 'stem/*' --csv table.csv
      subcut compare model.onnx -c onnx-reference --criterion 'cosine>0.999'

    Exit code 0: all agree; 1: something disagrees; 5: nothing could be established.
    """
    asked = Asked(project.load(), model, weights, inputs, comparison, runtime, result)
    _ = asked.criterion  # a mistake there is told first
    if align not in (None, "output", "all"):
        raise UsageError(
            f"--align {align}: expected output or all", "--align output compares the model's outputs alone"
        )
    choice = TensorChoice(at or (), align == "output", fail_fast or align == "all", save)
    table.check(csv_file)
    if recorded.recorded:
        refuse_beside_recorded({
            "--candidate": candidate, "--candidate-model": candidate_options.other_model,
        })  # fmt: skip
        recordings = recording_options(recorded, runtime, inputs, candidate_options.tensor_map)
        return compare_recorded(asked, recordings, choice, csv_file)
    model_path = asked.model_path
    if save and len(candidate or ()) > 1:
        raise UsageError("--save writes the tensors of one candidate", "name one -c")
    specs: Sequence[str | None] = candidate or [None]
    setups = [asked.setup(replace(candidate_options, spec=spec), freeze=not no_freeze) for spec in specs]
    with asked.reference() as reference:
        found = [_compare(model_path, setup, reference, choice, asked.jobs(jobs, setup.candidate)) for setup in setups]
    if len(found) == 1:
        ((shown, compared),) = found
        told = text(compared, shown["candidate"])
        return table.result(shown, told, as_csv(compared) if csv_file else "", csv_file)
    document = {
        "schema": "subcut.side-by-side/1",
        "exit_code": max((shown["exit_code"] for shown, _ in found), key=(0, 5, 1).index),
        "comparisons": [shown for shown, _ in found],
    }
    return table.result(document, side_by_side(found), csv_of_all(found) if csv_file else "", csv_file)


def _compare(
    model_path: Path, setup: Setup, reference: Reference, choice: TensorChoice, jobs: int
) -> tuple[dict[str, Any], Comparison]:
    """The comparison with one candidate, and its document, which is saved."""
    from subgraph.cases import evidence
    from subgraph.cases.case import ResultPlace, source_of
    from subgraph.reports import listed
    from subgraph.runtime.remote.remote_pool import open_workers
    from subgraph.storage.folders import safe_name
    from subgraph.storage.value_pairs import free_values, save_values
    from subgraph.trials.compare import chosen, compare_tensors, document, value_pairs
    from subgraph.trials.session import open_trials

    with open_workers(setup.candidate) as workers, ExitStack() as stack:
        graph = load(model_path)
        if not setup.feeding.inputs:
            log.info("inputs: random values, seed %d; real ones show more (-i FILE)", setup.feeding.seed)
        there = inside.opened(graph, choice.at, setup.feeding, reference, setup.output)
        graph, feeding, at = stack.enter_context(there)
        setup, choice = replace(setup, feeding=feeding), replace(choice, at=[name for name in at if name])
        with open_trials(graph, setup, reference, workers) as trials:
            resolve.log_caveat(trials)
            comparison = compare_tensors(trials, choice.words(graph), jobs=jobs, fail_fast=choice.fail_fast)
            held = [] if choice.at or choice.outputs else inside.bodies(graph)
            unseen = (
                [f"not listed: what is inside {listed(held, most=MOST_BODIES)}; --at NAME compares it"] if held else []
            )
            comparison = replace(comparison, notes=(*comparison.notes, *unseen))
            command = command_line()
            found = document(trials, comparison, setup.criterion, command)
            if choice.save:
                save_values(value_pairs(trials, chosen(trials, choice.words(graph))), free_values(choice.save))
    name = f"{safe_name(setup.candidate.name)[:FOLDER_NAME_CHARS]}{'-at' if choice.at else ''}"
    place = ResultPlace(setup.output, f"compare-{name}")
    saved = evidence.save_document(found, place, source_of(graph), [graph.path])
    return to_json(saved), comparison


# ---------------------------------------------------------------------------------------------------- text


def side_by_side(found: Sequence[tuple[Mapping[str, Any], Comparison]]) -> str:
    """Several candidates for people: a column each, with the worse of in place and alone; below it the pages."""
    first = found[0][1]
    names = [clean(shown["candidate"]["name"]) for shown, _ in found]
    cells = [("", "node", "op", "tensor", *names)]
    cells.append(("", "whole model", "", "", *(_outcome(c.whole, c.whole.label) for _, c in found)))
    judged = [{row.index: {r.tensor: r for r in c.rows if r.index == row.index} for row in c.rows} for _, c in found]
    for row in max((c.rows for _, c in found), key=len):
        same = [of.get(row.index, {}).get(row.tensor) for of in judged]
        worst = [_cell(_worse(r.in_place, r.alone or r.verdict)) if r else "-" for r in same]
        cells.append((f"#{row.index}", clean(row.node), row.op, clean(row.tensor), *worst))
    lines = [f"{name}: {clean(c.says)}" for name, (_, c) in zip(names, found, strict=True)]
    pages = [f"report {clean(shown['report'])}" for shown, _ in found if shown.get("report")]
    return "\n".join([*lines, *table.aligned(cells), *([NOTE] if first.rows else []), *pages])


def _worse(one: Judgement | Verdict | None, other: Judgement | Verdict | None) -> Judgement | Verdict | None:
    order = (Status.AGREE, Status.UNRESOLVED, Status.FAIL)
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda judged: order.index(judged.status))


def csv_of_all(found: Sequence[tuple[Mapping[str, Any], Comparison]]) -> str:
    """The tables of several candidates below each other, the candidate in the first column."""
    lines = []
    for k, (shown, comparison) in enumerate(found):
        head, *rows = as_csv(comparison).splitlines()
        name = table.render([shown["candidate"]["name"]], []).strip()
        lines += [] if k else [f"candidate,{head}"]
        lines += [f"{name},{row}" for row in rows]
    return "".join(f"{line}\n" for line in lines)


def text(comparison: Comparison, candidate: Mapping[str, Any]) -> str:
    """The comparison for people: the verdict first, then the whole model, a line per tensor, the first bad one."""
    lines = [clean(comparison.says), _candidate_line(candidate), *_whole(comparison), *_table(comparison.rows)]
    in_place = comparison.in_place
    if comparison.rows:
        judged = any(row.in_place for row in comparison.rows)  # if none is, that column says nothing
        lines.append(NOTE if judged else f"in place: {_outcome(in_place, in_place.label)}   {clean(in_place.why)}")
    return "\n".join([*lines, *_summary(comparison), *(f"note: {note}" for note in comparison.notes)])


def _candidate_line(candidate: Mapping[str, Any]) -> str:
    runtime = table.runtime(candidate["name"], candidate["backend"], candidate["version"])
    parts = (f"candidate    {candidate['name']}", runtime, candidate["precision"])
    return "   ".join(clean(part) for part in parts if part)


def _whole(comparison: Comparison) -> list[str]:
    whole = comparison.whole
    lines = [f"whole model  {_outcome(whole, whole.label)}   {clean(_reason(whole))}"]
    lines += [f"             {clean(line)}" for line in comparison.forms.sentences()]
    for name, shares in comparison.ranking.items():
        lines.append(f"             {clean(name)}: {prediction(shares)}")
    lines += [f"             | {clean(line)}" for line in whole.process.get("stderr") or ()]
    lines.append(f"             built in {_seconds(whole.build)}, ran in {_seconds(whole.run)}")
    return lines


def _reason(verdict: Verdict) -> str:
    """Why, with the output that decided, and the sample if there are several."""
    about = next((j for j in verdict.outputs if (j.status, j.why) == (verdict.status, verdict.why)), None)
    return f"{about.name}: {about.why}{f', sample {about.sample}' if about.sample else ''}" if about else verdict.why


def _outcome(judged: Judgement | Verdict, label: str = "") -> str:
    """`agree`, `FAIL (nan)`, `refused` …; with a label of the criterion that says more than `agrees`."""
    if judged.status is Status.FAIL:
        return f"FAIL{f' ({judged.signature})' if judged.signature not in (None, 'mismatch') else ''}"
    if judged.status is Status.UNRESOLVED:
        return str(judged.signature or "unresolved")
    return "agree" if label in ("", "agrees") else f"agree ({label})"


def _seconds(value: float) -> str:
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.1f} s"


def _table(rows: Sequence[ComparisonRow]) -> list[str]:
    cells = [("", "node", "op", "tensor", "in place", "alone")]
    for row in rows:
        names = (f"#{row.index}", clean(row.node), row.op, clean(row.tensor))
        cells.append((*names, _cell(row.in_place), _cell(row.alone or row.verdict)))
    return table.aligned(cells) if rows else []


def _cell(judged: Judgement | Verdict | None) -> str:
    if not isinstance(judged, Judgement):
        return _outcome(judged) if judged else "-"
    error = math.nan if judged.signature == "nan" else judged.errors.get("max_rel", math.nan)
    return f"{f'{error:.1e} ' if math.isfinite(error) else ''}{_outcome(judged, judged.label)}"


def _summary(comparison: Comparison) -> list[str]:
    rows, bad = comparison.rows, comparison.first_bad
    if not rows:
        return ["no tensor to compare: the model's outputs depend on constants and shapes alone"]
    parts = []
    for way, words in (([r.in_place for r in rows], "in place"), ([r.alone or r.verdict for r in rows], "alone")):
        statuses = [judged.status for judged in way if judged]
        unresolved = statuses.count(Status.UNRESOLVED)
        unsure = f", {unresolved} unresolved" if unresolved else ""
        parts.append(f"{statuses.count(Status.FAIL)} of {len(statuses)} wrong {words}{unsure}")
    lines = [f"{count(len(rows), 'tensor')}: {'; '.join(parts)}{' (stopped there)' if comparison.stopped else ''}"]
    if bad:
        lines.append(f"first bad tensor  {clean(bad.tensor)}   node {clean(bad.node)} ({bad.op})")
        lines += [f"source            {clean(str(bad.source))}"] if str(bad.source or "") else []
        lines += [f"looks like        {clean(words)}" for words in comparison.looks_like]
    elif comparison.whole.status is Status.AGREE:
        seen = comparison.looked_at
        unseen = "" if seen.inner else "; without --at, all inner tensors are compared"
        lines.append(f"compared: {count(seen.outputs, 'output')}, {count(seen.inner, 'inner tensor')}{unseen}")
    elif comparison.whole.status is Status.FAIL:
        lines.append("each tensor agrees, yet the whole model is wrong: several nodes together are, as in a fusion")
    return lines


# ---------------------------------------------------------------------------------------------------- CSV


def as_csv(comparison: Comparison) -> str:
    """One line per tensor, of several samples the worst in each way; no cell starts a formula."""
    columns = [f"{way}_{name}" for way in ("in_place", "alone") for name in JUDGED]
    head = ["index", "node", "op", "tensor", *columns, "source"]
    rows = []
    for r in comparison.rows:
        judged = [*_csv_cells(r.in_place), *_csv_cells(r.alone or r.verdict)]
        rows.append([r.index, r.node, r.op, r.tensor, *judged, str(r.source or "")])
    return table.render(head, rows)


def _csv_cells(judged: Judgement | Verdict | None) -> list[object]:
    """The cells of `JUDGED`."""
    if judged is None:
        return [None] * len(JUDGED)
    if isinstance(judged, Judgement):
        errors = [judged.errors.get(name) for name in METRICS]
        return [judged.status, judged.signature, judged.label, judged.sample, *errors]
    return [judged.status, judged.signature, *[None] * (len(JUDGED) - 2)]
