"""A model of another format -> its ONNX file, and what the original computes, by processes of their
own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from subgraph import children, system
from subgraph.errors import ModelError, ResultExists, UsageError, explain_os_error
from subgraph.graph.graph import Graph, load
from subgraph.graph.model_file import find_external_files
from subgraph.graph.value_types import find_declared_types, read_type
from subgraph.origins.converters import Converter
from subgraph.origins.converters.script_main import UNPAIRED
from subgraph.storage import folders
from subgraph.text import clean, mask_logins
from subgraph.types import frozen

MAX_CONVERSION_SECONDS = 3600  # that a conversion may take
MAX_LAST_LINES = 8  # of the output of a converter that fails


@frozen
class Original:
    """A model of another format, and what runs it: `converter`'s script with the interpreter
    `python`."""

    model: Path
    converter: Converter
    python: Path


def convert(name: str, commands: Sequence[str], model: Path, written: Path) -> Graph:
    """Run the converter `name`, which writes `written`; the new model, which has an output.

    Raises:
        ModelError: the converter fails, is too slow, writes nothing, or writes no ONNX model.
        OutputError: nothing can be written there.
    """
    run(commands, f"{clean(name)} cannot convert {clean(model.name)}", written.parent)
    if not written.is_file():
        raise ModelError(
            f"{name} ended well and wrote no {written.name}",
            system.join(commands),
            code="convert.no-model",
        )
    try:
        graph = load(written)
    except ModelError as e:
        raise ModelError(
            f"what {name} wrote is not an ONNX model that can be read",
            e.what,
            code="convert.unreadable-model",
        ) from e
    if not graph.outputs:
        raise ModelError(
            f"{name} wrote a model without outputs", system.join(commands), code="model.no-outputs"
        )
    return graph


def move_model(graph: Graph, target: Path, source: Path, *, force: bool) -> Graph:
    """Move a model to `target`, its external data to the same places next to it, and nothing
    else.

    The model comes last, so that it is never there without its weights.

    Raises:
        ResultExists: a file is in the way; with `force`, only if it is the source.
        DataError: the external data cannot be found. OutputError: nothing can be written.
    """
    moves = {
        target.parent / location: file for location, file in find_external_files(graph).items()
    }
    moves[target] = graph.path
    for place in moves:
        if place.exists() and (not force or place.resolve() == source.resolve() or place.is_dir()):
            raise ResultExists(
                f"{place} is in the way",
                (
                    "-o names a file in another folder"
                    if force
                    else "--force replaces it, -o names another"
                ),
                code="output.exists",
            )
    try:
        for place, file in moves.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            file.replace(place)
    except OSError as e:
        raise folders.make_write_error(target.parent, e) from e
    return load(target)


def fill_command(template: str, model: Path, written: Path) -> list[str]:
    """Return the words of the user's own converter, `{model}` and `{output}` filled in; no shell
    reads them.

    Raises:
        UsageError: a placeholder is missing, or the quotes do not close.
    """
    try:
        words = system.split(template)
    except ValueError as e:
        raise UsageError(
            f"--with {template}: {e}",
            "'python -m tf2onnx.convert … {model} … {output}'",
            code="command.malformed",
        ) from e
    if not all(any(place in word for word in words) for place in ("{model}", "{output}")):
        raise UsageError(
            f"--with {template}: it must name {{model}} and {{output}}",
            "both are filled in",
            code="command.lacks-place",
        )
    return [word.replace("{model}", str(model)).replace("{output}", str(written)) for word in words]


def record_original(
    original: Original, graph: Graph, samples: Sequence[Mapping[str, Path]], folder: Path
) -> str:
    """Run the original on samples (`.npy` files by input of the ONNX model), and record what it
    computes in `folder`, in place of the values of an earlier conversion.

    Returns why inputs or outputs of the two models could not be paired; "" if they were.

    Raises:
        ModelError: the original's runtime cannot run it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in (folder / UNPAIRED, *folder.glob("sample_*.npz")):
        old.unlink(missing_ok=True)
    asked = folder / ".asked.json"
    model = original.model
    types = find_declared_types(graph, graph.outputs)
    asks = {
        "samples": [{name: str(file) for name, file in sample.items()} for sample in samples],
        "outputs": {
            n: read_type(types[n])[1:] if n in types else ("", None) for n in graph.outputs
        },
        "tensors": [name for name in graph.maker if name not in graph.outputs],
    }
    asked.write_text(json.dumps(asks), encoding="utf-8")
    words = original.converter.command(original.python, "run", model.resolve(), asked, folder)
    run(
        words,
        f"{clean(model.name)} cannot be run by the runtime that it was made for",
        folder.parent,
    )
    asked.unlink()
    unpaired = folder / UNPAIRED
    if unpaired.is_file():
        return clean(unpaired.read_text(encoding="utf-8"))
    return ""


def run(words: Sequence[str], failed: str, folder: Path) -> None:
    """Run a command to its end, with all that it starts in a separate group; what it puts aside
    goes into `folder`.

    The group ends with this process, however this one ends.

    Raises:
        ModelError: It fails, or takes too long; with `failed` and its last lines.
    """
    outside = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        with folders.make_scratch(folder, "aside") as place:
            env = outside | {"TMPDIR": str(place.resolve())}
            what = f"cannot run {words[0]}"  # `scratch` takes other errors for a full disk
            with explain_os_error(UsageError, what, "check its path", code="command.not-runnable"):
                done = children.run(
                    words, timeout=MAX_CONVERSION_SECONDS, env=env, stderr=subprocess.STDOUT
                )
    except subprocess.TimeoutExpired as e:
        raise ModelError(
            f"{failed}: it took more than {MAX_CONVERSION_SECONDS} s",
            system.join(words),
            code="convert.timeout",
        ) from e
    done.require_space()
    if done.code:
        lines = done.list_last_lines(MAX_LAST_LINES)
        what = f"{failed}: its process ended with code {done.code}"
        what += ", and said" if lines else ""
        raise ModelError(
            " | ".join([what, *lines]),
            f"to see more: {mask_logins(system.join(words))}",
            code="convert.failed",
        )
