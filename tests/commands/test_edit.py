"""`subcut replace`, `merge` and `remove`: what a user types and reads.

Covers `commands.edit` and `editing.body_edit`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from subgraph.errors import (
    InputError,
    ModelError,
    ResultExists,
    SubcutError,
    UnknownName,
    UsageError,
)
from tests.helpers import text_models
from tests.helpers.chain_models import chain
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import in_process, subcut
from tests.helpers.runs import evaluate

NAMES = [f"n{i}" for i in range(6)]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return chain(Path("m.onnx"), NAMES)


def test_cut_is_put_back(model: Path) -> None:
    case = in_process("cut", model, "-s", "n1", "-e", "n3").document["results"][0]["path"]
    result = in_process("replace", model, "-s", "n1", "-e", "n3", "--by", case)
    assert [row["status"] for row in result.document["outputs"]] == ["same"]
    assert Path("m-new.onnx").read_bytes() == model.read_bytes() or result.document["nodes"] == 6


def test_tail_goes_and_comes_back(model: Path) -> None:
    said = in_process("remove", model, "--from", "n4", "-o", "head.onnx").text
    assert has_line(said, "merge head.onnx", "head-tail.onnx")
    in_process("merge", "head.onnx", "head-tail.onnx", "-o", "whole.onnx")
    assert [n.name for n in onnx.load("whole.onnx").graph.node] == NAMES


@pytest.mark.parametrize("label", ["", ", int64[2] label"])
def test_zipmap_at_the_end_goes_and_comes_back(
    label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As scikit-learn's models end. No file holds its maps: what else the model gives is
    compared."""
    monkeypatch.chdir(tmp_path)
    pick = "[pick] label = ArgMax<axis = 1, keepdims = 0>(r)" if label else ""
    text = f"""g (float[2,3] x) => (float[2,3] z{label}) {{ [relu] r = Relu(x) {pick} [soft] p = Softmax(r)
        [zip] z = ai.onnx.ml.ZipMap<classlabels_int64s = [0, 1, 2]>(p) }}"""  # noqa: E501

    def declare(m: onnx.ModelProto) -> None:
        values = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
        maps = helper.make_map_type_proto(onnx.TensorProto.INT64, values)
        m.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(maps))

    text_models.load(tmp_path, text, declare, domains=("ai.onnx.ml",))
    with raises(InputError, "tensor.unsupported-type", "map(int64,tensor(float))") as refusal:
        in_process("compare", "model.onnx", "-c", "ort")
    assert "remove MODEL --from" in refusal.value.hint
    gone = in_process("remove", "model.onnx", "--from", "zip", "-o", "plain.onnx")
    assert {row["name"]: row["status"] for row in gone.document["outputs"]} == (
        {"label": "same"} if label else {}
    ) | {"z": "gone", "p": "new"}
    assert in_process("compare", "plain.onnx", "-c", "ort").exit_code == 0
    back = in_process("merge", "plain.onnx", "plain-tail.onnx", "-o", "whole.onnx")
    assert back.exit_code == 0
    assert onnx.load("whole.onnx").graph.node[-1].op_type == "ZipMap"
    replaced = in_process("remove", "model.onnx", "relu", "-o", "without.onnx")
    assert re.search("z +not compared", replaced.text)


