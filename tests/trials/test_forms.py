"""The user's file as it is, beside the same model with pinned shapes. Covers `trials.forms` and
`graph.model_file`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper, numpy_helper, shape_inference

from subgraph.errors import DataError
from subgraph.graph import graph
from subgraph.graph.model_file import (
    copy_model,
    digest_model,
    find_external_files,
    has_open_shapes,
    write_pinned,
)
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import Done, subcut

# A candidate that refuses what `refuses` says; its last line in `log` tells which file it was
# given.
PICKY = """
import hashlib, onnx, onnxruntime
from pathlib import Path
from subgraph.errors import Refused
LOG = Path(__file__).with_name("log")

def load(model, options):
    made = onnx.load(model)
    LOG.open("a").write(hashlib.sha256(model.read_bytes()).hexdigest() + "\\n")
    dims = [d for v in (*made.graph.input, *made.graph.value_info) for d in v.type.tensor_type.shape.dim]
    form = "open" if any(d.dim_param or not d.HasField("dim_value") for d in dims) else "sizes"
    if form == options.get("refuses"):
        raise Refused(f"cannot take {form}")
    wrong = options.get("wrong") in (form, "both") and made.graph.name != "preflight"
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return lambda feeds: {n: v + wrong for n, v in zip(names, session.run(names, feeds))}
"""  # noqa: E501


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A model with an open dimension, declared of intermediate tensors as well, and an input that
    nothing reads."""
    text = (
        "g (float[N,4] x, float[N] unread) => (float[N,4] y) { a = Relu(x)  b = Neg(a)  y ="
        " Exp(b) }"
    )
    made = shape_inference.infer_shapes(text_models.model(text))
    for i, node in enumerate(made.graph.node):
        node.name = f"n{i}"
    onnx.save(made, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4))
    (tmp_path / "picky.py").write_text(PICKY)
    return tmp_path


def run(command: str, here: Path, options: str, *words: str) -> Done:
    repeat = ("--repeat", "1") if command == "bisect" else ()
    fed = ("-i", "x=x.npy", "-c", f"{here / 'picky.py'}:{options}")
    return subcut(command, "m.onnx", *fed, *repeat, "--trust", *words, cwd=here)


def test_the_whole_is_the_users_file_byte_for_byte(here: Path) -> None:
    document = run("bisect", here, "refuses=sizes", "--json").document
    assert (document["exit_code"], document["outcome"]) == (0, "agree")
    assert [step["form"] for step in document["steps"]] == ["as shipped"]
    assert [(form["form"], form["status"]) for form in document["forms"]] == [
        ("as shipped", "agree")
    ]
    digest = hashlib.sha256((here / "m.onnx").read_bytes()).hexdigest()
    assert (here / "log").read_text().split()[0] == digest


@pytest.mark.slow
def test_file_that_is_refused_as_shipped_does_not_agree(here: Path) -> None:
    done = run("bisect", here, "refuses=open")
    assert done.code == 1
    assert has_line(done.out, "refused", "pinned", "right")
    assert has_line(done.out, "refused", "open")
    document = run("bisect", here, "refuses=open", "--json").document
    assert (document["agree"], document["outcome"], document["findings"]) == (False, "pinned", [])
    assert [form["form"] for form in document["forms"]] == ["as shipped", "pinned"]
    compared = run("compare", here, "refuses=open")
    assert compared.code == 1 and has_line(compared.out, "shipped", "refused", "open")


@pytest.mark.rare
@pytest.mark.slow
def test_failure_with_pinned_shapes_is_searched_if_the_file_is_refused(here: Path) -> None:
    document = run("bisect", here, "refuses=open,wrong=sizes", "--json").document
    assert document["exit_code"] == 1 and document["findings"][0]["signature"] == "mismatch"
    assert has_line(document["notes"][0], "shipped", "refused")
    assert document["steps"][0]["form"] == "pinned" and has_line(
        document["steps"][0]["kind"], "pinned"
    )


