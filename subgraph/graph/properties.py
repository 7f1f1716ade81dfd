"""Operator → its properties: the table of the effects of operators on values, shapes and types.

An operator is added in one row. An operator of the same name in another domain has no properties:
callers check the domain.
"""

from __future__ import annotations

TABLE = """
Abs                      exact keeps-shape keeps-type overflows
Add                      broadcasts commutes one-type overflows requantizes
AffineGrid               setting:1
And                      bool broadcasts choice commutes exact
ArgMax                   choice exact int64 ranks
ArgMin                   choice exact int64 ranks
AveragePool              approximated float keeps-type pool requantizes sums window
BatchNormalization       features:1 float keeps-shape keeps-type weighted
Bernoulli                random
BitShift                 exact
BitwiseAnd               exact
BitwiseNot               exact
BitwiseOr                exact
BitwiseXor               exact
Cast                     copies exact keeps-shape typed
CastLike                 exact typed
Ceil                     exact step
CenterCropPad            exact setting:1
Clip                     exact folded folded-in-tflite keeps-shape keeps-type parameter:1,2 picks
Col2Im                   setting:1,2
Compress                 choice exact value-sized
Concat                   axis-wise exact keeps-type requantizes same-inputs
ConcatFromSequence       exact
Constant                 tensor typed
ConstantOfShape          exact setting:0 tensor typed
Conv                     approximated channel:0 features:1 float one-type sums weighted window
ConvInteger              window
ConvTranspose            approximated channel:1 features:1 float one-type sums weighted window
CumSum                   keeps-type setting:1
DFT                      setting:1,2
DeformConv               window
DepthToSpace             exact keeps-type
DequantizeLinear         copies keeps-shape typed weight:0,1,2 weighted
Div                      broadcasts one-type overflows
Dropout                  copies exact keeps-shape keeps-type parameter:1,2 setting:1,2
DynamicQuantizeLSTM      dynamic
DynamicQuantizeLinear    dynamic step:0,2
DynamicQuantizeMatMul    dynamic
Einsum                   mixes-axes sums weighted
Elu                      float keeps-shape keeps-type
Equal                    bool broadcasts choice commutes exact overflows same-inputs
Erf                      approximated coarse keeps-shape keeps-type
Exp                      approximated coarse float keeps-shape keeps-type
Expand                   exact keeps-type mixes-axes picks setting:1
EyeLike                  exact
Flatten                  exact keeps-type mixes-axes rearranges
Floor                    exact step
GRU                      approximated coarse float weighted
Gather                   axis-wise exact keeps-type mixes-axes picks
GatherElements           exact keeps-type
GatherND                 exact keeps-type
Gelu                     approximated coarse keeps-shape keeps-type
Gemm                     channel:-1 features:-1 mixes-axes one-type sums weighted
GlobalAveragePool        approximated float keeps-type pool requantizes sums
GlobalLpPool             keeps-type pool
GlobalMaxPool            exact keeps-type pool requantizes
Greater                  bool broadcasts choice exact overflows same-inputs
GreaterOrEqual           bool choice exact overflows same-inputs
GroupNormalization       features:1 weighted
HardSigmoid              folded keeps-shape keeps-type squashes
HardSwish                folded keeps-shape keeps-type
Hardmax                  choice exact
Identity                 copies exact keeps-shape keeps-type rearranges
If                       bodies
InstanceNormalization    features:1 float keeps-shape keeps-type weighted
IsInf                    bool exact
IsNaN                    bool exact
LRN                      keeps-shape keeps-type
LSTM                     approximated coarse float weighted
LayerNormalization       coarse features:-1 weighted
LeakyRelu                folded keeps-shape keeps-type
Less                     bool broadcasts choice exact overflows same-inputs
LessOrEqual              bool choice exact overflows same-inputs
Log                      float keeps-shape keeps-type
LogSoftmax               coarse float keeps-shape keeps-type squashes
Loop                     bodies
LpPool                   keeps-type pool window
MatMul                   channel:-1 features:-1 mixes-axes one-type overflows sums weighted
MatMulNBits              dynamic
Max                      broadcasts commutes exact one-type overflows
MaxPool                  choice:1 exact keeps-type pool requantizes window
MaxUnpool                exact setting:2
MelWeightMatrix          parameter:0,1,2,3,4
Min                      broadcasts commutes exact one-type overflows
Mod                      step
Mul                      broadcasts commutes features:-1 one-type overflows weighted
Multinomial              random
Neg                      exact keeps-shape keeps-type overflows
NonMaxSuppression        choice exact parameter:2,3,4 setting:2,3,4 value-sized
NonZero                  choice exact int64 value-sized
Not                      bool choice exact
OneHot                   exact parameter:0,1 setting:1
Optional                 exact
OptionalGetElement       exact
OptionalHasElement       exact
Or                       bool broadcasts choice commutes exact
PRelu                    broadcasts one-type weighted
Pad                      axis-wise exact keeps-type parameter:1,2,3 picks setting:1,3
Pow                      broadcasts parameter:1
QGemm                    scale:7,8 step weight:3,4,5
QLinearAdd               scale:6,7 step
QLinearAveragePool       scale:3,4 step
QLinearConcat            scale:0,1 step
QLinearConv              scale:6,7 step weight:3,4,5 window
QLinearGlobalAveragePool scale:3,4 step
QLinearLeakyRelu         scale:3,4 step
QLinearMatMul            scale:6,7 step weight:3,4,5
QLinearMul               scale:6,7 step
QLinearSigmoid           scale:3,4 step
QLinearSoftmax           scale:3,4 step
QuantizeLinear           exact keeps-shape scale:1,2 step typed weighted
RMSNormalization         features:-1 weighted
RNN                      coarse float weighted
RandomNormal             random
RandomNormalLike         random
RandomUniform            random
RandomUniformLike        random
Range                    exact parameter:0,1,2
ReduceL1                 setting:1
ReduceL2                 setting:1
ReduceLogSum             setting:1
ReduceLogSumExp          setting:1
ReduceMax                exact keeps-type nests overflows setting:1
ReduceMean               keeps-type nests overflows requantizes setting:1 sums
ReduceMin                exact keeps-type nests overflows setting:1
ReduceProd               keeps-type nests overflows setting:1
ReduceSum                keeps-type nests overflows setting:1 sums
ReduceSumSquare          setting:1
Relu                     exact folded folded-in-tflite keeps-shape keeps-type overflows
Reshape                  exact keeps-type mixes-axes rearranges setting:1
Resize                   keeps-type parameter:1,2,3 requantizes setting:1,2,3
ReverseSequence          exact
Round                    exact step
STFT                     setting:1,3
Scan                     bodies
Scatter                  exact
ScatterElements          exact
ScatterND                exact
Selu                     keeps-shape keeps-type
SequenceAt               exact
SequenceConstruct        exact
SequenceEmpty            exact
SequenceErase            exact
SequenceInsert           exact
SequenceLength           exact
SequenceMap              bodies
Shape                    dimensions exact int64
Sigmoid                  approximated coarse float keeps-shape keeps-type squashes
Sign                     exact folded-in-tflite overflows step
Size                     dimensions exact int64
Slice                    exact keeps-type picks setting:1,2,3,4
Softmax                  approximated coarse float keeps-shape keeps-type squashes
Softplus                 float keeps-shape keeps-type
SpaceToDepth             exact keeps-type
Split                    axis-wise exact keeps-type picks setting:1
SplitToSequence          exact
Sqrt                     float keeps-shape keeps-type
Squeeze                  exact keeps-type rearranges setting:1
StringSplit              value-sized
Sub                      broadcasts one-type overflows requantizes
Sum                      axis-wise commutes one-type requantizes
Tanh                     approximated coarse float folded-in-tflite keeps-shape keeps-type squashes
ThresholdedRelu          exact
Tile                     exact keeps-type picks setting:1
TopK                     choice:1 exact ranks setting:1
Transpose                copies exact keeps-type rearranges
Trilu                    exact setting:1
Unique                   choice:0,1,2,3 exact value-sized
Unsqueeze                exact keeps-type rearranges setting:1
Upsample                 parameter:1 requantizes setting:1
Where                    axis-wise exact
Xor                      bool choice commutes exact
ZipMap                   exact
"""


