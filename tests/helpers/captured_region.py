"""A small graph, its inputs and the reference -> captured values and rounding noise of a region."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from subgraph.comparison.criteria import OutputContext, Ruling
from subgraph.comparison.criteria.noise import rule
from subgraph.comparison.noise.noise import Memo, RegionNoise
from subgraph.comparison.pair import Pair
from subgraph.graph import region
from subgraph.graph.graph import Graph
from subgraph.precision import Precision
from subgraph.runtime.reference import Reference
from subgraph.storage.tensors import Record, find_type, load, save
from tests.helpers import text_models

Array = np.ndarray[Any, Any]
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


class CapturedRegion:
    """A whole model as a region, with the reference's values for `feeds`, and its rounding
    noise."""

    def __init__(
        self,
        graph: Graph,
        reference: Reference,
        feeds: Mapping[str, Array],
        memo: Memo | None = None,
    ) -> None:
        self.graph = graph
        self.feeds = feeds
        self.region = region.find_region(graph, (), ())
        folder = graph.path.parent / "captured"
        folder.mkdir(exist_ok=True)
        inputs = [
            save(n, v, find_type(v), folder, f"i{k}") for k, (n, v) in enumerate(feeds.items())
        ]
        reference.load("region", graph.path)
        outputs = reference.run(
            "region", folder, {n: f"o{k}" for k, n in enumerate(self.region.outputs)}, inputs
        )
        self.records = {r.name: r.rebase(str(folder)) for r in (*inputs, *outputs.by_name.values())}
        scratch = graph.path.parent / "scratch"
        self.noise = RegionNoise(graph, self.region, reference, self.records, scratch, memo)

    def reference(self, output: str) -> Array:
        """The captured value."""
        value = load(self.records[output], Path("/"))
        assert isinstance(value, np.ndarray)
        return value

    def candidate(self, level: str) -> dict[str, Array]:
        """Outputs of onnxruntime at an optimization level."""
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(
            str(self.graph.path), options, providers=["CPUExecutionProvider"]
        )
        return dict(
            zip(
                self.region.outputs,
                session.run(list(self.region.outputs), dict(self.feeds)),
                strict=True,
            )
        )

    def judge(
        self, value: Array, output: str = "y", claim: Precision = Precision.FP32, options: str = ""
    ) -> Ruling:
        """The ruling of the default criterion for a candidate's value."""
        return rule(options)(
            Pair(self.reference(output), value),
            OutputContext(output, claim, self.noise.get_output(output)),
        )


Make = Callable[..., CapturedRegion]


def region_maker(folder: Path, reference: Reference) -> Make:
    """`make(text, {input: value}, **weights)` -> a region in a folder of its own."""
    number = 0

    def make(
        text: str, feeds: Mapping[str, Array], change: Any = lambda m: None, **weights: Any
    ) -> CapturedRegion:
        nonlocal number
        number += 1
        into = folder / str(number)
        into.mkdir()
        options = {k: weights.pop(k) for k in ("memo",) if k in weights}
        return CapturedRegion(
            text_models.load(into, text, change, **weights), reference, feeds, **options
        )

    return make


def f32(values: Any) -> Array:
    """An array of float32."""
    return np.array(values, np.float32)


def normal(*shape: int, seed: int = 0) -> Array:
    """Seeded normal values, float32."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def largest_deviation(runs: Sequence[Array], reference: Array) -> float:
    """The largest |perturbed − reference| of any run."""
    return max(
        float(np.abs(values.astype(np.float64) - reference.astype(np.float64)).max())
        for values in runs
    )


def fed(folder: Path, **values: object) -> dict[str, Record]:
    """Records of input values."""
    folder.mkdir(exist_ok=True)
    arrays = {name: np.asarray(value) for name, value in values.items()}
    return {
        n: save(n, a, find_type(a), folder, n).rebase(str(folder.resolve()))
        for n, a in arrays.items()
    }
