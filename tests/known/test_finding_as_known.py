"""A finding becomes an entry of what is known, with a case that shows it; which attributes matter is told by runs.

Covers `commands.finding_as_known`, `sweep.finding_as_known` and `sweep.conditions`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from subgraph import known
from subgraph.runtime.candidate import parse
from subgraph.sweep import known_case
from subgraph.sweep.as_known import TriedNode
from subgraph.sweep.conditions import open_conditions
from subgraph.sweep.finding_as_known import renamed
from subgraph.sweep.sweep import open_sweep
from tests.helpers import text_models
from tests.helpers.run_command import subcut

TOY = '''
"""onnxruntime; a Conv with strides behind a Neg gives 1 too much, a Celu of exactly 7.25 gives 8."""
import onnx
import onnxruntime

RELEASES = "toy", ""


def version():
    return "7"


def load(model, options):
    graph = onnx.load(model).graph
    made = {name: node.op_type for node in graph.node for name in node.output}
    strided = [n for n in graph.node if n.op_type == "Conv" and any(a.name == "strides" and a.ints[0] > 1
               for a in n.attribute) and made.get(n.input[0]) == "Neg"]
    bent = [n for n in graph.node if n.op_type == "Celu"]
    session = onnxruntime.InferenceSession(str(model))
    names = [o.name for o in session.get_outputs()]

    def run(feeds):
        given = dict(zip(names, session.run(names, dict(feeds))))
        is_bent = bent and any((value == 7.25).any() for value in feeds.values())
        return {n: v + (v > 0) * bool(strided) + bool(is_bent) for n, v in given.items()}

    return run
'''
NET = """
g (float[1, 8, 9, 9] pixels) => (float[1, 8, 5, 5] scores) {
    [secret_stem] a = Neg (pixels)
    [secret_conv] b = Conv <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], group = 2> (a, kernels)
    scores = Relu (b)
}
"""
BENT = "g (float[2, 3] pixels) => (float[2, 3] scores) { a = Celu <alpha = 2.0> (pixels) scores = Neg (a) }"


@pytest.fixture(scope="module")
def bisected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run of a bisection that found Neg and Conv."""
    folder = tmp_path_factory.mktemp("bisected")
    (folder / "toy.py").write_text(TOY, encoding="utf-8")
    kernels = np.random.default_rng(1).normal(size=(8, 4, 3, 3)).astype(np.float32)
    onnx.save(text_models.model(NET, kernels=kernels), folder / "m.onnx")
    done = subcut("bisect", "m.onnx", "-c", "toy.py", "-o", "out", cwd=folder)
    assert "wrong: 2 of 3 nodes: secret_stem, secret_conv (Neg, Conv)" in done.out, done
    return folder


@pytest.fixture
def run(bisected: Path, tmp_path: Path) -> Iterator[Path]:
    shutil.copytree(bisected, tmp_path, dirs_exist_ok=True)
    yield tmp_path / "out" / "bisect-toy.py"


def test_a_finding_becomes_an_entry_that_is_tried_and_hints(run: Path, tmp_path: Path) -> None:
    """Only strides matter of Conv's attributes; the case holds neither names nor weights of the user's model."""
    words = ("bundle", "out/bisect-toy.py", "-c", "toy.py", "--as-known", "conv-strides")
    done = subcut(*words, cwd=tmp_path)
    assert done.code == 0, done
    assert "as wrong without: kernel_shape, pads\n" in done.out and "wrong here, on drawn inputs: " in done.out
    assert "no blame: `subcut blame " in done.err
    file = tmp_path / "known" / "toy" / "conv-strides.toml"
    entry, text = known.read(file), file.read_text(encoding="utf-8")
    assert (entry.operator, dict(entry.when)) == ("Conv", {"set strides": "yes", "maker 0": "Neg"}), text
    assert entry.says == "with strides behind Neg gives other values" and [*entry.wrong] == ["7"], text
    assert "secret" not in text and "pixels" not in text and len(text) < 2000, text
    (tmp_path / "subcut.toml").write_text('known = ["known"]\n', encoding="utf-8")
    tried = subcut("known", "conv-strides", "--try", "-c", "toy.py", cwd=tmp_path)
    assert (tried.code, "wrong  conv-strides  1 wrong" in tried.out) == (1, True), tried
    hinted = subcut("lint", "m.onnx", "-c", "toy.py", "--only", "known", cwd=tmp_path)
    assert "secret_conv (Conv): with strides behind Neg gives other values" in hinted.out
    again = subcut(*words, cwd=tmp_path)
    assert (again.code, "there is an entry toy/conv-strides" in again.err) == (2, True), again
    assert file.read_text(encoding="utf-8") == text


