"""Winograd's rounding is told from other errors of a convolution, and from those that it would hide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from subgraph.diagnosis.winograd import TILES, _transforms, rounds_like
from subgraph.runtime import candidate
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.runtime.worker_pool import Workers
from subgraph.trials.session import Setup, open_trials
from subgraph.trials.similar_outputs import WrongOutput
from tests.helpers import text_models

# F(4×4, 3×3) by the matrices of Lavin & Gray, tile by tile.
CANDIDATE = """
import numpy as np, onnx
from onnx import numpy_helper

AT = np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]], np.float32)
G = np.array([[1/4, 0, 0], [-1/6, -1/6, -1/6], [-1/6, 1/6, -1/6], [1/24, 1/12, 1/6], [1/24, -1/12, 1/6], [0, 0, 1]],
             np.float32)
BT = np.array([[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0], [0, -2, -1, 2, 1, 0],
               [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1]], np.float32)

def load(model, options):
    weights = {t.name: numpy_helper.to_array(t) for t in onnx.load(model).graph.initializer}
    w, b, does = weights["w"], weights["b"], options["does"]
    def run(feeds):
        x = np.pad(feeds["x"], ((0, 0), (0, 0), (1, 1), (1, 1)))
        if does == "direct":
            windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
            y = np.einsum("nchwij,kcij->nkhw", windows.astype(np.float64), w)
            y = y + np.random.default_rng(0).standard_normal(y.shape) * 1e-6 + b.reshape(1, -1, 1, 1)
            return {"y": y.astype(np.float32)}
        y = np.zeros((1, 16, 24, 24), np.float32)
        u = G @ w @ G.T
        for i in range(0, 24, 4):
            for j in range(0, 24, 4):
                v = BT @ x[0, :, i:i + 6, j:j + 6] @ BT.T
                y[0, :, i:i + 4, j:j + 4] = AT @ sum(u[:, c] * v[c] for c in range(32)) @ AT.T
        y += b.reshape(1, -1, 1, 1)
        y[0, 3] += np.float32(3e-6 if does == "channel" else 0)
        y[0, 5, 6, 7] += np.float32(1e-4 if does == "element" else 0)
        return {"y": y}
    return run
"""
CONV = "g (float[1,32,24,24] x) => (float[1,16,24,24] y) { y = Conv<pads=[1,1,1,1]>(x, w, b) }"


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Processes that the tests share: what is computed is an option."""
    path = tmp_path_factory.mktemp("candidate") / "winograd.py"
    path.write_text(CANDIDATE)
    with Workers(candidate.parse(str(path))) as shared:
        yield shared


@pytest.mark.parametrize(
    ("does", "named"), [("winograd", True), ("direct", False), ("channel", False), ("element", False)]
)
def test_winograd_is_named_only_where_it_is_all(
    tmp_path: Path, reference: Reference, workers: Workers, does: str, named: bool
) -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((16, 32, 3, 3), np.float32) / 17
    graph = text_models.load(tmp_path, CONV, w=w, b=rng.standard_normal(16, np.float32))
    np.save(tmp_path / "x.npy", np.maximum(rng.standard_normal((1, 32, 24, 24), np.float32), 0))
    chosen = replace(workers.candidate, options={"does": does})
    setup = Setup(chosen, Feeding((str(tmp_path / "x.npy"),)), tmp_path / "out", "noise:floor=0")
    with open_trials(graph, setup, reference, workers) as trials:
        worst = trials.verdict(trials.model.whole()).worst
        assert worst is not None
        found = list(rounds_like(WrongOutput(trials, trials.model.whole(), worst)))
    assert bool(found) is named, found
    assert not named or found[0].says.startswith("looks like the rounding of Winograd's F(4×4, 3×3) (the errors corr")


@pytest.mark.parametrize(("m", "points"), TILES)
def test_the_transforms_make_a_correlation(m: int, points: tuple[float, ...]) -> None:
    outputs, kernel, inputs = _transforms(m, points)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(m + 2), rng.standard_normal(3)
    np.testing.assert_allclose(outputs @ ((kernel @ w) * (inputs @ x)), np.correlate(x, w), atol=1e-9)
