"""Cuts -> one model that holds them all as disconnected pieces: a candidate that starts slowly runs many in one run.

Insight: every name of a piece, inside its bodies as well, gets the piece's prefix (`p7/`). A renaming that is the same
everywhere and maps no two names to one changes no scope: captured names stay captured, shadowed ones stay shadowed. A
name is told apart from all others by what stands before its first slash, whatever the source calls its tensors.

A pool is a partition, since runtimes that meet one thing twice hide or make faults:
- An input that two pieces read is two inputs: shared ones are merged, and bits change.
- No node and no constant of more than `SHARED_BYTES` stands in two pieces. Constants are told apart by what they hold,
  wherever they stand: initializers, frozen shapes, Constant nodes, bodies, functions that a piece calls.
- Smaller constants (a bound of Clip, axes, the target of a Reshape) may: each piece has a copy under a name of its own.
  So may nodes that make one of nothing but constants: Constant, or another whose declared results are that small.

That a piece agrees in a pool is no proof; that it fails is to be confirmed alone.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from subgraph.errors import UsageError
from subgraph.graph import protobuf
from subgraph.graph.cut import GRAPH_PARTS, Cut
from subgraph.graph.graph import bodies
from subgraph.storage import dtypes

MAX_PIECES = 1000  # beyond, the time of converters and runtimes was seen to grow faster than the pieces
SHARED_BYTES = 64  # a constant up to here may stand in several pieces: eight int64 (pads in 4-D), a scalar of any type
HEAD = 4096  # bytes; trained weights of equal shape differ here, so that few are read to their end
CHUNK = 1 << 20  # bytes read at a time

Claim: TypeAlias = tuple[str, int]  # what one piece has for itself: ("node", index) or ("constant", its first place)


@dataclass(frozen=True)
class MergedCut:
    """Several cuts of one graph as one model.

    Attributes:
        pieces: what was pooled, in order.
        model: large weights are husks, as in `Cut.model`.
        inputs: per piece, tensor of the source model → name of the pool's input.
        outputs: per piece, tensor of the source model → name of the pool's output.
    """

    pieces: tuple[Cut, ...]
    model: protobuf.ModelProto = field(repr=False)
    inputs: tuple[Mapping[str, str], ...]
    outputs: tuple[Mapping[str, str], ...]

    def save(self, path: str | Path) -> list[Path]:
        """Write the model; weights that were in external files get a `.data` file beside it. Returns the files.

        Raises:
            DataError: the bytes of a weight cannot be had. OutputError: the disk is full or not writable.
        """
        model = protobuf.protos().ModelProto()
        model.CopyFrom(self.model)
        outside = any(map(protobuf.in_other_file, model.graph.initializer))
        return protobuf.write(model, self.pieces[0].graph.path, Path(path), external=outside)


def merge_cuts(cuts: Sequence[Cut]) -> MergedCut:
    """Several cuts of one graph as one model, in this order.

    Nodes without a name keep none; local functions, opsets and metadata are those of the source.
    Complexity: linear in the pieces; constants of equal type, shape and first `HEAD` bytes are read to their end.

    >>> p = merge_cuts(partition([of_region(graph, r) for r in regions])[0])                           # doctest: +SKIP
    >>> p.inputs[1]                                                                              # doctest: +SKIP
    {'conv1': 'p1/conv1'}

    Raises:
        UsageError: no piece, too many, from several graphs, or two that share a node or a constant.
        ModelError: a constant's element type or shape is invalid. DataError: its bytes cannot be had.
    """
    _require_lawful(cuts)
    model = protobuf.protos().ModelProto()
    model.CopyFrom(cuts[0].model)
    model.ClearField("functions")
    for part in GRAPH_PARTS:
        model.graph.ClearField(part)
    functions: dict[tuple[str, str, str], Any] = {}
    for i, cut in enumerate(cuts):
        piece = protobuf.protos().GraphProto()
        piece.CopyFrom(cut.model.graph)
        _prefix(piece, f"p{i}/")
        for part in GRAPH_PARTS:
            getattr(model.graph, part).MergeFrom(getattr(piece, part))
        functions.update({(f.domain, f.name, f.overload): f for f in cut.model.functions})
    model.functions.extend(functions[key] for key in cuts[0].graph.functions if key in functions)
    inputs, outputs = (
        tuple({name: f"p{i}/{name}" for name in getattr(cut, role)} for i, cut in enumerate(cuts))
        for role in ("inputs", "outputs")
    )
    return MergedCut(tuple(cuts), model, inputs, outputs)


def _prefix(graph: protobuf.GraphProto, prefix: str) -> None:
    """Put `prefix` before every name of a graph and of the bodies in it."""
    for node in graph.node:
        if node.name:
            node.name = prefix + node.name
        node.input[:] = [name and prefix + name for name in node.input]
        node.output[:] = [name and prefix + name for name in node.output]
        for body in bodies(node):
            _prefix(body, prefix)
    named = (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
    for part in (*named, *(sparse.values for sparse in graph.sparse_initializer)):
        part.name = part.name and prefix + part.name
    for annotation in graph.quantization_annotation:
        annotation.tensor_name = prefix + annotation.tensor_name
        for entry in annotation.quant_parameter_tensor_names:
            entry.value = prefix + entry.value


def _require_lawful(cuts: Sequence[Cut]) -> None:
    hint = "merged_cuts.partition splits cuts into lawful pools"
    if not 0 < len(cuts) <= MAX_PIECES:
        raise UsageError(f"a pool has 1 to {MAX_PIECES} pieces, not {len(cuts)}", hint)
    holder: dict[Claim, int] = {}
    for i, holding in enumerate(_holdings(cuts)):
        for claim, what in holding.claims.items():
            if holder.setdefault(claim, i) != i:
                raise UsageError(f"pieces {holder[claim]} and {i} of a pool share {what}", hint)


def partition(cuts: Sequence[Cut], limit: int = MAX_PIECES, most_bytes: int | None = None) -> list[list[Cut]]:
    """Split cuts of one graph into lawful pools: each goes into the first that shares nothing with it and has room.

    Every pool keeps the order of `cuts`, and pools stand in the order of their first piece. `limit`: pieces of a pool,
    at most `MAX_PIECES`. `most_bytes`: of constants and of tensors on the pieces' edges (an open dimension counts as
    one); a piece that is larger gets a pool of its own, and a pool that once had no room stays closed.

    Complexity: linear in what the cuts hold, times pools / 64; weights are read as `pool` reads them.

    Raises:
        UsageError: a limit below one; cuts of several graphs.
        ModelError: a constant's shape is invalid. DataError: its bytes cannot be had.
    """
    if limit < 1:
        raise UsageError(f"a pool of at most {limit} pieces holds none", "give a limit of one or more")
    found = _first_fit(_holdings(cuts), min(limit, MAX_PIECES), most_bytes)
    return [[cuts[place] for place in places] for places in found]


def _first_fit(holdings: Sequence[_Holding], limit: int, most: int | None) -> list[list[int]]:
    """Places of the cuts per pool. A set of pools is an integer with a bit for each."""
    often = {claim for claim, n in Counter(c for h in holdings for c in h.claims).items() if n > 1}
    holders: defaultdict[Claim, int] = defaultdict(int)
    closed = 0
    pools: list[list[int]] = []
    filled: list[int] = []
    for place, holding in enumerate(holdings):
        mine = often.intersection(holding.claims)
        alone = most is not None and holding.bytes > most
        taken = closed
        for claim in mine:
            taken |= holders[claim]
        while (at := len(pools) if alone else (~taken & (taken + 1)).bit_length() - 1) < len(pools):  # its lowest 0
            if most is None or filled[at] + holding.bytes <= most:
                break
            closed |= 1 << at
            taken |= 1 << at
        if at == len(pools):
            pools.append([])
            filled.append(0)
        pools[at].append(place)
        filled[at] += holding.bytes
        for claim in mine:
            holders[claim] |= 1 << at
        if len(pools[at]) == limit:
            closed |= 1 << at
    return pools


# ---------------------------------------------------------------------------------------------------- what pieces hold


@dataclass(frozen=True, slots=True)
class _Holding:
    """What a piece has for itself.

    Attributes:
        claims: nodes and constants that no other piece of its pool may have, each with a user's words for it.
        bytes: of its large constants and the tensors on its edge.
    """

    claims: dict[Claim, str]
    bytes: int


def _holdings(cuts: Sequence[Cut]) -> list[_Holding]:
    """What each of some cuts of one graph has for itself."""
    if any(cut.graph is not cuts[0].graph for cut in cuts):
        raise UsageError("the pieces of a pool come from several graphs", "load the model once, cut all from that")
    large = []
    for cut in cuts:
        called = (tensor for f in cut.model.functions for node in f.node for tensor in _of_node(node))
        large.append([t for t in (*_constants(cut.model.graph), *called) if _size(t) > SHARED_BYTES])
    first = iter(_first_alike([t for some in large for t in some], cuts[0].graph.path) if cuts else ())
    out = []
    for cut, tensors in zip(cuts, large, strict=True):
        claims: dict[Claim, str] = {("node", i): f"node '{cut.graph.label(i)}'" for i in _own_nodes(cut)}
        claims.update((("constant", next(first)), f"a constant of {_size(t)} bytes: '{t.name}'") for t in tensors)
        edge = (_type_bytes(cut.types[n]) for n in (*cut.inputs, *cut.outputs) if n in cut.types)
        out.append(_Holding(claims, sum(map(_size, tensors)) + sum(edge)))
    return out


def _own_nodes(cut: Cut) -> Iterator[int]:
    """All but those that were pulled in and hold all that they make (Constant), or make but small things."""
    yield from cut.region.nodes
    infos = cut.model.graph.value_info if cut.region.pulled else ()
    small = {v.name for v in infos if 0 < _type_bytes(v.type, 0) <= SHARED_BYTES}
    graph = cut.graph
    yield from (i for i in cut.region.pulled if graph.ops[i] != "Constant" and not small.issuperset(graph.makes[i]))


def _type_bytes(proto: protobuf.TypeProto, unknown: int = 1) -> int:
    """Bytes of a declared tensor, an open dimension counted as `unknown`; 0 for anything else."""
    kind = proto.tensor_type
    sizes = [d.dim_value if d.HasField("dim_value") else unknown for d in kind.shape.dim]
    bits = dtypes.TYPES.get(kind.elem_type, ("", 0))[1]
    return (math.prod(sizes) * bits + 7) // 8 if kind.HasField("shape") else 0


def _constants(graph: protobuf.GraphProto) -> Iterator[protobuf.TensorProto]:
    """All in a graph: initializers, and what its nodes hold."""
    yield from graph.initializer
    yield from (part for sparse in graph.sparse_initializer for part in (sparse.values, sparse.indices))
    yield from (tensor for node in graph.node for tensor in _of_node(node))


def _of_node(node: protobuf.NodeProto) -> Iterator[protobuf.TensorProto]:
    for a in node.attribute:
        yield from (a.t,) if a.HasField("t") else a.tensors
        for sparse in (a.sparse_tensor,) if a.HasField("sparse_tensor") else a.sparse_tensors:
            yield from (sparse.values, sparse.indices)
        if node.op_type == "Constant" and (count := len(a.floats or a.ints)):
            kind = 1 if a.floats else 7  # FLOAT, INT64
            yield protobuf.protos().TensorProto(data_type=kind, dims=[count], float_data=a.floats, int64_data=a.ints)
    for body in bodies(node):
        yield from _constants(body)


def _size(tensor: protobuf.TensorProto) -> int:
    if not dtypes.TYPES.get(tensor.data_type, ("", 0))[1]:  # strings, or a type of tomorrow
        return sum(map(len, tensor.string_data)) + len(tensor.raw_data)
    return protobuf.nbytes(tensor)


def _first_alike(tensors: Sequence[protobuf.TensorProto], model: Path) -> list[int]:
    """Per tensor, the place of the first of its type, shape and bytes. What differs at its head is read no further."""
    keys: list[Any] = [(t.data_type, *t.dims) for t in tensors]
    for most in (HEAD, None):
        met = Counter(keys)
        known: dict[Any, bytes] = {}  # no place on disk is read twice
        for place, tensor in enumerate(tensors):
            if met[keys[place]] > 1:
                spot = keys[place], tuple((e.key, e.value) for e in tensor.external_data) or place
                if spot not in known:
                    known[spot] = _digest(tensor, model, most)
                keys[place] = (keys[place], known[spot])
    first: dict[Any, int] = {}
    return [first.setdefault(key, place) for place, key in enumerate(keys)]


def _digest(tensor: protobuf.TensorProto, model: Path, most: int | None) -> bytes:
    """SHA-256 of its raw form, or of that many bytes of it."""
    if not protobuf.on_disk(tensor):
        return hashlib.sha256(_raw(tensor)[:most]).digest()
    blob = protobuf.locate(tensor, model)
    digest = hashlib.sha256()
    with blob.file.open("rb") as file:
        file.seek(blob.offset)
        left = min(blob.length, most or blob.length)
        while left and (data := file.read(min(left, CHUNK))):
            digest.update(data)
            left -= len(data)
    return digest.digest()


def _raw(tensor: protobuf.TensorProto) -> bytes:
    """The raw form of a constant in memory, whichever field holds it. Narrow types stand in wider cells there."""
    if tensor.string_data:
        return b"".join(len(text).to_bytes(8, "little") + text for text in tensor.string_data)
    for name, code in (("float", "f"), ("int32", "i"), ("int64", "q"), ("double", "d"), ("uint64", "Q")):
        if values := getattr(tensor, f"{name}_data"):
            data, wide = array(code, values).tobytes(), array(code).itemsize
            narrow = max(dtypes.TYPES[tensor.data_type][1] // 8, 1)
            return data if narrow >= wide else b"".join(data[at : at + narrow] for at in range(0, len(data), wide))
    return bytes(tensor.raw_data)
