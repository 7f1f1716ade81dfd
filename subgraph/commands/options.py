"""Options that several commands share, and the words behind them turned into values."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from subgraph import project
from subgraph.commands import log
from subgraph.errors import SubcutError, UsageError
from subgraph.inputs import Picture
from subgraph.text import clean


def complete_nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Node names of the model on the command line, for TAB; tensor names behind `tensor:`."""
    from subgraph import wire

    # In front of an option that lacks its value, typer leaves the arguments as they are.
    given = ctx.params.get("model") or next(iter(ctx.args), None)
    try:
        model, _ = project.find_model(os.path.expandvars(os.path.expanduser(given)) if given else None)  # noqa: PTH111
        nodes = wire.read(model).model.graph.node
        names = [name for n in nodes for name in ([n.name] if not incomplete.startswith("tensor:") else n.output)]
    except (SubcutError, OSError, UnicodeDecodeError):
        return []
    prefix = re.match("(?:node:|tensor:)?", incomplete)
    names = [f"{prefix[0] if prefix else ''}{name}" for name in dict.fromkeys(names) if name]
    return [name for name in names if name.startswith(incomplete) and clean(name) == name]


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
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="[NAME=]FILE",
        help="What to feed: .npy .npz .bin .pb, an image, or a folder of samples. Repeatable. Default: random values.",
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of the random values; 0 if not given.")]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="NAME=1x3x224x224", help="Shape of an input with open dimensions. Repeatable."),
]
Mean = Annotated[
    str | None, typer.Option("--mean", metavar="M[,M,M]", help="Of an image, per channel: y = (x - mean) * scale.")
]
Scale = Annotated[str | None, typer.Option("--scale", metavar="S[,S,S]", help="Of an image, per channel.")]
Bgr = Annotated[bool, typer.Option("--bgr", help="Images in the channel order blue, green, red.")]
Output = Annotated[
    str | None,
    typer.Option(
        "--output", "-o", metavar="PARENT", help="Folder that the result's folder goes into; subcut_out if not given."
    ),
]
Format = Annotated[
    str | None, typer.Option("--format", metavar="npy,bin", help="Forms to write the tensors in: npy, bin or both.")
]
Dtype = Annotated[
    str | None, typer.Option("--dtype", metavar="float16", help="Element type of the .bin files; losses are counted.")
]
Layout = Annotated[str | None, typer.Option("--layout", metavar="NHWC", help="Layout of the .bin files: NHWC or NCHW.")]
Force = Annotated[bool, typer.Option("--force", help="Replace another result that stands in the way.")]


def model_of(given: str | None, settings: project.Project) -> Path:
    """The model to work on; says how it was found where it was not named."""
    path, how = project.find_model(given, settings)
    if how:
        log.info("model: %s (%s)", path.name, how)
    return path


def shapes(words: Sequence[str]) -> dict[str, list[int]]:
    """`NAME=1x3x224x224` → {"NAME": [1, 3, 224, 224]}; `×`, `,` and `*` separate as well.

    Raises:
        UsageError: something else.
    """
    out = {}
    for word in words:
        name, sep, text = word.rpartition("=")
        sizes = re.split(r"[x×,*]", text) if text else []
        if not sep or not name or not all(re.fullmatch("[0-9]{1,9}", s) for s in sizes):
            raise UsageError(f"--shape {word}: expected NAME=1x3x224x224")
        out[name] = [int(s) for s in sizes]
    return out


def picture(mean: str | None, scale: str | None, bgr: bool) -> Picture:
    """How images become tensors.

    Raises:
        UsageError: something that is no number.
    """
    return Picture(_numbers("--mean", mean, 0.0), _numbers("--scale", scale, 1.0), bgr)


def _numbers(option: str, text: str | None, default: float) -> tuple[float, ...]:
    if text is None:
        return (default,)
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise UsageError(f"{option} {text}: expected a number, or one per channel: 123.7,116.3,103.5") from None
