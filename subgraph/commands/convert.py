"""`subcut convert`: a model of TensorFlow, Keras, TensorFlow Lite, Paddle, Caffe or PyTorch ->
ONNX, and a check."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from subgraph import project, system
from subgraph.commands import Result, can_ask, options, resolve
from subgraph.commands.options import Number, Text, option
from subgraph.commands.resolve import ResolvedOptions
from subgraph.commands.table import make_next
from subgraph.environments import installation as environments
from subgraph.errors import InputError, Refused, ResultExists, SubcutError, UsageError
from subgraph.graph.graph import load
from subgraph.graph.model_file import copy_model
from subgraph.log import log
from subgraph.origins import converters
from subgraph.origins.converters import conversion
from subgraph.results.commands import ConvertResult
from subgraph.storage import folders
from subgraph.storage.file_kinds import Family, find_family, is_of_tflite, recognize
from subgraph.storage.tensors import Records
from subgraph.text import clean, count, mask_logins

if TYPE_CHECKING:
    from subgraph.graph.graph import Graph
    from subgraph.origins.converters import Converter
    from subgraph.runtime.inputs import Feeding

UNCHECKED = 5
MAX_ROUNDING = 1e-5  # of an output's largest value: other operators for the same function


@options.add_option_groups("precision", "timeout", "memory_limit", "output", "fresh")
def convert(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The file or folder to convert.")],
    output: Text = option("--output -o", "FILE", "The new model; default: MODEL.onnx."),
    with_command: Text = option(
        "--with",
        "CMD",
        "Another converter: a command in which {model} and {output} are filled in.",
    ),
    yes: bool = option("--yes -y", None, "Install the converter without a question."),
    index_url: Text = option("--index-url", "URL", "Where packages come from, as for pip."),
    find_links: options.FindLinks = None,
    weights: options.Weights = None,
    opset: Number = option(
        "--opset",
        "N",
        "Write an ONNX model in this opset, older or newer; onnx converts it.",
        limits=options.FROM_1,
    ),
    no_check: bool = option("--no-check", None, "Only convert: run neither model."),
    inputs: options.InputOptions,
    comparison: options.CriterionOptions,
    runtime: options.RuntimeOptions,
    result: options.ResultOptions,
) -> Result:
    """Convert a model to ONNX, and compare the two.

    The converter is installed into a separate environment, after it was shown. Then both models
    run on the same inputs: the original by the runtime that it was made for.

    Examples:
      subcut convert saved_model/ -o model.onnx
      subcut convert net.pb --with './my_converter {model} {output}'
      subcut convert model.onnx --opset 11

    Exit code 0: they agree in every output; 1: they do not, or nothing loads what was written; 5:
    converted, and not checked, or not all.
    """
    source = Path(model)
    if not os.path.exists(model):  # noqa: PTH110
        raise UsageError(
            f"no such file or folder: {model}", "check the path", code="file.not-found"
        )
    if opset and not output:
        output = f"{source.stem}-opset{opset}.onnx"
    target = _find_free(output, source, force=result.force)
    settings = project.Project()
    if opset:
        check = ResolvedOptions(settings, model, weights, inputs, comparison, runtime, result)
        return _convert_to_opset(check, opset, target, no_check=no_check)
    if with_command:
        check = ResolvedOptions(settings, None, None, inputs, comparison, runtime, result, target)
        return _convert_by_command(with_command, source, target, check, no_check=no_check)
    if source.is_file() and find_family(source) in (Family.CAFFE, Family.TORCH_PROGRAM):
        made = ResolvedOptions(settings, model, weights, result=result).model_path
        with folders.make_scratch(target.parent) as folder:
            written = _make_place(folder, target)
            copy_model(load(made), written)
            graph = conversion.move_model(load(written), target, source, force=result.force)
        head = f"converted  {clean(source.name)}   {count(graph.nodes, 'node')}"
        return _make_unchecked_result(
            target, head, "subcut reads this format itself: every command takes it as it is"
        )
    kind, converter = _find_converter(source)
    check = ResolvedOptions(
        settings, None, None, inputs, comparison, runtime, result, target, translated=True
    )
    _ = no_check or (check.feeding, check.criterion)  # mistakes in these are reported first
    python = find_python(kind, converter, source, index_url, find_links or (), yes=yes)
    with folders.make_scratch(target.parent) as folder:
        log.info("converting by %s", converter.name)
        written = _make_place(folder, target)
        command = converter.command(python, "convert", source.resolve(), written)
        graph = conversion.convert(converter.name, command, source, written)
        graph = conversion.move_model(graph, target, source, force=result.force)
        head = (
            f"converted  {clean(model)}, {kind}, by {converter.name}   {count(graph.nodes, 'node')}"
        )
        if no_check:
            return _make_unchecked_result(target, head, "--no-check")
        if why := _find_refusal(check, graph):
            return _make_unusable_result(target, head, why)
        return _compare(check, graph, conversion.Original(source, converter, python), head, folder)


def _convert_to_opset(
    check: ResolvedOptions, opset: int, target: Path, *, no_check: bool
) -> Result:
    """Convert an ONNX model to another opset, and compare its outputs on the reference.

    Raises:
        UsageError: The model is of another format, which is to be converted first.
    """
    from contextlib import nullcontext

    from subgraph.commands import edit
    from subgraph.editing.draft import convert_opset

    path = check.model_path
    if is_of_tflite(path):
        raise UsageError(
            f"--opset converts ONNX; {path.name} has operators of TensorFlow Lite",
            f"subcut convert {path.name}, without it",
            code="option.conflict",
        )
    graph = load(path)
    draft = convert_opset(graph, opset)
    with (
        nullcontext() if no_check else check.start_reference() as reference,
        draft.write(target) as new,
    ):
        lines, rows = edit.compare_outputs(graph, new, check.feeding, reference)
    if no_check:
        lines = ["outputs  not run (--no-check)"]
    changes = [row["max_rel"] for row in rows if row["status"] != "same"]
    is_same = all(change is not None and change <= MAX_ROUNDING for change in changes)
    code = UNCHECKED if no_check else int(not is_same)
    if code == 1:
        hint = f"subcut bisect {system.quote(str(path))} -c {system.quote(str(target))}"
        lines.append(f"find the node: {clean(hint)}")
    lines = [f"{clean(path.name)}, {draft.remarks.pop(0)}", *lines]
    return edit.make_result("convert", target, draft, lines, rows, exit_code=code)


def _find_converter(source: Path) -> tuple[str, Converter]:
    """Return (what it is, what converts it).

    Raises:
        UsageError: nothing does.
    """
    if found := converters.find_converter(source):
        return found
    if source.suffix.lower() == ".onnx":
        raise UsageError(
            f"{source} is an ONNX model already",
            "every command takes it as it is",
            code="convert.already-onnx",
        )
    if source.is_file() and (kind := recognize(source)):
        raise UsageError(
            f"{source} is {kind.name}, which subcut does not convert",
            kind.advice,
            code="convert.unsupported-format",
        )
    known = (
        "TensorFlow, Keras, TensorFlow Lite, Paddle, Caffe and PyTorch's .pt2 are converted; --with"
        " CMD names yours"
    )
    raise UsageError(
        f"{source} has a format that subcut does not convert",
        known,
        code="convert.unknown-format",
    )


def _make_place(folder: Path, target: Path) -> Path:
    """Return the path at which a converter writes, in a separate folder of which only the model and
    its weights are taken."""
    (folder / "converted").mkdir()
    return folder.resolve() / "converted" / target.name


def _find_free(output: str | None, source: Path, *, force: bool) -> Path:
    """Return the path of the new model.

    Raises:
        UsageError: the folder of the new model does not exist, or it would be the source.
        ResultExists: a file is in the way.
    """
    target = Path(output) if output else Path(f"{source.resolve().name}").with_suffix(".onnx")
    if target.is_dir():
        target /= f"{source.resolve().stem}.onnx"
    if not target.parent.is_dir():
        raise UsageError(
            f"no folder {target.parent}",
            "make it, or name another with -o",
            code="folder.not-found",
        )
    if target.resolve() == source.resolve():
        raise UsageError(
            f"{source} is an ONNX model already",
            "name another file with -o",
            code="output.is-input",
        )
    if target.exists() and not force:
        raise ResultExists(
            f"{target} is in the way",
            "--force replaces it, -o names another",
            code="output.exists",
        )
    return target


def find_python(
    kind: str,
    converter: Converter,
    source: Path,
    index_url: str | None,
    find_links: Sequence[str],
    *,
    yes: bool,
) -> Path:
    """Return the interpreter of the converter's environment, made if the user agrees.

    Raises:
        UsageError: nobody agreed. BackendError: it cannot be installed.
    """
    words = environments.make_pip_sources(index_url, find_links)
    installation = environments.Installation(converter.requirements, tuple(words))
    if installation.is_ready:
        return environments.make(installation)
    log.info(
        "%s is %s; %s converts it. To be installed, once, apart from all else%s:",
        clean(source.name),
        kind,
        converter.name,
        f", about {converter.size}" if converter.size else "",
    )
    environments.show(installation)
    if not yes:
        if not can_ask():
            raise UsageError(
                "nothing was installed: nobody can confirm it here",
                "--yes agrees; --with CMD names your own",
                code="convert.not-confirmed",
            )
        if not typer.confirm("Install it?", default=True, err=True):
            raise UsageError(
                "nothing was installed",
                "--with CMD names your own converter",
                code="convert.not-confirmed",
            )
    return environments.make(installation)


def _convert_by_command(
    template: str, source: Path, target: Path, check: ResolvedOptions, *, no_check: bool
) -> Result:
    """Convert by the user's own command; without `no_check` load the new model."""
    with folders.make_scratch(target.parent) as folder:
        written = _make_place(folder, target)
        words = conversion.fill_command(template, source.resolve(), written)
        log.info("%s", mask_logins(clean(system.join(words))))
        graph = conversion.convert(words[0], words, source, written)
        graph = conversion.move_model(graph, target, source, force=check.result.force)
        head = (
            f"converted  {clean(source.name)} by {clean(words[0])}   {count(graph.nodes, 'node')}"
        )
        if not no_check and (why := _find_refusal(check, graph)):
            return _make_unusable_result(target, head, why)
    return _make_unchecked_result(
        target,
        head,
        f"to check it, record what the original computes: subcut compare {target} --recorded DIR",
    )


