"""Models of other formats, converted and checked.

Covers `origins.converters.conversion`, `origins.converters.script_main`,
`origins.converters.tensorflow_script`, `origins.converters.paddle_script` and `commands.convert`.
The scripts themselves run where TensorFlow and Paddle are: `make recipes` does that. Here a script
of their kind converts JSON to ONNX, right or wrong, and numpy is the runtime of the original.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from subgraph.commands import Result, convert
from subgraph.errors import ModelError, ResultExists, UsageError
from subgraph.graph.graph import Graph, load
from subgraph.origins import converters
from subgraph.origins.converters import PADDLE, TENSORFLOW, Converter, find_converter
from subgraph.origins.converters.conversion import fill_command, move_model
from subgraph.origins.converters.paddle_script import find_files
from subgraph.origins.converters.script_main import Declared, UnpairedError, pair
from subgraph.origins.converters.tensorflow_script import (
    GRAPH,
    KERAS,
    SAVED_MODEL,
    TFLITE,
    find_kind,
)
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import in_process, subcut

SCRIPT = """
import contextlib, json, os, sys
import numpy as np, onnx
from onnx import helper, TensorProto

def network(factor, constant, operator):
    nodes = [helper.make_node("Relu", ["x"], ["a"], "first"), helper.make_node("Mul", ["a", "k"], ["b"], "scale"),
             helper.make_node(operator, ["b"], ["y"], "last")]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3])] for name in "xy"]
    weight = helper.make_tensor("k", TensorProto.FLOAT, [], [factor])
    if constant:
        nodes.append(helper.make_node("Neg", ["k"], ["c"], "fixed"))
        ends[1].append(helper.make_tensor_value_info("c", TensorProto.FLOAT, []))
    graph = helper.make_graph(nodes, "g", *ends, [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

def convert(model, target):
    said = json.loads(model.read_text())
    if "fails" in said:
        sys.exit("line one\\n" + said["fails"])
    onnx.save(network(said.get("converted", said["factor"]), said.get("constant"), said.get("operator", "Neg")), target)
    open(os.path.join(os.path.dirname(target), "log.txt"), "w").close()

@contextlib.contextmanager
def open_original(model, tensors):
    said = json.loads(model.read_text())
    if "broken" in said:
        sys.exit(said["broken"])
    def compute(fed):
        a = np.maximum(fed[said.get("input", "x")], 0); b = a * np.float32(said["factor"])
        y = -b if not said.get("negative") or fed["x"].min() >= 0 else b
        outputs = {said.get("output", "y"): y} | ({"c": np.float32(3)} if said.get("constant") else {})
        return outputs | said.get("more", {}), {"a": a, "b": b, **said.get("inner", {})}
    inputs = {said.get("input", "x"): ("float32", [2, None])}
    yield inputs | {name: ("float32", [2, 3]) for name in said.get("inputs", [])}, compute
"""  # noqa: E501


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of a format that a script here converts; `subcut convert` runs it with this
    Python."""
    (tmp_path / "script.py").write_text(SCRIPT)
    ours = Converter("json2onnx", str(tmp_path / "script.py"), ("nothing",))
    monkeypatch.setattr(converters, "find_converter", lambda path: ("a test's model", ours))
    monkeypatch.setattr(convert, "find_python", lambda *_, **__: Path(sys.executable))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.json").write_text(json.dumps({"factor": 2.0}))
    return tmp_path / "net.json"


def converted(*words: str | Path) -> Result:
    return in_process("convert", *words)


def test_right_conversion_agrees_tensor_by_tensor(model: Path) -> None:
    done = converted(model)
    assert done.exit_code == 0
    assert has_line(done.text, "right: 3", "agree")
    assert (done.document["checked"], done.document["converter"]) == (True, "json2onnx")
    onnx.checker.check_model(onnx.load("net.onnx"))
    assert {p.name for p in model.parent.iterdir()} == {
        "net.json",
        "net.onnx",
        "script.py",
        "subcut_out",
    }


def test_name_with_another_shape_decides_nothing(model: Path) -> None:
    """What the original calls so is another tensor: a converter gave its name to another one. The
    recording stays."""
    model.write_text(json.dumps({"factor": 2.0, "inner": {"b": [1.0, 2.0]}}))
    done = converted(model, "--force")
    assert (done.exit_code, done.document["checked"]) == (0, True), done.text
    assert has_line(done.text, "right: 2", "agree")
    assert [p.name for p in Path("subcut_out/net-original").iterdir()] == ["sample_0.npz"]


@pytest.mark.slow
def test_wrong_conversion_is_found_with_its_node(model: Path) -> None:
    model.write_text(json.dumps({"factor": 2.0, "converted": 2.5}))
    done = converted(model)
    assert done.exit_code == 1
    assert done.text.startswith("wrong")
    assert has_line(done.text, "bad tensor: b")


def test_samples_of_the_user_are_fed_to_both(model: Path) -> None:
    """The original and its conversion differ in the second sample alone."""
    model.write_text(json.dumps({"factor": 2.0, "negative": True}))
    Path("in").mkdir()
    np.save("in/bright.npy", np.full((2, 3), 4, np.float32))
    np.save("in/dark.npy", np.array([[1, 2, -3], [1, 1, 1]], np.float32))
    done = converted(model, "-i", "in")
    assert (done.exit_code, done.document["samples"]) == (1, ["bright", "dark"])
    assert has_line(done.text, "bad tensor: y")
    (row,) = [row["runs"][0] for row in done.document["rows"] if row["tensor"] == "y"]
    assert row["in_place"]["sample"] == "dark"


@pytest.mark.parametrize(
    ("said", "names", "words"),
    [
        ({"constant": True}, ["c"], ("not checked", "c: a constant")),
        pytest.param(
            {"output": "a:0", "more": {"b:0": [[1, 2, 3], [4, 5, 6]]}},
            ["y"],
            ("y", "ONNX", "a:0, b:0"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"more": {"b:0": [1]}}, ["y"], ("none", "ONNX", "b:0"), marks=pytest.mark.slow
        ),
    ],
)
def test_it_agrees_only_if_all_outputs_were_compared(
    said: dict[str, object], names: list[str], words: tuple[str, ...], model: Path
) -> None:
    model.write_text(json.dumps({"factor": 2.0, **said}))
    done = converted(model)
    assert (done.exit_code, done.document["checked"], done.document["uncompared"]) == (
        5,
        False,
        names,
    )
    assert done.text.startswith("inconclusive: ")
    assert has_line(done.text, *words)
    assert not done.document["agree"]


@pytest.mark.slow
def test_inputs_that_cannot_be_paired(model: Path) -> None:
    model.write_text(json.dumps({"factor": 2.0, "input": "p", "inputs": ["q"]}))
    done = converted(model)
    assert (done.exit_code, done.document["checked"]) == (5, False)
    why = "inputs cannot be paired by name: x of the ONNX model with p, q of the original"
    assert done.document["why"] == why


@pytest.mark.slow
def test_the_only_input_and_output_need_no_name(model: Path) -> None:
    model.write_text(json.dumps({"factor": 2.0, "input": "p", "output": "q"}))
    assert converted(model).exit_code == 0


F = ("float32", (1, 3))
N = ("int64", (1, 3))


@pytest.mark.parametrize(
    ("ours", "theirs", "pairs"),
    [
        ({"a": F, "b": F}, {"b": F, "a": F}, {"a": "a", "b": "b"}),
        ({"a": F, "b": N}, {"y": N, "x": F}, {"a": "x", "b": "y"}),
        ({"a": F, "b": F}, {"a": F, "x": ("", None)}, {"a": "a", "b": "x"}),
        ({"a": F, "b": F}, {"x": F, "y": ("float32", (2, 3))}, None),
        ({"a": F, "b": F}, {"x": F, "y": F}, None),
        ({"a": F, "b": ("float32", (2, 3))}, {"x": F, "y": ("float32", (None, 3))}, None),
        ({"a": F, "b": F}, {"a": F}, None),
        ({"a": F}, {"a": F, "b": F}, None),
    ],
)
def test_corresponding_tensors_are_paired(
    ours: dict[str, Declared], theirs: dict[str, Declared], pairs: dict[str, str] | None
) -> None:
    if pairs is not None:
        assert pair("input", ours, theirs) == pairs
        return
    with pytest.raises(UnpairedError, match="by name"):
        pair("input", ours, theirs)


@pytest.mark.parametrize("own", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_model_that_does_not_load_is_not_converted(own: bool, model: Path) -> None:
    """An operator that no runtime has; --no-check asks for nothing but the file."""
    model.write_text(json.dumps({"factor": 2.0, "operator": "Nowhere"}))
    words = (
        []
        if own
        else ["--with", f"{sys.executable} {model.parent / 'script_main.py'} {{model}} {{output}}"]
    )
    if not own:
        code = (
            "import sys; from script import convert;"
            " convert(__import__('pathlib').Path(sys.argv[1]), sys.argv[2])"
        )
        (model.parent / "script_main.py").write_text(code)
    done = converted(model, *words)
    assert done.exit_code == 1 and not done.document["checked"]
    assert has_line(done.text, "written, and") and "Nowhere" in done.text
    assert converted(model, *words, "--no-check", "--force").exit_code == 5


def test_original_that_cannot_be_run_is_not_checked(model: Path) -> None:
    model.write_text(json.dumps({"factor": 2.0, "broken": "no such kernel"}))
    done = converted(model)
    assert (done.exit_code, done.document["checked"]) == (5, False)
    assert has_line(done.text, "not checked", "net.json")
    assert has_line(done.text, "kernel")
    assert Path("net.onnx").is_file()


def test_converter_that_fails_says_why(model: Path) -> None:
    model.write_text(json.dumps({"fails": "unsupported operator"}))
    with raises(ModelError, "convert.failed", "json2onnx", "net.json", "unsupported operator"):
        converted(model)
    assert not Path("net.onnx").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_conversion_that_is_ended_leaves_nothing_to_stay(number: int, model: Path) -> None:
    """Neither the converter's processes nor its files; what a killed command leaves, the next one
    removes."""
    code = "import os, sys, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
    Path("slow.py").write_text(code)
    words = ["convert", "net.json", "--with", f"{sys.executable} slow.py {{model}} {{output}}"]
    command = [sys.executable, "-c", "from subgraph.cli import main; main()", *words]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    while not Path("pid").exists() or not Path("pid").read_text():
        time.sleep(0.01)
    process.send_signal(number)
    process.wait()
    converter = Path("pid").read_text()
    while (
        Path(f"/proc/{converter}").exists()
        and "Z" not in Path(f"/proc/{converter}/stat").read_text().split()[2]
    ):
        time.sleep(0.01)
    assert bool(list(Path().glob(".*"))) == (number == signal.SIGKILL)
    assert converted(model).exit_code == 0
    assert not list(Path().glob(".*"))


def test_nothing_is_replaced_unasked(model: Path) -> None:
    Path("net.onnx").write_text("mine")
    with raises(ResultExists, "output.exists", "net.onnx"):
        converted(model)
    assert Path("net.onnx").read_text() == "mine"
    assert converted(model, "--force", "--no-check").exit_code == 5


# ------------------------------------------------------------ --with


@pytest.mark.parametrize(
    ("code", "problem", "about"),
    [
        ("pass", "convert.no-model", "out.onnx"),
        ("open(sys.argv[2], 'w').write('{}')", "convert.unreadable-model", ""),
        ("sys.exit('bad luck')", "convert.failed", "code 1, and said | bad luck"),
    ],
)
def test_converter_of_the_users_that_goes_wrong(
    code: str, problem: str, about: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(f"import sys\n{code}\n")
    (tmp_path / "net.xyz").write_text("?")
    command = f"{sys.executable} {tmp_path / 'mine.py'} {{model}} {{output}}"
    with raises(ModelError, problem, about):
        converted(tmp_path / "net.xyz", "-o", tmp_path / "out.onnx", "--with", command)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.py", "net.xyz"]


def test_converter_of_the_users_with_weights_beside_the_model(tmp_path: Path) -> None:
    code = """
        import sys, numpy as np, onnx
        from onnx import helper, numpy_helper, TensorProto
        w = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
        v = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 64])] for n in "xy"]
        g = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", *v, [w])
        m = helper.make_model(g, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.save(m, sys.argv[2], save_as_external_data=True, location="out.data", size_threshold=0)
        open(sys.argv[2] + ".log", "w").write("what the converter says besides")
    """
    (tmp_path / "mine.py").write_text(textwrap.dedent(code))
    (tmp_path / "a net.xyz").write_text("?")
    command = f"{sys.executable} {tmp_path / 'mine.py'} {{model}} {{output}}"
    done = subcut(
        "convert", tmp_path / "a net.xyz", "-o", "out.onnx", "--with", command, cwd=tmp_path
    )
    assert (done.code, "not checked" in done.out) == (5, True), done
    onnx.checker.check_model(str(tmp_path / "out.onnx"))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "a net.xyz",
        "mine.py",
        "out.data",
        "out.onnx",
    ]


def test_only_a_model_and_its_weights_are_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written() -> Graph:
        (tmp_path / "work").mkdir()
        monkeypatch.chdir(tmp_path / "work")  # onnx looks there for a file of that name
        weight = onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 64]) for n in "xy")
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight]
        )
        model = helper.make_model(graph)
        onnx.save(
            model, "net.onnx", save_as_external_data=True, location="w.data", size_threshold=0
        )
        Path("convert.log").touch()
        return load(tmp_path / "work" / "net.onnx")

    def shown() -> dict[str, int]:
        return {p.name: p.stat().st_size for p in tmp_path.iterdir() if p.is_file()}

    weights = tmp_path / "w.data"
    target = tmp_path / "net.onnx"
    source = tmp_path / "net.pb"
    weights.write_text("mine")
    graph = written()
    with raises(ResultExists, "output.exists", "w.data"):
        move_model(graph, target, source, force=False)
    with raises(ResultExists, "output.exists", "w.data"):
        move_model(graph, target, weights, force=True)
    assert shown() == {"w.data": 4}
    assert move_model(graph, target, source, force=True).path == target
    assert shown() == {"w.data": 4 * 64 * 64, "net.onnx": target.stat().st_size}
    onnx.checker.check_model(str(target))


