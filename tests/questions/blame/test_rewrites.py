"""Every form of every rewriting: a valid model of the same interface that computes the same on the
reference.

A case is a region, the words of forms that it must have, and which of them are equal only within
rounding. What else a rewriting yields for it is proven as well. Onnx's own ReferenceEvaluator is
the second opinion.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
from subgraph.errors import ModelError, UnknownName, UsageError
from subgraph.graph.graph import load
from subgraph.graph.rewrites import Rewriting, rewritings
from subgraph.questions.blame.rewritten import IDENTICAL, NOT_RUN, PROVEN, OriginalRegion
from subgraph.runtime.candidate import parse
from subgraph.runtime.capture import capture
from subgraph.runtime.reference import Reference
from subgraph.runtime.run_result import Job, run_model
from subgraph.runtime.worker_pool import Workers
from subgraph.storage import tensors
from subgraph.storage.folders import make_numbered_folder
from tests.helpers import text_models
from tests.helpers.captured_region import fed
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.versions import with_padfusion_bug

NAMES = plugins.list_names("rewrites")
MS = ("com.microsoft",)


def f32(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def u8(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).integers(0, 255, shape, np.uint8)


@dataclass(frozen=True)
class Case:
    """A region and the forms that a rewriting has for it.

    Attributes:
        rewriting: The name of the rewriting.
        words: Of forms that must be there, several with semicolons.
        noisy: Of those that are equal within rounding only.
        opset: The opset of the region.
        evaluated: Whether onnx's evaluator knows the operators, and agrees on them.
        values: The word in `VALUES_OF` for other inputs than the usual ones.
        text: The region in ONNX's text form.
    """

    rewriting: str
    words: str
    noisy: str
    opset: int
    evaluated: bool
    values: str
    text: str


def unary(op: str, shape: str = "2,3,8", out: str = "") -> str:
    return f"g (float[{shape}] x) => (float[{out or shape}] y) {{ y = {op} }}"


# "REWRITING | words | noisy | what else", then regions that have these forms; "float[2]: Abs(x)" is
# short for a node whose output has the type of its input.
TABLE = """
apart | Identity; Reshape; Max; Sub of zeros
    g (float[2,3] x) => (float[2,3] y) { a = Exp(x) y = Neg(a) }
apart | each of 2
    g (float[2,3] x) => (float[2,3] y, float[2,3] z) { z = Exp(x) b = Neg(z) y = Add(b, z) }
arithmetic | Mul with itself
    float[2,3,8]: Pow(x, two)
arithmetic | two Mul | two Mul
    float[2,3,8]: Pow(x, three)
arithmetic | Sqrt | Sqrt | positive
    float[2,3,8]: Pow(x, half)
arithmetic | a Pow of float64 | | unevaluated
    int32[4]: Pow(x, k4)
arithmetic | Pow | Pow | positive
    float[2,3,8]: Sqrt(x)
arithmetic | Clip; Sigmoid(2x) | Sigmoid | large
    float[2,3,8]: Tanh(x)
arithmetic | a power of two
    uint8[2,3,8]: BitShift<direction="LEFT">(x, bits)
    uint8[2,3,8]: BitShift<direction="RIGHT">(x, bits)
arithmetic | dividend's sign | | large
    float[2,3,8]: Mod<fmod=1>(x, k8)
arithmetic | Clip; Exp(-x) | Clip; Exp | large
    float[2,3,8]: Sigmoid(x)
arithmetic | Add of
    float[2,3,8]: Sub(x, x)
arithmetic | Sub of
    float[2,3,8]: Add(k8, x)
arithmetic | constant's reciprocal | recip
    float[2,3,8]: Div(x, far)
arithmetic | the Reciprocal | Reciprocal
    g (float[9] x) => (float[9] y) { a = Exp(x) y = Div(x, a) }
arithmetic | a Where
    float[2,3,8]: LeakyRelu<alpha=0.3>(x)
    float[2,3,8]: PRelu(x, rows)
arithmetic | Max
    float[2,3,8]: Relu(x)
arithmetic | Max and Min
    float[2,3,8]: Clip(x, low, high)
arithmetic | a Pow of float64 | | small
    int32[2,6]: Pow(x, powers32)
    int64[2,6]: Pow(x, powers64)
arithmetic | Mul of squares | | small
    int64[2,6]: Pow(x, eleven)
