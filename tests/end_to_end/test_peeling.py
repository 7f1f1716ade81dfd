"""Several faults at once, and faults that change when they are looked at alone: each is found, none
is called right.

Covers `search.culprits`, `trials.propagation` and `trials.local_errors` through the command. Two
faults may cancel each other, hide behind a refusal, or fail alone in another way than inside the
model.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import text_models
from tests.helpers.run_command import subcut

pytestmark = pytest.mark.slow

CANDIDATE = '''
"""onnxruntime with faults: scale=NODE:FACTOR+…, refuse=OP, at=NODE with do=KIND, weight=NAME."""
import os
import numpy as np, onnx, onnxruntime as ort
from onnx import helper, numpy_helper

def load(path, options):
    model = onnx.load(str(path))
    if any(node.op_type == options.get("refuse") for node in model.graph.node):
        raise RuntimeError(f"no operator {options['refuse']}")
    weights = {weight.name for weight in model.graph.initializer}
    inside = any(node.name == options.get("at") for node in model.graph.node) or options.get("weight") in weights
    factors = dict(word.split(":") for word in options.get("scale", "").split("+") if word)
    nodes = []
    for node in model.graph.node:
        nodes.append(node)
        if options.get("do") == "floor":
            for attribute in node.attribute:
                if attribute.name == "ceil_mode":
                    attribute.i = 0
        if node.name in factors:
            output = node.output[0]
            node.output[0] = output + "_unscaled"
            model.graph.initializer.append(numpy_helper.from_array(np.float32(factors[node.name]), output + "_factor"))
            nodes.append(helper.make_node("Mul", [node.output[0], output + "_factor"], [output]))
    del model.graph.node[:], model.graph.value_info[:]
    model.graph.node.extend(nodes)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), settings)
    names = [output.name for output in session.get_outputs()]

    def run(feeds):
        found = dict(zip(names, session.run(names, feeds)))
        if not inside:
            return found
        kind, last, first = options["do"], names[-1], next(iter(feeds.values()))
        if kind == "crash":
            os.abort()
        if kind == "view":  # the first input comes back
            return {name: first if value.shape == first.shape else value for name, value in found.items()}
        if kind == "name":
            return {"other_" + name: value for name, value in found.items()}
        if kind == "offset":
            return {name: value + np.float32(0.5) for name, value in found.items()}
        value = found.pop(last)
        if kind == "nan":
            value[(0,) * value.ndim] = np.nan
        changed = {"type": value.astype(np.float16), "shape": value[..., :4], "nan": value}
        return found | ({last: changed[kind]} if kind in changed else {})
    return run
'''  # noqa: E501


def convolutions(path: Path, factors: dict[str, float] | None = None) -> None:
    """Save Conv and Tanh in turns, n0 … n11; `factors` scale the weights of some."""
    random = np.random.default_rng(0)
    weights = {}
    nodes = []
    for i in range(12):
        call = f"Tanh (t{i})"
        if i % 2 == 0:
            factor = (factors or {}).get(f"n{i}", 1)
            weights[f"w{i}"] = (random.standard_normal((4, 4, 3, 3)) / 6 * factor).astype(
                np.float32
            )
            call = f"Conv <pads = [1, 1, 1, 1]> (t{i}, w{i})"
        nodes.append(f"[n{i}] t{i + 1} = {call}")
    text = f"g (float[1,4,9,9] t0) => (float[1,4,9,9] t12) {{ {' '.join(nodes)} }}"
    text_models.save(path, text, **weights)


BRANCHES = """g (float[5,1,4] x) => (float[5,1,4] y) <int64[1] one = {1}> {
    [tanh] a = Tanh(x) [lstm] l = LSTM<hidden_size = 4>(a, W, R) [squeeze] r = Squeeze(l, one)
    [matmul] m = MatMul(a, w) [sigmoid] s = Sigmoid(m) [add] y = Add(r, s)
}"""


def branches(path: Path) -> None:
    """Save a recurrent branch beside a MatMul."""
    draw = np.random.default_rng(0).standard_normal
    shapes = {"w": (4, 4), "W": (1, 16, 4), "R": (1, 16, 4)}
    weights = {name: (draw(shape) / 2).astype(np.float32) for name, shape in shapes.items()}
    text_models.save(path, BRANCHES, **weights)


POOLED = """g (float[1,4,9,9] x) => (float[1,4,5,5] y) {
    [conv0] a = Conv<pads = [1, 1, 1, 1]>(x, w0)
    [pool] p = MaxPool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(a)
    [conv1] b = Conv<pads = [1, 1, 1, 1]>(p, w1) [relu] y = Relu(b)
}"""


def pooled(path: Path) -> None:
    """Save a MaxPool that rounds its size up, between convolutions: its wrong shape reaches the
    output."""
    draw = np.random.default_rng(0).standard_normal
    weights = {f"w{i}": (draw((4, 4, 3, 3)) / 6).astype(np.float32) for i in range(2)}
    text_models.save(path, POOLED, **weights)


def bisected(folder: Path, *words: str) -> dict[str, Any]:
    """The document of a bisection of `m.onnx`, which must find culprits."""
    (folder / "faulty.py").write_text(CANDIDATE)
    done = subcut("bisect", "m.onnx", *words, "--json", cwd=folder)
    assert done.code == 1, done
    return done.document


def culprits(document: dict[str, Any]) -> list[list[str]]:
    """The nodes of each region that is named, in findings all of which must be culprits."""
    findings = document["findings"]
    assert {f["kind"] for f in findings} == {"culprit"}, findings
    repeats = chain.from_iterable(f.get("repeats", ()) for f in findings)
    return sorted(region["nodes"] for region in (*findings, *repeats))


def test_two_faults_that_nearly_cancel_are_both_found(tmp_path: Path) -> None:
    convolutions(tmp_path / "m.onnx")
    for first, second in ((1.08, 0.93), (1.08, 0.992)):
        document = bisected(tmp_path, "-c", f"faulty.py:scale=n4:{first}+n9:{second}")
        assert culprits(document) == [["n4"], ["n9"]]
        assert document["complete"]


def test_two_faults_of_another_model_that_nearly_cancel_are_both_found(tmp_path: Path) -> None:
    convolutions(tmp_path / "m.onnx")
    convolutions(tmp_path / "other.onnx", {"n4": 1.08, "n8": 0.93})
    found = culprits(bisected(tmp_path, "--candidate-model", "other.onnx", "-c", "ort:opt=disable"))
    assert found == [["n4"], ["n8"]]


def test_refusal_does_not_hide_wrong_numbers_beside_it(tmp_path: Path) -> None:
    branches(tmp_path / "m.onnx")
    document = bisected(tmp_path, "-c", "faulty.py:refuse=LSTM,scale=matmul:1e4")
    assert culprits(document) == [["lstm"], ["matmul"]]
    assert {f["signature"] for f in document["findings"]} == {"refused", "mismatch"}


@pytest.mark.parametrize(
    ("kind", "signature"),
    [
        *(("type", "shape"), ("name", "missing"), ("crash", "crash")),
        *(
            pytest.param(*p, marks=pytest.mark.rare)
            for p in (("shape", "shape"), ("missing", "missing"), ("nan", "nan"))
        ),
    ],
)
def test_wrong_type_shape_or_name_is_bisected(tmp_path: Path, kind: str, signature: str) -> None:
    convolutions(tmp_path / "m.onnx")
    document = bisected(tmp_path, "-c", f"faulty.py:at=n7,do={kind}")
    assert culprits(document) == [["n7"]]
    assert document["findings"][0]["signature"] == signature


def test_wrong_shape_that_reaches_the_output_is_bisected(tmp_path: Path) -> None:
    pooled(tmp_path / "m.onnx")
    document = bisected(tmp_path, "-c", "faulty.py:do=floor")
    assert culprits(document) == [["pool"]]
    assert document["trials"] <= 8


def test_certificate_says_only_what_was_seen(tmp_path: Path) -> None:
    """A model with n7 gives its first input back: alone it fails otherwise than inside."""
    convolutions(tmp_path / "m.onnx")
    document = bisected(tmp_path, "-c", "faulty.py:at=n7,do=view")
    assert all(
        step["status"] != "agree" for step in document["steps"] if (step["error"] or 0) > 1e-3
    )
    assert ["n7"] in [f["nodes"] for f in document["findings"]]
    assert not any("cancel" in f["why"] for f in document["findings"])


def test_offset_of_every_output_is_no_accumulation(tmp_path: Path) -> None:
    """A model with the weight w6 comes out 0.5 too high; no other model is touched."""
    convolutions(tmp_path / "m.onnx")
    assert culprits(bisected(tmp_path, "-c", "faulty.py:weight=w6,do=offset")) == [["n6"]]
