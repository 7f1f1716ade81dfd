"""Recordings that hold 8-bit codes: beside a quantized model, and beside a float one with scales of
their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from fixtures.oracle import tapped
from subgraph.graph.graph import load
from subgraph.graph.quantization import find_code_scales
from subgraph.recordings.matching.align import absorb_requantization
from subgraph.runtime.reference import Reference
from subgraph.storage.dtypes import Scale
from subgraph.types import Array
from tests.helpers import text_models
from tests.helpers.compared_dumps import ComparedDump, compare_dump
from tests.helpers.facts import has_line
from tests.helpers.runs import evaluate

STEP = 0.05
ZERO = 120
DATA = np.random.default_rng(1).normal(size=(1, 4, 8, 8)).astype(np.float32)


def net(quantized: bool) -> onnx.ModelProto:
    """Conv, Quantize, Dequantize, Conv; or the two Convs alone."""
    dice = np.random.default_rng(0)
    weights: dict[str, Any] = {
        name: dice.normal(size=(4, 4, 1, 1)).astype(np.float32) for name in ("w0", "w1")
    }
    middle = """[quantize] codes = QuantizeLinear (a, s, z)
        [dequantize] real = DequantizeLinear (codes, s, z)"""
    text = f"""g (float[1,4,8,8] data) => (float[1,4,8,8] out) {{
        [first] a = Conv (data, w0) {middle if quantized else ""}
        [last] out = Conv ({"real" if quantized else "a"}, w1)
    }}"""
    scale: dict[str, Any] = {"s": np.float32(STEP), "z": np.uint8(ZERO)} if quantized else {}
    return text_models.model(text, **weights, **scale)


def values(quantized: bool) -> dict[str, Array]:
    """What a healthy device has."""
    model = net(quantized)
    names = [n.output[0] for n in model.graph.node]
    return evaluate(tapped(model, names), {"data": DATA}, names)


def seen(reference: Reference, folder: Path, quantized: bool) -> ComparedDump:
    onnx.save(net(quantized), folder / "net.onnx")
    np.save(folder / "x.npy", DATA)
    found = compare_dump(reference, folder / "net.onnx", folder / "dump", folder / "x.npy")
    assert found.precision == "int8"
    return found


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
    compared = seen(reference, tmp_path, True)
    row = compared.run.rows["codes"]
    assert row.failing == (change == "wrong") and has_line(row.match.note, *says)
    assert has_line(row.match.note, "step 0.05", "zero point 120")
    assert compared.exit_code == int(row.failing)


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
    row = seen(reference, tmp_path, False).run.rows["a"]
    assert row.failing == wrong and row.in_place, row.why


def test_the_real_tensors_beside_codes_have_their_scale(tmp_path: Path) -> None:
    onnx.save(net(True), tmp_path / "net.onnx")
    scales = find_code_scales(load(tmp_path / "net.onnx"))
    assert scales.keys() == {"a", "codes", "real"} and {s.zero for s in scales.values()} == {
        (ZERO,)
    }


def test_deviation_between_two_codes_is_absorbed() -> None:
    scale = Scale((0.5,), (10,))
    reference = np.array([[0.1, 0.6, 200.0, -3.0]], np.float32)
    recorded = scale.dequantize(np.array([[10, 11, 255, 7]], np.uint8))
    value, said = absorb_requantization(reference, recorded, scale, "uint8")
    assert value.tolist() == [[*reference[0, :3].tolist(), -1.5]] and not has_line(said, "off by")
