"""Scale and zero point of each quantized tensor of a model, and outputs whose saturated values hide
errors.

A squashing operator computes such outputs: Softmax, Sigmoid and the like, and the Exp in the
quotient of the same functions in single operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.kinds import VALUE, find_kinds
from subgraph.graph.nested import get_attribute
from subgraph.graph.properties import FINDS_SCALES, OUTPUT_SCALES, PICKS, REARRANGES, SQUASHES
from subgraph.graph.selection import is_tensor
from subgraph.graph.walks import find_operator, skip_operators
from subgraph.iterables import flatten, index_by_name
from subgraph.lazy import np
from subgraph.storage.dtypes import Scale
from subgraph.types import Array

# Operators that turn what they compute into steps, also of a scale that they find as they run.
QUANTIZERS = frozenset((*OUTPUT_SCALES, "DynamicQuantizeLinear"))
# Operators of quantized models that do not begin with "QLinear" or "DynamicQuantize".
QUANTIZED_OPS = frozenset("QuantizeLinear DequantizeLinear ConvInteger MatMulInteger QGemm".split())
# Their weights alone are quantized, in blocks.
WEIGHT_ONLY = frozenset("GatherBlockQuantized MatMulBnb4 MatMulNBits".split())
INT8_ACCURACY_LEVEL = 4  # accuracy_level of MatMulNBits: it quantizes what it reads
TFLITE = "tflite"  # domain of TensorFlow Lite's operators
# of that domain, ours: adds the steps of its second input to the codes of its first
TFLITE_SHIFT = "SUBCUT_SHIFT"
# Its operators that pass codes on, or choose among them.
TFLITE_CARRIERS = frozenset(
    "BATCH_TO_SPACE_ND DEPTH_TO_SPACE EXPAND_DIMS GATHER GATHER_ND MAX_POOL_2D PACK PAD PADV2"
    " RESHAPE REVERSE_V2 SLICE SPACE_TO_BATCH_ND SPACE_TO_DEPTH SPLIT SPLIT_V SQUEEZE STRIDED_SLICE"
    " TILE TRANSPOSE UNPACK".split()
)
# Steps of int8 outputs that the operators must have: LiteRT's 8-bit quantization specification.
SPECIFIED_STEPS = {
    "SOFTMAX": 1 / 256,
    "LOGISTIC": 1 / 256,
    "TANH": 1 / 128,
    "L2_NORMALIZATION": 1 / 128,
    "LOG_SOFTMAX": 16 / 256,
}
AXIS = ("QuantizeLinear", "DequantizeLinear")  # operators whose scale may have an axis
MAX_CHANNELS = 1 << 16  # a longer constant is not a scale
# Operators that pass quantized values on with the same scale.
CARRIERS = REARRANGES | PICKS | {"MaxPool"}
# Operators that move values, and those of a softmax or sigmoid in single operators.
MOVING = REARRANGES | {"Cast", "Concat", "Slice", "Split"}
ARITHMETIC = frozenset("Add Div Log Mul Neg Reciprocal ReduceMax ReduceSum Sub".split())
MAX_DEPTH = 6  # nodes between an output and the squashing operator


def is_quantized(ops: Iterable[str]) -> bool:
    """Return whether one of these operators computes in or converts to 8-bit integers.

    The scale can be stored or dynamic.
    """
    return any(op in QUANTIZED_OPS or op.startswith(("QLinear", "DynamicQuantize")) for op in ops)


def makes_steps(node: protobuf.NodeProto) -> bool:
    """Return whether a node quantizes its output into steps."""
    if node.domain != TFLITE:
        return node.op_type in QUANTIZERS
    return node.op_type not in TFLITE_CARRIERS and bool(find_operator_step(node))


def finds_scales(node: protobuf.NodeProto) -> bool:
    """Return whether a node quantizes what it reads with a scale that it finds as it runs."""
    computes_in_int8 = (
        node.op_type != "MatMulNBits"
        or get_attribute(node, "accuracy_level", 0) == INT8_ACCURACY_LEVEL
    )
    return node.op_type in FINDS_SCALES and computes_in_int8


def find_operator_step(node: protobuf.NodeProto, attribute: str = "scale") -> float:
    """Return the step of the first output of an operator of TensorFlow Lite, or of its first input
    ("input_scale"); 0 of one that is not quantized."""
    scale = next((a.floats for a in node.attribute if a.name == attribute), ())
    return float(scale[0]) if scale else 0.0


def quantizes_itself(graph: Graph) -> bool:
    """Return whether the model quantizes values that depend on its inputs."""
    produced = list(
        flatten(graph.makes[i][:1] for i, node in enumerate(graph.nodes) if makes_steps(node))
    )
    return VALUE in find_kinds(graph, produced).values()


def find_step(graph: Graph, name: str) -> float:
    """Return the step of a tensor that was dequantized, and perhaps moved since; 0 of others, and
    of a step per channel."""
    i = graph.maker.get(skip_operators(graph, name, CARRIERS))
    if i is not None and graph.nodes[i].domain == TFLITE and graph.ops[i] == "DEQUANTIZE":
        return find_operator_step(graph.nodes[i], "input_scale")
    if i is None or graph.ops[i] != "DequantizeLinear":
        return 0.0
    scale = read_constant_scale(graph, graph.nodes[i], 1, 2)
    if scale and len(scale.step) == 1:
        return scale.step[0]
    return 0.0


def find_tensor_scales(graph: Graph) -> dict[str, Scale]:
    """Return the scale of each quantized tensor whose scale is constant. Linear in the nodes."""
    scales = {}
    order = graph.order
    for i in order:
        node = graph.nodes[i]
        op = graph.ops[i]
        if op in OUTPUT_SCALES:
            scale = read_constant_scale(graph, node, *OUTPUT_SCALES[op])
            if scale:
                scales[node.output[0]] = scale
        elif (
            op in CARRIERS
            and node.input
            and (scale := scales.get(node.input[0]))
            and len(scale.step) == 1
        ):
            scales.update(dict.fromkeys(graph.makes[i], scale))
        elif node.domain == TFLITE:
            scales.update(_iter_operator_scales(graph, node))
    for source, read in _read_scales(graph).items():
        if source not in scales or len(read) == 1:  # the scale that all readers take
            scales[source] = read[-1]
    for i in reversed(order):  # back from where values are dequantized
        node = graph.nodes[i]
        output_scale = (
            scales.get(node.output[0]) if graph.ops[i] in CARRIERS and node.input else None
        )
        if output_scale and len(output_scale.step) == 1 and is_tensor(graph, node.input[0]):
            scales.setdefault(node.input[0], output_scale)
    return scales


def _read_scales(graph: Graph) -> dict[str, list[Scale]]:
    """Return the different scales with which each computed tensor is dequantized."""
    scales: dict[str, list[Scale]] = {}
    for node in graph.nodes:
        if node.op_type == "DequantizeLinear" and is_tensor(graph, node.input[0]):
            scale = read_constant_scale(graph, node, 1, 2)
            if scale and scale not in scales.get(node.input[0], ()):
                scales.setdefault(node.input[0], []).append(scale)
    return scales


def _iter_operator_scales(graph: Graph, node: protobuf.NodeProto) -> Iterator[tuple[str, Scale]]:
    """Yield the scales that an operator of TensorFlow Lite states for outputs and model inputs."""
    attributes = index_by_name(node.attribute)
    inputs = [name if name in graph.inputs else "" for name in node.input]
    for word, names in (("input_", inputs), ("", node.output)):
        if f"{word}scale" in attributes:
            steps = attributes[f"{word}scale"].floats
            zeros = attributes[f"{word}zero_point"].ints
            yield from (
                (n, Scale((s,), (int(z),)))
                for n, s, z in zip(names, steps, zeros, strict=True)
                if n and s > 0
            )


def find_code_scales(graph: Graph) -> dict[str, Scale]:
    """Return the scales of `find_tensor_scales` and of real tensors whose codes a device can keep.

    These tensors are quantized by a consumer, or dequantized by their producer.
    """
    scales = find_tensor_scales(graph)
    return {
        real: scales[code] for real, code in find_codes(graph).items() if code in scales
    } | scales


def find_codes(graph: Graph) -> dict[str, str]:
    """Return the tensor of the codes of each real tensor that the model
    quantizes or dequantizes."""
    real: dict[str, str] = {}
    for node in graph.nodes:
        if node.op_type == "QuantizeLinear":
            real.setdefault(node.input[0], node.output[0])
        elif node.op_type == "DequantizeLinear":
            real[node.output[0]] = node.input[0]
    return real


def read_constant_scale(
    graph: Graph, node: protobuf.NodeProto, step: int, zero: int
) -> Scale | None:
    """Return the scale that a node reads at these positions; None if it is not constant."""
    if len(node.input) <= step:
        return None
    steps = _read_numbers(graph, node.input[step])
    has_zeros = len(node.input) > zero and node.input[zero]
    zeros = _read_numbers(graph, node.input[zero]) if has_zeros else (0,) * len(steps or ())
    axis = int(get_attribute(node, "axis", 1)) if node.op_type in AXIS else 1
    if not steps or not zeros or len(zeros) not in (1, len(steps)) or any(not s > 0 for s in steps):
        return None
    zeros = zeros * len(steps) if len(zeros) == 1 else zeros
    return Scale(tuple(map(float, steps)), tuple(map(int, zeros)), axis)


def find_channel_axis(node: protobuf.NodeProto, rank: int) -> int:
    """Return the axis of the output channels in the weight of an operator that reads codes."""
    if get_attribute(node, "transB", 0):
        return 0
    return rank - 1 if rank == 2 or "MatMul" in node.op_type else 0


def _read_numbers(graph: Graph, name: str) -> tuple[float, ...] | None:
    """Return the values of a constant; None for a computed tensor, or one too long to hold a scale
    per channel."""
    tensor = graph.constant(name)
    if tensor is None or protobuf.count_elements(tensor) > MAX_CHANNELS:
        return None
    return tuple(protobuf.to_array(tensor, graph.path).astype("float64").reshape(-1).tolist())


def unpack_blocks(
    node: protobuf.NodeProto, codes: Array, scales: Array, zeros: Array | None
) -> tuple[Array, Array]:
    """Return the real weights (N, K) of a MatMulNBits, and the step of each.

    B is (N, blocks, bytes), a byte's low bits first; zero points are packed likewise along blocks.
    """
    bits = int(get_attribute(node, "bits", 4))
    size, rows, columns = (int(get_attribute(node, name)) for name in ("block_size", "N", "K"))
    blocks = -(-columns // size)
    values = _split_bytes(codes.reshape(rows, blocks, -1), bits)[..., :size].astype(np.float64)
    if zeros is None:
        points = np.full((rows, blocks), 1 << (bits - 1))
    else:
        points = zeros.reshape(rows, -1)
        points = _split_bytes(points, bits) if zeros.dtype == np.uint8 else points
    values -= points[:, :blocks].astype(np.float64)[..., None]
    steps = np.broadcast_to(scales.reshape(rows, blocks, 1).astype(np.float64), values.shape)
    return (values * steps).reshape(rows, -1)[:, :columns], steps.reshape(rows, -1)[:, :columns]


def _split_bytes(codes: Array, bits: int) -> Array:
    """Return the last axis of bytes as 8 / bits as many codes."""
    parts = [(codes >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*codes.shape[:-1], -1)


def find_squashed(graph: Graph, outputs: Iterable[str]) -> list[str]:
    """Return the tensors that enter the squashing operators nearest to the outputs, in topological
    order."""
    found = {}
    stack = [(name, 0, False) for name in outputs]
    seen = set()
    while stack:
        tensor, depth, is_quotient = stack.pop()
        node = graph.maker.get(tensor)
        if node is None or tensor in seen or depth > MAX_DEPTH:
            continue
        seen.add(tensor)
        operator = graph.ops[node]
        if operator in SQUASHES or (operator == "Exp" and is_quotient):
            entering = graph.reads[node][0]
            if operator == "Exp":
                entering = _skip_shift(graph, entering)
            if entering in graph.maker:
                found[entering] = graph.maker[entering]
        elif operator in MOVING | ARITHMETIC:
            is_quotient = is_quotient or operator in ("Div", "Reciprocal")
            stack += [(name, depth + 1, is_quotient) for name in graph.reads[node]]
    return sorted(found, key=lambda name: graph.rank[found[name]])


def _skip_shift(graph: Graph, tensor: str) -> str:
    """Return the tensor before a negation, and before its largest value is subtracted."""
    operator = find_operator(graph, tensor)
    if operator not in ("Sub", "Neg"):
        return tensor
    first, *others = graph.reads[graph.maker[tensor]]
    is_shift = operator == "Neg" or any(find_operator(graph, n) == "ReduceMax" for n in others)
    return first if is_shift else tensor
