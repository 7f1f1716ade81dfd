"""Does a piece that fails alone explain what is wrong with the whole?

D is the candidate's error at the model's outputs. P is the reference's, when the piece's outputs are replaced by what
the candidate gave for it. The share of D that P accounts for is P·D / |D|². A piece that fails only when it is cut out
has an error there that leads nowhere (share near 0) or somewhere else (|P| far above |D|). Where that is unclear the
question is asked the other way round: how much of D is gone when the piece runs on the reference, and all before and
behind it on the candidate?
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph.errors import ModelError, NoRegion
from subgraph.graph import region as regions
from subgraph.graph.graph import CONSTANT
from subgraph.graph.region import Region
from subgraph.runtime.run_result import RunResult
from subgraph.storage.tensors import Record, load
from subgraph.trials.trial import Trials
from subgraph.verdict import Signature, Verdict

if TYPE_CHECKING:
    from subgraph.types import Array

# Measured on 20 real bugs and their false culprits: single culprits 1.00, the weaker of two serial ones 0.43, of two
# int8 ones 0.28; everything that was no culprit at most 0.251.
SHARE = 0.27
# Several culprits on one path have a share of 1/k each. Down to here a smaller one counts if the whole is better when
# the piece is right, by half of that share: one that fails only when it is cut out makes nothing better.
SMALL, GAIN = 0.05, 0.5
WORSE = 1.01  # of the squared final error
MOST_PHASES = 12  # runs for one such question
INSIDE = 3.0  # |P| / |D| above which the piece behaves otherwise inside the model: culprits at most 1.15
CLIP = 10.0  # of the scale: beyond, and where a value is not finite, an error is as large as it gets


@dataclass(frozen=True)
class Explained:
    """Attributes:
    share: P·D / |D|²; 1 where the piece accounts for all of the final error.
    ratio: |P| / |D|. Beyond `INSIDE` the share says nothing, and is the gain.
    gain: share of D that is gone when the piece is right inside the candidate's run, below 0 where that is worse; None
        where it was not asked or cannot be told.
    """

    share: float
    ratio: float
    gain: float | None = None

    @property
    def culprit(self) -> bool | None:
        """Is the piece to blame? None where that hangs on what it does inside, and nothing can be told there."""
        if self.ratio <= INSIDE:
            if not SMALL <= self.share < SHARE:
                return self.share >= SHARE
            return None if self.gain is None else self.gain >= GAIN * self.share
        return None if self.gain is None else self.gain >= SHARE


def explains(
    trials: Trials, region: Region, piece: RunResult | None = None, whole: RunResult | None = None
) -> Explained | None:
    """How much of the candidate's final error this region accounts for.

    `piece`, `whole`: what the candidate gave for the region and for the whole, where it does not give the same each
    time; else they are asked for.

    One reference run; where unclear one more, and two of the candidate.

    None where the candidate gives no whole-model output to explain, where that is right, where it leaves out an output
    of the piece, or where the patched values cannot be run.

    Raises:
        BackendError: the candidate cannot be used.
    """
    import numpy as np

    whole = whole or trials.run(trials.whole())
    piece = piece or trials.run(region)
    want = _outputs(trials, trials.values.records)
    error = _difference(trials, want, whole.tensors) if not whole.failure else None
    died = piece.failure is not None and piece.failure.signature is Signature.CRASH
    if error is None or (piece.failure and not died) or not error.any() or _lacks(trials, region, piece):
        return None
    if died or not _alike(trials, region, piece):
        gain = _gain(trials, region, want, error)
        return None if gain is None else Explained(gain, math.inf, gain)
    try:
        patched = _difference(trials, want, _patched(trials, region, piece))
    except ModelError:
        return None
    if patched is None:
        return None
    size = float(error @ error)
    share, ratio = float(patched @ error) / size, float((patched @ patched) / size) ** 0.5
    wild = share < SHARE and bool((np.abs(error) >= CLIP).any())
    otherwise = ratio > INSIDE or wild  # garbage, and another time it is other garbage
    gain = _gain(trials, region, want, error) if otherwise or SMALL <= share < SHARE else None
    return Explained(share if gain is None or not otherwise else gain, math.inf if wild else ratio, gain)


def _gain(trials: Trials, region: Region, want: Sequence[Mapping[str, Any]], error: Array) -> float | None:
    """The share of D that is gone when this piece runs on the reference; of errors that cancel, less than nothing."""
    left = _without(trials, region, want)
    if left is None:
        return None
    size, squared = float(error @ error), float(left @ left)
    return 1.0 - ((squared / size) ** 0.5 if squared > WORSE * size else float(left @ error) / size)


def left_without(trials: Trials, region: Region) -> float | None:
    """What is left of the final error, 1 being all of it, when all but this region runs on the candidate; None where
    it cannot be told.

    Raises:
        BackendError: the candidate cannot be used.
    """
    whole = trials.run(trials.whole())
    want = _outputs(trials, trials.values.records)
    error = _difference(trials, want, whole.tensors) if not whole.failure else None
    left = None if error is None or not error.any() else _without(trials, region, want)
    return None if left is None or error is None else float((left @ left) / (error @ error)) ** 0.5


def _patched(trials: Trials, region: Region, piece: RunResult) -> list[Mapping[str, Record]]:
    """The model's outputs on the reference, where the region's outputs are the candidate's."""
    rest = _region(trials, _below(trials, region))
    found = trials.run_on_reference(rest, piece.tensors) if rest else [{}] * len(piece.tensors)
    known = trials.values.records
    return [{**k, **p, **f} for k, p, f in zip(known, piece.tensors, found, strict=True)]


