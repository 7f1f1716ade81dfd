"""A name of the candidate's model that means another tensor is refuted, a fault is not; a tensor
whose shape is wrong there is a boundary. Covers `trials.matching.meaning` and
`trials.matching.pair_models`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from fixtures import converted, networks
from subgraph.graph.graph import load
from subgraph.runtime.candidate import parse
from subgraph.runtime.inputs import Feeding
from subgraph.storage.dtypes import Scale
from subgraph.trials.candidate_model import CandidateModel
from subgraph.trials.matching.match_tensors import can_hold
from subgraph.trials.matching.matched_tensor import MatchedTensor
from subgraph.trials.open_trials import Setup, open_with_processes
from tests.helpers import text_models

Weights = dict[str, npt.NDArray[np.float32]]
SCALED = (
    "g (float[1,3,6,6] x) => (float[1,4,6,6] y)"
    " { [conv] a = Conv<pads=[1,1,1,1]>(x, w)  [bn] b = BatchNormalization(a, s, o, m, v)"
    "  [relu] c = Relu(b)  [last] y = Conv<pads=[1,1,1,1]>(c, u) }"
)
FOLDED = (
    "g (float[1,3,6,6] x) => (float[1,4,6,6] y)"
    " { [conv] a = Conv<pads=[1,1,1,1]>(x, w, o)  [relu] c = Relu(a)"
    "  [last] y = Conv<pads=[1,1,1,1]>(c, u) }"
)


def draw_weights() -> Weights:
    """Weights of `SCALED`; mean and variance of the normalization are 0 and 1."""
    draw = np.random.default_rng(3)
    shapes = {"w": (4, 3, 3, 3), "s": (4,), "o": (4,), "u": (4, 4, 3, 3)}
    weights = {n: draw.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    return weights | {"m": np.zeros(4, np.float32), "v": np.ones(4, np.float32)}


def pair(folder: Path, *inputs: str) -> CandidateModel:
    """The models `model.onnx` and `other.onnx` of a folder."""
    setup = Setup(
        parse("ort"), Feeding(inputs), folder / "out", candidate_model=folder / "other.onnx"
    )
    with open_with_processes(load(folder / "model.onnx"), setup, parse("ort")) as trials:
        assert trials.runtime.own_model
        return trials.runtime.own_model


def save_folded(folder: Path, change: Callable[[Weights], None] = lambda weights: None) -> None:
    """Save `SCALED`; and the same with the normalization in the Conv, after a change of weights."""
    weights = draw_weights()
    text_models.save(folder / "model.onnx", SCALED, **weights)
    change(weights)
    scale = (weights["s"] / np.sqrt(weights["v"] + np.float32(1e-5))).astype(np.float32)
    folded = weights["w"] * scale[:, None, None, None]
    text_models.save(folder / "other.onnx", FOLDED, w=folded, o=weights["o"], u=weights["u"])


def save_scaled(folder: Path, ours: str, folded: str) -> None:
    """Save a model that scales the channels of its Convs, and one whose weights are scaled."""
    w = draw_weights()["w"]
    u = draw_weights()["u"]
    k = np.array([0.5, 2, 3, 4], np.float32).reshape(4, 1, 1, 1)
    text_models.save(folder / "model.onnx", ours, w=w, u=u, k=k.reshape(1, 4, 1, 1))
    text_models.save(folder / "other.onnx", folded, w=w * k, u=u * k)


def test_name_that_a_folded_normalization_leaves_is_matched_with_its_output(tmp_path: Path) -> None:
    save_folded(tmp_path)
    found = pair(tmp_path)
    assert {n: m.name for n, m in found.matches.items()} == {"x": "x", "b": "a", "c": "c", "y": "y"}
    assert found.refuted == {("a", "a")}


def test_fault_that_a_relu_hides_but_for_one_element_does_not_refute_a_name(tmp_path: Path) -> None:
    text = (
        "g (float[1,1,64,64] x) => (float[1,1,64,64] y)"
        " { [conv] a = Conv(x, w)  [relu] c = Relu(a)  [last] y = Conv(c, u) }"
    )
    x = np.ones((1, 1, 64, 64), np.float32)
    x[0, 0, 0, 0] = -0.1
    np.save(tmp_path / "x.npy", x)
    w = np.array([-1, 1], np.float32).reshape(2, 1, 1, 1)
    u = np.ones((1, 2, 1, 1), np.float32)
    text_models.save(tmp_path / "model.onnx", text, w=w, u=u)
    w[0] = -1.5
    text_models.save(tmp_path / "other.onnx", text, w=w, u=u)
    assert not pair(tmp_path, f"x={tmp_path / 'x.npy'}").refuted


def test_name_that_moved_to_a_tensor_of_another_size_is_matched_with_that_tensor(
    tmp_path: Path,
) -> None:
    ours = (
        "g (float[1,1,4,4] x) => (float[1,2,4,4] y)"
        " { [pad] a = Pad(x, p)  [conv] b = Conv(a, w)  [last] y = Relu(b) }"
    )
    theirs = (
        "g (float[1,1,4,4] x) => (float[1,2,4,4] y)"
        " { [conv] a = Conv<pads=[1,1,1,1]>(x, w)  [last] y = Relu(a) }"
    )
    w = np.ones((2, 1, 3, 3), np.float32)
    pads = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    text_models.save(tmp_path / "model.onnx", ours, w=w, p=pads)
    w[0] = 2
    text_models.save(tmp_path / "other.onnx", theirs, w=w)
    found = pair(tmp_path).matches
    assert {n: m.name for n, m in found.items()} == {"x": "x", "b": "a", "y": "y"}


def test_fault_downstream_does_not_hide_a_name_that_moved(tmp_path: Path) -> None:
    save_folded(tmp_path, lambda weights: weights.update(u=weights["u"][:, ::-1].copy()))
    assert pair(tmp_path).refuted == {("a", "a")}


def test_two_names_in_a_row_that_moved_are_refuted_together(tmp_path: Path) -> None:
    """Each Conv has its normalization folded, and nothing is between the two."""
    chain = (
        "g (float[1,3,6,6] x) => (float[1,4,6,6] y)"
        " { a = Conv<pads=[1,1,1,1]>(x, w)  b = Mul(a, k)  c = Conv<pads=[1,1,1,1]>(b, u)"
        "  d = Mul(c, k)  y = Relu(d) }"
    )
    folded = (
        "g (float[1,3,6,6] x) => (float[1,4,6,6] y)"
        " { a = Conv<pads=[1,1,1,1]>(x, w)  c = Conv<pads=[1,1,1,1]>(a, u)  y = Relu(c) }"
    )
    save_scaled(tmp_path, chain, folded)
    found = pair(tmp_path)
    assert found.refuted == {("a", "a"), ("c", "c")}
    assert {n: m.name for n, m in found.matches.items()} == {"x": "x", "b": "a", "d": "c", "y": "y"}


def test_names_that_moved_on_two_branches_are_refuted_together(tmp_path: Path) -> None:
    """The Add reads both, so that joining it with one of them alone is not right."""
    branches = (
        "g (float[1,3,6,6] x) => (float[1,4,6,6] y)"
        " { a = Conv<pads=[1,1,1,1]>(x, w)  b = Mul(a, k)  c = Conv<pads=[1,1,1,1]>(b, u)"
        "  d = Mul(c, k)  e = Add(b, d)  y = Relu(e) }"
    )
    folded = (
        "g (float[1,3,6,6] x) => (float[1,4,6,6] y)"
        " { a = Conv<pads=[1,1,1,1]>(x, w)  c = Conv<pads=[1,1,1,1]>(a, u)  e = Add(a, c)"
        "  y = Relu(e) }"
    )
    save_scaled(tmp_path, branches, folded)
    assert pair(tmp_path).refuted == {("a", "a"), ("c", "c")}


@pytest.mark.parametrize("folded", [(0, 1, 2), (0, 1)])
def test_next_to_a_fault_a_name_moved_as_all_names_of_its_kind(
    folded: tuple[int, ...], tmp_path: Path
) -> None:
    """The third Conv has a fault. If the two others have their normalizations folded, so has it; if
    one of these keeps its normalization, it has a fault of its own."""
    draw = np.random.default_rng(4)
    weights = {f"w{k}": draw.standard_normal((4, 4)).astype(np.float32) for k in range(4)}
    scale = np.array([0.5, 2, 3, 4], np.float32)
    ours = "  ".join(
        f"a{k} = MatMul(x{k}, w{k})  b{k} = Mul(a{k}, s)  x{k + 1} = Relu(b{k})" for k in range(4)
    )
    theirs = ours
    own = {**weights}
    for k in (*folded, 3):
        theirs = theirs.replace(
            f"b{k} = Mul(a{k}, s)  x{k + 1} = Relu(b{k})", f"x{k + 1} = Relu(a{k})"
        )
        own[f"w{k}"] = weights[f"w{k}"] * scale
    own["w3"] = own["w3"][:, ::-1].copy()
    text = "g (float[3,4] x0) => (float[3,4] y) {{ {}  y = Neg(x4) }}"
    text_models.save(tmp_path / "model.onnx", text.format(ours), s=scale, **weights)
    text_models.save(tmp_path / "other.onnx", text.format(theirs), s=scale, **own)
    found = {name for name, _ in pair(tmp_path).refuted}
    assert found == {f"a{k}" for k in (*folded, *([3] if len(folded) == 3 else []))}


def test_faulty_weights_refute_no_name(tmp_path: Path) -> None:
    weights = draw_weights()
    text_models.save(tmp_path / "model.onnx", SCALED, **weights)
    weights["w"] = weights["w"][:, ::-1].copy()
    text_models.save(tmp_path / "other.onnx", SCALED, **weights)
    found = pair(tmp_path)
    assert (set(found.matches), set(found.refuted)) == ({"x", "a", "b", "c", "y"}, set())


def test_relu_that_a_quantizer_stands_for_hands_its_name_on(tmp_path: Path) -> None:
    """The candidate's `b` is what the reference's Relu reads; its own Relu is the clipping."""
    plain = "g (float[4,8] x) => (float[4,8] y) { a = MatMul(x, w)  b = Relu(a)  y = MatMul(b, w) }"
    dropped = (
        "g (float[4,8] x) => (float[4,8] y) { b = MatMul(x, w)  c = QuantizeLinear(b, s, z)"
        "  d = DequantizeLinear(c, s, z)  y = MatMul(d, w) }"
    )
    w = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)
    step = {"s": np.float32(0.06), "z": np.uint8(0)}
    text_models.save(tmp_path / "model.onnx", plain, w=w)
    text_models.save(tmp_path / "other.onnx", dropped, w=w, **step)
    found = pair(tmp_path)
    assert {n: m.name for n, m in found.matches.items()} == {"x": "x", "a": "b", "b": "c", "y": "y"}


def test_codes_that_no_output_needs_are_no_boundary(tmp_path: Path) -> None:
    """The candidate's model lost the Add that reads `b`."""
    ours = "g (float[2,4] x) => (float[2,4] y) { a = Exp(x)  b = Sin(a)  y = Add(a, b) }"
    lost = (
        "g (float[2,4] x) => (float[2,4] y) { a = Exp(x)  b = Sin(a)  c = QuantizeLinear(b, s)"
        "  y = Identity(a) }"
    )
    text_models.save(tmp_path / "model.onnx", ours)
    text_models.save(tmp_path / "other.onnx", lost, s=np.float32(0.01))
    assert set(pair(tmp_path).matches) == {"x", "a", "y"}


