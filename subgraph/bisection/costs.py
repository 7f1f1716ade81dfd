"""What it costs that the candidate runs another model (quantized, say): by node, by operator, by tensor.

The share of a node is that of the final error which its piece explains when it alone runs there; shares of many small
errors add up to about one. What remains is measured the other way round: all else runs there, the piece on the
reference. Clipped values are counted where the other model keeps a scale.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subgraph.bisection.oracle import NodeOracle
from subgraph.comparison.pair import Pair
from subgraph.errors import ModelError, NoRegion
from subgraph.graph.region import Region
from subgraph.storage.tensors import load
from subgraph.trials.attribution import attribute, remaining_error
from subgraph.trials.trial import Trials

MEASURED = 64  # nodes whose share is measured: those that are furthest off alone
RESTORED = 5  # of them: what remains if they are put back


@dataclass(frozen=True)
class PieceCost:
    """One suspect. error: its largest output error alone, over the scale. explains: its share of the final error.
    remains: of the final error, when it runs on the reference; None where that was not asked or cannot be told."""

    indices: tuple[int, ...]
    error: float
    explains: float
    remains: float | None = None


def costs(asked: NodeOracle) -> list[PieceCost]:
    """The dearest first. A run of the candidate for each suspect, of the reference for each that is measured.

    Raises:
        BackendError: the candidate cannot be used.
    """
    alone: list[tuple[float, int]] = []
    for k in range(len(asked.groups)):
        with contextlib.suppress(ModelError, NoRegion):  # not there, or random: it has no cost of its own
            error = _error(asked.trials, asked.region([k]))
            if error > 0:
                alone.append((error, k))
    found = []
    for error, k in sorted(alone, reverse=True)[:MEASURED]:
        told = attribute(asked.trials, asked.region([k]))
        if told is not None:
            found.append((PieceCost(asked.groups[k], error, told.share), k))
    found.sort(key=lambda f: -f[0].explains)
    return [
        PieceCost(
            c.indices, c.error, c.explains, remaining_error(asked.trials, asked.region([k])) if n < RESTORED else None
        )
        for n, (c, k) in enumerate(found)
    ]


def _error(trials: Trials, region: Region) -> float:
    """The largest error of a region's outputs alone, over their scale; 0 where nothing can be compared."""
    import numpy as np

    answer, worst = trials.run(region), 0.0
    for known, given in zip(trials.values.records, answer.tensors, strict=False):
        for name in region.outputs:
            if name in given and known[name].form == "tensor":
                a, b = load(known[name], Path("/")), load(given[name], Path("/"))
                if (
                    isinstance(a, np.ndarray)
                    and isinstance(b, np.ndarray)
                    and a.shape == b.shape
                    and a.dtype == b.dtype
                ):
                    pair = Pair(a, b)
                    worst = max(worst, float(pair.difference.max(initial=0.0)) / (pair.scale or 1.0))
    return worst


def document(asked: NodeOracle, found: list[PieceCost], precision: str) -> dict[str, Any]:
    """As plain data: `nodes`, dearest first; `ops`, summed; `saturated`, the share of values that are clipped."""
    trials = asked.trials
    graph, other = trials.graph, trials.candidate_model
    ops: dict[str, list[float]] = {}
    for cost in found:
        ops.setdefault(" + ".join(dict.fromkeys(graph.ops[i] for i in cost.indices)), []).append(cost.explains)
    clipped = other.saturated(trials.values) if other else {}
    return {
        "precision": precision,
        "of": len(asked.groups),
        "nodes": [
            {
                "node": graph.label(c.indices[-1]), "nodes": [graph.label(i) for i in c.indices],
                "op": graph.ops[c.indices[-1]], "index": c.indices[-1], "error": c.error, "explains": c.explains,
                "remains": c.remains,
            }
            for c in found
        ],
        "ops": sorted(
            ({"op": op, "nodes": len(shares), "explains": sum(shares)} for op, shares in ops.items()),
            key=lambda row: -row["explains"],
        ),
        "saturated": [
            {"tensor": n, "share": share} for n, share in sorted(clipped.items(), key=lambda c: -c[1]) if share > 0
        ],
    }  # fmt: skip
