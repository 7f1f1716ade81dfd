"""Every form of every rewriting: a valid model of the same interface that computes the same on the
reference.

A case is a region, the words of forms that it must have, and which of them are equal only within
rounding. What else a rewriting yields for it is proven as well. Onnx's own ReferenceEvaluator is
the second opinion.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from benchmarks.real import FIXTURES
from subgraph import cut, plugins
from subgraph.blame.rewritten import IDENTICAL, NOISE, NOT_RUN, OriginalRegion
from subgraph.errors import ModelError, UnknownName, UsageError
from subgraph.graph.graph import load
from subgraph.rewrites import Rewriting, rewritings
from subgraph.runtime.candidate import parse
from subgraph.runtime.capture import capture
from subgraph.runtime.reference import Reference
from subgraph.runtime.run_result import Job, run_model
from subgraph.runtime.worker_pool import Workers
from subgraph.storage import tensors
from subgraph.storage.folders import numbered_folder
from tests.helpers import text_models
from tests.helpers.captured_region import fed
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.versions import with_padfusion_bug

NAMES = plugins.names("rewrites")
MS = ("com.microsoft",)


def f32(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def u8(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).integers(0, 255, shape, np.uint8)


@dataclass
class Case:
    """`words`: of forms that must be there; `noisy`: those that are equal within rounding only.

    Each has several, with semicolons.
    """

    text: str
    words: str = ""
    noisy: str = ""
    x: Any = None
    weights: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 17
    evaluated: bool = True  # does onnx's evaluator know the operators, and agree on them?
    name: str = ""  # of the rewriting


def unary(op: str, shape: str = "2,3,8", out: str = "") -> str:
    return f"g (float[{shape}] x) => (float[{out or shape}] y) {{ y = {op} }}"


IMAGE = f32(1, 4, 9, 9)
X = np.array([[-(2**31), 2**31 - 1, -5, 130, 200, 255], [7, 90001, -90003, 128, -128, 16777217]])
BN = {"s": f32(4, seed=1), "b": f32(4, seed=2), "m": f32(4, seed=3), "v": np.abs(f32(4, seed=4))}
KERNEL = {"w": f32(8, 4, 3, 3, seed=5), "b": f32(8, seed=6)}
LSTM = {
    "w": f32(1, 16, 3, seed=1),
    "r": f32(1, 16, 4, seed=2),
    "w2": f32(2, 16, 3, seed=1),
    "r2": f32(2, 16, 4, seed=2),
    "b2": f32(2, 32, seed=3),
}
QUANTIZED = {
    "xs": np.float32(0.02),
    "xz": np.uint8(120),
    "w": u8(8, 4, 3, 3),
    "ws": np.float32(0.01),
    "wz": np.uint8(128),
    "ys": np.float32(0.1),
    "yz": np.uint8(128),
    "b": np.arange(8, dtype=np.int32),
    "m": u8(4, 5),
}
QPADDED = (
    "g (uint8[1,4,9,9] x) => (uint8[1,8,9,9] y) { y ="
    " QLinearConv<pads=[1,1,1,1]>(x,xs,xz,w,ws,wz,ys,yz,b) }"
)
POOL = "g (float[1,4,9,9] x) => (float[1,4,{0},{0}] y) {{ y = {1} }}"
GROUPS = {
    "apart": [
        Case(
            "g (float[2,3] x) => (float[2,3] y) { a = Exp(x) y = Neg(a) }",
            "Identity; Reshape; Max; Sub of zeros",
            x=f32(2, 3),
        ),
        Case(
            "g (float[2,3] x) => (float[2,3] y, float[2,3] z)"
            " { z = Exp(x) b = Neg(z) y = Add(b, z) }",
            "each of 2",
            x=f32(2, 3),
        ),
    ],
    "arithmetic": [
        Case(unary("Pow(x, two)"), "Mul with itself", weights={"two": np.float32(2)}),
        Case(unary("Pow(x, k)"), "two Mul", "two Mul", weights={"k": np.float32(3)}),
        Case(unary("Pow(x, k)"), "Sqrt", "Sqrt", np.abs(f32(2, 3, 8)), {"k": np.float32(0.5)}),
        Case(
            "g (int32[4] x) => (int32[4] y) { y = Pow(x, k) }",
            "a Pow of float64",
            "",
            np.arange(4, dtype=np.int32),
            {"k": f32(4)},
            evaluated=False,
        ),
        Case(unary("Sqrt(x)"), "Pow", "Pow", np.abs(f32(2, 3, 8))),
        Case(unary("Tanh(x)"), "Clip; Sigmoid(2x)", "Sigmoid", 9 * f32(2, 3, 8)),
        *(
            Case(
                f"g (uint8[2,3,8] x) => (uint8[2,3,8] y)"
                f' {{ y = BitShift<direction="{to}">(x, b) }}',
                "a power of two",
                "",
                u8(2, 3, 8),
                {"b": np.arange(8, dtype=np.uint8)},
            )
            for to in ("LEFT", "RIGHT")
        ),
        Case(unary("Mod<fmod=1>(x, b)"), "dividend's sign", "", 9 * f32(2, 3, 8), {"b": f32(8)}),
        Case(unary("Sigmoid(x)"), "Clip; Exp(-x)", "Clip; Exp", 9 * f32(2, 3, 8)),
        Case(unary("Sub(x, x)"), "Add of"),
        Case(unary("Add(k, x)"), "Sub of", weights={"k": f32(8)}),
        Case(unary("Div(x, k)"), "constant's reciprocal", "recip", weights={"k": f32(8) + 5}),
        Case(
            "g (float[9] x) => (float[9] y) { a = Exp(x) y = Div(x, a) }",
            "the Reciprocal",
            "Reciprocal",
            f32(9),
        ),
        Case(unary("LeakyRelu<alpha=0.3>(x)"), "a Where"),
        Case(unary("PRelu(x, k)"), "a Where", weights={"k": f32(3, 1)}),
        Case(unary("Relu(x)"), "Max"),
        Case(
            unary("Clip(x, k, l)"), "Max and Min", weights={"k": np.float32(-1), "l": np.float32(1)}
        ),
        *(
            Case(
                f"g ({t}[2,6] x) => ({t}[2,6] y) {{ y = Pow(x, k) }}",
                "a Pow of float64",
                "",
                (X % 90).astype(t),
                {"k": np.array([0, 1, 2, 3, 2, 4]).astype(t)},
            )
            for t in ("int32", "int64")
        ),
        Case(
            "g (int64[2,6] x) => (int64[2,6] y) { y = Pow(x, k) }",
            "Mul of squares",
            "",
            X % 30,
            {"k": np.array(11)},
        ),
        Case("g (int32[2,6] x) => (int32[2,6] y) { y = Relu(x) }", "Max", "", X.astype(np.int32)),
    ],
    "fourier": [
        *(
            Case(
                f"g (float[2,6,5,{c}] x) => (float[2,{m},5,2] y) {{ y = DFT<{how}>(x{given}) }}",
                "sines and cosines",
                "sines",
                f32(2, 6, 5, c),
                {"k": np.int64(8)},
                evaluated=False,
            )
            for c, m, how, given in (
                (1, 6, "axis=1", ""),
                (2, 6, "axis=-3", ""),
                (1, 4, "axis=1, onesided=1", ""),
                (2, 6, "axis=1, inverse=1", ""),
                (2, 8, "axis=1", ", k"),
            )
        )
    ],
    "functions": [
        Case(unary("Softmax<axis=1>(x)"), "that define", "define"),
        Case(
            unary("LayerNormalization<axis=2>(x, s, b)"),
            "that define",
            "define",
            weights={"s": f32(8), "b": f32(8)},
        ),
        Case(unary("HardSwish(x)"), "that define", "define"),
        Case(unary("MeanVarianceNormalization<axes=[0,2]>(x)"), "define it", "define"),
        Case(unary("Elu<alpha=0.7>(x)"), "", "define"),
    ],
    "integers": [
        *(
            Case(
                f"g ({t}[2,6] x) => ({t}[2,6] y) {{ y = {op}(x, k) }}",
                words,
                "",
                X.astype(t),
                {"k": np.array([250, 7, 3, 100, 2, 131]).astype(t)},
                evaluated=False,
            )
            for t, op, words in (
                ("uint8", "Add", "int32 instead"),
                ("uint8", "Sub", "of uint8, wrapped"),
                ("int8", "Mul", "of int8, wrapped"),
                ("int32", "Mul", "int64 instead"),
                ("uint32", "Sub", "int64 instead"),
                ("uint32", "Mul", "int64 instead"),
                ("uint32", "Div", "int64 instead"),
                ("int32", "Div", "int64"),
            )
        ),
        Case(
            "g (uint32[2,6] x) => (bool[2,6] y) { y = Less(x, k) }",
            "int64 instead",
            "",
            X.astype(np.uint32),
            {"k": np.array([250, 7, 3, 2**32 - 2, 2, 131], np.uint32)},
        ),
        *(
            Case(
                f"g ({t}[2,6] x) => ({t}[{shape}] y) {{ y = {how}(x, k) }}",
                words,
                "",
                X.astype(t),
                {"k": np.array(axes)},
                opset=18,
            )
            for t, shape, how, axes, words in (
                ("int32", "2,1", "ReduceMax", [1], "ArgMax; int64"),
                ("int64", "1,1", "ReduceMin", [0, 1], "ArgMin"),
                ("int64", "2", "ReduceSum<keepdims=0>", [-1], "a CumSum"),
                ("int32", "1,1", "ReduceSum", [0, 1], "a CumSum; int64"),
                ("int64", "6", "ReduceMax<keepdims=0>", [0], "ArgMax"),
            )
        ),
    ],
    "spelling": [
        *(
            Case(
                f"g ({t}[2,6] x) => ({t}[2,9] y) {{ y = Pad(x, p{more}) }}",
                "default value",
                "",
                X.astype(t.replace("float", "float32")),
                {"p": np.array(pads), "a": np.array([1])},
                opset=18,
                evaluated=False,
            )
            for t, more, pads in (
                ("int64", "", [0, 1, 0, 2]),
                ("uint8", "", [0, 1, 0, 2]),
                ("float", ", , a", [1, 2]),
            )
        ),
        Case(
            "g (float[2,3,8] x) => (float[2,3] y) { a = Mul(x, k) y = ReduceMax<axes=[-1],"
            " keepdims=0>(a) }",
            "full rank; full shape; other end; run time; Constant nodes",
            weights={"k": f32(8)},
        ),
        Case(
            "g (float[1,4,9,9] x) => (float[1,8,7,7] y) { y = Conv<group=1>(x, w, b) }",
            "written out; left out; run time",
            "",
            IMAGE,
            KERNEL,
        ),
        *(
            Case(
                POOL.format(7, f"{op}<kernel_shape=[3,3]>(x)"),
                "default attributes",
                "",
                IMAGE,
                opset=opset,
            )
            for op in ("AveragePool", "MaxPool")
            for opset in (9, 19)
        ),
        Case(
            "g (float[2,3,8] x) => (float[2,3,8] y) { k = Constant<value=float {2.0}>() y = Mul(x,"
            " k) }",
            "initializers",
        ),
    ],
    "layers": [
        Case(unary("BatchNormalization(x, s, b, m, v)", "1,4,9,9"), "a Mul and", "Mul", IMAGE, BN),
        Case(unary("InstanceNormalization(x, s, b)", "1,4,9,9"), "arithmetic", "arith", IMAGE, BN),
        Case(
            unary("Gemm<transB=1, alpha=0.5, beta=2.0>(x, w, b)", "3,4", "3,5"),
            "a MatMul",
            "MatMul",
            f32(3, 4),
            {"w": f32(5, 4), "b": f32(5)},
        ),
        Case(
            unary("Gemm<transA=1>(x, w)", "4,3", "3,5"),
            "a MatMul instead",
            "",
            f32(4, 3),
            {"w": f32(4, 5)},
        ),
        Case(unary("MatMul(x, w)", "3,4", "3,5"), "a Gemm", "", f32(3, 4), {"w": f32(4, 5)}),
        Case(
            unary("Conv<pads=[1,0], strides=[2]>(x, w, b)", "1,3,8", "1,5,4"),
            "two dimensions",
            "two",
            f32(1, 3, 8),
            {"w": f32(5, 3, 3), "b": f32(5)},
        ),
        Case(
            unary("MaxPool<kernel_shape=[3]>(x)", "1,3,8", "1,3,6"),
            "two dimensions",
            "",
            f32(1, 3, 8),
        ),
        Case(POOL.format(1, "GlobalAveragePool(x)"), "a ReduceMean", "Reduce", IMAGE),
        Case(POOL.format(1, "GlobalMaxPool(x)"), "a ReduceMax", "", IMAGE),
        Case(
            "g (float[1,4,9,9] x) => (float[1,4] y)"
            " { y = ReduceMean<axes=[-1,-2], keepdims=0>(x) }",
            "a GlobalAveragePool; divided by 81",
            "Global; ReduceSum",
            IMAGE,
        ),
        Case(unary("HardSigmoid<alpha=0.3>(x)"), "Mul, Add, Max", "Mul"),
        Case(
            "g (float[2,3,8] x) => (float[2,3,8] y, bool[2,3,8] m) { y, m = Dropout(x) }",
            "an Identity",
        ),
    ],
    "opset": [Case(unary("Softmax(x)"), "opset 12", "opset")],
    "order": [
        Case(unary("Add(x, k)"), "swapped", weights={"k": f32(8)}),
        Case(
            unary("ReduceSum(x, k)", out="1,3,1"),
            "one axis",
            "axis",
            weights={"k": np.array([0, 2])},
        ),
        Case(
            unary("MatMul(x, w)", "2,3,16", "2,3,8"),
            "half the columns; half the length",
            "half",
            f32(2, 3, 16),
            {"w": f32(16, 8)},
        ),
        Case(
            "g (float[1,4,9,9] x) => (float[1,8,7,7] y) { y = Conv(x, w, b) }",
            "half the channels",
            "half",
            IMAGE,
            KERNEL,
        ),
    ],
    "padding": [
        Case(
            "g (float[1,4,9,9] x) => (float[1,8,5,5] y) { y = Conv"
            '<auto_pad="SAME_LOWER", strides=[2,2]>(x, w) }',
            "as numbers; a Pad",
            "Pad",
            IMAGE,
            KERNEL,
        ),
        Case(
            "g (float[1,4,8,8] x) => (float[1,8,4,4] y) { y = Conv"
            '<auto_pad="SAME_UPPER", strides=[2,2]>(x, w) }',
            "as numbers; a Pad",
            "Pad",
            f32(1, 4, 8, 8),
            KERNEL,
        ),
        Case(
            POOL.format(9, "MaxPool<kernel_shape=[3,3], pads=[0,1,2,1]>(x)"),
            "a Pad",
            "",
            IMAGE,
            evaluated=False,
        ),
        Case(
            POOL.format(
                9, "AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(x)"
            ),
            "a Pad",
            "Pad",
            IMAGE,
        ),
        Case(
            POOL.format(5, "MaxPool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1>(x)"),
            "ceil_mode unnecessary",
            "",
            IMAGE,
        ),
        Case(
            POOL.format(
                4, "MaxPool<kernel_shape=[3,3], strides=[3,3], pads=[1,1,0,0], ceil_mode=1>(x)"
            ),
            "ceil_mode unnecessary",
            "",
            IMAGE,
            evaluated=False,
        ),
        Case(
            "g (float[1,4,9,9] x) => (float[1,4,12,11] y) { y = Pad(x, p, k) }",
            "a Concat",
            "",
            IMAGE,
            {"p": np.array([0, 0, 1, 2, 0, 0, 2, 0]), "k": np.float32(7)},
        ),
        Case(
            "g (float[1,4,9,9] x) => (float[1,8,9,10] y) { a = Pad(x, p) y = Conv(a, w, b) }",
            "inside; a Concat",
            "inside",
            IMAGE,
            {**KERNEL, "p": np.array([0, 0, 1, 2, 0, 0, 1, 1])},
        ),
        Case(QPADDED, "a Pad", "", u8(1, 4, 9, 9), QUANTIZED, evaluated=False),
        Case(
            POOL.format(
                5, "AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,0,1,2], ceil_mode=1>(x)"
            ),
            "corrects the counts",
            "counts",
            IMAGE,
            evaluated=False,
        ),
        Case(
            POOL.format(9, 'AveragePool<kernel_shape=[3,3], auto_pad="SAME_LOWER">(x)'),
            "corrects the counts; as numbers",
            "counts",
            IMAGE,
            evaluated=False,
        ),
        Case(
            "g (float[1,4,9,9] x) => (float[1,3,18,18] y) {"
            ' y = ConvTranspose<auto_pad="SAME_UPPER", strides=[2,2]>(x, t) }',
            "as numbers",
            "",
            IMAGE,
            {"t": f32(4, 3, 3, 3)},
            evaluated=False,
        ),
    ],
    "precision": [
        Case(
            "g (float16[2,8] x) => (float16[2,8] y) { a = Mul(x, k) y = Softmax(a) }",
            "float32 instead; each of 2",
            "float32",
            f32(2, 8).astype(np.float16),
            {"k": np.float16(3)},
            evaluated=False,
        ),
        Case(
            unary("MatMul(x, w)", "3,4", "3,5"),
            "float64 instead",
            "float64",
            f32(3, 4),
            {"w": f32(4, 5)},
        ),
    ],
    "quantized": [
        Case(QPADDED, "a Conv between", "Conv", u8(1, 4, 9, 9), QUANTIZED, evaluated=False),
        Case(
            "g (uint8[3,4] x) => (uint8[3,5] y) { y = QLinearMatMul(x,xs,xz,m,ws,wz,ys,yz) }",
            "MatMul between",
            "MatMul",
            u8(3, 4),
            QUANTIZED,
            evaluated=False,
        ),
        Case(
            "g (uint8[3,4] x) => (uint8[3,4] y) { y ="
            " com.microsoft.QLinearAdd(x,xs,xz,x,ws,wz,ys,yz) }",
            "Add between",
            "Add",
            u8(3, 4),
            QUANTIZED,
            evaluated=False,
        ),
        Case(
            "g (uint8[3,4] x) => (uint8[3,4] y)"
            " { y = com.microsoft.QLinearSigmoid(x,xs,xz,ys,yz) }",
            "Sigmoid between",
            "Sigmoid",
            u8(3, 4),
            QUANTIZED,
            evaluated=False,
        ),
        Case(
            "g (uint8[3,4] x) => (int32[3,5] y) { y = MatMulInteger(x, m, xz, wz) }",
            "32-bit integers",
            "",
            u8(3, 4),
            QUANTIZED,
        ),
        Case(
            "g (float[2,64] x) => (float[2,6] y) { y = com.microsoft.MatMulNBits"
            "<K=64,N=6,bits=4,block_size=32>(x,q,s,z) }",
            "real numbers",
            "weights",
            f32(2, 64),
            {"q": u8(6, 2, 16), "s": np.abs(f32(12)), "z": u8(6)},
            evaluated=False,
        ),
        Case(
            "g (float[2,40] x) => (float[2,6] y) { y = com.microsoft.MatMulNBits"
            "<K=40,N=6,bits=8,block_size=32>(x,q,s) }",
            "real numbers",
            "weights",
            f32(2, 40),
            {"q": u8(6, 2, 32), "s": np.abs(f32(12))},
            evaluated=False,
        ),
    ],
    "ranking": [
        Case(
            "g (float[2,9] x) => (float[2,4] v, int64[2,4] i) { v, i = TopK(x, k) }",
            "counting",
            "",
            np.round(f32(2, 9)),
            {"k": np.array([4])},
            evaluated=False,
        ),
        Case(
            "g (float[2,9] x) => (float[2,4] v, int64[2,4] i) { v, i = TopK<largest=0>(x, k) }",
            "counting",
            "",
            np.round(f32(2, 9)),
            {"k": np.array([4])},
            evaluated=False,
        ),
        Case(
            "g (float[2,9] x) => (float[2,9] v, int64[2,9] i)"
            " { s = Shape(x) n = Gather(s, k) v, i = TopK(x, n) }",
            "counting",
            "",
            np.round(f32(2, 9)),
            {"k": np.array([1])},
            evaluated=False,
        ),
    ],
    "resize": [
        *(
            Case(
                f"g (float[1,2,5,6] x) => (float[1,2,{h},{w}] y) {{ y = Resize<{how}>(x, ,"
                f" {given}) }}",
                "along each axis",
                "" if "nearest" in how else "MatMul",
                f32(1, 2, 5, 6),
                {given.strip(", "): values},
                opset=19,
                evaluated=False,
            )
            for h, w, how, given, values in (
                (
                    10,
                    9,
                    'mode="nearest", nearest_mode="floor"',
                    "sc",
                    np.array([1, 1, 2, 1.5], np.float32),
                ),
                (
                    10,
                    9,
                    (
                        'mode="nearest", nearest_mode="round_prefer_ceil",'
                        ' coordinate_transformation_mode="asymmetric"'
                    ),
                    "sc",
                    np.array([1, 1, 2, 1.5], np.float32),
                ),
                (10, 9, 'mode="linear"', "sc", np.array([1, 1, 2, 1.5], np.float32)),
                (
                    3,
                    4,
                    'mode="linear", coordinate_transformation_mode="align_corners"',
                    ", si",
                    np.array([1, 2, 3, 4]),
                ),
                (
                    4,
                    4,
                    'mode="cubic", coordinate_transformation_mode="align_corners"',
                    "sc",
                    np.array([1, 1, 0.8, 0.8], np.float32),
                ),
                (3, 4, 'mode="linear", antialias=1', ", si", np.array([1, 2, 3, 4])),
                (3, 4, 'mode="cubic", antialias=1', ", si", np.array([1, 2, 3, 4])),
                (
                    10,
                    9,
                    'mode="cubic", cubic_coeff_a=-0.5',
                    "sc",
                    np.array([1, 1, 2, 1.5], np.float32),
                ),
                (10, 9, 'mode="cubic", exclude_outside=1', ", si", np.array([1, 2, 10, 9])),
                (
                    3,
                    1,
                    'mode="linear", coordinate_transformation_mode="pytorch_half_pixel"',
                    ", si",
                    np.array([1, 2, 3, 1]),
                ),
                (
                    8,
                    7,
                    'mode="linear", coordinate_transformation_mode="half_pixel_symmetric"',
                    "sc",
                    np.array([1, 1, 1.7, 1.3], np.float32),
                ),
                (
                    6,
                    7,
                    'mode="nearest", axes=[3,2], keep_aspect_ratio_policy="not_larger"',
                    ", si",
                    np.array([7, 8]),
                ),
            )
        )
    ],
    "recurrent": [
        Case(
            "g (float[5,2,3] x) => (float[5,1,2,4] y, float[1,2,4] h, float[1,2,4] c)"
            ' { y, h, c = LSTM<hidden_size=4, direction="reverse">(x, w, r) }',
            "forwards, on",
            "",
            f32(5, 2, 3),
            LSTM,
            evaluated=False,
        ),
        Case(
            "g (float[5,2,3] x) => (float[5,2,2,4] y, float[2,2,4] h) { y, h = LSTM<hidden_size=4,"
            ' direction="bidirectional",'
            ' activations=["Sigmoid","Tanh","Tanh","HardSigmoid","Relu","Tanh"]>(x, w2, r2, b2) }',
            "forwards",
            "two",
            f32(5, 2, 3),
            LSTM,
            evaluated=False,
        ),
    ],
}


def _iter_cases() -> Iterator[Case]:
    for name, cases in GROUPS.items():
        yield from (replace(case, name=name) for case in cases)


CASES = list(_iter_cases())


def forms_of(model: onnx.ModelProto, name: str) -> list[Rewriting]:
    return list(rewritings(model, [name]))


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"{c.name}-{c.text.split('{')[1].strip()[:40]}"
)
def test_form_computes_the_same(case: Case, tmp_path: Path, reference: Reference) -> None:
    used = {
        k: v
        for k, v in case.weights.items()
        if k in case.text.replace("(", ",").replace(" ", "").replace(")", ",").split(",")
    }
    model = text_models.model(
        case.text, domains=MS if "microsoft" in case.text else (), opset=case.opset, **used
    )
    x = f32(2, 3, 8) if case.x is None else case.x
    original = OriginalRegion(model, [fed(tmp_path / "fed", x=x)], reference, tmp_path / "scratch")
    before = model.SerializeToString()
    found = forms_of(model, case.name)
    assert all(any(w in form.words for form in found) for w in case.words.split("; ")), [
        f.words for f in found
    ]
    for form in found:
        assert interface(form.model) == interface(model)
        equivalence = original.compare(form.model)
        noisy = any(words in form.words for words in filter(None, case.noisy.split("; ")))
        assert equivalence.status in ((IDENTICAL, NOISE) if noisy else (IDENTICAL,)), (
            form.words,
            equivalence,
        )
        if case.evaluated and "opset" not in form.words:
            same_for_onnx(model, form.model, x)
    assert model.SerializeToString() == before, "a rewriting changes a copy"


def interface(model: onnx.ModelProto) -> list[list[tuple[str, bytes]]]:
    return [
        [(v.name, v.type.SerializeToString()) for v in values]
        for values in (model.graph.input, model.graph.output)
    ]


def same_for_onnx(one: onnx.ModelProto, other: onnx.ModelProto, x: Any) -> None:
    for a, b in zip(
        *(ReferenceEvaluator(m).run(None, {"x": x}) for m in (one, other)), strict=True
    ):
        np.testing.assert_allclose(np.asarray(b), np.asarray(a), rtol=2e-5, atol=2e-5)


def test_float_remainder_has_the_divisors_sign() -> None:
    """Onnx's evaluator knows it; onnxruntime refuses it before 1.32."""
    model = text_models.model(unary("Mod(x, b)"), b=f32(8))
    (form,) = forms_of(model, "arithmetic")
    same_for_onnx(model, form.model, 9 * f32(2, 3, 8))
    same_for_onnx(model, form.model, np.zeros((2, 3, 8), np.float32))


