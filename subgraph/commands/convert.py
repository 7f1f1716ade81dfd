"""`subcut convert`: a model of TensorFlow, Keras, TensorFlow Lite, Paddle, Caffe or PyTorch -> ONNX, and a check."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from subgraph import project
from subgraph.commands import Result, log, options, resolve
from subgraph.commands.options import Text, Texts, option
from subgraph.errors import ResultExists, SubcutError, UsageError
from subgraph.text import clean, count

if TYPE_CHECKING:
    from subgraph.graph.graph import Graph
    from subgraph.origins.converters import Converter
    from subgraph.runtime.inputs import Feeding

UNCHECKED = 5


@options.with_option_groups("precision", "timeout", "memory_limit", "output", "fresh")
def convert(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The file or folder to convert.")],
    output: Annotated[Text, option("--output -o", "FILE", "The new model; default: MODEL.onnx.")] = None,
    with_command: Annotated[
        Text, option("--with", "CMD", "Another converter: a command in which {model} and {output} are filled in.")
    ] = None,
    yes: Annotated[bool, option("--yes -y", None, "Install what the converter needs without asking.")] = False,
    index_url: Annotated[Text, option("--index-url", "URL", "Where packages come from, as for pip.")] = None,
    find_links: Annotated[Texts, option("--find-links", "DIR", "Where else they may be, as for pip.")] = None,
    weights: options.Weights = None,
    no_check: Annotated[bool, option("--no-check", None, "Only convert: run neither model.")] = False,
    inputs: options.InputOptions,
    comparison: options.CriterionOptions,
    runtime: options.RuntimeOptions,
    result: options.ResultOptions,
) -> Result:
    """Convert a model to ONNX, and compare the two.

    The converter is installed into an environment of its own, after it was shown. Then both models run on the same
    inputs: the original by the runtime that it was made for.

    Examples:
      subcut convert saved_model/ -o model.onnx
      subcut convert net.pb --with './my_converter {model} {output}'

    Exit code 0: they agree; 1: they do not; 5: converted, and not checked.
    """
    from subgraph.origins.converters import converter_of
    from subgraph.storage.file_kinds import is_caffe, is_tflite, is_torch_program

    source = Path(model)
    if not os.path.exists(model):  # noqa: PTH110 - a name that is too long is no file
        raise UsageError(f"no such file or folder: {clean(model)}", "check the path")
    target = _free(output, source, force=result.force)
    settings = project.Project()
    if not with_command and source.is_file() and (is_caffe(source) or is_torch_program(source)):
        return _own(source, resolve.model_path(settings, model, weights, result.trust), target)
    found = converter_of(source)
    if found is None and source.is_file() and is_tflite(source):
        from subgraph.origins.converters import TENSORFLOW

        found = "a TensorFlow Lite model", TENSORFLOW
    if with_command:
        return _with(with_command, source, target)
    if found is None:
        if source.suffix.lower() == ".onnx":
            raise UsageError(f"{clean(model)} is an ONNX model already", "every command takes it as it is")
        known = (
            "TensorFlow, Keras, TensorFlow Lite, Paddle, Caffe and PyTorch's .pt2 are converted; --with CMD names yours"
        )
        raise UsageError(f"{clean(model)} is none of the formats that subcut converts", known)
    kind, converter = found
    python = _installed(kind, converter, source, [index_url, find_links], yes=yes)
    with tempfile.TemporaryDirectory(prefix=".subcut-", dir=target.parent) as folder:
        from subgraph.origins.converters.conversion import convert as run_converter

        written = Path(folder) / "converted" / target.name
        written.parent.mkdir()
        log.info("converting by %s", converter.name)
        command = converter.command(python, "convert", source.resolve(), written)
        graph = run_converter(converter.name, command, source, written, target)
        head = f"converted  {clean(model)}, {kind}, by {converter.name}   {count(len(graph.nodes), 'node')}"
        if no_check:
            return _unchecked(target, head, "--no-check")
        check = _Check(settings, inputs, comparison, runtime, result)
        return check.compare(graph, head, converter, python, source, Path(folder))


def _free(output: str | None, source: Path, *, force: bool) -> Path:
    """
    Raises:
        UsageError: the folder of the new model does not exist, or it would be the source.
        ResultExists: a file is in the way.
    """
    target = Path(output) if output else Path(f"{source.resolve().name}").with_suffix(".onnx")
    if target.is_dir():
        target /= f"{source.resolve().stem}.onnx"
    if not target.parent.is_dir():
        raise UsageError(f"no folder {clean(str(target.parent))}", "make it, or name another with -o")
    if target.resolve() == source.resolve():
        raise UsageError(f"{clean(str(source))} is an ONNX model already", "name another file with -o")
    if target.exists() and not force:
        raise ResultExists(f"{clean(str(target))} is in the way", "--force replaces it, -o names another")
    return target


def _installed(
    kind: str, converter: Converter, source: Path, sources: list[str | list[str] | None], *, yes: bool
) -> Path:
    """The interpreter of the converter's environment, made if the user agrees.

    Raises:
        UsageError: nobody agreed. BackendError: it cannot be installed.
    """
    from subgraph import environments

    index_url, find_links = sources
    words = ["--index-url", str(index_url)] if index_url else []
    words += [word for folder in find_links or () for word in ("--find-links", folder)]
    installation = environments.Installation(converter.requirements, tuple(words))
    if installation.is_ready:
        return environments.make(installation)
    log.info(
        "%s is %s; %s converts it. To be installed, once, apart from all else:",
        clean(source.name),
        kind,
        converter.name,
    )
    for command in installation.commands(installation.folder):
        log.info("  %s", clean(shlex.join(command)))
    if not yes:
        if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError("nothing was installed: there is nobody to ask", "--yes agrees; --with CMD names your own")
        if not typer.confirm("Install it?", default=True, err=True):
            raise UsageError("nothing was installed", "--with CMD names your own converter")
    return environments.make(installation)


def _own(source: Path, converted: Path, target: Path) -> Result:
    """Of a format that subcut reads itself, the ONNX file that it works on."""
    from subgraph.graph.graph import load
    from subgraph.graph.model_file import copy_model

    graph = load(converted)
    copy_model(graph, target)
    head = f"converted  {clean(source.name)}   {count(len(graph.nodes), 'node')}"
    return _unchecked(target, head, "subcut reads this format itself: every command takes it as it is")


def _with(template: str, source: Path, target: Path) -> Result:
    """By the user's own command."""
    from subgraph.origins.converters.conversion import command_of
    from subgraph.origins.converters.conversion import convert as run_converter

    with tempfile.TemporaryDirectory(prefix=".subcut-", dir=target.parent) as folder:
        written = Path(folder) / target.name
        words = command_of(template, source.resolve(), written.resolve())
        log.info("%s", clean(shlex.join(words)))
        graph = run_converter(words[0], words, source, written, target)
    head = f"converted  {clean(source.name)} by {clean(words[0])}   {count(len(graph.nodes), 'node')}"
    return _unchecked(
        target, head, f"to check it, record what the original computes: subcut compare {target} --recorded DIR"
    )


