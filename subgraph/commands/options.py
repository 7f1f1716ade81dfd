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
from typing import Annotated, Any, get_type_hints

import typer

from subgraph import project
from subgraph.commands import Result
from subgraph.errors import SubcutError
from subgraph.text import clean


def with_option_groups(*without: str) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Let a command take groups of options: typer sees the options of each in the place of its parameter.

    Options named in `without` are not offered; in their group they have their default.
    """

    def decorate(command: Callable[..., Result]) -> Callable[..., Result]:
        flat: list[inspect.Parameter] = []
        members: dict[str, list[str]] = {}
        groups: dict[str, type] = {}
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            group = parameter.annotation
            if is_dataclass(group) and isinstance(group, type):
                offered = [f for f in fields(group) if f.name not in without]
                groups[parameter.name], members[parameter.name] = group, [f.name for f in offered]
                hints = _hints(group)
                flat += [_parameter(f.name, f.default, hints[f.name]) for f in offered]
            else:
                flat.append(_parameter(parameter.name, parameter.default, parameter.annotation))
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
def _hints(group: type) -> dict[str, Any]:
    return get_type_hints(group, include_extras=True)


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


# ---------------------------------------------------------------------------------------------------- single options

ModelArgument = Annotated[
    str | None, typer.Argument(metavar="MODEL", help="The ONNX file; not needed where it is the only one here.")
]
Start = Annotated[
    list[str] | None,
    typer.Option(
        "--start",
        "-s",
        metavar="NODE",
        help="First node: its name, a tensor's, #17, Conv@3, or a glob. Repeatable.",
        autocompletion=complete_nodes,
    ),
]
End = Annotated[
    list[str] | None,
    typer.Option("--end", "-e", metavar="NODE", help="Last node. Repeatable.", autocompletion=complete_nodes),
]
Within = Annotated[str | None, typer.Option("--within", metavar="A..B", help="Only look between these two nodes.")]
NoFreeze = Annotated[bool, typer.Option("--no-freeze", help="Tensors that hold shapes become inputs, not constants.")]
Output = Annotated[
    str | None,
    typer.Option(
        "--output", "-o", metavar="PARENT", help="Folder that the result's folder goes into; subcut_out if not given."
    ),
]
CandidateSpec = Annotated[
    str | None,
    typer.Option(
        "--candidate",
        "-c",
        metavar="SPEC",
        help="What is doubted: a backend (ort:opt=basic), cmd:COMMAND, a Python file, or a name from subcut.toml.",
    ),
]
Jobs = Annotated[int | None, typer.Option("--jobs", "-j", metavar="N", help="Candidates that run at once; 1.")]

# ---------------------------------------------------------------------------------------------------- groups


@dataclass(frozen=True)
class InputOptions:
    """What the model is fed."""

    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="[NAME=]FILE",
            help="What to feed: .npy .npz .bin .pb, an image, or a folder of samples. Repeatable. "
            "Default: random values.",
        ),
    ] = None
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the random values; 0 if not given.")] = None
    shape: Annotated[
        list[str] | None,
        typer.Option("--shape", metavar="NAME=1x3x224x224", help="Shape of an input with open dimensions. Repeatable."),
    ] = None
    mean: Annotated[
        str | None, typer.Option("--mean", metavar="M[,M,M]", help="Of an image, per channel: y = (x - mean) * scale.")
    ] = None
    scale: Annotated[str | None, typer.Option("--scale", metavar="S[,S,S]", help="Of an image, per channel.")] = None
    bgr: Annotated[bool, typer.Option("--bgr", help="Images in the channel order blue, green, red.")] = False


@dataclass(frozen=True)
class CandidateOptions:
    """What is doubted, and the model that it runs where that is another one."""

    spec: CandidateSpec = None
    other_model: Annotated[
        str | None,
        typer.Option(
            "--candidate-model",
            metavar="MODEL2",
            help="The candidate runs this model instead: quantized, float16, optimised, another layout.",
        ),
    ] = None
    tensor_map: Annotated[
        str | None,
        typer.Option(
            "--map", metavar="FILE", help="Lines OURS THEIRS: tensors of MODEL2 that are not found by themselves."
        ),
    ] = None


@dataclass(frozen=True)
class CriterionOptions:
    """What counts as agreement."""

    criterion: Annotated[
        str | None,
        typer.Option("--criterion", metavar="RULE", help="noise, numpy:rtol=1e-3, tnn, digits:3, cosine>0.999 …"),
    ] = None
    rtol: Annotated[
        str | None, typer.Option("--rtol", metavar="R", help="As numpy: |d| ≤ atol + rtol · |reference|.")
    ] = None
    atol: Annotated[str | None, typer.Option("--atol", metavar="A", help="As numpy; goes with --rtol.")] = None
    metric: Annotated[
        str | None, typer.Option("--metric", metavar="cosine>0.999", help="A limit on a metric is the criterion.")
    ] = None


@dataclass(frozen=True)
class RuntimeOptions:
    """How the candidate and the reference run."""

    precision: Annotated[
        str | None,
        typer.Option("--precision", metavar="fp16", help="What the candidate computes in: fp32, fp16, bf16 or int8."),
    ] = None
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference", metavar="SPEC", help="Another reference than plain onnxruntime, as in --candidate."
        ),
    ] = None
    custom_ops: Annotated[
        str | None,
        typer.Option("--custom-ops", metavar="LIB", help="Library of operators that onnxruntime is to load."),
    ] = None
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="SECONDS", help="Limit of one build or run of the candidate; 600."),
    ] = None
    memory_limit: Annotated[
        str | None,
        typer.Option("--memory-limit", metavar="8G", help="Limit of the candidate and all that it starts."),
    ] = None


@dataclass(frozen=True)
class RecordedOptions:
    """Layer dumps of a device in the place of a candidate, or beside one."""

    recorded: Annotated[
        list[str] | None,
        typer.Option(
            "--recorded", metavar="DIR", help="A device's layer dumps, in the place of a candidate. Repeatable."
        ),
    ] = None
    dump_format: Annotated[
        str | None,
        typer.Option(
            "--dump-format", metavar="NAME", help="What --recorded is: ascend, tnn, rknn … Found out if not given."
        ),
    ] = None
    dump_layout: Annotated[
        str | None,
        typer.Option("--dump-layout", metavar="NHWC", help="Layout of --recorded's files without a header."),
    ] = None


@dataclass(frozen=True)
class FormatOptions:
    """The form in which tensors are written."""

    formats: Annotated[
        str | None, typer.Option("--format", metavar="npy,bin", help="Forms to write the tensors in: npy, bin or both.")
    ] = None
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", metavar="float16", help="Element type of the .bin files; losses are counted."),
    ] = None
    layout: Annotated[
        str | None, typer.Option("--layout", metavar="NHWC", help="Layout of the .bin files: NHWC or NCHW.")
    ] = None


@dataclass(frozen=True)
class ResultOptions:
    """Where the result goes, what it may replace, and whose code may run."""

    output: Output = None
    fresh: Annotated[bool, typer.Option("--fresh", help="Run anew what earlier runs have stored.")] = False
    trust: Annotated[
        bool, typer.Option("--trust", help="Let what a project file names run: commands, Python files, libraries.")
    ] = False
    force: Annotated[bool, typer.Option("--force", help="Replace another result that stands in the way.")] = False