@pytest.mark.parametrize("name", NAMES)
def test_every_rewriting_has_a_docstring_a_function_and_a_case(name: str) -> None:
    module = plugins.load("rewrites", name)
    assert hasattr(module, "FORMS") or callable(module.rewrite)
    help_text = plugins.help_of("rewrites", name)
    assert help_text.endswith(".") and 20 < len(help_text) < 120
    assert name in {case.name for case in CASES}


FUNCTIONS = (
    "Softmax<axis=1>(x)",
    "LogSoftmax(x)",
    "HardSwish(x)",
    "Selu(x)",
    "Celu<alpha=0.5>(x)",
    "LeakyRelu<alpha=0.3>(x)",
    "ThresholdedRelu(x)",
    "Softplus(x)",
    "Softsign(x)",
    "Gelu(x)",
    "Mish(x)",
    "Relu(x)",
    "Shrink<lambd=0.3>(x)",
    "ReduceL2(x)",
    "GroupNormalization<num_groups=2>(x, s, s)",
    "LayerNormalization<epsilon=0.1>(x, t)",
    "PRelu(x, t)",
)


@pytest.mark.parametrize("call", FUNCTIONS)
def test_functions_of_the_standard_in_a_newer_opset_than_their_bodies(
    call: str, tmp_path: Path, reference: Reference
) -> None:
    shape = "1,1,1" if "Reduce" in call else "2,4,8"
    weights = {name: f32(n) for name, n in {"s": 4, "t": 8}.items() if f" {name}" in call}
    model = text_models.model(unary(call, "2,4,8", shape), opset=23, ir=10, domains=(), **weights)
    original = OriginalRegion(
        model, [fed(tmp_path / "fed", x=f32(2, 4, 8))], reference, tmp_path / "scratch"
    )
    (form,) = forms_of(model, "functions")
    assert original.compare(form.model).proven
    same_for_onnx(model, form.model, f32(2, 4, 8))


