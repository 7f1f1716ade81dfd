"""A model that quantizes itself is judged by its own steps; where these move the whole beyond use,
by its pieces.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import text_models
from tests.helpers.planted_candidates import planted
from tests.helpers.run_command import Done, subcut

# It pads with another code than that of 0, where the three stand together: as Qualcomm's HTP
# emulator does.
PADS = """
import numpy, onnx, onnxruntime
def load(model, options):
    made = onnx.load(str(model))
    maker = {name: node for node in made.graph.node for name in node.output}
    op = lambda node: node.op_type if node else ""
    for node in list(made.graph.node):
        pad = maker.get(node.input[0])
        if (op(node), op(pad)) == ("QuantizeLinear", "Pad") and op(maker.get(pad.input[0])) == "DequantizeLinear":
            made.graph.initializer.append(onnx.numpy_helper.from_array(numpy.float32(options["value"]), "far"))
            pad.input.append("far")
    exact = onnxruntime.SessionOptions()
    exact.add_session_config_entry("session.x64quantprecision", "1")  # sums that do not saturate
    session = onnxruntime.InferenceSession(made.SerializeToString(), exact, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, dict(feeds))))
def precision(options):
    return "int8"
"""  # noqa: E501
PADDED = """g (float[1,4,8,8] x) => (float[1,6] y) {
    [q1] a = QuantizeLinear (x, s, z) [d1] b = DequantizeLinear (a, s, z) [pad] c = Pad (b, pads)
    [q2] d = QuantizeLinear (c, s, z) [d2] e = DequantizeLinear (d, s, z) [dw] v = DequantizeLinear (w, ws, zero)
    [conv] f = Conv (e, v) [q3] h = QuantizeLinear (f, t, zero) [d3] i = DequantizeLinear (h, t, zero)
    [mean] y = ReduceMean <axes = [2, 3], keepdims = 0> (i) }"""  # noqa: E501
# It adds a part of a step to what it quantizes: right codes are the nearest ones, or as near.
SHIFTS = planted("""
model.graph.initializer.append(numpy_helper.from_array(np.float32(0.02 * float(options["steps"])), "shift"))
for node in nodes:
    if node.op_type == "QuantizeLinear":
        shifted = helper.make_node("Add", [node.input[0], "shift"], ["shifted"])
        model.graph.node.insert(list(model.graph.node).index(node), shifted)
        node.input[0] = "shifted"
""")  # noqa: E501
WILD = """g (float[1,64] x) => (float[1,64] y) {
    [q] a = QuantizeLinear (x, s, z) [d] b = DequantizeLinear (a, s, z) [far] c = Mul (b, large) [wave] y = Sin (c) }"""  # noqa: E501
AMPLIFIED = (
    "piece by piece; the model turns one quantization step into 100 % of its output, so two right"
    " runtimes may"
)


def asked(folder: Path, command: str, spec: str, *more: str) -> Done:
    return subcut(
        command, "m.onnx", "-i", "x.npy", "-c", spec, "--trust", "--json", *more, cwd=folder
    )


@pytest.fixture
def padded(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    weights: dict[str, Any] = {
        "w": rng.integers(-99, 99, (6, 4, 3, 3), np.int8),
        "pads": np.array([0, 0, 1, 1] * 2),
    }
    weights |= {
        "s": np.float32(1 / 255),
        "z": np.int8(-128),
        "t": np.float32(0.02),
        "ws": np.float32(0.004),
    }
    weights |= {"zero": np.int8(0)}
    text_models.save(tmp_path / "m.onnx", PADDED, **weights)
    (tmp_path / "pads.py").write_text(PADS, encoding="utf-8")
    np.save(tmp_path / "x.npy", rng.uniform(0, 1, (1, 4, 8, 8)).astype(np.float32))
    return tmp_path


@pytest.fixture
def wild(tmp_path: Path) -> Path:
    weights: dict[str, Any] = {"s": np.float32(0.02), "z": np.int8(0), "large": np.float32(1000)}
    text_models.save(tmp_path / "m.onnx", WILD, **weights)
    (tmp_path / "shifts.py").write_text(SHIFTS, encoding="utf-8")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(1, 64)).astype(np.float32))
    return tmp_path


@pytest.mark.slow
def test_claim_of_int8_excuses_nothing_in_a_model_that_quantizes_itself(padded: Path) -> None:
    """It was right within int8 rounding."""
    done = asked(padded, "bisect", "pads.py:value=0.04")
    assert done.code == 1, done.out
    assert [f["nodes"] for f in done.document["findings"]] == [["d1", "pad", "q2"]]


@pytest.mark.slow
@pytest.mark.turns(2)
@pytest.mark.parametrize("command", ["bisect", "compare"])
def test_where_a_step_moves_the_whole_beyond_use_the_pieces_decide(
    command: str, wild: Path
) -> None:
    right = asked(wild, command, "shifts.py:steps=0.04")
    assert right.code == 0, right.out
    assert right.document["whole"]["label"] == "steps" and right.document["agree"]
    assert AMPLIFIED in str(right.document.get("pieces", right.document.get("says")))
    wrong = asked(wild, command, "shifts.py:steps=0.4")
    assert wrong.code == 1, wrong.out
    if command == "bisect":
        assert [f["nodes"] for f in wrong.document["findings"]] == [["q"]]


CALM = WILD.replace("Mul (b, large) [wave] y = Sin (c)", "Mul (b, large) [wave] y = Sigmoid (c)")


@pytest.mark.slow
@pytest.mark.turns(2)
@pytest.mark.parametrize(("steps", "code"), [("0.04", 0), ("0.4", 1)])
def test_codes_decide_if_the_outputs_agree_by_their_steps(
    steps: str, code: int, wild: Path
) -> None:
    """A quarter of the codes move one way, each by one step: that the output allows it excuses
    nothing."""
    text_models.save(wild / "m.onnx", CALM, s=np.float32(0.02), z=np.int8(0), large=np.float32(0.1))
    done = asked(wild, "bisect", f"shifts.py:steps={steps}")
    assert done.code == code, done.out
    assert done.document["whole"]["status"] == "agree"
    assert [f["nodes"] for f in done.document["findings"]] == [["q"]] * code


def test_exact_candidate_costs_no_look(wild: Path) -> None:
    assert asked(wild, "bisect", "ort").document.get("pieces") is None
