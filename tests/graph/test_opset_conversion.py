"""A model in another opset: by onnx's converter, unchanged where it fits, else refused by node.

Covers `graph.opset_conversion` and `editing.opsets`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from subgraph.editing.draft import convert_opset, load_at_opset
from subgraph.errors import ModelError, UsageError
from subgraph.graph.graph import Graph
from subgraph.graph.onnx_process import HIDDEN, convert_model
from subgraph.graph.opsets import opset_of
from tests.helpers import text_models
from tests.helpers.refusals import raises
from tests.helpers.run_command import in_process

CLIP = "g (float[2,4] x) => (float[2,4] y) { [low] a = Neg(x) [clip] y = Clip(a, lo, hi) }"


@pytest.fixture
def clip(tmp_path: Path) -> Graph:
    """Neg → Clip in the form of opset 11 and later; onnx has no adapter of it from 13 back."""
    return text_models.load(tmp_path, CLIP, opset=13, lo=np.float32(0), hi=np.float32(6))


def test_node_without_an_adapter_is_unchanged_if_it_fits(clip: Graph) -> None:
    model, unchanged = convert_model(onnx.load(clip.path), clip.path, 11)
    assert opset_of(model) == 11
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
    assert opset_of(onnx.load("model-opset11.onnx")) == 11


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
