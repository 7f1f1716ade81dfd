"""A .tflite, cut in its own format: bit-equal to the whole, smaller, and what cannot be cut is
named.

Covers `origins.tflite.conversion` and `origins.tflite.child` as well, and the backend.
"""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings, strategies as st

import subgraph
from subgraph.errors import BackendError, SubcutError, UsageError
from subgraph.graph.region import find_region, prepare_graph
from subgraph.storage.file_kinds import Family, find_family, is_of_tflite
from subgraph.types import Array
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import in_process, run_program
from tests.helpers.tflite_faults import FILES, narrow, operators, plant

KINDS = ("float", "int8")
STEM = "functional_1/stem_1/Relu;functional_1/stem_1/convolution"
JOIN = "functional_1/join_1/concat"
runtime: Any = pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is missing")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run(
    model: bytes, feeds: dict[str, Array] | None = None, every: bool = False
) -> dict[str, Array]:
    """The outputs of a .tflite, or every tensor, on `feeds` or on random values."""
    net = runtime.Interpreter(
        model_content=model,
        experimental_op_resolver_type=runtime.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        experimental_preserve_all_tensors=every,
    )
    net.allocate_tensors()
    rng = np.random.default_rng(0)
    values = {}
    for t in net.get_input_details():
        drawn = rng.standard_normal(t["shape"]) * (1 if t["dtype"] is np.float32 else 40)
        values[t["name"]] = (feeds or {}).get(t["name"], drawn.astype(t["dtype"]))
        net.set_tensor(t["index"], values[t["name"]])
    net.invoke()
    details = net.get_tensor_details() if every else net.get_output_details()
    return values | {
        t["name"]: net.get_tensor(t["index"]) for t in details if t["shape"].size and t["name"]
    }


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(kind: str) -> None:
    data = (FILES / f"{kind}.tflite").read_bytes()
    model = operators().to_onnx(data, kind)
    back = operators().to_tflite(model)
    assert len(model.graph.node) == 28 and len(back) < len(data)
    one = run(data)
    other = run(back)
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)
    assert operators().to_tflite(operators().to_onnx(back, kind)) == back


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_cut_gives_the_same_bits(kind: str, data: st.DataObject) -> None:
    whole = (FILES / f"{kind}.tflite").read_bytes()
    model = operators().to_onnx(whole, kind)
    ends = data.draw(st.lists(st.integers(0, 27), min_size=2, max_size=2, unique=True).map(sorted))
    nodes = list(model.graph.node)[ends[0] : ends[1] + 1]
    made = {n for node in nodes for n in node.output}
    weights = {t.name for t in model.graph.initializer}
    later = {n for node in list(model.graph.node)[ends[1] + 1 :] for n in node.input}
    inputs = dict.fromkeys(n for node in nodes for n in node.input if n and n not in made | weights)
    outputs = [n for n in made if n in later or n in {o.name for o in model.graph.output}]
    infos = {v.name: v for v in (*model.graph.input, *model.graph.output, *model.graph.value_info)}
    graph = onnx.helper.make_graph(
        nodes, "cut", [infos[n] for n in inputs], [infos[n] for n in outputs]
    )
    read = {n for node in nodes for n in node.input}
    graph.initializer.extend(t for t in model.graph.initializer if t.name in read)
    cut = operators().to_tflite(onnx.helper.make_model(graph))
    values = run(operators().to_tflite(_with_outputs(model, [*inputs, *outputs])))
    alone = run(cut, values)
    assert all(alone[name].tobytes() == values[name].tobytes() for name in outputs)


def _with_outputs(model: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    out = onnx.ModelProto()
    out.CopyFrom(model)
    infos = {v.name: v for v in (*model.graph.input, *model.graph.output, *model.graph.value_info)}
    del out.graph.output[:]
    out.graph.output.extend(infos[n] for n in names if n not in {v.name for v in model.graph.input})
    return out


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("float", marks=pytest.mark.rare), "int8"])
def test_case_runs_alone(kind: str, tmp_path: Path) -> None:
    words = ["cut", str(FILES / f"{kind}.tflite"), "--start", STEM, "--end", JOIN, "-o", "out"]
    document = in_process(*words).document
    case = Path(document["results"][0]["path"])
    assert document["results"][0]["check"]["status"] == "identical"
    assert document["results"][0]["reference"]["runtime"] == "litert"
    done = run_program([sys.executable, case / "repro.py"])
    assert (done.returncode, done.stdout) == (0, f"{JOIN}: bit-identical\n"), done.stderr
    assert find_family(case / "model.tflite") is Family.TFLITE and is_of_tflite(case / "model.onnx")
    assert (case / "model.tflite").stat().st_size < (FILES / f"{kind}.tflite").stat().st_size
    subprocess.run([sys.executable, "-m", "zipfile", "-e", pack(case), "sent"], check=True)
    done = run_program([sys.executable, "sent/b/repro.py"])
    assert (done.returncode, done.stdout) == (0, f"{JOIN}: bit-identical\n"), done.stderr
    assert has_line(Path("sent/b/README.txt").read_text(), "pip", "ai-edge-litert numpy")
    assert in_process("replay", "b.zip").exit_code == 0
    again = in_process(
        "cut", str(case), "--start", JOIN, "--end", JOIN, "-o", "again"
    ).document  # a cut may be cut again
    assert again["results"][0]["check"]["status"] == "identical"


