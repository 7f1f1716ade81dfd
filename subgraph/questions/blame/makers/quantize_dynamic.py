"""onnxruntime's dynamic quantizer."""

from __future__ import annotations

from subgraph.questions.blame.makers import Making
from subgraph.questions.blame.makers._quantizer import ON, SHARED, Quantizer

PACKAGE = "onnxruntime"
QUANTIZER = Quantizer(
    "quantize_dynamic", {**SHARED, "MatMulConstBOnly": ON}, ("IntegerOpsRegistry",)
)


def steps(making: Making, **settings: str) -> list[str]:
    """Return the operators that it quantizes, and its options."""
    return QUANTIZER.steps(making, settings)


def make(making: Making, **settings: str) -> None:
    """Write the quantized model."""
    QUANTIZER.make(making, settings)
