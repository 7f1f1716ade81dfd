"""Graph, region and another model → the graph with that model in the region's place.

The boundary is joined by name. The nodes of the other model are appended, then all are sorted
topologically.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from subgraph.editing.draft import Draft, describe
from subgraph.errors import ModelError, UnknownName, UsageError
from subgraph.graph.graph import Graph
from subgraph.graph.nested import assign
from subgraph.graph.region import Region
from subgraph.graph.selection import is_tensor
from subgraph.graph.value_types import DeclaredType, find_declared_types, read_type
from subgraph.iterables import flatten
from subgraph.text import clean, find_nearest
from subgraph.types import StringMap


def replace(
    graph: Graph,
    region: Region,
    piece: Graph,
    names: StringMap | None = None,
    computed: Collection[str] = (),
) -> Draft:
    """Replace a region of a model by `piece`.

    Complexity: linear in both models; equal weights are read to their end.

    Args:
        graph: The model.
        region: The region.
        piece: The model that replaces it.
        names: The piece's name of a tensor by the model's; others have the same name in both.
        computed: Constants of the piece, like frozen shapes of a cut, for which the model's tensor
            of the same name is read instead.

    Raises:
        UsageError, UnknownName: A tensor of the boundary is missing.
        ModelError: Types at the boundary differ, the opsets cannot be reconciled, or a node would
            depend on itself.
    """
    ours = {theirs: name for name, theirs in (names or {}).items()}
    boundary = [*piece.inputs, *piece.outputs]
    if unknown := next((theirs for theirs in ours if theirs not in boundary), ""):
        raise UnknownName(
            f"'{unknown}' is not an input or output of {piece.path.name}",
            nearest=find_nearest(unknown, boundary),
            code="edit.unknown-tensor",
        )
    connected = _connect(graph, region, piece, ours)
    our_types = find_declared_types(graph, connected.values())
    their_types = find_declared_types(piece, {*piece.inputs, *piece.outputs})
    for theirs, name in connected.items():
        if name not in our_types or theirs not in their_types:
            continue
        our_type = read_type(our_types[name])
        their_type = read_type(their_types[theirs])
        if not _fits(our_type, their_type):
            raise ModelError(
                f"'{name}' is {_show(our_type)} in {graph.path.name}, and"
                f" {_show(their_type)} in {piece.path.name}",
                "the piece must keep the types of the tensors at its boundary",
                code="edit.types-differ",
            )
    draft = Draft(graph)
    inputs = list(draft.model.graph.input)
    infos = list(draft.model.graph.value_info)
    gone = find_owned_nodes(graph, region)
    draft.drop_nodes(gone)
    kept_makers = [i for i in region.pulled if i not in gone]
    kept_tensors = {name: name for name in graph.iter_outputs(kept_makers) if name in piece.maker}
    frozen = {name: name for name in computed if name in piece.weights}
    called = draft.insert(piece, connected | kept_tensors | frozen)
    # Constants that region and model both need are not repeated.
    new = draft.model.graph
    ours_kept = new.node[: len(graph.nodes) - len(gone)]
    produced = set(filter(None, flatten(node.output for node in ours_kept)))
    added = new.node[len(ours_kept) :]
    assign(new.node, [*ours_kept, *(n for n in added if produced.isdisjoint(n.output))])
    assign(new.initializer, [t for t in new.initializer if t.name not in produced])
    _declare(new, inputs, [v for v in infos if v.name in connected.values()])
    draft.sort()
    draft.drop_unused_functions()
    moved = [name for name, new in called.items() if new not in (name, connected.get(name))]
    if moved:
        draft.remarks.append(f"{describe(moved[:8], 'name')} taken already, so numbered")
    if frozen:
        draft.remarks.append(
            f"{describe(list(frozen), 'frozen shape')}: computed again, as before the cut"
        )
    return draft


def find_owned_nodes(graph: Graph, region: Region) -> set[int]:
    """Return the region's nodes, and the nodes that compute constants for it alone."""
    gone = set(region.nodes)
    for i in reversed(region.pulled):
        readers = graph.readers_of(graph.makes[i])
        outputs = set(graph.makes[i]).intersection(graph.outputs)
        if not outputs and gone.issuperset(flatten(readers.values())):
            gone.add(i)
    return gone


def _connect(graph: Graph, region: Region, piece: Graph, ours: StringMap) -> dict[str, str]:
    """Return the tensor of the model for each boundary tensor of the piece.

    Raises:
        UnknownName: The model has no tensor of a given name.
        UsageError: The piece does not have a tensor of the boundary.
    """
    within = set(graph.iter_outputs(region.nodes))
    connected = {name: ours.get(name, name) for name in piece.inputs}
    for theirs, name in connected.items():
        is_known = is_tensor(graph, name) or graph.is_weight(name)
        if name in within or not is_known:
            boundary = region.entering
            raise UnknownName(
                f"{piece.path.name} reads '{theirs}', which is not a tensor outside the region",
                f"--map with a line: {[*boundary, 'NAME'][0]} {theirs}",
                find_nearest(name, boundary),
                code="edit.unknown-tensor",
            )
    piece_outputs = {ours.get(name, name): name for name in piece.outputs}
    if missing := [name for name in region.outputs if name not in piece_outputs]:
        free = [name for name in piece.outputs if ours.get(name, name) not in region.outputs]
        names = ", ".join(missing)
        raise UsageError(
            f"{piece.path.name} does not give {names}, which is read outside the region",
            f"--map with a line: {missing[0]} {[*free, 'NAME'][0]}",
            code="edit.output-missing",
        )
    return connected | {piece_outputs[name]: name for name in region.outputs}


def _fits(ours: DeclaredType, theirs: DeclaredType) -> bool:
    if "undefined" not in (ours.dtype, theirs.dtype) and ours[:2] != theirs[:2]:
        return False
    return ours.does_shape_fit(theirs)


def _show(declared: DeclaredType) -> str:
    if declared.dims is None:
        return declared.dtype
    sizes = ("?" if d is None else str(d) for d in declared.dims)
    return f"{declared.dtype} {clean('×'.join(sizes))}"


def _declare(graph: Any, inputs: Sequence[Any], infos: Sequence[Any]) -> None:
    """Declare again what `drop_nodes` removed: types at the boundary, and weights that users may
    feed as inputs."""
    declared = {v.name for v in (*graph.input, *graph.output, *graph.value_info)}
    weights = {t.name for t in graph.initializer} | {
        s.values.name for s in graph.sparse_initializer
    }
    graph.value_info.extend(v for v in infos if v.name not in declared)
    graph.input.extend(v for v in inputs if v.name in weights - declared)
