"""Options that several commands share: single ones, and groups.

A command names a group as the type of a parameter and gets one frozen dataclass;
`add_option_groups` shows typer the group's options in its place:

    @add_option_groups("reference")          # the options of its groups that the command does not
    have def replay(*, folder: ..., runtime: RuntimeOptions) -> Result:
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import os
import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from subgraph import plugins, project
from subgraph.commands import Result
from subgraph.errors import SubcutError, UsageError
from subgraph.iterables import flatten
from subgraph.storage.file_kinds import Family, find_family
from subgraph.text import clean
from subgraph.types import Strings, frozen

OPTION = "option"  # key in the metadata of a field
FROM_1 = (1, math.inf)  # the limits of a number that has no other


def add_option_groups(*without: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a command (keyword-only parameters) take groups of options: typer sees the options of
    each in its place.

    Options named in `without` are not offered; in their group they have their default.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        flat: list[inspect.Parameter] = []
        members: dict[str, list[str]] = {}
        groups: dict[str, type] = {}
        annotations = inspect.get_annotations(command, eval_str=True)
        del annotations["return"]
        parameters = inspect.signature(command).parameters
        for name, annotation in annotations.items():
            if annotation is GivenOptions:
                continue
            if isinstance(annotation, type) and is_dataclass(annotation):
                offered = [p for p in _list_options(annotation) if p.name not in without]
                groups[name] = annotation
                members[name] = [p.name for p in offered]
                flat += offered
            else:
                flat.append(_make_parameter(name, parameters[name].default, annotation))
        signature = inspect.Signature(flat)

        @functools.wraps(command)
        def run(*args: Any, **options: Any) -> Any:
            bound = signature.bind(*args, **options)
            bound.apply_defaults()
            values = bound.arguments
            if "given" in annotations:
                infos = list_declared(run).items()
                values["given"] = GivenOptions(
                    {_list_flags(info)[0]: (info, values.get(name)) for name, info in infos}
                )
            for name, group in groups.items():
                values[name] = group(**{m: values.pop(m) for m in members[name]})
            return command(**values)

        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {}  # the signature has them, evaluated
        return run

    return decorate


class Option(typer.models.OptionInfo):
    """An option, with the values and modes in which it is refused.

    Attributes:
        flag: The first flag.
        refused_beside: The flags of the modes in which the option is refused.
        limits: The least and the greatest number; None for any.
        words: The values that are accepted; empty for any.
    """

    flag: str
    refused_beside: Strings = ()
    limits: tuple[int, float] | None = None
    words: Strings = ()

    def check(self, given: Any) -> Any:
        """Return the given value.

        Raises:
            UsageError: The option does not accept it.
        """
        if given is None:
            return given
        if self.limits and not self.limits[0] <= given <= self.limits[1]:
            low, high = self.limits
            numbers = f"{low} or more" if high == math.inf else f"a number from {low} to {high}"
            raise UsageError(f"{self.flag} {given}: expected {numbers}", code="option.out-of-range")
        if self.words and given not in self.words:
            raise UsageError(
                f"{self.flag} {given}: unknown value",
                f"expected: {', '.join(self.words)}",
                code="option.unknown-value",
            )
        if self.flag == "--candidate" and "" in ([given] if isinstance(given, str) else given):
            raise UsageError(
                "--candidate '': expected a SPEC",
                "-c ort, or omit -c for the default",
                code="option.malformed",
            )
        return given


class GivenOptions(dict[str, Any]):
    """The options of a command by their first flag, with their values."""

    def refuse_beside(self, mode: str, text: str = "{} and {} do not go together") -> None:
        """Refuse the options that are declared as refused together with an option.

        Args:
            mode: The flag of that option.
            text: The error, with places for the refused flag and for the mode.

        Raises:
            UsageError: One of these options is given.
        """
        for flag, (info, value) in self.items():
            if value and mode in info.refused_beside:
                raise UsageError(
                    text.format(flag, mode), "leave one of them out", code="option.conflict"
                )


def list_flags(command: Callable[..., Result]) -> dict[str, bool]:
    """Return the flags of a command's options, `--start` and `-s`, and whether a value follows
    each."""
    infos = list_declared(command).values()
    flags = (dict.fromkeys(_list_flags(info), info.metavar is not None) for info in infos)
    return dict(ChainMap(*flags))


def list_declared(command: Callable[..., Result]) -> dict[str, Option]:
    """Return a command's options by the names of their parameters."""
    infos = {
        name: getattr(parameter.annotation, "__metadata__", (None,))[0]
        for name, parameter in inspect.signature(command).parameters.items()
    }
    return {name: info for name, info in infos.items() if isinstance(info, Option)}


