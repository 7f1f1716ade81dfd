"""`subcut dump`: reference values of any choice of tensors on disk. Covers `cases.evidence`."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from subgraph.commands.tensors import choose
from subgraph.graph.graph import Graph, load
from tests.helpers.chain_models import chain
from tests.helpers.facts import has_line
from tests.helpers.run_command import manifest, subcut, tree


@pytest.fixture(scope="module")
def graph(resnet: Path) -> Graph:
    return load(resnet)


# ------------------------------------------------------------ which


@pytest.mark.parametrize(
    ("words", "tensors"),
    [
        (["conv1"], ["conv1"]),
        (["conv1_relu"], ["conv1"]),
        (["node:conv1"], ["conv1@conv1"]),
        (["tensor:conv1"], ["conv1"]),
        (["#4", "pool1", "data"], ["pool1", "data"]),
        (["MaxPool@1"], ["pool1"]),
        (["p*l?"], ["pool1", "pool5"]),
        (["*_branch2a_relu"], None),
        (["pool[15]", "prob"], ["pool1", "pool5", "prob"]),
    ],
)
def test_tensors_by_name_and_glob(
    words: list[str], tensors: list[str] | None, graph: Graph
) -> None:
    found = choose(graph, words, everything=False)
    if tensors is None:  # a glob of node names
        assert len(found) == 16
        assert found[0] == "res2a_branch2a"
    else:
        assert found == tensors


def test_all_tensors_are_dumped(graph: Graph) -> None:
    found = choose(graph, [], everything=True)
    assert found[:2] == ["data", "conv1@conv1"]
    assert len(found) == len(set(found)) == 230


def test_name_with_glob_characters_selects_itself(tmp_path: Path) -> None:
    odd = load(chain(tmp_path / "m.onnx", ["a", "b", "c"], ["t[0]", "t0"]))
    assert choose(odd, ["t[0]"], everything=False) == ["t[0]"]
    assert choose(odd, ["t?"], everything=False) == ["t0"]


# ------------------------------------------------------------ files


@pytest.mark.posix("it compares the path that is printed")
def test_patterns_choose_tensors(here: Path) -> None:
    done = subcut("dump", "conv1", "p*l?", cwd=here)
    assert done.code == 0 and done.out.endswith("subcut_out/dump/\n")
    place = here / "subcut_out/dump"
    assert sorted(tree(place)) == ["conv1.npy", "manifest.json", "pool1.npy", "pool5.npy"]
    told = manifest(place)
    assert [(t["name"], t["producer"]) for t in told["tensors"]] == [
        ("conv1", "conv1_relu"),
        ("pool1", "pool1"),
        ("pool5", "pool5"),
    ]
    assert told["tensors"][0]["samples"][0]["files"] == [
        {
            "file": "conv1.npy",
            "format": "npy",
            "dtype": "float32",
            "shape": [1, 8, 32, 32],
            "layout": "",
        }
    ]
    assert told["command"] == "subcut dump conv1 'p*l?'"
    assert has_line(told["samples"][0]["fed"][0]["from"], "random", "seed 0")


def test_all_agree_with_a_cut(here: Path) -> None:
    assert subcut("dump", "resnet50.onnx", "--all", cwd=here).code == 0
    assert subcut("-s", "pool1", "-e", "res2a_relu", "--dump", "all", cwd=here).code == 0
    dumped = tree(here / "subcut_out/dump")
    assert len(dumped) == 231
    for name, data in tree(here / "subcut_out/pool1__res2a_relu/dump_data").items():
        if name.endswith(".npy"):
            assert dumped[name] == data


def test_formats_hold_the_same_values(here: Path) -> None:
    words = "dump data conv1 --format npy,bin --dtype float16 --layout NHWC".split()
    done = subcut(*words, "-o", "d", cwd=here)
    assert done.code == 0
    assert has_line(done.err, "warning", "conv1", "float16")
    assert sorted(tree(here / "d")) == "conv1.bin conv1.npy data.bin data.npy manifest.json".split()
    exact = np.load(here / "d/conv1.npy")
    raw = np.fromfile(here / "d/conv1.bin", np.float16).reshape(1, 32, 32, 8)
    assert np.array_equal(raw, exact.transpose(0, 2, 3, 1).astype(np.float16))


def test_several_samples_are_dumped(here: Path) -> None:
    (here / "samples").mkdir()
    for name, value in (("one", 1.0), ("two", 2.0)):
        np.save(here / f"samples/{name}.npy", np.full((1, 3, 64, 64), value, np.float32))
    done = subcut("dump", "data", "conv1", "-i", "samples", "-o", "d", cwd=here)
    assert done.out == "2 tensors · 2 samples\nd/\n"
    files = {"manifest.json", "one/conv1.npy", "one/data.npy", "two/conv1.npy", "two/data.npy"}
    assert set(tree(here / "d")) == files
    assert np.load(here / "d/two/data.npy").max() == 2


def test_only_a_models_inputs(here: Path) -> None:
    assert subcut("dump", "data", "-o", "d", cwd=here).code == 0
    assert np.load(here / "d/data.npy").shape == (1, 3, 64, 64)


def test_fed_values_are_dumped_unchanged(here: Path) -> None:
    value = np.random.default_rng(1).standard_normal((1, 3, 64, 64)).astype(np.float32)
    np.save(here / "x.npy", value)
    assert subcut("dump", "data", "prob", "-i", "x.npy", "-o", "d", cwd=here).code == 0
    assert np.array_equal(np.load(here / "d/data.npy"), value)
    assert manifest(here / "d")["samples"][0]["fed"][0]["from"] == "x.npy"
    before = tree(here / "d")
    shutil.rmtree(here / "d")
    found = subcut(*shlex.split(json.loads(before["manifest.json"])["command"])[1:], cwd=here)
    assert found.code == 0
    assert tree(here / "d") == before


def test_the_second_run_gives_the_same_bytes(here: Path) -> None:
    for _ in range(2):
        assert subcut("dump", "conv1", "-o", "d", cwd=here).code == 0
        before = tree(here / "d")
    assert tree(here / "d") == before
    assert subcut("dump", "pool1", "-o", "d", cwd=here).code == 0
    assert sorted(tree(here / "d")) == ["manifest.json", "pool1.npy"]


@pytest.mark.slow
def test_words_that_are_no_model(here: Path) -> None:
    """`dump NAME` and `dump MODEL NAME` are told apart by what is there."""
    assert subcut("dump", "conv1", "-o", "one", cwd=here).code == 0
    assert subcut("dump", "resnet50.onnx", "conv1", "-o", "two", cwd=here).code == 0
    one, two = (tree(here / name) for name in ("one", "two"))
    assert one.keys() == two.keys() and one["conv1.npy"] == two["conv1.npy"]
    for words, problem in (
        (("resnet5.onnx", "conv1"), "file.not-found"),
        (("cnov1",), "node.unknown"),
        (("x" * 300,), "node.unknown"),
        (("resnet50.onnx",), "argument.missing"),
    ):
        refused = subcut("dump", *words, cwd=here)
        assert (refused.code, refused.problem, refused.out) == (2, problem, "")


def test_dump_with_json_is_one_document(here: Path) -> None:
    found = subcut("dump", "conv1", "-o", "d", "--json", cwd=here).document
    assert (found["schema"], found["exit_code"], found["path"]) == ("subcut.dump/1", 0, "d")
    assert found["tensors"] == manifest(here / "d")["tensors"]


def test_invalid_model_is_exit_3(tmp_path: Path) -> None:
    model = onnx.load(chain(tmp_path / "m.onnx", ["a", "b"]))
    model.graph.node[0].op_type = "NoSuchOp"
    onnx.save(model, tmp_path / "m.onnx")
    done = subcut("dump", "m.onnx", "out", "-o", "d", cwd=tmp_path)
    assert (done.code, done.out) == (3, "")
    assert not (tmp_path / "d").exists()
