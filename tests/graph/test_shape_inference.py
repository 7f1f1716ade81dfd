"""Shape inference: long 1-D tensors cost neither time nor memory, and no type is lost by hiding them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.shape_inference import infer_shapes

from fixtures import graphs, networks, resnet50
from subgraph.graph import shape_inference, walk
from subgraph.graph.onnx_process import OnnxProcess
from tests.helpers import text_models
from tests.helpers.run_command import PATIENCE

GREAT = 1_000_000_000
INFER = """
import resource, sys
from pathlib import Path
from subgraph.graph import graph, shape_inference
shape_inference.infer_types(graph.load(Path(sys.argv[1])))  # all that is imported late
held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + (1 << 30),) * 2)
for path in sys.argv[2:]:
    found = shape_inference.infer_types(graph.load(Path(path)))
    dims = {name: kind.tensor_type.shape.dim for name, kind in found.inferred.items()}
    print("all:", *(f"{name}={size[0].dim_value}" for name, size in dims.items() if len(size) == 1), flush=True)
"""
COUNT = (
    "k = Shape(x) one = Constant<value = int64[1] {1}>() d = Gather(k, one) n = Squeeze(d)"
    " from = Constant<value = int64 {0}>() by = Constant<value = int64 {1}>()"
)


GREAT_ONES = [
    ("g (float[N] x) => (float[n] z) { y = Mul(x, x) z = Add(y, x) }", "yz"),
    ("g (float[2,N] x) => (float[n] z) <int64 o = {1}> { y = Gather(x, o) z = Add(y, y) }", "yz"),
    ("g () => (int64[n] z) <int64 b = {N}, int64 o = {0}, int64 s = {1}> { y = Range(o, b, s) z = Add(y, y) }", "yz"),
    ("g () => (float[n] z) <int64[1] s = {N}> { y = ConstantOfShape(s) z = Add(y, y) }", "yz"),
    ("g (float[1] x) => (float[n] z) <int64[1] s = {N}> { y = Expand(x, s) z = Sub(y, x) }", "yz"),
    ("g (float[1] x) => (float[n] z) <int64[1] s = {N}> { y = Tile(x, s) z = Add(y, y) }", "yz"),
    ("g (float[N] x) => (float[n] z) <int64[1] a = {0}, int64[1] b = {N}> { y = Slice(x, a, b) z = Neg(y) }", "yz"),
    (f"g (float[2,N] x) => (float[n] z) {{ {COUNT} y = ConstantOfShape(d) z = Add(y, y) }}", "y"),
    (f"g (float[2,N] x) => (int64[n] z) {{ {COUNT} y = Range(from, n, by) z = Add(y, y) }}", ""),
    (
        "g (float[N] x, bool c) => (float[N] z) { z = If<then_branch = t () => (float[n] p) { p = Add(x, x) },"
        " else_branch = e () => (float[n] q) { r = Add(x, x) q = Sub(r, x) }>(c) }",
        "z",
    ),
]


def test_a_thousand_million_elements(tmp_path: Path) -> None:
    """In a process limited to 1 GiB, where tracking one of them would take 140 GB. Their lengths are inferred."""
    paths = [tmp_path / f"{k}.onnx" for k in range(len(GREAT_ONES))]
    for path, (text, _) in zip(paths, GREAT_ONES, strict=True):
        onnx.save(text_models.model(re.sub(r"\bN\b", str(GREAT), text)), path)
    onnx.save(text_models.model("g (float[2] x) => (float[n] z) { z = Neg(x) }"), tmp_path / "small.onnx")
    words = [sys.executable, "-c", INFER, str(tmp_path / "small.onnx"), *map(str, paths)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    for line, (text, makes) in zip(done.stdout.splitlines(), GREAT_ONES, strict=True):
        assert {f"{name}={GREAT}" for name in makes} <= set(line.split()), text


def types(model: Any) -> dict[str, str]:
    """Type of each tensor, also in bodies, without the numbers of invented symbols."""
    found = {}
    for number, inner in enumerate(walk.all_graphs(model.graph)):
        for v in (*inner.value_info, *inner.output):
            found[f"{number}/{v.name}"] = re.sub(r"unk__\d+", "unk", str(v.type))
    return found


POSITIONS = (
    "g (float[2,7] x) => (float[p,q] z) <float[5] w = {1, 2, 3, 4, 5}> {" + COUNT + " r = Range(from, n, by)"
    " u = Unsqueeze(r, one) f = Cast<to = 1>(u) m = Mul(f, w) five = Shape(w)"
    " two = Concat<axis = 0>(d, five) e = Expand(m, two)"
    " v = ConstantOfShape(d) s = Add(v, v) c = Concat<axis = 0>(d, one) t = Reshape(s, c) z = Abs(t) }"
)


@pytest.mark.parametrize(
    "build",
    [
        lambda: resnet50.build(width=8, size=64, classes=10),
        graphs.shape_chain,
        graphs.if_in_if,
        graphs.loop_body,
        graphs.scan_body,
        graphs.nested_functions,
        lambda: text_models.model(POSITIONS),
    ],
)
@pytest.mark.parametrize("long", [shape_inference.LONG_TENSOR, 2])
def test_what_is_short_is_known_as_well_as_ever(build: Any, long: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also types computed from short tensors. With a tiny limit, types that need no tracking remain."""
    model = build()
    monkeypatch.setattr(shape_inference, "LONG_TENSOR", long)
    with OnnxProcess(Path("m.onnx")) as process:
        found, _ = shape_inference.infer_model(model, process)
    full, plain = types(infer_shapes(model, data_prop=True)), types(infer_shapes(model))
    if long > 2:
        assert types(found) == full
    else:
        assert plain.keys() <= types(found).keys() <= full.keys()
    assert [n.SerializeToString() for n in names(found)] == [n.SerializeToString() for n in names(model)]
    assert not re.search("#raw|#hides|#one|#any", str(found))