def pack(case: Path) -> str:
    """A bundle of a case."""
    assert in_process("bundle", str(case), "-o", "b.zip").exit_code == 0
    return "b.zip"


@pytest.mark.rare
@pytest.mark.slow
def test_the_usual_candidate_is_litert_as_it_is_deployed(tmp_path: Path) -> None:
    """It rounds some codes the other way, no fault. A dump of all tensors is compared, and begins a
    loop."""
    model = str(FILES / "int8.tflite")
    result = in_process("compare", model)
    assert result.exit_code == 0 and has_line(result.text, "29 tensors", "0 of 29"), result.text
    assert in_process("dump", model, "--all", "-o", "dump").exit_code == 0
    assert has_line(in_process("compare", model, "--recorded", "dump").text, "right: 29", "agree")
    assert in_process("manual", "start", model, "--seed", "0", "-o", "loop").exit_code in (0, 5)
    assert (tmp_path / "loop" / "manual-device" / "todo" / "1" / "model.tflite").is_file()


DEVICE = """
import json, sys
from pathlib import Path
import numpy as np
from ai_edge_litert.interpreter import Interpreter
model, fed, given = map(Path, sys.argv[1:])
net = Interpreter(str(model.with_name("model.tflite")))
net.allocate_tensors()
manifest = json.loads((fed / "manifest.json").read_text())
place = {t["name"]: t["index"] for t in (*net.get_input_details(), *net.get_output_details())}
for t in manifest["inputs"]:
    net.set_tensor(place[t["name"]], np.load(fed / t["npy"]))
net.invoke()
for t in manifest["outputs"]:
    np.save(given / t["npy"], net.get_tensor(place[t["name"]]))
"""


@pytest.mark.rare
@pytest.mark.slow
def test_device_that_takes_a_tflite_is_a_candidate(tmp_path: Path) -> None:
    (tmp_path / "device.py").write_text(DEVICE)
    (tmp_path / "faulty.tflite").write_bytes(plant("float", rolled, 9))
    device = f"cmd:{sys.executable} {tmp_path / 'device.py'}"
    words = [
        "bisect",
        str(FILES / "float.onnx"),
        "--candidate-model",
        str(tmp_path / "faulty.tflite"),
        "-c",
        device,
    ]
    (finding,) = in_process(*words, "--repeat", "1").document["findings"]
    assert finding["nodes"] == ["functional_1/block1_point_1/convolution1"]
    assert (Path(finding["case"]) / "candidate" / "model.tflite").is_file()
    model = str(tmp_path / "faulty.tflite")
    with pytest.raises(UsageError, match=r"faulty\.tflite"):
        in_process("bisect", model, "-c", "ort")
    with pytest.raises(UsageError, match="not edited"):
        in_process("remove", model, "functional_1/leaky_1/LeakyRelu")


def test_only_what_a_cut_needs_is_in_it() -> None:
    graph = subgraph.load(FILES / "int8.tflite")
    region = find_region(graph, [JOIN], [JOIN])
    cut = prepare_graph(subgraph.load(FILES / "int8.tflite"))
    assert len(region.nodes) == 1 and len(cut.nodes) == 28
    model = operators().to_onnx((FILES / "int8.tflite").read_bytes(), "m")
    nodes = [n for n in model.graph.node if n.name == JOIN]
    infos = {v.name: v for v in model.graph.value_info}
    alone = onnx.helper.make_graph(nodes, "m", [infos[n] for n in nodes[0].input], [infos[JOIN]])
    read = operators().schema.ModelT.InitFromPackedBuf(
        operators().to_tflite(onnx.helper.make_model(alone)), 0
    )
    assert [len(read.subgraphs[0].tensors), len(read.operatorCodes), len(read.buffers)] == [3, 1, 1]
    assert read.metadata is None and read.signatureDefs is None


