"""Cuts → `MergedCut`: one model with several cuts as disconnected parts, for slow runtimes.

Every name in a piece, inside its bodies as well, gets a separate prefix (`p7/`). Such a renaming
is injective and the same everywhere, so it preserves scopes: captured names stay captured and
shadowed names stay shadowed. Names of different pieces differ in the part before the first slash,
whatever the source calls its tensors.

Pieces share nothing that a runtime could merge, because merging hides faults and makes new ones:
- A tensor that two pieces read is two inputs. Runtimes merge computations on a shared input, which
  changes bits.
- No node, and no constant above `SHARED_BYTES`, is in two pieces. Constants are
  identified by their names.
- Smaller constants (a bound of Clip, axes, the target of a Reshape) may be in several: each piece
  has a copy under a separate name. So may absorbed nodes whose constants are that small.

If a piece agrees here, that does not prove that the cut alone agrees; a failure is to be confirmed
on the cut alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TypeAlias

from subgraph.errors import UsageError
from subgraph.graph import protobuf
from subgraph.graph.cut import GRAPH_PARTS, Cut
from subgraph.graph.nested import (
    FunctionKey,
    iter_attribute_tensors,
    iter_tensors,
    list_functions,
    rename,
)
from subgraph.iterables import flatten
from subgraph.storage import dtypes
from subgraph.storage.tensors import Record, Records
from subgraph.types import StringMap, frozen

# Beyond, the time of converters and runtimes was seen to grow faster than the pieces.
MAX_PIECES = 1000
# of a constant that may be in several pieces: eight int64 (pads in 4-D), a scalar of any type
SHARED_BYTES = 64

# Something that only one piece of a merged cut may hold: the index of a node, the name of a
# constant, or a function.
OwnedKey: TypeAlias = int | str | FunctionKey


@frozen
class MergedCut:
    """Several cuts of one graph as one model.

    Attributes:
        pieces: the cuts, in order.
        model: the ModelProto; its large weights are stubs, as in `Cut.model`.
        inputs: per piece, tensor of the source model → name of the input of the merged model.
        outputs: per piece, tensor of the source model → name of the output of the merged model.
    """

    pieces: tuple[Cut, ...]
    model: protobuf.ModelProto = field(repr=False)
    inputs: tuple[StringMap, ...]
    outputs: tuple[StringMap, ...]

    @property
    def output_names(self) -> list[str]:
        """The outputs of the merged model."""
        return list(flatten(names.values() for names in self.outputs))

    def feeds(self, tensors: Records) -> list[Record]:
        """Return the inputs of the merged model: tensors of the source model by its input names."""
        names = flatten(names.items() for names in self.inputs)
        return [replace(tensors[name], name=merged) for name, merged in names]

    def split(self, outputs: Records) -> list[dict[str, Record]]:
        """Return outputs of the merged model per piece, by their names in the source model; missing
        ones are omitted."""
        return [
            {
                name: replace(outputs[merged], name=name)
                for name, merged in names.items()
                if merged in outputs
            }
            for names in self.outputs
        ]

    def save(self, path: str | Path) -> list[Path]:
        """Write the model, and weights from external files into a `.data` file next to it.

        Returns:
            The written files.

        Raises:
            DataError: The bytes of a weight cannot be read.
            OutputError: The disk is full or not writable.
        """
        return protobuf.write(self.model, self.pieces[0].graph.path, Path(path))


def merge_cuts(cuts: Sequence[Cut]) -> MergedCut:
    """Merge cuts of one graph, in this order.

    Nodes without a name keep none; local functions, opsets and metadata are those of the source.
    Complexity: linear in the pieces.

    >>> groups = partition([cut_region(graph, r) for r in regions])  # doctest: +SKIP
    >>> merge_cuts(groups[0]).inputs[1]  # doctest: +SKIP
    {'conv1': 'p1/conv1'}

    Raises:
        UsageError: no cuts, too many, cuts of several graphs, or two that share a node or a
            constant.
        ModelError: the shape of a constant is invalid.
    """
    hint = "merged_cuts.partition makes groups that can be merged"
    if not 0 < len(cuts) <= MAX_PIECES:
        raise UsageError(
            f"a merged cut has 1 to {MAX_PIECES} pieces, not {len(cuts)}",
            hint,
            code="cut.piece-count",
        )
    _require_one_graph(cuts)
    owner: dict[OwnedKey, int] = {}
    for i, cut in enumerate(cuts):
        for key, description in _find_owned(cut).items():
            if owner.setdefault(key, i) != i:
                raise UsageError(
                    f"pieces {owner[key]} and {i} of a merged cut share {description}",
                    hint,
                    code="cut.overlap",
                )
    model = protobuf.clone(cuts[0].model)
    model.ClearField("functions")
    for part in GRAPH_PARTS:
        model.graph.ClearField(part)
    functions = {}
    for i, cut in enumerate(cuts):
        piece = protobuf.clone(cut.model.graph)
        rename(piece, f"p{i}/".__add__, f"p{i}/".__add__)
        for part in GRAPH_PARTS:
            getattr(model.graph, part).MergeFrom(getattr(piece, part))
        functions.update(list_functions(cut.model))
    model.functions.extend(functions[key] for key in cuts[0].graph.functions if key in functions)
    inputs, outputs = (
        tuple({name: f"p{i}/{name}" for name in getattr(cut, role)} for i, cut in enumerate(cuts))
        for role in ("inputs", "outputs")
    )
    return MergedCut(tuple(cuts), model, inputs, outputs)


def _require_one_graph(cuts: Sequence[Cut]) -> None:
    if any(cut.graph is not cuts[0].graph for cut in cuts):
        raise UsageError(
            "the pieces of a merged cut come from several graphs",
            "load the model once, cut all from that",
            code="cut.several-graphs",
        )


def partition(cuts: Sequence[Cut], most_bytes: int | None = None) -> list[list[Cut]]:
    """Split cuts of one graph into groups that can be merged, in order: the next group begins where
    a cut does not fit.

    A cut fits if it shares nothing with the group, which has at most `MAX_PIECES`. `most_bytes`:
    limit for the bytes of large constants and boundary tensors of a group (an open dimension counts
    as one); a larger cut is alone. Complexity: linear in the contents of the cuts.

    Raises:
        UsageError: cuts of several graphs. ModelError: the shape of a constant is invalid.
    """
    _require_one_graph(cuts)
    groups: list[list[Cut]] = []
    owned: set[OwnedKey] = set()
    size = 0
    for cut in cuts:
        keys = _find_owned(cut)
        own_size = count_bytes(cut)
        full = not groups or len(groups[-1]) == MAX_PIECES or not owned.isdisjoint(keys)
        if full or (most_bytes is not None and size + own_size > most_bytes):
            groups.append([])
            owned = set()
            size = 0
        groups[-1].append(cut)
        owned.update(keys)
        size += own_size
    return groups


# ------------------------------------------------------------ contents


def _find_owned(cut: Cut) -> dict[OwnedKey, str]:
    """Return the parts that no other piece can have, with a description for users.

    These are nodes, large constants and functions with large constants. Absorbed nodes can be in
    several pieces if their outputs are declared small, or they are small Constants.
    """
    graph = cut.graph
    infos = cut.model.graph.value_info if cut.region.pulled else ()
    small = {v.name for v in infos if 0 < _count_type_bytes(v.type, 0) <= SHARED_BYTES}
    for i in cut.region.pulled:
        node = graph.nodes[i]
        sizes = [8 * (len(a.floats) + len(a.ints)) for a in node.attribute]
        sizes = [sum(sizes), *map(_count_bytes, iter_attribute_tensors([node]))]
        if node.op_type == "Constant" and max(sizes) <= SHARED_BYTES:
            small.update(graph.makes[i])
    absorbed = [i for i in cut.region.pulled if not small.issuperset(graph.makes[i])]
    nodes = [*cut.region.nodes, *absorbed]
    owned: dict[OwnedKey, str] = {i: f"node '{graph.label(i)}'" for i in nodes}
    for tensor in _iter_large_weights(cut):
        owned[tensor.name] = f"a constant of {_count_bytes(tensor)} bytes: '{tensor.name}'"
    for key, function in list_functions(cut.model).items():
        if any(_count_bytes(t) > SHARED_BYTES for t in iter_tensors(function)):
            owned[key] = f"the function '{function.name}', which holds constants"
    return owned


def _iter_large_weights(cut: Cut) -> Iterator[protobuf.TensorProto]:
    graph = cut.model.graph
    tensors = (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer))
    return (t for t in tensors if _count_bytes(t) > SHARED_BYTES)


def count_bytes(cut: Cut) -> int:
    """Return the number of bytes of the large constants and the boundary tensors."""
    boundary = (
        _count_type_bytes(cut.types[n]) for n in (*cut.inputs, *cut.outputs) if n in cut.types
    )
    return sum(map(_count_bytes, _iter_large_weights(cut))) + sum(boundary)


def _count_type_bytes(proto: protobuf.TypeProto, open_size: int = 1) -> int:
    """Count the bytes of a declared tensor; 0 for other types or without a shape.

    An open dimension counts as `open_size`.
    """
    tensor = proto.tensor_type
    sizes = [d.dim_value if d.HasField("dim_value") else open_size for d in tensor.shape.dim]
    bits = dtypes.count_number_bits(tensor.elem_type)
    if tensor.HasField("shape"):
        return (math.prod(sizes) * bits + 7) // 8
    return 0


def _count_bytes(tensor: protobuf.TensorProto) -> int:
    """Count the bytes of a constant."""
    # These are strings, or of an element type newer than subcut.
    if not dtypes.count_number_bits(tensor.data_type):
        return sum(map(len, tensor.string_data)) + len(tensor.raw_data)
    return protobuf.count_bytes(tensor)
