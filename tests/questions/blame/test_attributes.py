"""The attribute that does it is named, and none that only hides it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from subgraph.questions.blame.attributes import Attributes
from subgraph.runtime import candidate
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.runtime.worker_pool import Workers
from subgraph.trials.open_trials import Setup, open_trials
from tests.helpers import text_models
from tests.helpers.planted_candidates import planted

# onnxruntime, wrong by `by` where a model's nodes have attributes: all of one of the sets in
# `wrong`.
CANDIDATE = planted(
    change="""
    there = {f"{node.op_type}.{a.name}" for node in nodes for a in node.attribute} | {""}
    wrong = float(options["by"]) * any(there.issuperset(each.split("+")) for each in options["wrong"].split("/"))
    """,  # noqa: E501
    answer="found = {n: v + type(v.flat[0])(wrong) for n, v in found.items()}",
)
POOL = (
    "g (float[1,2,7,7] x) => (float[1,2,3,3] y) { [pool] p = MaxPool"
    "<kernel_shape=[3,3], strides=[3,3], ceil_mode=1>(x) [act] y = LeakyRelu<alpha=0.2>(p) }"
)
SOFTMAX = "g (float[2,7,1] x) => (float[2,7,1] y) { [soft] y = Softmax<axis=1>(x) }"
SCALED = "g (float[4,5] x, float[5,6] w) => (float[4,6] y) { [gemm] y = Gemm<alpha=0.0001>(x, w) }"


SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    POOL: {"x": (1, 2, 7, 7)},
    SOFTMAX: {"x": (2, 7, 1)},
    SCALED: {"x": (4, 5), "w": (5, 6)},
}


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Processes that the tests share: what is wrong is an option."""
    path = tmp_path_factory.mktemp("candidate") / "wrong.py"
    path.write_text(CANDIDATE)
    with Workers(candidate.parse(str(path))) as shared:
        yield shared


@pytest.mark.slow
@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("text", "wrong", "by", "found"),
    [
        (
            POOL,
            "MaxPool.ceil_mode+MaxPool.strides",
            1,
            ["strides=[3, 3] of 'pool'", "ceil_mode=1 of 'pool'"],
        ),
        (
            POOL,
            "MaxPool.ceil_mode/LeakyRelu.alpha",
            1,
            ["ceil_mode=1 of 'pool' and alpha=0.2 of 'act'"],
        ),
        (POOL, "", 1, []),  # no attribute does it
        (SOFTMAX, "Softmax.axis", 1, []),  # without it all outputs are 1
        (SCALED, "", 1e-5, []),  # without it the same error is small beside the values
    ],
    ids=["either", "both", "none", "nothing left to tell", "hidden by the scale"],
)
def test_the_attribute_that_does_it(
    tmp_path: Path,
    reference: Reference,
    workers: Workers,
    text: str,
    wrong: str,
    by: float,
    found: list[str],
) -> None:
    graph = text_models.load(tmp_path, text)
    rng = np.random.default_rng(0)
    for name, shape in SHAPES[text].items():
        np.save(tmp_path / f"{name}.npy", rng.standard_normal(shape, np.float32))
    chosen = replace(workers.candidate, options={"wrong": wrong, "by": str(by)})
    setup = Setup(
        chosen,
        Feeding(tuple(f"{name}={tmp_path / name}.npy" for name in SHAPES[text])),
        tmp_path / "out",
        needs_evidence=False,
    )
    with open_trials(graph, setup, reference, workers) as trials:
        assert list(Attributes(trials, trials.model.whole(), setup, reference).deciding()) == found
