"""A finding between two models: which of them is to blame, and what differs between them.

Each pair of models differs in one part, or only in what runs the second one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.planted_candidates import planted
from tests.helpers.run_command import subcut

RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(4, 4)).astype(np.float32)
VALUES = RNG.normal(size=(3, 4)).astype(np.float32)
TYPES = "g (float[3,4] x) => (float[3,4] y)"
SOFTMAX = TYPES + "{ [mm] a = MatMul (x, w) [soft] y = Softmax <axis = %s> (a) }"
CHAIN = TYPES + "{ [mm] a = MatMul (x, w) [last] y = Sigmoid (a) }"
NEGATED = TYPES + "{ [mm] a = MatMul (x, w) [last] y = Neg (a) }"
QUANTIZED = (
    TYPES
    + "{ [mm] a = MatMul (x, w) [q] c = QuantizeLinear (a, s, z)"
    + " [d] b = DequantizeLinear (c, s, z) [last] y = Sigmoid (b) }"
)
RESHAPED = (
    "g (float[3,4] x) => (float[N,M] y) { [shape] s = Shape (x) [pick] k = Gather (s, one)"
    " [two] l = Mul (k, half) [join] t = Concat <axis = 0> (l, rest) [turn] r = Reshape (x, t)"
    " [last] y = Relu (r) }"
)
FOLDED = "g (float[3,4] x) => (float[N,M] y) { [turn] r = Reshape (x, folded) [last] y = Relu (r) }"
SHAPES = {"one": np.array([1]), "half": np.array([1]), "rest": np.array([3])}
GATHERED = (
    "g (float[3,4] x) => (float[2,4,3] y) { [abs] p = Abs (x) [ids] i = Cast <to = 7> (p)"
    " [pick] g = Gather (t, i) %s [turn] u = Transpose (%s) [last] y = Exp (u) }"
)
TABLE = np.array([[0.5, 1.0], [-np.inf, 0.25], [0.1, 0.2], [0.3, 0.4]], np.float32)
# It computes another function instead of Sigmoid.
WRONG = planted("""
for node in nodes:
    if node.op_type == "Sigmoid":
        node.op_type = "Softsign"
