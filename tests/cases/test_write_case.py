"""Case folders of models that were once cut wrongly: the check and the folder's own script must
agree.

Covers `cases.write_case`, `cases.case`, `cases.layout` and `cases.repro`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from subgraph.cases import repro, write_case
from subgraph.cases.case import Case, ResultPlace
from subgraph.documents import to_json
from subgraph.errors import SubcutError
from subgraph.graph import graph, region
from subgraph.graph.graph import Graph
from subgraph.runtime.inputs import FeedingOptions
from subgraph.runtime.reference import Reference
from tests.helpers import text_models
from tests.helpers.run_command import run_program

Cases = Callable[..., list[Case]]


@pytest.fixture
def cases(tmp_path: Path, reference: Reference) -> Cases:
    """The folders of a cut between two nodes, made with the shared reference."""

    def make(g: Graph, start: str, end: str, place: str = "out", **more: Any) -> list[Case]:
        request = write_case.CaseRequest(start=tuple(start.split()), end=tuple(end.split()), **more)
        used = reference if request.capture else None
        return write_case.extract(g, request, ResultPlace(tmp_path / place, ""), used)

    return make


def right(case: Case) -> Mapping[str, Any]:
    """The check says identical, and the folder's own script says so too."""
    assert case.manifest.check.status == "identical", case.manifest.check
    done = run_program([sys.executable, case.path / "repro.py"])
    assert done.returncode == 0, done.stdout + done.stderr
    manifest: Mapping[str, Any] = to_json(case.manifest)
    return manifest


def labels(manifest: Mapping[str, Any], key: str) -> list[str]:
    return [node["name"] for node in manifest["region"][key]]


def model(nodes: list[onnx.NodeProto], shape: list[Any], out: str, **more: Any) -> onnx.ModelProto:
    """x → nodes → out, floats."""
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)],
        value_info=more.pop("infos", ()),
        initializer=more.pop("weights", ()),
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    return helper.make_model(made, opset_imports=imports, ir_version=8, **more)


def node(op: str, reads: str, makes: str, name: str = "", **more: Any) -> onnx.NodeProto:
    return helper.make_node(
        op, reads.split(), makes.split(), name=name or makes.split()[0].upper(), **more
    )


def test_the_script_of_a_case_turns_telemetry_off_before_it_imports_the_runtime() -> None:
    script = Path(repro.__file__).read_text(encoding="utf-8")
    assert script.index("ORT_DISABLE_TELEMETRY") < script.index("import onnxruntime")


def test_cut_can_be_cut_again(tmp_path: Path, cases: Cases) -> None:
    g = text_models.load(
        tmp_path, "g (float[2] x) => (float[2] d) { a = Neg(x) b = Abs(a) c = Tanh(b) d = Relu(c) }"
    )
    first = cases(g, "a", "c", checker=True)[0]
    second = cases(graph.load(first.path / "model.onnx"), "b", "c", place="again", checker=True)[0]
    numbers = right(second)["numbers"]
    assert numbers.startswith("a = [") and "] in, c = [" in numbers
    origin = {p.key: p.value for p in onnx.load(second.path / "model.onnx").metadata_props}
    assert origin["subcut.start"] == "b" or origin["subcut.start"].startswith("#")


def test_folders_of_groups_that_are_no_more_are_removed(tmp_path: Path, cases: Cases) -> None:
    g = text_models.load(
        tmp_path, "g (float[N, 2] x) => (float[N, 2] c) { a = Neg(x) b = Abs(a) c = Relu(b) }"
    )
    samples = tmp_path / "samples"
    samples.mkdir()
    for n in (1, 2, 3):
        np.save(samples / f"s{n}.npy", np.ones((n, 2), np.float32))
    given = (str(samples),)
    assert [c.path.name[-2:] for c in cases(g, "a", "b", fed=FeedingOptions(given))][1:] == [
        "-2",
        "-3",
    ]
    mine = tmp_path / "out" / "#0__#1-3" / "notes.txt"
    kept = mine.parent.exists()
    for n in (2, 3):
        (samples / f"s{n}.npy").unlink()
    assert len(cases(g, "a", "b", fed=FeedingOptions(given))) == 1
    assert len(list((tmp_path / "out").iterdir())) == 1, kept


