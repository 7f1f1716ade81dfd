"""`subcut compare`: every tensor of a model on a candidate, in place and isolated -> a table."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from subgraph import project
from subgraph.commands import (
    Result,
    list_bodies,
    make_command_line,
    open_body,
    options,
    resolve,
    table,
)
from subgraph.commands.options import Number, Text, Texts, option
from subgraph.commands.recorded import (
    NEEDS_CANDIDATE,
    TensorChoice,
    compare_recorded,
    read_recording_options,
)
from subgraph.commands.resolve import ResolvedOptions
from subgraph.commands.table import convert_words
from subgraph.errors import UsageError
from subgraph.graph.graph import load
from subgraph.log import log
from subgraph.results.answer import NextCommand
from subgraph.text import align_columns, mask_logins, omit_middle
from subgraph.types import frozen

if TYPE_CHECKING:
    from subgraph.results.compare import ComparisonDocument
    from subgraph.runtime.reference import Reference
    from subgraph.trials.open_trials import Setup

MAX_FOLDER_NAME_CHARS = 60  # characters of a candidate's name in a folder's
MAX_BODIES = 4  # that a note lists
CANDIDATE = {"--candidate", "-c"}
SEVERITY = ("", "agree", "unresolved", "fail")


@frozen
class PartOptions:
    """The tensors to compare; by default every tensor in place and alone."""

    at: Texts = option(
        "--at",
        "NAME",
        "Only this node or tensor, or those that match a glob. Repeatable.",
        options.complete_nodes,
    )
    start: options.Start = None
    end: options.End = None
    in_place: bool = option(
        "--in-place",
        None,
        "Only in a run of the whole model: of thousands of nodes, each alone is slow.",
        refused_beside="--recorded",
    )


@options.add_option_groups("force", "spec")
def compare(
    *,
    model: options.ModelArgument = None,
    candidate: Texts = option(
        "--candidate -c",
        "SPEC",
        "The runtime in doubt, as in bisect. Repeatable: side by side.",
        options.complete_candidates,
        refused_beside="--recorded",
    ),
    candidate_options: options.CandidateOptions,
    weights: options.Weights = None,
    part: PartOptions,
    save: Text = option(
        "--save",
        "DIR",
        "Also write the compared tensors of both sides as .npy, with a list of them.",
    ),
    fail_fast: bool = option("--fail-fast", None, "Stop at the first tensor that is wrong."),
    align: Text = option(
        "--align",
        "output|all",
        "As TNN's converter: only the outputs, or all tensors up to the first wrong one.",
        words=("output", "all"),
    ),
    power: Number = option(
        "--power",
        "N",
        "Plant N faults in the reference's model; count those that the outputs would show.",
        limits=options.FROM_1,
        refused_beside="--recorded",
    ),
    recorded: options.RecordedOptions,
    inputs: options.InputOptions,
    comparison: options.CriterionOptions,
    compared: options.OutputOptions,
    score: options.ScoreOptions,
    runtime: options.RuntimeOptions,
    jobs: options.Jobs = None,
    no_freeze: options.NoFreeze = False,
    every_row: bool = option("--all", None, "Every row of the table, also those that agree."),
    csv_file: options.CsvFile = None,
    result: options.ResultOptions,
    given: options.GivenOptions,
) -> Result:
    """Compare every tensor of a model on a candidate with the reference.

    Each tensor is compared in a run of the whole model, and each node as a separate model. With
    --recorded, the tensors are those that a device has written.

    Examples:
      subcut compare model.onnx -c wrong.py
      subcut compare model.onnx -c wrong.py --at 'stem/*' --csv table.csv
      subcut compare model.onnx -c onnx-reference --criterion 'cosine>0.999'

    Exit code 0: all agree; 1: something disagrees; 5: nothing could be established.
    """
    from subgraph.comparison.where import OutputChoice

    resolved = ResolvedOptions(project.load(), model, weights, inputs, comparison, runtime, result)
    _ = resolved.criterion
    wanted = resolve.read_score(score)
    chosen = OutputChoice.parse(**vars(compared))  # mistakes in these options are reported first
    if part.at and (part.start or part.end):
        raise UsageError(
            "--at and --start or --end: which?", "give one of them", code="option.conflict"
        )
    choice = TensorChoice(
        part.at or (),
        part.start or (),
        part.end or (),
        part.in_place,
        align == "output",
        fail_fast or align == "all",
        save,
        every_row=every_row,
        power=power or 0,
    )
    table.check(csv_file)
    if recorded.recorded:
        given.refuse_beside("--recorded", NEEDS_CANDIDATE)
        recordings = read_recording_options(
            recorded, runtime, inputs, candidate_options.tensor_map, chosen
        )
        narrow = replace(
            make_bisect_command(""), why="narrow it down to an interval, with a case for the device"
        )
        return compare_recorded(resolved, recordings, choice, csv_file, following=[narrow])
    model_path = resolved.model_path
    specs: Sequence[str | None] = candidate or [None]
    setups = [
        replace(
            resolved.make_setup(replace(candidate_options, spec=spec), freeze=not no_freeze),
            score=wanted,
            choice=chosen,
        )
        for spec in specs
    ]
    with resolved.start_reference() as reference:
        found = [
            _compare(
                model_path,
                setup,
                reference,
                of_one,
                resolved.count_jobs(jobs, setup.candidate),
                len(setups) > 1,
            )
            for setup, of_one in zip(setups, _separate(choice, setups), strict=True)
        ]
    if len(found) == 1:
        return table.render_comparison(found[0], csv_file, every_row=every_row or choice.is_part)
    from subgraph.results.compare import SideBySideResult

    code = max((one.exit_code for one in found), key=(0, 5, 1).index)
    document = SideBySideResult(exit_code=code, comparisons=found)
    return table.make_result(
        document, format_side_by_side(found), format_csv_of_all(found) if csv_file else "", csv_file
    )


def _separate(choice: TensorChoice, setups: Sequence[Setup]) -> list[TensorChoice]:
    """Return the choice for each of several candidates: the values of each are saved in a folder of
    its own."""
    if not choice.save or len(setups) == 1:
        return [choice] * len(setups)
    places = [Path(choice.save) / f"{k}-{_make_name(setup)}" for k, setup in enumerate(setups)]
    return [replace(choice, save=str(place)) for place in places]


def _make_name(setup: Setup) -> str:
    """Return the candidate's name as a part of a folder's name."""
    from subgraph.storage.folders import make_safe_name

    return make_safe_name(setup.candidate.name)[:MAX_FOLDER_NAME_CHARS]


def make_bisect_command(spec: str) -> NextCommand:
    """Return the command that bisects what this command compares, with the options that bisect has
    as well.

    Args:
        spec: The candidate, in place of several; "" for those that were typed.
    """
    words = convert_words("compare", "bisect", CANDIDATE if spec else ())
    words += ["-c", mask_logins(spec)] if spec else []
    return NextCommand("find the smallest region", words)


def _compare(
    model_path: Path,
    setup: Setup,
    reference: Reference,
    choice: TensorChoice,
    jobs: int,
    several: bool,
) -> ComparisonDocument:
    """Return the document of the comparison with one candidate, which is saved."""
    from subgraph.cases import evidence
    from subgraph.cases.case import ResultPlace, describe_source
    from subgraph.reports import format_list
    from subgraph.runtime.remote.remote_pool import open_workers
    from subgraph.storage.value_pairs import require_free_folder, save_values
    from subgraph.trials.compare_tensors import (
        compare_tensors,
        iter_value_pairs,
        make_document,
        select_tensors,
    )
    from subgraph.trials.doubt import Decision
    from subgraph.trials.open_trials import open_trials
    from subgraph.trials.questions import prepare

    with open_workers(setup.candidate) as workers, ExitStack() as stack:
        graph = load(model_path)
        if not setup.feeding.inputs:
            log.info(
                "inputs: random values, seed %d; real ones show more (-i FILE)", setup.feeding.seed
            )
        named = (*choice.at, *choice.start, *choice.end)
        there = open_body(graph, named, setup.feeding, reference, setup.output, setup.score)
        graph, feeding, names = stack.enter_context(there)
        setup = replace(setup, feeding=feeding)
        suffix = "-at" if choice.is_part else ""
        choice = choice.enter_body(names)
        with open_trials(graph, setup, reference, workers) as trials:
            resolve.log_caveat(trials.runtime)
            words = choice.list_names(trials.model)
            prepared = prepare(trials, select_tensors(trials.model, words))
            trials = prepared.trials
            comparison = compare_tensors(
                prepared,
                words,
                jobs=jobs,
                fail_fast=choice.fail_fast,
                in_place=choice.in_place,
                power=choice.power,
            )
            held = [] if choice.is_part or choice.outputs else list_bodies(graph)
            if held:
                note = (
                    f"not listed: what is inside {format_list(held, most=MAX_BODIES)}; --at NAME"
                    " compares it"
                )
                comparison = replace(comparison, notes=(*comparison.notes, note))
            found = make_document(trials, comparison, setup.criterion, make_command_line())
            adds_up = comparison.settlement.decision is Decision.STEPS_ADD_UP
            if found.exit_code == 1 or adds_up:
                found = replace(
                    found, next=[make_bisect_command(setup.candidate.name if several else "")]
                )
            if choice.save:
                save_values(
                    iter_value_pairs(trials, select_tensors(trials.model, words)),
                    require_free_folder(choice.save),
                )
    place = ResultPlace(setup.output, f"compare-{_make_name(setup)}{suffix}")
    return evidence.save_document(found, place, describe_source(graph), [graph.path])


def format_side_by_side(documents: Sequence[ComparisonDocument]) -> str:
    """Return the comparison of several candidates for people, a column each.

    A column has the worse of in place and alone. The pages are below the table.
    """
    from subgraph.reports import cleaned, format_state, make_view
    from subgraph.reports.text import IN_PLACE, format_cell

    shown = [cleaned(document) for document in documents]
    names = [document.setup.candidate.name for document in shown]
    rows = [
        {(line.index, line.tensor): line for line in make_view(document).lines}
        for document in shown
    ]
    cells = [("", "node", "op", "tensor", *names)]
    cells.append(
        ("", "whole model", "", "", *(format_state(document.whole.verdict) for document in shown))
    )
    for key, line in max(rows, key=len).items():
        same = [of[key].cells if key in of else [] for of in rows]
        worst = [
            max(both, key=lambda cell: SEVERITY.index(cell.status), default=None) for both in same
        ]
        told = [format_cell(cell) if cell else "-" for cell in worst]
        cells.append(
            (f"#{line.index}", omit_middle(line.node), line.op, omit_middle(line.tensor), *told)
        )
    lines = [f"{document.setup.candidate.name}: {document.says}" for document in shown]
    pages = [f"report {document.report}" for document in shown if document.report]
    return "\n".join([*lines, *align_columns(cells), *([IN_PLACE] if rows[0] else []), *pages])


def format_csv_of_all(documents: Sequence[ComparisonDocument]) -> str:
    """Return the tables of several candidates below each other, the candidate in the first
    column."""
    from subgraph.reports.csv import render_compared

    lines: list[str] = []
    for document in documents:
        rows = render_compared(document, document.setup.candidate.name).splitlines(keepends=True)
        lines += rows[1:] if lines else rows
    return "".join(lines)
