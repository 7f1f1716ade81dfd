"""Known approximations, such as GELU by tanh, whose values a candidate's output has in place of the
exact function's.

Each hypothesis is a region in which the nodes of some operators compute an approximation instead,
on the reference. It holds if the candidate's values are far nearer to its outputs than to the exact
ones, and what is left is no more than rounding: then the approximation explains the whole error,
and hides no other one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from textwrap import dedent

import numpy as np
from onnx import parser

from subgraph.comparison.pair import Pair, pair_if_comparable
from subgraph.errors import SubcutError
from subgraph.graph import protobuf
from subgraph.graph.nested import get_attribute
from subgraph.graph.opsets import STANDARD
from subgraph.runtime.run_result import Feeds
from subgraph.trials.diagnosis.conclusions import Evidence, Fact
from subgraph.trials.float_forms import call_functions
from subgraph.trials.similar_outputs import WrongOutput
from subgraph.types import StringMap

MIN_DISTANCE_RATIO = 10.0  # times nearer to the approximation than to the exact function
MAX_NAMED_RATIO = 9999  # that reports name
MAX_HEALTHY_ERROR = 1e-5  # of the scale, which healthy kernels stay within
MAX_NODES = 2000  # of a region that is run once per hypothesis
DOMAIN = "subcut.approximation"
# GELU by tanh: 0.5 x (1 + tanh(SLOPE (x + CUBIC_FACTOR x³)))
SLOPE = math.sqrt(2 / math.pi)
CUBIC_FACTOR = 0.044715
LOGISTIC_FACTOR = 1.702  # GELU by the logistic function: x σ(LOGISTIC_FACTOR x)
# Schraudolph, "A fast, compact approximation of the exponential function", 1999.
LOWERED_OFFSET = 60801 / 2**20

# A power of two whose fraction is a straight line, as the bits of a float are read: t of u.
EXP = f"""
    per_two = Constant<value = float {{{1 / math.log(2)!r}}}>()
    lowered = Constant<value = float {{{LOWERED_OFFSET!r}}}>()
    one_ = Constant<value = float {{1.0}}>() two_ = Constant<value = float {{2.0}}>()
    p = Mul(u, per_two) q = Sub(p, lowered) whole = Floor(q) rest = Sub(q, whole)
    line = Add(rest, one_) power = Pow(two_, whole) t = Mul(line, power)"""


# tanh(u) as Lambert's continued fraction, cut off where it reaches 1 (at 4.97): t of u.
FRACTION = """
    low = Constant<value = float {-5.0}>() high = Constant<value = float {5.0}>()
    a0 = Constant<value = float {135135.0}>() a1 = Constant<value = float {17325.0}>()
    a2 = Constant<value = float {378.0}>() b1 = Constant<value = float {62370.0}>()
    b2 = Constant<value = float {3150.0}>() b3 = Constant<value = float {28.0}>()
    minus = Constant<value = float {-1.0}>() plus = Constant<value = float {1.0}>()
    above = Max(u, low) v = Min(above, high) s = Mul(v, v)
    n2 = Add(s, a2) n2s = Mul(n2, s) n1 = Add(n2s, a1) n1s = Mul(n1, s) n0 = Add(n1s, a0)
    top = Mul(v, n0) d3 = Mul(s, b3) d2 = Add(d3, b2) d2s = Mul(d2, s) d1 = Add(d2s, b1)
    d1s = Mul(d1, s) below = Add(d1s, a0) ratio = Div(top, below)
    capped = Min(ratio, plus) t = Max(capped, minus)"""
TANH = "t = Tanh(u)"


def _write_erf(slope: float, cubic: float, tanh: str = TANH) -> str:
    """Return erf(x) as tanh(slope x + cubic x³)."""
    return f"{_write_tanh(slope, cubic)} {tanh} y = Identity(t)"


def _write_gelu(slope: float, cubic: float, tanh: str = TANH) -> str:
    """Return GELU by the same tanh."""
    return f"""{_write_tanh(slope, cubic)} {tanh}
    one = Constant<value = float {{1.0}}>() half = Constant<value = float {{0.5}}>()
    t1 = Add(t, one) x1 = Mul(x, half) y = Mul(x1, t1)"""


def _write_tanh(slope: float, cubic: float) -> str:
    return f"""
    a = Constant<value = float {{{slope!r}}}>() b = Constant<value = float {{{cubic!r}}}>()
    x2 = Mul(x, x) bx2 = Mul(x2, b) w = Add(bx2, a) u = Mul(x, w)"""


# By name, which goes on "looks like …": for each operator the body of a function `NAME (x) => (y)`.
APPROXIMATIONS: Mapping[str, StringMap] = {
    "GELU by tanh": {
        "Erf": _write_erf(SLOPE * math.sqrt(2), SLOPE * CUBIC_FACTOR * math.sqrt(8)),
        "Gelu": _write_gelu(SLOPE, SLOPE * CUBIC_FACTOR),
    },
    "GELU by tanh as a continued fraction": {
        "Erf": _write_erf(SLOPE * math.sqrt(2), SLOPE * CUBIC_FACTOR * math.sqrt(8), FRACTION),
        "Gelu": _write_gelu(SLOPE, SLOPE * CUBIC_FACTOR, FRACTION),
    },
    "tanh as a continued fraction": {"Tanh": f"u = Identity(x) {FRACTION} y = Identity(t)"},
    "GELU by the logistic function": {
        "Erf": _write_erf(LOGISTIC_FACTOR / math.sqrt(2), 0.0),
        "Gelu": _write_gelu(LOGISTIC_FACTOR / 2, 0.0),
    },
    "exp by a straight line between powers of two": {
        "Exp": f"u = Identity(x) {EXP} y = Identity(t)",
        "Sigmoid": (
            f"""
    one = Constant<value = float {{1.0}}>() u = Neg(x) {EXP} t1 = Add(t, one) y = Div(one, t1)"""
        ),
        "Softmax": (
            f"""
    m = ReduceMax(max)(x(axes)) u = Sub(x, m) {EXP} sum = ReduceSum(t, axis) y = Div(t, sum)"""
        ),
    },
}


def iter_approximations(output: WrongOutput) -> Iterator[Evidence]:
    """Yield the nearest of the approximations whose values the candidate's values are.

    Complexity: a run of the region on the reference for each hypothesis.

    Args:
        output: The output that deviates most.
    """
    trials = output.trials
    region = output.region
    ops = {trials.graph.ops[i] for i in region.nodes}
    if (
        trials.model.shared_tensors is not None
        or len(region.nodes) > MAX_NODES
        or output.values is None
    ):
        return
    found = []
    for name, bodies in APPROXIMATIONS.items():
        if ops.isdisjoint(bodies):
            continue
        change = partial(call_functions, DOMAIN, partial(_write_function, bodies))
        try:
            times = _measure_gain(output, trials.model.run_on_reference(region, change=change))
        except SubcutError:  # the reference has no such operator, or the values are of another type
            continue
        if times >= MIN_DISTANCE_RATIO:
            found.append((times, name))
    if found:
        times, name = max(found)
        quoted = f"{name} (×{min(times, MAX_NAMED_RATIO):.0f} nearer)"
        yield Evidence("approximation", f"looks like {quoted}", Fact.KNOWN, quoted=quoted)


def _measure_gain(output: WrongOutput, approximated: Feeds) -> float:
    """Return the factor by which the worst output is nearer, on average and at its worst element.

    It is 0 if more than rounding is left of any output of any sample.
    """
    trials = output.trials
    region = output.region
    judged = output.judgement
    result = trials.run(region)
    times = 0.0
    samples = zip(trials.values.records, approximated, result.tensors, strict=True)
    for k, (expected, sample, made) in enumerate(samples):
        for name in region.outputs:
            if name not in made or name not in sample:
                return 0.0
            is_worst = (k, name) == (output.sample, judged.name)
            near = pair_if_comparable(sample[name].value(), made[name].value())
            if (
                near is None
                or near.masked
                or near.error
                > max(MAX_HEALTHY_ERROR * near.scale, (judged.noise or 0.0) if is_worst else 0.0)
            ):
                return 0.0
            if (
                is_worst
                and (far := pair_if_comparable(expected[name].value(), made[name].value()))
                and not far.masked
            ):
                times = min(
                    far.error / max(near.error, 1e-30),
                    _compute_rms(far) / max(_compute_rms(near), 1e-30),
                )
    return times


def _compute_rms(pair: Pair) -> float:
    expected, value = pair.values
    return float(np.sqrt(np.mean((value.astype(np.float64) - expected.astype(np.float64)) ** 2)))


def _write_function(
    bodies: StringMap, node: protobuf.NodeProto, name: str, opset: int
) -> bytes | None:
    """Return the FunctionProto that approximates a node; None for other operators."""
    if node.domain not in STANDARD or node.op_type not in bodies:
        return None
    lines = bodies[node.op_type]
    axis = get_attribute(node, "axis", -1)
    if node.op_type == "Softmax":
        lines = f"axis = Constant<value = int64[1] {{{axis}}}>() {lines}"
        lines = lines.replace("(max)", "" if opset >= 18 else f"<axes = [{axis}]>")
        lines = lines.replace("(axes)", ", axis" if opset >= 18 else "")
    text = (
        f'<opset_import: ["" : {opset}], domain: "{DOMAIN}"> {name} (x) => (y) {{'
        f" {dedent(lines)} }}"
    )
    made: bytes = parser.parse_function(text).SerializeToString()
    return made
