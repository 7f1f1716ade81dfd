"""`subcut replace`, `merge` and `remove`: what a user types and reads. Covers `commands.edited`."""

from __future__ import annotations

from pathlib import Path

import pytest

from subgraph.errors import InputError, ResultExists, SubcutError, UnknownName, UsageError
from tests.helpers.run_command import chain, in_process

NAMES = [f"n{i}" for i in range(6)]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return chain(Path("m.onnx"), NAMES)


def test_a_cut_is_put_back(model: Path) -> None:
    case = in_process("cut", model, "-s", "n1", "-e", "n3").document["results"][0]["path"]
    result = in_process("replace", model, "-s", "n1", "-e", "n3", "--by", case)
    assert result.text.splitlines() == [
        f"replaced 3 nodes → 3 nodes of {case}/model.onnx",
        "outputs  before and after, on the reference (random inputs, seed 0)",
        "  out  bit-identical",
        "m-new.onnx   6 nodes",
    ]
    assert Path("m-new.onnx").read_bytes() == model.read_bytes() or result.document["nodes"] == 6


def test_a_tail_goes_and_comes_back(model: Path) -> None:
    said = in_process("remove", model, "--from", "n4", "-o", "head.onnx").text.splitlines()
    assert said[0] == "removed  2 nodes from n4 on"
    assert "head-tail.onnx   the tail; back: subcut merge head.onnx head-tail.onnx" in said
    said = in_process("merge", "head.onnx", "head-tail.onnx", "-o", "whole.onnx").text.splitlines()
    assert said == [
        "merged   4 nodes and 2 nodes",
        "note     joined: t3 → t3",
        "  in     in",
        "  out    out",
        "check    the reference runs it",
        "whole.onnx   6 nodes",
    ]


def test_nodes_are_bypassed_and_the_difference_is_said(model: Path) -> None:
    result = in_process("remove", model, "n1", "n2", "-o", "new.onnx")
    assert result.text.startswith("removed  2 nodes: n1, n2\n")
    (row,) = result.document["outputs"]
    assert row["name"] == "out" and row["status"] in ("same", "changed")
    assert in_process("remove", model, "n1", "-o", "other.onnx", "--no-run").document["outputs"] == []


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("replace", "m.onnx", "-s", "n1", "-e", "n2"), UsageError),
        (("replace", "m.onnx", "--by", "m.onnx"), UsageError),
        (("replace", "m.onnx", "-s", "n1", "-e", "n2", "--by", "none.onnx"), SubcutError),
        (("replace", "m.onnx", "-s", "n1", "-e", "n2", "--by", "m.onnx", "--map", "=x"), UsageError),
        (("replace", "m.onnx", "-s", "n1", "-e", "n2", "--by", "m.onnx", "--map", "none.txt"), UsageError),
        (("replace", "m.onnx", "-s", "n1", "-e", "n2", "--by", "m.onnx", "-o", "m.onnx"), UsageError),
        (("remove", "m.onnx"), UsageError),
        (("remove", "m.onnx", "n1", "--from", "n2"), UsageError),
        (("remove", "m.onnx", "n1", "--tail", "t.onnx"), UsageError),
        (("remove", "m.onnx", "n9"), UnknownName),
        (("remove", "m.onnx", "n1", "-o", "taken.onnx"), ResultExists),
        (("remove", "m.onnx", "n1", "-i", "none.npy"), InputError),
        (("merge", "m.onnx", "m.onnx", "--map", "out=y"), UnknownName),
    ],
)
def test_what_is_refused(words: tuple[str, ...], error: type[SubcutError], model: Path) -> None:
    Path("taken.onnx").write_text("mine")
    with pytest.raises(error) as e:
        in_process(*words)
    assert e.value.what and Path("taken.onnx").read_text() == "mine"
    assert not Path("m-new.onnx").exists() or error is InputError