def test_recognized_by_content(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes((FILES / "float.tflite").read_bytes())
    graph = subgraph.load(tmp_path / "model.bin")
    assert graph.path.name == "model.bin" and graph.ops[0] == "CONV_2D"


def test_loop_is_carried_whole_and_alone() -> None:
    """Its condition and body travel with it; in the cut it has other numbers of buffers, codes and
    subgraphs."""
    data = (FILES / "while.tflite").read_bytes()
    model = operators().to_onnx(data, "while")
    assert [node.op_type for node in model.graph.node] == ["RESHAPE", "WHILE", "STRIDED_SLICE"]
    back = operators().to_tflite(model)
    one = run(data)
    other = run(back)
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)
    assert operators().to_tflite(operators().to_onnx(back, "while")) == back
    ends = [v.name for v in model.graph.output]
    read = [n for n in model.graph.node[0].output if n in model.graph.node[1].input]
    values = run(operators().to_tflite(_with_outputs(model, [*read, *ends])))
    infos = {v.name: v for v in model.graph.value_info}
    del model.graph.node[0], model.graph.input[:]
    model.graph.input.extend(infos[n] for n in read)
    alone = run(operators().to_tflite(model), values)
    assert all(
        alone[name].tobytes() == values[name].tobytes() == one[name].tobytes() for name in ends
    )


def test_two_loops_in_one_model_do_not_share_subgraphs() -> None:
    model = operators().to_onnx((FILES / "while.tflite").read_bytes(), "while")
    loop = model.graph.node[1]
    other = onnx.NodeProto.FromString(loop.SerializeToString())
    for k, name in enumerate(other.output):
        other.output[k] = f"{name}_again"
    other.attribute[0].s = operators().to_tflite(operators().to_onnx(loop.attribute[0].s, "loop"))
    model.graph.node.insert(2, other)
    written = operators().schema.ModelT.InitFromPackedBuf(operators().to_tflite(model), 0)
    loops = [
        op.builtinOptions
        for op in written.subgraphs[0].operators
        if hasattr(op.builtinOptions, "bodySubgraphIndex")
    ]
    numbers = [k for loop in loops for k in (loop.condSubgraphIndex, loop.bodySubgraphIndex)]
    assert sorted(numbers) == [1, 2, 3, 4] == list(range(1, len(written.subgraphs)))


@pytest.mark.slow
def test_one_of_several_signatures_is_chosen(tmp_path: Path) -> None:
    from fixtures.tflite_signatures import SHAPES, two_signatures

    data = two_signatures()
    (tmp_path / "m.tflite").write_bytes(data)
    net = runtime.Interpreter(model_content=data)
    rng = np.random.default_rng(0)
    for signature, ops in (("encode", ["MUL", "ABS"]), ("decode", ["NEG", "EXP"])):
        graph = subgraph.load(tmp_path / f"m.tflite:{signature}")
        (fed,), (made,) = graph.inputs, graph.outputs
        assert graph.ops == ops and graph.path.name == "m.tflite"
        value = rng.standard_normal(SHAPES[signature]).astype(np.float32)
        (right,) = net.get_signature_runner(signature)(**{fed: value}).values()
        found = run(operators().to_tflite(onnx.load(graph.path)), {fed: value})[made].tobytes()
        assert found == right.tobytes()
    for wrong, why in (("", "which signature"), (":encod", "no signature 'encod'")):
        with pytest.raises(
            UsageError, match=f"m.tflite: {why}.* it has 'encode', 'decode'"
        ) as raised:
            subgraph.load(tmp_path / f"m.tflite{wrong}")
        assert has_line(raised.value.hint, "m.tflite:SIGNATURE")
    with raises(UsageError, "tflite.signature", "x", "serving_default"):
        subgraph.load(f"{FILES / 'float.tflite'}:x")


@pytest.mark.slow
def test_commands_take_a_signature(tmp_path: Path) -> None:
    from fixtures.tflite_signatures import two_signatures

    (tmp_path / "m.tflite").write_bytes(two_signatures())
    shown = in_process("inspect", "m.tflite:decode").text
    assert has_line(shown, "'decode'", "'encode', 'decode'") and "NEG" in shown
    with raises(UsageError, "tflite.signature", "encode"):
        in_process("inspect", "m.tflite")
    for words in (
        ["dump", "m.tflite:decode", "negative"],
        ["cut", "m.tflite:decode", "--start", "negative", "--end", "decoded"],
        ["compare", "m.tflite:decode"],
        ["compare", "m.tflite:decode", "--candidate-model", "m.tflite:decode"],
        ["bisect", "m.tflite:decode", "--repeat", "1"],
    ):
        assert in_process(*words).exit_code == 0, words


