"""Lint: each rule reports its tiny model but not the repaired one, and reports nothing in sound
networks.

Covers `inspection.lint` with `inspection.lint._places`, `_windows`, all
rules, and `commands.lint`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from subgraph import plugins
from subgraph.commands.lint import render_findings
from subgraph.documents import to_json
from subgraph.errors import InputError, Refused, UnknownName, UsageError
from subgraph.graph.graph import Graph, load
from subgraph.inspection import lint
from subgraph.inspection.lint import NOTE, UNCHECKED, WARNING, LintContext, LintIssue, custom_domain
from subgraph.runtime.inputs import Feeding, ImageOptions
from subgraph.runtime.worker import Worker
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import subcut

LIGHT = sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx"))
RULES = plugins.list_names("lint")


def keep(model: onnx.ModelProto) -> None:
    """No edit."""


def unnamed(model: onnx.ModelProto) -> None:
    model.graph.node[0].name = ""


def all_called_a(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.name = "a"


def unary(node: str, shape: str = "1,3,8,8", out: str = "", dtype: str = "float") -> str:
    return f"g ({dtype}[{shape}] x) => ({dtype}[{out or shape}] y) {{ [n] y = {node} }}"


def pool(settings: str, out: int) -> str:
    return unary(f"MaxPool<kernel_shape=[3,3], {settings}>(x)", out=f"1,3,{out},{out}")


LINEAR = 'mode="linear", coordinate_transformation_mode'
NEAREST = 'mode="nearest", coordinate_transformation_mode'
ADD = "g (float[4] x) => (float[4] y) { [n] y = Add(x, w) }"
BAKED = "g (float[1,4] x) => (float[1,2,2] y) { [r] t = Reshape(x, s) [n] y = Relu(t) }"

# "RULE | severity, node | words of its reason or advice | options", then the model and the same
# model repaired; with one line, the options alone make the trouble. "opset=20>13": the repaired one
# has opset 13; "once": the options are for the first model.
TABLE = """
known | note n | known of mnn | runtime=mnn
    float[1,3,8,8] -> float[1,3,4,4]: MaxPool<kernel_shape=[3,3], dilations=[2,2], strides=[1,1]>(x)
    float[1,3,8,8] -> float[1,3,6,6]: MaxPool<kernel_shape=[3,3], strides=[1,1]>(x)
asymmetric-pads | note n | 0 at the beginning and 1 at the end
    float[1,3,8,8] -> float[1,3,4,4]: MaxPool<kernel_shape=[3,3], pads=[0,0,1,1], strides=[2,2]>(x)
    float[1,3,8,8] -> float[1,3,4,4]: MaxPool<kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2]>(x)
asymmetric-pads | note n | SAME_LOWER
    float[1,3,8,8] -> float[1,3,4,4]: MaxPool<kernel_shape=[3,3], auto_pad="SAME_LOWER", strides=[2,2]>(x)
    float[1,3,8,8]: MaxPool<kernel_shape=[3,3], auto_pad="SAME_LOWER", strides=[1,1]>(x)
average-pool | warning n | count_include_pad=1
    float[1,3,8,8]: AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(x)
    float[1,3,8,8] -> float[1,3,6,6]: AveragePool<kernel_shape=[3,3], count_include_pad=1>(x)
average-pool | note n | count_include_pad=0
    float[1,3,8,8]: AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(x)
    float[1,3,8,8] -> float[1,3,6,6]: AveragePool<kernel_shape=[3,3], pads=[0,0,0,0]>(x)
average-pool | warning n | differ along the edge
    float[1,3,8,8]: AveragePool<kernel_shape=[3,3], auto_pad="SAME_UPPER", count_include_pad=1>(x)
    float[1,3,8,8] -> float[1,3,6,6]: AveragePool<kernel_shape=[3,3], auto_pad="VALID", count_include_pad=1>(x)
ceil-mode | warning n | 4×4
    float[1,3,8,8] -> float[1,3,4,4]: MaxPool<kernel_shape=[3,3], ceil_mode=1, strides=[2,2]>(x)
    float[1,3,9,9] -> float[1,3,4,4]: MaxPool<kernel_shape=[3,3], ceil_mode=1, strides=[2,2]>(x)
ceil-mode | note n | open | skip=baked-shape
    float[1,3,H,W] -> float[1,3,P,Q]: MaxPool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(x)
    float[1,3,9,9] -> float[1,3,4,4]: MaxPool<kernel_shape=[3,3], ceil_mode=1, strides=[2,2]>(x)
custom-domain | warning n | custom domain 'my'
    float[1,3,8,8]: my.Op(x)
    float[1,3,8,8]: Relu(x)
custom-domain | warning n | operator of onnxruntime | opset=20
    float[1,3,8,8]: com.microsoft.Gelu(x)
    float[1,3,8,8]: Gelu(x)
custom-domain | note n | ai.onnx.ml
    float[1,3,8,8]: ai.onnx.ml.Binarizer<threshold=1.0>(x)
    float[1,3,8,8]: Relu(x)
data-dependent | warning n | depends on values
    float[4] -> int64[1,k]: NonZero(x)
    float[4] -> int64[4]: Cast<to=7>(x)
data-dependent | warning n | static shapes
    g (float[4] x, int64[1] k) => (float[a] v, int64[b] i) { [n] v, i = TopK(x, k) }
    g (float[4] x, int64[1] k) => (float[4] v) { [n] c = Cast<to=1>(k) [m] v = Add(x, c) }