""")


def finding(folder: Path, ours: Any, theirs: Any, *more: str, x: Any = VALUES) -> dict[str, Any]:
    """The only finding of a bisection with another model; each one is a text and its weights."""
    for name, (text, weights) in {"m.onnx": ours, "other.onnx": theirs}.items():
        text_models.save(folder / name, text, **weights)
    np.save(folder / "x.npy", x)
    command = ("bisect", "m.onnx", "--candidate-model", "other.onnx", "-i", "x.npy", "--json")
    done = subcut(*command, *more, cwd=folder)
    assert done.code == 1, done.err
    [found] = done.document["findings"]
    return dict(found)


def rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    return [tuple(row.values()) for row in found["differences"]]


def test_attribute_that_differs_is_named(tmp_path: Path) -> None:
    found = finding(tmp_path, (SOFTMAX % 1, {"w": WEIGHT}), (SOFTMAX % 0, {"w": WEIGHT}))
    assert found["nodes"] == ["soft"] and rows(found) == [("soft", "axis", "1", "0")]
    assert has_line(found["evidence"][0]["says"], "the model", "axis", "1", "0")


def test_transpose_of_other_axes_is_named_and_not_what_reads_it(tmp_path: Path) -> None:
    text = TYPES.replace("[3,4] y", "[2,6] y") + (
        "{ [mm] a = MatMul (x, w) [turn] t = Transpose <perm = [%s]> (a)"
        " [join] r = Reshape (t, sizes) [last] y = Exp (r) }"
    )
    weights = {"w": WEIGHT, "sizes": np.array([2, 6])}
    found = finding(tmp_path, (text % "1, 0", weights), (text % "0, 1", weights))
    assert found["nodes"] == ["turn"] and ("turn", "perm", "[1, 0]", "[0, 1]") in rows(found)


def test_attribute_at_its_default_is_compared(tmp_path: Path) -> None:
    text = SOFTMAX.replace(" <axis = %s>", "")
    found = finding(tmp_path, (text, {"w": WEIGHT}), (SOFTMAX % 0, {"w": WEIGHT}))
    assert rows(found) == [("soft", "axis", "-1", "0")]


def test_attributes_that_a_newer_version_adds_are_one_row(tmp_path: Path) -> None:
    """A converter that keeps the attributes of Resize 10 changes its coordinates."""
    text = TYPES.replace("3,4] y", "N,M] y") + "{ [up] y = Resize <mode = 'linear'> (x%s, s) }"
    text = text.replace("'", '"')
    scales = {"s": np.array([2, 2], np.float32)}
    old, new = {"opset": 10, **scales}, {"opset": 11, **scales, "roi": np.zeros(0, np.float32)}
    found = finding(tmp_path, (text % "", old), (text % ", roi", new))
    [version] = [row for row in rows(found) if row[1] == "version of the operator"]
    assert version[2] == "10" and has_line([version[3]], "half_pixel"), version
    assert not {row[1] for row in rows(found)} & {"extrapolation_value", "scales"}


def test_operator_that_differs_is_named(tmp_path: Path) -> None:
    found = finding(tmp_path, (CHAIN, {"w": WEIGHT}), (NEGATED, {"w": WEIGHT}))
    assert rows(found) == [("last", "operator", "Sigmoid", "Neg")]


def test_constant_that_differs_is_named_with_its_distance(tmp_path: Path) -> None:
    found = finding(tmp_path, (CHAIN, {"w": WEIGHT}), (CHAIN, {"w": WEIGHT * 2}))
    [(node, part, ours, theirs)] = rows(found)
    assert (node, part) == ("mm", "B")
    assert has_line(ours, "float32 4×4") and has_line(theirs, "float32 4×4", "100 % apart")


def test_constant_that_is_farthest_apart_comes_first(tmp_path: Path) -> None:
    text = TYPES + "{ [m0] %s = MatMul (x, w0) [act] %s = Tanh (%s) [m1] y = MatMul (%s, w1) }"
    weights = {"w0": WEIGHT, "w1": WEIGHT.T.copy()}
    theirs = {"w0": WEIGHT * np.float32(1.01), "w1": weights["w1"] * np.float32(1.5)}
    fused = text % ("t0", "t1", "t0", "t1")  # no tensor between is the candidate's, so all is one
    found = finding(tmp_path, (text % ("a", "b", "a", "b"), weights), (fused, theirs))
    assert [row[:2] for row in rows(found)][:2] == [("m1", "B"), ("m0", "B")]


def test_scale_of_the_other_models_quantizer_is_named(tmp_path: Path) -> None:
    scale = {"s": np.float32(2.5), "z": np.int8(1)}
    found = finding(tmp_path, (CHAIN, {"w": WEIGHT}), (QUANTIZED, {"w": WEIGHT, **scale}))
    assert any(
        has_line(theirs, "QuantizeLinear", "scale 2.5", "zero point 1")
        for _, _, ours, theirs in rows(found)
        if not ours
    )


def test_scale_that_a_mask_sets_is_the_cause(tmp_path: Path) -> None:
    """A step of 39 rounds all scores to 0; the Softmax downstream of it is healthy."""
    masked = TYPES + "{ [mm] a = MatMul (x, w) [mask] m = Add (a, far)%s [soft] y = Softmax (%s) }"
    steps = " [q] c = QuantizeLinear (m, s, z) [d] b = DequantizeLinear (c, s, z)"
    weights = {"w": WEIGHT, "far": np.array([-1e4, 0, 0, 0], np.float32)}
    scale = {"s": np.float32(39.2), "z": np.int8(127)}
    found = finding(
        tmp_path, (masked % ("", "m"), weights), (masked % (steps, "b"), weights | scale)
    )
    assert found["nodes"] == ["mask"]
    [quantizer] = [row for row in rows(found)[:1] if row[1] == "quantizer of m"]
    assert has_line([quantizer[3]], "of our values 0", "scale 39.2"), quantizer


def test_outliers_that_set_a_scale_at_run_time_are_the_cause(tmp_path: Path) -> None:
    """One scale for 400 and values below 3: each node is within its rounding, the output is not."""
    text = "g (float[8,16] x) => (float[8,16] y) { [in] a = MatMul (x, w) [far] b = Add (a, v)"
    ours = text + " [last] y = MatMul (b, u) }"
    theirs = (
        text
        + """ [q] c, s, z = DynamicQuantizeLinear (b) [last] i = MatMulInteger (c, k, z)
        [cast] f = Cast <to = 1> (i) [by] t = Mul (s, step) [mul] y = Mul (f, t) }"""
    )
    outlier = np.zeros(16, np.float32)
    outlier[3] = 400
    first, second = RNG.normal(size=(2, 16, 16)).astype(np.float32) / 4
    second[3] = 0
    step = np.float32(np.abs(second).max() / 127)
    codes = {"k": np.rint(second / step).astype(np.int8), "step": step}
    weights = {"w": first, "v": outlier}
    x = RNG.normal(size=(8, 16)).astype(np.float32)
    found = finding(tmp_path, (ours, weights | {"u": second}), (theirs, weights | codes), x=x)
    assert found["nodes"] == ["last"]
    assert rows(found)[0][:2] == ("last", "quantizer of b")
    assert has_line(found["evidence"][0]["says"], "the range", "of our values 0", "next to 40")


def test_weight_that_an_outlier_of_it_makes_0_is_the_cause(tmp_path: Path) -> None:
    """One scale for 55 and values below 3, as of a trained voice detector."""
    weight = RNG.normal(size=(16, 16)).astype(np.float32) / 8
    weight[2, 3] = 55
    step = np.float32(55 / 127)
    codes = {"w_quantized": np.rint(weight / step).astype(np.int8), "w_scale": step}
    text = "g (float[8,16] x) => (float[8,16] y) { [in] a = MatMul (x, %s) [last] y = Tanh (a) }"
    lowered = text.replace("{", "{ [d] r = DequantizeLinear (w_quantized, w_scale)") % "r"
    x = RNG.normal(size=(8, 16)).astype(np.float32)
    found = finding(tmp_path, (text % "w", {"w": weight}), (lowered, codes), x=x)
    assert found["nodes"] == ["in"] and rows(found)[0][:2] == ("in", "quantizer of w")
    assert has_line(found["evidence"][0]["says"], "the range", "of our values 0", "next to 55")


@pytest.mark.slow
def test_each_layer_with_a_scale_that_an_outlier_sets_is_named(tmp_path: Path) -> None:
    """Each one alone changes little; without five of the six the outputs agree."""
    layer = " [far{0}] b{0} = Add (t{0}, v{0}) {1} [sum{0}] t{2} = Add (t{0}, u{0})"
    plain = "[up{0}] u{0} = MatMul (b{0}, w{0})"
    lowered = """[q{0}] c{0}, s{0}, z{0} = DynamicQuantizeLinear (b{0})
        [up{0}] i{0} = MatMulInteger (c{0}, k{0}, z{0}) [cast{0}] f{0} = Cast <to = 1> (i{0})
        [by{0}] p{0} = Mul (s{0}, d{0}) [mul{0}] u{0} = Mul (f{0}, p{0})"""
    random = np.random.default_rng(0)
    both: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    for k in range(6):
        both[f"v{k}"] = np.where(np.arange(32) == k, np.float32(400), np.float32(0))
        weight = ours[f"w{k}"] = random.normal(size=(32, 32)).astype(np.float32) / 6
        weight[k] = 0
        step = theirs[f"d{k}"] = np.float32(np.abs(weight).max() / 127)
        theirs[f"k{k}"] = np.rint(weight / step).astype(np.int8)
    texts = [
        "g (float[16,32] t0) => (float[16,32] t6) {"
        + "".join(layer.format(k, form.format(k), k + 1) for k in range(6))
        + "}"
        for form in (plain, lowered)
    ]
    x = random.normal(size=(16, 32)).astype(np.float32)
    found = finding(tmp_path, (texts[0], both | ours), (texts[1], both | theirs), x=x)
    assert len(found["nodes"]) >= 5 and set(found["nodes"]) <= {f"up{k}" for k in range(6)}
    assert has_line(found["evidence"][0]["says"], "the range", "others at up1, up2")


def test_folded_shape_is_named_with_both_values(tmp_path: Path) -> None:
    """The other model was exported for another size."""
    folded = {"folded": np.array([6, 2])}
    found = finding(tmp_path, (RESHAPED, SHAPES), (FOLDED, folded))
    shapes = {part: values for _, part, *values in rows(found)}["shape"]
    assert has_line(shapes[0], "[4, 3]", "shape", "pick", "two", "join") and has_line(
        shapes[1], "[6, 2]"
    )


def test_scale_is_named_that_an_infinity_of_a_table_makes_infinite(tmp_path: Path) -> None:
    """What reads the NaN behind it is not blamed."""
    quantized = {"t": np.zeros((4, 2), np.uint8), "s": np.float32(np.inf), "z": np.uint8(0)}
    found = finding(
        tmp_path,
        (GATHERED % ("", "g"), {"t": TABLE}),
        (GATHERED % ("[d] r = DequantizeLinear (g, s, z)", "r"), quantized),
    )
    assert found["nodes"] == ["pick"]
    assert [has_line(theirs, "scale inf") for *_, theirs in rows(found)] == [False, True]


def test_model_is_to_blame_if_the_reference_computes_the_same_of_it(tmp_path: Path) -> None:
    """Neither switches of the runtime nor other precisions or programs are tried."""
    found = finding(tmp_path, (CHAIN, {"w": WEIGHT}), (NEGATED, {"w": WEIGHT}))
    assert {line["kind"] for line in found["evidence"]} == {"conclusion", "model", "noise"}


def test_input_that_no_node_computes_is_named(tmp_path: Path) -> None:
    """The reference refuses that model as well, so no runtime is to blame."""
    added = TYPES + "{ [mm] a = MatMul (x, w) [last] y = Add (a, %s) }"
    ours = (added % "b", {"w": WEIGHT, "b": WEIGHT[0]})
    found = finding(tmp_path, ours, (added % "gone", {"w": WEIGHT}))
    assert (found["nodes"], found["signature"]) == (["last"], "refused")
    assert rows(found)[0][:2] == ("last", "input") and has_line(rows(found)[0][3], "'gone'")
    assert has_line(found["evidence"][0]["says"], "the model", "'gone'")


@pytest.mark.slow
def test_runtime_is_to_blame_if_the_reference_computes_the_other_model_right(
    tmp_path: Path,
) -> None:
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    same = (CHAIN, {"w": WEIGHT})
    found = finding(tmp_path, same, same, "-c", "wrong.py", "--trust")
    assert "differences" not in found
    assert not has_line(found["evidence"][0]["says"], "the model")
    says = [line["says"] for line in found["evidence"] if line["kind"] == "model"]
    assert has_line(says, "other.onnx", "right")


@pytest.mark.parametrize("number", [3, 40])
def test_at_most_twelve_differences_are_listed(number: int, tmp_path: Path) -> None:
    body = " ".join(f"t{k} = Identity (t{k - 1})" for k in range(1, number))
    text = TYPES + "{ t0 = Neg (x) " + body + f" y = Relu (t{number - 1})" + "}"
    same = TYPES + "{ y = Sigmoid (x) }"
    found = finding(tmp_path, (same, {}), (text, {}))
    assert len(found["differences"]) == min(number + 1, 12)
    assert found.get("more_differences", 0) == max(number + 1 - 12, 0)


@pytest.mark.slow
def test_node_that_reads_another_tensor_is_the_headline(tmp_path: Path) -> None:
    """Its piece cannot be cut between the same tensors, so that no search finds it."""
    text = TYPES + (
        "{ [mm] a = MatMul (x, w) [act] b = Tanh (a) [next] c = MatMul (b, w)"
        " [sum] y = Add (c, %s) }"
    )
    theirs = {"w": WEIGHT}
    command = ("bisect", "m.onnx", "--candidate-model", "other.onnx", "-i", "x.npy", "--json")
    text_models.save(tmp_path / "m.onnx", text % "b", **theirs)
    text_models.save(tmp_path / "other.onnx", text % "a", **theirs)
    np.save(tmp_path / "x.npy", VALUES)
    done = subcut(*command, cwd=tmp_path)
    assert done.code == 1 and has_line(done.document["says"], "sum", "reads a", "b in ours"), done
    found = done.document["findings"][0]
    assert ("sum", "input", "reads b", "reads a") in rows(found)


def test_exchanged_inputs_of_a_sum_are_the_same(tmp_path: Path) -> None:
    text = TYPES + "{ [mm] a = MatMul (x, w) [act] b = Tanh (a) [sum] y = Add (%s) }"
    weights = (text % "a, b", {"w": WEIGHT}), (text % "b, a", {"w": WEIGHT * 2})
    assert [row[:2] for row in rows(finding(tmp_path, *weights))] == [("mm", "B")]


def test_output_in_another_order_of_axes_is_no_layout(tmp_path: Path) -> None:
    """Its shape is the same: the candidate's model lacks the Transpose."""
    text = "g (float[3,3] x) => (float[3,3] y) { [mm] a = MatMul (x, w) [last] y = %s }"
    weights = {"w": WEIGHT[:3, :3].copy()}
    for name, node in {"m.onnx": "Transpose (a)", "other.onnx": "Identity (a)"}.items():
        text_models.save(tmp_path / name, text % node, **weights)
    np.save(tmp_path / "x.npy", VALUES[:3, :3].copy())
    command = ("bisect", "m.onnx", "--candidate-model", "other.onnx", "-i", "x.npy", "--json")
    done = subcut(*command, cwd=tmp_path)
    assert done.code == 1 and done.document["findings"][0]["nodes"] == ["last"], done