@pytest.mark.slow
def test_damaged_files_are_errors(tmp_path: Path) -> None:
    data = (FILES / "float.tflite").read_bytes()
    rng = np.random.default_rng(0)
    for k in range(6):
        damaged = bytearray(data[: len(data) * (k + 1) // 6] if k % 2 else data)
        for place in rng.integers(8, len(damaged), 200):
            damaged[place] = int(rng.integers(256))
        (tmp_path / "m.tflite").write_bytes(damaged)
        try:
            subgraph.load(tmp_path / "m.tflite")
        except SubcutError as e:
            assert "m.tflite" in e.what  # some can still be read


def test_missing_converter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with raises(UsageError, "package.not-installed", "ai-edge-litert") as raised:
        subgraph.load(FILES / "float.tflite")
    assert has_line(raised.value.hint, "'ai-edge-litert>")


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), [("float", "int8"), ("int8", "float"), ("int8", "int8")])
def test_right_conversions_are_not_blamed(one: str, other: str, tmp_path: Path) -> None:
    """Also where the ONNX model is quantized itself: then its tensors are codes as well.

    The network is not trained: another input moves its output no more than int8 does, so that an
    agreement within int8 tells nothing.
    """
    image = np.random.default_rng(5).random((1, 16, 16, 3), np.float32)
    scale = 0.003921555820852518 if one == "int8" else 0
    np.save(tmp_path / "x.npy", np.rint(image / scale - 128).astype(np.int8) if scale else image)
    words = ["bisect", str(FILES / f"{one}.onnx"), "-i", str(tmp_path / "x.npy"), "--repeat", "1"]
    document = in_process(*words, "--candidate-model", str(FILES / f"{other}.tflite")).document
    assert document["outcome"] == ("unresolved" if (one, other) == ("float", "int8") else "agree")
    assert document["findings"] == []
    if one == other == "int8":
        assert document["steps"][0]["error"] == 0


def rolled(model: Any, operator: Any) -> None:
    """The weights are one output channel off."""
    graph = model.subgraphs[0]
    weight = copy.deepcopy(graph.tensors[operator.inputs[1]])
    buffer = copy.deepcopy(model.buffers[weight.buffer])
    buffer.data = np.roll(np.asarray(buffer.data).reshape(weight.shape[0], -1), 1, 0).reshape(-1)
    weight.buffer = len(model.buffers)
    weight.name = b"rolled"
    model.buffers.append(buffer)
    operator.inputs = [operator.inputs[0], len(graph.tensors), *operator.inputs[2:]]
    graph.tensors.append(weight)


def padded(model: Any, operator: Any) -> None:
    """SAME where it was VALID."""
    operator.builtinOptions.padding = 0


FAULTS = [
    ("float", 23, padded, "down"),
    ("int8", 24, narrow, "leaky"),
    pytest.param("float", 0, rolled, "stem", marks=pytest.mark.rare),
    pytest.param("int8", 9, rolled, "block1_point", marks=pytest.mark.rare),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "number", "fault", "name"), FAULTS, ids=lambda v: getattr(v, "__name__", None)
)
def test_planted_fault_is_named(
    kind: str, number: int, fault: Callable[[Any, Any], None], name: str, tmp_path: Path
) -> None:
    """All tensors behind it are far off, and turned; nothing else is blamed."""
    (tmp_path / "faulty.tflite").write_bytes(plant(kind, fault, number))
    np.save(tmp_path / "x.npy", np.random.default_rng(5).random((1, 16, 16, 3), np.float32))
    words = ["bisect", str(FILES / "float.onnx"), "-i", str(tmp_path / "x.npy"), "--repeat", "1"]
    document = in_process(*words, "--candidate-model", str(tmp_path / "faulty.tflite")).document
    (finding,) = [f for f in document["findings"] if f["kind"] == "culprit"]
    assert any(f"/{name}_1/" in node for node in finding["nodes"]) and len(finding["nodes"]) <= 6


@pytest.mark.slow
def test_onnx_is_refused_with_what_converts_it(tmp_path: Path) -> None:
    with raises(BackendError, "candidate.other-format", "litert"):
        in_process("compare", str(FILES / "float.onnx"), "-c", "litert", "--align", "output")
