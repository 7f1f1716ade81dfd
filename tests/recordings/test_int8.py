"""Recordings of int8: a value is recorded in several forms, and nodes requantize what they read.

Covers `recordings.compare_recording` and `recordings.interval`; the forms are those of NNCF in
OpenVINO.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from subgraph.recordings import recording
from subgraph.types import Array
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.run_command import subcut

TEXT = """g (float[1, 4, 8, 8] data) => (float[1, 12, 8, 8] out)
{
    [first] a = Conv (data, w0)
    [second] b = Conv (a, w1)
    [sum] c = Add (a, b)
    [third] d = Conv (c, w2)
    [join] out = Concat <axis = 1> (b, c, d)
}"""
NODES = {"a": "first", "b": "second", "c": "sum", "d": "third", "out": "join"}
CLIPPED = 0.4  # of the largest value


def quantize(value: Array, share: float = 1.0) -> Array:
    """Return a value as the readers of an int8 tensor get it, which a calibration clips."""
    step = np.abs(value).max() * share / 127
    return np.asarray(np.clip(np.rint(value / step), -127, 127) * step, np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the model, its input and an empty `dump`."""
    draw = np.random.default_rng(0).standard_normal
    text_models.save(tmp_path / "m.onnx", TEXT, **draw_weights())
    np.save(tmp_path / "x.npy", draw((1, 4, 8, 8)).astype(np.float32))
    (tmp_path / "dump").mkdir()
    return tmp_path


def draw_weights() -> dict[str, Any]:
    draw = np.random.default_rng(2).standard_normal
    sizes = {"w0": 2, "w1": 2, "w2": 40}  # values of `third` are small beside those that it joins
    return {name: (draw((4, 4, 1, 1)) / size).astype(np.float32) for name, size in sizes.items()}


def run_nodes(
    folder: Path, fault: str = "", clipped: str = "", factor: float = 1.5
) -> dict[str, Array]:
    """Run each node on what its readers get of the nodes before it; by node and form.

    Args:
        fault: The node whose values are multiplied.
        factor: The number with which they are.
        clipped: The node whose values a calibration clips.
    """
    weights = draw_weights()
    read: dict[str, Array] = {"data": np.load(folder / "x.npy")}
    recorded: dict[str, Array] = {}

    def convolve(tensor: str, weight: str) -> Array:
        """Return what a convolution of 1×1 gives."""
        return np.asarray(np.einsum("oikl,nihw->nohw", weights[weight], read[tensor]))

    compute: dict[str, Callable[[], Array]] = {
        "a": lambda: convolve("data", "w0"),
        "b": lambda: convolve("a", "w1"),
        "c": lambda: read["a"] + read["b"],
        "d": lambda: convolve("c", "w2"),
        "out": lambda: np.concatenate([read["b"], read["c"], read["d"]], 1),
    }
    for tensor, node in NODES.items():
        value = compute[tensor]()
        if node == fault:
            value = value * np.float32(factor)
        recorded[node] = value
        read[tensor] = quantize(value, CLIPPED if node == clipped else 1.0)
        recorded[f"{node}/fq_output_0"] = read[tensor]
    return recorded


WORDS = "m.onnx --recorded dump/run.npz -i x.npy --precision int8 --json".split()


def bisect(folder: Path, recorded: dict[str, Array]) -> Any:
    np.savez(folder / "dump/run.npz", **recorded)  # type: ignore[arg-type]
    return subcut("bisect", *WORDS, cwd=folder).document


@pytest.mark.slow
def test_value_that_quantization_clipped_blames_no_node(folder: Path) -> None:
    """What the readers get is far from the tensor, whose exact name agrees."""
    document = bisect(folder, run_nodes(folder, clipped="second"))
    (run,) = document["recordings"]
    assert run["wrong"] and document["findings"] == []
    assert document["exit_code"] == 5 and has_line(run["why"], "no node adds", "calibration")
    compared = subcut("compare", *WORDS, cwd=folder)
    assert (compared.code, compared.document["says"]) == (5, document["says"])
    names = {row["tensor"]: row["runs"][0]["recorded_as"] for row in document["rows"]}
    assert names == NODES, "the exact names are compared"


def test_value_that_its_own_scale_clips_is_told(folder: Path) -> None:
    """Only what the readers get is recorded: the node is wrong, and why."""
    recorded = run_nodes(folder, clipped="first")
    readers = {n: recorded[f"{n}/fq_output_0"] for n in NODES.values()}
    document = bisect(folder, readers)
    (run,) = document["recordings"]
    assert [finding["nodes"] for finding in document["findings"]] == [["first"]]
    assert has_line(run["notes"], "a: ", "clipped", "calibration")