@pytest.mark.parametrize(
    ("theirs", "weight", "is_told"),
    [("m, w, c", 1.0, False), ("m, w, c", 2.0, True), ("m, w", 1.0, True)],
)
def test_constant_that_no_output_shows_is_a_note(
    theirs: str, weight: float, is_told: bool, tmp_path: Path
) -> None:
    """A bias beside sums that are a million times as large."""
    text = TYPES + "{ [big] m = Mul (x, k) [fc] y = Gemm (%s) }"
    constants = {"w": WEIGHT, "k": np.array([1e6], np.float32)}
    bias = np.full(4, 1e-3, np.float32)
    text_models.save(tmp_path / "m.onnx", text % "m, w, c", **constants, c=bias)
    other = {**constants, "c": bias * np.float32(weight)} if "c" in theirs else constants
    text_models.save(tmp_path / "other.onnx", text % theirs, **other)
    np.save(tmp_path / "x.npy", VALUES)
    command = ("bisect", "m.onnx", "--candidate-model", "other.onnx", "-i", "x.npy", "--json")
    done = subcut(*command, cwd=tmp_path)
    assert done.code == 0, done
    assert any("models differ: fc" in note for note in done.document["notes"]) is is_told


def bisect_texts(folder: Path, ours: Any, theirs: Any, x: Any) -> Any:
    """Bisect two models, each a text and its weights."""
    for name, (text, weights) in {"m.onnx": ours, "other.onnx": theirs}.items():
        text_models.save(folder / name, text, domains=("com.microsoft",), **weights)
    np.save(folder / "x.npy", x)
    command = ("bisect", "m.onnx", "--candidate-model", "other.onnx", "-i", "x.npy", "--json")
    return subcut(*command, cwd=folder).document