# ------------------------------------------------------------------------------------------------
# barriers

VALUES = {
    "float": np.array([[0.0, -0.0, np.nan, np.inf], [-np.inf, 1e-45, -3e38, 1]], np.float32),
    "double": np.array([[0.0, -0.0, np.nan, np.inf], [-np.inf, 5e-324, -1e308, 1]]),
    "float16": np.array([[0.0, -0.0, np.nan, np.inf], [-np.inf, 6e-8, -65504, 1]], np.float16),
    "bfloat16": np.array(
        [[0.0, -0.0, np.nan, np.inf], [-np.inf, 1e-40, -3e38, 1]], ml_dtypes.bfloat16
    ),
    "int8": np.array([[-128, 127], [0, -1]], np.int8),
    "uint8": np.array([[255, 0], [1, 128]], np.uint8),
    "int32": np.array([[-(2**31), 2**31 - 1], [0, -1]], np.int32),
    "int64": np.array([[-(2**63), 2**63 - 1], [0, -1]], np.int64),
    "bool": np.array([[True, False], [False, True]]),
    "string": np.array([["a", ""], ["ü", "b c"]], object),
}
NUMERIC = {"Identity", "Reshape"}


@pytest.mark.parametrize("kind", VALUES)
def test_barrier_changes_no_bit_of_any_type(
    kind: str, tmp_path: Path, reference: Reference
) -> None:
    shape = ",".join(map(str, VALUES[kind].shape))
    model = text_models.model(
        f"g ({kind}[{shape}] x) => ({kind}[{shape}] y) {{ a = Transpose<perm=[1,0]>(x) y ="
        " Transpose<perm=[1,0]>(a) }"
    )
    original = OriginalRegion(
        model, [fed(tmp_path / "fed", x=VALUES[kind])], reference, tmp_path / "scratch"
    )
    statuses = {
        form.words.split()[1]: original.compare(form.model).status
        for form in forms_of(model, "apart")
    }
    assert statuses.keys() >= NUMERIC
    assert {status for words, status in statuses.items() if words in NUMERIC} == {IDENTICAL}
    assert set(statuses.values()) <= {IDENTICAL, NOT_RUN}, statuses
    if kind in ("float", "double", "int32", "int64"):
        assert statuses["Max"] == statuses["Sub"] == IDENTICAL


