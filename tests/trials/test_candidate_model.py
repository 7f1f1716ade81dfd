"""Candidates with a model of their own: quantized, float16, optimized, in another layout.

A seeded fault in it is found, and a faultless one has no findings. Covers `trials.candidate_model`
and `trials.matching.pair_models`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from fixtures import converted, networks, resnet50
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.run_command import Done, subcut

Convert = Callable[[onnx.ModelProto, dict[str, Any]], onnx.ModelProto]

FORMS: dict[str, Convert] = {
    "qdq": lambda m, f: converted.quantized(m, f),
    "qdq_keeping": converted.int8,
    "qoperator": lambda m, f: converted.quantized(m, f, "QOperator"),
    "fp16": converted.fp16,
    "basic": lambda m, _: converted.optimized(m, "basic"),
    "extended": lambda m, _: converted.optimized(m, "extended"),
    "all": lambda m, _: converted.optimized(m, "all"),
    "nhwc": lambda m, _: converted.nhwc(m),
}
# without it, int8 sums saturate on processors without VNNI
EXACT = ("-c", "ort:session.x64quantprecision=1")
SAYS = {"qdq": "int8", "qdq_keeping": "int8", "qoperator": "int8", "fp16": "fp16"}


def feeds(network: str) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    if network == "transformer":
        return {"tokens": rng.integers(0, networks.VOCABULARY, (1, 24))}
    return {"data": rng.standard_normal((1, 3, 64, 64)).astype(np.float32)}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """(network, form) → a folder with model.onnx, its input, and other.onnx."""
    made: dict[tuple[str, str], Path] = {}
    plain: dict[str, onnx.ModelProto] = {}

    def folder(network: str, form: str) -> Path:
        if (network, form) not in made:
            if network not in plain:
                small = resnet50.build(width=8, size=64, classes=10)
                plain[network] = small if network == "resnet" else networks.NETWORKS[network]()
            place = tmp_path_factory.mktemp(f"{network}-{form}")
            onnx.save(plain[network], place / "model.onnx")
            for name, value in feeds(network).items():
                np.save(place / f"{name}.npy", value)
            onnx.save(FORMS[form](plain[network], feeds(network)), place / "other.onnx")
            made[network, form] = place
        return made[network, form]

    return folder


def bisect(folder: Path, *words: str, other: str = "other.onnx") -> Done:
    fed = [w for name in folder.glob("*.npy") for w in ("-i", name.name)]
    return subcut(
        "bisect",
        "model.onnx",
        *fed,
        *EXACT,
        "--candidate-model",
        other,
        "--repeat",
        "2",
        "--json",
        *words,
        cwd=folder,
    )


SLOW = pytest.mark.slow
RARE = (pytest.mark.slow, pytest.mark.rare)


@pytest.mark.parametrize(
    ("network", "form"),
    [
        ("transformer", "fp16"),
        ("transformer", "extended"),
        pytest.param("transformer", "qdq", marks=SLOW),
        pytest.param("transformer", "qoperator", marks=RARE),
        pytest.param("transformer", "basic", marks=SLOW),
        pytest.param("resnet", "extended", marks=RARE),
        pytest.param("resnet", "qdq_keeping", marks=RARE),
    ],
)
def test_right_conversion_agrees(
    network: str, form: str, models: Callable[[str, str], Path]
) -> None:
    done = bisect(models(network, form))
    # the steps of 8 bits add up in an untrained net, which is said
    if form.startswith("q") and done.code == 5:
        assert done.document["whole"]["signature"] == "precision"
        assert {f["kind"] for f in done.document["findings"]} == {"unresolved"}
    else:
        assert done.code == 0, done
        assert done.document["outcome"] in ("agree", "claimed")
    assert done.document["candidate"]["precision"] == SAYS.get(form, "fp32")


TWO_OUTPUTS = """g (float[3,8] x) => (float[3,8] y, int64[3] z)
    { [neg] a = Neg (x) [last] y = Tanh (a) [best] z = ArgMax <axis = -1, keepdims = 0> (y) }"""
READ_AS_CODES = """g (float[3,8] x) => (float[3,8] y, int64[3] z)
    { [neg] a = Neg (x) [last] b = Sin (a) c = QuantizeLinear (b, s)
      y = DequantizeLinear (c, s) [best] z = ArgMax <axis = -1, keepdims = 0> (c) }"""


def test_node_that_reads_the_codes_of_an_output_has_a_region(tmp_path: Path) -> None:
    """The fault upstream of the codes is no fault of the ArgMax that reads them."""
    text_models.save(tmp_path / "model.onnx", TWO_OUTPUTS)
    text_models.save(tmp_path / "other.onnx", READ_AS_CODES, s=np.float32(0.008))
    np.save(tmp_path / "x.npy", np.random.default_rng(2).normal(size=(3, 8)).astype(np.float32))
    words = ("bisect", "model.onnx", "--candidate-model", "other.onnx", "-i", "x.npy", "--json")
    done = subcut(*words, cwd=tmp_path)
    assert [f["nodes"] for f in done.document["findings"]] == [["last"]], done.out
    replayed = subcut("replay", done.document["findings"][0]["case"], cwd=tmp_path)
    assert replayed.code == 1


MIXED = """g (float[3,8] x) => (float[3,4] y) { [c0] a = Cast <to = 10> (x)
    [mm] b = MatMul (a, w) [c1] c = Cast <to = 1> (b) [last] y = %s (c) }"""
PLAIN = "g (float[3,8] x) => (float[3,4] y) { [mm] c = MatMul (x, w) [last] y = Sigmoid (c) }"


@pytest.mark.parametrize(("last", "wrong"), [("Sigmoid", []), ("Softsign", ["last"])])
def test_precision_is_that_of_the_pieces_own_types(
    last: str, wrong: list[str], tmp_path: Path
) -> None:
    """A part of the model is in float16: that excuses its rounding, and no other fault."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(8, 4)).astype(np.float32)
    text_models.save(tmp_path / "model.onnx", PLAIN, w=values)
    text_models.save(tmp_path / "other.onnx", MIXED % last, w=values.astype(np.float16))
    np.save(tmp_path / "x.npy", rng.normal(size=(3, 8)).astype(np.float32))
    words = ("bisect", "model.onnx", "--candidate-model", "other.onnx", "-i", "x.npy", "--json")
    done = subcut(*words, cwd=tmp_path)
    assert done.code == len(wrong), done.out
    assert [f["nodes"] for f in done.document["findings"]] == ([wrong] if wrong else [])