@pytest.mark.parametrize(
    "template", ["python x.py {model}", "python {output}", "python 'x {model} {output}"]
)
def test_command_that_cannot_be_filled_in(template: str) -> None:
    with pytest.raises(UsageError, match="--with"):
        fill_command(template, Path("m"), Path("o"))


def test_no_shell_reads_a_name() -> None:
    words = fill_command("conv {model} -o={output}", Path("a; rm -rf b"), Path("o'o.onnx"))
    assert words == ["conv", "a; rm -rf b", "-o=o'o.onnx"]


# ------------------------------------------------------------ which


def test_formats_are_known_by_their_content(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").touch()
    (tmp_path / "inference.pdmodel").write_bytes(
        b"\n\x9a\x05\x08\0\x10" + b"\xff" * 9 + b"\x01\x1a\x20"
    )
    (tmp_path / "k").write_bytes(b"\x89HDF\r\n\x1a\n")
    (tmp_path / "t").write_bytes(b"\x20\0\0\0TFL3")
    (tmp_path / "g").write_bytes(b"\x0a\x1b\x0a\x05input\x12\x0bPlaceholder*\x0b\x0a\x05dtype")
    (tmp_path / "text").write_text("hello")
    names = ("saved", "inference.pdmodel", "k", "g")
    assert [(find_converter(tmp_path / n) or pytest.fail(n))[1] for n in names] == [
        TENSORFLOW,
        PADDLE,
        TENSORFLOW,
        TENSORFLOW,
    ]
    assert find_converter(tmp_path / "text") is None
    assert has_line((find_converter(tmp_path / "t") or pytest.fail())[0], "TensorFlow Lite")
    (tmp_path / "g.pbtxt").write_text('node {\n  name: "input"\n}\n')
    with raises(UsageError, "convert.unsupported-format", "g.pbtxt", "TensorFlow") as refusal:
        in_process("convert", tmp_path / "g.pbtxt")
    assert "as_text=False" in refusal.value.hint
    assert [find_kind(tmp_path / n) for n in ("saved", "k", "t", "g")] == [
        SAVED_MODEL,
        KERAS,
        TFLITE,
        GRAPH,
    ]


def test_the_two_files_of_a_paddle_model(tmp_path: Path) -> None:
    for name in ("m.json", "m.pdiparams"):
        (tmp_path / name).touch()
    pair = (tmp_path / "m.json", tmp_path / "m.pdiparams")
    assert [find_files(p) for p in (tmp_path, *pair)] == [pair] * 3
    (tmp_path / "m.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"m\.pdiparams"):
        find_files(tmp_path)


def test_unconvertible_model_is_refused(tmp_path: Path) -> None:
    """ONNX and a missing file are in tests/said/convert.md."""
    (tmp_path / "readme.md").write_text("# hello")
    done = subcut("convert", "readme.md", "-o", "other.onnx", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert has_line(done.err, "readme.md", "not convert")


def test_without_a_terminal_it_says_what_it_would_install(tmp_path: Path) -> None:
    (tmp_path / "m.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subcut(
        "convert",
        "m.h5",
        "--index-url",
        "https://me:secret@example.invalid/simple",
        cwd=tmp_path,
        env=cache,
    )
    assert (done.code, done.out) == (2, "")
    assert "tf2onnx==" in done.err and ", about 1.3 GB:" in done.err
    assert "****@example.invalid/simple" in done.err
    assert "secret" not in done.err
    assert "--yes" in done.err
    assert not list((tmp_path / "cache").rglob("bin"))


def test_caffe_is_read_by_subcut_itself(tmp_path: Path) -> None:
    (tmp_path / "n.prototxt").write_text(
        'name: "n" layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim:'
        ' 4 } } }layer { name: "relu" type: "ReLU" bottom: "data" top: "relu" }'
    )
    done = subcut("convert", "n.prototxt", "--weights", "random:0", cwd=tmp_path)
    assert done.code == 5, done
    assert has_line(done.out, "itself")
    assert onnx.load(tmp_path / "n.onnx").graph.node[0].op_type == "Relu"
