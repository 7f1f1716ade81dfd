"""onnxruntime's dynamic quantizer."""

from __future__ import annotations

from subgraph.blame.makers import Making
from subgraph.blame.makers._quantizer import (
    ON,
    SHARED,
    TYPES,
    Options,
    choose_options,
    find_operators,
    list_steps,
    quantize,
)

PACKAGE = "onnxruntime"
OPTIONS: Options = {
    **SHARED,
    "weight_type": TYPES,
    "WeightSymmetric": ON,
    "MatMulConstBOnly": ON,
}


def steps(making: Making, **settings: str) -> list[str]:
    """Return the operators that it quantizes, and its options."""
    return [*_find_operators(making), *list_steps(OPTIONS, settings)]


def make(making: Making, **settings: str) -> None:
    """Write the quantized model."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    chosen = choose_options(making, OPTIONS, settings)
    operators = [op for op in _find_operators(making) if op not in making.skip]
    weight_type = QuantType[str(chosen["weight_type"])]
    quantize(quantize_dynamic, making, operators, chosen, weight_type=weight_type)


def _find_operators(making: Making) -> list[str]:
    from onnxruntime.quantization import registry

    return find_operators(making, (registry.IntegerOpsRegistry,))