data-dependent | note n | lower index
    g (float[4] x) => (float[2] v, int64[2] i) { [n] v, i = TopK(x, two) }
    g (float[4] x) => (float[4] v) { [n] v = Relu(x) }
denormals | warning n | 4 of 4 | skip=underflow
    float[4]: Add(x, denormals)
    float[4]: Add(x, ones)
denormals | note n | 1 of 4 | skip=underflow
    float[4]: Add(x, denormal)
    float[4]: Add(x, zero)
double-normalization | warning c | subtracted by constants twice
    g (float[1,3,8,8] x) => (float[1,3,8,8] y) { [a] p = Sub(x, mean) [b] q = Div(p, std) [c] r = Sub(q, mean) [d] y = Div(r, std) }
    g (float[1,3,8,8] x) => (float[1,3,8,8] y) { [a] p = Sub(x, mean) [b] q = Div(p, std) [c] y = Relu(q) }
double-normalization | warning a | --mean | mean=120 once
    g (float[1,3,8,8] x) => (float[1,3,8,8] y) { [a] p = Sub(x, mean) [b] q = Div(p, std) [c] y = Relu(q) }
double-normalization | warning b | divided by 64
    g (float[1,3,8,8] x) => (float[1,3,8,8] y) { [a] p = Div(x, c255) [b] y = Div(p, c255) }
    g (float[1,3,8,8] x) => (float[1,3,8,8] y) { [a] y = Div(x, c255) }
double-normalization | warning n | --scale | scale=1/255 once
    float[1,3,8,8]: Div(x, c255)
duplicate-names | warning #1 | #0 | all_called_a
    g (float[4] x) => (float[4] y) { [a] t = Relu(x) [b] y = Neg(t) }
overflow | warning n | infinite in float16
    float[4]: Add(x, large)
    float[4]: Add(x, ones)
overflow | warning m | -1e4
    g (float[1] x) => (float[1] y) { [n] c = Constant<value_float=-1e9>() [m] y = Add(x, c) }
    g (float[1] x) => (float[1] y) { [n] c = Constant<value_float=-1e4>() [m] y = Add(x, c) }
overflow | warning n | on these inputs | fed once
    float[4]: Exp(x)
underflow | warning n | 1e-12
    float[4]: Add(x, c1e_12)
    float[4]: Add(x, c1e_5)
underflow | note n | 25%
    float[4]: Add(x, tiny)
    float[4]: Add(x, ones)
coarse-step | warning n | 1 channel below 0.039 zero in int8 | for_int8
    float[1,2,4,4]: Conv(x, narrow)
    float[1,2,4,4]: Conv(x, wide)
coarse-step | warning n | at least 75 % of its values | for_int8 fed
    float[4]: Mul(x, thousand)
    float[4]: Mul(x, twenty)
integer-clip | warning n | int64
    int64[4]: Clip(x, c0)
    int64[4]: Max(x, c0)
invalid | warning n | alpha
    float[1,3,8,8]: Relu<alpha=1.0>(x)
    float[1,3,8,8]: Relu(x)
invalid | warning n | not part of opset
    float[1,3,8,8]: Relux(x)
    float[1,3,8,8]: Relu(x)
nan-weights | warning n | 1 values of constant 'nan' are NaN
    float[4]: Add(x, nan)
    float[4]: Add(x, infinite)
nan-weights | warning n | 9 values of weight 'infinite_kernel' are infinite
    float[1,3,8,8]: Conv(x, infinite_kernel)
    float[1,3,8,8]: Conv(x, kernel)
nan-weights | warning n | 1 values of weight 'c_infinite' are infinite
    float[1,3,8,8]: Mul(x, c_infinite)
    float[1,3,8,8]: Mul(x, c2)
nan-weights | warning n | 2 values of its variance 'negative'
    float[1,3,8,8]: BatchNormalization(x, ones3, ones3, ones3, negative)
    float[1,3,8,8]: BatchNormalization(x, ones3, ones3, ones3, rounded)
nameless | note #0 | | unnamed
    float[1,3,8,8]: Relu(x)
opset | warning n | comes with opset 20 | opset=20>13 target=13
    float[1,3,8,8]: Gelu(x)
    float[1,3,8,8]: Erf(x)
opset | warning n | at opset 11 | opset=17>11 target=11
    float[1,3,8,8] -> float[1,1,8,8]: ReduceSum(x, axis_1)
    float[1,3,8,8] -> float[1,1,8,8]: ReduceSum<axes=[1]>(x)
opset | warning n | flattened | opset=17>12 target=12
    float[1,3,8,8]: Softmax<axis=1>(x)
    float[1,3,8,8]: Softmax<axis=3>(x)
resize | warning n | align_corners
    float[1,3,8,8] -> float[1,3,12,12]: Resize<mode="linear", coordinate_transformation_mode="align_corners">(x, , s1_5)
    float[1,3,8,8] -> float[1,3,12,12]: Resize<mode="linear", coordinate_transformation_mode="half_pixel">(x, , s1_5)
resize | warning n | neither align_corners
    float[1,3,8,8] -> float[1,3,12,12]: Resize<mode="linear", coordinate_transformation_mode="asymmetric">(x, , s1_5)
    float[1,3,8,8] -> float[1,3,12,12]: Resize<mode="linear", coordinate_transformation_mode="pytorch_half_pixel">(x, , s1_5)
resize | warning n | asymmetric
    float[1,3,8,8] -> float[1,3,16,16]: Resize<mode="linear", coordinate_transformation_mode="asymmetric">(x, , s2)
    float[1,3,8,8] -> float[1,3,16,16]: Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(x, , s2)
