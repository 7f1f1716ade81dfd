"""A `torch.nn.Module` in memory -> an ONNX file that lasts as long as this process."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from subgraph.errors import ModelError, UsageError
from subgraph.origins.torch.program import first_line, quiet, torch
from subgraph.storage import folders
from subgraph.text import clean

log = logging.getLogger("subcut")


def to_onnx(module: Any, args: Sequence[Any] | None) -> Path:
    """Export a module by `torch.onnx.export(…, dynamo=True)` into a temporary folder.

    Raises:
        BackendError: PyTorch is not installed. UsageError: it is not a module, or there are no
            `args`.
        ModelError: it cannot be exported; says why.
    """
    pytorch = torch()
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
    path = folders.lasting("subcut-torch") / f"{type(module).__name__}.onnx"
    log.info("torch.onnx.export(module, args, %r, dynamo=True)", clean(path.name))
    try:
        with quiet():
            pytorch.onnx.export(module, tuple(args), str(path), dynamo=True, verbose=False)
    except Exception as e:  # the user's code runs, and may raise anything
        raise ModelError(
            f"PyTorch cannot export {clean(type(module).__name__)}: {clean(first_line(e))}",
            code="torch.export-failed",
        ) from e
    return path
