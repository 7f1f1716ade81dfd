"""A cut at an older opset, and `repro.py` on other inputs. Covers `cases.check.at_opset`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.run_command import in_process, subcut

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


def test_unconvertible_opset_is_refused(model: Path) -> None:
    """Relu of opset 14 only takes further types; onnx has no way back."""
    target, path = cut(model, "--start", "relu", "--end", "last", "--target-opset", "11")
    assert target["file"] is None and target["why"]
    assert not list((model.parent / path).glob("*opset*"))


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


# ------------------------------------------------------------------------------------------------
# repro.py -i


def repro(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "repro.py", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_another_input_is_run(model: Path, tmp_path: Path) -> None:
    in_process("cut", model, "--start", "relu", "--end", "last", "-o", tmp_path / "out")
    (folder,) = (p for p in (tmp_path / "out").iterdir() if p.name.startswith("relu"))
    value = np.array([[-1, 2, -3, 4]], np.float32)
    np.save(tmp_path / "v.npy", value)
    done = repro(folder, "-i", tmp_path / "v.npy")
    assert (done.returncode, done.stdout) == (0, "y: float32 [1, 4] from -4 to -0\n")
    np.save(tmp_path / "two.npy", np.ones((2, 4), np.float32))
    done = repro(folder, "-i", tmp_path / "two.npy")
    assert done.returncode == 1
    assert has_line(done.stdout, "not run")
    assert "--dynamic" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-i", "nothing.npy"], ("nothing.npy",)),
        (
            ["-i", "double.npy"],
            ("double.npy", "float64", "'a'", "float32"),
        ),
    ],
)
def test_another_input_that_does_not_fit(
    words: list[str], said: tuple[str, ...], model: Path, tmp_path: Path
) -> None:
    in_process("cut", model, "--start", "relu", "--end", "last", "-o", tmp_path / "out")
    (folder,) = (p for p in (tmp_path / "out").iterdir() if p.name.startswith("relu"))
    np.save(folder / "double.npy", np.ones((1, 4)))
    done = repro(folder, *words)
    assert done.returncode == 2
    assert has_line(done.stderr, *said)