resize | warning n | half_pixel
    float[1,3,8,8] -> float[1,3,13,13]: Resize<mode="nearest", coordinate_transformation_mode="half_pixel">(x, , s1_7)
    float[1,3,8,8] -> float[1,3,13,13]: Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(x, , s1_7)
resize | warning n | ceil
    float[1,3,8,8] -> float[1,3,16,16]: Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="ceil">(x, , s2)
    float[1,3,8,8] -> float[1,3,16,16]: Resize<mode="nearest", coordinate_transformation_mode="half_pixel">(x, , s2)
resize | warning n | crop
    float[1,3,8,8] -> float[1,3,12,12]: Resize<mode="linear", coordinate_transformation_mode="tf_crop_and_resize">(x, box, s1_5)
    float[1,3,8,8] -> float[1,3,12,12]: Resize<mode="linear", coordinate_transformation_mode="half_pixel">(x, , s1_5)
resize | note n | cubic
    float[1,3,8,8] -> float[1,3,12,12]: Resize<mode="cubic">(x, , s1_5)
    float[1,3,8,8] -> float[1,3,12,12]: Resize<mode="linear">(x, , s1_5)
training | warning n | training_mode=1 | skip=invalid
    float[1,3,8,8]: BatchNormalization<training_mode=1>(x, ones3, ones3, ones3, ones3)
    float[1,3,8,8]: BatchNormalization<epsilon=0.1>(x, ones3, ones3, ones3, ones3)
training | warning n | is_test=0 | opset=6
    float[1,3,8,8]: BatchNormalization<epsilon=0.1>(x, ones3, ones3, ones3, ones3)
    float[1,3,8,8]: BatchNormalization<is_test=1>(x, ones3, ones3, ones3, ones3)
training | warning n | 5 outputs | opset=9
    g (float[1,3,8,8] x) => (float[1,3,8,8] y) { [n] y, a, b, c, d = BatchNormalization(x, ones3, ones3, ones3, ones3) }
    float[1,3,8,8]: BatchNormalization(x, ones3, ones3, ones3, ones3)
training | warning n | per pixel | opset=7 skip=invalid
    float[1,3,8,8]: BatchNormalization<spatial=0>(x, ones3, ones3, ones3, ones3)
    float[1,3,8,8]: BatchNormalization<epsilon=0.1>(x, ones3, ones3, ones3, ones3)
training | warning n | two runs differ
    float[1,3,8,8]: Dropout(x, c_half, true)
    float[1,3,8,8]: Dropout(x, c_half, false)
types | warning n | int64 | opset=11
    int64[4]: Clip(x)
    float[4]: Clip(x)
types | warning n | inconsistent type
    g (float[4] x, double[4] z) => (float[4] y) { [n] y = Add(x, z) }
    g (float[4] x, float[4] z) => (float[4] y) { [n] y = Add(x, z) }
upsample | warning n | deprecated | opset=9>11
    float[1,3,8,8] -> float[1,3,16,16]: Upsample<mode="linear">(x, s2)
    float[1,3,8,8] -> float[1,3,16,16]: Resize<mode="linear">(x, none, s2)
upsample | note n | opset 10 | opset=10>11
    float[1,3,8,8] -> float[1,3,16,16]: Resize<mode="nearest">(x, s2)
    float[1,3,8,8] -> float[1,3,16,16]: Resize<mode="nearest">(x, none, s2)
baked-shape | warning r | declared open
    g (float[N,4] x) => (float[N,2,2] y) { [r] t = Reshape(x, fixed) [n] y = Relu(t) }
    g (float[N,4] x) => (float[N,2,2] y) { [r] t = Reshape(x, free) [n] y = Relu(t) }
baked-shape | warning r | x=3×4 | second=3x4
    g (float[1,4] x) => (float[1,2,2] y) { [r] t = Reshape(x, fixed) [n] y = Relu(t) }
    g (float[1,4] x) => (float[1,2,2] y) { [r] t = Reshape(x, free) [n] y = Relu(t) }