arithmetic | Max
    int32[2,6]: Relu(x)
fourier | sines and cosines | sines | unevaluated
    float[2,6,5,1] -> float[2,6,5,2]: DFT<axis=1>(x)
    float[2,6,5,2]: DFT<axis=-3>(x)
    float[2,6,5,1] -> float[2,4,5,2]: DFT<axis=1, onesided=1>(x)
    float[2,6,5,2]: DFT<axis=1, inverse=1>(x)
    float[2,6,5,2] -> float[2,8,5,2]: DFT<axis=1>(x, eight)
functions | that define | define
    float[2,3,8]: Softmax<axis=1>(x)
    float[2,3,8]: LayerNormalization<axis=2>(x, k8, k8)
    float[2,3,8]: HardSwish(x)
functions | define it | define
    float[2,3,8]: MeanVarianceNormalization<axes=[0,2]>(x)
functions | | define
    float[2,3,8]: Elu<alpha=0.7>(x)
integers | int32 instead | | unevaluated
    uint8[2,6]: Add(x, k_uint8)
integers | of uint8, wrapped | | unevaluated
    uint8[2,6]: Sub(x, k_uint8)
integers | of int8, wrapped | | unevaluated
    int8[2,6]: Mul(x, k_int8)
integers | int64 instead | | unevaluated
    int32[2,6]: Mul(x, k_int32)
    uint32[2,6]: Sub(x, k_uint32)
    uint32[2,6]: Mul(x, k_uint32)
    uint32[2,6]: Div(x, k_uint32)
integers | int64 | | unevaluated
    int32[2,6]: Div(x, k_int32)
integers | int64 instead
    uint32[2,6] -> bool[2,6]: Less(x, k_other)
integers | ArgMax; int64 | | opset=18
    int32[2,6] -> int32[2,1]: ReduceMax(x, axis_1)
integers | ArgMin | | opset=18
    int64[2,6] -> int64[1,1]: ReduceMin(x, axes_01)
integers | a CumSum | | opset=18
    int64[2,6] -> int64[2]: ReduceSum<keepdims=0>(x, axis_last)
integers | a CumSum; int64 | | opset=18
    int32[2,6] -> int32[1,1]: ReduceSum(x, axes_01)
integers | ArgMax | | opset=18
    int64[2,6] -> int64[6]: ReduceMax<keepdims=0>(x, axis_0)
spelling | default value | | opset=18 unevaluated
    int64[2,6] -> int64[2,9]: Pad(x, p2)
    uint8[2,6] -> uint8[2,9]: Pad(x, p2)
    float[2,6] -> float[2,9]: Pad(x, p1, , axis_1)
spelling | full rank; full shape; other end; run time; Constant nodes
    g (float[2,3,8] x) => (float[2,3] y) { a = Mul(x, k8) y = ReduceMax<axes=[-1], keepdims=0>(a) }
spelling | written out; left out; run time
    float[1,4,9,9] -> float[1,8,7,7]: Conv<group=1>(x, kw, kb)
spelling | default attributes | | opset=9
    float[1,4,9,9] -> float[1,4,7,7]: AveragePool<kernel_shape=[3,3]>(x)
spelling | default attributes | | opset=19
    float[1,4,9,9] -> float[1,4,7,7]: AveragePool<kernel_shape=[3,3]>(x)
spelling | default attributes | | opset=9
    float[1,4,9,9] -> float[1,4,7,7]: MaxPool<kernel_shape=[3,3]>(x)
spelling | default attributes | | opset=19
    float[1,4,9,9] -> float[1,4,7,7]: MaxPool<kernel_shape=[3,3]>(x)
spelling | initializers
    g (float[2,3,8] x) => (float[2,3,8] y) { k = Constant<value=float {2.0}>() y = Mul(x, k) }
layers | a Mul and | Mul
    float[1,4,9,9]: BatchNormalization(x, ns, nb, nm, nv)
layers | arithmetic | arith
    float[1,4,9,9]: InstanceNormalization(x, ns, nb)
layers | a MatMul | MatMul
    float[3,4] -> float[3,5]: Gemm<transB=1, alpha=0.5, beta=2.0>(x, w5x4, k5)
layers | a MatMul instead
    float[4,3] -> float[3,5]: Gemm<transA=1>(x, w4x5)
layers | a Gemm
    float[3,4] -> float[3,5]: MatMul(x, w4x5)
