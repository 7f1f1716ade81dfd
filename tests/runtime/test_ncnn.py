"""ncnn, converted by pnnx: what is special to it. Covers `runtime.backends.ncnn`,
`system.hardware`."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from subgraph.environments import emulated
from subgraph.errors import BackendError, Refused
from subgraph.runtime.backends import ncnn
from subgraph.runtime.worker import Worker
from subgraph.system import hardware
from tests.helpers import text_models
from tests.helpers.refusals import raises
from tests.helpers.run_command import PATIENCE
from tests.helpers.runs import run_in_worker

pytest.importorskip("ncnn", reason="ncnn is missing: pip install --no-deps ncnn pnnx")

CONV = "g (float[{n},3,8,8] x) => (float[{n},4,6,6] y) {{ y = Conv(x, w) }}"
WEIGHT = np.linspace(-1, 1, 108, dtype=np.float32).reshape(4, 3, 3, 3)
PAD = (
    "g (float[1,1,2,2] x) => (float[1,1,3,3] y) <int64[8] p = {0,0,1,1,0,0,0,0}> { y = Pad(x, p) }"
)
GATHER = "g (int64[1,4] x) => (float[1,4,3] y) { y = Gather(w, x) }"
TABLE = np.arange(30, dtype=np.float32).reshape(10, 3)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("ncnn", timeout=PATIENCE) as it:
        yield it


def load(
    worker: Worker, folder: Path, text: str, options: dict[str, Any] | None = None, **weights: Any
) -> None:
    worker.load("m", text_models.save(folder / "m.onnx", text, **weights), options or {})


def run(worker: Worker, folder: Path, x: Any) -> Any:
    return run_in_worker(worker, folder, {"x": x})["y"]


@pytest.mark.parametrize("n", [1, 2])
def test_batch_is_computed(n: int, worker: Worker, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((n, 3, 8, 8), np.float32)
    load(worker, tmp_path, CONV.format(n=n), w=WEIGHT)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
    expected = np.einsum("nchwij,ocij->nohw", windows, WEIGHT.astype(np.float64))
    np.testing.assert_allclose(run(worker, tmp_path, x), expected, rtol=1e-4, atol=1e-5)


def test_weights_in_another_file_are_read(worker: Worker, tmp_path: Path) -> None:
    """pnnx computed without them, and ncnn returned NaN."""
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8), np.float32)
    load(worker, tmp_path, CONV.format(n=1), w=WEIGHT)
    expected = run(worker, tmp_path, x)
    model = onnx.load(tmp_path / "m.onnx")
    onnx.external_data_helper.convert_model_to_external_data(
        model, location="weights.bin", size_threshold=0
    )
    onnx.save(model, tmp_path / "external.onnx")
    worker.load("m", tmp_path / "external.onnx", {})
    np.testing.assert_array_equal(run(worker, tmp_path, x), expected)


def test_half_precision_rounds_the_weights(worker: Worker, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8), np.float32)
    given = []
    for options in ({}, {"precision": "fp16"}):
        load(worker, tmp_path, CONV.format(n=1), options, w=WEIGHT)
        given.append(run(worker, tmp_path, x))
    off = np.abs(given[0] - given[1]).max() / np.abs(given[0]).max()
    assert 1e-6 < off < 2e-2
    assert worker.about({"precision": "fp16"}).precision == "fp16"


def test_whole_numbers_are_fed_in_32_bits(worker: Worker, tmp_path: Path) -> None:
    load(worker, tmp_path, GATHER, w=TABLE)
    np.testing.assert_array_equal(
        run(worker, tmp_path, np.array([[7, 0, 9, 1]])), TABLE[[[7, 0, 9, 1]]]
    )
    with raises(Refused, "backend.unsupported-type", "int64"):
        run(worker, tmp_path, np.array([[2**31, 0, 0, 0]]))


TWO = """g (float[1,3] x, float[1,3] w) => (float[1,3] y, float[1,3] z) {
    y = Relu(x) z = Identity(w)
}"""
OPEN = "g (float[n,3] x) => (float[n,3] y) { y = Relu(x) }"
INDEX = "g (float[2] x) => (int64[] y) { y = ArgMax <keepdims=0> (x) }"
CUSTOM = "g (float[2] x) => (float[2] y) { y = own.domain.None(x) }"


@pytest.mark.parametrize(
    ("text", "code", "about"),
    [
        (PAD, "backend.refused-model", "ignore Pad"),
        (TWO, "backend.refused-model", "1 outputs of 2"),
        (OPEN, "backend.open-size", ""),
        (INDEX, "backend.unsupported-type", "int64"),
        (CUSTOM, "backend.refused-model", "not convert"),
    ],
)
def test_unsupported_model_is_refused_with_the_reason(
    text: str, code: str, about: str, worker: Worker, tmp_path: Path
) -> None:
    domains = ("own.domain",) if "own" in text else ()
    path = tmp_path / "m.onnx"
    text_models.save(path, text, domains=domains)
    with raises(Refused, code, about):
        worker.load("m", path, {})


def test_without_anything_that_speaks_vulkan_that_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hardware, "has_gpu", lambda: False)
    for name in hardware.NAMED:
        monkeypatch.delenv(name, raising=False)
    assert "software" in ncnn.caveat({"vulkan": "1"}) and ncnn.caveat({}) == ""
    for place in ("RENDERER", "INSTALLED"):
        monkeypatch.setattr(hardware, place, tmp_path / "none")
    assert "needs a GPU" in hardware.name_missing_vulkan()
    monkeypatch.setenv("VK_ICD_FILENAMES", "mine.json")
    assert hardware.name_missing_vulkan() == ""


def test_renderer_in_software_computes(worker: Worker, tmp_path: Path) -> None:
    if why := hardware.name_missing_vulkan():
        pytest.skip(f"Vulkan {why}")
    x = np.array([[[[-1.0, 2.0], [3.0, -4.0]]]], np.float32)
    try:
        load(
            worker,
            tmp_path,
            "g (float[1,1,2,2] x) => (float[1,1,2,2] y) { y = Relu(x) }",
            {"vulkan": "1"},
        )
    except BackendError as e:
        pytest.skip(e.what)
    np.testing.assert_array_equal(run(worker, tmp_path, x), np.maximum(x, 0))


def test_pnnx_of_another_processor_is_run_by_its_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    assert emulated.make_prefix(Path("/usr/bin/python3.11")) == []
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(emulated, "find_qemu", lambda processor: f"/usr/bin/qemu-{processor}")
    found = emulated.make_prefix(Path("/env/bin") / emulated.STARTED)
    assert found[:2] == ["/usr/bin/qemu-aarch64", "-L"] and found[2].endswith("aarch64")