def test_which_barriers_an_optimizer_leaves_in_place_is_as_documented(tmp_path: Path) -> None:
    model = text_models.model(
        "g (float[1,4,8,8] x) => (float[1,4,8,8] y) { a = Mul(x, x) y = Exp(a) }"
    )
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    left = {}
    for form in forms_of(model, "apart"):
        onnxruntime.InferenceSession(
            form.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        ops = {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}
        left[form.words.split()[1]] = bool(ops - {"Mul", "Exp"})
    assert left == {"Identity": False, "Reshape": True, "Max": True, "Sub": True, "Where": True}


# ------------------------------------------------------------------------------------------------
# real faults

FAULTS = [
    pytest.param(
        "ort_padfusion_clean",
        ("/pad/Pad", "/pool/MaxPool"),
        "ort:opt=all",
        {"apart", "padding"},
        marks=with_padfusion_bug,
    ),
    ("cv_tanh_nan", ("/Tanh", "/Tanh"), "opencv", {"arithmetic"}),
    ("mnn_conv_add_lastdim", ("/g/Conv", "/Add"), "mnn", {"apart", "order", "spelling"}),
    (
        "mnn_layernorm_oob",
        ("/n/Pow", "/n/Mul"),
        "mnn",
        {"apart", "arithmetic", "layers", "order", "spelling"},
    ),
    ("rnn_reverse_cv_tract", ("/r/LSTM", "/r/LSTM"), "tract", {"recurrent"}),
    ("rnn_reverse_cv_tract", ("/r/LSTM", "/r/LSTM"), "opencv", {"recurrent"}),
    ("ov_topk_ties", ("/TopK", "/TopK"), "openvino:precision=f32", {"ranking"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "ends", "spec", "cures"), FAULTS)
def test_real_faults_of_runtimes_are_cured(
    case: str,
    ends: tuple[str, str],
    spec: str,
    cures: set[str],
    tmp_path: Path,
    reference: Reference,
) -> None:
    """The region alone is wrong on the candidate, and right in these other forms."""
    graph = load(FIXTURES / case / "model.onnx")
    loose = cut(graph, *ends)
    names = [*loose.inputs, *loose.region.shapes, *loose.outputs]
    (values,) = capture(graph, names, [str(FIXTURES / case / "input_x.npy")])
    stems = {f"t{k}": value for k, value in enumerate(values.values())}
    records = {
        n: replace(r, name=n)
        for n, r in zip(values, fed(tmp_path / "fed", **stems).values(), strict=True)
    }
    piece = cut(graph, *ends, captured=[records], folder=Path("/"))
    region = piece.to_model()
    feeds = [records[name] for name in piece.inputs]
    original = OriginalRegion(region, [{r.name: r for r in feeds}], reference, tmp_path / "scratch")
    candidate = parse(spec)
    with Workers(candidate) as workers:

        def is_right(model: onnx.ModelProto) -> bool:
            path = tmp_path / "form.onnx"
            path.write_bytes(model.SerializeToString())
            into = numbered_folder(tmp_path, "run")
            with workers.borrow(loads=1) as worker:
                result = run_model(
                    worker, Job(path, [feeds], piece.outputs, into, options=candidate.options)
                )
            return not result.failure and all(
                np.allclose(
                    np.asarray(tensors.load(record, into)),
                    np.asarray(values[name]),
                    rtol=1e-3,
                    atol=1e-4,
                )
                for name, record in result.tensors[0].items()
            )

        assert not is_right(region)
        found = [
            form
            for form in rewritings(region)
            if not form.opset and original.compare(form.model).proven
        ]
        assert {form.name for form in found if is_right(form.model)} >= cures


# ------------------------------------------------------------------------------------------------
# what is left out


def test_weights_that_are_inputs_and_open_shapes_are_taken_as_they_are(
    tmp_path: Path, reference: Reference
) -> None:
    model = text_models.model(
        "g (float[N,4] x, float[4,5] w) => (float[N,5] y) { a = MatMul(x, w) y = Relu(a) }"
    )
    original = OriginalRegion(
        model, [fed(tmp_path / "fed", x=f32(3, 4), w=f32(4, 5))], reference, tmp_path / "scratch"
    )
    found = list(rewritings(model))
    assert {"apart", "layers", "arithmetic"} <= {form.name for form in found}
    assert all(original.compare(form.model).status in (IDENTICAL, NOISE) for form in found)


def test_no_form_twice_none_is_the_region_and_the_file_does_the_same(tmp_path: Path) -> None:
    model = text_models.model("g (float[4] x) => (float[4] y) { a = Relu(x) y = Add(a, x) }")
    path = text_models.read(tmp_path, model).path
    texts = [form.model.SerializeToString(deterministic=True) for form in rewritings(model)]
    assert (
        len(set(texts)) == len(texts) > 5
        and model.SerializeToString(deterministic=True) not in texts
    )
    assert texts == [form.model.SerializeToString(deterministic=True) for form in rewritings(path)]


def test_form_that_holds_for_one_shape_says_so_where_the_model_takes_others() -> None:
    text = (
        "g (float[1,4,9,9] x) => (float[1,8] y) { a = Conv<pads=[1,1,1,1]>(x, w) c = Add(a, k)"
        " d = ReduceMean<axes=[2,3]>(c) y = Reshape(d, s) }"
    )
    model = text_models.model(text, s=np.array([1, 8]), k=f32(9), w=KERNEL["w"])
    fixed = {
        form.words: ", for these shapes and sizes" in form.words
        for form in rewritings(model, frozen=["s"])
    }

    def those(part: str) -> set[bool]:
        return {says for words, says in fixed.items() if part in words}

    assert those("full shape") == those("ReduceSum divided") == {True}
    assert (
        those("Identity")
        == those("GlobalAveragePool")
        == those("a Pad")
        == those("full rank")
        == {False}
    )
    assert not any(", for these" in form.words for form in rewritings(model))


def test_form_of_another_opset_says_so() -> None:
    model = text_models.model(unary("Softmax(x)"))
    assert {form.opset for form in rewritings(model, ["arithmetic", "functions"])} == {0}
    found = forms_of(model, "opset")
    assert found and all(
        form.opset not in (0, 17) and str(form.opset) in form.words for form in found
    )


def test_bodies_sequences_and_unknown_operators_are_left_alone() -> None:
    body = "g1 () => (float[4] z) { z = Relu(x) }"
    text = (
        "g (float[4] x, bool c) => (float[4] y, seq(float[4]) s)"
        f" {{ a = If(c) <then_branch={body}, else_branch={body.replace('g1', 'g2')}>"
        " b = own.Thing(a) y = Exp(b) s = SequenceConstruct(y) }"
    )
    model = text_models.model(text, domains=("own",))
    found = list(rewritings(model))
    assert found and all(
        [n.op_type for n in form.model.graph.node if n.domain == "own"] == ["Thing"]
        for form in found
    )


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        (
            (
                "g (float[1,4,9,9] x) => (float[1,4,9,9] y) { a = Pad(x, p) y ="
                " MaxPool<kernel_shape=[3,3]>(a) }"
            ),
            {},
        ),
        (
            "g (float[1,4,9,9] x) => (float[1,4,9,9] y) { a = Pad(x, p, k) y = Conv(a, w) }",
            {"k": np.float32(1)},
        ),
        (
            (
                "g (float[1,4,9,9] x) => (float[1,4,9,9] y, float[1,4,11,11] a) { a = Pad(x, p) y ="
                " Conv(a, w) }"
            ),
            {},
        ),
    ],
)
def test_pad_is_folded_only_where_the_layer_pads_with_the_same(
    text: str, weights: dict[str, Any]
) -> None:
    more: dict[str, Any] = {"w": f32(4, 4, 3, 3)} if "Conv" in text else {}
    model = text_models.model(text, p=np.array([0, 0, 1, 1, 0, 0, 1, 1]), **weights, **more)
    assert not any("inside" in form.words for form in forms_of(model, "padding"))


