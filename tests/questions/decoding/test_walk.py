"""The reference walks over the steps of a loop: which states it keeps, and what rounding does to
it.

Covers `questions.decoding.run_steps` and `questions.decoding.run_steps`.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from subgraph.precision import Precision
from subgraph.questions.decoding import run_steps
from subgraph.questions.decoding.decoder import LoopFile, Slicing, resolve_decoder
from subgraph.questions.decoding.inputs import read_inputs
from subgraph.questions.decoding.run_steps import (
    Trace,
    measure_relative_error,
    measure_rounding,
    trace_reference,
)
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.storage.tensors import load
from tests.helpers import text_models

STEPS = 24
RECURRENT = """g (float[1,4] x, float[1,4] h0) => (float[1,4] y, float[1,4] hn) <float gain = {%s}> {
    turned = Mul(h0, gain)
    both = Add(turned, x)
    hn = Sin(both)
    y = Neg(hn)
}"""  # noqa: E501


ONLY_STATE = (
    "g (float[1,4] x, float[1,4] h0) => (float[1,4] hn) { both = Add(h0, x) hn = Sin(both) }"
)


def walked(text: str, folder: Path, reference: Reference) -> Trace:
    graph = text_models.load(folder, text)
    np.save(
        folder / "x.npy", np.random.default_rng(0).standard_normal((STEPS, 4)).astype(np.float32)
    )
    file = LoopFile(slices={"x": Slicing(1, 1, 0)})
    given = read_inputs(resolve_decoder(graph, file, []), file, Feeding((str(folder / "x.npy"),)))
    scratch = folder / "scratch"
    scratch.mkdir()
    return trace_reference(given, reference, graph.path, scratch)


@pytest.mark.parametrize(("gain", "least", "most"), [(0.5, 1e-9, 1e-6), (3.0, 1e-4, 2.0)])
def test_loop_may_make_rounding_grow(
    gain: float, least: float, most: float, tmp_path: Path, reference: Reference
) -> None:
    found = walked(RECURRENT % gain, tmp_path, reference)
    assert found.steps == STEPS
    assert least < measure_rounding(found, STEPS - 1, Precision.FP32, tmp_path / "moved") < most


@pytest.mark.parametrize("text", [RECURRENT % 0.5, ONLY_STATE])
def test_states_that_are_not_kept_are_computed_again(
    text: str, tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "all").mkdir()
    every = walked(text, tmp_path / "all", reference)
    (tmp_path / "few").mkdir()
    monkeypatch.setattr(run_steps, "MAX_BYTES", 6 * 144)  # of six states
    few = walked(text, tmp_path / "few", reference)
    assert len(every.states) == STEPS + 1 and len(few.states) <= 8
    for k in (0, 5, STEPS - 1, 11):
        again = few.find_state_before(k)["h0"]
        known = every.find_state_before(k)["h0"]
        np.testing.assert_array_equal(load(again, Path("/")), load(known, Path("/")))
    assert all(
        Path(file).exists() for results in few.results for r in results.values() for file in r.files
    )


def test_relative_errors() -> None:
    ones = np.ones(3, np.float32)
    assert measure_relative_error(ones, ones * 1.5) == 0.5
    assert measure_relative_error(ones, np.ones(4, np.float32)) == math.inf
    assert measure_relative_error(ones, ones * np.nan) == math.inf
    assert (
        measure_relative_error(None, None) == 0.0 and measure_relative_error(None, ones) == math.inf
    )