def test_what_only_real_inputs_show_has_them(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(TOY, encoding="utf-8")
    onnx.save(text_models.model(BENT), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.array([[1, 2, 7.25], [0.1, 4, 5]], np.float32))
    subcut("bisect", "m.onnx", "-c", "toy.py", "-i", "x.npy", cwd=tmp_path)
    words = ("bundle", "subcut_out/bisect-toy.py", "-c", "toy.py", "--as-known", "celu", "-o", "own")
    done = subcut(*words, "--json", cwd=tmp_path)
    assert done.code == 0, done
    case = done.document["entry"]["case"]
    assert case["values"] == {"x0": [1, 2, 7.25, 0.1, 4, 5]}
    assert (done.document["here"], done.document["entry"]["when"]) == ("wrong", {}), "alpha does not matter"
    assert "each Celu of a model will get a hint" in done.err
    entry = known.read(tmp_path / "own" / "toy" / "celu.toml")
    ((_, example),) = known_case.examples([entry], tmp_path / "case")
    assert example.inputs[0].array().tolist() == np.load(tmp_path / "x.npy").tolist()


def test_its_blame_gives_releases_pass_and_cures(run: Path, tmp_path: Path) -> None:
    blame = {
        "schema": "subcut.blame/1", "exit_code": 1, "model": "m.onnx", "candidate": "toy.py", "runtime": "toy",
        "version": "7", "outcome": "disagree", "region": [], "ops": [], "whole": False, "signature": "mismatch",
        "why": "", "kernels": None, "passes": [["Fuse"]], "switches": [], "answer": "", "script": "", "notes": [],
        "case": None, "folder": None, "runs": 1, "installs": 0, "seconds": 1.0, "command": "",
        "versions": {"wrong": ["6", "7"], "right": ["8"], "unknown": {}, "first_wrong": "6", "first_right": "8",
                     "releases": 3, "tried": []},
        "cures": [{"kind": "pass", "what": "without Fuse", "how": "off=Fuse", "proven": True, "heals": "whole"},
                  {"kind": "switch", "what": "fast off", "how": "fast=0", "proven": False, "heals": "region"}],
    }  # fmt: skip
    (run / "culprit" / "blame").mkdir()
    (run / "culprit" / "blame" / "blame.json").write_text(json.dumps(blame), encoding="utf-8")
    (tmp_path / "known" / "toy").mkdir(parents=True)
    (tmp_path / "known" / "toy" / "c.toml").write_text("one that is in the way", encoding="utf-8")
    words = ("bundle", "out/bisect-toy.py", "-c", "toy.py", "--as-known", "c", "--json")
    assert subcut(*words, cwd=tmp_path).code == 2
    done = subcut(*words, "--force", cwd=tmp_path)
    assert known.read(tmp_path / "known" / "toy" / "c.toml").operator == "Conv", done
    entry = done.document["entry"]
    assert (entry["wrong"], entry["right"], entry["cure"]) == (["6", "7"], ["8"], "without Fuse (off=Fuse)"), done
    assert entry["says"].endswith("gives other values: right without Fuse")
    assert "no blame" not in done.err


def changed(run: Path, **fields: Any) -> None:
    """Have the document say something else of its finding."""
    document = json.loads((run / "run.json").read_text(encoding="utf-8"))
    document["findings"][0] |= fields
    (run / "run.json").write_text(json.dumps(document), encoding="utf-8")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"rounding": True}, "is a fault by rounding: nothing is computed wrongly there"),
        ({"signature": "precision"}, "is a fault by rounding"),
        ({"signature": "refused"}, "is refused, and not computed wrongly"),
        ({"signature": "crash"}, "no case of the finding shows it: wrong"),
        ({"case": None}, "is no finding of that bisection"),
    ],
)
def test_what_is_no_entry_is_a_clear_error(run: Path, tmp_path: Path, fields: dict[str, Any], why: str) -> None:
    changed(run, **fields)
    done = subcut("bundle", "out/bisect-toy.py", "-c", "toy.py", "--as-known", "a", cwd=tmp_path)
    assert (done.code, why in done.err) == (5 if "no case" in why else 2, True), done
    assert not (tmp_path / "known").exists()


