"""Options that several commands share: single ones, and groups.

A command names a group as the type of a parameter and gets one frozen dataclass; `with_option_groups` shows typer the
group's options in its place:

    @with_option_groups("reference")          # the options of its groups that the command does not have
    def replay(*, folder: ..., runtime: RuntimeOptions) -> Result:
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, TypeAlias

import typer

from subgraph import project
from subgraph.commands import Result
from subgraph.errors import SubcutError
from subgraph.text import clean


def with_option_groups(*without: str) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Let a command (keyword-only parameters) take groups of options: typer sees the options of each in its place.

    Options named in `without` are not offered; in their group they have their default.
    """

    def decorate(command: Callable[..., Result]) -> Callable[..., Result]:
        flat: list[inspect.Parameter] = []
        members: dict[str, list[str]] = {}
        groups: dict[str, type] = {}
        annotations = inspect.get_annotations(command, eval_str=True)
        del annotations["return"]
        for name, annotation in annotations.items():
            if isinstance(annotation, type) and is_dataclass(annotation):
                offered = [p for p in _options_of(annotation) if p.name not in without]
                groups[name], members[name] = annotation, [p.name for p in offered]
                flat += offered
            else:
                default = (command.__kwdefaults__ or {}).get(name, inspect.Parameter.empty)
                flat.append(_parameter(name, default, annotation))
        signature = inspect.Signature(flat)

        @functools.wraps(command)
        def run(*args: Any, **options: Any) -> Result:
            values = signature.bind(*args, **options).arguments
            for name, group in groups.items():
                values[name] = group(**{m: values.pop(m) for m in members[name] if m in values})
            return command(**values)

        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {}  # the signature has them, evaluated
        return run

    return decorate


@functools.cache
def _options_of(group: type) -> list[inspect.Parameter]:
    annotations = {}
    for cls in reversed(group.__mro__):
        annotations.update(inspect.get_annotations(cls, eval_str=True))
    return [_parameter(f.name, f.default, annotations[f.name]) for f in fields(group)]


def _parameter(name: str, default: object, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)


