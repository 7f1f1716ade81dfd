"""onnx's own functions on foreign models: they end at a limit, by Ctrl-C and by SIGTERM; a crash is
an error.

Covers `graph.onnx_process`, `graph.onnx_child`, the local functions of `graph.opsets`, and the
version converter with `editing.draft.convert_opset`.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper

from subgraph.editing.draft import convert_opset, load_at_opset
from subgraph.errors import ModelError, UsageError
from subgraph.graph import onnx_process, shape_inference
from subgraph.graph.graph import Graph, load
from subgraph.graph.onnx_process import HIDDEN, OnnxError, OnnxProcess, convert_model
from subgraph.graph.opsets import get_opset
from tests.helpers import text_models
from tests.helpers.process_backends import until
from tests.helpers.refusals import raises
from tests.helpers.run_command import finish, in_process, start

# functions: 4 million nodes, few enough to be tried, and too many for the seconds that a test has
SLOW = 22


def doubling(path: Path, functions: int) -> Path:
    """A model of one call; each function calls the one before twice."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]

    def function(k: int) -> onnx.FunctionProto:
        op, domain = (f"F{k - 1}", "my") if k else ("Neg", "")
        nodes = [
            helper.make_node(op, ["x"], ["t"], domain=domain),
            helper.make_node(op, ["t"], ["y"], domain=domain),
        ]
        return helper.make_function("my", f"F{k}", ["x"], ["y"], nodes, opsets)

    nodes = [
        helper.make_node("Neg", ["x"], ["t"], name="n0"),
        helper.make_node(f"F{functions - 1}", ["t"], ["u"], name="n1", domain="my"),
        helper.make_node("Neg", ["u"], ["y"], name="n2"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    made = helper.make_model(
        graph, functions=[function(k) for k in range(functions)], opset_imports=opsets, ir_version=8
    )
    onnx.save(made, path)
    return path


@pytest.mark.parametrize(
    ("functions", "code"),
    [
        (doubling, ("model.expansion")),
        ("F(x) => (y) { y = my.F(x) }", "model.recursion"),
        ("F(x) => (y) { y = my.G(x) } G(x) => (y) { y = my.F(x) }", "model.recursion"),
    ],
)
def test_functions_that_cannot_be_inlined_are_refused_at_once(
    functions: object, code: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    if callable(functions):
        functions(path, 40)
    else:
        head = (
            '<ir_version: 8, opset_import: ["" : 17, "my" : 1]> g (float[2] x) => (float[2] y) { y'
            " = my.F(x) } "
        )
        domain = '<domain: "my", opset_import: ["" : 17, "my" : 1]> '
        text = head + str(functions).replace("F(x) =>", f"{domain}F(x) =>").replace(
            "G(x) =>", f"{domain}G(x) =>"
        )
        onnx.save(onnx.parser.parse_model(text), path)
    with raises(ModelError, code):
        load(path)


def test_functions_of_a_few_thousand_nodes_are_inlined(tmp_path: Path) -> None:
    found = shape_inference.infer_types(load(doubling(tmp_path / "m.onnx", 10)))
    assert found.inferred["u"].tensor_type.shape.dim[0].dim_value == 2


@pytest.mark.slow
def test_onnx_call_ends_at_its_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_process, "MAX_CALL_SECONDS", 1)
    with raises(ModelError, "model.check-failed", "m.onnx", "SIGXCPU"):
        shape_inference.infer_types(load(doubling(tmp_path / "m.onnx", SLOW)))


@pytest.mark.posix("wine takes the limit of a job and does not hold it")
def test_onnx_call_ends_at_its_memory_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_process, "MAX_MEMORY", 1 << 20)
    monkeypatch.setattr(onnx_process, "MEMORY_PER_BYTE", 0)
    with raises(ModelError, "model.check-failed", "m.onnx"):
        model = text_models.model("g (float[2] x) => (float[2] y) { y = Neg(x) }")
        model.graph.initializer.add(
            name="w", data_type=TensorProto.INT8, dims=[1 << 26], raw_data=bytes(1 << 26)
        )
        with OnnxProcess(tmp_path / "m.onnx") as process:
            process.infer_shapes(model)


def test_error_of_onnx_is_reported(tmp_path: Path) -> None:
    model = text_models.model("g (float[2] x) => (float[2] y) { y = Nonsense(x) }")
    onnx.save(model, tmp_path / "m.onnx")
    with OnnxProcess(tmp_path / "m.onnx") as process:
        with pytest.raises(OnnxError, match=r"ValidationError: .*Nonsense"):
            process.check(tmp_path / "m.onnx")
        model = text_models.model("g (float[2, 3] x) => (float[2, 3] y) { y = MatMul(x, x) }")
        with pytest.raises(OnnxError, match="Incompatible dimensions"):
            process.infer_shapes(model, strict=True)
        assert process.infer_shapes(model).graph.node[0].op_type == "MatMul"


@pytest.mark.posix("it asks for RLIMIT_CPU")
def test_each_call_has_the_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit counts from the call: what earlier calls used does not count."""
    neg = text_models.model("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    before = set(psutil.Process().children())
    with OnnxProcess(Path("m.onnx")) as onnx_process_:
        for seconds in (onnx_process.MAX_CALL_SECONDS, 7):
            monkeypatch.setattr(onnx_process, "MAX_CALL_SECONDS", seconds)
            onnx_process_.infer_shapes(neg)
            (child,) = set(psutil.Process().children()) - before
            used = sum(child.cpu_times()[:2])
            assert seconds <= child.rlimit(psutil.RLIMIT_CPU)[0] <= used + seconds + 2


@pytest.mark.posix("it reads what the process has mapped")
def test_onnx_is_loaded_without_its_package() -> None:
    """The folder of stubs beside the extension was taken for it: each command loaded numpy once
    more, for 0.4 s."""
    before = set(psutil.Process().children())
    with OnnxProcess(Path("m.onnx")) as process:
        process.infer_shapes(text_models.model("g (float[2] x) => (float[2] y) { y = Neg(x) }"))
        (child,) = set(psutil.Process().children()) - before
        mapped = [Path(m.path).name for m in child.memory_maps()]
    assert any(name.startswith("onnx_cpp2py_export") for name in mapped)
    assert not any(name.startswith("_multiarray_umath") for name in mapped), "numpy"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "number"),
    [
        pytest.param("inspect", signal.SIGTERM, marks=pytest.mark.rare),
        pytest.param("lint", signal.SIGINT, marks=pytest.mark.rare),
        ("cut -s n2 -e n2 --no-capture", signal.SIGINT),
        ("bisect -c ort", signal.SIGINT),
        ("bisect -c ort", signal.SIGTERM),
        pytest.param("compare -c ort", signal.SIGTERM, marks=pytest.mark.rare),
    ],
)
def test_every_command_ends_when_it_is_told(words: str, number: int, tmp_path: Path) -> None:
    """While onnx or onnxruntime inlines four million nodes."""
    doubling(tmp_path / "m.onnx", SLOW)
    command, *more = words.split()
    run = start(command, "m.onnx", *more, cwd=tmp_path)
    process = psutil.Process(run.pid)

    def busy() -> list[psutil.Process]:
        return [child for child in process.children() if child.cpu_times().user > 1]

    until(busy, lambda: run.communicate())
    children = busy()
    (os.killpg if number == signal.SIGINT else os.kill)(run.pid, number)
    assert finish(run, 10).code == {signal.SIGINT: 130, signal.SIGTERM: 143}[signal.Signals(number)]
    until(lambda: not any(child.is_running() for child in children))


CLIP = "g (float[2,4] x) => (float[2,4] y) { [low] a = Neg(x) [clip] y = Clip(a, lo, hi) }"


@pytest.fixture
def clip(tmp_path: Path) -> Graph:
    """Neg → Clip in the form of opset 11 and later; onnx has no adapter of it from 13 back."""
    return text_models.load(tmp_path, CLIP, opset=13, lo=np.float32(0), hi=np.float32(6))


def test_node_without_an_adapter_is_unchanged_if_it_fits(clip: Graph) -> None:
    model, unchanged = convert_model(onnx.load(clip.path), clip.path, 11)
    assert get_opset(model) == 11
    assert "Clip" in unchanged
    assert {node.domain for node in model.graph.node} == {""}
    assert HIDDEN not in {entry.domain for entry in model.opset_import}
    onnx.checker.check_model(model)


def test_node_that_does_not_fit_is_named(clip: Graph) -> None:
    with raises(ModelError, "opset.not-convertible", "'clip' (Clip)"):
        convert_opset(clip, 10)


def test_operator_that_is_newer_is_named_with_its_opset(tmp_path: Path) -> None:
    text = "g (float[2,4] x) => (float[2,4] y) { [norm] y = LayerNormalization(x, s) }"
    graph = text_models.load(tmp_path, text, opset=17, s=np.ones(4, np.float32))
    with raises(ModelError, "opset.not-convertible", "'norm' (LayerNormalization)") as error:
        convert_opset(graph, 13)
    assert "opset 17" in error.value.what


def test_attribute_that_means_what_the_older_opset_does_is_dropped(tmp_path: Path) -> None:
    text = (
        "g (float[2,8] x) => (float[2,4] y, float[2,4] z) { y, z = Split<axis=1,num_outputs=2>(x) }"
    )
    graph = text_models.load(tmp_path, text, opset=18)
    (split,) = load_at_opset(graph, 13, tmp_path / "older").nodes
    assert [a.name for a in split.attribute] == ["axis"]


def test_version_of_the_file_is_lowered_with_the_opset(clip: Graph) -> None:
    assert convert_opset(clip, 11).model.ir_version == 6
    assert convert_opset(clip, 20).model.ir_version == 8


def test_opset_that_onnx_does_not_know_is_refused(clip: Graph) -> None:
    with raises(UsageError, "opset.out-of-range", "99"):
        convert_opset(clip, 99)


def test_convert_checks_the_outputs(
    clip: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = in_process("convert", clip.path, "--opset", "11", "--json")
    assert done.exit_code == 0
    assert done.document["path"] == "model-opset11.onnx"
    assert [row["status"] for row in done.document["outputs"]] == ["same"]
    assert get_opset(onnx.load("model-opset11.onnx")) == 11


def test_conversion_that_changes_an_output_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnx 1.23 gives a Softmax of opset 13 the meaning of opset 11, which flattens axes."""
    monkeypatch.chdir(tmp_path)
    text = "g (float[2,3,4] x) => (float[2,3,4] y) { [soft] y = Softmax<axis=1>(x) }"
    text_models.load(tmp_path, text, opset=13)
    done = in_process("convert", "model.onnx", "--opset", "11", "--json")
    status = [row["status"] for row in done.document["outputs"]]
    assert (done.exit_code, status) in [(1, ["changed"]), (0, ["same"])]


def test_nothing_is_written_without_a_conversion(
    clip: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with raises(ModelError, "opset.not-convertible"):
        in_process("convert", clip.path, "--opset", "9", "-o", "old.onnx")
    assert not (tmp_path / "old.onnx").exists()