def test_tensor_that_no_output_needs_is_no_boundary(tmp_path: Path) -> None:
    ours = "g (float[2,3] x) => (float[2,3] y) { a = Exp(x)  b = Relu(a)  c = Sin(b)  y = Neg(c) }"
    dead = "g (float[2,3] x) => (float[2,3] y) { a = Exp(x)  b = Relu(a)  c = Sin(a)  y = Neg(c) }"
    text_models.save(tmp_path / "model.onnx", ours)
    text_models.save(tmp_path / "other.onnx", dead)
    assert set(pair(tmp_path).matches) == {"x", "a", "c", "y"}


RESHAPED = "g (float[1,16] x) => (float[1,16] y) {{ a = Exp(x)  {}  y = Relu(f) }}"


@pytest.mark.parametrize(
    ("nodes", "is_matched"),
    [
        ("b = Identity(a)  c = Softmax<axis=-1>(b)  f = Reshape(c, flat)", True),
        ("b = Identity(a)  c = Sin(b)  f = Reshape(c, flat)", False),
    ],
)
def test_tensor_of_another_shape_is_a_boundary_if_what_reads_it_needs_ours(
    nodes: str, is_matched: bool, tmp_path: Path
) -> None:
    """The Softmax needs the 4×4 values that the candidate's model has as 1×16; a Sin does not."""
    ours = nodes.replace("Identity(a)", "Reshape(a, square)")
    shapes = {"square": np.array([4, 4]), "flat": np.array([1, 16])}
    text_models.save(tmp_path / "model.onnx", RESHAPED.format(ours), **shapes)
    text_models.save(tmp_path / "other.onnx", RESHAPED.format(nodes), flat=shapes["flat"])
    found = pair(tmp_path)
    assert ("b" in found.matches) is is_matched
    assert not found.refuted


