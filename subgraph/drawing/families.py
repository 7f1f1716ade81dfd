"""Names of operators -> kinds, each of which has a color for the heads of its boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
_KIND = {op: kind for kind, ops in KINDS.items() for op in ops}


def kind_of(op: str) -> str:
    """Return the kind of an operator.

    >>> kind_of("Conv"), kind_of("Add")
    ('multiply', 'other')
    """
    return _KIND.get(op, OTHER)


VARIABLES = " ".join(f"--{kind}: {color};" for kind, color in COLORS.items())
RULES = "\n".join(f".subcut .head.{kind} {{ fill: var(--{kind}); }}" for kind in COLORS)