def _list_flags(info: Option) -> list[str]:
    # In `Annotated`, typer takes the first flag for the default until it builds the command.
    return [str(info.default), *(info.param_decls or ())]


@functools.cache
def _list_options(group: type) -> list[inspect.Parameter]:
    """Return the options, in a section of `--help` with the first line of the docstring as
    title."""
    annotations = {}
    for cls in reversed(group.__mro__):
        annotations.update(inspect.get_annotations(cls, eval_str=True))
    offered = []
    for f in fields(group):
        parameter = _make_parameter(f.name, f, annotations[f.name])
        info = copy.copy(parameter.annotation.__metadata__[0])
        info.rich_help_panel = title_of(group)
        info.callback = info.check
        kind = parameter.annotation.__origin__
        offered.append(parameter.replace(annotation=Annotated[kind, info]))
    return offered


def title_of(group: type) -> str:
    """Return the section of `--help` that holds a group's options."""
    return (group.__doc__ or "").partition("\n")[0].rstrip(".")


def _make_parameter(name: str, default: object, annotation: Any) -> inspect.Parameter:
    if isinstance(default, Field):
        if OPTION in default.metadata:
            annotation = Annotated[annotation, default.metadata[OPTION]]
        default = default.default
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def list_words(group: object, *without: str) -> list[str]:
    """Return the options of a group that are given, as words of a command line.

    Args:
        group: The dataclass with the values.
        without: The fields that are omitted.
    """
    words: list[str] = []
    kind: type = type(group)
    for parameter in _list_options(kind):
        flag = _list_flags(parameter.annotation.__metadata__[0])[0]
        value = None if parameter.name in without else getattr(group, parameter.name)
        for one in value if isinstance(value, list) else [value]:
            if one is True:
                words.append(flag)
            elif one is not None and one is not False:
                words.append(f"{flag}={one}")
    return words


