"""Does a piece that fails alone explain what is wrong with the whole?

D is the candidate's error at the model's outputs. P is the reference's, when the piece's outputs are replaced by what
the candidate gave for it. The share of D that P accounts for is P·D / |D|². A piece that fails only when it is cut out
has an error there that leads nowhere (share near 0) or somewhere else (|P| far above |D|); then the question is asked
the other way round: inside the candidate's own run, do the reference's values for this piece heal the whole?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph import region as regions
from subgraph.answer import Answer
from subgraph.errors import ModelError, NoRegion
from subgraph.graph import CONSTANT
from subgraph.region import Region
from subgraph.tensors import Record, load
from subgraph.trial import Trials

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

# Measured on 20 real bugs and their false culprits: single culprits 1.00, the weaker of two serial ones 0.43, of two
# int8 ones 0.28; everything that was no culprit at most 0.251.
SHARE = 0.27
INSIDE = 3.0  # |P| / |D| above which the piece behaves otherwise inside the model: culprits at most 1.15
HEALED = 0.5  # of the error of the same three cuts all on the candidate
ALIKE = (0.5, 2.0)  # what the three cuts may give of |D| for the comparison to say anything
CLIP = 10.0  # of the scale: beyond, and where a value is not finite, an error is as large as it gets


@dataclass(frozen=True)
class Explained:
    """Attributes:
    share: P·D / |D|²; 1 where the piece accounts for all of the final error.
    ratio: |P| / |D|.
    healed: what is left of the final error, 0 to 1, when the piece is right inside the candidate's run; None where that
        was not asked, or where cutting the candidate's run in three changes it.
    """

    share: float
    ratio: float
    healed: float | None = None

    @property
    def culprit(self) -> bool | None:
        """Is the piece to blame? None where it behaves otherwise inside, and healing says nothing."""
        if self.ratio <= INSIDE:
            return self.share >= SHARE
        return None if self.healed is None else self.healed <= HEALED


def explains(trials: Trials, region: Region) -> Explained | None:
    """How much of the candidate's final error this region accounts for. One reference run; five more where unclear.

    None where the candidate gives no whole-model output to explain, where that is right, where it leaves out an output
    of the piece, or where the patched values cannot be run.

    Raises:
        BackendError: the candidate cannot be used.
    """
    whole = trials.answer(trials.whole())
    piece = trials.answer(region)
    want = _outputs(trials, trials.values.records)
    error = _difference(trials, want, whole.tensors) if not whole.failure else None
    if error is None or piece.failure or not error.any() or _lacks(trials, region, piece):
        return None
    try:
        patched = _difference(trials, want, _patched(trials, region, piece))
    except ModelError:
        return None
    if patched is None:
        return None
    size = float(error @ error)
    share, ratio = float(patched @ error) / size, float((patched @ patched) / size) ** 0.5
    healed = _healed(trials, region, want, size**0.5) if ratio > INSIDE else None
    return Explained(share, ratio, healed)


def _patched(trials: Trials, region: Region, piece: Answer) -> list[Mapping[str, Record]]:
    """The model's outputs on the reference, where the region's outputs are the candidate's."""
    rest = _region(trials, _below(trials, region))
    found = trials.on_reference(rest, piece.tensors) if rest else [{}] * len(piece.tensors)
    known = trials.values.records
    return [{**k, **p, **f} for k, p, f in zip(known, piece.tensors, found, strict=True)]


def _lacks(trials: Trials, region: Region, answer: Answer) -> bool:
    """Is there an output of the region that did not come, and is no constant?"""
    kinds = trials.graph.kinds(region.outputs)
    needed = {n for n in region.outputs if kinds[n] != CONSTANT}
    return any(needed - given.keys() for given in answer.tensors)


def _below(trials: Trials, region: Region) -> set[int]:
    """What depends on the region and is needed for an output, without the region itself."""
    needed = set(trials.whole().nodes)
    return (trials.graph.descendants(region.nodes) & needed) - set(region.nodes)


def _region(trials: Trials, nodes: set[int]) -> Region | None:
    try:
        return regions.of_nodes(trials.graph, nodes) if nodes else None
    except NoRegion:  # only random nodes: their values are the captured ones
        return None


def _healed(trials: Trials, region: Region, want: Sequence[Mapping[str, Any]], size: float) -> float | None:
    """What is left of the error when the candidate runs all but the region, which runs on the reference."""
    below = _below(trials, region)
    made_below = {n for i in below for n in trials.graph.makes[i]}
    if made_below & {n for i in region.nodes for n in trials.graph.reads[i]}:
        return None  # not convex: what lies between cannot run before or after it
    above = set(trials.whole().nodes) - set(region.nodes) - below
    front, back = _region(trials, above), _region(trials, below)
    first = trials.answer(front) if front else Answer(tuple({} for _ in trials.values.records))
    if first.failure:
        return None
    own = trials.answer(region, first.tensors)
    if own.failure:
        return None
    try:
        right = trials.on_reference(region, first.tensors)
    except ModelError:
        return None
    errors = []
    for middle in (own.tensors, right):
        fed = [{**f, **m} for f, m in zip(first.tensors, middle, strict=True)]
        last = trials.answer(back, fed) if back else Answer(tuple({} for _ in fed))
        if last.failure:
            return None
        given = [{**k, **f, **g} for k, f, g in zip(trials.values.records, fed, last.tensors, strict=True)]
        error = _difference(trials, want, given)
        if error is None:
            return None
        errors.append(float(error @ error) ** 0.5)
    whole, without = errors
    return without / whole if ALIKE[0] * size <= whole <= ALIKE[1] * size else None


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
