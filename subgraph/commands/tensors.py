"""`subcut dump`: reference values of chosen tensors -> a folder.

`subcut export`: tensors of a case, dump or folder -> files in the device's format.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from subgraph.commands import Result, make_command_line, open_body, options
from subgraph.commands.options import Text, Texts, declare, option
from subgraph.commands.recorded import parse_layout
from subgraph.commands.resolve import ResolvedOptions, read_formats
from subgraph.errors import UsageError
from subgraph.graph.graph import Graph, load
from subgraph.graph.selection import find_fitting_tensors, select_tensor
from subgraph.iterables import drop_repeats
from subgraph.log import log
from subgraph.storage.convert import WRITTEN_LAYOUTS, TensorFormat, parse_formats
from subgraph.storage.dtypes import Scale
from subgraph.storage.tensors import format_shape
from subgraph.text import align_columns, clean, count, split_signature

if TYPE_CHECKING:
    pass


complete_formats = options.complete_plugins("dumps")


@options.add_option_groups("output", "fresh", "trust")
def export(
    *,
    source: Annotated[
        str,
        typer.Argument(
            metavar="CASE|DIR",
            help="A case, a dump of subcut or another tool, or a folder of .npy files.",
        ),
    ],
    output: Annotated[str, declare("--output -o", "DIR", "Folder for the files.")],
    form: options.FormatOptions,
    dump_format: Text = option(
        "--dump-format",
        "NAME",
        "Format of DIR: ascend, tnn, rknn, qnn, raw …; detected if not given.",
        complete_formats,
    ),
    model: Text = option(
        "--model",
        "MODEL",
        "Model with the types and shapes of files without a header, and the scales of codes.",
    ),
    tensor: Texts = option(
        "--tensor",
        "NAME=FORM",
        "Form of these tensors, a name or glob: int8:scale=0.02:zero=-3:NHWC, or a part of"
        " that. Repeatable.",
    ),
    dump_layout: Text = option(
        "--dump-layout", "NHWC", "Layout of files without a header, if not the model's."
    ),
    result: options.ResultOptions,
) -> Result:
    """Convert tensor files: element type, layout, file format.

    Reads a case, dumps of subcut and of other tools, and folders of .npy files. The values that the
    conversion changes are counted. Integers with a scale are codes: real = (code - zero) * scale.

    Examples:
      subcut export dumps -o fp16 --format bin --dtype float16
      subcut export dumps -o device --tensor 'image=uint8:scale=0.03:zero=128'
    """
    from subgraph.cases.case import ResultPlace
    from subgraph.recordings import recording
    from subgraph.recordings.dumps import DumpHints
    from subgraph.recordings.export import Forms, export as write_tensors, find_scales

    graph = load(model) if model else None
    rest = TensorFormat(form.dtype or "", (form.layout or "").upper())
    own = dict(_parse_form(words, rest.dtype) for words in tensor or ())
    forms = Forms(rest, own, find_scales(graph) if graph else {})
    folder = Path(output)
    place = ResultPlace(folder.parent, folder.name, result.force)
    layout = parse_layout(dump_layout)
    hints = recording.find_hints(graph, layout) if graph else DumpHints(layout=layout)
    kinds = parse_formats(form.formats or "bin")
    written = write_tensors(
        Path(source), place, kinds, forms, dump_format or "", hints, make_command_line()
    )
    manifest = written.manifest
    rows = []
    for f in manifest.exported:
        # as the user types it: int8:scale=0.02:zero=-3
        scale = "" if f.scale is None else f":scale={f.scale:g}:zero={f.zero_point}"
        rows.append((f.file, f"{f.dtype}{scale}", format_shape(tuple(f.shape)), f.layout, f.loss))
    lines = align_columns([[clean(str(cell)) for cell in row] for row in rows])
    lines += [f"left out: {clean(word)}" for word in manifest.left_out]
    text = "\n".join([*lines, f"{count(rows, 'file')} in {clean(str(written.path))}/"])
    return Result({"exit_code": 0, **written.document()}, text)


def _parse_form(words: str, dtype: str) -> tuple[str, TensorFormat]:
    """Parse `data=int8:scale=0.02:zero=-3:NHWC` into the name or glob, and the form.

    `dtype` is the type of a form that names none.

    Raises:
        UsageError: it is no such text. UnknownName: no such element type.
    """
    name, _, form = words.partition("=")
    parts = [part for part in form.split(":") if part]
    numbers = dict(part.split("=", 1) for part in parts if "=" in part)
    plain = [part for part in parts if "=" not in part]
    layouts = [part.upper() for part in plain if part.upper() in WRITTEN_LAYOUTS]
    dtypes = [part for part in plain if part.upper() not in WRITTEN_LAYOUTS]
    hint = "as in data=int8:scale=0.02:zero=-3:NHWC"
    if not parts or len(layouts) > 1 or len(dtypes) > 1 or not numbers.keys() <= {"scale", "zero"}:
        raise UsageError(
            f"--tensor {words}: expected NAME=DTYPE:scale=S:zero=Z:LAYOUT, or a part of that",
            hint,
            code="option.malformed",
        )
    try:
        if numbers:
            scale = Scale((float(numbers["scale"]),), (int(numbers.get("zero", 0)),))
        else:
            scale = None
    except (KeyError, ValueError) as e:
        raise UsageError(
            f"--tensor {words}: scale is a number, zero a whole number",
            hint,
            code="option.malformed",
        ) from e
    if scale and not 0 < scale.step[0] < math.inf:
        raise UsageError(f"--tensor {words}: a scale is above 0", hint, code="option.out-of-range")
    found = next(iter(dtypes), dtype if scale else "")
    return name, TensorFormat(found, next(iter(layouts), ""), scale)


@options.add_option_groups("precision", "timeout", "memory_limit", "output", "fresh")
def dump(
    *,
    model: options.ModelArgument = None,
    weights: options.Weights = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Tensors or nodes; a glob means all that match.",
            autocompletion=options.complete_nodes,
        ),
    ] = None,
    everything: bool = option("--all", None, "Every tensor of the model."),
    output: Text = option("--output -o", "DIR", "Folder for the files; default subcut_out/dump."),
    inputs: options.InputOptions,
    form: options.FormatOptions,
    runtime: options.RuntimeOptions,
    result: options.ResultOptions,
) -> Result:
    """Write tensors of a model, computed by the reference.

    Examples:
      subcut dump model.onnx --all -o dumps
      subcut dump model.onnx stem/pad 'block1/*'
    """
    from subgraph.cases.case import ResultPlace
    from subgraph.cases.evidence import DumpRequest, dump as write_dump

    words = list(names or [])
    if (
        model
        and not model.endswith(".onnx")
        and not os.path.exists(split_signature(Path(model))[0])  # noqa: PTH110
    ):
        words = [model, *words]
        model = None
    resolved = ResolvedOptions(
        model=model, weights=weights, inputs=inputs, runtime=runtime, result=result
    )
    with resolved.start_reference() as reference:
        graph = load(resolved.model_path)
        formats, tensor_format = read_formats(resolved, form, "npy")
        folder = Path(output) if output else resolved.output / "dump"
        with open_body(graph, words, resolved.feeding, reference, folder.parent) as (
            graph,
            feeding,
            names_there,
        ):
            request = DumpRequest(
                tensors=tuple(
                    choose(
                        graph,
                        [name for name in names_there if name],
                        everything or "" in names_there,
                    )
                ),
                fed=feeding.options,
                formats=formats,
                tensor_format=tensor_format,
            )
            place = ResultPlace(folder.parent, folder.name, result.force)
            written = write_dump(graph, request, place, reference, feeding, make_command_line())
    manifest = written.manifest
    for loss in manifest.losses:
        log.warning("loss: %s", clean(loss))
    number = len(manifest.samples)
    samples = f" · {count(number, 'sample')}" if number > 1 else ""
    text = f"{count(manifest.tensors, 'tensor')}{samples}\n{clean(str(written.path))}/"
    return Result({"exit_code": 0, **written.document()}, text)


def choose(graph: Graph, words: list[str], everything: bool) -> list[str]:
    """Return the tensors to write: all, or by name (of a tensor or its node), or by glob.

    Raises:
        UsageError: no words. UnknownName: a name or glob that matches nothing.
    """
    tensors = [*graph.inputs, *graph.maker]
    if everything:
        return tensors
    if not words:
        raise UsageError(
            "which tensors? name some, or use --all",
            "subcut dump model.onnx conv1 'res2a*'",
            code="argument.missing",
        )
    chosen: list[str] = []
    for word in words:
        chosen += find_fitting_tensors(graph, tensors, word) or [select_tensor(graph, word)]
    return drop_repeats(chosen)
