"""Two models on the reference, fed alike → what a change did to the outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from subgraph.graph import protobuf, region
from subgraph.graph.graph import Graph, load
from subgraph.graph.value_types import holds_maps
from subgraph.runtime.capture import Captured, capture_samples, inputs_needed
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.storage import folders, tensors
from subgraph.storage.tensors import Record
from subgraph.types import frozen


@frozen
class OutputEffect:
    """An output before and after: `status` is same (bit-identical), changed, new or gone.

    `max_abs`, `max_rel`: largest difference, and that divided by the largest magnitude before; None
    unless comparable.
    """

    name: str
    status: str
    what: str = ""
    max_abs: float | None = None
    max_rel: float | None = None


def effect(
    before: Graph, after: Path, feeding: Feeding, reference: Reference
) -> list[OutputEffect]:
    """Run both models on the same inputs, all samples; the worst of each output.

    Raises:
        SubcutError: a model cannot be run; inputs do not fit.
    """
    changed = load(after)
    stored = _storable(before)
    stored_after = _storable(changed)
    both = [name for name in before.outputs if name in changed.outputs]
    with folders.temporary() as temporary:
        places = [temporary / name for name in ("before", "after")]
        ours = run_outputs(before, stored, feeding, reference, places[0])
        shapes = {k: v for k, v in feeding.shapes.items() if k in changed.inputs}
        theirs = run_outputs(
            changed, stored_after, replace(feeding, shapes=shapes), reference, places[1]
        )
        rows = [
            _row(name, ours, theirs, places)
            for name in both
            if name in stored
            and name in stored_after
            and not (before.is_weight(name) or changed.is_weight(name))
        ]
    maps = "not compared: maps, which no file holds"
    rows += [OutputEffect(name, "same", maps) for name in both if name not in stored]
    rows += [OutputEffect(name, "gone") for name in before.outputs if name not in both]
    return rows + [OutputEffect(name, "new") for name in changed.outputs if name not in both]


def require_runs(path: Path, feeding: Feeding, reference: Reference) -> list[str]:
    """Run the model; the outputs that were left out, which are maps.

    Raises:
        SubcutError: the reference cannot run the model; inputs do not fit.
    """
    graph = load(path)
    with folders.temporary() as temporary:
        run_outputs(graph, _storable(graph), feeding, reference, temporary / "run")
    return [name for name in graph.outputs if name not in _storable(graph)]


def _storable(graph: Graph) -> list[str]:
    """The outputs of a model without those that are maps, which no file holds."""
    types = graph.declared_types(graph.outputs)
    return [name for name in graph.outputs if name not in types or not holds_maps(types[name])]


def frozen_as_before(
    graph: Graph, boundary: region.Region, piece: Graph, feeding: Feeding, reference: Reference
) -> list[str]:
    """Constants of a piece that hold what the model computes at the boundary, as a cut's frozen
    shapes do."""
    names = [n for n in boundary.shapes if n in piece.weights]
    if not names:
        return []
    with folders.temporary() as temporary:
        folder = temporary / "boundary"
        captured = run_outputs(graph, names, feeding, reference, folder)
        same = []
        for name in names:
            value = tensors.load(captured[0].tensors[name], folder / "0")
            constant = protobuf.to_array(piece.weights[name], piece.path)
            if isinstance(value, np.ndarray) and np.array_equal(value, constant):
                same.append(name)
        return same


@contextmanager
def edge_values(
    graph: Graph, first: Sequence[str], feeding: Feeding, reference: Reference | None
) -> Iterator[tuple[list[dict[str, Record]], Path | None]]:
    """(values per sample, their folder) of what nodes and all below them read; nothing without a
    reference."""
    if reference is None:
        yield [], None
        return
    below = graph.descendants(chain.from_iterable(graph.select(word).nodes for word in first))
    boundary = region.build_region(graph, below, keep_random=True)
    with folders.temporary() as temporary:
        folder = temporary / "boundary"
        captured = run_outputs(
            graph, [*boundary.inputs, *boundary.shapes], feeding, reference, folder
        )
        yield [c.tensors for c in captured], folder / "0"


def run_outputs(
    graph: Graph, names: Sequence[str], feeding: Feeding, reference: Reference, into: Path
) -> list[Captured]:
    """Values of tensors in `into/<sample>`, their files named by their number; weights are left
    out."""
    if not names:  # all outputs are maps
        return []
    names = [n for n in names if not graph.is_weight(n)]
    into.mkdir()
    above = region.find_upstream(graph, names)
    samples = feeding.plan(graph, inputs_needed(graph, above, names))
    return capture_samples(
        reference, graph, above, {n: f"t{k}" for k, n in enumerate(names)}, samples, into
    )


def _row(
    name: str, ours: Sequence[Captured], theirs: Sequence[Captured], folders: Sequence[Path]
) -> OutputEffect:
    worst = OutputEffect(name, "same", "bit-identical")
    for k, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        a = tensors.load(one.tensors[name], folders[0] / str(k))
        b = tensors.load(other.tensors[name], folders[1] / str(k))
        found = _difference(name, a, b)
        if worst.status == "same" or (found.max_rel or 0) > (worst.max_rel or 0):
            worst = found
    return worst


def _difference(name: str, a: object, b: object) -> OutputEffect:
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        same = repr(a) == repr(b)
        return OutputEffect(name, "same" if same else "changed", "equal" if same else "differs")
    if a.dtype != b.dtype or a.shape != b.shape:
        shapes = [f"{x.dtype} {'×'.join(map(str, x.shape)) or 'scalar'}" for x in (a, b)]
        return OutputEffect(name, "changed", " → ".join(shapes))
    if a.tobytes() == b.tobytes():
        return OutputEffect(name, "same", "bit-identical")
    if a.dtype.kind in "OSU":
        return OutputEffect(name, "changed", f"{int((a != b).sum())} of {a.size} texts differ")
    x = a.astype(np.float64)
    y = b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        most = float(np.nan_to_num(np.abs(x - y), nan=np.inf, posinf=np.inf).max())
    scale = float(np.abs(x[np.isfinite(x)]).max(initial=0.0))
    relative = most / scale if scale else most
    return OutputEffect(
        name,
        "changed",
        f"differs by at most {most:.2g}, {relative:.1e} of its scale",
        most,
        relative,
    )
