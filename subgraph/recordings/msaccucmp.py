"""Two arrays -> the ten numbers of Ascend's msaccucmp; one comparison -> a row of its CSV; all rows -> its advice.

Source: Ascend/msprobe, `python/msprobe/msaccucmp` (algorithm_manager, compare_result, overflow_detection, advisor) and
msit's `cmp_process.py`, read in 2026.

Insight: msaccucmp casts both sides to float32 and computes in it, and lets NaN and infinities through. `metrics/` has
the same formulas in float64 over what is finite; so they say the same of mild values, and are not asked here: a mask of
-3e38, whose square leaves float32, has cosine 0 there and its right one in `metrics/`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from subgraph.comparison.criteria.msaccucmp import LIMITS, ZERO
from subgraph.text import clean

if TYPE_CHECKING:
    from subgraph.types import Array

ALGORITHMS = (
    "CosineSimilarity",
    "MaxAbsoluteError",
    "AccumulatedRelativeError",
    "RelativeEuclideanDistance",
    "KullbackLeiblerDivergence",
    "StandardDeviation",
    "MeanAbsoluteError",
    "RootMeanSquareError",
    "MaxRelativeError",
    "MeanRelativeError",
)
COSINE, DISTANCE = ALGORITHMS[0], ALGORITHMS[3]
REASON = "CompareFailReason"
NAN = "NaN"
# As with -overflow_detection. OpSequence, second with -r or -s alone, is left out; and where the golden side is .npy,
# msaccucmp leaves out the second Address, which is NaN in any case.
HEAD = (
    *"Index OpType NPUDump DataType Address GroundTruth DataType Address TensorIndex Shape OverFlow".split(),
    *ALGORITHMS,
    REASON,
    *"IsNpuOps IsOutputNode IsPrecisionError".split(),
)

METRICS = {  # of `criteria/msaccucmp.py`, which has the limits -> their columns
    "cosine": COSINE,
    "rel_l2": DISTANCE,
    "kl": "KullbackLeiblerDivergence",
    "rmse": "RootMeanSquareError",
    "mean_rel": "MeanRelativeError",
}
EXEMPT = frozenset("Data TransData PartitionCall".split())  # op types that are never a precision error
SMALLEST = 2.0**-23  # float32's eps: nothing is less likely, before the sum is made 1
SHOWN = 1e-3  # StandardDeviation prints a smaller mean or deviation as 0
FLOAT16_MAX = 65504
SIMILAR = 0.99  # the advisor's least cosine
NO_NUMBERS = "OUSTMm"  # numpy's kinds of what has no float32
FORMULA = ("=", "+", "-", "@")  # what a spreadsheet would take for one; `clean` leaves no tab and no line end


def measure(mine: Array, golden: Array) -> dict[str, float | str]:
    """All ten of `ALGORITHMS`, and under `REASON` why one is not defined, or "". x = mine, y = golden, flat, float32:

    0 cosine Σ (x/|x|)(y/|y|), at most 1; 1 max|x-y|; 2, 8, 9 sum, largest, mean of e = |x/y - 1| where |y| > eps of
    float64, else 0; 3 sqrt(Σ(x-y)² / Σy²); 4 Σ p ln(p/q), p of x, q of y: (v - min) / (max - min), at least float32's
    eps, over the sum; 5 a text, "(mean;deviation),(mean;deviation)" of x and of y; 6 mean|x-y|; 7 sqrt(mean (x-y)²).

    Corner cases, msaccucmp's: both lengths within eps: 0 is 1. One length 0: 0 is NaN. One element: 0 is 1, "This
    tensor is scalar." Length of y within eps: 3 is 0. 4 within eps: 0. Two arrays of booleans: 0, and 3 only where y is
    all False. Of complex numbers, the real parts. Ours: no elements, other sizes, no numbers: ten NaN, where msaccucmp
    has some or raises. So are the words of the other reasons.

    Complexity: linear; six float32 copies.

    >>> import numpy as np
    >>> found = measure(np.array([3.0, 4.0]), np.array([3.0, 5.0]))
    >>> found["MaxAbsoluteError"], found["MeanAbsoluteError"], found["StandardDeviation"]
    (1.0, 0.5, '(3.500;0.500),(4.000;1.000)')
    """
    import numpy as np

    if why := _why_not(mine, golden):
        return {**dict.fromkeys(ALGORITHMS, math.nan), REASON: why}
    with np.errstate(all="ignore"):
        if mine.dtype == np.bool_ and golden.dtype == np.bool_:
            return _booleans(mine, golden)
        x, y = _float32(mine), _float32(golden)
        error, square = np.abs(x - y), (x - y) ** 2
        relative = np.where(np.abs(y) > ZERO, np.abs(x / y - 1), np.float32(0))
        cosine, why = _cosine(x, y, mine.shape)
        values = (
            cosine,
            float(error.max()),
            float(relative.sum()),
            _distance(square, y),
            _divergence(x, y),
            f"{_spread(x)},{_spread(y)}",
            float(error.mean()),
            float(np.sqrt(square.mean())),
            float(relative.max()),
            float(relative.mean()),
        )
    return {**dict(zip(ALGORITHMS, values, strict=True)), REASON: why}


def _why_not(mine: Array, golden: Array) -> str:
    if mine.dtype.kind in NO_NUMBERS or golden.dtype.kind in NO_NUMBERS:
        return f"no numbers: {mine.dtype} and {golden.dtype}"
    if mine.size != golden.size:
        return f"{mine.size} elements in NPUDump, {golden.size} in GroundTruth"
    return "" if mine.size else "no elements"


def _booleans(mine: Array, golden: Array) -> dict[str, float | str]:
    """msaccucmp subtracts the arrays for the distance, which numpy refuses; so it is NaN unless y is all False."""
    import numpy as np

    x, y = (a.reshape(-1).astype(np.float64) for a in (mine, golden))
    cosine, why = _cosine(x, y, mine.shape)
    values: dict[str, float | str] = {**dict.fromkeys(ALGORITHMS, math.nan), COSINE: cosine}
    if not golden.any():
        values[DISTANCE] = 0.0
    return {**values, REASON: ",".join(filter(None, (why, "booleans have no differences")))}


def _float32(array: Array) -> Array:
    import numpy as np

    real = array.real if array.dtype.kind == "c" else array
    return np.asarray(real.astype(np.float32).reshape(-1))


def _cosine(x: Array, y: Array, shape: tuple[int, ...]) -> tuple[float, str]:
    """(cosine, why it is not what it seems)."""
    import numpy as np

    if sum(shape) == len(shape):  # as msaccucmp asks it
        return 1.0, "This tensor is scalar."
    first, second = np.sqrt((x * x).sum()), np.sqrt((y * y).sum())
    if first <= ZERO and second < ZERO:
        return 1.0, ""
    for length, side in ((first, "NPUDump"), (second, "GroundTruth")):
        if length**0.5 <= ZERO:  # the root's root: as msaccucmp asks it; true for 0 alone
            return math.nan, f"no cosine: {side} is all zero"
    return min(float(((x / first) * (y / second)).sum()), 1.0), ""


def _distance(square: Array, y: Array) -> float:
    length = (y**2).sum()
    return 0.0 if length**0.5 <= ZERO else float((square.sum() / length) ** 0.5)


def _divergence(x: Array, y: Array) -> float:
    import numpy as np

    p, q = _distribution(x), _distribution(y)
    found = float((p * np.log(p / q)).sum())
    return 0.0 if abs(found) < ZERO else found


def _distribution(values: Array) -> Array:
    import numpy as np

    low = values.min()
    reach = values.max() - low
    scaled = np.maximum((values - low) / reach if reach != 0 else values, np.float32(SMALLEST))
    return np.asarray(scaled / scaled.sum())


def _spread(values: Array) -> str:
    import numpy as np

    both = float(np.mean(values, dtype=np.float64)), float(np.std(values, dtype=np.float64))
    mean, deviation = (0.0 if abs(v) < SHOWN else v for v in both)
    return f"({mean:.3f};{deviation:.3f})"


def beyond(values: Mapping[str, float | str]) -> bool:
    """IsPrecisionError: cosine < 0.99, distance > 0.05, KL > 0.005, RMSE > 1 or mean relative error > 1, as printed.

    NaN as in `_process_is_npu_and_is_precision_error_ops`: where the cosine is NaN or missing, no error, whatever the
    others say; NaN elsewhere is not beyond its limit. The op types that are never one are `EXEMPT`; `cells` knows them.

    Raises:
        ValueError: one of the five is a text and no number.

    >>> beyond({"CosineSimilarity": 0.98}), beyond({"CosineSimilarity": 1.0}), beyond({"RootMeanSquareError": 9.0})
    (True, False, False)
    """
    found = [(limit, _printed(values.get(METRICS[limit.metric], math.nan))) for limit in LIMITS]
    if math.isnan(_printed(values.get(COSINE, math.nan))):
        return False
    return any(value == value and not limit.holds(value) for limit, value in found)


def _printed(value: float | str) -> float:
    """As it reads from the CSV: msprobe and the advisor know no more digits."""
    return float(_number(float(value)))


def _number(value: float) -> str:
    """msaccucmp's format_value; but it writes `nan` where arithmetic gave it, and 1.0 for the cosine of two zeros."""
    return NAN if math.isnan(value) else f"{value:.6f}"


