"""Signal to quantization noise ratio in dB: 20 dB is an error of a tenth, 40 dB of a hundredth."""

from __future__ import annotations

import math

from subgraph.comparison.metrics import compute_norm
from subgraph.types import Array

IDEAL = math.inf


def measure(reference: Array, candidate: Array) -> float:
    """10 log₁₀(Σr² / Σ(c - r)²) in dB, which is -20 log₁₀ of `rel_l2`; every bit of quantization is
    worth 6.02 dB.

    Corner cases: no noise: +∞, also for zeros; noise without a signal, or that overflows: -∞. Never
    NaN.
    """
    noise = compute_norm(candidate - reference)
    signal = compute_norm(reference)
    if noise == 0:
        return math.inf
    if signal == 0 or math.isinf(noise):
        return -math.inf
    return 20 * (math.log10(signal) - math.log10(noise))
