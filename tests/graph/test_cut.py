"""Cutting a region out as a model of its own. Covers `graph.cut` and `graph.value_types`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import subgraph
from fixtures import graphs, oracle
from subgraph.errors import ModelError
from subgraph.graph import graph, protobuf
from subgraph.graph.cut import cut, find_structure_problem
from subgraph.graph.region import prepare_graph
from subgraph.graph.value_types import DeclaredTensor
from subgraph.storage.tensors import Record, save
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import in_process
from tests.helpers.walked_files import walk_files


def test_python_api_cuts_a_region(resnet: Path, tmp_path: Path) -> None:
    g = subgraph.load(resnet)
    c = subgraph.cut(g, start="pool1", end="res2a_relu")
    assert (c.inputs, c.outputs, c.frozen, dict(c.renamed)) == (("conv1",), ("res2a",), (), {})
    assert [c.get_declaration(name).shapes for name in ("conv1", "res2a")] == [
        [[1, 8, 32, 32]],
        [[1, 32, 16, 16]],
    ]
    assert c.save(tmp_path / "piece.onnx") == [tmp_path / "piece.onnx"]
    piece = onnx.load(tmp_path / "piece.onnx")
    onnx.checker.check_model(piece, full_check=True)
    assert piece == c.to_model() and len(piece.graph.node) == 17
    assert c.parameters == sum(numpy_helper.to_array(t).size for t in piece.graph.initializer)
    assert subgraph.cut(g, start=["pool1"], end=["res2a_relu"]).model == c.model


def test_nothing_of_the_rest_comes_along(resnet: Path) -> None:
    model = cut(graph.load(resnet), "pool1", "res2a_relu").to_model()
    names = {n for node in model.graph.node for n in (*node.input, *node.output)}
    assert {t.name for t in model.graph.initializer} < names
    assert {v.name for v in model.graph.value_info} < names


@pytest.mark.parametrize("prepared", [False, True])
def test_types_stay_in_the_order_of_the_file(prepared: bool, tmp_path: Path) -> None:
    def declare(model: onnx.ModelProto) -> None:
        names = "e", "b", "d", "c", "a"
        model.graph.value_info.extend(
            helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in names
        )

    nodes = "a = Relu(x) b = Neg(a) c = Abs(b) d = Neg(c) e = Abs(d) y = Neg(e)"
    g = text_models.load(tmp_path, f"g (float[2] x) => (float[2] y) {{ {nodes} }}", declare)
    made = cut(prepare_graph(g) if prepared else g, "#1", "#5").to_model()
    assert [info.name for info in made.graph.value_info] == ["e", "b", "d", "c"]


def test_the_source_is_left_as_it_was(tmp_path: Path) -> None:
    """Cutting twice gives the same, because cutting does not change the Graph."""
    path = graphs.data_within_attributes(tmp_path)
    g = graph.load(path)
    before = g.model.SerializeToString()
    first = cut(g, "first", "last").to_model()
    assert g.model.SerializeToString() == before
    assert cut(g, "first", "last").to_model() == first


def test_names_that_are_shared_are_told_apart_from_all_others(tmp_path: Path) -> None:
    """Three nodes named `twin`, and one with the name that the second of them would get."""
    g = text_models.load(
        tmp_path,
        "g (float[2] x) => (float[2] y) { [twin] a = Relu(x) [twin] b = Neg(a) [other] c = Abs(b)"
        " [twin] y = Neg(c) }",
        lambda m: setattr(m.graph.node[2], "name", "twin#1"),
    )
    c = cut(g, "#0", "#3")
    names = [n.name for n in c.model.graph.node]
    assert names[0] == "twin" and names[2] == "twin#1" and len(set(names)) == 4
    assert set(c.renamed.values()) == {"twin"} and set(c.renamed) == {names[1], names[3]}


def test_model_without_an_opset_is_cut(tmp_path: Path) -> None:
    g = text_models.load(
        tmp_path,
        "g (float[2] x) => (float[2] y) { y = Relu(x) }",
        lambda m: m.ClearField("opset_import"),
    )
    with raises(ModelError, "model.no-opset", "model.onnx"):
        cut(g, "y", "y")


def test_unknown_type_is_refused_without_a_run(tmp_path: Path) -> None:
    g = text_models.load(
        tmp_path,
        "g (float[2] x) => (float[2] y) { a = acme.Foo(x) [n] y = Relu(a) }",
        domains=("acme",),
    )
    with raises(ModelError, "cut.unknown-type", "a") as refusal:
        cut(g, "n", "n")
    assert "capture" in refusal.value.hint


@pytest.mark.parametrize(("start", "end"), [("cast", "mul"), ("mul", "mul"), ("mul", "relu")])
def test_declared_type_that_is_wrong_is_inferred(start: str, end: str, tmp_path: Path) -> None:
    """Without a run: the exporter left float32 at tensors that a Cast and a weight show to be
    float16."""
    text = """g (float[3] x) => (float[3] y) <float[3] a, float[3] b, float[3] c> {
        [cast] a = Cast<to = 10>(x) [mul] b = Mul(a, w) [relu] c = Relu(b) [back] y = Cast<to = 1>(c)
    }"""  # noqa: E501
    made = cut(text_models.load(tmp_path, text, w=np.ones(3, np.float16)), start, end)
    types = {n: made.get_declaration(n).dtype for n in (*made.inputs, *made.outputs)}
    assert types.pop("x", "float32") == "float32" and set(types.values()) == {"float16"}
    onnx.checker.check_model(made.to_model(), full_check=True)


def test_cast_whose_type_has_none_is_cut_without_a_run(tmp_path: Path) -> None:
    """As in a damaged file; it was an internal error."""

    def damage(m: onnx.ModelProto) -> None:
        m.graph.node[0].attribute[0].ClearField("type")

    head = "g (float[3] x) => (float[3] y) <float[3] a>"
    text = f"{head} {{ [cast] a = Cast<to = 1>(x) [relu] y = Relu(a) }}"
    assert cut(text_models.load(tmp_path, text, damage), "cast", "relu").inputs == ("x",)


FIXED_TYPES = """g (float[2,3] x, int64 i) => (float[m,n] y) <DECLARED> {
    [shape] s = Shape(x) [pick] d = Gather(s, i) [cast] f = Cast<to = 1>(d) [turn] t = Transpose(x)
    [mul] b = Mul(t, f) [less] same = Less(b, t) [not] other = Not(same)
    [where] y = Where(other, b, t)
}"""


@pytest.mark.parametrize(
    "declared", ["int32 s", "float d", "int32 s, int32 d", "float same", "double t"]
)
@pytest.mark.parametrize(
    ("start", "end"), [("shape", "shape"), ("pick", "cast"), ("not", "where"), ("turn", "turn")]
)
def test_wrong_type_of_what_an_operator_fixes_or_keeps_is_inferred(
    start: str, end: str, declared: str, tmp_path: Path
) -> None:
    """Shape makes int64, a comparison bool, and Gather and Transpose what they read."""
    text = FIXED_TYPES.replace("DECLARED", declared)
    made = cut(text_models.load(tmp_path, text), start, end)
    types = {n: made.get_declaration(n).dtype for n in (*made.inputs, *made.outputs)}
    right = {"s": "int64", "d": "int64", "i": "int64", "same": "bool", "other": "bool"}
    assert types == {n: right.get(n, "float32") for n in types}
    ort.InferenceSession(made.to_model().SerializeToString())


@pytest.mark.parametrize(
    ("start", "nodes", "weight", "declared"),
    [
        ("n", "[n] b = Conv<pads = [1, 1, 1, 1]>(a, w)", (4, 3, 3, 3), "1,4,8,8"),
        ("n", "[n] b = Conv<pads = [1, 1, 1, 1]>(a, w)", (4, 3, 3, 3), "3,8,8"),
        ("n", "[n] b = ConvTranspose(a, w)", (3, 2, 1, 1), "1,2,8,8"),
        ("n", "[n] b = Add(a, w)", (8,), "1,3,8,9"),
        ("n", "[n] b = MatMul(a, w)", (8, 2), "1,3,8,9"),
        # Only a deeper node contradicts the shape.
        ("m", "[m] r = Relu(a) s = Sigmoid(r) [n] b = Conv(s, w)", (2, 3, 1, 1), "1,4,8,8"),
        (
            "m",
            "[m] s = MaxPool<kernel_shape = [2, 2]>(a) [n] b = Conv(s, w)",
            (2, 3, 1, 1),
            "1,4,8,8",
        ),
    ],
)
def test_declared_shape_that_is_wrong_is_inferred(
    start: str, nodes: str, weight: tuple[int, ...], declared: str, tmp_path: Path
) -> None:
    """onnxruntime takes the model, whose shapes it infers, and refuses a cut that begins with a
    wrong one."""
    head = f"g (float[1,3,8,8] x) => (float[i,j,k,l] y) <float[{declared}] a>"
    text = f"{head} {{ a = Abs(x) {nodes} y = Relu(b) }}"
    made = cut(text_models.load(tmp_path, text, w=np.ones(weight, np.float32)), start, "n")
    assert made.get_declaration("a").shapes == [[1, 3, 8, 8]]
    ort.InferenceSession(made.to_model().SerializeToString())


@pytest.mark.parametrize(
    "op", ["Sigmoid(a)", "Softmax(a)", "AveragePool<kernel_shape = [2, 2]>(a)"]
)
def test_integer_that_is_declared_where_only_floats_go_is_inferred(op: str, tmp_path: Path) -> None:
    head = "g (float[1,3,8,8] x) => (float[i,j,k,l] y) <int64[1,3,8,8] a>"
    text = f"{head} {{ a = Neg(x) [n] b = {op} y = Relu(b) }}"
    made = cut(text_models.load(tmp_path, text), "n", "n")
    assert made.get_declaration("a").dtype == "float32"
    ort.InferenceSession(made.to_model().SerializeToString())


def test_node_that_lacks_its_input_or_its_first_output_is_cut(tmp_path: Path) -> None:
    """The first is damaged, which `subcut inspect` says; here only the cut counts."""

    def damage(m: onnx.ModelProto) -> None:
        del m.graph.node[2].input[:]
        m.graph.node[0].output[0] = ""

    text = (
        "g (float[1,3] x) => (float[1,3] y) { [d] o, m = Dropout(x) [n] b = Not(m) [s] y ="
        " Sigmoid(x) }"
    )
    g = text_models.load(tmp_path, text, damage)
    assert cut(g, "s", "s").outputs == ("y",)
    assert cut(g, "d", "d").outputs == ("m",)


def test_declared_shapes_that_agree_or_are_open_stay(tmp_path: Path) -> None:
    """No process infers anything: what a model declares rightly is taken as it is, symbols among
    it."""
    text = (
        "g (float[n,3,8,8] x) => (float[n,2,8,8] y) { a = Neg(x) r = Relu(a) p = Clip(r) [n] y ="
        " Conv(p, w) }"
    )
    model = onnx.shape_inference.infer_shapes(
        text_models.model(text, w=np.ones((2, 3, 1, 1), np.float32))
    )
    g = text_models.read(tmp_path, model)
    made = cut(g, g.label(1), "n")
    assert made.get_declaration("a").shapes == [["n", 3, 8, 8]] and "p" in {
        v.name for v in made.to_model().graph.value_info
    }


def test_cut_that_does_not_load_has_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Float32 is declared at a tensor that a Concat joins with float16: what the maker gives nobody
    can infer."""
    monkeypatch.chdir(tmp_path)

    text = """g (float[3] x) => (float[6] y) <float[3] a, float16[6] b> {
        a = acme.Foo(x) [join] b = Concat<axis = 0>(a, w) [back] y = Cast<to = 1>(b)
    }"""
    text_models.load(tmp_path, text, domains=("acme",), w=np.ones(3, np.float16))
    done = in_process("cut", "model.onnx", "-s", "join", "-e", "join", "--no-capture")
    assert done.exit_code == 1 and has_line(done.text, "does not load", "tensor(float16)")
    right = in_process("cut", "model.onnx", "-s", "back", "-e", "back", "--no-capture")
    assert right.exit_code == 0


