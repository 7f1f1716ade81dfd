"""Recordings by order alone of layers whose neighbors differ by a factor near √2.

A faulty tensor is as near to the next tensor as to its own. An interval behind the first one is
told only if it is sure which tensors it lies between. Covers `recordings.interval` and
`recordings.matching.unnamed`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subgraph.runtime.reference import Reference
from subgraph.types import Array
from subgraph.verdict import Status
from tests.helpers import text_models
from tests.helpers.compared_dumps import ComparedDump, compare_dump

LAYERS = 7
MAX_NODES = 4  # of an interval: tensors that are not recorded, or not known, lie in it
SHAPE = (4, 16)
FAULTS: dict[str, Callable[[Array], Array]] = {
    "gain": lambda value: value * np.sqrt(2),
    "loss": lambda value: value / np.sqrt(2),
    "small": lambda value: value * 1.03,
    "rows": lambda value: np.roll(value, 1, 0),
    "channels": lambda value: value[:, ::-1],
}
BIAS = np.linspace(-0.02, 0.02, SHAPE[1])
MIDDLE: dict[str, Callable[[Array], Array]] = {
    "LeakyRelu <alpha = 0.9> ({})": lambda value: np.where(value < 0, 0.9 * value, value),
    "Tanh ({})": np.tanh,
    "Add ({}, bias)": lambda value: value + BIAS,
}


def write_recording(folder: Path, seed: int, fault: str) -> str:
    """Write a model, its input and a recording without names; return the wrong node."""
    rng = np.random.default_rng(seed)
    spread = rng.choice([0.003, 0.01, 0.03, 0.06])
    middle = [*MIDDLE][seed % len(MIDDLE)]
    gains = rng.uniform(1.38, 1.45, LAYERS)
    weights: dict[str, Any] = {
        f"w{i}": np.float32(gain * (np.eye(16) + spread * rng.normal(size=(16, 16))))
        for i, gain in enumerate(gains)
    }
    weights["bias"] = np.float32(BIAS)
    wrong = f"n{rng.integers(1, LAYERS - 2)}"
    x = rng.normal(size=SHAPE).astype(np.float32)
    value = x.astype(np.float64)
    lines = []
    values: dict[str, Array] = {}
    last = "x"
    for i in range(LAYERS):
        value = value @ weights[f"w{i}"]
        lines.append(f"[n{i}] t{i} = MatMul ({last}, w{i})")
        if f"n{i}" == wrong and fault:
            value = FAULTS[fault](value)
        values[f"n{i}"] = value
        last = f"t{i}"
        if i % 3 == 1:
            value = MIDDLE[middle](value)
            lines.append(f"[m{i}] s{i} = {middle.format(last)}")
            values[f"m{i}"] = value
            last = f"s{i}"
    text = "\n".join(lines).replace(f"{last} =", "y =")
    text_models.save(
        folder / "m.onnx", f"g (float[4,16] x) => (float[4,16] y) {{ {text} }}", **weights
    )
    np.save(folder / "x.npy", x)
    (folder / "dump").mkdir()
    kept = [name for name in values if rng.random() < 0.8 or name == f"n{LAYERS - 1}" or seed % 2]
    for k, name in enumerate(kept):
        np.save(folder / "dump" / f"{k:03}.npy", values[name].astype(np.float32))
    return wrong


def compare(reference: Reference, folder: Path) -> ComparedDump:
    """Compare the recording in a folder with its model."""
    return compare_dump(reference, folder / "m.onnx", folder / "dump", folder / "x.npy")


@pytest.mark.turns(4)
@pytest.mark.parametrize("seed", range(15))
def test_healthy_recording_has_no_interval(seed: int, reference: Reference, tmp_path: Path) -> None:
    write_recording(tmp_path, seed, "")
    found = compare(reference, tmp_path)
    assert (found.run.status, found.places) == (Status.AGREE, [])


@pytest.mark.turns(4)
# of seed 14, nothing behind the fault is found
@pytest.mark.parametrize("seed", [*range(14), *range(15, 30)])
def test_fault_has_one_interval(seed: int, reference: Reference, tmp_path: Path) -> None:
    wrong = write_recording(tmp_path, seed, [*FAULTS][seed % len(FAULTS)])
    found = compare(reference, tmp_path)
    (place,) = found.places
    assert wrong in place and len(place) <= MAX_NODES


def test_files_whose_shape_does_not_tell_it_hold_channels_last_as_others(
    reference: Reference, tmp_path: Path
) -> None:
    """Of 4 channels of 4×4 values, without names; the tensors of 6 channels tell the order."""
    rng = np.random.default_rng(0)
    weights = {
        f"w{i}": rng.normal(size=s).astype(np.float32) for i, s in enumerate(((6, 4), (4, 6)))
    }
    x = rng.normal(size=(1, 4, 4, 4)).astype(np.float32)
    wide = np.einsum("oi,nihw->nohw", weights["w0"], x)
    values = [wide, np.tanh(wide), np.einsum("oi,nihw->nohw", weights["w1"], np.tanh(wide))]
    values.append(np.tanh(values[-1] * 1.2))
    text_models.save(
        tmp_path / "m.onnx",
        "g (float[1,4,4,4] x) => (float[1,4,4,4] y) { a = Conv (x, w0) b = Tanh (a)"
        " c = Conv (b, w1) [last] y = Tanh (c) }",
        **{name: weight[:, :, None, None] for name, weight in weights.items()},
    )
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "dump").mkdir()
    for k, value in enumerate(values):
        np.save(tmp_path / "dump" / f"{k:03}.npy", value.transpose(0, 2, 3, 1))
    assert compare(reference, tmp_path).places == [["last"]]
