"""onnxruntime's optimizer, whose optimized model is a file."""

from __future__ import annotations

from subgraph.lazy import ort
from subgraph.questions.blame.makers import Making
from subgraph.runtime.backends import ort as backend

PACKAGE = "onnxruntime"


def steps(making: Making, opt: str = "all") -> list[str]:
    """Return the passes that change the model."""
    return backend.passes(making.model, {"opt": opt})


def make(making: Making, opt: str = "all") -> None:
    """Write the optimized model."""
    settings = backend.make_settings({"opt": opt})
    settings.optimized_model_filepath = str(making.made)
    names = sorted(making.skip)
    ort.InferenceSession(
        str(making.model), settings, providers=[backend.CPU], disabled_optimizers=names
    )