@pytest.mark.slow
def test_candidate_that_takes_no_pinned_shapes_or_is_right_with_them(here: Path) -> None:
    refused = run("bisect", here, "refuses=sizes,wrong=open", "--json").document
    assert refused["exit_code"] == 1 and has_line(refused["notes"][0], "every cut")
    right = run("bisect", here, "wrong=open", "--json", "--force").document
    assert right["exit_code"] == 1 and has_line(right["notes"][0], "open dimensions")
    assert [form["status"] for form in right["forms"]] == ["fail", "agree"]


STALE = """g (float[N,3,8,8] x) => (float[N,4,8,8] y) <float[1,4,8,8] a, float[1,4,8,8] b> {
    a = Conv<pads = [1, 1, 1, 1]>(x, w0)  b = Relu(a)  y = Conv<pads = [1, 1, 1, 1]>(b, w1) }"""
SYMBOLIC = (
    STALE.replace("[1,4,8,8]", "[batch,4,h,w]")
    .replace("N,3,8,8", "N,3,H,W")
    .replace("N,4,8,8", "N,4,H,W")
)
KERNELS = (
    "g (float[N,C,H,W] x, float[M,C,K,K] kernels) => (float[N,M,H2,W2] y) { a = Relu(x)  y ="
    " Conv(a, kernels) }"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runtime", "text", "words"),
    [
        # its optimizer refuses the sizes of an old export beside a pinned input
        ("ort", STALE, ""),
        ("ort", SYMBOLIC, ""),
        ("tract", SYMBOLIC, "Impossible to unify"),
        ("openvino:precision=f32", STALE, ""),
        ("openvino:precision=f32", KERNELS, "refuses the model"),
    ],
)
def test_real_runtimes_are_asked_about_the_file_as_shipped(
    runtime: str, text: str, words: str, tmp_path: Path
) -> None:
    """What a runtime says of open or stale shapes is said of the file, and no node is blamed."""
    if not runtime.startswith("ort"):
        pytest.importorskip(runtime.partition(":")[0])
    draw = np.random.default_rng(0).standard_normal
    weights: dict[str, Any] = (
        {} if text is KERNELS else {"w0": draw((4, 3, 3, 3)), "w1": draw((4, 4, 3, 3))}
    )
    floats: dict[str, Any] = {n: (v / 3).astype(np.float32) for n, v in weights.items()}
    text_models.save(tmp_path / "m.onnx", text, **floats)
    shapes = ("--shape", "x=3x3x8x8", *(("--shape", "kernels=4x3x3x3") if text is KERNELS else ()))
    document = subcut(
        "bisect", "m.onnx", "-c", runtime, *shapes, "--repeat", "1", "--json", cwd=tmp_path
    ).document
    assert document["findings"] == [] and document["exit_code"] == int(bool(words))
    assert document["forms"][0]["signature"] == ("refused" if words else None)
    assert words in document["forms"][0]["why"] and document["forms"][-1]["status"] == "agree"


DECLARED = "g (float[N,8] x) => (float[N,4] y) <float[N,4] a16> {{ {nodes} }}"
FLOAT32 = DECLARED.format(nodes="a16 = MatMul(x, w)  y = Softmax<axis = 1>(a16)")
MISDECLARED = DECLARED.format(
    nodes="""x16 = Cast<to = 10>(x)  a = MatMul(x16, w)
    a16 = Softmax<axis = 1>(a)  y = Cast<to = 1>(a16)"""
)


def save_misdeclared(folder: Path) -> None:
    """Save a model as `a.onnx`; and as `b.onnx` one in float16, which declares an intermediate
    tensor as float32, as converters leave it."""
    weights = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    text_models.save(folder / "a.onnx", FLOAT32, w=weights)
    text_models.save(folder / "b.onnx", MISDECLARED, w=weights.astype(np.float16))


@pytest.mark.parametrize("command", ["bisect", "compare"])
@pytest.mark.parametrize("words", ["b.onnx", "a.onnx --candidate-model b.onnx"])
def test_file_with_a_wrong_declaration_blames_no_node(
    words: str, command: str, tmp_path: Path
) -> None:
    save_misdeclared(tmp_path)
    done = subcut(command, *words.split(), "--shape", "x=3x8", "--json", cwd=tmp_path)
    assert (done.code, done.document["error"]["code"]) == (1, "candidate.file-refused")