def test_fused_node_that_reads_another_tensor_is_named(tmp_path: Path) -> None:
    """Its operator is another one, so that its inputs have no counterparts."""
    text = "{ [p] a = Sin (x) [q] b = Cos (x) %s [join] z = Add (s, b) [last] y = Mul (z, a) }"
    ours = TYPES + text % "[mm] c = MatMul (x, w) [sum] s = Add (c, a)"
    theirs = TYPES + text % "[sum] s = Gemm (x, w, b)"
    found = bisect_texts(tmp_path, (ours, {"w": WEIGHT}), (theirs, {"w": WEIGHT}), VALUES)
    assert rows(found["findings"][0])[0] == ("sum", "input", "reads a", "reads b"), found


def test_tensors_that_one_node_of_theirs_computes_are_no_boundaries(tmp_path: Path) -> None:
    """The candidate contradicted itself: no piece is between the sum and its normalization."""
    ours = TYPES + (
        "{ [act] a = Tanh (x) [sum] s = Add (a, x) [norm] n = LayerNormalization (s, g, h)"
        " [mm] m = MatMul (n, w) [out] y = Add (m, s) }"
    )
    theirs = TYPES + (
        "{ [act] a = Tanh (x) [fused] n, i, j, s = com.microsoft.SkipLayerNormalization"
        " <epsilon = 0.5> (a, x, g, h) [mm] m = MatMul (n, w) [out] y = Add (m, s) }"
    )
    ours, theirs = (text.replace("float[3,4]", "float[1,3,4]") for text in (ours, theirs))
    weights = {"g": np.ones(4, np.float32), "h": np.zeros(4, np.float32), "w": WEIGHT}
    found = bisect_texts(tmp_path, (ours, weights), (theirs, weights), VALUES[None])
    assert [f["nodes"] for f in found["findings"]] == [["sum", "norm"]], found