def test_fault_that_noise_hides_in_place_is_found_alone(folder: Path) -> None:
    """The inputs of the Add are known to the code, so that 6 % are no rounding."""
    for factor, nodes in (1.06, [["sum"]]), (1.0, []):
        recorded = run_nodes(folder, "sum", factor=factor)
        readers = {n: recorded[f"{n}/fq_output_0"] for n in NODES.values()}
        assert [found["nodes"] for found in bisect(folder, readers)["findings"]] == nodes


def test_fault_beside_a_clipped_value_is_the_only_one(folder: Path) -> None:
    document = bisect(folder, run_nodes(folder, "third", "first"))
    assert [finding["nodes"] for finding in document["findings"]] == [["third"]]


@pytest.mark.parametrize(("part", "wrong"), [(("--at", "out"), 1), (("--fail-fast",), 3)])
def test_wrong_tensor_behind_a_fault_is_wrong_wherever_compare_ends(
    part: tuple[str, ...], wrong: int, folder: Path
) -> None:
    """The clipped value before the fault neither ends a comparison nor explains what is behind."""
    np.savez(folder / "dump/run.npz", **run_nodes(folder, "third", "first"))  # type: ignore[arg-type]
    compared = subcut("compare", *WORDS, *part, cwd=folder)
    (run,) = compared.document["recordings"]
    assert (compared.code, run["wrong"]) == (1, wrong)


def test_one_step_of_another_scale_is_no_error_of_a_concat(folder: Path) -> None:
    """Behind a fault; a Conv would be suspected."""
    recorded = run_nodes(folder, "second")
    recorded["join"] = quantize(recorded["join"])
    document = bisect(folder, recorded)
    assert [finding["nodes"] for finding in document["findings"]] == [["second"]]


def test_value_beyond_its_scale_behind_a_fault_is_no_error(folder: Path) -> None:
    healthy = run_nodes(folder)["sum"]
    recorded = run_nodes(folder, "second")
    recorded["sum"] = recorded["sum"].clip(healthy.min(), healthy.max())
    document = bisect(folder, recorded)
    assert [finding["nodes"] for finding in document["findings"]] == [["second"]]


@pytest.mark.slow
def test_values_that_are_lost_behind_a_fault_are_an_error(folder: Path) -> None:
    recorded = run_nodes(folder, "second")
    recorded |= {"third": recorded["third"] / 9, "third/fq_output_0": recorded["third"] / 9}
    document = bisect(folder, recorded)
    assert document["findings"][1]["nodes"] == ["third"]


@pytest.mark.parametrize("form", ["{node}:0", "onnx_node!{node}", "{node}_out_blob_data"])
def test_names_of_toolkits(form: str, folder: Path) -> None:
    recorded = run_nodes(folder, "second")
    document = bisect(folder, {form.format(node=node): recorded[node] for node in NODES.values()})
    assert all(row["runs"][0]["matched_by"] == "name" for row in document["rows"])
    assert document["findings"][0]["nodes"] == ["second"]


def test_blobs_of_tengine(tmp_path: Path) -> None:
    """As its source prints them; a matrix is one line."""
    image = "Shape is {1 2 1 2}, data type is fp32\nBatch 0:\n\tChannel 0:\n\t\t1.5 2.5 \n"
    (tmp_path / "a_out_blob_data.txt").write_text(image + "\tChannel 1:\n\t\t3.5 4.5 \n")
    matrix = "".join(f"{number / 8:.6f} " for number in range(1000))
    (tmp_path / "b_out_blob_data.txt").write_text(
        f"Shape is {{1 1000}}, data type is fp32\n{matrix}\n"
    )
    a, b = recording.open(tmp_path)
    assert a.read().tolist() == [[[[1.5, 2.5]], [[3.5, 4.5]]]]
    assert b.read().tolist() == [[number / 8 for number in range(1000)]]


def test_next_commands_name_the_user_s_files(folder: Path) -> None:
    np.savez(folder / "dump/healthy.npz", **run_nodes(folder))  # type: ignore[arg-type]
    document = bisect(folder, run_nodes(folder, "third"))
    _, manual = document["next"]
    words = "subcut manual start m.onnx --within third..third -i x.npy --precision int8".split()
    assert manual["argv"] == words
    words = "m.onnx --recorded dump/run.npz -i x.npy --precision int8".split()
    document = subcut("compare", *words, "--align", "all", "--json", cwd=folder).document
    (bisecting,) = document["next"]
    assert bisecting["argv"] == ["subcut", "bisect", *words]


def test_next_commands_have_no_long_names(folder: Path) -> None:
    name = "part/of/a/long/path;" * 5
    model = onnx.load(folder / "m.onnx")
    model.graph.node[3].name = name
    onnx.save(model, folder / "m.onnx")
    recorded = run_nodes(folder, "third")
    _, manual = bisect(folder, recorded | {name: recorded["third"]})["next"]
    assert manual["argv"][5] == "#3..#3"
