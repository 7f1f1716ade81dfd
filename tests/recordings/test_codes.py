"""Recordings that hold 8-bit codes: beside a quantized model, and beside a float one with scales of
their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fixtures.oracle import tapped
from subgraph.graph.graph import load
from subgraph.graph.quantization import code_scales
from subgraph.recordings.compare_recording import compare_run
from subgraph.recordings.device_runs import RecordedFolder, RecordingOptions, open_runs
from subgraph.recordings.matching.align import absorb_requantization
from subgraph.recordings.result_folder import choose_exit_code
from subgraph.recordings.run_comparison import RunComparison
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.storage.dtypes import Scale
from subgraph.types import Array
from tests.helpers.facts import has_line
from tests.helpers.runs import evaluate

STEP = 0.05
ZERO = 120
DATA = np.random.default_rng(1).normal(size=(1, 4, 8, 8)).astype(np.float32)


def net(quantized: bool) -> onnx.ModelProto:
    """Conv, Quantize, Dequantize, Conv; or the two Convs alone."""
    dice = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array(dice.normal(size=(4, 4, 1, 1)).astype(np.float32), f"w{k}")
        for k in (0, 1)
    ]
    numbers: list[Array] = [np.asarray(STEP, np.float32), np.asarray(ZERO, np.uint8)]
    scale = [
        onnx.numpy_helper.from_array(number, name)
        for number, name in zip(numbers, "sz", strict=True)
    ]
    pair = [
        helper.make_node("QuantizeLinear", ["a", "s", "z"], ["codes"], "quantize"),
        helper.make_node("DequantizeLinear", ["codes", "s", "z"], ["real"], "dequantize"),
    ]
    last = helper.make_node("Conv", ["real" if quantized else "a", "w1"], ["out"], "last")
    nodes = [
        helper.make_node("Conv", ["data", "w0"], ["a"], "first"),
        *(pair if quantized else ()),
        last,
    ]
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, DATA.shape) for n in ("data", "out")
    ]
    graph = helper.make_graph(
        nodes, "net", ends[:1], ends[1:], weights + (scale if quantized else [])
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def values(quantized: bool) -> dict[str, Array]:
    """What a healthy device has."""
    model = net(quantized)
    names = [n.output[0] for n in model.graph.node]
    return evaluate(tapped(model, names), {"data": DATA}, names)


def seen(reference: Reference, folder: Path, quantized: bool) -> RunComparison:
    onnx.save(net(quantized), folder / "net.onnx")
    np.save(folder / "x.npy", DATA)
    graph = load(folder / "net.onnx")
    with open_runs(
        graph,
        RecordingOptions((RecordedFolder(folder / "dump"),)),
        Feeding((str(folder / "x.npy"),)),
    ) as recorded:
        assert recorded.candidate.precision == "int8"
        with recorded.open_judge(graph, reference, folder / "out") as (judge, (run,)):
            return compare_run(judge, run)


SOME = np.random.default_rng(0).choice([-1, 0, 1], DATA.shape, p=[0.1, 0.8, 0.1])
CHANGES: dict[str, tuple[Callable[[Array], Array], tuple[str, ...]]] = {
    "none": (lambda codes: codes, ()),
    "some off by one": (lambda codes: codes + SOME, ("of 256", "off by", "requantization")),
    "all one too high": (lambda codes: codes + 1, ("of 256", "too high", "zero point")),
    "wrong": (lambda codes: codes[:, ::-1], ()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_codes_beside_a_quantized_model(change: str, tmp_path: Path, reference: Reference) -> None:
    spoil, says = CHANGES[change]
    found = values(True)
    (tmp_path / "dump").mkdir()
    np.save(
        tmp_path / "dump/codes.npy", spoil(found["codes"].astype(int)).clip(0, 255).astype(np.uint8)
    )
    np.save(tmp_path / "dump/out.npy", found["out"])
    run = seen(reference, tmp_path, True)
    row = run.rows["codes"]
    assert row.failing == (change == "wrong") and has_line(row.match.note, *says)
    assert has_line(row.match.note, "step 0.05", "zero point 120")
    assert choose_exit_code([run]) == int(row.failing)


@pytest.mark.parametrize("wrong", [False, True])
def test_codes_with_the_recording_s_own_scale(
    wrong: bool, tmp_path: Path, reference: Reference
) -> None:
    found = values(False)
    codes = Scale((STEP,), (ZERO,)).quantize(found["a"], "uint8")
    (tmp_path / "dump").mkdir()
    (codes[:, ::-1] if wrong else codes).tofile(tmp_path / "dump/a.bin")
    found["out"].tofile(tmp_path / "dump/out.bin")
    listed = [
        {
            "name": "a",
            "file": "a.bin",
            "dtype": "uint8",
            "shape": DATA.shape,
            "scale": STEP,
            "zero_point": ZERO,
        },
        {"name": "out", "file": "out.bin", "dtype": "float32", "shape": DATA.shape},
    ]
    (tmp_path / "dump/manifest.json").write_text(json.dumps({"tensors": listed}))
    run = seen(reference, tmp_path, False)
    assert run.rows["a"].failing == wrong and run.rows["a"].in_place, run.rows["a"].why


def test_the_real_tensors_beside_codes_have_their_scale(tmp_path: Path) -> None:
    onnx.save(net(True), tmp_path / "net.onnx")
    scales = code_scales(load(tmp_path / "net.onnx"))
    assert scales.keys() == {"a", "codes", "real"} and {s.zero for s in scales.values()} == {
        (ZERO,)
    }


def test_deviation_between_two_codes_is_absorbed() -> None:
    scale = Scale((0.5,), (10,))
    reference = np.array([[0.1, 0.6, 200.0, -3.0]], np.float32)
    recorded = scale.dequantize(np.array([[10, 11, 255, 7]], np.uint8))
    value, said = absorb_requantization(reference, recorded, scale, "uint8")
    assert value.tolist() == [[*reference[0, :3].tolist(), -1.5]] and not has_line(said, "off by")