def names(model: Any) -> list[Any]:
    """Nodes, without the types that inference adds to their bodies; inputs; weights."""
    bare = type(model)()
    bare.CopyFrom(model)
    for inner in walk.all_graphs(bare.graph):
        inner.ClearField("value_info")
        inner.ClearField("output")
    return [*bare.graph.node, *bare.graph.input, *bare.graph.initializer]


def test_a_long_weight_that_is_an_input_too(tmp_path: Path) -> None:
    size = shape_inference.LONG_TENSOR + 1
    text = f"g (float[{size}] x, float[{size}] w) => (float[n] z) {{ y = Add(x, w) z = Concat<axis = 0>(y, w) }}"
    found = shape_inference.infer_types(text_models.load(tmp_path, text, ir=3, w=np.zeros(size, np.float32)))
    assert [d.dim_value for d in found.inferred["z"].tensor_type.shape.dim] == [2 * size]
    assert [v.name for v in found.graph.input] == ["x", "w"]
    assert [t.name for t in found.graph.initializer] == ["w"]
    assert found.complaints == []


def test_a_mistake_behind_a_long_tensor_is_found(tmp_path: Path) -> None:
    text = f"g (float[{GREAT}] x, float[3] y, float[4] w) => (float[n] z) {{ h = Mul(x, x) z = Add(y, w) }}"
    (complaint,) = shape_inference.infer_types(text_models.load(tmp_path, text)).complaints
    assert (complaint.node, complaint.certain) == (1, True) and "Incompatible dimensions" in complaint.text


@pytest.mark.parametrize("build", [networks.vision, networks.transformer, networks.speech, networks.detector])
def test_a_network_has_nothing_to_hide(build: Any) -> None:
    """So that usual networks are inferred in one round."""
    plain = infer_shapes(build())
    assert not shape_inference.long_tensors(plain) and not shape_inference.possibly_long(plain)


def test_every_operator_that_onnx_follows_is_known() -> None:
    """Except Shape and Size, which read no values."""
    follows = {s.name for s in onnx.defs.get_all_schemas_with_history() if s.has_data_propagation_function}
    assert follows - {"Shape", "Size"} <= shape_inference.TRACKED_OPS
