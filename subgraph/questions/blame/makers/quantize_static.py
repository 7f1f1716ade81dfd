"""onnxruntime's static quantizer, calibrated with the samples of the command."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.questions.blame.makers import Making
from subgraph.questions.blame.makers._quantizer import OFF, ON, SHARED, TYPES, Quantizer
from subgraph.runtime.load_inputs import load_sample
from subgraph.types import JsonObject, frozen

PACKAGE = "onnxruntime"
OPTIONS = {
    **SHARED,
    "activation_type": TYPES,
    "calibrate_method": ("MinMax", "Percentile", "Entropy", "Distribution"),
    "quant_format": ("QDQ", "QOperator"),
    "ActivationSymmetric": OFF,
    "QuantizeBias": ON,
}
QUANTIZER = Quantizer("quantize_static", OPTIONS, ("QLinearOpsRegistry", "QDQRegistry"))


def steps(making: Making, **settings: str) -> list[str]:
    """Return the operators that it quantizes, and its options."""
    return QUANTIZER.steps(making, settings)


def make(making: Making, **settings: str) -> None:
    """Write the quantized model."""
    samples = _Samples(load_sample(sample)[0] for sample in making.samples)
    QUANTIZER.make(making, settings, calibration_data_reader=samples)


@frozen
class _Samples:
    """The samples, one after the other, as the quantizer reads them."""

    feeds: Iterator[JsonObject]

    def get_next(self) -> JsonObject | None:
        """Return the next sample, None after the last."""
        return next(self.feeds, None)
