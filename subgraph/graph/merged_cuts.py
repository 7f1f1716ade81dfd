"""Cuts → `MergedCut`: one model that holds several cuts as disconnected pieces, for candidates that start slowly.

Every name in a piece, inside its bodies as well, gets a prefix of its own (`p7/`). Such a renaming is injective and
the same everywhere, so it preserves scopes: captured names stay captured and shadowed names stay shadowed. Names of
different pieces differ in the part before the first slash, whatever the source calls its tensors.

Pieces share nothing that a runtime could merge, because merging hides faults and makes new ones:
- A tensor that two pieces read is two inputs. Runtimes merge computations on a shared input, which changes bits.
- No node, and no constant above `SHARED_BYTES`, is in two pieces. Constants are compared by content, wherever they are:
  initializers, frozen shapes, Constant nodes, bodies, functions that a piece calls.
- Smaller constants (a bound of Clip, axes, the target of a Reshape) may be in several: each piece has a copy under a
  name of its own. So may Constant nodes, and other pulled-in nodes whose declared outputs are that small.

If a piece agrees here, that does not prove that the cut alone agrees; a failure is to be confirmed on the cut alone.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from subgraph.errors import UsageError
from subgraph.graph import protobuf
from subgraph.graph.cut import GRAPH_PARTS, Cut
from subgraph.graph.walk import FunctionKey, all_nodes, all_tensors, functions_of, rename
from subgraph.storage import dtypes
from subgraph.storage.tensors import Record

MAX_PIECES = 1000  # beyond, the time of converters and runtimes was seen to grow faster than the pieces
SHARED_BYTES = 64  # of a constant that may be in several pieces: eight int64 (pads in 4-D), a scalar of any type
HEAD = 4096  # bytes; trained weights of equal shape differ within these, so few are read to their end

# Something that only one piece of a merged cut may hold: ("node", index) or ("constant", number of its content).
Claim: TypeAlias = tuple[str, int]


@dataclass(frozen=True)
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
    inputs: tuple[Mapping[str, str], ...]
    outputs: tuple[Mapping[str, str], ...]

    @property
    def output_names(self) -> list[str]:
        """The outputs of the merged model."""
        return [merged for names in self.outputs for merged in names.values()]

    def feeds(self, tensors: Mapping[str, Record]) -> list[Record]:
        """What the merged model is fed: tensors of the source model under the names of its inputs."""
        return [replace(tensors[name], name=merged) for names in self.inputs for name, merged in names.items()]

    def split(self, outputs: Mapping[str, Record]) -> list[dict[str, Record]]:
        """Outputs of the merged model per piece, by their names in the source model; missing ones are left out."""
        return [
            {name: replace(outputs[merged], name=name) for name, merged in names.items() if merged in outputs}
            for names in self.outputs
        ]

    def save(self, path: str | Path) -> list[Path]:
        """Write the model; weights from external files go to a `.data` file beside it. Returns the files written.

        Raises:
            DataError: the bytes of a weight cannot be read.
            OutputError: the disk is full or not writable.
        """
        return protobuf.write(self.model, self.pieces[0].graph.path, Path(path))


def merge_cuts(cuts: Sequence[Cut]) -> MergedCut:
    """Merge cuts of one graph, in this order.

    Nodes without a name keep none; local functions, opsets and metadata are those of the source.
    Complexity: linear in the pieces; constants of equal type, shape and first `HEAD` bytes are read to their end.

    >>> p = merge_cuts(partition([cut_region(graph, r) for r in regions])[0])                          # doctest: +SKIP
    >>> p.inputs[1]                                                                              # doctest: +SKIP
    {'conv1': 'p1/conv1'}

    Raises:
        UsageError: no cuts, too many, cuts of several graphs, or two that share a node or a constant.
        ModelError: the element type or shape of a constant is invalid.
        DataError: the bytes of a constant cannot be read.
    """
    _require_disjoint(cuts)
    model = protobuf.protos().ModelProto()
    model.CopyFrom(cuts[0].model)
    model.ClearField("functions")
    for part in GRAPH_PARTS:
        model.graph.ClearField(part)
    functions: dict[FunctionKey, Any] = {}
    for i, cut in enumerate(cuts):
        piece = protobuf.protos().GraphProto()
        piece.CopyFrom(cut.model.graph)
        rename(piece, f"p{i}/".__add__, f"p{i}/".__add__)
        for part in GRAPH_PARTS:
            getattr(model.graph, part).MergeFrom(getattr(piece, part))
        functions.update(functions_of(cut.model))
    model.functions.extend(functions[key] for key in cuts[0].graph.functions if key in functions)
    inputs, outputs = (
        tuple({name: f"p{i}/{name}" for name in getattr(cut, role)} for i, cut in enumerate(cuts))
        for role in ("inputs", "outputs")
    )
    return MergedCut(tuple(cuts), model, inputs, outputs)


def _require_disjoint(cuts: Sequence[Cut]) -> None:
    hint = "merged_cuts.partition splits cuts into lawful pools"
    if not 0 < len(cuts) <= MAX_PIECES:
        raise UsageError(f"a pool has 1 to {MAX_PIECES} pieces, not {len(cuts)}", hint)
    holder: dict[Claim, int] = {}
    for i, contents in enumerate(_contents(cuts)):
        for claim, description in contents.claims.items():
            if holder.setdefault(claim, i) != i:
                raise UsageError(f"pieces {holder[claim]} and {i} of a pool share {description}", hint)


def partition(cuts: Sequence[Cut], limit: int = MAX_PIECES, most_bytes: int | None = None) -> list[list[Cut]]:
    """Split cuts of one graph into groups that can be merged: each cut joins the first group that it fits into.

    A cut fits if it shares nothing with the group and the group has room. Each group keeps the order of `cuts`, and the
    groups are in the order of their first cut. `limit`: cuts per group, at most `MAX_PIECES`. `most_bytes`: limit for
    the bytes of constants and boundary tensors of a group (an open dimension counts as one); a cut that is larger gets
    a group of its own, and a group that once lacked room for a cut is closed.

    Complexity: linear in the contents of the cuts, times groups / 64; weights are read as by `merge_cuts`.

    Raises:
        UsageError: a limit below one; cuts of several graphs.
        ModelError: the shape of a constant is invalid.
        DataError: the bytes of a constant cannot be read.
    """
    if limit < 1:
        raise UsageError(f"a pool of at most {limit} pieces holds none", "give a limit of one or more")
    groups = _first_fit(_contents(cuts), min(limit, MAX_PIECES), most_bytes)
    return [[cuts[k] for k in group] for group in groups]


def _first_fit(contents: Sequence[_Contents], limit: int, most_bytes: int | None) -> list[list[int]]:
    """Indices of the cuts per group. A set of groups is an integer with a bit for each."""
    shared = {claim for claim, n in Counter(c for piece in contents for c in piece.claims).items() if n > 1}
    holders: defaultdict[Claim, int] = defaultdict(int)
    closed = 0
    groups: list[list[int]] = []
    filled: list[int] = []
    for index, piece in enumerate(contents):
        claims = shared.intersection(piece.claims)
        alone = most_bytes is not None and piece.bytes > most_bytes
        excluded = closed
        for claim in claims:
            excluded |= holders[claim]
        while (at := len(groups) if alone else _lowest_zero(excluded)) < len(groups):
            if most_bytes is None or filled[at] + piece.bytes <= most_bytes:
                break
            closed |= 1 << at
            excluded |= 1 << at
        if at == len(groups):
            groups.append([])
            filled.append(0)
        groups[at].append(index)
        filled[at] += piece.bytes
        for claim in claims:
            holders[claim] |= 1 << at
        if len(groups[at]) == limit:
            closed |= 1 << at
    return groups


def _lowest_zero(bits: int) -> int:
    """Position of the lowest bit that is 0."""
    return (~bits & (bits + 1)).bit_length() - 1


# ---------------------------------------------------------------------------------------------------- contents


@dataclass(frozen=True, slots=True)
class _Contents:
    """Nodes and constants of a cut.

    Attributes:
        claims: nodes and large constants, which no other piece may hold → description for users.
        bytes: of the large constants and the boundary tensors.
    """

    claims: dict[Claim, str]
    bytes: int


def _contents(cuts: Sequence[Cut]) -> list[_Contents]:
    """The contents of each of several cuts of one graph."""
    if any(cut.graph is not cuts[0].graph for cut in cuts):
        raise UsageError("the pieces of a pool come from several graphs", "load the model once, cut all from that")
    large = [[t for t in _constants(cut) if _size(t) > SHARED_BYTES] for cut in cuts]
    content = iter(_equal_contents([t for tensors in large for t in tensors], cuts[0].graph.path) if cuts else ())
    contents = []
    for cut, tensors in zip(cuts, large, strict=True):
        claims: dict[Claim, str] = {("node", i): f"node '{cut.graph.label(i)}'" for i in _exclusive_nodes(cut)}
        claims.update((("constant", next(content)), f"a constant of {_size(t)} bytes: '{t.name}'") for t in tensors)
        boundary = (_type_bytes(cut.types[n]) for n in (*cut.inputs, *cut.outputs) if n in cut.types)
        contents.append(_Contents(claims, sum(map(_size, tensors)) + sum(boundary)))
    return contents


def _exclusive_nodes(cut: Cut) -> Iterator[int]:
    """Nodes that only one piece may hold: all but pulled-in Constants and pulled-in nodes with small outputs."""
    yield from cut.region.nodes
    infos = cut.model.graph.value_info if cut.region.pulled else ()
    small = {v.name for v in infos if 0 < _type_bytes(v.type, 0) <= SHARED_BYTES}
    graph = cut.graph
    yield from (i for i in cut.region.pulled if graph.ops[i] != "Constant" and not small.issuperset(graph.makes[i]))


def _type_bytes(proto: protobuf.TypeProto, open_size: int = 1) -> int:
    """Bytes of a declared tensor, an open dimension counted as `open_size`; 0 for other types or without a shape."""
    tensor = proto.tensor_type
    sizes = [d.dim_value if d.HasField("dim_value") else open_size for d in tensor.shape.dim]
    bits = dtypes.TYPES.get(tensor.elem_type, ("", 0))[1]
    return (math.prod(sizes) * bits + 7) // 8 if tensor.HasField("shape") else 0


def _constants(cut: Cut) -> Iterator[protobuf.TensorProto]:
    """All constants of a cut, also in bodies and in the functions that it calls."""
    for graph in (cut.model.graph, *cut.model.functions):
        yield from all_tensors(graph)
        for a in (a for node in all_nodes(graph.node) if node.op_type == "Constant" for a in node.attribute):
            if count := len(a.floats or a.ints):
                number = 1 if a.floats else 7  # FLOAT, INT64
                made = protobuf.protos().TensorProto(data_type=number, dims=[count])
                made.float_data.extend(a.floats)
                made.int64_data.extend(a.ints)
                yield made


def _size(tensor: protobuf.TensorProto) -> int:
    """Bytes of a constant."""
    if not dtypes.TYPES.get(tensor.data_type, ("", 0))[1]:  # strings, or an element type newer than subcut
        return sum(map(len, tensor.string_data)) + len(tensor.raw_data)
    return protobuf.nbytes(tensor)


def _equal_contents(tensors: Sequence[protobuf.TensorProto], model: Path) -> list[int]:
    """Per tensor, index of the first one of equal type, shape and bytes. All are read to their end only if need be."""
    keys: list[Any] = [(t.data_type, *t.dims) for t in tensors]
    for limit in (HEAD, None):
        frequency = Counter(keys)
        digests: dict[Any, bytes] = {}  # by position on disk, so that none is read twice
        for index, tensor in enumerate(tensors):
            if frequency[keys[index]] > 1:
                position = keys[index], tuple((e.key, e.value) for e in tensor.external_data) or index
                if position not in digests:
                    digests[position] = content_digest(tensor, model, limit)
                keys[index] = (keys[index], digests[position])
    first: dict[Any, int] = {}
    return [first.setdefault(key, index) for index, key in enumerate(keys)]


def content_digest(tensor: protobuf.TensorProto, model: Path, limit: int | None) -> bytes:
    """SHA-256 of the raw data, or of its first `limit` bytes."""
    if not protobuf.on_disk(tensor):
        return hashlib.sha256(_raw_data(tensor)[:limit]).digest()
    digest = hashlib.sha256()
    for chunk in protobuf.locate(tensor, model).chunks(limit):
        digest.update(chunk)
    return digest.digest()


def _raw_data(tensor: protobuf.TensorProto) -> bytes:
    """The raw data of a constant in memory, whichever field holds it; typed fields store narrow types in wide cells."""
    if tensor.string_data:
        return b"".join(len(text).to_bytes(8, "little") + text for text in tensor.string_data)
    for name, code in (("float", "f"), ("int32", "i"), ("int64", "q"), ("double", "d"), ("uint64", "Q")):
        if values := getattr(tensor, f"{name}_data"):
            data, cell = array(code, values).tobytes(), array(code).itemsize
            width = max(dtypes.TYPES[tensor.data_type][1] // 8, 1)
            return data if width >= cell else b"".join(data[at : at + width] for at in range(0, len(data), cell))
    return bytes(tensor.raw_data)