@pytest.mark.slow
def test_two_models_of_one_candidate_have_two_folders(
    models: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """The second one's result replaced the first one's, as both were of the candidate `ort`."""
    for source in models("transformer", "extended").iterdir():
        shutil.copy(source, tmp_path) if source.is_file() else None
    model = onnx.load(tmp_path / "other.onnx")
    cases = []
    for name, factor in (("bad.onnx", 1.5), ("worse.onnx", 2.0)):
        wrong = onnx.ModelProto.FromString(model.SerializeToString())
        large = max(wrong.graph.initializer, key=lambda t: len(t.raw_data))
        large.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(large) * np.float32(factor), large.name)
        )
        onnx.save(wrong, tmp_path / name)
        cases.append(Path(bisect(tmp_path, other=name).document["findings"][0]["case"]))
    assert [case.parent.name.rpartition("-")[2] for case in cases] == ["bad.onnx", "worse.onnx"]
    assert all((tmp_path / case).is_dir() for case in cases)


def broken(folder: Path, spoil: Callable[[onnx.ModelProto], str]) -> str:
    """Write `bad.onnx`, which `spoil` has changed; its description of the change."""
    model = onnx.load(folder / "other.onnx")
    said = spoil(model)
    onnx.save(model, folder / "bad.onnx")
    return said


def weight(model: onnx.ModelProto, name: str, change: Callable[[Any], Any]) -> None:
    (tensor,) = [t for t in model.graph.initializer if t.name == name]
    tensor.CopyFrom(
        numpy_helper.from_array(np.ascontiguousarray(change(numpy_helper.to_array(tensor))), name)
    )


def reverse_a_filter(model: onnx.ModelProto) -> str:
    conv = [n for n in model.graph.node if n.op_type in ("Conv", "FusedConv")][25]
    weight(model, conv.input[1], lambda w: w[:, ::-1])
    return str(conv.name)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["fp16", pytest.param("nhwc", marks=pytest.mark.rare)])
