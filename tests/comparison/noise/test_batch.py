"""Outputs of few numbers are judged over their samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from subgraph.comparison.noise.noise import make_batch
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.planted_candidates import planted
from tests.helpers.run_command import subcut

ARM = "g (float[1, 8] x) => (float[1, 6] y) { [far] y = MatMul (x, w) }"
# The last joint never moves.
STILL = (
    planted(answer='found["y"] = found["y"] * np.float32([1, 1, 1, 1, 1, 0])')
    + """
def precision(options):
    return "int8"
"""
)


@pytest.mark.parametrize(
    ("shape", "samples", "judged"),
    [((1, 6), 4, (4, 6)), ((), 5, (5, 1)), ((6,), 3, None), ((2, 6), 4, None), ((1, 200), 4, None)],
)
def test_which_are(shape: tuple[int, ...], samples: int, judged: tuple[int, int] | None) -> None:
    found = make_batch([np.full(shape, k, np.float32) for k in range(samples)])
    assert (found is None) == (judged is None) and (found is None or found.shape == judged)


def test_of_other_shapes_or_values_they_are_not() -> None:
    assert make_batch([np.zeros(3), np.zeros(4), np.zeros(3), np.zeros(3)]) is None
    assert make_batch([np.zeros(3, np.int64)] * 4) is None
    assert make_batch([np.zeros(3), None, np.zeros(3), np.zeros(3), np.zeros(3)]) is None


@pytest.mark.slow
def test_small_element_that_is_wrong_is_seen_over_several_samples(tmp_path: Path) -> None:
    """It was right: within 3 % of the largest joint."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(8, 6)).astype(np.float32) * np.array(
        [1, 1, 1, 1, 1, 0.03], np.float32
    )
    text_models.save(tmp_path / "m.onnx", ARM, w=weights)
    (tmp_path / "still.py").write_text(STILL, encoding="utf-8")
    (tmp_path / "samples").mkdir()
    for k in range(4):
        np.save(tmp_path / "samples" / f"{k}.npy", rng.normal(size=(1, 8)).astype(np.float32))
    words = ("compare", "m.onnx", "-c", "still.py", "--trust", "--json")
    one = subcut(*words, "-i", "samples/0.npy", cwd=tmp_path)
    assert one.code == 0 and has_line(one.document["whole"]["why"], "6 numbers", "together"), (
        one.out
    )
    all_of_them = subcut(*words, "-i", "samples", cwd=tmp_path)
    assert all_of_them.code == 1 and has_line(
        all_of_them.document["whole"]["why"], "index 5", "axis 1"
    ), all_of_them.out