def test_model_of_old_opset_gets_forms_of_that_opset(tmp_path: Path, reference: Reference) -> None:
    text = """g (float[1,4,9,9] x) => (float[1,8,1,1] y) {
        [c] a = Conv<pads = [1, 1, 1, 1]>(x, w) [p] y = GlobalAveragePool(a)
    }"""
    model = text_models.model(text, opset=9, ir=4, w=KERNEL["w"])
    original = OriginalRegion(
        model, [fed(tmp_path / "fed", x=IMAGE)], reference, tmp_path / "scratch"
    )
    found = list(rewritings(model, ["apart", "padding", "layers"]))
    assert any(has_line(form.words, "a Pad") for form in found) and len(found) > 5
    assert all(original.compare(form.model).proven for form in found)


def test_axes_that_cannot_be_counted_from_the_other_end_are_left_alone() -> None:
    flat = text_models.model("g (float[2,3] x) => (float[6,1] y) { y = Flatten<axis=2>(x) }")
    assert not any("other end" in form.words for form in forms_of(flat, "spelling"))


def test_region_without_the_shape_of_its_output_has_forms(
    tmp_path: Path, reference: Reference
) -> None:
    model = text_models.model("g (float[4] x) => (float y) { a = Exp(x) y = Neg(a) }")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    original = OriginalRegion(
        model, [fed(tmp_path / "fed", x=f32(4))], reference, tmp_path / "scratch"
    )
    found = forms_of(model, "apart")
    assert len(found) > 4 and all(
        original.compare(form.model).status == IDENTICAL for form in found
    )


