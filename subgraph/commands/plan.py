"""`subcut plan`: a float model and a lower precision -> what must stay in float."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from subgraph import project
from subgraph.commands import Result, make_command_line, options
from subgraph.commands.options import Text, option
from subgraph.commands.resolve import ResolvedOptions, log_random_inputs, read_score
from subgraph.commands.table import convert_words
from subgraph.project import parse_seconds
from subgraph.results.answer import NextCommand
from subgraph.text import align_columns, clean, count

if TYPE_CHECKING:
    from subgraph.results.plan import PlanDocument, PlanScales

TO = ("fp16", "bf16", "int8", "uint8", "int16")
UNITS = ("node", "block", "operator", "scale")
MAX_LISTED = 20  # below it


@options.add_option_groups("spec")
def plan(
    *,
    model: options.ModelArgument = None,
    candidate: options.CandidateSpec = None,
    candidate_options: options.CandidateOptions,
    to: Text = option(
        "--to",
        "PRECISION",
        "Make the lowered model: fp16, bf16, int8, uint8, int16; calibrated on the inputs.",
        words=TO,
    ),
    unit: Text = option(
        "--unit",
        "UNIT",
        "The kind of a place: node (default), block, operator, scale.",
        words=UNITS,
    ),
    gears: Text = option(
        "--gears",
        "A,B",
        "In place of float32, the lowest that holds: int16, float16.",
    ),
    rescale: bool = option(
        "--rescale",
        None,
        "First scale what leaves the precision, and large channels, by powers of two in weights.",
    ),
    max_time: options.MaxTime = None,
    score: options.ScoreOptions,
    inputs: options.InputOptions,
    comparison: options.CriterionOptions,
    runtime: options.RuntimeOptions,
    jobs: options.Jobs = None,
    result: options.ResultOptions,
) -> Result:
    """Find what must stay in float so that a quantized model is right.

    The lowered model is --candidate-model, or --to writes it. The plan is the smallest set of
    places that is kept: with any one of them lowered again, the model is refused.

    Examples:
      subcut plan model.onnx --to int8
      subcut plan model.onnx --to fp16 --unit operator
      subcut plan model.onnx --to fp16 --rescale -i input.npy
      subcut plan model.onnx --to int8 --score sqnr --at-least 20

    Exit code 0: there is a plan; 1: not even in float; 5: it is not known whether the plan is
    enough.
    """
    from subgraph.graph.graph import load
    from subgraph.questions.planning.make_plan import PlanRequest, make_plan

    resolved = ResolvedOptions(project.load(), model, None, inputs, comparison, runtime, result)
    path = resolved.model_path
    _ = resolved.criterion  # mistakes in it are reported first
    wanted = read_score(score)
    request = PlanRequest(
        to=to,
        unit=unit,
        gears=[word.strip() for word in (gears or "").split(",") if word.strip()],
        rescale=rescale,
        max_time=parse_seconds(max_time) or math.inf,
        replaces=resolved.result.force,
    )
    setup = replace(resolved.make_setup(replace(candidate_options, spec=candidate)), score=wanted)
    request = replace(request, jobs=resolved.count_jobs(jobs, setup.candidate))
    log_random_inputs(resolved.feeding)
    with resolved.start_reference() as reference:
        document = make_plan(load(path), setup, reference, request, make_command_line())
    following = list(_iter_next(document, is_other_model=bool(candidate_options.other_model)))
    return Result(document, format_text(document), following)


def _iter_next(document: PlanDocument, *, is_other_model: bool) -> Iterator[NextCommand]:
    if any("--rescale" in note for note in document.notes):
        words = [*convert_words("plan", "plan"), "--rescale"]
        yield NextCommand("scale what overflows instead", words)
    if document.exit_code == 1 and is_other_model:
        yield NextCommand("find where it differs", convert_words("plan", "bisect"))


# ------------------------------------------------------------ text


def format_text(document: PlanDocument) -> str:
    """Return the document for people."""
    from subgraph.questions.planning.make_plan import MAX_NAMED, list_names

    result = document.result
    files = document.files
    lines = [document.says]
    rows = []
    if score := result.score:
        scores = (
            ("as it is", score.as_it_is),
            ("with the plan", score.plan),
            ("float", score.in_float),
        )
        values = "   ".join(f"{name} {value:.6g}" for name, value in scores if value is not None)
        rows.append(
            (
                score.words,
                f"{values}   (at least {score.limit:.6g}; {count(score.samples, 'sample')})",
            )
        )
        if score.interval:
            low, high = score.interval
            rows.append((score.of, f"{low:.3g} to {high:.3g} over draws of the samples (95 %)"))
    if result.kept:
        rows.append(("minimal", _describe_minimal(document)))
        others = list_names(document)[MAX_NAMED:]
        rows += [("", name) for name in others[:MAX_LISTED]]
        if len(others) > MAX_LISTED:
            rows.append(("", f"and {len(others) - MAX_LISTED} more, as in the lists"))
    if result.scales:
        rows += _list_scales(result.scales)
    if result.weights:
        low = result.weights["low"]
        every = sum(result.weights.values())
        share = (
            f"{100 * low / every:.1f} % of the weights in {document.setup.precision}"
            if every
            else "no weights"
        )
        rows.append(("model", f"{clean(str(files.model))}   ({share})"))
    if files.path:
        rows.append(("lists", f"{clean(files.path)}/lists/"))
        for tried in files.tried_lists:
            judged = tried.why
            if result.score and tried.score is not None:
                judged = f"{result.score.words} {tried.score:.6g}"
            accepted = "accepted" if tried.accepted else "refused"
            more = f" of {count(tried.added, 'node')} more than the plan's" if tried.added else ""
            rows.append(("", f"{tried.tool} with this list{more}: {accepted}, {judged}"))
        untried = files.lists.keys() - {tried.tool for tried in files.tried_lists}
        rows.append(("", f"not tried in {', '.join(sorted(untried))}"))
        rows.append(("report", f"{clean(files.path)}/report.html"))
    rows += [("note", note) for note in document.notes]
    rows.append(
        ("asked", f"{count(document.trials.runs, 'model')} in {document.trials.seconds:.0f} s")
    )
    return "\n".join([*lines, *(f"  {line}" for line in align_columns(rows))])


def _list_scales(scales: PlanScales) -> Iterator[tuple[str, str]]:
    """Yield the tensors that were scaled, and where the factors are."""
    cured = [tensor for tensor in scales.tensors if tensor.exponent is not None]
    for tensor in cured[:MAX_LISTED]:
        size = f"{clean(tensor.name)} ({tensor.kind}, up to {tensor.largest:.3g})"
        most = " at most" if tensor.channels else ""
        yield "scaled", f"{size} by 2^{-(tensor.exponent or 0)}{most}"
    if scales.weights or scales.factors:
        where = f"{count(scales.weights, 'weight')} changed, {len(scales.factors)} Mul added"
        off = f"{where}; in float32 the outputs differ by {scales.difference:.2g}"
        if scales.noise:
            off += f", quantized by {scales.noise[1]:.2g} instead of {scales.noise[0]:.2g}"
        yield "", f"{clean(scales.model)}   ({off})" if scales.model else off


def _describe_minimal(document: PlanDocument) -> str:
    result = document.result
    kept = len(result.kept or ())
    if result.minimal:
        gears = any(place.gear != "float32" for place in result.kept or ())
        again = "one gear lower" if gears else "lowered again"
        return f"yes: with any one of them {again}, it is refused"
    return (
        f"not proven: {result.proven} of {kept} were lowered again and refused, the others not"
        " run, or not judged"
    )
