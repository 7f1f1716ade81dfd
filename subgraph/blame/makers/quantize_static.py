"""onnxruntime's static quantizer, calibrated with the samples of the command."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from subgraph.blame.makers import Making
from subgraph.blame.makers._quantizer import (
    OFF,
    ON,
    SHARED,
    TYPES,
    Options,
    choose_options,
    find_operators,
    list_steps,
    quantize,
)
from subgraph.runtime.load_inputs import load_sample

PACKAGE = "onnxruntime"
OPTIONS: Options = {
    **SHARED,
    "activation_type": TYPES,
    "weight_type": TYPES,
    "calibrate_method": ("MinMax", "Percentile", "Entropy", "Distribution"),
    "quant_format": ("QDQ", "QOperator"),
    "ActivationSymmetric": OFF,
    "WeightSymmetric": ON,
    "QuantizeBias": ON,
}


def steps(making: Making, **settings: str) -> list[str]:
    """Return the operators that it quantizes, and its options."""
    return [*_find_operators(making), *list_steps(OPTIONS, settings)]


def make(making: Making, **settings: str) -> None:
    """Write the quantized model."""
    from onnxruntime.quantization import (
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    chosen = choose_options(making, OPTIONS, settings)
    feeds = (load_sample(sample)[0] for sample in making.samples)
    quantize(
        partial(quantize_static, calibration_data_reader=_Reader(feeds)),
        making,
        [op for op in _find_operators(making) if op not in making.skip],
        chosen,
        activation_type=QuantType[str(chosen["activation_type"])],
        weight_type=QuantType[str(chosen["weight_type"])],
        calibrate_method=CalibrationMethod[str(chosen["calibrate_method"])],
        quant_format=QuantFormat[str(chosen["quant_format"])],
    )


def _find_operators(making: Making) -> list[str]:
    from onnxruntime.quantization import registry

    return find_operators(making, (registry.QLinearOpsRegistry, registry.QDQRegistry))


class _Reader:
    """The samples, one after the other."""

    def __init__(self, feeds: Iterator[dict[str, Any]]) -> None:
        self._feeds = feeds

    def get_next(self) -> dict[str, Any] | None:
        """Return the next sample, None after the last."""
        return next(self._feeds, None)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._feeds