def test_region_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subgraph.rewrites.MAX_BYTES", 10)
    with raises(ModelError, "blame.region-too-large"):
        list(rewritings(text_models.model(unary("Exp(x)"))))


def test_other_names_than_rewritings_are_refused(tmp_path: Path) -> None:
    model = text_models.model(unary("Exp(x)"))
    with raises(UnknownName, "plugin.unknown", "apar"):
        list(rewritings(model, ["apar"]))
    (tmp_path / "empty.py").write_text('"""Nothing."""\n')
    with raises(UsageError, "plugin.no-function"):
        list(rewritings(model, [str(tmp_path / "empty.py")]))


def test_file_of_the_user_is_a_rewriting(tmp_path: Path) -> None:
    file = tmp_path / "twice.py"
    file.write_text(
        "from subgraph.rewrites import of\n"
        "@of('Exp')\n"
        "def form(source, node, new):\n"
        "    new.node('Abs', [new.node('Exp', [node.input[0]])], node.output[0])\n"
        "    return 'Abs behind'\n"
        "FORMS = [form]\n"
    )
    (found,) = rewritings(text_models.model(unary("Exp(x)")), [str(file)])
    assert has_line(found.words, "Abs", "Exp", "'y'")
    assert [n.op_type for n in found.model.graph.node] == ["Exp", "Abs"]
