"""A .tflite -> an ONNX file of its operators, kept for the next command; and a cut of that -> a
.tflite.

Both are done by a child process with limits: the schema's generated reader checks nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path

from subgraph import children, system
from subgraph.errors import ModelError, OutputError, UsageError
from subgraph.origins.converted import convert_once
from subgraph.origins.tflite.child import DAMAGED, REFUSED, UNNAMED, UNWRITTEN
from subgraph.storage.digest import digest_file
from subgraph.system import measure_free_memory
from subgraph.types import JsonObject
from subgraph.version import make_install_command

HOME = Path(__file__).resolve().parents[3]
MAX_CONVERSION_SECONDS = 900
PROCESSOR_SECONDS = 600


def to_onnx(path: Path, signature: str = "") -> Path:
    """Return the ONNX file of a .tflite's operators; `signature`: which of several.

    Raises:
        UsageError: ai-edge-litert is not installed, or one of several signatures is to be named.
        ModelError: the file is damaged, or a cut could not carry it.
        OutputError: it can be written nowhere.
    """
    depends = ["tflite/3", digest_file(path), signature]
    return convert_once(
        depends, path.name, lambda target: _run("read", path, target, path.name, signature)
    )


def to_tflite(model: Path, target: Path, name: str) -> None:
    """Write a cut of such a model as a .tflite; `name`: that of the model in messages.

    Raises: as `to_onnx`.
    """
    _run("write", model, target, name)


def _run(direction: str, source: Path, target: Path, name: str, signature: str = "") -> None:
    if importlib.util.find_spec("ai_edge_litert") is None:
        raise UsageError(
            f"{name}: TensorFlow Lite takes ai-edge-litert, which is not installed",
            make_install_command("tflite"),
            code="package.not-installed",
        )
    paths = source.resolve(), target.resolve()
    words = children.make_python_command(
        "-m", "subgraph.origins.tflite.child", direction, *paths, signature
    )
    folders = [str(HOME), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    limits: JsonObject = {"memory": measure_free_memory(), "seconds": PROCESSOR_SECONDS}
    try:
        done = children.run(words, timeout=MAX_CONVERSION_SECONDS, env=environment, **limits)
    except subprocess.TimeoutExpired as e:
        raise ModelError(
            f"{name}: reading it took more than {MAX_CONVERSION_SECONDS} s",
            "compare its checksum",
            code="tflite.timeout",
        ) from e
    try:
        how, why = json.loads(done.out)
    except ValueError:
        how = DAMAGED
        why = (
            f"its reader ended with code {done.code}, by a crash or at its limit of time or memory"
        )
    if how == UNNAMED:
        raise UsageError(f"{name}: {why}", f"name one: {name}:SIGNATURE", code="tflite.signature")
    if how == REFUSED:
        raise ModelError(
            f"{name} cannot be cut: {why}",
            f"subcut convert {system.quote(name)} -o model.onnx makes ONNX of it, which can",
            code="tflite.not-cuttable",
        )
    if how == UNWRITTEN:
        raise OutputError(f"{name}: {why}", "free some space", code="output.disk-full")
    if how == DAMAGED:
        raise ModelError(
            f"{name} is damaged: {why}",
            "compare its size and checksum with the original",
            code="model.damaged",
        )
