"""onnxoptimizer, with its passes that fuse and eliminate."""

from __future__ import annotations

import onnx

from subgraph.questions.blame.makers import Making

PACKAGE = "onnxoptimizer"


def steps(making: Making) -> list[str]:
    """Return the names of its passes."""
    import onnxoptimizer

    return [name for name in onnxoptimizer.get_fuse_and_elimination_passes() if name != "nop"]


def make(making: Making) -> None:
    """Write the optimized model."""
    import onnxoptimizer

    passes = [name for name in steps(making) if name not in making.skip]
    onnx.save(onnxoptimizer.optimize(onnx.load(making.model), passes), making.made)