def test_reshaped_vector_is_not_taken_for_a_transposed_one(tmp_path: Path) -> None:
    """1×16 and 16×1 differ by an exchange of axes, and by a Reshape; the MatMul takes the first."""
    ours = "g (float[1,16] x) => (float[1,3] y) { a = Exp(x)  b = Relu(a)  y = MatMul(b, w) }"
    turned = ours.replace("Relu(a)", "Reshape(a, tall)")
    w = np.random.default_rng(0).standard_normal((16, 3)).astype(np.float32)
    text_models.save(tmp_path / "model.onnx", ours, w=w)
    text_models.save(tmp_path / "other.onnx", turned, w=w, tall=np.array([16, 1]))
    found = pair(tmp_path)
    assert found.matches["b"].perm == ()


def test_picture_of_exchanged_sizes_is_not_taken_for_a_transposed_one(tmp_path: Path) -> None:
    """A folded shape exchanges height and width; all that follows has these, too."""
    ours = (
        "g (float[1,1,4,6] x) => (float[1,1] y) { a = Reshape(x, s)  b = Conv(a, k)  c = Relu(b)"
        "  d = Conv(c, k)  e = GlobalAveragePool(d)  y = Flatten(e) }"
    )
    k = np.random.default_rng(0).standard_normal((1, 1, 2, 2)).astype(np.float32)
    text_models.save(tmp_path / "model.onnx", ours, k=k, s=np.array([1, 1, 6, 4]))
    text_models.save(tmp_path / "other.onnx", ours, k=k, s=np.array([1, 1, 4, 6]))
    assert {name: m.perm for name, m in pair(tmp_path).matches.items() if m.perm} == {}


