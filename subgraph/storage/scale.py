"""Integer codes <-> real values: real = (stored - zero) * step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from subgraph.lazy import np

if TYPE_CHECKING:
    from subgraph.types import Array


@dataclass(frozen=True)
class Scale:
    """real = (stored − zero) · step. One value each for the whole tensor, or one per channel along
    `axis`."""

    step: tuple[float, ...]
    zero: tuple[int, ...]
    axis: int = 1

    def _shaped(self, values: tuple[Any, ...], rank: int) -> Array:
        shape = [1] * rank
        if len(values) > 1:
            shape[self.axis] = len(values)
        return np.asarray(values, np.float64).reshape(shape)

    def dequantize(self, stored: Array) -> Array:
        """Dequantized values, float32."""
        rank = stored.ndim
        with np.errstate(all="ignore"):  # the scale of a table that holds infinities is infinite
            codes = stored.astype(np.float64) - self._shaped(self.zero, rank)
            return (codes * self._shaped(self.step, rank)).astype(np.float32)

    def steps(self, real: Array) -> Array:
        """Quantized values, rounded half to even, before they are clipped to the range of a
        type."""
        with np.errstate(all="ignore"):
            steps = np.rint(real / self._shaped(self.step, real.ndim))
        return steps + self._shaped(self.zero, real.ndim)

    def quantize(self, real: Array, dtype: str) -> Array:
        """Quantized values as QuantizeLinear gives them; `dtype` is an integer type."""
        info = np.iinfo(dtype)
        with np.errstate(invalid="ignore"):
            return np.clip(self.steps(real), info.min, info.max).astype(dtype)

    def saturated(self, real: Array, dtype: str) -> float:
        """Share of the values that quantization to `dtype` clips."""
        info = np.iinfo(dtype)
        steps = self.steps(real)
        return float(np.mean((steps < info.min) | (steps > info.max))) if real.size else 0.0
