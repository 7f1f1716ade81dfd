"""Two networks -> matched tensors, and the pieces between them: what one computes in other nodes
than the other.

Insight: tensors that both have split both networks into pieces that compute the same; a piece whose
operators differ is what an optimizer fused or a converter changed. Tensors match by name; where
names are gone, by structure: the same operator on matched inputs, or between matched readers, if it
is the only such node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from subgraph.drawing.network import Network
from subgraph.reach import reach

QUANTIZERS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Constant")
PLAIN = {"QGemm": "Gemm", "QAttention": "Attention"}  # of onnxruntime


@dataclass(frozen=True)
class Piece:
    """Nodes that compute a tensor from matched tensors, in both networks; `changed`: their
    operators differ.

    `tensor`, `other`: its name in the one and in the other network. `quantized`: they differ only
    by quantizers, and by operators that compute on codes in place of those that compute on numbers.
    """

    tensor: str
    other: str
    nodes: tuple[int, ...]
    others: tuple[int, ...]
    changed: bool
    quantized: bool = False


def matched(one: Network, other: Network) -> dict[str, str]:
    """Tensor of one → that of the other: by name, then by structure, downwards and upwards until
    nothing is added.

    A model's only input or output matches the other's. Complexity: linear in both, per round.
    """
    pairs = {n: n for n in one.maker if n in other.maker}
    for names, others in ((one.inputs, other.inputs), (one.outputs, other.outputs)):
        if len(names) == len(others) == 1:
            pairs.setdefault(names[0], others[0])
    while True:
        before = len(pairs)
        for keys in (_keys_from_above, _keys_from_below):
            taken = {b: b for b in pairs.values()}
            mine = keys(one, pairs)
            theirs = keys(other, taken)
            for key in mine.keys() & theirs.keys():
                if len(mine[key]) == len(theirs[key]) == 1:
                    made = one.makes[mine[key][0]]
                    makes = other.makes[theirs[key][0]]
                    if len(made) == len(makes) and not taken.keys() & set(makes):
                        pairs.update(zip(made, makes, strict=True))
        if len(pairs) == before:
            return pairs


Key = tuple[str, tuple[str, ...]]


def _keys_from_above(network: Network, pairs: Mapping[str, str]) -> dict[Key, list[int]]:
    """Operator and matched inputs → unmatched nodes."""
    keys: dict[Key, list[int]] = {}
    for i in _unmatched(network, pairs):
        reads = [name for _, name in network.sources[i]]
        if reads and all(name in pairs for name in reads):
            keys.setdefault((network.ops[i], tuple(pairs[name] for name in reads)), []).append(i)
    return keys


def _keys_from_below(network: Network, pairs: Mapping[str, str]) -> dict[Key, list[int]]:
    """Operator and what its matched readers make → unmatched nodes."""
    keys: dict[Key, list[int]] = {}
    for i in _unmatched(network, pairs):
        readers = [r for name in network.makes[i] for r in network.readers.get(name, ())]
        made = [name for r in readers if r < len(network.ops) for name in network.makes[r]]
        if made and all(name in pairs for name in made):
            keys.setdefault(
                (network.ops[i], tuple(sorted(pairs[name] for name in made))), []
            ).append(i)
    return keys


def _unmatched(network: Network, pairs: Mapping[str, str]) -> Iterable[int]:
    folded = network.folded
    return (
        i
        for i, makes in enumerate(network.makes)
        if i not in folded and not any(n in pairs for n in makes)
    )


def pieces(one: Network, other: Network, pairs: Mapping[str, str]) -> list[Piece]:
    """The pieces between matched tensors, in the order of the one network; each node is in the
    first that needs it.

    What leads to no matched tensor is in no piece. Linear in both networks.
    """
    seen: tuple[set[int], set[int]] = (set(), set())
    taken = set(pairs.values())
    found = []
    for makes in one.makes:
        for tensor in makes:
            if tensor not in pairs:
                continue
            nodes = _above(one, tensor, pairs.keys(), seen[0])
            others = _above(other, pairs[tensor], taken, seen[1])
            ops = [one.ops[i] for i in nodes]
            theirs = [other.ops[i] for i in others]
            changed = Counter(ops) != Counter(theirs)
            quantized = changed and _unquantized(ops) == _unquantized(theirs)
            found.append(
                Piece(tensor, pairs[tensor], tuple(nodes), tuple(others), changed, quantized)
            )
    return [piece for piece in found if piece.nodes or piece.others]


def _unquantized(ops: Iterable[str]) -> Counter[str]:
    """The operators as they are without quantization.

    >>> _unquantized(["QuantizeLinear", "QLinearConv", "MatMulInteger", "Relu"])
    Counter({'Conv': 1, 'MatMul': 1, 'Relu': 1})
    """
    plain = (
        op.removeprefix("QLinear").removesuffix("Integer") for op in ops if op not in QUANTIZERS
    )
    return Counter(PLAIN.get(op, op) for op in plain)


def _above(network: Network, tensor: str, ends: Collection[str], seen: set[int]) -> list[int]:
    """Nodes that make a tensor from those of `ends`, without nodes `seen`, to which they are added;
    ascending."""

    def producers(names: Iterable[str]) -> list[int]:
        makers = [network.maker[name] for name in names if name in network.maker]
        return [node for node in makers if node < len(network.ops) and node not in seen]

    found = reach(
        producers([tensor]),
        lambda node: producers(name for _, name in network.sources[node] if name not in ends),
    )
    seen |= found
    return sorted(found)
