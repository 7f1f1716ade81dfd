"""Which step of a tool makes the candidate's model wrong: planted steps, and real tools.

Covers `questions.blame.maker`, `questions.blame.maker_backend` and the makers.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from fixtures import threads
from subgraph import plugins
from subgraph.errors import NotInstalled, Refused, SubcutError, UnknownName, UsageError
from subgraph.questions.blame import maker_backend
from subgraph.questions.blame.maker import parse_maker
from subgraph.questions.blame.makers import Making, cmd, quantize_dynamic, quantize_static
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import subcut

NET = "g (float[2,3] x) => (float[2,3] y) { [relu] p = Relu(x) [exp] y = Exp(p) }"
SQUEEZES = (
    "g (float[1,4,1,1] x) => (float[1,4] y) { [relu] p = Relu(x) [first] q = Squeeze(p, last)"
    " [second] y = Squeeze(q, last) }"
)
# Its steps: `rename` changes a name, `relu` alone breaks the model, and `one` and `two` likewise
# where both are there.
PLANTED = '''"""A planted maker."""

import onnx


def steps(making, breaks="relu"):
    return ["nothing", "one", "relu", "rename", "two"]


def make(making, breaks="relu"):
    model = onnx.load(making.model)
    if "rename" not in making.skip:
        model.producer_name = "planted"
    if not making.skip.intersection(breaks.split("+")):
        model.graph.node[0].op_type = "Neg"
    onnx.save(model, making.made)
'''


def write(folder: Path, text: str = NET, **weights: Any) -> Path:
    """A small network, an input and the planted maker beside it."""
    shape = (2, 3) if text is NET else (1, 4, 1, 1)
    np.save(folder / "x.npy", np.random.default_rng(1).standard_normal(shape, np.float32))
    (folder / "planted.py").write_text(PLANTED)
    return text_models.load(folder, text, **weights).path


def blamed(folder: Path, *words: str) -> dict[str, Any]:
    """The document of `subcut blame --json` in a folder."""
    found: dict[str, Any] = json.loads(subcut("blame", "--json", *words, cwd=folder).out)
    return found


def making(folder: Path, *skip: str) -> Making:
    return Making(folder / "m.onnx", folder / "made.onnx", frozenset(skip))


# ------------------------------------------------------------ the search


@pytest.mark.slow
@pytest.mark.parametrize(
    ("breaks", "found"),
    [
        ("relu", [["relu"]]),
        pytest.param("one+two", [["one"], ["two"]], marks=pytest.mark.slow),
        pytest.param("none", [], marks=pytest.mark.slow),
    ],
)
def test_step_is_named_and_the_model_without_it_is_proven(
    tmp_path: Path, breaks: str, found: list[list[str]]
) -> None:
    path = write(tmp_path)
    maker = f"planted.py:breaks={breaks}"
    document = blamed(tmp_path, path.name, "-i", "x.npy", "--made-by", maker)
    assert document["exit_code"] == 1
    assert document["made_by"] == "planted.py"
    assert document["is_model_wrong"]
    assert document["passes"] == found
    assert not document["switches"]
    assert document["kernels"] is None
    assert [cure["what"] for cure in document["cures"]] == [f"made without {n}" for (n,) in found]
    for cure in document["cures"]:
        assert cure["proven"]
        healed = onnx.load(tmp_path / cure["model"])
        assert [node.op_type for node in healed.graph.node] == ["Relu", "Exp"]


@pytest.mark.slow
def test_two_steps_that_do_the_same_are_one_set(tmp_path: Path) -> None:
    path = write(tmp_path)
    both = PLANTED.replace(
        'if not making.skip.intersection(breaks.split("+")):',
        'if not {"one", "two"} <= making.skip:',
    )
    (tmp_path / "planted.py").write_text(both)
    document = blamed(tmp_path, path.name, "-i", "x.npy", "--made-by", "planted.py")
    assert document["passes"] == [["one", "two"]]
    assert [cure["proven"] for cure in document["cures"]] == [True]


@pytest.mark.slow
def test_command_leaves_out_what_it_lists(tmp_path: Path) -> None:
    path = write(tmp_path)
    code = "import sys\nfrom pathlib import Path\nimport planted\n"
    code += "from subgraph.questions.blame.makers import Making\nmodel, made, skip = sys.argv[1:]\n"
    code += 'steps = frozenset(skip.split(","))\n'
    code += "planted.make(Making(Path(model), Path(made), steps))\n"
    (tmp_path / "run.py").write_text(code)
    command = f"{sys.executable} run.py {{model}} {{made}} {{skip:rename,relu}}"
    document = blamed(tmp_path, path.name, "-i", "x.npy", "--made-by", command)
    assert document["passes"] == [["relu"]]
    assert has_line(document["answer"], "Step of the command", "`relu`")


@pytest.mark.slow
def test_model_that_is_made_right_is_not_blamed(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "planted.py").write_text(PLANTED.replace('"Neg"', '"Relu"'))
    document = blamed(tmp_path, path.name, "-i", "x.npy", "--made-by", "planted.py")
    assert document["exit_code"] == 0
    assert has_line(document["answer"], "planted.py's model agrees")


@pytest.mark.parametrize("fails", ["1 / 0", "os.abort()"])
def test_step_that_breaks_the_tool_itself_is_named(tmp_path: Path, fails: str) -> None:
    path = write(tmp_path)
    code = PLANTED.replace("import onnx\n", "import os\n\nimport onnx\n", 1)
    line = f'if "one" not in making.skip:\n        {fails}\n    onnx.save('
    (tmp_path / "planted.py").write_text(code.replace("onnx.save(", line))
    document = blamed(tmp_path, path.name, "-i", "x.npy", "--made-by", "planted.py")
    assert has_line(document["error"]["hint"], "without", "one")


# ------------------------------------------------------------ real tools


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("onnxoptimizer"), reason="needs onnxoptimizer")
def test_onnxoptimizer_fuses_two_squeezes_of_the_last_axis(tmp_path: Path) -> None:
    path = write(tmp_path, SQUEEZES, last=np.array([-1]))
    document = blamed(tmp_path, path.name, "-i", "x.npy", "--made-by", "onnxoptimizer")
    assert document["passes"] == [["fuse_consecutive_squeezes"]]


@pytest.mark.slow
def test_pass_of_onnxruntime_that_takes_int8_activations(tmp_path: Path) -> None:
    threads.write(tmp_path)
    document = blamed(tmp_path, "int8_matmuls.onnx", "--made-by", "ort")
    assert document["passes"] == [["QDQSelectorActionTransformer"]]


@pytest.mark.parametrize("name", ["onnxoptimizer", "onnxscript", "onnxsim", "onnxslim"])
def test_maker_makes_a_model_and_leaves_all_out(tmp_path: Path, name: str) -> None:
    pytest.importorskip(name)
    maker = plugins.load("makers", name)
    given = making(tmp_path)
    text_models.load(tmp_path, SQUEEZES, last=np.array([-1])).path.rename(given.model)
    steps = maker.steps(given)
    assert len(steps) > 20
    for skip in ((), steps):
        maker.make(making(tmp_path, *skip))
        onnx.load(given.made)
        given.made.unlink()


# A MatMul whose columns differ by 1e4, and scores with a mask; each has its own output.
QUANTIZED = (
    "g (float[8,16] x) => (float[8,16] y, float[8,16] z) { p = MatMul(x, w)  y = Div(p, s)"
    "  q = Add(x, m)  z = Exp(q) }"
)


def save_quantized(folder: Path) -> None:
    """Save the network `m.onnx` and its input `x.npy`."""
    rng = np.random.default_rng(0)
    columns = np.logspace(0, 4, 16, dtype=np.float32)
    mask = np.where(rng.random((8, 16)) < 0.3, np.float32(-1e4), np.float32(0))
    weights = rng.standard_normal((16, 16), np.float32) * columns
    text_models.load(folder, QUANTIZED, w=weights, s=columns, m=mask).path.rename(folder / "m.onnx")
    np.save(folder / "x.npy", rng.standard_normal((8, 16), np.float32))


def test_omitted_option_of_a_quantizer_has_its_other_value(tmp_path: Path) -> None:
    save_quantized(tmp_path)
    scales = {}
    for step in ("per_channel=false", "MatMul"):
        quantize_dynamic.make(making(tmp_path, step))
        made = onnx.load(tmp_path / "made.onnx").graph
        scales[step] = [t.dims[0] for t in made.initializer if t.name == "w_scale"]
    assert scales == {"per_channel=false": [16], "MatMul": []}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantizer", "found"),
    [
        ("quantize_static", [["Add", "MatMul"]]),
        ("quantize_dynamic", [["MatMul"], ["per_channel=false"]]),
    ],
)
def test_step_of_a_quantizer(tmp_path: Path, quantizer: str, found: list[list[str]]) -> None:
    save_quantized(tmp_path)
    document = blamed(tmp_path, "m.onnx", "-i", "x.npy", "--made-by", quantizer)
    assert document["passes"] == found
    assert all(cure["proven"] for cure in document["cures"])


# ------------------------------------------------------------ what is refused


@pytest.mark.parametrize("setting", ["perchannel=true", "calibrate_method=Percentle"])
def test_option_that_a_quantizer_lacks(tmp_path: Path, setting: str) -> None:
    name, value = setting.split("=")
    with raises(UsageError, "maker.unknown-option", setting):
        quantize_static.make(making(tmp_path), **{name: value})


def test_unknown_maker() -> None:
    with raises(UnknownName, "plugin.unknown", "onnxsimm"):
        parse_maker("onnxsimm")


def test_setting_without_a_value() -> None:
    with raises(UsageError, "candidate.malformed"):
        parse_maker("onnxsim:fast")


@pytest.mark.parametrize(
    "command", ["x {model} {made}", "x {made} {skip:A}", "x {made} {skip:A} {skip:B}"]
)
def test_command_names_its_places(tmp_path: Path, command: str) -> None:
    with raises(UsageError, "command.lacks-place"):
        cmd.steps(making(tmp_path), command)


def test_command_that_fails(tmp_path: Path) -> None:
    command = f"{sys.executable} -c 1/0 {{model}} {{skip:A}}"
    with raises(Refused, "command.failed", "ZeroDivisionError"):
        cmd.make(making(tmp_path), command)


def test_command_that_is_missing(tmp_path: Path) -> None:
    with raises(UsageError, "command.not-runnable", "no-such-tool"):
        cmd.make(making(tmp_path), "no-such-tool {model} {skip:A}")


@pytest.mark.parametrize(
    ("code", "kind", "problem"),
    [
        ("import no_such_package_at_all", NotInstalled, "maker.not-installed"),
        ("1 / 0", Refused, "maker.failed"),
        ("pass", Refused, "maker.no-model"),
    ],
)
def test_maker_that_fails(tmp_path: Path, code: str, kind: type[SubcutError], problem: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"def make(making):\n    {code}\n")
    options = {"maker": str(file), "settings": {}, "skip": ()}
    with raises(kind, problem):
        maker_backend.load(tmp_path / "m.onnx", {**options, "made": str(tmp_path / "made.onnx")})