"""  # noqa: E501
WEIGHTS: dict[str, np.ndarray[Any, Any]] = {
    "c1e_12": np.array(1e-12, np.float32),
    "c1e_5": np.array(1e-5, np.float32),
    "c2": np.array(2, np.float32),
    "c255": np.array(255, np.float32),
    "c_half": np.array(0.5, np.float32),
    "c_infinite": np.array(np.inf, np.float32),
    "c0": np.array(0),
    "true": np.array(True),
    "false": np.array(False),
    "two": np.array([2]),
    "axis_1": np.array([1]),
    "fixed": np.array([1, 2, 2]),
    "free": np.array([-1, 2, 2]),
    "none": np.array([], np.float32),
    "ones": np.ones(4, np.float32),
    "ones3": np.ones(3, np.float32),
    "mean": np.full((3, 1, 1), 120, np.float32),
    "std": np.full((3, 1, 1), 60, np.float32),
    "denormals": np.full(4, 1e-40, np.float32),
    "denormal": np.array([1e-40, 1, 1, 1], np.float32),
    "zero": np.array([0, 1, 1, 1], np.float32),
    "large": np.array([6, 3e5, 1, 1], np.float32),
    "tiny": np.array([1e-9, 1, 1, 1], np.float32),
    "thousand": np.array([1000, 1, 1, 1], np.float32),
    "twenty": np.array([20, 1, 1, 1], np.float32),
    "nan": np.array([np.nan, 1, 1, 1], np.float32),
    "infinite": np.array([-np.inf, 1, 1, 1], np.float32),
    "negative": np.array([-1, 1, -0.1], np.float32),
    "rounded": np.array([-1e-6, 1, 1], np.float32),
    "kernel": np.ones((3, 3, 1, 1), np.float32),
    "infinite_kernel": np.full((3, 3, 1, 1), np.inf, np.float32),
    "narrow": np.array([10, 0.01], np.float32).repeat(2).reshape(2, 2, 1, 1),
    "wide": np.array([10, 0.1], np.float32).repeat(2).reshape(2, 2, 1, 1),
    "s1_5": np.array([1, 1, 1.5, 1.5], np.float32),
    "s1_7": np.array([1, 1, 1.7, 1.7], np.float32),
    "s2": np.array([1, 1, 2, 2], np.float32),
    "box": np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32),
}
CHANGES = {change.__name__: change for change in (unnamed, all_called_a)}


@dataclass(frozen=True)
class Case:
    """A model with one trouble, and the same model repaired.

    Attributes:
        rule: The rule that finds it.
        severity: Of the finding.
        node: Label of the node that it is at.
        says: Words of its reason or advice.
        options: The words after the last "|".
        bad: The model, as one line of `TABLE`.
        good: The repaired model.
    """

    rule: str
    severity: str
    node: str
    says: str
    options: tuple[str, ...]
    bad: str
    good: str

    def __str__(self) -> str:
        return f"{self.rule}-{self.says or self.node}"

    def option(self, name: str) -> str:
        """Return the value of an option, or ""."""
        return next((o.partition("=")[2] for o in self.options if o.startswith(f"{name}=")), "")

    @property
    def opsets(self) -> tuple[int, int]:
        """The opsets of both models."""
        before, _, after = self.option("opset").partition(">")
        return int(before or 17), int(after or before or 17)


def _iter_cases() -> Iterator[Case]:
    for entry in re.split(r"\n(?=\S)", TABLE.strip()):
        head, bad, *good = (line.strip() for line in entry.splitlines())
        rule, place, says, options, *_ = [*map(str.strip, head.split("|")), ""]
        severity, node = place.split()
        yield Case(rule, severity, node, says, tuple(options.split()), bad, (good or [bad])[0])


CASES = list(_iter_cases())


def prepare(folder: Path, case: Case, is_good: bool) -> tuple[LintContext, list[str]]:
    """Return the context of a model, written to a file, and all rules except the one to skip."""
    folder.mkdir()
    np.save(folder / "x.npy", np.full(4, 12, np.float32))
    text = text_models.written_out(case.good if is_good else case.bad, "n")
    opset = case.opsets[is_good]
    made = text_models.model(
        text,
        opset=opset,
        ir=9 if opset >= 20 else 8,
        domains=tuple(re.findall(r"= ([a-z][\w.]*)\.[A-Z]", text)),
        **{name: WEIGHTS[name] for name in re.findall(r"\w+", text) if name in WEIGHTS},
    )
    if not is_good:
        for name in CHANGES.keys() & {*case.options}:
            CHANGES[name](made)
    context = LintContext(text_models.read(folder, made))
    if not is_good or "once" not in case.options:
        context = with_options(context, case, folder)
    skip = case.option("skip")
    return context, lint.choose_rules(ignore=[skip] if skip else [])


def with_options(context: LintContext, case: Case, folder: Path) -> LintContext:
    changes: dict[str, Any] = {"for_int8": "for_int8" in case.options}
    if target := case.option("target"):
        changes["target"] = int(target)
    if runtime := case.option("runtime"):
        changes["runtime"] = runtime
    if mean := case.option("mean"):
        changes["image_options"] = ImageOptions(mean=(float(mean),))
    if scale := case.option("scale"):
        changes["image_options"] = ImageOptions(scale=(float(Fraction(scale)),))
    if second := case.option("second"):
        changes["second_sizes"] = {"x": [int(size) for size in second.split("x")]}
    if "fed" in case.options:
        changes["feeding"] = Feeding((str(folder / "x.npy"),))
    return replace(context, **changes)


def is_a_sentence(said: str) -> bool:
    return bool(said) and not said.endswith(".") and "\n" not in said and len(said) < 300


@pytest.mark.turns(3)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule_finds_its_model_and_not_the_mended_one(case: Case, tmp_path: Path) -> None:
    subject, rules = prepare(tmp_path / "bad", case, False)
    every = list(lint.run_rules(subject, rules))
    assert all(
        is_a_sentence(f.reason) and (is_a_sentence(f.fix) or f.severity == UNCHECKED) for f in every
    )
    found = [f for f in every if f.rule == case.rule and f.node]
    assert [f.node and f.node.label for f in found] == [case.node]
    assert found[0].severity == case.severity and case.says in f"{found[0].reason} {found[0].fix}"
    subject, rules = prepare(tmp_path / "good", case, True)
    assert [
        (f.rule, f.reason) for f in lint.run_rules(subject, rules) if f.severity != UNCHECKED
    ] == []


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_docstring_a_check_and_a_model_here(rule: str) -> None:
    module = plugins.load("lint", rule)
    assert module.check.__doc__ and (help_text := plugins.read_help("lint", rule)).endswith(".")
    assert len(help_text) < 120
    assert rule in {case.rule for case in CASES}
    tree = ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8"))
    assert any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body)


@pytest.mark.parametrize("path", LIGHT, ids=lambda p: p.stem)
def test_the_light_networks_get_no_warning(path: Path) -> None:
    from subgraph.graph.graph import load

    document = document_of(LintContext(load(path)), RULES)
    assert document["exit_code"] == document["warnings"] == 0
    assert {f["severity"] for f in document["findings"]} == {NOTE}
    assert "nameless" in {f["rule"] for f in document["findings"]}


def test_there_are_nine_of_them() -> None:
    assert len(LIGHT) == 9


# ------------------------------------------------------------ nested


def document_of(context: LintContext, rules: list[str]) -> dict[str, Any]:
    document: dict[str, Any] = to_json(lint.make_document(context, rules))
    return document


def found_in(g: Graph, **options: Any) -> list[LintIssue]:
    return [f for f in lint.run_rules(LintContext(g, **options), RULES) if f.severity != UNCHECKED]


BRANCHING = """g (float[1,3,8,8] x, bool c) => (float[1,3,4,4] y) {
    [choice] y = If(c) <
        then_branch = then () => (float[1,3,4,4] a) <float w = {WEIGHT}> {
            [deep] p = MaxPool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(x)
            a = Mul(p, w)
        },
        else_branch = other () => (float[1,3,4,4] b) {
            [plain] b = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
        }
    >
}"""


def branching(folder: Path, weight: float = 1.0) -> Graph:
    """Read an If whose branch holds a pool of ceil_mode=1, a nameless node and a weight."""
    return text_models.load(folder, BRANCHING.replace("WEIGHT", str(weight)))


def test_bodies_are_looked_into_with_the_types_of_the_graph_around(tmp_path: Path) -> None:
    found = found_in(branching(tmp_path, weight=1e9))
    assert [(f.rule, f.node and f.node.label) for f in found] == [
        ("ceil-mode", "choice > then_branch > deep"),
        ("nameless", "choice > then_branch > #1"),
        ("overflow", "choice > then_branch > #1"),
    ]
    assert "4×4" in found[0].reason and all(f.node and f.node.top == 0 for f in found)


FUNCTION = """<ir_version: 9, opset_import: ["" : 17, "local" : 1]>
g (float[1,3,8,8] x) => (float[1,3,4,4] y) { [call] y = local.Pool(x) }
<domain: "local", opset_import: ["" : 17]>
Pool (x) => (y) { [inner] y = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2], count_include_pad=1>(x) }
"""  # noqa: E501


def test_local_functions_are_looked_into(tmp_path: Path) -> None:
    found = found_in(text_models.read(tmp_path, onnx.parser.parse_model(FUNCTION)), target=6)
    told = {(f.rule, f.severity, f.node and f.node.label) for f in found}
    assert ("average-pool", WARNING, "local.Pool > inner") in told
    assert ("opset", WARNING, "local.Pool > inner") in told, "count_include_pad comes with opset 7"
    assert ("custom-domain", NOTE, "call") in told


@pytest.mark.parametrize(
    ("op", "runtime", "said"),
    [
        ("Gelu", "", "mnn 3.6.1, opencv 5.0.0, openvino 2026.4.1, tract 0.23.9 import it"),
        ("CDist", "", "do not import it"),
        ("DynamicQuantizeLSTM", "openvino", ""),
        ("DynamicQuantizeLSTM", "openvino-gpu", ""),
        ("DynamicQuantizeLSTM", "mnn", "mnn 3.6.1 does not import it"),
        ("DynamicQuantizeLSTM", "tract", "tract 0.23.9 does not import it"),
        ("CDist", "ort", ""),
        ("CDist", "cuda", ""),
        ("CDist", "npu", "do not import it"),
    ],
)
def test_operator_of_onnxruntime_is_told_by_what_each_runtime_imports(
    op: str, runtime: str, said: str, tmp_path: Path
) -> None:
    g = text_models.load(tmp_path, unary(f"com.microsoft.{op}(x)"), domains=("com.microsoft",))
    found = [
        issue.reason for issue in found_in(g, runtime=runtime) if issue.rule == "custom-domain"
    ]
    assert bool(found) == bool(said) and said in "".join(found)


@pytest.mark.parametrize("backend", ["mnn", "opencv", "openvino", "tract"])
def test_table_of_imports_is_that_of_the_installed_release(backend: str, tmp_path: Path) -> None:
    (importing,) = (
        ops.split() for key, ops in custom_domain.IMPORTED.items() if key.split()[0] == backend
    )
    with Worker(backend, timeout=60) as worker:
        for op in ("Gelu", "CDist"):
            path = tmp_path / f"{op}.onnx"
            called = {"Gelu": "Gelu(x)", "CDist": "CDist(x, x)"}[op]
            text = f"g (float[4,4] x) => (float[4,4] y) {{ [n] y = com.microsoft.{called} }}"
            text_models.save(path, text, domains=("com.microsoft",))
            with nullcontext() if op in importing else pytest.raises(Refused):
                worker.load(op, path, {})


def test_names_that_are_shared_behind_a_node_with_bodies(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17, "local" : 1]>
        g (float[2] x, bool c) => (float[2] y) { [call] y = local.Choose(x, c) }
        <domain: "local", opset_import: ["" : 17]>
        Choose (x, c) => (y) {
            [if] a = If(c) <then_branch = p () => (float[2] t) { t = Neg(x) }, else_branch = q () => (float[2] e) {
                e = Abs(x) }>
            [same] b = Relu(a)
            [same] y = Tanh(b)
        }""")  # noqa: E501
    found = found_in(text_models.read(tmp_path, model))
    assert ("duplicate-names", "local.Choose > #2") in {
        (f.rule, f.node and f.node.label) for f in found
    }


