"""Several recordings of one model: where the fault comes in, and what the later ones inherit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from fixtures import device
from subgraph.errors import UsageError
from subgraph.graph.graph import load
from subgraph.recordings.device_runs import RecordedFolder, RecordingOptions, open_runs
from subgraph.recordings.interval import choose_run_to_narrow, compare_runs
from subgraph.recordings.matching.align import displace, measure_remoteness
from subgraph.recordings.result_folder import make_document
from subgraph.results.compare import RecordedDocument
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from tests.helpers.facts import has_line
from tests.helpers.run_command import subcut

Array = npt.NDArray[Any]
WRONG = 42  # of the model's nodes
INT8 = ("quantized", "board")


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return device.net()


@pytest.fixture(scope="module")
def values(model: onnx.ModelProto) -> dict[str, dict[str, Array]]:
    """What the kinds of devices compute: right and wrong, as floats and quantized."""
    fed = device.fed()
    right = device.run(model, fed)
    bad = {n: v if k < WRONG else v[:, ::-1].copy() for k, (n, v) in enumerate(right.items())}
    return {"right": right, "wrong": bad, "right8": _quantized(right), "wrong8": _quantized(bad)}


def _quantized(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Rounded to 255 steps of a tensor's range."""
    steps = {n: np.abs(v).max() / 127 for n, v in tensors.items()}
    return {n: (np.round(v / steps[n]) * steps[n]).astype(np.float32) for n, v in tensors.items()}


@pytest.fixture
def told(
    model: onnx.ModelProto,
    values: dict[str, dict[str, Array]],
    tmp_path: Path,
    reference: Reference,
) -> Callable[..., tuple[RecordedDocument, str]]:
    """The document of recordings in this order, by label, and which of them is narrowed down."""
    onnx.save(model, tmp_path / "net.onnx")

    def tell(**kinds: str) -> tuple[RecordedDocument, str]:
        for label, kind in kinds.items():
            if kind:
                kept = values[kind.removesuffix("-")]
                left = {
                    n: n
                    for k, n in enumerate(kept)
                    if not kind.endswith("-") or k < WRONG or k > WRONG + 1
                }
                device.save(kept, device.fed(), device.Dumps(left), tmp_path / label)
                if kind == "foreign":
                    (tmp_path / label / "data.npy").unlink()
        folders = tuple(
            RecordedFolder(tmp_path / n, precision="int8" if n in INT8 else "") for n in kinds
        )
        graph = load(tmp_path / "net.onnx")
        with (
            open_runs(graph, RecordingOptions(folders), Feeding()) as recorded,
            recorded.open_judge(graph, reference, tmp_path / "out") as (judge, runs),
        ):
            compared = compare_runs(judge, runs)
            return (
                make_document(judge, compared, judge.model.tensors(), "noise"),
                choose_run_to_narrow(compared).run.name,
            )

    return tell


def _first(model: onnx.ModelProto) -> str:
    return f"{model.graph.node[WRONG].output[0]} (Conv)"


@pytest.mark.slow
def test_the_board_departs_from_what_agrees(
    told: Callable[..., Any], model: onnx.ModelProto
) -> None:
    found, narrowed = told(float="right", quantized="right8", board="wrong8")
    assert has_line(
        found.says, "float", "quantized", "agree", "board", "quantized", f"{_first(model)}"
    )
    assert [run.precision for run in found.recordings] == ["fp32", "int8", "int8"]
    assert (found.exit_code, narrowed) == (1, "board")
    row = next(r for r in found.tensors.rows if r.tensor == model.graph.node[WRONG].output[0])
    assert [t.beside.status.value if t and t.beside else None for t in row.runs] == [
        None,
        "agree",
        "fail",
    ]
    assert [t.before for t in row.runs if t] == ["", "float", "quantized"]
    assert row.odd_one_out == "board"


@pytest.mark.slow
def test_board_that_is_equal_to_a_wrong_simulator_has_inherited(
    told: Callable[..., Any], model: onnx.ModelProto
) -> None:
    found, narrowed = told(float="right", quantized="wrong8", board="wrong8")
    assert has_line(found.says, "float", "quantized", "float", _first(model), "board", "quantized")
    assert (found.exit_code, narrowed, len(found.tensors.departures)) == (1, "quantized", 1)


@pytest.mark.slow
def test_all_wrong_alike_speaks_against_what_they_share(
    told: Callable[..., Any], model: onnx.ModelProto
) -> None:
    found, narrowed = told(float="wrong", quantized="wrong8", board="wrong8")
    assert has_line(found.says, "all 3", "reference", _first(model))
    assert (found.exit_code, narrowed, found.tensors.odd_one_out) == (1, "float", "reference")


def test_two_that_go_wrong_each_in_its_way(
    told: Callable[..., Any], values: dict[str, dict[str, Array]]
) -> None:
    values["other"] = {
        n: v if k < 46 else v * 3 for k, (n, v) in enumerate(values["wrong"].items())
    }
    found, _ = told(float="wrong", simulator="other")
    assert has_line(found.says, "float", "reference")
    assert has_line(found.says, "simulator", "float")
    assert [departure.before for departure in found.tensors.departures] == ["reference", "float"]