def test_what_the_reference_computes_of_their_piece_is_no_kernel(tmp_path: Path) -> None:
    """A bias of 0.01 % was right within approximate kernels."""
    text = "g (float[1,2,6,6] x) => (float[1,3,6,6] y) { [conv] y = Conv %s }"
    weight = RNG.normal(size=(3, 2, 1, 1)).astype(np.float32)
    bias = np.full(3, 5e-4, np.float32)
    x = RNG.normal(size=(1, 2, 6, 6)).astype(np.float32)
    ours = text % "(x, k, c)", {"k": weight, "c": bias}
    found = bisect_texts(tmp_path, ours, (text % "(x, k)", {"k": weight}), x)
    assert [f["nodes"] for f in found["findings"]] == [["conv"]], found


@pytest.mark.slow
def test_error_that_an_optimizer_hides_is_a_note(tmp_path: Path) -> None:
    """The candidate computes our model, whatever the other file says."""
    (tmp_path / "hides.py").write_text(
        "import onnxruntime\n"
        f"session = onnxruntime.InferenceSession({str(tmp_path / 'm.onnx')!r})\n"
        "def load(path):\n    return lambda feeds: {'y': session.run(None, feeds)[0]}\n",
        encoding="utf-8",
    )
    for name, axis in {"m.onnx": 1, "other.onnx": 0}.items():
        text_models.save(tmp_path / name, SOFTMAX % axis, w=WEIGHT)
    np.save(tmp_path / "x.npy", VALUES)
    command = ("bisect", "m.onnx", "--candidate-model", "other.onnx", "-i", "x.npy", "--json")
    done = subcut(*command, "-c", "hides.py", "--trust", cwd=tmp_path)
    assert done.code == 0 and has_line(done.document["notes"], "other.onnx is wrong"), done