def test_nodes_are_bypassed_and_the_difference_is_said(model: Path) -> None:
    result = in_process("remove", model, "n1", "n2", "-o", "new.onnx")
    (row,) = result.document["outputs"]
    assert row["name"] == "out" and row["status"] in ("same", "changed")
    found = in_process("remove", model, "n1", "-o", "other.onnx", "--no-run")
    assert found.document["outputs"] == []


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("replace m.onnx -s n1 -e n2", UsageError),
        ("replace m.onnx --by m.onnx", UsageError),
        ("replace m.onnx -s n1 -e n2 --by none.onnx", SubcutError),
        ("replace m.onnx -s n1 -e n2 --by m.onnx --map =x", UsageError),
        ("replace m.onnx -s n1 -e n2 --by m.onnx --map none.txt", UsageError),
        ("replace m.onnx -s n1 -e n2 --by m.onnx -o m.onnx", UsageError),
        ("remove m.onnx", UsageError),
        ("remove m.onnx n1 --from n2", UsageError),
        ("remove m.onnx n1 --tail t.onnx", UsageError),
        ("remove m.onnx n9", UnknownName),
        ("remove m.onnx n1 -o taken.onnx", ResultExists),
        ("remove m.onnx n1 -i none.npy", InputError),
        ("merge m.onnx m.onnx --map out=y", UnknownName),
    ],
)
def test_what_is_refused(line: str, error: type[SubcutError], model: Path) -> None:
    Path("taken.onnx").write_text("mine")
    with pytest.raises(error) as e:
        in_process(*line.split())
    assert e.value.what and Path("taken.onnx").read_text() == "mine"
    assert not Path("m-new.onnx").exists() or error is InputError


# ------------------------------------------------------------ bodies and opsets

LOOP = """g (float[2,3] x, int64 n) => (float[2,3] y, float[k,2,3] ys) <float[3,3] w = {1,0,2, 0,1,0, 1,1,1}> {
    [half] c = Constant<value = float {0.5}>()
    [go] t = Constant<value = bool {1}>()
    [loop] y, ys = Loop(n, t, x) <
      body = step (int64 i, bool go, float[2,3] s) => (bool go2, float[2,3] s2, float[2,3] o) {
        [keep] go2 = Identity(go)
        [mm] a = MatMul(s, w)
        [if] d = If(go) <
          then_branch = yes () => (float[2,3] p) { [add] q = Add(a, x) [neg] p = Neg(q) },
          else_branch = no () => (float[2,3] r) { [same] r = Identity(a) }>
        [mul] s2 = Mul(d, c)
        [out] o = Neg(s2)
    }>
}"""  # noqa: E501


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    text_models.load(tmp_path, LOOP)
    np.save("n.npy", np.int64(2))
    np.save("x.npy", np.ones((2, 3), np.float32))
    return Path("model.onnx")


def outputs(path: str) -> list[np.ndarray[Any, Any]]:
    feeds = {"x": np.ones((2, 3), np.float32), "n": np.array(2)}
    return list(evaluate(Path(path), feeds).values())


FED = ("-i", "n=n.npy", "-i", "x=x.npy")


def test_node_in_a_body_is_replaced(loop: Path) -> None:
    """x + x·w, negated and halved, becomes (x - x·w) · 2, negated and halved; the weight `w` stays
    outside."""
    piece = (
        "p (float[2,3] a, float[2,3] x) => (float[2,3] q) { [sub] e = Sub(x, a) [twice] q = Mul(e,"
        " two) }"
    )
    text_models.save("piece.onnx", piece, two=np.array([2], np.float32))
    ends = ("-s", "loop/body/if/then_branch/add", "-e", "loop/body/if/then_branch/add")
    in_process("replace", loop, *ends, "--by", "piece.onnx", "-o", "new.onnx", *FED)
    s = np.ones((2, 3))
    w = np.array([[1, 0, 2], [0, 1, 0], [1, 1, 1]])
    for _ in range(2):
        s = -(1 - s @ w) * 2 / 2
    assert np.array_equal(outputs("new.onnx")[0], s)
    new = onnx.load("new.onnx")
    onnx.checker.check_model(new, full_check=True)
    body = new.graph.node[2].attribute[0].g
    assert [n.name for n in body.node] == "keep mm if mul out".split() and not body.initializer
    assert [n.name for n in body.node[2].attribute[0].g.node] == ["sub", "twice", "neg"]