def _find_refusal(check: ResolvedOptions, graph: Graph) -> str:
    """Return the reason why the reference does not load the new model; "" if it does."""
    with check.start_reference() as reference, folders.make_temporary() as folder:
        try:
            reference.load_model("converted", load(graph.path).model, graph.path, folder)
        except Refused as e:
            return e.what
    return ""


def _make_unusable_result(target: Path, head: str, why: str) -> Result:
    """Return the result for a file that a converter wrote, and that does not load."""
    written = head.replace("converted  ", "written, and no runtime here loads it: ", 1)
    return _make_result(target, f"{written}\n", why, 1)


def _make_unchecked_result(target: Path, head: str, why: str) -> Result:
    return _make_result(target, f"{head}\nnot checked: ", why, UNCHECKED)


def _make_result(target: Path, head: str, why: str, code: int) -> Result:
    document = ConvertResult(exit_code=code, path=str(target), why=why)
    following = make_next("check the model", "inspect", str(target))
    return Result(document, f"{head}{clean(why)}\n{clean(str(target))}", [following])


def _compare(
    check: ResolvedOptions, graph: Graph, original: conversion.Original, head: str, folder: Path
) -> Result:
    """Compare both models on the same inputs, tensor by tensor if names survive.

    They agree only if all outputs do.
    """
    from subgraph.commands.recorded import TensorChoice, compare_recorded
    from subgraph.recordings.device_runs import RecordedFolder, RecordingOptions
    from subgraph.reports.text import render_compared
    from subgraph.results.compare import RecordedDocument

    resolve.log_random_inputs(check.feeding)
    try:
        recorded = check.output / f"{graph.path.stem}-original"  # stays, for `--recorded`
        fed = _write_samples(graph, check.feeding, folder / "inputs")
        log.info("running the original")
        unpaired = conversion.record_original(
            original, graph, [_list_input_files(sample) for sample in fed.records], recorded
        )
        if not any(recorded.glob("*.npz")):
            return _make_unchecked_result(graph.path, head, unpaired)
        options = RecordingOptions((RecordedFolder(recorded),), seeded=True)
        found = compare_recorded(check, options, TensorChoice(every_output=True), None, fed)
    except SubcutError as e:
        return _make_unchecked_result(graph.path, head, e.what)
    comparison = found.answer
    assert isinstance(comparison, RecordedDocument)
    rows = {row.tensor: row.runs[0] for row in comparison.tensors.rows}
    uncompared = {}
    for name in graph.outputs:
        run = rows.get(name)
        judged = run.in_place if run else None
        if judged is None or judged.is_unresolved:
            with_reason = judged or run
            default = "the original has no value" if name in rows else "a constant"
            uncompared[name] = (with_reason.why if with_reason else "") or unpaired or default
    why = "; ".join(f"{name}: {reason}" for name, reason in uncompared.items())
    lines = [render_compared(comparison) + head]
    lines += [f"not checked: outputs that were not compared: {clean(why)}"] if why else []
    document = {**found.document, "path": str(graph.path), "converter": original.converter.name}
    document |= {"checked": not why, "why": why, "uncompared": list(uncompared)}
    return replace(found, answer=document, text="\n".join([*lines, clean(str(graph.path))]))


def _write_samples(graph: Graph, feeding: Feeding, folder: Path) -> Feeding:
    """Write the samples into a folder, one `.npy` per input.

    Raises:
        InputError: A value does not fit, is not a tensor of a type that numpy has, or an input's
            shape is not known.
    """
    from subgraph.runtime.reference import Reference
    from subgraph.runtime.reference_values import ReferenceValues

    with Reference() as reference:
        values = ReferenceValues(graph, reference, feeding.plan(graph, graph.inputs), folder)
        values.need(graph.inputs)
    records = tuple(values.records)
    return replace(feeding, records=records, labels=tuple(values.labels), shapes={})


def _list_input_files(sample: Records) -> dict[str, Path]:
    """Return the file of each input.

    Raises:
        InputError: an input is not a tensor.
    """
    for name, record in sample.items():
        if record.form != "tensor":
            raise InputError(
                f"input {name} is not a tensor: the original cannot be fed",
                "--no-check",
                code="tensor.not-tensor",
            )
    return {name: Path(record.files[0]) for name, record in sample.items()}