def _lacks(trials: Trials, region: Region, answer: RunResult) -> bool:
    """Is there an output of the region that did not come, and is no constant?"""
    kinds = trials.graph.kinds(region.outputs)
    needed = {n for n in region.outputs if kinds[n] != CONSTANT}
    return any(needed - given.keys() for given in answer.tensors)


def _alike(trials: Trials, region: Region, answer: RunResult) -> bool:
    """Are all of its outputs of the right type and shape, so that the reference can go on with them?"""
    pairs = zip(trials.values.records, answer.tensors, strict=True)
    return all(
        (given[n].dtype, given[n].shapes) == (known[n].dtype, known[n].shapes)
        for known, given in pairs
        for n in region.outputs
        if n in given
    )


def revives(trials: Trials, region: Region) -> bool | None:
    """Does the candidate, which brings nothing out of the whole, do so once this region runs on the reference? None
    where it cannot be told.

    Raises:
        BackendError: the candidate cannot be used.
    """
    given = _mended(trials, region)
    return None if given is None else not isinstance(given, Verdict)


def _below(trials: Trials, region: Region) -> set[int]:
    """What depends on the region and is needed for an output, without the region itself."""
    needed = set(trials.whole().nodes)
    return (trials.graph.descendants(region.nodes) & needed) - set(region.nodes)


def _region(trials: Trials, nodes: set[int]) -> Region | None:
    try:
        return regions.of_nodes(trials.graph, nodes) if nodes else None
    except NoRegion:  # only random nodes: their values are the captured ones
        return None


def _without(trials: Trials, region: Region, want: Sequence[Mapping[str, Any]]) -> Array | None:
    """The final error when the reference runs the region, and the candidate all else, each on what comes in."""
    given = _mended(trials, region)
    return None if given is None or isinstance(given, Verdict) else _difference(trials, want, given)


def _mended(trials: Trials, region: Region) -> list[Mapping[str, Record]] | Verdict | None:
    """All values when the reference runs the region, and the candidate all else; or how the candidate failed.

    None where that takes too many turns, or the reference does not run what comes in.
    """
    fed: list[Mapping[str, Record]] = [{} for _ in trials.values.records]
    phases = _phases(trials, region)
    if len(phases) > MOST_PHASES:
        return None
    for phase in sorted(phases):
        part = _region(trials, phases[phase])
        if part is None:
            continue
        given: Sequence[Mapping[str, Record]]
        if phase % 2:
            try:
                given = trials.run_on_reference(part, fed)
            except ModelError:
                return None
        else:
            answer = trials.run_extra(part, fed)
            if answer.failure:
                return answer.failure
            given = answer.tensors
        fed = [{**f, **g} for f, g in zip(fed, given, strict=True)]
    return [{**k, **f} for k, f in zip(trials.values.records, fed, strict=True)]


def _phases(trials: Trials, region: Region) -> dict[int, set[int]]:
    """The nodes of the whole in turns, even ones without the region, odd ones of it; each needs only earlier turns.

    Three where the region is convex; more where what it makes comes back to it. Linear in nodes and edges.
    """
    graph, inside = trials.graph, set(region.nodes)
    turn: dict[int, int] = {}
    found: dict[int, set[int]] = {}
    for i in trials.whole().nodes:
        own = int(i in inside)
        turn[i] = max([own, *(t + (t % 2 != own) for b in graph.predecessors(i) if (t := turn.get(b)) is not None)])
        found.setdefault(turn[i], set()).add(i)
    return found


# ---------------------------------------------------------------------------------------------------- errors


def _outputs(trials: Trials, records: Sequence[Mapping[str, Record]]) -> list[dict[str, Any]]:
    names = [n for n in trials.graph.outputs if n in trials.graph.maker]
    return [{n: load(sample[n], Path("/")) for n in names} for sample in records]


def _difference(
    trials: Trials, want: Sequence[Mapping[str, Any]], given: Sequence[Mapping[str, Record]]
) -> Array | None:
    """The error at all outputs of all samples, one vector, each output in units of its scale; None where one lacks."""
    import numpy as np

    parts = []
    for right, sample in zip(want, given, strict=True):
        for name, a in right.items():
            if name not in sample:
                return None
            b = load(sample[name], Path("/"))
            if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
                continue  # sequences: nothing to project on
            if a.shape != b.shape and a.size != b.size:
                return None
            parts.append(_scaled(a.reshape(-1), b.reshape(-1)))
    return np.concatenate(parts) if parts else None


def _scaled(a: Array, b: Array) -> Array:
    import numpy as np

    if a.dtype.kind in "OUSTb":
        return np.asarray(a != b, np.float64)
    if a.dtype.kind == "c":
        a, b = (np.ascontiguousarray(v).view(v.real.dtype) for v in (a, b))
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        scale = float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) or 1.0
        d = (y - x) / scale
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    return np.asarray(np.where(same, 0.0, np.where(np.isfinite(d), np.clip(d, -CLIP, CLIP), CLIP)))
