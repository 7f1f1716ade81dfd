"""Is a convolution's error the rounding of Winograd's algorithm?

Its values cannot be predicted to the last bit, since the order of sums differs, but the transforms round alike: in
float32 the errors of two implementations of one tile size and the same points correlate, by 0.2 to 0.7 as measured with
MNN, and those of other algorithms do not, within 0.02. They are then as large, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import numpy_helper

from subgraph.diagnosis.conclusions import Evidence, Fact
from subgraph.graph import protobuf
from subgraph.graph.walk import attribute
from subgraph.trials.similar_outputs import WrongOutput
from subgraph.types import Array

KERNEL = 3
# Tile of outputs → points of the interpolation beside infinity. Lavin & Gray, "Fast algorithms for convolutional neural
# networks", 2015; MNN takes whole numbers for tiles of 6, which rounds by 1e-3 of the scale.
TILES = (
    (2, (0.0, 1.0, -1.0)),
    (4, (0.0, 1.0, -1.0, 2.0, -2.0)),
    (6, (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)),
    (6, (0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0)),
)
CORRELATED = 0.2  # at least, and
DEVIATIONS = 10.0  # times what chance gives: one over the root of the number of elements
AS_LARGE = 2.0  # times the expected error that a channel, root mean square, and an element may be off at most
MAX_ELEMENTS = 1 << 22  # of the input, and of the output


def rounds_like(output: WrongOutput) -> Iterator[Evidence]:
    """The tile size whose rounding the error of a region is that is one 3×3 convolution, of stride 1, in float32."""
    found = _operands(output)
    if found is None or output.values is None:
        return
    x, weights, bias = found
    y = output.values[1]
    shape = (x.shape[0], weights.shape[0], x.shape[2] - KERNEL + 1, x.shape[3] - KERNEL + 1)
    if y.shape != shape or max(x.size, y.size) > MAX_ELEMENTS or not np.isfinite(y).all() or not np.isfinite(x).all():
        return
    exact = _convolved(x, weights, *TILES[0], np.float64)  # any algorithm does, in float64
    error = y.astype(np.float64) - exact - bias.reshape(1, -1, 1, 1)
    hypotheses = [(m, _convolved(x, weights, m, points, np.float32) - exact) for m, points in TILES]
    rated = [(_correlation(error, own), m, own) for m, own in hypotheses]
    correlation, m, own = max(rated, key=lambda one: one[0])
    if correlation >= max(CORRELATED, DEVIATIONS / np.sqrt(error.size)) and _is_as_large(error, own):
        quoted = f"the rounding of Winograd's F({m}×{m}, 3×3) (the errors correlate by {correlation:.2f})"
        yield Evidence("approximation", f"looks like {quoted}", Fact.KNOWN, quoted=quoted)


def _operands(output: WrongOutput) -> tuple[Array, Array, Array] | None:
    """Padded input (N, C, H, W), weights (K, C, 3, 3) and bias (K); None unless the region is such a convolution."""
    trials, region = output.trials, output.region
    nodes = [trials.model.graph.nodes[i] for i in region.nodes]
    if len(nodes) != 1 or nodes[0].op_type != "Conv" or not _is_plain(nodes[0]):
        return None
    records = trials.model.values.records[output.sample]
    constants = _constants(trials.model.cut(region, [records]).to_model())
    names = [name for name in nodes[0].input if name]
    if not records.keys() | constants.keys() >= set(names):
        return None
    known = [constants[name] if name in constants else records[name].array() for name in names]
    x, weights = known[:2]
    if any(a.dtype != np.float32 for a in known) or x.ndim != 4 or weights.shape[1:] != (x.shape[1], KERNEL, KERNEL):
        return None
    top, left, bottom, right = pads = attribute(nodes[0], "pads", [0, 0, 0, 0])
    if min(pads) < 0:
        return None
    bias = known[2] if len(known) > 2 else np.zeros(len(weights), np.float32)
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right))), weights, bias


def _constants(model: protobuf.ModelProto) -> dict[str, Array]:
    """Initializers, and values of Constant nodes."""
    nodes = [node for node in model.graph.node if node.op_type == "Constant"]
    made = {node.output[0]: a.t for node in nodes for a in node.attribute if a.name == "value"}
    made |= {tensor.name: tensor for tensor in model.graph.initializer}
    return {name: numpy_helper.to_array(tensor) for name, tensor in made.items()}


def _is_plain(node: protobuf.NodeProto) -> bool:
    ones = [*attribute(node, "strides", [1, 1]), *attribute(node, "dilations", [1, 1]), attribute(node, "group", 1)]
    return set(ones) == {1} and attribute(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID")


def _correlation(one: Array, other: Array) -> float:
    norm = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float((one * other).sum()) / norm if norm else 0.0


def _is_as_large(error: Array, own: Array) -> bool:
    """Is no channel, and no element, off by much more than the algorithm itself is? Else there is another error."""
    rms = [np.sqrt((a**2).mean(axis=(0, 2, 3))) for a in (error, own)]
    return bool((rms[0] <= AS_LARGE * rms[1]).all() and np.abs(error).max() <= AS_LARGE * np.abs(own).max())


def _convolved(x: Array, weights: Array, m: int, points: tuple[float, ...], dtype: type) -> Array:
    """A convolution without padding by tiles of m×m outputs, all sums in `dtype`; (N, K, H − 2, W − 2)."""
    transforms: list[Array] = [matrix.astype(dtype) for matrix in _transforms(m, points)]
    outputs, kernel, inputs = transforms
    n, (height, width) = m + KERNEL - 1, (size - KERNEL + 1 for size in x.shape[2:])
    down, across = -(-height // m), -(-width // m)
    padded = np.zeros((*x.shape[:2], down * m + KERNEL - 1, across * m + KERNEL - 1), dtype)
    padded[:, :, : x.shape[2], : x.shape[3]] = x
    tiles = np.lib.stride_tricks.sliding_window_view(padded, (n, n), axis=(2, 3))[:, :, ::m, ::m]
    tiles = (inputs @ tiles) @ inputs.T
    transformed = (kernel @ weights.astype(dtype)) @ kernel.T
    products = np.einsum("kcij,ncabij->nkabij", transformed, tiles, optimize=True)
    made = (outputs @ products) @ outputs.T
    made = made.transpose(0, 1, 2, 4, 3, 5).reshape(*made.shape[:2], down * m, across * m)
    return np.asarray(made[:, :, :height, :width])


def _transforms(m: int, points: tuple[float, ...]) -> tuple[Array, Array, Array]:
    """Those of the output (m, n), the kernel (n, 3) and the input (n, n): Toom and Cook's, the last point infinite."""
    at, n = np.array(points), m + KERNEL - 1
    outputs, kernel, inputs = np.zeros((m, n)), np.zeros((n, KERNEL)), np.zeros((n, n))
    outputs[:, :-1], outputs[-1, -1] = at ** np.arange(m)[:, None], 1
    others = [np.delete(at, i) for i in range(n - 1)]
    scales = np.array([np.prod(at[i] - other) for i, other in enumerate(others)])
    kernel[:-1], kernel[-1, -1] = at[:, None] ** np.arange(KERNEL) / scales[:, None], 1
    for i, other in enumerate(others):
        inputs[i, :-1] = np.poly(other)[::-1]
    inputs[-1] = np.poly(at)[::-1]
    return outputs, kernel, inputs
