"""`subcut compare`: every tensor of a model on a candidate, in place and isolated -> a table."""

from __future__ import annotations

from collections.abc import Sequence
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
from subgraph.text import aligned, short

if TYPE_CHECKING:
    from subgraph.runtime.reference import Reference
    from subgraph.trials.session import Setup

FOLDER_NAME_CHARS = 60  # characters of a candidate's name in a folder's
MAX_BODIES = 4  # that a note lists
SEVERITY = ("", "agree", "unresolved", "fail")


@options.with_option_groups("force", "spec")
def compare(
    *,
    model: options.ModelArgument = None,
    candidate: Annotated[
        Texts,
        option(
            "--candidate -c",
            "SPEC",
            "The runtime in doubt, as in bisect. Repeatable: side by side.",
            options.complete_candidates,
        ),
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
    compared: options.OutputOptions,
    score: options.ScoreOptions,
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
    _, wanted = asked.criterion, resolve.wanted_score(score)
    chosen = resolve.output_choice(compared)  # mistakes there are told first
    if align not in (None, "output", "all"):
        raise UsageError(
            f"--align {align}: expected output or all", "--align output compares the model's outputs alone"
        )
    choice = TensorChoice(at or (), align == "output", fail_fast or align == "all", save)
    table.check(csv_file)
    if recorded.recorded:
        refuse_beside_recorded({
            "--candidate": candidate, "--candidate-model": candidate_options.other_model,
            "--score": score.score, "--ignore": compared.ignore, "--where": compared.where,
        })  # fmt: skip
        recordings = recording_options(recorded, runtime, inputs, candidate_options.tensor_map)
        return compare_recorded(asked, recordings, choice, csv_file)
    model_path = asked.model_path
    if save and len(candidate or ()) > 1:
        raise UsageError("--save writes the tensors of one candidate", "name one -c")
    specs: Sequence[str | None] = candidate or [None]
    setups = [asked.setup(replace(candidate_options, spec=spec), freeze=not no_freeze) for spec in specs]
    setups = [replace(setup, score=wanted, choice=chosen) for setup in setups]
    with asked.reference() as reference:
        found = [_compare(model_path, setup, reference, choice, asked.jobs(jobs, setup.candidate)) for setup in setups]
    if len(found) == 1:
        return table.compared(found[0], csv_file)
    document = {
        "schema": "subcut.side-by-side/1",
        "exit_code": max((one["exit_code"] for one in found), key=(0, 5, 1).index),
        "comparisons": found,
    }
    return table.result(document, side_by_side(found), csv_of_all(found) if csv_file else "", csv_file)


def _compare(model_path: Path, setup: Setup, reference: Reference, choice: TensorChoice, jobs: int) -> dict[str, Any]:
    """The document of the comparison with one candidate, which is saved."""
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
        there = inside.opened(graph, choice.at, setup.feeding, reference, setup.output, setup.score)
        graph, feeding, at = stack.enter_context(there)
        setup, choice = replace(setup, feeding=feeding), replace(choice, at=[name for name in at if name])
        with open_trials(graph, setup, reference, workers) as trials:
            resolve.log_caveat(trials)
            comparison = compare_tensors(trials, choice.words(graph), jobs=jobs, fail_fast=choice.fail_fast)
            held = [] if choice.at or choice.outputs else inside.bodies(graph)
            unseen = (
                [f"not listed: what is inside {listed(held, most=MAX_BODIES)}; --at NAME compares it"] if held else []
            )
            comparison = replace(comparison, notes=(*comparison.notes, *unseen))
            command = command_line()
            found = document(trials, comparison, setup.criterion, command)
            if choice.save:
                save_values(value_pairs(trials, chosen(trials, choice.words(graph))), free_values(choice.save))
    name = f"{safe_name(setup.candidate.name)[:FOLDER_NAME_CHARS]}{'-at' if choice.at else ''}"
    place = ResultPlace(setup.output, f"compare-{name}")
    saved = evidence.save_document(found, place, source_of(graph), [graph.path])
    return dict(to_json(saved))


def side_by_side(documents: Sequence[dict[str, Any]]) -> str:
    """Several candidates for people: a column each, with the worse of in place and alone; below it the pages."""
    from subgraph.reports import cleaned, view, word
    from subgraph.reports.text import IN_PLACE, compared_cell

    shown = [cleaned(document) for document in documents]
    names = [document["candidate"]["name"] for document in shown]
    rows = [{(line.index, line.tensor): line for line in view(document).lines} for document in shown]
    cells = [("", "node", "op", "tensor", *names)]
    cells.append(("", "whole model", "", "", *(word(document["whole"]) for document in shown)))
    for key, line in max(rows, key=len).items():
        same = [of[key].cells if key in of else [] for of in rows]
        worst = [max(both, key=lambda cell: SEVERITY.index(cell.status), default=None) for both in same]
        told = [compared_cell(cell) if cell else "-" for cell in worst]
        cells.append((f"#{line.index}", short(line.node), line.op, short(line.tensor), *told))
    lines = [f"{document['candidate']['name']}: {document['says']}" for document in shown]
    pages = [f"report {document['report']}" for document in shown if document["report"]]
    return "\n".join([*lines, *aligned(cells), *([IN_PLACE] if rows[0] else []), *pages])


def csv_of_all(documents: Sequence[dict[str, Any]]) -> str:
    """The tables of several candidates below each other, the candidate in the first column."""
    from subgraph.reports.csv import render_compared

    lines: list[str] = []
    for document in documents:
        head, *rows = render_compared(document).splitlines()
        name = table.render([document["candidate"]["name"]], []).strip()
        lines += [*([] if lines else [f"candidate,{head}"]), *(f"{name},{row}" for row in rows)]
    return "".join(f"{line}\n" for line in lines)
