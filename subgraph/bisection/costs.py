"""The cost of running another model (a quantized one, say): by node, by operator, by tensor.

The share of an item is the part of the final error that appears if only this item runs in the
candidate's model; the shares of many small errors add up to about one. What remains is measured the
other way round: only this item runs on the reference. Saturated values are counted where the
candidate's model has a scale.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from subgraph.bisection.oracle import NodeOracle
from subgraph.comparison.pair import comparable
from subgraph.errors import ModelError, NoRegion
from subgraph.graph.region import Region
from subgraph.results.bisect import OperatorCost, OtherModel, PieceCost, Saturated
from subgraph.trials.attribution import attribute, remaining_error
from subgraph.trials.candidate_model import CandidateModel
from subgraph.trials.trial import Trials

MAX_MEASURED = 64  # items whose share is measured: those with the largest error alone
MAX_RESTORED = 5  # of these, with the largest share: also what remains


def costs(oracle: NodeOracle, other: CandidateModel) -> OtherModel:
    """Measure the costs: a run of the candidate per item, and runs of the reference per item whose
    share is measured.

    Raises:
        BackendError: the candidate cannot be used. OutOfTime: the time is used up.
    """
    trials = oracle.trials
    ops = oracle.graph.ops
    errors: list[tuple[float, int]] = []
    for k in range(len(oracle.groups)):
        with contextlib.suppress(
            ModelError, NoRegion
        ):  # not in that model, or random: no cost of its own
            errors.append((_error(trials, oracle.region([k])), k))
    pieces: list[tuple[PieceCost, int]] = []
    for error, k in sorted((e for e in errors if e[0] > 0), reverse=True)[:MAX_MEASURED]:
        attribution = attribute(trials, oracle.region([k]))
        if attribution is not None:
            labels = [trials.graph.label(i) for i in oracle.groups[k]]
            last = oracle.groups[k][-1]
            pieces.append(
                (PieceCost(labels[-1], labels, ops[last], last, error, attribution.share, None), k)
            )
    pieces.sort(key=lambda piece: -piece[0].explains)
    by_ops: dict[str, list[float]] = {}
    for cost, k in pieces:
        by_ops.setdefault(" + ".join(dict.fromkeys(ops[i] for i in oracle.groups[k])), []).append(
            cost.explains
        )
    summed = [OperatorCost(op, len(shares), sum(shares)) for op, shares in by_ops.items()]
    remaining = [remaining_error(trials, oracle.region([k])) for _, k in pieces[:MAX_RESTORED]]
    saturated = sorted(other.saturated(trials.model.values).items(), key=lambda tensor: -tensor[1])
    return OtherModel(
        other.graph.path.name,
        other.summary(),
        trials.judge.precision,
        len(oracle.groups),
        [
            replace(c, remains=remaining[k] if k < MAX_RESTORED else None)
            for k, (c, _) in enumerate(pieces)
        ],
        sorted(summed, key=lambda cost: -cost.explains),
        [Saturated(name, share) for name, share in saturated if share > 0],
    )


def _error(trials: Trials, region: Region) -> float:
    """The largest error of a region's outputs alone, over their scale; 0 if nothing can be
    compared."""
    result = trials.run(region)
    errors = [0.0]
    for reference, candidate in zip(trials.model.values.records, result.tensors, strict=False):
        for name in region.outputs:
            if name in candidate and reference[name].form == "tensor":
                pair = comparable(reference[name].value(), candidate[name].value())
                errors.append(pair.relative_error if pair else 0.0)
    return max(errors)
