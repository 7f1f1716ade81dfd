"""A small graph, its inputs and the reference -> captured values and noise of a region, for tests of verdicts."""

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
from subgraph.runtime.reference import Reference
from subgraph.storage.tensors import PROTO_NAMES, Record, load, save
from tests.helpers import text_models

Array = np.ndarray[Any, Any]
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


class Piece:
    """A whole model as a region: what the reference gives for `feeds`, and its noise."""

    def __init__(
        self, graph: Graph, reference: Reference, feeds: Mapping[str, Array], memo: Memo | None = None, seed: int = 0
    ) -> None:
        self.graph, self.feeds = graph, feeds
        self.region = region.between(graph, (), ())
        self.folder = graph.path.parent / "captured"
        self.folder.mkdir(exist_ok=True)
        self.records = {n: _saved(n, v, self.folder, f"i{k}") for k, (n, v) in enumerate(feeds.items())}
        stems = {n: f"o{k}" for k, n in enumerate(self.region.outputs)}
        reference.load("piece", graph.path)
        self.records |= reference.run("piece", self.folder, stems, list(self.records.values())).by_name
        scratch = graph.path.parent / "scratch"
        self.noise = RegionNoise(graph, self.region, reference, self.records, self.folder, scratch, memo, seed)

    def reference(self, output: str) -> Array:
        """The captured value."""
        value = load(self.records[output], self.folder)
        assert isinstance(value, np.ndarray)
        return value

    def candidate(self, level: str) -> dict[str, Array]:
        """What onnxruntime gives at an optimisation level."""
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        session = onnxruntime.InferenceSession(str(self.graph.path), options, providers=["CPUExecutionProvider"])
        return dict(zip(self.region.outputs, session.run(list(self.region.outputs), dict(self.feeds)), strict=True))

    def judge(self, value: Array, output: str = "y", claim: str = "fp32", words: str = "") -> Ruling:
        """What the default criterion says of a candidate's value."""
        return rule(words)(Pair(self.reference(output), value), OutputContext(output, claim, self.noise.of(output)))


Make = Callable[..., Piece]


def maker(folder: Path, reference: Reference) -> Make:
    """`make(text, {input: value}, **weights)` -> a piece of its own folder."""
    number = 0

    def make(text: str, feeds: Mapping[str, Array], change: Any = lambda m: None, **more: Any) -> Piece:
        nonlocal number
        number += 1
        into = folder / str(number)
        into.mkdir()
        own = {k: more.pop(k) for k in ("memo", "seed") if k in more}
        return Piece(text_models.load(into, text, change, **more), reference, feeds, **own)

    return make


def f32(values: Any) -> Array:
    """An array of float32."""
    return np.array(values, np.float32)


def normal(*shape: int, seed: int = 0) -> Array:
    """Seeded normal values, float32."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def moved(kept: Sequence[Array], reference: Array) -> float:
    """The largest distance of any draw from the reference."""
    return max(float(np.abs(d.astype(np.float64) - reference.astype(np.float64)).max()) for d in kept)


def _saved(name: str, value: Array, folder: Path, stem: str) -> Record:
    kind = PROTO_NAMES.get(value.dtype.name, value.dtype.name)
    return save(name, value, f"tensor({kind})", folder, stem)