layers | two dimensions | two
    float[1,3,8] -> float[1,5,4]: Conv<pads=[1,0], strides=[2]>(x, w5x3x3, k5)
layers | two dimensions
    float[1,3,8] -> float[1,3,6]: MaxPool<kernel_shape=[3]>(x)
layers | a ReduceMean | Reduce
    float[1,4,9,9] -> float[1,4,1,1]: GlobalAveragePool(x)
layers | a ReduceMax
    float[1,4,9,9] -> float[1,4,1,1]: GlobalMaxPool(x)
layers | a GlobalAveragePool; divided by 81 | Global; ReduceSum
    float[1,4,9,9] -> float[1,4]: ReduceMean<axes=[-1,-2], keepdims=0>(x)
layers | Mul, Add, Max | Mul
    float[2,3,8]: HardSigmoid<alpha=0.3>(x)
layers | an Identity
    g (float[2,3,8] x) => (float[2,3,8] y, bool[2,3,8] m) { y, m = Dropout(x) }
opset | opset 12 | opset
    float[2,3,8]: Softmax(x)
order | swapped
    float[2,3,8]: Add(x, k8)
order | one axis | axis
    float[2,3,8] -> float[1,3,1]: ReduceSum(x, axes_02)
order | half the columns; half the length | half
    float[2,3,16] -> float[2,3,8]: MatMul(x, w16x8)
order | half the channels | half
    float[1,4,9,9] -> float[1,8,7,7]: Conv(x, kw, kb)
padding | as numbers; separate Pad | Pad
    float[1,4,9,9] -> float[1,8,5,5]: Conv<auto_pad="SAME_LOWER", strides=[2,2]>(x, kw)
    float[1,4,8,8] -> float[1,8,4,4]: Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, kw)
padding | separate Pad | | unevaluated
    float[1,4,9,9]: MaxPool<kernel_shape=[3,3], pads=[0,1,2,1]>(x)
padding | separate Pad | Pad
    float[1,4,9,9]: AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(x)
padding | instead of ceil_mode
    float[1,4,9,9] -> float[1,4,5,5]: MaxPool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1>(x)
padding | instead of ceil_mode | | unevaluated
    float[1,4,9,9] -> float[1,4,4,4]: MaxPool<kernel_shape=[3,3], strides=[3,3], pads=[1,1,0,0], ceil_mode=1>(x)
padding | a Concat
    float[1,4,9,9] -> float[1,4,12,11]: Pad(x, p4, seven)
padding | inside; a Concat | inside
    g (float[1,4,9,9] x) => (float[1,8,9,10] y) { a = Pad(x, p5) y = Conv(a, kw, kb) }
padding | separate Pad | | unevaluated
    uint8[1,4,9,9] -> uint8[1,8,9,9]: QLinearConv<pads=[1,1,1,1]>(x,xs,xz,qw,ws,wz,ys,yz,qb)
padding | corrects the counts | counts | unevaluated
    float[1,4,9,9] -> float[1,4,5,5]: AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,0,1,2], ceil_mode=1>(x)
padding | corrects the counts; as numbers | counts | unevaluated
    float[1,4,9,9]: AveragePool<kernel_shape=[3,3], auto_pad="SAME_LOWER">(x)
padding | as numbers | | unevaluated
    float[1,4,9,9] -> float[1,3,18,18]: ConvTranspose<auto_pad="SAME_UPPER", strides=[2,2]>(x, w4x3x3x3)
precision | float32 instead; each of 2 | float32 | unevaluated
    g (float16[2,8] x) => (float16[2,8] y) { a = Mul(x, three16) y = Softmax(a) }
precision | float64 instead | float64
    float[3,4] -> float[3,5]: MatMul(x, w4x5)
quantized | a Conv between | Conv | unevaluated
    uint8[1,4,9,9] -> uint8[1,8,9,9]: QLinearConv<pads=[1,1,1,1]>(x,xs,xz,qw,ws,wz,ys,yz,qb)
quantized | MatMul between | MatMul | unevaluated
    uint8[3,4] -> uint8[3,5]: QLinearMatMul(x,xs,xz,qm,ws,wz,ys,yz)
quantized | Add between | Add | unevaluated
    uint8[3,4]: com.microsoft.QLinearAdd(x,xs,xz,x,ws,wz,ys,yz)
quantized | Sigmoid between | Sigmoid | unevaluated
    uint8[3,4]: com.microsoft.QLinearSigmoid(x,xs,xz,ys,yz)