def test_cut_of_a_body_is_put_back(loop: Path) -> None:
    ends = ("-s", "loop/body@1/mm", "-e", "loop/body@1/mul")
    case = in_process("cut", loop, *ends, *FED).document["results"][0]["path"]
    ends = ("-s", "loop/body/mm", "-e", "loop/body/mul")
    said = in_process("replace", loop, *ends, "--by", case, "-o", "new.onnx", *FED)
    assert [row["what"] for row in said.document["outputs"]] == ["bit-identical", "bit-identical"]
    found = sorted(n.name for n in onnx.load("new.onnx").graph.node[2].attribute[0].g.node)
    assert found == sorted(["keep", "mm", "if", "mul", "out"])


def test_node_in_a_body_is_removed(loop: Path) -> None:
    in_process("remove", loop, "loop/body/if/then_branch/neg", "-o", "new.onnx", *FED)
    assert outputs("new.onnx")[0][0].tolist() == [2.25, 2.25, 3.0]  # s = (s·w + x) / 2, twice


def test_identity_of_a_weight_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text_models.load(
        tmp_path,
        "g (float[3] x) => (float[3] y) { [id] v = Identity(w) [mul] y = Mul(x, v) }",
        w=np.arange(3, dtype=np.float32),
    )
    said = in_process("remove", "model.onnx", "id", "-o", "new.onnx")
    assert [row["what"] for row in said.document["outputs"]] == ["bit-identical"]
    assert [n.name for n in onnx.load("new.onnx").graph.node] == ["mul"]


def test_newer_operator_raises_an_older_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Squeeze has its axes as an input from opset 13 on; the refusal says the way."""
    monkeypatch.chdir(tmp_path)
    old = (
        "g (float[1,3] x) => (float[3] y) { [relu] r = Relu(x) [sq] s = Squeeze<axes = [0]>(r)"
        " [neg] y = Neg(s) }"
    )
    text_models.load(tmp_path, old, opset=11)
    text_models.save(
        "gelu.onnx", "p (float[1,3] x) => (float[1,3] r) { [g] r = Gelu(x) }", opset=20
    )
    words = "replace model.onnx -s relu -e #0 --by gelu.onnx -o new.onnx".split()
    with raises(ModelError, "opset.not-convertible", "Gelu") as refusal:
        in_process(*words)
    assert "convert model.onnx --opset 20" in refusal.value.hint
    text_models.save("flat.onnx", "p (float[3] x) => (float[3] r) { [g] r = Gelu(x) }", opset=20)
    joined = "merge model.onnx flat.onnx --map y=x -o joined.onnx".split()
    with pytest.raises(ModelError):
        in_process(*joined)
    in_process("convert", "model.onnx", "--opset", "20", "-o", "model20.onnx")
    words[1] = joined[1] = "model20.onnx"
    assert in_process(*joined).exit_code == 0
    in_process(*words)
    new = onnx.load("new.onnx")
    assert new.opset_import[0].version == 20 and {"Gelu", "Squeeze", "Neg"} <= {
        n.op_type for n in new.graph.node
    }


@pytest.mark.parametrize("kept", [False, True])
def test_a_model_that_does_not_run_is_not_written(tmp_path: Path, kept: bool) -> None:
    text_models.save(
        tmp_path / "m.onnx",
        "g (float[1,3] x) => (float[1,4] y) { [one] h = MatMul (x, w) [two] y = MatMul (h, v) }",
        w=np.ones((3, 5), np.float32),
        v=np.ones((5, 4), np.float32),
    )
    new = tmp_path / "m-new.onnx"
    if kept:
        new.write_bytes(b"an earlier model")
    done = subcut("remove", "m.onnx", "one", "--force", cwd=tmp_path)
    assert done.code != 0
    assert new.exists() == kept, "an earlier file stays as it was"
    assert not kept or new.read_bytes() == b"an earlier model"
    assert sorted(p.suffix for p in tmp_path.iterdir()).count(".onnx") == 1 + kept
    assert subcut("remove", "m.onnx", "one", "--force", "--no-run", cwd=tmp_path).code == 0
    assert new.stat().st_size > 100