def complete_nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return node names of the model on the command line, for TAB; tensor names after `tensor:`."""
    from subgraph.graph import protobuf

    # In front of an option that lacks its value, typer leaves the arguments as they are.
    typed = ctx.params.get("model") or next(iter(ctx.args), None)
    try:
        model, _ = project.find_model(
            os.path.expandvars(os.path.expanduser(typed)) if typed else None  # noqa: PTH111
        )
        if find_family(model) is Family.CAFFE:
            from subgraph.origins.load import find_onnx_file

            model = find_onnx_file(model, ctx.params.get("weights"))
        nodes = protobuf.read(model).model.graph.node
        names = [node.name for node in nodes]
        if incomplete.startswith("tensor:"):
            names = list(flatten(node.output for node in nodes))
    except (SubcutError, OSError, UnicodeDecodeError):
        return []
    (prefix,) = re.findall("^(?:node:|tensor:)?", incomplete)
    return _complete(incomplete, [prefix + name for name in dict.fromkeys(names) if name])


def _complete(incomplete: str, names: Sequence[str]) -> list[str]:
    """Return the names that start with a text and are safe to show."""
    return [name for name in names if name.startswith(incomplete) and clean(name) == name]


def complete_candidates(incomplete: str) -> list[str]:
    """Return backends, devices, candidates of the project file, and Python files, for TAB; after
    `:` options."""
    from subgraph.runtime.candidate import find_options
    from subgraph.runtime.devices import DEVICES

    head, colon, rest = incomplete.partition(":")
    if colon:
        before = rest.rpartition(",")[0]
        begin = f"{head}:{before}," if before else f"{head}:"
        words = list[str]()
        for name, values in find_options(head).items():
            if "*" not in name:
                words += [f"{name}={value}" for value in values or [""]]
        return _complete(incomplete, [f"{begin}{option}" for option in words])
    try:
        own = project.load().values.get("candidates", {})
    except SubcutError:
        own = {}
    folder = incomplete.rpartition("/")[0]
    files = [f"{folder}/{path.name}" if folder else path.name for path in Path(folder).glob("*.py")]
    return _complete(
        incomplete, [*plugins.list_names("backends"), "cmd:", *DEVICES, *own, *sorted(files)]
    )


def complete_plugins(kind: str) -> Callable[[str], list[str]]:
    """Return the function that finds plugins of a kind, for TAB."""

    def complete(incomplete: str) -> list[str]:
        return _complete(incomplete, plugins.list_names(kind))

    return complete


Text: TypeAlias = str | None
Texts: TypeAlias = list[str] | None
Number: TypeAlias = int | None


def declare(
    flags: str,
    metavar: str | None,
    help: str,
    complete: Callable[..., list[str]] | None = None,
    panel: str | None = None,
    *,
    refused_beside: str = "",
    limits: tuple[int, float] | None = None,
    words: Iterable[str] = (),
) -> Option:
    """Return the declaration of an option.

    Args:
        flags: The flags, as `--start -s`.
        metavar: The name of the value; None for an option without a value.
        help: The help.
        complete: Finds names for TAB.
        panel: The section of `--help`.
        refused_beside: The flags of the modes in which the command refuses the option.
        limits: The least and the greatest number.
        words: The values that are accepted.
    """
    first, *others = flags.split()
    info = Option(
        default=first,
        param_decls=others,
        metavar=metavar,
        help=help,
        autocompletion=complete,
        rich_help_panel=panel,
        show_default=False,
    )
    info.callback = info.check
    info.flag = first
    info.refused_beside = tuple(refused_beside.split())
    info.limits = limits
    info.words = tuple(words)
    return info


def option(flags: str, metavar: str | None, *texts: Any, default: Any = ..., **more: Any) -> Any:
    """Return an option as the default of a parameter, or of the field of a group.

    Args:
        flags: As of `declare`, which also takes `texts` and `more`.
        metavar: As of `declare`.
        default: The value if the option is not given; by default False for an option without a
            value, else None.
    """
    if default is ...:
        default = None if metavar else False
    return field(default=default, metadata={OPTION: declare(flags, metavar, *texts, **more)})


# ------------------------------------------------------------ single options

ModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help=(
            "ONNX file, Caffe's .prototxt or PyTorch's .pt2; not needed if it is the only one here."
        ),
    ),
]
Weights = Annotated[
    Text,
    declare(
        "--weights",
        "FILE",
        "The .caffemodel of MODEL, a .prototxt; or random:SEED. Default: the one next to it.",
    ),
]
Start = Annotated[
    Texts,
    declare(
        "--start -s",
        "NODE",
        "First node: its name, a tensor's, #17, Conv@3, or a glob. Repeatable.",
        complete_nodes,
    ),
]
End = Annotated[Texts, declare("--end -e", "NODE", "Last node. Repeatable.", complete_nodes)]
Within = Annotated[
    Text,
    declare(
        "--within",
        "A..B",
        "Search only between these two nodes.",
        refused_beside="--recorded --loop",
    ),
]
By = Annotated[
    Text,
    declare(
        "--by",
        "rewriting",
        "Run no cuts: rewrite nodes of the full model; default if no cut shows the fault.",
        words=["rewriting"],
        refused_beside="--recorded",
    ),
]
NoFreeze = Annotated[
    bool, declare("--no-freeze", None, "Tensors that hold shapes become inputs, not constants.")
]
Output = Annotated[
    Text,
    declare("--output -o", "PARENT", "Parent folder of the result's folder; default subcut_out."),
]
CandidateSpec = Annotated[
    Text,
    declare(
        "--candidate -c",
        "SPEC",
        "The runtime in doubt: a backend with options (ort:opt=basic; `subcut backends` lists"
        " them), cmd:COMMAND, a Python file, or a name in subcut.toml.",
        complete_candidates,
        refused_beside="--recorded",
    ),
]
CsvFile = Annotated[
    Text, declare("--csv", "FILE", "Also write the table as CSV; - is standard output.")
]
Trust = Annotated[
    bool,
    declare("--trust", None, "Run code that a project file, case, loop or .pt2 names or holds."),
]
MaxTime = Annotated[
    Text,
    declare(
        "--max-time",
        "2h",
        "End within this time (90s, 30m) with the answer known by then; runs are ended.",
        refused_beside="--recorded",
    ),
]
Jobs = Annotated[
    Number,
    declare("--jobs -j", "N", "Candidate runs at once; default 1, or what hosts or executor take."),
]

Timeout = Annotated[
    Text, declare("--timeout", "SECONDS", "Limit of one build or run of the candidate; 600.")
]
FindLinks = Annotated[Texts, declare("--find-links", "DIR", "Where else they may be, as for pip.")]

# ------------------------------------------------------------ groups


@frozen
class InputOptions:
    """The inputs of the model."""

    inputs: Texts = option(
        "--input -i",
        "[NAME=]FILE",
        "A .npy, .npz, .bin or .pb file, an image, or a folder of samples. Repeatable. Default:"
        " random values.",
    )
    seed: Number = option("--seed", "N", "Seed of the random values; default 0.")
    shape: Texts = option(
        "--shape",
        "NAME=1x3x224x224",
        "Shape of an input with open dimensions, or the size of one: batch=1. Repeatable.",
    )
    mean: Text = option("--mean", "M[,M,M]", "Images: y = (x - mean) * scale, per channel.")
    scale: Text = option("--scale", "S[,S,S]", "Images: see --mean.")
    bgr: bool = option("--bgr", None, "Images: channel order blue, green, red.")


@frozen
class CandidateOptions:
    """Candidate: what is tested."""

    spec: CandidateSpec = None
    other_model: Text = option(
        "--candidate-model",
        "MODEL2",
        "The candidate runs this model instead: quantized, float16, optimized, another layout.",
        refused_beside="--recorded --loop",
    )
    tensor_map: Text = option(
        "--map",
        "FILE",
        "Lines `OURS THEIRS` for tensors of MODEL2 or --recorded that are not matched.",
    )


@frozen
class CriterionOptions:
    """The rule of agreement."""

    criterion: Text = option(
        "--criterion",
        "RULE",
        "noise (default), numpy:rtol=1e-3, tnn, digits:3, cosine>0.999 …",
        complete_plugins("criteria"),
    )
    rtol: Text = option("--rtol", "R", "As numpy: |d| ≤ atol + rtol · |reference|.")
    atol: Text = option("--atol", "A", "As numpy; goes with --rtol.")
    metric: Text = option("--metric", "cosine>0.999", "A limit on a metric is the criterion.")


@frozen
class OutputOptions:
    """The part of the outputs that is compared."""

    ignore: Texts = option(
        "--ignore",
        "OUTPUT",
        "This output of the model is not compared. Repeatable.",
        refused_beside="--recorded --loop",
    )
    may_be_empty: Texts = option(
        "--may-be-empty",
        "OUTPUT",
        "This output is right even if the input tells nothing about it. Repeatable.",
        refused_beside="--loop",
    )
    where: Texts = option(
        "--where",
        "NAME>0.5",
        "Outputs are compared only where this one fulfils it, on either side. Repeatable.",
        refused_beside="--recorded --loop",
    )


@frozen
class ScoreOptions:
    """A score of the task that judges the whole model."""

    score: Text = option(
        "--score",
        "FILE:FUNCTION",
        "The score of the task: top1, top5, iou, miou, cer, wer, sqnr, or your own function.",
        refused_beside="--recorded",
    )
    drop: Text = option(
        "--drop", "0.5%", "The largest accepted drop of the score: a share of it, or a number."
    )
    at_least: Text = option("--at-least", "X", "The least score that is accepted.")
    labels: Text = option(
        "--labels",
        "FILE",
        "The truth of each sample: .npy, .csv of LABEL, or a folder with a folder per class.",
    )


@frozen
class RuntimeOptions:
    """Runs of candidate and reference."""

    precision: Text = option(
        "--precision", "fp16", "Precision of the candidate: fp32, tf32, fp16, bf16 or int8."
    )
    reference: Text = option(
        "--reference", "SPEC", "Reference instead of plain onnxruntime, as in --candidate."
    )
    custom_ops: Text = option(
        "--custom-ops", "LIB", "Library of operators for onnxruntime to load."
    )
    executor: Text = option(
        "--executor",
        "SPEC",
        "Run the candidate on dask://HOST:8786, or MODULE:FUNCTION for any Executor.",
    )
    timeout: Timeout = None
    memory: Text = option(
        "--memory",
        "4G",
        "Limit of each of subcut's own processes; larger models run in stretches.",
    )
    memory_limit: Text = option(
        "--memory-limit", "8G", "Limit of the candidate and all processes that it starts."
    )


@frozen
class RecordedOptions:
    """Recording: a device's layer dumps."""

    recorded: Texts = option(
        "--recorded",
        "[LABEL[:int8]=]DIR",
        "Layer dumps of a device or another tool. Repeatable, in the order float, quantized,"
        " board.",
        refused_beside="--loop",
    )
    dump_format: Text = option(
        "--dump-format",
        "NAME",
        "Format of --recorded: ascend, tnn, rknn …; detected if not given.",
    )
    dump_layout: Text = option(
        "--dump-layout", "NHWC", "Layout of --recorded's files without a header."
    )


@frozen
class FormatOptions:
    """Form of the written tensors."""

    formats: Text = option("--format", "npy,bin", "File formats: npy, bin or both.")
    dtype: Text = option(
        "--dtype", "float16", "Element type of the .bin files; losses are counted."
    )
    layout: Text = option("--layout", "NHWC", "Layout of the .bin files: NHWC, NCHW or NC1HWC0.")


@frozen
class ResultOptions:
    """Result, and what may run."""

    output: Output = None
    fresh: bool = option("--fresh", None, "Ignore stored answers of earlier runs.")
    trust: Trust = False
    force: bool = option("--force", None, "Replace another result that is in the way.")