def test_attribute_from_the_caller_is_unknown(tmp_path: Path) -> None:
    text_form = FUNCTION.replace("Pool (x)", "Pool <how>(x)").replace(
        "count_include_pad=1", "count_include_pad=@how"
    )
    text_form = text_form.replace("local.Pool(x)", "local.Pool<how=1>(x)")
    found = found_in(text_models.read(tmp_path, onnx.parser.parse_model(text_form)))
    assert "average-pool" not in {f.rule for f in found}


# ------------------------------------------------------------ details


def test_shapes_that_only_shapes_decide_are_no_data(tmp_path: Path) -> None:
    """Old exporters write torch.arange as NonZero of ConstantOfShape."""
    chain = (
        "[a] s = Shape(x) [b] o = ConstantOfShape(s) [c] i = NonZero(o) [d] k = Cast<to=6>(i) [e] y"
        " = Clip(k, z)"
    )
    g = text_models.load(tmp_path, f"g (float[4] x) => (int32[1,4] y) {{ {chain} }}", z=np.int32(0))
    assert [(f.rule, f.severity) for f in found_in(g)] == [("integer-clip", NOTE)]


def test_size_that_nothing_changes_is_no_resize(tmp_path: Path) -> None:
    graph = unary(f'Resize<{LINEAR}="align_corners">(x, , s)')
    assert found_in(text_models.load(tmp_path, graph, s=np.ones(4, np.float32))) == []


