"""Two models, run on the reference with the same inputs → the effect of an edit on the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from subgraph.graph import protobuf, region
from subgraph.graph.graph import Graph, load
from subgraph.graph.selection import select
from subgraph.graph.value_types import find_declared_types, holds_maps
from subgraph.graph.walks import find_descendants
from subgraph.iterables import flatten, restrict
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.storage import folders
from subgraph.storage.tensors import Records, find_largest
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


def measure_effect(
    before: Graph, after: Path, feeding: Feeding, reference: Reference
) -> list[OutputEffect]:
    """Run both models on the same inputs, all samples; the worst of each output.

    Raises:
        SubcutError: The reference cannot run a model, or the inputs do not fit.
    """
    changed = load(after)
    both = [name for name in before.outputs if name in changed.outputs]
    shapes = restrict(feeding.shapes, changed.inputs)
    with folders.make_temporary() as folder:
        ours = compute_outputs(before, feeding, reference, folder / "before")
        theirs = compute_outputs(
            changed, replace(feeding, shapes=shapes), reference, folder / "after"
        )
        compared = [n for n in both if n in ours.records[0] and n in theirs.records[0]]
        rows = [_make_row(name, ours.records, theirs.records) for name in compared]
    maps = "not compared: maps, which no file holds"
    rows += [OutputEffect(name, "same", maps) for name in _list_maps(before) if name in both]
    rows += [OutputEffect(name, "gone") for name in before.outputs if name not in both]
    return rows + [OutputEffect(name, "new") for name in changed.outputs if name not in both]


def require_runs(path: Path, feeding: Feeding, reference: Reference) -> list[str]:
    """Run the model; the outputs that were left out, which are maps.

    Raises:
        SubcutError: The reference cannot run the model, or the inputs do not fit.
    """
    graph = load(path)
    with folders.make_temporary() as folder:
        compute_outputs(graph, feeding, reference, folder)
    return _list_maps(graph)


def _list_maps(graph: Graph) -> list[str]:
    """Return the outputs of a model that are maps, which no file holds."""
    types = find_declared_types(graph, graph.outputs)
    return [name for name in graph.outputs if name in types and holds_maps(types[name])]


def compute_outputs(
    graph: Graph, feeding: Feeding, reference: Reference, folder: Path
) -> ReferenceValues:
    """Return the values of a model's outputs, without maps and weights."""
    maps = _list_maps(graph)
    names = [n for n in graph.outputs if n not in maps and not graph.is_weight(n)]
    return compute_values(graph, names, feeding, reference, folder)


def compute_values(
    graph: Graph, names: Sequence[str], feeding: Feeding, reference: Reference, folder: Path
) -> ReferenceValues:
    """Return the values of tensors that are no weights, with their files in a folder."""
    values = ReferenceValues(graph, reference, feeding.plan(graph, graph.inputs), folder)
    values.need(names)
    return values


def list_unfrozen_constants(
    graph: Graph, boundary: region.Region, piece: Graph, feeding: Feeding, reference: Reference
) -> list[str]:
    """Return the constants of a piece whose values are those of the model's tensors of these names.

    The frozen shapes of a cut are such constants.
    """
    names = [n for n in boundary.shapes if n in piece.weights]
    same = []
    with folders.make_temporary() as folder:
        values = compute_values(graph, names, feeding, reference, folder)
        for name in names:
            value = values.records[0][name].value()
            constant = protobuf.to_array(piece.weights[name], piece.path)
            if isinstance(value, np.ndarray) and np.array_equal(value, constant):
                same.append(name)
    return same


def compute_edge_values(
    graph: Graph, first: Sequence[str], feeding: Feeding, reference: Reference, folder: Path
) -> Sequence[Records]:
    """Return the inputs of the region of nodes and all nodes downstream, for each sample.

    The values are in files of a folder.
    """
    below = find_descendants(graph, flatten(select(graph, word).nodes for word in first))
    boundary = region.build_region(graph, below, keep_random=True)
    names = [n for n in boundary.entering if not graph.is_weight(n)]
    return compute_values(graph, names, feeding, reference, folder).records


def _make_row(name: str, ours: Sequence[Records], theirs: Sequence[Records]) -> OutputEffect:
    worst = OutputEffect(name, "same", "bit-identical")
    for one, other in zip(ours, theirs, strict=True):
        difference = _measure_difference(name, one[name].value(), other[name].value())
        if worst.status == "same" or (difference.max_rel or 0) > (worst.max_rel or 0):
            worst = difference
    return worst


def _measure_difference(name: str, a: object, b: object) -> OutputEffect:
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
    scale = find_largest(x[np.isfinite(x)])
    relative = most / scale if scale else most
    return OutputEffect(
        name,
        "changed",
        f"differs by at most {most:.2g}, {relative:.1e} of its scale",
        most,
        relative,
    )
