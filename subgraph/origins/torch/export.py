"""A `torch.nn.Module` in memory, or an exported program (`.pt2`), -> an ONNX file.

`torch.export.load` unpickles weights and constants with `weights_only=False` (2.13), so a file can
run any code: it needs trust, as all code that a file names, and the user's own PyTorch runs in a
separate process.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from subgraph import children, system
from subgraph import trust as trusted
from subgraph.errors import BackendError, ModelError, UsageError
from subgraph.log import log
from subgraph.origins.converted import convert_once
from subgraph.origins.torch.program import import_torch, silence_exporter, summarize_error
from subgraph.storage import folders
from subgraph.storage.digest import file_digest
from subgraph.system import free_memory
from subgraph.text import clean
from subgraph.trust import NamedCode


def export_module(module: Any, args: Sequence[Any] | None) -> Path:
    """Export a module by `torch.onnx.export(…, dynamo=True)` into a temporary folder.

    Raises:
        BackendError: PyTorch is not installed. UsageError: it is not a module, or there are no
            `args`.
        ModelError: it cannot be exported; says why.
    """
    pytorch = import_torch()
    if not isinstance(module, pytorch.nn.Module):
        raise UsageError(
            f"a model is a file or a torch.nn.Module, not {type(module).__name__}",
            code="api.wrong-type",
        )
    if args is None:
        raise UsageError(
            "a torch.nn.Module is exported with what it is called with",
            "load(module, args=(x,))",
            code="torch.no-arguments",
        )
    path = folders.make_lasting("subcut-torch") / f"{type(module).__name__}.onnx"
    log.info("torch.onnx.export(module, args, %r, dynamo=True)", clean(path.name))
    try:
        with silence_exporter():
            pytorch.onnx.export(module, tuple(args), str(path), dynamo=True, verbose=False)
    except Exception as e:  # the user's code runs, and may raise anything
        raise ModelError(
            f"PyTorch cannot export {type(module).__name__}: {summarize_error(e)}",
            code="torch.export-failed",
        ) from e
    return path


NEEDS = ("torch", "onnxscript")
SAID = re.compile(
    r"[\w.]*(?:Error|Exception|Node)\b.*"
)  # a line that names an error, as Python ends its traces
EXPORT_TIMEOUT = 3600  # seconds that an export may take
CODE = 'import torch; torch.onnx.export(torch.export.load({}), f="model.onnx", dynamo=True)'


def convert_program(path: Path, trust: bool = False) -> Path:
    """The exported model as a file, kept for the next command; shows the command that exports it.

    Raises:
        UsageError: the file is not trusted. BackendError: PyTorch is not installed.
        ModelError: PyTorch cannot load or export it.
    """
    if missing := [name for name in NEEDS if find_spec(name) is None]:
        what = (
            f"{path.name} is an exported program of PyTorch; reading it needs"
            f" {' and '.join(missing)}"
        )
        raise BackendError(what, f"pip install {' '.join(missing)}", code="package.not-installed")
    path = path.absolute()
    command = children.python(
        "-c", CODE.format(json.dumps(str(path)))
    )  # a literal of Python as well
    shown = f"torch.export.load({path.name!r}), which unpickles it"
    trusted.require(NamedCode(f"the model {clean(path.name)}", [shown], str(path), [path]), trust)

    def write(target: Path) -> None:
        log.info("%s", clean(system.join(["python", *command[1:]])))
        _run(command, path, target.parent)
        (target.parent / "model.onnx").rename(target)

    versions = [version(name) for name in NEEDS]  # another exporter writes another model
    return convert_once(["pt2/2", *versions, file_digest(path)], path.name, write)


def _run(command: list[str], path: Path, folder: Path) -> None:
    """Run the export in a folder, where it leaves `model.onnx`.

    Raises:
        ModelError: it fails; with the last error that it printed.
    """
    hint = f"run it yourself to see more: {system.join(command)}"
    try:
        done = children.run(command, timeout=EXPORT_TIMEOUT, cwd=folder, memory=free_memory())
    except subprocess.TimeoutExpired as e:
        raise ModelError(
            f"PyTorch did not export {path.name} within {EXPORT_TIMEOUT} s",
            hint,
            code="torch.timeout",
        ) from e
    done.require_space()
    if done.code or not (folder / "model.onnx").is_file():
        lines = [
            line.strip() for line in done.err.decode(errors="replace").splitlines() if line.strip()
        ]
        said_last = (
            [line for line in lines if SAID.match(line)] or lines or ["it ended without a word"]
        )[-1]
        raise ModelError(
            f"PyTorch cannot export {path.name}: {said_last[:400]}",
            hint,
            code="torch.export-failed",
        )
