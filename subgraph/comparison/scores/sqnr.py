"""Signal to quantization noise in dB compared with the float model, of the worst output."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from subgraph.types import Fields

EQUAL_DECIBELS = 200.0  # dB, of outputs that are equal


def score(outputs: Sequence[Fields], truth: Sequence[Fields]) -> float:
    """10·log10(Σ reference² / Σ difference²), over all samples."""
    worst = EQUAL_DECIBELS
    names = [n for n in outputs[0] if np.asarray(outputs[0][n]).dtype.kind == "f"]
    if not names:
        raise ValueError("no output holds floats")
    for name in names:
        pairs = [
            (np.asarray(t[name], np.float64), np.asarray(g[name], np.float64))
            for g, t in zip(outputs, truth, strict=True)
        ]
        signal = sum(float(np.sum(t * t)) for t, _ in pairs)
        noise = sum(float(np.sum((t - g) ** 2)) for t, g in pairs)
        if not np.isfinite(noise):
            return -EQUAL_DECIBELS
        if noise > 0:
            worst = min(
                worst, 10 * float(np.log10(signal / noise)) if signal > 0 else -EQUAL_DECIBELS
            )
    return worst