def test_declaration_that_contradicts_a_node_names_the_node(tmp_path: Path) -> None:
    """The runtime names another node, downstream of it, or none."""
    save_misdeclared(tmp_path)
    done = subcut(
        "bisect", "a.onnx", "--candidate-model", "b.onnx", "--shape", "x=3x8", cwd=tmp_path
    )
    assert has_line(done.err, "Softmax", "(10) vs (1)", "declared tensors")


@pytest.mark.parametrize("declared", ["", ", float16[3,8] m"], ids=["one", "two"])
def test_wrongly_declared_type_is_one_finding(declared: str, tmp_path: Path) -> None:
    """A converter to float16 forgot what a Cast converts to; the nodes that read it are healthy."""
    text = """g (int64[3,8] x) => (float{16}[3,8] y) <float{16}[3,8] c{more}> {{
        [cast] c = Cast <to = 1> (x) [neg] m = Neg (c) [mul] p = Mul (m, w)
        [last] y = Tanh (p) }}"""
    weights = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    ours = text.replace("{16}", "").format(more=declared.replace("16", ""))
    text_models.save(tmp_path / "a.onnx", ours, w=weights)
    theirs = text.replace("{16}", "16").format(more=declared)
    text_models.save(tmp_path / "b.onnx", theirs, w=weights.astype(np.float16))
    done = subcut("bisect", "a.onnx", "--candidate-model", "b.onnx", "--json", cwd=tmp_path)
    [found] = done.document["findings"]
    assert (done.code, found["nodes"], found["signature"]) == (1, ["cast"], "refused")


def test_output_that_no_node_computes_names_our_node(tmp_path: Path) -> None:
    """An optimizer dropped the node of an output that is a constant."""
    ours = "g (float[2] x) => (float[2] y, int64[1] n) { y = Neg(x) [count] n = Shape(x) }"
    text_models.save(tmp_path / "a.onnx", ours)
    text_models.save(tmp_path / "b.onnx", ours.replace("[count] n = Shape(x)", ""))
    done = subcut("bisect", "a.onnx", "--candidate-model", "b.onnx", cwd=tmp_path)
    assert done.code == 1 and has_line(done.err, "no node of b.onnx", "'n'", "'count' does")


def test_file_with_another_batch_size_is_told_before_a_search(tmp_path: Path) -> None:
    text = "g (float[{n},2] x) => (float[{n},2] y) { y = Neg(x) }"
    for name, size in {"a": "1", "b": "4"}.items():
        text_models.save(tmp_path / f"{name}.onnx", text.replace("{n}", size))
    done = subcut("bisect", "a.onnx", "--candidate-model", "b.onnx", "--json", cwd=tmp_path)
    assert (done.code, done.document["error"]["code"]) == (2, "input.wrong-shape")
    assert has_line([done.document["error"]["what"]], "b.onnx", "1×2", "'x' takes 4×2")


def test_pinned_file_keeps_declared_types(tmp_path: Path) -> None:
    save_misdeclared(tmp_path)
    pinned = tmp_path / "pinned.onnx"
    sizes = onnx.helper.make_tensor_type_proto(TensorProto.FLOAT, (3, 8))
    write_pinned(graph.load(tmp_path / "b.onnx"), {"x": sizes}, pinned)
    found = onnx.load(pinned).graph
    [declared] = found.value_info
    assert declared.type.tensor_type.elem_type == TensorProto.FLOAT
    for info in (*found.input, *found.output, declared):
        assert info.type.tensor_type.shape.dim[0].dim_value == 3


