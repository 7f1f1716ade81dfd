"""`Network`: the nodes and tensors that a drawing shows, as plain data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from subgraph.iterables import flatten, group_values, invert, ungroup
from subgraph.types import StringMap, Strings

MIN_WIDE_READERS = 5  # a tensor with at least this many readers has lines only to near ones
MAX_NEAR_NODES = 10  # a near reader is at most this many nodes after the first reader


@dataclass(eq=False)
class Network:
    """The nodes and tensors of a drawing.

    A leaf is a node (its index), an input (`len(ops)` + position) or an output (after the inputs).

    Attributes:
        names: The name of each node, which may be empty.
        ops: The operator of each node.
        reads: The tensors that each node reads. A tensor without a producer is not drawn.
        makes: The tensors that each node produces.
        inputs: The inputs of the model.
        outputs: The outputs of the model.
        types: The type and shape of each tensor as text, `float32 1×64×56×56`.
        scopes: The scope of each node, outermost first; empty: read from the names.
        maker: The leaf that produces each tensor.
        folded: Constant node → its first reader, in whose box it is shown.
        sources: Per leaf, each producer and tensor that it reads, once; without weights and folded
            constants.
        readers: The leaves that read each tensor, ascending.
        wide: Tensor with many readers → the last leaf to which it is drawn as a line; it is named
            at those below.
    """

    names: Sequence[str]
    ops: Sequence[str]
    reads: Sequence[Sequence[str]]
    makes: Sequence[Sequence[str]]
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    types: StringMap = field(default_factory=dict)
    scopes: Sequence[Strings] = ()

    def __post_init__(self) -> None:
        inputs = invert((len(self.ops) + k, [name]) for k, name in enumerate(self.inputs))
        self.maker = inputs | invert(enumerate(self.makes))
        self.folded = self._fold_constants()
        self.sources = self._list_sources()
        reads = ungroup(enumerate(self.sources))
        self.readers = group_values((name, leaf) for leaf, (_, name) in reads)
        nodes = len(self.ops)
        self.wide = {
            name: rows[0] + MAX_NEAR_NODES
            for name, rows in self.readers.items()
            if len(rows) >= MIN_WIDE_READERS and min(rows[-1], nodes) > rows[0] + MAX_NEAR_NODES
        }

    @property
    def leaves(self) -> int:
        """Nodes, inputs and outputs."""
        return len(self.ops) + len(self.inputs) + len(self.outputs)

    def label(self, leaf: int) -> str:
        """Return the node's name, `#17` without one; the name of an input or output."""
        nodes = len(self.ops)
        inputs = len(self.inputs)
        if leaf < nodes:
            return self.names[leaf] or f"#{leaf}"
        leaf -= nodes
        if leaf < inputs:
            return self.inputs[leaf]
        return self.outputs[leaf - inputs]

    def select_part(self, nodes: Collection[int]) -> Network:
        """Return the network of these nodes, numbered in ascending order, with its boundary as
        inputs and outputs."""
        indices = sorted(nodes)
        inside = frozenset(nodes)
        produced = list(flatten(self.makes[i] for i in indices))
        available = {*self.maker, *self.inputs}.difference(produced)
        enters = [
            n for n in dict.fromkeys(flatten(self.reads[i] for i in indices)) if n in available
        ]
        read = (row for i, row in enumerate(self.reads) if i not in inside)
        others = {*flatten(read), *self.outputs}
        return Network(
            names=[self.label(i) for i in indices],
            ops=[self.ops[i] for i in indices],
            reads=[self.reads[i] for i in indices],
            makes=[self.makes[i] for i in indices],
            inputs=enters,
            outputs=[name for name in produced if name in others],
            types=self.types,
            scopes=[self.scopes[i] for i in indices] if self.scopes else (),
        )

    def find_near(self, node: int, hops: int) -> set[int]:
        """Return the nodes at most `hops` tensors away from a node, in either direction."""
        reached = {node}
        level = {node}
        for _ in range(hops):
            near = {m for m, _ in flatten(self.sources[i] for i in level)}
            names = flatten(self.makes[i] for i in level)
            near.update(flatten(self.readers.get(name, ()) for name in names))
            level = {i for i in near - reached if i < len(self.ops)}
            reached |= level
        return reached

    def list_made(self, leaf: int) -> Sequence[str]:
        """Return the output tensors of a leaf, a node or an input."""
        nodes = len(self.ops)
        if leaf < nodes:
            return self.makes[leaf]
        return self.inputs[leaf - nodes : leaf - nodes + 1]

    def _list_sources(self) -> list[list[tuple[int, str]]]:
        find_maker = self.maker.get
        folded = self.folded
        reads = [*self.reads, *([] for _ in self.inputs), *([name] for name in self.outputs)]
        return [
            [
                (m, name)
                for name in dict.fromkeys(names)
                if (m := find_maker(name)) is not None and m not in folded
            ]
            for names in reads
        ]

    def _fold_constants(self) -> dict[int, int]:
        constants = {i for i, op in enumerate(self.ops) if op == "Constant" and not self.reads[i]}
        constants -= {self.maker[name] for name in self.outputs if name in self.maker}
        into: dict[int, int] = {}
        for i, name in ungroup(enumerate(self.reads)):
            if (m := self.maker.get(name)) in constants:
                into.setdefault(m, i)
        return into

    def add_constants(self, nodes: Collection[int]) -> set[int]:
        """Return these nodes, and the constants in their boxes."""
        extended = set(nodes)
        return extended.union(
            constant for constant, reader in self.folded.items() if reader in extended
        )


