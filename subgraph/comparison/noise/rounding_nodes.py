"""Nodes that perturb a tensor by one rounding, or round it to a claimed precision: x → y.

Perturbed in fp32, fp16, bf16: y = x·(1 + eps·u), where u is a function of x, so that equal values
of a tensor move alike, opposite ones oppositely, zero not at all; and no sign changes. With a = x·k
for a random k, u is the loss of rounding a to 14 bits (Veltkamp's splitting: T. J. Dekker, A
floating-point technique for extending the available precision, Numer. Math. 18, 1971), that is,
pseudo-random bits of its significand, by arithmetic alone, which every opset has and every runtime
repeats bit for bit. Values nearer to each other than 2⁻¹⁴ move alike as well. u is scaled so that
its mean square is that of a uniform number in [−1, 1]; |u| stays below 1.4.

Steps that the model itself rounds to: y = x ± 1 for `STEP_SHARE` of the elements, drawn by position
and value.

Perturbed in int8: y = x + u·range/255, no further than the tensor's own least and greatest value.
Zero, infinities and a mask's plateau stay, and count for no range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from subgraph.comparison.float_types import FLOATS, MAX_REST, MIN_PLATEAU
from subgraph.comparison.noise.perturb import MAX_PERTURBED, STEP_SHARE
from subgraph.graph import protobuf
from subgraph.precision import Precision
from subgraph.storage.dtypes import TYPE_NUMBERS
from subgraph.types import Array, frozen

# of the significand that the splitting keeps of 24; the rest, 1024 levels, are the random number
SPLIT_BITS = 14
# what rounding loses, relative to x, is ±1/m for a significand m in [1, 2): 0.735 of uniform
# numbers
AMPLITUDE = 1.36
MIN_CLIP_INPUTS_OPSET = 11  # opset from which Clip reads its limits as inputs
MIN_RANGE_OPSET = 11  # opset that has Range
MIN_BFLOAT16_OPSET = 13  # opset from which Cast makes bfloat16
CODES = "codes"  # among the float types of keys: steps that the model itself makes
# The fraction of SINE_FACTOR·sin(x) is all but random for x of different elements.
SINE_FACTOR = 43758.5453
MIN_DIVISOR = 1e-37  # in place of a divisor that is 0


@dataclass
class Constants:
    """Initializers that inserted nodes share, each once; bodies read them from the graph around."""

    prefix: str
    tensors: dict[Any, protobuf.TensorProto] = field(default_factory=dict)

    def name(self, value: Any, dtype: Any = np.float32) -> str:
        """Return the name of an initializer with this value."""
        array = np.asarray(value, dtype)
        key = (array.dtype, array.shape, array.tobytes())
        if key not in self.tensors:
            self.tensors[key] = numpy_helper.from_array(array, f"{self.prefix}{len(self.tensors)}")
        return str(self.tensors[key].name)


@dataclass
class NodeWriter:
    """Writes nodes one after the other: `write("Add", a, b)` returns the name of the sum."""

    constants: Constants
    opset: int
    prefix: str
    nodes: list[protobuf.NodeProto] = field(default_factory=list)

    def __call__(
        self, op: str, *reads: str | float, to: str = "", output: str = "", **attributes: Any
    ) -> str:
        """Add a node, and return the name of its output.

        Args:
            op: The operator.
            reads: The inputs. Numbers become constants.
            to: The type of a Cast.
            output: The name of the output. "" for a new name.
            attributes: The attributes.
        """
        names = [self.constants.name(r) if isinstance(r, float) else r for r in reads]
        made = output or f"{self.prefix}{len(self.nodes)}"
        if to:
            attributes["to"] = TYPE_NUMBERS[to]
        self.nodes.append(helper.make_node(op, names, [made], **attributes))
        return made

    def clip(self, x: str, limit: float) -> str:
        """Write x within ±limit."""
        if self.opset < MIN_CLIP_INPUTS_OPSET:
            return self("Clip", x, min=-limit, max=limit)
        return self("Clip", x, -limit, limit)


@frozen
class ChannelRange:
    """The least and the greatest value of each channel of a weight, in shapes that broadcast to
    it."""

    lowest: Array
    highest: Array

    @property
    def span(self) -> Array:
        """The size of the range, with zero in it."""
        return np.asarray(np.maximum(self.highest, 0) - np.minimum(self.lowest, 0))


Write = Callable[[NodeWriter, str, str, str], None]  # writer, name read, name made, float type


def compute_unroundoff(claim: Precision, dtype: str) -> float:
    """Return eps of the claim, at least that of the tensor's type; for int8 a
    share of the range."""
    if claim is Precision.INT8:
        return claim.eps
    return max(claim.eps, FLOATS[dtype])


def compute_noise_scale(claim: Precision, dtype: str, factor: float) -> float:
    """Return the scale that is fed with a random factor k: multiplied with the loss of a = x·k, it
    is the shift of x. Of `CODES` the number of steps."""
    if dtype == CODES:
        return 1.0
    return (
        AMPLITUDE
        * compute_unroundoff(claim, dtype)
        * 2.0**SPLIT_BITS
        / (1 if claim is Precision.INT8 else factor)
    )


def write_perturbed(
    write: NodeWriter,
    x: str,
    y: str,
    dtype: str,
    claim: Precision,
    fed: tuple[str, str],
    channels: ChannelRange | None,
) -> None:
    """Write the nodes that compute y from x.

    Args:
        write: Writes a node.
        x: The raw tensor.
        y: The perturbed tensor.
        dtype: The type of both.
        claim: The precision.
        fed: Names of the scalars k and `compute_noise_scale`.
        channels: The ranges of a weight's channels, for int8. None for one range.
    """
    wide = x if dtype == "float32" else write("Cast", x, to="float32")
    if claim is Precision.INT8:
        quantized = _Quantized.compute(write, wide, channels)
        lost, a = _write_lost(write, quantized.core, fed[0])
        u = write("Div", lost, write("Max", write("Abs", a), MIN_DIVISOR))
        shift = write("Mul", u, write("Mul", quantized.span, fed[1]))
        moved = write("Max", write("Add", quantized.core, shift), quantized.lowest)
        quantized.finish(write, write("Min", moved, quantized.highest), y, dtype)
        return
    # Near the end of float16 no value moves by as much as half of the last step, which would make
    # it infinite.
    limit = 11.0 / compute_unroundoff(claim, dtype) if dtype == "float16" else MAX_PERTURBED
    shift = write("Mul", _write_lost(write, write.clip(wide, limit), fed[0])[0], fed[1])
    if dtype == "float32":
        write("Add", x, shift, output=y)
    elif dtype == "float64":
        write("Add", x, write("Cast", shift, to="float64"), output=y)
    else:
        write("Cast", write("Add", wide, shift), to=dtype, output=y)


def is_stepped(dtype: str) -> bool:
    """Return whether it is a type of integers, which `write_stepped` moves."""
    return dtype.lstrip("u").startswith("int")


def write_stepped(
    write: NodeWriter, x: str, y: str, dtype: str, fed: tuple[str, str], number: int
) -> None:
    """Write nodes that move some elements of quantized values by a step, within their type.

    `number`: the tensor's own, so that other elements move in tensors of equal shape.
    """
    bits = int(dtype.partition("int")[2])
    lowest = 0.0 if dtype.startswith("u") else -(2.0 ** (bits - 1))
    wide = write("Cast", x, to="float32")
    size = write("Size", x)
    if write.opset >= MIN_RANGE_OPSET:
        zero = write.constants.name(0, np.int64)
        one = write.constants.name(1, np.int64)
        indices = write("Range", zero, size, one)
    else:
        length = write("Reshape", size, write.constants.name([1], np.int64))
        filled = numpy_helper.from_array(np.array([1], np.int64))
        indices = write("NonZero", write("ConstantOfShape", length, value=filled))
    place = write("Reshape", write("Cast", indices, to="float32"), write("Shape", x))
    seed = write("Mul", write("Add", write("Add", place, wide), float(number)), fed[0])
    random = write("Mul", write("Sin", seed), SINE_FACTOR)
    random = write("Sub", random, write("Floor", random))  # in [0, 1)
    up = write("Floor", write("Add", random, STEP_SHARE / 2))
    down = write("Floor", write("Sub", 1 + STEP_SHARE / 2, random))
    moved = write("Add", wide, write("Mul", write("Sub", up, down), fed[1]))
    write(
        "Cast",
        write("Min", write("Max", moved, lowest), lowest + 2.0**bits - 1),
        to=dtype,
        output=y,
    )


def write_shifted(write: NodeWriter, x: str, y: str, dtype: str, shift: str) -> None:
    """Write nodes that add a shift that is fed: float64 for float64, else float32."""
    if dtype in ("float32", "float64"):
        write("Add", x, shift, output=y)
    else:
        write("Cast", write("Add", write("Cast", x, to="float32"), shift), to=dtype, output=y)


def write_rounded(
    write: NodeWriter,
    x: str,
    y: str,
    dtype: str,
    claim: Precision,
    channels: ChannelRange | None,
) -> None:
    """Write nodes that round x to the claimed precision and back.

    Underflow, subnormals and overflow are those of the type.
    """
    wide = x if dtype == "float32" else write("Cast", x, to="float32")
    split = claim is Precision.TF32 or (
        claim is Precision.BF16 and write.opset < MIN_BFLOAT16_OPSET
    )
    if split:  # by Veltkamp's splitting, if it does not overflow
        whole = write("Sub", wide, _write_lost(write, wide, 1.0, bits=claim.bits)[0])
        fits = write("Less", write("Abs", wide), MAX_PERTURBED)
        write("Cast", write("Where", fits, whole, wide), to=dtype, output=y)
        return
    if claim.narrow:
        write("Cast", write("Cast", x, to=claim.dtype), to=dtype, output=y)
        return
    quantized = _Quantized.compute(write, wide, channels)
    step = write("Max", write("Mul", quantized.span, Precision.INT8.eps), MIN_DIVISOR)
    level = write("Floor", write("Add", write("Div", quantized.core, step), 0.5))
    quantized.finish(write, write("Mul", level, step), y, dtype)


def _write_lost(
    write: NodeWriter, x: str, factor: str | float, bits: int = SPLIT_BITS
) -> tuple[str, str]:
    """Write the loss of rounding a = x·factor to that many bits of significand, and a."""
    a = write("Mul", x, factor)
    c = write("Mul", a, 2.0 ** (24 - bits) + 1)
    return write("Sub", a, write("Sub", c, write("Sub", c, a))), a


@frozen
class _Quantized:
    """Names of the tensors that int8 needs: the values with zero for those that stay, their limits,
    their range."""

    wide: str
    core: str
    keep: str  # where values stay as they are; "" if nowhere
    lowest: str
    highest: str
    span: str

    @classmethod
    def compute(cls, write: NodeWriter, wide: str, channels: ChannelRange | None) -> _Quantized:
        if channels:
            names = map(write.constants.name, (channels.lowest, channels.highest, channels.span))
            return cls(wide, wide, "", *names)
        huge = write("Not", write("Less", write("Abs", wide), MAX_PERTURBED))  # NaN too
        # A plateau represents minus infinity, as in mask_plateau, which also limits the spread.
        finite = write("Where", huge, 0.0, wide)
        least = write("ReduceMin", finite, keepdims=0)
        far = write("Not", write("Greater", finite, write("Mul", least, 0.5)))
        rest = write("ReduceMax", write("Abs", write("Where", far, 0.0, finite)), keepdims=0)
        small = write("Not", write("Greater", rest, write("Mul", least, -MAX_REST)))
        deep = write("Not", write("Greater", least, -MIN_PLATEAU))
        shallow = write("And", small, write("Greater", rest, 0.0))
        plateau = write("And", far, write("And", deep, shallow))
        keep = write("Or", huge, plateau)
        core = write("Where", keep, 0.0, wide)
        lowest, highest = (write(op, core, keepdims=0) for op in ("ReduceMin", "ReduceMax"))
        span = write("Sub", write("Max", highest, 0.0), write("Min", lowest, 0.0))
        return cls(wide, core, keep, lowest, highest, span)

    def finish(self, write: NodeWriter, moved: str, y: str, dtype: str) -> None:
        """Write y: `moved`, but for the values that stay."""
        combined = write("Where", self.keep, self.wide, moved) if self.keep else moved
        write("Cast", combined, to=dtype, output=y)
