"""Faults that are planted in one step of a loop: the candidate that has them, and what a search
says of each kind.

Covers `fixtures.decoders_wrong` and `benchmarks.decoding`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import decoding
from fixtures import decoders, decoders_wrong


def test_the_candidate_is_wrong_in_its_step_alone(tmp_path: Path) -> None:
    onnx.save(decoders.captioner(), tmp_path / "m.onnx")
    state = np.ones((1, decoders.WIDTH), np.float32)
    np.save(tmp_path / "before.npy", state)
    options = {"node": "cell", "by": "3", "step": "h0", "state": str(tmp_path / "before.npy")}
    candidate = decoders_wrong.load(str(tmp_path / "m.onnx"), options)
    right = decoders_wrong.load(str(tmp_path / "m.onnx"), {})
    fed = {"token": np.array([3]), "image": state, "h0": state, "c0": state}
    np.testing.assert_allclose(candidate(fed)["cn"], 3 * right(fed)["cn"], rtol=1e-6)
    np.testing.assert_array_equal(
        candidate(fed | {"h0": 2 * state})["cn"], right(fed | {"h0": 2 * state})["cn"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("fault", [pytest.param("state", marks=pytest.mark.rare), "drift"])
def test_the_step_and_the_node_are_named(fault: str, tmp_path: Path) -> None:
    every = len(decoding.MODELS) * len(decoding.FAULTS)
    # of the decoder
    seeds = range(len(decoding.MODELS) * decoding.FAULTS.index(fault), 100 * every, every)
    tried = (decoding.plant(seed, tmp_path, tmp_path / "none", 24) for seed in seeds)
    planted = next(p for p in tried if isinstance(p, decoding.Planted))
    found = decoding.run(planted, tmp_path)
    assert found.is_right(planted), found
