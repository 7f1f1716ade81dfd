"""Two arrays -> the ten numbers of Ascend's msaccucmp; one comparison -> a row of its CSV.

Source: Ascend/msprobe, `python/msprobe/msaccucmp` (algorithm_manager, compare_result,
overflow_detection) and msit's `cmp_process.py`, read in 2026. As there, both sides are
cast to float32. The numbers are those of `comparison.metrics`, so values whose squares exceed
float32 (1e19) give other results than in msaccucmp.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from subgraph.comparison.criteria import msaccucmp as criterion
from subgraph.comparison.metrics.mean_rel import compute_relative_errors
from subgraph.comparison.pair import Pair
from subgraph.graph.walks import find_operator, find_producer_label
from subgraph.recordings.dumps import DumpEntry
from subgraph.recordings.run_comparison import RunComparison
from subgraph.text import count, format_cell
from subgraph.trials.reference_model import ReferenceModel
from subgraph.types import Array, Shape, frozen

ALGORITHMS = tuple(
    "CosineSimilarity MaxAbsoluteError AccumulatedRelativeError RelativeEuclideanDistance"
    " KullbackLeiblerDivergence StandardDeviation MeanAbsoluteError RootMeanSquareError"
    " MaxRelativeError MeanRelativeError".split()
)
COSINE = ALGORITHMS[0]
REASON = "CompareFailReason"
NAN = "NaN"
NO_OP = "*"  # instead of a name: there is no such op on that side
# As with -overflow_detection. OpSequence, second with -r or -s alone, is left out; and if the
# golden side is .npy, msaccucmp leaves out the second Address, which is NaN in any case.
HEAD = (
    *"Index OpType NPUDump DataType Address GroundTruth DataType Address TensorIndex Shape"
    " OverFlow".split(),
    *ALGORITHMS,
    REASON,
    *"IsNpuOps IsOutputNode IsPrecisionError".split(),
)

METRICS = {  # of `comparison.metrics` -> their columns
    "cosine": COSINE,
    "rel_l2": "RelativeEuclideanDistance",
    "kl": "KullbackLeiblerDivergence",
    "rmse": "RootMeanSquareError",
    "mean_rel": "MeanRelativeError",
    "max_abs": "MaxAbsoluteError",
    "mean_abs": "MeanAbsoluteError",
}
# Op types that never have an error of precision.
EXEMPT = frozenset(("Data", "TransData", "PartitionCall"))
NUMBERS = frozenset(METRICS.values())
MIN_SPREAD = 1e-3  # StandardDeviation prints a smaller mean or deviation as 0
FLOAT16_MAX = 65504
NOT_NUMBERS = "OUSTMm"  # numpy's kinds of element types that do not convert to float32


def measure(mine: Array, golden: Array) -> dict[str, float | str]:
    """Measure all ten of `ALGORITHMS`; under `REASON` is the reason why they are NaN, or "".

    All ten are NaN if the sizes differ, there are no elements or no numbers, or only one side has
    NaN or infinity. StandardDeviation is a text: "(mean;deviation),(mean;deviation)" of mine and
    golden. Only the real parts of complex numbers count.

    >>> import numpy as np
    >>> found = measure(np.array([3.0, 4.0]), np.array([3.0, 5.0]))
    >>> found["MaxAbsoluteError"], found["MeanAbsoluteError"], found["StandardDeviation"]
    (1.0, 0.5, '(3.500;0.500),(4.000;1.000)')
    """
    if why := _explain_incomparable(mine, golden):
        return {**dict.fromkeys(ALGORITHMS, math.nan), REASON: why}
    pair = Pair(_convert_to_float32(golden), _convert_to_float32(mine))
    found = criterion.measure(pair) | pair.compute_metric(("max_abs", "mean_abs"))
    with np.errstate(all="ignore"):
        relative = compute_relative_errors(*pair.values)
        spread = f"{_format_spread(pair.candidate)},{_format_spread(pair.reference)}"
        values: dict[str, float | str] = {
            **{column: found[metric] for metric, column in METRICS.items()},
            "AccumulatedRelativeError": float(relative.sum()),
            "MaxRelativeError": float(relative.max()),
            "StandardDeviation": spread,
            REASON: "",
        }
    return {name: values[name] for name in (*ALGORITHMS, REASON)}


def _explain_incomparable(mine: Array, golden: Array) -> str:
    if mine.dtype.kind in NOT_NUMBERS or golden.dtype.kind in NOT_NUMBERS:
        return f"no numbers: {mine.dtype} and {golden.dtype}"
    if mine.size != golden.size:
        return f"{mine.size} elements in NPUDump, {golden.size} in GroundTruth"
    pair = Pair(_convert_to_float32(golden), _convert_to_float32(mine))
    if pair.masked:
        return f"NaN or infinity on one side alone: {count(pair.masked, 'element')}"
    return "" if pair.compared else "no finite elements"


def _convert_to_float32(array: Array) -> Array:
    with np.errstate(all="ignore"):
        real = array.real if array.dtype.kind == "c" else array
        return np.asarray(real.astype(np.float32).reshape(-1))


def _format_spread(values: Array) -> str:
    both = float(np.mean(values, dtype=np.float64)), float(np.std(values, dtype=np.float64))
    mean, deviation = (0.0 if abs(v) < MIN_SPREAD else v for v in both)
    return f"({mean:.3f};{deviation:.3f})"


def is_precision_error(values: Mapping[str, float | str]) -> bool:
    """Return IsPrecisionError of printed values.

    It is true if cosine < 0.99, distance > 0.05, KL > 0.005, RMSE > 1 or mean relative error > 1.
    NaN counts as in `_process_is_npu_and_is_precision_error_ops`: without a cosine there is no
    error, whatever the other values are; another NaN is not beyond its limit. The op types that
    never have an error are `EXEMPT`; `format_cells` applies them.

    Raises:
        ValueError: one of the five is a text and not a number.

    >>> is_precision_error({"CosineSimilarity": 0.98}), is_precision_error({"CosineSimilarity": 1})
    (True, False)
    >>> is_precision_error({"RootMeanSquareError": 9.0})
    False
    """
    # The numbers are those that the CSV has, because msprobe reads it.
    printed = {name: float(_format_number(float(values.get(name, math.nan)))) for name in NUMBERS}
    found = ((limit, printed[METRICS[limit.metric]]) for limit in criterion.LIMITS)
    is_known = not math.isnan(printed[COSINE])
    return is_known and any(v == v and not limit.holds(v) for limit, v in found)


def _format_number(value: float) -> str:
    """Format as msaccucmp's format_value, but for `nan` and the cosine of two zeros."""
    return NAN if math.isnan(value) else f"{value:.6f}"


