"""Known approximations are named by their values, and only where they explain the whole error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subgraph.runtime import candidate
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.runtime.worker_pool import Workers
from subgraph.trials.diagnosis.approximations import iter_approximations
from subgraph.trials.diagnosis.conclusions import Fact, conclude
from subgraph.trials.diagnosis.diagnosis import diagnose
from subgraph.trials.open_trials import Setup, open_trials
from subgraph.trials.similar_outputs import WrongOutput
from tests.helpers import text_models
from tests.helpers.facts import has_line

# The approximations in numpy, written otherwise than in subcut.
CANDIDATE = """
import numpy as np

def bits(x):  # Schraudolph's: the upper half of a float64
    upper = ((1 << 20) / np.log(2) * x + (1023 * (1 << 20) - 60801)).astype(np.int64)
    return (upper << 32).view(np.float64)

def gelu(x, tanh=np.tanh):
    return x / 2 * (1 + tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

def fraction(x):  # MNN's tanh: Lambert's continued fraction
    s = x * x
    top = x * (135135 + s * (17325 + s * (378 + s)))
    return np.clip(top / (135135 + s * (62370 + s * (3150 + 28 * s))), -1, 1)

def softmax(x):
    e = bits(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)

FUNCTIONS = {
    "gelu tanh": gelu,
    "gelu logistic": lambda x: x / (1 + np.exp(-1.702 * x)),
    "exp bits": bits,
    "sigmoid bits": lambda x: 1 / (1 + bits(-x)),
    "softmax bits": softmax,
    "tanh": np.tanh,
    "gelu fraction": lambda x: gelu(x, fraction),
    "fraction": fraction,
}

def load(model, options):
    scale, one = float(options.get("scale", 1)), float(options.get("one", 0))
    def run(feeds):
        y = FUNCTIONS[options["does"]](feeds["x"].astype(np.float64)) * scale
        y.flat[3] += one
        return {"y": y.astype(np.float32)}
    return run
"""
ERF = (
    "g (float[4,50] x) => (float[4,50] y) { d = Div(x, r) e = Erf(d) a = Add(e, one) m = Mul(x, a)"
    " y = Mul(m, half) }"
)
GELU, TANH, SIGMOID, EXP, SOFTMAX = (
    f"g (float[4,50] x) => (float[4,50] y) {{ y = {op}(x) }}"
    for op in ("Gelu", "Tanh", "Sigmoid", "Exp", "Softmax")
)
CONSTANTS: dict[str, Any] = {"r": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Processes that the tests share: what is computed is an option."""
    path = tmp_path_factory.mktemp("candidate") / "approximate.py"
    path.write_text(CANDIDATE)
    with Workers(candidate.parse(str(path))) as shared:
        yield shared


@pytest.fixture
def wrong(tmp_path: Path, reference: Reference, workers: Workers) -> Iterator[Any]:
    """`wrong(text, opset, **options)` -> the wrong output of a model of one region."""
    opened = []

    def ask(text: str, opset: int = 17, **options: str) -> WrongOutput:
        graph = text_models.load(
            tmp_path, text, opset=opset, ir=10, **(CONSTANTS if text is ERF else {})
        )
        np.save(
            tmp_path / "x.npy", 4 * np.random.default_rng(0).standard_normal((4, 50), np.float32)
        )
        chosen = replace(workers.candidate, options=options)
        setup = Setup(
            chosen, Feeding((str(tmp_path / "x.npy"),)), tmp_path / "out", "noise:floor=0"
        )
        opened.append(open_trials(graph, setup, reference, workers))
        trials = opened[-1].__enter__()
        worst = trials.verdict(trials.model.whole()).worst
        assert worst is not None
        return WrongOutput(trials, trials.model.whole(), worst)

    yield ask
    for trials in opened:
        trials.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("text", "opset", "does", "name"),
    [
        (ERF, 17, "gelu tanh", "GELU by tanh"),
        (ERF, 11, "gelu tanh", "GELU by tanh"),
        (ERF, 17, "gelu logistic", "GELU by the logistic"),
        (GELU, 20, "gelu tanh", "GELU by tanh"),
        (ERF, 17, "gelu fraction", "GELU by tanh as a continued fraction"),
        (GELU, 20, "gelu fraction", "GELU by tanh as a continued fraction"),
        (TANH, 17, "fraction", "tanh as a continued fraction"),
        (EXP, 17, "exp bits", "exp by"),
        (SIGMOID, 17, "sigmoid bits", "exp by"),
        (SOFTMAX, 17, "softmax bits", "exp by"),
        (SOFTMAX, 18, "softmax bits", "exp by"),
    ],
)
def test_approximation_is_named(wrong: Any, text: str, opset: int, does: str, name: str) -> None:
    (found,) = iter_approximations(wrong(text, opset, does=does))
    assert has_line(found.says, "looks like", name, "×", "nearer"), found
    assert has_line(conclude([found]).says, "approximation", f"{found.quoted}")


@pytest.mark.parametrize(
    "options",
    [
        {"does": "gelu logistic", "one": "1e-3"},  # one element is wrong beside it
        {"does": "gelu logistic", "scale": "1.0001"},  # so is each, by less
        {"does": "tanh"},  # another function
    ],
)
def test_cause_that_hides_another_error_is_not_named(wrong: Any, options: dict[str, str]) -> None:
    assert not list(iter_approximations(wrong(ERF, **options)))


def test_the_conclusion_comes_before_float16(wrong: Any) -> None:
    output = wrong(ERF, does="gelu tanh")
    region = output.region
    found = diagnose(output.trials, region, output.trials.verdict(region), "it is enough")
    assert has_line(found[0].says, "approximation", "GELU"), found
    assert Fact.FITS in {one.fact for one in found}, "float16 would explain the error as well"