def test_open_resize_is_judged_by_its_mode(tmp_path: Path) -> None:
    graph = (
        "g (float[N,3,H,W] x, int64[4] s) => (float[a,b,c,d] y) {{ [n] y = Resize<{}>(x, , , s) }}"
    )
    linear = text_models.load(tmp_path, graph.format(f'{LINEAR}="align_corners"'))
    nearest = text_models.load(tmp_path, graph.format(f'{NEAREST}="half_pixel"'))
    told = [
        [f.severity for f in lint.run_rules(LintContext(g), ["resize"])] for g in (linear, nearest)
    ]
    assert told == [[WARNING], [NOTE]]


def test_sizes_count_where_no_scales_are_given(tmp_path: Path) -> None:
    graph = (
        "g (float[N,3,8,8] x) => (float[N,3,h,w] y) { [n] y = Resize<"
        + f'{NEAREST}="half_pixel"'
        + ">(x, , , s) }"
    )
    twice = text_models.load(tmp_path, graph, s=np.array([1, 3, 16, 16]))
    odd = text_models.load(tmp_path, graph, s=np.array([1, 3, 13, 13]))
    told = [[f.severity for f in lint.run_rules(LintContext(g), ["resize"])] for g in (twice, odd)]
    assert told == [[], [WARNING]]


def test_large_clip_bounds_are_no_overflow(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"low": np.float32(-3.4e38), "high": np.float32(3.4e38)}
    assert found_in(text_models.load(tmp_path, unary("Clip(x, low, high)"), **limits)) == []


def test_infinite_weights_are_no_overflow(tmp_path: Path) -> None:
    assert (
        found_in(text_models.load(tmp_path, ADD, w=np.array([np.inf, -np.inf, 2, 1], np.float32)))
        == []
    )


def test_weights_in_another_file_are_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from subgraph.inspection import ranges

    monkeypatch.setattr(ranges, "PIECE_ELEMENTS", 1000)
    values = np.ones(100_000, np.float32)
    values[[7, 54_321]] = 1e6, -1e7
    made = text_models.model(
        "g (float[100000] x) => (float[100000] y) { [n] y = Add(x, w) }", w=values
    )
    onnx.save(made, tmp_path / "m.onnx", save_as_external_data=True, location="m.data")
    from subgraph.graph.graph import load

    (found,) = found_in(load(tmp_path / "m.onnx"))
    assert found.rule == "overflow" and "reaches 1e+07: 2 values" in found.reason


def test_transform_between_the_channels_is_one_normalization(tmp_path: Path) -> None:
    """ToTensor's division by 255 and Normalize behind it."""
    chain = "[a] p = Div(x, c) [b] q = Sub(p, m) [d] y = Div(q, s)"
    g = text_models.load(
        tmp_path,
        f"g (float[1,3,8,8] x) => (float[1,3,8,8] y) {{ {chain} }}",
        c=np.float32(255),
        m=np.full((3, 1, 1), 0.45, np.float32),
        s=np.full((3, 1, 1), 0.22, np.float32),
    )
    assert found_in(g) == []


def test_operators_of_a_tflite_file_are_no_custom_ones(tmp_path: Path) -> None:
    text = "g (float[N,4] x) => (float[N,4] y) { [n] y = tflite.LOGISTIC(x) }"
    g = text_models.load(tmp_path, text, domains=("tflite",))
    assert "custom-domain" not in {issue.rule for issue in found_in(g)}


def test_model_that_cannot_run_is_not_checked(tmp_path: Path) -> None:
    """That is listed as not checked, and is not a finding."""
    g = text_models.load(
        tmp_path, "g (float[N,4] x) => (float[N,4] y) { [n] y = my.Op(x) }", domains=("my",)
    )
    document = document_of(LintContext(g), RULES)
    assert [row["rule"] for row in document["not_checked"]] == ["baked-shape"]
    assert {f["rule"] for f in document["findings"]} == {"custom-domain"}


