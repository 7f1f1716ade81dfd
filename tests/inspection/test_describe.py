"""`subcut inspect`: documents, ranges and problems of a model.

Covers `inspection.describe`, `inspection.ranges`, `inspection.validate`, `graph.opsets`,
`inspection.summary` and `commands.inspect`.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.defs
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from subgraph.commands.inspect import inspect
from subgraph.errors import InputError, ModelError, NoRegion, UnknownName, UsageError
from subgraph.graph.graph import load
from subgraph.graph.onnx_process import OnnxProcess
from subgraph.graph.opsets import format_schema_type
from subgraph.inspection import describe, ranges, summary, validate
from subgraph.inspection.ranges import Range
from subgraph.inspection.validate import Problem
from subgraph.runtime.capture import capture_samples
from subgraph.runtime.inputs import Feeding
from subgraph.storage import dtypes
from tests.helpers.chain_models import chain
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import in_process

LIGHT = sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx"))
HEAD = '<ir_version: 8, opset_import: ["": 17]>'
Edit = Callable[[onnx.ModelProto], object]


def write(folder: Path, text: str, edit: Edit | None = None, **weights: Any) -> Path:
    """A model from onnx's text form, changed by `edit`, with these weights. The header may be
    omitted."""
    model = parser.parse_model(text if text.startswith("<") else f"{HEAD} {text}")
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(v), name) for name, v in weights.items()
    )
    if edit:
        edit(model)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def found(path: Path) -> list[Problem]:
    return validate.find_problems(load(path))


def refused(path: Path) -> bool:
    """Does onnxruntime refuse the model?"""
    onnxruntime.set_default_logger_severity(4)
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001
        return True
    return False


def document(path: Path, *arguments: Any, **options: Any) -> dict[str, Any]:
    """The command's document, as it comes out of JSON."""
    read: dict[str, Any] = json.loads(
        json.dumps(inspect(str(path), *arguments, **options).document, allow_nan=False)
    )
    return read