def test_healthy_folds_are_no_differences(tmp_path: Path) -> None:
    """Of two Convs with a BatchNormalization, one is folded with another epsilon."""
    tensor = "float[1,2,4,4]"
    ours = f"g ({tensor} x) => ({tensor} y) {{ %s y = Exp (d) }}" % (
        "[c1] a = Conv (x, k, h) b = BatchNormalization (a, g, h, h, v)"
        " [c2] c = Conv (b, k, h) d = BatchNormalization (c, g, h, h, v)"
    )
    theirs = f"g ({tensor} x) => ({tensor} y) {{ %s y = Exp (d) }}" % (
        "[c1] b = Conv (x, k1, h1) [c2] d = Conv (b, k2, h2)"
    )
    kernel = RNG.normal(size=(2, 2, 1, 1)).astype(np.float32)
    shift = np.array([0.2, 0.3], np.float32)
    weights = {"k": kernel, "h": shift, "g": shift + 1, "v": shift}
    folded = {}
    for k, epsilon in {1: 1e-5, 2: 0.5}.items():
        factor = (shift + 1) / np.sqrt(shift + epsilon)
        folded[f"k{k}"] = (kernel * factor.reshape(-1, 1, 1, 1)).astype(np.float32)
        folded[f"h{k}"] = ((shift - shift) * factor + shift).astype(np.float32)
    x = RNG.normal(size=(1, 2, 4, 4)).astype(np.float32)
    found = bisect_texts(tmp_path, (ours, weights), (theirs, folded), x)
    differing = {row["node"] for row in found["findings"][0]["differences"]}
    assert "c2" in differing and "c1" not in differing, found