def test_sequence_length_that_is_baked_in(tmp_path: Path) -> None:
    baked = "g (float[N,T,4] x) => (float[N,T,4] y) { [n] y = Add(x, p) }"
    g = text_models.load(tmp_path, baked, p=np.ones((1, 16, 4), np.float32))
    (found,) = found_in(g)
    assert (found.rule, found.severity, found.node and found.node.label) == (
        "baked-shape",
        WARNING,
        "n",
    )


def test_axis_elsewhere_that_has_the_batchs_name_moves_with_it(tmp_path: Path) -> None:
    """x is (T, N, 4) and starts with a sequence, h is (N, 1, 4) and starts with a batch."""
    graph = "g (float[T,N,4] x, float[N,1,4] h) => (float[T,N,4] y) {"
    graph += " [t] s = Transpose<perm=[1,0,2]>(h) [n] y = Add(x, s) }"
    assert found_in(text_models.load(tmp_path, graph)) == []


def test_sizes_that_hang_together_are_a_note(tmp_path: Path) -> None:
    """No symbol declares past + new = all. The first sizes break it (16 + 16 ≠ 16), so nothing is
    reported."""
    graph = "g (float[1,P] past, float[1,T] new, float[1,A] mask) => (float[1,A] y) {"
    graph += " [c] all = Concat<axis=1>(past, new) [n] y = Add(all, mask) }"
    g = text_models.load(tmp_path, graph)
    assert found_in(g) == []
    fits = Feeding(shapes={"past": [1, 8], "new": [1, 1], "mask": [1, 9]})
    told = [(f.rule, f.severity, f.node and f.node.label) for f in found_in(g, feeding=fits)]
    assert told == [("baked-shape", NOTE, "n")]


@pytest.mark.parametrize(("kind", "says"), [(0, "UNDEFINED"), (2, "INT")])
def test_attribute_without_its_type_is_named_and_breaks_no_rule(
    kind: int, says: str, tmp_path: Path
) -> None:
    def damage(model: onnx.ModelProto) -> None:
        next(a for a in model.graph.node[0].attribute if a.name == "pads").type = kind

    g = text_models.load(tmp_path, pool("pads=[0,0,1,1], strides=[2,2]", 4), damage)
    (found,) = [f for f in found_in(g) if f.rule == "invalid"]
    assert has_line(found.reason, "'pads'", says, "INTS")


def test_invalid_model_is_told_of_and_nothing_breaks(tmp_path: Path) -> None:
    cycle = "g (float[4] x) => (float[4] y) { [a] t = Add(x, y) [b] y = Relu(t) }"
    g = text_models.load(tmp_path, cycle)
    document = document_of(LintContext(g, target=9, feeding=Feeding()), RULES)
    assert document["exit_code"] == 1
    assert any("cycle" in f["reason"] for f in document["findings"] if f["rule"] == "invalid")


# ------------------------------------------------------------ choosing


def test_only_and_ignore() -> None:
    assert lint.choose_rules() == RULES
    assert lint.choose_rules(["resize", "nameless"]) == ["resize", "nameless"]
    assert lint.choose_rules(["resize", "ceil_mode"], ["resize"]) == ["ceil-mode"]
    assert "nameless" not in lint.choose_rules(ignore=["nameless"])


@pytest.mark.parametrize("where", ["only", "ignore"])
def test_typo_in_a_rule_is_answered_with_the_nearest(where: str) -> None:
    with raises(UnknownName, "plugin.unknown", "resise") as e:
        lint.choose_rules(**{where: ["resise"]})
    assert e.value.nearest[0] == "resize"


def test_rule_of_ones_own_is_a_file(tmp_path: Path) -> None:
    rule = tmp_path / "no_relu.py"
    rule.write_text(
        '"""No Relu."""\nfrom subgraph.inspection.lint import warning\n\n\ndef check(context):\n   '
        ' """All."""\n    return [warning(p, "a Relu", "remove it") for p in'
        ' context.nodes("Relu")]\n'
    )
    g = text_models.load(tmp_path, unary("Relu(x)"))
    (found,) = lint.run_rules(LintContext(g), lint.choose_rules([str(rule)]))
    assert found.node and (found.reason, found.node.label) == ("a Relu", "n")


def test_file_without_a_check_is_no_rule(tmp_path: Path) -> None:
    (tmp_path / "no_rule.py").write_text("")
    with raises(UsageError, "plugin.no-function", "no_rule.py"):
        lint.choose_rules([str(tmp_path / "no_rule.py")])


def test_equal_notes_are_one_line() -> None:
    from subgraph.graph.graph import load

    lines = render_findings(
        lint.make_document(LintContext(load(LIGHT[-1])), ["nameless"])
    ).splitlines()
    assert (
        has_line(lines[0], "note", "nameless", "16 nodes", "#0 (ConstantOfShape)")
        and "…" in lines[0]
    )
    assert (
        lines[1].startswith("  fix: ")
        and has_line(lines[2], "0 warnings", "16 notes", "1 rule", "38 nodes")
        and len(lines) == 3
    )


def test_many_equal_warnings_are_one_line_too(tmp_path: Path) -> None:
    nodes = "".join(f"[n{k}] t{k + 1} = my.Op(t{k}) " for k in range(12))
    g = text_models.load(
        tmp_path, f"g (float[4] t0) => (float[4] t12) {{ {nodes} }}", domains=("my",)
    )
    lines = render_findings(lint.make_document(LintContext(g), ["custom-domain"])).splitlines()
    assert len(lines) == 3 and has_line(
        lines[0], "warning", "custom-domain", "12 nodes", "n0 (my.Op), n1 (my.Op)"
    )
    assert has_line(lines[0], "n7 (my.Op), …", "custom domain")