def test_what_has_no_finding_is_a_clear_error(run: Path, tmp_path: Path) -> None:
    words = ("-c", "toy.py", "--as-known")
    for given, why in [
        (("bundle", "out", *words, "a"), "out is not the folder of a bisection"),
        (("bundle", "nowhere", *words, "a"), "no folder nowhere: a bisection that agrees leaves none"),
        (("bundle", "out/bisect-toy.py", *words, "../a"), "--as-known ../a: no name of an entry, which is a file"),
        (("bundle", "out/bisect-toy.py", *words, "a", "--keep", "all"), "--as-known packs nothing"),
        (("bundle", "out/bisect-toy.py", "--as-known", "a"), "trust"),
    ]:
        done = subcut(*given, cwd=tmp_path)
        assert (done.code, why in done.err) == (2, True), done
    document = json.loads((run / "run.json").read_text(encoding="utf-8")) | {"findings": [], "outcome": "unresolved"}
    (run / "run.json").write_text(json.dumps(document), encoding="utf-8")
    done = subcut("bundle", "out/bisect-toy.py", "--as-known", "a", cwd=tmp_path)
    assert (done.code, "has no finding: unresolved" in done.err) == (2, True), done
    subcut("dump", "m.onnx", "--all", "-o", "values", cwd=tmp_path)
    subcut("compare", "m.onnx", "--recorded", "values", "-o", "recorded", cwd=tmp_path)
    (recorded,) = (tmp_path / "recorded").iterdir()
    done = subcut("bundle", str(recorded), "--as-known", "a", cwd=tmp_path)
    assert (done.code, "is of a recording, which has no candidate to try" in done.err) == (2, True), done


BOUNDED = '''
"""onnxruntime, whose Clip with a largest value gives 1 too much."""
import onnx
import onnxruntime


def load(model, options):
    wrong = any(len(node.input) > 2 and node.input[2] for node in onnx.load(model).graph.node)
    session = onnxruntime.InferenceSession(str(model))
    names = [o.name for o in session.get_outputs()]
    return lambda feeds: {n: v + wrong for n, v in zip(names, session.run(names, dict(feeds)))}
'''


def test_which_inputs_matter_is_told_by_runs_without_them_and_with_constants(tmp_path: Path) -> None:
    (tmp_path / "bounded.py").write_text(BOUNDED, encoding="utf-8")
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[4] x, float low, float high) => (float[4] y)'
    values: dict[str, list[float]] = {"x": [1, 2, 3, 4.5], "low": [2], "high": [3]}
    case = known.KnownCase(f"{text} {{ y = Clip (x, low, high) }}", values=values)
    entry = known.Entry("Clip", "x", ["1"], "2026-01-01", case=case, name="own", runtime="bounded")
    ((_, example),) = known_case.examples([entry], tmp_path / "case")
    with (
        open_sweep([parse(str(tmp_path / "bounded.py"))], tmp_path / "out", only=None) as sweep,
        open_conditions(sweep, 0) as conditions,
    ):
        told = conditions.told(example, 0, {})
    assert told == {"input 1": False, "type 1": False, "input 2": False, "type 2": True}
    tested = TriedNode({"input 1": "variable", "input 2": "variable", "type 1": "float32", "type 2": "float32"}, told)
    assert (tested.idle, tested.needed) == (("input 1", "input 2"), {"type 2": "float32"})


def test_a_model_in_text_has_no_names_of_its_own() -> None:
    text = """
    g (int64 n/1, bool go, float[2] x) => (float[2] y) {
        y = Loop (n, go, x) <body = step (int64 i, bool on, float[2] v) => (bool still, float[2] out) {
            still = Identity (on) s = Add (v, x) out = Relu (s) }>
    }"""
    model = text_models.model(text.replace("n/1", "n"))
    model.graph.node[0].name, model.graph.input[0].name, model.graph.node[0].input[0] = "a/b", "n:0", "n:0"
    names = renamed(model)
    assert names["n:0"] == "x0" and names["x"] == "x2" and names["y"] == "y0"
    again = onnx.parser.parse_model(onnx.printer.to_text(model))
    onnx.checker.check_model(again, full_check=True)
    assert again.graph.node[0].attribute[0].g.node[1].input[1] == "x2", "a body reads it from outside"


def test_weights_are_drawn_and_values_are_taken(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2, 3] x, float[2, 4] z) => (float[2, 4] y) <float[3, 4] w> { p = MatMul (x, w) y = Add (p, z) }"""
    case = known.KnownCase(text, ranges={"w": (5.0, 6.0)}, values={"x": (1, 2, 3, 4, 5, 6.5)})
    entry = known.Entry("MatMul", "x", ("1",), "2026-01-01", case=case, name="own", runtime="toy")
    ((_, example),) = known_case.examples([entry], tmp_path)
    x, z = (record.array() for record in example.inputs)
    assert x.tolist() == [[1, 2, 3], [4, 5, 6.5]] and (abs(z) <= 1).all()
    (weight,) = onnx.load(example.model).graph.initializer
    w = onnx.numpy_helper.to_array(weight)
    assert w.shape == (3, 4) and ((w >= 5) & (w <= 6)).all() and len({*w.flat}) == 12
    assert np.allclose(example.outputs[0].array(), x @ w + z)
    (tmp_path / "toy").mkdir(exist_ok=True)
    (tmp_path / "toy" / "own.toml").write_text(known.render(entry), encoding="utf-8")
    assert known.read(tmp_path / "toy" / "own.toml") == entry