def test_function_called_shape_is_no_shape(tmp_path: Path, cases: Cases) -> None:
    function = helper.make_function(
        "f",
        "Shape",
        ["X"],
        ["Y"],
        [helper.make_node("Neg", ["X"], ["Y"])],
        [helper.make_opsetid("", 17)],
    )
    nodes = [node("Shape", "x", "b", domain="f"), node("Abs", "x", "a"), node("Add", "a b", "c")]
    manifest = right(
        cases(text_models.read(tmp_path, model(nodes, [2], "c", functions=[function])), "A", "C")[0]
    )
    assert manifest["region"]["frozen"] == []
    assert {t["name"] for t in manifest["inputs"]} == {"x", "b"}


def test_dropout_that_is_switched_off_inside_a_function_stays_in_the_cut(
    tmp_path: Path, cases: Cases
) -> None:
    off = helper.make_node(
        "Constant", [], ["off"], value=numpy_helper.from_array(np.asarray(False))
    )
    ratio = helper.make_node(
        "Constant", [], ["ratio"], value=numpy_helper.from_array(np.asarray(0.5, np.float32))
    )
    inner = [ratio, off, helper.make_node("Dropout", ["X", "ratio", "off"], ["Y"])]
    function = helper.make_function("f", "Drop", ["X"], ["Y"], inner, [helper.make_opsetid("", 17)])
    nodes = [node("Abs", "x", "a"), node("Drop", "a", "b", domain="f"), node("Neg", "b", "c")]
    manifest = right(
        cases(text_models.read(tmp_path, model(nodes, [4], "c", functions=[function])), "A", "C")[0]
    )
    assert labels(manifest, "nodes") == ["A", "B", "C"]
    assert labels(manifest, "random") == []


def test_dropout_in_a_function_does_not_take_its_mode_from_a_weight_outside(
    tmp_path: Path, cases: Cases
) -> None:
    """The formal input `mode` and the weight `mode` have nothing to do with one another."""
    ratio = helper.make_node(
        "Constant", [], ["ratio"], value=numpy_helper.from_array(np.asarray(0.5, np.float32))
    )
    inner = [ratio, helper.make_node("Dropout", ["X", "ratio", "mode"], ["Y"])]
    function = helper.make_function(
        "f", "Drop", ["X", "mode"], ["Y"], inner, [helper.make_opsetid("", 17)]
    )
    nodes = [node("Abs", "x", "a"), node("Drop", "a on", "b", domain="f"), node("Neg", "b", "c")]
    weights = [
        numpy_helper.from_array(np.asarray(v), n) for n, v in (("on", True), ("mode", False))
    ]
    made = model(nodes, [64], "c", functions=[function], weights=weights)
    assert labels(right(cases(text_models.read(tmp_path, made), "A", "C")[0]), "random") == ["B"]


@pytest.mark.parametrize(
    ("kind", "shape"),
    [(TensorProto.FLOAT, [7, 3]), (TensorProto.INT64, ["N", 3]), (TensorProto.FLOAT, ["N", 3, 1])],
)
def test_open_dimensions_despite_wrong_declarations(
    tmp_path: Path, cases: Cases, kind: int, shape: list[Any]
) -> None:
    nodes = [node("Relu", "x", "a"), node("Neg", "a", "b"), node("Abs", "b", "c")]
    infos = [helper.make_tensor_value_info("a", kind, shape)]
    made = model(nodes, ["N", 3], "c", infos=infos)
    case = cases(text_models.read(tmp_path, made), "B", "C", dynamic=True)[0]
    right(case)
    (fed,) = onnx.load(case.path / "model.onnx").graph.input
    assert fed.type.tensor_type.elem_type == TensorProto.FLOAT
    assert [d.dim_value for d in fed.type.tensor_type.shape.dim] in ([0, 0], [0, 3])