def _parse(word: str) -> tuple[str, tuple[int, ...]]:
    name, _, positions = word.partition(":")
    return name, tuple(map(int, filter(None, positions.split(","))))


PROPERTIES = {
    operator: dict(map(_parse, words))
    for operator, *words in map(str.split, TABLE.strip().splitlines())
}


def _list_operators(word: str) -> frozenset[str]:
    return frozenset(_list_positions(word))


def _list_positions(word: str) -> dict[str, tuple[int, ...]]:
    return {name: its[word] or (0,) for name, its in PROPERTIES.items() if word in its}


# Each set has the operators of which the lines above it are true.
# Its kernels deviate by more than rounding: of 16,110 tensors of healthy nodes on five
# runtimes, those beyond 1e-5 were of these operators.
APPROXIMATED = _list_operators("approximated")
# An index of an axis of its output has values of its inputs at that index, unless the axis has
# another size, or is missing because an attribute or an input names it.
AXIS_WISE = _list_operators("axis-wise")
# It holds bodies, whose nodes compute.
BODY_OPS = _list_operators("bodies")
# Its first output is bool, for inputs of any type.
MAKES_BOOL = _list_operators("bool")
# Its operands are spread over each other, and none of them is a weight matrix.
BROADCASTS = _list_operators("broadcasts")
# Its integer kernels are tables, or compute more coarsely than a step: of 2,961 groups between
# quantizers on healthy runtimes, all codes of the other operators were the nearest ones.
COARSE = _list_operators("coarse")
# Its operands may be exchanged.
COMMUTES = _list_operators("commutes")
# Its output has the values of its input, for a recording: no number changes.
COPIES = _list_operators("copies")
# It reads the dimensions of its input, and no values.
SHAPE_OPS = _list_operators("dimensions")
# It computes the scale of its quantized values at run time.
FINDS_SCALES = _list_operators("dynamic")
# It does not round: it moves, selects or compares values, or changes signs.
EXACT = _list_operators("exact")
# No opset lets it compute with integers.
FLOAT_ONLY = _list_operators("float")
# Converters fold it into the operator before it, whose output then has its name.
FOLDED = _list_operators("folded")
# An operator of TensorFlow Lite may hold it as its activation.
FOLDED_IN_TFLITE = _list_operators("folded-in-tflite")
# Its first output is int64, for inputs of any type.
MAKES_INT64 = _list_operators("int64")
# Its first output has the shape of its first input.
KEEPS_SHAPE = _list_operators("keeps-shape")
# Its first output has the element type of its first input.
KEEPS_TYPE = _list_operators("keeps-type")
# The order of the axes of its output does not depend on the order of its input's axes.
MIXES_AXES = _list_operators("mixes-axes")
# Over several axes it is the same as over one after the other.
NESTS = _list_operators("nests")
# All its inputs and outputs have one element type.
ONE_TYPE = _list_operators("one-type")
# With integers it may be computed in a wider type, of which the last bits are kept.
OVERFLOWS = _list_operators("overflows")
# It moves, repeats, omits or limits values, or adds a constant, and computes no other ones.
PICKS = _list_operators("picks")
# Its first output has the first two dimensions of its input.
POOLS = _list_operators("pool")
# It draws random numbers.
RANDOM_OPS = _list_operators("random")
# It returns the indices of the largest or smallest values along an axis.
RANKS = _list_operators("ranks")
# It passes all values on, in another shape or order.
REARRANGES = _list_operators("rearranges")
# Toolkits give all its quantized inputs, or its output, another scale before it computes.
REQUANTIZES = _list_operators("requantizes")
# Its inputs have one element type; its outputs may have another one.
SAME_INPUTS = _list_operators("same-inputs")
# Its output saturates: large values hide the errors of its input.
SQUASHES = _list_operators("squashes")
# It sums many products or values, in an order that runtimes choose.
SUMS = _list_operators("sums")
# It holds a tensor as an attribute.
HOLDS_TENSOR = _list_operators("tensor")
# The type of its output does not depend on its first input.
TYPED = _list_operators("typed")
# The size of its output depends on values.
VALUE_SIZED = _list_operators("value-sized")
# It multiplies by weights, in which an infinite value is a mistake. Add, Where, Clip, Min and Max
# take infinite constants on purpose.
WEIGHTED = _list_operators("weighted")
# It moves a window along the axes of its input.
WINDOWS = _list_operators("window")

# Each table has, by operator, the positions of which the lines above it are true.
# The output is a choice: an error of one bit at an input may select another result.
CHOICES = _list_positions("choice")
# The output is rounded to steps: an error of one bit at a boundary becomes a step.
STEPS = _list_positions("step")
# The input is a parameter (axes, limits, exponents) and not data.
PARAMETERS = _list_positions("parameter")
# The input sets how the operator works: a shape, axes, a number of elements, scales.
SETTINGS = _list_positions("setting")
# The inputs are the scale and the zero point of the quantized output.
OUTPUT_SCALES = _list_positions("scale")
# The inputs are the codes of quantized weights, their scale and zero point.
QUANTIZED_WEIGHTS = _list_positions("weight")
# The number is the axis of the channels in the weight.
CHANNEL_AXES = _list_positions("channel")
# The number is the axis of its output along which its constants hold a factor per index.
FEATURE_AXES = _list_positions("features")
