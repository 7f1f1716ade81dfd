"""onnx's own evaluator, in Python and numpy: slow, independent of every runtime; ignores some RNN inputs."""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from subgraph.errors import UsageError
from subgraph.storage.tensors import Value

MULTI = True


def version() -> str:
    """onnx's version."""
    import onnx

    return str(onnx.__version__)


def warm() -> None:
    """Import the evaluator ahead of the first model."""
    import onnx.reference  # noqa: F401


def load(
    model: Path, options: Mapping[str, Any]
) -> Callable[[Mapping[str, Value]], dict[str, Value]]:
    """Read the model; ops are looked up now, so an unknown one is refused here. It has no options.

    Raises:
        UsageError: an option is given.
    """
    from onnx.reference import ReferenceEvaluator

    if options:
        raise UsageError(
            f"onnx-reference has no option '{next(iter(options))}'",
            "leave it out",
            code="backend.unknown-option",
        )
    evaluator = ReferenceEvaluator(str(model))
    names = list(evaluator.output_names)

    def run(feeds: Mapping[str, Value]) -> dict[str, Value]:
        return dict(zip(names, evaluator.run(names, dict(feeds)), strict=True))

    return run
