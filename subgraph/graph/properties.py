"""Operator → its properties: the one table of what operators do with values, shapes and types.

An operator is added in one row. An operator of the same name in another domain has no properties:
callers check the domain.
"""

from __future__ import annotations

TABLE = """
Abs                    exact keeps-shape keeps-type overflows
Add                    broadcasts commutes one-type overflows
And                    bool broadcasts choice commutes exact
ArgMax                 choice exact int64 ranks
ArgMin                 choice exact int64 ranks
AveragePool            approximated float keeps-type pool sums window
BatchNormalization     float keeps-shape keeps-type weighted
Bernoulli              random
BitShift               exact
BitwiseAnd             exact
BitwiseNot             exact
BitwiseOr              exact
BitwiseXor             exact
Cast                   copies exact keeps-shape typed
CastLike               exact typed
Ceil                   exact step
CenterCropPad          exact
Clip                   exact folded folded-in-tflite keeps-shape keeps-type picks
Compress               choice exact value-sized
Concat                 exact keeps-type same-inputs
ConcatFromSequence     exact
Constant               tensor typed
ConstantOfShape        exact tensor typed
Conv                   approximated float one-type sums weighted window
ConvInteger            window
ConvTranspose          approximated float one-type sums weighted window
CumSum                 keeps-type
DeformConv             window
DepthToSpace           exact keeps-type
DequantizeLinear       copies keeps-shape typed weighted
Div                    broadcasts one-type overflows
Dropout                copies exact keeps-shape keeps-type
Einsum                 mixes-axes sums weighted
Elu                    float keeps-shape keeps-type
Equal                  bool broadcasts choice commutes exact overflows same-inputs
Erf                    approximated keeps-shape keeps-type
Exp                    approximated float keeps-shape keeps-type
Expand                 exact keeps-type mixes-axes picks
EyeLike                exact
Flatten                exact keeps-type mixes-axes rearranges
Floor                  exact step
GRU                    approximated float weighted
Gather                 exact keeps-type mixes-axes picks
GatherElements         exact keeps-type
GatherND               exact keeps-type
Gelu                   approximated keeps-shape keeps-type
Gemm                   mixes-axes one-type sums weighted
GlobalAveragePool      approximated float keeps-type pool sums
GlobalLpPool           keeps-type pool
GlobalMaxPool          exact keeps-type pool
Greater                bool broadcasts choice exact overflows same-inputs
GreaterOrEqual         bool choice exact overflows same-inputs
GroupNormalization     weighted
HardSigmoid            folded keeps-shape keeps-type squashes
HardSwish              folded keeps-shape keeps-type
Hardmax                choice exact
Identity               copies exact keeps-shape keeps-type rearranges
If                     bodies
InstanceNormalization  float keeps-shape keeps-type weighted
IsInf                  bool exact
IsNaN                  bool exact
LRN                    keeps-shape keeps-type
LSTM                   approximated float weighted
LayerNormalization     weighted
LeakyRelu              folded keeps-shape keeps-type
Less                   bool broadcasts choice exact overflows same-inputs
LessOrEqual            bool choice exact overflows same-inputs
Log                    float keeps-shape keeps-type
LogSoftmax             float keeps-shape keeps-type squashes
Loop                   bodies
LpPool                 keeps-type pool window
MatMul                 mixes-axes one-type overflows sums weighted
Max                    broadcasts commutes exact one-type overflows
MaxPool                exact keeps-type pool window
MaxUnpool              exact
Min                    broadcasts commutes exact one-type overflows
Mod                    step
Mul                    broadcasts commutes one-type overflows weighted
Multinomial            random
Neg                    exact keeps-shape keeps-type overflows
NonMaxSuppression      choice exact value-sized
NonZero                choice exact int64 value-sized
Not                    bool choice exact
OneHot                 exact
Optional               exact
OptionalGetElement     exact
OptionalHasElement     exact
Or                     bool broadcasts choice commutes exact
PRelu                  broadcasts one-type weighted
Pad                    exact keeps-type picks
Pow                    broadcasts
QLinearConv            window
QuantizeLinear         exact keeps-shape typed weighted
RMSNormalization       weighted
RNN                    float weighted
RandomNormal           random
RandomNormalLike       random
RandomUniform          random
RandomUniformLike      random
Range                  exact
ReduceMax              exact keeps-type nests overflows
ReduceMean             keeps-type nests overflows sums
ReduceMin              exact keeps-type nests overflows
ReduceProd             keeps-type nests overflows
ReduceSum              keeps-type nests overflows sums
Relu                   exact folded folded-in-tflite keeps-shape keeps-type overflows
Reshape                exact keeps-type mixes-axes rearranges
Resize                 keeps-type
ReverseSequence        exact
Round                  exact step
Scan                   bodies
Scatter                exact
ScatterElements        exact
ScatterND              exact
Selu                   keeps-shape keeps-type
SequenceAt             exact
SequenceConstruct      exact
SequenceEmpty          exact
SequenceErase          exact
SequenceInsert         exact
SequenceLength         exact
SequenceMap            bodies
Shape                  dimensions exact int64
Sigmoid                approximated float keeps-shape keeps-type squashes
Sign                   exact folded-in-tflite overflows step
Size                   dimensions exact int64
Slice                  exact keeps-type picks
Softmax                approximated float keeps-shape keeps-type squashes
Softplus               float keeps-shape keeps-type
SpaceToDepth           exact keeps-type
Split                  exact keeps-type picks
SplitToSequence        exact
Sqrt                   float keeps-shape keeps-type
Squeeze                exact keeps-type rearranges
StringSplit            value-sized
Sub                    broadcasts one-type overflows
Sum                    commutes one-type
Tanh                   approximated float folded-in-tflite keeps-shape keeps-type squashes
ThresholdedRelu        exact
Tile                   exact keeps-type picks
TopK                   exact ranks
Transpose              copies exact keeps-type rearranges
Trilu                  exact
Unique                 exact value-sized
Unsqueeze              exact keeps-type rearranges
Where                  exact
Xor                    bool choice commutes exact
ZipMap                 exact
"""
PROPERTIES = {
    operator: frozenset(words) for operator, *words in map(str.split, TABLE.strip().splitlines())
}