@dataclass(frozen=True)
class AccuracyRow:
    """One tensor of one op in the dump, and what was found against the golden one.

    Attributes:
        mine: the op's name in the dump; with commas, several.
        golden: the original op's name; "*" where there is none, as the NPU's own Cast and TransData.
        tensor_index: `OP:output:0`.
        overflow: None where it was not looked for, or the tensor is no float16.
        values: as `measure` gives them; empty where not comparable.
        reason: instead of the one in `values`, where there is one.
        is_input: the op is an input of the model (`Data`), not: the tensor goes into the op.
        is_output: the golden op makes an output of the model.
    """

    index: int
    op_type: str
    mine: str
    mine_dtype: str
    golden: str
    golden_dtype: str
    tensor_index: str
    shape: tuple[int, ...] | None = None
    overflow: bool | None = None
    values: Mapping[str, float | str] = field(default_factory=dict)
    reason: str = ""
    is_input: bool = False
    is_output: bool = False

    @property
    def cosine(self) -> float:
        """With six decimals, as the advisor reads it; NaN where there is none."""
        return _printed(self.values.get(COSINE, math.nan))


def cells(line: AccuracyRow) -> list[str]:
    """One row below `HEAD`: six decimals (`format_value`), NaN for what there is not, the addresses among it.

    No text starts a formula: such a one gets a `'` before it (msaccucmp refuses to write it). Numbers may start with a
    minus; write them as they are, with `csv.writer`.

    >>> cells(AccuracyRow(3, "Relu", "a", "float16", "*", "NaN", "a:output:0", (1, 8)))[:12]
    ['3', 'Relu', 'a', 'float16', 'NaN', '*', 'NaN', 'NaN', 'a:output:0', '[1,8]', 'NaN', 'NaN']
    """
    wrong = line.op_type not in EXEMPT and beyond(line.values)
    return [
        str(line.index),
        *map(_text, (line.op_type, line.mine, line.mine_dtype, NAN, line.golden, line.golden_dtype, NAN)),
        _text(line.tensor_index),
        NAN if line.shape is None else f"[{','.join(map(str, line.shape))}]",
        NAN if line.overflow is None else _yes(line.overflow),
        *(_value(line.values.get(name, math.nan)) for name in ALGORITHMS),
        _safe(line.reason or str(line.values.get(REASON, ""))),
        *map(_yes, (line.golden == "*", line.is_output, wrong)),
    ]


