"""Lint: each rule reports its tiny model but not the repaired one, and reports nothing in sound
networks.

Covers `inspection.lint` with `inspection.lint._places`, `_windows`, all
rules, and `commands.lint`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from subgraph import plugins
from subgraph.commands.lint import text
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
RULES = plugins.names("lint")
Edit = Callable[[onnx.ModelProto], Any]


def keep(model: onnx.ModelProto) -> None:
    """No edit."""


def unnamed(model: onnx.ModelProto) -> None:
    model.graph.node[0].name = ""


def all_called_a(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.name = "a"


@dataclass(frozen=True)
class Case:
    """A model with one trouble, and the same model repaired.

    Attributes:
        node: label of the node that it is at.
        bad, good: graphs in ONNX's text form; good is `bad` where only options or weights differ.
        more, mended: how they are written (opset, domains, weights, change); mended is `more`
            unless said.
    """

    bad: str
    good: str = ""
    severity: str = WARNING
    says: str = ""
    more: dict[str, Any] = field(default_factory=dict)
    mended: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    fine: dict[str, Any] | None = None
    node: str = "n"
    rule: str = ""

    def __str__(self) -> str:
        return f"{self.rule}-{self.says or self.node}"


def unary(node: str, shape: str = "1,3,8,8", out: str = "", dtype: str = "float") -> str:
    return f"g ({dtype}[{shape}] x) => ({dtype}[{out or shape}] y) {{ [n] y = {node} }}"


def pool(settings: str, size: int = 8, out: int = 8, op: str = "AveragePool") -> str:
    return unary(
        f"{op}<kernel_shape=[3,3], {settings}>(x)", f"1,3,{size},{size}", f"1,3,{out},{out}"
    )


def resize(
    settings: str, scale: float | None = None, opset: int = 17
) -> tuple[str, dict[str, Any]]:
    """The graph and its scale, 1.5 by default."""
    scales = np.array([1, 1, scale or 1.5, scale or 1.5], np.float32)
    size = int(8 * (scale or 1.5))
    return unary(f"Resize<{settings}>(x, , s)", out=f"1,3,{size},{size}"), {
        "s": scales,
        "opset": opset,
    }


def resized(
    node_says: str, settings: str, good: str, scale: float | None = None, **more: Any
) -> Case:
    (bad, weights), (fine, _) = resize(settings, scale), resize(good, scale)
    return Case(bad, fine, says=node_says, more=weights, **more)


LINEAR = 'mode="linear", coordinate_transformation_mode'
NEAREST = 'mode="nearest", coordinate_transformation_mode'
BN = "BatchNormalization<{}>(x, w, w, w, w)"
STATS = {"w": np.ones(3, np.float32)}
ADD = "g (float[4] x) => (float[4] y) { [n] y = Add(x, w) }"
CHAIN = "g (float[1,3,8,8] x) => (float[1,3,8,8] y) { [a] p = Sub(x, m) [b] q = Div(p, s) "
PLAIN = CHAIN + "[c] y = Relu(q) }"
TWICE = CHAIN + "[c] r = Sub(q, m) [d] y = Div(r, s) }"
MEAN = {"m": np.full((3, 1, 1), 120, np.float32), "s": np.full((3, 1, 1), 60, np.float32)}
BAKED = "g (float[N,4] x) => (float[N,2,2] y) { [r] t = Reshape(x, s) [n] y = Relu(t) }"
GROWN = "g (float[4] x) => (float[4] y) { [n] y = Mul(x, w) }"
SIX = np.array([6, 3e5, 1, 1], np.float32)

GROUPS = {
    "known": [
        Case(
            pool("dilations=[2,2], strides=[1,1]", 8, 4, "MaxPool"),
            pool("strides=[1,1]", 8, 6, "MaxPool"),
            NOTE,
            "known of mnn",
            options={"runtime": "mnn"},
        )
    ],
    "asymmetric-pads": [
        Case(
            pool("pads=[0,0,1,1], strides=[2,2]", 8, 4, "MaxPool"),
            pool("pads=[1,1,1,1], strides=[2,2]", 8, 4, "MaxPool"),
            NOTE,
            "0 at the beginning and 1 at the end",
        ),
        Case(
            pool('auto_pad="SAME_LOWER", strides=[2,2]', 8, 4, "MaxPool"),
            pool('auto_pad="SAME_LOWER", strides=[1,1]', op="MaxPool"),
            NOTE,
            "SAME_LOWER",
        ),
    ],
    "average-pool": [
        Case(
            pool("pads=[1,1,1,1], count_include_pad=1"),
            pool("count_include_pad=1", 8, 6),
            says="count_include_pad=1",
        ),
        Case(pool("pads=[1,1,1,1]"), pool("pads=[0,0,0,0]", 8, 6), NOTE, "count_include_pad=0"),
        Case(
            pool('auto_pad="SAME_UPPER", count_include_pad=1'),
            pool('auto_pad="VALID", count_include_pad=1', 8, 6),
            says="differ along the edge",
        ),
    ],
    "ceil-mode": [
        Case(
            pool("ceil_mode=1, strides=[2,2]", 8, 4, "MaxPool"),
            pool("ceil_mode=1, strides=[2,2]", 9, 4, "MaxPool"),
            says="4×4",
        ),
        Case(
            unary(
                "MaxPool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(x)", "1,3,H,W", "1,3,P,Q"
            ),
            pool("ceil_mode=1, strides=[2,2]", 9, 4, "MaxPool"),
            NOTE,
            "open",
            options={"skip": "baked-shape"},
        ),
    ],
    "custom-domain": [
        Case(
            unary("my.Op(x)"),
            unary("Relu(x)"),
            says="custom domain 'my'",
            more={"domains": ("my",)},
        ),
        Case(
            unary("com.microsoft.Gelu(x)"),
            unary("Gelu(x)"),
            says="operator of onnxruntime",
            more={"domains": ("com.microsoft",), "opset": 20, "ir": 9},
        ),
        Case(
            unary("ai.onnx.ml.Binarizer<threshold=1.0>(x)"),
            unary("Relu(x)"),
            NOTE,
            "ai.onnx.ml",
            more={"domains": ("ai.onnx.ml",)},
        ),
    ],
    "data-dependent": [
        Case(
            "g (float[4] x) => (int64[1,k] y) { [n] y = NonZero(x) }",
            "g (float[4] x) => (int64[4] y) { [n] y = Cast<to=7>(x) }",
            says="depends on values",
        ),
        Case(
            "g (float[4] x, int64[1] k) => (float[a] v, int64[b] i) { [n] v, i = TopK(x, k) }",
            "g (float[4] x, int64[1] k) => (float[4] v)"
            " { [n] c = Cast<to=1>(k) [m] v = Add(x, c) }",
            says="static shapes",
        ),
        Case(
            "g (float[4] x) => (float[2] v, int64[2] i) { [n] v, i = TopK(x, k) }",
            "g (float[4] x) => (float[4] v) { [n] v = Relu(x) }",
            NOTE,
            "lower index",
            more={"k": np.array([2])},
            mended={},
        ),
    ],
    "denormals": [
        Case(
            ADD,
            severity=WARNING,
            says="4 of 4",
            more={"w": np.full(4, 1e-40, np.float32)},
            mended={"w": np.ones(4, np.float32)},
            options={"skip": "underflow"},
        ),
        Case(
            ADD,
            severity=NOTE,
            says="1 of 4",
            more={"w": np.array([1e-40, 1, 1, 1], np.float32)},
            mended={"w": np.array([0, 1, 1, 1], np.float32)},
            options={"skip": "underflow"},
        ),
    ],
    "double-normalization": [
        Case(TWICE, PLAIN, node="c", says="subtracted by constants twice", more=MEAN),
        Case(
            PLAIN,
            node="a",
            says="--mean",
            more=MEAN,
            fine={},
            options={"image_options": ImageOptions(mean=(120.0,))},
        ),
        Case(
            "g (float[1,3,8,8] x) => (float[1,3,8,8] y) { [a] p = Div(x, s) [b] y = Div(p, s) }",
            "g (float[1,3,8,8] x) => (float[1,3,8,8] y) { [a] y = Div(x, s) }",
            node="b",
            says="divided by 64",
            more={"s": np.float32(255)},
        ),
        Case(
            unary("Div(x, s)"),
            says="--scale",
            more={"s": np.float32(255)},
            options={"image_options": ImageOptions(scale=(1 / 255,))},
            fine={},
        ),
    ],
    "duplicate-names": [
        Case(
            "g (float[4] x) => (float[4] y) { [a] t = Relu(x) [b] y = Neg(t) }",
            node="#1",
            says="#0",
            more={"change": all_called_a},
            mended={},
        )
    ],
    "overflow": [
        Case(
            ADD, says="infinite in float16", more={"w": SIX}, mended={"w": np.ones(4, np.float32)}
        ),
        Case(
            "g (float[1] x) => (float[1] y)"
            " { [n] c = Constant<value_float=-1e9>() [m] y = Add(x, c) }",
            "g (float[1] x) => (float[1] y)"
            " { [n] c = Constant<value_float=-1e4>() [m] y = Add(x, c) }",
            node="m",
            says="-1e4",
        ),
        Case(
            GROWN.replace("Mul(x, w)", "Exp(x)"),
            says="on these inputs",
            options={"feeding": Feeding(("x.npy",))},
            fine={},
        ),
    ],
    "underflow": [
        Case(ADD, says="1e-12", more={"w": np.float32(1e-12)}, mended={"w": np.float32(1e-5)}),
        Case(
            ADD,
            severity=NOTE,
            says="25%",
            more={"w": np.array([1e-9, 1, 1, 1], np.float32)},
            mended={"w": np.ones(4, np.float32)},
        ),
    ],
    "coarse-step": [
        Case(
            "g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y) { [n] y = Conv(x, w) }",
            says="1 channel below 0.039 zero in int8",
            more={"w": np.array([10, 0.01], np.float32).repeat(2).reshape(2, 2, 1, 1)},
            mended={"w": np.array([10, 0.1], np.float32).repeat(2).reshape(2, 2, 1, 1)},
            options={"for_int8": True},
        ),
        Case(
            GROWN,
            says="at least 75 % of its values",
            more={"w": np.array([1000, 1, 1, 1], np.float32)},
            mended={"w": np.array([20, 1, 1, 1], np.float32)},
            options={"for_int8": True, "feeding": Feeding(("x.npy",))},
        ),
    ],
    "integer-clip": [
        Case(
            unary("Clip(x, w)", "4", dtype="int64"),
            unary("Max(x, w)", "4", dtype="int64"),
            says="int64",
            more={"w": np.int64(0)},
        )
    ],
    "invalid": [
        Case(unary("Relu<alpha=1.0>(x)"), unary("Relu(x)"), says="alpha"),
        Case(unary("Relux(x)"), unary("Relu(x)"), says="not part of opset"),
    ],
    "nan-weights": [
        Case(
            ADD,
            says="1 values of constant 'w' are NaN",
            more={"w": np.array([np.nan, 1, 1, 1], np.float32)},
            mended={"w": np.array([-np.inf, 1, 1, 1], np.float32)},
        ),
        Case(
            unary("Conv(x, w)"),
            says="9 values of weight 'w' are infinite",
            more={"w": np.full((3, 3, 1, 1), np.inf, np.float32)},
            mended={"w": np.ones((3, 3, 1, 1), np.float32)},
        ),
        Case(
            unary("Mul(x, w)"),
            says="1 values of weight 'w' are infinite",
            more={"w": np.array(np.inf, np.float32)},
            mended={"w": np.array(2, np.float32)},
        ),
        Case(
            unary("BatchNormalization(x, s, s, s, w)"),
            says="2 values of its variance 'w'",
            more={"w": np.array([-1, 1, -0.1], np.float32), "s": np.ones(3, np.float32)},
            mended={"w": np.array([-1e-6, 1, 1], np.float32), "s": np.ones(3, np.float32)},
        ),
    ],
    "nameless": [
        Case(unary("Relu(x)"), node="#0", severity=NOTE, more={"change": unnamed}, mended={})
    ],
    "opset": [
        Case(
            unary("Gelu(x)"),
            unary("Erf(x)"),
            says="comes with opset 20",
            more={"opset": 20, "ir": 9},
            options={"target": 13},
            mended={"opset": 13},
        ),
        Case(
            unary("ReduceSum(x, a)", out="1,1,8,8"),
            unary("ReduceSum<axes=[1]>(x)", out="1,1,8,8"),
            says="at opset 11",
            more={"a": np.array([1])},
            options={"target": 11},
            mended={"opset": 11},
        ),
        Case(
            unary("Softmax<axis=1>(x)"),
            unary("Softmax<axis=3>(x)"),
            says="flattened",
            options={"target": 12},
            mended={"opset": 12},
        ),
    ],
    "resize": [
        resized("align_corners", f'{LINEAR}="align_corners"', f'{LINEAR}="half_pixel"'),
        resized(
            "neither align_corners", f'{LINEAR}="asymmetric"', f'{LINEAR}="pytorch_half_pixel"'
        ),
        resized(
            "asymmetric",
            f'{LINEAR}="asymmetric"',
            f'{NEAREST}="asymmetric", nearest_mode="floor"',
            2,
        ),
        resized(
            "half_pixel",
            f'{NEAREST}="half_pixel"',
            f'{NEAREST}="asymmetric", nearest_mode="floor"',
            1.7,
        ),
        resized(
            "ceil", f'{NEAREST}="asymmetric", nearest_mode="ceil"', f'{NEAREST}="half_pixel"', 2
        ),
        Case(
            unary(
                'Resize<mode="linear", coordinate_transformation_mode="tf_crop_and_resize">(x,'
                " r, s)",
                out="1,3,12,12",
            ),
            resize(f'{LINEAR}="half_pixel"')[0],
            says="crop",
            more=resize("")[1] | {"r": np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32)},
            mended=resize("")[1],
        ),
        Case(
            resize('mode="cubic"')[0], resize('mode="linear"')[0], NOTE, "cubic", more=resize("")[1]
        ),
    ],
    "training": [
        Case(
            unary(BN.format("training_mode=1")),
            unary(BN.format("epsilon=0.1")),
            says="training_mode=1",
            more=STATS,
            options={"skip": "invalid"},
        ),
        Case(
            unary(BN.format("epsilon=0.1")),
            unary(BN.format("is_test=1")),
            says="is_test=0",
            more=STATS | {"opset": 6},
        ),
        Case(
            unary("BatchNormalization(x, w, w, w, w)").replace("y = ", "y, a, b, c, d = "),
            unary("BatchNormalization(x, w, w, w, w)"),
            says="5 outputs",
            more=STATS | {"opset": 9},
        ),
        Case(
            unary(BN.format("spatial=0")),
            unary(BN.format("epsilon=0.1")),
            says="per pixel",
            more=STATS | {"opset": 7},
            options={"skip": "invalid"},
        ),
        Case(
            unary("Dropout(x, r, t)"),
            says="two runs differ",
            more={"r": np.float32(0.5), "t": np.array(True)},
            mended={"r": np.float32(0.5), "t": np.array(False)},
        ),
    ],
    "types": [
        Case(
            unary("Clip(x)", "4", dtype="int64"),
            unary("Clip(x)", "4"),
            says="int64",
            more={"opset": 11},
        ),
        Case(
            "g (float[4] x, double[4] z) => (float[4] y) { [n] y = Add(x, z) }",
            "g (float[4] x, float[4] z) => (float[4] y) { [n] y = Add(x, z) }",
            says="inconsistent type",
        ),
    ],
    "upsample": [
        Case(
            unary('Upsample<mode="linear">(x, s)', out="1,3,16,16"),
            unary('Resize<mode="linear">(x, r, s)', out="1,3,16,16"),
            says="deprecated",
            more={"opset": 9, "s": np.array([1, 1, 2, 2], np.float32)},
            mended={
                "opset": 11,
                "s": np.array([1, 1, 2, 2], np.float32),
                "r": np.array([], np.float32),
            },
        ),
        Case(
            unary('Resize<mode="nearest">(x, s)', out="1,3,16,16"),
            unary('Resize<mode="nearest">(x, r, s)', out="1,3,16,16"),
            NOTE,
            "opset 10",
            more={"opset": 10, "s": np.array([1, 1, 2, 2], np.float32)},
            mended={
                "opset": 11,
                "s": np.array([1, 1, 2, 2], np.float32),
                "r": np.array([], np.float32),
            },
        ),
    ],
    "baked-shape": [
        Case(
            BAKED,
            node="r",
            says="declared open",
            more={"s": np.array([1, 2, 2])},
            mended={"s": np.array([-1, 2, 2])},
        ),
        Case(
            BAKED.replace("N,", "1,"),
            node="r",
            says="x=3×4",
            more={"s": np.array([1, 2, 2])},
            mended={"s": np.array([-1, 2, 2])},
            options={"second_sizes": {"x": [3, 4]}},
        ),
    ],
}


def _iter_cases() -> Iterator[Case]:
    for rule, cases in GROUPS.items():
        yield from (replace(case, rule=rule) for case in cases)


CASES = list(_iter_cases())


def prepare(
    folder: Path, graph: str, more: dict[str, Any], options: dict[str, Any]
) -> tuple[LintContext, list[str]]:
    """The context of the model, written to a file, and the names of all rules except the one to
    skip."""
    folder.mkdir()
    np.save(folder / "x.npy", np.full(4, 12, np.float32))
    options = dict(options)
    skip = options.pop("skip", "")
    if feeding := options.get("feeding"):
        options["feeding"] = Feeding(tuple(str(folder / f) for f in feeding.inputs))
    change = more.get("change", keep)
    g = text_models.load(folder, graph, change, **{k: v for k, v in more.items() if k != "change"})
    return LintContext(g, **options), lint.choose_rules(ignore=[skip] if skip else [])


def is_a_sentence(said: str) -> bool:
    return bool(said) and not said.endswith(".") and "\n" not in said and len(said) < 300


@pytest.mark.turns(3)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule_finds_its_model_and_not_the_mended_one(case: Case, tmp_path: Path) -> None:
    subject, rules = prepare(tmp_path / "bad", case.bad, case.more, case.options)
    every = list(lint.run_rules(subject, rules))
    assert all(
        is_a_sentence(f.reason) and (is_a_sentence(f.fix) or f.severity == UNCHECKED) for f in every
    )
    found = [f for f in every if f.rule == case.rule and f.node]
    assert [f.node and f.node.label for f in found] == [case.node]
    assert found[0].severity == case.severity and case.says in f"{found[0].reason} {found[0].fix}"
    mended = case.more if case.mended is None else case.mended
    options = case.options if case.fine is None else case.fine
    subject, rules = prepare(tmp_path / "good", case.good or case.bad, mended, options)
    assert [
        (f.rule, f.reason) for f in lint.run_rules(subject, rules) if f.severity != UNCHECKED
    ] == []


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_docstring_a_check_and_a_model_here(rule: str) -> None:
    module = plugins.load("lint", rule)
    assert module.check.__doc__ and (help_text := plugins.help_of("lint", rule)).endswith(".")
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
    document: dict[str, Any] = to_json(lint.document(context, rules))
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
    graph, weights = resize(f'{LINEAR}="align_corners"', 1)
    assert found_in(text_models.load(tmp_path, graph, **weights)) == []


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
    from subgraph.inspection.lint import _places

    monkeypatch.setattr(_places, "PIECE", 1000)
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

    g = text_models.load(tmp_path, pool("pads=[0,0,1,1], strides=[2,2]", 8, 4, "MaxPool"), damage)
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

    lines = text(lint.document(LintContext(load(LIGHT[-1])), ["nameless"])).splitlines()
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
    lines = text(lint.document(LintContext(g), ["custom-domain"])).splitlines()
    assert len(lines) == 3 and has_line(
        lines[0], "warning", "custom-domain", "12 nodes", "n0 (my.Op), n1 (my.Op)"
    )
    assert has_line(lines[0], "n7 (my.Op), …", "custom domain")


def test_later_attribute_that_changes_nothing_fits_an_older_target(tmp_path: Path) -> None:
    plain = pool("ceil_mode=0, dilations=[1,1]", 8, 6, "MaxPool")
    other = pool("ceil_mode=0, dilations=[2,2]", 8, 4, "MaxPool")
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
        ("bad", pool("ceil_mode=1, strides=[2,2], pads=[0,0,0,0]", 8, 4, "MaxPool"), unnamed),
        ("noted", unary("Relu(x)"), unnamed),
        ("clean", unary("Relu(x)"), keep),
        ("baked", BAKED.replace("N,", "1,"), keep),
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