def _operators(word: str) -> frozenset[str]:
    return frozenset(operator for operator, words in PROPERTIES.items() if word in words)


# Each set has the operators of which the lines above it are true.
# Its kernels deviate by more than rounding: of 16,110 tensors of healthy nodes on five
# runtimes, those beyond 1e-5 were of these operators.
APPROXIMATED = _operators("approximated")
# It holds bodies, whose nodes compute.
BODY_OPS = _operators("bodies")
# Its first output is bool, for inputs of any type.
MAKES_BOOL = _operators("bool")
# Its operands are spread over each other, and none of them is a weight matrix.
BROADCASTS = _operators("broadcasts")
# Its first output is a choice: an error of one bit at an input may select another result.
CHOOSES = _operators("choice")
# Its operands may be exchanged.
COMMUTES = _operators("commutes")
# Its output is its input's tensor once more, for a recording: no number changes.
COPIES = _operators("copies")
# It reads the dimensions of its input, and no values.
SHAPE_OPS = _operators("dimensions")
# It does not round: it moves, selects or compares values, or changes signs.
EXACT = _operators("exact")
# No opset lets it compute with integers.
FLOAT_ONLY = _operators("float")
# Converters fold it into the operator before it, whose output then has its name.
FOLDED = _operators("folded")
# An operator of TensorFlow Lite may hold it as its activation.
FOLDED_IN_TFLITE = _operators("folded-in-tflite")
# Its first output is int64, for inputs of any type.
MAKES_INT64 = _operators("int64")
# Its first output has the shape of its first input.
KEEPS_SHAPE = _operators("keeps-shape")
# Its first output has the element type of its first input.
KEEPS_TYPE = _operators("keeps-type")
# The order of the axes of its output says nothing about the order of its input's.
MIXES_AXES = _operators("mixes-axes")
# Over several axes it is the same as over one after the other.
NESTS = _operators("nests")
# All its inputs and outputs have one element type.
ONE_TYPE = _operators("one-type")
# With integers it may be computed in a wider type, of which the last bits are kept.
OVERFLOWS = _operators("overflows")
# It moves, repeats, omits or limits values, or adds a constant, and computes no other ones.
PICKS = _operators("picks")
# Its first output has the first two dimensions of its input.
POOLS = _operators("pool")
# It draws random numbers.
RANDOM_OPS = _operators("random")
# It returns the indices of the largest or smallest values along an axis.
RANKS = _operators("ranks")
# It passes all values on, in another shape or order.
REARRANGES = _operators("rearranges")
# Its inputs have one element type; its outputs may have another one.
SAME_INPUTS = _operators("same-inputs")
# Its output saturates: large values hide the errors of its input.
SQUASHES = _operators("squashes")
# Its first output has steps: an error of one bit at a boundary becomes a step.
ROUNDS_TO_STEPS = _operators("step")
# It sums many products or values, in an order that runtimes choose.
SUMS = _operators("sums")
# It holds a tensor as an attribute.
HOLDS_TENSOR = _operators("tensor")
# Its output has a type of its own, which its first input does not decide.
TYPED = _operators("typed")
# The size of its output depends on values.
VALUE_SIZED = _operators("value-sized")
# It multiplies by weights, in which an infinite value is a mistake. Add, Where, Clip, Min and Max
# take infinite constants on purpose.
WEIGHTED = _operators("weighted")
# It moves a window along the axes of its input.
WINDOWS = _operators("window")
