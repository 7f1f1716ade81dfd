"""A network of five nodes with samples, for plans."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.helpers import text_models

NET = """
g (float[1, 8] x) => (float[1, 4] y) {
    [first] h = MatMul (x, w)
    [relu] r = Relu (h)
    [second] p = MatMul (r, v)
    [tanh] t = Tanh (p)
    [last] y = MatMul (t, u)
}
"""
SAMPLES = 6
EXACT = (  # without it, int8 sums saturate on processors without VNNI
    "ort:session.x64quantprecision=1"
)


def save(folder: Path) -> None:
    """Write the network, `m.onnx`, and `samples/`; seeded."""
    rng = np.random.default_rng(7)
    w, v, u = (rng.normal(size=s).astype(np.float32) / 2 for s in ((8, 16), (16, 16), (16, 4)))
    text_models.save(folder / "m.onnx", NET, w=w, v=v, u=u)
    (folder / "samples").mkdir()
    for k in range(SAMPLES):
        np.save(folder / "samples" / f"s{k}.npy", rng.normal(size=(1, 8)).astype(np.float32))
