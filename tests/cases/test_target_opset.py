"""A cut at an older opset, and `repro.py` on other inputs. Covers `cases.check.write_at_opset`."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.helpers import text_models
from tests.helpers.run_command import subcut

TEXT = """g (float[1,4] x) => (float[1,4] y) <float[4] s = {1,1,1,1}> {
    [norm] a = LayerNormalization(x, s) [relu] b = Relu(a) [last] y = Neg(b)
}"""
AT_17 = 17


@pytest.fixture
def model(tmp_path: Path) -> Path:
    def at(m: onnx.ModelProto) -> None:
        m.opset_import[0].version = AT_17
        m.ir_version = 9

    return text_models.load(tmp_path, TEXT, at).path


def cut(model: Path, *words: str) -> tuple[dict[str, object], str]:
    done = subcut("cut", model, *words, "--json", cwd=model.parent)
    assert done.code == 0, done.err
    (result,) = done.document["results"]
    return result["target_opset"], result["path"]


def test_nodes_that_need_a_newer_opset_are_named(model: Path) -> None:
    target, path = cut(model, "--start", "norm", "--end", "last", "--target-opset", "13")
    newer = [(n["name"], n["op"], n["since"]) for n in target["newer"]]  # type: ignore[attr-defined]
    assert newer == [("norm", "LayerNormalization", 17), ("relu", "Relu", 14)]
    assert target["file"] is None
    assert "LayerNormalization" in str(target["why"])
    assert not list((model.parent / path).glob("*opset*"))


def test_the_converted_cut_is_checked(model: Path) -> None:
    target, path = cut(model, "--start", "relu", "--end", "last", "--target-opset", "15")
    assert target["file"] == "model-opset15.onnx"
    assert target["check"]["status"] == "identical"  # type: ignore[index]
    made = onnx.load(model.parent / path / "model-opset15.onnx")
    onnx.checker.check_model(made, full_check=True)
    assert made.opset_import[0].version == 15


def test_node_without_an_adapter_is_unchanged_if_it_fits(model: Path) -> None:
    """Relu of opset 14 only takes further types; onnx has no way back."""
    target, path = cut(model, "--start", "relu", "--end", "last", "--target-opset", "11")
    assert target["file"] == "model-opset11.onnx"
    assert list((model.parent / path).glob("*opset*"))


def test_without_values_a_conversion_is_written(model: Path) -> None:
    target, _ = cut(
        model, "--start", "relu", "--end", "last", "--target-opset", "15", "--no-capture"
    )
    assert (target["file"], target["check"]) == ("model-opset15.onnx", None)


@pytest.mark.parametrize("version", ["6", "18", "-3"])
def test_impossible_opset_is_refused(version: str, model: Path) -> None:
    done = subcut(
        "cut",
        model,
        *"--start relu --end last".split(),
        f"--target-opset={version}",
        cwd=model.parent,
    )
    assert (done.code, done.out) == (2, "")
    assert "--target-opset" in done.err
    assert not (model.parent / "subcut_out").exists()
