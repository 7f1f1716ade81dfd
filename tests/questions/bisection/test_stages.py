"""A bisection is a fold over stages: each iteration of it is one of its own, and takes the same
steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import subgraph
from subgraph.questions.bisection.bisection import Bisection
from subgraph.search import Settings, Step
from tests.helpers import text_models
from tests.helpers.planted_candidates import planted

# Its shapes are computed by nodes that are constants in a frozen cut.
SHAPES = """g (float[N,4] x) => (float[N,2,2] y) {
    [s] s = Shape(x) [z] z = Constant<value=int64[1] {0}>() [n] n = Gather(s, z)
    [t] t = Constant<value=int64[2] {2,2}>()
    [u] u = Concat<axis=0>(n, t) [y] y = Reshape(x, u)
}"""
# Wrong only where the shape is computed in the model: no frozen region fails.
SHY = planted(
    change='wrong = any(node.op_type == "Concat" for node in nodes)',
    answer='found = {n: v + 1 if wrong and v.dtype.kind == "f" else v for n, v in found.items()}',
)
EXCUSED = SHY.replace('any(node.op_type == "Concat" for node', "any(False for node")


def bisection_of(folder: Path, text: str, candidate: str) -> Bisection:
    graph = text_models.load(folder, text)
    (folder / "candidate.py").write_text(candidate)
    np.save(folder / "x.npy", np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4))
    spec = str(folder / "candidate.py")
    inputs = [f"x={folder / 'x.npy'}"]
    steady = Settings(steady=True)  # few confirmations: each is a process
    return subgraph.bisect(
        graph, spec, inputs, limits=steady, output=str(folder / "out"), force=True
    )


def facts(step: Step) -> tuple[object, ...]:
    return step.number, step.purpose, step.query, step.outcome


@pytest.mark.parametrize("candidate", [pytest.param(SHY, marks=pytest.mark.slow), EXCUSED])
def test_iterating_twice_takes_the_same_steps_and_reports_the_same_numbers(
    tmp_path: Path, candidate: str
) -> None:
    bisection = bisection_of(tmp_path, SHAPES, candidate)
    first = list(map(facts, bisection))
    one = bisection.document
    second = list(map(facts, bisection))
    two = bisection.document
    assert first == second
    for key in ("trials", "runs", "compiled_nodes", "outcome", "criterion", "notes"):
        assert one[key] == two[key], key
    explained, again = (
        [(f["nodes"], f["explains"], f["certified"]) for f in d["findings"]] for d in (one, two)
    )
    assert explained == again
    if candidate is SHY:
        assert one["outcome"] == "disagree" and {
            n for f in one["findings"] for n in f["nodes"]
        } >= {"u"}