def test_types_behind_a_contrib_operator_are_ours(tmp_path: Path) -> None:
    """onnx infers no type there, and the reference does not run this operator."""
    ours = "g (float[2,4] x) => (float[2,4] y) { a = Relu(x)  b = Exp(a)  y = Neg(b) }"
    theirs = ours.replace("Exp", "odd.Wave")
    text_models.save(tmp_path / "model.onnx", ours)
    text_models.save(tmp_path / "other.onnx", theirs, domains=("odd",))
    matches = pair(tmp_path).matches
    assert {name: m.dtype for name, m in matches.items()} == dict.fromkeys("xaby", "float32")


HEALTHY: dict[str, Callable[[onnx.ModelProto, converted.Feeds], onnx.ModelProto]] = {
    "int8": converted.int8,
    "fp16": converted.fp16,
    "extended": lambda model, _: converted.optimized(model, "extended"),
    "nhwc": lambda model, _: converted.nhwc(model),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", HEALTHY)
def test_faultless_conversion_keeps_the_meaning_of_all_names(form: str, tmp_path: Path) -> None:
    model = networks.vision()
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    image = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    np.save(tmp_path / "x.npy", image)
    onnx.save(model, tmp_path / "model.onnx")
    name = model.graph.input[0].name
    onnx.save(HEALTHY[form](model, {name: image}), tmp_path / "other.onnx")
    assert not pair(tmp_path, f"{name}={tmp_path / 'x.npy'}").refuted


@pytest.mark.parametrize(("last", "shape"), [(-1, (1, 4)), (0, (4, 1))])
def test_output_of_another_shape_is_not_taken_for_transposed(
    tmp_path: Path, last: int, shape: tuple[int, int]
) -> None:
    """Its only other axis has one element, so any order of axes gives the same values."""
    text = "g (float[1,4,1] x) => (float[N,M] y) { y = Squeeze(x, axes) }"
    text_models.save(tmp_path / "model.onnx", text, axes=np.array([-1]))
    text_models.save(tmp_path / "other.onnx", text, axes=np.array([last]))
    match = pair(tmp_path).matches["y"]
    assert match.to_candidate(np.zeros(shape, np.float32)).shape == shape


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (
            "{ a = MatMul(x, w) b = Softmax(a) c = Tanh(b) d = MatMul(c, u) y = Sigmoid(d) }",
            "{ p = MatMul(x, w) q = Softmax<axis=0>(p) r = Tanh(q) s = MatMul(r, u)"
            " y = Sigmoid(s) }",
            {"a": "p", "b": "q", "c": "r", "d": "s"},
        ),
        (  # a fused operator downstream of the fault
            "{ a = MatMul(x, w) b = Softmax(a) c = Neg(b) d = Exp(c) e = Add(d, one)"
            " f = Reciprocal(e) y = MatMul(f, u) }",
            "{ p = MatMul(x, w) q = Softmax<axis=0>(p) r = Sigmoid(q) y = MatMul(r, u) }",
            {"a": "p", "b": "q", "f": "r"},
        ),
        (  # two tensors downstream of the fault that one node reads
            "{ a = MatMul(x, w) b = Softmax(a) c = Tanh(b) d = MatMul(b, u) y = Add(c, d) }",
            "{ p = MatMul(x, w) q = Softmax<axis=0>(p) r = Tanh(q) s = MatMul(q, u)"
            " y = Add(r, s) }",
            {"a": "p", "b": "q", "c": "r", "d": "s"},
        ),
    ],
)
def test_tensor_downstream_of_a_fault_is_matched_by_what_is_computed_of_it(
    ours: str, theirs: str, expected: dict[str, str], tmp_path: Path
) -> None:
    """All names differ, and downstream of the Softmax all values."""
    draw = np.random.default_rng(5)
    weights = {n: draw.standard_normal((8, 8)).astype(np.float32) for n in ("w", "u")}
    weights["one"] = np.ones(1, np.float32)
    for file, text in {"model.onnx": ours, "other.onnx": theirs}.items():
        used = {name: value for name, value in weights.items() if name in text}
        text_models.save(tmp_path / file, f"g (float[8,8] x) => (float[8,8] y) {text}", **used)
    found = pair(tmp_path)
    names = {n: m.name for n, m in found.matches.items()}
    assert names == {"x": "x", "y": "y", **expected}
    assert found.matches["b"].how == "use"


@pytest.mark.parametrize(("name", "holds"), [("a", False), ("b", True)])
def test_codes_that_clip_are_not_the_tensor_that_a_relu_reads(
    name: str, holds: bool, tmp_path: Path
) -> None:
    text = "g (float[2] x) => (float[2] y) { a = Neg(x) b = Relu(a) y = Neg(b) }"
    match = MatchedTensor("codes", "use", dtype="uint8", scale=Scale((0.1,), (0,)))
    values = np.array([-1, 1], np.float32)
    codes = np.array([0, 10], np.uint8)
    assert can_hold(text_models.load(tmp_path, text), name, match, values, codes) is holds