def _value(value: float | str) -> str:
    return _text(value) if isinstance(value, str) else _number(value)


def _text(text: str) -> str:
    return _safe(text) or NAN


def _safe(text: str) -> str:
    shown = clean(text)
    return f"'{shown}" if shown.startswith(FORMULA) else shown


def _yes(so: bool) -> str:
    return "YES" if so else "NO"


def overflows(array: Array, dtype: str) -> bool:
    """OverFlow: max|x| ≥ 65504, the largest float16, in a tensor that was dumped as float16; False for others.

    msaccucmp names a lower bound too, 5.96e-8, and never asks it. As there, a NaN anywhere hides the overflow.

    >>> import numpy as np
    >>> overflows(np.array([1.0, -np.inf]), "float16"), overflows(np.array([1e30]), "float32")
    (True, False)
    """
    import numpy as np

    return dtype == "float16" and array.size > 0 and bool(np.abs(array).max() >= FLOAT16_MAX)


@dataclass(frozen=True)
class Advice:
    """What the advisor says.

    Attributes:
        kind: its Detection Type: "FP16 Overflow", "Input Inconsistent", "Global Consistency", or "NA".
        verdict: "OK", "PROBLEM", "DEVIATION" (off on the way, right at the end), or "NA": no cosine to judge by.
        line: the first one of its kind; None where all is well, or nothing is known.
        says: one sentence, ours.
    """

    kind: str
    verdict: str
    line: AccuracyRow | None
    says: str


def advise(lines: Sequence[AccuracyRow]) -> Advice:
    """The advisor's three questions in its order, the first that is answered: overflow, inputs, the whole.

    The whole: OK where no cosine is below 0.99; PROBLEM where the last line that has a cosine is below too; else
    DEVIATION. Lines without a cosine do not count. Several inputs: the first line (there: the first input by name).

    Complexity: linear.

    >>> line = AccuracyRow(7, "Relu", "r", "float16", "r", "float32", "r:output:0", values={"CosineSimilarity": 0.5})
    >>> advise([line]).verdict, advise([]).kind
    ('PROBLEM', 'NA')
    """
    if line := _first(lines, lambda one: bool(one.overflow)):
        said = f"{clean(line.tensor_index)} has values that float16 cannot hold: mend that first, then compare again"
        return Advice("FP16 Overflow", "PROBLEM", line, said)
    if line := _first(lines, lambda one: one.is_input and one.cosine < SIMILAR):
        said = f"the input {clean(line.mine)} was not the same on both sides: compare the data and how it is prepared"
        return Advice("Input Inconsistent", "PROBLEM", line, said)
    known = [one for one in lines if not math.isnan(one.cosine)]
    if not known:
        return Advice("NA", "NA", None, "no tensor has a cosine")
    bad = _first(known, lambda one: one.cosine < SIMILAR)
    if bad is None:
        said = f"no cosine is below {SIMILAR}: if results are still wrong, look at what is done with the outputs"
        return Advice("Global Consistency", "OK", None, said)
    where = f"from {clean(bad.tensor_index)} on, cosines are below {SIMILAR}"
    if known[-1].cosine < SIMILAR:
        said = f"{where}, and so is the last one: quantization may be the cause"
        return Advice("Global Consistency", "PROBLEM", bad, said)
    return Advice("Global Consistency", "DEVIATION", bad, f"{where}, but not the last one: it may be ignored")


def _first(lines: Sequence[AccuracyRow], wanted: Callable[[AccuracyRow], bool]) -> AccuracyRow | None:
    return next(filter(wanted, lines), None)