@frozen
class AccuracyRow:
    """One tensor of one op in the dump, compared with the golden one.

    Attributes:
        mine: the op's name in the dump; with commas, several.
        golden: the original op's name; "*" without an original op, as for the NPU's own Cast and
            TransData.
        tensor_index: `OP:output:0`.
        overflow: None if it was not looked for, or the tensor is not a float16.
        values: as `measure` returns them; empty if not comparable.
        reason: replaces the one in `values`, if not empty.
        is_output: whether the golden op produces an output of the model.
    """

    index: int
    op_type: str
    mine: str
    mine_dtype: str
    golden: str
    golden_dtype: str
    tensor_index: str
    shape: Shape | None = None
    overflow: bool | None = None
    values: Mapping[str, float | str] = field(default_factory=dict)
    reason: str = ""
    is_output: bool = False


def format_cells(row: AccuracyRow) -> list[str]:
    """Return one row below `HEAD`: six decimals, NaN for missing values and for all addresses.

    A text that would start a formula gets a `'` before it (msaccucmp refuses to write it). Numbers
    can start with a minus; write them as they are, with `csv.writer`.

    >>> format_cells(AccuracyRow(3, "Relu", "a", "float16", "*", "NaN", "a:output:0", (1, 8)))[:12]
    ['3', 'Relu', 'a', 'float16', 'NaN', '*', 'NaN', 'NaN', 'a:output:0', '[1,8]', 'NaN', 'NaN']
    """
    wrong = row.op_type not in EXEMPT and is_precision_error(row.values)
    golden = (row.golden, row.golden_dtype, NAN)
    words = (row.op_type, row.mine, row.mine_dtype, NAN, *golden, row.tensor_index)
    numbers = (row.values.get(name, math.nan) for name in ALGORITHMS)
    return [
        str(row.index),
        *(format_cell(word) or NAN for word in words),
        NAN if row.shape is None else f"[{','.join(map(str, row.shape))}]",
        NAN if row.overflow is None else _format_flag(row.overflow),
        *(format_cell(v) or NAN if isinstance(v, str) else _format_number(v) for v in numbers),
        format_cell(row.reason or str(row.values.get(REASON, ""))),
        *map(_format_flag, (row.golden == NO_OP, row.is_output, wrong)),
    ]


def _format_flag(flag: bool) -> str:
    return "YES" if flag else "NO"


def has_overflow(array: Array, dtype: str) -> bool:
    """Return OverFlow: whether max|x| ≥ 65504, the largest float16, in a tensor dumped as float16.

    It is False for tensors of other types. msaccucmp defines a lower bound too, 5.96e-8, but never
    applies it. As in msaccucmp, a NaN anywhere hides an overflow.

    >>> import numpy as np
    >>> has_overflow(np.array([1.0, -np.inf]), "float16"), has_overflow(np.array([1e30]), "float32")
    (True, False)
    """
    return dtype == "float16" and array.size > 0 and bool(np.abs(array).max() >= FLOAT16_MAX)


# ------------------------------------------------------------ the table


def make_accuracy_rows(
    model: ReferenceModel, comparison: RunComparison, names: Sequence[str]
) -> list[AccuracyRow]:
    """Make rows of the inputs, of the tensors `names`, then of entries that hold no tensor."""
    graph = model.graph
    table: list[AccuracyRow] = []

    def add(op: str, entry: DumpEntry | None, name: str = "", **judged: Any) -> None:
        """Add the row of an entry and a tensor of the model, or of one that has no counterpart."""
        golden = find_producer_label(graph, name) or name
        record = model.values.records[0].get(name)
        mine = (entry.node or entry.tensor) if entry else ""
        place = f"{mine}:{entry.role}:{entry.index}" if entry else f"{name}:output:0"
        row = AccuracyRow(
            len(table),
            op,
            mine or NO_OP,
            entry.dtype if entry else "",
            golden or NO_OP,
            record.dtype if record else "",
            place,
            entry.shape if entry else None,
            is_output=name in graph.outputs,
            **judged,
        )
        table.append(row)

    rows = {**comparison.inputs, **comparison.rows}
    for name in (*comparison.inputs, *names):
        op = find_operator(graph, name) or "Data"
        row = rows.get(name)
        if row:
            judged = {"overflow": row.overflow, "values": row.accuracy, "reason": row.why}
            add(op, row.match.entry, name, **judged)
        else:
            add(op, None, name, reason="no dump of this op")
    for matched in comparison.matched[:1]:
        for left in matched.left_out:
            add("", left.entry, reason=left.why)
    return table


def format_csv(rows: Sequence[AccuracyRow]) -> str:
    """Return CSV in msaccucmp's columns; two of their names occur twice."""
    out = io.StringIO()
    csv.writer(out).writerows([HEAD, *map(format_cells, rows)])
    return out.getvalue()
