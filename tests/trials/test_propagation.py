"""The candidate's values of a region, sent on through the rest of the model by the reference.

Covers `trials.propagation` and `trials.local_errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subgraph.runtime.reference import Reference
from subgraph.runtime.worker_pool import Workers
from subgraph.storage.tensors import load
from subgraph.trials.propagation import find_locally_wrong, propagate
from subgraph.trials.trial import Trials
from tests.helpers import text_models
from tests.helpers.open_trials import faulty_trials, region_of

# y = x · 8 + x: the skip joins the line at its end.
LINE = (
    "g (float[4] x) => (float[4] y) { two = Constant <value = float {2}> () [a] p = Mul(x, two) [b]"
    " q = Mul(p, two) [c] r = Mul(q, two) [d] y = Add(r, p) }"
)
Ask = Callable[..., Trials]


@pytest.fixture
def ask(tmp_path: Path, reference: Reference, workers: Workers) -> Iterator[Ask]:
    """`ask(**faults)` -> trials of `LINE` on ones."""
    np.save(tmp_path / "x.npy", np.ones(4, np.float32))
    with ExitStack() as stack:

        def opened(**faults: Any) -> Trials:
            graph = text_models.load(tmp_path, LINE)
            return stack.enter_context(
                faulty_trials(graph, reference, workers, (str(tmp_path / "x.npy"),), **faults)
            )

        yield opened


def sent(trials: Trials, *names: str) -> Any:
    """The model's output when only these nodes are the candidate's."""
    region = region_of(trials.model.graph, *names)
    (values,) = propagate(trials.model, region, trials.run(region).tensors)
    return load(values["y"], Path("/"))


@pytest.mark.parametrize(
    ("names", "y"), [("a", 15), ("b", 12), ("ab", 17), ("abcd", 17), ("c", 10), ("d", 10)]
)
def test_error_is_sent_on(names: str, y: float, ask: Ask) -> None:
    """a gives 3, not 2; b gives its product and 1 more. The reference gives y = 10."""
    assert sent(ask(add="a:1+b:1"), *names) == pytest.approx(y)


@pytest.mark.parametrize(("names", "y"), [("acd", 15), ("abd", 17), ("ad", 15), ("bd", 12)])
def test_error_that_leaves_the_region_and_comes_back_counts_once(
    names: str, y: float, ask: Ask
) -> None:
    """Without b, say: what a adds goes through b on the reference, and past it."""
    assert sent(ask(add="a:1+b:1"), *names) == pytest.approx(y)


def local(trials: Trials) -> dict[str, float] | None:
    """The nodes that are wrong given their actual inputs in the candidate's whole run, with their
    errors."""
    profile = trials.run(trials.model.whole(trials.model.tensors()))
    found = find_locally_wrong(
        trials, [region_of(trials.model.graph, name) for name in "abcd"], profile
    )
    return None if found is None else {"abcd"[k]: round(error, 3) for k, error in found.items()}


def test_only_the_culprits_are_wrong_by_what_they_read(ask: Ask) -> None:
    """All are off in place; the errors of a and c are 1 of 2, and 0.5 of what c makes of its own
    input: 12."""
    assert local(ask(add="a:1+c:0.5")) == {"a": 0.5, "c": round(0.5 / 12, 3)}
    assert local(ask()) == {}