def _unchecked(target: Path, head: str, why: str) -> Result:
    document = {"schema": "subcut.convert/1", "exit_code": UNCHECKED, "path": str(target), "checked": False, "why": why}
    return Result(document, f"{head}\nnot checked: {clean(why)}\n{clean(str(target))}", UNCHECKED)


@dataclass(frozen=True)
class _Check:
    """What the user says of the comparison of the two models."""

    settings: project.Project
    inputs: options.InputOptions
    comparison: options.CriterionOptions
    runtime: options.RuntimeOptions
    result: options.ResultOptions

    def compare(
        self, graph: Graph, head: str, converter: Converter, python: Path, source: Path, folder: Path
    ) -> Result:
        """Both models on the same inputs, tensor by tensor where names survive."""
        from subgraph.commands.recorded import TensorChoice, compare_recorded
        from subgraph.origins.converters.conversion import original_values
        from subgraph.recordings.runs import RecordingOptions
        from subgraph.reports.text import render_compared

        feeding = resolve.feeding(self.settings, self.inputs)
        resolve.log_random_inputs(feeding)
        criterion = resolve.criterion(self.settings, self.comparison, self.result.trust)
        try:
            files = _input_files(graph, feeding, folder / "inputs")
            log.info("running the original")
            recorded = original_values(
                converter, python, source.resolve(), graph, files, folder / f"{graph.path.stem}-original"
            )
        except SubcutError as e:
            return _unchecked(graph.path, head, e.what)
        fed = replace(feeding, inputs=tuple(f"{name}={file}" for name, file in files.items()), shapes={})
        parent = resolve.parent_folder(self.settings, None)
        with resolve.reference(self.settings, self.runtime, self.result.trust) as reference:
            recordings = RecordingOptions((recorded,))
            found = compare_recorded(graph.path, recordings, fed, criterion, reference, parent, TensorChoice(), None)
        document = {**found.document, "path": str(graph.path), "converter": converter.name, "checked": True}
        text = render_compared(found.document)
        return replace(found, document=document, text=f"{text}{head}\n{clean(str(graph.path))}")


def _input_files(graph: Graph, feeding: Feeding, folder: Path) -> dict[str, Path]:
    """What the first sample feeds each input, as `.npy`.

    Raises:
        InputError: a value does not fit, or an input's shape is not known.
    """
    from subgraph.graph.region import above
    from subgraph.runtime.capture import capture_samples
    from subgraph.runtime.reference import Reference

    folder.mkdir()
    stems = {name: f"i{k}" for k, name in enumerate(graph.inputs)}
    with Reference() as reference:
        samples = feeding.plan(graph, graph.inputs)[:1]
        captured = capture_samples(reference, graph, above(graph, list(graph.inputs)), stems, samples, folder)
    return {name: (folder / "0" / captured[0].tensors[name].files[0]).resolve() for name in graph.inputs}
