"""The table of 44 cases: each cut is correct, verified without subcut's code, or refused by name
with nothing written.

Correct: the cut passes onnx.checker, loads in onnxruntime and, fed with the values of the whole
model at its boundary, gives the values of the whole model. The whole model is run by plain
onnxruntime here, not by subcut's capture.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from fixtures import oracle
from fixtures.graphs import CASES, CutCase
from subgraph.commands import Result
from subgraph.commands.resolve import parse_shapes
from subgraph.errors import SubcutError
from subgraph.graph import graph, region
from subgraph.graph.selection import select
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.load_inputs import load_sample
from subgraph.runtime.reference import Reference
from tests.helpers import run_command
from tests.helpers.refusals import raises
from tests.helpers.run_command import SUBCUT, in_process, run_program


def _numbered() -> dict[str, CutCase]:
    """`14-2`: the third row of case 14."""
    rows: Counter[int] = Counter()
    out = {}
    for case in CASES:
        out[f"{case.number:02}-{rows[case.number]}"] = case
        rows[case.number] += 1
    return out


TABLE = _numbered()
WORKS = [key for key, case in TABLE.items() if case.refused is None]
REFUSED = [key for key, case in TABLE.items() if case.refused is not None]
CAPTURED = [key for key in WORKS if "--no-capture" not in TABLE[key].options]
WITH_SCRIPT = "01-0 14-0 15-0 16-2 22-2 24-0 30-0 34-0 39-1".split()  # repro.py takes 0.3 s each
UNSHAPED = ("02-0", "04-0")  # a Loop's state may change its shape: before a run nobody knows it
RANDOM = ("22-0", "22-1", "22-2")  # two runs of the whole model give two results


@dataclass(frozen=True)
class Edge:
    """The expected boundary, derived by hand: inputs, outputs, frozen tensors if captured, and
    pulled-in nodes."""

    inputs: str
    outputs: str = "z"
    shapes: str = ""
    pulled: str = ""
    random: str = ""


H = Edge("h")
EDGES = dict.fromkeys(WORKS, H) | {
    "01-0": Edge("h positive side x"),
    "01-1": Edge("h positive side x"),
    "02-0": Edge("h side"),
    "03-0": Edge("h scale"),
    "04-0": Edge("c skip"),
    "05-1": Edge("a"),
    "06-0": Edge("h positive"),
    "07-0": Edge("h x"),
    "07-1": Edge("begin h"),
    "13-0": Edge("best", "again"),
    "15-0": Edge("h parts"),
    "15-1": Edge("h", "parts"),
    "16-0": Edge("maybe"),
    "16-1": Edge("h", "maybe"),
    "16-2": Edge("h maybe"),
    "21-0": Edge("h", pulled="cast fill two wide"),
    "22-0": Edge("h noise"),
    "22-1": Edge("h noise"),
    "22-2": Edge("h noise", "a z", random="noise"),
    "23-0": Edge("h skip x"),
    "24-0": Edge("h", shapes="target"),
    "24-1": Edge("h", shapes="rows"),
    "24-2": Edge("h", "target z"),
    "31-0": Edge("h", pulled="widen_1 widen_2 widen_3"),
    "31-1": Edge("h", pulled="widen_1 widen_2 widen_3 widen_4"),
    "31-2": Edge("h", pulled="widen"),
    "39-1": Edge("h positive", pulled="constant"),
    "42-0": Edge("h", "middle z"),
    "42-1": Edge("h", "right z"),
    "43-0": Edge("h", "a b z"),
    "43-1": Edge("h", "a b z"),
    "43-2": Edge("h", "b z"),
    "43-3": Edge("h", "a z"),
}


@pytest.fixture
def subcut(monkeypatch: pytest.MonkeyPatch, reference: Reference) -> Callable[..., Result]:
    """The command line in this process, with the shared reference."""
    monkeypatch.setattr(
        "subgraph.commands.resolve.ResolvedOptions.start_reference",
        lambda *_, **__: contextlib.nullcontext(reference),
    )

    def call(*words: str) -> Result:
        return in_process("-q", "--no-progress", *words)

    return call


def words(case: CutCase, model: Path, out: Path) -> list[str]:
    """The command line of a case."""
    starts = [w for name in case.start for w in ("--start", name)]
    ends = [w for name in case.end for w in ("--end", name)]
    return [str(model), *starts, *ends, "-o", str(out), *case.options]


# ------------------------------------------------------------ the cut is right


@pytest.mark.parametrize("key", WORKS)
def test_cut_has_the_nodes_between_and_the_edge_around_them(key: str, tmp_path: Path) -> None:
    case = TABLE[key]
    edge = EDGES[key]
    g = graph.load(case.build(tmp_path))
    found = region.find_region(g, case.start, case.end)

    model = onnx.load(g.path, load_external_data=False)
    starts, ends = (
        [i for text in texts for i in select(g, text).nodes] for texts in (case.start, case.end)
    )
    assert set(found.nodes) | set(found.random) == oracle.between(model, starts, ends)
    assert sorted(found.inputs) == edge.inputs.split()
    assert sorted(found.outputs) == edge.outputs.split()
    assert sorted(found.shapes) == edge.shapes.split()
    assert sorted(map(g.label, found.pulled)) == edge.pulled.split()
    assert sorted(map(g.label, found.random)) == edge.random.split()


@pytest.mark.turns(3)
@pytest.mark.parametrize("key", CAPTURED)
def test_the_cut_gives_the_whole_models_values(
    key: str, tmp_path: Path, subcut: Callable[..., Result]
) -> None:
    case = TABLE[key]
    source = case.build(tmp_path / "source")
    result = subcut(*words(case, source, tmp_path / "out"))
    assert result.exit_code == 0, result.text

    (manifest,) = result.document["results"]
    folder = Path(manifest["path"])
    assert manifest["check"]["status"] == "identical"
    onnx.checker.check_model(folder / "model.onnx", full_check=case.number != 8)
    cut = onnx.load(folder / "model.onnx")
    names = {role: [t["name"] for t in manifest[role]] for role in ("inputs", "outputs")}
    frozen = manifest["region"]["frozen"]
    assert sorted(names["inputs"] + frozen) == sorted(
        f"{EDGES[key].inputs} {EDGES[key].shapes}".split()
    )

    threads = manifest["reference"]["threads"]
    edge = [*names["inputs"], *names["outputs"], *frozen]
    whole = run_whole(case, source, edge, threads, tmp_path)
    for name in frozen:
        assert not oracle.differences(whole[name], oracle.weight(cut, name))
    feeds = {name: whole[name] for name in names["inputs"]}
    found = oracle.run(folder / "model.onnx", feeds, names["outputs"], threads)
    for name in names["outputs"]:
        assert not oracle.differences(whole[name], found[name]), name
    if key not in RANDOM:
        for name, stored in stored_tensors(folder, manifest).items():
            assert not oracle.differences(whole[name], stored), name


def run_whole(
    case: CutCase, source: Path, tensors: list[str], threads: int, aside: Path
) -> oracle.Values:
    """The boundary tensors of the whole model, which are made its outputs, in its own folder with
    its data files."""
    model = onnx.load(source, load_external_data=False)
    # onnxruntime refuses nodes that share a name, and names mean nothing to it
    if case.number == 20:
        for i, node in enumerate(model.graph.node):
            node.name = f"n{i}"
    g = graph.load(source)
    fed = [name for name in tensors if name in g.inputs]
    made = [name for name in tensors if name not in g.inputs]
    # Where another part of the model cannot be run by anybody (28: an unknown op, 34: its weights
    # are lost), the ancestors of the edge are all that can be.
    full = (
        oracle.tapped(model, made)
        if case.runs or case.number == 20
        else oracle.trimmed(model, made)
    )
    place = source.with_name("whole.onnx")
    place.write_bytes(full.SerializeToString())
    feeds = model_inputs(case, g)
    return oracle.run(place, feeds, made, threads) | {name: feeds[name] for name in fed}


def model_inputs(case: CutCase, g: graph.Graph) -> dict[str, Any]:
    """The inputs that subcut generates by default."""
    given = [
        word
        for flag, word in zip(case.options, case.options[1:], strict=False)
        if flag == "--shape"
    ]
    (sample,) = Feeding(shapes=parse_shapes(given)).plan(g, g.inputs)
    return load_sample(sample)[0]


def stored_tensors(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """The .npy files of boundary tensors, in the form of `oracle.run`; each .bin must hold the same
    bytes."""
    out: dict[str, Any] = {}
    for tensor in (*manifest["inputs"], *manifest["outputs"]):
        (stored,) = tensor["samples"]
        arrays = [np.load(folder / f["file"]) for f in stored["files"] if f["format"] == "npy"]
        plain = [(folder / f["file"]).read_bytes() for f in stored["files"] if f["format"] == "bin"]
        assert plain == [array.tobytes() for array in arrays]
        assert [list(array.shape) for array in arrays] == stored["shapes"]
        if "sequence" in stored["form"]:
            out[tensor["name"]] = arrays
        else:
            out[tensor["name"]] = arrays[0] if arrays else None
    return out


@pytest.mark.turns(3)
@pytest.mark.parametrize("key", WITH_SCRIPT)
def test_script_of_a_cut_reproduces_its_outputs(
    key: str, tmp_path: Path, subcut: Callable[..., Result]
) -> None:
    case = TABLE[key]
    result = subcut(*words(case, case.build(tmp_path / "source"), tmp_path / "out"))
    moved = tmp_path / "elsewhere"
    Path(result.document["results"][0]["path"]).rename(moved)
    script = run_program([sys.executable, "repro.py"], cwd=moved)
    assert script.returncode == 0, script.stdout + script.stderr
    outputs = EDGES[key].outputs.split()
    judged = [line for line in script.stdout.splitlines() if " in, " not in line]
    assert sorted(judged) == [f"{name}: bit-identical" for name in outputs]


def test_script_of_a_cut_detects_other_outputs(
    tmp_path: Path, subcut: Callable[..., Result]
) -> None:
    case = TABLE["12-0"]
    result = subcut(*words(case, case.build(tmp_path / "source"), tmp_path / "out"))
    folder = Path(result.document["results"][0]["path"])
    want = np.load(folder / "outputs/z.npy")
    np.save(folder / "outputs/z.npy", want + np.float32(0.5))
    script = run_program([sys.executable, "repro.py"], cwd=folder)
    assert script.returncode == 1
    assert "z: DIFFERS: max error 0.5" in script.stdout


# ------------------------------------------------------------ without a capture


def without_body_types(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes without the types that bodies declare: a captured cut has only those that agree
    with its boundary."""
    bare = []
    for node in nodes:
        bare.append(copy := onnx.NodeProto.FromString(node.SerializeToString()))
        for attribute in copy.attribute:
            for body in (
                (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs
            ):
                for value in (*body.input, *body.output):
                    value.ClearField("type")
                inner = without_body_types(body.node)
                del body.value_info[:], body.node[:]
                body.node.extend(inner)
    return bare


@pytest.mark.turns(3)
@pytest.mark.parametrize("key", WORKS)
def test_without_a_capture_the_structure_is_the_same(
    key: str, tmp_path: Path, subcut: Callable[..., Result]
) -> None:
    """`--no-capture` cuts the same nodes and weights, but types have another source and shapes are
    not frozen."""
    case = TABLE[key]
    source = case.build(tmp_path / "source")
    asked = words(case, source, tmp_path / "bare")
    # neither declared nor known to onnx's inference: only a run can tell the type
    if key == "29-0":
        with raises(SubcutError, "cut.unknown-type", "'h'") as refusal:
            subcut(*asked, "--no-capture")
        assert refusal.value.exit_code == 3
        return
    (bare,) = subcut(*asked, *["--no-capture"][: "--no-capture" not in asked]).document["results"]
    edge = EDGES[key]
    assert sorted(t["name"] for t in bare["inputs"]) == sorted(
        f"{edge.inputs} {edge.shapes}".split()
    )
    assert sorted(t["name"] for t in bare["outputs"]) == edge.outputs.split()
    assert bare["samples"] == [] and bare["check"]["status"] == "not run"
    model = onnx.load(Path(bare["path"]) / "model.onnx")
    check(case, model, key)
    if key not in CAPTURED:
        return
    (full,) = subcut(*words(case, source, tmp_path / "full")).document["results"]
    captured = onnx.load(Path(full["path"]) / "model.onnx")
    assert bare["region"] == full["region"] | {"frozen": []}
    assert without_body_types(model.graph.node) == without_body_types(captured.graph.node)
    assert model.functions == captured.functions
    frozen = {name: oracle.weight(captured, name) for name in edge.shapes.split()}
    assert list(model.graph.initializer) == [
        t for t in captured.graph.initializer if t.name not in frozen
    ]
    assert {o.name: kind(o) for o in model.graph.output} == {
        o.name: kind(o) for o in captured.graph.output
    }
    values = stored_tensors(Path(full["path"]), full)
    feeds = {t["name"]: values[t["name"]] for t in full["inputs"]} | frozen
    found = oracle.run(
        Path(bare["path"]) / "model.onnx", feeds, edge.outputs.split(), full["reference"]["threads"]
    )
    assert not any(oracle.differences(values[name], value) for name, value in found.items())


def check(case: CutCase, cut: onnx.ModelProto, key: str) -> None:
    """onnx.checker accepts it; at most the shape of a boundary tensor is missing, if it cannot be
    inferred."""
    model = onnx.ModelProto()
    model.CopyFrom(cut)
    if key not in CAPTURED:
        complete(case, model)
    if key in UNSHAPED:
        with pytest.raises(onnx.checker.ValidationError, match="Field 'shape'"):
            onnx.checker.check_model(model)
    else:
        # 8: inference takes a sparse weight for a vector
        onnx.checker.check_model(model, full_check=case.number != 8)


def kind(info: onnx.ValueInfoProto) -> str:
    """A type without its shapes."""
    bare = onnx.TypeProto()
    bare.CopyFrom(info.type)
    inner = bare
    while not inner.HasField("tensor_type"):
        inner = getattr(inner, str(inner.WhichOneof("value"))).elem_type
    inner.tensor_type.ClearField("shape")
    return str(bare)


def complete(case: CutCase, model: onnx.ModelProto) -> None:
    """Changes with which today's onnx accepts a future opset or an unknown operator."""
    if case.number in (40, 41):
        assert 99 in (model.ir_version, model.opset_import[0].version)
        model.ir_version, model.opset_import[0].version = 8, 17
    if case.number == 28:
        model.functions.append(oracle.stand_in("acme", "Swirl", "Softsign"))
        for node in model.graph.node:
            if node.domain == "acme":
                del node.attribute[:]


@pytest.mark.parametrize("key", ["28-1", "40-1", "41-1"])
def test_model_that_no_runtime_runs_is_cut_right(
    key: str, tmp_path: Path, subcut: Callable[..., Result]
) -> None:
    """The source and the cut, completed alike (a stand-in for the unknown op, today's IR and
    opset), agree."""
    case = TABLE[key]
    source = case.build(tmp_path / "source")
    (done,) = subcut(*words(case, source, tmp_path / "out")).document["results"]
    whole = onnx.load(source)
    cut = onnx.load(Path(done["path"]) / "model.onnx")
    for name, model in (("whole", oracle.tapped(whole, ["h", "z"])), ("cut", cut)):
        complete(case, model)
        onnx.save(model, tmp_path / f"{name}.onnx")
    x = np.random.default_rng(0).standard_normal((2, 8), dtype=np.float32)
    want = oracle.run(tmp_path / "whole.onnx", {"x": x}, ["h", "z"], 1)
    got = oracle.run(tmp_path / "cut.onnx", {"h": want["h"]}, ["z"], 1)
    assert not oracle.differences(want["z"], got["z"])


def test_weights_that_no_runtime_takes_are_cut_right(
    tmp_path: Path, subcut: Callable[..., Result]
) -> None:
    """float4: onnx's own evaluator knows it."""
    case = TABLE["31-2"]
    source = case.build(tmp_path / "source")
    (done,) = subcut(*words(case, source, tmp_path / "out")).document["results"]
    x = np.random.default_rng(0).standard_normal((2, 5), dtype=np.float32)
    whole: Any = ReferenceEvaluator(oracle.tapped(onnx.load(source), ["h", "z"])).run(
        ["h", "z"], {"x": x}
    )
    (got,) = ReferenceEvaluator(onnx.load(Path(done["path"]) / "model.onnx")).run(
        ["z"], {"h": whole[0]}
    )
    assert not oracle.differences(whole[1], got)


# ------------------------------------------------------------ what a case is about


@pytest.fixture
def cut_model(tmp_path: Path, subcut: Callable[..., Result]) -> Callable[[str], onnx.ModelProto]:
    """The cut of a case."""

    def cut(key: str) -> onnx.ModelProto:
        case = TABLE[key]
        (done,) = subcut(*words(case, case.build(tmp_path / "source"), tmp_path / "out")).document[
            "results"
        ]
        return onnx.load(Path(done["path"]) / "model.onnx")

    return cut


Cutter = Callable[[str], onnx.ModelProto]


def dims(info: onnx.ValueInfoProto) -> list[int | str]:
    return [d.dim_param or d.dim_value for d in info.type.tensor_type.shape.dim]


def test_5_functions_that_nobody_calls_stay_behind(cut_model: Cutter) -> None:
    assert [f.name for f in cut_model("05-0").functions] == ["outer", "inner", "center"]


def test_7_left_out_inputs_keep_their_places(cut_model: Cutter) -> None:
    nodes = {n.name: list(n.input) for n in cut_model("07-0").graph.node}
    assert nodes["clip"] == ["a", "", "limit"] and nodes["resize"] == ["b", "", "", "sizes"]


def test_8_the_sparse_initializer_comes_along(cut_model: Cutter) -> None:
    cut = cut_model("08-0")
    assert [s.values.name for s in cut.graph.sparse_initializer] == [
        "W1"
    ] and not cut.graph.initializer


def test_9_sparse_initializers_outside_stay_behind(cut_model: Cutter) -> None:
    assert not cut_model("09-0").graph.sparse_initializer


@pytest.mark.parametrize(("key", "declared"), [("10-0", ["h", "W1"]), ("10-1", ["h"])])
def test_10_weights_are_inputs_only_where_the_format_wants_it(
    key: str, declared: list[str], cut_model: Cutter
) -> None:
    assert [v.name for v in cut_model(key).graph.input] == declared


def test_13_the_type_comes_from_the_run(cut_model: Cutter) -> None:
    cut = cut_model("13-0").graph
    assert (
        cut.input[0].type.tensor_type.elem_type
        == cut.output[0].type.tensor_type.elem_type
        == onnx.TensorProto.INT64
    )


@pytest.mark.parametrize(
    ("key", "shape"), [("14-0", [1, 8]), ("14-1", ["batch", 8]), ("14-3", [2, 6])]
)
def test_14_shapes_are_numbers_unless_they_are_to_stay_open(
    key: str, shape: list[int | str], cut_model: Cutter
) -> None:
    cut = cut_model(key).graph
    assert dims(cut.input[0]) == dims(cut.output[0]) == shape


def test_17_annotations_of_the_region_come_with_what_they_name(cut_model: Cutter) -> None:
    graph_ = cut_model("17-0").graph
    assert [a.tensor_name for a in graph_.quantization_annotation] == ["h", "a"]
    named = {
        e.value for a in graph_.quantization_annotation for e in a.quant_parameter_tensor_names
    }
    assert named == {"h.scale", "h.zero_point", "a.scale", "a.zero_point"}
    assert {t.name for t in graph_.initializer} == named | {"W1"}


def test_18_metadata_stays_at_every_level(cut_model: Cutter) -> None:
    cut = cut_model("18-0")
    function = cut.functions[0]
    assert (cut.producer_name, cut.producer_version, cut.model_version) == (
        "subcut fixtures",
        "1.2.3",
        7,
    )
    parts: list[tuple[Any, str]] = [(cut, "the model"), (cut.graph, "metadata"), (function, "mix")]
    parts += [(function.node[0], "inner"), (cut.graph.initializer[0], "W1")]
    parts += [
        (n, name) for n, name in zip(cut.graph.node, ("first", "middle", "last"), strict=True)
    ]
    parts += [(v, v.name) for v in (*cut.graph.input, *cut.graph.output, *cut.graph.value_info)]
    assert {v.name for v in (*cut.graph.input, *cut.graph.output)} == {"h", "z"}
    for part, name in parts:
        assert part.doc_string == f"doc of {name}"
        assert ("note", f"about {name}") in [(e.key, e.value) for e in part.metadata_props]
    origin = {e.key: e.value for e in cut.metadata_props}
    assert (origin["subcut.source"], origin["subcut.start"], origin["subcut.end"]) == (
        "model.onnx",
        "first",
        "last",
    )


@pytest.mark.parametrize(
    ("key", "names"), [("20-0", "activation matmul activation#3"), ("44-0", "first middle last")]
)
def test_20_and_44_nodes_are_sorted_and_shared_names_told_apart(
    key: str, names: str, cut_model: Cutter
) -> None:
    assert [n.name for n in cut_model(key).graph.node] == names.split()


def test_31_low_bit_weights_keep_their_bytes(tmp_path: Path, cut_model: Cutter) -> None:
    cut = {t.name: t for t in cut_model("31-0").graph.initializer}
    source = {t.name: t for t in onnx.load(tmp_path / "source/model.onnx").graph.initializer}
    assert all(cut[name] == source[name] for name in ("int4", "float8", "bfloat16"))


def test_38_data_behind_a_link_is_carried_along(tmp_path: Path, cut_model: Cutter) -> None:
    cut = cut_model("38-1")
    assert not any(p.is_symlink() for p in (tmp_path / "out").rglob("*"))
    assert oracle.weight(cut, "W1").tobytes() == (tmp_path / "source/blob").read_bytes()


# ------------------------------------------------------------ refused by name


@pytest.mark.parametrize("key", REFUSED)
def test_refusal_names_the_trouble_and_writes_nothing(key: str, tmp_path: Path) -> None:
    """As users run it: in a folder of its own."""
    case = TABLE[key]
    assert case.refused is not None
    source = case.build(tmp_path / "source")
    here = tmp_path / "here"
    here.mkdir()
    line = words(case, source, Path("subcut_out"))
    done = run_command.subcut(*line, cwd=here)
    assert done.code in (2, 3), done
    assert re.search(case.refused, done.err, re.IGNORECASE), done.err
    # a user's words, not ours
    assert not re.search(r"Traceback|partial|onnxruntime::|\.cc:", done.err), done.err
    assert done.out == ""
    assert not list(here.iterdir())


@pytest.mark.parametrize("key", [k for k in REFUSED if TABLE[k].number not in (14, 28, 40, 41)])
def test_refusal_needs_no_run(key: str, tmp_path: Path, subcut: Callable[..., Result]) -> None:
    """A missing weight and a selector that matches nothing are reported, though nothing is run."""
    case = TABLE[key]
    asked = words(case, case.build(tmp_path / "source"), tmp_path / "out")
    with pytest.raises(SubcutError) as refusal:
        subcut(*asked, "--no-capture")
    assert refusal.value.exit_code in (2, 3)
    assert case.refused is not None
    said = f"{refusal.value.what}\n{refusal.value.hint}"
    assert re.search(case.refused, said, re.IGNORECASE), said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("key", ["12-0", "24-0"])
def test_the_same_command_line_works_as_a_process(key: str, tmp_path: Path) -> None:
    case = TABLE[key]
    line = words(case, case.build(tmp_path / "source"), tmp_path / "out")
    run = run_program([SUBCUT, *line])
    assert run.returncode == 0, run.stderr
    assert "bit-identical" in run.stdout and run.stderr == ""
