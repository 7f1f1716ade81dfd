"""onnxslim, with its optimizations and its fusion patterns."""

from __future__ import annotations

from subgraph.questions.blame.makers import Making

PACKAGE = "onnxslim"


def steps(making: Making) -> list[str]:
    """Return the names of its optimizations, and of its fusion patterns."""
    from onnxslim.core.optimization import OptimizationSettings
    from onnxslim.core.pattern.registry import DEFAULT_FUSION_PATTERNS

    return [*OptimizationSettings.keys(), *DEFAULT_FUSION_PATTERNS]


def make(making: Making) -> None:
    """Write the slimmed model."""
    import onnxslim
    from onnxslim.core.optimization import OptimizationSettings

    optimizations = making.skip.intersection(OptimizationSettings.keys())
    onnxslim.slim(
        str(making.model),
        str(making.made),
        skip_optimizations=sorted(optimizations) or None,
        skip_fusion_patterns=sorted(making.skip - optimizations) or None,
    )