def test_pinned_file_drops_shapes_that_stay_open(tmp_path: Path) -> None:
    g = text_models.load(
        tmp_path, "g (float[N] x) => (float[N] y) <float[M] a> { a = Relu(x)  y = Neg(a) }"
    )
    sizes = onnx.helper.make_tensor_type_proto(TensorProto.FLOAT, (3,))
    write_pinned(g, {"x": sizes}, tmp_path / "pinned.onnx")
    [declared] = onnx.load(tmp_path / "pinned.onnx").graph.value_info
    assert not declared.type.tensor_type.HasField("shape")


@pytest.mark.slow
def test_stale_declared_size_is_no_open_shape(tmp_path: Path) -> None:
    pytest.importorskip("tract")
    draw = np.random.default_rng(0).standard_normal
    w0 = draw((4, 3, 3, 3)).astype(np.float32)
    w1 = draw((4, 4, 3, 3)).astype(np.float32)
    text_models.save(tmp_path / "m.onnx", STALE, w0=w0, w1=w1)
    done = subcut("bisect", "m.onnx", "-c", "tract", "--shape", "x=3x3x8x8", "--json", cwd=tmp_path)
    assert (done.code, done.document["error"]["code"]) == (1, "candidate.file-refused")


@pytest.mark.slow
def test_edit_of_the_file_is_asked_anew(here: Path) -> None:
    for _ in range(2):
        run("bisect", here, "")
    made = onnx.load(here / "m.onnx")
    made.doc_string = "edited"
    onnx.save(made, here / "m.onnx")
    run("bisect", here, "", "--force")
    # Each command repeats one stored run; the file that is new is also run with another input.
    first, other, repeated, edited, other_of_edited = (here / "log").read_text().split()
    assert first == other == repeated != edited == other_of_edited


# ------------------------------------------------------------ files


def stored_outside(folder: Path) -> graph.Graph:
    """A model whose weight, also one inside a body, is in files beside it."""
    text = """g (bool c, float[2] x) => (float[2] y) { a = Mul(x, w)
      y = If(c) <then_branch = t () => (float[2] p) { k = Constant<value = float[2] {1.0, 2.0}>()  p = Add(a, k) },
                 else_branch = e () => (float[2] q) { q = Neg(a) }> }"""  # noqa: E501
    made = text_models.model(text, w=np.ones(2, np.float32))
    (folder / "deep").mkdir()
    tensors = [made.graph.initializer[0], made.graph.node[1].attribute[0].g.node[0].attribute[0].t]
    for tensor, location in zip(tensors, ("w.bin", "deep/k.bin"), strict=True):
        (folder / location).write_bytes(numpy_helper.to_array(tensor).tobytes())
        tensor.ClearField("float_data")
        tensor.raw_data = b""
        external_data_helper.set_external_data(tensor, location)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
    return text_models.read(folder, made)


def test_external_data_comes_along_from_inside_bodies_too(tmp_path: Path) -> None:
    g = stored_outside(tmp_path)
    assert set(find_external_files(g)) == {"w.bin", "deep/k.bin"}
    (tmp_path / "copy").mkdir()
    copy_model(g, tmp_path / "copy" / "model.onnx")
    assert (tmp_path / "copy" / "model.onnx").read_bytes() == g.path.read_bytes()
    assert (tmp_path / "copy" / "deep" / "k.bin").read_bytes() == (
        tmp_path / "deep" / "k.bin"
    ).read_bytes()
    before = digest_model(g)
    (tmp_path / "deep" / "k.bin").write_bytes(np.zeros(2, np.float32).tobytes())
    assert digest_model(g) != before


def test_no_external_file_out_of_the_folder_is_followed(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    g = stored_outside(inner)
    (tmp_path / "secret").write_bytes(bytes(8))
    (inner / "w.bin").unlink()
    (inner / "w.bin").symlink_to(tmp_path / "secret")
    with raises(DataError, "weight.outside-folder"):
        find_external_files(g)


@pytest.mark.parametrize(("dims", "open_"), [("2", False), ("N", True)])
def test_open_shapes(dims: str, open_: bool, tmp_path: Path) -> None:
    g = text_models.load(tmp_path, f"g (float[{dims}] x) => (float[{dims}] y) {{ y = Relu(x) }}")
    assert has_open_shapes(g) is open_