def outputs(doc: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Tensor → entry, of all outputs of nodes."""
    return {t["name"]: t for node in doc["nodes"] for t in node["outputs"]}


# ------------------------------------------------------------ problems


@dataclass(frozen=True)
class Wrong:
    """A model with one problem; `words` must occur in its message or hint."""

    kind: str
    node: int | None
    tensor: str | None
    words: tuple[str, ...]
    text: str
    edit: Edit | None = None
    fatal: bool = True


ONE = "g (float[2,3] x) => (float[2,3] y)"


def _opset(model: onnx.ModelProto, version: int) -> None:
    model.opset_import[0].version = version


def _repeat(field: str) -> Edit:
    return lambda model: getattr(model.graph, field).append(getattr(model.graph, field)[0])


def _rename_output(model: onnx.ModelProto) -> None:
    model.graph.node[0].output[0] = model.graph.output[0].name = "x"


def _weight(**changes: Any) -> Edit:
    def add(model: onnx.ModelProto) -> None:
        tensor = model.graph.initializer.add(name="w", data_type=1, dims=[2, 3], raw_data=bytes(24))
        for name, value in changes.items():
            if name == "dims":
                tensor.dims[:] = value
            else:
                setattr(tensor, name, value)

    return add


def _external(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer.add(
        name="w", data_type=1, dims=[2, 3], data_location=TensorProto.EXTERNAL
    )
    tensor.external_data.add(key="location", value="absent.data")


# A name, the kind, node and tensor of the problem, words of its message or hint; and the model.
TABLE = """
type the opset does not take | type 1 - | Clip 'clip' (#1); 'k' as int64; opset 11; float16, float32; opset 12
    <ir_version: 8, opset_import: ["": 11]> g (float[2,3] x, int64[2,3] k) => (float[2,3] y, int64[2,3] c){ y = Relu(x) [clip] c = Clip(k) }
two types where one is wanted | type 0 - | Add 'mix' (#0); type tensor(int64); Cast
    g (float[2,3] x, int64[2,3] k) => (float[2,3] y) { [mix] y = Add(x, k) }
type of a weight | type 0 - | type tensor(double)
    g (float[2,3] x) => (float[2,3] y){ y = Add(x, w) }
output declared as another type | type 0 - | Relu (#0); declared type
    g (float[2,3] x) => (int64[2,3] y) { y = Relu(x) }
weight declared as another type | type - - | elem type
    g (float[2,3] x, double[2,3] w) => (float[2,3] y) { y = Add(x, w) }
type in a body | type 0 - | If 'choose' (#0); type tensor(int64)
    g (bool p, float[2,3] x, int64[2,3] k) => (float[2,3] y) { [choose] y = If (p) <then_branch = a () => (float[2,3] z) { z = Add(x, k) }, else_branch = b () => (float[2,3] z) { z = Abs(x) }> }
no such op | checker 0 - | Rleu (#0); of opset 17
    g (float[2,3] x) => (float[2,3] y){ y = Rleu(x) }
op of a later opset | checker 0 - | Gelu; opset 17; opset 20
    g (float[2,3] x) => (float[2,3] y){ y = Gelu(x) }
op that was taken out | checker 0 - | of opset 17
    g (float[2,3] x) => (float[2,3] y){ y = Upsample <mode = "nearest"> (x, x) }
too many inputs | checker 0 - | 2 inputs; it has 1
    g (float[2,3] x) => (float[2,3] y){ y = Relu(x, x) }
input left out | checker 0 - | Add (#0); empty string
    g (float[2,3] x) => (float[2,3] y){ y = Add(x, "") }
too many outputs | checker 0 - | 2 outputs
    g (float[2,3] x) => (float[2,3] y){ y, z = Relu(x) }
attribute of another name | checker 0 - | 'alhpa'
    g (float[2,3] x) => (float[2,3] y){ y = LeakyRelu <alhpa = 0.1> (x) }
attribute of a later opset | checker 0 - | 'antialias'; opset 17; opset 18
    g (float[2,3] x) => (float[2,3] y){ y = Resize <antialias = 1> (x, "", "", n) }
attribute of another type | checker 0 - | 'alpha' of type INT; FLOAT
    g (float[2,3] x) => (float[2,3] y){ y = LeakyRelu <alpha = 1> (x) }
attribute missing | checker 0 - | attribute 'to'
    g (float[2,3] x) => (float[2,3] y){ y = Cast(x) }
attribute in a body | checker 0 - | If (#0); foo
    g (bool p, float[2,3] x, int64[2,3] k) => (float[2,3] y) { y = If (p) <then_branch = a () => (float[2,3] z) { z = Relu <foo = 1> (x) }, else_branch = b () => (float[2,3] z) { z = Abs(x) }> }
dangling input | dangling 1 hidden_ | Relu 'b' (#1); reads 'hidden_'; similar names: hidden
    g (float[2,3] x) => (float[2,3] y){ hidden = Relu(x) [b] y = Relu(hidden_) }
dangling in a body | dangling 0 ghost | If; 'ghost'
    g (bool p, float[2,3] x, int64[2,3] k) => (float[2,3] y) { y = If (p) <then_branch = a () => (float[2,3] z) { z = Add(x, ghost) }, else_branch = b () => (float[2,3] z) { z = Abs(x) }> }
tensor made twice | checker - - | 't'; multiple times
    g (float[2,3] x) => (float[2,3] y){ y = Relu(x) [a] t = Relu(x) [b] t = Neg(x) }
node makes an input | cycle - - | #0 → #0
    g (float[2,3] x) => (float[2,3] y){ y = Relu(x) }
input listed twice | checker - - | 'x'
    g (float[2,3] x) => (float[2,3] y){ y = Relu(x) }
cycle | cycle - - | b → c → d → b
    g (float[2,3] x) => (float[2,3] y){ [a] h = Relu(x) [b] b = Add(h, d) [c] c = Relu(b) [d] d = Neg(c) [e] y = Relu(d) }
output that no node makes | checker - - | 'results'
    g (float[2,3] x) => (float[2,3] results) { result = Relu(x) }
input without a type | checker - - | 'type'; missing
    g (float[2,3] x) => (float[2,3] y){ y = Relu(x) }
weight without a type | checker - - | UNDEFINED
    g (float[2,3] x) => (float[2,3] y){ y = Add(x, w) }
no opset | checker 0 - | No opset import
    g (float[2,3] x) => (float[2,3] y){ y = Relu(x) }
weight of the wrong size | checker - - | 24 bytes; 48 bytes
    g (float[2,3] x) => (float[2,3] y){ y = Add(x, w) }
weight's file missing | weight - w | absent.data; missing
    g (float[2,3] x) => (float[2,3] y){ y = Add(x, w) }
shapes that do not fit | shape 1 - | MatMul 'mm' (#1); Incompatible dimensions
    g (float[2,3] x) => (float y) { h = Relu(x) [mm] y = MatMul(h, x) }
shape declared wrong | shape 0 - | Relu (#0); (3) vs (4)
    g (float[2,3] x) => (float[2,4] y) { y = Relu(x) }
"""  # noqa: E501
SIZES = numpy_helper.from_array(np.array([2, 3]), "n")
EDITS: dict[str, Edit] = {
    "type of a weight": _weight(data_type=TensorProto.DOUBLE, raw_data=bytes(48)),
    "weight declared as another type": _weight(),
    "attribute of a later opset": lambda m: m.graph.initializer.append(SIZES),
    "node makes an input": _rename_output,
    "input listed twice": _repeat("input"),
    "input without a type": lambda m: m.graph.input[0].ClearField("type"),
    "weight without a type": _weight(data_type=0),
    "no opset": lambda m: m.ClearField("opset_import"),
    "weight of the wrong size": _weight(dims=[4, 3]),
    "weight's file missing": _external,
}


def _read_table() -> Iterator[tuple[str, Wrong]]:
    lines = TABLE.strip().split("\n")
    for head, text in zip(lines[::2], lines[1::2], strict=True):
        name, place, words = head.split(" | ")
        kind, node, tensor = (None if word == "-" else word for word in place.split())
        index = int(node) if node else None
        fatal = name != "shape declared wrong"
        found = tuple(words.split("; "))
        yield name, Wrong(str(kind), index, tensor, found, text.strip(), EDITS.get(name), fatal)


WRONG = dict(_read_table())


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_problem_is_named_with_its_place(wrong: Wrong, tmp_path: Path) -> None:
    path = write(tmp_path, wrong.text, wrong.edit)
    assert refused(path) == wrong.fatal
    result = inspect(str(path))
    assert result.exit_code == result.document["exit_code"] == (3 if wrong.fatal else 0)
    place = (wrong.kind, wrong.node, wrong.tensor)
    problems = result.document["problems"]
    hits = [
        p for p in problems if (p["kind"], p["node"] and p["node"]["index"], p["tensor"]) == place
    ]
    assert len(hits) == 1, problems
    said = f"{hits[0]['what']} {hits[0]['hint']}"
    assert [word for word in wrong.words if word not in said] == [], said
    assert hits[0]["fatal"] == wrong.fatal
    assert wrong.words[0] in result.text
    assert len(result.document["nodes"]) == len(load(path).nodes)


@pytest.mark.rare
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # its own, while it makes them
def test_the_tests_of_onnx_itself_have_no_fatal_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every operator, by models that are valid by definition; one child serves them all."""
    from onnx.backend.test.case.node import collect_testcases

    child = OnnxProcess(tmp_path)
    monkeypatch.setattr("subgraph.graph.shape_inference.OnnxProcess", lambda _: nullcontext(child))
    path = tmp_path / "model.onnx"
    wrong = {}
    count = 0
    for count, case in enumerate(collect_testcases(None), 1):  # noqa: B007
        assert case.model is not None
        path.write_bytes(case.model.SerializeToString())
        if fatal := [p.what for p in found(path) if p.fatal]:
            wrong[case.name] = fatal
    with child:
        assert (wrong, count > 1500) == ({}, True)


@pytest.mark.parametrize("opset", [13, 17, 18])
@pytest.mark.parametrize(
    ("axes", "certain"), [("", 0), ("<axes = [0, 2]>", 0), ("<axes = [0, 9]>", 1)]
)
def test_attribute_that_was_left_out_has_its_default(
    opset: int, axes: str, certain: int, tmp_path: Path
) -> None:
    """onnx infers MeanVarianceNormalization through its function body, without defaults for omitted
    axes."""
    text = (
        f"g (float[2,3,4,5] x) => (float[2,3,4,5] y) {{ y = MeanVarianceNormalization{axes} (x) }}"
    )
    problems = found(write(tmp_path, text, lambda model: _opset(model, opset)))
    assert [p.kind for p in problems if p.fatal] == ["shape"] * certain, problems


# A name, and the model.
ALLOWED = """
custom op: <ir_version: 8, opset_import: ["": 17, "mine": 1]> ONE { y = mine.Swirl <a = 1> (x, x) }
function: <ir_version: 8, opset_import: ["": 17, "mine": 1]> ONE { y = mine.F <a = 1> (x) } <domain: "mine", opset_import: ["": 17]> F <a> (a) => (b) { b = Relu(a) }
contrib: <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> ONE { y = com.microsoft.Gelu(x) }
alias: <ir_version: 8, opset_import: ["ai.onnx": 17]> ONE { y = Relu(x) }
old Constant: <ir_version: 4, opset_import: ["": 8]> ONE { n = Constant <value = int64[2] {2, 3}> () y = Reshape(x, n) }
optional output: ONE { y, z = Dropout(x) }
left out: ONE { y = Clip(x, "", "") }
input is output: g (float[2,3] x) => (float[2,3] x) { y = Relu(x) }
op of onnxruntime: ONE { y = SimplifiedLayerNormalization(x, x) }
out of order: ONE { [late] y = Relu(h) [early] h = Neg(x) }
contrib without opset: ONE { y = com.microsoft.Gelu(x) }
equal names: ONE { [n] h = Relu(x) [n] y = Neg(h) }
"""  # noqa: E501


@pytest.mark.parametrize("line", ALLOWED.strip().splitlines(), ids=lambda v: v.partition(":")[0])
def test_unknown_or_allowed_size_is_not_a_problem(line: str, tmp_path: Path) -> None:
    text = line.partition(": ")[2].replace("ONE", ONE)
    assert found(write(tmp_path, text)) == []


def test_opset_from_the_future_is_a_note_and_its_nodes_are_not_judged(tmp_path: Path) -> None:
    path = write(tmp_path, ONE + "{ y = Novel <new = 1> (x) }", lambda m: _opset(m, 99))
    assert [(p.kind, p.fatal) for p in found(path)] == [("opset", False)]


def test_sparse_weights_and_names_of_runtime_attributes_are_fine(tmp_path: Path) -> None:
    def edit(model: onnx.ModelProto) -> None:
        values = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
        model.graph.sparse_initializer.append(
            helper.make_sparse_tensor(
                values, helper.make_tensor("", TensorProto.INT64, [2], [0, 4]), [3, 3]
            )
        )
        model.graph.node[0].attribute.append(helper.make_attribute("__mine", 1))

    path = write(tmp_path, ONE + "{ y = MatMul(x, w) }", edit)
    assert found(path) == []
    assert document(path)["weights"]["sparse"] == 1


def test_type_names_are_those_of_the_schemas() -> None:
    wanted = {
        t for s in onnx.defs.get_all_schemas() for p in (*s.inputs, *s.outputs) for t in p.types
    }
    plain = {
        format_schema_type(helper.make_tensor_type_proto(number, None)) for number in dtypes.TYPES
    }
    assert {t for t in wanted if t.startswith("tensor(")} - plain <= {
        "tensor(float6e2m3)",
        "tensor(float6e3m2)",
    }
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None))
    assert (
        format_schema_type(helper.make_optional_type_proto(sequence))
        == "optional(seq(tensor(float)))"
    )
    assert format_schema_type(onnx.TypeProto()) == ""


@pytest.mark.turns(3)
@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_the_light_networks_are_flawless(path: Path) -> None:
    assert found(path) == []
    assert inspect(str(path), no_run=True).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("path", LIGHT[::3], ids=lambda path: path.stem)
def test_every_tensor_of_the_light_networks_is_measured(path: Path) -> None:
    doc = document(path)
    (note,) = doc["notes"]
    assert has_line(note, "random inputs", "-i")
    assert {t["source"] for t in outputs(doc).values()} == {"run"}


# ------------------------------------------------------------ ranges


def test_ranges_are_those_of_the_values(tmp_path: Path) -> None:
    x = np.array([[-1.5, 0, np.nan], [np.inf, 2, 0]], np.float32)
    np.save(tmp_path / "x.npy", x)
    path = write(
        tmp_path, "g (float[N,3] x) => (float[M,3] y) { [r] y = Relu(x) k = Shape(x) z = IsNaN(x) }"
    )
    doc = document(path, inputs=[str(tmp_path / "x.npy")])
    assert doc["inputs"][0]["range"] == {
        "min": -1.5,
        "max": 2.0,
        "mean": 0.125,
        "nan": 1,
        "inf": 1,
        "zeros": 2,
        "elements": 6,
    }
    assert doc["inputs"][0]["values"] == "x.npy"
    made = outputs(doc)
    assert (made["y"]["shape"], made["y"]["declared"]) == (
        [2, 3],
        {"type": "float32", "shape": ["M", 3]},
    )
    assert made["y"]["range"]["max"] == 2.0
    assert (made["k"]["type"], made["k"]["value"], made["k"]["range"]["max"]) == (
        "int64",
        [2, 3],
        3,
    )
    assert (made["z"]["type"], made["z"]["range"]["zeros"]) == ("bool", 5)
    assert doc["notes"] == []


@pytest.mark.parametrize(
    "kind", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4, np.int64, np.float64]
)
def test_every_type_has_a_range(kind: Any) -> None:
    r = ranges.compute_range(np.array([[-2, 0], [1, 3]]).astype(kind))
    assert (r.low, r.high, r.zeros, r.elements, r.summary().mean) == (-2, 3, 1, 4, 0.5)


def test_corner_cases_of_ranges() -> None:
    assert ranges.compute_range(np.zeros((0, 3), np.float32)) == Range()
    assert Range().summary().mean is None
    assert ranges.compute_range(np.array([3 + 4j])).high == 5
    assert ranges.compute_range(np.array([np.nan], np.float16)).summary().min is None
    assert str(ranges.compute_range(np.array([-0.0])).low) == "0.0"
    assert (
        ranges.compute_range(np.array([1e308, 1e308])).summary().mean is None
    )  # the sum overflows
    big = np.arange(ranges.PIECE_ELEMENTS + 7, dtype=np.int64)
    assert ranges.compute_range(big) == Range(big.size, 0, big.size - 1, float(big.sum()), 0, 0, 1)
    assert ranges.compute_range(np.asfortranarray(np.eye(5))).zeros == 20


def test_samples_are_taken_together(tmp_path: Path) -> None:
    folder = tmp_path / "samples"
    folder.mkdir()
    np.save(folder / "a.npy", np.full((1, 3), 2, np.float32))
    np.save(folder / "b.npy", np.full((4, 3), -1, np.float32))
    path = write(tmp_path, "g (float[N,3] x) => (float[N,3] y) { y = Neg(x) s = Shape(y) }")
    doc = document(path, inputs=[str(folder)])
    assert doc["run"]["samples"] == 2
    y = outputs(doc)["y"]
    s = outputs(doc)["s"]
    assert (y["shape"], y["range"]["min"], y["range"]["max"], y["range"]["elements"]) == (
        [None, 3],
        -2,
        1,
        15,
    )
    assert s["value"] is None


def test_texts_sequences_and_empty_optionals(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '<ir_version: 8, opset_import: ["": 18]> g (float[2,3] x, string[2] t) => (float[2,6] y,'
        " string[2] u){ q = SequenceConstruct(x, x) y = ConcatFromSequence <axis = 1> (q) u ="
        " Identity(t) o = Optional <type = float[2]> () h = OptionalHasElement(o) }",
    )
    made = outputs(document(path))
    assert (made["q"]["type"], made["q"]["shape"], made["q"]["range"]["elements"]) == (
        "sequence of float32",
        [2, 3],
        12,
    )
    assert (made["u"]["type"], made["u"]["shape"], made["u"]["range"]) == ("string", [2], None)
    assert (made["o"]["type"], made["o"]["range"]["elements"]) == ("optional of float32", 0)
    assert made["h"]["value"] is False


def test_maps_cannot_be_stored_and_are_left_out(tmp_path: Path) -> None:
    def edit(model: onnx.ModelProto) -> None:
        model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
        zipped = helper.make_node(
            "ZipMap", ["h"], ["m"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]
        )
        model.graph.node.append(zipped)
        entry = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(1, []))
        model.graph.output.append(
            helper.make_value_info("m", helper.make_sequence_type_proto(entry))
        )

    doc = document(write(tmp_path, ONE + "{ h = Softmax(x) y = Relu(h) }", edit))
    assert doc["exit_code"] == 0
    assert outputs(doc)["h"]["source"] == "run"
    assert outputs(doc)["m"]["type"] == "seq(map(int64,tensor(float)))"
    assert has_line(doc["notes"][0], "1 of 3", "run")


def _chain(length: int, shape: str) -> str:
    nodes = "".join(f"t{k + 1} = Neg(t{k})" for k in range(length))
    return f"g (float[{shape}] t0) => (float[{shape}] t{length}) {{ {nodes} }}"


@pytest.mark.parametrize("shape", ["256,64", "N,64"], ids=["known sizes", "unknown sizes"])
def test_batches_bound_what_a_run_gives(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, _chain(30, shape))
    options = {"shape": ["t0=256x64"]} if "N" in shape else {}
    whole = document(path, **options)["nodes"]
    sizes: list[int] = []

    def counted(*arguments: Any) -> Any:
        captured = capture_samples(*arguments)
        sizes.append(sum(math.prod(s) * 4 for r in captured[0].tensors.values() for s in r.shapes))
        return captured

    monkeypatch.setattr("subgraph.inspection.ranges.capture_samples", counted)
    monkeypatch.setattr(ranges, "BATCH_BYTES", 8 * 256 * 64 * 4)
    monkeypatch.setattr(ranges, "BATCH_PARTS", 1 << 50)
    assert document(path, **options)["nodes"] == whole
    assert len(sizes) > 3
    assert max(sizes) <= 9 * 256 * 64 * 4  # the model's input comes with the first
    assert list(tmp_path.iterdir()) == [path]


def test_inputs_are_the_same_in_all_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`b` is generated with the batch size of the file for `a`, also in a run that does not need
    `a`."""
    path = write(
        tmp_path,
        "g (float[N,4] a, float[N,4] b) => (float[N,4] y) { h = Neg(a) y = Relu(b) z = Abs(y) }",
    )
    np.save(tmp_path / "a.npy", np.ones((3, 4), np.float32))
    monkeypatch.setattr(ranges, "BATCH_BYTES", 1)
    monkeypatch.setattr(ranges, "BATCH_PARTS", 1 << 50)
    made = outputs(document(path, inputs=[str(tmp_path / "a.npy")]))
    assert [made[name]["shape"] for name in "hyz"] == [[3, 4]] * 3


def test_the_node_at_which_the_reference_fails_is_found(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17, "mine": 1]> g (float[2,3] x) => (float[2,3] y)'
        "{ a = Relu(x) b = Neg(a) [bad] c = mine.Swirl(b) d = Abs(c) e = Exp(b) y = Add(d, e) }"
    )
    doc = document(write(tmp_path, text))
    assert {name: t["source"] for name, t in outputs(doc).items()} == {
        "a": "run",
        "b": "run",
        "c": None,
        "d": None,
        "e": "run",
        "y": "declared",
    }
    assert has_line(doc["notes"][0], "fails", "Swirl 'bad' (#2)")
    assert "3 of 6" in doc["notes"][1]
    assert doc["exit_code"] == 0


def test_nodes_around_a_problem_are_measured(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 11]> g (float[2,3] x, int64[2,3] k) => (float[2,3] y,'
        " int64[2,3] c){ h = Relu(x) c = Clip(k) d = Neg(c) y = Neg(h) }"
    )
    doc = document(write(tmp_path, text))
    assert doc["exit_code"] == 3
    assert {name: t["source"] for name, t in outputs(doc).items()} == {
        "h": "run",
        "c": "declared",
        "d": "inferred",
        "y": "run",
    }


def test_run_that_fails_midway_is_said(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "g (float[2,N] x) => (float[M] y) { h = Relu(x) y = Reshape(h, s) }",
        s=np.array([7]),
    )
    doc = document(path, shape=["x=2x3"])
    assert outputs(doc)["h"]["shape"] == [2, 3]
    assert has_line(doc["notes"][0], "fails", "Reshape (#1)")


def test_open_dimensions_are_a_note_unless_the_user_feeds(tmp_path: Path) -> None:
    path = write(tmp_path, "g (float[2,width] x) => (float[2,width] y) { y = Relu(x) }")
    doc = document(path)
    assert has_line(doc["notes"][0], "not run", "'x'", "'width'")
    assert outputs(doc)["y"] == {
        "name": "y",
        "source": "declared",
        "type": "float32",
        "shape": [2, "width"],
        "range": None,
        "value": None,
        "declared": {"type": "float32", "shape": [2, "width"]},
    }
    assert outputs(document(path, shape=["x=2x5"]))["y"]["shape"] == [2, 5]
    with pytest.raises(InputError):
        document(path, inputs=[str(tmp_path / "nothing.npy")])
    with pytest.raises(InputError):
        document(path, shape=["x=3x5"])


def test_the_seed_decides(tmp_path: Path) -> None:
    path = write(tmp_path, ONE + "{ y = Relu(x) }")
    assert document(path, seed=1) == document(path, seed=1)
    assert document(path, seed=1)["inputs"] != document(path, seed=2)["inputs"]


def test_nothing_is_run_without_leave(tmp_path: Path) -> None:
    doc = document(write(tmp_path, ONE + "{ h = Relu(x) y = Neg(h) }"), no_run=True)
    assert doc["run"] is None
    assert (outputs(doc)["h"]["source"], outputs(doc)["h"]["shape"]) == ("inferred", [2, 3])


def test_tensor_is_measured_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tensors of 8 MiB each, no more than half of one is in memory at a time."""
    monkeypatch.setattr(ranges, "PIECE_ELEMENTS", 1 << 16)
    text = (
        "g (float[1,1024] x) => (float[2048,1024] y) { a = Expand(x, rows) b = Neg(a) y = Abs(b) }"
    )
    path = write(tmp_path, text, rows=np.array([2048, 1024]))
    document(path)  # what is imported and kept from now on is not counted
    tracemalloc.start()
    assert [tensor["range"]["elements"] for tensor in outputs(document(path)).values()] == [
        2048 * 1024
    ] * 3
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


# ------------------------------------------------------------ documents


def test_the_whole_model(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17, "mine": 1], producer_name: "maker",'
        ' producer_version: "2">g (float[2,3] x) => (float[2,3] y) { h = MatMul(x, w) f = mine.F(h)'
        ' y = Relu(f) }<domain: "mine", opset_import: ["": 17]> F (a) => (b) { c = Neg(a) b ='
        " Neg(c) }"
    )
    path = write(tmp_path, text, w=np.eye(3, dtype=np.float32), unused=np.zeros(4, np.int64))
    doc = document(path)
    model = doc["model"]
    assert (model["bytes"], model["external_bytes"], model["ir_version"]) == (
        path.stat().st_size,
        0,
        8,
    )
    assert (model["opsets"], model["producer"]) == ({"ai.onnx": 17, "mine": 1}, "maker 2")
    assert doc["ops"] == [
        {"op": "MatMul", "domain": "", "count": 1},
        {"op": "F", "domain": "mine", "count": 1},
        {"op": "Relu", "domain": "", "count": 1},
    ]
    assert doc["functions"] == [
        {"domain": "mine", "name": "F", "overload": "", "nodes": 2, "calls": 1}
    ]
    assert (doc["weights"]["parameters"], doc["weights"]["bytes"]) == (13, 68)
    assert doc["weights"]["by_type"][0] == {
        "type": "float32",
        "count": 1,
        "parameters": 9,
        "bytes": 36,
    }
    assert [t["name"] for t in doc["outputs"]] == ["y"]
    assert doc["nodes"][0]["inputs"] == ["x", "w"]


def test_weights_in_other_files_are_counted(tmp_path: Path) -> None:
    model = parser.parse_model(f"{HEAD} {ONE} {{ y = MatMul(x, w) }}")
    model.graph.initializer.append(numpy_helper.from_array(np.eye(3, dtype=np.float32), "w"))
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, location="w.data", size_threshold=0
    )
    doc = document(tmp_path / "m.onnx", "#0")
    assert doc["model"]["external_bytes"] == 36
    assert doc["nodes"][0]["inputs"][1]["range"]["zeros"] == 6


def test_node_with_its_neighbors(tmp_path: Path) -> None:
    text = (
        "g (float[1,2,5,5] x) => (float[1,4,5,5] y){ h = Relu(x) [conv] c = Conv <pads = [1,1,1,1],"
        ' auto_pad = "NOTSET"> (h, w) [a] s = Abs(c) y = Add(c, s) }'
    )
    path = write(tmp_path, text, w=np.full((4, 2, 3, 3), 0.5, np.float32))
    doc = document(path, "conv")
    (node,) = doc["nodes"]
    assert (node["label"], node["op"]) == ("conv", "Conv")
    assert node["attributes"] == {"pads": "[1, 1, 1, 1]", "auto_pad": "'NOTSET'"}
    h, w = node["inputs"]
    assert (h["made_by"]["op"], h["range"]["min"]) == ("Relu", 0)
    assert (w["made_by"], w["source"], w["shape"], w["range"]["max"]) == (
        "weight",
        "weight",
        [4, 2, 3, 3],
        0.5,
    )
    (c,) = node["outputs"]
    assert ([n["label"] for n in c["read_by"]], c["is_output"], c["shape"]) == (
        ["a", "#3"],
        False,
        [1, 4, 5, 5],
    )
    assert doc["run"]["tensors"] == 3  # x, h and c: nothing below is run
    assert document(path, "y")["nodes"][0]["outputs"][0]["is_output"]
    assert [n["op"] for n in document(path, "x")["nodes"]] == ["Relu"]
    with pytest.raises(UnknownName):
        document(path, "cnov")


def test_attributes_are_short() -> None:
    long = list(range(100))
    node = helper.make_node(
        "X",
        [],
        [],
        ints=long,
        text="a" * 200,
        f=0.1,
        floats=[0.5],
        words=["p", "q"],
        t=numpy_helper.from_array(np.arange(3)),
        big=numpy_helper.from_array(np.zeros((8, 8))),
        g=helper.make_graph([], "g", [], []),
    )
    text = {a.name: summary.format_attribute(a) for a in node.attribute}
    assert text["ints"] == "[0, 1, 2, 3, 4, 5, 6, 7, … 100 in all]"
    assert len(text["text"]) == 60
    assert (text["f"], text["floats"], text["words"]) == ("0.1", "[0.5]", "['p', 'q']")
    assert (text["t"], text["big"], text["g"]) == (
        "int64 3 = [0, 1, 2]",
        "float64 8×8",
        "graph of 0 nodes",
    )


def test_the_edge_between_two_nodes(tmp_path: Path) -> None:
    text = (
        "g (float[2,6] x) => (float[3,4] y)"
        "{ [a] h = Relu(x) s = Shape(h) n = Add(s, one) two = Constant <value = float {2.0}> ()"
        "  [b] m = Mul(h, two) [c] r = Reshape(m, n) [d] y = Neg(r) }"
    )
    path = write(tmp_path, text, one=np.array([1, -2], np.int64))
    doc = document(path, start=["b"], end=["c"])
    assert (doc["start"], doc["end"]) == (["b"], ["c"])
    assert [n["label"] for n in doc["nodes"]] == ["b", "c"]
    assert [(t["name"], t["made_by"]["label"], t["shape"]) for t in doc["inputs"]] == [
        ("h", "a", [2, 6])
    ]
    assert [(t["name"], t["value"]) for t in doc["shapes"]] == [("n", [3, 4])]
    assert [(t["name"], [n["label"] for n in t["read_by"]]) for t in doc["outputs"]] == [
        ("r", ["d"])
    ]
    assert [n["op"] for n in doc["pulled"]] == ["Constant"]
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(NoRegion):
        document(path, start=["c"], end=["b"])
    assert document(path, end=["b"])["start"] == ["x"]


def test_the_edge_in_a_model_too_broken_for_one(tmp_path: Path) -> None:
    path = write(tmp_path, ONE + "{ [a] a = Add(x, b) [b] b = Relu(a) [c] y = Relu(b) }")
    doc = document(path, start=["a"], end=["c"])
    assert (doc["exit_code"], doc["nodes"]) == (3, [])
    assert doc["problems"][0]["kind"] == "cycle"
    assert document(path, "b")["nodes"][0]["inputs"][0]["made_by"]["label"] == "a"


# ------------------------------------------------------------ command


def test_one_word_that_is_no_file_is_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, ONE + "{ [first] h = Relu(x) [last] y = Neg(h) }")
    monkeypatch.chdir(tmp_path)
    assert inspect("last").document["nodes"][0]["op"] == "Neg"
    assert inspect(None).document["view"] == "model"
    with pytest.raises(UnknownName):
        inspect("absent.onnx")
    path.unlink()
    with pytest.raises(UnknownName):
        inspect("last")


def test_node_or_an_edge_not_both(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        inspect(str(write(tmp_path, ONE + "{ y = Relu(x) }")), "y", start=["y"])


def test_the_text_is_aligned_and_has_no_control_characters(tmp_path: Path) -> None:
    def edit(model: onnx.ModelProto) -> None:
        model.graph.node[0].name = "evil\x1b[31m\nname"
        model.producer_name = "p\nq"

    path = write(
        tmp_path, "g (float[N,3] x) => (float[N,3] y) { h = Relu(x) [n] y = Softmax(h) }", edit
    )
    result = inspect(str(path))
    assert result.document["nodes"][0]["name"] == "evil\x1b[31m\nname"
    lines = result.text.splitlines()
    header = next(line for line in lines if line.startswith("  #"))
    rows = [line for line in lines if line.startswith("  #")]
    assert [row.split()[1] for row in rows[1:]] == ["evilname", "n"]
    assert {row.index("float32") for row in rows[1:]} == {header.index("type")}
    # it fits: only inputs show its symbols
    assert "declared" not in header and "N×3" in result.text
    assert has_line(lines[0], "IR 8", "17")
    for text in (inspect(str(path), "#0").text, inspect(str(path), start=["#0"], end=["n"]).text):
        assert "\x1b" not in text
        assert "evilname" in text


def test_long_table_has_its_ends_and_all_of_it_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [
        f"[block{k}_activation_with_a_rather_long_name] t{k + 1} = Relu(t{k})" for k in range(200)
    ]
    text = f"g (float[2,3] t0) => (float[2,3] t200) {{ {' '.join(steps)} }}"
    path = str(write(tmp_path, text))
    for width in (60, 80, 100):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = inspect(path).text.splitlines()
        assert len(lines) < 65
        assert max(map(len, lines)) <= width
    assert any("148 more: --all" in line for line in lines)
    whole = inspect(path, every=True).text
    assert "block77_activation_with_a_rather_long_name" in whole
    assert len([line for line in whole.splitlines() if line.startswith("  #")]) == 201


def test_value_of_a_small_integer_tensor_is_shown_if_it_may_be_a_shape(tmp_path: Path) -> None:
    text = "g (float[1,2,1] x) => (float[1,2,1] y) { k = Shape(x) c = Cast<to=3>(x) y = Relu(x) }"
    path = str(write(tmp_path, text))
    assert "3 = [1, 2, 1]" in inspect(path).text
    assert "1×2×1 = [[[" in inspect(path, every=True).text
    assert "[[" not in inspect(path).text


def test_constants_are_weights_without_a_row(tmp_path: Path) -> None:
    text = (
        "g (float[3] x) => (float[3] y) { c = Constant<value=float[3] {1.0,2.0,4.0}>() y ="
        " Mul(x, c) }"
    )
    result = inspect(str(write(tmp_path, text)))
    weights = result.document["weights"]
    assert (weights["count"], weights["parameters"], weights["bytes"]) == (1, 3, 12)
    assert [line.split()[0] for line in result.text.splitlines() if line.startswith("  #")] == [
        "#",
        "#1",
    ]


def test_symbolic_sizes_are_short_unless_all_is_shown(tmp_path: Path) -> None:
    size = "floor(floor(height/2 - 1/2)/2) + 1"

    def declare(model: onnx.ModelProto) -> None:
        model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = size

    path = write(tmp_path, "g (float[height] x) => (float[height] y) { y = Foo.F(x) }", declare)
    assert "height/4" in inspect(str(path)).text
    assert size in inspect(str(path), every=True).text


def test_the_text_says_what_is_wrong_first(tmp_path: Path) -> None:
    text = inspect(str(write(tmp_path, ONE + "{ h = Relu(x, x) y = Neg(h) }"))).text.splitlines()
    assert text[1] == "INVALID: 1 problem"
    assert has_line(text[2], "Relu (#0)", "2 inputs")


def test_name_that_is_no_text_is_a_damaged_model(tmp_path: Path) -> None:
    path = write(tmp_path, ONE + "{ y = LeakyRelu <alpha = 0.1> (x) }")
    path.write_bytes(path.read_bytes().replace(b"alpha", b"alph\xff"))
    with pytest.raises(ModelError):
        inspect(str(path))


def test_importing_the_command_is_light() -> None:
    heavy = ("onnx", "numpy", "onnxruntime", "networkx")
    script = (
        f"import sys, subgraph.commands.inspect; print([m for m in {heavy} if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_documents_can_be_made_from_python(tmp_path: Path) -> None:
    graph = load(write(tmp_path, ONE + "{ y = Relu(x) }"))
    assert describe.describe_model(graph, Feeding()).schema == "subcut.inspect/1"
    assert describe.describe_nodes(graph, "y", None).nodes[0].op == "Relu"
    assert describe.describe_region(graph, ["y"], ["y"], None).parameters == 0


def test_glob_lists_all_nodes_that_it_matches(tmp_path: Path) -> None:
    path = chain(tmp_path / "m.onnx", ["a/1", "a/2", "a/3", "a/4", "b[1]"])
    graph = load(path)
    assert [n.name for n in describe.describe_nodes(graph, "a/*", None).nodes] == [
        "a/1",
        "a/2",
        "a/3",
        "a/4",
    ]
    # a name comes first
    assert [n.name for n in describe.describe_nodes(graph, "b[1]", None).nodes] == ["b[1]"]
    said = in_process("inspect", path, "a/*", "--no-run").text.splitlines()
    assert said[1] == "a/*  4 nodes" and [line.split()[0] for line in said[3:]] == [
        "a/1",
        "a/2",
        "a/3",
        "a/4",
    ]
    with raises(UnknownName, "node.unknown", "c*"):
        describe.describe_nodes(graph, "c*", None)