quantized | 32-bit integers
    uint8[3,4] -> int32[3,5]: MatMulInteger(x, qm, xz, wz)
quantized | real numbers | weights | unevaluated
    float[2,64] -> float[2,6]: com.microsoft.MatMulNBits<K=64,N=6,bits=4,block_size=32>(x,nbits_4,nbits_s,nbits_z)
    float[2,40] -> float[2,6]: com.microsoft.MatMulNBits<K=40,N=6,bits=8,block_size=32>(x,nbits_8,nbits_s)
ranking | counting | | rounded unevaluated
    g (float[2,9] x) => (float[2,4] v, int64[2,4] i) { v, i = TopK(x, four) }
    g (float[2,9] x) => (float[2,4] v, int64[2,4] i) { v, i = TopK<largest=0>(x, four) }
    g (float[2,9] x) => (float[2,9] v, int64[2,9] i) { s = Shape(x) n = Gather(s, axis_1) v, i = TopK(x, n) }
resize | along each axis | | opset=19 unevaluated
    float[1,2,5,6] -> float[1,2,10,9]: Resize<mode="nearest", nearest_mode="floor">(x, , sc)
    float[1,2,5,6] -> float[1,2,10,9]: Resize<mode="nearest", nearest_mode="round_prefer_ceil", coordinate_transformation_mode="asymmetric">(x, , sc)
resize | along each axis | MatMul | opset=19 unevaluated
    float[1,2,5,6] -> float[1,2,10,9]: Resize<mode="linear">(x, , sc)
    float[1,2,5,6] -> float[1,2,3,4]: Resize<mode="linear", coordinate_transformation_mode="align_corners">(x, , , si_34)
    float[1,2,5,6] -> float[1,2,4,4]: Resize<mode="cubic", coordinate_transformation_mode="align_corners">(x, , sc_down)
    float[1,2,5,6] -> float[1,2,3,4]: Resize<mode="linear", antialias=1>(x, , , si_34)
    float[1,2,5,6] -> float[1,2,3,4]: Resize<mode="cubic", antialias=1>(x, , , si_34)
    float[1,2,5,6] -> float[1,2,10,9]: Resize<mode="cubic", cubic_coeff_a=-0.5>(x, , sc)
    float[1,2,5,6] -> float[1,2,10,9]: Resize<mode="cubic", exclude_outside=1>(x, , , si_up)
    float[1,2,5,6] -> float[1,2,3,1]: Resize<mode="linear", coordinate_transformation_mode="pytorch_half_pixel">(x, , , si_31)
    float[1,2,5,6] -> float[1,2,8,7]: Resize<mode="linear", coordinate_transformation_mode="half_pixel_symmetric">(x, , sc_odd)
resize | along each axis | | opset=19 unevaluated
    float[1,2,5,6] -> float[1,2,6,7]: Resize<mode="nearest", axes=[3,2], keep_aspect_ratio_policy="not_larger">(x, , , si_78)
recurrent | forwards, on | | unevaluated
    g (float[5,2,3] x) => (float[5,1,2,4] y, float[1,2,4] h, float[1,2,4] c) { y, h, c = LSTM<hidden_size=4, direction="reverse">(x, lw, lr) }
recurrent | forwards | two | unevaluated
    g (float[5,2,3] x) => (float[5,2,2,4] y, float[2,2,4] h) { y, h = LSTM<hidden_size=4, direction="bidirectional", activations=["Sigmoid","Tanh","Tanh","HardSigmoid","Relu","Tanh"]>(x, w2, r2, b2) }