def test_sequence_of_shapes_is_an_input_where_it_cannot_be_frozen(
    tmp_path: Path, cases: Cases
) -> None:
    zero = numpy_helper.from_array(np.asarray(0), "zero")
    nodes = [
        node("Shape", "x", "s"),
        node("SequenceConstruct", "s s", "q"),
        node("SequenceAt", "q zero", "b"),
        node("Reshape", "x b", "c"),
    ]
    manifest = right(
        cases(text_models.read(tmp_path, model(nodes, [2, 3], "c", weights=[zero])), "B", "C")[0]
    )
    assert "q" in {t["name"] for t in manifest["inputs"]}


def test_renamed_nodes_do_not_meet_names_that_exist(tmp_path: Path, cases: Cases) -> None:
    nodes = [
        node("Neg", "x", "a", name="a#2"),
        node("Abs", "a", "b", name="a"),
        node("Tanh", "b", "c", name="a"),
        node("Relu", "c", "d", name="end"),
    ]
    (case,) = cases(text_models.read(tmp_path, model(nodes, [2], "d")), "#0", "end")
    manifest = to_json(case.manifest)
    assert manifest["check"]["status"] == "identical"
    assert list(manifest["region"]["renamed"].values()) == ["a"]


def test_capture_of_types_that_numpy_lacks_is_one_run(tmp_path: Path, cases: Cases) -> None:
    """bf16 and float32 of one random draw belong together."""
    bf16 = TensorProto.BFLOAT16
    nodes = [
        node("RandomNormalLike", "x", "r"),
        node("Cast", "r", "b", to=bf16),
        node("Cast", "b", "f", to=TensorProto.FLOAT),
        node("Add", "r f", "c"),
    ]
    right(cases(text_models.read(tmp_path, model(nodes, [2, 8], "c")), "F C", "C")[0])


def test_sparse_weights_in_another_file_come_along(tmp_path: Path, cases: Cases) -> None:
    (tmp_path / "d.bin").write_bytes(np.asarray([2.0, 3.0], np.float32).tobytes())
    values = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL
    )
    for key, value in (("location", "d.bin"), ("offset", "0"), ("length", "8")):
        values.external_data.add(key=key, value=value)
    indices = numpy_helper.from_array(np.asarray([0, 2]), "i")
    made = model([node("Abs", "x", "a"), node("Mul", "a w", "b"), node("Neg", "b", "c")], [4], "c")
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    case = cases(text_models.read(tmp_path, made), "A", "C", capture=False)[0]
    (kept,) = onnx.load(case.path / "model.onnx").graph.sparse_initializer
    assert numpy_helper.to_array(kept.values).tolist() == [2.0, 3.0]


def test_function_that_calls_itself_is_refused(tmp_path: Path, cases: Cases) -> None:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    function = helper.make_function(
        "f", "Loop", ["X"], ["Y"], [helper.make_node("Loop", ["X"], ["Y"], domain="f")], imports
    )
    nodes = [node("Loop", "x", "a", domain="f"), node("Abs", "a", "b"), node("Neg", "b", "c")]
    with pytest.raises(SubcutError):
        cases(
            text_models.read(tmp_path, model(nodes, [2], "c", functions=[function])),
            "B",
            "C",
            capture=False,
        )


def test_many_tensors_that_enter_are_each_looked_at_once(tmp_path: Path) -> None:
    """Two rails, a rung at every step: the second rail reads every tensor of the first. Counted,
    not timed."""
    steps = 400
    nodes = [node("Neg", f"a{i - 1}" if i else "x", f"a{i}") for i in range(steps)]
    nodes += [node("Add", f"{f'b{i - 1}' if i else 'x'} a{i}", f"b{i}") for i in range(steps)]
    g = text_models.read(tmp_path, model(nodes, [2], f"b{steps - 1}"))
    looked = 0

    class Counted(dict[str, int]):
        def get(self, key: str, default: Any = None) -> Any:
            nonlocal looked
            looked += 1
            return super().get(key, default)

    g.maker = Counted(g.maker)
    found = region.find_region(g, ["B0"], [f"B{steps - 1}"])
    assert len(found.inputs) == steps + 1
    assert looked < 40 * steps
