"""A case's folder is a model plus its inputs in every command; what the user did not give is named.

Covers `commands.resolve` and the folders of `runtime.inputs`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from subgraph.cases import contents
from subgraph.cases.find_case import find_case
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.run_command import subcut


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of three nodes and two inputs."""
    text = """g (float[1,4] a, float[1,4] b) => (float[1,4] y) {
        [mm] m = MatMul(a, w) [add] s = Add(m, b) [relu] y = Relu(s)
    }"""
    return text_models.save(tmp_path / "m.onnx", text, w=np.eye(4, dtype=np.float32) * 2)


@pytest.mark.slow
def test_case_is_a_model_with_its_inputs(model: Path, tmp_path: Path) -> None:
    assert subcut(model, "-s", "mm", "-e", "relu", "--seed", "7", cwd=tmp_path).code == 0
    case = Path("subcut_out/mm__relu")
    for words in (
        ("compare", case, "--json"),
        ("compare", model, "-i", case, "--json"),
        ("compare", model, "-i", case / "inputs", "--json"),
    ):
        done = subcut(*words, cwd=tmp_path)
        assert done.code == 0, done.err
        outputs = done.document["whole"]["outputs"]
        assert len(outputs) == 1, words  # one sample with both inputs, in one of its two formats
        assert "not given" not in done.err and "random values" not in done.err


def test_folder_around_one_result_is_taken_for_it(model: Path, tmp_path: Path) -> None:
    made = subcut(model, "-s", "mm", "-e", "relu", "--seed", "7", "-o", "runs", cwd=tmp_path)
    assert made.code == 0
    runs = tmp_path / "runs"
    assert find_case(runs).place == contents.find_files(runs).folder == runs / "mm__relu"
    assert subcut("inspect", "runs", cwd=tmp_path).code == 0
    shutil.copytree(runs / "mm__relu", runs / "two")
    assert subcut("inspect", "runs", cwd=tmp_path).problem == "model.is-folder"


def test_generated_and_converted_inputs_are_named(model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((1, 4)))
    done = subcut(model, "-s", "mm", "-e", "relu", "-i", "a.npy", cwd=tmp_path)
    assert done.code == 0
    assert has_line(done.err, "input a: a.npy", "float64")
    assert has_line(done.err, "input b", "random normal, seed 0")


def test_file_whose_name_reads_like_a_sentence_is_a_file(model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "random image.npy", np.ones((1, 4), np.float32))
    np.save(tmp_path / "what is fed (converted from int8).npy", np.ones((1, 4), np.float32))
    given = ("-i", "a=random image.npy", "-i", "b=what is fed (converted from int8).npy")
    done = subcut(model, "-s", "mm", "-e", "relu", *given, cwd=tmp_path)
    assert done.code == 0 and "not given" not in done.err and "input a:" not in done.err
    assert has_line(done.out, "random image.npy, what is fed (converted from int8).npy")
    notes = subcut("inspect", model, *given, "--json", cwd=tmp_path).document["notes"]
    assert not any("random" in note for note in notes)


def test_folder_that_mixes_inputs_and_others_is_refused(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    for name in ("a", "z"):
        np.save(folder / f"{name}.npy", np.ones((1, 4), np.float32))
    done = subcut(model, "-s", "mm", "-e", "relu", "-i", folder, cwd=tmp_path)
    assert (done.code, done.problem) == (2, "input.mixed-folder") and "z.npy" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("content", [None, b"1234"], ids=["missing", "too short"])
def test_missing_weights_are_one_error_not_a_search(
    model: Path, tmp_path: Path, content: bytes | None
) -> None:
    onnx.save(
        onnx.load(model),
        tmp_path / "e.onnx",
        save_as_external_data=True,
        location="e.data",
        size_threshold=0,
    )
    (tmp_path / "e.data").unlink()
    if content:
        (tmp_path / "e.data").write_bytes(content)
    done = subcut("bisect", "e.onnx", cwd=tmp_path)
    assert (done.code, done.problem.partition(".")[0]) == (3, "weight") and "e.data" in done.err
