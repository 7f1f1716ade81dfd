"""A model of another format -> its ONNX file, and what the original computes, by processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from subgraph.errors import ModelError, UsageError
from subgraph.graph.graph import Graph, load
from subgraph.origins.converters import Converter
from subgraph.storage import folders
from subgraph.text import clean

SECONDS = 3600  # that a conversion may take
LAST_LINES = 8  # of what a converter says when it fails
RECORDED = "original.npz"  # what the original computes, by the names of the ONNX model's tensors


def convert(name: str, commands: Sequence[str], model: Path, written: Path, target: Path) -> Graph:
    """Run the converter `name`, which writes `written`, then put that in the place of `target`; the new model.

    Raises:
        ModelError: the converter fails, is too slow, writes nothing, or writes no ONNX model.
        OutputError: nothing can be written there.
    """
    run(commands, f"{clean(name)} cannot convert {clean(model.name)}")
    if not written.is_file():
        raise ModelError(f"{clean(name)} ended well and wrote no {written.name}", shlex.join(commands))
    try:
        empty = not load(written).outputs
    except ModelError as e:
        raise ModelError(f"what {clean(name)} wrote is no ONNX model that can be read", e.what) from e
    if empty:
        raise ModelError(f"{clean(name)} wrote a model without outputs", shlex.join(commands))
    for file in sorted(written.parent.iterdir(), key=lambda f: f == written):  # its weights before it
        file.replace(target if file == written else target.parent / file.name)
    return load(target)


def command_of(template: str, model: Path, written: Path) -> list[str]:
    """The words of the user's own converter, `{model}` and `{output}` filled in; no shell reads them.

    Raises:
        UsageError: a placeholder is missing, or the quotes do not close.
    """
    try:
        words = shlex.split(template)
    except ValueError as e:
        raise UsageError(f"--with {clean(template)}: {e}", "'python -m tf2onnx.convert … {model} … {output}'") from e
    if not all(any(place in word for word in words) for place in ("{model}", "{output}")):
        raise UsageError(f"--with {clean(template)}: it must name {{model}} and {{output}}", "both are filled in")
    return [word.replace("{model}", str(model)).replace("{output}", str(written)) for word in words]


def original_values(
    converter: Converter, python: Path, model: Path, graph: Graph, inputs: Mapping[str, Path], folder: Path
) -> Path:
    """Run the original on these inputs (`.npy` files by input of the ONNX model); the folder with its recording.

    Raises:
        ModelError: the original's runtime cannot run it.
    """
    folder.mkdir()
    asked = folder.with_suffix(".json")
    tensors = [name for name in graph.maker if name not in graph.outputs]
    files = {name: str(inputs[name]) for name in graph.inputs}
    asked.write_text(json.dumps({"files": files, "outputs": graph.outputs, "tensors": tensors}), encoding="utf-8")
    words = converter.command(python, "run", model, asked, folder / RECORDED)
    run(words, f"{clean(model.name)} cannot be run by the runtime that it was made for")
    return folder


def run(words: Sequence[str], failed: str) -> None:
    """Run a command to its end, with all that it starts in a group of its own.

    Raises:
        ModelError: it fails, or takes too long; `failed` says what, its last lines say why.
    """
    outside = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        with folders.scratch(Path(words[-1]).parent, "subcut-converter") as place:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env=outside | {"TMPDIR": str(place.resolve())}, start_new_session=True,
            )  # fmt: skip
            try:
                said = process.communicate(timeout=SECONDS)[0].decode(errors="replace")
            except subprocess.TimeoutExpired as e:
                raise ModelError(f"{failed}: it took more than {SECONDS} s", shlex.join(words)) from e
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    except OSError as e:
        raise UsageError(f"cannot run {clean(words[0])}: {e.strerror or e}", "check its path") from e
    if process.returncode:
        lines = [clean(line) for line in said.splitlines() if line.strip()][-LAST_LINES:]
        what = f"{failed}: its process ended with code {process.returncode}{', and said:' if lines else ''}"
        raise ModelError("\n".join([what, *lines]), f"to see more: {shlex.join(words)}")