KINDS: Mapping[str, Sequence[str]] = {
    "multiply": (
        "Attention Conv ConvInteger ConvTranspose Convolution Deconvolution DeformConv "
        "Einsum FullyConnected FusedConv FusedGemm FusedMatMul GRU Gemm GroupQueryAttention "
        "InnerProduct LSTM MatMul MatMulInteger MatMulNBits MultiHeadAttention NhwcConv "
        "QGemm QLinearConv QLinearMatMul RNN"
    ).split(),
    "activation": (
        "BiasGelu Celu Clip Elu Erf FastGelu Gelu HardSigmoid HardSwish Hardmax LeakyRelu "
        "LogSoftmax Mish PRelu QuickGelu ReLU Relu Relu6 Selu Shrink Sigmoid Softmax "
        "Softplus Softsign Swish Tanh ThresholdedRelu"
    ).split(),
    "normalize": (
        "BN BatchNorm BatchNormalization GroupNorm GroupNormalization InstanceNormalization "
        "LRN LayerNormalization LpNormalization MeanVarianceNormalization RMSNormalization "
        "RotaryEmbedding SimplifiedLayerNormalization SkipLayerNormalization "
        "SkipSimplifiedLayerNormalization"
    ).split(),
    "reduce": (
        "ArgMax ArgMin AveragePool CumSum GlobalAveragePool GlobalLpPool GlobalMaxPool "
        "LpPool MaxPool MaxRoiPool NonMaxSuppression Pooling ReduceL1 ReduceL2 ReduceLogSum "
        "ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
        "ReduceSumSquare RoiAlign TopK"
    ).split(),
    "layout": (
        "Cast CastLike Compress Concat ConstantOfShape DepthToSpace Expand Flatten Gather "
        "GatherElements GatherND Identity NonZero OneHot Pad Range Reshape Resize "
        "ReverseSequence ScatterElements ScatterND Shape ShuffleChannel Size Slice "
        "SpaceToDepth Split Squeeze Tile Transpose Unique Unsqueeze Upsample Where"
    ).split(),
    "quantize": "DequantizeLinear DynamicQuantizeLinear QuantizeLinear".split(),
    "control": "If Loop Scan SequenceMap".split(),
}
OTHER = "other"  # the kind of arithmetic, and of operators that are not known
COLORS = {  # of a head, on light and on dark; its text is white
    "multiply": "#5a4699",
    "activation": "#23736f",
    "normalize": "#5f6a1e",
    "reduce": "#7a5638",
    "layout": "#6d6459",
    "quantize": "#96427f",
    "control": "#33475b",
    OTHER: "#4f5b68",
}
_KIND = invert(KINDS.items())


def find_kind(op: str) -> str:
    """Return the kind of an operator.

    >>> find_kind("Conv"), find_kind("Add")
    ('multiply', 'other')
    """
    return _KIND.get(op, OTHER)


VARIABLES = " ".join(f"--{kind}: {color};" for kind, color in COLORS.items())
RULES = "\n".join(f".subcut .head.{kind} {{ fill: var(--{kind}); }}" for kind in COLORS)