def test_broken_filter_is_found(
    form: str, models: Callable[[str, str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(models("resnet", form), tmp_path / "m")
    name = broken(folder, reverse_a_filter)
    done = bisect(folder, other="bad.onnx")
    (one,) = done.document["findings"]
    assert one["kind"] == "culprit" and one["certified"], one
    assert name in one["nodes"] and len(one["nodes"]) <= 4, (name, one["nodes"])
    case = folder / one["case"]
    assert (case / "candidate" / "model.onnx").exists() and list(
        (case / "candidate" / "inputs").glob("*.npy")
    )
    assert subprocess.run([sys.executable, "repro.py"], cwd=case, check=False).returncode == 0
    again = subcut("replay", case, "--json", cwd=folder)
    assert again.code == 1, again
    moved = shutil.copytree(case, tmp_path / "elsewhere")
    assert subcut("replay", moved, "-c", "ort", cwd=tmp_path).code == 1


@pytest.mark.rare
@pytest.mark.slow
def test_cost_of_quantization_is_measured(
    models: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """An activation's scale that is eight times too small clips its values; that region costs
    most."""
    folder = shutil.copytree(models("resnet", "qdq_keeping"), tmp_path / "m")

    def spoil(model: onnx.ModelProto) -> str:
        (node,) = [
            n
            for n in model.graph.node
            if n.op_type == "QuantizeLinear" and n.input[0] == "res4c_branch2b"
        ]
        weight(model, node.input[1], lambda s: s / 8)
        return str(node.input[0])

    tensor = broken(folder, spoil)
    done = bisect(folder, other="bad.onnx")
    told = done.document["other_model"]
    assert told["saturated"][0]["tensor"] == tensor and told["saturated"][0]["share"] > 0.2
    assert all(row["share"] < 0.02 for row in told["saturated"][1:])
    assert "res4c_branch2c" in told["nodes"][0]["nodes"]


@pytest.mark.rare
@pytest.mark.slow
def test_map_names_what_is_not_found(models: Callable[[str, str], Path], tmp_path: Path) -> None:
    """An output under another name in a model that the reference cannot run: no value identifies
    it."""
    folder = shutil.copytree(models("transformer", "fp16"), tmp_path / "m")

    def spoil(model: onnx.ModelProto) -> str:
        old = model.graph.output[0].name
        for node in model.graph.node:
            node.output[:] = ["renamed" if n == old else n for n in node.output]
        model.graph.output[0].name = "renamed"
        weight(model, model.graph.initializer[0].name, lambda w: w * 0)
        return str(old)

    old = broken(folder, spoil)
    done = bisect(folder, other="bad.onnx")
    if done.code == 2:
        error = done.document["error"]
        assert has_line(error["what"], f"'{old}'", "bad.onnx") and "--map" in error["hint"], error
    (folder / "map.txt").write_text(f"{old}\trenamed\n")
    done = bisect(folder, "--map", "map.txt", other="bad.onnx")
    assert done.code == 1 and done.document["findings"], done


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--candidate-model", "nowhere.onnx"), ("--candidate-model nowhere.onnx",)),
        (("--map", "map.txt"), ("--map", "--candidate-model")),
        (("--candidate-model", "other.onnx", "--map", "nowhere.txt"), ("--map nowhere.txt",)),
    ],
)
def test_slips(
    words: tuple[str, ...], says: tuple[str, ...], models: Callable[[str, str], Path]
) -> None:
    done = subcut("bisect", "model.onnx", *words, cwd=models("transformer", "fp16"))
    assert (done.code, done.out) == (2, "") and has_line(done.err, *says)


def test_model_of_something_else(models: Callable[[str, str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(models("transformer", "fp16"), tmp_path / "m")
    onnx.save(networks.NETWORKS["speech"](), folder / "speech.onnx")
    done = bisect(folder, other="speech.onnx")
    assert done.code == 2 and has_line(json.loads(done.out)["error"]["what"], "speech.onnx"), done


@pytest.mark.slow
def test_output_of_the_same_name_and_another_type_is_the_output_however_wrong(
    tmp_path: Path,
) -> None:
    """Its values were taken for a neighbor's, so that the output 'is not in' the other model."""
    w = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)
    ours = "g (float[1,8] x) => (float[1,5] y) { a = MatMul(x, w)  y = Add(a, c) }"
    theirs = (
        "g (float[1,8] x) => (float16[1,5] y) { a = MatMul(x, w)  b = Mul(a, c)  y ="
        " Cast<to=10>(b) }"
    )
    text_models.save(tmp_path / "model.onnx", ours, w=w, c=np.float32(0.001))
    for name, factor in (("other.onnx", -1.0), ("right.onnx", 1.0)):
        text_models.save(tmp_path / name, theirs, w=w, c=np.float32(factor))
    wrong = bisect(tmp_path)
    right = bisect(tmp_path, "--atol", "0.01", "--force", other="right.onnx")
    assert (wrong.code, right.code) == (1, 0), (wrong, right)
    assert has_line(wrong.document["other_model"]["matched"], "float16", "float32")
    assert right.document["forms"][0]["form"] == "as shipped"


def save_refused(folder: Path) -> None:
    """Save `model.onnx`, and as `other.onnx` one with an operator that no runtime has."""
    text = (
        "g (float[N,4] x) => (float[N,M] y) { [relu] a = Relu(x)  s = Shape(a)  [exp] b = Exp(a)"
        "  [reshape] c = Reshape(b, s)  [neg] y = Neg(c) }"
    )
    text_models.save(folder / "model.onnx", text)
    text_models.save(folder / "other.onnx", text.replace("Exp", "odd.Wave"), domains=("odd",))


REFUSED = ("model.onnx", "--shape", "x=3x4", "--candidate-model", "other.onnx", "-c", "ort")


def test_node_that_no_runtime_takes_is_found_and_the_others_are_compared(tmp_path: Path) -> None:
    save_refused(tmp_path)
    document = subcut("bisect", *REFUSED, "--json", cwd=tmp_path).document
    (finding,) = document["findings"]
    assert (document["exit_code"], finding["nodes"]) == (1, ["exp"])
    assert (finding["signature"], document["whole"]["signature"]) == ("refused", "refused")
    assert "odd:Wave(-1)" in document["whole"]["why"]


def test_compare_says_which_node_of_the_candidates_model_is_refused(tmp_path: Path) -> None:
    save_refused(tmp_path)
    done = subcut("compare", *REFUSED, "--json", cwd=tmp_path)
    assert (done.code, done.document["exit_code"]) == (1, 1)
    assert has_line(done.document["says"], "refused", "exp")


def test_case_of_a_refused_node_asks_the_candidates_model(tmp_path: Path) -> None:
    save_refused(tmp_path)
    subcut("bisect", *REFUSED, cwd=tmp_path)
    case = tmp_path / "subcut_out" / "bisect-ort-other.onnx" / "culprit"
    blamed = subcut("blame", case, cwd=tmp_path)
    assert blamed.code == 1 and "odd:Wave" in blamed.out, blamed


def test_case_of_a_refused_node_is_refused_again(tmp_path: Path) -> None:
    save_refused(tmp_path)
    subcut("bisect", *REFUSED, cwd=tmp_path)
    done = subcut("replay", "subcut_out/bisect-ort-other.onnx", "--json", cwd=tmp_path)
    assert done.code == 1
    assert done.document["samples"][0]["signature"] == "refused"


def test_blame_of_a_refused_node_asks_no_option_of_the_runtime(tmp_path: Path) -> None:
    save_refused(tmp_path)
    subcut("bisect", *REFUSED, cwd=tmp_path)
    done = subcut("blame", "subcut_out/bisect-ort-other.onnx", "--json", cwd=tmp_path)
    found = done.document
    assert found["is_model_wrong"]
    assert (done.code, found["signature"]) == (1, "refused")
    assert (found["runs"], found["switches"], found["passes"], found["kernels"]) == (
        0,
        [],
        [],
        None,
    )
    assert has_line(found["answer"], "The candidate's model is invalid at `exp`")


def test_tensor_that_no_node_makes_is_refused_at_the_node_that_reads_it(tmp_path: Path) -> None:
    text = (
        "g (float[2,4] x) => (float[2,4] y) { [relu] a = Relu(x)  [add] b = Add(a, k)"
        "  [neg] y = Neg(b) }"
    )
    text_models.save(tmp_path / "model.onnx", text, k=np.ones(4, np.float32))
    text_models.save(tmp_path / "other.onnx", text)
    words = ("model.onnx", "--candidate-model", "other.onnx", "--json")
    bisected = subcut("bisect", *words, cwd=tmp_path)
    compared = subcut("compare", *words, cwd=tmp_path)
    assert (bisected.code, [f["nodes"] for f in bisected.document["findings"]]) == (1, [["add"]])
    assert (compared.code, has_line(compared.document["says"], "refused", "add")) == (1, True)
    assert has_line(compared.document["says"], "which no node makes")


def block_weights(bits: int) -> tuple[Any, Any, Any]:
    """Weights, and their codes and scales in blocks of 16, one block per column."""
    w = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    scales = np.abs(w).max(0) / (2 ** (bits - 1) - 1)
    return w, np.round(w / scales).astype(np.int16) + 2 ** (bits - 1), scales


def bisect_blocks(folder: Path, bits: int, scales: Any) -> Done:
    """Bisect a MatMul with the same in blocks as the candidate's model."""
    w, codes, _ = block_weights(bits)
    text = "g (float[2,16] x) => (float[2,4] y) { [fc] y = %s }"
    ours = text_models.save(folder / "m.onnx", text % "MatMul (x, w)", w=w)
    node = f"com.microsoft.MatMulNBits <K=16, N=4, bits={bits}, block_size=16> (x, b, s)"
    packed = codes.T.astype(np.uint8)
    if bits == 4:
        packed = packed[:, ::2] | packed[:, 1::2] << 4
    weights = {"b": packed.reshape(4, 1, -1), "s": scales}
    domains = ("com.microsoft",)
    theirs = text_models.save(folder / "q.onnx", text % node, domains=domains, **weights)
    np.save(folder / "x.npy", np.random.default_rng(1).standard_normal((2, 16)).astype(np.float32))
    command = ("bisect", ours.name, "--candidate-model", theirs.name, "-i", "x.npy", "--json")
    return subcut(*command, cwd=folder)


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_in_blocks_are_right_as_quantized(tmp_path: Path, bits: int) -> None:
    """MatMulNBits of a healthy model was wrong by the limit of int8, or of float32."""
    done = bisect_blocks(tmp_path, bits, block_weights(bits)[2])
    assert done.code == 0, done
    weights = done.document["other_model"]["weights"]
    assert has_line(done.document["says"], "right", "as quantized") == (weights > 0.01)


def test_blocks_with_the_scales_of_others_are_wrong(tmp_path: Path) -> None:
    done = bisect_blocks(tmp_path, 4, np.roll(block_weights(4)[2], 1))
    assert [f["nodes"] for f in done.document["findings"]] == [["fc"]]


def test_a_quantizer_that_clips_is_the_finding(tmp_path: Path) -> None:
    """The nodes that read its codes were the findings."""
    text = "g (float[2,64] x) => (float[2,64] y, float[2,64] z) { %s }"
    ours = "[tanh] a = Tanh (x) [neg] y = Neg (a) [abs] z = Abs (a)"
    theirs = """[tanh] a = Tanh (x) [q] c = QuantizeLinear (a, s, o)
        [dq] d = DequantizeLinear (c, s, o) [neg] y = Neg (d) [abs] z = Abs (d)"""
    scale = {"s": np.float32(0.4 / 127), "o": np.int8(0)}
    text_models.save(tmp_path / "m.onnx", text % ours)
    text_models.save(tmp_path / "q.onnx", text % theirs, **scale)
    x = 2 * np.random.default_rng(2).standard_normal((2, 64)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    command = ("bisect", "m.onnx", "--candidate-model", "q.onnx", "-i", "x.npy", "--json")
    (finding,) = subcut(*command, cwd=tmp_path).document["findings"]
    assert finding["nodes"] == ["tanh"]
    assert finding["differences"][0]["part"] == "quantizer of a"


LAYERS = """g (float[4,16] x) => (float[4,16] y) {
    xc = QuantizeLinear (x, xs, o) xd = DequantizeLinear (xc, xs, o)
    wd = DequantizeLinear (w, ws, o) [mm] a = MatMul (xd, wd)
    ac = QuantizeLinear (a, s, o) ad = DequantizeLinear (ac, s, o)
    bd = DequantizeLinear (b, bs, o) [add] p = Add (ad, bd)
    pc = QuantizeLinear (p, s, o) pd = DequantizeLinear (pc, s, o)
    [neg] n = Neg (pd) nc = QuantizeLinear (n, s, o) nd = DequantizeLinear (nc, s, o)
    [last] y = Mul (nd, k) }"""
FLOATS = """g (float[4,16] x) => (float[4,16] y) {
    [mm] a = MatMul (x, w) [add] p = Add (a, b) [neg] n = Neg (p) [last] y = Mul (n, k) }"""


def bisect_layers(folder: Path, bias: float = 1.0, last: float = 1.0) -> Done:
    """Bisect a model with its quantized form, whose bias and last factors are multiplied."""
    rng = np.random.default_rng(4)
    values = {"w": rng.standard_normal((16, 16)), "b": 0.3 * rng.standard_normal(16)}
    x = rng.standard_normal((4, 16)).astype(np.float32)
    scales = {"w": np.abs(values["w"]).max() / 127, "b": np.abs(values["b"]).max() / 127}
    codes = {n: np.round(values[n] / scales[n]) for n in values}
    codes["b"] *= bias
    factors = np.linspace(1, 2, 16, dtype=np.float32)
    floats = {n: np.float32(v) for n, v in values.items()}
    text_models.save(folder / "m.onnx", FLOATS, k=factors, **floats)
    steps = {"ws": scales["w"], "bs": scales["b"], "xs": np.abs(x).max() / 127}
    steps["s"] = np.abs(x @ values["w"] + values["b"]).max() / 125
    named = {n: np.float32(step) for n, step in steps.items()}
    weights = {n: value.astype(np.int8) for n, value in codes.items()}
    weights["k"] = factors * np.float32(last)
    text_models.save(folder / "q.onnx", LAYERS, o=np.int8(0), **named, **weights)
    np.save(folder / "x.npy", x)
    command = ("bisect", "m.onnx", "--candidate-model", "q.onnx", "-i", "x.npy", "--json")
    return subcut(*command, cwd=folder)


def test_a_healthy_quantized_model_is_right(tmp_path: Path) -> None:
    assert bisect_layers(tmp_path).code == 0


def test_one_percent_downstream_of_the_last_quantizer_is_found(tmp_path: Path) -> None:
    """No step rounds what the last node outputs, so that none excuses it."""
    done = bisect_layers(tmp_path, last=1.01)
    assert [f["nodes"] for f in done.document["findings"]] == [["last"]], done


@pytest.mark.slow
def test_a_bias_that_int8_would_excuse_is_found(tmp_path: Path) -> None:
    """It was right within int8 rounding."""
    done = bisect_layers(tmp_path, bias=0)
    assert [f["nodes"] for f in done.document["findings"]] == [["add"]], done
    again = subcut("replay", done.document["findings"][0]["case"], cwd=tmp_path)
    assert again.code == 1, again


GRID = """g (float[2,64] x) => (float[2,64] y) {
    s = Shape (x) n = Gather (s, one) r = Range (zero, n, one) f = Cast <to=1> (r) %s }"""
IN_FLOAT = "[mm] h = MatMul (x, w) g = Mul (f, k) [add] a = Add (h, g) [neg] y = Neg (a)"
ROUNDED = """fc = QuantizeLinear (f, fs, o) fd = DequantizeLinear (fc, fs, o)
    g = Mul (fd, k) gc = QuantizeLinear (g, gs, go) gd = DequantizeLinear (gc, gs, go)
    wd = DequantizeLinear (w, ws, wo) [mm] h = MatMul (x, wd)
    [add] a = Add (h, gd) ac = QuantizeLinear (a, as, p) ad = DequantizeLinear (ac, as, p)
    [neg] y = Neg (ad)"""


@pytest.mark.parametrize(("zero", "status"), [(0, "agree"), (20, "fail")])
def test_grid_of_anchors_is_rounded_by_each_quantizer_on_its_way(
    tmp_path: Path, zero: int, status: str
) -> None:
    """The nodes that add it were wrong: it depends on shapes alone, and no node has its error."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, 64)).astype(np.float32)
    w = rng.standard_normal((64, 64)).astype(np.float32) / 8
    named: dict[str, Any] = {"one": np.int64(1), "zero": np.int64(0), "k": np.float32(0.37)}
    text_models.save(tmp_path / "m.onnx", GRID % IN_FLOAT, w=w, **named)
    steps = {"fs": 64.3 / 255, "gs": 24.1 / 255, "as": 33 / 255, "ws": np.abs(w).max() / 127}
    named |= {name: np.float32(step) for name, step in steps.items()}
    named |= {"o": np.uint8(0), "go": np.uint8(zero), "p": np.uint8(40), "wo": np.int8(0)}
    codes = np.round(w / named["ws"]).astype(np.int8)
    text_models.save(tmp_path / "q.onnx", GRID % ROUNDED, w=codes, **named)
    np.save(tmp_path / "x.npy", x)
    command = ("compare", "m.onnx", "-c", "ort:opt=disable", "--candidate-model", "q.onnx")
    rows = subcut(*command, "-i", "x.npy", "--all", "--json", cwd=tmp_path).document["rows"]
    assert {row["node"]: row["alone"]["status"] for row in rows}["add"] == status