def test_later_attribute_that_changes_nothing_fits_an_older_target(tmp_path: Path) -> None:
    plain = pool("ceil_mode=0, dilations=[1,1]", 6)
    other = pool("ceil_mode=0, dilations=[2,2]", 4)
    told = [
        [
            f.severity
            for f in lint.run_rules(
                LintContext(text_models.load(tmp_path, graph), target=9), ["opset"]
            )
            if f.node
        ]
        for graph in (plain, other)
    ]
    assert told == [[], [WARNING]]


def test_fed_values_have_to_fit(tmp_path: Path) -> None:
    g = text_models.load(tmp_path, "g (float[N,T] x) => (float[N,T] y) { [n] y = Relu(x) }")
    np.save(tmp_path / "x.npy", np.ones(3, np.float32))
    with pytest.raises(InputError):
        list(lint.run_rules(LintContext(g, feeding=Feeding((str(tmp_path / "x.npy"),))), RULES))


# ------------------------------------------------------------ command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models with a warning (two rules), a note, and nothing."""
    place = tmp_path_factory.mktemp("lint")
    for name, graph, change in (
        ("bad", pool("ceil_mode=1, strides=[2,2], pads=[0,0,0,0]", 4), unnamed),
        ("noted", unary("Relu(x)"), unnamed),
        ("clean", unary("Relu(x)"), keep),
        ("baked", BAKED, keep),
    ):
        weights: dict[str, Any] = {"s": np.array([1, 2, 2])} if name == "baked" else {}
        made = text_models.model(graph, **weights)
        change(made)
        onnx.save(made, place / f"{name}.onnx")
    return place


def test_the_command_line(folder: Path) -> None:
    done = subcut("lint", "bad.onnx", cwd=folder)
    assert (done.code, done.err) == (1, "")
    lines = done.out.splitlines()
    assert has_line(lines[0], "warning", "ceil-mode", "#0 (MaxPool)") and lines[1].startswith(
        "  fix: "
    )
    assert lines[-1] == f"1 warning, 1 note: {len(RULES)} rules, 1 node"
    assert subcut("lint", "bad.onnx", "--ignore", "ceil-mode", cwd=folder).code == 0
    done = subcut("lint", "clean.onnx", cwd=folder)
    assert (done.code, done.out, done.err) == (
        0,
        f"nothing found: {len(RULES)} rules, 1 node\n",
        "",
    )


def test_json_and_what_was_not_checked(folder: Path) -> None:
    done = subcut("lint", "noted.onnx", "--json", cwd=folder)
    document = done.document
    assert (done.code, document["schema"], document["exit_code"]) == (0, "subcut.lint/1", 0)
    (finding,) = document["findings"]
    assert (finding["rule"], finding["severity"], finding["node"]["label"]) == (
        "nameless",
        NOTE,
        "#0",
    )


def test_second_size_and_ranges(folder: Path) -> None:
    done = subcut("lint", "baked.onnx", "--shape", "x=2x4", cwd=folder)
    assert done.code == 1 and has_line(done.out, "r (Reshape)", "fails", "x=2×4")
    assert subcut("lint", "baked.onnx", "--seed", "3", cwd=folder).code == 0


@pytest.mark.parametrize(("words", "code"), [(("nowhere.onnx",), 2), (("words.onnx",), 3)])
def test_slips_have_their_exit_codes(words: tuple[str, ...], code: int, folder: Path) -> None:
    (folder / "words.onnx").write_text("<html>")
    assert subcut("lint", *words, cwd=folder).code == code


def test_the_rules_are_listed(folder: Path) -> None:
    done = subcut("lint", "--rules", cwd=folder)
    assert done.code == 0 and [line.split()[0] for line in done.out.splitlines()] == RULES


def test_scales_of_another_type_are_no_internal_error(tmp_path: Path) -> None:
    """A damaged attribute ended lint in an internal error."""
    node = helper.make_node("Upsample", ["x"], ["y"], "up", mode="nearest")
    node.attribute.append(
        helper.make_attribute("scales", helper.make_tensor("t", TensorProto.FLOAT, [1, 2], [1, 2]))
    )
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 2]) for n in "xy"]
    model = helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:]))
    model.opset_import[0].version = 9
    onnx.save(model, tmp_path / "m.onnx")
    found = lint.run_rules(LintContext(load(tmp_path / "m.onnx")), ["upsample"])
    assert [one.severity for one in found] == [WARNING]


def test_int8_of_the_largest_floats_and_of_an_empty_weight(tmp_path: Path) -> None:
    inputs = "g (double[2] x, float[0,3] e) => (double[2] y, float[0,0] z)"
    text = inputs + " { y = Neg(x) z = MatMul(e, w) }"
    model = text_models.load(tmp_path, text, w=np.zeros((3, 0), np.float32))
    np.save(tmp_path / "x.npy", np.array([1.7e308, -1.7e308]))
    np.save(tmp_path / "e.npy", np.zeros((0, 3), np.float32))
    files = tuple(f"{name}={tmp_path / name}.npy" for name in ("x", "e"))
    context = LintContext(model, feeding=Feeding(files), for_int8=True)
    assert list(lint.run_rules(context, ["coarse-step"])) == []
