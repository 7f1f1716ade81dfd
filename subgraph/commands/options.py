"""Options that several commands share, and the words behind them turned into values."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from subgraph import project
from subgraph.commands import log
from subgraph.errors import SubcutError, UsageError
from subgraph.runtime.inputs import Feeding, ImageOptions
from subgraph.runtime.reference import Reference
from subgraph.text import clean

if TYPE_CHECKING:
    from subgraph.runtime.candidate import Candidate
    from subgraph.trials.trial import Trials


def complete_nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Node names of the model on the command line, for TAB; tensor names behind `tensor:`."""
    from subgraph.graph import protobuf

    # In front of an option that lacks its value, typer leaves the arguments as they are.
    given = ctx.params.get("model") or next(iter(ctx.args), None)
    try:
        model, _ = project.find_model(os.path.expandvars(os.path.expanduser(given)) if given else None)  # noqa: PTH111
        nodes = protobuf.read(model).model.graph.node
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
ReferenceSpec = Annotated[
    str | None,
    typer.Option("--reference", metavar="SPEC", help="Another reference than plain onnxruntime, as in --candidate."),
]
CustomOps = Annotated[
    str | None, typer.Option("--custom-ops", metavar="LIB", help="Library of operators that onnxruntime is to load.")
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
CandidateModel = Annotated[
    str | None,
    typer.Option(
        "--candidate-model",
        metavar="MODEL2",
        help="The candidate runs this model instead: quantized, float16, optimised, another layout.",
    ),
]
Map = Annotated[
    str | None,
    typer.Option(
        "--map", metavar="FILE", help="Lines OURS THEIRS: tensors of MODEL2 that are not found by themselves."
    ),
]
Timeout = Annotated[
    str | None, typer.Option("--timeout", metavar="SECONDS", help="Limit of one build or run of the candidate; 600.")
]
MemoryLimit = Annotated[
    str | None, typer.Option("--memory-limit", metavar="8G", help="Limit of the candidate and all that it starts.")
]
Precision = Annotated[
    str | None,
    typer.Option("--precision", metavar="fp16", help="What the candidate computes in: fp32, fp16, bf16 or int8."),
]
Criterion = Annotated[
    str | None,
    typer.Option("--criterion", metavar="RULE", help="noise, numpy:rtol=1e-3, tnn, digits:3, cosine>0.999 …"),
]
Rtol = Annotated[str | None, typer.Option("--rtol", metavar="R", help="As numpy: |d| ≤ atol + rtol · |reference|.")]
Atol = Annotated[str | None, typer.Option("--atol", metavar="A", help="As numpy; goes with --rtol.")]
Metric = Annotated[
    str | None, typer.Option("--metric", metavar="cosine>0.999", help="A limit on a metric is the criterion.")
]
Jobs = Annotated[int | None, typer.Option("--jobs", "-j", metavar="N", help="Candidates that run at once; 1.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Run anew what earlier runs have stored.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Let what a project file names run: commands, Python files, libraries.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace another result that stands in the way.")]


def model_of(given: str | None, settings: project.Project) -> Path:
    """The model to work on; says how it was found where it was not named."""
    path, how = project.find_model(given, settings)
    if how:
        log.info("model: %s (%s)", path.name, how)
    return path


def feeding(
    settings: project.Project,
    inputs: list[str] | None,
    seed: int | None,
    shape: list[str] | None,
    mean: str | None,
    scale: str | None,
    bgr: bool,
) -> Feeding:
    """What the model is fed, from the options that say so.

    Raises:
        UsageError: a word that means nothing.
    """
    return Feeding(
        inputs=tuple(settings.get("input", inputs, [])),
        shapes=shapes(settings.get("shape", shape, [])),
        seed=settings.get("seed", seed, 0),
        picture=picture(
            settings.get("mean", mean), settings.get("scale", scale), settings.get("bgr", bgr or None, False)
        ),
    )


def reference(settings: project.Project, spec: str | None, custom_ops: str | None, trust: bool) -> Reference:
    """The reference's process, started.

    Raises:
        UsageError: the SPEC means nothing, the library is not there, or what would run is not trusted.
    """
    spec = settings.get("reference", spec, "ort")
    library, origin = _library(settings, custom_ops)
    if spec == "ort" and not library:
        return Reference()
    from subgraph.runtime import candidate as candidates

    wanted = candidates.parse(spec, settings)
    if library and wanted.backend != "ort":
        raise UsageError("--custom-ops is for onnxruntime only", f"give {wanted.backend} its own setting for that")
    wanted = _with_library(wanted, library, origin)
    _trusted("reference", wanted, trust)
    return Reference(wanted.backend, wanted.options, timeout=wanted.timeout, memory=wanted.memory)


def _library(settings: project.Project, given: str | None) -> tuple[str, str]:
    """The library of custom operators as a whole path, and the project file that names it; "" where there is none.

    Raises:
        UsageError: there is no such file.
    """
    library = settings.get("custom_ops", given, "")
    if library and not os.path.isfile(library):  # noqa: PTH113 - a name that is too long is no file
        raise UsageError(f"no library {clean(library)}", "--custom-ops wants the file that registers the operators")
    typed = given or os.environ.get("SUBCUT_CUSTOM_OPS")
    return library and str(Path(library).resolve()), "" if typed or not library else str(settings.file)


def _with_library(found: Candidate, library: str, origin: str) -> Candidate:
    if not library or found.backend != "ort":
        return found
    return replace(found, options={**found.options, "custom_ops": library}, origin=found.origin or origin)


def _trusted(what: str, wanted: Candidate, trust: bool) -> str:
    """Say what code of the user's, or of a project file's author, will run.

    Raises:
        UsageError: it comes from a project file and is not trusted.
    """
    from subgraph.runtime import candidate as candidates

    shown = candidates.require_trust(wanted, trust)
    if shown:
        log.info("%s %s runs: %s", what, clean(wanted.name), shown)
    return shown


def candidate(
    settings: project.Project,
    spec: str | None,
    timeout: str | None,
    memory_limit: str | None,
    precision: str | None,
    custom_ops: str | None,
    trust: bool,
) -> Candidate:
    """What is doubted, with its limits; onnxruntime as people deploy it where none is named. Says what will run.

    Raises:
        UnknownName, UsageError: the SPEC or a limit means nothing; its commands are not trusted.
    """
    from subgraph.runtime import candidate as candidates

    named = settings.get("candidate", spec)
    found = _with_library(candidates.parse(named or "ort", settings), *_library(settings, custom_ops))
    seconds = number("--timeout", settings.get("timeout", timeout))
    if seconds == 0:
        raise UsageError("--timeout 0: nothing runs in no time", "leave it out for 600 seconds")
    limit = settings.get("memory_limit", memory_limit)
    found = replace(
        found,
        timeout=found.timeout if seconds is None else seconds,
        memory=found.memory if limit is None else candidates.memory(limit),
        precision=candidates.precision("--precision", precision) or found.precision,
    )
    _trusted("candidate", found, trust)
    if not named:
        log.info("candidate: ort, onnxruntime as people deploy it, all optimisations on (--candidate names another)")
    return found


def told(asked: Trials) -> None:
    """Say what the candidate's backend wants known before anything runs: that it computes in less than float32, say.

    Raises:
        BackendError: it cannot be used.
    """
    if caveat := asked.about.get("caveat"):
        log.warning("%s", clean(str(caveat)))


def other(model: str | None, names: str | None) -> dict[str, Path | None]:
    """The candidate's own model and the file that maps its tensors, as whole paths.

    Raises:
        UsageError: one of them is not there, or only the second is given.
    """
    if names and not model:
        raise UsageError("--map goes with --candidate-model", "it says which tensor there is which of MODEL's")
    for option, path in (("--candidate-model", model), ("--map", names)):
        if path and not os.path.isfile(path):  # noqa: PTH113 - a name that is too long is no file
            raise UsageError(f"{option} {clean(path)}: no such file", "name a file")
    return {"candidate_model": Path(model) if model else None, "tensor_map": Path(names) if names else None}


def criterion(
    settings: project.Project, given: str | None, rtol: str | None, atol: str | None, metric: str | None
) -> str:
    """The words of the criterion that the options mean.

    Raises:
        UsageError: several at once, or no number.
    """
    told = [
        name for name, value in (("--criterion", given), ("--rtol/--atol", rtol or atol), ("--metric", metric)) if value
    ]
    if len(told) > 1:
        raise UsageError(f"{' and '.join(told)}: which?", "give one criterion")
    if rtol or atol:
        words = {"rtol": number("--rtol", rtol), "atol": number("--atol", atol)}
        return "numpy:" + ",".join(f"{k}={v:g}" for k, v in words.items() if v is not None)
    if metric:
        return f"threshold:{metric}"
    return str(settings.get("criterion", given, "noise"))


def number(option: str, text: str | float | None) -> float | None:
    """A positive number or zero.

    Raises:
        UsageError: something else.
    """
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(f"{option} {text}: expected a number, zero or more")
    return value


def jobs(settings: project.Project, given: int | None) -> int:
    """How many candidates run at once.

    Raises:
        UsageError: less than one.
    """
    count = int(settings.get("jobs", given, 1))
    if count < 1:
        raise UsageError(f"--jobs {count}: at least one must run")
    return count


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


def picture(mean: str | None, scale: str | None, bgr: bool) -> ImageOptions:
    """How images become tensors.

    Raises:
        UsageError: something that is no number.
    """
    return ImageOptions(_numbers("--mean", mean, 0.0), _numbers("--scale", scale, 1.0), bgr)


def _numbers(option: str, text: str | None, default: float) -> tuple[float, ...]:
    if text is None:
        return (default,)
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise UsageError(f"{option} {text}: expected a number, or one per channel: 123.7,116.3,103.5") from None