"""  # noqa: E501
IMAGE = f32(1, 4, 9, 9)
X = np.array([[-(2**31), 2**31 - 1, -5, 130, 200, 255], [7, 90001, -90003, 128, -128, 16777217]])
VALUES_OF: dict[str, Callable[[Any], Any]] = {
    "": lambda x: x,
    "positive": np.abs,
    "large": lambda x: 9 * x,
    "rounded": np.round,
    "small": lambda x: x % 30,
}
OPERANDS = np.array([250, 7, 3, 100, 2, 131])
WEIGHTS: dict[str, Any] = {
    "two": np.float32(2),
    "three": np.float32(3),
    "half": np.float32(0.5),
    "low": np.float32(-1),
    "high": np.float32(1),
    "seven": np.float32(7),
    "three16": np.float16(3),
    "eight": np.int64(8),
    "eleven": np.array(11),
    "k4": f32(4),
    "k5": f32(5),
    "k8": f32(8),
    "far": f32(8) + 5,
    "rows": f32(3, 1),
    **{f"k_{t}": OPERANDS.astype(t) for t in ("uint8", "int8", "int32", "uint32")},
    "k_other": np.array([250, 7, 3, 2**32 - 2, 2, 131], np.uint32),
    "bits": np.arange(8, dtype=np.uint8),
    "powers32": np.array([0, 1, 2, 3, 2, 4], np.int32),
    "powers64": np.array([0, 1, 2, 3, 2, 4], np.int64),
    "axis_0": np.array([0]),
    "axis_1": np.array([1]),
    "axis_last": np.array([-1]),
    "axes_01": np.array([0, 1]),
    "axes_02": np.array([0, 2]),
    "four": np.array([4]),
    "p1": np.array([1, 2]),
    "p2": np.array([0, 1, 0, 2]),
    "p4": np.array([0, 0, 1, 2, 0, 0, 2, 0]),
    "p5": np.array([0, 0, 1, 2, 0, 0, 1, 1]),
    "ns": f32(4, seed=1),
    "nb": f32(4, seed=2),
    "nm": f32(4, seed=3),
    "nv": np.abs(f32(4, seed=4)),
    "kw": f32(8, 4, 3, 3, seed=5),
    "kb": f32(8, seed=6),
    "w4x5": f32(4, 5),
    "w5x4": f32(5, 4),
    "w16x8": f32(16, 8),
    "w5x3x3": f32(5, 3, 3),
    "w4x3x3x3": f32(4, 3, 3, 3),
    # of LSTM
    "lw": f32(1, 16, 3, seed=1),
    "lr": f32(1, 16, 4, seed=2),
    "w2": f32(2, 16, 3, seed=1),
    "r2": f32(2, 16, 4, seed=2),
    "b2": f32(2, 32, seed=3),
    # of quantized operators
    "xs": np.float32(0.02),
    "ws": np.float32(0.01),
    "ys": np.float32(0.1),
    "xz": np.uint8(120),
    "wz": np.uint8(128),
    "yz": np.uint8(128),
    "qw": u8(8, 4, 3, 3),
    "qb": np.arange(8, dtype=np.int32),
    "qm": u8(4, 5),
    "nbits_4": u8(6, 2, 16),
    "nbits_8": u8(6, 2, 32),
    "nbits_s": np.abs(f32(12)),
    "nbits_z": u8(6),
    # of Resize
    "sc": np.array([1, 1, 2, 1.5], np.float32),
    "sc_down": np.array([1, 1, 0.8, 0.8], np.float32),
    "sc_odd": np.array([1, 1, 1.7, 1.3], np.float32),
    "si_34": np.array([1, 2, 3, 4]),
    "si_31": np.array([1, 2, 3, 1]),
    "si_up": np.array([1, 2, 10, 9]),
    "si_78": np.array([7, 8]),
}


def _iter_cases() -> Iterator[Case]:
    head: list[str] = []
    for line in TABLE.strip().splitlines():
        if not line.startswith(" "):
            head = [part.strip() for part in line.split("|")] + [""] * 3
            continue
        name, words, noisy, more, *_ = head
        options = more.split()
        opset = next((int(o[6:]) for o in options if o.startswith("opset=")), 17)
        values = next((o for o in options if o in VALUES_OF), "")
        text = text_models.written_out(line.strip())
        yield Case(name, words, noisy, opset, "unevaluated" not in options, values, text)


def _usual_input(model: onnx.ModelProto) -> Any:
    """Return values of the type and shape of the input of a region."""
    tensor = model.graph.input[0].type.tensor_type
    shape = tuple(size.dim_value for size in tensor.shape.dim)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if shape == X.shape:
        return X.astype(dtype)
    if dtype.kind == "f":
        return f32(*shape).astype(dtype)
    return u8(*shape) if dtype == np.uint8 else np.arange(*shape, dtype=dtype)


CASES = list(_iter_cases())


def forms_of(model: onnx.ModelProto, name: str) -> list[Rewriting]:
    return list(rewritings(model, [name]))


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"{c.rewriting}-{c.text.split('{')[1].strip()[:40]}"
)
def test_form_computes_the_same(case: Case, tmp_path: Path, reference: Reference) -> None:
    used = {name: WEIGHTS[name] for name in re.findall(r"\w+", case.text) if name in WEIGHTS}
    model = text_models.model(
        case.text, domains=MS if "microsoft" in case.text else (), opset=case.opset, **used
    )
    x = VALUES_OF[case.values](_usual_input(model))
    original = OriginalRegion(model, [fed(tmp_path / "fed", x=x)], reference, tmp_path / "scratch")
    before = model.SerializeToString()
    found = forms_of(model, case.rewriting)
    assert all(any(w in form.words for form in found) for w in case.words.split("; ")), [
        f.words for f in found
    ]
    for form in found:
        assert interface(form.model) == interface(model)
        equivalence = original.compare(form.model)
        noisy = any(words in form.words for words in filter(None, case.noisy.split("; ")))
        assert equivalence in (PROVEN if noisy else (IDENTICAL,)), (
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
    help_text = plugins.read_help("rewrites", name)
    assert help_text.endswith(".") and 20 < len(help_text) < 120
    assert name in {case.rewriting for case in CASES}


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
    assert original.compare(form.model) in PROVEN
    same_for_onnx(model, form.model, f32(2, 4, 8))


# ------------------------------------------------------------ barriers

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
        form.words.split()[1]: original.compare(form.model) for form in forms_of(model, "apart")
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


# ------------------------------------------------------------ real faults

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
            into = make_numbered_folder(tmp_path, "run")
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
            if not form.opset and original.compare(form.model) in PROVEN
        ]
        assert {form.name for form in found if is_right(form.model)} >= cures


# ------------------------------------------------------------ what is left out


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
    assert all(original.compare(form.model) in PROVEN for form in found)


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
    model = text_models.model(text, s=np.array([1, 8]), k=f32(9), w=WEIGHTS["kw"])
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
        == those("separate Pad")
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
    ("outputs", "nodes"),
    [
        ("float[1,4,9,9] y", "a = Pad(x, p) y = MaxPool<kernel_shape=[3,3]>(a)"),
        ("float[1,4,9,9] y", "a = Pad(x, p, one) y = Conv(a, w)"),
        ("float[1,4,9,9] y, float[1,4,11,11] a", "a = Pad(x, p) y = Conv(a, w)"),
    ],
)
def test_pad_is_folded_only_where_the_layer_pads_with_the_same(outputs: str, nodes: str) -> None:
    weights = {"one": np.float32(1), "w": f32(4, 4, 3, 3), "p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    used: dict[str, Any] = {
        name: weights[name] for name in re.findall(r"\w+", nodes) if name in weights
    }
    text = f"g (float[1,4,9,9] x) => ({outputs}) {{ {nodes} }}"
    model = text_models.model(text, **used)
    assert not any("inside" in form.words for form in forms_of(model, "padding"))


def test_model_of_old_opset_gets_forms_of_that_opset(tmp_path: Path, reference: Reference) -> None:
    text = """g (float[1,4,9,9] x) => (float[1,8,1,1] y) {
        [c] a = Conv<pads = [1, 1, 1, 1]>(x, w) [p] y = GlobalAveragePool(a)
    }"""
    model = text_models.model(text, opset=9, ir=4, w=WEIGHTS["kw"])
    original = OriginalRegion(
        model, [fed(tmp_path / "fed", x=IMAGE)], reference, tmp_path / "scratch"
    )
    found = list(rewritings(model, ["apart", "padding", "layers"]))
    assert any(has_line(form.words, "separate Pad") for form in found) and len(found) > 5
    assert all(original.compare(form.model) in PROVEN for form in found)


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
    assert len(found) > 4 and all(original.compare(form.model) == IDENTICAL for form in found)


def test_region_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subgraph.graph.rewrites.MAX_BYTES", 10)
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
        "from subgraph.graph.rewrites import of\n"
        "@of('Exp')\n"
        "def form(source, node, new):\n"
        "    new.node('Abs', [new.node('Exp', [node.input[0]])], node.output[0])\n"
        "    return 'Abs behind'\n"
        "FORMS = [form]\n"
    )
    (found,) = rewritings(text_models.model(unary("Exp(x)")), [str(file)])
    assert has_line(found.words, "Abs", "Exp", "'y'")
    assert [n.op_type for n in found.model.graph.node] == ["Exp", "Abs"]