@pytest.mark.parametrize(("op", "made"), [("Equal", "bool"), ("Concat<axis = 0>", "int32")])
def test_integers_of_two_types_do_not_load_either(
    op: str, made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"g (float[3] x) => ({made}[3] y) <int32[3] a> {{ a = acme.Foo(x) [n] y = {op}(a, w) }}"
    text_models.load(tmp_path, text, domains=("acme",), w=np.ones(3, np.int64))
    done = in_process("cut", "model.onnx", "-s", "n", "-e", "n", "--no-capture")
    assert done.exit_code == 1 and has_line(done.text, "not load")
    # what is declared stays where nothing else is known
    assert "out  y   bool   3\n" in done.text or op != "Equal"


def test_types_are_inferred_over_weights_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk_files(monkeypatch)
    model = graphs.no_value_info()
    c = cut(text_models.read(tmp_path, model), "first", "last")
    assert (
        c.get_declaration("h")
        == c.get_declaration("z")
        == DeclaredTensor("tensor", "float32", [[2, 8]])
    )


@pytest.mark.parametrize("field", ["values", "indices"])
def test_external_data_of_a_sparse_weight_comes_along(tmp_path: Path, field: str) -> None:
    model = graphs.sparse_inside()
    want = graphs.sparse_inside().graph.sparse_initializer[0]
    tensor = getattr(model.graph.sparse_initializer[0], field)
    (tmp_path / "d").write_bytes(tensor.raw_data)
    protobuf.point_to(tensor, "d", 0, len(tensor.raw_data))
    (tmp_path / "elsewhere").mkdir()
    cut(text_models.read(tmp_path, model), "first", "last").save(tmp_path / "elsewhere/cut.onnx")
    (got,) = onnx.load(tmp_path / "elsewhere/cut.onnx").graph.sparse_initializer
    found = numpy_helper.to_array(getattr(got, field)).tolist()
    assert found == numpy_helper.to_array(getattr(want, field)).tolist()


def test_last_node_that_only_passes_on_is_cut(tmp_path: Path) -> None:
    """A branch whose output is a tensor of the outer graph, which no node in the body reads."""
    g = text_models.load(
        tmp_path,
        """g (float[2] x, bool c) => (float[2] y) {
            [a] a = Relu(x)
            [b] b = Neg(x)
            [choose] y = If(c) <
                then_branch = t () => (float[2] a) {},
                else_branch = e () => (float[2] r) { r = Identity(b) }>
        }""",
    )
    c = cut(g, "a", "choose")
    assert set(c.inputs) == {"x", "c", "b"}
    assert find_structure_problem(c.model) is None


def test_structure_names_the_tensor_without_a_producer() -> None:
    def problem(nodes: str) -> str:
        made = text_models.model(f"g (float[1] x) => (float[1] y) {{ {nodes} }}")
        return find_structure_problem(made) or ""

    assert problem("[relu] a = Relu(x) [neg] y = Neg(a)") == ""
    assert has_line(problem("[neg] y = Neg(a) [relu] a = Relu(x)"), "'a'", "'neg'")
    assert has_line(problem("[relu] a = Relu(x)"), "'y'")


def test_inputs_of_an_old_format_are_declared_once(tmp_path: Path) -> None:
    """IR 3: a weight that two regions read is an input of each cut, and keeps its declaration."""
    model = graphs.initializer_is_input_ir3()
    model.graph.input[2].doc_string = "second"
    c = cut(text_models.read(tmp_path, model), "first", "last").to_model()
    assert [(v.name, v.doc_string) for v in c.graph.input] == [("h", ""), ("W1", "second")]
    onnx.checker.check_model(c)


def test_weights_on_disk_are_loaded_for_use_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk_files(monkeypatch)
    c = cut(text_models.read(tmp_path, graphs.plain()), "first", "last")
    assert [t.name for t in c.weights] == ["W1"]
    want = oracle.weight(graphs.plain(), "W1")
    assert np.array_equal(oracle.weight(c.to_model(), "W1"), want)
    assert c.parameters == want.size


# ------------------------------------------------------------ declared shapes

CHAIN = "g (float[{0},4] x) => (float[{0},4] y) {{ a = Relu(x)  b = Neg(a)  y = Exp(b) }}"


def chain(folder: Path, rows: str, inner: int | str | None = None) -> graph.Graph:
    """Three nodes with declared intermediate tensors: as inferred, or with `inner` rows."""
    made = onnx.shape_inference.infer_shapes(text_models.model(CHAIN.format(rows)))
    for info in made.graph.value_info if inner is not None else ():
        info.CopyFrom(helper.make_tensor_value_info(info.name, TensorProto.FLOAT, [inner, 4]))
    return text_models.read(folder, made)


def captured(folder: Path, rows: int) -> dict[str, Record]:
    value = np.ones((rows, 4), np.float32)
    return {name: save(name, value, "tensor(float)", folder, name) for name in "xaby"}


def declared(model: onnx.ModelProto) -> dict[str, list[int | str]]:
    """Dimensions by tensor, of all that a model declares."""
    infos = (*model.graph.input, *model.graph.output, *model.graph.value_info)
    return {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in infos
    }


@pytest.mark.parametrize(
    ("rows", "inner", "kept"),
    [
        ("N", None, {}),  # symbols beside sizes
        ("N", 1, {}),  # sizes of another sample
        ("2", None, {"a": [2, 4], "b": [2, 4]}),
        ("2", "M", {}),
    ],
)
def test_pinned_cut_has_sizes_that_agree_or_none(
    rows: str, inner: int | str | None, kept: dict[str, list[int]], tmp_path: Path
) -> None:
    pinned = cut(
        chain(tmp_path, rows, inner), captured=[captured(tmp_path, 2)], folder=tmp_path
    ).to_model()
    assert declared(pinned) == {"x": [2, 4], "y": [2, 4], **kept}
    onnx.checker.check_model(pinned, full_check=True)


@pytest.mark.parametrize(("inner", "rows", "kept"), [(None, "N", True), (None, "1", False)])
def test_dynamic_cut_keeps_declarations_that_agree(
    inner: None, rows: str, kept: bool, tmp_path: Path
) -> None:
    """The values captured at its boundary contradict a file that says one row."""
    values = captured(tmp_path, 2)
    model = cut(
        chain(tmp_path, rows, inner), captured=[values], folder=tmp_path, dynamic=True
    ).to_model()
    found = declared(model)
    assert ("a" in found) is kept and found["x"] == (["N", 4] if kept else [0, 0])


def test_bodies_of_a_pinned_cut_declare_no_open_shape(tmp_path: Path) -> None:
    text = """g (bool c, float[N] x) => (float[N] y) {
      y = If(c) <then_branch = t () => (float[N] p) { k = Neg(x)  p = Exp(k) },
                 else_branch = e () => (float[N] q) { q = Neg(x) }> }"""
    made = text_models.model(text)
    body = made.graph.node[0].attribute[0].g
    body.value_info.append(helper.make_tensor_value_info("k", TensorProto.FLOAT, ["N"]))
    values = {n: save(n, np.ones(2, np.float32), "tensor(float)", tmp_path, n) for n in "xy"}
    values["c"] = save("c", np.array(True), "tensor(bool)", tmp_path, "c")
    pinned = cut(text_models.read(tmp_path, made), captured=[values], folder=tmp_path).to_model()
    then, other = (attribute.g for attribute in pinned.graph.node[0].attribute)
    assert not then.value_info and not then.output[0].type.tensor_type.HasField("shape")
    assert other.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
    onnx.checker.check_model(pinned, full_check=True)


BEAM = """g (int32[2,3] ids) => (int64[2,1,6] y)
<int32[1] most = {6}, int32[1] least = {1}, int32[1] beams = {2}, int32[1] given = {1}, float[1] penalty = {1}> {
    [beam] seq = com.microsoft.BeamSearch (ids, most, least, beams, given, penalty, penalty) <
        model_type: int = 0, eos_token_id: int = 6, pad_token_id: int = 0, decoder: graph = step (
            int32[b,s] input_ids, int32[b,s] position_ids, int32[b,t] attention_mask, float[2,b,1,p,4] past_0
        ) => (float[b,s,7] logits, float[2,b,1,t,4] present_0)
        <float[4] scale = {1,-2,0.5,0.3}, float[7] w = {0.7,-0.1,-0.2,-0.9,0.8,0.4,-0.3}, int64[1] head = {1},
         int64[1] pair = {0}, int64[1] last = {-1}, int64 first = {0}> {
            number = Cast <to: int = 1> (input_ids)
            column = Unsqueeze (number, last)
            x = Mul (column, scale)
            k = Unsqueeze (x, head)
            before = Gather (past_0, first)
            keys = Concat <axis: int = 2> (before, k)
            one = Unsqueeze (keys, pair)
            present_0 = Concat <axis: int = 0> (one, one)
            waves = Mul (column, w)
            logits = Sin (waves)
        }>
    [last] y = Cast <to: int = 7> (seq)
}"""  # noqa: E501


def test_search_for_beams_is_cut(tmp_path: Path) -> None:
    """The cut's check refused it: it asks the open shapes of its decoder, which had been
    dropped."""
    text_models.load(tmp_path, BEAM, domains=("com.microsoft",))
    np.save(tmp_path / "ids.npy", np.array([[1, 2, 3], [4, 5, 1]], np.int32))
    words = ("cut", tmp_path / "model.onnx", "-s", "beam", "-e", "beam", "-i", tmp_path / "ids.npy")
    assert "bit-identical" in in_process(*words, "-o", tmp_path / "out").text