@pytest.mark.slow
def test_missing_and_unread_are_never_right(
    told: Callable[..., Any], tmp_path: Path, model: onnx.ModelProto
) -> None:
    found, narrowed = told(float="right", quantized="", board="wrong8")
    assert has_line(found.says, "float", "agrees", "quantized", "unresolved")
    assert has_line(found.says, "board", "float", _first(model), "quantized")
    assert narrowed == "board"
    (tmp_path / "float" / "block0_conv0_output_0.npy").write_bytes(b"\x93NUMPY")
    found, _ = told(float="", board="right8")
    assert found.exit_code == 5
    assert [run.status.value for run in found.recordings] == ["unresolved", "agree"]
    assert has_line(found.says, "board", "agrees", "float", "unresolved", "block0_conv0")


@pytest.mark.slow
def test_tensor_that_the_one_before_lacks_is_compared_with_an_earlier_one(
    told: Callable[..., Any], model: onnx.ModelProto
) -> None:
    found, _ = told(float="right", quantized="right8-", board="wrong8")
    assert has_line(found.says, "board", "float", _first(model), "quantized")


@pytest.mark.slow
def test_deviation_that_int8_can_hide_is_noted(
    told: Callable[..., Any], values: dict[str, dict[str, Array]]
) -> None:
    drift = {
        n: v if k < 40 else v * np.float32(1.04)
        for k, (n, v) in enumerate(values["right8"].items())
    }
    found, _ = told(float="right", quantized="right8", board="right8")
    assert has_line(found.says, "float", "quantized", "board", "agree")
    values["drift"] = drift
    found, _ = told(float="right", quantized="right8", board="drift")
    assert found.exit_code == 0
    assert has_line(found.says, "board", "quantized") and has_line(found.says, "int8", "fault")


@pytest.mark.slow
def test_dump_of_another_model_among_several_is_missing(
    told: Callable[..., Any], values: dict[str, dict[str, Array]]
) -> None:
    values["foreign"] = {"z": np.full((3, 5), 7, np.float32)}
    found, _ = told(float="foreign", board="wrong8")
    assert found.recordings[0].files.missing and has_line(
        found.recordings[0].files.missing, "model"
    )


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_displaced(scale: float) -> None:
    reference = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    before = np.array([np.nan, 8.0, np.inf, 2.0], np.float32) * np.float32(scale)
    after = np.array([np.nan, 8.0, np.inf, 4.0], np.float32) * np.float32(scale)
    assert displace(reference, before, after).tolist() == [1.0, 2.0, 3.0, 5.0]
    assert np.isnan(displace(reference, reference, np.full(4, np.nan, np.float32))).all()


def test_remoteness() -> None:
    reference = np.zeros(4, np.float32)
    before = np.array([3, np.nan, 0, 4], np.float32)
    after = np.array([3, np.nan, 0, 5], np.float32)
    assert measure_remoteness(reference, before, after) == pytest.approx(0.2)
    assert measure_remoteness(reference, before, reference) == np.inf, "the NaN is gone"
    assert measure_remoteness(reference, reference, reference) == 0.0
    assert measure_remoteness(reference, reference, after) == np.inf


@pytest.mark.slow
def test_labels_and_precisions_of_each(
    model: onnx.ModelProto, tmp_path: Path, told: Callable[..., Any]
) -> None:
    told(float="right", board="right8")
    done = subcut(
        *"bisect net.onnx --recorded x86=float --recorded npu:int8=board".split(), cwd=tmp_path
    )
    assert (
        done.code == 0
        and has_line(done.out, "x86", "npu", "agree")
        and has_line(done.out, "x86: npy, fp32")
    )
    assert has_line(done.out, "npu: npy, int8")
    twice = subcut(
        "compare", "net.onnx", "--recorded", "a=float", "--recorded", "a=board", cwd=tmp_path
    )
    assert twice.code == 2 and has_line(twice.err, "'a'", "given")
    odd = subcut("compare", "net.onnx", "--recorded", "a:int4=float", cwd=tmp_path)
    assert odd.code == 2 and has_line(odd.err, "precision 'int4'")


def test_folder_of_that_very_name_is_no_label(tmp_path: Path) -> None:
    from subgraph.commands.options import InputOptions, RecordedOptions, RuntimeOptions
    from subgraph.commands.recorded import read_recording_options

    (tmp_path / "a=b").mkdir()
    words = [str(tmp_path / "a=b"), "c:fp16=d=e"]
    options = read_recording_options(
        RecordedOptions(recorded=words), RuntimeOptions(), InputOptions()
    )
    assert options.folders == (
        RecordedFolder(tmp_path / "a=b"),
        RecordedFolder(Path("d=e"), "c", "fp16"),
    )
    with pytest.raises(UsageError):
        read_recording_options(
            RecordedOptions(recorded=["a:fp8=b"]), RuntimeOptions(), InputOptions()
        )
