"""Names of operators -> kinds, which a drawing tells apart by a muted hue; what is of none,
arithmetic, has none."""

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
WORDS = {
    "multiply": "convolution, matrix product",
    "activation": "activation",
    "normalize": "normalization",
    "reduce": "pooling, reduction",
    "layout": "shape and layout",
    "quantize": "quantize",
    "control": "control flow, functions",
}
COLORS = {  # strip and fill: on light, on dark
    "multiply": ("#7a63b8", "#f1eef8", "#a593dc", "#272336"),
    "activation": ("#2f8f8a", "#e8f4f3", "#5fbdb7", "#182d2c"),
    "normalize": ("#7f8a2e", "#f3f5e3", "#b4bf62", "#282b18"),
    "reduce": ("#8a6a4f", "#f5efe9", "#c4a184", "#2d261f"),
    "layout": ("#78818c", "#f3f5f7", "#8b939c", "#20262c"),
    "quantize": ("#b0569a", "#f8ebf5", "#dc8cc9", "#341f2f"),
    "control": ("#33475b", "#e4e9ef", "#9db4ca", "#222c36"),
}
_KIND = {op: kind for kind, ops in KINDS.items() for op in ops}


def kind_of(op: str) -> str:
    """The kind of an operator; empty for one of none.

    >>> kind_of("Conv"), kind_of("Add")
    ('multiply', '')
    """
    return _KIND.get(op, "")


def variables(*, dark: bool) -> str:
    """The colors as variables of CSS: `--multiply` of the strip, `--multiply-panel` of the box."""
    return " ".join(
        f"--{k}: {c[2 * dark]}; --{k}-panel: {c[2 * dark + 1]};" for k, c in COLORS.items()
    )


RULES = "\n".join(
    f".subcut .node.{k} > .frame {{ fill: var(--{k}-panel); }} .subcut .strip.{k} {{ fill:"
    f" var(--{k}); }}"
    for k in KINDS
)