def complete_nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Node names of the model on the command line, for TAB; tensor names behind `tensor:`."""
    from subgraph.graph import protobuf

    # In front of an option that lacks its value, typer leaves the arguments as they are.
    typed = ctx.params.get("model") or next(iter(ctx.args), None)
    try:
        model, _ = project.find_model(os.path.expandvars(os.path.expanduser(typed)) if typed else None)  # noqa: PTH111
        nodes = protobuf.read(model).model.graph.node
        names = [name for n in nodes for name in ([n.name] if not incomplete.startswith("tensor:") else n.output)]
    except (SubcutError, OSError, UnicodeDecodeError):
        return []
    prefix = re.match("(?:node:|tensor:)?", incomplete)
    names = [f"{prefix[0] if prefix else ''}{name}" for name in dict.fromkeys(names) if name]
    return [name for name in names if name.startswith(incomplete) and clean(name) == name]


Text: TypeAlias = str | None
Texts: TypeAlias = list[str] | None
Number: TypeAlias = int | None


def option(
    flags: str, metavar: str | None, help: str, complete: Callable[..., list[str]] | None = None
) -> typer.models.OptionInfo:
    """An option; `flags` as "--start -s", no metavar where it takes no value; `complete`: the names for TAB."""
    info: typer.models.OptionInfo = typer.Option(*flags.split(), metavar=metavar, help=help, autocompletion=complete)
    return info


# ---------------------------------------------------------------------------------------------------- single options

ModelArgument = Annotated[
    str | None, typer.Argument(metavar="MODEL", help="The ONNX file; not needed where it is the only one here.")
]
Start = Annotated[
    Texts,
    option(
        "--start -s", "NODE", "First node: its name, a tensor's, #17, Conv@3, or a glob. Repeatable.", complete_nodes
    ),
]
End = Annotated[Texts, option("--end -e", "NODE", "Last node. Repeatable.", complete_nodes)]
Within = Annotated[Text, option("--within", "A..B", "Only look between these two nodes.")]
NoFreeze = Annotated[bool, option("--no-freeze", None, "Tensors that hold shapes become inputs, not constants.")]
Output = Annotated[
    Text, option("--output -o", "PARENT", "Folder that the result's folder goes into; subcut_out if not given.")
]
CandidateSpec = Annotated[
    Text,
    option(
        "--candidate -c",
        "SPEC",
        "What is doubted: a backend (ort:opt=basic), cmd:COMMAND, a Python file, or a name from subcut.toml.",
    ),
]
CsvFile = Annotated[Text, option("--csv", "FILE", "Write the table as CSV as well; - for standard output.")]
Trust = Annotated[
    bool,
    option("--trust", None, "Let what a file names run: a project file, a case, a loop. Commands, scripts, libraries."),
]
Jobs = Annotated[Number, option("--jobs -j", "N", "Candidates that run at once; 1.")]

# ---------------------------------------------------------------------------------------------------- groups


@dataclass(frozen=True)
class InputOptions:
    """What the model is fed."""

    inputs: Annotated[
        Texts,
        option(
            "--input -i",
            "[NAME=]FILE",
            "What to feed: .npy .npz .bin .pb, an image, or a folder of samples. Repeatable. Default: random values.",
        ),
    ] = None
    seed: Annotated[Number, option("--seed", None, "Seed of the random values; 0 if not given.")] = None
    shape: Annotated[
        Texts, option("--shape", "NAME=1x3x224x224", "Shape of an input with open dimensions. Repeatable.")
    ] = None
    mean: Annotated[Text, option("--mean", "M[,M,M]", "Of an image, per channel: y = (x - mean) * scale.")] = None
    scale: Annotated[Text, option("--scale", "S[,S,S]", "Of an image, per channel.")] = None
    bgr: Annotated[bool, option("--bgr", None, "Images in the channel order blue, green, red.")] = False


@dataclass(frozen=True)
class CandidateOptions:
    """What is doubted, and the model that it runs where that is another one."""

    spec: CandidateSpec = None
    other_model: Annotated[
        Text,
        option(
            "--candidate-model",
            "MODEL2",
            "The candidate runs this model instead: quantized, float16, optimised, another layout.",
        ),
    ] = None
    tensor_map: Annotated[
        Text, option("--map", "FILE", "Lines OURS THEIRS: tensors of MODEL2 that are not found by themselves.")
    ] = None


@dataclass(frozen=True)
class CriterionOptions:
    """What counts as agreement."""

    criterion: Annotated[
        Text,
        option(
            "--criterion", "RULE", "noise (of each slice, the default), numpy:rtol=1e-3, tnn, digits:3, cosine>0.999 …"
        ),
    ] = None
    rtol: Annotated[Text, option("--rtol", "R", "As numpy: |d| ≤ atol + rtol · |reference|.")] = None
    atol: Annotated[Text, option("--atol", "A", "As numpy; goes with --rtol.")] = None
    metric: Annotated[Text, option("--metric", "cosine>0.999", "A limit on a metric is the criterion.")] = None


@dataclass(frozen=True)
class RuntimeOptions:
    """How the candidate and the reference run."""

    precision: Annotated[
        Text, option("--precision", "fp16", "What the candidate computes in: fp32, fp16, bf16 or int8.")
    ] = None
    reference: Annotated[
        Text, option("--reference", "SPEC", "Another reference than plain onnxruntime, as in --candidate.")
    ] = None
    custom_ops: Annotated[Text, option("--custom-ops", "LIB", "Library of operators that onnxruntime is to load.")] = (
        None
    )
    timeout: Annotated[Text, option("--timeout", "SECONDS", "Limit of one build or run of the candidate; 600.")] = None
    memory_limit: Annotated[Text, option("--memory-limit", "8G", "Limit of the candidate and all that it starts.")] = (
        None
    )


@dataclass(frozen=True)
class RecordedOptions:
    """Layer dumps of a device in the place of a candidate, or beside one."""

    recorded: Annotated[
        Texts, option("--recorded", "DIR", "A device's layer dumps, in the place of a candidate. Repeatable.")
    ] = None
    dump_format: Annotated[
        Text, option("--dump-format", "NAME", "What --recorded is: ascend, tnn, rknn … Found out if not given.")
    ] = None
    dump_layout: Annotated[Text, option("--dump-layout", "NHWC", "Layout of --recorded's files without a header.")] = (
        None
    )


@dataclass(frozen=True)
class FormatOptions:
    """The form in which tensors are written."""

    formats: Annotated[Text, option("--format", "npy,bin", "Forms to write the tensors in: npy, bin or both.")] = None
    dtype: Annotated[Text, option("--dtype", "float16", "Element type of the .bin files; losses are counted.")] = None
    layout: Annotated[Text, option("--layout", "NHWC", "Layout of the .bin files: NHWC or NCHW.")] = None


@dataclass(frozen=True)
class ResultOptions:
    """Where the result goes, what it may replace, and whose code may run."""

    output: Output = None
    fresh: Annotated[bool, option("--fresh", None, "Run anew what earlier runs have stored.")] = False
    trust: Trust = False
    force: Annotated[bool, option("--force", None, "Replace another result that stands in the way.")] = False