def test_output_that_is_cast_at_the_end_is_read_in_its_own_type(tmp_path: Path) -> None:
    """Its readers in theirs were said to read the tensor before it."""
    text = "g (float[3,4] x) => (float[3,4] s, float[3,4] y) { [act] a = Sigmoid (x) %s }"
    ours = text % "[neg] s = Neg (a) [last] y = Exp (s)"
    theirs = text % (
        "[neg] h = Neg (a) [cast] s = Cast <to = 1> (h) [last] i = Exp (h) [more] y = Add (i, i)"
    )
    found = bisect_texts(tmp_path, (ours, {}), (theirs, {}), VALUES)
    assert not has_line(found["says"], "reads"), found
    listed = [row for one in found["findings"] for row in one["differences"]]
    assert not any(row["ours"].startswith("reads") for row in listed), listed


def test_node_of_another_operator_is_compared_by_its_weight(tmp_path: Path) -> None:
    """A Gemm became a MatMul and an Add, and its square weight was not transposed."""
    ours = TYPES + "{ [gemm] a = Gemm <transB = 1> (x, w, b) [last] y = Sigmoid (a) }"
    theirs = TYPES + "{ [mm] p = MatMul (x, w) [sum] a = Add (p, b) [last] y = Sigmoid (a) }"
    weights = {"w": WEIGHT, "b": WEIGHT[0]}
    found = finding(tmp_path, (ours, weights), (theirs, weights))
    assert rows(found)[0] == ("gemm", "operator", "Gemm, transB=1", "MatMul")


@pytest.mark.slow
def test_sum_of_codes_is_the_tensor_that_the_next_node_reads(tmp_path: Path) -> None:
    """The codes that a QLinearAdd passes on to a QLinearConcat have no name of ours."""
    text = "g (float[3,4] x) => (float[3,8] y) { [act] a = Sigmoid (x) %s }"
    ours = text % "[sum] s = Add (a, b) [abs] p = Abs (s) [join] y = Concat <axis = 1> (s, p)"
    theirs = text % (
        "ac = QuantizeLinear (a, k, z) [sum] sc = com.microsoft.QLinearAdd"
        " (ac, k, z, bc, k, z, k, z) s = DequantizeLinear (sc, k, z)"
        " [abs] p = Abs (s) pc = QuantizeLinear (p, k, z) [join] yc = com.microsoft.QLinearConcat"
        " <axis = 1> (k, z, sc, k, z, pc, l, z) y = DequantizeLinear (yc, k, z)"
    )
    codes = np.array([[-90, 40, 25, -60]], np.int8)
    step = np.float32(0.01)
    scales = {"k": step, "l": step / 2, "z": np.int8(0), "bc": codes}
    found = bisect_texts(tmp_path, (ours, {"b": codes * step}), (theirs, scales), VALUES)
    listed = [row for one in found["findings"] for row in one["differences"]]
    assert listed and not any(row["ours"].startswith("reads") for row in listed), listed


def test_constant_of_another_float_type_with_equal_values_is_no_difference(tmp_path: Path) -> None:
    """A bias of zeros was the headline of a model in float16."""
    ours = TYPES + "{ [mm] a = Gemm (x, w, b) [last] y = Softmax <axis = 1> (a) }"
    theirs = TYPES + (
        "{ c = Cast <to = 10> (x) [mm] d = Gemm (c, w, b) e = Cast <to = 1> (d)"
        " [last] y = Softmax <axis = 0> (e) }"
    )
    weights = {"w": WEIGHT, "b": np.zeros(4, np.float32)}
    halves = {name: value.astype(np.float16) for name, value in weights.items()}
    found = bisect_texts(tmp_path, (ours, weights), (theirs, halves), VALUES)
    parts = {row["part"] for one in found["findings"] for row in one["differences"]}
    assert "axis" in parts and not parts & {"B", "C"}, found
