"""The scale and zero point of each quantized tensor of a model: what its stored numbers stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from subgraph.graph import protobuf
from subgraph.graph.graph import Graph

if TYPE_CHECKING:
    from subgraph.types import Array

# Where an operator that makes quantized values keeps their scale and zero point, among its inputs.
OUTPUT_SCALES = {
    "QuantizeLinear": (1, 2),
    "QLinearConv": (6, 7),
    "QLinearMatMul": (6, 7),
    "QLinearAdd": (6, 7),
    "QLinearMul": (6, 7),
    "QGemm": (7, 8),
    "QLinearSigmoid": (3, 4),
    "QLinearLeakyRelu": (3, 4),
    "QLinearSoftmax": (3, 4),
    "QLinearAveragePool": (3, 4),
    "QLinearGlobalAveragePool": (3, 4),
    "QLinearConcat": (0, 1),
}
# What hands quantized values on with the same scale.
CARRIERS = frozenset("MaxPool Reshape Transpose Squeeze Unsqueeze Flatten Gather Slice Split Identity Pad Clip".split())


@dataclass(frozen=True)
class Scale:
    """real = (stored − zero) · step; several values belong to the channels of `axis`."""

    step: tuple[float, ...]
    zero: tuple[int, ...]
    axis: int = 1

    def _shaped(self, values: tuple[Any, ...], rank: int) -> Array:
        import numpy as np

        shape = [1] * rank
        if len(values) > 1:
            shape[self.axis] = len(values)
        return np.asarray(values, np.float64).reshape(shape)

    def real(self, stored: Array) -> Array:
        """What the stored numbers stand for."""
        import numpy as np

        rank = stored.ndim
        found = (stored.astype(np.float64) - self._shaped(self.zero, rank)) * self._shaped(self.step, rank)
        return found.astype(np.float32)

    def steps(self, real: Array) -> Array:
        """Real values in steps from zero, rounded half to even, not yet clipped to the type."""
        import numpy as np

        return np.rint(real / self._shaped(self.step, real.ndim)) + self._shaped(self.zero, real.ndim)

    def stored(self, real: Array, dtype: str) -> Array:
        """As QuantizeLinear stores them."""
        import numpy as np

        info = np.iinfo(dtype)
        return np.clip(self.steps(real), info.min, info.max).astype(dtype)

    def saturated(self, real: Array, dtype: str) -> float:
        """The share of values that the type cannot hold."""
        import numpy as np

        info = np.iinfo(dtype)
        steps = self.steps(real)
        return float(np.mean((steps < info.min) | (steps > info.max))) if real.size else 0.0


def scales_of(graph: Graph) -> dict[str, Scale]:
    """The scale of each tensor whose stored numbers stand for real ones. Linear in the nodes."""
    found: dict[str, Scale] = {}
    for i in graph.in_order(range(len(graph.nodes))):
        node, op = graph.nodes[i], graph.ops[i]
        if op in OUTPUT_SCALES:
            scale = _scale(graph, node, *OUTPUT_SCALES[op])
            if scale:
                found[node.output[0]] = scale
        elif op in CARRIERS and node.input and node.input[0] in found and len(found[node.input[0]].step) == 1:
            found.update((name, found[node.input[0]]) for name in graph.makes[i])
    return found


def _scale(graph: Graph, node: protobuf.NodeProto, step: int, zero: int) -> Scale | None:
    if len(node.input) <= step:
        return None
    steps = _numbers(graph, node.input[step])
    zeros = (
        _numbers(graph, node.input[zero]) if len(node.input) > zero and node.input[zero] else (0,) * len(steps or ())
    )
    axis = next((int(a.i) for a in node.attribute if a.name == "axis"), 1) if node.op_type == "QuantizeLinear" else 1
    if not steps or not zeros or len(zeros) not in (1, len(steps)) or any(not s > 0 for s in steps):
        return None
    zeros = zeros * len(steps) if len(zeros) == 1 else zeros
    return Scale(tuple(map(float, steps)), tuple(map(int, zeros)), axis)


def _numbers(graph: Graph, name: str) -> tuple[float, ...] | None:
    """The values of a constant; None where it is none, or too long for a scale per channel."""
    tensor = graph.constant(name)
    if tensor is None or protobuf.element_count(tensor) > 1 << 16:
        return None
    import onnx
    from onnx import numpy_helper

    full = protobuf.load_raw(tensor, graph.path) if protobuf.on_disk(tensor) else tensor
    array = numpy_helper.to_array(onnx.TensorProto.FromString(full.SerializeToString()))
    return tuple(array.astype("float64").reshape(-1).tolist())
